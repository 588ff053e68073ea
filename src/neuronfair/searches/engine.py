"""The only search loop: ask, judge, record, tell. Methods propose; everything else happens here."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor

from neuronfair.errors import OtherRunError
from neuronfair.model.network import Network
from neuronfair.model.training_loop import one_thread
from neuronfair.searches.cuda_graphs import CudaGraphs
from neuronfair.searches.findings import Findings, FindingsSummary
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import Method, State, World
from neuronfair.searches.stepping import Steps, in_even_batches, step
from neuronfair.searches.tally import WHOLE, Budget, ChainRange, PhaseTally, keys_of

Stop = Literal["steps", "instances", "findings", "seconds", "walkers", "interrupted"]

FEW_CHAINS = 4096  # up to here one thread is faster than several that wait for each other: benchmarks/search.py
SHOW = 0.5  # seconds after which the findings are counted, so that they can be shown


@dataclass(frozen=True)
class Checkpoint:
    """Where a phase stands after `t` steps: with what came before it, enough to go on as if nothing had happened."""

    t: int
    state: State
    findings: Findings  # since the last checkpoint
    lines: Tensor  # of all people judged for the first time since then: see `judged`
    seconds: float = 0.0  # spent on the phase so far
    stop: Stop | None = None  # why the phase is over, if it is


@dataclass(frozen=True)
class Record:
    """What is kept of a phase on the way, and where it goes on from."""

    checkpoint: Callable[[Checkpoint], None] | None = None  # called after every so many steps, and at the end
    every: int = 50
    resume: Checkpoint | None = None  # holds all findings and keys up to it
    keep: bool = True  # False: findings are confirmed and counted, but not kept
    chains: ChainRange = WHOLE  # which part of the chains these are
    even: bool = False  # go the same way, to the last bit, in any batch; the rule may not look at chains together


@dataclass(frozen=True)
class PhaseResult:
    """The findings of one phase, how many there are, why it ended, and how long it took."""

    findings: Findings
    found: int
    stop: Stop
    seconds: float
    on_disk: FindingsSummary | None = None  # of the findings that are not among them, but on disk only


def run_phase(
    world: World,
    method: Method,
    seeds: Tensor,
    *,
    budget: Budget,
    origin: Tensor | None = None,
    seen: KeySet | None = None,
    record: Record | None = None,
    progress: Callable[[int, int, int], None] | None = None,
) -> PhaseResult:
    """Let one chain start from every seed and return the discriminatory instances they find.

    All chains advance together. `origin` numbers the seeds (0, 1, … by default): a chain's path depends on its
    number and its seed only, so a search may be split into batches. `seen` holds people judged by earlier phases, who
    do not count again. Every finding is judged once more, in float64, before it retires a chain, counts for the
    budget, is returned or given to a checkpoint. Ctrl-C ends the phase and keeps what was found; a second Ctrl-C ends
    it at once.
    """
    record = record or Record()
    resume, checkpoint = record.resume, record.checkpoint
    clock = time.perf_counter() - (resume.seconds if resume is not None else 0.0)
    seen = seen if seen is not None else KeySet(world.domain.device)
    tally = PhaseTally(world, budget, seen, keep=record.keep, chains=record.chains.total or len(seeds))
    rows = world.domain.clip(seeds)
    numbers = torch.arange(len(rows), device=rows.device) if origin is None else origin
    chains = {"origin": numbers, "place": record.chains.first + torch.arange(len(rows), device=rows.device)}
    state, t = method.start(world, chains | {"rows": rows, "found": torch.zeros_like(numbers)}), 0
    if resume is not None:
        if resume.state.keys() != state.keys():
            raise OtherRunError(
                "this search was begun by another version of neuronfair, so it cannot go on. Begin a new one"
            )
        state, t = resume.state, resume.t
        tally.take(resume.findings, keys_of(resume.lines))
    if resume is not None and resume.stop not in (None, "interrupted"):
        return PhaseResult(tally.findings(), tally.confirmed, resume.stop, resume.seconds)

    def keep(t: int, state: State, recent: Findings, lines: Tensor, stop: Stop | None = None) -> float:
        found, lines = tally.confirm(recent, lines, told=checkpoint is not None)
        seconds = time.perf_counter() - clock
        if checkpoint is not None:
            checkpoint(Checkpoint(t, state, found, lines, seconds, stop))
        return seconds

    steps = _steps(world, method, exact=budget.counts_findings, even=record.even)
    on_cpu = world.domain.device.type == "cpu"
    # Rows so wide that few of them fill a pass keep all threads busy.
    few = len(state["origin"]) <= min(FEW_CHAINS, world.network.encoding.rows_per_pass // 8)
    # A black box is not asked by two threads at once: nobody knows whether it can be.
    alone = not on_cpu or world.exact is world.network
    stop, shown = cast(Stop | None, tally.stop), time.perf_counter()
    with _ctrl_c() as pressed, one_thread(few and on_cpu), background_writer(not alone) as writer:
        while (stop := stop or _over(budget, state, t, clock, bool(pressed))) is None:
            state, judged = steps(state, t)
            tally.record(judged, t)
            state = _retired(state, judged.hits, budget)
            t, stop = t + 1, tally.stop
            if progress is not None:
                if time.perf_counter() - shown > SHOW:
                    tally.count()
                    shown = time.perf_counter()
                progress(t, budget.steps, tally.found)
            if t % record.every == 0 and stop is None:
                writer.do(partial(keep, t, _copied(state), *tally.since_last()))
        writer.wait()
    recent = tally.since_last()
    if progress is not None:
        progress(t, budget.steps, tally.found)
    seconds = keep(t, state, *recent, stop)
    return PhaseResult(tally.findings(), tally.confirmed, stop, seconds)


def _steps(world: World, method: Method, *, exact: bool, even: bool) -> Steps:
    """Return what takes a step of all chains: a recorded graph on a GPU, where that is possible."""
    if CudaGraphs.fit(world, method) and not exact:
        return CudaGraphs(world, method)
    steps = partial(step, world, method, exact=exact)
    if even and isinstance(world.network, Network) and world.domain.device.type == "cpu":
        return in_even_batches(steps, world.network)
    return steps


def _over(budget: Budget, state: State, t: int, clock: float, pressed: bool) -> Stop | None:
    """Return why a phase ends before step t; None if it goes on."""
    if len(state["origin"]) == 0 or budget.findings_per_seed == 0:
        return "walkers"
    if t >= budget.steps:
        return "steps"
    if budget.seconds is not None and time.perf_counter() - clock >= budget.seconds:
        return "seconds"
    return "interrupted" if pressed else None


def _copied(state: State) -> State:
    """Return the chains as they are now: the next steps may overwrite them before they are written."""
    return {name: tensor.clone() for name, tensor in state.items()}


def _retired(state: State, discriminates: Tensor, budget: Budget) -> State:
    """Let the chains go that have met as many discriminatory rows as the budget allows each."""
    if budget.findings_per_seed is None:
        return state
    state = state | {"found": state["found"] + discriminates}
    stays = state["found"] < budget.findings_per_seed
    return {name: tensor[stays] for name, tensor in state.items()}


@contextmanager
def _ctrl_c() -> Iterator[list[bool]]:
    """Note the first Ctrl-C instead of raising it, so that a step is never torn apart."""
    pressed: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield pressed  # signals reach the main thread only
        return

    def note(_: int, __: Any) -> None:
        pressed.append(True)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, note) or signal.SIG_DFL  # None: a handler that Python does not know
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


class BackgroundWriter:
    """Does one piece of work at a time, in a thread if it has one."""

    def __init__(self, pool: ThreadPoolExecutor | None) -> None:
        self._pool = pool
        self._going: Future[object] | None = None

    def do(self, work: Callable[[], object]) -> None:
        """Begin a piece of work as soon as the one before is done; what that one has raised is raised here."""
        self.wait()
        if self._pool is None:
            work()
        else:
            self._going = self._pool.submit(work)

    def wait(self) -> None:
        """Wait for the piece that is being done, and raise what it raises."""
        going, self._going = self._going, None
        if going is not None:
            going.result()


@contextmanager
def background_writer(threaded: bool) -> Iterator[BackgroundWriter]:
    """Give somebody who does work in a thread, or at once; what is begun is done at the end, whatever happens."""
    if not threaded:
        yield BackgroundWriter(None)
        return
    with ThreadPoolExecutor(1) as pool:
        writer = BackgroundWriter(pool)
        try:
            yield writer
        except BaseException as error:
            try:
                writer.wait()
            except Exception as other:  # what could not be written matters more
                raise other from error
            raise
