"""Boxes of records: for every attribute that is not sensitive the values from one place to another.

A *place* is one value of an attribute, or several that neither the model nor a rule tells apart. The places of a number
that the model reads as a number stand in its own order; those of other attributes in the order in which boxes are cut.

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

    A node is a row of `nodes`: the axis of its cut, the last place of the lower half, and the number of that half.
    """

    def __init__(self, nodes: Tensor) -> None:
        """Continue a tree of nodes, (n, 3) int32."""
        self._nodes, self._size = nodes, len(nodes)

    @staticmethod
    def of_roots(count: int, device: torch.device) -> CutTree:
        """Return a tree of some boxes that are not cut."""
        return CutTree(torch.tensor([[LEAF, 0, 0]], dtype=torch.int32, device=device).repeat(count, 1))

    def __len__(self) -> int:
        return self._size

    @property
    def nodes(self) -> Tensor:
        """All nodes, (n, 3)."""
        return self._nodes[: self._size]

    def cut(self, nodes: Tensor, axis: Tensor, last: Tensor) -> Tensor:
        """Cut some nodes, each behind a place of an axis; return their halves: first all lower, then all upper ones."""
        lower = self._size + 2 * torch.arange(len(nodes), device=nodes.device)
        self._size += 2 * len(nodes)
        if self._size > len(self._nodes):  # twice as large as before, so that few have to be copied
            more = CutTree.of_roots(max(self._size, 2 * len(self._nodes)) - len(self._nodes), nodes.device)
            self._nodes = torch.cat([self._nodes, more.nodes])
        self._nodes[nodes] = torch.stack([axis, last, lower], 1).int()
        return torch.cat([lower, lower + 1])

    def leaves(self, places: Tensor, roots: Tensor | None = None) -> Tensor:
        """Return the leaf in which each record lies, by its places (n, axes); records begin at node 0 or at `roots`."""
        roots = torch.zeros(len(places), device=places.device) if roots is None else roots
        node = roots.to(torch.int64, copy=True)
        moving = torch.arange(len(places), device=places.device)
        while len(moving):
            axis, last, lower = self._nodes[node[moving]].long().unbind(1)
            inner = axis != LEAF
            moving, axis, last, lower = moving[inner], axis[inner], last[inner], lower[inner]
            node[moving] = lower + (places[moving, axis] > last)
        return node

    def owners(self, nodes: Tensor, places: Tensor, roots: Tensor | None = None) -> Tensor:
        """Return in which of some leaves each record lies, by its number among these; -1 in none of them."""
        number = torch.full((self._size,), -1, dtype=torch.int64, device=nodes.device)
        number[nodes.long()] = torch.arange(len(nodes), device=nodes.device)
        return number[self.leaves(places, roots)]

    def graft(self, at: Tensor, other: CutTree) -> Tensor:
        """Let another tree, of as many roots as `at` has nodes, continue these; return the new numbers of its nodes."""
        number = torch.cat([at, self._size + torch.arange(len(other) - len(at), device=at.device)])
        nodes = other.nodes.clone()
        nodes[:, 2] = torch.where(nodes[:, 0] == LEAF, 0, number[nodes[:, 2].long()])
        self._nodes = torch.cat([self.nodes, nodes[len(at) :]])
        self._size = len(self._nodes)
        self._nodes[at] = nodes[: len(at)]
        return number

    def is_sound(self, axes: int) -> bool:
        """Return whether this is a tree over so many axes: every half stands behind its parent and has one parent."""
        axis, _, lower = self.nodes.long().unbind(1)
        inner = axis != LEAF
        parent, lower = inner.nonzero()[:, 0], lower[inner]
        known = bool(((axis >= LEAF) & (axis < axes)).all() & ((lower > parent) & (lower + 1 < len(self))).all())
        return known and len(torch.unique(torch.cat([lower, lower + 1]))) == 2 * len(lower)


_CPU = torch.device("cpu")
LARGEST = 2.0**62  # combinations of codes that are counted in 64 bits
MOST_BOXES = 200_000  # into which rules may cut a region


