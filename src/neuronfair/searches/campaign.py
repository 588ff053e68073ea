"""A whole search: global phase, local phase, and beside them the two controls that say what the guidance is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypedDict, Unpack

import torch
from torch import Tensor

from neuronfair.domain.draws import Draws
from neuronfair.domain.population.counterfactuals import Counterparts
from neuronfair.domain.population.model import PopulationModel, fit_population
from neuronfair.domain.population.plausible import plausible
from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError, NeuronFairError
from neuronfair.interpretation.profile import BiasProfile, interpret
from neuronfair.model.blackbox import Model
from neuronfair.model.network import Network
from neuronfair.scale.pool import Note
from neuronfair.searches.budget import Budget
from neuronfair.searches.config import Count, SearchConfig, SearchResult
from neuronfair.searches.counterfactuals import comparing, counterparts_of
from neuronfair.searches.engine import Checkpoint, PhaseResult, Record, run_phase
from neuronfair.searches.findings import Findings
from neuronfair.searches.health import check_health, weak_guidance
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import Method, World
from neuronfair.searches.methods import METHODS, Setting, check_method, phases
from neuronfair.searches.methods.uniform import Uniform
from neuronfair.searches.starts import cluster_seeds
from neuronfair.searches.step_sizes import Pace

RANDOM_WALKERS = 4096  # rows that the random control judges at a time
CONTROL = "control: "  # how the names of their phases begin, in what progress is told
BLIND = f"{CONTROL}random directions, "
_SAID = {"random": "random rows"}  # what a phase is called there
NO_SEED = -1  # the origin of what a pilot finds: it starts from random rows


class Recorder(Protocol):
    """Where a campaign leaves what it finds, and finds it again after a kill."""

    def begin(
        self, seeds: Tensor, population: PopulationModel | None, counterparts: Counterparts | None = None
    ) -> None:
        """Keep the rows that the walkers start from, who is usual, and whom people are compared with if not flips."""

    def resume(self, phase: str) -> Checkpoint | None:
        """Return where a phase stood, if it was begun."""

    def checkpoint(self, phase: str, where: Checkpoint) -> None:
        """Keep what a phase found since the last time."""

    def control(self, name: str) -> Count | None:
        """Return a control that is already done."""

    def keep_control(self, name: str, count: Count) -> None:
        """Keep the figures of a control."""


Progress = Callable[[str, int, int, int], None]
"""Called with the phase, the steps done, the steps in all and the findings so far."""


@dataclass(frozen=True)
class PhaseTask:
    """A phase that is to be walked."""

    name: str  # global, local, or random
    world: World
    rule: Method
    starts: Tensor
    budget: Budget
    origin: Tensor | None = None  # 0, 1, … by default
    seen: KeySet | None = None  # people judged before, but for those of earlier phases that were walked elsewhere
    keep: bool = True  # False: a control, whose findings are counted only
    recorder: Recorder | None = None
    progress: Note | None = None


PhaseRunner = Callable[[PhaseTask], PhaseResult]
"""Who walks a phase: this process, in one piece, or others (`store/sharding.py`)."""


def in_one_piece(task: PhaseTask) -> PhaseResult:
    """Walk a phase with all its walkers together."""
    record, recorder, progress = Record(keep=task.keep, even=True), task.recorder, task.progress
    if recorder is not None:
        where = recorder.resume(task.name)
        record = Record(partial(recorder.checkpoint, task.name), resume=where, keep=task.keep, even=True)
    budget, origin, seen = task.budget, task.origin, task.seen
    return run_phase(
        task.world, task.rule, task.starts, budget=budget, origin=origin, seen=seen, record=record, progress=progress
    )


class Known(TypedDict, total=False):
    """What is known of a model and its table already."""

    profile: BiasProfile | None  # what `interpret` says of the network and these rows
    population: PopulationModel | None  # what `fit_population` says of them, or one of your own
    counterparts: Counterparts | None  # what `fit_counterparts` says of them: asked for with `plan.twins`


def search(
    network: Model,
    domain: TableDomain,
    rows: Tensor,
    config: SearchConfig | None = None,
    *,
    seeds: Tensor | None = None,
    recorder: Recorder | None = None,
    progress: Progress | None = None,
    runner: PhaseRunner = in_one_piece,
    **known: Unpack[Known],
) -> SearchResult:
    """Search a network, or a black box, for discriminatory instances, starting from the rows of a table.

    The seeds are taken in turn from the k-means clusters of the table, unless rows of your own are given as `seeds`.
    `profile` is what `interpret` says of the network and these rows, where that is known already, and `population`
    says how usual each finding is. With `plan.plausible` the search stays among people who are as usual as that; the
    population is fitted to the rows then if none is given, and seeds who are less usual are left out. So are
    `counterparts`, where `plan.twins` asks for them and neither they are given nor the domain has them.
    With a recorder the search can be killed at any time and goes on from there when it is run again. `walk` says who
    walks the phases, for instance a cluster (`store.sharding.ShardRunner`): what is found does not depend on it.
    """
    config = config or SearchConfig()
    _check(network, domain, config)
    domain = comparing(domain, rows, config.twins, known.pop("counterparts", None))
    world, people = _world(network, domain, rows, config, known), rows
    if config.plausible:
        population = world.population or fit_population(domain, rows)
        seeds = None if seeds is None else domain.clip(seeds)  # as the engine does with all rows to start from
        domain = inside = plausible(domain, population, config.plausible, domain.clip(rows))
        world, people = replace(world, domain=inside, population=population), inside.people
        seeds = None if seeds is None else inside.among(seeds)
    if seeds is None:
        seeds = cluster_seeds(network.encoding, people, config.seeds, seed=config.seed) if config.seeds else rows[:0]
    health = check_health(world, seeds, rows) if len(seeds) else ()
    _ = world.exact  # a model that cannot compute in float64 is refused now, not when the first findings are checked
    if recorder is not None:
        recorder.begin(seeds, world.population, counterparts_of(domain))
    with _kept(recorder):
        first, local = _both_phases(config, world, seeds, recorder, _Told(runner, progress))
        outcome = SearchResult(config, domain, seeds, world.profile, first, local, None, None, health)
        if not config.controls or "interrupted" in (first.stop, local.stop):
            return outcome
        random = _control(
            "random", lambda: _random(config, world, outcome.total.judged, _Told(runner, progress, CONTROL)), recorder
        )
        if random is None or not METHODS[config.method].gradients:  # Ctrl-C, or there are no directions to take away
            return replace(outcome, random=random)
        direction = _control(
            "random_direction", lambda: _blind(config, world, seeds, _Told(runner, progress, BLIND)), recorder
        )
        if direction is not None:
            own, blind = ((count.findings, count.tried) for count in (outcome.total, direction))
            note = weak_guidance(config.method, domain.sensitive, own, blind)
            health += () if note is None else (note,)
        return replace(outcome, random=random, random_direction=direction, health=health)


def random_directions(
    network: Model, domain: TableDomain, rows: Tensor, config: SearchConfig, *, seeds: Tensor, **known: Unpack[Known]
) -> Count | None:
    """Return how a method does that is given noise for gradients, without a search beside it; None on Ctrl-C."""
    _check(network, domain, config)
    domain = comparing(domain, rows, config.twins, known.pop("counterparts", None))
    return _blind(config, _world(network, domain, rows, config, known), seeds, _Told(in_one_piece, None))


def _check(network: Model, domain: TableDomain, config: SearchConfig) -> None:
    """Refuse a plan that cannot be followed."""
    config.decision.check(network.outputs)
    check_method(config.method, network, config.decision)
    if not bool(domain.free.any()):
        raise NeuronFairError(f"{domain.name}: every attribute is sensitive, so a search has nothing to change")


def _world(network: Model, domain: TableDomain, rows: Tensor, config: SearchConfig, known: Known) -> World:
    draws, pace = Draws(config.seed, "global"), Pace.of(domain, rows)
    world = World(network, domain, config.decision, draws, pace=pace, **known)  # type: ignore[misc]  # the rest of it
    if world.profile is None and isinstance(network, Network) and network.layers:
        world = replace(world, profile=interpret(network, domain, rows))
    return world


@dataclass(frozen=True)
class _Told:
    """Who walks, and who is told how far: of which phase, with a label before its name."""

    runner: PhaseRunner
    progress: Progress | None
    label: str = ""

    def __call__(self, task: PhaseTask) -> PhaseResult:
        told = None if self.progress is None else partial(self.progress, self.label + _SAID.get(task.name, task.name))
        return self.runner(replace(task, progress=told))


@contextmanager
def _kept(recorder: Recorder | None) -> Iterator[None]:
    """Say of a model that fails in the middle of a search that what was found is not lost, where it is recorded."""
    try:
        yield
    except ModelError as error:
        if recorder is None:
            raise
        raise ModelError(f"{error}. What was found before is kept: the same command goes on from there") from error


def _control(name: str, make: Callable[[], Count | None], recorder: Recorder | None) -> Count | None:
    """Return a control from the recorder, or make it and leave it there; None where Ctrl-C ended it."""
    count = recorder.control(name) if recorder is not None else None
    if count is None:
        count = make()
        if count is not None and recorder is not None:
            recorder.keep_control(name, count)
    return count


def _both_phases(
    config: SearchConfig, world: World, seeds: Tensor, recorder: Recorder | None, runner: _Told
) -> tuple[PhaseResult, PhaseResult]:
    """Run a method's pilot, if it has one, and its two phases; the pilot counts in the first phase there is."""
    seen = KeySet(world.domain.device)
    rows = len(seeds) * config.steps
    if config.instances is not None:
        rows = min(rows, config.instances)
    method = phases(config.method, Setting(world, seen, rows))
    nobody = PhaseResult(Findings.empty(world.domain, world.network.outputs), 0, "interrupted", 0.0)
    pilot = method.pilot or replace(nobody, stop="steps")
    pilot = replace(pilot, findings=replace(pilot.findings, origin=torch.full_like(pilot.findings.origin, NO_SEED)))

    def phase(
        name: str, rule: Method, starts: Tensor, origin: Tensor | None, budget: Budget, *, keep: bool = True
    ) -> PhaseResult:
        there = replace(world, draws=Draws(config.seed, name))
        return runner(PhaseTask(name, there, rule, starts, budget, origin, seen, keep, recorder))

    if pilot.stop == "interrupted":
        return pilot, nobody
    if recorder is not None:
        # A pilot is short and made anew after a kill: only what it found, and how long it took, is kept.
        before = recorder.resume("pilot")
        if before is None:
            where = Checkpoint(0, {}, pilot.findings, seeds.new_empty(0, 2), pilot.seconds, pilot.stop)
            recorder.checkpoint("pilot", where)
        else:
            pilot = replace(pilot, seconds=before.seconds)
    left = None if config.seconds is None else max(0.0, config.seconds - pilot.seconds)
    people = None if config.instances is None else max(0, config.instances - pilot.findings.tried)
    limit = Budget(config.global_steps, people, findings_per_seed=1, seconds=left)
    first = phase("global", method.first, seeds, None, limit)
    both = _joined(pilot, first)
    if first.stop == "interrupted":
        return both, nobody
    left = None if config.seconds is None else max(0.0, config.seconds - both.seconds)
    # The first step of the local phase looks at its seeds once more, which are findings already.
    steps = config.steps + 1 if config.steps else 0
    keep = not world.blind  # a control is a count only
    if config.global_steps == 0:
        seen.add(world.domain.key(world.domain.clip(seeds)))
        origin = torch.arange(len(seeds), device=seeds.device)
        local = phase("local", method.local, seeds, origin, Budget(steps, people, seconds=left), keep=keep)
        return first, _joined(pilot, local)
    limit = Budget(steps, config.instances, seconds=left)
    return both, phase("local", method.local, first.findings.rows, first.findings.origin, limit, keep=keep)


