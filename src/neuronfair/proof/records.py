"""What a proof says about the rows of a data set and about fresh records, and whether the model agrees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.domain.population.model import PopulationModel, fit_likelihood
from neuronfair.domain.schema.toml import allowed_codes
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import Contradiction
from neuronfair.measure.stats import clopper_pearson
from neuronfair.model.blackbox import BlackBox, Model
from neuronfair.model.open import OpenedModel
from neuronfair.model.records import REFUSES_EMPTY, prepare_records
from neuronfair.proof.bounds.margins import decide_records
from neuronfair.proof.bounds.space import Boxes, CutTree
from neuronfair.proof.certificate import CertifiedBoxes, Proof
from neuronfair.proof.problem import Problem, places_of, rule_of
from neuronfair.proof.report import DataSetClaims, FreshClaims, RecordPart, ShareInterval
from neuronfair.proof.state import FAIR, FLIPS, UNDECIDED, GuideSource, ProofState
from neuronfair.searches.evaluate import Evaluation, evaluate

Order = Literal["records", "volume"]  # which boxes come first
FRESH = 5_000  # records that are drawn after the proof
FEWEST, MANY = 500, 64  # of them at least, and sensitive values from which on there are fewer
DRAWS = 20  # times as many may be drawn, where a region holds few of them
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
        problem: Problem,
        data: Dataset,
        population: PopulationModel | None = None,
        order: Order = "records",
        *,
        model: OpenedModel | Model | None = None,
    ) -> ProofRecords:
        """Return the records of a data set; a population model is fitted where none is given.

        A `model` may read an empty cell as such, and not as the number that the domain declares for it: then the proof
        says nothing about these rows.
        """
        rows = data.rows.cpu()
        exact = torch.ones(len(rows), dtype=torch.bool)
        if data.original is not None and len(data.original.rows) == len(rows):
            exact = torch.from_numpy(~data.original.off_grid(data.domain, rows.numpy()).any(1))
            filled = torch.from_numpy(data.original.has_filled(data.domain))
            if model is not None and bool(filled.any()) and _reads_empty_cells(model, data):
                exact &= ~filled
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
        places = self.places[self.in_region]
        return GuideSource(places, self._draw if leads and self.population is not None else None, leads)

    @cached_property
    def counted(self) -> Tensor:
        """Which rows belong to the region, by its conditions alone: bool (n,)."""
        if not self.problem.condition:
            return torch.ones(len(self.rows), dtype=torch.bool)
        allowed = allowed_codes(self.problem.domain, self.problem.condition)
        columns = zip(allowed, self.rows.T, strict=True)
        return torch.stack([(c >= 0) & (c < len(ok)) & ok[c.clamp(0, len(ok) - 1)] for ok, c in columns]).all(0)

    @cached_property
    def in_region(self) -> Tensor:
        """Which of these are records of the domain: bool (n,)."""
        return self.counted & self.exact & (self.places >= 0).all(1)

    @cached_property
    def places(self) -> Tensor:
        """The places of the rows, (n, axes); -1 for a row outside the region."""
        return places_of(self.problem, self.rows)

    def _draw(self, count: int, seed: int) -> Tensor:
        assert self.population is not None
        rows = self.population.sample(count, torch.Generator().manual_seed(seed)).cpu()
        places = places_of(self.problem, rows)
        return places[(places >= 0).all(1)]

    def data_set(self, evidence: Evidence, model: OpenedModel | Model | None = None) -> DataSetClaims | None:
        """Return for how many rows of the region the decision is certified; None without rows.

        With a model, undecided rows are evaluated, and those that flip are no longer undecided.
        """
        if not len(self.rows):
            return None
        status, of = self.status(evidence), int(self.counted.sum())
        if model is not None:
            rows = (self.in_region & (status == UNDECIDED)).nonzero()[:, 0]
            found = evaluated_flips(self.problem, model, self.rows[rows])
            status[rows[: len(found)][found]] = FLIPS
        fair, flips = (int((status == each).sum()) for each in (FAIR, FLIPS))
        parts = [RecordPart.of(count, of) for count in (fair, flips, of - fair - flips)]
        outside = int((self.counted & ~self.in_region).sum())
        return DataSetClaims(of, parts[0], parts[1], parts[2], self._without_twin(), outside)

    def status(self, evidence: Evidence) -> Tensor:
        """Return the status of each row; rows that are no records of the region are undecided."""
        status = torch.full((len(self.rows),), UNDECIDED, dtype=torch.int8)
        status[self.in_region] = evidence.guide_status(self.places[self.in_region].to(self.problem.device)).cpu()
        return status

    def _without_twin(self) -> int:
        records = self.problem.records.to(torch.device("cpu"))
        box = CutTree(records.cuts).find_owners(records.node, self.places[self.in_region])
        return int((records.valid[records.pattern].sum(1)[box] < 2).sum())

    @cached_property
    def fresh_places(self) -> Tensor:
        """The places of fresh records in the region: none without a population model."""
        parts, drawn, values = [self.places[:0]], 0, len(self.problem.domain.sensitive_values)
        count = FRESH if values <= MANY else max(min(FEWEST, FRESH), FRESH * MANY // values)
        while self.population is not None and drawn < count * DRAWS and sum(map(len, parts)) < count:
            parts.append(self._draw(count, FRESH_SEED + drawn))
            drawn += count
        return torch.cat(parts)[:count]

    def fresh(self, evidence: Evidence) -> FreshClaims | None:
        """Return the shares of fresh records for which the decision is certified; None where none can be drawn."""
        places = self.fresh_places.to(self.problem.device)
        if not len(places):
            return None
        status = evidence.status_of(places)
        shares = (share_interval(int((status == each).sum()), len(places)) for each in (FAIR, FLIPS, UNDECIDED))
        return FreshClaims(len(places), *shares)


def _reads_empty_cells(model: OpenedModel | Model, data: Dataset) -> bool:
    records = prepare_records(model, data)
    return records.form == "cells" and records.reason != REFUSES_EMPTY


def share_interval(count: int, of: int) -> ShareInterval:
    """Return a share of drawn records with its confidence interval."""
    return ShareInterval(*clopper_pearson(count, of))


LINE_NUMBERS_PER_PASS = 1 << 22


@dataclass(frozen=True)
class Evidence:
    """The boxes of a proof, finished ones first, and the status of records by their boxes."""

    problem: Problem
    state: ProofState

    @cached_property
    def boxes(self) -> Boxes:
        """All boxes."""
        return Boxes(self._column("low").long(), self._column("high").long())

    @cached_property
    def valid(self) -> Tensor:
        """Which sensitive values the records of each box may have: (n, values)."""
        return self.problem.records.valid[self._column("pattern").long()]

    @cached_property
    def in_region(self) -> Tensor:
        """Which of these belong to the region: (n, values)."""
        return self.problem.records.in_region[self._column("pattern").long()]

    def boxes_of(self, places: Tensor) -> Tensor:
        """Return the number of the box in which each place of the region lies; -1 for a place outside."""
        inside = ((places >= 0).all(1)).nonzero()[:, 0]
        result = torch.full((len(places),), -1, dtype=torch.int64, device=places.device)
        result[inside] = CutTree(self.state.cuts).find_owners(self._column("node"), places[inside])
        return result

    def twins_of(self, places: Tensor) -> Tensor:
        """Return how many sensitive values records at places may have: (n,)."""
        return self.valid[self.boxes_of(places.long())].sum(1)

    def status_of(self, places: Tensor) -> Tensor:
        """Return the status of the records at places: undecided, fair or flips."""
        status, box = self.guide_status(places), self.boxes_of(places)
        open_ = ((status == UNDECIDED) & (box >= 0)).nonzero()[:, 0]
        fair, flips = (self._column(name)[box[open_]] == 1 for name in ("fair", "flips"))
        status[open_[fair]], status[open_[flips]] = FAIR, FLIPS
        open_ = open_[~(fair | flips)]
        counted = self._column("fair_count")[box[open_]] >= 0
        for some, decide in ((open_[counted], self._by_margins), (open_[~counted], self._by_lines)):
            if len(some):
                fair, flips = decide(box[some], places[some])
                status[some[fair]], status[some[flips & ~fair]] = FAIR, FLIPS
        return status

    def _by_margins(self, box: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        problem = self.problem
        return problem.margins.decide(problem.compute_margins(places), problem.slack, self.valid[box])

    def _by_lines(self, box: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return which records do not flip and which do, by the tightest lines of their boxes."""
        problem, result = self.problem, torch.zeros(2, len(box), dtype=torch.bool, device=box.device)
        bounder = problem.bounder
        if bounder is None:
            return result[0], result[1]
        chosen, owner = torch.unique(box, return_inverse=True)
        step = max(
            1, LINE_NUMBERS_PER_PASS // (self.valid.shape[1] * (problem.space.features + len(problem.space.axes)))
        )
        for begin in range(0, len(chosen), step):
            some = chosen[begin : begin + step]
            mine = ((owner >= begin) & (owner < begin + step)).nonzero()[:, 0]
            lines = bounder.find_lines(self.boxes[some], strategy=bounder.strategy_count - 1)
            place = owner[mine] - begin
            found = decide_records(problem.margins, problem.space, lines, place, places[mine], self.valid[some])
            result[:, mine] = torch.stack(found)
        return result[0], result[1]

    def guide_status(self, places: Tensor) -> Tensor:
        """Return the status of the guides at places, undecided where there is none."""
        guides, status = self.state.guides["places"].long(), self.state.guides["status"]
        distinct, which = torch.unique(torch.cat([guides, places]), dim=0, return_inverse=True)
        known = torch.zeros(len(distinct), dtype=status.dtype, device=status.device)
        known.scatter_reduce_(0, which[: len(guides)], status, "amax")
        return known[which[len(guides) :]]

    def _column(self, name: str) -> Tensor:
        return torch.cat([self.state.done[name], self.state.undecided[name]])


