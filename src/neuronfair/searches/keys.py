"""Sets of 64-bit keys on the device that tell which records were evaluated before, by a search or by each chain."""

from __future__ import annotations

import torch
from torch import Tensor

_EMPTY = -(2**63)  # marks a free slot
_STAND_IN = 2**63 - 1  # replaces the key that equals the mark
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MAX_LOAD = 0.5


class KeySet:
    """A hash set with open addressing, for whole batches of keys.

    With a `limit` it is emptied when it would hold more keys: a key may be new twice then.
    """

    def __init__(
        self, device: torch.device | str = "cpu", *, capacity: int = 1 << 16, limit: int | None = None
    ) -> None:
        self._limit = limit
        self._bits = max(4, (capacity - 1).bit_length())
        self._table = torch.full((1 << self._bits,), _EMPTY, dtype=torch.int64, device=device)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def keys(self) -> Tensor:
        """The keys, in no order: (n,)."""
        return self._table[self._table != _EMPTY]

    def add(self, keys: Tensor) -> Tensor:
        """Add keys and return which of them are new: bool, (n,). Of equal keys only the first is new."""
        if self._limit is not None and self._size and self._size + len(keys) > self._limit:
            self._table.fill_(_EMPTY)
            self._size = 0
        while self._size + len(keys) > MAX_LOAD * len(self._table):
            self._grow()
        new = self._new(keys, write=True)
        self._size += int(new.sum())
        return new

    def unseen(self, keys: Tensor) -> Tensor:
        """Return which keys would be new, without adding them: bool, (n,)."""
        return self._new(keys, write=False)

    def _new(self, keys: Tensor, *, write: bool) -> Tensor:
        new = torch.zeros(len(keys), dtype=torch.bool, device=keys.device)
        if len(keys) == 0:
            return new
        keys = torch.where(keys == _EMPTY, _STAND_IN, keys)
        order = torch.argsort(keys, stable=True)
        ranked = keys[order]
        first = torch.ones_like(new)
        first[1:] = ranked[1:] != ranked[:-1]
        new[order[first]] = self._probe(ranked[first], write=write)
        return new

    def _probe(self, keys: Tensor, *, write: bool) -> Tensor:
        """Look distinct keys up in the table, add the missing ones if `write`, and return which were missing."""
        table, mask = self._table, len(self._table) - 1
        slot = ((keys * _GOLDEN) >> (64 - self._bits)) & mask  # the high bits are the well mixed ones
        missing = torch.zeros_like(keys, dtype=torch.bool)
        left = torch.arange(len(keys), device=keys.device)
        while len(left):
            key, place = keys[left], slot[left]
            free = table[place] == _EMPTY
            if write:
                table[place[free]] = key[free]  # of several keys for one slot, one gets it
            done = (table[place] == key) if write else (table[place] == key) | free
            missing[left[done & free]] = True
            left = left[~done]
            slot[left] = (slot[left] + 1) & mask
        return missing

    def _grow(self) -> None:
        keys = self.keys
        self._bits += 2
        self._table = torch.full((1 << self._bits,), _EMPTY, dtype=torch.int64, device=self._table.device)
        self._probe(keys, write=True)


MEMORY = 1024  # keys that a chain remembers; an old one may be forgotten, a new one is never refused
CHAINS = 1 << 16  # chains whose last keys are compared at a time
NO_KEY = torch.iinfo(torch.int64).min  # marks an empty place


def empty_memory(chains: int, device: torch.device) -> Tensor:
    """Return an empty memory for each chain: (n, MEMORY)."""
    return torch.full((chains, MEMORY), NO_KEY, device=device)


def remember(memory: Tensor, keys: Tensor) -> Tensor:
    """Return the memory with more keys in it, (n, m); of two keys for one place the larger stays."""
    new = torch.full_like(memory, NO_KEY).scatter_reduce(1, _slots(keys), keys, "amax")
    return torch.where(new == NO_KEY, memory, new)


def knows(memory: Tensor, keys: Tensor) -> Tensor:
    """Return which keys are remembered: bool, (n, m)."""
    return memory.gather(1, _slots(keys)) == keys


def among(recent: Tensor, keys: Tensor) -> Tensor:
    """Return which keys, (n, m), are among the last ones of their chain, (n, a multiple of 8): bool, (n, m)."""
    parts = [torch.split(x, CHAINS) for x in (recent, keys)]  # so that memory stays flat
    found = []
    for last, wanted in zip(*parts, strict=True):
        same = wanted[:, :, None] == last[:, None]
        found.append(same.view(torch.int64).sum(2) != 0)  # eight at a time: a quarter of the time of any()
    return torch.cat(found)


def _slots(keys: Tensor) -> Tensor:
    return ((keys * -7046029254386353131) >> 33) % MEMORY
