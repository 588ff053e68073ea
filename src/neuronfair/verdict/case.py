"""What is audited for one choice of sensitive attributes, and what is known about it so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from neuronfair.domain.data import Data
from neuronfair.domain.table import TableDomain
from neuronfair.interpretation.profile import BiasProfile
from neuronfair.measure.rate import Rate
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision
from neuronfair.search.campaign import Outcome, Plan
from neuronfair.verdict.entries import AttributeReport, Note

READ, FEWEST = 500_000, 500  # rows, twins included, whose neurons are read; but so many rows at least


class Progress(Protocol):
    """Shows how far a stage is: what it does, how much is done of how much, and a note."""

    def __call__(self, what: str, done: int, total: int | None, note: str = "") -> None:
        """Show it."""


@dataclass(frozen=True)
class Case:
    """What is audited for one choice of sensitive attributes: the table's domain names them."""

    model: Model
    data: Data
    decision: Decision
    seeds: Tensor
    plans: tuple[Plan, ...]
    samples: int
    confidence: float
    seed: int
    telling: list[int]  # columns, the most important first
    shrunk: int = 100  # candidates for the worst findings that are shrunk
    folder: Path | None = None
    manifest: Mapping[str, Any] = field(default_factory=dict)  # where the model is, and its fingerprint
    replay: tuple[str, ...] | None = ()  # what `neuronfair replay` must be told; None: the model is only in memory

    @property
    def domain(self) -> TableDomain:
        """The domain with the sensitive attributes chosen."""
        return self.data.domain

    @cached_property
    def looked_at(self) -> Tensor:
        """The rows of the table whose neurons are read, twins included; not all where there are many twins."""
        rows, most = self.data.rows, max(FEWEST, READ // len(self.domain.sensitive_values))
        if len(rows) <= most:
            return rows
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.seed))
        return rows[order[:most].to(rows.device)]

    @cached_property
    def exact(self) -> Model:
        """The model in float64, as findings are confirmed."""
        return self.model.double()


@dataclass
class Inquiry:
    """What is known so far about one choice of sensitive attributes; it grows stage by stage."""

    report: AttributeReport
    outcomes: list[Outcome] = field(default_factory=list)
    rate: Rate | None = None  # of people drawn uniformly from the domain
    profile: BiasProfile | None = None  # a black box has none

    @staticmethod
    def of(domain: TableDomain) -> Inquiry:
        """Return an inquiry about which nothing is known yet."""
        names = domain.sensitive
        return Inquiry(AttributeReport("+".join(names), tuple(names), twins=len(domain.sensitive_values) - 1))

    def add(self, **known: Any) -> None:
        """Add what is known now."""
        self.report = replace(self.report, **known)

    def note(self, *notes: Note) -> None:
        """Add what may mislead, unless it was said before."""
        self.add(health=(*self.report.health, *(note for note in notes if note not in self.report.health)))
