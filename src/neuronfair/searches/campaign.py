"""A whole search: the global phase, the local phase, two controls that show what the guidance is worth, the result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypedDict, Unpack

import torch
from torch import Tensor

from neuronfair.domain.draws import Draws
from neuronfair.domain.population.counterfactuals import CounterfactualTwins
from neuronfair.domain.population.model import PopulationModel, fit_population
from neuronfair.domain.population.plausible import MIN_PLAUSIBILITY, keep_plausible
from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError, NeuronFairError, did_you_mean
from neuronfair.model.blackbox import Model
from neuronfair.model.encoding import cluster_seeds
from neuronfair.model.network import Network
from neuronfair.model.profile import BiasProfile, interpret
from neuronfair.parameters import renamed_field
from neuronfair.progress import PieceProgress, Progress, show_nothing
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.engine import Budget, Checkpoint, PhaseRecording, PhaseResult, run_phase
from neuronfair.searches.evaluate import counterfactuals_of, with_twins
from neuronfair.searches.findings import NO_SEED, Findings, FindingsSummary, PlausibilityFigures, violations
from neuronfair.searches.health import HealthNote, check_health, find_weak_guidance
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import Method, SearchContext, StepSizes
from neuronfair.searches.methods import METHODS, Setting, check_method
from neuronfair.searches.methods.aequitas import Uniform

COLLISION_CHANCE = 2.0**-63  # the chance that two records share a key, where keys are not exact


@dataclass(frozen=True)
class SearchCounts:
    """How many distinct records a search tried, how many findings they are, and how many rows it evaluated."""

    tried: int
    findings: int
    evaluated: int
    gsr = renamed_field("gsr", "success_rate")

    @staticmethod
    def of(findings: Findings) -> SearchCounts:
        """Return the counts of findings that are in memory."""
        return SearchCounts(findings.tried, len(findings), findings.evaluated)

    @property
    def success_rate(self) -> float:
        """The success rate: findings among the distinct records evaluated."""
        return self.findings / self.tried if self.tried else 0.0


class ControlFigures(TypedDict):
    """The counts of a control, and its success rate."""

    tried: int
    findings: int
    gsr: float


class SearchSummary(TypedDict):
    """The figures of a search, as they are written to JSON."""

    method: str
    findings: int
    findings_global: int
    findings_local: int
    tried: int
    confused: float
    gsr: float
    random: ControlFigures | None
    lift: float | None
    random_direction: ControlFigures | None
    lift_over_random_direction: float | None
    violations: int
    plausibility: PlausibilityFigures | None
    rejected_on_recheck: int
    seconds: float
    seconds_per_1000: float | None
    rows_evaluated: int
    stop: dict[str, str]
    health: list[dict[str, str]]


@dataclass(frozen=True)
class SearchResult:
    """What a search found, phase by phase, with its controls at the same number of evaluated rows."""

    config: SearchConfig
    domain: TableDomain
    seeds: Tensor
    profile: BiasProfile | None  # a black box has none
    global_phase: PhaseResult
    local_phase: PhaseResult
    random: SearchCounts | None
    random_direction: SearchCounts | None
    health: tuple[HealthNote, ...]
    confused = renamed_field("confused", "collision_chance")
    first = renamed_field("first", "global_phase")
    local = renamed_field("local", "local_phase")
    queries: int = 0  # rows that the model scored in both phases and to prepare them, twins included

    @property
    def findings(self) -> Findings:
        """The findings of both phases, the global ones first."""
        return Findings.join([self.global_phase.findings, self.local_phase.findings])

    @property
    def total(self) -> SearchCounts:
        """The counts of both phases together."""
        first, local = self.global_phase.findings, self.local_phase.findings
        findings = self.global_phase.finding_count + self.local_phase.finding_count
        return SearchCounts(first.tried + local.tried, findings, first.evaluated + local.evaluated)

    @property
    def collision_chance(self) -> float:
        """The chance that any record was taken for another one and not counted: 0 if keys are exact."""
        pairs = self.total.tried * (self.total.tried - 1) / 2
        return 0.0 if self.domain.keys_are_exact else -math.expm1(-pairs * COLLISION_CHANCE)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the search early."""
        guided = METHODS[self.config.method].gradients
        missing = self.config.controls and (self.random is None or (guided and self.random_direction is None))
        return missing or "interrupted" in (self.global_phase.stop, self.local_phase.stop)

    def _summarise_plausibility(self) -> PlausibilityFigures | None:
        """Return how plausible the findings are; None without findings, or if that is not known."""
        if self.local_phase.on_disk is not None:  # the first phase has at most one finding for each chain
            summary = FindingsSummary.of(self.global_phase.findings, self.domain) + self.local_phase.on_disk
            return summary.plausibility(MIN_PLAUSIBILITY)
        plausibility = torch.cat([self.global_phase.findings.plausibility, self.local_phase.findings.plausibility])
        finite = plausibility[~plausibility.isnan()]
        if len(finite) == 0:
            return None
        share = float((finite >= MIN_PLAUSIBILITY).double().mean())
        return {"least": MIN_PLAUSIBILITY, "share": share, "median": float(finite.median())}

    def summary(self) -> SearchSummary:
        """Return the figures as plain values."""
        first, local, total = self.global_phase.findings, self.local_phase.findings, self.total
        seconds = self.global_phase.seconds + self.local_phase.seconds
        on_disk = 0 if self.local_phase.on_disk is None else self.local_phase.on_disk.violations
        return {
            "method": self.config.method,
            "findings": total.findings,
            "findings_global": self.global_phase.finding_count,
            "findings_local": self.local_phase.finding_count,
            "tried": total.tried,
            "confused": self.collision_chance,
            "gsr": total.success_rate,
            "random": _control_figures(self.random),
            "lift": _compute_lift(total, self.random),
            "random_direction": _control_figures(self.random_direction),
            "lift_over_random_direction": _compute_lift(total, self.random_direction),
            "violations": violations(first, self.domain) + violations(local, self.domain) + on_disk,
            "plausibility": self._summarise_plausibility(),
            "rejected_on_recheck": first.rejected + local.rejected,
            "seconds": seconds,
            "seconds_per_1000": 1000 * seconds / total.findings if total.findings else None,
            "rows_evaluated": total.evaluated,
            "stop": {"global": self.global_phase.stop, "local": self.local_phase.stop},
            "health": [{"name": note.name, "seen": note.observation, "remedy": note.remedy} for note in self.health],
        }


