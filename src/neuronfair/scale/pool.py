"""Who does many pieces of work: this process, one after the other, or a cluster (`scale/ray_cluster.py`)."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

from neuronfair.errors import NeuronFairError

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Made = TypeVar("Made")

PieceProgress = Callable[[int, int, int], None]
"""How a piece of work says how far it is: steps done, steps in all, findings so far."""

PoolProgress = Callable[[Sequence[tuple[int, int, int]]], None]
"""Called with what all pieces have said so far, one line for each; (0, 0, 0) for one that has said nothing."""


class Pool(Protocol):
    """Does pieces of work side by side. A piece may be done again, elsewhere, when its worker is killed."""

    @property
    def size(self) -> int:
        """How many pieces are done at the same time, about."""

    def map(
        self,
        work: Callable[[Shared, Item, PieceProgress], Made],
        shared: Shared,
        items: Sequence[Item],
        *,
        progress: PoolProgress | None = None,
        gpus: float = 0.0,
    ) -> Iterator[Made]:
        """Yield `work(shared, item, note)` for each item, in the order of the items.

        `shared` is sent to each worker once. Work that raises ends it all with that error; a worker or a machine that
        is gone does not: its piece begins again, from whatever it has kept itself. `gpus` is what a piece takes.
        """


@dataclass(frozen=True)
class Serial:
    """This process: one piece after the other."""

    size: int = 1

    def map(
        self,
        work: Callable[[Shared, Item, PieceProgress], Made],
        shared: Shared,
        items: Sequence[Item],
        *,
        progress: PoolProgress | None = None,
        gpus: float = 0.0,
    ) -> Iterator[Made]:
        """Yield what the work makes of each item."""
        lines: list[tuple[int, int, int]] = [(0, 0, 0)] * len(items)
        for number, item in enumerate(items):

            def note(*figures: Any, number: int = number) -> None:
                lines[number] = figures
                if progress is not None:
                    progress(lines)

            yield work(shared, item, note)


TELL = 0.5  # seconds between two looks at how far all are
LOST = 10  # times that a process may be lost; work that crashes must not be tried for ever
FIGURES = 3  # in what a piece says of how far it is


@dataclass(frozen=True)
class Processes:
    """So many processes of one thread each: one for each core, unless told otherwise."""

    size: int = field(default_factory=lambda: os.cpu_count() or 1)

    def map(
        self,
        work: Callable[[Shared, Item, PieceProgress], Made],
        shared: Shared,
        items: Sequence[Item],
        *,
        progress: PoolProgress | None = None,
        gpus: float = 0.0,
    ) -> Iterator[Made]:
        """Yield what the work makes of each item, in their order; `work` is a function of a module.

        Where a piece fails, or the caller goes away (Ctrl-C, a kill), all processes end.
        """
        lines: Any = get_context("spawn").RawArray("q", max(1, FIGURES * len(items)))  # needs no lock: one writer each
        common = pickle.dumps((work, shared))
        made: dict[int, Made] = {}
        given = lost = 0
        while given < len(items):
            missing = [number for number in range(given, len(items)) if number not in made]
            try:
                for number, one in self._round(common, items, missing, lines, progress):
                    made[number] = one
                    while given in made:
                        yield made.pop(given)
                        given += 1
            except BrokenProcessPool as error:
                lost += 1
                if lost > LOST:
                    raise NeuronFairError(
                        f"processes were killed {lost} times: the memory may not suffice for {self.size}. Ask for "
                        "fewer with --workers"
                    ) from error

    def _round(
        self, common: bytes, items: Sequence[Any], missing: list[int], lines: Any, progress: PoolProgress | None
    ) -> Iterator[tuple[int, Any]]:
        """Yield the numbers of pieces and what was made of them, as they are done, until a process is lost."""
        context = get_context("spawn")
        watched, here = context.Pipe(duplex=False)
        pool = ProcessPoolExecutor(min(self.size, len(missing)), context, _prepare, (common, lines, watched))
        try:
            running = {pool.submit(_piece, number, items[number]): number for number in missing}
            while running:
                done = wait(running, TELL if progress is not None else None, FIRST_COMPLETED).done
                if progress is not None:
                    told = zip(*[iter(lines[: FIGURES * len(items)])] * FIGURES, strict=True)
                    progress([*told])
                for future in sorted(done, key=running.__getitem__):  # earlier results come before a later error
                    yield running.pop(future), future.result()
        finally:
            here.close()  # which ends those that still work
            pool.shutdown(cancel_futures=True)
            watched.close()


_kept: list[Any] = []  # in a process: the work and what its pieces share, and where they say how far they are


def _prepare(common: bytes, lines: Any, watched: Connection) -> None:
    # There are as many processes as cores; torch, if nobody has imported it yet, reads these.
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is told to all: the caller decides what ends
    threading.Thread(target=_end_with_caller, args=(watched,), daemon=True).start()
    _kept[:] = common, lines


def _end_with_caller(watched: Connection) -> None:
    try:
        watched.recv()
    except (EOFError, OSError):
        os._exit(1)


def _piece(number: int, item: Any) -> Any:
    """Do one piece, in a process."""
    common, lines = _kept
    if isinstance(common, bytes):  # read once, and here, so that what cannot be read is an error of a piece
        common = _kept[0] = pickle.loads(common)
    work, shared = common

    def note(*line: int) -> None:
        lines[FIGURES * number : FIGURES * (number + 1)] = line

    return work(shared, item, note)
