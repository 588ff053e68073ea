"""Keys of records: the set of those that a search evaluated, the last ones of each chain, and their log.

A key is a 64-bit identity of a record without its sensitive attributes (`Domain.key`).
"""

from __future__ import annotations

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # spreads keys over the 64 bits, the high ones best (Fibonacci hashing)
NO_KEY = -(2**63)  # marks a free place
_STAND_IN = 2**63 - 1  # replaces the key that equals the mark
MAX_LOAD = 0.5  # the share of places in use from which on the set grows


class KeySet:
    """A hash set with open addressing, for whole batches of keys.

    With a `limit` it is emptied when it would hold more keys: a key may be new twice then.
    """

    def __init__(
        self, device: torch.device | str = "cpu", *, capacity: int = 1 << 16, limit: int | None = None
    ) -> None:
        self._limit = limit
        self._bits = max(4, (capacity - 1).bit_length())
        self._table = torch.full((1 << self._bits,), NO_KEY, dtype=torch.int64, device=device)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def keys(self) -> Tensor:
        """The keys, in no order: (n,)."""
        return self._table[self._table != NO_KEY]

    def add(self, keys: Tensor) -> Tensor:
        """Add keys and return which of them are new: bool, (n,). Of equal keys only the first is new."""
        if self._limit is not None and self._size and self._size + len(keys) > self._limit:
            self._table.fill_(NO_KEY)
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
        keys = torch.where(keys == NO_KEY, _STAND_IN, keys)
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
        remaining = torch.arange(len(keys), device=keys.device)
        while len(remaining):
            key, tried_slot = keys[remaining], slot[remaining]
            free = table[tried_slot] == NO_KEY
            if write:
                table[tried_slot[free]] = key[free]  # of several keys for one slot, one gets it
            is_settled = (table[tried_slot] == key) if write else (table[tried_slot] == key) | free
            missing[remaining[is_settled & free]] = True
            remaining = remaining[~is_settled]
            slot[remaining] = (slot[remaining] + 1) & mask
        return missing

    def _grow(self) -> None:
        keys = self.keys
        self._bits += 2
        self._table = torch.full((1 << self._bits,), NO_KEY, dtype=torch.int64, device=self._table.device)
        self._probe(keys, write=True)


# The last keys of each chain

KEYS_PER_CHAIN = 1024  # keys that are remembered; an old one may be forgotten, a new one is never refused
CHAINS_PER_COMPARISON = 1 << 16  # so that memory stays flat


def empty_memory(chains: int, device: torch.device) -> Tensor:
    """Return an empty memory for each chain: (n, KEYS_PER_CHAIN)."""
    return torch.full((chains, KEYS_PER_CHAIN), NO_KEY, device=device)


def remember(memory: Tensor, keys: Tensor) -> Tensor:
    """Return the memory with more keys in it, (n, m); of two keys for one place the larger stays."""
    new = torch.full_like(memory, NO_KEY).scatter_reduce(1, _slots(keys), keys, "amax")
    return torch.where(new == NO_KEY, memory, new)


def knows(memory: Tensor, keys: Tensor) -> Tensor:
    """Return which keys are remembered: bool, (n, m)."""
    return memory.gather(1, _slots(keys)) == keys


def are_among(recent: Tensor, keys: Tensor) -> Tensor:
    """Return which keys, (n, m), are among the last ones of their chain, (n, a multiple of 8): bool, (n, m)."""
    parts = []
    for last_keys, new_keys in zip(*(torch.split(x, CHAINS_PER_COMPARISON) for x in (recent, keys)), strict=True):
        matches = new_keys[:, :, None] == last_keys[:, None]
        parts.append(matches.view(torch.int64).sum(2) != 0)  # eight at a time: a quarter of the time of any()
    return torch.cat(parts)


def _slots(keys: Tensor) -> Tensor:
    return ((keys * _GOLDEN) >> 33) % KEYS_PER_CHAIN


# The log of evaluated records: a line of two numbers for each distinct record.

MISS, FOUND, REJECTED, DOUBTFUL = range(4)  # same decision; finding; two kinds of hits that float64 does not confirm
_KINDS = 4  # DOUBTFUL hits are noticed in the step itself, REJECTED ones when they are counted
MISS_SHARE = 64  # one in 64 misses is kept as a sample


def encode_lines(keys: Tensor, step: Tensor, chain_index: Tensor, chains: int, kind: Tensor) -> Tensor:
    """Return the log lines of records: their keys, and their order and kind in one number: int64, (n, 2)."""
    return torch.stack([keys, (step * chains + chain_index) * _KINDS + kind], 1)


def keys_of(lines: Tensor) -> Tensor:
    """Return the keys of the records: (n,)."""
    return lines[:, 0]


def order_of(lines: Tensor) -> Tensor:
    """Return the place of each record in the order of its phase, unique: (n,)."""
    return lines[:, 1] // _KINDS


def kind_of(lines: Tensor) -> Tensor:
    """Return the result of each evaluation: (n,)."""
    return lines[:, 1] % _KINDS


def with_kind(lines: Tensor, kind: Tensor) -> Tensor:
    """Return the lines with new results."""
    return torch.stack([lines[:, 0], lines[:, 1] - kind_of(lines) + kind], 1)


def is_sampled_miss(keys: Tensor) -> Tensor:
    """Return which keys belong to the sample of misses: bool, (n,)."""
    return (((keys * _GOLDEN) >> 33) & 0x7FFFFFFF) % MISS_SHARE == 0
