"""Networks whose bias is known, because their weights are written by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neuronfair import TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.testing.cases import context, domain, linear, network, one_biased_neuron, random_module, uniform_rows

# What the checks of methods need, too, and tests take from here.
__all__ = ["context", "domain", "linear", "network", "one_biased_neuron", "random_module", "uniform_rows"]

MIDDLE = 494.5  # half of the largest sum of `large_domain`


def large_domain() -> TableDomain:
    """Ten attributes on 0 to 99: a band of two sums about the middle holds less than 1% of the rows."""
    return domain(attributes=10, high=99)


def sex_and_race() -> TableDomain:
    """`a0` … `a3` on 0 to 9, and the sensitive `sex` (2 values) and `race` (5 values, a one-hot block)."""
    columns = [Attribute(f"a{i}", "ordinal", low=0, high=9) for i in range(4)]
    race = Attribute("race", "nominal", values=("A", "B", "C", "D", "E"), encode="onehot")
    return TableDomain("planted", (*columns, Attribute("sex", "flag"), race), ("sex", "race"))


class Given:
    """An encoding for tests of networks alone: rows are given as the numbers that the module takes."""

    rows_per_pass = 1 << 15
    device = torch.device("cpu")

    def __init__(self, x: Tensor) -> None:
        self.example, self.shape = x, tuple(x.shape[1:])

    def encode(self, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        return rows.to(dtype).clone()


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
