"""What a search found: pairs with different decisions, and the records it evaluated, as log lines and sets of keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor

from neuronfair.domain.twins import Domain
from neuronfair.model.decision import Decision, Scale, scale_of
from neuronfair.model.encoding import ROWS_PER_PASS

NO_SEED = -1  # the origin of findings of a pilot, which starts from random rows


@dataclass(frozen=True)
class Findings:
    """Individual discriminatory instances, one per line of every tensor, and how many records were evaluated for them.

    `tried` counts the distinct records evaluated, `evaluated` all of them, duplicates included; `rejected` counts hits
    that the second evaluation in float64 did not confirm and that are not included. The success rate (GSR) is findings
    over tried.
    """

    packed: Tensor  # (f, d) codes, in the domain's compact type
    twin_values: Tensor  # (f, s) codes of the twin with the other decision, in the domain's `twin_columns`
    scores: Tensor  # (f, outputs)
    twin_scores: Tensor  # (f, outputs)
    origin: Tensor  # (f,) which seed the chain came from
    step: Tensor  # (f,)
    misses: Tensor  # (m, d) a sample of the records with the same decision as all their twins, in the compact type too
    tried: int = 0
    evaluated: int = 0
    rejected: int = 0
    plausibility: Tensor = field(default_factory=lambda: torch.empty(0))  # (f,) of each record; NaN: not known

    def __post_init__(self) -> None:
        if len(self.plausibility) == 0:
            unknown = torch.full((len(self.packed),), torch.nan, device=self.packed.device)
            object.__setattr__(self, "plausibility", unknown)

    def __len__(self) -> int:
        return len(self.packed)

    @property
    def rows(self) -> Tensor:
        """The codes of the findings: int64, (f, d)."""
        return self.packed.long()

    @property
    def gsr(self) -> float:
        """The share of distinct evaluated records that are findings; 0 if none was evaluated."""
        return len(self) / self.tried if self.tried else 0.0

    def twins(self, domain: Domain) -> Tensor:
        """Return the twin of each pair: (f, d)."""
        twins = self.rows.clone()
        twins[:, list(domain.twin_columns)] = self.twin_values
        return twins

    def scale(self, decision: Decision, known: Scale | None) -> Scale:
        """Return the scale of the scores; if it is not known, the one inferred from the findings' scores."""
        return known or scale_of(decision, torch.cat([self.scores, self.twin_scores]))

    def __getitem__(self, chosen: Tensor | slice) -> Findings:
        """Return some of the findings; the counts and the misses stay those of the whole search."""
        parts = {name: getattr(self, name)[chosen] for name in _LINES}
        return replace(self, **parts)

    @staticmethod
    def empty(domain: Domain, outputs: int) -> Findings:
        """Return the findings of a search that found none."""
        rows = torch.empty(0, domain.codes_per_row, dtype=domain.compact, device=domain.device)
        number = torch.empty(0, dtype=torch.int64, device=domain.device)
        scores = torch.empty(0, outputs, device=domain.device)
        return Findings(rows, rows[:, list(domain.twin_columns)].long(), scores, scores, number, number, rows)

    @staticmethod
    def join(parts: list[Findings]) -> Findings:
        """Return several parts of one search as one; their counts add up."""
        lines: dict[str, Any] = {name: torch.cat([getattr(p, name) for p in parts]) for name in (*_LINES, "misses")}
        counts = {name: sum(getattr(p, name) for p in parts) for name in ("tried", "evaluated", "rejected")}
        return Findings(**lines, **counts)

    def counts(self) -> Findings:
        """Return the counts without the findings."""
        return self._each(lambda lines: lines[:0].clone())  # a slice alone would keep all lines in memory

    def to(self, device: torch.device) -> Findings:
        """Return the findings on another device."""
        return self._each(lambda lines: lines.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Findings:
        lines: dict[str, Any] = {name: change(getattr(self, name)) for name in (*_LINES, "misses")}
        return replace(self, **lines)


class PlausibilityFigures(TypedDict):
    """How plausible the findings are."""

    least: float  # the plausibility from which on a record counts as plausible
    share: float  # of findings that are plausible
    median: float


@dataclass(frozen=True)
class FindingsSummary:
    """A summary of findings that are too many to hold in memory and are on disk only."""

    violations: int  # findings that break a rule or a bound
    histogram: Tensor  # (STEPS + 1,) of plausibility: how many findings lie in each step, rounded down

    STEPS: ClassVar[int] = 100_000

    @staticmethod
    def of(findings: Findings, domain: Domain) -> FindingsSummary:
        """Summarise findings."""
        known = findings.plausibility[~findings.plausibility.isnan()].double()
        steps = (known * FindingsSummary.STEPS + 0.01).long()  # float32 may be a little below a step
        histogram = torch.bincount(steps.clamp(0, FindingsSummary.STEPS), minlength=FindingsSummary.STEPS + 1)
        return FindingsSummary(violations(findings, domain), histogram.cpu())

    def __add__(self, other: FindingsSummary) -> FindingsSummary:
        return FindingsSummary(self.violations + other.violations, self.histogram + other.histogram)

    def plausibility(self, least: float) -> PlausibilityFigures | None:
        """Return the share of plausible findings and the median plausibility, both to a step; None if not known."""
        count = int(self.histogram.sum())
        if count == 0:
            return None
        share = int(self.histogram[math.ceil(least * FindingsSummary.STEPS - 0.01) :].sum()) / count
        middle = int((self.histogram.cumsum(0) > (count - 1) // 2).int().argmax())
        return {"least": least, "share": share, "median": middle / FindingsSummary.STEPS}


def violations(findings: Findings, domain: Domain) -> int:
    """Return how many findings break a rule or a bound."""
    return sum(int((~domain.valid(part.long())).sum()) for part in torch.split(findings.packed, ROWS_PER_PASS))


# The log of evaluated records has a line of two numbers for each distinct record.

MISS, FOUND, REJECTED, DOUBTFUL = range(4)  # same decision; finding; two kinds of hits that float64 does not confirm
_KINDS = 4  # DOUBTFUL hits are noticed in the step itself, REJECTED ones when they are counted
MISS_SHARE = 64  # one in 64 misses is kept as a sample


def evaluated_lines(keys: Tensor, step: Tensor, place: Tensor, chains: int, kind: Tensor) -> Tensor:
    """Return the log lines of records: their keys, and their order and kind in one number: int64, (n, 2)."""
    return torch.stack([keys, (step * chains + place) * _KINDS + kind], 1)


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
    return (((keys * -7046029254386353131) >> 33) & 0x7FFFFFFF) % MISS_SHARE == 0


_LINES = ("packed", "twin_values", "scores", "twin_scores", "origin", "step", "plausibility")


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
