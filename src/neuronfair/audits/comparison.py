"""Several search methods on one model: the same domain, seeds and budget, and people drawn uniformly as a control."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor

from neuronfair.domain.population.model import PopulationModel, fit_population
from neuronfair.domain.table import TableDomain
from neuronfair.errors import NeuronFairError
from neuronfair.formatting import Population
from neuronfair.measure.diversity import clusters, mean_distance, quality, regions, severity
from neuronfair.measure.rate import Rate, discrimination_rate
from neuronfair.measure.stats import mean_interval
from neuronfair.model.blackbox import Model
from neuronfair.model.network import Network
from neuronfair.scale.pool import Note, Pool
from neuronfair.searches.campaign import CONTROL, Progress, search
from neuronfair.searches.config import SearchConfig, SearchResult
from neuronfair.searches.counterfactuals import comparing
from neuronfair.searches.methods import METHODS, check_method
from neuronfair.searches.starts import cluster_seeds

MIX_SEEDS = 10  # times as many seeds as asked for start each method's global phase, whose findings are then mixed
Made = TypeVar("Made")


@dataclass(frozen=True)
class Line:
    """What one method did with one run seed; a figure is None where nothing was found."""

    method: str
    seed: int
    figures: dict[str, float | None]


def figures(outcome: SearchResult) -> dict[str, float | None]:
    """Return how a search went; None for what cannot be said where nothing was found."""
    summary, findings, domain = outcome.summary(), outcome.findings, outcome.domain
    gaps = severity(findings, outcome.config.decision)
    found = summary["findings"]
    return {
        "findings": found,
        "findings_global": summary["findings_global"],
        "findings_local": summary["findings_local"],
        "tried": summary["tried"],
        "gsr": summary["gsr"],
        "random_direction_gsr": outcome.random_direction.gsr if outcome.random_direction else None,
        "lift": None,
        "lift_over_strongest_control": None,
        "diversity": mean_distance(domain, findings.packed) if found > 1 else None,
        "regions": regions(domain, findings.packed),
        "clusters": clusters(domain, findings.packed.long()),
        "severity": gaps.median if gaps else None,
        "severity_p95": gaps.p95 if gaps else None,
        "severity_largest": gaps.largest if gaps else None,
        "seconds": summary["seconds"],
        "seconds_per_1000": summary["seconds_per_1000"],
        "rows_judged": summary["rows_judged"],
        "rows_per_finding": summary["rows_judged"] / found if found else None,
    }


@dataclass(frozen=True)
class MethodRun:
    """One search of a comparison."""

    config: SearchConfig
    seeds: Tensor | None = None  # None: as the plan says

    @property
    def starts(self) -> int:
        """From how many rows it starts."""
        return self.config.seeds if self.seeds is None else len(self.seeds)


@dataclass(frozen=True)
class _Kept:
    """Gives a model that is open already."""

    network: Model

    def __call__(self) -> Model:
        return self.network


@dataclass(frozen=True)
class _Subject:
    """What is searched, as it is sent elsewhere."""

    network: Callable[[], Model]
    domain: TableDomain
    rows: Tensor


@dataclass(frozen=True)
class Work:
    """Searches of one model, done one after the other or by a pool; Ctrl-C leaves those out that are not finished."""

    network: Model
    domain: TableDomain
    rows: Tensor
    progress: Progress | None
    pool: Pool | None
    opens: Callable[[], Model] | None

    def each(
        self,
        work: Callable[[_Subject, MethodRun, Progress], Made | None],
        searches: Sequence[MethodRun],
        what: str = "",
    ) -> list[Made]:
        """Return what the work makes of each search, up to the first that was interrupted."""
        show, done = self.progress or _silent, list[Made]()
        try:
            if self.pool is None:
                subject = _Subject(_Kept(self.network), self.domain, self.rows)
                found: Iterator[Made | None] = (
                    work(subject, one, _labelled(show, f"{one.config.method}{what}")) for one in searches
                )
            else:

                def note(lines: Sequence[tuple[int, int, int]]) -> None:
                    steps, total, people = (sum(figures) for figures in zip(*lines, strict=True))
                    show(f"{len(searches)} searches{what}", steps, total, people)

                sent = work, _Subject(self.opens or _Kept(self.network), self.domain, self.rows)
                gpus = float(self.network.encoding.device.type == "cuda")
                found = self.pool.map(_elsewhere, sent, searches, progress=note, gpus=gpus)
            for one in found:
                if one is None:
                    break
                done.append(one)
        except KeyboardInterrupt:
            if self.pool is None:
                raise
        return done

    def clustered(self, configs: Sequence[SearchConfig], methods: Sequence[str]) -> list[MethodRun]:
        """Return all searches, from rows of the table."""
        starts = [cluster_seeds(self.network.encoding, self.rows, config.seeds, seed=config.seed) for config in configs]
        return [
            MethodRun(replace(p, method=m), seeds) for p, seeds in zip(configs, starts, strict=True) for m in methods
        ]

    def mixed(self, configs: Sequence[SearchConfig], methods: Sequence[str]) -> list[MethodRun]:
        """Return all searches, from people drawn from the global findings of all methods; none on Ctrl-C."""
        wide = [
            replace(one, seeds=MIX_SEEDS * one.seeds, steps=0, instances=None, seconds=None, controls=False)
            for one in configs
        ]
        found = self.each(_rows, [MethodRun(replace(config, method=m)) for config in wide for m in methods], ", mixing")
        result, each = list[MethodRun](), len(methods)
        for number in range(len(found) // each):
            config = replace(configs[number], global_steps=0)
            seeds = _mixed(self.domain, torch.cat(found[number * each : (number + 1) * each]), config)
            result += [MethodRun(replace(config, method=method), seeds) for method in methods]
        return result


def _elsewhere(
    sent: tuple[Callable[[_Subject, MethodRun, Progress], Made], _Subject], one: MethodRun, note: Note
) -> Made:
    """Do one search, in a worker."""
    work, subject = sent
    return work(subject, one, lambda phase, done, total, found: note(done, total, found))


def line_of(subject: _Subject, one: MethodRun, progress: Progress) -> Line | None:
    """Search, and return how it went; None on Ctrl-C."""
    network = subject.network()
    asked = _Asked(network, progress)
    outcome = search(network, subject.domain, subject.rows, one.config, seeds=one.seeds, progress=asked)
    if outcome.interrupted:
        return None
    outside = quality(subject.domain, outcome.findings.packed, subject.rows).outside
    more: dict[str, float | None] = {"queries": float(asked.rows), "outside_data": outside}
    return Line(one.config.method, one.config.seed, figures(outcome) | more)


def _rows(subject: _Subject, one: MethodRun, progress: Progress) -> Tensor | None:
    """Search, and return the people found; None on Ctrl-C."""
    network = subject.network()
    outcome = search(network, subject.domain, subject.rows, one.config, progress=progress)
    return None if outcome.interrupted else outcome.findings.rows


def _mixed(domain: TableDomain, pool: Tensor, config: SearchConfig) -> Tensor:
    """Return `plan.seeds` different people, drawn at random."""
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(config.seed)).to(pool.device)
    pool = pool[order]
    keys = domain.key(pool)
    ranked, place = torch.sort(keys, stable=True)
    first_of = torch.ones_like(ranked, dtype=torch.bool)
    first_of[1:] = ranked[1:] != ranked[:-1]
    mixed = pool[torch.sort(place[first_of]).values][: config.seeds]
    if len(mixed) == 0:
        raise NeuronFairError("no method has a global finding, so there is nothing to start the local phases from")
    return mixed


class _Asked:
    """Counts the rows that a model was asked about in a search, but not in its controls."""

    def __init__(self, network: Model, progress: Progress | None) -> None:
        self._network, self._progress, self._before = network, progress, network.rows_forward
        self.rows = 0

    def __call__(self, phase: str, done: int, total: int, found: int) -> None:
        if not phase.startswith(CONTROL):
            self.rows = self._network.rows_forward - self._before
        if self._progress is not None:
            self._progress(phase, done, total, found)


def _labelled(progress: Progress, method: str) -> Progress:
    return lambda phase, done, total, found: progress(f"{method}, {phase}", done, total, found)


def _silent(phase: str, done: int, total: int, found: int) -> None:
    """Show nothing."""


Phase = Literal["both", "global", "local"]

MIN_RANDOM, MAX_RANDOM = 10_000, 1_000_000  # people drawn uniformly and judged for the rate beside the methods


class Elsewhere(TypedDict, total=False):
    """Who searches with several methods side by side."""

    pool: Pool | None
    opens: Callable[[], Model] | None  # gives the model there; by default it is sent as it is


class Control(NamedTuple):
    """A search that knows nothing, and how often it succeeds."""

    name: str
    gsr: float


@dataclass(frozen=True)
class Comparison:
    """The figures of every method and run seed, and the rates beside them."""

    phase: Phase
    config: SearchConfig
    seeds: int  # how many rows the methods started from
    rates: tuple[Rate, ...]  # how often the decision flips, in the table and in the domain; perhaps none
    lines: tuple[Line, ...]
    interrupted: bool = False

    @property
    def random(self) -> Rate | None:
        """The rate of people drawn uniformly from the domain, which lift is over."""
        return next((rate for rate in self.rates if rate.population == "domain"), None)

    @property
    def strongest(self) -> Control | None:
        """The best of random people and of all methods' walks in random directions; None where none of them succeeds.

        What beats its own control only may owe it to a walk that is bad to begin with.
        """
        if self.random is None:
            return None
        blind = [(f"random directions of {entry['method']}", entry["random_direction_gsr"]) for entry in self.methods()]
        known = [Control(name, gsr) for name, gsr in (("random people", self.random.rate), *blind) if gsr]
        return max(known, key=lambda control: control.gsr, default=None)

    def methods(self) -> list[dict[str, Any]]:
        """Return one dictionary per method: the mean of each figure over the run seeds.

        With more than one run seed `plus_minus` holds the half-widths of the 95% intervals of the means.
        """
        result = []
        for method in dict.fromkeys(line.method for line in self.lines):
            lines = [line.figures for line in self.lines if line.method == method]
            entry: dict[str, Any] = {"method": method, "runs": len(lines)}
            spread: dict[str, float | None] = {}
            for name in lines[0]:
                values = [x for figures in lines if (x := figures[name]) is not None]
                entry[name], spread[name] = mean_interval(values)
            if len(lines) > 1:
                entry["plus_minus"] = spread
            result.append(entry)
        return result


def compare(
    network: Model,
    domain: TableDomain,
    rows: Tensor,
    methods: Sequence[str],
    config: SearchConfig | None = None,
    *,
    phase: Phase = "both",
    repeats: int = 1,
    progress: Progress | None = None,
    **elsewhere: Unpack[Elsewhere],
) -> Comparison:
    """Search a model with each method and return the figures side by side.

    The paper compares phases alone, too. "global": nothing but the global phase. "local": all methods start from the
    same mix of the findings of their global phases, and these do not count. `repeats` is the number of run seeds,
    from `plan.seed` on: other seed rows and other draws. Without `plan.controls` there are neither rates nor lifts. A
    pool searches with all methods and run seeds side by side; the figures are the same, but for seconds.
    """
    config = config or SearchConfig()
    methods = list(dict.fromkeys(methods))
    if not methods or repeats < 1:
        raise NeuronFairError("a comparison needs one method and one run seed, at least")
    for method in methods:
        check_method(method, network, config.decision)
    if phase == "global":
        config = replace(config, steps=0)
    domain = comparing(domain, rows, config.twins)
    work = Work(network, domain, rows, progress, elsewhere.get("pool"), elsewhere.get("opens"))
    configs = [replace(config, seed=seed) for seed in range(config.seed, config.seed + repeats)]
    lines, starts, stopped = list[Line](), 0, False
    for some in [configs] if work.pool is not None else [[one] for one in configs]:
        searches = work.mixed(some, methods) if phase == "local" else work.clustered(some, methods)
        starts = searches[0].starts if searches else starts
        done = work.each(line_of, searches)
        lines += done
        stopped = len(done) < len(some) * len(methods)
        if stopped:
            break
    judged = max((int(line.figures["rows_judged"] or 0) for line in lines), default=0)
    populations: tuple[Population | Tensor | PopulationModel, ...] = ()
    if config.controls and not stopped:
        populations = (rows, fit_population(domain, rows, seed=config.seed), "domain")
    samples = min(MAX_RANDOM, max(MIN_RANDOM, judged))
    rates = tuple(
        discrimination_rate(
            network, domain, population=one, samples=samples, decision=config.decision, seed=config.seed
        )
        for one in populations
    )
    result = Comparison(phase, config, starts, rates, tuple(lines), stopped)
    over = {"lift": result.random.rate if result.random else 0.0}
    over["lift_over_strongest_control"] = result.strongest.gsr if result.strongest else 0.0
    for line in lines:
        gsr = line.figures["gsr"]
        line.figures.update({name: gsr / rate if gsr is not None and rate else None for name, rate in over.items()})
    return result


def able(network: Model) -> list[str]:
    """Return the methods that can search this model."""
    white = isinstance(network, Network)
    linear = isinstance(network, Network) and not network.layers
    return [n for n, entry in METHODS.items() if (white or not entry.gradients) and not (linear and entry.neurons)]
