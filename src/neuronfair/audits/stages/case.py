"""The input of the stages for one choice of sensitive attributes, and their results so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from neuronfair.audits.report.attribute import (
    UNREAD_NOTES,
    AttributeReport,
    DirectionReport,
    FlipRateReport,
    Note,
)
from neuronfair.domain.draws import draw_order
from neuronfair.domain.population.model import PopulationModel
from neuronfair.domain.population.plausible import MIN_PLAUSIBILITY, keep_plausible, with_plausible_twins
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.domain.twins import ATTRIBUTE_FLIPS
from neuronfair.formatting import Population
from neuronfair.measure.counterfactual_effect import CounterfactualSettings, CounterfactualTest
from neuronfair.measure.rate import PairRate, Rate, Until, flip_rate, plausible_pair_rate
from neuronfair.model.blackbox import Model, score_in_batches
from neuronfair.model.decision import Decision, Scale
from neuronfair.model.encoding import ROWS_PER_PASS
from neuronfair.model.open import OpenedModel
from neuronfair.model.profile import BiasProfile
from neuronfair.model.records import Records, prepare_records
from neuronfair.searches.campaign import SearchResult
from neuronfair.searches.config import SearchConfig

MAX_READ_ROWS, MIN_READ_ROWS = 500_000, 500  # rows, twins included, whose neurons are read; and the fewest rows
IMPORTANCE_ROWS = 128  # rows from which the importance of the attributes is read
MAX_NEAR_RECORDS = 20_000  # records among which the nearest to a finding is searched


@dataclass(frozen=True)
class RunFolder:
    """The folder of the searches of a case, and how their model is opened again."""

    path: Path
    model: str  # place of the model, as seen from a run folder
    weights: str  # fingerprint of the model
    extra_weights: str | None  # weights file of a module that Python code builds
    replay: tuple[str, ...] | None  # options of `neuronfair show`; None: the model is only in memory


@dataclass(frozen=True)
class AttributeCase:
    """The input of the stages for one choice of sensitive attributes, which the domain of the data set names."""

    model: Model
    data: Dataset
    decision: Decision
    samples: int
    confidence: float = 0.95
    seed: int = 0
    seeds: Tensor | None = None  # rows that the searches start from
    configs: tuple[SearchConfig, ...] = ()
    importance_order: Sequence[int] = ()  # columns, the most important first
    scale: Scale = "numbers"  # what the scores are
    shrunk: int = 100  # candidates for the worst findings that are shrunk
    runs: RunFolder | None = None  # None: the searches are kept in memory only
    population: PopulationModel | None = None  # None where no population model could be fitted
    opened_model: OpenedModel | None = None  # what the model came from, which may be asked with the original cells

    @cached_property
    def records(self) -> Records:
        """The records of the data set, with their original cells where the model can be asked with them."""
        return prepare_records(self.opened_model or self.model, self.data)

    @property
    def domain(self) -> TableDomain:
        """The domain with the sensitive attributes chosen."""
        return self.data.domain

    @cached_property
    def pair_domain(self) -> TableDomain:
        """The domain whose people are compared with plausible twins only; itself where nothing is known of them."""
        if self.population is None or self.domain.twinning != ATTRIBUTE_FLIPS:
            return self.domain
        return with_plausible_twins(self.domain, self.population, self.data.rows)

    @cached_property
    def plausible_records(self) -> tuple[TableDomain, Tensor]:
        """The domain of plausible pairs, and the plausible records of the data set; all without a population."""
        if self.population is None:
            return self.domain, self.domain.clip(self.data.rows[:MAX_NEAR_RECORDS])
        # Of all records: the first ones need not be plausible.
        plausible_domain = keep_plausible(
            self.pair_domain, self.population, MIN_PLAUSIBILITY, self.domain.clip(self.data.rows)
        )
        return plausible_domain, plausible_domain.records[:MAX_NEAR_RECORDS]

    def rate(
        self,
        population: Population | Tensor | PopulationModel | Dataset | Records,
        domain: TableDomain | None = None,
        progress: Callable[[int, int], None] | None = None,
        error: float | None = None,
    ) -> Rate:
        """Return the flip rate of a population, with the twins of the domain or of another one.

        With `error`, sampling stops as soon as half the width of the interval is at most that.
        """
        return flip_rate(
            self.model,
            domain or self.domain,
            population=population,
            samples=self.samples if error is None else Until(error, self.samples),
            confidence=self.confidence,
            decision=self.decision,
            seed=self.seed,
            progress=progress,
        )

    def pair_rate(self, progress: Callable[[int, int], None] | None = None) -> PairRate | None:
        """Return the flip rate over plausible pairs; None where no record has a plausible twin."""
        return plausible_pair_rate(
            self.model,
            self.pair_domain,
            self.records,
            samples=self.samples,
            confidence=self.confidence,
            decision=self.decision,
            seed=self.seed,
            progress=progress,
        )

    def counterfactual_test(self, rows: Tensor, settings: CounterfactualSettings | None = None) -> CounterfactualTest:
        """Return the counterfactual test of these records, which learns their twins; impossible ones are refused."""
        return CounterfactualTest(
            self.model,
            self.domain,
            rows,
            decision=self.decision,
            settings=settings,
            confidence=self.confidence,
            seed=self.seed,
        )

    def plausibility(self, rows: Tensor) -> Tensor | None:
        """Return the likelihood percentile of each row, as a share; None without a population."""
        if self.population is None:
            return None
        return torch.cat([self.population.plausibility(part.long()) for part in torch.split(rows, ROWS_PER_PASS)])

    def is_plausible(self, rows: Tensor) -> Tensor:
        """Return for each row whether it is plausible: bool, (n,); all are without a population model."""
        plausibility = self.plausibility(rows)
        return (
            torch.ones(len(rows), dtype=torch.bool, device=rows.device)
            if plausibility is None
            else plausibility >= MIN_PLAUSIBILITY
        )

    @cached_property
    def interpreted_rows(self) -> Tensor:
        """The records whose neurons are read, twins included; a sample where there are many twins."""
        rows, limit = self.data.rows, max(MIN_READ_ROWS, MAX_READ_ROWS // len(self.domain.sensitive_values))
        if len(rows) <= limit:
            return rows
        order = draw_order(len(rows), self.seed)
        return rows[order[:limit].to(rows.device)]

    @cached_property
    def exact(self) -> Model:
        """The model in float64, as findings are confirmed."""
        return self.model.double()


@dataclass
class AttributeAudit:
    """The results so far for one choice of sensitive attributes; every stage adds to them."""

    report: AttributeReport
    outcomes: list[SearchResult] = field(default_factory=list)
    rate: Rate | None = None  # of plausible people, or else of people drawn uniformly from the domain
    profile: BiasProfile | None = None  # a black box has none

    @staticmethod
    def of(domain: TableDomain) -> AttributeAudit:
        """Return an audit without results."""
        names = domain.sensitive
        return AttributeAudit(AttributeReport("+".join(names), tuple(names), twins=len(domain.sensitive_values) - 1))

    def add_rate(self, rate: FlipRateReport, direction: tuple[DirectionReport, ...]) -> None:
        """Add the flip rate of a population, and whom the flips disadvantage."""
        rates = replace(self.report.rates, **{rate.population: rate})
        self.report = replace(self.report, rates=rates, direction=(*self.report.direction, *direction))

    def note(self, *notes: Note) -> None:
        """Add notes on what may mislead, each once."""
        new = (note for note in notes if note not in self.report.health)
        self.report = replace(self.report, health=(*self.report.health, *new))

    def drop_refuted_notes(self) -> None:
        """Drop the note that the model does not read the attribute if a later stage found a dependence."""
        if self.report.depends:
            health = tuple(note for note in self.report.health if note.name not in UNREAD_NOTES)
            self.report = replace(self.report, health=health)


def rank_attributes(model: Model, domain: TableDomain, rows: Tensor, decision: Decision) -> list[int]:
    """Return the columns, the one first whose value moves the scores of a few rows most when it is another row's."""
    rows = domain.clip(rows[:IMPORTANCE_ROWS])
    d = len(domain.attributes)
    mixed = rows.repeat(d, 1, 1)  # (d, n, d): in copy c, column c is taken from another row
    columns = torch.arange(d, device=rows.device)
    mixed[columns, :, columns] = rows.roll(1, 0).T
    scores = score_in_batches(model, torch.cat([rows, mixed.flatten(0, 1)]))
    row_scores, mixed_scores = scores[: len(rows)], scores[len(rows) :].view(d, len(rows), -1)
    order: list[int] = (
        decision.gap(mixed_scores, row_scores).double().mean(1).argsort(descending=True, stable=True).tolist()
    )
    return order
