"""Boxes that are taken and put back."""

from __future__ import annotations

import random

import pytest
import torch

from neuronfair.proof.decide.queue import BoxQueue


def _columns(ids, fair=0.0, flips=0.0):
    n = len(ids)
    made = {"id": torch.tensor(ids, dtype=torch.int32)}
    return made | {name: torch.full((n,), v, dtype=torch.float64) for name, v in (("fair", fair), ("flips", flips))}


def _pool():
    return BoxQueue({name: column[:0] for name, column in _columns([0]).items()})


def test_the_most_open_come_first():
    pool = _pool()
    share = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64)
    columns = _columns([1, 2, 3, 4])
    columns["fair"][1] = 0.9  # 0.04 of all are open in it
    pool.put(columns, share)
    assert pool.proved.tolist() == pytest.approx([0.36, 0.0])
    assert sorted(pool.take(2)["id"].tolist()) == [3, 4]
    assert len(pool) == 2
    assert sorted(pool.everything()["id"].tolist()) == [1, 2]
    assert pool.take(1)["id"].tolist() == [1]
    assert pool.take(9)["id"].tolist() == [2]
    assert len(pool) == 0
    assert pool.proved.tolist() == [0.0, 0.0]


def test_a_box_of_which_nothing_is_open_is_not_forgotten():
    pool = _pool()
    pool.put(_columns([1], fair=0.75, flips=0.25), torch.tensor([1.0], dtype=torch.float64))
    assert pool.take(5)["id"].tolist() == [1]


def test_boxes_are_kept_whatever_is_taken_and_put():
    draw, pool, held, following = random.Random(0), _pool(), {}, 0
    for _ in range(60):
        if draw.random() < 0.5:
            taken = pool.take(draw.randint(0, 9))
            for number in taken["id"].tolist():
                del held[number]
        else:
            ids = list(range(following, following := following + draw.randint(0, 12)))
            share = torch.tensor([draw.random() for _ in ids], dtype=torch.float64)
            fair, flips = draw.random() / 2, draw.random() / 2
            pool.put(_columns(ids, fair, flips), share)
            held |= {number: (s * fair, s * flips) for number, s in zip(ids, share.tolist(), strict=True)}
        assert len(pool) == len(held)
        assert sorted(pool.everything()["id"].tolist()) == sorted(held)
        sums = [sum(pair[i] for pair in held.values()) for i in (0, 1)]
        assert pool.proved.tolist() == pytest.approx(sums)


def test_bounds_that_only_some_boxes_have():
    pool, one = _pool(), torch.ones(2, dtype=torch.float64)
    told = {"told": torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]])}

    def bounds():
        held = pool.everything()
        return dict(zip(held["id"].tolist(), held["told"][:, 0].tolist(), strict=True))

    pool.put(_columns([1, 2]) | told, one)
    assert bounds() == {1: [1, 2], 2: [3, 4]}
    pool.put(_columns([3, 4]), one)  # forgets them
    assert "told" not in pool.everything()
    pool.put(_columns([5, 6]) | told, one)  # of the others nothing is known
    nothing = [-torch.inf, torch.inf]
    assert bounds() == {1: nothing, 2: nothing, 3: nothing, 4: nothing, 5: [1, 2], 6: [3, 4]}
    pool.take(6)
    pool.put(_columns([7, 8]) | told, one)  # in slots that were free
    assert bounds() == {7: [1, 2], 8: [3, 4]}


def test_the_first_are_found_among_many_without_a_look_at_all(monkeypatch):
    """The boxes that are taken are those with the highest priorities, however many are listed in front."""
    monkeypatch.setattr("neuronfair.proof.decide.queue.LISTED", 2)
    monkeypatch.setattr("neuronfair.proof.decide.queue.SAMPLED", 16)
    draw, pool, held = random.Random(1), _pool(), dict[int, float]()
    following = 0
    for _ in range(200):
        ids = list(range(following, following := following + draw.randint(0, 40)))
        share = [draw.random() ** 3 for _ in ids]
        pool.put(_columns(ids), torch.tensor(share, dtype=torch.float64))
        held |= dict(zip(ids, share, strict=True))
        taken = pool.take(draw.randint(1, 25))["id"].tolist()
        assert sorted(taken) == sorted(sorted(held, key=held.__getitem__)[len(held) - len(taken) :])
        held = {number: priority for number, priority in held.items() if number not in taken}
        assert len(pool) == len(held)
        assert pool.proved.tolist() == pytest.approx([0.0, 0.0])
