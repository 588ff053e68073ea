"""The undecided boxes of a proof, those with the most undecided people first, and where the proof stands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

UNKNOWN = (-math.inf, math.inf)  # bounds of which nothing is known
MIN_UNDECIDED = 1e-6  # of a box counts as undecided at least, so that none is forgotten
LEVELS = 2  # of priority, for each power of two
Columns = Mapping[str, Tensor]


class BoxQueue:
    """Boxes by levels of priority: the next ones are found, and new ones are added, without looking at all others.

    A level is a list of columns, each at least twice as long as the next one, so that few have to be joined.
    """

    def __init__(self, empty: Columns) -> None:
        """Begin with columns without rows, which say of what types they are."""
        self._empty = {**empty, "share": empty["fair"]}
        self._levels: dict[int, list[Columns]] = {}
        self._proved = torch.zeros(2, dtype=torch.float64, device=empty["fair"].device)
        self._boxes = 0

    def __len__(self) -> int:
        return self._boxes

    @property
    def proved(self) -> Tensor:
        """The shares of all people that half-spaces in the boxes prove fair and discriminatory, about: (2,)."""
        return self._proved if self._boxes else torch.zeros_like(self._proved)

    def put(self, columns: Columns, share: Tensor) -> None:
        """Add boxes with their shares of all people. A column that not all boxes have holds bounds: (n, …, 2)."""
        if not len(share):
            return
        columns = {**columns, "share": share}
        self._boxes += len(share)
        self._proved = self._proved + _proved_shares(columns)
        priority = share * (1 - columns["fair"] - columns["flips"]).clamp(min=MIN_UNDECIDED)
        level, order = (priority.clamp(min=1e-300).log2() * LEVELS).floor().long().sort(stable=True)
        levels, counts = torch.unique_consecutive(level, return_counts=True)
        parts = zip(levels.tolist(), torch.split(order, counts.tolist()), strict=True)
        for number, rows in parts:
            self._add(number, {name: column[rows] for name, column in columns.items()})

    def _add(self, level: int, columns: Columns) -> None:
        lists = self._levels.setdefault(level, [])
        while lists and len(lists[-1]["share"]) < 2 * len(columns["share"]) and lists[-1].keys() == columns.keys():
            columns = _joined([lists.pop(), columns])
        lists.append(columns)

    def take(self, most: int) -> dict[str, Tensor]:
        """Remove the boxes with the most undecided people, at most so many, and return their columns."""
        parts, missing = list[Columns](), min(most, self._boxes)
        self._boxes -= missing
        while missing:
            level = max(self._levels)
            columns = self._levels[level].pop()
            if len(columns["share"]) > missing:
                self._levels[level].append({name: column[missing:] for name, column in columns.items()})
                columns = {name: column[:missing] for name, column in columns.items()}
            if not self._levels[level]:
                del self._levels[level]
            parts.append(columns)
            missing -= len(columns["share"])
        taken = _joined(parts) if parts else dict(self._empty)
        self._proved = self._proved - _proved_shares(taken)
        return taken

    def everything(self) -> dict[str, Tensor]:
        """Return the columns that all boxes have."""
        lists = [columns for level in self._levels.values() for columns in level] or [self._empty]
        return {name: torch.cat([part[name] for part in lists]) for name in self._empty if name != "share"}


def _proved_shares(columns: Columns) -> Tensor:
    return torch.stack([(columns["share"] * columns[name]).sum() for name in ("fair", "flips")])


def _joined(parts: Sequence[Columns]) -> dict[str, Tensor]:
    """Return columns of several boxes as one; where some have no bounds nothing is known of theirs."""

    def column(part: Columns, name: str, like: Tensor) -> Tensor:
        return part[name] if name in part else like.new_tensor(UNKNOWN).expand(len(part["share"]), *like.shape[1:])

    widest = max(parts, key=len)
    return {name: torch.cat([column(part, name, like) for part in parts]) for name, like in widest.items()}


@dataclass(frozen=True)
class State:
    """Where a proof stands: columns of its undecided boxes, and of those that are done."""

    undecided: Columns
    done: Columns
    boxes: int
    seconds: float

    @property
    def left(self) -> int:
        """How many boxes are undecided."""
        return len(self.undecided["low"])

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All columns as a file holds them, with names that say whose they are."""
        kinds = {"open": self.undecided, "done": self.done}
        return {f"{kind}.{name}": column for kind, columns in kinds.items() for name, column in columns.items()}

    @staticmethod
    def of(tensors: Columns, boxes: int, seconds: float) -> State:
        """Return the state that has such columns."""
        undecided, done = (
            {name.partition(".")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{kind}.")}
            for kind in ("open", "done")
        )
        return State(undecided, done, boxes, seconds)

    @property
    def sound(self) -> bool:
        """Whether all columns of a kind are of one length, and the metrics are possible."""
        even = all(len({len(column) for column in kind.values()}) == 1 for kind in (self.undecided, self.done))
        return even and self.boxes >= 0 and 0 <= self.seconds < math.inf

    def part(self, piece: int, pieces: int) -> State:
        """Return what a piece of work begins with: every so-manieth undecided box, in their order."""
        mine = {name: column[piece::pieces] for name, column in self.undecided.items()}
        return State(mine, {name: column[:0] for name, column in self.done.items()}, 0, 0.0)

    def joined(self, parts: Sequence[State], seconds: float) -> State:
        """Return where the proof stands when each part of its undecided boxes stands so."""
        undecided = {name: torch.cat([part.undecided[name] for part in parts]) for name in self.undecided}
        done = {name: torch.cat([self.done[name], *(part.done[name] for part in parts)]) for name in self.done}
        return State(undecided, done, self.boxes + sum(part.boxes for part in parts), seconds)