def _control_figures(count: SearchCounts | None) -> ControlFigures | None:
    return None if count is None else {"tried": count.tried, "findings": count.findings, "gsr": count.success_rate}


def _compute_lift(total: SearchCounts, control: SearchCounts | None) -> float | None:
    """Return how many times as often a search succeeds as its control."""
    return total.success_rate / control.success_rate if control is not None and control.success_rate else None


RANDOM_CHAINS = 4096  # rows that the random control evaluates at a time


class Recorder(Protocol):
    """Saves what a search finds, and restores it after a kill."""

    def begin(
        self, seeds: Tensor, population: PopulationModel | None, counterfactuals: CounterfactualTwins | None = None
    ) -> None:
        """Save the rows that the chains start from, the population, and the counterfactual twins, if there are any."""

    def resume(self, phase: str) -> Checkpoint | None:
        """Return the last state of a phase, if it was started."""

    def checkpoint(self, phase: str, checkpoint: Checkpoint) -> None:
        """Save what a phase found since the last checkpoint."""

    def control(self, name: str) -> SearchCounts | None:
        """Return the counts of a finished control."""

    def keep_control(self, name: str, count: SearchCounts) -> None:
        """Save the counts of a control."""


@dataclass(frozen=True)
class PhaseTask:
    """A phase to run."""

    name: str  # global, local, or random
    context: SearchContext
    method: Method
    starts: Tensor
    budget: Budget
    origin: Tensor | None = None  # 0, 1, … by default
    key_set: KeySet | None = None  # records evaluated before, except in earlier phases that were run elsewhere
    keep: bool = True  # False: a control, whose findings are only counted
    recorder: Recorder | None = None
    progress: PieceProgress | None = None


