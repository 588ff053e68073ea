"""One proof by many workers: its open boxes are dealt to pieces of work, round after round.

A piece is the ordinary branch-and-bound about its own boxes. What is dealt does not depend on who is fast, and what a
piece proves is true however often it was killed: so a proof that comes to its end comes to the same counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import torch

from neuronfair.model.training_loop import threads
from neuronfair.proof.boxes.leaves import Columns, shares
from neuronfair.proof.boxes.space import Boxes
from neuronfair.proof.decide.interrupt import Stop, stopping
from neuronfair.proof.decide.prove import BranchAndBound, Keep, ProofProgress, advance, proof_of
from neuronfair.proof.decide.queue import Kept, State
from neuronfair.proof.problem import Problem
from neuronfair.proof.result import Proof
from neuronfair.scale.pool import PieceProgress, Pool
from neuronfair.store.files import writing

EACH = 2  # pieces for each worker in a round: who is done early takes another one
ENOUGH = 16  # open boxes for each piece, before any are dealt
SHORTEST, LONGEST = 8.0, 60.0  # seconds of a round: as long as the proof has taken so far
UNIT = 10**12  # of which pieces say shares, in whole numbers
Said = tuple[int, int, int]  # by a piece: boxes, and shares proved fair and discriminatory


class Stopped(Exception):  # noqa: N818
    """A piece was told to end, and has kept what it had."""


class Late(Exception):  # noqa: N818
    """The time has been over for as long as a piece takes, and some are still not done: they began late, or again."""


@dataclass(frozen=True)
class Piece:
    """Some open boxes of a proof, and how long a worker is to go on with them."""

    number: int
    boxes: State
    kept: Kept
    seconds: float  # not until when: the clock of another machine may be wrong


@torch.no_grad()
def prove_together(
    subject: Problem,
    *,
    pool: Pool,
    seconds: float = 60.0,
    progress: Callable[[ProofProgress], None] | None = None,
    state: State | None = None,
    keep: Keep | None = None,
) -> Proof:
    """Prove as `prove` does, with the workers of a pool; `keep` is given the state before every round.

    The time begins when the workers are there.
    """
    for _ in pool.map(_arrive, subject, range(pool.size), gpus=_gpus(subject)):
        pass
    begun = time.perf_counter() - (0.0 if state is None else state.seconds)
    with TemporaryDirectory(ignore_cleanup_errors=True) as spare, stopping() as stop:
        team = _Team(subject, pool, seconds, begun, stop, progress)
        while True:
            state = team.enough(state)
            folder = keep(state) if keep else None
            if state.left == 0 or state.seconds >= seconds or stop.asked:
                break
            state = team.round(state, Kept(folder or Path(mkdtemp(dir=spare)), team.pieces))
    return proof_of(subject, state, interrupted=stop.asked)


@dataclass(frozen=True)
class _Team:
    """Workers, and what they prove together."""

    subject: Problem
    pool: Pool
    seconds: float
    begun: float
    stop: Stop
    progress: Callable[[ProofProgress], None] | None

    @property
    def pieces(self) -> int:
        """How many there are in a round."""
        return EACH * self.pool.size

    def enough(self, state: State | None) -> State:
        """Go on here until there are enough open boxes to deal; return them in order, those with most people first."""
        subject, most = self.subject, ENOUGH * self.pieces
        if state is None or state.left < most:
            with threads(subject.device) as workers:
                search = BranchAndBound(subject, state, workers)
                advance(search, self.seconds, stop=self.stop, progress=self._tell, most=most)
                state = search.state()
        columns = state.open
        boxes = Boxes(columns["low"].long(), columns["high"].long())
        share = subject.people.share(subject.space, boxes, columns["pattern"].long())
        order = (share * (1 - columns["fair"] - columns["flips"])).argsort(descending=True, stable=True)
        return replace(state, open={name: column[order] for name, column in columns.items()})

    def round(self, state: State, kept: Kept) -> State:
        """Deal the open boxes, let the workers go on with them, and return where the proof stands then."""
        left = self.seconds - self._elapsed
        each = min(left, max(SHORTEST, min(LONGEST, state.seconds))) / EACH
        pieces = [Piece(i, state.part(i, kept.pieces), kept, each) for i in range(kept.pieces)]
        with writing(kept.folder):
            kept.folder.mkdir(parents=True, exist_ok=True)
        parts: list[State] = []
        tell, gpus = self._teller(state, pieces), _gpus(self.subject)
        try:
            for part in self.pool.map(work, self.subject, pieces, progress=tell, gpus=gpus):
                parts.append(part)
        except (KeyboardInterrupt, Stopped, Late) as ended:  # what the others had is in their files
            self.stop.asked |= not isinstance(ended, Late)
            parts += [kept.load(piece.number, piece.boxes) or piece.boxes for piece in pieces[len(parts) :]]
        return state.joined(parts, self._elapsed)

    @property
    def _elapsed(self) -> float:
        return time.perf_counter() - self.begun

    def _tell(self, now: ProofProgress) -> None:
        try:
            if self.progress:
                self.progress(now)
        except KeyboardInterrupt:
            self.stop.asked = True

    def _teller(self, state: State, pieces: Sequence[Piece]) -> Callable[[Sequence[Said]], None]:
        """Return what adds up what all pieces say; those that have said nothing yet are where they begin."""
        fair, flips = _told(self.subject, state.done)
        first = [(0, *_told(self.subject, piece.boxes.open)) for piece in pieces]

        def tell(lines: Sequence[Said]) -> None:
            said = [line if any(line) else before for line, before in zip(lines, first, strict=True)]
            more = [sum(figures) for figures in zip((state.boxes, fair, flips), *said, strict=True)]
            self._tell(ProofProgress(more[1] / UNIT, more[2] / UNIT, more[0], self._elapsed))
            if self.stop.asked:
                raise KeyboardInterrupt
            if self._elapsed > self.seconds + pieces[0].seconds:
                raise Late

        return tell


def _arrive(subject: Problem, number: int, note: PieceProgress) -> None:
    """Do nothing: who is asked to has started, and has the model."""


def _gpus(subject: Problem) -> float:
    return 1.0 if subject.device.type == "cuda" else 0.0


def _told(subject: Problem, columns: Columns) -> tuple[int, int]:
    """Return the shares of all people that boxes prove fair and discriminatory, in whole numbers."""
    fair, flips = (shares(subject, columns) / subject.whole).tolist()
    return round(fair * UNIT), round(flips * UNIT)


def work(subject: Problem, piece: Piece, note: PieceProgress) -> State:
    """Go on with a piece, from what it has kept before it was killed, and return where it stands."""
    state = piece.kept.load(piece.number, piece.boxes) or piece.boxes
    keep = partial(piece.kept.save, piece.number)

    def tell(now: ProofProgress) -> None:
        note(now.boxes, round(now.fair * UNIT), round(now.discriminatory * UNIT))

    with torch.no_grad(), threads(subject.device) as workers:
        search = BranchAndBound(subject, state, workers)
        with stopping() as stop:  # a pool presses Ctrl-C where a piece is to end
            advance(search, piece.seconds, stop=stop, progress=tell, keep=keep, longest=piece.seconds / 4)
    state = search.state()
    keep(state)
    if stop.asked:
        raise Stopped
    return state
