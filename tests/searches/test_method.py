from __future__ import annotations

import pytest
import torch

from neuronfair import Decision
from neuronfair.searches.method import MIN_MARGIN_LOSS, decision_margins, inverse_margin_loss, renew_state, swap_pairs
from tests.planted import networks

DOMAIN = networks.domain(attributes=3)


def test_the_room_of_a_pair():
    scores = torch.tensor([[0.5, 2.0, 1.25], [3.0, 0.0, -1.0]])
    assert decision_margins(Decision(), scores).tolist() == [0.75, 3.0]
    assert decision_margins(Decision("threshold", 0.25), scores).tolist() == [1.0, 1.25]
    pairs = torch.tensor([[1.0], [4.0], [1.5], [9.0]])  # two rows, then their twins
    assert decision_margins(Decision("tolerance", 0.25), pairs).tolist() == [0.25, 4.75, 0.25, 4.75]
    assert swap_pairs(pairs)[:, 0].tolist() == [1.5, 9.0, 1.0, 4.0]


def test_inverse_harm_by_hand():
    # The row has a room of 2 and its twin of 4; a step up changes them by g and g'.
    here = networks.context(networks.random_module(DOMAIN), DOMAIN)
    base = torch.tensor([[4, 4, 4, 0]])
    state = {
        "base": base,
        "room": torch.tensor([[2.0, 4.0]]),
        "g": torch.tensor([[-1.0, 1.0, 0.5, -9.0]]),
        "g_twin": torch.tensor([[-1.0, -1.0, 0.5, -9.0]]),
    }
    up = inverse_margin_loss(here, state, base + 1)[0].tolist()
    # Half the row's room is lost; a quarter of the twin's; nobody loses; what is sensitive does not move.
    assert up == pytest.approx([2.0, 4.0, 1 / MIN_MARGIN_LOSS, 0.0])
    down = inverse_margin_loss(here, state, base - 1)[0].tolist()
    assert down == pytest.approx([1 / MIN_MARGIN_LOSS, 2.0, 4.0, 0.0])
    assert inverse_margin_loss(here, state, base)[0].tolist() == [0.0] * 4  # no move, no weight


def test_only_the_marked_are_made_anew():
    old, asked = {"rows": torch.tensor([[1], [2], [3]])}, []

    def make(some):
        asked.append(some.tolist())
        return {"rows": old["rows"][some] * 10}

    assert renew_state(torch.tensor([True, False, True]), old, make)["rows"].tolist() == [[10], [2], [30]]
    assert renew_state(torch.zeros(3, dtype=torch.bool), old, make) is old
    assert asked == [[0, 2]]


def test_the_room_between_two_classes_is_that_between_the_first_two_of_many():
    scores = torch.tensor([[1.0, 3.5], [2.0, -1.0], [0.25, 0.25], [-0.0, 0.0]])  # of equal scores the first is decided
    two, many = scores.clone().requires_grad_(), torch.cat([scores, torch.full((4, 1), -9.0)], 1).requires_grad_()
    rooms = [decision_margins(Decision(), x) for x in (two, many)]
    assert torch.equal(*rooms)
    assert rooms[0].tolist() == [2.5, 3.0, 0.0, 0.0]
    slopes = [torch.autograd.grad(left.sum(), x)[0] for left, x in zip(rooms, (two, many), strict=True)]
    assert torch.equal(slopes[0], slopes[1][:, :2])
