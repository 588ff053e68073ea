"""Whom a walker has met already: its last keys, or a small table with one place for each key. Neither ever grows."""

from __future__ import annotations

import torch
from torch import Tensor

MEMORY = 1024  # keys that a walker remembers; an old one may be forgotten, a new one is never refused
WALKERS = 1 << 16  # whose last keys are compared at a time
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


def among(recent: Tensor, keys: Tensor) -> Tensor:
    """Return which keys, (n, m), are among the last ones of their walker, (n, a multiple of 8): bool, (n, m)."""
    parts = [torch.split(x, WALKERS) for x in (recent, keys)]  # so that memory stays flat
    found = []
    for last, asked in zip(*parts, strict=True):
        same = asked[:, :, None] == last[:, None]
        found.append(same.view(torch.int64).sum(2) != 0)  # eight at a time: a quarter of the time of any()
    return torch.cat(found)


def _slots(keys: Tensor) -> Tensor:
    return ((keys * -7046029254386353131) >> 33) % MEMORY
