"""The paper's architectures."""

from __future__ import annotations

import pytest
import torch

from neuronfair.errors import ModelError
from neuronfair.model.weights import HFCN, LFCN, fully_connected


def test_the_light_network_has_the_published_sizes() -> None:
    module = fully_connected(13)
    shapes = [tuple(p.shape) for name, p in module.named_parameters() if name.endswith("weight")]
    assert shapes == [(64, 13), (32, 64), (16, 32), (8, 16), (4, 8), (2, 4)]
    assert [name for name, _ in module.named_children()] == [*(f"layer{i}" for i in range(1, 6)), "output"]
    assert LFCN == (64, 32, 16, 8, 4)


def test_every_hidden_layer_ends_in_a_relu_and_the_output_does_not() -> None:
    module = fully_connected(3, (5, 4), 3)
    x = torch.randn(6, 3)
    h = (x @ module.layer1[0].weight.T + module.layer1[0].bias).clamp(min=0)
    h = (h @ module.layer2[0].weight.T + module.layer2[0].bias).clamp(min=0)
    torch.testing.assert_close(module(x), h @ module.output.weight.T + module.output.bias)


@torch.no_grad()
def test_the_signal_survives_the_heavy_network() -> None:
    torch.manual_seed(0)
    spreads = [float(fully_connected(40, HFCN)(torch.randn(500, 40)).std()) for _ in range(5)]
    assert sorted(spreads)[2] > 0.1


def test_torch_seeds_make_it_repeatable() -> None:
    torch.manual_seed(1)
    one = fully_connected(4).state_dict()
    torch.manual_seed(1)
    two = fully_connected(4).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_network_without_hidden_layers_is_linear() -> None:
    assert [name for name, _ in fully_connected(4, ()).named_children()] == ["output"]


def test_empty_layers_are_refused() -> None:
    with pytest.raises(ModelError, match="3-4-0-2"):
        fully_connected(3, (4, 0))
