"""Tasks that do not depend on each other: done in threads, or by forks of this process, which share its memory.

Nothing is sent to a fork, so models and tables need not be pickled; a result comes back as a pickle. A fork has the
locks and the pools of threads as they were, so a process whose other threads are unknown does all tasks itself.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")
MAX_PROCESSES = 4  # of one computation: each takes memory
MAX_TASKS = 10_000  # tasks whose numbers fit into a pipe
_NUMBER = struct.Struct("<H")
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux
# Libraries with threads of their own that do not survive a fork.
_THREADED = ("catboost", "grpc", "jax", "lightgbm", "onnxruntime", "ray", "tensorflow", "xgboost")


def count_usable_cores() -> int:
    """Return how many processes may work at the same time: one for each core, up to a limit; 1 where none can fork."""
    if sys.platform != "linux" or any(name in sys.modules for name in _THREADED):
        return 1
    return min(MAX_PROCESSES, len(os.sched_getaffinity(0)))


def has_other_threads() -> bool:
    """Return whether this process has threads besides this one and those of OpenBLAS, which end before a fork."""
    from threadpoolctl import threadpool_info

    blas: int = sum(pool["num_threads"] - 1 for pool in threadpool_info() if pool["internal_api"] == "openblas")
    return len(os.listdir("/proc/self/task")) > 1 + blas  # noqa: PTH208 - not a folder of files


@contextmanager
def one_torch_thread(condition: bool = True) -> Iterator[None]:
    """Let torch compute in one thread where several would mostly wait for each other; restore their number then."""
    before = torch.get_num_threads()
    if condition:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if condition:
            torch.set_num_threads(before)


@contextmanager
def one_thread(condition: bool = True) -> Iterator[None]:
    """Let torch and all other libraries compute in one thread, so that processes share the cores."""
    from threadpoolctl import threadpool_limits

    with one_torch_thread(condition), threadpool_limits(1) if condition else nullcontext():
        yield


@dataclass(frozen=True)
class Threads:
    """Threads that work on one part each, which is faster than several threads for each small operation."""

    count: int
    pool: ThreadPoolExecutor | None

    def map(self, work: Callable[[T], R], parts: Iterable[T]) -> list[R]:
        """Return the results of all parts, in their order."""

        def quietly(part: T) -> R:
            with torch.no_grad():  # a thread has its own setting
                return work(part)

        return list(map(work, parts) if self.pool is None else self.pool.map(quietly, parts))


@contextmanager
def threads(device: torch.device) -> Iterator[Threads]:
    """Return as many threads as torch would use for an operation on the CPU; one on a GPU."""
    count = torch.get_num_threads() if device.type == "cpu" else 1
    if count == 1:
        yield Threads(1, None)
        return
    with one_torch_thread(), ThreadPoolExecutor(count) as pool:
        yield Threads(count, pool)


@dataclass(frozen=True)
class _Outcome:
    """What became of a task: its result or its error, and the seconds that it took."""

    value: Any
    error: Exception | None
    seconds: float


class Tasks:
    """Functions without arguments, done side by side in the order of their numbers.

    Forks begin at once; this process does those that are left when it asks for results. A task whose fork is lost is
    done again here. Without forks, a task is done when its result is needed. Leaving the block ends all forks.
    """

    def __init__(self, works: Sequence[Callable[[], Any]], processes: int = 1) -> None:
        self._works, self._outcomes = list(works), dict[int, _Outcome]()
        self._forks: dict[int, int] = {}  # the process, and the pipe from which its results are read
        forks = min(processes - 1, len(works)) if len(works) <= MAX_TASKS else 0
        self._queue = -1
        if forks > 0:
            self._queue, fill = os.pipe()
            os.write(fill, b"".join(map(_NUMBER.pack, range(len(works)))))
            os.close(fill)
            with suppress(OSError):  # no process or pipe is left: this process does the tasks of those missing
                for _ in range(forks):
                    self._fork()
            if not self._forks:
                self._close_queue()

    def __enter__(self) -> Tasks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process, pipe in self._forks.items():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            os.close(pipe)
        self._forks = {}
        self._close_queue()

    def _close_queue(self) -> None:
        if self._queue >= 0:
            os.close(self._queue)
            self._queue = -1

    @property
    def forked(self) -> bool:
        """Whether other processes have begun with the tasks."""
        return self._queue >= 0

    def seconds(self, numbers: Iterable[int]) -> float:
        """Return how long some tasks took that are done, added up."""
        return sum(self._outcomes[number].seconds for number in numbers)

    def results(self, numbers: Iterable[int]) -> list[Any]:
        """Return the results of some tasks; an error of one of them is raised.

        Ctrl-C ends all tasks. A task that ends early on Ctrl-C has a result, which can be asked for again.
        """
        try:
            if self._forks:
                self._run_tasks(self._outcomes)
                self._collect()
        except KeyboardInterrupt:
            self.interrupt()
            raise
        values = []
        for number in numbers:
            if number not in self._outcomes:
                self._outcomes[number] = self._run_task(number)
            outcome = self._outcomes[number]
            if outcome.error is not None:
                raise outcome.error
            values.append(outcome.value)
        return values

    def interrupt(self) -> None:
        """Interrupt all forks, and keep the results that they have."""
        while self._forks and os.read(self._queue, _NUMBER.size):  # no other process begins a task
            pass
        for process in self._forks:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGINT)
        self._collect()

    def is_done(self, number: int) -> bool:
        """Return whether a task has a result."""
        return number in self._outcomes and self._outcomes[number].error is None

    def _run_task(self, number: int) -> _Outcome:
        start = time.perf_counter()
        value, error = None, None
        try:
            value = self._works[number]()
        except Exception as raised:
            error = raised
        return _Outcome(value, error, time.perf_counter() - start)

    def _run_tasks(self, results: dict[int, _Outcome]) -> None:
        """Do tasks until none is left that no process has begun."""
        while data := os.read(self._queue, _NUMBER.size):  # whole numbers: no process reads or writes a part of one
            (number,) = _NUMBER.unpack(data)
            results[number] = self._run_task(number)

    def _collect(self) -> None:
        for process, pipe in list(self._forks.items()):
            content = bytearray()
            while part := os.read(pipe, 1 << 20):
                content += part
            if content:
                with suppress(pickle.UnpicklingError, EOFError):  # of a process that was killed while it wrote
                    self._outcomes |= pickle.loads(content)
            del self._forks[process]
            os.close(pipe)
            os.waitpid(process, 0)

    def _fork(self) -> None:
        """Fork a process that does tasks until none is left and then sends its results."""
        read, write = os.pipe()
        caller = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads: those of pools, which idle
            try:
                process = os.fork()
            except OSError:
                os.close(read)
                os.close(write)
                raise
        if process:
            os.close(write)
            self._forks[process] = read
            return
        try:
            ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)  # when the caller is killed
            if os.getppid() == caller:
                os.close(read)
                with one_thread():
                    results = dict[int, _Outcome]()
                    with suppress(KeyboardInterrupt):
                        self._run_tasks(results)
                    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C must not cut off the results
                    content = pickle.dumps({number: r for number, r in results.items() if _can_be_sent(r.error)})
                with os.fdopen(write, "wb") as pipe:
                    pipe.write(content)
        finally:  # a result that cannot be sent is missing, so that the caller does the task again
            os._exit(0)


def _can_be_sent(error: Exception | None) -> bool:
    try:
        return error is None or type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:  # whatever an exception of a user's class does
        return False
