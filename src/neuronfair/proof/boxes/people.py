"""Which people of a region there are: boxes in which everybody has the same twins.

A rule may forbid some combinations. The region is cut along the conditions of its rules until, in every box, all
people may have the same sensitive values (a *pattern*); then a box has as many people as codes multiply to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.rules import RuleBook
from neuronfair.domain.table import TableDomain
from neuronfair.proof.bounds.lines import Unprovable
from neuronfair.proof.boxes.space import Axis, Boxes, Space

MOST_BOXES = 200_000  # into which rules may cut a region


@dataclass(frozen=True)
class People:
    """Boxes that cover a region once, and the pattern of each: which sensitive values its people may have."""

    boxes: Boxes
    pattern: Tensor  # (n,)
    valid: Tensor  # (patterns, values) which sensitive values exist
    inside: Tensor  # (patterns, values) and which of those belong to the region

    def to(self, device: torch.device) -> People:
        """Return the same in another place."""
        parts = (self.pattern, self.valid, self.inside)
        return People(self.boxes.to(device), *(part.to(device) for part in parts))

    def count(self, space: Space, boxes: Boxes, pattern: Tensor) -> list[int]:
        """Return how many people each box has, exactly."""
        sizes = space.sizes(boxes).cpu().numpy().astype(object)
        members = self.inside.sum(1)[pattern].cpu().numpy().astype(object)
        counted: list[int] = (np.prod(sizes, 1) * members).tolist() if len(boxes) else []
        return counted

    def share(self, space: Space, boxes: Boxes, pattern: Tensor) -> Tensor:
        """Return the people of each box as a share of all combinations of codes, about: float64 (n,)."""
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


def people_of(domain: TableDomain, space: Space, allowed: Sequence[Tensor]) -> People:
    """Return the people of a region: `allowed` says for each attribute of the domain which of its codes belong to it.

    Everything is on the CPU. Rules that cut the region into too many boxes are refused.
    """
    values = domain.sensitive_values.cpu()
    rules = [tuple(_conditions(domain, space, part) for part in rule) for rule in _rulebook(domain).conditions]
    boxes, done, marks = space.everything(), list[Boxes](), list[Tensor]()
    cut = 0
    while len(boxes):
        valid, mixed, axis, place = _looked_at(rules, boxes, len(values))
        done.append(boxes[~mixed])
        marks.append(valid[~mixed])
        cut += int((~mixed).sum())
        boxes, axis, place = boxes[mixed], axis[mixed, None], place[mixed, None]
        if cut + 2 * len(boxes) > MOST_BOXES:
            raise Unprovable(f"its rules cut the domain into more than {MOST_BOXES:,} boxes")
        boxes = Boxes.joined(
            [
                Boxes(boxes.low, boxes.high.scatter(1, axis, place)),
                Boxes(boxes.low.scatter(1, axis, place + 1), boxes.high),
            ]
        )
    asked = torch.stack([allowed[column][values[:, j]] for j, column in enumerate(domain.sensitive_columns)]).all(0)
    valid, pattern = torch.unique(torch.cat(marks), dim=0, return_inverse=True)
    return People(Boxes.joined(done), pattern, valid, valid & asked)


def refined(domain: TableDomain, allowed: Sequence[Tensor]) -> list[Tensor]:
    """Return for each attribute the class of every code: those of one class are the same to all rules; -1: outside."""
    classes = [torch.zeros(attribute.size, dtype=torch.int64) for attribute in domain.attributes]
    for when, then in _rulebook(domain).conditions:
        for column, met in (*when, *then):
            _, classes[column] = torch.unique(classes[column] * 2 + met.cpu(), return_inverse=True)
    return [torch.where(ok, group, -1) for ok, group in zip(allowed, classes, strict=True)]


def exact_count(axes: Sequence[Axis]) -> int:
    """Return how many combinations of codes axes have."""
    return math.prod(int(axis.count.sum()) for axis in axes)


def _rulebook(domain: TableDomain) -> RuleBook:
    return RuleBook(domain.attributes, domain.rules)


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


def _looked_at(
    rules: Sequence[tuple[list[_Condition], ...]], boxes: Boxes, values: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return which values exist in each box, where that is not the same for all its people, and a cut of those."""
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
    """Return where all conditions are met by everybody, and where one of them is met by nobody: (n, values) each."""
    met, unmet = torch.ones(n, values, dtype=torch.bool), torch.zeros(n, values, dtype=torch.bool)
    for condition in conditions:
        whole, none = condition.everywhere(boxes)
        met, unmet = met & whole, unmet | none
    return met, unmet
