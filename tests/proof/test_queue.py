"""Boxes that are taken and put back."""

from __future__ import annotations

import random

import pytest
import torch

from neuronfair.proof.state import LEVELS, BoxQueue


def _columns(ids, fair=0.0, flips=0.0):
    n = len(ids)
    made = {"id": torch.tensor(ids, dtype=torch.int32)}
    return made | {name: torch.full((n,), v, dtype=torch.float64) for name, v in (("fair", fair), ("flips", flips))}


def _queue():
    return BoxQueue({name: column[:0] for name, column in _columns([0]).items()})


def test_the_most_open_come_first():
    queue = _queue()
    share = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64)
    columns = _columns([1, 2, 3, 4])
    columns["fair"][1] = 0.9  # 0.04 of all are open in it
    queue.put(columns, share)
    assert queue.proved.tolist() == pytest.approx([0.36, 0.0])
    assert sorted(queue.take(2)["id"].tolist()) == [3, 4]
    assert len(queue) == 2
    assert sorted(queue.everything()["id"].tolist()) == [1, 2]
    assert queue.take(1)["id"].tolist() == [1]
    assert queue.take(9)["id"].tolist() == [2]
    assert len(queue) == 0
    assert queue.proved.tolist() == [0.0, 0.0]


def test_a_box_of_which_nothing_is_open_is_not_forgotten():
    queue = _queue()
    queue.put(_columns([1], fair=0.75, flips=0.25), torch.tensor([1.0], dtype=torch.float64))
    assert queue.take(5)["id"].tolist() == [1]


def test_boxes_are_kept_whatever_is_taken_and_put():
    draw, queue, held, following = random.Random(0), _queue(), {}, 0
    for _ in range(60):
        if draw.random() < 0.5:
            taken = queue.take(draw.randint(0, 9))
            for number in taken["id"].tolist():
                del held[number]
        else:
            ids = list(range(following, following := following + draw.randint(0, 12)))
            share = torch.tensor([draw.random() for _ in ids], dtype=torch.float64)
            fair, flips = draw.random() / 2, draw.random() / 2
            queue.put(_columns(ids, fair, flips), share)
            held |= {number: (s * fair, s * flips) for number, s in zip(ids, share.tolist(), strict=True)}
        assert len(queue) == len(held)
        assert sorted(queue.everything()["id"].tolist()) == sorted(held)
        sums = [sum(pair[i] for pair in held.values()) for i in (0, 1)]
        assert queue.proved.tolist() == pytest.approx(sums)


def test_bounds_that_only_some_boxes_have():
    """Boxes with and without bounds lie in one queue; where they are taken together nothing is known of the others."""
    queue, one = _queue(), torch.ones(2, dtype=torch.float64)
    inner = {"inner": torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]])}
    queue.put(_columns([1, 2]) | inner, one)
    queue.put(_columns([3, 4]), one)
    queue.put(_columns([5, 6]) | inner, one)
    assert "inner" not in queue.everything()
    taken = queue.take(6)
    bounds = dict(zip(taken["id"].tolist(), taken["inner"][:, 0].tolist(), strict=True))
    nothing = [-torch.inf, torch.inf]
    assert bounds == {1: [1, 2], 2: [3, 4], 3: nothing, 4: nothing, 5: [1, 2], 6: [3, 4]}
    queue.put(_columns([7, 8]), one)
    assert "inner" not in queue.take(2)


def test_no_box_waits_for_one_of_a_lower_level():
    """The boxes that are taken have the highest priorities, up to the width of a level."""
    draw, queue, held, following = random.Random(1), _queue(), dict[int, float](), 0
    for _ in range(200):
        ids = list(range(following, following := following + draw.randint(0, 40)))
        share = [draw.random() ** 3 for _ in ids]
        queue.put(_columns(ids), torch.tensor(share, dtype=torch.float64))
        held |= dict(zip(ids, share, strict=True))
        taken = queue.take(draw.randint(1, 25))["id"].tolist()
        least = min((held.pop(number) for number in taken), default=1.0)
        assert least * 2 ** (1 / LEVELS) >= max(held.values(), default=0.0)
        assert len(queue) == len(held)
        assert queue.proved.tolist() == pytest.approx([0.0, 0.0])


def test_a_level_is_a_few_lists():
    queue = _queue()
    for number in range(1000):
        queue.put(_columns([number]), torch.tensor([0.5], dtype=torch.float64))
    (lists,) = queue._levels.values()
    assert len(lists) <= 11
    assert sorted(queue.take(1000)["id"].tolist()) == list(range(1000))
