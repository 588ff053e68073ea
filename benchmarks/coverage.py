"""How often the intervals of an audit's rates cover the truth, in worlds where the truth is known.

PYTHONPATH=src python -m benchmarks.coverage --repeats 250 --processes 16
PYTHONPATH=src python -m benchmarks.coverage --worlds german --rows 500 --figures table plausible --repeats 20

A world is a population of many people. In "german" they are drawn from a model of German credit, in "adult" and
"compas" they are half of the real rows. The model under test learns from others: in "german" from the real rows, else
from the other half. Each repeat draws a data set from the population, with replacement, fits and measures as an audit
does, and looks whether the interval holds the rate of the whole population.

- table: the raw flip rate of the data set;
- pairs: the flip rate over plausible pairs. The truth is that of the population with the twins that were found to be
  plausible; "pairs, true twins" asks for the truth with the twins that a model of the whole population finds plausible;
- plausible, given the fit: people drawn from the fitted model, with the interval of the draws alone;
- plausible, refitted: with the variance of refits to resampled data sets added (--refits);
- plausible: as an audit reports it, with the interval of the data set's rate taken in;
- domain: people drawn uniformly from the domain, and "sequential": until the error is small enough.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import neuronfair
from neuronfair.audits.report.attribute import widen_interval
from neuronfair.audits.wording.phrases import report_rate
from neuronfair.domain.population.model import fit_likelihood, fit_population
from neuronfair.domain.population.plausible import with_plausible_twins
from neuronfair.domain.table import TableDomain
from neuronfair.measure.rate import PairRate, Rate, Until, flip_rate, plausible_pair_rate
from neuronfair.model.blackbox import BlackBox

import numpy as np
import torch
from torch import Tensor

PEOPLE = 20_000  # of a population at most, and rows that the model under test learns from
SURE = 400_000  # people of the domain from whom its true rate is read
NORMAL = 1.96  # 95% of a normal distribution lie within so many standard deviations
FIGURES = ("table", "pairs", "plausible", "domain")


@dataclass(frozen=True)
class World:
    """A population, and a model that others were learned from."""

    domain: TableDomain
    people: Tensor
    model: BlackBox


class Seen(NamedTuple):
    """One interval and the truth."""

    figure: str
    low: float
    high: float
    truth: float


@cache
def world(name: str) -> World:
    """Return a world by its name."""
    data = neuronfair.load_dataset(name)
    domain, rows = data.domain, data.domain.clip(data.rows)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))
    labels = data.labels[order].numpy()
    learned, people = rows[order], rows[order]
    if name == "german":
        generator = torch.Generator().manual_seed(2)
        people = fit_likelihood(domain, rows).sample(PEOPLE, generator)
    else:
        half = len(rows) // 2
        learned, labels, people = learned[:half], labels[:half], people[half : half + PEOPLE]
    return World(domain, people, _trees(domain, learned, labels))


def _trees(domain: TableDomain, rows: Tensor, labels: np.ndarray) -> BlackBox:
    """Return boosted trees on the codes."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    trees = HistGradientBoostingClassifier(max_iter=40, learning_rate=0.2, early_stopping=False, random_state=0)
    trees.fit(rows.numpy(), labels)
    return BlackBox(lambda some: trees.predict_proba(some.cpu().numpy()), domain)


@cache
def true_rate(name: str, population: str) -> float:
    """Return the flip rate of a whole population: its people, or the domain."""
    here = world(name)
    whom = here.people if population == "table" else "domain"
    samples = len(here.people) if population == "table" else SURE
    return flip_rate(here.model, here.domain, population=whom, samples=samples, seed=99).rate


@cache
def true_pairs(name: str) -> TableDomain:
    """Return the domain with the twins that a model of the whole population finds plausible."""
    here = world(name)
    return with_plausible_twins(here.domain, fit_population(here.domain, here.people), here.people)


def one_repeat(name: str, n: int, figures: tuple[str, ...], draws: int, refits: int, number: int) -> list[Seen]:
    """Draw a data set, measure it, and return the intervals with the truth."""
    torch.set_num_threads(1)
    here = world(name)
    generator = torch.Generator().manual_seed(1000 + number)
    rows = here.people[torch.randint(len(here.people), (n,), generator=generator)]
    measures: dict[str, Callable[[], Iterator[Seen]]] = {
        "table": partial(_table, name, rows),
        "pairs": partial(_pairs, name, rows),
        "plausible": partial(_plausible, name, rows, draws, refits, number),
        "domain": partial(_domain, name, draws, number),
    }
    return [seen for figure in figures for seen in measures[figure]()]


