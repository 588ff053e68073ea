"""The state of a proof: its undecided boxes in the order in which they are taken, its guides, and what is proved.

Guides show where records are: boxes are taken by the undecided guides that they hold. A guide is a point of the region
with the number of rows of the data set that stand there, and of records drawn from the population model. The guides of
a box are a segment of one order of all guides; where the box is cut, or some of its guides are decided, its segment is
parted in two. So no guide is ever searched for among the boxes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.errors import RunError
from neuronfair.proof.bounds.space import LEAF, MAX_COUNTED_CODES, Boxes, CutTree, count_varied_codes
from neuronfair.proof.certificate import CertifiedBoxes
from neuronfair.proof.problem import ProofProblem

UNDECIDED, FAIR, DEPENDS = 0, 1, 2  # what is proved of a guide
DRAWN_GUIDES = {"cpu": 20_000, "cuda": 300_000}  # guides that are drawn at once
DRAWN_WEIGHT = 1 / 64  # of a drawn record, where a row of the data set weighs 1


@dataclass(frozen=True)
class GuideSource:
    """Where guides come from: points of the rows of the data set, and a function that draws so many others."""

    rows: Tensor  # (n, axes)
    draw: Callable[[int, int], Tensor] | None = None  # how many, and the seed
    leads: bool = True  # whether boxes with guides come first; else those with the largest undecided volume

    def draw_points(self, seed: int, points: Tensor) -> Tensor:
        """Return points of drawn records on the device of `points`, (n, axes); none without a function."""
        return points[:0] if self.draw is None else self.draw(DRAWN_GUIDES[points.device.type], seed).to(points.device)


@dataclass(frozen=True)
class GuideSegments:
    """Boxes of a proof: their leaves in the tree of cuts, and their segments of guides."""

    node: Tensor  # (n,)
    start: Tensor  # (n,)
    count: Tensor  # (n,)

    def __getitem__(self, index: Tensor | slice) -> GuideSegments:
        return GuideSegments(self.node[index], self.start[index], self.count[index])

    def __len__(self) -> int:
        return len(self.node)

    @property
    def columns(self) -> dict[str, Tensor]:
        """The same as columns of a queue."""
        return {"node": self.node, "start": self.start, "count": self.count}

    @staticmethod
    def of(columns: Mapping[str, Tensor]) -> GuideSegments:
        """Return the segments of boxes in a queue, by their columns."""
        return GuideSegments(columns["node"], columns["start"], columns["count"])


class Guides:
    """All guides of a proof, and what is proved of each."""

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        """Continue with guides as `columns` gives them."""
        self.points, self.row_counts, self.drawn_counts, self.status, self.root = (
            columns[name] for name in GUIDE_COLUMNS
        )
        self._order = self.points.new_zeros(0, dtype=torch.int64)

    @staticmethod
    def from_points(row_points: Tensor, drawn_points: Tensor) -> Guides:
        """Return undecided guides at the points of rows of the data set, and of drawn records: (n, axes) each."""
        all_points = torch.cat([row_points, drawn_points]).int()
        points, guide = torch.unique(all_points, dim=0, return_inverse=True)
        parts = guide.split([len(row_points), len(drawn_points)])
        counts = [torch.bincount(part, minlength=len(points)).int() for part in parts]
        status = torch.zeros(len(points), dtype=torch.int8, device=points.device)
        return Guides(dict(zip(GUIDE_COLUMNS, (points, *counts, status, torch.zeros_like(counts[0])), strict=True)))

    def __len__(self) -> int:
        return len(self.points)

    @property
    def columns(self) -> dict[str, Tensor]:
        """What a state keeps."""
        return dict(
            zip(GUIDE_COLUMNS, (self.points, self.row_counts, self.drawn_counts, self.status, self.root), strict=True)
        )

    @property
    def weight(self) -> Tensor:
        """How much each guide counts: float64."""
        return self.row_counts.double() + DRAWN_WEIGHT * self.drawn_counts

    def count_rows(self, status: int) -> int:
        """Return how many rows of the data set have this status."""
        return int(self.row_counts[self.status == status].sum())

    def decide(self, guides: Tensor, fair: Tensor, flips: Tensor) -> None:
        """Set the status of some guides: `fair` ones do not flip, `flips` do, the others stay as they are."""
        self.status[guides] = torch.where(fair, FAIR, torch.where(flips, DEPENDS, self.status[guides])).to(torch.int8)

    def select(self, mask: Tensor) -> Guides:
        """Return some of these guides."""
        return Guides({name: column[mask] for name, column in self.columns.items()})

    def merge(self, other: Guides) -> Guides:
        """Return these guides and others."""
        return Guides({name: torch.cat([column, other.columns[name]]) for name, column in self.columns.items()})

    def find_segments(self, node: Tensor, cuts: CutTree) -> GuideSegments:
        """Give each box, by its leaf, a segment of its undecided guides."""
        owner = cuts.find_owners(node, self.points, self.root)
        owner = torch.where((self.status == UNDECIDED) & (owner >= 0), owner, len(node))
        self._order = owner.argsort(stable=True)
        count = torch.bincount(owner, minlength=len(node) + 1)[: len(node)]
        return GuideSegments(node, count.cumsum(0) - count, count)

    def of(self, segments: GuideSegments) -> tuple[Tensor, Tensor]:
        """Return the guides of boxes, box by box: the number of each one's box, and of the guide."""
        owner, position = _expand_segments(segments)
        return owner, self._order[position]

    def partition(self, segments: GuideSegments, is_later: Tensor) -> Tensor:
        """Put some guides of each box behind the others of its segment; return how many stay in front.

        `is_later` says of each guide, in the order of `of`, whether it goes behind.
        """
        owner, position = _expand_segments(segments)
        self._order[position] = self._order[position][(2 * owner + is_later).argsort(stable=True)]
        return torch.bincount(owner[~is_later], minlength=len(segments))

    def cut(self, segments: GuideSegments, axis: Tensor, last: Tensor, cuts: CutTree) -> GuideSegments:
        """Cut boxes behind a position of an axis; return their halves: first all lower, then all upper ones."""
        owner, guide = self.of(segments)
        front = self.partition(segments, self.points[guide, axis[owner]] > last[owner])
        node = cuts.cut(segments.node.long(), axis, last).to(segments.node.dtype)
        start = torch.cat([segments.start, segments.start + front])
        return GuideSegments(node, start, torch.cat([front, segments.count - front]))

    def undecided(self, segments: GuideSegments) -> GuideSegments:
        """Return boxes with the segments of those of their guides that are undecided."""
        _, guide = self.of(segments)
        return GuideSegments(segments.node, segments.start, self.partition(segments, self.status[guide] != UNDECIDED))

    def sum_weights(self, segments: GuideSegments) -> Tensor:
        """Return how much the guides of each box count together: float64 (n,)."""
        owner, guide = self.of(segments)
        sums = torch.zeros(len(segments), dtype=torch.float64, device=owner.device)
        return sums.index_add_(0, owner, self.weight[guide])


