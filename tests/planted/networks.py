"""Networks whose bias is known, because their weights are written by hand."""

from __future__ import annotations

import torch
from torch import nn

from neuronfair import Attribute, Network, TableDomain


def domain(*, attributes: int = 4, high: int = 9) -> TableDomain:
    """`a0` … on 0 to `high`, and the flag `s`, which is sensitive and comes last; raw encoding."""
    columns = [Attribute(f"a{i}", "ordinal", low=0, high=high) for i in range(attributes)]
    return TableDomain("planted", (*columns, Attribute("s", "flag")), ("s",))


def network(module: nn.Module, domain: TableDomain) -> Network:
    return Network(module, domain.encode(torch.zeros(1, len(domain.attributes), dtype=torch.int64)))


def one_biased_neuron(inputs: int = 5, neurons: int = 8, *, biased: int = 3, weight: float = 2.0) -> nn.Sequential:
    """Neuron `biased` of the first layer alone reads the last input; the output compares it with the other inputs.

    The second class wins when the other inputs add up to less than 18 + weight * s: the sensitive bit shifts the
    boundary by `weight` and by nothing else.
    """
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
        second.bias[1] = 18.5
    return nn.Sequential(nn.Sequential(first, nn.ReLU()), second)
