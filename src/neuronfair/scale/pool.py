"""Pools that do many pieces of work: one after the other, in processes, or on a Ray cluster of many machines."""

from __future__ import annotations

import logging
import os
import pickle
import re
import signal
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pickle import PicklingError
from typing import Any, TypeVar

from neuronfair.errors import NeuronFairError, one_line, require
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
        results: dict[int, Made] = {}
        following = 0
        with closing(self._run_pieces(PoolTask(work, shared, items, progress, gpus))) as completed:
            for number, result in completed:
                results[number] = result
                while following in results:
                    yield results.pop(following)
                    following += 1

    @abstractmethod
    def _run_pieces(self, task: PoolTask) -> Generator[tuple[int, Any], None, None]:
        """Yield the number and the result of each piece as it is completed."""


@dataclass(frozen=True)
class Serial(Pool):
    """This process: one piece after the other."""

    size: int = 1

    def _run_pieces(self, task: PoolTask) -> Generator[tuple[int, Any], None, None]:
        lines: list[tuple[int, int, int]] = [(0, 0, 0)] * len(task.items)
        for number, item in enumerate(task.items):

            def note(*counts: Any, number: int = number) -> None:
                lines[number] = counts
                if task.progress is not None:
                    task.progress(lines)

            yield number, task.work(task.shared, item, note)


MAX_LOSSES = 10  # times that a process may be killed: work that crashes must not be repeated for ever
COUNTS = 3  # numbers in the progress of a piece


@dataclass(frozen=True)
class Processes(Pool):
    """Processes of one thread each; by default one for each core."""

    size: int = field(default_factory=lambda: os.cpu_count() or 1)

    def _run_pieces(self, task: PoolTask) -> Generator[tuple[int, Any], None, None]:
        # The array needs no lock: each piece writes to its own line.
        lines: Any = get_context("spawn").RawArray("q", max(1, COUNTS * len(task.items)))
        with _explain_unsendable("--workers"):
            common = pickle.dumps((task.work, task.shared))
            items = [pickle.dumps(item) for item in task.items]
        missing, losses = list(range(len(task.items))), 0
        while missing:
            try:
                for number, result in self._round(common, items, lines, missing, task.progress):
                    missing.remove(number)
                    yield number, result
            except BrokenProcessPool as error:
                losses += 1
                if losses > MAX_LOSSES:
                    raise NeuronFairError(
                        f"processes were killed {losses} times: the memory may not suffice for {self.size}. Ask for "
                        "fewer with --workers"
                    ) from error

    def _round(
        self, common: bytes, items: list[bytes], lines: Any, missing: list[int], progress: PoolProgress | None
    ) -> Iterator[tuple[int, Any]]:
        """Yield the results of the missing pieces as they are completed, until a process is lost."""
        context = get_context("spawn")
        watched, caller_end = context.Pipe(duplex=False)
        pool = ProcessPoolExecutor(min(self.size, len(missing)), context, _prepare, (common, lines, watched))
        try:
            running = {pool.submit(_run_piece, number, items[number]): number for number in missing}
            while running:
                finished = wait(running, REPORT_SECONDS if progress is not None else None, FIRST_COMPLETED).done
                if progress is not None:
                    progress([*zip(*[iter(lines[: COUNTS * len(items)])] * COUNTS, strict=True)])
                for future in sorted(finished, key=running.__getitem__):  # earlier results come before a later error
                    yield running.pop(future), future.result()
        finally:
            caller_end.close()  # ends the processes that still work
            pool.shutdown(cancel_futures=True)
            watched.close()


@contextmanager
def _explain_unsendable(option: str) -> Iterator[None]:
    """Say in one line that something cannot be sent to other processes."""
    try:
        yield
    except (TypeError, AttributeError, ValueError, RuntimeError, ImportError, PicklingError) as error:
        raise NeuronFairError(
            f"{option}: the model, or a function or an object that comes with it, cannot be sent to other processes: "
            f"{one_line(error)}. Define functions and classes in a module, or work in one process"
        ) from error


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


def _run_piece(number: int, content: bytes) -> Any:
    common, lines = _common
    with _explain_unsendable("--workers"):
        if isinstance(common, bytes):  # unpickled once, and here, so that a failure is an error of a piece
            common = _common[0] = pickle.loads(common)
        item = pickle.loads(content)
    work, shared = common

    def note(*counts: int) -> None:
        lines[COUNTS * number : COUNTS * (number + 1)] = counts

    return work(shared, item, note)


LOCAL_ADDRESS = "local"  # the address that starts a cluster on this machine
ADDRESS = re.compile(rf"{LOCAL_ADDRESS}|auto|ray://\S+|[^\s/\\]+:\d+")
MAX_RETRIES = 100  # times that the worker of a piece may be lost: a model that crashes must not be repeated for ever
GRACE_SECONDS = 10.0  # seconds for a cancelled piece to save what it has


