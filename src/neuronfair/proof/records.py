"""What a proof says about rows, fresh records and regions around single ones, and whether the model agrees."""

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
from neuronfair.errors import Contradiction, DomainError
from neuronfair.measure.stats import clopper_pearson
from neuronfair.model.blackbox import BlackBox, Model
from neuronfair.model.open import Opened
from neuronfair.proof.bounds.margins import box_signs, decided_at
from neuronfair.proof.bounds.space import Boxes, CutTree, can_enumerate, varied
from neuronfair.proof.certificate import CertifiedBoxes, Proof
from neuronfair.proof.problem import Problem, enumerated_records, places_of, rule_of, unread
from neuronfair.proof.report import DataSetClaims, FreshClaims, Part, RecordPart, Region, ShareInterval
from neuronfair.proof.state import FAIR, FLIPS, UNDECIDED, Guides, GuideSource, ProofState
from neuronfair.searches.evaluate import Evaluation, evaluate

NUMBERS = 1 << 24  # of the lines of boxes that are bounded at once
LISTED = 4_096  # combinations of places up to which records are enumerated where there are no bounds
STEPS = 6  # of different lengths that are tried in each direction at once
VOLUME = 1e-6  # how much volume counts beside records when a region grows


@dataclass(frozen=True)
class Grower:
    """Grows regions. `places` are those of records that show where most are: (n, axes)."""

    problem: Problem
    places: Tensor

    def grown(self, place: Tensor, *, fair: bool) -> Boxes | None:
        """Return a box around a place in which every decision is proved fair, or all to flip; None if none is.

        In each round the box takes the step that gains most records, by how many have such values on that axis alone.
        What is not proved of a smaller box is not tried again with a larger one.
        """
        box = Boxes(place[None].clone(), place[None].clone())
        if not bool(self.proved(box, fair=fair)):
            return None
        whole = self.problem.space.everything()
        limit = torch.stack([whole.low[0], whole.high[0]])  # how far each end may go: (2, axes)
        while True:
            end, axis, target = self._steps(box, limit)
            if not len(end):
                return box
            low, high = (part.repeat(len(end), 1) for part in (box.low, box.high))
            number = torch.arange(len(end), device=end.device)
            low[number[end == 0], axis[end == 0]] = target[end == 0]
            high[number[end == 1], axis[end == 1]] = target[end == 1]
            tried = Boxes(low, high)
            proved = self.proved(tried, fair=fair)
            for e, a, last in torch.stack([end, axis, target], 1)[~proved].tolist():
                limit[e, a] = max(int(limit[e, a]), last + 1) if e == 0 else min(int(limit[e, a]), last - 1)
            if bool(proved.any()):
                best = int(self.mass(tried).masked_fill(~proved, -torch.inf).argmax())
                box = tried[slice(best, best + 1)]

    def proved(self, boxes: Boxes, *, fair: bool) -> Tensor:
        """Return of which boxes it is proved that no decision in them flips, or that all do: bool (n,)."""
        owner, pieces, pattern = self.pieces(boxes)
        problem = self.problem
        alone = (problem.records.valid[pattern].sum(1) < 2) | unread(problem.domain)  # they have no other twin
        found = alone & fair
        size = len(problem.domain.sensitive_values) * (problem.space.features + len(problem.space.axes))
        left = (~alone).nonzero()[:, 0]
        for some in torch.split(left, max(1, NUMBERS // size)) if len(left) else ():
            found[some] = self._proved(pieces[some], pattern[some], fair)
        failed = torch.zeros(len(boxes), device=owner.device).index_add_(0, owner, (~found).float())
        return failed == 0

    def _proved(self, boxes: Boxes, pattern: Tensor, fair: bool) -> Tensor:
        problem, bounder = self.problem, self.problem.bounder
        if bounder is None:
            few = can_enumerate(problem.space, boxes, LISTED)
            counts = enumerated_records(problem, boxes[few], pattern[few])[0 if fair else 1]
            found = torch.zeros(len(boxes), dtype=torch.bool, device=few.device)
            found[few] = counts.double() == varied(problem.space, boxes[few])
            return found
        lines = bounder.lines(boxes, strategy=bounder.strategies - 1)
        signs = box_signs(problem.margins, problem.space, boxes, lines, problem.records.valid[pattern])
        if not fair:
            return signs.unfair
        return signs.fair if lines.same is None else signs.fair | lines.same

    def pieces(self, boxes: Boxes) -> tuple[Tensor, Boxes, Tensor]:
        """Return the parts of boxes whose records may have the same sensitive values: whose they are, and patterns."""
        records = self.problem.records
        owners, lows, highs, patterns = list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor]()
        step = max(1, (1 << 22) // (len(records.boxes) * boxes.low.shape[1]))
        for begin in range(0, len(boxes), step):
            part = boxes[slice(begin, begin + step)]
            low = torch.maximum(part.low[:, None], records.boxes.low)
            high = torch.minimum(part.high[:, None], records.boxes.high)
            owner, root = ((low <= high).all(2) & records.inside[records.pattern].any(1)).nonzero(as_tuple=True)
            owners.append(owner + begin)
            lows.append(low[owner, root])
            highs.append(high[owner, root])
            patterns.append(records.pattern[root])
        return torch.cat(owners), Boxes(torch.cat(lows), torch.cat(highs)), torch.cat(patterns)

    def _steps(self, box: Boxes, limit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return steps of different lengths in all directions: which end moves, on which axis, and to which place."""
        here = torch.stack([box.low[0], box.high[0]])
        room = torch.stack([here[0] - limit[0], limit[1] - here[1]]).clamp(min=0)
        lengths = torch.stack([*((room / 2**i).ceil() for i in range(STEPS)), room.clamp(max=1)])
        which, end, axis = (lengths > 0).nonzero(as_tuple=True)
        length = lengths[which, end, axis].long()
        target = torch.where(end == 0, here[end, axis] - length, here[end, axis] + length)
        steps = torch.unique(torch.stack([end, axis, target], 1), dim=0)
        return steps[:, 0], steps[:, 1], steps[:, 2]

    def mass(self, boxes: Boxes) -> Tensor:
        """Return about how many records boxes hold, as a logarithm, if the axes were independent."""
        before, axes = self._before, torch.arange(boxes.low.shape[1], device=boxes.low.device)
        inside = before[axes, boxes.high + 1] - before[axes, boxes.low]
        lengths = (boxes.high - boxes.low + 1).double()
        return inside.clamp(min=0.5).log().sum(1) + VOLUME * lengths.log().sum(1)

    @cached_property
    def _before(self) -> Tensor:
        """How many records stand before each place of each axis: (axes, most places + 1)."""
        axes = self.problem.space.axes
        result = torch.zeros(len(axes), max(map(len, axes)) + 1, dtype=torch.float64, device=self.places.device)
        for number, axis in enumerate(axes):
            result[number, 1 : len(axis) + 1] = torch.bincount(self.places[:, number], minlength=len(axis)).cumsum(0)
        return result


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
        if not self.problem.condition:
            return torch.ones(len(self.rows), dtype=torch.bool)
        allowed = allowed_codes(self.problem.domain, self.problem.condition)
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

    def data_set(self, evidence: Evidence, model: Opened | Model | None = None) -> DataSetClaims | None:
        """Return for how many rows of the region the decision is certified; None without rows.

        With a model, undecided rows are evaluated, and those that flip are no longer undecided.
        """
        if not len(self.rows):
            return None
        status, of = self.status(evidence), int(self.counted.sum())
        if model is not None:
            rows = (self.inside & (status == UNDECIDED)).nonzero()[:, 0]
            found = evaluated_flips(self.problem, model, self.rows[rows])
            status[rows[: len(found)][found]] = FLIPS
        fair, flips = (int((status == each).sum()) for each in (FAIR, FLIPS))
        parts = [RecordPart.of(count, of) for count in (fair, flips, of - fair - flips)]
        outside = int((self.counted & ~self.inside).sum())
        return DataSetClaims(of, parts[0], parts[1], parts[2], self._without_twin(), outside)

    def status(self, evidence: Evidence) -> Tensor:
        """Return what is proved of each row; of one that is no record of the region, nothing is."""
        status = torch.full((len(self.rows),), UNDECIDED, dtype=torch.int8)
        status[self.inside] = evidence.guide_status(self._places[self.inside].to(self.problem.device)).cpu()
        return status

    def _without_twin(self) -> int:
        records = self.problem.records.to(torch.device("cpu"))
        box = CutTree(records.cuts).owners(records.node, self._places[self.inside])
        return int((records.valid[records.pattern].sum(1)[box] < 2).sum())

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
        """Return certified regions of many rows: each grows around the likeliest row that no other one holds."""
        guides = Guides(evidence.state.guides)
        left = (guides.rows > 0) & (guides.status == FAIR) & (evidence.twins_of(guides.places) > 1)
        mass, found = self._grower.mass(Boxes(guides.places.long(), guides.places.long())), list[Region]()
        for _ in range(TRIES * self.most_regions):
            if len(found) == self.most_regions or not bool(left.any()):
                break
            row = int(mass.masked_fill(~left, -torch.inf).argmax())
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
        size = Part.of(sum(problem.records.count(problem.space, pieces, pattern)), problem.count)
        cpu = box.to(torch.device("cpu"))
        held = int(cpu.hold(self._places[self.inside]).sum())
        rows = RecordPart.of(held, int(self.counted.sum())) if len(self.rows) else None
        fresh = _share(int(cpu.hold(self._fresh).sum()), len(self._fresh)) if len(self._fresh) else None
        return Region(rule_of(problem, cpu.low[0], cpu.high[0]), depends, size, rows, fresh)


def _share(count: int, of: int) -> ShareInterval:
    return ShareInterval(*clopper_pearson(count, of))


LINES_AT_ONCE = 1 << 22  # of lines that are computed at once


@dataclass(frozen=True)
class Evidence:
    """The boxes of a proof, those that are done first, and how a record finds its box."""

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
    def inside(self) -> Tensor:
        """Which of these belong to the region: (n, values)."""
        return self.problem.records.inside[self._column("pattern").long()]

    def boxes_of(self, places: Tensor) -> Tensor:
        """Return the number of the box in which each place of the region lies; -1 for a place outside."""
        inside = ((places >= 0).all(1)).nonzero()[:, 0]
        result = torch.full((len(places),), -1, dtype=torch.int64, device=places.device)
        result[inside] = CutTree(self.state.cuts).owners(self._column("node"), places[inside])
        return result

    def twins_of(self, places: Tensor) -> Tensor:
        """Return how many sensitive values records at places may have: (n,)."""
        return self.valid[self.boxes_of(places.long())].sum(1)

    def status_of(self, places: Tensor) -> Tensor:
        """Return what is proved of the records at places: undecided, fair or flips, as guides have it."""
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
        return problem.margins.decided(problem.margins_at(places), problem.slack, self.valid[box])

    def _by_lines(self, box: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return which records do not flip and which do, by the tightest lines of their boxes."""
        problem, result = self.problem, torch.zeros(2, len(box), dtype=torch.bool, device=box.device)
        bounder = problem.bounder
        if bounder is None:
            return result[0], result[1]
        chosen, owner = torch.unique(box, return_inverse=True)
        step = max(1, LINES_AT_ONCE // (self.valid.shape[1] * (problem.space.features + len(problem.space.axes))))
        for begin in range(0, len(chosen), step):
            some = chosen[begin : begin + step]
            mine = ((owner >= begin) & (owner < begin + step)).nonzero()[:, 0]
            lines = bounder.lines(self.boxes[some], strategy=bounder.strategies - 1)
            place = owner[mine] - begin
            found = decided_at(problem.margins, problem.space, lines, place, places[mine], self.valid[some])
            result[:, mine] = torch.stack(found)
        return result[0], result[1]

    def guide_status(self, places: Tensor) -> Tensor:
        """Return what is proved of guides at the same places: undecided, fair or flips."""
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
    """Records that were evaluated, and why."""

    what: str
    rows: Tensor


def check_against_model(
    problem: Problem, proof: Proof, opened: Opened | Model, seen: Sequence[EvaluatedRecords] = (), *, drawn: bool = True
) -> None:
    """Refuse a proof that the model contradicts: on records seen elsewhere, or on those `drawn` from its boxes."""
    assert proof.state is not None  # it was proved here
    model = opened.model if isinstance(opened, Opened) else opened
    most = max(1, min(EVALUATED, MEMBERS // len(problem.domain.sensitive_values)))
    models: list[tuple[Model, float, int]] = [(model, FLOAT32_TOLERANCE, most)]
    if not isinstance(model, BlackBox):
        models.append((model.double(), EXACT, most))
    if isinstance(opened, Opened) and opened.original is not None:
        models.append((BlackBox(opened.original, model.encoding), FLOAT32_TOLERANCE, min(ORIGINAL, most)))
    claims = _Claims(problem, proof.certified, Evidence(problem, proof.state))
    for records in (*seen, *((EvaluatedRecords("drawn at random", claims.drawn(most)),) if drawn else ())):
        rows = records.rows.cpu().long()
        rows = rows[torch.from_numpy(np.random.default_rng(0).permutation(len(rows))[:most])]
        claimed = claims.certified_among(rows)
        for each, near, count in models:
            claims.compare(each, claimed.first(count), near, records.what)


def evaluated_flips(problem: Problem, opened: Opened | Model, rows: Tensor) -> Tensor:
    """Return which rows flip, by more than rounding; of a black box only the first are evaluated."""
    model = opened.model if isinstance(opened, Opened) else opened
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
    def inside(self) -> Tensor:
        """Which sensitive values of each box belong to the region, on the CPU: (n, values)."""
        return self.evidence.inside.cpu()

    @cached_property
    def count(self) -> npt.NDArray[np.object_]:
        """How many records each box has, exactly."""
        sizes = self.problem.space.sizes(self.boxes.to(self.problem.device)).cpu().numpy().astype(object)
        return np.asarray(sizes.prod(1) * self.inside.sum(1).numpy().astype(object), dtype=object)

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
            order = axis.place.cpu().argsort(stable=True)
            codes = order[len(order) - int((axis.place >= 0).sum()) :]  # by place; those outside stand first
            before = np.concatenate([[0], torch.bincount(axis.place.cpu()[codes]).cumsum(0).numpy()])
            first, last = before[self.certified.low[box, number]], before[self.certified.high[box, number] + 1]
            rows[:, axis.column] = codes[torch.from_numpy(draw.integers(first, last))]
        inside = self.inside[box]
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
    """Return whose decision certainly flips, and whose certainly does not, by scores that are right but for rounding.

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
    chosen = decision.chosen(family)
    highest = chosen.masked_fill(~sure, -1).amax(1)
    lowest = chosen.masked_fill(~sure, 1 << 30).amin(1)
    return highest > lowest, (sure | ~exists).all(1) & (highest == lowest)
