"""What a search found: pairs of a person and a twin who are decided differently."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from neuronfair.domain.interface import Domain
from neuronfair.model.decision import Decision, Scale, scale_of
from neuronfair.model.encoding import ROWS_PER_PASS

NO_SEED = -1  # the origin of what a pilot finds: it starts from random rows


@dataclass(frozen=True)
class Findings:
    """Individual discriminatory instances, one per line of every tensor, and what it took to find them.

    `tried` counts the different people judged, `judged` all of them, duplicates included; `rejected` counts those that
    did not stand the second judgement in float64 and are not here. The success rate (GSR) is findings over tried.
    """

    packed: Tensor  # (f, d) codes, in the domain's compact type
    twin_values: Tensor  # (f, s) codes of the twin for whom the decision flips, where it may differ: `twin_columns`
    scores: Tensor  # (f, outputs)
    twin_scores: Tensor  # (f, outputs)
    origin: Tensor  # (f,) which seed the chain came from
    step: Tensor  # (f,)
    misses: Tensor  # (m, d) a sample of the people judged alike, in the compact type too
    tried: int = 0
    judged: int = 0
    rejected: int = 0
    plausibility: Tensor = field(default_factory=lambda: torch.empty(0))  # (f,) of each person; NaN: not known

    def __post_init__(self) -> None:
        if len(self.plausibility) == 0:  # nobody has said
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
        """The share of different people judged who are findings; 0 where nobody was judged."""
        return len(self) / self.tried if self.tried else 0.0

    def twins(self, domain: Domain) -> Tensor:
        """Return the other person of each pair: (f, d)."""
        twins = self.rows.clone()
        twins[:, list(domain.twin_columns)] = self.twin_values
        return twins

    def scale(self, decision: Decision, known: Scale | None) -> Scale:
        """Return what the scores are; where that is not known, judged by those of people and twins."""
        return known or scale_of(decision, torch.cat([self.scores, self.twin_scores]))

    def __getitem__(self, chosen: Tensor | slice) -> Findings:
        """Return some of the findings; the counts and the misses stay those of the whole search."""
        parts = {name: getattr(self, name)[chosen] for name in _LINES}
        return replace(self, **parts)

    @staticmethod
    def empty(domain: Domain, outputs: int) -> Findings:
        """Return a search that found nobody."""
        rows = torch.empty(0, domain.codes_per_row, dtype=domain.compact, device=domain.device)
        number = torch.empty(0, dtype=torch.int64, device=domain.device)
        scores = torch.empty(0, outputs, device=domain.device)
        return Findings(rows, rows[:, list(domain.twin_columns)].long(), scores, scores, number, number, rows)

    @staticmethod
    def join(parts: list[Findings]) -> Findings:
        """Return several parts of one search as one; their counts add up."""
        lines: dict[str, Any] = {name: torch.cat([getattr(p, name) for p in parts]) for name in (*_LINES, "misses")}
        counts = {name: sum(getattr(p, name) for p in parts) for name in ("tried", "judged", "rejected")}
        return Findings(**lines, **counts)

    def counts(self) -> Findings:
        """Return the counts alone. What an empty slice is taken from stays in memory; a copy of it holds nothing."""
        lines: dict[str, Any] = {name: getattr(self, name)[:0].clone() for name in (*_LINES, "misses")}
        return replace(self, **lines)

    def to(self, device: torch.device) -> Findings:
        """Return the findings on another device."""
        lines: dict[str, Any] = {name: getattr(self, name).to(device) for name in (*_LINES, "misses")}
        return replace(self, **lines)


@dataclass(frozen=True)
class FindingsSummary:
    """What is known of findings that are on disk only, since there are too many to hold."""

    violations: int  # break a rule or a bound
    usual: Tensor  # (STEPS + 1,) how many are so plausible: in steps, rounded down

    STEPS: ClassVar[int] = 100_000

    @staticmethod
    def of(findings: Findings, domain: Domain) -> FindingsSummary:
        """Look at findings that are about to be let go."""
        known = findings.plausibility[~findings.plausibility.isnan()].double()
        steps = (known * FindingsSummary.STEPS + 0.01).long()  # float32 may be a little below a step
        usual = torch.bincount(steps.clamp(0, FindingsSummary.STEPS), minlength=FindingsSummary.STEPS + 1)
        return FindingsSummary(violations(findings, domain), usual.cpu())

    def __add__(self, other: FindingsSummary) -> FindingsSummary:
        return FindingsSummary(self.violations + other.violations, self.usual + other.usual)

    def plausibility(self, least: float) -> dict[str, float] | None:
        """Return how many are plausible, and how plausible they are in the middle, both to a step; None: not known."""
        count = int(self.usual.sum())
        if count == 0:
            return None
        share = int(self.usual[math.ceil(least * FindingsSummary.STEPS - 0.01) :].sum()) / count
        middle = int((self.usual.cumsum(0) > (count - 1) // 2).int().argmax())
        return {"least": least, "share": share, "median": middle / FindingsSummary.STEPS}


def violations(findings: Findings, domain: Domain) -> int:
    """Return how many findings break a rule or a bound."""
    return sum(int((~domain.valid(part.long())).sum()) for part in torch.split(findings.packed, ROWS_PER_PASS))


MISS, FOUND, REJECTED, DOUBTFUL = range(4)  # same decision; finding; no finding in float64; seen before it counted
_KINDS = 4
MISS_SHARE = 64  # one in so many misses is kept as a sample


def evaluated_lines(keys: Tensor, step: Tensor, place: Tensor, chains: int, kind: Tensor) -> Tensor:
    """Return the lines of people: their keys, and their order and kind in one number: int64, (n, 2)."""
    return torch.stack([keys, (step * chains + place) * _KINDS + kind], 1)


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


def is_sampled_miss(keys: Tensor) -> Tensor:
    """Return which keys belong to the sample of misses: bool, (n,)."""
    return (((keys * -7046029254386353131) >> 33) & 0x7FFFFFFF) % MISS_SHARE == 0


_LINES = ("packed", "twin_values", "scores", "twin_scores", "origin", "step", "plausibility")
