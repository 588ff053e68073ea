"""Networks whose bias is known, because their weights are written by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neuronfair import Decision, Network, TableDomain, TableEncoding
from neuronfair.domain.attribute import Attribute
from neuronfair.interpretation.profile import BiasProfile
from neuronfair.search.draws import Draws
from neuronfair.search.method import World

MIDDLE = 494.5  # half of the largest sum of `large_domain`


def domain(*, attributes: int = 4, high: int = 9) -> TableDomain:
    """`a0` … on 0 to `high`, and the flag `s`, which is sensitive and comes last; raw encoding."""
    columns = [Attribute(f"a{i}", "ordinal", low=0, high=high) for i in range(attributes)]
    return TableDomain("planted", (*columns, Attribute("s", "flag")), ("s",))


def large_domain() -> TableDomain:
    """Ten attributes on 0 to 99: a band of two sums about the middle holds less than 1 % of the rows."""
    return domain(attributes=10, high=99)


def sex_and_race() -> TableDomain:
    """`a0` … `a3` on 0 to 9, and the sensitive `sex` (2 values) and `race` (5 values, a one-hot block)."""
    columns = [Attribute(f"a{i}", "ordinal", low=0, high=9) for i in range(4)]
    race = Attribute("race", "nominal", values=("A", "B", "C", "D", "E"), encode="onehot")
    return TableDomain("planted", (*columns, Attribute("sex", "flag"), race), ("sex", "race"))


def network(module: nn.Module, domain: TableDomain) -> Network:
    return Network(module.eval(), domain)


class Given:
    """An encoding for tests of networks alone: rows are given as the numbers that the module takes."""

    rows_per_pass = 1 << 15
    device = torch.device("cpu")

    def __init__(self, x: Tensor) -> None:
        self.example, self.shape = x, tuple(x.shape[1:])

    def encode(self, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        return rows.to(dtype).clone()


def world(
    module: nn.Module,
    domain: TableDomain,
    *,
    decision: Decision | None = None,
    profile: BiasProfile | None = None,
    blind: bool = False,
    seed: int = 0,
) -> World:
    """What a method sees of a module."""
    net = network(module, domain)
    return World(net, domain, decision or Decision(), Draws(seed, "test"), profile=profile, blind=blind)


def random_module(domain: TableDomain, outputs: int = 2, *, seed: int = 0, hidden: int = 12) -> nn.Sequential:
    """A small network with random weights, ReLU, and a boundary that runs through the domain."""
    generator = torch.Generator().manual_seed(seed)
    first, second = nn.Linear(TableEncoding.of(domain).width, hidden), nn.Linear(hidden, outputs)
    x = TableEncoding.of(domain).encode(domain.sample(500, generator))
    with torch.no_grad():
        for layer in (first, second):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator))
        first.weight /= x.std(0).clamp(min=1e-3)
        first.bias.copy_(-(x @ first.weight.T).mean(0))
        second.bias.copy_(-(torch.relu(first(x)) @ second.weight.T).mean(0))
    return nn.Sequential(first, nn.ReLU(), second)


def linear(weight: list[list[float]], bias: list[float]) -> nn.Linear:
    """One linear layer with these weights."""
    layer = nn.Linear(len(weight[0]), len(weight))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    return layer


def one_biased_neuron(
    inputs: int = 5, neurons: int = 8, *, biased: int = 3, weight: float = 2.0, boundary: float = 18.5
) -> nn.Sequential:
    """Neuron `biased` of the first layer alone reads the last input; the output compares it with the other inputs.

    The second class wins when the other inputs add up to less than boundary + weight * s: the sensitive bit shifts
    the boundary by `weight` and by nothing else.
    """
    neurons = max(neurons, inputs)
    first, second = nn.Linear(inputs, neurons), nn.Linear(neurons, 2)
    with torch.no_grad():
        for layer in (first, second):
            layer.weight.zero_()
            layer.bias.zero_()
        for i in range(inputs - 1):
            first.weight[i if i < biased else i + 1, i] = 1.0
            second.weight[0, i if i < biased else i + 1] = 1.0
        first.weight[biased, -1] = weight
        second.weight[1, biased] = 1.0
        second.bias[1] = boundary
    return nn.Sequential(nn.Sequential(first, nn.ReLU()), second)


def one_biased_pair() -> nn.Sequential:
    """On `sex_and_race`: sex 1 together with race D alone shifts the boundary, from a sum of 18.5 to 20.5."""
    adds_up = [1.0] * 4 + [0.0] * 6
    joint = [0.0] * 4 + [2.0] + [0.0, 0.0, 0.0, 2.0, 0.0]
    first = linear([adds_up, joint], [0.0, -2.0])  # relu(2 sex + 2 D - 2) is 2 for the pair, else 0
    return nn.Sequential(first, nn.ReLU(), linear([[1.0, 0.0], [0.0, 1.0]], [0.0, 18.5]))


def three_classes() -> nn.Sequential:
    """On `domain()`: the classes of z = sum + 2 s are below 12.25, up to 24.25, and above."""
    first = linear([[1.0, 1.0, 1.0, 1.0, 2.0]], [0.0])
    return nn.Sequential(first, nn.ReLU(), linear([[0.0], [1.0], [2.0]], [0.0, -12.25, -36.5]))


def biased_score() -> nn.Sequential:
    """On `domain()`: a score of 0.1 times the sum, and for s = 1 the part of a0 above 6 on top."""
    first = linear([[1.0, 1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0, 9.0]], [0.0, -15.0])
    return nn.Sequential(first, nn.ReLU(), linear([[0.1, 1.0]], [0.0]))


def uniform_rows(domain: TableDomain, n: int, seed: int = 0) -> Tensor:
    """Rows drawn uniformly, the same ones every time."""
    return domain.sample(n, torch.Generator().manual_seed(seed))
