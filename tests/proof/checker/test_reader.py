"""What the checker reads of a network: the operations it knows, and a refusal by name for all others."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from neuronfair.proof.certificate import CertificateError
from neuronfair.proof.checker.network import evaluate_curve
from neuronfair.proof.checker.reader import ReadNetwork, read_network


class Own(nn.Module):
    """A network of two layers whose forward pass is a function."""

    def __init__(self, forward) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a, self.act, self.b, self.norm = nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 2), nn.BatchNorm1d(6)
        self.norm.running_mean, self.norm.running_var = torch.arange(6.0), torch.arange(1.0, 7.0)
        self.register_buffer("count", torch.zeros(()))
        self.calls = 0
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)

    def plain(self, x: Tensor) -> Tensor:
        return self.b(self.act(self.a(x)))


def scores(network: ReadNetwork, x: np.ndarray) -> np.ndarray:
    for layer, curve in zip(network.layers, (*network.curves, None), strict=True):
        x = x @ layer.weight.T + layer.bias
        x = x if curve is None else evaluate_curve(curve, x)
    return torch.tensor(x).softmax(-1).numpy() if network.end == "softmax" else x


KNOWN = {
    "plain": nn.Sequential(nn.Linear(7, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)),
    "softmax": nn.Sequential(nn.Linear(7, 3), nn.GELU(), nn.Linear(3, 2), nn.Softmax(dim=1)),
    "inplace": nn.Sequential(nn.Linear(7, 3), nn.SiLU(inplace=True), nn.Linear(3, 1), nn.Flatten(0)),
    "elu": nn.Sequential(nn.Linear(7, 3), nn.ELU(), nn.Linear(3, 3), nn.Softplus(), nn.Linear(3, 1)),
    "prelu": nn.Sequential(nn.Linear(7, 3), nn.PReLU(), nn.Linear(3, 1)),
    "convolution": nn.Sequential(
        nn.Unflatten(1, (1, 7)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.ReLU(), nn.Linear(10, 1)
    ),
    "linear": nn.Linear(7, 2),
    "normed": Own(lambda s, x: s.b(functional.leaky_relu(s.norm(s.a(x)), 0.2).unsqueeze(1).squeeze(1))),
    "scaled": Own(lambda s, x: s.plain((x - 3) / torch.arange(1, 8))),
    "joined": Own(lambda s, x: s.plain(torch.cat([x[:, :3], 2 * x[:, 3:] + torch.ones(len(x), 4)], 1))),
    "moved": Own(lambda s, x: s.plain(x.view(len(x), 7, 1).transpose(1, 2).squeeze(1)[:, torch.arange(6, -1, -1)])),
    "sigmoid inside": Own(lambda s, x: torch.stack([1 - (p := torch.sigmoid(s.a(x)))[:, 0], p[:, 0]], 1)),
    "summed": Own(lambda s, x: s.b(torch.relu(x.sum(1, keepdim=True) - x.mean(1, keepdim=True) + s.a(x)))),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_operations_are_read_exactly(name):
    module = KNOWN[name].eval()
    network = read_network(module, 7)
    x = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)).double() * 9
    true = module.double()(x).detach().reshape(50, -1).numpy()
    np.testing.assert_allclose(scores(network, x.numpy()), true, rtol=1e-12, atol=1e-12)
    module.float()


def test_a_sigmoid_at_the_end_is_an_end_and_weights_are_as_stored():
    module = nn.Sequential(nn.Linear(7, 3), nn.Sigmoid(), nn.Linear(3, 1), nn.Sigmoid())
    network = read_network(module, 7)
    assert ([curve.name for curve in network.curves], network.end) == (["sigmoid"], "sigmoid")
    for layer, part in zip(network.layers, (module[0], module[2]), strict=True):
        assert np.array_equal(layer.weight, part.weight.detach().double().numpy())
        assert np.array_equal(layer.bias, part.bias.detach().double().numpy())


def branch(s, x):
    return 2 * s.plain(x) if x.max() > 193 else s.plain(x)


def hidden_branch(s, x):
    try:
        return 2 * s.plain(x) if x.numpy().max() > 193 else s.plain(x)
    except Exception:
        return s.plain(x)


def count(s, x):
    s.count += 1
    return s.plain(x)


def count_silently(s, x):
    s.calls += 1
    return s.calls * s.plain(x)


def overwritten(s, x):
    hidden = s.a(x)
    hidden[:, :2].relu_()
    return s.b(s.act(hidden))


def assigned(s, x):
    x = x.clone()
    x[:, 0] = 0
    return s.plain(x)


def hooked():
    module = nn.Sequential(nn.Linear(7, 3), nn.ReLU(), nn.Linear(3, 2))
    module[1].register_forward_hook(lambda _, __, output: output.clamp(max=5))
    return module


UNKNOWN = {
    "clamp": (Own(lambda s, x: s.plain(x.clamp(max=193))), "'clamp'"),
    "override": (
        Own(lambda s, x: torch.where((x[:, :1] > 193) & (x[:, 1:2] == 1), s.b.bias.double(), s.plain(x))),
        "'gt'",
    ),
    "branch": (Own(branch), "'max'"),
    "branch by numpy": (Own(hidden_branch), "numpy"),
    "jump in a hidden layer": (Own(lambda s, x: s.b((h := s.act(s.a(x))) + (h > 5).double())), "'gt'"),
    "minimum": (Own(lambda s, x: s.plain(torch.minimum(x, torch.tensor(193.0)))), "'minimum'"),
    "round": (Own(lambda s, x: s.plain(x.round())), "'round'"),
    "float32": (Own(lambda s, x: s.plain(x.float().double())), "float32"),
    "skip": (Own(lambda s, x: x[:, :2] + s.plain(x)), "not a chain"),
    "two activations": (Own(lambda s, x: s.plain(x) + s.b(torch.tanh(s.a(x)))), "not a chain"),
    "product": (Own(lambda s, x: s.plain(x * x)), "multiplies"),
    "quotient": (Own(lambda s, x: s.plain(1 / x)), "'reciprocal'"),
    "random": (Own(lambda s, x: s.plain(x) + torch.rand(2)), "random"),
    "counter": (Own(count), "overwrites numbers of its own"),
    "silent counter": (Own(count_silently), "other things when it is asked again"),
    "size of the batch": (Own(lambda s, x: (2 if len(x) > 1000 else 1) * s.plain(x)), "other numbers of rows"),
    "rows in another order": (Own(lambda s, x: s.plain(x[torch.arange(len(x)).flip(0)])), "rows of a batch"),
    "columns for rows": (Own(lambda s, x: s.plain(x.T.reshape(len(x), 7))), "rows of a batch"),
    "one row for all": (Own(lambda s, x: s.plain(x[:1].expand(len(x), 7))), "rows of a batch"),
    "each row as numbers": (Own(lambda s, x: s.plain(x.reshape(1, -1)[:, :7])), "rows of a batch"),
    "other rows": (Own(lambda s, x: s.plain(x - x.mean(0))), "rows of a batch"),
    "mixed rows": (Own(lambda s, x: s.plain(x).flip(0)), "'flip'"),
    "overwritten": (Own(overwritten), "overwrites"),
    "assigned": (Own(assigned), "'fill_'|'copy_'"),
    "hook": (hooked(), "'clamp'"),
    "ReLU6": (nn.Sequential(nn.Linear(7, 3), nn.ReLU6(), nn.Linear(3, 2)), "'hardtanh'"),
    "tanh gelu": (nn.Sequential(nn.Linear(7, 3), nn.GELU("tanh"), nn.Linear(3, 2)), "gelu"),
    "layer norm": (nn.Sequential(nn.Linear(7, 3), nn.LayerNorm(3), nn.Linear(3, 2)), "'native_layer_norm'"),
    "batch statistics": (nn.Sequential(nn.BatchNorm1d(7, track_running_stats=False), nn.Linear(7, 2)), "batch"),
    "softmax inside": (nn.Sequential(nn.Linear(7, 3), nn.Softmax(1), nn.Linear(3, 2)), "behind a softmax"),
    "no scores": (Own(lambda s, x: torch.ones(len(x), 2)), "does not return one list of scores"),
    "wrong width": (nn.Linear(6, 2), "cannot be checked"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_everything_else_is_refused_by_name(name):
    module, why = UNKNOWN[name]
    with pytest.raises(CertificateError, match=why) as refused:
        read_network(module.eval(), 7)
    assert "\n" not in str(refused.value)


def test_layers_that_follow_each_other_bound_what_their_rounding_can_do():
    """(x - 10⁸) / 1 folded into the next layer cancels: the sizes say how large the numbers were that did."""
    module = Own(lambda s, x: s.plain((x - 1e8) + 1e8))
    network = read_network(module, 7)
    direct = read_network(Own(lambda s, x: s.plain(x)), 7)
    assert (network.layers[0].bias_size > 1e7).all()
    assert (direct.layers[0].bias_size < 10).all()
    assert network.steps > direct.steps


@pytest.mark.parametrize("places", [(1,), (2,), (1, 2), (-1, -2)])
def test_a_sum_over_several_dimensions_adds_their_product(places):
    """A mean over (8, 125) adds 1,000 numbers, whose rounding the checker bounds."""
    shape = {1: 8, 2: 125, -1: 125, -2: 8}
    module = Own(lambda s, x: s.wide(x).view(-1, 8, 125).mean(places).reshape(len(x), -1))
    module.wide = nn.Linear(7, 1_000)
    assert read_network(module, 7).widest == math.prod(shape[place] for place in places)
