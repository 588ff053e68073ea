"""What scores are taken for, and what they say as probabilities."""

from __future__ import annotations

import math

import pytest
import torch

from neuronfair.model.decision import Decision, find_probabilities, infer_scale

ARGMAX, HALF, ZERO = Decision(), Decision("threshold", 0.5), Decision("threshold", 0.0)


@pytest.mark.parametrize(
    ("decision", "scores", "scale"),
    [
        (ARGMAX, [[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]], "probabilities"),
        (ARGMAX, [[0.2, 0.8], [0.9, 0.9]], "numbers"),  # votes: within 0 and 1, but of nothing whole
        (ARGMAX, [[0.2, 0.8], [1.4, -0.4]], "logits"),
        (HALF, [[0.2], [0.9]], "probabilities"),
        (Decision("threshold", 0.3), [[0.2, 0.8]], "probabilities"),
        (HALF, [[0.2], [1.2]], "numbers"),  # a regression on 0 and 1
        (ZERO, [[0.2], [0.9]], "logits"),
        (HALF, [[0.0], [1.0]], "numbers"),  # decisions, and no probabilities
        (ARGMAX, [[0.0, 1.0], [1.0, 0.0]], "numbers"),
        (ZERO, [[-1.0], [1.0]], "numbers"),
        (Decision("threshold", 40.0), [[12.0], [90.0]], "numbers"),
        (Decision("tolerance", 0.1), [[0.2], [0.9]], "numbers"),
    ],
)
def test_scales(decision, scores, scale):
    assert infer_scale(decision, torch.tensor(scores)) == scale


def test_logits_become_probabilities_of_the_persons_class():
    found = find_probabilities(
        ARGMAX, "logits", torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([[0.0, math.log(4.0)]])
    )
    assert (found.label.tolist(), found.row.item(), found.twin.item()) == ([0], pytest.approx(0.75), pytest.approx(0.2))
    single = find_probabilities(
        ZERO, "logits", torch.tensor([[math.log(3.0)]]), torch.tensor([[-math.log(3.0)]]), favourable=0
    )
    assert (single.label.item(), single.row.item(), single.twin.item()) == (0, pytest.approx(0.25), pytest.approx(0.75))


def test_the_favourable_class_is_told_where_it_is_at_stake():
    scores, others = torch.tensor([[0.5, 0.4, 0.1]] * 2), torch.tensor([[0.2, 0.7, 0.1], [0.2, 0.1, 0.7]])
    found = find_probabilities(ARGMAX, "probabilities", scores, others, favourable=1)
    assert found.label.tolist() == [1, 0]  # the second pair is about other classes
    assert found.row.tolist() == pytest.approx([0.4, 0.5])
    assert found.twin.tolist() == pytest.approx([0.7, 0.2])
    assert find_probabilities(Decision("tolerance", 0.1), "numbers", scores, others) is None
