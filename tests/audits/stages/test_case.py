"""The input of the stages: which attributes matter most to a model."""

from __future__ import annotations

import torch

from neuronfair import BlackBox, Decision
from neuronfair.audits.stages.case import rank_attributes


def test_importance(people):
    """Only gain, column 5 and input 12, moves the score much, and age a little."""
    model = BlackBox.of_inputs(lambda x: 10 * x[:, 12] + 0.1 * x[:, 0], people)
    rows = people.sample(100, torch.Generator().manual_seed(0))
    assert rank_attributes(model, people, rows, Decision("threshold"))[:2] == [5, 0]
