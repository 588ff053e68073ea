"""Several search methods on one model: the same domain, seeds and budget, and people drawn uniformly as a control."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from neuronfair.domain.population.model import PopulationModel, fit_population
from neuronfair.domain.table import TableDomain
from neuronfair.errors import NeuronFairError
from neuronfair.formatting import Population
from neuronfair.measure.diversity import count_clusters, count_regions, mean_distance, measure_severity, share_outside
from neuronfair.measure.rate import Rate, flip_rate
from neuronfair.measure.stats import mean_interval
from neuronfair.model.blackbox import Model
from neuronfair.model.encoding import cluster_seeds
from neuronfair.parameters import named_options
from neuronfair.progress import PieceProgress, Progress, label_progress, show_nothing
from neuronfair.scale.pool import Pool
from neuronfair.searches.campaign import SearchResult, search
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.evaluate import with_twins
from neuronfair.searches.methods import check_method, current_name

MIN_RANDOM_RECORDS, MAX_RANDOM_RECORDS = (
    10_000,
    1_000_000,
)  # people drawn uniformly and evaluated for the rate next to the methods


@dataclass(frozen=True)
class MethodRun:
    """What one method did with one run seed; a metric is None where nothing was found."""

    method: str
    seed: int
    figures: dict[str, float | None]


def measure_method(outcome: SearchResult) -> dict[str, float | None]:
    """Return how a search went; None for what cannot be said where nothing was found."""
    summary, findings, domain = outcome.summary(), outcome.findings, outcome.domain
    gaps = measure_severity(findings, outcome.config.decision)
    count = summary["findings"]
    return {
        "findings": count,
        "findings_global": summary["findings_global"],
        "findings_local": summary["findings_local"],
        "tried": summary["tried"],
        "gsr": summary["gsr"],
        "random_direction_gsr": outcome.random_direction.success_rate if outcome.random_direction else None,
        "lift": None,
        "lift_over_strongest_control": None,
        "diversity": mean_distance(domain, findings.packed) if count > 1 else None,
        "regions": count_regions(domain, findings.packed),
        "clusters": count_clusters(domain, findings.packed.long()),
        "severity": gaps.median if gaps else None,
        "severity_p95": gaps.p95 if gaps else None,
        "severity_largest": gaps.largest if gaps else None,
        "seconds": summary["seconds"],
        "seconds_per_1000": summary["seconds_per_1000"],
        "rows_evaluated": summary["rows_evaluated"],
        "rows_per_finding": summary["rows_evaluated"] / count if count else None,
    }


class _SearchJob(NamedTuple):
    """One search of a comparison."""

    config: SearchConfig
    seeds: Tensor


class _SearchSubject(NamedTuple):
    """A model and its data set, as they are sent to a worker."""

    model: Model | None
    opens: Callable[[], Model] | None  # opens the model in the worker, where it is not sent
    domain: TableDomain
    rows: Tensor


def _run_method(subject: _SearchSubject, run: _SearchJob, progress: Progress) -> MethodRun | None:
    """Search, and return how it went; None on Ctrl-C."""
    model = subject.model if subject.opens is None else subject.opens()
    assert model is not None
    outcome = search(model, subject.domain, subject.rows, run.config, seeds=run.seeds, progress=progress)
    if outcome.interrupted:
        return None
    outside = share_outside(subject.domain, outcome.findings.packed, subject.rows)
    costs: dict[str, float | None] = {"queries": float(outcome.queries), "outside_data": outside}
    return MethodRun(run.config.method, run.config.seed, measure_method(outcome) | costs)


def _run_method_in_worker(subject: _SearchSubject, run: _SearchJob, report: PieceProgress) -> MethodRun | None:
    return _run_method(subject, run, lambda what, done, total, note="": report(done, total or 0, 0))


class Control(NamedTuple):
    """A search that knows nothing, and how often it succeeds."""

    name: str
    gsr: float


@dataclass(frozen=True)
class Comparison:
    """The metrics of every method and run seed, and the rates next to them."""

    config: SearchConfig
    seeds: int  # how many rows the methods started from
    rates: tuple[Rate, ...]  # how often the decision flips, in the table and in the domain; perhaps none
    lines: tuple[MethodRun, ...]
    interrupted: bool = False

    @property
    def random(self) -> Rate | None:
        """The rate of people drawn uniformly from the domain, which lift is over."""
        return next((rate for rate in self.rates if rate.population == "domain"), None)

    @property
    def strongest(self) -> Control | None:
        """The best of random people and of all methods in random directions; None where none of them succeeds.

        A method that beats its own control only may owe it to steps that are bad to begin with.
        """
        if self.random is None:
            return None
        undirected = [
            (f"random directions of {entry['method']}", entry["random_direction_gsr"]) for entry in self.methods()
        ]
        controls = [Control(name, gsr) for name, gsr in (("random people", self.random.rate), *undirected) if gsr]
        return max(controls, key=lambda control: control.gsr, default=None)

    def methods(self) -> list[dict[str, Any]]:
        """Return one dictionary per method: the mean of each metric over the run seeds.

        With more than one run seed `plus_minus` holds the half-widths of the 95% intervals of the means.
        """
        result = []
        for method in dict.fromkeys(line.method for line in self.lines):
            lines = [line.figures for line in self.lines if line.method == method]
            entry: dict[str, Any] = {"method": method, "runs": len(lines)}
            half_widths: dict[str, float | None] = {}
            for name in lines[0]:
                values = [x for figures in lines if (x := figures[name]) is not None]
                entry[name], half_widths[name] = mean_interval(values)
            if len(lines) > 1:
                entry["plus_minus"] = half_widths
            result.append(entry)
        return result


@named_options({"network": "model"})
def compare_methods(
    model: Model,
    domain: TableDomain,
    rows: Tensor,
    methods: Sequence[str],
    config: SearchConfig | None = None,
    *,
    repeats: int = 1,  # run seeds, from `config.seed` on: other seed rows and other draws
    progress: Progress | None = None,
    pool: Pool | None = None,  # workers that search with several methods in parallel
    opens: Callable[[], Model] | None = None,  # opens the model in a worker; default: the model is sent
) -> Comparison:
    """Search a model with each method and return the metrics side by side.

    `repeats` is the number of run seeds, from `config.seed` on: other seed rows and other draws. Without
    `config.controls` there are neither rates nor lifts. A pool searches with all methods and run seeds side by side;
    the metrics are the same, except for seconds.
    """
    config = config or SearchConfig()
    methods = list(dict.fromkeys(map(current_name, methods)))
    if not methods or repeats < 1:
        raise NeuronFairError("a comparison needs one method and one run seed, at least")
    for method in methods:
        check_method(method, model, config.decision)
    domain = with_twins(domain, rows, config.twins)
    runs = []
    for seed in range(config.seed, config.seed + repeats):
        seeds = cluster_seeds(model.encoding, rows, config.seeds, seed=seed)
        runs += [_SearchJob(replace(config, method=method, seed=seed), seeds) for method in methods]
    lines = list(_run_methods(model, domain, rows, runs, progress or show_nothing, pool, opens))
    is_interrupted = len(lines) < len(runs)
    evaluated = max((int(line.figures["rows_evaluated"] or 0) for line in lines), default=0)
    populations: tuple[Population | Tensor | PopulationModel, ...] = ()
    if config.controls and not is_interrupted:
        populations = (rows, fit_population(domain, rows, seed=config.seed), "domain")
    samples = min(MAX_RANDOM_RECORDS, max(MIN_RANDOM_RECORDS, evaluated))
    rates = tuple(
        flip_rate(model, domain, population=population, samples=samples, decision=config.decision, seed=config.seed)
        for population in populations
    )
    result = Comparison(config, len(runs[0].seeds), rates, tuple(lines), is_interrupted)
    return replace(result, lines=tuple(_add_lifts(line, result) for line in lines))


def _add_lifts(line: MethodRun, comparison: Comparison) -> MethodRun:
    """Return a run with its success rate as a multiple of that of random people, and of the strongest control."""
    gsr, random, strongest = line.figures["gsr"], comparison.random, comparison.strongest
    baselines = {"lift": random and random.rate, "lift_over_strongest_control": strongest and strongest.gsr}
    lifts = {name: gsr / rate if gsr is not None and rate else None for name, rate in baselines.items()}
    return replace(line, figures=line.figures | lifts)


def _run_methods(
    model: Model,
    domain: TableDomain,
    rows: Tensor,
    runs: Sequence[_SearchJob],
    progress: Progress,
    pool: Pool | None = None,
    opens: Callable[[], Model] | None = None,
) -> Iterator[MethodRun]:
    """Give the line of each search that is finished, up to Ctrl-C."""
    if pool is None:
        for run in runs:
            line = _run_method(
                _SearchSubject(model, None, domain, rows), run, label_progress(progress, f"{run.config.method}, ")
            )
            if line is None:
                return
            yield line
        return

    def show_total(pieces: Sequence[tuple[int, int, int]]) -> None:
        completed, total, _ = map(sum, zip(*pieces, strict=True))
        progress(f"{len(runs)} searches", completed, total)

    gpus = float(model.encoding.device.type == "cuda")
    subject = _SearchSubject(model if opens is None else None, opens, domain, rows)
    try:
        for line in pool.map(_run_method_in_worker, subject, runs, progress=show_total, gpus=gpus):
            if line is None:
                return
            yield line
    except KeyboardInterrupt:  # what is finished stays
        return