PhaseRunner = Callable[[PhaseTask], PhaseResult]
"""Runs a phase: in one piece in this process, or in shards (`store/shard_runner.py`)."""


def in_one_piece(task: PhaseTask, workers: int = 1) -> PhaseResult:
    """Run a phase with all its chains together, dealt to so many processes where that is possible."""
    recording, recorder = PhaseRecording(keep=task.keep, even=True, workers=workers), task.recorder
    if recorder is not None:
        recording = replace(
            recording, checkpoint=partial(recorder.checkpoint, task.name), resume=recorder.resume(task.name)
        )
    return run_phase(
        task.context,
        task.method,
        task.starts,
        budget=task.budget,
        origin=task.origin,
        key_set=task.key_set,
        recording=recording,
        progress=task.progress,
    )


class FitArgs(TypedDict, total=False):
    """Keyword arguments of a search for models that are fitted already; the search fits the others itself."""

    profile: BiasProfile | None  # of the network and these rows, from `interpret`
    population: PopulationModel | None  # of these rows, from `fit_population`, or one of your own
    counterfactuals: CounterfactualTwins | None  # of these rows, from `fit_counterfactuals`; used with `config.twins`


def search(
    model: Model,
    domain: TableDomain,
    rows: Tensor,
    config: SearchConfig | None = None,
    *,
    seeds: Tensor | None = None,
    recorder: Recorder | None = None,
    progress: Progress | None = None,
    runner: PhaseRunner = in_one_piece,
    **fitted: Unpack[FitArgs],
) -> SearchResult:
    """Search a network, or a black box, for discriminatory instances, starting from the rows of a table.

    With `config.plausible` the search stays among records that are at least so plausible, and omits less plausible
    seeds. `runner` runs the phases, for instance in several processes or on a cluster
    (`store.shard_runner.ShardRunner`); the findings do not depend on it. `neuronfair.search` describes the rest.
    """
    config, queries_before = config or SearchConfig(), model.rows_forward
    _check_search(model, domain, config)
    context, twin_domain = _prepare_search(model, domain, rows, config, **fitted)
    context, search_domain, seeds = _choose_seeds(context, twin_domain, rows, config, seeds)
    health = check_health(context, seeds, rows) if len(seeds) else ()
    if context.exact.outputs != model.outputs:  # computed here, so that a model without float64 fails early
        raise ModelError("in float64, in which findings are checked, the module gives another number of scores")
    if recorder is not None:
        recorder.begin(seeds, context.population, counterfactuals_of(search_domain))
    phases = _PhaseSequence(config, context, runner, progress or show_nothing, recorder)
    with _keep_findings(recorder):
        first, local = phases.run_phases(seeds)
        queries = model.rows_forward - queries_before
        outcome = SearchResult(config, search_domain, seeds, context.profile, first, local, None, None, health, queries)
        if not config.controls or "interrupted" in (first.stop, local.stop):
            return outcome
        random = phases.control("random", lambda: phases.random(outcome.total.evaluated))
        if random is None or not METHODS[config.method].gradients:  # Ctrl-C, or no gradients to replace
            return replace(outcome, random=random)
        direction = phases.control("random_direction", lambda: phases.random_directions(seeds))
        if direction is not None:
            guided, blind = ((count.findings, count.tried) for count in (outcome.total, direction))
            note = find_weak_guidance(config.method, domain.sensitive, guided, blind)
            health += () if note is None else (note,)
        return replace(outcome, random=random, random_direction=direction, health=health)


def random_directions(
    model: Model, domain: TableDomain, rows: Tensor, config: SearchConfig, *, seeds: Tensor, **fitted: Unpack[FitArgs]
) -> SearchCounts | None:
    """Return the counts of a method with noise in place of gradients, without the search itself; None on Ctrl-C."""
    _check_search(model, domain, config)
    context, _ = _prepare_search(model, domain, rows, config, **fitted)
    return _PhaseSequence(config, context).random_directions(seeds)