EVALUATED = 20_000  # records of boxes, and as many rows, with all their twins; fewer where there are many twins
MEMBERS = 200_000  # records and twins together
ORIGINAL = 2_000  # records evaluated by the source of a rebuilt model
FLOAT32_TOLERANCE = 1e-4  # of the scores: how near to the boundary float32 and float64 may differ
EXACT = 1e-9  # the same for float64


@dataclass(frozen=True)
class EvaluatedRecords:
    """Evaluated records, and where they come from."""

    what: str
    rows: Tensor


def check_against_model(
    problem: Problem,
    proof: Proof,
    opened: OpenedModel | Model,
    seen: Sequence[EvaluatedRecords] = (),
    *,
    drawn: bool = True,
) -> None:
    """Refuse a proof that the model contradicts: on records seen elsewhere, or on those `drawn` from its boxes."""
    assert proof.state is not None  # it was proved here
    model = opened.model if isinstance(opened, OpenedModel) else opened
    most = max(1, min(EVALUATED, MEMBERS // len(problem.domain.sensitive_values)))
    models: list[tuple[Model, float, int]] = [(model, FLOAT32_TOLERANCE, most)]
    if not isinstance(model, BlackBox):
        models.append((model.double(), EXACT, most))
    if isinstance(opened, OpenedModel) and opened.original is not None:
        models.append((BlackBox(opened.original, model.encoding), FLOAT32_TOLERANCE, min(ORIGINAL, most)))
    claims = _Claims(problem, proof.certified, Evidence(problem, proof.state))
    for records in (*seen, *((EvaluatedRecords("drawn at random", claims.drawn(most)),) if drawn else ())):
        rows = records.rows.cpu().long()
        rows = rows[torch.from_numpy(np.random.default_rng(0).permutation(len(rows))[:most])]
        claimed = claims.certified_among(rows)
        for each, near, count in models:
            claims.compare(each, claimed.first(count), near, records.what)


def evaluated_flips(problem: Problem, opened: OpenedModel | Model, rows: Tensor) -> Tensor:
    """Return which rows flip, by more than rounding; of a black box only the first are evaluated."""
    model = opened.model if isinstance(opened, OpenedModel) else opened
    step = max(1, MEMBERS // len(problem.domain.sensitive_values))
    if isinstance(model, BlackBox):
        near, rows = FLOAT32_TOLERANCE, rows[: min(EVALUATED, step)]
    else:
        near, model = EXACT, model.double()
    domain = problem.domain.to(model.encoding.device)
    found = [
        evaluate(model, domain, part.to(domain.device), problem.decision) for part in torch.split(rows.long(), step)
    ]
    return torch.cat([_certainly(part, near)[0].cpu() for part in found]) if len(rows) else rows.new_zeros(0).bool()


@dataclass(frozen=True)
class _ClaimedRecords:
    """Certified records: their boxes, and whether it is certified that their decision does not flip."""

    rows: Tensor
    box: Tensor
    fair: Tensor  # bool; the others' flips

    def first(self, count: int) -> _ClaimedRecords:
        return _ClaimedRecords(self.rows[:count], self.box[:count], self.fair[:count])


@dataclass(frozen=True)
class _Claims:
    """What is claimed of each box."""

    problem: Problem
    certified: CertifiedBoxes
    evidence: Evidence

    @cached_property
    def boxes(self) -> Boxes:
        """The boxes, on the CPU."""
        return Boxes(torch.from_numpy(self.certified.low).long(), torch.from_numpy(self.certified.high).long())

    @cached_property
    def in_region(self) -> Tensor:
        """Which sensitive values of each box belong to the region, on the CPU: (n, values)."""
        return self.evidence.in_region.cpu()

    @cached_property
    def count(self) -> npt.NDArray[np.object_]:
        """How many records each box has, exactly."""
        sizes = self.problem.space.count_codes(self.boxes.to(self.problem.device)).cpu().numpy().astype(object)
        return np.asarray(sizes.prod(1) * self.in_region.sum(1).numpy().astype(object), dtype=object)

    def drawn(self, most: int) -> Tensor:
        """Return random records of boxes of which something is proved, of each box if there are not too many."""
        fair, flips = self.certified.fair, self.certified.discriminatory
        claims = zip(fair, flips, self.count, strict=True)
        proved = np.flatnonzero([count > 0 and fair + flips > 0 for fair, flips, count in claims])
        columns = len(self.problem.domain.attributes)
        if not len(proved):
            return torch.empty(0, columns, dtype=torch.int64)
        draw = np.random.default_rng(0)
        box = np.repeat(draw.permutation(proved)[:most], max(1, most // len(proved)))
        rows = torch.empty(len(box), columns, dtype=torch.int64)
        for number, axis in enumerate(self.problem.space.axes):
            order = axis.position_of_code.cpu().argsort(stable=True)
            codes = order[len(order) - int((axis.position_of_code >= 0).sum()) :]  # by place; those outside stand first
            before = np.concatenate([[0], torch.bincount(axis.position_of_code.cpu()[codes]).cumsum(0).numpy()])
            first, last = before[self.certified.low[box, number]], before[self.certified.high[box, number] + 1]
            rows[:, axis.column] = codes[torch.from_numpy(draw.integers(first, last))]
        inside = self.in_region[box]
        which = torch.from_numpy(draw.integers(0, inside.sum(1).numpy()))
        value = (inside.cumsum(1) > which[:, None]).int().argmax(1)  # the first that has so many before it
        rows[:, list(self.problem.domain.sensitive_columns)] = self.problem.domain.sensitive_values.cpu()[value]
        return rows

    def certified_among(self, rows: Tensor) -> _ClaimedRecords:
        """Return those that are certified."""
        places = places_of(self.problem, rows).to(self.problem.device)
        box, status = self.evidence.boxes_of(places).cpu(), self.evidence.status_of(places).cpu()
        claimed = status != UNDECIDED
        return _ClaimedRecords(rows[claimed], box[claimed], status[claimed] == FAIR)

    def compare(self, model: Model, claimed: _ClaimedRecords, near: float, what: str) -> None:
        """Refuse what is claimed of records where a model decides otherwise about them."""
        if not len(claimed.rows):
            return
        domain = self.problem.domain.to(model.encoding.device)
        found = evaluate(model, domain, claimed.rows.to(domain.device), self.problem.decision)
        flip, alike = (part.cpu() for part in _certainly(found, near))
        wrong = torch.where(claimed.fair, flip, alike)
        if bool(wrong.any()):
            number = int(wrong.nonzero()[0, 0])
            raise self._error(found[number : number + 1], int(claimed.box[number]), bool(flip[number]), what)

    def _error(self, found: Evaluation, box: int, flips: bool, what: str) -> Contradiction:
        attributes = self.problem.domain.attributes
        pair = found.pairs()
        person = ", ".join(f"{a.name} {a.value(int(code))}" for a, code in zip(attributes, pair.rows[0], strict=True))
        twin = ", ".join(
            f"{attributes[column].name} {attributes[column].value(int(pair.twins[0, column]))}"
            for column in self.problem.domain.sensitive_columns
        )
        scores = [", ".join(f"{score:.6g}" for score in part[0].tolist()) for part in pair[2:]]
        rule = rule_of(self.problem, self.boxes.low[box], self.boxes.high[box]) or self.problem.condition or "anything"
        proved = "nobody's decision flips" if flips else "everybody's decision flips"
        return Contradiction(
            f"the proof and the model contradict each other, so the proof is void. Proved: where {rule}, "
            f"{proved}. But the model says of a person there ({what}): {person}, scores {scores[0]}; with {twin} "
            f"it {'gets another decision' if flips else 'gets the same decision'}, scores {scores[1]}. The model was "
            "misread, or answers differently from call to call: please report this"
        )


def _certainly(found: Evaluation, near: float) -> tuple[Tensor, Tensor]:
    """Return which decisions certainly flip and which do not, by scores that are exact but for rounding.

    `near` is that rounding, in parts of the largest score of a family, or of 1.
    """
    decision, family = found.decision, found.family.double()
    exists = torch.cat([torch.ones_like(found.valid[:, :1]), found.valid], 1)
    off = near * family.abs().amax((1, 2)).clamp(min=1.0)
    if decision.kind == "tolerance":
        score = family[..., -1]
        gap = score.masked_fill(~exists, -torch.inf).amax(1) - score.masked_fill(~exists, torch.inf).amin(1)
        return gap > decision.value + 2 * off, gap < decision.value - 2 * off
    if decision.kind == "argmax":
        best = family.topk(2, -1).values
        margin = best[..., 0] - best[..., 1]
    else:
        margin = (family[..., -1] - decision.value).abs()
    sure = (margin > 2 * off[:, None]) & exists
    chosen = decision.decide(family)
    highest = chosen.masked_fill(~sure, -1).amax(1)
    lowest = chosen.masked_fill(~sure, 1 << 30).amin(1)
    return highest > lowest, (sure | ~exists).all(1) & (highest == lowest)
