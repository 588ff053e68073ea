"""Several methods on one model: the same domain, seeds, budget and judge, and people drawn uniformly beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

from torch import Tensor

from neuronfair.domain.population import PopulationModel, fit_population
from neuronfair.domain.table import TableDomain
from neuronfair.errors import NeuronFairError
from neuronfair.measure.mean import mean_interval
from neuronfair.measure.rate import Rate, discrimination_rate
from neuronfair.model.blackbox import Model
from neuronfair.model.network import Network
from neuronfair.scale.pool import Pool
from neuronfair.search.campaign import Progress
from neuronfair.search.counterparts import comparing
from neuronfair.search.methods import METHODS, check_method
from neuronfair.search.outcome import Plan
from neuronfair.verdict.contest import Line, Work, line_of
from neuronfair.words import Population

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
    **elsewhere: Unpack[Elsewhere],
) -> Comparison:
    """Search a model with each method and return the figures side by side.

    The paper compares phases alone, too. "global": nothing but the global phase. "local": all methods start from the
    same mix of the findings of their global phases, and these do not count. `repeats` is the number of run seeds,
    from `plan.seed` on: other seed rows and other draws. Without `plan.controls` there are neither rates nor lifts. A
    pool searches with all methods and run seeds side by side; the figures are the same, but for seconds.
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
    work = Work(network, domain, rows, progress, elsewhere.get("pool"), elsewhere.get("opens"))
    plans = [replace(plan, seed=seed) for seed in range(plan.seed, plan.seed + repeats)]
    lines, starts, stopped = list[Line](), 0, False
    for some in [plans] if work.pool is not None else [[one] for one in plans]:
        searches = work.mixed(some, methods) if phase == "local" else work.clustered(some, methods)
        starts = searches[0].starts if searches else starts
        done = work.each(line_of, searches)
        lines += done
        stopped = len(done) < len(some) * len(methods)
        if stopped:
            break
    judged = max((int(line.figures["rows_judged"] or 0) for line in lines), default=0)
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
