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
from neuronfair.proof.problem import ProofProblem
from neuronfair.proof.prove import BranchAndBound, Keep, ProofProgress, advance, build_proof
from neuronfair.proof.state import VOLUME_WEIGHT, BoxColumns, Guides, GuideSource, ProofState, find_shares, sum_proved
from neuronfair.scale.pool import Pool
from neuronfair.scale.tasks import threads
from neuronfair.store.files import load_state, save_state, writing

PIECES_PER_WORKER = 2  # in a round: a fast worker takes a third one
BOXES_PER_PIECE = 16  # undecided ones, before any are dealt
MIN_ROUND_SECONDS, MAX_ROUND_SECONDS = 8.0, 60.0  # between them as long as the proof has taken so far
SHARE_UNIT = 10**12  # by which pieces report shares as whole numbers
PieceCounts = tuple[int, int, int]  # boxes, and shares proved fair and discriminatory
_FILE_NAME = re.compile(r"\d{5,9}-of-(?!0+\.)(\d{5,9})\.state")  # at least one piece


class PieceStopped(Exception):  # noqa: N818
    """A piece was stopped before its time, and has saved its state."""


class PiecesLate(Exception):  # noqa: N818
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
            save_state(_build_tensors(state), temporary)

    def load(self, piece: int, start: ProofState) -> ProofState | None:
        """Return how far a piece was that begins so; None if it has kept nothing, or that is damaged."""
        path = self._path(piece)
        if not path.is_file():
            return None
        try:
            check_size(path.stat().st_size, path)
            tensors = load_state(path, start.undecided["low"].device)
        except (RunError, OSError, KeyError, TypeError, ValueError, RuntimeError):
            return None
        same_shapes = _list_shapes(tensors) == _list_shapes(_build_tensors(start))
        if not same_shapes or int(tensors.pop("check")) != _compute_checksum(tensors):
            return None
        state = ProofState.of(tensors, int(tensors["boxes"]), float(tensors["seconds"]))
        return state if state.is_sound else None

    def _path(self, piece: int) -> Path:
        return self.folder / f"{piece:05d}-of-{self.pieces:05d}.state"


def _build_tensors(state: ProofState) -> dict[str, Tensor]:
    """Return what the file of a piece holds."""
    seconds = torch.tensor(state.seconds, dtype=torch.float64)
    tensors = state.tensors | {"boxes": torch.tensor(state.boxes), "seconds": seconds}
    return tensors | {"check": torch.tensor(_compute_checksum(tensors))}


def _list_shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[object, ...]]:
    """Return types and shapes of tensors, without the number of boxes."""
    return {name: (tensor.dtype, tensor.dim(), tensor.shape[1:]) for name, tensor in tensors.items()}


def _compute_checksum(tensors: Mapping[str, Tensor]) -> int:
    """Return a checksum of all numbers."""
    check = 0
    for _, tensor in sorted(tensors.items()):
        check = zlib.crc32(tensor.cpu().contiguous().numpy().tobytes(), check)
    return check


def recover_state(state: ProofState, folder: Path) -> ProofState:
    """Return a state with what its pieces have done since, by what they have kept in their folder."""
    matches = [match for path in sorted(folder.glob("*.state")) if (match := _FILE_NAME.fullmatch(path.name))]
    if not matches:
        return state
    pieces = PieceFolder(folder, int(matches[0][1]))
    starts = [state.deal_piece(piece, pieces.pieces) for piece in range(min(pieces.pieces, state.undecided_count))]
    parts = [pieces.load(piece, start) or start for piece, start in enumerate(starts)]
    return state.merge_pieces(parts, state.seconds + max((part.seconds for part in parts), default=0.0))


@dataclass(frozen=True)
class Piece:
    """Some undecided boxes of a proof, and for how long a worker continues with them."""

    number: int
    state: ProofState
    folder: PieceFolder
    seconds: float  # not until when: the clock of another machine may be wrong
    leads: bool  # whether boxes with guides come first


