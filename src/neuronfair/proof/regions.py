"""Certified regions: boxes around single records that hold as many others as can be proved, as rules for readers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from neuronfair.errors import DomainError
from neuronfair.proof.bounds.margins import decide_boxes
from neuronfair.proof.bounds.space import Boxes, can_enumerate, count_varied_codes
from neuronfair.proof.problem import Problem, enumerated_records, rule_of, unread
from neuronfair.proof.records import Evidence, ProofRecords, share_interval
from neuronfair.proof.report import Part, RecordPart, Region
from neuronfair.proof.state import FAIR, Guides

LINE_NUMBERS_PER_PASS = 1 << 24
MAX_ENUMERATED = 4_096  # combinations of places of a box, where there are no bounds
STEP_LENGTHS = 6  # that are tried in each direction at once
VOLUME_WEIGHT = 1e-6  # of a box's logarithmic volume, next to that of its records
ROWS_PER_REGION = 3  # that are tried


@dataclass(frozen=True)
class RegionGrower:
    """Grows a certified box around a record, towards where most of the records at `places` are."""

    problem: Problem
    places: Tensor  # (n, axes)

    def grown(self, place: Tensor, *, fair: bool) -> Boxes | None:
        """Return a box around a place in which no decision flips, or every one does; None if that is not proved.

        In each round the box takes the step that gains most records. A step that fails for a smaller box is not tried
        again for a larger one.
        """
        box = Boxes(place[None].clone(), place[None].clone())
        if not bool(self.proved(box, fair=fair)):
            return None
        whole = self.problem.space.full_box()
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
        """Return whether it is proved for each box that no decision in it flips, or that all do: bool (n,)."""
        owner, pieces, pattern = self.pieces(boxes)
        problem = self.problem
        alone = (problem.records.valid[pattern].sum(1) < 2) | unread(problem.domain)  # they have no other twin
        proved = alone & fair
        size = len(problem.domain.sensitive_values) * (problem.space.features + len(problem.space.axes))
        left = (~alone).nonzero()[:, 0]
        for some in torch.split(left, max(1, LINE_NUMBERS_PER_PASS // size)) if len(left) else ():
            proved[some] = self._proved(pieces[some], pattern[some], fair)
        failed = torch.zeros(len(boxes), device=owner.device).index_add_(0, owner, (~proved).float())
        return failed == 0

    def _proved(self, boxes: Boxes, pattern: Tensor, fair: bool) -> Tensor:
        problem, bounder = self.problem, self.problem.bounder
        if bounder is None:
            few = can_enumerate(problem.space, boxes, MAX_ENUMERATED)
            counts = enumerated_records(problem, boxes[few], pattern[few])[0 if fair else 1]
            found = torch.zeros(len(boxes), dtype=torch.bool, device=few.device)
            found[few] = counts.double() == count_varied_codes(problem.space, boxes[few])
            return found
        lines = bounder.find_lines(boxes, strategy=bounder.strategy_count - 1)
        signs = decide_boxes(problem.margins, problem.space, boxes, lines, problem.records.valid[pattern])
        if not fair:
            return signs.unfair
        return signs.fair if lines.same_margins is None else signs.fair | lines.same_margins

    def pieces(self, boxes: Boxes) -> tuple[Tensor, Boxes, Tensor]:
        """Cut boxes where rules do: return the number of each piece's box, the pieces, and their patterns."""
        records = self.problem.records
        pieces = []
        step = max(1, (1 << 22) // (len(records.boxes) * boxes.low.shape[1]))
        for begin in range(0, len(boxes), step):
            part = boxes[slice(begin, begin + step)]
            low = torch.maximum(part.low[:, None], records.boxes.low)
            high = torch.minimum(part.high[:, None], records.boxes.high)
            owner, root = ((low <= high).all(2) & records.in_region[records.pattern].any(1)).nonzero(as_tuple=True)
            pieces.append((owner + begin, low[owner, root], high[owner, root], records.pattern[root]))
        owners, lows, highs, patterns = (torch.cat(part) for part in zip(*pieces, strict=True))
        return owners, Boxes(lows, highs), patterns

    def _steps(self, box: Boxes, limit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return steps of several lengths in all directions: the end that moves, its axis, and its new place."""
        here = torch.stack([box.low[0], box.high[0]])
        room = torch.stack([here[0] - limit[0], limit[1] - here[1]]).clamp(min=0)
        lengths = torch.stack([*((room / 2**i).ceil() for i in range(STEP_LENGTHS)), room.clamp(max=1)])
        which, end, axis = (lengths > 0).nonzero(as_tuple=True)
        length = lengths[which, end, axis].long()
        target = torch.where(end == 0, here[end, axis] - length, here[end, axis] + length)
        steps = torch.unique(torch.stack([end, axis, target], 1), dim=0)
        return steps[:, 0], steps[:, 1], steps[:, 2]

    def mass(self, boxes: Boxes) -> Tensor:
        """Return the logarithm of the records that boxes would hold if the axes were independent."""
        before, axes = self._before, torch.arange(boxes.low.shape[1], device=boxes.low.device)
        inside = before[axes, boxes.high + 1] - before[axes, boxes.low]
        lengths = (boxes.high - boxes.low + 1).double()
        return inside.clamp(min=0.5).log().sum(1) + VOLUME_WEIGHT * lengths.log().sum(1)

    @cached_property
    def _before(self) -> Tensor:
        """How many records stand before each place of each axis: (axes, most places + 1)."""
        axes = self.problem.space.axes
        result = torch.zeros(len(axes), max(map(len, axes)) + 1, dtype=torch.float64, device=self.places.device)
        for number, axis in enumerate(axes):
            result[number, 1 : len(axis) + 1] = torch.bincount(self.places[:, number], minlength=len(axis)).cumsum(0)
        return result


def region_of_row(records: ProofRecords, row: int) -> Region | None:
    """Return the certified region around a row of the data set, counted from 1; None if nothing is proved of it."""
    if not 1 <= row <= len(records.rows):
        raise DomainError(f"{records.name} has no row {row:,}: its rows are 1 to {len(records.rows):,}")
    if not bool(records.in_region[row - 1]):
        raise DomainError(f"row {row:,} of {records.name} is no record of the region that is certified")
    grower = _grower(records)
    for depends in (False, True):
        box = grower.grown(records.places[row - 1].to(records.problem.device), fair=not depends)
        if box is not None:
            return _described(records, grower, box, depends=depends)
    return None


def largest_regions(records: ProofRecords, evidence: Evidence) -> list[Region]:
    """Return certified regions of many rows, each around the likeliest row that is in no other region."""
    guides, grower = Guides(evidence.state.guides), _grower(records)
    left = (guides.rows > 0) & (guides.status == FAIR) & (evidence.twins_of(guides.places) > 1)
    mass, regions = grower.mass(Boxes(guides.places.long(), guides.places.long())), list[Region]()
    for _ in range(ROWS_PER_REGION * records.most_regions):
        if len(regions) == records.most_regions or not bool(left.any()):
            break
        row = int(mass.masked_fill(~left, -torch.inf).argmax())
        left[row] = False
        box = grower.grown(guides.places[row].long(), fair=True)
        if box is not None:
            left &= ~box.contain(guides.places)[:, 0]
            regions.append(_described(records, grower, box, depends=False))
    return sorted(regions, key=lambda region: -region.rows.count if region.rows else 0)


def _grower(records: ProofRecords) -> RegionGrower:
    return RegionGrower(records.problem, records.places[records.in_region].to(records.problem.device))


def _described(records: ProofRecords, grower: RegionGrower, box: Boxes, *, depends: bool) -> Region:
    problem = records.problem
    _, pieces, pattern = grower.pieces(box)
    size = Part.of(sum(problem.records.count(problem.space, pieces, pattern)), problem.count)
    cpu = box.to(torch.device("cpu"))
    held = int(cpu.contain(records.places[records.in_region]).sum())
    rows = RecordPart.of(held, int(records.counted.sum())) if len(records.rows) else None
    drawn = records.fresh_places
    fresh = share_interval(int(cpu.contain(drawn).sum()), len(drawn)) if len(drawn) else None
    return Region(rule_of(problem, cpu.low[0], cpu.high[0]), depends, size, rows, fresh)
