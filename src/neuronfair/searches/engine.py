"""The search loop: methods propose rows; this module evaluates, counts and records them, and shows progress.

Findings are counted once each, and never beyond the budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from neuronfair.domain.population.model import PopulationModel
from neuronfair.errors import NeuronFairError, OtherRunError
from neuronfair.model.encoding import ROWS_PER_PASS
from neuronfair.model.network import Network
from neuronfair.progress import PieceProgress, record_interruption
from neuronfair.scale.tasks import one_torch_thread
from neuronfair.searches.evaluate import not_finite
from neuronfair.searches.findings import Findings, FindingsSummary
from neuronfair.searches.forked import ForkedChains, choose_team_size, fork_chains
from neuronfair.searches.keys import (
    DOUBTFUL,
    FOUND,
    MISS,
    REJECTED,
    KeySet,
    encode_lines,
    is_sampled_miss,
    keys_of,
    kind_of,
    with_kind,
)
from neuronfair.searches.method import Method, SearchContext, State
from neuronfair.searches.stepping import Chains, EvaluatedStep, differ_exactly, make_stepper

Stop = Literal["steps", "instances", "seconds", "walkers", "interrupted"]

MAX_CHAINS_OF_ONE_THREAD = 4096  # one thread is faster than several that wait for each other: benchmarks/search.py
SECONDS_BETWEEN_COUNTS = 0.5  # of the findings, for the progress display
MAX_PENDING_ROWS = {"cpu": 1 << 16, "cuda": 1 << 23}  # evaluated rows that are collected before they are counted
PASS_DIVISOR = {"cpu": 4}  # passes of findings are smaller by this factor, and fit into the processor's cache
CODES_PER_WIDE_ROW = 256  # of wider rows, such as images, fewer are collected


@dataclass(frozen=True)
class Budget:
    """The limits of one phase; whichever is reached first ends it.

    `steps` counts the rows evaluated for each seed, `instances` the distinct records evaluated over all seeds.
    `findings_per_seed` retires a chain after so many discriminatory rows, whether or not another chain met
    them before: chains must not depend on each other. `seconds` is wall-clock time, the only limit under which two
    searches may differ.
    """

    steps: int = 1000
    instances: int | None = None
    findings_per_seed: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not value >= 0:
                raise NeuronFairError(f"a budget of {field.name.replace('_', ' ')} must be 0 or more, got {value}")


@dataclass(frozen=True)
class Checkpoint:
    """The state of a phase after `t` steps. With the checkpoints before it, it suffices to resume the phase exactly."""

    t: int
    state: State
    findings: Findings  # since the last checkpoint
    lines: Tensor  # the log of the records evaluated for the first time since then: see `encode_lines`
    seconds: float = 0.0  # spent on the phase so far
    stop: Stop | None = None  # why the phase is over, if it is


@dataclass(frozen=True)
class PhaseRecording:
    """What is recorded of a phase, and where it resumes."""

    checkpoint: Callable[[Checkpoint], None] | None = None  # called every `interval` steps, and at the end
    interval: int = 50
    resume: Checkpoint | None = None  # holds all findings and keys up to it
    keep: bool = True  # False: findings are confirmed and counted, but not kept
    first_chain: int = 0  # the place of the first chain that is run here, among all of the phase
    chains: int | None = None  # of the phase; None: all are run here
    even: bool = False  # chains take the same path, to the last bit, in any batch
    workers: int = 1  # processes among which such chains are dealt, where that is possible


@dataclass(frozen=True)
class PhaseResult:
    """The findings of one phase, how many there are, why it ended, and how long it took."""

    findings: Findings
    finding_count: int
    stop: Stop
    seconds: float
    on_disk: FindingsSummary | None = None  # of the findings that are on disk only

    def after(self, earlier: PhaseResult | None) -> PhaseResult:
        """Return the phase with the findings and the seconds of an earlier part of it, if there is one."""
        if earlier is None:
            return self
        findings = Findings.join([earlier.findings, self.findings])
        finding_count, seconds = earlier.finding_count + self.finding_count, earlier.seconds + self.seconds
        return replace(self, findings=findings, finding_count=finding_count, seconds=seconds)

    @staticmethod
    def not_run(context: SearchContext) -> PhaseResult:
        """Return the result of a phase that Ctrl-C kept from starting."""
        return PhaseResult(Findings.empty(context.domain, context.network.outputs), 0, "interrupted", 0.0)


def run_phase(
    context: SearchContext,
    method: Method,
    seeds: Tensor,
    *,
    budget: Budget,
    origin: Tensor | None = None,
    key_set: KeySet | None = None,
    recording: PhaseRecording | None = None,
    progress: PieceProgress | None = None,
) -> PhaseResult:
    """Run one search chain from every seed and return the discriminatory instances that they find.

    All chains advance together. `origin` numbers the seeds (0, 1, … by default): the path of a chain depends on its
    number and its seed only, so a search may be split into batches. `key_set` holds the records of earlier phases,
    which do not count again. Every finding is evaluated a second time, in float64, before it retires a chain, counts
    for the budget, is returned or saved. Ctrl-C ends the phase and keeps its findings; a second Ctrl-C aborts it.
    """
    recording = recording or PhaseRecording()
    run = PhaseRun(context, method, seeds, origin, budget=budget, key_set=key_set, recording=recording)
    if run.ended is not None:
        return run.ended
    with run.in_processes():
        with (
            record_interruption() as interruption,
            one_torch_thread(run.needs_one_thread),
            BackgroundWriter(run.writes_in_background) as writer,
        ):
            while (stop := run.reason_to_stop(interrupted=interruption.requested)) is None:
                run.step()
                if progress is not None:
                    run.show(progress)
                if run.checkpoint_is_due:
                    writer.do(run.next_checkpoint())
        return run.finish(stop, progress)


class PhaseRun:
    """A running phase: the chains after `t` steps, and the tally of what they found."""

    def __init__(
        self,
        context: SearchContext,
        method: Method,
        seeds: Tensor,
        origin: Tensor | None,
        *,
        budget: Budget,
        key_set: KeySet | None,
        recording: PhaseRecording,
    ) -> None:
        resume = recording.resume
        self._start_time = time.perf_counter() - (resume.seconds if resume is not None else 0.0)
        self._context, self._method, self._budget, self._recording = context, method, budget, recording
        key_set = key_set if key_set is not None else KeySet(context.domain.device)
        self._tally = PhaseTally(context, budget, key_set, keep=recording.keep, chains=recording.chains or len(seeds))
        self.ended: PhaseResult | None = None  # the result, if the phase was over before it was resumed
        self._chains: Chains | ForkedChains = self._start_chains(seeds, origin)
        if resume is not None:
            self._restore(resume)
        self._last_count = time.perf_counter()

    def _start_chains(self, seeds: Tensor, origin: Tensor | None) -> Chains:
        context, recording = self._context, self._recording
        rows = context.domain.clip(seeds)
        numbers = torch.arange(len(rows), device=rows.device) if origin is None else origin
        index = recording.first_chain + torch.arange(len(rows), device=rows.device)
        state = {"origin": numbers, "place": index, "rows": rows, "found": torch.zeros_like(numbers)}
        exact = self._budget.findings_per_seed is not None
        steps = make_stepper(context, self._method, exact=exact, even=recording.even)
        return Chains(steps, self._method.start(context, state), 0, self._budget.findings_per_seed)

    def _restore(self, resume: Checkpoint) -> None:
        if resume.state.keys() != self._chains.state().keys():
            raise OtherRunError(
                "this search was started by another version of neuronfair, so it cannot be resumed. Start a new one"
            )
        self._chains = replace(self._chains, current=resume.state, t=resume.t)
        self._tally.take(resume.findings, keys_of(resume.lines))
        if resume.stop not in (None, "interrupted"):
            self.ended = PhaseResult(self._tally.findings(), self._tally.confirmed, resume.stop, resume.seconds)

    @contextmanager
    def in_processes(self) -> Iterator[None]:
        """Deal the chains to processes for a while, if the record asks for them and this phase allows it."""
        chains, recording, steps = self._chains, self._recording, self._budget.steps
        size = 1
        if recording.even and not self._tally.is_limited:  # what is evaluated ahead must not exceed a limit
            size = choose_team_size(self._context, len(chains), len(chains) * (steps - chains.t), recording.workers)
        network = self._context.network
        if size == 1 or not isinstance(chains, Chains) or not isinstance(network, Network):
            yield
            return
        saved = recording.checkpoint is not None
        with fork_chains(chains, network, size, steps=steps, interval=recording.interval, saved=saved) as dealt:
            self._chains = dealt
            yield

    @property
    def on_cpu(self) -> bool:
        """Whether the chains are on the CPU."""
        return self._context.domain.device.type == "cpu"

    @property
    def needs_one_thread(self) -> bool:
        """Whether one thread is faster than several. Rows so wide that a few fill a pass keep all threads busy."""
        max_chains = min(MAX_CHAINS_OF_ONE_THREAD, self._context.network.encoding.rows_per_pass // 8)
        return self.on_cpu and (len(self._chains) <= max_chains or isinstance(self._chains, ForkedChains))

    @property
    def writes_in_background(self) -> bool:
        """Whether checkpoints are written by another thread; a black box may not allow two threads at once."""
        return self.on_cpu and self._context.exact is not self._context.network

    def reason_to_stop(self, *, interrupted: bool) -> Stop | None:
        """Return why the phase ends before the next step; None if it continues."""
        budget = self._budget
        if self._tally.may_reach_limit():
            return "instances"
        if len(self._chains) == 0 or budget.findings_per_seed == 0:
            return "walkers"
        if self._chains.t >= budget.steps:
            return "steps"
        if budget.seconds is not None and self._seconds >= budget.seconds:
            return "seconds"
        return "interrupted" if interrupted else None

    def step(self) -> None:
        """Take a step of all chains, or several if they run ahead, and record what was found."""
        for t, evaluated in self._chains.advance():
            self._tally.record(evaluated, t)

    def show(self, progress: PieceProgress) -> None:
        """Report progress; findings are counted every `SECONDS_BETWEEN_COUNTS` seconds only."""
        if time.perf_counter() - self._last_count > SECONDS_BETWEEN_COUNTS:
            self._tally.count()
            self._last_count = time.perf_counter()
        progress(self._chains.t, self._budget.steps, self._tally.finding_count)

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether to write a checkpoint after this step; the end of the phase writes its own."""
        return self._chains.t % self._recording.interval == 0 and not self._tally.may_reach_limit()

    def next_checkpoint(self) -> Callable[[], object]:
        """Return a function that writes a checkpoint of this moment, in any thread."""
        return partial(self._save, self._chains.t, self._state(), *self._tally.since_last())

    def _state(self) -> State:
        """Return the chains, if they are saved."""
        return {} if self._recording.checkpoint is None else self._chains.state()

    def finish(self, stop: Stop, progress: PieceProgress | None) -> PhaseResult:
        """Write the last checkpoint and return the result."""
        recent = self._tally.since_last()
        if progress is not None:
            progress(self._chains.t, self._budget.steps, self._tally.finding_count)
        seconds = self._save(self._chains.t, self._state(), *recent, stop)
        return PhaseResult(self._tally.findings(), self._tally.confirmed, stop, seconds)

    def _save(self, t: int, state: State, recent: Findings, lines: Tensor, stop: Stop | None = None) -> float:
        """Confirm recent findings, save them if the phase is recorded, and return the seconds so far."""
        checkpoint = self._recording.checkpoint
        findings, lines = self._tally.confirm(recent, lines, saved=checkpoint is not None)
        seconds = self._seconds
        if checkpoint is not None:
            checkpoint(Checkpoint(t, state, findings, lines, seconds, stop))
        return seconds

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._start_time