@dataclass(frozen=True)
class Axis:
    """One attribute that is not sensitive. A place of a linear one is a number to the model, and holds one code."""

    column: int  # of the domain
    place: Tensor  # (size,) where each code stands; -1: outside the region
    codes: Tensor  # (places,) one code of each place
    count: Tensor  # (places,) how many codes stand there
    linear: bool

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def features(self) -> int:
        """How many numbers a line over it has: one slope, or a number for every place."""
        return 1 if self.linear else len(self)


@dataclass(frozen=True)
class Boxes:
    """Boxes of places, both ends included: (n, axes) each."""

    low: Tensor
    high: Tensor

    def __len__(self) -> int:
        return len(self.low)

    def __getitem__(self, index: Tensor | slice) -> Boxes:
        return Boxes(self.low[index], self.high[index])

    def hold(self, places: Tensor) -> Tensor:
        """Return which places lie in which box: bool (places, n)."""
        return ((places[:, None] >= self.low) & (places[:, None] <= self.high)).all(2)

    @staticmethod
    def joined(parts: Sequence[Boxes]) -> Boxes:
        """Return several lists of boxes as one."""
        return Boxes(torch.cat([p.low for p in parts]), torch.cat([p.high for p in parts]))

    def to(self, device: torch.device) -> Boxes:
        """Return the boxes in another place."""
        return Boxes(self.low.to(device), self.high.to(device))