@contextmanager
def cluster(address: str = LOCAL_ADDRESS) -> Iterator[Ray]:
    """Start a cluster on this machine that ends with the block, or join the one at an address.

    A process that has joined one already stays there, whatever the address.
    """
    ray = check_address(address)
    if ray.is_initialized():
        yield Ray()
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # otherwise Ray warns of a coming change
    path = os.environ.get("PYTHONPATH")
    local: dict[str, object] = {}
    if address == LOCAL_ADDRESS:  # Ray may listen on all addresses nevertheless: see SECURITY.md
        local = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # so that workers find our modules
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **local)
    except (OSError, RuntimeError, ValueError, ImportError) as error:  # ConnectionError is an OSError
        raise NeuronFairError(f"--ray {address}: no cluster could be joined there: {one_line(error)}") from error
    finally:
        os.environ.pop("PYTHONPATH", None)
        os.environ |= {} if path is None else {"PYTHONPATH": path}
    try:
        yield Ray()
    finally:
        ray.shutdown()


def check_address(address: str) -> Any:
    """Return the module `ray`; refuse an address where no cluster listens: Ray itself would wait for ever."""
    ray = require("ray", "ray", "--ray", NeuronFairError)
    if not ADDRESS.fullmatch(address):
        raise NeuronFairError(f"--ray {address}: expected auto, HOST:PORT or ray://HOST:PORT, or nothing behind --ray")
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and not ray.is_initialized():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except (OSError, ValueError, OverflowError) as error:
            raise NeuronFairError(f"--ray {address}: no cluster answers there ({one_line(error)})") from None
    return ray


def _count_resource(name: str) -> float:
    return float(require("ray", "ray").cluster_resources().get(name, 0.0))


@dataclass(frozen=True)
class Ray(Pool):
    """The cluster that this process has joined; one piece runs on each core."""

    size: int = field(default_factory=lambda: max(1, int(_count_resource("CPU"))))

    def _run_pieces(self, task: PoolTask) -> Generator[tuple[int, Any], None, None]:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if task.gpus and not _count_resource("GPU"):
            raise NeuronFairError("--device cuda: the cluster has no GPU")
        board = None
        if task.progress is not None:
            # On the machine of the caller, as long as that one lives.
            strategy = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
            options = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": strategy}
            board = ray.remote(_Board).options(**options).remote(len(task.items))
        remote = ray.remote(_run_ray_piece).options(num_cpus=1, num_gpus=task.gpus, max_retries=MAX_RETRIES)
        with _explain_unsendable("--ray"):
            common = ray.put((task.work, task.shared))
        refs = [remote.remote([common], item, number, board) for number, item in enumerate(task.items)]
        numbers = {ref: number for number, ref in enumerate(refs)}
        waiting = refs
        try:
            while waiting:
                ready, _ = ray.wait(waiting, timeout=REPORT_SECONDS)
                if ready:
                    ready, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=0)
                results = {numbers[ref]: _fetch_result(ref) for ref in ready}
                if task.progress is not None:
                    with suppress(ray.exceptions.RayError):  # its machine is lost: it starts again on another one
                        task.progress(ray.get(board.read.remote(), timeout=10 * REPORT_SECONDS))  # type: ignore[union-attr]
                yield from results.items()
        finally:
            _cancel(waiting)


class _Board:
    """An actor that holds the progress of all pieces."""

    def __init__(self, pieces: int) -> None:
        self._lines = [(0, 0, 0)] * pieces

    def write(self, number: int, line: tuple[int, int, int]) -> None:
        self._lines[number] = line

    def read(self) -> list[tuple[int, int, int]]:
        return self._lines


_ray_common: tuple[str, Any] = ("", None)  # in a worker: the last work with what its pieces share, unpickled once


def _run_ray_piece(common: list[Any], item: Any, number: int, board: Any) -> Any:
    global _ray_common
    import ray
    import torch

    torch.set_num_threads(1)  # there is a worker for each core
    name = common[0].hex()
    if name != _ray_common[0]:
        _ray_common = "", None  # frees its memory before the next one is read
        _ray_common = name, ray.get(common[0])
    work, shared = _ray_common[1]
    last, reported = (0, 0, 0), 0.0

    def note(*counts: int) -> None:
        nonlocal last, reported
        last = counts  # type: ignore[assignment]
        if board is not None and time.monotonic() - reported > REPORT_SECONDS:
            board.write.remote(number, last)
            reported = time.monotonic()

    result = work(shared, item, note)
    if board is not None:
        board.write.remote(number, last)
    return result


def _fetch_result(ref: Any) -> Any:
    """Return the result of a piece, or raise its error; in one line if its machine lacks something."""
    import ray

    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, OSError | ImportError | ray.exceptions.RayError):
            first = NeuronFairError(str(cause).partition("\n")[0])  # Ray shows a traceback of the worker below it
            raise NeuronFairError(f"--ray: on a machine of the cluster: {one_line(first)}") from error
        raise cause from error
    except ray.exceptions.RayError as error:
        raise NeuronFairError(f"--ray: a piece of the work was lost {MAX_RETRIES} times: {one_line(error)}") from error


def _cancel(refs: list[Any]) -> None:
    """Cancel pieces; kill those that have not ended after `GRACE_SECONDS` seconds."""
    import ray

    for ref in refs:
        ray.cancel(ref)
    _, left = ray.wait(refs, num_returns=len(refs), timeout=GRACE_SECONDS) if refs else ([], [])
    for ref in left:
        ray.cancel(ref, force=True)
