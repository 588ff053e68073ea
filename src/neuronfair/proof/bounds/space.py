"""Boxes of records: for every attribute that is not sensitive the values from one position to another.

A *position* on the axis of an attribute is one value, or several that neither the model nor a rule tells apart. Those
of a number that the model reads as a number stand in its own order, others in the order in which boxes are cut. A
*point* has a position on every axis, (n, axes): one or several records with all their twins.

Records: a rule may forbid some combinations. The region is cut along the conditions of its rules until, in every box,
all records may have the same sensitive values (a *pattern*); then a box has as many records as codes multiply to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.rules import RuleBook
from neuronfair.domain.table import TableDomain
from neuronfair.errors import Unprovable

LEAF = -1  # the axis of a node that is not cut


class CutTree:
    """A tree of cuts. The two halves of a node follow each other, the lower one first, behind their parent.

    A node is a row of `nodes`: the axis of its cut, the last position of the lower half, and the number of that half.
    """

    def __init__(self, nodes: Tensor) -> None:
        """Continue a tree of nodes, (n, 3) int32."""
        self._nodes, self._size = nodes, len(nodes)

    @staticmethod
    def of_roots(root_count: int, device: torch.device) -> CutTree:
        """Return a tree of some boxes that are not cut."""
        return CutTree(torch.tensor([[LEAF, 0, 0]], dtype=torch.int32, device=device).repeat(root_count, 1))

    def __len__(self) -> int:
        return self._size

    @property
    def nodes(self) -> Tensor:
        """All nodes, (n, 3)."""
        return self._nodes[: self._size]

    def cut(self, nodes: Tensor, axis: Tensor, last: Tensor) -> Tensor:
        """Cut some nodes, each behind a position of an axis; return their halves: first all lower, then upper ones."""
        lower = self._size + 2 * torch.arange(len(nodes), device=nodes.device)
        self._size += 2 * len(nodes)
        if self._size > len(self._nodes):  # twice as large as before, so that few have to be copied
            added_nodes = CutTree.of_roots(max(self._size, 2 * len(self._nodes)) - len(self._nodes), nodes.device)
            self._nodes = torch.cat([self._nodes, added_nodes.nodes])
        self._nodes[nodes] = torch.stack([axis, last, lower], 1).int()
        return torch.cat([lower, lower + 1])

    def find_leaves(self, points: Tensor, roots: Tensor | None = None) -> Tensor:
        """Return the leaf in which each record lies, by its point (n, axes); records begin at node 0 or at `roots`."""
        roots = torch.zeros(len(points), device=points.device) if roots is None else roots
        node = roots.to(torch.int64, copy=True)
        moving = torch.arange(len(points), device=points.device)
        while len(moving):
            axis, last, lower = self._nodes[node[moving]].long().unbind(1)
            inner = axis != LEAF
            moving, axis, last, lower = moving[inner], axis[inner], last[inner], lower[inner]
            node[moving] = lower + (points[moving, axis] > last)
        return node

    def find_owners(self, leaves: Tensor, points: Tensor, roots: Tensor | None = None) -> Tensor:
        """Return in which of some leaves each record lies, by its number among these; -1 in none of them."""
        index_of_leaf = torch.full((self._size,), -1, dtype=torch.int64, device=leaves.device)
        index_of_leaf[leaves.long()] = torch.arange(len(leaves), device=leaves.device)
        return index_of_leaf[self.find_leaves(points, roots)]

    def graft(self, leaves: Tensor, subtrees: CutTree) -> Tensor:
        """Let another tree, with a root for each of `leaves`, continue these; return the new numbers of its nodes."""
        new_index = torch.cat([leaves, self._size + torch.arange(len(subtrees) - len(leaves), device=leaves.device)])
        grafted = subtrees.nodes.clone()
        grafted[:, 2] = torch.where(grafted[:, 0] == LEAF, 0, new_index[grafted[:, 2].long()])
        self._nodes = torch.cat([self.nodes, grafted[len(leaves) :]])
        self._size = len(self._nodes)
        self._nodes[leaves] = grafted[: len(leaves)]
        return new_index

    def is_sound(self, axis_count: int) -> bool:
        """Return whether this is a tree over so many axes: every half stands behind its parent and has one parent."""
        axis, _, lower = self.nodes.long().unbind(1)
        inner = axis != LEAF
        parent, lower = inner.nonzero()[:, 0], lower[inner]
        has_axes, has_children = (axis >= LEAF) & (axis < axis_count), (lower > parent) & (lower + 1 < len(self))
        children = torch.cat([lower, lower + 1])
        return bool(has_axes.all() & has_children.all()) and len(torch.unique(children)) == len(children)


_CPU = torch.device("cpu")
MAX_COUNTED_CODES = 2.0**62  # combinations of codes that are counted in 64 bits
MAX_RULE_BOXES = 200_000  # into which rules may cut a region


@dataclass(frozen=True)
class Axis:
    """One attribute that is not sensitive. A position of a linear one is a number to the model, and holds one code."""

    column: int  # of the domain
    position_of_code: Tensor  # (size,) where each code stands; -1: outside the region
    codes: Tensor  # (positions,) one code of each position
    count: Tensor  # (positions,) how many codes stand there
    linear: bool

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def features(self) -> int:
        """How many numbers a line over it has: one slope, or a number for every position."""
        return 1 if self.linear else len(self)


@dataclass(frozen=True)
class Boxes:
    """Boxes of points, both ends included: (n, axes) each."""

    low: Tensor
    high: Tensor

    def __len__(self) -> int:
        return len(self.low)

    def __getitem__(self, index: Tensor | slice) -> Boxes:
        return Boxes(self.low[index], self.high[index])

    def contain(self, points: Tensor) -> Tensor:
        """Return which points lie in which box: bool (points, n)."""
        return ((points[:, None] >= self.low) & (points[:, None] <= self.high)).all(2)

    @staticmethod
    def concatenate(parts: Sequence[Boxes]) -> Boxes:
        """Return several lists of boxes as one."""
        return Boxes(torch.cat([p.low for p in parts]), torch.cat([p.high for p in parts]))

    def to(self, device: torch.device) -> Boxes:
        """Return the boxes on another device."""
        return Boxes(self.low.to(device), self.high.to(device))


@dataclass(frozen=True)
class Space:
    """The axes of a region, and the features over which lines are written.

    A line is a number for every feature: for a linear axis what one position more adds, for another one what each of
    its positions adds. Over a box it is a sum over axes, so its least value, its mean and its variance are.
    """

    axes: tuple[Axis, ...]
    device: torch.device = _CPU

    @cached_property
    def linear_axes(self) -> Tensor:
        """The axes that are linear."""
        return torch.tensor([i for i, axis in enumerate(self.axes) if axis.linear], dtype=torch.int64).to(self.device)

    @cached_property
    def linear_features(self) -> Tensor:
        """The features of the linear axes."""
        first_features = zip(self.first_features, self.axes, strict=False)
        return torch.tensor([first for first, a in first_features if a.linear], dtype=torch.int64).to(self.device)

    @cached_property
    def first_features(self) -> tuple[int, ...]:
        """The first feature of each axis, and behind the last one the number of all."""
        starts = [0]
        for axis in self.axes:
            starts.append(starts[-1] + axis.features)
        return tuple(starts)

    @property
    def features(self) -> int:
        """How many numbers a line has."""
        return self.first_features[-1]

    @cached_property
    def tables(self) -> tuple[tuple[int, int, Tensor], ...]:
        """The axes that are not linear: which, their first feature, and how many codes stand at each position."""
        return tuple(
            (i, self.first_features[i], axis.count.to(self.device, torch.float64))
            for i, axis in enumerate(self.axes)
            if not axis.linear
        )

    @cached_property
    def _codes_before(self) -> Tensor:
        """How many codes stand before each position of each axis: (axes, most positions + 1)."""
        longest = max(len(axis) for axis in self.axes if not axis.linear) if self.tables else 0
        codes_before = torch.zeros(len(self.axes), longest + 1, dtype=torch.int64)
        for i, axis in enumerate(self.axes):
            if not axis.linear:
                codes_before[i, 1 : len(axis) + 1] = axis.count.cpu().cumsum(0)
        return codes_before.to(self.device)

    def full_box(self) -> Boxes:
        """Return the one box that holds all points."""
        high = torch.tensor([[len(axis) - 1 for axis in self.axes]], device=self.device)
        return Boxes(torch.zeros_like(high), high)

    def count_codes(self, boxes: Boxes) -> Tensor:
        """Return how many codes of each axis lie in each box: (n, axes)."""
        sizes = boxes.high - boxes.low + 1
        if self.tables:
            sizes = sizes.clone()
            for i, _, _ in self.tables:
                sizes[:, i] = self._codes_before[i][boxes.high[:, i] + 1] - self._codes_before[i][boxes.low[:, i]]
        return sizes

    def find_minimum(self, boxes: Boxes, slopes: Tensor) -> Tensor:
        """Return the smallest value of lines over each box, (n, lines); lines are (n, lines, features), or shared."""
        low, high = self._ends(boxes, slopes.dtype)
        linear_slopes = slopes[..., self.linear_features] if self.tables else slopes
        middle, half_width = (low + high) / 2, (high - low) / 2
        if slopes.dim() == 2:
            minimum = middle @ linear_slopes.T - half_width @ linear_slopes.abs().T
        else:
            minimum = (linear_slopes @ middle[..., None] - linear_slopes.abs() @ half_width[..., None])[..., 0]
        for axis, start, count in self.tables:
            table = slopes[..., start : start + len(count)]
            minimum = minimum + table.masked_fill(~self.mark_inside(boxes, axis)[:, None], torch.inf).amin(-1)
        return minimum

    def find_ranges(self, boxes: Boxes, slopes: Tensor) -> Tensor:
        """Return how far each axis can move lines (n, lines, features) within a box: (n, lines, axes)."""
        n, line_count, _ = slopes.shape
        ranges = slopes.new_zeros(n, line_count, len(self.axes))
        low, high = self._ends(boxes, slopes.dtype)
        ranges[..., self.linear_axes] = slopes[..., self.linear_features].abs() * (high - low)[:, None]
        for axis, start, count in self.tables:
            table = slopes[..., start : start + len(count)]
            out = ~self.mark_inside(boxes, axis)[:, None]
            ranges[..., axis] = table.masked_fill(out, -torch.inf).amax(-1) - table.masked_fill(out, torch.inf).amin(-1)
        return ranges

    def mean(self, boxes: Boxes, slopes: Tensor) -> Tensor:
        """Return the mean of lines (n, lines, features) over the records of each box: (n, lines)."""
        low, high = self._ends(boxes, slopes.dtype)
        mean = (slopes[..., self.linear_features] @ ((low + high) / 2)[..., None])[..., 0]
        for axis, start, count in self.tables:
            table = slopes[..., start : start + len(count)]
            mean = mean + (table @ self._find_shares(boxes, axis)[..., None])[..., 0]
        return mean

    def _find_shares(self, boxes: Boxes, axis: int) -> Tensor:
        """Return which share of a box's records stands at each position of an axis: (n, positions)."""
        codes_inside = self.mark_inside(boxes, axis) * self.axes[axis].count.to(boxes.low.device, torch.float64)
        return codes_inside / codes_inside.sum(-1, keepdim=True)

    def find_moments(self, boxes: Boxes, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of lines over the records of each box: (n, lines) each."""
        low, high = self._ends(boxes, slopes.dtype)
        linear_slopes = slopes[..., self.linear_features]
        mean = self.mean(boxes, slopes)
        variance = (linear_slopes.square() @ (((high - low + 1).square() - 1) / 12)[..., None])[..., 0]
        for axis, start, count in self.tables:
            shares = self._find_shares(boxes, axis)[..., None]
            table = slopes[..., start : start + len(count)]
            variance = variance + (table.square() @ shares - (table @ shares).square())[..., 0]
        return mean, variance.clamp(min=0)

    def mark_inside(self, boxes: Boxes, axis: int) -> Tensor:
        """Return which positions of an axis lie in each box: bool, (n, positions)."""
        positions = torch.arange(len(self.axes[axis]), device=boxes.low.device)
        return (positions >= boxes.low[:, axis, None]) & (positions <= boxes.high[:, axis, None])

    def find_terms(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return the terms of lines at points (n, axes): the feature of each axis, and what it is multiplied by."""
        first = torch.tensor(self.first_features[:-1], device=points.device)
        linear = torch.tensor([axis.linear for axis in self.axes], device=points.device)
        return first + torch.where(linear, 0, points), torch.where(linear, points, 1).double()

    def find_middle(self, boxes: Boxes, axis: Tensor) -> Tensor:
        """Return the last position of the lower half of one axis of each box."""
        column = axis[:, None]
        return (boxes.low.gather(1, column) + boxes.high.gather(1, column)).div(2, rounding_mode="floor")[:, 0]

    def split(self, boxes: Boxes, axis: Tensor, last: Tensor) -> Boxes:
        """Return the two parts of each box, cut behind a position of an axis: first all lower, then all upper."""
        column, last = axis[:, None], last[:, None]
        lower = Boxes(boxes.low, boxes.high.scatter(1, column, last))
        return Boxes.concatenate([lower, Boxes(boxes.low.scatter(1, column, last + 1), boxes.high)])

    def _ends(self, boxes: Boxes, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if not self.tables:
            return boxes.low.to(dtype), boxes.high.to(dtype)
        return boxes.low[:, self.linear_axes].to(dtype), boxes.high[:, self.linear_axes].to(dtype)


@dataclass(frozen=True)
class ValidRecords:
    """Boxes that cover a region once, and the pattern of each: which sensitive values its records may have."""

    boxes: Boxes
    pattern: Tensor  # (n,)
    valid: Tensor  # (patterns, values) which sensitive values exist
    in_region: Tensor  # (patterns, values) and which of those belong to the region
    node: Tensor  # (n,) the leaf of each box in the tree of cuts
    cuts: Tensor  # (nodes, 3) that tree

    def to(self, device: torch.device) -> ValidRecords:
        """Return the same on another device."""
        parts = (self.pattern, self.valid, self.in_region, self.node, self.cuts)
        return ValidRecords(self.boxes.to(device), *(part.to(device) for part in parts))

    def count(self, space: Space, boxes: Boxes, pattern: Tensor) -> list[int]:
        """Return how many records each box has, exactly."""
        sizes = space.count_codes(boxes).cpu().numpy().astype(object)
        value_counts = self.in_region.sum(1)[pattern].cpu().numpy().astype(object)
        record_counts: list[int] = (np.prod(sizes, 1) * value_counts).tolist() if len(boxes) else []
        return record_counts

    def share(self, space: Space, boxes: Boxes, pattern: Tensor) -> Tensor:
        """Return the records of each box as a share of all combinations of codes, about: float64 (n,)."""
        region_sizes = space.count_codes(space.full_box()).double()
        return (space.count_codes(boxes) / region_sizes).prod(1) * self.in_region.double().mean(1)[pattern]


@dataclass(frozen=True)
class _Condition:
    """Which positions of an axis, or which sensitive values, meet a condition."""

    axis: int | None  # None: sensitive values
    mask: Tensor

    def decide_boxes(self, boxes: Boxes) -> tuple[Tensor, Tensor]:
        """Return whether all of a box meets it, and whether none of it does: (n, 1), or for each value (1, k)."""
        if self.axis is None:
            return self.mask[None], ~self.mask[None]
        meeting_before = torch.cat([torch.zeros(1, dtype=torch.int64), self.mask.long().cumsum(0)])
        low, high = boxes.low[:, self.axis], boxes.high[:, self.axis]
        meeting = meeting_before[high + 1] - meeting_before[low]
        return (meeting == high - low + 1)[:, None], (meeting == 0)[:, None]

    def find_run_end(self, low: Tensor) -> Tensor:
        """Return the last position from `low` on that meets the condition as `low` does."""
        is_run_end = torch.cat([self.mask[1:] != self.mask[:-1], torch.ones(1, dtype=torch.bool)])
        run_ends = torch.where(is_run_end, torch.arange(len(is_run_end)), len(is_run_end))
        return run_ends.flip(0).cummin(0).values.flip(0)[low]


def find_valid_records(domain: TableDomain, space: Space, allowed: Sequence[Tensor]) -> ValidRecords:
    """Return the records of a region: `allowed` says for each attribute of the domain which of its codes belong to it.

    Everything is on the CPU. Rules that cut the region into too many boxes are refused.
    """
    values = domain.sensitive_values.cpu()
    rules = [
        tuple(_locate_conditions(domain, space, part) for part in rule)
        for rule in RuleBook(domain.attributes, domain.rules).conditions
    ]
    boxes, finished = space.full_box(), []
    cuts = CutTree.of_roots(1, _CPU)
    nodes = torch.zeros(1, dtype=torch.int64)
    while len(boxes):
        valid, mixed, axis, last = _apply_rules(rules, boxes, len(values))
        finished.append((boxes.low[~mixed], boxes.high[~mixed], valid[~mixed], nodes[~mixed]))
        nodes = cuts.cut(nodes[mixed], axis[mixed], last[mixed])
        boxes = space.split(boxes[mixed], axis[mixed], last[mixed])
        if len(cuts) > 2 * MAX_RULE_BOXES:
            raise Unprovable(f"its rules cut the domain into more than {MAX_RULE_BOXES:,} boxes")
    in_region = torch.stack([allowed[column][values[:, j]] for j, column in enumerate(domain.sensitive_columns)]).all(0)
    low, high, valid, nodes = (torch.cat(part) for part in zip(*finished, strict=True))
    valid, pattern = torch.unique(valid, dim=0, return_inverse=True)
    return ValidRecords(Boxes(low, high), pattern, valid, valid & in_region, nodes, cuts.nodes)


def refine_classes(domain: TableDomain, allowed: Sequence[Tensor]) -> list[Tensor]:
    """Return for each attribute the class of every code: those of one class are the same to all rules; -1: outside."""
    classes = [torch.zeros(attribute.size, dtype=torch.int64) for attribute in domain.attributes]
    for when, then in RuleBook(domain.attributes, domain.rules).conditions:
        for column, mask in (*when, *then):
            _, classes[column] = torch.unique(classes[column] * 2 + mask.cpu(), return_inverse=True)
    return [torch.where(mask, groups, -1) for mask, groups in zip(allowed, classes, strict=True)]


def _locate_conditions(domain: TableDomain, space: Space, code_masks: Sequence[tuple[int, Tensor]]) -> list[_Condition]:
    axis_of_column = {axis.column: number for number, axis in enumerate(space.axes)}
    values = domain.sensitive_values.cpu()
    conditions = []
    for column, mask in code_masks:
        if column in axis_of_column:
            axis = axis_of_column[column]
            conditions.append(_Condition(axis, mask.cpu()[space.axes[axis].codes.cpu()]))
        else:
            conditions.append(_Condition(None, mask.cpu()[values[:, domain.sensitive_columns.index(column)]]))
    return conditions


def _apply_rules(
    rules: Sequence[tuple[list[_Condition], ...]], boxes: Boxes, values: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return which values exist in each box, where that is not the same for all its records, and a cut of those."""
    shape = len(boxes), values
    forbidden, unsure = torch.zeros(2, *shape, dtype=torch.bool)
    axis, last = torch.zeros(2, len(boxes), dtype=torch.int64)
    for when, then in rules:
        applies, never_applies = _combine_conditions(when, boxes, shape)
        obeyed, broken = (
            _combine_conditions(then, boxes, shape) if then else (torch.zeros(shape).bool(), torch.ones(shape).bool())
        )
        forbidden |= applies & broken
        rule_unsure = ~(never_applies | obeyed | (applies & broken))
        unsure |= rule_unsure
        for condition in (*when, *then):
            if condition.axis is not None:
                all_meet, none_meet = condition.decide_boxes(boxes)
                is_cut = rule_unsure.any(1) & ~(all_meet | none_meet)[:, 0]
                axis = torch.where(is_cut, condition.axis, axis)
                last = torch.where(is_cut, condition.find_run_end(boxes.low[:, condition.axis]), last)
    mixed = (unsure & ~forbidden).any(1)
    return ~forbidden, mixed, axis, last


def _combine_conditions(
    conditions: Sequence[_Condition], boxes: Boxes, shape: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Return where all records meet all conditions, and where none meets one of them: (n, values) each."""
    all_meet, none_meet = torch.ones(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    for condition in conditions:
        all_of_box, none_of_box = condition.decide_boxes(boxes)
        all_meet, none_meet = all_meet & all_of_box, none_meet | none_of_box
    return all_meet, none_meet


def count_points(boxes: Boxes) -> Tensor:
    """Return how many points each box has, about: float64 (n,)."""
    return (boxes.high - boxes.low + 1).double().prod(1)


def count_varied_codes(space: Space, boxes: Boxes) -> Tensor:
    """Return how many combinations of codes each box has on axes of which it has several positions: (n,)."""
    return torch.where(boxes.high > boxes.low, space.count_codes(boxes), 1).double().prod(1)


def can_enumerate(space: Space, boxes: Boxes, max_combinations: int) -> Tensor:
    """Return which boxes have few enough points, and codes at these that can be counted: bool, (n,)."""
    return (count_points(boxes) <= max_combinations) & (count_varied_codes(space, boxes) < MAX_COUNTED_CODES)


def enumerate_points(boxes: Boxes) -> tuple[Tensor, Tensor]:
    """Return all points in boxes: the number of their box, and the points."""
    extents = boxes.high - boxes.low + 1
    point_counts, device = extents.prod(1), extents.device
    owner = torch.arange(len(boxes), device=device).repeat_interleave(point_counts)
    remaining = torch.arange(len(owner), device=device) - (point_counts.cumsum(0) - point_counts)[owner]
    varied_axes = int((extents > 1).sum(1).max()) if len(boxes) else 0
    extents, axes = extents.topk(varied_axes, dim=1)  # the others have one position
    points = boxes.low[owner]
    for length, axis in zip(extents.T, axes.T, strict=True):
        points.scatter_add_(1, axis[owner, None], (remaining % length[owner])[:, None])
        remaining = remaining // length[owner]
    return owner, points
