"""People to try models on, and what every white box must be able to do."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neuronfair.domain.table import TableDomain
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open import OpenedModel


class Crowd(NamedTuple):
    domain: TableDomain
    rows: Tensor
    x: Tensor
    labels: Tensor


@pytest.fixture
def crowd(people) -> Crowd:
    """300 valid people, encoded, with labels that depend on age, sex and race."""
    rows = people.sample(300, torch.Generator().manual_seed(0))
    labels = (rows[:, 0] / 40 + rows[:, 1] + (rows[:, 4] == 2) > 1.6).long()
    return Crowd(people, rows, TableEncoding.of(people).encode(rows), labels)


def trained(module: nn.Module, x: Tensor, loss) -> nn.Module:
    """Train a torch module for a few steps, so that its weights are not those it was born with."""
    torch.manual_seed(1)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    for _ in range(20):
        optimizer.zero_grad()
        loss(module(x)).backward()
        optimizer.step()
    return module.eval()


def check_white_box(opened: OpenedModel, rows: Tensor, answers: np.ndarray, layers: list[int]) -> None:
    """A white box answers as its source does, has these layers, a gradient, and a twin in float64."""
    assert opened.white_box
    assert opened.note.startswith("White box")
    network = opened.model
    answers = np.asarray(answers, dtype=np.float64).reshape(len(rows), -1)
    np.testing.assert_allclose(network.scores(rows).numpy(), answers, rtol=0, atol=1e-5)
    assert list(network.neurons.values()) == layers
    assert network.gradient(rows, lambda scores: scores[:, -1]).abs().sum() > 0
    double = network.double()
    scores = double.scores(rows)
    assert scores.dtype == torch.float64
    np.testing.assert_allclose(scores.numpy(), answers, rtol=0, atol=1e-5)
    assert len(opened.fingerprint) == 64


def check_black_box(opened: OpenedModel, rows: Tensor, answers: np.ndarray, why: str) -> None:
    """A black box answers as its source does and says why it is one."""
    assert not opened.white_box
    assert opened.module is None
    assert opened.note.startswith("Black box")
    assert why in opened.note
    scores = opened.model.scores(rows).numpy()
    np.testing.assert_allclose(scores, np.asarray(answers, dtype=np.float64).reshape(len(rows), -1), rtol=0, atol=1e-5)
