"""Branch-and-bound: boxes are bounded and cut until all is decided, those with the most undecided guides first."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import torch
from torch import Tensor

from neuronfair.progress import Interruption, record_interruption
from neuronfair.proof.bounds.margins import BoxDecisions, HalfSpaces, Lines, bound_share, decide_boxes, decide_records
from neuronfair.proof.bounds.space import Boxes, CutTree, can_enumerate, count_points
from neuronfair.proof.certificate import Proof
from neuronfair.proof.problem import Problem, enumerated_records, unread
from neuronfair.proof.state import (
    DRAWN,
    UNDECIDED,
    BoxQueue,
    Guides,
    GuideSegments,
    GuideSource,
    ProofState,
    boxes_in,
    certified_boxes,
    certified_columns,
    certified_shares,
    enumerated_columns,
    shares_of,
    stacked,
    undecided_columns,
    waiting_columns,
)
from neuronfair.scale.tasks import Threads, threads

BOXES_PER_STEP = {"cpu": 4_096, "cuda": 1 << 17}  # boxes that are cut at once
BOXES_OF_FIRST_STEP = 256  # before it is known how long a step takes
LINE_NUMBERS_PER_STEP = {"cpu": 1 << 22, "cuda": 1 << 29}  # numbers of the lines of all boxes that are cut at once
MAX_ENUMERATED = 512  # combinations of places up to which the records of a box are enumerated
MIN_BOUNDED_SHARE = 2.0**-24  # of all records: smaller boxes without guides are not bounded before they are taken
MAX_CUT_OFF = 0.5  # how much of the half that holds all guides of a box is cut off with the other half
MIN_COUNTED_SHARE = 0.02  # the share of a box from which on a half-space is counted
STEEPNESS_WEIGHT = 0.05  # how much steepness counts beside looseness when an axis is chosen to be cut
COST_EXPONENT = 0.1  # by which power of the time the undecided records go down, about
TRIAL_BOXES = 128  # on which bound strategies are compared
FIRST_TRIAL_STEP, STEPS_BETWEEN_TRIALS = 4, 16  # when they are compared
MAX_INNER_NUMBERS = {"cpu": 1 << 27, "cuda": 1 << 30}  # bounds of inner layers that are kept for halves of boxes
MIN_STEP_SECONDS = 0.2  # a step may always take so long
MIN_SECONDS_BETWEEN_STATES = 10.0  # that are kept
MIN_KEEPING_INTERVALS = 20  # times as long as it took to keep a state, until the next: a twentieth of the time at most
MAX_UNDECIDED_DRAWN = 0.5  # the share of drawn guides; below it others are drawn
MAX_DRAWING_TIME = 0.05  # the share of the time that is spent on drawing
Keep = Callable[[ProofState], Path | None]  # keeps a state, and may return a folder for pieces of it


@dataclass(frozen=True)
class ProofProgress:
    """How far a proof is: shares of all records of the region, about, and of the rows of the data set."""

    fair: float
    discriminatory: float
    boxes: int
    seconds: float
    rows: float | None = None  # the share that is decided; None without rows

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
    state: ProofState | None = None,
    keep: Keep | None = None,
    guides: GuideSource | None = None,
) -> Proof:
    """Prove as much as can be proved about a region in so many seconds.

    Boxes with many undecided `guides` come first; without guides, those with the largest undecided volume. `keep`
    receives the state every few seconds, less often the longer that takes. A proof resumes from a `state`, whose
    seconds count. Ctrl-C ends the proof with what is proved.
    """
    with threads(problem.device) as workers:
        search = BranchAndBound(problem, state, workers, guides)
        with record_interruption(absorb=True) as interruption:
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
        search.adapt_batch(search.seconds - before, longest or seconds / 20)
        if progress:
            progress(search.progress())
        if keep and search.seconds - kept > max(MIN_SECONDS_BETWEEN_STATES, MIN_KEEPING_INTERVALS * took):
            start = monotonic()
            keep(search.state())
            took = monotonic() - start
            kept = search.seconds + took


def proof_of(problem: Problem, state: ProofState, *, interrupted: bool) -> Proof:
    """Return what is proved in a state."""
    boxes = certified_boxes(problem, (state.done, state.undecided))
    proved = sum(boxes.fair), sum(boxes.discriminatory)
    return Proof(problem.count, *proved, state.boxes, state.seconds, boxes, interrupted, state)


class BatchSize:
    """How many boxes are taken at once."""

    def __init__(self, most: int) -> None:
        """Begin with few boxes: it is not known how long they take."""
        self._most, self.boxes = most, min(BOXES_OF_FIRST_STEP, most)

    def adapt(self, step: float, wanted: float) -> None:
        """Take half as many boxes if a step took longer than wanted, or twice as many if it took much less."""
        wanted = max(MIN_STEP_SECONDS, wanted)
        more = min(self._most, self.boxes * (1 + (step < wanted / 3)))
        self.boxes = max(min(16, self._most), self.boxes // 2) if step > wanted else more


class GuideKeeper:
    """The guides of a proof: `known` ones, and a source of others."""

    def __init__(
        self, problem: Problem, source: GuideSource | None, cuts: CutTree, columns: Mapping[str, Tensor]
    ) -> None:
        """Continue with guides that lie in the leaves of a tree of cuts."""
        self.known, self._problem, self._source, self._cuts = Guides(columns), problem, source, cuts
        self.drawing_seconds = 0.0

    @property
    def lead(self) -> bool:
        """Whether boxes with guides come first."""
        return self._source is not None and self._source.leads

    def weights(self, columns: Mapping[str, Tensor]) -> Tensor | float:
        """Return the weight of the undecided guides of each box."""
        return self.known.weights(GuideSegments.of(columns)) if self.lead else 0.0

    def nearer(self, boxes: Boxes, axis: Tensor, last: Tensor, segments: GuideSegments) -> Tensor:
        """Return where to cut boxes: nearer to their guides, where all of these lie in one half."""
        owner, guide = self.known.of(segments)
        place = self.known.places[guide, axis[owner]].long()
        least = torch.full_like(last, torch.iinfo(last.dtype).max).scatter_reduce(0, owner, place, "amin")
        most = torch.full_like(last, -1).scatter_reduce(0, owner, place, "amax")
        low, high = (end.gather(1, axis[:, None])[:, 0] for end in (boxes.low, boxes.high))
        lower = torch.maximum(most, low + ((last - low) * MAX_CUT_OFF).long())
        upper = torch.minimum(least - 1, high - 1 - ((high - 1 - last) * MAX_CUT_OFF).long())
        cut = torch.where(most <= last, torch.minimum(last, lower), last)
        cut = torch.where(least > last, torch.maximum(last, upper), cut)
        return torch.where(most >= 0, cut, last)

    def evaluate(self, segments: GuideSegments, pattern: Tensor) -> None:
        """Decide the guides of boxes by the margins of each."""
        owner, guide = self.known.of(segments)
        self.known.decide(guide, *self._evaluated(self.known.places[guide], pattern[owner]))

    def settle(self, guides: Guides, finished: list[dict[str, Tensor]]) -> None:
        """Decide the guides in finished boxes."""
        done = stacked(finished)
        inside = self._cuts.find_owners(done["node"], guides.places, guides.root)
        some = ((inside >= 0) & (guides.status == UNDECIDED)).nonzero()[:, 0]
        inside = inside[some]
        fair, flips = (done[name][inside] == 1 for name in ("fair", "flips"))
        single = ((done["fair_count"][inside] >= 0) & ~fair & ~flips).nonzero()[:, 0]
        if len(single):
            fair[single], flips[single] = self._evaluated(guides.places[some[single]], done["pattern"][inside[single]])
        guides.decide(some, fair, flips)

    def are_due(self, seconds: float) -> bool:
        """Return whether most drawn guides are decided, and drawing has taken a small part of the time."""
        if self._source is None or self._source.draw is None or self.drawing_seconds > MAX_DRAWING_TIME * seconds:
            return False
        left = self.known.drawn[self.known.status == UNDECIDED].sum()
        return int(left) <= MAX_UNDECIDED_DRAWN * DRAWN[self._problem.device.type]

    def renew(self, seed: int, finished: list[dict[str, Tensor]]) -> None:
        """Replace the decided drawn guides by new ones."""
        assert self._source is not None
        known = self.known
        none = known.places[:0]
        others = Guides.at(none, self._source.drawn(seed, none))
        self.settle(others, finished)
        kept = (known.rows > 0) | (known.status == UNDECIDED)
        self.known = known.chosen(kept).added(others.chosen(others.status == UNDECIDED))

    def _evaluated(self, places: Tensor, pattern: Tensor) -> tuple[Tensor, Tensor]:
        """Return which records do not flip and which do, by the margins of each."""
        if not len(places):  # a model may refuse an empty batch
            return (none := torch.zeros(0, dtype=torch.bool, device=places.device)), none
        problem, valid = self._problem, self._problem.records.valid[pattern.long()]
        return problem.margins.decide(problem.compute_margins(places.long()), problem.slack, valid)


class BranchAndBound:
    """A proof in the making."""

    def __init__(
        self, problem: Problem, state: ProofState | None, workers: Threads, source: GuideSource | None = None
    ) -> None:
        self._threads = workers
        self.problem, self._space, self._records = problem, problem.space, problem.records
        numbers = len(problem.domain.sensitive_values) * (problem.space.features + len(problem.space.axes))
        self.batch = BatchSize(
            max(1, min(BOXES_PER_STEP[problem.device.type], LINE_NUMBERS_PER_STEP[problem.device.type] // numbers))
        )
        self._steps, self._strategy, self._keeps_inner = 0 if state is None else FIRST_TRIAL_STEP, 0, True
        state = self._beginning(source) if state is None else state
        self.boxes, self.seconds = state.boxes, state.seconds
        self._done = [dict(state.done)]
        self._proved = certified_shares(problem, state.done)
        self._cuts = CutTree(state.cuts.clone())
        self._guides = GuideKeeper(problem, source, self._cuts, {n: c.clone() for n, c in state.guides.items()})
        self._guides.settle(self._guides.known, self._done)
        segments = self._guides.known.segments_at(state.undecided["node"], self._cuts)
        columns = {**state.undecided, **segments.columns}
        self._queue = BoxQueue({name: column[:0] for name, column in columns.items()})
        self._put(columns, None)

    def _beginning(self, source: GuideSource | None) -> ProofState:
        """Return the region, cut by its rules. Records without a twin that the model can tell apart are done."""
        boxes, pattern = self._records.boxes, self._records.pattern
        empty = ~self._records.in_region[pattern].any(1)
        alone = (self._records.valid[pattern].sum(1) < 2) | unread(self.problem.domain)
        ready, rest = (empty | alone).nonzero()[:, 0], (~(empty | alone)).nonzero()[:, 0]
        columns = {**waiting_columns(boxes[rest], pattern[rest]), "node": self._records.node[rest]}
        done = certified_columns(boxes[ready], pattern[ready], torch.ones_like(ready, dtype=torch.bool))
        done["node"] = self._records.node[ready]
        nothing = torch.zeros(0, len(self._space.axes), dtype=torch.int64, device=self.problem.device)
        rows = nothing if source is None else source.rows.to(nothing)
        drawn = nothing if source is None or not len(rows) else source.drawn(len(rows), nothing)
        guides = Guides.at(rows, drawn)
        return ProofState(columns, done, self._records.cuts, guides.columns, 0, 0.0)

    @property
    def left(self) -> int:
        """How many boxes are undecided."""
        return len(self._queue)

    def step(self) -> None:
        """Take the boxes that come first, enumerate the records of small ones, and cut the others."""
        self._renew_guides()
        taken, few = self._taken()
        boxes, pattern, axis = boxes_in(taken), taken["pattern"], taken["axis"].long()
        segments = GuideSegments.of(taken)
        small, new, old = (some.nonzero()[:, 0] for some in (few, axis < 0, ~few & (axis >= 0)))
        if len(small):
            counts = enumerated_records(self.problem, boxes[small], pattern[small].long())
            self._guides.evaluate(segments[small], pattern[small])
            columns = enumerated_columns(self.problem, boxes[small], pattern[small], counts)
            self._finish({**columns, "node": segments.node[small]})
        if len(new):
            self._bound(boxes[new], pattern[new].long(), segments[new])
        if len(old):
            inner = taken["inner"][old].repeat(2, 1, 1) if "inner" in taken else None
            last = taken["last"][old].long()
            if self._guides.lead:
                last = self._guides.nearer(boxes[old], axis[old], last, segments[old])
            halves = self._space.split(boxes[old], axis[old], last)
            segments = self._guides.known.cut(segments[old], axis[old], last, self._cuts)
            self._bound_or_wait(halves, pattern[old].long().repeat(2), segments, inner)
        self._steps += 1

    def _taken(self) -> tuple[dict[str, Tensor], Tensor]:
        """Return the boxes that come first, and which of them are small; not so many small ones that it takes long."""
        bounder, taken = self.problem.bounder, self._queue.take(self.batch.boxes)
        boxes = boxes_in(taken)
        most = MAX_ENUMERATED if bounder is None else int(MAX_ENUMERATED * bounder.enumeration_factor)
        few = can_enumerate(self._space, boxes, most) & (taken["axis"] >= 0)
        later = few & (
            torch.where(few, count_points(boxes), 0).cumsum(0) > max(most, MAX_ENUMERATED * self.batch.boxes)
        )
        if bool(later.any()):
            back, taken = ({name: column[some] for name, column in taken.items()} for some in (later, ~later))
            self._queue.put({n: c for n, c in back.items() if n != "share"}, back["share"], self._guides.weights(back))
        return taken, few[~later]

    def _bound_or_wait(self, boxes: Boxes, pattern: Tensor, segments: GuideSegments, inner: Tensor | None) -> None:
        """Bound boxes; where guides lead, small boxes without any wait in the queue as they are."""
        wait = torch.zeros(len(boxes), dtype=torch.bool, device=pattern.device)
        if self._guides.lead:
            wait = (segments.count == 0) & (self._records.share(self._space, boxes, pattern) < MIN_BOUNDED_SHARE)
        now, later = (~wait).nonzero()[:, 0], wait.nonzero()[:, 0]
        if len(later):
            columns = waiting_columns(boxes[later], pattern[later]) | segments[later].columns
            self._put(columns, None if inner is None else inner[later])
        if len(now):
            self._bound(boxes[now], pattern[now], segments[now], None if inner is None else inner[now])

    def _renew_guides(self) -> None:
        """Draw guides anew where they are due, and give all boxes their segments again."""
        if not self._guides.are_due(self.seconds):
            return
        begun = time.perf_counter()
        self._guides.renew(self._steps + 1, self._done)
        if lists := self._queue.drained():
            nodes = [part["node"] for part in lists]
            segments = self._guides.known.segments_at(torch.cat(nodes), self._cuts)
            ends = torch.tensor([len(node) for node in nodes]).cumsum(0).tolist()
            for part, begin, end in zip(lists, [0, *ends], ends, strict=False):
                inner, _ = part.pop("inner", None), part.pop("share")
                self._put(part | segments[begin:end].columns, inner)
        self._guides.drawing_seconds += time.perf_counter() - begun

    def adapt_batch(self, step: float, wanted: float) -> None:
        """Adapt the number of boxes per step to how long this one took, unless it compared strategies."""
        if self._steps % STEPS_BETWEEN_TRIALS != FIRST_TRIAL_STEP + 1:
            self.batch.adapt(step, wanted)

    def progress(self) -> ProofProgress:
        """Return how far the proof is."""
        fair, flips = ((self._proved + self._queue.proved) / self.problem.whole).tolist()
        known = self._guides.known
        every = int(known.rows.sum())
        rows = 1 - known.rows_with(UNDECIDED) / every if every else None
        return ProofProgress(fair, flips, self.boxes, self.seconds, rows)

    def state(self) -> ProofState:
        """Return where the proof stands."""
        self._done = [stacked(self._done)]
        boxes = {name: column for name, column in self._queue.full_box().items() if name not in ("start", "count")}
        guides = {name: column.clone() for name, column in self._guides.known.columns.items()}
        return ProofState(boxes, self._done[0], self._cuts.nodes.clone(), guides, self.boxes, self.seconds)

    def _finish(self, columns: dict[str, Tensor]) -> None:
        self._proved = self._proved + certified_shares(self.problem, columns)
        self._done.append(columns)

    def _put(self, columns: Mapping[str, Tensor], inner: Tensor | None) -> None:
        share = shares_of(self.problem, columns)
        if inner is not None and self._keeps_inner:  # once there are too many, no more are kept
            numbers = (self.left + len(inner)) * inner.shape[1:].numel()
            self._keeps_inner = numbers < MAX_INNER_NUMBERS[self.problem.device.type]
            columns = {**columns, "inner": inner} if self._keeps_inner else columns
        self._queue.put(columns, share, self._guides.weights(columns))

    def _bound(self, boxes: Boxes, pattern: Tensor, segments: GuideSegments, inner: Tensor | None = None) -> None:
        """Bound boxes, each thread some of them: those that are decided are done, the others go back into the queue."""
        self.boxes += len(boxes)
        bounder = self.problem.bounder
        if bounder is None:  # only to be cut until the records can be enumerated
            longest = (boxes.high - boxes.low).argmax(1)
            columns = waiting_columns(boxes, pattern, longest, self._space.find_middle(boxes, longest))
            self._put(columns | segments.columns, None)
            return
        if bounder.strategy_count > 1 and self._steps % STEPS_BETWEEN_TRIALS == FIRST_TRIAL_STEP:
            self._strategy = self._best_strategy(boxes, pattern, inner)
        size = -(-len(boxes) // self._threads.count)
        parts = [slice(i, i + size) for i in range(0, len(boxes), size)]
        work = [(boxes[p], pattern[p], segments[p], None if inner is None else inner[p]) for p in parts]
        for (some, kind, mine, _), found in zip(work, self._threads.map(self._bounded, work), strict=True):
            self._guides.known.decide(found.guides, found.guides_fair, found.guides_flip)
            whole = found.whole.nonzero()[:, 0]
            columns = certified_columns(some[whole], kind[whole], found.fair[whole])
            self._finish({**columns, "node": mine.node[whole]})
            left = self._guides.known.undecided(mine[(~found.whole).nonzero()[:, 0]])
            self._put(found.rest | left.columns, found.inner)

    def _bounded(self, part: tuple[Boxes, Tensor, GuideSegments, Tensor | None]) -> _Bounded:
        """Return what lines say of some boxes and of their guides."""
        bounder, margins = self.problem.bounder, self.problem.margins
        assert bounder is not None
        boxes, pattern, segments, inner = part
        valid = self._records.valid[pattern]
        lines = bounder.find_lines(boxes, inner, self._strategy)
        signs = decide_boxes(margins, self._space, boxes, lines, valid)
        fair = signs.fair if lines.same_margins is None else signs.fair | lines.same_margins
        whole = fair | signs.unfair
        rest = (~whole).nonzero()[:, 0]
        alike, flips = self._counted(boxes[rest], signs, rest)
        columns = undecided_columns(boxes[rest], pattern[rest], alike, flips)
        cut = self._to_cut(boxes, lines, signs)[rest].int()
        columns["axis"], columns["last"] = cut[:, 0], cut[:, 1]
        owner, guide = self._guides.known.of(segments)
        found = decide_records(margins, self._space, lines, owner, self._guides.known.places[guide], valid)
        guides = guide, found[0] | fair[owner], (found[1] | signs.unfair[owner]) & ~fair[owner]
        return _Bounded(whole, fair, columns, None if lines.inner is None else lines.inner[rest], *guides)

    def _best_strategy(self, boxes: Boxes, pattern: Tensor, inner: Tensor | None) -> int:
        """Return the bound strategy that leaves the fewest records of some boxes undecided, for what it costs."""
        bounder = self.problem.bounder
        assert bounder is not None
        some = slice(None, None, max(1, len(boxes) // TRIAL_BOXES))
        boxes, pattern, inner = boxes[some], pattern[some], None if inner is None else inner[some]
        share = self._records.share(self._space, boxes, pattern)
        scores = []
        for strategy in range(bounder.strategy_count):
            lines = bounder.find_lines(boxes, inner, strategy)
            signs = decide_boxes(self.problem.margins, self._space, boxes, lines, self._records.valid[pattern])
            proved = self._alike(signs.fair_spaces.estimates) + _all(signs.flip_spaces.estimates)
            proved = torch.where(signs.fair | signs.unfair, 1.0, proved.clamp(max=1.0))
            scores.append(float(((1 - proved) * share).sum()) * bounder.estimate_cost(strategy) ** COST_EXPONENT)
        return min(range(bounder.strategy_count), key=scores.__getitem__)

    def _alike(self, above: Tensor) -> Tensor:
        """Return the share that does not flip, by the shares above the common lines of signed margins, (n, lines)."""
        classes = self.problem.margins.classes.to(above.device)
        return _all(above[:, classes]).sum(-1) if len(classes) else above[:, 0]

    def _counted(self, boxes: Boxes, signs: BoxDecisions, rest: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shares of undecided boxes that half-spaces prove fair and discriminatory, at least."""
        worth = signs.fair_spaces.estimates[rest] > MIN_COUNTED_SHARE
        alike = self._alike(self._above(boxes, signs.fair_spaces, rest, worth)).clamp(max=1.0)
        likely = _all(signs.flip_spaces.estimates[rest]) > MIN_COUNTED_SHARE
        likely = likely[:, None].expand(-1, signs.flip_spaces.offsets.shape[1])
        flips = _all(self._above(boxes, signs.flip_spaces, rest, likely))
        return alike, torch.minimum(flips, 1.0 - alike)

    def _above(self, boxes: Boxes, halves: HalfSpaces, rest: Tensor, worth: Tensor) -> Tensor:
        """Return the shares of boxes above lines, where that is worth counting: (n, lines)."""
        result = torch.zeros(worth.shape, dtype=torch.float64, device=worth.device)
        box, line = worth.nonzero(as_tuple=True)
        if len(box):
            slopes, at = halves.slopes[rest[box], line], halves.offsets[rest[box], line]
            result[box, line] = bound_share(self._space, boxes[box], slopes, at)
        return result

    def _to_cut(self, boxes: Boxes, lines: Lines, signs: BoxDecisions) -> Tensor:
        """Return the axis on which each box is cut, where its lines are loosest, and the last place below the cut."""
        if lines.best_cut is not None:
            return lines.best_cut
        low, high, reach = lines.low_slope.flatten(1, 2), lines.high_slope.flatten(1, 2), self._space.find_ranges
        score = reach(boxes, high - low) + STEEPNESS_WEIGHT * (reach(boxes, low) + reach(boxes, high))
        undecided = signs.undecided
        if lines.low_slope.shape[1] < undecided.shape[1]:
            undecided = undecided.any(1, keepdim=True)
        score = (score * undecided.expand(lines.low_slope.shape[:3]).flatten(1, 2)[..., None]).sum(1)
        lengths = boxes.high - boxes.low + 1
        axis = torch.where(lengths > 1, score + 1e-12 * lengths, -1.0).argmax(1)
        return torch.stack([axis, self._space.find_middle(boxes, axis)], 1)


@dataclass(frozen=True)
class _Bounded:
    """What is found of the boxes of one thread."""

    whole: Tensor  # which are decided
    fair: Tensor
    rest: dict[str, Tensor]  # the columns of the others
    inner: Tensor | None  # and bounds of their inner layers
    guides: Tensor
    guides_fair: Tensor
    guides_flip: Tensor


def _all(above: Tensor) -> Tensor:
    """Return the share above all of several lines, at least, by the shares above each, (…, lines)."""
    return (1 - (1 - above).sum(-1)).clamp(min=0)