class PhaseTally:
    """Counts what a phase evaluates and finds, each record once and never beyond the budget."""

    def __init__(self, context: SearchContext, budget: Budget, key_set: KeySet, *, keep: bool, chains: int) -> None:
        self._context, self._budget, self._seen, self._keep, self._chains = context, budget, key_set, keep, chains
        self.is_limited = budget.instances is not None
        self._max_pending_rows = MAX_PENDING_ROWS.get(context.domain.device.type, MAX_PENDING_ROWS["cpu"]) // (
            1 + context.domain.codes_per_row // CODES_PER_WIDE_ROW
        )
        self._pending: list[tuple[int, EvaluatedStep]] = []
        self._pending_rows = 0  # rows in them
        self._recent: list[Findings] = []  # not confirmed in float64 yet
        self._lines: list[Tensor] = []
        self._parts: list[Findings] = []
        self.tried = self.finding_count = self.confirmed = 0

    def may_reach_limit(self, waiting: int = 0) -> bool:
        """Return whether the limit is reached, once so many more rows are counted: no record beyond it is evaluated."""
        return self._budget.instances is not None and self.tried + waiting >= self._budget.instances

    def take(self, before: Findings, keys: Tensor) -> None:
        """Start from the findings and keys of an interrupted run."""
        self._parts = [before]
        self._seen.add(keys)
        self.tried = before.tried
        self.finding_count = self.confirmed = len(before)

    def record(self, evaluated: EvaluatedStep, t: int) -> None:
        """Collect an evaluated step, and count all collected ones when they are many or may reach a limit."""
        self._pending.append((t, evaluated))
        self._pending_rows += len(evaluated.rows)
        if self._pending_rows >= self._max_pending_rows or self.may_reach_limit(self._pending_rows):
            self.count()

    def count(self) -> None:
        """Count the collected steps and keep their findings."""
        if not self._pending:
            return
        counts = [len(evaluated.rows) for _, evaluated in self._pending]
        device, count = self._context.domain.device, self._pending_rows
        step = torch.tensor([t for t, _ in self._pending], device=device)
        step = step.repeat_interleave(torch.tensor(counts, device=device), output_size=count)
        steps = EvaluatedStep.join([evaluated for _, evaluated in self._pending])
        keys = self._context.domain.key(steps.rows)
        self._pending, self._pending_rows = [], 0
        # Records beyond the budget do not count here, so they may count in a later phase.
        new = self._seen.unseen(keys) if self.is_limited else self._seen.add(keys)
        is_finding = new & steps.hits
        if self._budget.instances is not None:
            new &= torch.cumsum(new, 0) <= self._budget.instances - self.tried
            is_finding &= new
            self._seen.add(keys[new])
        figures = torch.stack([new.sum(), is_finding.sum(), (new & steps.doubtful).sum(), steps.finite.long()])
        tried_count, finding_count, rejected, is_finite = figures.tolist()
        if not is_finite:
            raise not_finite()
        kind = torch.where(is_finding, FOUND, torch.where(steps.doubtful, DOUBTFUL, MISS))
        lines = encode_lines(keys, step, steps.chain_index, self._chains, kind)
        missed = new & ~is_finding & is_sampled_miss(keys)
        chosen = is_finding.nonzero()[:, 0]
        findings = self._findings(steps.at(chosen), step[chosen])
        findings = replace(findings, misses=steps.rows[missed], tried=tried_count, evaluated=count, rejected=rejected)
        self._recent.append(findings)
        self._lines.append(lines[new])
        self.tried, self.finding_count = self.tried + tried_count, self.finding_count + finding_count

    def _findings(self, steps: EvaluatedStep, number: Tensor) -> Findings:
        domain, rows = self._context.domain, steps.rows.long()
        twins = domain.member(rows, steps.other)
        if self._context.decision.kind == "tolerance":
            rows = domain.member(rows, steps.member)
        return Findings(
            packed=rows.to(domain.compact),
            twin_values=twins[:, list(domain.twin_columns)],
            scores=steps.scores,
            twin_scores=steps.twin_scores,
            origin=steps.origin,
            step=number,
            misses=rows[:0].to(domain.compact),
        )

    def since_last(self) -> tuple[Findings, Tensor]:
        """Return the unconfirmed findings and the log lines since the last call."""
        self.count()
        none = Findings.empty(self._context.domain, self._context.network.outputs)
        recent = Findings.join(self._recent or [none])
        lines = torch.cat(self._lines or [none.origin.new_empty(0, 2)])
        self._recent, self._lines = [], []
        return recent, lines

    def confirm(self, recent: Findings, lines: Tensor, *, saved: bool) -> tuple[Findings, Tensor]:
        """Return the findings that float64 confirms, and the log lines with its results.

        Their plausibility is computed if they are kept, in memory or by a checkpoint (`saved`). The search may
        continue in another thread meanwhile.
        """
        if self._budget.findings_per_seed is None:
            holds = holds_exactly(self._context, recent)
            kind = kind_of(lines)
            kind[kind == FOUND] = torch.where(holds, FOUND, REJECTED)
            lines = with_kind(lines, kind)
            recent = replace(recent[holds], rejected=recent.rejected + int((~holds).sum()))
        if (self._keep or saved) and self._context.population is not None:
            recent = replace(recent, plausibility=_plausibility(self._context.population, recent.packed))
        self._parts.append(recent if self._keep else recent.counts())
        self.confirmed += len(recent)
        return recent, lines

    def findings(self) -> Findings:
        """Return everything that was found and confirmed."""
        return Findings.join(self._parts)


