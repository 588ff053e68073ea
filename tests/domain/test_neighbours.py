"""The values next to a value."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from neuronfair.domain.table import Neighbours

COLUMN = st.tuples(st.integers(1, 5), st.booleans(), st.booleans())  # points, whether ordered, with an empty cell


@given(st.lists(COLUMN, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_value_goes_one_step_inwards_or_anywhere_else(columns, random):
    points = torch.tensor([many for many, _, _ in columns])
    sizes = points + torch.tensor([int(empty) for _, _, empty in columns])
    ordered = torch.tensor([in_order for _, in_order, _ in columns])
    rows = torch.tensor([[random.randrange(size) for size in sizes.tolist()] for _ in range(8)])
    u = torch.tensor([[random.random() for _ in columns] for _ in range(8)], dtype=torch.float64)
    near = Neighbours.of(sizes, points, ordered).drawn(rows, u)
    for row, numbers, there in zip(rows.tolist(), u.tolist(), near.tolist(), strict=True):
        for code, v, to, (many, in_order, empty) in zip(row, numbers, there, columns, strict=True):
            size = many + empty
            if in_order and many > 1 and code < many:
                step = -1 if v < 0.5 else 1
                assert to == (code + step if 0 <= code + step < many else code - step)
            else:
                assert to == (code + 1 + int(v * (size - 1))) % size


def test_nothing_is_made_anew_where_all_are_ordered():
    near = Neighbours.of(torch.tensor([3, 2]), torch.tensor([3, 2]), torch.tensor([True, True]))
    assert len(near.others) == 0
    rows, u = torch.tensor([[0, 1], [1, 0], [2, 1]]), torch.tensor([[0.1, 0.9], [0.5, 0.2], [0.9, 0.4]])
    assert near.drawn(rows, u.double()).tolist() == [[1, 0], [2, 1], [1, 0]]
