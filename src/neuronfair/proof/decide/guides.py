"""Guides: records that show where people are. Boxes are taken by the undecided guides that they hold.

A guide is a place of the region with the number of rows of the data set that stand there, and of records drawn from the
population model. The guides of a box are a segment of one order of all guides; where the box is cut, or some of its
guides are decided, its segment is parted in two. So no guide is ever searched for among the boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.proof.boxes.cuts import CutTree

UNDECIDED, FAIR, FLIPS = 0, 1, 2  # what is proved of a guide
DRAWN_WEIGHT = 1 / 64  # of a drawn record, where a row of the data set weighs 1


@dataclass(frozen=True)
class GuideSource:
    """Where guides come from: places of the rows of the data set, and a function that draws so many others."""

    rows: Tensor  # (n, axes)
    draw: Callable[[int, int], Tensor] | None = None  # how many, and the seed
    leads: bool = True  # whether boxes with guides come first; else those with the largest undecided volume


@dataclass(frozen=True)
class Seats:
    """Boxes of a proof: their leaves in the tree of cuts, and their segments of guides."""

    node: Tensor  # (n,)
    start: Tensor  # (n,)
    count: Tensor  # (n,)

    def __getitem__(self, index: Tensor | slice) -> Seats:
        return Seats(self.node[index], self.start[index], self.count[index])

    def __len__(self) -> int:
        return len(self.node)

    @property
    def columns(self) -> dict[str, Tensor]:
        """These as columns of a queue."""
        return {"node": self.node, "start": self.start, "count": self.count}

    @staticmethod
    def of(columns: Mapping[str, Tensor]) -> Seats:
        """Return those of boxes in a queue."""
        return Seats(columns["node"], columns["start"], columns["count"])


class Guides:
    """All guides of a proof, and what is proved of each."""

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        """Continue with guides as `columns` gives them."""
        self.places, self.rows, self.drawn, self.status, self.root = (columns[name] for name in NAMES)
        self._order = self.places.new_zeros(0, dtype=torch.int64)

    @staticmethod
    def at(rows: Tensor, drawn: Tensor) -> Guides:
        """Return undecided guides at the places of rows of the data set, and of drawn records: (n, axes) each."""
        both = torch.cat([rows, drawn]).int()
        places, guide = torch.unique(both, dim=0, return_inverse=True)
        counts = [torch.bincount(some, minlength=len(places)).int() for some in guide.split([len(rows), len(drawn)])]
        status = torch.zeros(len(places), dtype=torch.int8, device=places.device)
        return Guides(dict(zip(NAMES, (places, *counts, status, torch.zeros_like(counts[0])), strict=True)))

    def __len__(self) -> int:
        return len(self.places)

    @property
    def columns(self) -> dict[str, Tensor]:
        """What a state keeps."""
        return dict(zip(NAMES, (self.places, self.rows, self.drawn, self.status, self.root), strict=True))

    @property
    def weight(self) -> Tensor:
        """How much each guide counts: float64."""
        return self.rows.double() + DRAWN_WEIGHT * self.drawn

    def rows_with(self, status: int) -> int:
        """Return for how many rows of the data set something is proved, or nothing."""
        return int(self.rows[self.status == status].sum())

    def decide(self, guides: Tensor, fair: Tensor, flips: Tensor) -> None:
        """Note of which guides it is proved that they do not flip, and of which that they do."""
        self.status[guides] = torch.where(fair, FAIR, torch.where(flips, FLIPS, self.status[guides])).to(torch.int8)

    def chosen(self, some: Tensor) -> Guides:
        """Return some of these guides."""
        return Guides({name: column[some] for name, column in self.columns.items()})

    def added(self, other: Guides) -> Guides:
        """Return these guides and others."""
        return Guides({name: torch.cat([mine, other.columns[name]]) for name, mine in self.columns.items()})

    def seated(self, node: Tensor, cuts: CutTree) -> Seats:
        """Give each box, by its leaf, a segment of its undecided guides."""
        leaf = cuts.leaves(self.places, self.root)
        box = torch.full((len(cuts),), len(node), dtype=torch.int64, device=leaf.device)
        box[node.long()] = torch.arange(len(node), device=leaf.device)
        owner = torch.where(self.status == UNDECIDED, box[leaf], len(node))
        self._order = owner.argsort(stable=True)
        count = torch.bincount(owner, minlength=len(node) + 1)[: len(node)]
        return Seats(node, count.cumsum(0) - count, count)

    def of(self, seats: Seats) -> tuple[Tensor, Tensor]:
        """Return the guides of boxes, box by box: the number of each one's box, and of the guide."""
        owner, place = _segments(seats)
        return owner, self._order[place]

    def parted(self, seats: Seats, later: Tensor) -> Tensor:
        """Put some guides of each box behind the others of its segment; return how many stay in front.

        `later` says of each guide, in the order of `of`, whether it goes behind.
        """
        owner, place = _segments(seats)
        self._order[place] = self._order[place][(2 * owner + later).argsort(stable=True)]
        return torch.bincount(owner[~later], minlength=len(seats))

    def cut(self, seats: Seats, axis: Tensor, last: Tensor, cuts: CutTree) -> Seats:
        """Cut boxes behind a place of an axis; return their halves: first all lower, then all upper ones."""
        owner, guide = self.of(seats)
        front = self.parted(seats, self.places[guide, axis[owner]] > last[owner])
        node = cuts.cut(seats.node.long(), axis, last).to(seats.node.dtype)
        start = torch.cat([seats.start, seats.start + front])
        return Seats(node, start, torch.cat([front, seats.count - front]))

    def undecided(self, seats: Seats) -> Seats:
        """Return boxes with the segments of those of their guides that are undecided."""
        _, guide = self.of(seats)
        return Seats(seats.node, seats.start, self.parted(seats, self.status[guide] != UNDECIDED))

    def weights(self, seats: Seats) -> Tensor:
        """Return how much the guides of each box count together: float64 (n,)."""
        owner, guide = self.of(seats)
        sums = torch.zeros(len(seats), dtype=torch.float64, device=owner.device)
        return sums.index_add_(0, owner, self.weight[guide])


NAMES = ("places", "rows", "drawn", "status", "root")


def _segments(seats: Seats) -> tuple[Tensor, Tensor]:
    """Return for each place of the boxes' segments, box by box, the number of the box, and the place."""
    count = seats.count.long()
    owner = torch.arange(len(count), device=count.device).repeat_interleave(count)
    before = count.cumsum(0) - count
    return owner, torch.arange(len(owner), device=count.device) + (seats.start - before)[owner]