def holds_exactly(context: SearchContext, findings: Findings) -> Tensor:
    """Evaluate each pair again in float64, and return which get different decisions then: bool, (f,)."""
    holds = torch.zeros(len(findings), dtype=torch.bool, device=context.domain.device)
    size = max(1, context.network.encoding.rows_per_pass // PASS_DIVISOR.get(holds.device.type, 1))
    for start in range(0, len(findings), size):
        part = findings[start : start + size]
        holds[start : start + size] = differ_exactly(context, part.rows, part.twins(context.domain))
    return holds


def _plausibility(population: PopulationModel, packed: Tensor) -> Tensor:
    size = ROWS_PER_PASS // PASS_DIVISOR.get(packed.device.type, 1)
    return torch.cat([population.plausibility(part.long()).float() for part in torch.split(packed, size)])


class BackgroundWriter:
    """Does one piece of work at a time, in a thread or at once; what it has started is completed at the end.

    A failure to write matters more than the error that ended the work before.
    """

    def __init__(self, threaded: bool) -> None:
        self._pool = ThreadPoolExecutor(1) if threaded else None
        self._running: Future[object] | None = None

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        try:
            self.wait()
        except Exception as other:
            raise other from error
        finally:
            if self._pool is not None:
                self._pool.shutdown()

    def do(self, work: Callable[[], object]) -> None:
        """Start a piece of work once the one before is done; its exception, if any, is raised here."""
        self.wait()
        if self._pool is None:
            work()
        else:
            self._running = self._pool.submit(work)

    def wait(self) -> None:
        """Wait for the running piece, and raise its exception."""
        running, self._running = self._running, None
        if running is not None:
            running.result()