GUIDE_COLUMNS = ("places", "rows", "drawn", "status", "root")


def _expand_segments(segments: GuideSegments) -> tuple[Tensor, Tensor]:
    """Return for each position of the boxes' segments, box by box, the number of the box, and the position."""
    count = segments.count.long()
    owner = torch.arange(len(count), device=count.device).repeat_interleave(count)
    before = count.cumsum(0) - count
    return owner, torch.arange(len(owner), device=count.device) + (segments.start - before)[owner]


UNBOUNDED = (-math.inf, math.inf)  # bounds
MIN_UNDECIDED = 1e-6  # of a box counts as undecided at least, so that none is forgotten
VOLUME_WEIGHT = 2.0**-40  # what the undecided share of all records counts, where an undecided row counts 1
LEVELS_PER_OCTAVE = 2  # of priority, for each power of two
BoxColumns = Mapping[str, Tensor]


class BoxQueue:
    """Boxes by levels of priority: the next ones are found, and new ones are added, without looking at all others.

    A level is a list of columns, each at least twice as long as the next one, so that few have to be joined.
    """

    def __init__(self, empty: BoxColumns) -> None:
        """Begin with columns without rows, which say of what types they are."""
        self._empty = {**empty, "share": empty["fair"]}
        self._levels: dict[int, list[BoxColumns]] = {}
        self._proved = torch.zeros(2, dtype=torch.float64, device=empty["fair"].device)
        self._boxes = 0

    def __len__(self) -> int:
        return self._boxes

    @property
    def proved_shares(self) -> Tensor:
        """The shares of all records that half-spaces in the boxes prove fair and discriminatory, about: (2,)."""
        return self._proved if self._boxes else torch.zeros_like(self._proved)

    def put(self, columns: BoxColumns, share: Tensor, guide_weight: Tensor | float = 0.0) -> None:
        """Add boxes with their shares of all records, and how much their undecided guides count.

        A column that not all boxes have holds bounds: (n, …, 2).
        """
        if not len(share):
            return
        columns = {**columns, "share": share}
        self._boxes += len(share)
        self._proved = self._proved + _sum_proved_shares(columns)
        undecided = (1 - columns["fair"] - columns["flips"]).clamp(min=MIN_UNDECIDED)
        priority = guide_weight + VOLUME_WEIGHT * share * undecided
        level, order = (priority.clamp(min=1e-300).log2() * LEVELS_PER_OCTAVE).floor().long().sort(stable=True)
        levels, counts = torch.unique_consecutive(level, return_counts=True)
        parts = zip(levels.tolist(), torch.split(order, counts.tolist()), strict=True)
        for level_number, rows in parts:
            self._add(level_number, {name: column[rows] for name, column in columns.items()})

    def _add(self, level: int, columns: BoxColumns) -> None:
        lists = self._levels.setdefault(level, [])
        while lists and len(lists[-1]["share"]) < 2 * len(columns["share"]) and lists[-1].keys() == columns.keys():
            columns = _join_columns([lists.pop(), columns])
        lists.append(columns)

    def take(self, max_boxes: int) -> dict[str, Tensor]:
        """Remove the boxes that come first, at most so many, and return their columns."""
        parts, missing = list[BoxColumns](), min(max_boxes, self._boxes)
        self._boxes -= missing
        while missing:
            level = max(self._levels)
            level_columns = self._levels[level].pop()
            if len(level_columns["share"]) > missing:
                self._levels[level].append({name: column[missing:] for name, column in level_columns.items()})
                level_columns = {name: column[:missing] for name, column in level_columns.items()}
            if not self._levels[level]:
                del self._levels[level]
            parts.append(level_columns)
            missing -= len(level_columns["share"])
        columns = _join_columns(parts) if parts else dict(self._empty)
        self._proved = self._proved - _sum_proved_shares(columns)
        return columns

    def collect_columns(self) -> dict[str, Tensor]:
        """Return the columns that all boxes have."""
        lists = self._lists or [self._empty]
        return {name: torch.cat([part[name] for part in lists]) for name in self._empty if name != "share"}

    def drain(self) -> list[dict[str, Tensor]]:
        """Remove all boxes, and return lists of them."""
        lists = [dict(columns) for columns in self._lists]
        self._levels, self._boxes, self._proved = {}, 0, torch.zeros_like(self._proved)
        return lists

    @property
    def _lists(self) -> list[BoxColumns]:
        return [columns for level in self._levels.values() for columns in level]


