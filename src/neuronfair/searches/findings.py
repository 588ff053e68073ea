"""What a search found: pairs with different decisions, and a summary of those that are on disk only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor

from neuronfair.domain.twins import Domain
from neuronfair.model.decision import Decision, Scale, infer_scale
from neuronfair.model.encoding import ROWS_PER_PASS
from neuronfair.parameters import renamed_field

_LINE_FIELDS = ("packed", "twin_values", "scores", "twin_scores", "origin", "step", "plausibility")
_TENSORS = (*_LINE_FIELDS, "misses")
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
    gsr = renamed_field("gsr", "success_rate")

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
    def success_rate(self) -> float:
        """The share of distinct evaluated records that are findings; 0 if none was evaluated."""
        return len(self) / self.tried if self.tried else 0.0

    def twins(self, domain: Domain) -> Tensor:
        """Return the twin of each pair: (f, d)."""
        twins = self.rows.clone()
        twins[:, list(domain.twin_columns)] = self.twin_values
        return twins

    def scale(self, decision: Decision, declared: Scale | None) -> Scale:
        """Return the scale of the scores; if none is declared, the one inferred from the findings' scores."""
        return declared or infer_scale(decision, torch.cat([self.scores, self.twin_scores]))

    def __getitem__(self, chosen: Tensor | slice) -> Findings:
        """Return some of the findings; the counts and the misses stay those of the whole search."""
        parts = {name: getattr(self, name)[chosen] for name in _LINE_FIELDS}
        return replace(self, **parts)

    @staticmethod
    def empty(domain: Domain, outputs: int) -> Findings:
        """Return the findings of a search that found none."""
        rows = torch.empty(0, domain.codes_per_row, dtype=domain.compact, device=domain.device)
        no_numbers = torch.empty(0, dtype=torch.int64, device=domain.device)
        scores = torch.empty(0, outputs, device=domain.device)
        return Findings(rows, rows[:, list(domain.twin_columns)].long(), scores, scores, no_numbers, no_numbers, rows)

    @staticmethod
    def join(parts: list[Findings]) -> Findings:
        """Return several parts of one search as one; their counts add up."""
        lines: dict[str, Any] = {name: torch.cat([getattr(p, name) for p in parts]) for name in _TENSORS}
        counts = {name: sum(getattr(p, name) for p in parts) for name in ("tried", "evaluated", "rejected")}
        return Findings(**lines, **counts)

    def counts(self) -> Findings:
        """Return the counts without the findings."""
        return self._map_tensors(lambda lines: lines[:0].clone())  # a slice alone would keep all lines in memory

    def to(self, device: torch.device) -> Findings:
        """Return the findings on another device."""
        return self._map_tensors(lambda lines: lines.to(device))

    def _map_tensors(self, transform: Callable[[Tensor], Tensor]) -> Findings:
        lines: dict[str, Any] = {name: transform(getattr(self, name)) for name in _TENSORS}
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
        plausibility = findings.plausibility[~findings.plausibility.isnan()].double()
        steps = (plausibility * FindingsSummary.STEPS + 0.01).long()  # float32 may be a little below a step
        histogram = torch.bincount(steps.clamp(0, FindingsSummary.STEPS), minlength=FindingsSummary.STEPS + 1)
        return FindingsSummary(violations(findings, domain), histogram.cpu())

    def __add__(self, other: FindingsSummary) -> FindingsSummary:
        return FindingsSummary(self.violations + other.violations, self.histogram + other.histogram)

    def plausibility(self, threshold: float) -> PlausibilityFigures | None:
        """Return the share of plausible findings and the median plausibility, both to a step; None if not known."""
        count = int(self.histogram.sum())
        if count == 0:
            return None
        share = int(self.histogram[math.ceil(threshold * FindingsSummary.STEPS - 0.01) :].sum()) / count
        middle = int((self.histogram.cumsum(0) > (count - 1) // 2).int().argmax())
        return {"least": threshold, "share": share, "median": middle / FindingsSummary.STEPS}


def violations(findings: Findings, domain: Domain) -> int:
    """Return how many findings break a rule or a bound."""
    return sum(int((~domain.valid(part.long())).sum()) for part in torch.split(findings.packed, ROWS_PER_PASS))