def _check_search(model: Model, domain: TableDomain, config: SearchConfig) -> None:
    config.decision.check(model.outputs)
    check_method(config.method, model, config.decision)
    if not bool(domain.changeable.any()):
        raise NeuronFairError(f"{domain.name}: every attribute is sensitive, so a search has nothing to change")


def _prepare_search(
    model: Model, domain: TableDomain, rows: Tensor, config: SearchConfig, **fitted: Unpack[FitArgs]
) -> tuple[SearchContext, TableDomain]:
    """Return what the methods may look at, and the domain with its twins."""
    accepted = FitArgs.__annotations__
    for name in fitted.keys() - accepted.keys():
        raise TypeError(f"search() got an unexpected keyword argument '{name}'. {did_you_mean(name, accepted)}")
    twin_domain = with_twins(domain, rows, config.twins, fitted.get("counterfactuals"))
    profile, population = fitted.get("profile"), fitted.get("population")
    if profile is None and isinstance(model, Network) and model.layers:
        profile = interpret(model, twin_domain, rows)
    draws, step_sizes = Draws(config.seed, "global"), StepSizes.of(twin_domain, rows)
    context = SearchContext(model, twin_domain, config.decision, draws, profile, population, step_sizes=step_sizes)
    return context, twin_domain


def _choose_seeds(
    context: SearchContext, domain: TableDomain, rows: Tensor, config: SearchConfig, seeds: Tensor | None
) -> tuple[SearchContext, TableDomain, Tensor]:
    """Return context and domain, limited to plausible records if the configuration says so, and the seeds."""
    search_domain, records = domain, rows
    if config.plausible:
        population = context.population or fit_population(domain, rows)
        plausible_domain = keep_plausible(domain, population, config.plausible, domain.clip(rows))
        context = replace(context, domain=plausible_domain, population=population)
        search_domain, records = plausible_domain, plausible_domain.records
        if seeds is not None:
            seeds = plausible_domain.among(domain.clip(seeds))  # clipped as the engine clips all rows to start from
    if seeds is None:
        encoding = context.network.encoding
        seeds = cluster_seeds(encoding, records, config.seeds, seed=config.seed) if config.seeds else rows[:0]
    return context, search_domain, seeds


@contextmanager
def _keep_findings(recorder: Recorder | None) -> Iterator[None]:
    """Add to the error of a model that fails during a recorded search that its findings are not lost."""
    try:
        yield
    except ModelError as error:
        if recorder is None:
            raise
        raise ModelError(f"{error}. Earlier findings are saved: the same command resumes the search") from error


