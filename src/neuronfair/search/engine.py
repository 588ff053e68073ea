"""The only search loop: ask, judge, record, tell. Methods propose; everything else happens here."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from neuronfair.domain.population import PopulationModel
from neuronfair.errors import RunError
from neuronfair.model.encoding import ROWS_PER_PASS
from neuronfair.model.threads import one_thread
from neuronfair.search.budget import Budget
from neuronfair.search.findings import Findings
from neuronfair.search.judge import Judgement, judge, not_finite
from neuronfair.search.keys import KeySet
from neuronfair.search.method import Method, State, World

Stop = Literal["steps", "instances", "findings", "seconds", "walkers", "interrupted"]

MISS_SHARE = 64  # one in so many misses is kept as a sample
FEW_WALKERS = 4096  # up to here one thread is faster than several that wait for each other: benchmarks/search.py


@dataclass(frozen=True)
class Checkpoint:
    """Where a phase stands after `t` steps: with what came before it, enough to go on as if nothing had happened."""

    t: int
    state: State
    findings: Findings  # since the last checkpoint
    keys: Tensor  # of all people judged for the first time since then
    seconds: float = 0.0  # spent on the phase so far
    stop: Stop | None = None  # why the phase is over, if it is


@dataclass(frozen=True)
class Record:
    """What is kept of a phase on the way, and where it goes on from."""

    checkpoint: Callable[[Checkpoint], None] | None = None  # called after every so many steps, and at the end
    every: int = 50
    resume: Checkpoint | None = None  # holds all findings and keys up to it
    keep: bool = True  # False: findings are confirmed and counted, but not kept


@dataclass(frozen=True)
class PhaseResult:
    """The findings of one phase, how many there are, why it ended, and how long it took."""

    findings: Findings
    found: int
    stop: Stop
    seconds: float


def search(
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
    """Let one walker start from every seed and return the discriminatory instances they find.

    All walkers advance together. `origin` numbers the seeds (0, 1, … by default): a walker's path depends on its
    number and its seed only, so a search may be split into batches. `seen` holds people judged by earlier phases, who
    do not count again. Every finding is judged once more, in float64, before it retires a walker, counts for the
    budget, is returned or given to a checkpoint. Ctrl-C ends the phase and keeps what was found; a second Ctrl-C ends
    it at once.
    """
    record = record or Record()
    resume, checkpoint = record.resume, record.checkpoint
    clock = time.perf_counter() - (resume.seconds if resume is not None else 0.0)
    tally = _Tally(world, budget, seen if seen is not None else KeySet(world.domain.device), record.keep)
    rows = world.domain.clip(seeds)
    numbers = torch.arange(len(rows), device=rows.device) if origin is None else origin
    state, t = method.start(world, {"origin": numbers, "rows": rows, "found": torch.zeros_like(numbers)}), 0
    if resume is not None:
        if resume.state.keys() != state.keys():
            raise RunError(
                "this search was begun by another version of neuronfair, so it cannot go on. Begin a new one"
            )
        state, t = resume.state, resume.t
        tally.take(resume)
    saved, stop = t, tally.stop
    if resume is not None and resume.stop not in (None, "interrupted"):
        return PhaseResult(tally.findings(), tally.confirmed, resume.stop, resume.seconds)
    # Rows so wide that few of them fill a pass keep all threads busy.
    few = len(state["origin"]) <= min(FEW_WALKERS, world.network.encoding.rows_per_pass // 8)
    with _ctrl_c() as pressed, one_thread(few and world.domain.device.type == "cpu"):
        while stop is None:
            if len(state["origin"]) == 0 or budget.findings_per_seed == 0:
                stop = "walkers"
            elif t >= budget.steps:
                stop = "steps"
            elif budget.seconds is not None and time.perf_counter() - clock >= budget.seconds:
                stop = "seconds"
            elif pressed:
                stop = "interrupted"
            else:
                rows = method.ask(world, state, t)
                judgement = judge(world.network, world.domain, rows, world.decision, checked=False)
                doubtful = None
                if budget.counts_findings:  # what ends something must be true; otherwise there is time until later
                    doubtful = _doubtful(world, judgement)
                    judgement = replace(judgement, discriminates=judgement.discriminates & ~doubtful)
                tally.record(state["origin"], judgement, doubtful, t)
                state = method.tell(world, state, rows, judgement, t)
                state = _retired(state, judgement.discriminates, budget)
                t, stop = t + 1, tally.stop
                if progress is not None:
                    progress(t, budget.steps, tally.found)
                if (checkpoint is not None or not record.keep) and t - saved >= record.every and stop is None:
                    where = Checkpoint(t, state, *tally.since_last(), time.perf_counter() - clock)
                    saved = t
                    if checkpoint is not None:
                        checkpoint(where)
    last = Checkpoint(t, state, *tally.since_last(), time.perf_counter() - clock, stop)
    if checkpoint is not None:
        checkpoint(last)
    return PhaseResult(tally.findings(), tally.confirmed, stop, last.seconds)


class _Tally:
    """Who was judged and who was found, counted once each and never beyond the budget."""

    def __init__(self, world: World, budget: Budget, seen: KeySet, keep: bool) -> None:
        self._world, self._budget, self._seen, self._keep = world, budget, seen, keep
        self._parts: list[Findings] = []
        self._keys: list[Tensor] = []
        self._saved = 0
        self.tried = self.found = self.confirmed = 0

    @property
    def stop(self) -> Stop | None:
        """The limit that is reached, if any."""
        if self._budget.instances is not None and self.tried >= self._budget.instances:
            return "instances"
        if self._budget.findings is not None and self.found >= self._budget.findings:
            return "findings"
        return None

    def take(self, before: Checkpoint) -> None:
        """Start from what an interrupted run has left."""
        self._parts, self._saved = [before.findings], 1
        self._seen.add(before.keys)
        self.tried = before.findings.tried
        self.found = self.confirmed = len(before.findings)

    def record(self, origin: Tensor, judgement: Judgement, doubtful: Tensor | None, t: int) -> None:
        """Count a judged batch and keep its findings; hits that are `doubtful` were none in float64."""
        domain, rows = self._world.domain, judgement.rows
        keys = domain.key(rows)
        limited = self._budget.instances is not None or self._budget.findings is not None
        # People beyond the budget are not judged, so they may count in a later phase.
        new = self._seen.unseen(keys) if limited else self._seen.add(keys)
        found = new & judgement.discriminates
        if self._budget.instances is not None:
            new &= torch.cumsum(new, 0) <= self._budget.instances - self.tried
            found &= new
        if self._budget.findings is not None:
            # Whoever comes after the last finding that fits was never asked for.
            new &= torch.cumsum(found, 0) - found.long() < self._budget.findings - self.found
            found &= new
        if limited:
            self._seen.add(keys[new])
        finite = torch.isfinite(judgement.family).all()
        counts = [new.sum(), found.sum(), finite.long()] + ([] if doubtful is None else [(new & doubtful).sum()])
        tried, hits, sound, *rejected = torch.stack(counts).tolist()  # the one copy to the host
        if not sound:
            raise not_finite()
        chosen = found.nonzero()[:, 0]
        pairs = judgement[chosen].pairs()
        missed = new & ~found & (_scramble(keys) % MISS_SHARE == 0)
        self._parts.append(
            Findings(
                packed=pairs.rows.to(domain.compact),
                twin_values=pairs.twins[:, list(domain.twin_columns)].long(),
                scores=pairs.scores,
                twin_scores=pairs.twin_scores,
                origin=origin[chosen],
                step=torch.full((hits,), t, device=rows.device),
                misses=rows[missed].to(domain.compact),
                tried=tried,
                judged=len(rows),
                rejected=sum(rejected),
            )
        )
        self._keys.append(keys[new])
        self.tried, self.found = self.tried + tried, self.found + hits

    def since_last(self) -> tuple[Findings, Tensor]:
        """Return the findings that stand the second judgement, and the new keys, since the last call."""
        world = self._world
        recent = Findings.join(self._parts[self._saved :] or [Findings.empty(world.domain, world.network.outputs)])
        recent = recent if self._budget.counts_findings else confirmed(world, recent)
        if self._keep and world.population is not None:
            recent = replace(recent, plausibility=_plausibility(world.population, recent.packed))
        keys = torch.cat(self._keys) if self._keys else torch.empty(0, dtype=torch.int64, device=world.domain.device)
        self._parts[self._saved :] = [recent if self._keep else replace(recent[:0], misses=recent.misses[:0])]
        self._saved, self._keys = len(self._parts), []
        self.confirmed += len(recent)
        return recent, keys

    def findings(self) -> Findings:
        """Return everything that was found and confirmed."""
        return Findings.join(self._parts)


def confirmed(world: World, findings: Findings) -> Findings:
    """Judge each pair once more, on its own and in float64, and drop the pairs that are decided alike then."""
    keep = torch.zeros(len(findings), dtype=torch.bool, device=world.domain.device)
    size = world.network.encoding.rows_per_pass
    for start in range(0, len(findings), size):
        part = findings[start : start + size]
        keep[start : start + size] = _differ_exactly(world, part.rows, part.twins(world.domain))
    return replace(findings[keep], rejected=findings.rejected + int((~keep).sum()))


def _plausibility(population: PopulationModel, packed: Tensor) -> Tensor:
    parts = [population.plausibility(part.long()).float() for part in torch.split(packed, ROWS_PER_PASS)]
    return torch.cat(parts)


def _doubtful(world: World, judgement: Judgement) -> Tensor:
    """Return which rows discriminate in the judgement, but not in float64: bool, (n,)."""
    doubtful = torch.zeros_like(judgement.discriminates)
    hits = judgement.discriminates.nonzero()[:, 0]
    for part in torch.split(hits, world.network.encoding.rows_per_pass) if len(hits) else ():
        pairs = judgement[part].pairs()
        doubtful[part] = ~_differ_exactly(world, pairs.rows, pairs.twins)
    return doubtful


def _differ_exactly(world: World, rows: Tensor, twins: Tensor) -> Tensor:
    own, other = world.exact.scores(torch.cat([rows, twins])).chunk(2)
    return world.decision.differ(own, other)


def _retired(state: State, discriminates: Tensor, budget: Budget) -> State:
    """Let the walkers go that have met as many discriminatory rows as the budget allows each."""
    if budget.findings_per_seed is None:
        return state
    state = state | {"found": state["found"] + discriminates}
    stays = state["found"] < budget.findings_per_seed
    return {name: tensor[stays] for name, tensor in state.items()}


def _scramble(keys: Tensor) -> Tensor:
    """Spread keys evenly, so that a remainder of them is a fair sample."""
    return ((keys * -7046029254386353131) >> 33) & 0x7FFFFFFF


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
