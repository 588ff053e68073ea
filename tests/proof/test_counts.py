"""Whole numbers of people from shares and counts, and everybody of a box who is asked."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch

from neuronfair.model.decision import Decision
from neuronfair.proof import problem as problems
from neuronfair.proof.bounds.margins import margins_of
from neuronfair.proof.bounds.space import Axis, Boxes, Space, can_enumerate, combinations
from neuronfair.proof.problem import enumerated_people
from neuronfair.proof.state import (
    BITS,
    certified_boxes,
    certified_columns,
    certified_shares,
    enumerated_columns,
    undecided_columns,
)
from tests.proof import worlds


def _problem(space, inside=((True, True),), **others):
    """People of a space of which `inside` says who belongs to the region, by pattern."""
    inside = torch.tensor(inside)
    whole = space.everything()
    people = worlds.people_in(whole, torch.ones_like(inside), inside)
    count = people.count(space, whole, people.pattern)[0]
    return SimpleNamespace(space=space, people=people, count=count, device=space.device, **others)


def _two(space):
    """Everything, cut in the middle of the first axis."""
    axis = torch.tensor([0])
    whole = space.everything()
    return space.halves(whole, axis, space.middle(whole, axis)), torch.tensor([0, 0])


def _numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_shares_are_rounded_down():
    problem = _problem(worlds.space_of(10, [1, 2]))  # 5 · 3 · 2 = 30 people in each half
    boxes, pattern = _two(problem.space)
    leaves = certified_boxes(problem, [undecided_columns(boxes, pattern, _numbers(0.5, 0.1), _numbers(0.49, 1 / 30))])
    assert leaves.low.tolist() == [[0, 0], [5, 0]]
    assert leaves.high.tolist() == [[4, 1], [9, 1]]
    assert leaves.fair == [15, 2]  # 0.1 is cut to 30 bits, so that it is a little less than 3
    assert leaves.discriminatory == [14, 0]


@pytest.mark.parametrize("size", [7, 10**6, 2**31 - 1, 10**9])
def test_no_more_is_claimed_than_the_share_and_little_less(size):
    """By fractions, on both sides of what int64 holds."""
    problem = _problem(worlds.space_of([size, size], [size], 4))
    boxes, pattern = _two(problem.space)
    share = _numbers(0.123456789, 1 - 1e-10)
    leaves = certified_boxes(problem, [undecided_columns(boxes, pattern, share, 1 - share)])
    whole = size * size * 4 * 2
    parts = [*share.tolist(), *(1 - share).tolist()]
    for claimed, part in zip([*leaves.fair, *leaves.discriminatory], parts, strict=True):
        exact = Fraction(part) * whole
        assert exact - Fraction(whole, 2**BITS) - 1 < claimed <= exact
        assert isinstance(claimed, int)
    assert all(a + b <= whole for a, b in zip(leaves.fair, leaves.discriminatory, strict=True))


@pytest.mark.parametrize("size", [5, 10**10])
def test_what_is_decided_as_a_whole_is_exact(size):
    problem = _problem(worlds.space_of([size, size], [size]), inside=((True, False, True),))
    boxes, pattern = _two(problem.space)
    leaves = certified_boxes(problem, [certified_columns(boxes, pattern, torch.tensor([True, False]))])
    assert leaves.fair == [2 * size**2, 0]
    assert leaves.discriminatory == [0, 2 * size**2]


@pytest.mark.parametrize("size", [3, 10**10])
def test_counts_are_exact_and_multiply_by_axes_of_one_place(size):
    problem = _problem(worlds.space_of([1, 3], [size], [size]), inside=((True, True, False),))
    boxes, pattern = problem.space.everything(), torch.tensor([0])
    columns = enumerated_columns(problem, boxes, pattern, (torch.tensor([3]), torch.tensor([1])))
    assert columns["fair"].tolist() == [0.75]
    assert columns["flips"].tolist() == [0.25]
    leaves = certified_boxes(problem, [columns])
    assert leaves.fair == [3 * size**2 * 2]
    assert leaves.discriminatory == [size**2 * 2]
    assert certified_shares(problem, columns).tolist() == pytest.approx([0.75 * 2 / 3, 0.25 * 2 / 3])


def test_several_lists_of_boxes_become_one():
    problem = _problem(worlds.space_of(4))
    boxes, pattern = _two(problem.space)
    parts = [
        certified_columns(boxes[:1], pattern[:1], torch.tensor([True])),
        undecided_columns(boxes[1:], pattern[1:], _numbers(0.0), _numbers(0.5)),
    ]
    leaves = certified_boxes(problem, parts)
    assert (leaves.fair, leaves.discriminatory, len(leaves)) == ([4, 0], [0, 2], 2)


def _margins(space, generator_seed=0):
    """Margins that are any function of the place, and its table."""
    shape = [len(axis) for axis in space.axes]
    table = torch.randn(*shape, 3, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(generator_seed))
    return lambda places: table[tuple(places.T)]


@pytest.mark.parametrize("rows", [1, 30, 1 << 18])
def test_everybody_is_asked_and_counted_by_codes(monkeypatch, rows):
    monkeypatch.setattr(problems, "ROWS", rows)  # in groups of any size
    space = worlds.space_of([1, 4, 2], 5, [3, 1], [6])
    question = margins_of(Decision(), 2, "none")
    margins = _margins(space)
    slack = torch.tensor([0.2], dtype=torch.float64)
    problem = _problem(space, ((True,) * 3, (True,) * 3), margins=question, margins_at=margins, slack=slack)
    problem.people.valid[1, 0] = False
    boxes = worlds.random_boxes(space, 25)
    pattern = torch.arange(25) % 2
    fair, flips = enumerated_people(problem, boxes, pattern)
    for n in range(25):
        places = worlds.places_of(boxes, n)
        valid = problem.people.valid[pattern[n]].expand(len(places), -1)
        alike, split = question.decided(margins(places), slack, valid)
        weight = worlds.weights_of(space, places)
        once = boxes.low[n] == boxes.high[n]
        one = torch.stack([axis.count[boxes.low[n, i]] for i, axis in enumerate(space.axes)])[once].prod()
        assert (fair[n] * one, flips[n] * one) == (weight[alike].sum(), weight[split].sum())
        assert combinations(boxes)[n] == len(places)
    assert (fair > 0).any()
    assert (flips > 0).any()
    assert (fair + flips < space.sizes(boxes).prod(1)).any()  # those within the slack are neither


def test_nobody_is_asked_of_no_box():
    problem = _problem(worlds.space_of(3))
    none = space = problem.space.everything()[:0]
    assert [len(part) for part in enumerated_people(problem, none, torch.zeros(0, dtype=torch.int64))] == [0, 0]
    assert len(space) == 0


def test_boxes_of_more_codes_than_int64_counts_are_not_asked():
    """A few places may stand for very many codes: 2^4 combinations here for 2^68."""
    space = worlds.space_of(*[[2**16, 2**16]] * 4)
    whole = space.everything()
    assert combinations(whole).tolist() == [16]
    part = Boxes(whole.low, torch.tensor([[1, 1, 1, 0]]))
    assert can_enumerate(space, Boxes.joined([whole, part]), 512).tolist() == [False, True]
    assert can_enumerate(space, Boxes.joined([whole, part]), 7).tolist() == [False, False]


def test_boxes_of_more_people_than_64_bits_count_are_cut_instead() -> None:
    places, many = torch.arange(2), torch.tensor([1 << 40, 1 << 40])
    space = Space(tuple(Axis(column, places, places, many, False) for column in range(2)))
    boxes = Boxes(torch.zeros(3, 2, dtype=torch.int64), torch.tensor([[1, 1], [1, 0], [0, 0]]))
    assert can_enumerate(space, boxes, most=4).tolist() == [False, True, True]
    assert can_enumerate(space, boxes, most=1).tolist() == [False, False, True]
