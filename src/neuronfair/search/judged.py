"""Who was judged, in what order and with what result, as two whole numbers for each person.

The order is that of the search: by step, and within a step by the place of the walker among all that began the phase.
So parts of one phase that were searched apart, by other machines, can be put together: of a person whom several have
met the first judgement counts, whoever wrote it first.
"""

from __future__ import annotations

import torch
from torch import Tensor

MISS, FOUND, REJECTED, DOUBTFUL = range(4)  # decided alike; a finding; no finding in float64; so seen before it counted
_KINDS = 4
MISS_SHARE = 64  # one in so many misses is kept as a sample


def judged_lines(keys: Tensor, step: Tensor, place: Tensor, walkers: int, kind: Tensor) -> Tensor:
    """Return the lines of people: their keys, and their order and kind in one number: int64, (n, 2)."""
    return torch.stack([keys, (step * walkers + place) * _KINDS + kind], 1)


def keys_of(lines: Tensor) -> Tensor:
    """Return the keys of the people: (n,)."""
    return lines[:, 0]


def order_of(lines: Tensor) -> Tensor:
    """Return the order in which they were judged in their phase, different for all: (n,)."""
    return lines[:, 1] // _KINDS


def kind_of(lines: Tensor) -> Tensor:
    """Return what came of it: (n,)."""
    return lines[:, 1] % _KINDS


def with_kind(lines: Tensor, kind: Tensor) -> Tensor:
    """Return the lines with other results."""
    return torch.stack([lines[:, 0], lines[:, 1] - kind_of(lines) + kind], 1)


def is_sampled(keys: Tensor) -> Tensor:
    """Return which keys belong to the sample of misses: bool, (n,)."""
    return (((keys * -7046029254386353131) >> 33) & 0x7FFFFFFF) % MISS_SHARE == 0
