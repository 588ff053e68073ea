"""Several methods on one model: the same domain, seeds, budget and judge, and people drawn uniformly beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.population import PopulationModel, fit_population
from neuronfair.domain.table import TableDomain
from neuronfair.errors import NeuronFairError
from neuronfair.measure.diversity import clusters, mean_distance, regions
from neuronfair.measure.mean import mean_interval
from neuronfair.measure.quality import quality
from neuronfair.measure.rate import Rate, discrimination_rate
from neuronfair.measure.severity import severity
from neuronfair.model.blackbox import Model
from neuronfair.model.network import Network
from neuronfair.search.campaign import CONTROL, Progress, find
from neuronfair.search.counterparts import comparing
from neuronfair.search.methods import METHODS, check_method
from neuronfair.search.outcome import Outcome, Plan
from neuronfair.search.seeds import cluster_seeds
from neuronfair.words import Population

Phase = Literal["both", "global", "local"]

MIX_SEEDS = 10  # times as many seeds as asked for start each method's global phase, whose findings are then mixed
MIN_RANDOM, MAX_RANDOM = 10_000, 1_000_000  # people drawn uniformly and judged for the rate beside the methods


@dataclass(frozen=True)
class Line:
    """What one method did with one run seed; a figure is None where nothing was found."""

    method: str
    seed: int
    figures: dict[str, float | None]


class Control(NamedTuple):
    """A search that knows nothing, and how often it succeeds."""

    name: str
    gsr: float


@dataclass(frozen=True)
class Comparison:
    """The figures of every method and run seed, and the rates beside them."""

    phase: Phase
    plan: Plan
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

        With more than one run seed `plus_minus` holds the half-widths of the 95 % intervals of the means.
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
    plan: Plan | None = None,
    *,
    phase: Phase = "both",
    repeats: int = 1,
    progress: Progress | None = None,
) -> Comparison:
    """Search a model with each method and return the figures side by side.

    The paper compares phases alone, too. "global": nothing but the global phase. "local": all methods start from the
    same mix of the findings of their global phases, and these do not count. `repeats` is the number of run seeds,
    from `plan.seed` on: other seed rows and other draws. Without `plan.controls` there are neither rates nor lifts.
    """
    plan = plan or Plan()
    methods = list(dict.fromkeys(methods))
    if not methods or repeats < 1:
        raise NeuronFairError("a comparison needs one method and one run seed, at least")
    for method in methods:
        check_method(method, network, plan.decision)
    if phase == "global":
        plan = replace(plan, steps=0)
    domain = comparing(domain, rows, plan.twins)
    lines: list[Line] = []
    judged, starts, stopped = 0, 0, False
    for seed in range(plan.seed, plan.seed + repeats):
        now = replace(plan, seed=seed)
        if phase == "local":
            mixed = _mixed_seeds(network, domain, rows, methods, now, progress)
            stopped = mixed is None
            if mixed is None:
                break
            seeds, now = mixed, replace(now, global_steps=0)
        else:
            seeds = cluster_seeds(network.encoding, rows, now.seeds, seed=seed)
        starts = len(seeds)
        for method in methods:
            asked = _Asked(network, _labelled(progress, method))
            outcome = find(network, domain, rows, replace(now, method=method), seeds=seeds, progress=asked)
            stopped = outcome.interrupted
            if stopped:
                break
            outside = quality(domain, outcome.findings.packed, rows).outside
            more: dict[str, float | None] = {"queries": float(asked.rows), "outside_data": outside}
            lines.append(Line(method, seed, figures(outcome) | more))
            judged = max(judged, int(lines[-1].figures["rows_judged"] or 0))
        if stopped:
            break
    populations: tuple[Population | Tensor | PopulationModel, ...] = ()
    if plan.controls and not stopped:
        populations = (rows, fit_population(domain, rows, seed=plan.seed), "domain")
    samples = min(MAX_RANDOM, max(MIN_RANDOM, judged))
    rates = tuple(
        discrimination_rate(network, domain, population=one, samples=samples, decision=plan.decision, seed=plan.seed)
        for one in populations
    )
    result = Comparison(phase, plan, starts, rates, tuple(lines), stopped)
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


def figures(outcome: Outcome) -> dict[str, float | None]:
    """Return how a search went; None for what cannot be said where nothing was found."""
    summary, findings, domain = outcome.summary(), outcome.findings, outcome.domain
    gaps = severity(findings, outcome.plan.decision)
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


def _mixed_seeds(
    network: Model, domain: TableDomain, rows: Tensor, methods: list[str], plan: Plan, progress: Progress | None
) -> Tensor | None:
    """Return `plan.seeds` different people, drawn at random from the global findings of all methods; None on Ctrl-C."""
    first = replace(plan, seeds=MIX_SEEDS * plan.seeds, steps=0, instances=None, seconds=None, controls=False)
    found = []
    for method in methods:
        label = _labelled(progress, f"{method}, mixing")
        outcome = find(network, domain, rows, replace(first, method=method), progress=label)
        if outcome.interrupted:
            return None
        found.append(outcome.findings.rows)
    pool = torch.cat(found)
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(plan.seed)).to(pool.device)
    pool = pool[order]
    keys = domain.key(pool)
    ranked, place = torch.sort(keys, stable=True)
    first_of = torch.ones_like(ranked, dtype=torch.bool)
    first_of[1:] = ranked[1:] != ranked[:-1]
    mixed = pool[torch.sort(place[first_of]).values][: plan.seeds]
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


def _labelled(progress: Progress | None, method: str) -> Progress | None:
    if progress is None:
        return None
    return lambda phase, done, total, found: progress(f"{method}, {phase}", done, total, found)
