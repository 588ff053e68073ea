"""The undecided boxes of a proof in the order in which they are taken, and where the proof stands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.proof.boxes.cuts import CutTree
from neuronfair.proof.decide.guides import NAMES

UNKNOWN = (-math.inf, math.inf)  # bounds of which nothing is known
MIN_UNDECIDED = 1e-6  # of a box counts as undecided at least, so that none is forgotten
VOLUME = 2.0**-40  # what the undecided share of all records counts, where an undecided row counts 1
LEVELS = 2  # of priority, for each power of two
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
    def proved(self) -> Tensor:
        """The shares of all people that half-spaces in the boxes prove fair and discriminatory, about: (2,)."""
        return self._proved if self._boxes else torch.zeros_like(self._proved)

    def put(self, columns: BoxColumns, share: Tensor, guided: Tensor | float = 0.0) -> None:
        """Add boxes with their shares of all records, and how much their undecided guides count.

        A column that not all boxes have holds bounds: (n, …, 2).
        """
        if not len(share):
            return
        columns = {**columns, "share": share}
        self._boxes += len(share)
        self._proved = self._proved + _proved_shares(columns)
        priority = guided + VOLUME * share * (1 - columns["fair"] - columns["flips"]).clamp(min=MIN_UNDECIDED)
        level, order = (priority.clamp(min=1e-300).log2() * LEVELS).floor().long().sort(stable=True)
        levels, counts = torch.unique_consecutive(level, return_counts=True)
        parts = zip(levels.tolist(), torch.split(order, counts.tolist()), strict=True)
        for number, rows in parts:
            self._add(number, {name: column[rows] for name, column in columns.items()})

    def _add(self, level: int, columns: BoxColumns) -> None:
        lists = self._levels.setdefault(level, [])
        while lists and len(lists[-1]["share"]) < 2 * len(columns["share"]) and lists[-1].keys() == columns.keys():
            columns = _joined([lists.pop(), columns])
        lists.append(columns)

    def take(self, most: int) -> dict[str, Tensor]:
        """Remove the boxes that come first, at most so many, and return their columns."""
        parts, missing = list[BoxColumns](), min(most, self._boxes)
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
        lists = self._lists or [self._empty]
        return {name: torch.cat([part[name] for part in lists]) for name in self._empty if name != "share"}

    def drained(self) -> list[dict[str, Tensor]]:
        """Remove all boxes, and return lists of them."""
        lists = [dict(columns) for columns in self._lists]
        self._levels, self._boxes, self._proved = {}, 0, torch.zeros_like(self._proved)
        return lists

    @property
    def _lists(self) -> list[BoxColumns]:
        return [columns for level in self._levels.values() for columns in level]


def _proved_shares(columns: BoxColumns) -> Tensor:
    return torch.stack([(columns["share"] * columns[name]).sum() for name in ("fair", "flips")])


def _joined(parts: Sequence[BoxColumns]) -> dict[str, Tensor]:
    """Return columns of several boxes as one; where some have no bounds nothing is known of theirs."""

    def column(part: BoxColumns, name: str, like: Tensor) -> Tensor:
        return part[name] if name in part else like.new_tensor(UNKNOWN).expand(len(part["share"]), *like.shape[1:])

    widest = max(parts, key=len)
    return {name: torch.cat([column(part, name, like) for part in parts]) for name, like in widest.items()}


@dataclass(frozen=True)
class ProofState:
    """Where a proof stands: columns of its undecided boxes and of those that are done, the cuts, and the guides."""

    undecided: BoxColumns
    done: BoxColumns
    cuts: Tensor  # (nodes, 3) of the tree whose leaves the boxes are
    guides: BoxColumns
    boxes: int
    seconds: float

    @property
    def left(self) -> int:
        """How many boxes are undecided."""
        return len(self.undecided["low"])

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors as a file holds them, with names that say whose they are."""
        kinds = {"open": self.undecided, "done": self.done, "guides": self.guides, "cuts": {"nodes": self.cuts}}
        return {f"{kind}.{name}": column for kind, columns in kinds.items() for name, column in columns.items()}

    @staticmethod
    def of(tensors: BoxColumns, boxes: int, seconds: float) -> ProofState:
        """Return the state that has such tensors; one without cuts or guides is not sound."""
        undecided, done, guides = (
            {name.partition(".")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{kind}.")}
            for kind in ("open", "done", "guides")
        )
        return ProofState(undecided, done, tensors.get("cuts.nodes", torch.zeros(0, 3)), guides, boxes, seconds)

    @property
    def sound(self) -> bool:
        """Whether all columns of a kind are of one length, and the metrics are possible."""
        even = all(len({len(c) for c in kind.values()}) == 1 for kind in (self.undecided, self.done, self.guides))
        tree = self.cuts.dim() == 2 and self.cuts.shape[1] == 3 and self.cuts.dtype == torch.int32
        return even and tree and {*NAMES} == {*self.guides} and self.boxes >= 0 and 0 <= self.seconds < math.inf

    def part(self, piece: int, pieces: int) -> ProofState:
        """Return what a piece of work begins with: one of every `pieces` undecided boxes, with their guides."""
        mine = {name: column[piece::pieces] for name, column in self.undecided.items()}
        node = mine["node"]
        own = torch.arange(len(node), device=node.device)
        guides, root = self._dealt(node)
        columns = {name: column[guides] for name, column in self.guides.items()} | {"root": root.int()}
        cuts = CutTree.of_roots(len(node), node.device).nodes
        return ProofState(mine | {"node": own}, {name: c[:0] for name, c in self.done.items()}, cuts, columns, 0, 0.0)

    def _dealt(self, node: Tensor) -> tuple[Tensor, Tensor]:
        """Return the guides in some leaves, and the number of each one's leaf among these."""
        box = torch.full((len(self.cuts),), -1, dtype=torch.int64, device=node.device)
        box[node.long()] = torch.arange(len(node), device=node.device)
        owner = box[CutTree(self.cuts).leaves(self.guides["places"], self.guides["root"])]
        guides = (owner >= 0).nonzero()[:, 0]
        return guides, owner[guides]

    def joined(self, parts: Sequence[ProofState], seconds: float) -> ProofState:
        """Return where the proof stands when each part of its undecided boxes stands so."""
        cuts, status, boxes = CutTree(self.cuts), self.guides["status"].clone(), self.boxes
        undecided, done = list[BoxColumns](), [self.done]
        for piece, part in enumerate(parts):
            begun = self.undecided["node"][piece :: len(parts)].long()
            status[self._dealt(begun)[0]] = part.guides["status"]
            number = cuts.graft(begun, CutTree(part.cuts))
            undecided.append({**part.undecided, "node": number[part.undecided["node"].long()]})
            done.append({**part.done, "node": number[part.done["node"].long()]})
            boxes += part.boxes
        left, finished = ({name: torch.cat([p[name] for p in some]) for name in some[0]} for some in (undecided, done))
        return ProofState(left, finished, cuts.nodes, {**self.guides, "status": status}, boxes, seconds)
