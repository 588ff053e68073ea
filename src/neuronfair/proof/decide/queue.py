"""The undecided boxes of a proof, the most important first, and where the proof stands."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from neuronfair.atomic import replacing
from neuronfair.errors import RunError
from neuronfair.limits import check_size
from neuronfair.store.files import load_state, save_state, writing

NONE = -1.0  # the priority of an empty slot
UNKNOWN = (-math.inf, math.inf)  # bounds of which nothing is known
LISTED = 32  # times as many boxes are listed in front as are taken, about
SAMPLED = 1 << 14  # boxes by which it is guessed what priority these have
LEAST = 1e-6  # of a box is taken for open at least, so that none is forgotten


class BoxQueue:
    """Columns of equal length that grow; the slot of a box that was taken is filled by one that comes.

    The slots of all boxes with at least a certain priority are listed in front, so that the first ones are found
    without a look at all others; where the list has become too short or too long, it is made anew.
    """

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        """Begin with columns without rows, which say of what types they are."""
        self._columns = dict(columns)
        device = next(iter(columns.values())).device
        self._share = torch.empty(0, dtype=torch.float64, device=device)
        self._priority = torch.empty(0, dtype=torch.float64, device=device)
        self._free = torch.empty(0, dtype=torch.int64, device=device)
        self._front = torch.empty(0, dtype=torch.int64, device=device)
        self._least = -math.inf  # the priority of those in front; a box in no list has a lower one
        self._proved = torch.zeros(2, dtype=torch.float64, device=device)
        self._size = self._boxes = 0

    def __len__(self) -> int:
        return self._boxes

    def take(self, most: int) -> dict[str, Tensor]:
        """Remove the boxes with the most open people, at most so many, and return their columns."""
        count = min(most, self._boxes)
        if not count <= len(self._front) <= 4 * LISTED * count:
            self._list(count)
        first = torch.topk(self._priority[self._front], count, sorted=False).indices
        top = self._front[first]
        stays = torch.ones(len(self._front), dtype=torch.bool, device=top.device)
        stays[first] = False
        self._front = self._front[stays]
        taken = {name: column[top] for name, column in self._columns.items()}
        self._proved = self._proved - self._shares(taken, self._share[top])
        self._priority[top], self._share[top] = NONE, 0.0
        self._free = torch.cat([self._free, top])
        self._boxes -= count
        return taken

    def _list(self, count: int) -> None:
        """List the boxes with the most open people in front, many times as many as are taken now."""
        known = self._priority[: self._size]
        share = LISTED * count / self._size
        # About so many of all have a higher priority; how many exactly does not matter, if there are enough.
        some = known[:: max(1, self._size // SAMPLED)]
        self._least = float(some.kthvalue(max(1, round(len(some) * (1 - share)))).values) if share < 1 else -math.inf
        self._front = (known >= max(self._least, 0.0)).nonzero()[:, 0]
        if len(self._front) < count:
            self._least, self._front = -math.inf, (known > NONE).nonzero()[:, 0]

    @staticmethod
    def _shares(columns: Mapping[str, Tensor], share: Tensor) -> Tensor:
        return torch.stack([(share * columns[name]).sum() for name in ("fair", "flips")])

    def put(self, columns: Mapping[str, Tensor], share: Tensor) -> None:
        """Add boxes with their shares of all people; a column that these do not have is forgotten.

        Of a column that only these have nothing is known of the others: it holds bounds, (…, 2), and theirs are none.
        """
        count = len(share)
        more = max(0, count - len(self._free))
        self._match(columns)
        if self._size + more > len(self._priority):
            self._grow(self._size + more)
        new = torch.arange(self._size, self._size + more, device=share.device)
        slots = torch.cat([self._free[: count - more], new])
        self._free = self._free[count - more :]
        self._size += more
        self._boxes += count
        self._share[slots] = share
        self._priority[slots] = share * (1 - columns["fair"] - columns["flips"]).clamp(min=LEAST)
        for name, column in self._columns.items():
            column[slots] = columns[name].to(column.dtype)
        self._front = torch.cat([self._front, slots[self._priority[slots] >= self._least]])
        self._proved = self._proved + self._shares(columns, share)

    def everything(self) -> dict[str, Tensor]:
        """Return the columns of all boxes."""
        kept = (self._priority[: self._size] > NONE).nonzero()[:, 0]
        return {name: column[kept] for name, column in self._columns.items()}

    @property
    def proved(self) -> Tensor:
        """The shares of all people that half-spaces in the boxes prove fair and discriminatory, about: (2,)."""
        return self._proved if self._boxes else torch.zeros_like(self._proved)

    def _match(self, columns: Mapping[str, Tensor]) -> None:
        for name in [name for name in self._columns if name not in columns]:
            del self._columns[name]
        for name in [name for name in columns if name not in self._columns]:
            shape = len(self._priority), *columns[name].shape[1:]
            self._columns[name] = columns[name].new_tensor(UNKNOWN).repeat(*shape[:-1], 1)

    def _grow(self, size: int) -> None:
        length = max(size, 2 * len(self._priority))

        def longer(column: Tensor, fill: float) -> Tensor:
            result = column.new_full((length, *column.shape[1:]), fill)
            result[: len(column)] = column
            return result

        self._share, self._priority = longer(self._share, 0.0), longer(self._priority, NONE)
        self._columns = {name: longer(column, 0) for name, column in self._columns.items()}


_NAME = re.compile(r"\d{5,9}-of-(?!0+\.)(\d{5,9})\.state")  # at least one piece


@dataclass(frozen=True)
class State:
    """Where a proof stands: columns of its open boxes, and of those that are done with."""

    open: Mapping[str, Tensor]
    done: Mapping[str, Tensor]
    boxes: int
    seconds: float

    @property
    def left(self) -> int:
        """How many boxes are open."""
        return len(self.open["low"])

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All columns, with names that say whose they are."""
        return {f"{kind}.{name}": column for kind in ("open", "done") for name, column in getattr(self, kind).items()}

    @staticmethod
    def of(tensors: Mapping[str, Tensor], boxes: int, seconds: float) -> State:
        """Return the state that has such columns."""
        opened, done = (
            {name.partition(".")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{kind}.")}
            for kind in ("open", "done")
        )
        return State(opened, done, boxes, seconds)

    @property
    def sound(self) -> bool:
        """Whether all columns of a kind are of one length, and the figures are possible."""
        even = all(len({len(column) for column in kind.values()}) == 1 for kind in (self.open, self.done))
        return even and self.boxes >= 0 and 0 <= self.seconds < math.inf

    def part(self, piece: int, pieces: int) -> State:
        """Return what a piece of work begins with: every so-manieth open box, in their order."""
        mine = {name: column[piece::pieces] for name, column in self.open.items()}
        return State(mine, {name: column[:0] for name, column in self.done.items()}, 0, 0.0)

    def joined(self, parts: Sequence[State], seconds: float) -> State:
        """Return where the proof stands when each part of its open boxes stands so."""
        opened = {name: torch.cat([part.open[name] for part in parts]) for name in self.open}
        done = {name: torch.cat([self.done[name], *(part.done[name] for part in parts)]) for name in self.done}
        return State(opened, done, self.boxes + sum(part.boxes for part in parts), seconds)


@dataclass(frozen=True)
class Kept:
    """A folder of the pieces of one state, and of no other: what each has done since.

    A piece that is done again, after a kill, goes on from its file. On a machine that does not have the folder nothing
    is kept, and a piece begins again.
    """

    folder: Path
    pieces: int

    def save(self, piece: int, state: State) -> None:
        """Keep how far a piece is."""
        if not self.folder.is_dir():
            return
        with writing(self.folder), replacing(self._path(piece)) as temporary:
            save_state(_packed(state), temporary)

    def load(self, piece: int, begins: State) -> State | None:
        """Return how far a piece was that begins so; None if it has kept nothing, or that is damaged."""
        path = self._path(piece)
        if not path.is_file():
            return None
        try:
            check_size(path.stat().st_size, path)
            tensors = load_state(path, begins.open["low"].device)
        except (RunError, OSError, KeyError, TypeError, ValueError, RuntimeError):
            return None
        if _form(tensors) != _form(_packed(begins)) or int(tensors.pop("check")) != _check(tensors):
            return None
        state = State.of(tensors, int(tensors["boxes"]), float(tensors["seconds"]))
        return state if state.sound else None

    def _path(self, piece: int) -> Path:
        return self.folder / f"{piece:05d}-of-{self.pieces:05d}.state"


def _packed(state: State) -> dict[str, Tensor]:
    """Return what the file of a piece holds."""
    seconds = torch.tensor(state.seconds, dtype=torch.float64)
    tensors = state.tensors | {"boxes": torch.tensor(state.boxes), "seconds": seconds}
    return tensors | {"check": torch.tensor(_check(tensors))}


def _form(tensors: Mapping[str, Tensor]) -> dict[str, tuple[object, ...]]:
    """Return of what kind the numbers are, and all sizes but how many boxes there are."""
    return {name: (tensor.dtype, tensor.dim(), tensor.shape[1:]) for name, tensor in tensors.items()}


def _check(tensors: Mapping[str, Tensor]) -> int:
    """Return a checksum of all numbers."""
    check = 0
    for _, tensor in sorted(tensors.items()):
        check = zlib.crc32(tensor.cpu().contiguous().numpy().tobytes(), check)
    return check


def recovered(state: State, folder: Path) -> State:
    """Return a state with what its pieces have done since, by what they have kept in their folder."""
    named = [match for path in sorted(folder.glob("*.state")) if (match := _NAME.fullmatch(path.name))]
    if not named:
        return state
    kept = Kept(folder, int(named[0][1]))
    begin = [state.part(piece, kept.pieces) for piece in range(min(kept.pieces, state.left))]
    parts = [kept.load(piece, begins) or begins for piece, begins in enumerate(begin)]
    return state.joined(parts, state.seconds + max((part.seconds for part in parts), default=0.0))
