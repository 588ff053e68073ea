"""Where a proof stands: its open boxes, and those that are done with; kept, dealt to pieces of work, and joined."""

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
