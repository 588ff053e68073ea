"""Chains of a phase in forked processes, each of which steps a share of them; this process counts what they find.

The processes run a few blocks of steps ahead of the counting. A chain takes the same path as in one process, to the
last bit, and the steps come back in the order of steps and chains, so the result does not tell how many there were.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import torch

from neuronfair.errors import NeuronFairError, one_line
from neuronfair.model.network import Network
from neuronfair.searches.evaluate import ROW_MULTIPLE
from neuronfair.searches.method import SearchContext, State
from neuronfair.searches.stepping import Chains, EvaluatedStep, join_states

MIN_CHAINS = 128  # of a process: fewer cost more than they save
MIN_ROWS = 20_000  # of a phase
ROWS_PER_BLOCK = 1 << 13  # rows that a process sends together
BLOCKS_AHEAD = 3  # blocks that are ordered before they are counted
MAX_PROCESSES = 8  # processes: more of them wait for the one that counts
MAX_START_SECONDS = 10.0  # seconds to start in, after which the phase is stepped in one process
_FOREIGN_LIBRARIES = ("jax", "tensorflow")  # their threads may hold locks for ever in a fork


def default_workers() -> int:
    """Return how many processes to search in by default: one for each core that this process may use."""
    return min(MAX_PROCESSES, len(os.sched_getaffinity(0))) if sys.platform == "linux" else 1


def can_fork() -> bool:
    """Return whether a fork is safe here: no other thread of Python may hold a lock that the child needs."""
    # The threads of progress bars hold none, and neither do idle threads of torch.
    threads = [t for t in threading.enumerate() if not type(t).__module__.startswith(("rich.", "tqdm."))]
    is_only_thread = threads == [threading.current_thread()] and not current_process().daemon
    has_foreign_threads = torch.cuda.is_available() or any(name in sys.modules for name in _FOREIGN_LIBRARIES)
    return sys.platform == "linux" and is_only_thread and not has_foreign_threads


def choose_team_size(context: SearchContext, chains: int, rows: int, workers: int) -> int:
    """Return how many processes step the chains of a phase with so many rows; 1: this one alone."""
    network = context.network
    plain = isinstance(network, Network) and network.dtype in (torch.float32, torch.float64)
    if not plain or context.domain.device.type != "cpu" or rows < MIN_ROWS or not can_fork():
        return 1
    return max(1, min(workers, chains // MIN_CHAINS))


class _BlockResult(NamedTuple):
    """What a process did in a block of steps."""

    sizes: list[int]  # chains in each step
    lines: list[Any]  # the fields of EvaluatedStep for all of them, as arrays of numpy
    forward: int  # rows through the network
    backward: int
    left: int  # chains


class _ChainStates(NamedTuple):
    """The chains of a process at the end of a block."""

    end: int
    state: dict[str, Any]  # arrays of numpy


@dataclass
class _Process:
    """A forked process, as the counting one sees it."""

    orders: Connection
    results: SimpleQueue[object]

    def result(self, timeout: float | None = None) -> object:
        """Return the next result; raise the error that ended the process."""
        result = self.results.get(timeout=timeout)
        if isinstance(result, BaseException):
            raise result
        return result


@dataclass
class ForkedChains:
    """The chains of a phase in forked processes; it works like `Chains`."""

    network: Network
    team: list[_Process]
    current: State  # as last sent
    t: int
    left: int
    steps: int  # of the phase
    interval: int  # steps between two checkpoints, at which a block ends
    saved: bool  # whether checkpoints save the chains
    _ends: deque[int] = field(default_factory=deque)  # of the blocks that are ordered and not counted

    def __post_init__(self) -> None:
        self._end = self.t  # of the block that was counted last
        self._now_at = self.t  # the block after which the chains were sent

    def __len__(self) -> int:
        return self.left

    def advance(self) -> list[tuple[int, EvaluatedStep]]:
        """Take the steps of a block, and return them with their numbers, each in parts."""
        self._order()
        self._end = self._ends.popleft()
        blocks = [block for block in (process.result() for process in self.team) if isinstance(block, _BlockResult)]
        self.network.rows_forward += sum(block.forward for block in blocks)
        self.network.rows_backward += sum(block.backward for block in blocks)
        parts, first = [_unpack_block(block) for block in blocks], self.t
        self.t += max(map(len, parts))
        self.left = sum(block.left for block in blocks)
        return [(t, part[t - first]) for t in range(first, self.t) for part in parts if t - first < len(part)]

    def _order(self) -> None:
        """Order blocks ahead, and the chains where a checkpoint will save them."""
        size = max(1, ROWS_PER_BLOCK * len(self.team) // max(1, self.left))
        while len(self._ends) < BLOCKS_AHEAD and (last := self._ends[-1] if self._ends else self.t) < self.steps:
            end = min(last + size, self.steps, (last // self.interval + 1) * self.interval)
            self._ends.append(end)
            self._tell(end, of_chains=False)
            if self._is_saved(end):
                self._tell(end, of_chains=True)

    def _is_saved(self, end: int) -> bool:
        return self.saved and (end % self.interval == 0 or end == self.steps)

    def _tell(self, end: int, *, of_chains: bool) -> None:
        for process in self.team:
            with suppress(OSError):  # it has ended: its last result says why
                process.orders.send((end, of_chains))

    def state(self) -> State:
        """Return the chains after the last step that was counted; later ones that are under way are dropped."""
        if self._now_at != self._end:
            if not self._is_saved(self._end):
                self._tell(self._end, of_chains=True)
            self.current, self._now_at = join_states([self._chains(process) for process in self.team]), self._end
        return self.current

    def _chains(self, process: _Process) -> State:
        while not isinstance(result := process.result(), _ChainStates) or result.end != self._end:
            pass
        return {name: torch.from_numpy(array) for name, array in result.state.items()}


@contextmanager
def fork_chains(
    chains: Chains, network: Network, size: int, *, steps: int, interval: int, saved: bool
) -> Iterator[Chains | ForkedChains]:
    """Yield the chains dealt to forked processes, which end with the block; as they are if that is not possible."""
    # Full batches, so that few rows are computed in vain.
    chains_per_process = -(-len(chains) // (size * ROW_MULTIPLE)) * ROW_MULTIPLE
    threads: list[threading.Thread] = []

    def join_threads() -> None:  # or the next phase could not fork
        for thread in threads:
            thread.join()

    with ExitStack() as stack:
        stack.callback(join_threads)  # comes last, when all processes have ended
        team: list[_Process] = []
        ends: list[Connection] = []  # of this process, which the next fork would keep open
        try:
            shares = zip(*(torch.split(tensor, chains_per_process) for tensor in chains.current.values()), strict=True)
            states = [dict(zip(chains.current, share, strict=True)) for share in shares]
            connections = [_start_process(replace(chains, current=state), network, ends, stack) for state in states]
            for orders, results in connections:  # threads start after the last fork
                queue: SimpleQueue[object] = SimpleQueue()
                threads.append(threading.Thread(target=_receive, args=(results, queue), daemon=True))
                threads[-1].start()
                team.append(_Process(orders, queue))
            for process in team:
                process.result(MAX_START_SECONDS)
        except (Empty, NeuronFairError, OSError):  # the last: no process or pipe is left
            stack.close()
            team = []
        state = chains.current
        yield ForkedChains(network, team, state, chains.t, len(chains), steps, interval, saved) if team else chains


def _start_process(
    share: Chains, network: Network, ends: list[Connection], stack: ExitStack
) -> tuple[Connection, Connection]:
    """Fork a process for a share of the chains, and return our ends of its pipes."""
    context = get_context("fork")
    (commands, orders), (results, answers) = context.Pipe(duplex=False), context.Pipe(duplex=False)
    ends += [orders, results]
    process = context.Process(target=_work, args=(share, network, commands, answers, tuple(ends)), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # `can_fork` has looked at the threads
        process.start()
    commands.close()
    answers.close()
    stack.callback(process.join)
    stack.callback(process.kill)
    return orders, results


def _receive(results: Connection, queue: SimpleQueue[object]) -> None:
    """Take results as they come, so that no process waits for the counting."""
    with suppress(EOFError, OSError), results:
        while True:
            queue.put(pickle.loads(results.recv_bytes()))
    queue.put(NeuronFairError("a process of the search was killed: the memory may not suffice for several"))


def _work(share: Chains, network: Network, orders: Connection, results: Connection, ends: tuple[Connection]) -> None:
    """Step a share of the chains as ordered, in a forked process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the caller decides what ends
    for end in ends:
        end.close()  # or this process would not notice that the caller has ended
    try:
        torch.set_num_threads(1)
        results.send(None)
        serve(share, network, orders, results)
    except (EOFError, OSError):
        pass  # the caller has ended
    except BaseException as error:
        with suppress(OSError):
            results.send_bytes(_pickle_error(error))
    os._exit(0)