def _table(name: str, rows: Tensor) -> Iterator[Seen]:
    here = world(name)
    rate = flip_rate(here.model, here.domain, population=rows, samples=len(rows))
    yield Seen("table", *rate.interval, true_rate(name, "table"))


def _pairs(name: str, rows: Tensor) -> Iterator[Seen]:
    here = world(name)
    found = with_plausible_twins(here.domain, fit_population(here.domain, rows), rows)
    measured = _pair_rate(here, found, rows)
    if measured is not None:
        given, whole = _pair_rate(here, found, here.people), _pair_rate(here, true_pairs(name), here.people)
        assert given is not None
        assert whole is not None
        yield Seen("pairs", *measured.rate.interval, given.rate.rate)
        yield Seen("pairs, true twins", *measured.rate.interval, whole.rate.rate)


def _pair_rate(here: World, pairs: TableDomain, rows: Tensor) -> PairRate | None:
    return plausible_pair_rate(here.model, pairs, rows, samples=len(rows))


def _plausible(name: str, rows: Tensor, draws: int, refits: int, number: int) -> Iterator[Seen]:
    here, truth = world(name), true_rate(name, "table")

    def rate_in(some: Tensor, seed: int) -> Rate:
        population = fit_likelihood(here.domain, some, seed=seed)
        return flip_rate(here.model, here.domain, population=population, samples=draws, seed=seed)

    rate = rate_in(rows, number)
    yield Seen("plausible, given the fit", *rate.interval, truth)
    real = flip_rate(here.model, here.domain, population=rows, samples=len(rows))
    both = widen_interval(report_rate(rate), report_rate(real))
    yield Seen("plausible", both.low, both.high, truth)
    if refits:
        generator = torch.Generator().manual_seed(number)
        again = [rows[torch.randint(len(rows), (len(rows),), generator=generator)] for _ in range(refits)]
        spread = NORMAL * float(np.std([rate_in(some, number).rate for some in again], ddof=1))
        yield Seen("plausible, refitted", max(0.0, rate.rate - spread), rate.rate + spread, truth)


def _domain(name: str, draws: int, number: int) -> Iterator[Seen]:
    here, truth = world(name), true_rate(name, "domain")
    for figure, samples in (("domain", draws), ("sequential", Until(0.01, 4 * draws))):
        rate = flip_rate(here.model, here.domain, samples=samples, seed=number)
        yield Seen(figure, *rate.interval, truth)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", default=["german", "adult", "compas"])
    parser.add_argument("--rows", nargs="+", type=int, default=[500, 2000])
    parser.add_argument("--figures", nargs="+", choices=FIGURES, default=list(FIGURES))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--draws", type=int, default=5_000, help="people drawn from a model or the domain")
    parser.add_argument("--refits", type=int, default=0, help="of 'plausible, refitted'; 0: it is left out")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    heads = ("world", "rows", "figure", "covers", "95% of that", "width", "truth")
    print("{:8} {:>5} {:26} {:>7} {:>15} {:>7} {:>7}".format(*heads))
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        for name in given.worlds:
            for n in given.rows:
                work = partial(one_repeat, name, n, tuple(given.figures), given.draws, given.refits)
                seen = [one for part in pool.imap(work, range(given.repeats)) for one in part]
                for line in lines(seen):
                    print(f"{name:8} {n:5} {line}", flush=True)


def lines(seen: list[Seen]) -> Iterator[str]:
    """Yield a line for each figure: how often its interval holds the truth, how sure that is, and how wide it is."""
    by_figure = defaultdict(list)
    for one in seen:
        by_figure[one.figure].append(one)
    for figure, every in by_figure.items():
        covers = Rate(sum(one.low <= one.truth <= one.high for one in every), len(every), "domain")
        low, high = covers.interval
        width, truth = (np.mean([one.high - one.low for one in every]), np.mean([one.truth for one in every]))
        print_sure = f"{100 * low:.1f}–{100 * high:.1f} %"
        yield f"{figure:26} {100 * covers.rate:5.1f} % {print_sure:>15} {100 * width:5.2f} % {100 * truth:5.2f} %"


if __name__ == "__main__":
    main()
