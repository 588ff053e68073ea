"""Branch-and-bound: boxes are bounded and cut, those with the most undecided people first, until all is decided."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import torch
from torch import Tensor

from neuronfair.interruption import Interruption, interruptible
from neuronfair.model.training_loop import Threads, threads
from neuronfair.proof.bounds.margins import BoxSigns, HalfSpaces, Lines, box_signs
from neuronfair.proof.boxes.counting import share_above
from neuronfair.proof.boxes.space import Boxes
from neuronfair.proof.certificate import Proof
from neuronfair.proof.decide.counts import (
    can_enumerate,
    certified,
    certified_boxes,
    certified_shares,
    enumerated,
    enumerated_people,
    undecided,
)
from neuronfair.proof.decide.queue import BoxQueue, State
from neuronfair.proof.problem import Problem, unread

BATCH = {"cpu": 4_096, "cuda": 1 << 17}  # boxes that are cut at once
FIRST = 256  # and before it is known how long it takes
LINES = {"cpu": 1 << 22, "cuda": 1 << 29}  # numbers of the lines of all boxes that are cut at once
SMALL = 512  # combinations of places up to which the people of a box are enumerated
WORTH = 0.02  # the share of a box from which on a half-space is counted
STEEP = 0.05  # how much steepness counts beside looseness when an axis is chosen to be cut
COSTLY = 0.1  # by which power of the time the undecided people go down, about
TRIAL, TRIED, EVERY = 128, 4, 16  # boxes on which the ways to bound are compared, in which step, and in which again
INNER = {"cpu": 1 << 27, "cuda": 1 << 30}  # numbers about inner layers that are kept for the halves of undecided boxes
SHORT = 0.2  # seconds that a step may always take
KEEP = 10.0  # seconds between two states that are kept, at least
SELDOM = 20  # times as long as it took to keep one lie between two: a twentieth of the time is spent on it at most
Keep = Callable[[State], Path | None]  # keeps a state, and may return a folder for pieces of it


@dataclass(frozen=True)
class ProofProgress:
    """How far a proof is: shares of all people, about."""

    fair: float
    discriminatory: float
    boxes: int
    seconds: float

    @property
    def undecided(self) -> float:
        """The share of which nothing is proved."""
        return max(0.0, 1 - self.fair - self.discriminatory)


@torch.no_grad()
def prove(
    problem: Problem,
    *,
    seconds: float = 60.0,
    progress: Callable[[ProofProgress], None] | None = None,
    state: State | None = None,
    keep: Keep | None = None,
) -> Proof:
    """Prove as much as can be proved about a region in so many seconds.

    `keep` is given the state every few seconds, more seldom the longer that takes, and `state` goes on from one; its
    seconds count. Ctrl-C ends the proof with what is there.
    """
    with threads(problem.device) as workers:
        search = BranchAndBound(problem, state, workers)
        with interruptible(absorb=True) as interruption:
            advance(search, seconds, interruption=interruption, progress=progress, keep=keep)
    last = search.state()
    if keep:
        keep(last)
    return proof_of(problem, last, interrupted=interruption.requested)


def advance(
    search: BranchAndBound,
    seconds: float,
    *,
    interruption: Interruption,
    progress: Callable[[ProofProgress], None] | None = None,
    keep: Keep | None = None,
    most: float = math.inf,
    longest: float | None = None,
) -> None:
    """Go on with a proof until nothing, or so many boxes, are undecided, so many seconds are over, or it is to stop.

    No step shall take longer than `longest`, or a small part of the seconds.
    """
    begun = time.perf_counter() - search.seconds
    kept, took = search.seconds, 0.0
    while 0 < search.left < most and search.seconds < seconds and not interruption.requested:
        before = search.seconds
        search.step()
        search.seconds = time.perf_counter() - begun
        search.pace(search.seconds - before, longest or seconds / 20)
        if progress:
            progress(search.progress())
        if keep and search.seconds - kept > max(KEEP, SELDOM * took):
            start = monotonic()
            keep(search.state())
            took = monotonic() - start
            kept = search.seconds + took


def proof_of(problem: Problem, state: State, *, interrupted: bool) -> Proof:
    """Return what is proved in a state."""
    boxes = certified_boxes(problem, (state.done, state.undecided))
    proved = sum(boxes.fair), sum(boxes.discriminatory)
    return Proof(problem.count, *proved, state.boxes, state.seconds, boxes, interrupted)


class BranchAndBound:
    """A proof in the making."""

    def __init__(self, problem: Problem, state: State | None, workers: Threads) -> None:
        self._threads = workers
        self.problem, self._space, self._people = problem, problem.space, problem.people
        numbers = len(problem.domain.sensitive_values) * (problem.space.features + len(problem.space.axes))
        self._most = max(1, min(BATCH[problem.device.type], LINES[problem.device.type] // numbers))
        self._batch = min(FIRST, self._most)
        self._steps, self._way, self._keeps_inner = 0 if state is None else TRIED, 0, True
        if state is None:
            state = self._beginning()
        self.boxes, self.seconds = state.boxes, state.seconds
        self._done = [dict(state.done)]
        self._proved = certified_shares(problem, state.done)
        self._queue = BoxQueue({name: column[:0] for name, column in state.undecided.items()})
        self._put(state.undecided, None)

    def _beginning(self) -> State:
        """Return the region, cut by its rules. Who has no twin that the model can tell is treated like all of them."""
        boxes, pattern = self._people.boxes, self._people.pattern
        empty = ~self._people.inside[pattern].any(1)
        alone = (self._people.valid[pattern].sum(1) < 2) | unread(self.problem.domain)
        ready, rest = (empty | alone).nonzero()[:, 0], (~(empty | alone)).nonzero()[:, 0]
        zero = torch.zeros(len(rest), dtype=torch.float64, device=self.problem.device)
        columns = undecided(boxes[rest], pattern[rest], zero, zero)
        columns["axis"] = torch.full_like(columns["pattern"], -1)  # not yet bounded
        columns["last"] = torch.zeros_like(columns["pattern"])
        return State(columns, certified(boxes[ready], pattern[ready], torch.ones_like(ready, dtype=torch.bool)), 0, 0.0)

    @property
    def left(self) -> int:
        """How many boxes are undecided."""
        return len(self._queue)

    def step(self) -> None:
        """Take the boxes with the most undecided people, enumerate those of small ones, and cut the others."""
        taken = self._queue.take(self._batch)
        boxes, pattern, axis = Boxes(taken["low"].long(), taken["high"].long()), taken["pattern"], taken["axis"].long()
        few = can_enumerate(self._space, boxes, SMALL) & (axis >= 0)
        small, new, old = (some.nonzero()[:, 0] for some in (few, axis < 0, ~few & (axis >= 0)))
        if len(small):
            counts = enumerated_people(self.problem, boxes[small], pattern[small].long())
            self._finish(enumerated(self.problem, boxes[small], pattern[small], counts))
        if len(new):
            self._bound(boxes[new], pattern[new].long())
        if len(old):
            inner = taken["inner"][old].repeat(2, 1, 1) if "inner" in taken else None
            halves = self._space.halves(boxes[old], axis[old], taken["last"][old].long())
            self._bound(halves, pattern[old].long().repeat(2), inner)
        self._steps += 1

    def pace(self, step: float, wanted: float) -> None:
        """Take fewer boxes at once if a step took longer than is wanted, or more; not if it compared ways."""
        if self._steps % EVERY == TRIED + 1:
            return
        wanted = max(SHORT, wanted)
        more = min(self._most, self._batch * (1 + (step < wanted / 3)))
        self._batch = max(min(16, self._most), self._batch // 2) if step > wanted else more

    def progress(self) -> ProofProgress:
        """Return how far the proof is."""
        fair, flips = ((self._proved + self._queue.proved) / self.problem.whole).tolist()
        return ProofProgress(fair, flips, self.boxes, self.seconds)

    def state(self) -> State:
        """Return where the proof stands."""
        self._done = [{name: torch.cat([part[name] for part in self._done]) for name in self._done[0]}]
        return State(self._queue.everything(), self._done[0], self.boxes, self.seconds)

    def _finish(self, columns: dict[str, Tensor]) -> None:
        self._proved = self._proved + certified_shares(self.problem, columns)
        self._done.append(columns)

    def _put(self, columns: Mapping[str, Tensor], inner: Tensor | None) -> None:
        boxes = Boxes(columns["low"].long(), columns["high"].long())
        share = self._people.share(self._space, boxes, columns["pattern"].long())
        if inner is not None and self._keeps_inner:  # once there are too many, no more are kept
            numbers = (self.left + len(inner)) * inner.shape[1:].numel()
            self._keeps_inner = numbers < INNER[self.problem.device.type]
            columns = {**columns, "inner": inner} if self._keeps_inner else columns
        self._queue.put(columns, share)

    def _bound(self, boxes: Boxes, pattern: Tensor, inner: Tensor | None = None) -> None:
        """Bound boxes, each thread some of them: those that are decided are done, the others go back into the queue."""
        self.boxes += len(boxes)
        bounder = self.problem.bounder
        if bounder is None:  # only to be cut until the people can be enumerated
            zero = torch.zeros(len(boxes), dtype=torch.float64, device=boxes.low.device)
            longest = (boxes.high - boxes.low).argmax(1)
            last = self._space.middle(boxes, longest)
            columns = undecided(boxes, pattern, zero, zero)
            self._put({**columns, "axis": longest.int(), "last": last.int()}, None)
            return
        if bounder.ways > 1 and self._steps % EVERY == TRIED:
            self._way = self._best_way(boxes, pattern, inner)
        size = -(-len(boxes) // self._threads.count)
        parts = [slice(i, i + size) for i in range(0, len(boxes), size)]
        for done, left, bounds in self._threads.map(lambda part: self._bounded(boxes, pattern, inner, part), parts):
            self._finish(done)
            self._put(left, bounds)

    def _bounded(
        self, boxes: Boxes, pattern: Tensor, inner: Tensor | None, part: slice
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor | None]:
        """Return the boxes of a part that are decided, the others, and the bounds of inner layers of these."""
        bounder = self.problem.bounder
        assert bounder is not None
        boxes, pattern = boxes[part], pattern[part]
        lines = bounder.lines(boxes, None if inner is None else inner[part], self._way)
        signs = box_signs(self.problem.margins, self._space, boxes, lines, self._people.valid[pattern])
        fair = signs.fair if lines.same is None else signs.fair | lines.same
        whole = fair | signs.unfair
        index, rest = whole.nonzero()[:, 0], (~whole).nonzero()[:, 0]
        alike, flips = self._counted(boxes[rest], signs, rest)
        columns = undecided(boxes[rest], pattern[rest], alike, flips)
        cut = self._to_cut(boxes, lines, signs)[rest].int()
        columns["axis"], columns["last"] = cut[:, 0], cut[:, 1]
        bounds = None if lines.inner is None else lines.inner[rest]
        return certified(boxes[index], pattern[index], fair[index]), columns, bounds

    def _best_way(self, boxes: Boxes, pattern: Tensor, inner: Tensor | None) -> int:
        """Return the way to bound that leaves the fewest people of some boxes undecided, for what it costs."""
        bounder = self.problem.bounder
        assert bounder is not None
        some = slice(None, None, max(1, len(boxes) // TRIAL))
        boxes, pattern, inner = boxes[some], pattern[some], None if inner is None else inner[some]
        share = self._people.share(self._space, boxes, pattern)
        scores = []
        for way in range(bounder.ways):
            lines = bounder.lines(boxes, inner, way)
            signs = box_signs(self.problem.margins, self._space, boxes, lines, self._people.valid[pattern])
            proved = (self._alike(signs.alike.estimate) + _all(signs.flips.estimate)).clamp(max=1.0)
            proved = torch.where(signs.fair | signs.unfair, 1.0, proved)
            scores.append(float(((1 - proved) * share).sum()) * bounder.cost(way) ** COSTLY)
        return min(range(bounder.ways), key=scores.__getitem__)

    def _alike(self, above: Tensor) -> Tensor:
        """Return the share that does not flip, by the shares above the common lines of signed margins, (n, lines)."""
        classes = self.problem.margins.classes.to(above.device)
        return _all(above[:, classes]).sum(-1) if len(classes) else above[:, 0]

    def _counted(self, boxes: Boxes, signs: BoxSigns, rest: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shares of undecided boxes that half-spaces prove fair and discriminatory, at least."""
        worth = signs.alike.estimate[rest] > WORTH
        alike = self._alike(self._above(boxes, signs.alike, rest, worth)).clamp(max=1.0)
        likely = _all(signs.flips.estimate[rest]) > WORTH
        flips = _all(self._above(boxes, signs.flips, rest, likely[:, None].expand(-1, signs.flips.at.shape[1])))
        return alike, torch.minimum(flips, 1.0 - alike)

    def _above(self, boxes: Boxes, halves: HalfSpaces, rest: Tensor, worth: Tensor) -> Tensor:
        """Return the shares of boxes above lines, where that is worth counting: (n, lines)."""
        result = torch.zeros(worth.shape, dtype=torch.float64, device=worth.device)
        box, line = worth.nonzero(as_tuple=True)
        if len(box):
            slopes, at = halves.slopes[rest[box], line], halves.at[rest[box], line]
            result[box, line] = share_above(self._space, boxes[box], slopes, at)
        return result

    def _to_cut(self, boxes: Boxes, lines: Lines, signs: BoxSigns) -> Tensor:
        """Return the axis on which each box is cut, where its lines are loosest, and the last place below the cut."""
        if lines.cut is not None:
            return lines.cut
        low, high, reach = lines.low.flatten(1, 2), lines.high.flatten(1, 2), self._space.reach
        score = reach(boxes, high - low) + STEEP * (reach(boxes, low) + reach(boxes, high))
        undecided = signs.undecided
        if lines.low.shape[1] < undecided.shape[1]:
            undecided = undecided.any(1, keepdim=True)
        score = (score * undecided.expand(lines.low.shape[:3]).flatten(1, 2)[..., None]).sum(1)
        lengths = boxes.high - boxes.low + 1
        axis = torch.where(lengths > 1, score + 1e-12 * lengths, -1.0).argmax(1)
        return torch.stack([axis, self._space.middle(boxes, axis)], 1)


def _all(above: Tensor) -> Tensor:
    """Return the share above all of several lines, at least, by the shares above each, (…, lines)."""
    return (1 - (1 - above).sum(-1)).clamp(min=0)
