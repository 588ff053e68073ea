"""Pools that do many pieces of work: one after the other, in processes, or on a cluster (`scale/ray_cluster.py`)."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from neuronfair.errors import NeuronFairError
from neuronfair.progress import PieceProgress, PoolProgress

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Made = TypeVar("Made")

REPORT_SECONDS = 0.5  # between two looks at the progress of all pieces


@dataclass(frozen=True)
class PoolTask:
    """The pieces of one call of `map`."""

    work: Callable[[Any, Any, PieceProgress], Any]
    shared: Any
    items: Sequence[Any]
    progress: PoolProgress | None
    gpus: float


class Pool(ABC):
    """Does pieces of work side by side. A piece may be done again, elsewhere, when its worker is killed."""

    size: int  # how many pieces are done at the same time, about

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

        `work` is a function of a module, and `shared` is sent to each worker once. An exception in a piece ends all
        pieces and is raised here; so does leaving the iterator. When a worker or its machine is lost, its piece starts
        again from whatever it has saved itself. `gpus` is how many GPUs a piece takes.
        """
        made: dict[int, Made] = {}
        following = 0
        with closing(self._completed(PoolTask(work, shared, items, progress, gpus))) as completed:
            for number, result in completed:
                made[number] = result
                while following in made:
                    yield made.pop(following)
                    following += 1

    @abstractmethod
    def _completed(self, task: PoolTask) -> Generator[tuple[int, Any], None, None]:
        """Yield the number and the result of each piece as it is completed."""


@dataclass(frozen=True)
class Serial(Pool):
    """This process: one piece after the other."""

    size: int = 1

    def _completed(self, task: PoolTask) -> Generator[tuple[int, Any], None, None]:
        lines: list[tuple[int, int, int]] = [(0, 0, 0)] * len(task.items)
        for number, item in enumerate(task.items):

            def note(*counts: Any, number: int = number) -> None:
                lines[number] = counts
                if task.progress is not None:
                    task.progress(lines)

            yield number, task.work(task.shared, item, note)


MOST_LOSSES = 10  # times that a process may be killed: work that crashes must not be repeated for ever
COUNTS = 3  # numbers in the progress of a piece


@dataclass(frozen=True)
class Processes(Pool):
    """Processes of one thread each; by default one for each core."""

    size: int = field(default_factory=lambda: os.cpu_count() or 1)

    def _completed(self, task: PoolTask) -> Generator[tuple[int, Any], None, None]:
        # The array needs no lock: each piece writes to its own line.
        lines: Any = get_context("spawn").RawArray("q", max(1, COUNTS * len(task.items)))
        common = pickle.dumps((task.work, task.shared))
        missing, losses = list(range(len(task.items))), 0
        while missing:
            try:
                for number, result in self._round(task, common, lines, missing):
                    missing.remove(number)
                    yield number, result
            except BrokenProcessPool as error:
                losses += 1
                if losses > MOST_LOSSES:
                    raise NeuronFairError(
                        f"processes were killed {losses} times: the memory may not suffice for {self.size}. Ask for "
                        "fewer with --workers"
                    ) from error

    def _round(self, task: PoolTask, common: bytes, lines: Any, missing: list[int]) -> Iterator[tuple[int, Any]]:
        """Yield the results of the missing pieces as they are completed, until a process is lost."""
        context = get_context("spawn")
        watched, here = context.Pipe(duplex=False)
        pool = ProcessPoolExecutor(min(self.size, len(missing)), context, _prepare, (common, lines, watched))
        try:
            running = {pool.submit(_piece, number, task.items[number]): number for number in missing}
            while running:
                done = wait(running, REPORT_SECONDS if task.progress is not None else None, FIRST_COMPLETED).done
                if task.progress is not None:
                    task.progress([*zip(*[iter(lines[: COUNTS * len(task.items)])] * COUNTS, strict=True)])
                for future in sorted(done, key=running.__getitem__):  # earlier results come before a later error
                    yield running.pop(future), future.result()
        finally:
            here.close()  # ends the processes that still work
            pool.shutdown(cancel_futures=True)
            watched.close()


_common: list[Any] = []  # in a process: the work with what its pieces share, and the array for progress


def _prepare(common: bytes, lines: Any, watched: Connection) -> None:
    # There are as many processes as cores; torch, if it is not imported yet, reads these variables.
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the caller decides what ends
    threading.Thread(target=_end_with_caller, args=(watched,), daemon=True).start()
    _common[:] = common, lines


def _end_with_caller(watched: Connection) -> None:
    try:
        watched.recv()
    except (EOFError, OSError):
        os._exit(1)


def _piece(number: int, item: Any) -> Any:
    """Do one piece, in a process."""
    common, lines = _common
    if isinstance(common, bytes):  # unpickled once, and here, so that a failure is an error of a piece
        common = _common[0] = pickle.loads(common)
    work, shared = common

    def note(*counts: int) -> None:
        lines[COUNTS * number : COUNTS * (number + 1)] = counts

    return work(shared, item, note)