def stack_columns(parts: Sequence[BoxColumns]) -> dict[str, Tensor]:
    """Return the columns of several boxes, all of the same names, as one."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _sum_proved_shares(columns: BoxColumns) -> Tensor:
    return torch.stack([(columns["share"] * columns[name]).sum() for name in ("fair", "flips")])


def _join_columns(parts: Sequence[BoxColumns]) -> dict[str, Tensor]:
    """Return the columns of several lists of boxes as one; boxes without bounds get infinite ones."""

    def column(part: BoxColumns, name: str, like: Tensor) -> Tensor:
        return part[name] if name in part else like.new_tensor(UNBOUNDED).expand(len(part["share"]), *like.shape[1:])

    widest = max(parts, key=len)
    return {name: torch.cat([column(part, name, like) for part in parts]) for name, like in widest.items()}


@dataclass(frozen=True)
class ProofState:
    """The state of a proof: columns of its undecided and finished boxes, the cuts, and the guides."""

    undecided: BoxColumns
    finished: BoxColumns
    cuts: Tensor  # (nodes, 3) of the tree whose leaves the boxes are
    guides: BoxColumns
    boxes: int
    seconds: float

    @property
    def undecided_count(self) -> int:
        """How many boxes are undecided."""
        return len(self.undecided["low"])

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors as a file holds them, by the names of their kind and column."""
        kinds = {"open": self.undecided, "done": self.finished, "guides": self.guides, "cuts": {"nodes": self.cuts}}
        return {f"{kind}.{name}": column for kind, columns in kinds.items() for name, column in columns.items()}

    @staticmethod
    def of(tensors: BoxColumns, boxes: int, seconds: float) -> ProofState:
        """Return the state that has such tensors; one without cuts or guides is not sound."""
        undecided, finished, guides = (
            {name.partition(".")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{kind}.")}
            for kind in ("open", "done", "guides")
        )
        return ProofState(undecided, finished, tensors.get("cuts.nodes", torch.zeros(0, 3)), guides, boxes, seconds)

    @property
    def is_sound(self) -> bool:
        """Whether all columns of a kind are of one length, and the metrics are possible."""
        kinds = (self.undecided, self.finished, self.guides)
        even = all(len({len(column) for column in columns.values()}) == 1 for columns in kinds)
        is_tree = self.cuts.dim() == 2 and self.cuts.shape[1] == 3 and self.cuts.dtype == torch.int32
        has_guides = {*GUIDE_COLUMNS} == {*self.guides}
        return even and is_tree and has_guides and self.boxes >= 0 and 0 <= self.seconds < math.inf

    def deal_piece(self, piece: int, pieces: int) -> ProofState:
        """Return the state of a piece of work: one of every `pieces` undecided boxes, with their guides."""
        undecided = {name: column[piece::pieces] for name, column in self.undecided.items()}
        node = undecided["node"]
        new_node = torch.arange(len(node), device=node.device)
        guides, root = self._find_dealt_guides(node)
        columns = {name: column[guides] for name, column in self.guides.items()} | {"root": root.int()}
        cuts = CutTree.of_roots(len(node), node.device).nodes
        finished = {name: column[:0] for name, column in self.finished.items()}
        return ProofState(undecided | {"node": new_node}, finished, cuts, columns, 0, 0.0)

    def _find_dealt_guides(self, node: Tensor) -> tuple[Tensor, Tensor]:
        """Return the guides in some leaves, and the number of each one's leaf among these."""
        owner = CutTree(self.cuts).find_owners(node, self.guides["places"], self.guides["root"])
        guides = (owner >= 0).nonzero()[:, 0]
        return guides, owner[guides]

    def merge_pieces(self, pieces: Sequence[ProofState], seconds: float) -> ProofState:
        """Return this state with those of its parts in place of its undecided boxes."""
        cuts, status, boxes = CutTree(self.cuts), self.guides["status"].clone(), self.boxes
        undecided, finished = list[BoxColumns](), [self.finished]
        for number, piece in enumerate(pieces):
            nodes = self.undecided["node"][number :: len(pieces)].long()
            status[self._find_dealt_guides(nodes)[0]] = piece.guides["status"]
            new_index = cuts.graft(nodes, CutTree(piece.cuts))
            undecided.append({**piece.undecided, "node": new_index[piece.undecided["node"].long()]})
            finished.append({**piece.finished, "node": new_index[piece.finished["node"].long()]})
            boxes += piece.boxes
        guides = {**self.guides, "status": status}
        return ProofState(stack_columns(undecided), stack_columns(finished), cuts.nodes, guides, boxes, seconds)


SHARE_BITS = 30  # of a share that are counted: records · floor(share · 2^30) / 2^30
SHARE_TOLERANCE = 1e-6  # how far sums of shares may be off
BOX_COLUMNS = ("low", "high", "pattern", "fair", "flips", "fair_count", "flips_count")


def make_certified_columns(boxes: Boxes, pattern: Tensor, fair: Tensor) -> dict[str, Tensor]:
    """Return the columns of boxes that are decided as a whole: fair, or discriminatory."""
    return make_undecided_columns(boxes, pattern, fair.double(), 1.0 - fair.double())


def make_enumerated_columns(
    problem: ProofProblem, boxes: Boxes, pattern: Tensor, counts: tuple[Tensor, Tensor]
) -> dict[str, Tensor]:
    """Return the columns of enumerated boxes: `counts` combinations of codes are fair, and flip."""
    codes = count_varied_codes(problem.space, boxes)
    return _make_columns(boxes, pattern, counts[0] / codes, counts[1] / codes, *counts)


def make_undecided_columns(boxes: Boxes, pattern: Tensor, fair: Tensor, flips: Tensor) -> dict[str, Tensor]:
    """Return the columns of boxes of which shares are proved, at least."""
    none = torch.full_like(pattern, -1, dtype=torch.int64)
    return _make_columns(boxes, pattern, fair, flips, none, none)


def make_waiting_columns(
    boxes: Boxes, pattern: Tensor, axis: Tensor | int = -1, last: Tensor | int = 0
) -> dict[str, Tensor]:
    """Return the columns of boxes of which nothing is proved; without an axis to cut they are not yet bounded."""
    zero = torch.zeros(len(boxes), dtype=torch.float64, device=pattern.device)
    columns = make_undecided_columns(boxes, pattern, zero, zero)
    cut = {name: torch.zeros_like(columns["pattern"]) + value for name, value in (("axis", axis), ("last", last))}
    return columns | {name: column.int() for name, column in cut.items()}


def _make_columns(boxes: Boxes, pattern: Tensor, *proved: Tensor) -> dict[str, Tensor]:
    return dict(zip(BOX_COLUMNS, (boxes.low.int(), boxes.high.int(), pattern.int(), *proved), strict=True))


def sum_proved(problem: ProofProblem, columns: BoxColumns) -> Tensor:
    """Return the shares of all combinations of codes that boxes prove fair and discriminatory, about: (2,)."""
    weight = find_shares(problem, columns)
    return torch.stack([(weight * columns["fair"]).sum(), (weight * columns["flips"]).sum()])


def get_boxes(columns: BoxColumns) -> Boxes:
    """Return the boxes themselves."""
    return Boxes(columns["low"].long(), columns["high"].long())


def find_shares(problem: ProofProblem, columns: BoxColumns) -> Tensor:
    """Return the records of each box as a share of all combinations of codes, about: (n,)."""
    return problem.valid_records.share(problem.space, get_boxes(columns), columns["pattern"].long())


def build_certified_boxes(problem: ProofProblem, parts: Sequence[BoxColumns]) -> CertifiedBoxes:
    """Return boxes with the whole numbers of records that are proved in each."""
    low, high, pattern, *proved = (torch.cat([part[name].cpu() for part in parts]) for name in BOX_COLUMNS)
    boxes = Boxes(low.long().to(problem.device), high.long().to(problem.device))
    sizes = problem.space.count_codes(boxes).cpu()
    value_counts = problem.valid_records.in_region.sum(1).cpu()[pattern.long()]
    dtype = np.int64 if problem.count < MAX_COUNTED_CODES else object
    records = _count_records(sizes, value_counts, dtype)
    uniform_records = _count_records(torch.where(high > low, 1, sizes), value_counts, dtype)
    fair, flips = (
        np.where(count.numpy() >= 0, uniform_records * count.numpy().astype(dtype), _take_share(records, share))
        for share, count in zip(proved[:2], proved[2:], strict=True)
    )
    return CertifiedBoxes(low.numpy(), high.numpy(), fair.tolist(), flips.tolist())


def _count_records(sizes: Tensor, value_counts: Tensor, dtype: Any) -> npt.NDArray[Any]:
    result: npt.NDArray[Any] = sizes.numpy().astype(dtype).prod(1) * value_counts.numpy().astype(dtype)
    return result


def _take_share(records: npt.NDArray[Any], share: Tensor) -> npt.NDArray[Any]:
    """Return a share of records, at most."""
    parts = (share.clamp(0, 1) * (1 << SHARE_BITS)).floor().long().numpy().astype(records.dtype)
    low_bits = records & ((1 << SHARE_BITS) - 1)
    return np.asarray((records >> SHARE_BITS) * parts + ((low_bits * parts) >> SHARE_BITS))


def check_state(problem: ProofProblem, state: ProofState, source: object) -> None:
    """Refuse a state that no proof about this region can have: a folder may be a stranger's.

    Its boxes must lie within the region and make it up, and no box may have more proved than it holds. They must be the
    leaves of its cuts, and every guide must lie in its leaf.
    """
    columns = (state.undecided, state.finished)
    required = {*BOX_COLUMNS, "node"}
    if any(required - {*kind} for kind in columns) or {"axis", "last"} - {*state.undecided} or not state.is_sound:
        raise RunError(f"{source}: is no state of such a proof")
    highest = problem.space.full_box().high.cpu()
    total = torch.zeros((), dtype=torch.float64)
    for kind in columns:
        low, high, pattern = (kind[name].cpu().long() for name in ("low", "high", "pattern"))
        is_inside = low.shape == high.shape == (len(pattern), highest.shape[1]) and bool(
            ((low >= 0) & (low <= high) & (high <= highest)).all()
            & ((pattern >= 0) & (pattern < len(problem.valid_records.valid))).all()
        )
        fair, flips, *counts = (kind[name].cpu().double() for name in BOX_COLUMNS[3:])
        if not is_inside or not bool(((fair >= 0) & (flips >= 0) & (fair + flips <= 1 + SHARE_TOLERANCE)).all()):
            raise RunError(f"{source}: its boxes do not lie within the region, or prove more records than they hold")
        boxes = Boxes(low.to(problem.device), high.to(problem.device))
        codes = count_varied_codes(problem.space, boxes).cpu()
        if not bool(((counts[0] >= -1) & (counts[1] >= -1) & (counts[0] + counts[1] <= codes)).all()):
            raise RunError(f"{source}: its boxes prove more records than they hold")
        total += problem.valid_records.share(problem.space, boxes, pattern.to(problem.device)).sum().cpu()
    axis = state.undecided["axis"].cpu()
    is_complete = abs(float(total / problem.total_share.cpu()) - 1) <= SHARE_TOLERANCE
    if not is_complete or not bool(((axis >= -1) & (axis < highest.shape[1])).all()):
        raise RunError(f"{source}: its boxes are not those of the whole region")
    if not _are_leaves(state, highest.to(problem.device)):
        raise RunError(f"{source}: its boxes are not the leaves of its cuts, or its guides do not lie in them")


def _are_leaves(state: ProofState, highest: Tensor) -> bool:
    cuts, points = CutTree(state.cuts), state.guides["places"].long()
    node, low, high = (torch.cat([state.finished[n], state.undecided[n]]).long() for n in ("node", "low", "high"))
    leaves = (state.cuts[:, 0] == LEAF).nonzero()[:, 0]
    if not cuts.is_sound(highest.shape[1]) or len(node) != len(leaves) or not torch.equal(node.sort()[0], leaves):
        return False
    if points.shape[1:] != highest.shape[1:] or bool((state.guides["root"] != 0).any()):
        return False
    owner = cuts.find_owners(node, points)
    counts = torch.stack([state.guides[name] for name in ("rows", "drawn", "status")])
    return bool(((points >= low[owner]) & (points <= high[owner])).all()) and bool((counts >= 0).all())
