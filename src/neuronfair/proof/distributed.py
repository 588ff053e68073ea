"""One proof by many workers: its undecided boxes are dealt to pieces of work, round after round.

A piece is the ordinary branch-and-bound about its own boxes. What is dealt does not depend on who is fast, and what a
piece proves is true however often it was killed: so a proof that comes to its end comes to the same counts.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import torch
from torch import Tensor

from neuronfair.atomic import replace_file
from neuronfair.errors import RunError
from neuronfair.limits import check_size
from neuronfair.progress import Interruption, PieceProgress, record_interruption
from neuronfair.proof.bounds.space import CutTree
from neuronfair.proof.certificate import Proof
from neuronfair.proof.problem import Problem
from neuronfair.proof.prove import BranchAndBound, Keep, ProofProgress, advance, proof_of
from neuronfair.proof.state import VOLUME, BoxColumns, Guides, GuideSource, ProofState, certified_shares, shares_of
from neuronfair.scale.pool import Pool
from neuronfair.scale.tasks import threads
from neuronfair.store.files import load_state, save_state, writing

PIECES_PER_WORKER = 2  # in a round: a fast worker takes a third one
BOXES_PER_PIECE = 16  # undecided ones, before any are dealt
MIN_ROUND_SECONDS, MAX_ROUND_SECONDS = 8.0, 60.0  # between them as long as the proof has taken so far
UNIT = 10**12  # by which pieces report shares as whole numbers
PieceCounts = tuple[int, int, int]  # boxes, and shares proved fair and discriminatory
_NAME = re.compile(r"\d{5,9}-of-(?!0+\.)(\d{5,9})\.state")  # at least one piece


class Stopped(Exception):  # noqa: N818
    """A piece was stopped before its time, and has saved its state."""


class Late(Exception):  # noqa: N818
    """Some pieces have not returned although the time ended as long ago as a piece takes."""


@dataclass(frozen=True)
class PieceFolder:
    """A folder of the pieces of one state, and of no other: what each has done since.

    A piece that is done again, after a kill, resumes from its file. On a machine without the folder nothing is kept,
    and a piece begins again.
    """

    folder: Path
    pieces: int

    def save(self, piece: int, state: ProofState) -> None:
        """Keep how far a piece is."""
        if not self.folder.is_dir():
            return
        with writing(self.folder), replace_file(self._path(piece)) as temporary:
            save_state(_tensors(state), temporary)

    def load(self, piece: int, begins: ProofState) -> ProofState | None:
        """Return how far a piece was that begins so; None if it has kept nothing, or that is damaged."""
        path = self._path(piece)
        if not path.is_file():
            return None
        try:
            check_size(path.stat().st_size, path)
            tensors = load_state(path, begins.undecided["low"].device)
        except (RunError, OSError, KeyError, TypeError, ValueError, RuntimeError):
            return None
        if _form(tensors) != _form(_tensors(begins)) or int(tensors.pop("check")) != _check(tensors):
            return None
        state = ProofState.of(tensors, int(tensors["boxes"]), float(tensors["seconds"]))
        return state if state.sound else None

    def _path(self, piece: int) -> Path:
        return self.folder / f"{piece:05d}-of-{self.pieces:05d}.state"


def _tensors(state: ProofState) -> dict[str, Tensor]:
    """Return what the file of a piece holds."""
    seconds = torch.tensor(state.seconds, dtype=torch.float64)
    tensors = state.tensors | {"boxes": torch.tensor(state.boxes), "seconds": seconds}
    return tensors | {"check": torch.tensor(_check(tensors))}


def _form(tensors: Mapping[str, Tensor]) -> dict[str, tuple[object, ...]]:
    """Return types and shapes of tensors, without the number of boxes."""
    return {name: (tensor.dtype, tensor.dim(), tensor.shape[1:]) for name, tensor in tensors.items()}


def _check(tensors: Mapping[str, Tensor]) -> int:
    """Return a checksum of all numbers."""
    check = 0
    for _, tensor in sorted(tensors.items()):
        check = zlib.crc32(tensor.cpu().contiguous().numpy().tobytes(), check)
    return check


def recovered(state: ProofState, folder: Path) -> ProofState:
    """Return a state with what its pieces have done since, by what they have kept in their folder."""
    named = [match for path in sorted(folder.glob("*.state")) if (match := _NAME.fullmatch(path.name))]
    if not named:
        return state
    kept = PieceFolder(folder, int(named[0][1]))
    begin = [state.part(piece, kept.pieces) for piece in range(min(kept.pieces, state.left))]
    parts = [kept.load(piece, begins) or begins for piece, begins in enumerate(begin)]
    return state.joined(parts, state.seconds + max((part.seconds for part in parts), default=0.0))


@dataclass(frozen=True)
class Piece:
    """Some undecided boxes of a proof, and for how long a worker continues with them."""

    number: int
    state: ProofState
    kept: PieceFolder
    seconds: float  # not until when: the clock of another machine may be wrong
    leads: bool  # whether boxes with guides come first


@torch.no_grad()
def prove_together(
    problem: Problem,
    *,
    pool: Pool,
    seconds: float = 60.0,
    progress: Callable[[ProofProgress], None] | None = None,
    state: ProofState | None = None,
    keep: Keep | None = None,
    guides: GuideSource | None = None,
) -> Proof:
    """Prove as `prove` does, with the workers of a pool; `keep` receives the state before every round.

    The time begins when the workers are there.
    """
    for _ in pool.map(_arrive, problem, range(pool.size), gpus=_gpus(problem)):
        pass
    begun = time.perf_counter() - (0.0 if state is None else state.seconds)
    with TemporaryDirectory(ignore_cleanup_errors=True) as spare, record_interruption(absorb=True) as interruption:
        team = _Team(problem, pool, seconds, begun, interruption, progress, guides)
        while True:
            state = team.enough(state)
            folder = keep(state) if keep else None
            if state.left == 0 or state.seconds >= seconds or interruption.requested:
                break
            state = team.round(state, PieceFolder(folder or Path(mkdtemp(dir=spare)), team.pieces))
    return proof_of(problem, state, interrupted=interruption.requested)


@dataclass(frozen=True)
class _Team:
    """Workers, and what they prove together."""

    problem: Problem
    pool: Pool
    seconds: float
    begun: float
    interruption: Interruption
    progress: Callable[[ProofProgress], None] | None
    source: GuideSource | None

    @property
    def pieces(self) -> int:
        """How many there are in a round."""
        return PIECES_PER_WORKER * self.pool.size

    def enough(self, state: ProofState | None) -> ProofState:
        """Continue here until there are enough undecided boxes to deal; return them, those with most records first."""
        problem, most = self.problem, BOXES_PER_PIECE * self.pieces
        if state is None or state.left < most:
            with threads(problem.device) as workers:
                search = BranchAndBound(problem, state, workers, self.source)
                advance(search, self.seconds, interruption=self.interruption, progress=self._tell, most=most)
                state = search.state()
        columns, guides = state.undecided, Guides(state.guides)
        share = shares_of(problem, columns)
        guided = guides.weights(guides.segments_at(columns["node"], CutTree(state.cuts)))
        leads = self.source is not None and self.source.leads
        priority = guided * leads + VOLUME * share * (1 - columns["fair"] - columns["flips"])
        order = priority.argsort(descending=True, stable=True)
        return replace(state, undecided={name: column[order] for name, column in columns.items()})

    def round(self, state: ProofState, kept: PieceFolder) -> ProofState:
        """Deal the undecided boxes, let the workers go on with them, and return where the proof stands then."""
        left = self.seconds - self._elapsed
        each = min(left, max(MIN_ROUND_SECONDS, min(MAX_ROUND_SECONDS, state.seconds))) / PIECES_PER_WORKER
        leads = self.source is not None and self.source.leads
        pieces = [Piece(i, state.part(i, kept.pieces), kept, each, leads) for i in range(kept.pieces)]
        with writing(kept.folder):
            kept.folder.mkdir(parents=True, exist_ok=True)
        parts: list[ProofState] = []
        tell, gpus = self._teller(state, pieces), _gpus(self.problem)
        try:
            for part in self.pool.map(work, self.problem, pieces, progress=tell, gpus=gpus):
                parts.append(part)
        except (KeyboardInterrupt, Stopped, Late) as ended:  # what the others had is in their files
            self.interruption.requested |= not isinstance(ended, Late)
            parts += [kept.load(piece.number, piece.state) or piece.state for piece in pieces[len(parts) :]]
        return state.joined(parts, self._elapsed)

    @property
    def _elapsed(self) -> float:
        return time.perf_counter() - self.begun

    def _tell(self, now: ProofProgress) -> None:
        try:
            if self.progress:
                self.progress(now)
        except KeyboardInterrupt:
            self.interruption.requested = True

    def _teller(self, state: ProofState, pieces: Sequence[Piece]) -> Callable[[Sequence[PieceCounts]], None]:
        """Return a function that reports the sum of the progress of all pieces."""
        fair, flips = _shares(self.problem, state.done)
        first = [(0, *_shares(self.problem, piece.state.undecided)) for piece in pieces]

        def tell(lines: Sequence[PieceCounts]) -> None:
            now = [line if any(line) else before for line, before in zip(lines, first, strict=True)]
            boxes, *shares = (sum(column) for column in zip((state.boxes, fair, flips), *now, strict=True))
            self._tell(ProofProgress(shares[0] / UNIT, shares[1] / UNIT, boxes, self._elapsed))
            if self.interruption.requested:
                raise KeyboardInterrupt
            if self._elapsed > self.seconds + pieces[0].seconds:
                raise Late

        return tell


def _arrive(problem: Problem, number: int, note: PieceProgress) -> None:
    """Do nothing: a worker that returns has started, and has the model."""


def _gpus(problem: Problem) -> float:
    return 1.0 if problem.device.type == "cuda" else 0.0


def _shares(problem: Problem, columns: BoxColumns) -> tuple[int, int]:
    """Return the shares of all records that boxes prove fair and discriminatory, in whole numbers."""
    fair, flips = (certified_shares(problem, columns) / problem.whole).tolist()
    return round(fair * UNIT), round(flips * UNIT)


def work(problem: Problem, piece: Piece, note: PieceProgress) -> ProofState:
    """Go on with a piece, from what it has kept before it was killed, and return where it stands."""
    state = piece.kept.load(piece.number, piece.state) or piece.state
    nobody = GuideSource(state.guides["places"][:0], leads=piece.leads)  # the guides are in the state
    keep = partial(piece.kept.save, piece.number)

    def tell(now: ProofProgress) -> None:
        note(now.boxes, round(now.fair * UNIT), round(now.discriminatory * UNIT))

    with torch.no_grad(), threads(problem.device) as workers:
        search = BranchAndBound(problem, state, workers, nobody)
        with record_interruption(absorb=True) as interruption:  # a pool presses Ctrl-C where a piece is to end
            advance(
                search, piece.seconds, interruption=interruption, progress=tell, keep=keep, longest=piece.seconds / 4
            )
    state = search.state()
    keep(state)
    if interruption.requested:
        raise Stopped
    return state
