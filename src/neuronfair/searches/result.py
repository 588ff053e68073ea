"""The result of a search: its counts, controls, and summary as plain values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from neuronfair.domain.population.plausible import PLAUSIBLE
from neuronfair.domain.table import TableDomain
from neuronfair.model.profile import BiasProfile
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.engine import PhaseResult
from neuronfair.searches.findings import Findings, FindingsSummary, PlausibilityFigures, violations
from neuronfair.searches.health import HealthNote
from neuronfair.searches.methods import METHODS

SAME_KEY = 2.0**-63  # the chance that two records share a key, where keys are not exact


@dataclass(frozen=True)
class Count:
    """How many distinct records a search tried, how many findings they are, and how many rows it evaluated."""

    tried: int
    findings: int
    judged: int

    @property
    def gsr(self) -> float:
        """The success rate: findings among the distinct records evaluated."""
        return self.findings / self.tried if self.tried else 0.0


class ControlFigures(TypedDict):
    """The counts of a control, and its success rate."""

    tried: int
    findings: int
    gsr: float


class SearchSummary(TypedDict):
    """The figures of a search, as they are written to JSON."""

    method: str
    findings: int
    findings_global: int
    findings_local: int
    tried: int
    confused: float
    gsr: float
    random: ControlFigures | None
    lift: float | None
    random_direction: ControlFigures | None
    lift_over_random_direction: float | None
    violations: int
    plausibility: PlausibilityFigures | None
    rejected_on_recheck: int
    seconds: float
    seconds_per_1000: float | None
    rows_judged: int
    stop: dict[str, str]
    health: list[dict[str, str]]


@dataclass(frozen=True)
class SearchResult:
    """What a search found, phase by phase, with its controls at the same number of evaluated rows."""

    config: SearchConfig
    domain: TableDomain
    seeds: Tensor
    profile: BiasProfile | None  # a black box has none
    first: PhaseResult
    local: PhaseResult
    random: Count | None
    random_direction: Count | None
    health: tuple[HealthNote, ...]
    queries: int = 0  # rows that the model scored in both phases and to prepare them, twins included

    @property
    def findings(self) -> Findings:
        """The findings of both phases, the global ones first."""
        return Findings.join([self.first.findings, self.local.findings])

    @property
    def total(self) -> Count:
        """The counts of both phases together."""
        first, local = self.first.findings, self.local.findings
        found = self.first.found + self.local.found
        return Count(first.tried + local.tried, found, first.judged + local.judged)

    @property
    def confused(self) -> float:
        """The chance that any record was taken for another one and not counted: 0 if keys are exact."""
        pairs = self.total.tried * (self.total.tried - 1) / 2
        return 0.0 if self.domain.keys_are_exact else -math.expm1(-pairs * SAME_KEY)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the search early."""
        guided = METHODS[self.config.method].gradients
        missing = self.config.controls and (self.random is None or (guided and self.random_direction is None))
        return missing or "interrupted" in (self.first.stop, self.local.stop)

    def _plausibility(self) -> PlausibilityFigures | None:
        """Return how plausible the findings are; None without findings, or if that is not known."""
        if self.local.on_disk is not None:  # the first phase has at most one finding for each chain
            return (FindingsSummary.of(self.first.findings, self.domain) + self.local.on_disk).plausibility(PLAUSIBLE)
        both = torch.cat([self.first.findings.plausibility, self.local.findings.plausibility])
        known = both[~both.isnan()]
        if len(known) == 0:
            return None
        share = float((known >= PLAUSIBLE).double().mean())
        return {"least": PLAUSIBLE, "share": share, "median": float(known.median())}

    def summary(self) -> SearchSummary:
        """Return the figures as plain values."""
        first, local, total = self.first.findings, self.local.findings, self.total
        seconds = self.first.seconds + self.local.seconds
        on_disk = 0 if self.local.on_disk is None else self.local.on_disk.violations
        return {
            "method": self.config.method,
            "findings": total.findings,
            "findings_global": self.first.found,
            "findings_local": self.local.found,
            "tried": total.tried,
            "confused": self.confused,
            "gsr": total.gsr,
            "random": _control(self.random),
            "lift": _lift(total, self.random),
            "random_direction": _control(self.random_direction),
            "lift_over_random_direction": _lift(total, self.random_direction),
            "violations": violations(first, self.domain) + violations(local, self.domain) + on_disk,
            "plausibility": self._plausibility(),
            "rejected_on_recheck": first.rejected + local.rejected,
            "seconds": seconds,
            "seconds_per_1000": 1000 * seconds / total.findings if total.findings else None,
            "rows_judged": total.judged,
            "stop": {"global": self.first.stop, "local": self.local.stop},
            "health": [{"name": note.name, "seen": note.seen, "remedy": note.remedy} for note in self.health],
        }


def _control(count: Count | None) -> ControlFigures | None:
    return None if count is None else {"tried": count.tried, "findings": count.findings, "gsr": count.gsr}


def _lift(total: Count, control: Count | None) -> float | None:
    """Return how many times as often a search succeeds as its control."""
    return total.gsr / control.gsr if control is not None and control.gsr else None
