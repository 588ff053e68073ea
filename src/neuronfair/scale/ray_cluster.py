"""A Ray cluster does many pieces of work side by side: on all cores of this machine, or of many machines."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pickle import PicklingError
from typing import Any

from neuronfair.errors import NeuronFairError, needs, one_line
from neuronfair.scale.pool import Item, Made, PieceProgress, PoolProgress, Shared

LOCAL = "local"  # the address of a cluster of our own, on this machine
ADDRESS = re.compile(rf"{LOCAL}|auto|ray://\S+|[^\s/\\]+:\d+")
RETRIES = 100  # times that the worker of a piece may be lost; a model that crashes must not be tried for ever
TELL = 0.5  # seconds between two looks at how far all are
GRACE = 10.0  # seconds for a piece to keep what it has, when it is told to end


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
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns of what it will do one day
    said: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    path = os.environ.get("PYTHONPATH")
    if address == LOCAL:  # Ray may listen on all addresses nevertheless: see SECURITY.md; workers find our modules
        said |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        ray.init(address, **said)
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
    """Return the package of Ray; refuse an address where nobody listens, and where Ray itself would wait for ever."""
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


@dataclass(frozen=True)
class Ray:
    """The cluster that this process has joined."""

    @property
    def size(self) -> int:
        """How many pieces are done at the same time: one on each core."""
        return max(1, int(self._has("CPU")))

    def _has(self, resource: str) -> float:
        return float(needs("ray", "ray").cluster_resources().get(resource, 0.0))

    def map(
        self,
        work: Callable[[Shared, Item, PieceProgress], Made],
        shared: Shared,
        items: Sequence[Item],
        *,
        progress: PoolProgress | None = None,
        gpus: float = 0.0,
    ) -> Iterator[Made]:
        """Yield what the work makes of each item, in their order.

        Where a piece fails, or the caller goes away (Ctrl-C), the others are told to end, as Ctrl-C does it.
        """
        import ray

        if gpus and not self._has("GPU"):
            raise NeuronFairError("--device cuda: the cluster has no GPU")
        board = None
        if progress is not None:
            board = ray.remote(_Board).options(num_cpus=0, max_restarts=-1, **_here()).remote(len(items))
        takes = {"num_cpus": 1, "num_gpus": gpus, "max_retries": RETRIES}
        remote, common = ray.remote(_piece).options(**takes), _put((work, shared))
        refs = [remote.remote([common], item, number, board) for number, item in enumerate(items)]
        places = {ref: number for number, ref in enumerate(refs)}
        made: dict[int, Made] = {}
        waiting, given = refs, 0
        try:
            while given < len(refs):
                ready, _ = ray.wait(waiting, timeout=TELL)
                if ready:
                    ready, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=0)
                made |= {places[ref]: _taken(ref) for ref in ready}
                if progress is not None:
                    with suppress(ray.exceptions.RayError):  # its machine is gone: it comes again, on another
                        progress(ray.get(board.read.remote(), timeout=10 * TELL))  # type: ignore[union-attr]
                while given in made:
                    yield made.pop(given)
                    given += 1
        finally:
            _end(waiting)


class _Board:
    """Where all pieces write how far they are."""

    def __init__(self, pieces: int) -> None:
        self._lines = [(0, 0, 0)] * pieces

    def write(self, number: int, line: tuple[int, int, int]) -> None:
        self._lines[number] = line

    def read(self) -> list[tuple[int, int, int]]:
        return self._lines


def _here() -> dict[str, Any]:
    """Return what keeps an actor on the machine of the caller, as long as that is there."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True)}


_kept: dict[str, Any] = {}  # in a worker: the last work and what its pieces share, so that it is read once


def _piece(common: list[Any], item: Any, number: int, board: Any) -> Any:
    """Do one piece, in a worker."""
    import ray
    import torch

    torch.set_num_threads(1)  # there is a worker for each core
    name = common[0].hex()
    if name not in _kept:
        _kept.clear()
        _kept[name] = ray.get(common[0])
    work, shared = _kept[name]
    last, told = (0, 0, 0), 0.0

    def note(*line: int) -> None:
        nonlocal last, told
        last = line  # type: ignore[assignment]
        if board is not None and time.monotonic() - told > TELL:
            board.write.remote(number, last)
            told = time.monotonic()

    made = work(shared, item, note)
    if board is not None:
        board.write.remote(number, last)
    return made


def _put(common: Any) -> Any:
    """Put what all pieces need where they can get it."""
    import ray

    try:
        return ray.put(common)
    except (TypeError, AttributeError, ValueError, RuntimeError, PicklingError) as error:
        raise NeuronFairError(
            f"--ray: the model, or what it is searched with, cannot be sent to other processes: {one_line(error)}"
        ) from error


def _taken(ref: Any) -> Any:
    """Return what a piece has made; what it raised is raised here, in one line if its machine lacks something."""
    import ray

    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, OSError | ImportError | ray.exceptions.RayError):
            said = NeuronFairError(str(cause).partition("\n")[0])  # below it Ray shows a traceback of the worker
            raise NeuronFairError(f"--ray: on a machine of the cluster: {one_line(said)}") from error
        raise cause from error
    except ray.exceptions.RayError as error:
        raise NeuronFairError(f"--ray: a piece of the work was lost {RETRIES} times: {one_line(error)}") from error


def _end(refs: list[Any]) -> None:
    """Tell pieces to end; after a while, make them."""
    import ray

    for ref in refs:
        ray.cancel(ref)
    _, left = ray.wait(refs, num_returns=len(refs), timeout=GRACE) if refs else ([], [])
    for ref in left:
        ray.cancel(ref, force=True)
