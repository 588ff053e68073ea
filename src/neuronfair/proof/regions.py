"""Certified regions: boxes around single records that hold as many others as can be proved, as rules for readers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from neuronfair.errors import DomainError
from neuronfair.proof.bounds.margins import decide_boxes
from neuronfair.proof.bounds.space import Boxes, can_enumerate, count_varied_codes
from neuronfair.proof.certificate import RecordShare, Region, RowShare
from neuronfair.proof.problem import ProofProblem, describe_box, enumerate_records, ignores_sensitive
from neuronfair.proof.records import Evidence, ProofRecords, estimate_share
from neuronfair.proof.state import FAIR, Guides

LINE_NUMBERS_PER_PASS = 1 << 24
MAX_ENUMERATED = 4_096  # combinations of points of a box, where there are no bounds
STEP_LENGTHS = 6  # lengths that are tried in each direction at once
VOLUME_WEIGHT = 1e-6  # of a box's logarithmic volume, next to that of its records
ROWS_PER_REGION = 3  # rows that are tried


@dataclass(frozen=True)
class RegionGrower:
    """Grows a certified box around a record, towards where most of the records at `row_points` are."""

    problem: ProofProblem
    row_points: Tensor  # (n, axes)

    def grow(self, point: Tensor, *, fair: bool) -> Boxes | None:
        """Return a box around a point in which no decision flips, or every one does; None if that is not proved.

        In each round the box takes the step that gains most records. A step that fails for a smaller box is not tried
        again for a larger one.
        """
        box = Boxes(point[None].clone(), point[None].clone())
        if not bool(self.find_proved(box, fair=fair)):
            return None
        region = self.problem.space.full_box()
        limit = torch.stack([region.low[0], region.high[0]])  # how far each end may go: (2, axes)
        while True:
            end, axis, target = self._propose_steps(box, limit)
            if not len(end):
                return box
            low, high = (part.repeat(len(end), 1) for part in (box.low, box.high))
            step = torch.arange(len(end), device=end.device)
            low[step[end == 0], axis[end == 0]] = target[end == 0]
            high[step[end == 1], axis[end == 1]] = target[end == 1]
            larger = Boxes(low, high)
            proved = self.find_proved(larger, fair=fair)
            for e, a, position in torch.stack([end, axis, target], 1)[~proved].tolist():
                limit[e, a] = max(int(limit[e, a]), position + 1) if e == 0 else min(int(limit[e, a]), position - 1)
            if bool(proved.any()):
                best = int(self.estimate_mass(larger).masked_fill(~proved, -torch.inf).argmax())
                box = larger[slice(best, best + 1)]

    def find_proved(self, boxes: Boxes, *, fair: bool) -> Tensor:
        """Return whether it is proved for each box that no decision in it flips, or that all do: bool (n,)."""
        owner, pieces, pattern = self.cut_by_rules(boxes)
        problem = self.problem
        without_twin = (problem.valid_records.valid[pattern].sum(1) < 2) | ignores_sensitive(problem.domain)
        proved = without_twin & fair
        numbers_per_box = len(problem.domain.sensitive_values) * (problem.space.features + len(problem.space.axes))
        remaining = (~without_twin).nonzero()[:, 0]
        for part in torch.split(remaining, max(1, LINE_NUMBERS_PER_PASS // numbers_per_box)) if len(remaining) else ():
            proved[part] = self._prove_pieces(pieces[part], pattern[part], fair)
        failed = torch.zeros(len(boxes), device=owner.device).index_add_(0, owner, (~proved).float())
        return failed == 0

    def _prove_pieces(self, boxes: Boxes, pattern: Tensor, fair: bool) -> Tensor:
        problem, bounder = self.problem, self.problem.bounder
        if bounder is None:
            is_small = can_enumerate(problem.space, boxes, MAX_ENUMERATED)
            counts = enumerate_records(problem, boxes[is_small], pattern[is_small])[0 if fair else 1]
            proved = torch.zeros(len(boxes), dtype=torch.bool, device=is_small.device)
            proved[is_small] = counts.double() == count_varied_codes(problem.space, boxes[is_small])
            return proved
        lines = bounder.find_lines(boxes, strategy=bounder.strategy_count - 1)
        decisions = decide_boxes(problem.margins, problem.space, boxes, lines, problem.valid_records.valid[pattern])
        if not fair:
            return decisions.unfair
        return decisions.fair if lines.same_margins is None else decisions.fair | lines.same_margins

    def cut_by_rules(self, boxes: Boxes) -> tuple[Tensor, Boxes, Tensor]:
        """Cut boxes where rules do: return the number of each piece's box, the pieces, and their patterns."""
        records = self.problem.valid_records
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

    def _propose_steps(self, box: Boxes, limit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return steps of several lengths in all directions: the end that moves, its axis, and its new position."""
        ends = torch.stack([box.low[0], box.high[0]])
        space_left = torch.stack([ends[0] - limit[0], limit[1] - ends[1]]).clamp(min=0)
        lengths = torch.stack([*((space_left / 2**i).ceil() for i in range(STEP_LENGTHS)), space_left.clamp(max=1)])
        length_index, end, axis = (lengths > 0).nonzero(as_tuple=True)
        length = lengths[length_index, end, axis].long()
        target = torch.where(end == 0, ends[end, axis] - length, ends[end, axis] + length)
        steps = torch.unique(torch.stack([end, axis, target], 1), dim=0)
        return steps[:, 0], steps[:, 1], steps[:, 2]

    def estimate_mass(self, boxes: Boxes) -> Tensor:
        """Return the logarithm of the records that boxes would hold if the axes were independent."""
        records_before, axes = self._records_before, torch.arange(boxes.low.shape[1], device=boxes.low.device)
        records_inside = records_before[axes, boxes.high + 1] - records_before[axes, boxes.low]
        lengths = (boxes.high - boxes.low + 1).double()
        return records_inside.clamp(min=0.5).log().sum(1) + VOLUME_WEIGHT * lengths.log().sum(1)

    @cached_property
    def _records_before(self) -> Tensor:
        """How many records stand before each position of each axis: (axes, most positions + 1)."""
        axes = self.problem.space.axes
        records_before = torch.zeros(
            len(axes), max(map(len, axes)) + 1, dtype=torch.float64, device=self.row_points.device
        )
        for axis_index, axis in enumerate(axes):
            counts = torch.bincount(self.row_points[:, axis_index], minlength=len(axis))
            records_before[axis_index, 1 : len(axis) + 1] = counts.cumsum(0)
        return records_before


def find_region(records: ProofRecords, row: int) -> Region | None:
    """Return the certified region around a row of the data set, counted from 1; None if nothing is proved of it."""
    if not 1 <= row <= len(records.rows):
        raise DomainError(f"{records.name} has no row {row:,}: its rows are 1 to {len(records.rows):,}")
    if not bool(records.in_region[row - 1]):
        raise DomainError(f"row {row:,} of {records.name} is no record of the region that is certified")
    grower = _make_grower(records)
    for depends in (False, True):
        box = grower.grow(records.row_points[row - 1].to(records.problem.device), fair=not depends)
        if box is not None:
            return _describe_region(records, grower, box, depends=depends)
    return None


def find_largest_regions(records: ProofRecords, evidence: Evidence) -> list[Region]:
    """Return certified regions of many rows, each around the likeliest row that is in no other region."""
    guides, grower = Guides(evidence.state.guides), _make_grower(records)
    remaining = (guides.row_counts > 0) & (guides.status == FAIR) & (evidence.count_twins(guides.points) > 1)
    mass, regions = grower.estimate_mass(Boxes(guides.points.long(), guides.points.long())), list[Region]()
    for _ in range(ROWS_PER_REGION * records.max_regions):
        if len(regions) == records.max_regions or not bool(remaining.any()):
            break
        row = int(mass.masked_fill(~remaining, -torch.inf).argmax())
        remaining[row] = False
        box = grower.grow(guides.points[row].long(), fair=True)
        if box is not None:
            remaining &= ~box.contain(guides.points)[:, 0]
            regions.append(_describe_region(records, grower, box, depends=False))
    return sorted(regions, key=lambda region: -region.rows.count if region.rows else 0)


def _make_grower(records: ProofRecords) -> RegionGrower:
    return RegionGrower(records.problem, records.row_points[records.in_region].to(records.problem.device))


def _describe_region(records: ProofRecords, grower: RegionGrower, box: Boxes, *, depends: bool) -> Region:
    problem = records.problem
    _, pieces, pattern = grower.cut_by_rules(box)
    size = RowShare.of(sum(problem.valid_records.count(problem.space, pieces, pattern)), problem.count)
    cpu_box = box.to(torch.device("cpu"))
    row_count = int(cpu_box.contain(records.row_points[records.in_region]).sum())
    rows = RecordShare.of(row_count, int(records.meets_conditions.sum())) if len(records.rows) else None
    fresh_points = records.fresh_points
    fresh = estimate_share(int(cpu_box.contain(fresh_points).sum()), len(fresh_points)) if len(fresh_points) else None
    return Region(describe_box(problem, cpu_box.low[0], cpu_box.high[0]), depends, size, rows, fresh)
