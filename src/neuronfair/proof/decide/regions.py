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
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.proof.boxes.enumerate import members
from neuronfair.proof.boxes.space import Boxes
from neuronfair.proof.problem import Problem, rows_at
from neuronfair.proof.result import Leaves, Proof
from neuronfair.proof.where import allowed_codes, condition

Verdict = Literal["fair", "discriminatory"]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.integer]
ASKED = 300_000  # people, sensitive values apart, who are asked again to see where a box is cut
PART = 1 << 18  # people, with every sensitive value, who are asked at once
SEEDS = 40  # boxes that are widened, the largest first
SHORT = 4  # attributes that a rule names; longer ones are said only where there are no others
SHARED = 0.75  # of the smaller of two regions: from here on they say the same


@dataclass(frozen=True)
class Region:
    """People of whom all are proved to be decided alike whatever their sensitive values, or none is."""

    rule: str  # as `--where` reads it; empty: everybody
    verdict: Verdict
    people: int


def regions(subject: Problem, proof: Proof, *, most: int = 5, seconds: float = 5.0) -> list[Region]:
    """Return the largest regions of each kind that a proof shows, and that do not say the same: `most` of each."""
    found = list[Region]()
    begun = time.perf_counter()
    world = _World(subject)
    boxes = world.decided(proof.leaves, begun + seconds / 3)
    for number, verdict in enumerate(get_args(Verdict)):
        end = begun + seconds * (number + 2) / 3
        grown = sorted(world.widened(boxes, boxes.whole[number], end), key=lambda wide: -world.share(wide))
        short = [wide for wide in grown if sum(not mask.all() for mask in wide) <= SHORT]
        kept = list[_Wide]()
        for wide in short or grown:
            if len(kept) < most and all(world.shared(wide, other) < SHARED for other in kept):
                kept.append(wide)
        counted = [Region(world.rule(wide), verdict, world.count(wide)) for wide in kept]
        found += sorted(counted, key=lambda region: -region.people)
    return found


class _Decided(NamedTuple):
    """Boxes, and which of them are proved as a whole; those without people are left out."""

    low: Ints  # (n, axes)
    high: Ints
    people: npt.NDArray[np.float64]  # about
    whole: tuple[Bools, Bools]  # all of it is fair, all of it discriminates


_Wide = tuple[Bools, ...]  # per axis, which places are allowed


