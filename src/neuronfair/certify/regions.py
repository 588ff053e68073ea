"""The largest regions that are proved to be fair, or to discriminate, as short rules.

A region allows some places of every axis. It starts as a box that is proved as a whole and is widened, axis by axis, as
long as it meets no box of which anything else is true, or not known.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.certify.proof import Leaves, Proof
from neuronfair.certify.subject import Subject, rows_at
from neuronfair.certify.where import allowed_codes, condition

Verdict = Literal["fair", "discriminatory"]
Bools = npt.NDArray[np.bool_]
SEEDS = 40  # boxes that are widened, the largest first
SHARED = 0.5  # of the smaller of two regions: from here on they say the same


@dataclass(frozen=True)
class Region:
    """People of whom all are proved to be decided alike whatever their sensitive values, or none is."""

    rule: str  # as `--where` reads it; empty: everybody
    verdict: Verdict
    people: int


def regions(subject: Subject, proof: Proof, *, most: int = 5, seconds: float = 5.0) -> list[Region]:
    """Return the largest regions of each kind that a proof shows, and that do not say the same: `most` of each."""
    found = list[Region]()
    world = _World(subject, proof.leaves)
    kinds: tuple[tuple[Verdict, list[int]], ...] = (
        ("fair", proof.leaves.fair),
        ("discriminatory", proof.leaves.discriminatory),
    )
    for verdict, proved in kinds:
        end = time.perf_counter() + seconds / len(kinds)
        whole = np.array([own > 0 and own == all_ for own, all_ in zip(proved, world.people, strict=True)], dtype=bool)
        grown = sorted(world.widened(whole, end), key=lambda wide: -world.share(wide))
        kept = list[_Wide]()
        for wide in grown:
            if len(kept) < most and all(world.shared(wide, other) < SHARED for other in kept):
                kept.append(wide)
        counted = [Region(world.rule(wide), verdict, world.count(wide)) for wide in kept]
        found += sorted(counted, key=lambda region: -region.people)
    return found


_Wide = tuple[Bools, ...]  # per axis, which places are allowed


@dataclass(frozen=True)
class _World:
    """The boxes of a proof, and the people in them."""

    subject: Subject
    leaves: Leaves

    @cached_property
    def counts(self) -> list[npt.NDArray[np.int64]]:
        """How many codes stand at each place of each axis."""
        return [axis.count.cpu().numpy() for axis in self.subject.space.axes]

    @cached_property
    def orders(self) -> list[npt.NDArray[np.int64]]:
        """The places of each axis in the order of their first codes."""
        result = []
        for axis in self.subject.space.axes:
            place = axis.place.cpu().numpy()
            seen, first = np.unique(place, return_index=True)
            result.append(np.argsort(first[seen >= 0], kind="stable"))
        return result

    @cached_property
    def allowed(self) -> tuple[Tensor, ...]:
        """Which codes of each attribute belong to the region that the proof is about."""
        return allowed_codes(self.subject.domain, self.subject.where)

    @cached_property
    def people(self) -> list[int]:
        """How many people each box of the proof has."""
        sizes = np.ones(len(self.leaves), dtype=object)
        for axis, count in enumerate(self.counts):
            before = np.concatenate([[0], np.cumsum(count)])
            sizes = sizes * (before[self.leaves.high[:, axis] + 1] - before[self.leaves.low[:, axis]])
        counted: list[int] = (sizes * self._members).tolist()
        return counted

    @cached_property
    def _members(self) -> npt.NDArray[np.int64]:
        """How many sensitive values people of each box may have: all in a box the same."""
        domain, values = self.subject.domain, self.subject.domain.sensitive_values
        asked = torch.stack([self.allowed[c][values[:, j]] for j, c in enumerate(domain.sensitive_columns)]).all(0)
        if not domain.rules:
            return np.full(len(self.leaves), int(asked.sum()))
        members = [np.zeros(0, dtype=np.int64)]
        for corner in torch.split(torch.from_numpy(self.leaves.low).long(), 1 + (1 << 18) // len(values)):
            rows = rows_at(domain, self.subject.space, corner)
            valid = ~domain.broken(rows.flatten(0, 1)).any(1).view(rows.shape[:2])
            members.append((valid & asked).sum(1).numpy())
        return np.concatenate(members)

    def widened(self, whole: Bools, end: float) -> Iterator[_Wide]:
        """Yield the largest boxes among `whole`, each as wide as it can be."""
        people = np.array(self.people, dtype=np.float64)
        others = ~whole & (people > 0)
        low, high = self.leaves.low[others], self.leaves.high[others]
        seeds = np.flatnonzero(whole)
        seeds = seeds[np.argsort(-people[seeds], kind="stable")]
        left = np.ones(len(seeds), dtype=bool)
        for _ in range(SEEDS):
            if not left.any() or time.perf_counter() > end:
                return
            seed = seeds[np.argmax(left)]
            for drops_first in (True, False):
                wide = self._widened(_box(self, seed), low, high, drops_first)
                yield wide
                inside = np.ones(len(seeds), dtype=bool)
                for axis, mask in enumerate(wide):
                    before = np.concatenate([[0], np.cumsum(~mask)])
                    inside &= before[self.leaves.high[seeds, axis] + 1] == before[self.leaves.low[seeds, axis]]
                left &= ~inside

    def _widened(self, wide: list[Bools], low: Bools, high: Bools, drops_first: bool) -> _Wide:
        """Return a region that is as wide as can be and meets no other box: along the axis that gains most first."""
        meets = np.stack([_meets(mask, low[:, a], high[:, a]) for a, mask in enumerate(wide)], 1)
        while True:
            near = np.flatnonzero(meets.sum(1) == len(wide) - 1)  # these are met as soon as one axis reaches them
            best, gain = -1, (False, 1.0)
            for axis, mask in enumerate(wide):
                stops = near[~meets[near, axis]]
                reach = self._reach(axis, mask, low[stops, axis], high[stops, axis])
                more = float(self.counts[axis][reach].sum() / self.counts[axis][mask].sum())
                if ((drops_first and bool(reach.all())), more) > gain and more > 1:
                    best, gain, wider = axis, ((drops_first and bool(reach.all())), more), reach
            if best < 0:
                return tuple(wide)
            wide[best] = wider
            meets[:, best] = _meets(wider, low[:, best], high[:, best])

    def _reach(self, axis: int, mask: Bools, low: Bools, high: Bools) -> Bools:
        """Return the places that may be allowed, if none between low and high may: of an order no others in between."""
        edges = np.bincount(low, minlength=len(mask) + 1) - np.bincount(high + 1, minlength=len(mask) + 1)
        free = np.cumsum(edges)[: len(mask)] == 0
        if not self.subject.domain.attributes[self.subject.space.axes[axis].column].ordered:
            return free
        order = self.orders[axis]
        run = np.cumsum(~free[order])  # places of one stretch have the same number
        kept = np.zeros(len(mask), dtype=bool)
        kept[order] = free[order] & np.isin(run, run[mask[order]])
        return kept

    def share(self, wide: _Wide) -> float:
        """Return about which share of all combinations a region holds, rules apart."""
        return math.prod(count[mask].sum() / count.sum() for count, mask in zip(self.counts, wide, strict=True))

    def shared(self, one: _Wide, other: _Wide) -> float:
        """Return which share of the smaller of two regions lies in the larger."""
        both = self.share(tuple(a & b for a, b in zip(one, other, strict=True)))
        return both / min(self.share(one), self.share(other))

    def count(self, wide: _Wide) -> int:
        """Return how many people a region has, exactly."""
        people = self.subject.people
        total = people.inside.sum(1).cpu()[people.pattern.cpu()].numpy().astype(object)
        low, high = people.boxes.low.cpu().numpy(), people.boxes.high.cpu().numpy()
        for axis, (count, mask) in enumerate(zip(self.counts, wide, strict=True)):
            before = np.concatenate([[0], np.cumsum(count * mask)])
            total = total * (before[high[:, axis] + 1] - before[low[:, axis]])
        return int(total.sum())

    def rule(self, wide: _Wide) -> str:
        """Return a region in words."""
        codes = list(self.allowed)
        for axis, mask in zip(self.subject.space.axes, wide, strict=True):
            place = axis.place.cpu()
            codes[axis.column] = (place >= 0) & torch.from_numpy(mask)[place.clamp(min=0)]
        said = (condition(a, own) for a, own in zip(self.subject.domain.attributes, codes, strict=True))
        return " and ".join(filter(None, said))


def _box(world: _World, leaf: int) -> list[Bools]:
    """Return a box of a proof as the places that it allows."""
    masks = []
    for axis, count in enumerate(world.counts):
        mask = np.zeros(len(count), dtype=bool)
        mask[world.leaves.low[leaf, axis] : world.leaves.high[leaf, axis] + 1] = True
        masks.append(mask)
    return masks


def _meets(mask: Bools, low: npt.NDArray[np.int32], high: npt.NDArray[np.int32]) -> Bools:
    """Return which ranges of places hold an allowed one."""
    before = np.concatenate([[0], np.cumsum(mask)])
    met: Bools = before[high + 1] > before[low]
    return met
