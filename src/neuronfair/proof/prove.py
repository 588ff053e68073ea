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
from neuronfair.proof.problem import ProofProblem, enumerate_records, ignores_sensitive
from neuronfair.proof.state import (
    DRAWN_GUIDES,
    UNDECIDED,
    BoxQueue,
    Guides,
    GuideSegments,
    GuideSource,
    ProofState,
    build_certified_boxes,
    find_shares,
    get_boxes,
    make_certified_columns,
    make_enumerated_columns,
    make_undecided_columns,
    make_waiting_columns,
    stack_columns,
    sum_proved,
)
from neuronfair.scale.tasks import Threads, threads

BOXES_PER_STEP = {"cpu": 4_096, "cuda": 1 << 17}  # boxes that are cut at once
BOXES_OF_FIRST_STEP = 256  # before it is known how long a step takes
LINE_NUMBERS_PER_STEP = {"cpu": 1 << 22, "cuda": 1 << 29}  # numbers of the lines of all boxes that are cut at once
MAX_ENUMERATED = 512  # combinations of points up to which the records of a box are enumerated
MIN_BOUNDED_SHARE = 2.0**-24  # of all records: smaller boxes without guides are not bounded before they are taken
MAX_CUT_OFF = 0.5  # how much of the half that holds all guides of a box is cut off with the other half
MIN_COUNTED_SHARE = 0.02  # the share of a box from which on a half-space is counted
STEEPNESS_WEIGHT = 0.05  # how much steepness counts beside looseness when an axis is chosen to be cut
COST_EXPONENT = 0.1  # by which power of the time the undecided records go down, about
TRIAL_BOXES = 128  # boxes on which bound strategies are compared
FIRST_TRIAL_STEP, STEPS_BETWEEN_TRIALS = 4, 16  # when they are compared
MAX_INNER_NUMBERS = {"cpu": 1 << 27, "cuda": 1 << 30}  # bounds of inner layers that are kept for halves of boxes
MIN_STEP_SECONDS = 0.2  # a step may always take so long
MIN_SECONDS_BETWEEN_STATES = 10.0  # seconds between two states that are kept
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
    problem: ProofProblem,
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
    return build_proof(problem, last, interrupted=interruption.requested)


def advance(
    search: BranchAndBound,
    seconds: float,
    *,
    interruption: Interruption,
    progress: Callable[[ProofProgress], None] | None = None,
    keep: Keep | None = None,
    enough: float = math.inf,
    longest: float | None = None,
) -> None:
    """Go on with a proof until nothing, or so many boxes, are undecided, so many seconds are over, or it is to stop.

    No step shall take longer than `longest`, or a small part of the seconds.
    """
    start = time.perf_counter() - search.seconds
    last_kept, keeping_seconds = search.seconds, 0.0
    while 0 < search.undecided_count < enough and search.seconds < seconds and not interruption.requested:
        seconds_before = search.seconds
        search.step()
        search.seconds = time.perf_counter() - start
        search.adapt_batch(search.seconds - seconds_before, longest or seconds / 20)
        if progress:
            progress(search.progress())
        interval = max(MIN_SECONDS_BETWEEN_STATES, MIN_KEEPING_INTERVALS * keeping_seconds)
        if keep and search.seconds - last_kept > interval:
            keeping_start = monotonic()
            keep(search.state())
            keeping_seconds = monotonic() - keeping_start
            last_kept = search.seconds + keeping_seconds


def build_proof(problem: ProofProblem, state: ProofState, *, interrupted: bool) -> Proof:
    """Return what is proved in a state."""
    boxes = build_certified_boxes(problem, (state.finished, state.undecided))
    proved = sum(boxes.fair), sum(boxes.discriminatory)
    return Proof(problem.count, *proved, state.boxes, state.seconds, boxes, interrupted, state)