@dataclass(frozen=True)
class _World:
    """A region that was asked about, and its people."""

    subject: Problem

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

    def decided(self, leaves: Leaves, end: float) -> _Decided:
        """Return the boxes of a proof; where everybody was asked they are cut into single places, if time allows."""
        low, high = torch.from_numpy(leaves.low).long(), torch.from_numpy(leaves.high).long()
        people = self._people(low, high)
        fair, unfair = (np.array(part, dtype=object) for part in (leaves.fair, leaves.discriminatory))
        known = ((fair > 0) & (unfair > 0) & (fair + unfair == people)).astype(bool)
        sizes = (high - low + 1).double().prod(1)
        mixed = np.flatnonzero(known)
        mixed = mixed[np.argsort(-people[mixed].astype(float), kind="stable")]
        again = torch.from_numpy(mixed)[sizes[torch.from_numpy(mixed)].cumsum(0) <= ASKED]
        cut, alike = [low[:0]], [torch.zeros(0, dtype=torch.bool)]
        step = 1 + PART // len(self.subject.domain.sensitive_values)
        groups: list[int] = torch.bincount((sizes[again].cumsum(0) / step).long()).tolist() if len(again) else []
        done = 0
        for part in torch.split(again, groups):
            if time.perf_counter() > end:
                break
            _, places = members(Boxes(low[part], high[part]))
            for some in self._parts(places):
                margins = self.subject.margins(some.to(self.subject.device)).cpu()
                alike.append(self.subject.question.asked(margins, self.subject.slack.cpu(), self._valid(some))[0])
            cut.append(places)
            done += len(part)
        again, places, each = again[:done], torch.cat(cut), torch.cat(alike).numpy()
        rest = np.ones(len(low), dtype=bool)
        rest[again.numpy()] = False
        kept = (people > 0).astype(bool)
        return _Decided(
            np.concatenate([low.numpy()[rest & kept], places.numpy()]),
            np.concatenate([high.numpy()[rest & kept], places.numpy()]),
            np.concatenate([people[rest & kept], self._people(places, places)]).astype(np.float64),
            (
                np.concatenate([(fair == people)[rest & kept], each]).astype(bool),
                np.concatenate([(unfair == people)[rest & kept], ~each]).astype(bool),
            ),
        )

    def _people(self, low: Tensor, high: Tensor) -> npt.NDArray[np.object_]:
        """Return how many people boxes have, exactly, if all in a box may have the same sensitive values."""
        values = self.subject.domain.sensitive_values
        columns = self.subject.domain.sensitive_columns
        asked = torch.stack([self.allowed[c][values[:, j]] for j, c in enumerate(columns)]).all(0)
        people = np.full(len(low), int(asked.sum()), dtype=object)
        if self.subject.domain.rules:
            people[:] = [n for part in self._parts(low) for n in (self._valid(part) & asked).sum(1).tolist()]
        for axis, count in enumerate(self.counts):
            before = np.concatenate([[0], np.cumsum(count)])
            people = people * (before[high[:, axis] + 1] - before[low[:, axis]])
        return people

    def _parts(self, places: Tensor) -> tuple[Tensor, ...]:
        """Return places in parts whose people, with every sensitive value, fit into memory."""
        return torch.split(places, 1 + PART // len(self.subject.domain.sensitive_values)) if len(places) else ()

    def _valid(self, places: Tensor) -> Tensor:
        """Return which sensitive values exist at places: bool, (n, values)."""
        domain = self.subject.domain
        rows = rows_at(domain, self.subject.space, places)
        broken = domain.broken(rows.flatten(0, 1)).any(1) if domain.rules else torch.zeros(1, dtype=torch.bool)
        return ~broken.expand(rows.shape[0] * rows.shape[1]).view(rows.shape[:2])

    def widened(self, boxes: _Decided, whole: Bools, end: float) -> Iterator[_Wide]:
        """Yield the largest boxes among `whole`, each as wide as it can be."""
        low, high = boxes.low[~whole], boxes.high[~whole]
        seeds = np.flatnonzero(whole)
        seeds = seeds[np.argsort(-boxes.people[seeds], kind="stable")]
        for _ in range(SEEDS):
            if not len(seeds) or time.perf_counter() > end:
                return
            for drops_first in (True, False):
                wide = self._widened(self._masks(boxes, seeds[0]), low, high, drops_first)
                yield wide
                inside = [_meets(~mask, boxes.low[seeds, a], boxes.high[seeds, a]) for a, mask in enumerate(wide)]
                seeds = np.concatenate([seeds[:1], seeds[1:][np.any(inside, 0)[1:]]])
            seeds = seeds[1:]

    def _masks(self, boxes: _Decided, number: int) -> list[Bools]:
        """Return a box as the places that it allows."""
        places = (np.arange(len(count)) for count in self.counts)
        return [(p >= a) & (p <= b) for p, a, b in zip(places, boxes.low[number], boxes.high[number], strict=True)]

    def _widened(self, wide: list[Bools], low: Ints, high: Ints, drops_first: bool) -> _Wide:
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

    def _reach(self, axis: int, mask: Bools, low: Ints, high: Ints) -> Bools:
        """Return the places that may be allowed, if none between low and high may: of an order no others in between."""
        edges = np.bincount(low, minlength=len(mask) + 1) - np.bincount(high + 1, minlength=len(mask) + 1)
        free: Bools = np.cumsum(edges)[: len(mask)] == 0
        if not self.subject.domain.attributes[self.subject.space.axes[axis].column].ordered:
            return free
        order = self.orders[axis]
        run = np.cumsum(~free[order])  # places of one stretch have the same number
        mine = np.zeros(len(mask) + 1, dtype=bool)
        mine[run[mask[order]]] = True
        kept = np.zeros(len(mask), dtype=bool)
        kept[order] = free[order] & mine[run]
        return kept

    def share(self, wide: _Wide) -> float:
        """Return about which share of all combinations a region holds, rules apart."""
        return math.prod(float(count[mask].sum() / count.sum()) for count, mask in zip(self.counts, wide, strict=True))

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


def _meets(mask: Bools, low: Ints, high: Ints) -> Bools:
    """Return which ranges of places hold an allowed one."""
    before = np.concatenate([[0], np.cumsum(mask)])
    met: Bools = before[high + 1] > before[low]
    return met
