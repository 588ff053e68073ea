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
from neuronfair.proof.certificate import CertifiedBoxes, DataSetClaims, FreshClaims, Proof, RecordShare, ShareInterval
from neuronfair.proof.problem import ProofProblem, describe_box, locate_rows
from neuronfair.proof.state import DEPENDS, FAIR, UNDECIDED, GuideSource, ProofState
from neuronfair.searches.evaluate import Evaluation, evaluate

Order = Literal["records", "volume"]  # which boxes come first
FRESH_RECORDS = 5_000  # records that are drawn after the proof
MIN_FRESH_RECORDS, MANY_VALUES = 500, 64  # fresh records at least, and sensitive values from which on there are fewer
MAX_DRAW_FACTOR = 20  # times as many records may be drawn, where a region holds few of them
FRESH_SEED = 1 << 40  # of the fresh records: no guide is drawn with it


@dataclass(frozen=True)
class ProofRecords:
    """The rows of a data set and a population model. `on_grid` says which rows have only values of the domain."""

    problem: ProofProblem
    name: str  # of the data set
    rows: Tensor
    on_grid: Tensor
    population: PopulationModel | None
    order: Order = "records"
    max_regions: int = 3  # that are grown for the report

    @staticmethod
    def of(
        problem: ProofProblem,
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
        on_grid = torch.ones(len(rows), dtype=torch.bool)
        if data.original is not None and len(data.original.rows) == len(rows):
            on_grid = torch.from_numpy(~data.original.off_grid(data.domain, rows.numpy()).any(1))
            has_filled = torch.from_numpy(data.original.has_filled(data.domain))
            if model is not None and bool(has_filled.any()) and _reads_empty_cells(model, data):
                on_grid &= ~has_filled
        if population is None and len(rows):
            population = fit_likelihood(problem.domain, problem.domain.clip(rows))
        return ProofRecords(problem, data.name, rows, on_grid, population, order)

    @staticmethod
    def none(problem: ProofProblem, name: str) -> ProofRecords:
        """Return no records: those of a domain without a data set."""
        rows = torch.zeros(0, len(problem.domain.attributes), dtype=torch.int64)
        return ProofRecords(problem, name, rows, torch.ones(0, dtype=torch.bool), None, "volume")

    @property
    def guides(self) -> GuideSource:
        """The guides of a proof about these records."""
        leads = self.order == "records"
        points = self.row_points[self.in_region]
        return GuideSource(points, self._draw_points if leads and self.population is not None else None, leads)

    @cached_property
    def meets_conditions(self) -> Tensor:
        """Which rows belong to the region, by its conditions alone: bool (n,)."""
        if not self.problem.condition:
            return torch.ones(len(self.rows), dtype=torch.bool)
        allowed = allowed_codes(self.problem.domain, self.problem.condition)
        columns = zip(allowed, self.rows.T, strict=True)
        return torch.stack([(c >= 0) & (c < len(mask)) & mask[c.clamp(0, len(mask) - 1)] for mask, c in columns]).all(0)

    @cached_property
    def in_region(self) -> Tensor:
        """Which of these are records of the domain: bool (n,)."""
        return self.meets_conditions & self.on_grid & (self.row_points >= 0).all(1)

    @cached_property
    def row_points(self) -> Tensor:
        """The points of the rows, (n, axes); -1 for a row outside the region."""
        return locate_rows(self.problem, self.rows)

    def _draw_points(self, count: int, seed: int) -> Tensor:
        assert self.population is not None
        rows = self.population.sample(count, torch.Generator().manual_seed(seed)).cpu()
        points = locate_rows(self.problem, rows)
        return points[(points >= 0).all(1)]

    def find_claims(self, evidence: Evidence, model: OpenedModel | Model | None = None) -> DataSetClaims | None:
        """Return for how many rows of the region the decision is certified; None without rows.

        With a model, undecided rows are evaluated, and those that flip are no longer undecided.
        """
        if not len(self.rows):
            return None
        status, row_count = self.status(evidence), int(self.meets_conditions.sum())
        if model is not None:
            rows = (self.in_region & (status == UNDECIDED)).nonzero()[:, 0]
            is_flip = evaluate_flips(self.problem, model, self.rows[rows])
            status[rows[: len(is_flip)][is_flip]] = DEPENDS
        fair, flips = (int((status == value).sum()) for value in (FAIR, DEPENDS))
        parts = [RecordShare.of(count, row_count) for count in (fair, flips, row_count - fair - flips)]
        outside = int((self.meets_conditions & ~self.in_region).sum())
        return DataSetClaims(row_count, parts[0], parts[1], parts[2], self._count_without_twin(), outside)

    def status(self, evidence: Evidence) -> Tensor:
        """Return the status of each row; rows that are no records of the region are undecided."""
        status = torch.full((len(self.rows),), UNDECIDED, dtype=torch.int8)
        status[self.in_region] = evidence.find_guide_status(
            self.row_points[self.in_region].to(self.problem.device)
        ).cpu()
        return status

    def _count_without_twin(self) -> int:
        records = self.problem.valid_records.to(torch.device("cpu"))
        owner = CutTree(records.cuts).find_owners(records.node, self.row_points[self.in_region])
        return int((records.valid[records.pattern].sum(1)[owner] < 2).sum())

    @cached_property
    def fresh_points(self) -> Tensor:
        """The points of fresh records in the region: none without a population model."""
        parts, drawn_count, values = [self.row_points[:0]], 0, len(self.problem.domain.sensitive_values)
        count = FRESH_RECORDS
        if values > MANY_VALUES:
            count = max(min(MIN_FRESH_RECORDS, count), count * MANY_VALUES // values)
        while self.population is not None and drawn_count < count * MAX_DRAW_FACTOR and sum(map(len, parts)) < count:
            parts.append(self._draw_points(count, FRESH_SEED + drawn_count))
            drawn_count += count
        return torch.cat(parts)[:count]

    def find_fresh_claims(self, evidence: Evidence) -> FreshClaims | None:
        """Return the shares of fresh records for which the decision is certified; None where none can be drawn."""
        points = self.fresh_points.to(self.problem.device)
        if not len(points):
            return None
        status = evidence.find_status(points)
        shares = (estimate_share(int((status == value).sum()), len(points)) for value in (FAIR, DEPENDS, UNDECIDED))
        return FreshClaims(len(points), *shares)


def _reads_empty_cells(model: OpenedModel | Model, data: Dataset) -> bool:
    records = prepare_records(model, data)
    return records.form == "cells" and records.reason != REFUSES_EMPTY


def estimate_share(count: int, total: int) -> ShareInterval:
    """Return a share of drawn records with its confidence interval."""
    return ShareInterval(*clopper_pearson(count, total))


LINE_NUMBERS_PER_PASS = 1 << 22


@dataclass(frozen=True)
class Evidence:
    """The boxes of a proof, finished ones first, and the status of records by their boxes."""

    problem: ProofProblem
    state: ProofState

    @cached_property
    def boxes(self) -> Boxes:
        """All boxes."""
        return Boxes(self._column("low").long(), self._column("high").long())

    @cached_property
    def valid(self) -> Tensor:
        """Which sensitive values the records of each box may have: (n, values)."""
        return self.problem.valid_records.valid[self._column("pattern").long()]

    @cached_property
    def in_region(self) -> Tensor:
        """Which of these belong to the region: (n, values)."""
        return self.problem.valid_records.in_region[self._column("pattern").long()]

    def find_boxes(self, points: Tensor) -> Tensor:
        """Return the number of the box in which each point of the region lies; -1 for a point outside."""
        in_region = ((points >= 0).all(1)).nonzero()[:, 0]
        owner = torch.full((len(points),), -1, dtype=torch.int64, device=points.device)
        owner[in_region] = CutTree(self.state.cuts).find_owners(self._column("node"), points[in_region])
        return owner

    def count_twins(self, points: Tensor) -> Tensor:
        """Return how many sensitive values records at points may have: (n,)."""
        return self.valid[self.find_boxes(points.long())].sum(1)

    def find_status(self, points: Tensor) -> Tensor:
        """Return the status of the records at points: undecided, fair or flips."""
        status, owner = self.find_guide_status(points), self.find_boxes(points)
        undecided = ((status == UNDECIDED) & (owner >= 0)).nonzero()[:, 0]
        fair, flips = (self._column(name)[owner[undecided]] == 1 for name in ("fair", "flips"))
        status[undecided[fair]], status[undecided[flips]] = FAIR, DEPENDS
        undecided = undecided[~(fair | flips)]
        is_enumerated = self._column("fair_count")[owner[undecided]] >= 0
        enumerated, others = undecided[is_enumerated], undecided[~is_enumerated]
        for indices, decide in ((enumerated, self._decide_by_margins), (others, self._decide_by_lines)):
            if len(indices):
                fair, flips = decide(owner[indices], points[indices])
                status[indices[fair]], status[indices[flips & ~fair]] = FAIR, DEPENDS
        return status

    def _decide_by_margins(self, owner: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        problem = self.problem
        return problem.margins.decide(problem.compute_margins(points), problem.slack, self.valid[owner])

    def _decide_by_lines(self, box_of_point: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return which records do not flip and which do, by the tightest lines of their boxes."""
        problem, result = self.problem, torch.zeros(2, len(box_of_point), dtype=torch.bool, device=box_of_point.device)
        bounder = problem.bounder
        if bounder is None:
            return result[0], result[1]
        chosen, owner = torch.unique(box_of_point, return_inverse=True)
        step = max(
            1, LINE_NUMBERS_PER_PASS // (self.valid.shape[1] * (problem.space.features + len(problem.space.axes)))
        )
        for start in range(0, len(chosen), step):
            part = chosen[start : start + step]
            indices = ((owner >= start) & (owner < start + step)).nonzero()[:, 0]
            lines = bounder.find_lines(self.boxes[part], strategy=bounder.strategy_count - 1)
            part_owner = owner[indices] - start
            records = part_owner, points[indices], self.valid[part]
            result[:, indices] = torch.stack(decide_records(problem.margins, problem.space, lines, *records))
        return result[0], result[1]

    def find_guide_status(self, points: Tensor) -> Tensor:
        """Return the status of the guides at points, undecided where there is none."""
        guide_points, status = self.state.guides["places"].long(), self.state.guides["status"]
        distinct, distinct_index = torch.unique(torch.cat([guide_points, points]), dim=0, return_inverse=True)
        known_status = torch.zeros(len(distinct), dtype=status.dtype, device=status.device)
        known_status.scatter_reduce_(0, distinct_index[: len(guide_points)], status, "amax")
        return known_status[distinct_index[len(guide_points) :]]

    def _column(self, name: str) -> Tensor:
        return torch.cat([self.state.finished[name], self.state.undecided[name]])


MAX_EVALUATED = 20_000  # records of boxes, and as many rows, with all their twins; fewer where there are many twins
MAX_MEMBERS = 200_000  # records and twins together
MAX_ORIGINAL_RECORDS = 2_000  # records evaluated by the source of a rebuilt model
FLOAT32_TOLERANCE = 1e-4  # of the scores: how near to the boundary float32 and float64 may differ
FLOAT64_TOLERANCE = 1e-9  # the same for float64


@dataclass(frozen=True)
class EvaluatedRecords:
    """Evaluated records, and where they come from."""

    source: str
    rows: Tensor


def check_against_model(
    problem: ProofProblem,
    proof: Proof,
    model: OpenedModel | Model,
    extra: Sequence[EvaluatedRecords] = (),
    draw: bool = True,
) -> None:
    """Refuse a proof that the model contradicts: on `extra` records, or on those drawn from its boxes."""
    assert proof.state is not None  # it was proved here
    inner = model.model if isinstance(model, OpenedModel) else model
    max_records = max(1, min(MAX_EVALUATED, MAX_MEMBERS // len(problem.domain.sensitive_values)))
    models: list[tuple[Model, float, int]] = [(inner, FLOAT32_TOLERANCE, max_records)]
    if not isinstance(inner, BlackBox):
        models.append((inner.double(), FLOAT64_TOLERANCE, max_records))
    if isinstance(model, OpenedModel) and model.original is not None:
        original, limit = BlackBox(model.original, inner.encoding), min(MAX_ORIGINAL_RECORDS, max_records)
        models.append((original, FLOAT32_TOLERANCE, limit))
    claims = _Claims(problem, proof.certified, Evidence(problem, proof.state))
    random_records = [EvaluatedRecords("drawn at random", claims.draw_rows(max_records))] if draw else []
    for records in (*extra, *random_records):
        rows = records.rows.cpu().long()
        rows = rows[torch.from_numpy(np.random.default_rng(0).permutation(len(rows))[:max_records])]
        claimed = claims.select_certified(rows)
        for checked, tolerance, count in models:
            claims.compare(checked, claimed.first(count), tolerance, records.source)


def evaluate_flips(problem: ProofProblem, model: OpenedModel | Model, rows: Tensor) -> Tensor:
    """Return which rows flip, by more than rounding; of a black box only the first are evaluated."""
    inner = model.model if isinstance(model, OpenedModel) else model
    step = max(1, MAX_MEMBERS // len(problem.domain.sensitive_values))
    if isinstance(inner, BlackBox):
        tolerance, rows = FLOAT32_TOLERANCE, rows[: min(MAX_EVALUATED, step)]
    else:
        tolerance, inner = FLOAT64_TOLERANCE, inner.double()
    domain = problem.domain.to(inner.encoding.device)
    evaluations = [
        evaluate(inner, domain, part.to(domain.device), problem.decision) for part in torch.split(rows.long(), step)
    ]
    flips = [_decide_certainly(part, tolerance)[0].cpu() for part in evaluations]
    return torch.cat(flips) if len(rows) else rows.new_zeros(0).bool()


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

    problem: ProofProblem
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

    def draw_rows(self, max_rows: int) -> Tensor:
        """Return random records of boxes of which something is proved, of each box if there are not too many."""
        fair, flips = self.certified.fair, self.certified.discriminatory
        claims = zip(fair, flips, self.count, strict=True)
        claiming = np.flatnonzero([count > 0 and fair + flips > 0 for fair, flips, count in claims])
        columns = len(self.problem.domain.attributes)
        if not len(claiming):
            return torch.empty(0, columns, dtype=torch.int64)
        draw = np.random.default_rng(0)
        box = np.repeat(draw.permutation(claiming)[:max_rows], max(1, max_rows // len(claiming)))
        rows = torch.empty(len(box), columns, dtype=torch.int64)
        for axis_index, axis in enumerate(self.problem.space.axes):
            order = axis.position_of_code.cpu().argsort(stable=True)
            codes = order[len(order) - int((axis.position_of_code >= 0).sum()) :]  # by position; first those outside
            codes_before = np.concatenate([[0], torch.bincount(axis.position_of_code.cpu()[codes]).cumsum(0).numpy()])
            low, high = self.certified.low[box, axis_index], self.certified.high[box, axis_index]
            first, last = codes_before[low], codes_before[high + 1]
            rows[:, axis.column] = codes[torch.from_numpy(draw.integers(first, last))]
        in_region = self.in_region[box]
        value_rank = torch.from_numpy(draw.integers(0, in_region.sum(1).numpy()))
        value = (in_region.cumsum(1) > value_rank[:, None]).int().argmax(1)  # the first that has so many before it
        rows[:, list(self.problem.domain.sensitive_columns)] = self.problem.domain.sensitive_values.cpu()[value]
        return rows

    def select_certified(self, rows: Tensor) -> _ClaimedRecords:
        """Return those that are certified."""
        points = locate_rows(self.problem, rows).to(self.problem.device)
        owner, status = self.evidence.find_boxes(points).cpu(), self.evidence.find_status(points).cpu()
        claimed = status != UNDECIDED
        return _ClaimedRecords(rows[claimed], owner[claimed], status[claimed] == FAIR)

    def compare(self, model: Model, claimed: _ClaimedRecords, tolerance: float, source: str) -> None:
        """Refuse what is claimed of records where a model decides otherwise about them."""
        if not len(claimed.rows):
            return
        domain = self.problem.domain.to(model.encoding.device)
        evaluation = evaluate(model, domain, claimed.rows.to(domain.device), self.problem.decision)
        is_flip, is_fair = (part.cpu() for part in _decide_certainly(evaluation, tolerance))
        contradicts = torch.where(claimed.fair, is_flip, is_fair)
        if bool(contradicts.any()):
            index = int(contradicts.nonzero()[0, 0])
            raise self._make_error(evaluation[index : index + 1], int(claimed.box[index]), bool(is_flip[index]), source)

    def _make_error(self, evaluation: Evaluation, box: int, flips: bool, source: str) -> Contradiction:
        attributes = self.problem.domain.attributes
        pair = evaluation.pairs()
        person = ", ".join(f"{a.name} {a.value(int(code))}" for a, code in zip(attributes, pair.rows[0], strict=True))
        twin = ", ".join(
            f"{attributes[column].name} {attributes[column].value(int(pair.twins[0, column]))}"
            for column in self.problem.domain.sensitive_columns
        )
        scores = [", ".join(f"{score:.6g}" for score in part[0].tolist()) for part in pair[2:]]
        rule = describe_box(self.problem, self.boxes.low[box], self.boxes.high[box])
        rule = rule or self.problem.condition or "anything"
        proved = "nobody's decision flips" if flips else "everybody's decision flips"
        return Contradiction(
            f"the proof and the model contradict each other, so the proof is void. Proved: where {rule}, "
            f"{proved}. But the model says of a person there ({source}): {person}, scores {scores[0]}; with {twin} "
            f"it {'gets another decision' if flips else 'gets the same decision'}, scores {scores[1]}. The model was "
            "misread, or answers differently from call to call: please report this"
        )


def _decide_certainly(evaluation: Evaluation, tolerance: float) -> tuple[Tensor, Tensor]:
    """Return which decisions certainly flip and which do not, by scores that are exact but for rounding.

    `tolerance` is that rounding, in parts of the largest score of a family, or of 1.
    """
    decision, family = evaluation.decision, evaluation.family.double()
    exists = torch.cat([torch.ones_like(evaluation.valid[:, :1]), evaluation.valid], 1)
    rounding = tolerance * family.abs().amax((1, 2)).clamp(min=1.0)
    if decision.kind == "tolerance":
        score = family[..., -1]
        gap = score.masked_fill(~exists, -torch.inf).amax(1) - score.masked_fill(~exists, torch.inf).amin(1)
        return gap > decision.value + 2 * rounding, gap < decision.value - 2 * rounding
    if decision.kind == "argmax":
        best = family.topk(2, -1).values
        margin = best[..., 0] - best[..., 1]
    else:
        margin = (family[..., -1] - decision.value).abs()
    is_sure = (margin > 2 * rounding[:, None]) & exists
    chosen = decision.decide(family)
    highest = chosen.masked_fill(~is_sure, -1).amax(1)
    lowest = chosen.masked_fill(~is_sure, 1 << 30).amin(1)
    return highest > lowest, (is_sure | ~exists).all(1) & (highest == lowest)