class BatchSize:
    """How many boxes are taken at once."""

    def __init__(self, max_boxes: int) -> None:
        """Begin with few boxes: it is not known how long they take."""
        self._max_boxes, self.boxes = max_boxes, min(BOXES_OF_FIRST_STEP, max_boxes)

    def adapt(self, step_seconds: float, target_seconds: float) -> None:
        """Take half as many boxes if a step took longer than wanted, or twice as many if it took much less."""
        target_seconds = max(MIN_STEP_SECONDS, target_seconds)
        grown = min(self._max_boxes, self.boxes * (1 + (step_seconds < target_seconds / 3)))
        self.boxes = max(min(16, self._max_boxes), self.boxes // 2) if step_seconds > target_seconds else grown


class GuideKeeper:
    """The guides of a proof: those in `columns`, and a source of others."""

    def __init__(
        self, problem: ProofProblem, source: GuideSource | None, cuts: CutTree, columns: Mapping[str, Tensor]
    ) -> None:
        """Continue with guides that lie in the leaves of a tree of cuts."""
        self.guides, self._problem, self._source, self._cuts = Guides(columns), problem, source, cuts
        self.drawing_seconds = 0.0

    @property
    def leads(self) -> bool:
        """Whether boxes with guides come first."""
        return self._source is not None and self._source.leads

    def sum_weights(self, columns: Mapping[str, Tensor]) -> Tensor | float:
        """Return the weight of the undecided guides of each box."""
        return self.guides.sum_weights(GuideSegments.of(columns)) if self.leads else 0.0

    def choose_cuts(self, boxes: Boxes, axis: Tensor, last: Tensor, segments: GuideSegments) -> Tensor:
        """Return where to cut boxes: nearer to their guides, where all of these lie in one half."""
        owner, guide = self.guides.of(segments)
        position = self.guides.points[guide, axis[owner]].long()
        first_guide = torch.full_like(last, torch.iinfo(last.dtype).max).scatter_reduce(0, owner, position, "amin")
        last_guide = torch.full_like(last, -1).scatter_reduce(0, owner, position, "amax")
        low, high = (end.gather(1, axis[:, None])[:, 0] for end in (boxes.low, boxes.high))
        lower = torch.maximum(last_guide, low + ((last - low) * MAX_CUT_OFF).long())
        upper = torch.minimum(first_guide - 1, high - 1 - ((high - 1 - last) * MAX_CUT_OFF).long())
        cut = torch.where(last_guide <= last, torch.minimum(last, lower), last)
        cut = torch.where(first_guide > last, torch.maximum(last, upper), cut)
        return torch.where(last_guide >= 0, cut, last)

    def evaluate(self, segments: GuideSegments, pattern: Tensor) -> None:
        """Decide the guides of boxes by the margins of each."""
        owner, guide = self.guides.of(segments)
        self.guides.decide(guide, *self._decide_points(self.guides.points[guide], pattern[owner]))

    def settle(self, guides: Guides, finished: list[dict[str, Tensor]]) -> None:
        """Decide the guides in finished boxes."""
        columns = stack_columns(finished)
        owner = self._cuts.find_owners(columns["node"], guides.points, guides.root)
        indices = ((owner >= 0) & (guides.status == UNDECIDED)).nonzero()[:, 0]
        owner = owner[indices]
        fair, flips = (columns[name][owner] == 1 for name in ("fair", "flips"))
        single = ((columns["fair_count"][owner] >= 0) & ~fair & ~flips).nonzero()[:, 0]
        if len(single):
            points, pattern = guides.points[indices[single]], columns["pattern"][owner[single]]
            fair[single], flips[single] = self._decide_points(points, pattern)
        guides.decide(indices, fair, flips)

    def are_due(self, seconds: float) -> bool:
        """Return whether most drawn guides are decided, and drawing has taken a small part of the time."""
        if self._source is None or self._source.draw is None or self.drawing_seconds > MAX_DRAWING_TIME * seconds:
            return False
        undecided = self.guides.drawn_counts[self.guides.status == UNDECIDED].sum()
        return int(undecided) <= MAX_UNDECIDED_DRAWN * DRAWN_GUIDES[self._problem.device.type]

    def renew(self, seed: int, finished: list[dict[str, Tensor]]) -> None:
        """Replace the decided drawn guides by new ones."""
        assert self._source is not None
        old = self.guides
        no_points = old.points[:0]
        new = Guides.from_points(no_points, self._source.draw_points(seed, no_points))
        self.settle(new, finished)
        is_kept = (old.row_counts > 0) | (old.status == UNDECIDED)
        self.guides = old.select(is_kept).merge(new.select(new.status == UNDECIDED))

    def _decide_points(self, points: Tensor, pattern: Tensor) -> tuple[Tensor, Tensor]:
        """Return which records do not flip and which do, by the margins of each."""
        if not len(points):  # a model may refuse an empty batch
            return (nothing := torch.zeros(0, dtype=torch.bool, device=points.device)), nothing
        problem, valid = self._problem, self._problem.valid_records.valid[pattern.long()]
        return problem.margins.decide(problem.compute_margins(points.long()), problem.slack, valid)


class BranchAndBound:
    """A proof in the making."""

    def __init__(
        self, problem: ProofProblem, state: ProofState | None, workers: Threads, source: GuideSource | None = None
    ) -> None:
        self._threads = workers
        self.problem, self._space, self._records = problem, problem.space, problem.valid_records
        numbers = len(problem.domain.sensitive_values) * (problem.space.features + len(problem.space.axes))
        self.batch = BatchSize(
            max(1, min(BOXES_PER_STEP[problem.device.type], LINE_NUMBERS_PER_STEP[problem.device.type] // numbers))
        )
        self._steps, self._strategy, self._keeps_inner = 0 if state is None else FIRST_TRIAL_STEP, 0, True
        state = self._begin(source) if state is None else state
        self.boxes, self.seconds = state.boxes, state.seconds
        self._finished = [dict(state.finished)]
        self._proved_shares = sum_proved(problem, state.finished)
        self._cuts = CutTree(state.cuts.clone())
        self._keeper = GuideKeeper(problem, source, self._cuts, {n: c.clone() for n, c in state.guides.items()})
        self._keeper.settle(self._keeper.guides, self._finished)
        segments = self._keeper.guides.find_segments(state.undecided["node"], self._cuts)
        columns = {**state.undecided, **segments.columns}
        self._queue = BoxQueue({name: column[:0] for name, column in columns.items()})
        self._put(columns, None)

    def _begin(self, source: GuideSource | None) -> ProofState:
        """Return the region, cut by its rules. Records without a twin that the model can tell apart are done."""
        boxes, pattern = self._records.boxes, self._records.pattern
        empty = ~self._records.in_region[pattern].any(1)
        without_twin = (self._records.valid[pattern].sum(1) < 2) | ignores_sensitive(self.problem.domain)
        decided, undecided = (mask.nonzero()[:, 0] for mask in (empty | without_twin, ~(empty | without_twin)))
        columns = make_waiting_columns(boxes[undecided], pattern[undecided])
        columns["node"] = self._records.node[undecided]
        finished = make_certified_columns(boxes[decided], pattern[decided], torch.ones_like(decided).bool())
        finished["node"] = self._records.node[decided]
        no_points = torch.zeros(0, len(self._space.axes), dtype=torch.int64, device=self.problem.device)
        row_points = no_points if source is None else source.rows.to(no_points)
        drawn_points = source.draw_points(len(row_points), no_points) if source and len(row_points) else no_points
        guides = Guides.from_points(row_points, drawn_points)
        return ProofState(columns, finished, self._records.cuts, guides.columns, 0, 0.0)

    @property
    def undecided_count(self) -> int:
        """How many boxes are undecided."""
        return len(self._queue)

    def step(self) -> None:
        """Take the boxes that come first, enumerate the records of small ones, and cut the others."""
        self._renew_guides()
        columns, is_small = self._take_boxes()
        boxes, pattern, axis = get_boxes(columns), columns["pattern"], columns["axis"].long()
        segments = GuideSegments.of(columns)
        small, new, bounded = (m.nonzero()[:, 0] for m in (is_small, axis < 0, ~is_small & (axis >= 0)))
        if len(small):
            counts = enumerate_records(self.problem, boxes[small], pattern[small].long())
            self._keeper.evaluate(segments[small], pattern[small])
            enumerated = make_enumerated_columns(self.problem, boxes[small], pattern[small], counts)
            self._finish({**enumerated, "node": segments.node[small]})
        if len(new):
            self._bound(boxes[new], pattern[new].long(), segments[new])
        if len(bounded):
            inner = columns["inner"][bounded].repeat(2, 1, 1) if "inner" in columns else None
            last = columns["last"][bounded].long()
            if self._keeper.leads:
                last = self._keeper.choose_cuts(boxes[bounded], axis[bounded], last, segments[bounded])
            halves = self._space.split(boxes[bounded], axis[bounded], last)
            segments = self._keeper.guides.cut(segments[bounded], axis[bounded], last, self._cuts)
            self._bound_or_wait(halves, pattern[bounded].long().repeat(2), segments, inner)
        self._steps += 1

    def _take_boxes(self) -> tuple[dict[str, Tensor], Tensor]:
        """Return the boxes that come first, and which of them are small; not so many small ones that it takes long."""
        bounder, columns = self.problem.bounder, self._queue.take(self.batch.boxes)
        boxes = get_boxes(columns)
        max_points = MAX_ENUMERATED if bounder is None else int(MAX_ENUMERATED * bounder.enumeration_factor)
        is_small = can_enumerate(self._space, boxes, max_points) & (columns["axis"] >= 0)
        points_before = torch.where(is_small, count_points(boxes), 0).cumsum(0)
        later = is_small & (points_before > max(max_points, MAX_ENUMERATED * self.batch.boxes))
        if bool(later.any()):
            returned, columns = ({name: column[mask] for name, column in columns.items()} for mask in (later, ~later))
            self._queue.put(returned, returned.pop("share"), self._keeper.sum_weights(returned))
        return columns, is_small[~later]

    def _bound_or_wait(self, boxes: Boxes, pattern: Tensor, segments: GuideSegments, inner: Tensor | None) -> None:
        """Bound boxes; where guides lead, small boxes without any wait in the queue as they are."""
        waits = torch.zeros(len(boxes), dtype=torch.bool, device=pattern.device)
        if self._keeper.leads:
            waits = (segments.count == 0) & (self._records.share(self._space, boxes, pattern) < MIN_BOUNDED_SHARE)
        bounded, waiting = (~waits).nonzero()[:, 0], waits.nonzero()[:, 0]
        if len(waiting):
            columns = make_waiting_columns(boxes[waiting], pattern[waiting]) | segments[waiting].columns
            self._put(columns, None if inner is None else inner[waiting])
        if len(bounded):
            self._bound(boxes[bounded], pattern[bounded], segments[bounded], None if inner is None else inner[bounded])

    def _renew_guides(self) -> None:
        """Draw guides anew where they are due, and give all boxes their segments again."""
        if not self._keeper.are_due(self.seconds):
            return
        start = time.perf_counter()
        self._keeper.renew(self._steps + 1, self._finished)
        if lists := self._queue.drain():
            nodes = [part["node"] for part in lists]
            segments = self._keeper.guides.find_segments(torch.cat(nodes), self._cuts)
            ends = torch.tensor([len(node) for node in nodes]).cumsum(0).tolist()
            for part, first, last in zip(lists, [0, *ends], ends, strict=False):
                inner, _ = part.pop("inner", None), part.pop("share")
                self._put(part | segments[first:last].columns, inner)
        self._keeper.drawing_seconds += time.perf_counter() - start

    def adapt_batch(self, step_seconds: float, target_seconds: float) -> None:
        """Adapt the number of boxes per step to how long this one took, unless it compared strategies."""
        if self._steps % STEPS_BETWEEN_TRIALS != FIRST_TRIAL_STEP + 1:
            self.batch.adapt(step_seconds, target_seconds)

    def progress(self) -> ProofProgress:
        """Return how far the proof is."""
        fair, flips = ((self._proved_shares + self._queue.proved_shares) / self.problem.total_share).tolist()
        guides = self._keeper.guides
        row_count = int(guides.row_counts.sum())
        decided_rows = 1 - guides.count_rows(UNDECIDED) / row_count if row_count else None
        return ProofProgress(fair, flips, self.boxes, self.seconds, decided_rows)

    def state(self) -> ProofState:
        """Return where the proof stands."""
        self._finished = [stack_columns(self._finished)]
        columns = self._queue.collect_columns()
        boxes = {name: column for name, column in columns.items() if name not in ("start", "count")}
        guides = {name: column.clone() for name, column in self._keeper.guides.columns.items()}
        return ProofState(boxes, self._finished[0], self._cuts.nodes.clone(), guides, self.boxes, self.seconds)

    def _finish(self, columns: dict[str, Tensor]) -> None:
        self._proved_shares = self._proved_shares + sum_proved(self.problem, columns)
        self._finished.append(columns)

    def _put(self, columns: Mapping[str, Tensor], inner: Tensor | None) -> None:
        share = find_shares(self.problem, columns)
        if inner is not None and self._keeps_inner:  # once there are too many, no more are kept
            numbers = (self.undecided_count + len(inner)) * inner.shape[1:].numel()
            self._keeps_inner = numbers < MAX_INNER_NUMBERS[self.problem.device.type]
            columns = {**columns, "inner": inner} if self._keeps_inner else columns
        self._queue.put(columns, share, self._keeper.sum_weights(columns))

    def _bound(self, boxes: Boxes, pattern: Tensor, segments: GuideSegments, inner: Tensor | None = None) -> None:
        """Bound boxes, each thread some of them: those that are decided are done, the others go back into the queue."""
        self.boxes += len(boxes)
        bounder = self.problem.bounder
        if bounder is None:  # only to be cut until the records can be enumerated
            longest = (boxes.high - boxes.low).argmax(1)
            columns = make_waiting_columns(boxes, pattern, longest, self._space.find_middle(boxes, longest))
            self._put(columns | segments.columns, None)
            return
        if bounder.strategy_count > 1 and self._steps % STEPS_BETWEEN_TRIALS == FIRST_TRIAL_STEP:
            self._strategy = self._best_strategy(boxes, pattern, inner)
        size = -(-len(boxes) // self._threads.count)
        parts = [slice(i, i + size) for i in range(0, len(boxes), size)]
        work = [(boxes[p], pattern[p], segments[p], None if inner is None else inner[p]) for p in parts]
        results = self._threads.map(self._bound_part, work)
        for (part_boxes, part_pattern, part_segments, _), result in zip(work, results, strict=True):
            self._keeper.guides.decide(result.guides, result.guides_fair, result.guides_flip)
            decided = result.decided.nonzero()[:, 0]
            columns = make_certified_columns(part_boxes[decided], part_pattern[decided], result.fair[decided])
            self._finish({**columns, "node": part_segments.node[decided]})
            undecided = self._keeper.guides.undecided(part_segments[(~result.decided).nonzero()[:, 0]])
            self._put(result.columns | undecided.columns, result.inner)

    def _bound_part(self, part: tuple[Boxes, Tensor, GuideSegments, Tensor | None]) -> _BoundedBoxes:
        """Return what lines say of some boxes and of their guides."""
        bounder, margins = self.problem.bounder, self.problem.margins
        assert bounder is not None
        boxes, pattern, segments, inner = part
        valid = self._records.valid[pattern]
        lines = bounder.find_lines(boxes, inner, self._strategy)
        decisions = decide_boxes(margins, self._space, boxes, lines, valid)
        fair = decisions.fair if lines.same_margins is None else decisions.fair | lines.same_margins
        decided = fair | decisions.unfair
        undecided = (~decided).nonzero()[:, 0]
        fair_share, flip_share = self._bound_shares(boxes[undecided], decisions, undecided)
        columns = make_undecided_columns(boxes[undecided], pattern[undecided], fair_share, flip_share)
        cut = self._choose_cuts(boxes, lines, decisions)[undecided].int()
        columns["axis"], columns["last"] = cut[:, 0], cut[:, 1]
        owner, guide = self._keeper.guides.of(segments)
        guide_decisions = decide_records(margins, self._space, lines, owner, self._keeper.guides.points[guide], valid)
        guides = guide, guide_decisions[0] | fair[owner], (guide_decisions[1] | decisions.unfair[owner]) & ~fair[owner]
        return _BoundedBoxes(decided, fair, columns, None if lines.inner is None else lines.inner[undecided], *guides)

    def _best_strategy(self, boxes: Boxes, pattern: Tensor, inner: Tensor | None) -> int:
        """Return the bound strategy that leaves the fewest records of some boxes undecided, for what it costs."""
        bounder = self.problem.bounder
        assert bounder is not None
        sample = slice(None, None, max(1, len(boxes) // TRIAL_BOXES))
        boxes, pattern, inner = boxes[sample], pattern[sample], None if inner is None else inner[sample]
        share = self._records.share(self._space, boxes, pattern)
        scores = []
        for strategy in range(bounder.strategy_count):
            lines = bounder.find_lines(boxes, inner, strategy)
            decisions = decide_boxes(self.problem.margins, self._space, boxes, lines, self._records.valid[pattern])
            fair_share = self._combine_classes(decisions.fair_spaces.estimates)
            proved = fair_share + _intersect(decisions.flip_spaces.estimates)
            proved = torch.where(decisions.fair | decisions.unfair, 1.0, proved.clamp(max=1.0))
            scores.append(float(((1 - proved) * share).sum()) * bounder.estimate_cost(strategy) ** COST_EXPONENT)
        return min(range(bounder.strategy_count), key=scores.__getitem__)

    def _combine_classes(self, shares: Tensor) -> Tensor:
        """Return the share that does not flip, by the shares above the common lines of signed margins, (n, lines)."""
        classes = self.problem.margins.classes.to(shares.device)
        return _intersect(shares[:, classes]).sum(-1) if len(classes) else shares[:, 0]

    def _bound_shares(self, boxes: Boxes, decisions: BoxDecisions, undecided: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shares of undecided boxes that half-spaces prove fair and discriminatory, at least."""
        is_worth = decisions.fair_spaces.estimates[undecided] > MIN_COUNTED_SHARE
        above = self._count_above(boxes, decisions.fair_spaces, undecided, is_worth)
        fair_share = self._combine_classes(above).clamp(max=1.0)
        is_likely = _intersect(decisions.flip_spaces.estimates[undecided]) > MIN_COUNTED_SHARE
        is_likely = is_likely[:, None].expand(-1, decisions.flip_spaces.offsets.shape[1])
        flip_share = _intersect(self._count_above(boxes, decisions.flip_spaces, undecided, is_likely))
        return fair_share, torch.minimum(flip_share, 1.0 - fair_share)

    def _count_above(self, boxes: Boxes, half_spaces: HalfSpaces, undecided: Tensor, is_worth: Tensor) -> Tensor:
        """Return the shares of boxes above lines, where that is worth counting: (n, lines)."""
        shares = torch.zeros(is_worth.shape, dtype=torch.float64, device=is_worth.device)
        box, line = is_worth.nonzero(as_tuple=True)
        if len(box):
            slopes, offsets = half_spaces.slopes[undecided[box], line], half_spaces.offsets[undecided[box], line]
            shares[box, line] = bound_share(self._space, boxes[box], slopes, offsets)
        return shares

    def _choose_cuts(self, boxes: Boxes, lines: Lines, decisions: BoxDecisions) -> Tensor:
        """Return the axis on which each box is cut, where its lines are loosest, and the last position below."""
        if lines.best_cut is not None:
            return lines.best_cut
        low, high, find_ranges = lines.low_slope.flatten(1, 2), lines.high_slope.flatten(1, 2), self._space.find_ranges
        score = find_ranges(boxes, high - low) + STEEPNESS_WEIGHT * (find_ranges(boxes, low) + find_ranges(boxes, high))
        undecided = decisions.undecided
        if lines.low_slope.shape[1] < undecided.shape[1]:
            undecided = undecided.any(1, keepdim=True)
        score = (score * undecided.expand(lines.low_slope.shape[:3]).flatten(1, 2)[..., None]).sum(1)
        lengths = boxes.high - boxes.low + 1
        axis = torch.where(lengths > 1, score + 1e-12 * lengths, -1.0).argmax(1)
        return torch.stack([axis, self._space.find_middle(boxes, axis)], 1)


@dataclass(frozen=True)
class _BoundedBoxes:
    """What is found of the boxes of one thread."""

    decided: Tensor  # which boxes are decided
    fair: Tensor
    columns: dict[str, Tensor]  # the columns of the boxes that are not decided
    inner: Tensor | None  # bounds of the inner layers of these boxes
    guides: Tensor
    guides_fair: Tensor
    guides_flip: Tensor


def _intersect(shares: Tensor) -> Tensor:
    """Return the share above all of several lines, at least, by the shares above each, (…, lines)."""
    return (1 - (1 - shares).sum(-1)).clamp(min=0)