def serve(share: Chains, network: Network, orders: Connection, results: Connection) -> None:
    """Do what is ordered: a block of steps up to a number, or the chains at the end of such a block."""
    recent_chains = deque([_pack_chains(share, share.t)], maxlen=BLOCKS_AHEAD + 1)
    while True:
        end, of_chains = orders.recv()
        if of_chains:
            result: object = next(chains for chains in recent_chains if chains.end == end)
        else:
            result = _step_block(share, network, end)
            recent_chains.append(_pack_chains(share, end))
        results.send_bytes(pickle.dumps(result, pickle.HIGHEST_PROTOCOL))


def _pack_chains(share: Chains, end: int) -> _ChainStates:
    return _ChainStates(end, {name: tensor.numpy() for name, tensor in share.state().items()})


def _step_block(share: Chains, network: Network, end: int) -> _BlockResult:
    forward, backward, steps = network.rows_forward, network.rows_backward, list[EvaluatedStep]()
    while share.t < end and len(share):
        steps += (step for _, step in share.advance())
    lines = [line.numpy() for line in EvaluatedStep.join(steps)] if steps else []
    forward, backward = network.rows_forward - forward, network.rows_backward - backward
    return _BlockResult([len(step.rows) for step in steps], lines, forward, backward, len(share))


def _unpack_block(block: _BlockResult) -> list[EvaluatedStep]:
    if not block.sizes:
        return []
    *lines, finite = (torch.as_tensor(line) for line in block.lines)
    parts = zip(*(torch.split(line, block.sizes) for line in lines), strict=True)
    return [EvaluatedStep._make([*part, finite]) for part in parts]


def _pickle_error(error: BaseException) -> bytes:
    """Return an error as bytes; one that cannot be sent as its text."""
    try:
        content = pickle.dumps(error)
        pickle.loads(content)
        return content
    except Exception:
        return pickle.dumps(NeuronFairError(one_line(error)))
