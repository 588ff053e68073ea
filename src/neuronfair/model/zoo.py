"""Ready-made architectures: the fully connected networks of the paper."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from neuronfair.errors import ModelError

#: Hidden layers of the paper's light fully connected network.
LFCN: tuple[int, ...] = (64, 32, 16, 8, 4)
#: Hidden layers of the paper's heavy fully connected network.
HFCN: tuple[int, ...] = (256, 256, 64, 64, 32, 32, 16, 8)


def fully_connected(inputs: int, hidden: Sequence[int] = LFCN, outputs: int = 2) -> nn.Sequential:
    """Build an untrained fully connected ReLU network with layers named layer1, layer2, …, output.

    The weights are drawn from torch's global generator, so `torch.manual_seed` makes them repeatable.

    >>> [name for name, _ in fully_connected(13, (8, 4)).named_children()]
    ['layer1', 'layer2', 'output']
    """
    sizes = (inputs, *hidden, outputs)
    if min(sizes) < 1:
        raise ModelError(f"a network needs at least one unit per layer, got {'-'.join(map(str, sizes))}")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (before, after) in enumerate(pairwise(sizes[:-1]), start=1):
        layers[f"layer{number}"] = nn.Sequential(_linear(before, after), nn.ReLU())
    layers["output"] = _linear(sizes[-2], sizes[-1])
    return nn.Sequential(layers)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    # He initialisation: torch's default shrinks the signal about 2.4 times in every ReLU layer, so the
    # eight layers of HFCN would start as an almost constant function.
    layer = nn.Linear(inputs, outputs)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    nn.init.zeros_(layer.bias)
    return layer
