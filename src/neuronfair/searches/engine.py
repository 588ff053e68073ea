"""The search loop: methods propose rows; evaluating, recording and showing them happens here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import torch
from torch import Tensor

from neuronfair.errors import OtherRunError
from neuronfair.interruption import interruptible
from neuronfair.model.network import Network
from neuronfair.model.training_loop import one_thread
from neuronfair.searches.cuda_graphs import CudaGraphs
from neuronfair.searches.findings import Findings, FindingsSummary
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import Method, State, World
from neuronfair.searches.stepping import Steps, in_even_batches, step
from neuronfair.searches.tally import WHOLE, Budget, ChainRange, PhaseTally, keys_of

PhaseProgress = Callable[[int, int, int], None]  # steps done, steps in all, findings
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
    progress: PhaseProgress | None = None,
) -> PhaseResult:
    """Let one chain start from every seed and return the discriminatory instances they find.

    All chains advance together. `origin` numbers the seeds (0, 1, … by default): a chain's path depends on its
    number and its seed only, so a search may be split into batches. `seen` holds people judged by earlier phases, who
    do not count again. Every finding is judged once more, in float64, before it retires a chain, counts for the
    budget, is returned or given to a checkpoint. Ctrl-C ends the phase and keeps what was found; a second Ctrl-C ends
    it at once.
    """
    run = PhaseRun(world, method, seeds, origin, budget=budget, seen=seen, record=record or Record())
    if run.ended is not None:
        return run.ended
    with (
        interruptible() as interruption,
        one_thread(run.on_cpu and run.has_few_chains),
        background_writer(run.writes_in_background) as writer,
    ):
        while (stop := run.reason_to_stop(interrupted=interruption.requested)) is None:
            run.step()
            if progress is not None:
                run.show(progress)
            if run.checkpoint_is_due:
                writer.do(run.next_checkpoint())
        writer.wait()
    return run.finish(stop, progress)


class PhaseRun:
    """A phase on its way: the chains after `t` steps, and the account of what they have found."""

    def __init__(
        self,
        world: World,
        method: Method,
        seeds: Tensor,
        origin: Tensor | None,
        *,
        budget: Budget,
        seen: KeySet | None,
        record: Record,
    ) -> None:
        resume = record.resume
        self._begun = time.perf_counter() - (resume.seconds if resume is not None else 0.0)
        self._world, self._method, self._budget, self._record = world, method, budget, record
        seen = seen if seen is not None else KeySet(world.domain.device)
        self._tally = PhaseTally(world, budget, seen, keep=record.keep, chains=record.chains.total or len(seeds))
        self.ended: PhaseResult | None = None  # the result, if the phase was over before it was resumed
        self._t, self._state = 0, self._start(seeds, origin)
        if resume is not None:
            self._restore(resume)
        self._last_count = time.perf_counter()

    def _start(self, seeds: Tensor, origin: Tensor | None) -> State:
        """Return the chains before the first step."""
        rows = self._world.domain.clip(seeds)
        numbers = torch.arange(len(rows), device=rows.device) if origin is None else origin
        place = self._record.chains.first + torch.arange(len(rows), device=rows.device)
        chains = {"origin": numbers, "place": place, "rows": rows, "found": torch.zeros_like(numbers)}
        return self._method.start(self._world, chains)

    def _restore(self, resume: Checkpoint) -> None:
        """Continue from a checkpoint."""
        if resume.state.keys() != self._state.keys():
            raise OtherRunError(
                "this search was begun by another version of neuronfair, so it cannot go on. Begin a new one"
            )
        self._state, self._t = resume.state, resume.t
        self._tally.take(resume.findings, keys_of(resume.lines))
        if resume.stop not in (None, "interrupted"):
            self.ended = PhaseResult(self._tally.findings(), self._tally.confirmed, resume.stop, resume.seconds)

    @cached_property
    def _take_step(self) -> Steps:
        return _steps(self._world, self._method, exact=self._budget.counts_findings, even=self._record.even)

    @property
    def on_cpu(self) -> bool:
        """Whether the chains are on the CPU."""
        return self._world.domain.device.type == "cpu"

    @property
    def has_few_chains(self) -> bool:
        """Whether one thread is enough. Rows so wide that few of them fill a pass keep all threads busy."""
        return len(self._state["origin"]) <= min(FEW_CHAINS, self._world.network.encoding.rows_per_pass // 8)

    @property
    def writes_in_background(self) -> bool:
        """Whether checkpoints are made in another thread; a black box may not allow two threads at once."""
        return self.on_cpu and self._world.exact is not self._world.network

    def reason_to_stop(self, *, interrupted: bool) -> Stop | None:
        """Return why the phase ends before the next step; None if it goes on."""
        budget = self._budget
        if self._tally.stop is not None:
            return self._tally.stop
        if len(self._state["origin"]) == 0 or budget.findings_per_seed == 0:
            return "walkers"
        if self._t >= budget.steps:
            return "steps"
        if budget.seconds is not None and self._seconds >= budget.seconds:
            return "seconds"
        return "interrupted" if interrupted else None

    def step(self) -> None:
        """Take a step of all chains and record what was found."""
        state, judged = self._take_step(self._state, self._t)
        self._tally.record(judged, self._t)
        self._state = _retired(state, judged.hits, self._budget)
        self._t += 1

    def show(self, progress: PhaseProgress) -> None:
        """Show how far the phase is; the findings are counted anew now and then only."""
        if time.perf_counter() - self._last_count > SHOW:
            self._tally.count()
            self._last_count = time.perf_counter()
        progress(self._t, self._budget.steps, self._tally.found)

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether to make a checkpoint after this step; the end of the phase makes its own."""
        return self._t % self._record.every == 0 and self._tally.stop is None

    def next_checkpoint(self) -> Callable[[], object]:
        """Return what makes a checkpoint of this moment, in any thread."""
        state = {name: tensor.clone() for name, tensor in self._state.items()}  # the next steps may overwrite them
        return partial(self._save, self._t, state, *self._tally.since_last())

    def finish(self, stop: Stop, progress: PhaseProgress | None) -> PhaseResult:
        """Make the last checkpoint and return the result."""
        recent = self._tally.since_last()
        if progress is not None:
            progress(self._t, self._budget.steps, self._tally.found)
        seconds = self._save(self._t, self._state, *recent, stop)
        return PhaseResult(self._tally.findings(), self._tally.confirmed, stop, seconds)

    def _save(self, t: int, state: State, recent: Findings, lines: Tensor, stop: Stop | None = None) -> float:
        """Confirm recent findings, give them to the checkpoint if there is one, and return the seconds so far."""
        checkpoint = self._record.checkpoint
        found, lines = self._tally.confirm(recent, lines, told=checkpoint is not None)
        seconds = self._seconds
        if checkpoint is not None:
            checkpoint(Checkpoint(t, state, found, lines, seconds, stop))
        return seconds

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._begun


def _steps(world: World, method: Method, *, exact: bool, even: bool) -> Steps:
    """Return what takes a step of all chains: a recorded graph on a GPU, where that is possible."""
    if CudaGraphs.fit(world, method) and not exact:
        return CudaGraphs(world, method)
    steps = partial(step, world, method, exact=exact)
    if even and isinstance(world.network, Network) and world.domain.device.type == "cpu":
        return in_even_batches(steps, world.network)
    return steps


def _retired(state: State, discriminates: Tensor, budget: Budget) -> State:
    """Let the chains go that have met as many discriminatory rows as the budget allows each."""
    if budget.findings_per_seed is None:
        return state
    state = state | {"found": state["found"] + discriminates}
    stays = state["found"] < budget.findings_per_seed
    return {name: tensor[stays] for name, tensor in state.items()}


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