@dataclass(frozen=True)
class _PhaseSequence:
    """The phases and controls of one search."""

    config: SearchConfig
    context: SearchContext
    runner: PhaseRunner = in_one_piece
    progress: Progress = show_nothing
    recorder: Recorder | None = None
    label: str = ""  # of a control, before the names of its phases

    def run_phases(self, seeds: Tensor) -> tuple[PhaseResult, PhaseResult]:
        """Run a method's pilot, if it has one, and its two phases; the pilot counts in the first phase there is."""
        config, domain = self.config, self.context.domain
        key_set = KeySet(domain.device)
        rows = len(seeds) * config.steps
        if config.instances is not None:
            rows = min(rows, config.instances)
        phases = METHODS[config.method].make(Setting(self.context, key_set, rows))
        pilot = self._save_pilot(phases.pilot, seeds)
        if pilot is not None and pilot.stop == "interrupted":
            return pilot, PhaseResult.not_run(self.context)
        in_global, in_local = (pilot, None) if config.global_steps else (None, pilot)
        budget = self._limit_phase(config.global_steps, in_global, findings_per_seed=1)
        global_phase = self._run_phase("global", phases.global_phase, seeds, budget, key_set=key_set)
        first = global_phase.after(in_global)
        if first.stop == "interrupted":
            return first, PhaseResult.not_run(self.context)
        starts, origin = global_phase.findings.rows, global_phase.findings.origin
        if config.global_steps == 0:  # the seeds go straight into the local phase, and do not count
            key_set.add(domain.key(domain.clip(seeds)))
            starts, origin = seeds, torch.arange(len(seeds), device=seeds.device)
        # The first step of the local phase evaluates its seeds again, which are findings already.
        budget = self._limit_phase(config.steps + 1 if config.steps else 0, in_local, seconds=first.seconds)
        keep = not self.context.blind  # a control is a count only
        local = self._run_phase("local", phases.local_phase, starts, budget, origin=origin, key_set=key_set, keep=keep)
        return first, local.after(in_local)

    def _limit_phase(
        self, steps: int, pilot: PhaseResult | None, *, seconds: float = 0.0, findings_per_seed: int | None = None
    ) -> Budget:
        """Return the budget of a phase in which a pilot counts, if any, after so many seconds of an earlier phase."""
        instances, seconds_left = self.config.instances, self.config.seconds
        if pilot is not None:
            seconds += pilot.seconds
            instances = None if instances is None else max(0, instances - pilot.findings.tried)
        seconds_left = None if seconds_left is None else max(0.0, seconds_left - seconds)
        return Budget(steps, instances, findings_per_seed=findings_per_seed, seconds=seconds_left)

    def random(self, evaluated: int) -> SearchCounts | None:
        """Evaluate as many random rows as the search evaluated."""
        steps = math.ceil(evaluated / RANDOM_CHAINS)
        chains = evaluated // steps if steps else 0
        domain = self.context.domain
        starts = torch.zeros(chains, domain.codes_per_row, dtype=torch.int64, device=domain.device)
        runs = replace(self, recorder=None, label="control: ")
        return _count_findings(runs._run_phase("random", Uniform(), starts, Budget(steps), keep=False))

    def random_directions(self, seeds: Tensor) -> SearchCounts | None:
        """Run the same phases with random numbers in place of every gradient."""
        label = "control: random directions, "
        runs = replace(self, context=replace(self.context, blind=True), recorder=None, label=label)
        return _count_findings(*runs.run_phases(seeds))

    def control(self, name: str, make: Callable[[], SearchCounts | None]) -> SearchCounts | None:
        """Return a control from the recorder, or run and save it; None if Ctrl-C ended it."""
        count = self.recorder.control(name) if self.recorder is not None else None
        if count is None:
            count = make()
            if count is not None and self.recorder is not None:
                self.recorder.keep_control(name, count)
        return count

    def _run_phase(
        self,
        name: str,
        method: Method,
        starts: Tensor,
        budget: Budget,
        *,
        origin: Tensor | None = None,
        key_set: KeySet | None = None,
        keep: bool = True,
    ) -> PhaseResult:
        context = replace(self.context, draws=Draws(self.config.seed, name))
        label = self.label + ("random rows" if name == "random" else name)
        start_time = time.perf_counter()

        def show(completed: int, total: int, findings: int) -> None:
            rate = findings / max(1e-9, time.perf_counter() - start_time)
            self.progress(label, completed, total, f"{findings:,} findings ({rate:,.0f} a second)")

        task = PhaseTask(name, context, method, starts, budget, origin, key_set, keep, self.recorder)
        return self.runner(task if self.progress is show_nothing else replace(task, progress=show))

    def _save_pilot(self, pilot: PhaseResult | None, seeds: Tensor) -> PhaseResult | None:
        """Save a pilot, which starts from no seed. It is short and repeated after a kill, so it saves no state."""
        if pilot is None:
            return None
        origin = torch.full_like(pilot.findings.origin, NO_SEED)
        pilot = replace(pilot, findings=replace(pilot.findings, origin=origin))
        if self.recorder is None or pilot.stop == "interrupted":
            return pilot
        saved = self.recorder.resume("pilot")
        if saved is not None:
            return replace(pilot, seconds=saved.seconds)
        end = Checkpoint(0, {}, pilot.findings, seeds.new_empty(0, 2), pilot.seconds, pilot.stop)
        self.recorder.checkpoint("pilot", end)
        return pilot


def _count_findings(*results: PhaseResult) -> SearchCounts | None:
    if any(result.stop == "interrupted" for result in results):
        return None
    parts = [result.findings for result in results]
    return SearchCounts(
        sum(p.tried for p in parts), sum(r.finding_count for r in results), sum(p.evaluated for p in parts)
    )
