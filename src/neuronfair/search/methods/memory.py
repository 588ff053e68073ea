"""Whom a walker has met already: a small table of keys with one place for each key, so that it never grows."""

from __future__ import annotations

import torch
from torch import Tensor

MEMORY = 1024  # keys that a walker remembers; an old one may be forgotten, a new one is never refused
NOBODY = torch.iinfo(torch.int64).min  # the key in an empty place


def empty_memory(walkers: int, device: torch.device) -> Tensor:
    """Return a memory of nobody for each walker: (n, MEMORY)."""
    return torch.full((walkers, MEMORY), NOBODY, device=device)


def remember(memory: Tensor, keys: Tensor) -> Tensor:
    """Return the memory with more keys in it, (n, m); of two keys for one place the larger stays."""
    new = torch.full_like(memory, NOBODY).scatter_reduce(1, _slots(keys), keys, "amax")
    return torch.where(new == NOBODY, memory, new)


def knows(memory: Tensor, keys: Tensor) -> Tensor:
    """Return which keys are remembered: bool, (n, m)."""
    return memory.gather(1, _slots(keys)) == keys


def _slots(keys: Tensor) -> Tensor:
    return ((keys * -7046029254386353131) >> 33) % MEMORY
