from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from neuronfair.audits.test_models import _plain_copy
from tests.planted import networks

DOMAIN = networks.domain()  # five numbers


class Sliced(nn.Module):
    """Looks at three of its inputs only."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x[:, :3])


class Beside(nn.Module):
    """Two layers beside each other, which one after the other would not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(5, 4), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(x) + self.one(x).sum(1, keepdim=True)


def test_a_relu_network_is_kept_as_weights():
    module = networks.one_biased_neuron()
    copied, x = _plain_copy(nn.Sequential(module), DOMAIN), torch.eye(5)
    assert torch.equal(copied(x), module(x))


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.ReLU()),
        nn.Sequential(nn.Linear(5, 4, bias=False), nn.ReLU(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)),
        Beside(),
        Sliced(),
    ],
    ids=["no layer", "no bias", "another activation", "beside", "sliced"],
)
def test_what_would_be_another_function_is_not(module):
    assert _plain_copy(module.eval(), DOMAIN) is None
