"""The combinations of sensitive values, counted by hand."""

from __future__ import annotations

import torch

from neuronfair.domain.twins import Combinations

# Two values in column 2 and three in column 0, of rows with three columns.
BOTH = Combinations.of((2, 0), (2, 3), torch.device("cpu"))


def test_they_come_in_order():
    assert BOTH.values.tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert BOTH.others.tolist() == [1, 2, 3, 4, 5]


def test_where_a_row_stands():
    rows = torch.tensor([[[0, 9, 0], [2, 9, 0]], [[1, 9, 1], [7, 9, -3]]])  # the last outside: taken for 2 and 0
    assert BOTH.number(rows).tolist() == [[0, 2], [4, 2]]


def test_those_ahead_begin_anew_after_the_last():
    rows = torch.tensor([[1, 9, 1], [0, 8, 0]])
    assert BOTH.rows_at_offsets(rows, torch.tensor([1, 2])).tolist() == [[[2, 9, 1], [0, 9, 0]], [[1, 8, 0], [2, 8, 0]]]
    assert BOTH.rows_at_offsets(rows, torch.tensor([[5], [0]])).tolist() == [[[0, 9, 1]], [[0, 8, 0]]]
    assert rows.tolist() == [[1, 9, 1], [0, 8, 0]]


def test_a_member_is_the_row_itself_or_one_ahead():
    rows = torch.tensor([[1, 9, 1], [0, 8, 0], [7, 7, -3]])
    assert BOTH.member(rows, torch.tensor([2, 3, 0])).tolist() == [[0, 9, 0], [0, 8, 1], [7, 7, -3]]
    one = Combinations.of((1,), (3,), torch.device("cpu"))
    assert one.member(rows % 3, torch.tensor([1, 1, 0])).tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 0]]
    assert one.rows_at_offsets(rows % 3, one.others)[:, :, 1].tolist() == [[1, 2], [0, 1], [2, 0]]


def test_one_code_stands_for_a_band():
    bands = Combinations.of((1,), (10,), torch.device("cpu"), [((0, 3, 7), (1, 5, 8))])
    assert bands.values.tolist() == [[1], [5], [8]]
    rows = torch.tensor([[0, 2], [0, 3], [0, 9], [0, 12]])
    assert bands.number(rows).tolist() == [0, 1, 2, 2]
    assert bands.rows_at_offsets(rows, bands.others)[:, :, 1].tolist() == [[5, 8], [8, 1], [1, 5], [1, 5]]
    assert bands.member(rows, torch.tensor([0, 1, 2, 0]))[:, 1].tolist() == [2, 8, 5, 12]
    assert rows[:, 1].tolist() == [2, 3, 9, 12]
    both = Combinations.of((1, 0), (10, 2), torch.device("cpu"), [((0, 5), (2, 7)), None])
    assert both.values.tolist() == [[2, 0], [2, 1], [7, 0], [7, 1]]
    assert both.number(torch.tensor([[1, 4], [0, 5]])).tolist() == [1, 2]
