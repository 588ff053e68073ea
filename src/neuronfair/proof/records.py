"""The records that a proof is reported about: the rows of the data set, and records drawn after the proof."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from neuronfair.domain.population.model import PopulationModel, fit_likelihood
from neuronfair.domain.schema.toml import allowed_codes
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import DomainError
from neuronfair.measure.rate import Rate
from neuronfair.proof.boxes.cuts import CutTree
from neuronfair.proof.boxes.space import Boxes
from neuronfair.proof.decide.evidence import Evidence
from neuronfair.proof.decide.guides import FAIR, FLIPS, UNDECIDED, Guides, GuideSource
from neuronfair.proof.decide.regions import Grower, rule_of
from neuronfair.proof.problem import Problem, places_of
from neuronfair.proof.report import DataSetClaims, FreshClaims, Part, RecordPart, Region, ShareInterval

Order = Literal["records", "volume"]  # which boxes come first
FRESH = 5_000  # records that are drawn after the proof
FEWEST, MANY = 500, 64  # of them at least, and sensitive values from which on there are fewer
DRAWS = 20  # times as many may be drawn, where a region holds few of them
TRIES = 3  # rows that are tried for each region
FRESH_SEED = 1 << 40  # of the fresh records: no guide is drawn with it


@dataclass(frozen=True)
class ProofRecords:
    """The rows of a data set and a population model. `exact` says which rows have only values of the domain."""

    problem: Problem
    name: str  # of the data set
    rows: Tensor
    exact: Tensor
    population: PopulationModel | None
    order: Order = "records"
    most_regions: int = 3  # that are grown for the report

    @staticmethod
    def of(
        problem: Problem, data: Dataset, population: PopulationModel | None = None, order: Order = "records"
    ) -> ProofRecords:
        """Return the records of a data set; a population model is fitted where none is given."""
        rows = data.rows.cpu()
        exact = torch.ones(len(rows), dtype=torch.bool)
        if data.original is not None and len(data.original.rows) == len(rows):
            exact = torch.from_numpy(~data.original.off_grid(data.domain, rows.numpy()).any(1))
        if population is None and len(rows):
            population = fit_likelihood(problem.domain, problem.domain.clip(rows))
        return ProofRecords(problem, data.name, rows, exact, population, order)

    @staticmethod
    def none(problem: Problem, name: str) -> ProofRecords:
        """Return no records: those of a domain without a data set."""
        rows = torch.zeros(0, len(problem.domain.attributes), dtype=torch.int64)
        return ProofRecords(problem, name, rows, torch.ones(0, dtype=torch.bool), None, "volume")

    @property
    def guides(self) -> GuideSource:
        """The guides of a proof about these records."""
        leads = self.order == "records"
        places = self._places[self.inside]
        return GuideSource(places, self._draw if leads and self.population is not None else None, leads)

    @cached_property
    def counted(self) -> Tensor:
        """Which rows belong to the region, by its conditions alone: bool (n,)."""
        if not self.problem.where:
            return torch.ones(len(self.rows), dtype=torch.bool)
        allowed = allowed_codes(self.problem.domain, self.problem.where)
        columns = zip(allowed, self.rows.T, strict=True)
        return torch.stack([(c >= 0) & (c < len(ok)) & ok[c.clamp(0, len(ok) - 1)] for ok, c in columns]).all(0)

    @cached_property
    def inside(self) -> Tensor:
        """Which of these are records of the domain: bool (n,)."""
        return self.counted & self.exact & (self._places >= 0).all(1)

    @cached_property
    def _places(self) -> Tensor:
        return places_of(self.problem, self.rows)

    def _draw(self, count: int, seed: int) -> Tensor:
        assert self.population is not None
        rows = self.population.sample(count, torch.Generator().manual_seed(seed)).cpu()
        places = places_of(self.problem, rows)
        return places[(places >= 0).all(1)]

    def data_set(self, evidence: Evidence) -> DataSetClaims | None:
        """Return for how many rows of the region the decision is certified; None without rows."""
        if not len(self.rows):
            return None
        guides, of = Guides(evidence.state.guides), int(self.counted.sum())
        fair, flips = guides.rows_with(FAIR), guides.rows_with(FLIPS)
        parts = [RecordPart.of(count, of) for count in (fair, flips, of - fair - flips)]
        outside = int((self.counted & ~self.inside).sum())
        return DataSetClaims(of, parts[0], parts[1], parts[2], self._without_twin(), outside)

    def _without_twin(self) -> int:
        people = self.problem.people
        alone = torch.zeros(len(people.cuts), dtype=torch.bool)
        alone[people.node.cpu()] = (people.valid[people.pattern].sum(1) < 2).cpu()
        return int(alone[CutTree(people.cuts.cpu()).leaves(self._places[self.inside])].sum())

    @cached_property
    def _fresh(self) -> Tensor:
        """The places of fresh records in the region: none without a population model."""
        parts, drawn, values = [self._places[:0]], 0, len(self.problem.domain.sensitive_values)
        count = FRESH if values <= MANY else max(min(FEWEST, FRESH), FRESH * MANY // values)
        while self.population is not None and drawn < count * DRAWS and sum(map(len, parts)) < count:
            parts.append(self._draw(count, FRESH_SEED + drawn))
            drawn += count
        return torch.cat(parts)[:count]

    def fresh(self, evidence: Evidence) -> FreshClaims | None:
        """Return the shares of fresh records for which the decision is certified; None where none can be drawn."""
        places = self._fresh.to(self.problem.device)
        if not len(places):
            return None
        status = evidence.status_of(places)
        shares = (_share(int((status == each).sum()), len(places)) for each in (FAIR, FLIPS, UNDECIDED))
        return FreshClaims(len(places), *shares)

    def region_of(self, row: int) -> Region | None:
        """Return the region around a row of the data set, grown as large as it stays proved; None if nothing is.

        Rows are counted from 1.
        """
        if not 1 <= row <= len(self.rows):
            raise DomainError(f"{self.name} has no row {row:,}: its rows are 1 to {len(self.rows):,}")
        if not bool(self.inside[row - 1]):
            raise DomainError(f"row {row:,} of {self.name} is no record of the region that is certified")
        return self._region(self._places[row - 1])

    def regions(self, evidence: Evidence) -> list[Region]:
        """Return certified regions of many rows: each grows around the most usual row that no other one holds."""
        guides = Guides(evidence.state.guides)
        left = (guides.rows > 0) & (guides.status == FAIR) & (evidence.twins_of(guides.places) > 1)
        usual, found = self._grower.mass(Boxes(guides.places.long(), guides.places.long())), list[Region]()
        for _ in range(TRIES * self.most_regions):
            if len(found) == self.most_regions or not bool(left.any()):
                break
            row = int(usual.masked_fill(~left, -torch.inf).argmax())
            left[row] = False
            box = self._grower.grown(guides.places[row].long(), fair=True)
            if box is not None:
                left &= ~box.hold(guides.places)[:, 0]
                found.append(self._described(box, depends=False))
        return sorted(found, key=lambda region: -region.rows.count if region.rows else 0)

    def _region(self, place: Tensor) -> Region | None:
        for depends in (False, True):
            box = self._grower.grown(place.to(self.problem.device), fair=not depends)
            if box is not None:
                return self._described(box, depends=depends)
        return None

    @cached_property
    def _grower(self) -> Grower:
        return Grower(self.problem, self._places[self.inside].to(self.problem.device))

    def _described(self, box: Boxes, *, depends: bool) -> Region:
        problem = self.problem
        _, pieces, pattern = self._grower.pieces(box)
        size = Part.of(sum(problem.people.count(problem.space, pieces, pattern)), problem.count)
        cpu = box.to(torch.device("cpu"))
        held = int(cpu.hold(self._places[self.inside]).sum())
        rows = RecordPart.of(held, int(self.counted.sum())) if len(self.rows) else None
        fresh = _share(int(cpu.hold(self._fresh).sum()), len(self._fresh)) if len(self._fresh) else None
        return Region(rule_of(problem, cpu.low[0], cpu.high[0]), depends, size, rows, fresh)


def _share(count: int, of: int) -> ShareInterval:
    low, high = Rate(count, of, "plausible").interval
    return ShareInterval(count / of, low, high)
