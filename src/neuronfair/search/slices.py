"""Walkers in slices whose families fit into memory: nobody looks at others, so they may step one slice after another.

A family has as many members as there are combinations of sensitive values, thousands where age is one of them.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

import torch

from neuronfair.domain.base import Domain
from neuronfair.search.judge import evened
from neuronfair.search.method import State

# People whose scores are held at once, twins included: some 300 MB with all that is computed from them, and 5 GB on a
# GPU, where few large steps are faster than many small ones.
HELD = {"cpu": 1 << 22, "cuda": 1 << 26}


def slices(domain: Domain, state: State) -> Sequence[State]:
    """Return the walkers in their order, as many at a time as their families allow; mostly that is all of them."""
    size = evened(HELD.get(domain.device.type, HELD["cpu"]) // len(domain.sensitive_values))
    if len(state["origin"]) <= size:
        return [state]
    parts = zip(*(torch.split(lines, size) for lines in state.values()), strict=True)
    return [dict(zip(state, part, strict=True)) for part in parts]


def give_back() -> None:
    """Give free memory back to the system, where the C library can (Linux).

    The large pieces of one slice lie between small ones that stay. It does not find room for the next slice between
    them, and takes 50 MB more for each: 7 GB for 100,000 walkers with 5,000 twins.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def joined(parts: Sequence[State]) -> State:
    """Return slices as one again."""
    return parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