@dataclass(frozen=True)
class Space:
    """The axes of a region, and the features over which lines are written.

    A line is a number for every feature: for a linear axis what one place more adds, for another one what each place
    adds. Over a box it is a sum over axes, so its least value, its mean and its variance are.
    """

    axes: tuple[Axis, ...]
    device: torch.device = _CPU

    @cached_property
    def linear(self) -> Tensor:
        """The axes that are linear."""
        return torch.tensor([i for i, axis in enumerate(self.axes) if axis.linear], dtype=torch.int64).to(self.device)

    @cached_property
    def slopes(self) -> Tensor:
        """The features of the linear axes."""
        return torch.tensor([self.first[i] for i, a in enumerate(self.axes) if a.linear], dtype=torch.int64).to(
            self.device
        )

    @cached_property
    def first(self) -> tuple[int, ...]:
        """The first feature of each axis, and behind the last one the number of all."""
        starts = [0]
        for axis in self.axes:
            starts.append(starts[-1] + axis.features)
        return tuple(starts)

    @property
    def features(self) -> int:
        """How many numbers a line has."""
        return self.first[-1]

    @cached_property
    def tables(self) -> tuple[tuple[int, int, Tensor], ...]:
        """The axes that are not linear: which, their first feature, and how many codes stand at each place."""
        return tuple(
            (i, self.first[i], axis.count.to(self.device, torch.float64))
            for i, axis in enumerate(self.axes)
            if not axis.linear
        )

    @cached_property
    def _before(self) -> Tensor:
        """How many codes stand before each place of each axis: (axes, most places + 1)."""
        most = max(len(axis) for axis in self.axes if not axis.linear) if self.tables else 0
        result = torch.zeros(len(self.axes), most + 1, dtype=torch.int64)
        for i, axis in enumerate(self.axes):
            if not axis.linear:
                result[i, 1 : len(axis) + 1] = axis.count.cpu().cumsum(0)
        return result.to(self.device)

    def everything(self) -> Boxes:
        """Return the one box that holds all places."""
        high = torch.tensor([[len(axis) - 1 for axis in self.axes]], device=self.device)
        return Boxes(torch.zeros_like(high), high)

    def sizes(self, boxes: Boxes) -> Tensor:
        """Return how many codes of each axis lie in each box: (n, axes)."""
        sizes = boxes.high - boxes.low + 1
        if self.tables:
            sizes = sizes.clone()
            for i, _, _ in self.tables:
                sizes[:, i] = self._before[i][boxes.high[:, i] + 1] - self._before[i][boxes.low[:, i]]
        return sizes

    def least(self, boxes: Boxes, slopes: Tensor) -> Tensor:
        """Return the smallest value of lines over each box, (n, lines); lines are (n, lines, features), or shared."""
        low, high = self._ends(boxes, slopes.dtype)
        steep = slopes[..., self.slopes] if self.tables else slopes
        middle, half = (low + high) / 2, (high - low) / 2
        if slopes.dim() == 2:
            least = middle @ steep.T - half @ steep.abs().T
        else:
            least = (steep @ middle[..., None] - steep.abs() @ half[..., None])[..., 0]
        for axis, start, count in self.tables:
            own = slopes[..., start : start + len(count)]
            least = least + own.masked_fill(~self.inside(boxes, axis)[:, None], torch.inf).amin(-1)
        return least

    def reach(self, boxes: Boxes, slopes: Tensor) -> Tensor:
        """Return how far each axis can move lines (n, lines, features) within a box: (n, lines, axes)."""
        n, lines, _ = slopes.shape
        result = slopes.new_zeros(n, lines, len(self.axes))
        low, high = self._ends(boxes, slopes.dtype)
        result[..., self.linear] = slopes[..., self.slopes].abs() * (high - low)[:, None]
        for axis, start, count in self.tables:
            own = slopes[..., start : start + len(count)]
            out = ~self.inside(boxes, axis)[:, None]
            result[..., axis] = own.masked_fill(out, -torch.inf).amax(-1) - own.masked_fill(out, torch.inf).amin(-1)
        return result

    def mean(self, boxes: Boxes, slopes: Tensor) -> Tensor:
        """Return the mean of lines (n, lines, features) over the records of each box: (n, lines)."""
        low, high = self._ends(boxes, slopes.dtype)
        mean = (slopes[..., self.slopes] @ ((low + high) / 2)[..., None])[..., 0]
        for axis, start, _ in self.tables:
            mean = (
                mean
                + (slopes[..., start : start + len(self.axes[axis])] @ self._shares(boxes, axis)[..., None])[..., 0]
            )
        return mean

    def _shares(self, boxes: Boxes, axis: int) -> Tensor:
        """Return which share of a box's records stands at each place of an axis: (n, places)."""
        share = self.inside(boxes, axis) * self.axes[axis].count.to(boxes.low.device, torch.float64)
        return share / share.sum(-1, keepdim=True)

    def moments(self, boxes: Boxes, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of lines over the records of each box: (n, lines) each."""
        low, high = self._ends(boxes, slopes.dtype)
        steep = slopes[..., self.slopes]
        mean = self.mean(boxes, slopes)
        variance = (steep.square() @ (((high - low + 1).square() - 1) / 12)[..., None])[..., 0]
        for axis, start, count in self.tables:
            share = self._shares(boxes, axis)[..., None]
            own = slopes[..., start : start + len(count)]
            variance = variance + (own.square() @ share - (own @ share).square())[..., 0]
        return mean, variance.clamp(min=0)

    def inside(self, boxes: Boxes, axis: int) -> Tensor:
        """Return which places of an axis lie in each box: bool, (n, places)."""
        places = torch.arange(len(self.axes[axis]), device=boxes.low.device)
        return (places >= boxes.low[:, axis, None]) & (places <= boxes.high[:, axis, None])

    def terms(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return the terms of lines at places (n, axes): the feature of each axis, and what it is multiplied by."""
        first = torch.tensor(self.first[:-1], device=places.device)
        linear = torch.tensor([axis.linear for axis in self.axes], device=places.device)
        return first + torch.where(linear, 0, places), torch.where(linear, places, 1).double()

    def middle(self, boxes: Boxes, axis: Tensor) -> Tensor:
        """Return the last place of the lower half of one axis of each box."""
        place = axis[:, None]
        return (boxes.low.gather(1, place) + boxes.high.gather(1, place)).div(2, rounding_mode="floor")[:, 0]

    def halves(self, boxes: Boxes, axis: Tensor, last: Tensor) -> Boxes:
        """Return the two parts of each box, cut behind a place of one of its axes: first all lower, then all upper."""
        place, last = axis[:, None], last[:, None]
        return Boxes.joined(
            [
                Boxes(boxes.low, boxes.high.scatter(1, place, last)),
                Boxes(boxes.low.scatter(1, place, last + 1), boxes.high),
            ]
        )

    def _ends(self, boxes: Boxes, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if not self.tables:
            return boxes.low.to(dtype), boxes.high.to(dtype)
        return boxes.low[:, self.linear].to(dtype), boxes.high[:, self.linear].to(dtype)


@dataclass(frozen=True)
class ValidRecords:
    """Boxes that cover a region once, and the pattern of each: which sensitive values its records may have."""

    boxes: Boxes
    pattern: Tensor  # (n,)
    valid: Tensor  # (patterns, values) which sensitive values exist
    inside: Tensor  # (patterns, values) and which of those belong to the region
    node: Tensor  # (n,) the leaf of each box in the tree of cuts
    cuts: Tensor  # (nodes, 3) that tree

    def to(self, device: torch.device) -> ValidRecords:
        """Return the same on another device."""
        parts = (self.pattern, self.valid, self.inside, self.node, self.cuts)
        return ValidRecords(self.boxes.to(device), *(part.to(device) for part in parts))

    def count(self, space: Space, boxes: Boxes, pattern: Tensor) -> list[int]:
        """Return how many records each box has, exactly."""
        sizes = space.sizes(boxes).cpu().numpy().astype(object)
        members = self.inside.sum(1)[pattern].cpu().numpy().astype(object)
        counted: list[int] = (np.prod(sizes, 1) * members).tolist() if len(boxes) else []
        return counted

    def share(self, space: Space, boxes: Boxes, pattern: Tensor) -> Tensor:
        """Return the records of each box as a share of all combinations of codes, about: float64 (n,)."""
        whole = space.sizes(space.everything()).double()
        return (space.sizes(boxes) / whole).prod(1) * self.inside.double().mean(1)[pattern]


@dataclass(frozen=True)
class _Condition:
    """Which places of an axis, or which sensitive values, meet a condition."""

    axis: int | None  # None: sensitive values
    met: Tensor

    def everywhere(self, boxes: Boxes) -> tuple[Tensor, Tensor]:
        """Return whether all of a box meets it, and whether none of it does: (n, 1), or for each value (1, k)."""
        if self.axis is None:
            return self.met[None], ~self.met[None]
        before = torch.cat([torch.zeros(1, dtype=torch.int64), self.met.long().cumsum(0)])
        low, high = boxes.low[:, self.axis], boxes.high[:, self.axis]
        met = before[high + 1] - before[low]
        return (met == high - low + 1)[:, None], (met == 0)[:, None]

    def cut(self, low: Tensor) -> Tensor:
        """Return the last place from `low` on that meets the condition as `low` does."""
        change = torch.cat([self.met[1:] != self.met[:-1], torch.ones(1, dtype=torch.bool)])
        places = torch.where(change, torch.arange(len(change)), len(change))
        return places.flip(0).cummin(0).values.flip(0)[low]


def valid_records(domain: TableDomain, space: Space, allowed: Sequence[Tensor]) -> ValidRecords:
    """Return the records of a region: `allowed` says for each attribute of the domain which of its codes belong to it.

    Everything is on the CPU. Rules that cut the region into too many boxes are refused.
    """
    values = domain.sensitive_values.cpu()
    rules = [
        tuple(_conditions(domain, space, part) for part in rule)
        for rule in RuleBook(domain.attributes, domain.rules).conditions
    ]
    boxes, done, marks, nodes = space.everything(), list[Boxes](), list[Tensor](), list[Tensor]()
    cuts = CutTree.of_roots(1, _CPU)
    node = torch.zeros(1, dtype=torch.int64)
    while len(boxes):
        valid, mixed, axis, place = _examined(rules, boxes, len(values))
        done.append(boxes[~mixed])
        marks.append(valid[~mixed])
        nodes.append(node[~mixed])
        node = cuts.cut(node[mixed], axis[mixed], place[mixed])
        boxes = space.halves(boxes[mixed], axis[mixed], place[mixed])
        if len(cuts) > 2 * MOST_BOXES:
            raise Unprovable(f"its rules cut the domain into more than {MOST_BOXES:,} boxes")
    inside = torch.stack([allowed[column][values[:, j]] for j, column in enumerate(domain.sensitive_columns)]).all(0)
    valid, pattern = torch.unique(torch.cat(marks), dim=0, return_inverse=True)
    return ValidRecords(Boxes.joined(done), pattern, valid, valid & inside, torch.cat(nodes), cuts.nodes)


def refined(domain: TableDomain, allowed: Sequence[Tensor]) -> list[Tensor]:
    """Return for each attribute the class of every code: those of one class are the same to all rules; -1: outside."""
    classes = [torch.zeros(attribute.size, dtype=torch.int64) for attribute in domain.attributes]
    for when, then in RuleBook(domain.attributes, domain.rules).conditions:
        for column, met in (*when, *then):
            _, classes[column] = torch.unique(classes[column] * 2 + met.cpu(), return_inverse=True)
    return [torch.where(ok, group, -1) for ok, group in zip(allowed, classes, strict=True)]


def _conditions(domain: TableDomain, space: Space, part: Sequence[tuple[int, Tensor]]) -> list[_Condition]:
    axis_of = {axis.column: number for number, axis in enumerate(space.axes)}
    values = domain.sensitive_values.cpu()
    result = []
    for column, met in part:
        if column in axis_of:
            number = axis_of[column]
            result.append(_Condition(number, met.cpu()[space.axes[number].codes.cpu()]))
        else:
            result.append(_Condition(None, met.cpu()[values[:, domain.sensitive_columns.index(column)]]))
    return result


def _examined(
    rules: Sequence[tuple[list[_Condition], ...]], boxes: Boxes, values: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return which values exist in each box, where that is not the same for all its records, and a cut of those."""
    n = len(boxes)
    broken, unsure = torch.zeros(2, n, values, dtype=torch.bool)
    axis, place = torch.zeros(2, n, dtype=torch.int64)
    for when, then in rules:
        met, unmet = _all(when, boxes, n, values)
        kept, failed = _all(then, boxes, n, values) if then else (torch.zeros_like(met), torch.ones_like(met))
        broken |= met & failed
        mine = ~(unmet | kept | (met & failed))
        unsure |= mine
        for condition in (*when, *then):
            if condition.axis is not None:
                whole, none = condition.everywhere(boxes)
                here = mine.any(1) & ~(whole | none)[:, 0]
                axis = torch.where(here, condition.axis, axis)
                place = torch.where(here, condition.cut(boxes.low[:, condition.axis]), place)
    mixed = (unsure & ~broken).any(1)
    return ~broken, mixed, axis, place


def _all(conditions: Sequence[_Condition], boxes: Boxes, n: int, values: int) -> tuple[Tensor, Tensor]:
    """Return where all records meet all conditions, and where none meets one of them: (n, values) each."""
    met, unmet = torch.ones(n, values, dtype=torch.bool), torch.zeros(n, values, dtype=torch.bool)
    for condition in conditions:
        whole, none = condition.everywhere(boxes)
        met, unmet = met & whole, unmet | none
    return met, unmet


def combinations(boxes: Boxes) -> Tensor:
    """Return how many combinations of places each box has, about: float64 (n,)."""
    return (boxes.high - boxes.low + 1).double().prod(1)


def varied(space: Space, boxes: Boxes) -> Tensor:
    """Return how many combinations of codes each box has on the axes of which it has several places: float64 (n,)."""
    return torch.where(boxes.high > boxes.low, space.sizes(boxes), 1).double().prod(1)


def can_enumerate(space: Space, boxes: Boxes, most: int) -> Tensor:
    """Return which boxes have few enough places, and codes at these that can be counted: bool, (n,)."""
    return (combinations(boxes) <= most) & (varied(space, boxes) < LARGEST)


def members(boxes: Boxes) -> tuple[Tensor, Tensor]:
    """Return all places in boxes: the number of their box, and the places."""
    extent = boxes.high - boxes.low + 1
    sizes, device = extent.prod(1), extent.device
    box = torch.arange(len(boxes), device=device).repeat_interleave(sizes)
    number = torch.arange(len(box), device=device) - (sizes.cumsum(0) - sizes)[box]
    most = int((extent > 1).sum(1).max()) if len(boxes) else 0
    extent, axes = extent.topk(most, dim=1)  # the others have one place
    places = boxes.low[box]
    for length, axis in zip(extent.T, axes.T, strict=True):
        places.scatter_add_(1, axis[box, None], (number % length[box])[:, None])
        number = number // length[box]
    return box, places