@torch.no_grad()
def prove_together(
    problem: ProofProblem,
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
    for _ in pool.map(_start_worker, problem, range(pool.size), gpus=_count_gpus(problem)):
        pass
    start_time = time.perf_counter() - (0.0 if state is None else state.seconds)
    with TemporaryDirectory(ignore_cleanup_errors=True) as temporary, record_interruption(absorb=True) as interruption:
        team = _Team(problem, pool, seconds, start_time, interruption, progress, guides)
        while True:
            state = team.continue_until_enough(state)
            folder = keep(state) if keep else None
            if state.undecided_count == 0 or state.seconds >= seconds or interruption.requested:
                break
            state = team.run_round(state, PieceFolder(folder or Path(mkdtemp(dir=temporary)), team.pieces))
    return build_proof(problem, state, interrupted=interruption.requested)


@dataclass(frozen=True)
class _Team:
    """Workers, and what they prove together."""

    problem: ProofProblem
    pool: Pool
    seconds: float
    start_time: float
    interruption: Interruption
    progress: Callable[[ProofProgress], None] | None
    source: GuideSource | None

    @property
    def pieces(self) -> int:
        """How many there are in a round."""
        return PIECES_PER_WORKER * self.pool.size

    def continue_until_enough(self, state: ProofState | None) -> ProofState:
        """Continue here until there are enough undecided boxes to deal; return them, those with most records first."""
        problem, enough = self.problem, BOXES_PER_PIECE * self.pieces
        if state is None or state.undecided_count < enough:
            with threads(problem.device) as workers:
                search = BranchAndBound(problem, state, workers, self.source)
                report = self._report_progress
                advance(search, self.seconds, interruption=self.interruption, progress=report, enough=enough)
                state = search.state()
        columns, guides = state.undecided, Guides(state.guides)
        share = find_shares(problem, columns)
        guide_weights = guides.sum_weights(guides.find_segments(columns["node"], CutTree(state.cuts)))
        leads = self.source is not None and self.source.leads
        priority = guide_weights * leads + VOLUME_WEIGHT * share * (1 - columns["fair"] - columns["flips"])
        order = priority.argsort(descending=True, stable=True)
        return replace(state, undecided={name: column[order] for name, column in columns.items()})

    def run_round(self, state: ProofState, folder: PieceFolder) -> ProofState:
        """Deal the undecided boxes, let the workers go on with them, and return where the proof stands then."""
        remaining = self.seconds - self._elapsed
        round_seconds = max(MIN_ROUND_SECONDS, min(MAX_ROUND_SECONDS, state.seconds))
        seconds = min(remaining, round_seconds) / PIECES_PER_WORKER
        leads = self.source is not None and self.source.leads
        count = folder.pieces
        pieces = [Piece(i, state.deal_piece(i, count), folder, seconds, leads) for i in range(count)]
        with writing(folder.folder):
            folder.folder.mkdir(parents=True, exist_ok=True)
        parts: list[ProofState] = []
        report, gpus = self._make_reporter(state, pieces), _count_gpus(self.problem)
        try:
            for part in self.pool.map(continue_piece, self.problem, pieces, progress=report, gpus=gpus):
                parts.append(part)
        except (KeyboardInterrupt, PieceStopped, PiecesLate) as error:  # what the others had is in their files
            self.interruption.requested |= not isinstance(error, PiecesLate)
            parts += [folder.load(piece.number, piece.state) or piece.state for piece in pieces[len(parts) :]]
        return state.merge_pieces(parts, self._elapsed)

    @property
    def _elapsed(self) -> float:
        return time.perf_counter() - self.start_time

    def _report_progress(self, progress: ProofProgress) -> None:
        try:
            if self.progress:
                self.progress(progress)
        except KeyboardInterrupt:
            self.interruption.requested = True

    def _make_reporter(self, state: ProofState, pieces: Sequence[Piece]) -> Callable[[Sequence[PieceCounts]], None]:
        """Return a function that reports the sum of the progress of all pieces."""
        fair, flips = _scale_shares(self.problem, state.finished)
        initial = [(0, *_scale_shares(self.problem, piece.state.undecided)) for piece in pieces]

        def report(reported: Sequence[PieceCounts]) -> None:
            counts = [new if any(new) else old for new, old in zip(reported, initial, strict=True)]
            boxes, *shares = (sum(column) for column in zip((state.boxes, fair, flips), *counts, strict=True))
            self._report_progress(ProofProgress(shares[0] / SHARE_UNIT, shares[1] / SHARE_UNIT, boxes, self._elapsed))
            if self.interruption.requested:
                raise KeyboardInterrupt
            if self._elapsed > self.seconds + pieces[0].seconds:
                raise PiecesLate

        return report


def _start_worker(problem: ProofProblem, number: int, note: PieceProgress) -> None:
    """Do nothing: a worker that returns has started, and has the model."""


def _count_gpus(problem: ProofProblem) -> float:
    return 1.0 if problem.device.type == "cuda" else 0.0


def _scale_shares(problem: ProofProblem, columns: BoxColumns) -> tuple[int, int]:
    """Return the shares of all records that boxes prove fair and discriminatory, in whole numbers."""
    fair, flips = (sum_proved(problem, columns) / problem.total_share).tolist()
    return round(fair * SHARE_UNIT), round(flips * SHARE_UNIT)


def continue_piece(problem: ProofProblem, piece: Piece, note: PieceProgress) -> ProofState:
    """Go on with a piece, from what it has kept before it was killed, and return where it stands."""
    state = piece.folder.load(piece.number, piece.state) or piece.state
    source = GuideSource(state.guides["places"][:0], leads=piece.leads)  # the guides are in the state
    keep = partial(piece.folder.save, piece.number)

    def report(progress: ProofProgress) -> None:
        note(progress.boxes, round(progress.fair * SHARE_UNIT), round(progress.discriminatory * SHARE_UNIT))

    with torch.no_grad(), threads(problem.device) as workers:
        search = BranchAndBound(problem, state, workers, source)
        with record_interruption(absorb=True) as interruption:  # a pool presses Ctrl-C where a piece is to end
            advance(
                search, piece.seconds, interruption=interruption, progress=report, keep=keep, longest=piece.seconds / 4
            )
    state = search.state()
    keep(state)
    if interruption.requested:
        raise PieceStopped
    return state
