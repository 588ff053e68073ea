"""A pool of Ray workers: all cores of this machine, or of many machines."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pickle import PicklingError
from typing import Any

from neuronfair.errors import NeuronFairError, needs, one_line
from neuronfair.scale.pool import REPORT_SECONDS, Pool, PoolTask

LOCAL = "local"  # the address that starts a cluster on this machine
ADDRESS = re.compile(rf"{LOCAL}|auto|ray://\S+|[^\s/\\]+:\d+")
RETRIES = 100  # times that the worker of a piece may be lost: a model that crashes must not be repeated for ever
GRACE = 10.0  # seconds for a cancelled piece to save what it has


@contextmanager
def cluster(address: str = LOCAL) -> Iterator[Ray]:
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
    if address == LOCAL:  # Ray may listen on all addresses nevertheless: see SECURITY.md
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
    ray = needs("ray", "ray", "--ray", NeuronFairError)
    if not ADDRESS.fullmatch(address):
        raise NeuronFairError(f"--ray {address}: expected auto, HOST:PORT or ray://HOST:PORT, or nothing behind --ray")
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and not ray.is_initialized():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except (OSError, ValueError, OverflowError) as error:
            raise NeuronFairError(f"--ray {address}: no cluster answers there ({one_line(error)})") from None
    return ray


def _cores() -> int:
    return max(1, int(_resource("CPU")))


def _resource(name: str) -> float:
    return float(needs("ray", "ray").cluster_resources().get(name, 0.0))


@dataclass(frozen=True)
class Ray(Pool):
    """The cluster that this process has joined; one piece runs on each core."""

    size: int = field(default_factory=_cores)

    def _completed(self, task: PoolTask) -> Generator[tuple[int, Any], None, None]:
        import ray

        if task.gpus and not _resource("GPU"):
            raise NeuronFairError("--device cuda: the cluster has no GPU")
        board = None
        if task.progress is not None:
            board = ray.remote(_Board).options(num_cpus=0, max_restarts=-1, **_here()).remote(len(task.items))
        remote = ray.remote(_piece).options(num_cpus=1, num_gpus=task.gpus, max_retries=RETRIES)
        common = _put((task.work, task.shared))
        refs = [remote.remote([common], item, number, board) for number, item in enumerate(task.items)]
        numbers = {ref: number for number, ref in enumerate(refs)}
        waiting = refs
        try:
            while waiting:
                ready, _ = ray.wait(waiting, timeout=REPORT_SECONDS)
                if ready:
                    ready, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=0)
                results = {numbers[ref]: _result(ref) for ref in ready}
                if task.progress is not None:
                    with suppress(ray.exceptions.RayError):  # its machine is lost: it starts again on another one
                        task.progress(ray.get(board.read.remote(), timeout=10 * REPORT_SECONDS))  # type: ignore[union-attr]
                yield from results.items()
        finally:
            _end(waiting)


class _Board:
    """An actor that holds the progress of all pieces."""

    def __init__(self, pieces: int) -> None:
        self._lines = [(0, 0, 0)] * pieces

    def write(self, number: int, line: tuple[int, int, int]) -> None:
        self._lines[number] = line

    def read(self) -> list[tuple[int, int, int]]:
        return self._lines


def _here() -> dict[str, object]:
    """Return the options that keep an actor on the machine of the caller, as long as that one lives."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True)}


_common: tuple[str, Any] = ("", None)  # in a worker: the last work with what its pieces share, unpickled once


def _piece(common: list[Any], item: Any, number: int, board: Any) -> Any:
    """Do one piece, in a worker."""
    global _common
    import ray
    import torch

    torch.set_num_threads(1)  # there is a worker for each core
    name = common[0].hex()
    if name != _common[0]:
        _common = "", None  # frees its memory before the next one is read
        _common = name, ray.get(common[0])
    work, shared = _common[1]
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


def _put(common: Any) -> Any:
    """Put what all pieces share into the object store."""
    import ray

    try:
        return ray.put(common)
    except (TypeError, AttributeError, ValueError, RuntimeError, PicklingError) as error:
        raise NeuronFairError(
            f"--ray: the model, or what it is searched with, cannot be sent to other processes: {one_line(error)}"
        ) from error


def _result(ref: Any) -> Any:
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
        raise NeuronFairError(f"--ray: a piece of the work was lost {RETRIES} times: {one_line(error)}") from error


def _end(refs: list[Any]) -> None:
    """Cancel pieces; kill those that have not ended after `GRACE` seconds."""
    import ray

    for ref in refs:
        ray.cancel(ref)
    _, left = ray.wait(refs, num_returns=len(refs), timeout=GRACE) if refs else ([], [])
    for ref in left:
        ray.cancel(ref, force=True)