def _joined(pilot: PhaseResult, phase: PhaseResult) -> PhaseResult:
    """Return a phase with what its pilot found and took."""
    findings = Findings.join([pilot.findings, phase.findings])
    found, seconds = pilot.found + phase.found, pilot.seconds + phase.seconds
    return replace(phase, findings=findings, found=found, seconds=seconds)


def _random(config: SearchConfig, world: World, judged: int, runner: _Told) -> Count | None:
    """Judge as many random rows as the search did."""
    steps = math.ceil(judged / RANDOM_WALKERS)
    walkers = judged // steps if steps else 0
    nobody = torch.zeros(walkers, world.domain.codes_per_row, dtype=torch.int64, device=world.domain.device)
    there = replace(world, draws=Draws(config.seed, "random"))
    return _count(runner(PhaseTask("random", there, Uniform(), nobody, Budget(steps), keep=False)))


def _blind(config: SearchConfig, world: World, seeds: Tensor, runner: _Told) -> Count | None:
    """Walk the same walk with random numbers in the place of every gradient."""
    return _count(*_both_phases(config, replace(world, blind=True), seeds, None, runner))


def _count(*results: PhaseResult) -> Count | None:
    if any(result.stop == "interrupted" for result in results):
        return None
    parts = [result.findings for result in results]
    return Count(sum(p.tried for p in parts), sum(r.found for r in results), sum(p.judged for p in parts))
