"""Whether the counterfactual test is right: worlds in which every person's true counterfactual twin is known.

    PYTHONPATH=src python -m benchmarks.counterfactual_worlds --n 700 4000 --repeats 250 --processes 16

Each repeat makes a world of its own: structural equations with random coefficients, a data set, and a model that does
not use the group. A person's true twin has the same noise and the other group (numbers keep their rank, labels follow
a maximal coupling). The true share of twins with a different decision comes from 200,000 people of the same world.

In linear, nonlinear, mediated, mixed, weak and null worlds every assumption holds and the causal graph is declared. In
hidden, undeclared, selection and collider worlds the group changes nothing that the model reads (the true share is 0),
but the groups differ in the data, and no graph is declared: there the report must say what the comparison rests on.

Constants were settled with `--seeds development`; the documents report `--seeds report`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import NamedTuple

import neuronfair  # noqa: F401 - before torch: it keeps idle threads from spinning

# isort: split
from neuronfair.audits.wording.phrases import report_counterfactual_test
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.measure.counterfactual_effect import CounterfactualSettings, CounterfactualTest
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision

import numpy as np
import numpy.typing as npt
import torch

SEEDS = {"development": 1_000_000, "report": 2_000_000}
MANY = 200_000  # people from whom the true share is known
HIGHEST, MIDDLE, STEPS = 240, 120, 15  # codes of a number, and how many make one unit
LABELS = 4

Floats = npt.NDArray[np.float64]


@dataclass
class People:
    """Some people (line 0) and their true twins (line 1), column by column, and the randomness they come from."""

    rng: np.random.Generator
    side: Floats  # (2, n): -1/2 in one group, 1/2 in the other
    columns: dict[str, Floats] = field(default_factory=dict)

    @classmethod
    def of(cls, rng: np.random.Generator, n: int, more: Floats | float = 0.0) -> People:
        """Return people whose group depends on something (`more`, in logits) or on nothing."""
        own = (rng.random(n) < 1 / (1 + np.exp(0.3 - more))) - 0.5
        return cls(rng, np.stack([own, -own]))

    def noise(self, skew: bool = False) -> Floats:
        """Return noise that a person and the twin share."""
        n = self.side.shape[1]
        return self.rng.exponential(1, n) - 1 if skew else self.rng.normal(0, 1, n)

    def number(self, name: str, value: Floats) -> Floats:
        """Add a number, on the grid of its codes, and return it."""
        value = np.broadcast_to(value, self.side.shape)
        self.columns[name] = np.clip(np.round(MIDDLE + STEPS * value), 0, HIGHEST)
        return (self.columns[name] - MIDDLE) / STEPS

    def label(self, name: str, scores: Floats) -> Floats:
        """Add a label with these scores (2, n, labels), coupled maximally, and return it."""
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        own = _drawn(self.rng, chances[0])
        every = np.arange(len(own))
        stays = self.rng.random(len(own)) < chances[1][every, own] / chances[0][every, own]
        more = np.maximum(chances[1] - chances[0], 0) + 1e-12
        other = _drawn(self.rng, more / more.sum(-1, keepdims=True))
        self.columns[name] = np.stack([own, np.where(stays, own, other)]).astype(np.float64)
        return self.columns[name]


def _drawn(rng: np.random.Generator, chances: Floats) -> npt.NDArray[np.int64]:
    at = rng.random((len(chances), 1))
    return np.minimum((chances.cumsum(1) < at).sum(1), chances.shape[1] - 1)


class World(NamedTuple):
    """How people are made, whose decisions they are, and what a user would declare."""

    people: Callable[[np.random.Generator, int], People]
    worth: dict[str, Floats | float]  # of a column for the model's score: of each label, or of a unit of a number
    causes: dict[str, tuple[str, ...]] | None  # without the group, which all of them have; None: nothing is declared


NUMBERS = ("a", "b", "c", "d", "e")


def _sums(rng: np.random.Generator, size: float, *, bent: bool = False, columns: int = 5) -> World:
    """Numbers that depend on the group and on earlier ones, by sums or by bent sums with another spread and skew."""
    effect = size * rng.uniform(0.4, 1.2, columns) * rng.choice([-1, 0, 1], columns, p=[0.25, 0.35, 0.4])
    effect[0] = size * rng.uniform(0.4, 1.2)
    links = rng.normal(0, 0.5, (columns, columns)) * (rng.random((columns, columns)) < 0.5)
    twist = size * rng.normal(0, 0.3, (columns, columns)) * bent
    spread, skew = size * rng.normal(0, 0.25, columns) * bent, (rng.random(columns) < 0.4) & bent
    names = NUMBERS[:columns]

    def people(rng: np.random.Generator, n: int) -> People:
        some = People.of(rng, n)
        known = list[Floats]()
        for j, name in enumerate(names):
            total = effect[j] * some.side
            for i, earlier in enumerate(known):
                total = total + (links[j, i] + twist[j, i] * some.side) * earlier
            total = 1.5 * np.tanh(total) if bent else total
            known.append(some.number(name, total + some.noise(skew[j]) * np.exp(spread[j] * some.side)))
        return some

    causes = {name: names[:j] for j, name in enumerate(names)}
    return World(people, dict(zip(names, rng.normal(0, 1, columns), strict=True)), causes)


def _mediated(rng: np.random.Generator) -> World:
    """The group moves a contract and hours; everything else depends on these, in part by their product."""
    part, hours, pay, more = rng.uniform(0.5, 2.0), rng.uniform(0.3, 1), rng.uniform(0.4, 1), rng.uniform(0.2, 0.8)

    def people(rng: np.random.Generator, n: int) -> People:
        some = People.of(rng, n)
        contract = some.label("contract", np.stack([0 * some.side, part * some.side - 0.3], -1))
        worked = some.number("a", hours * (contract - 0.5) * 2 + some.noise())
        earned = some.number("b", pay * worked + more * contract * worked + some.noise())
        some.number("c", 0.6 * earned + some.noise())
        some.number("d", np.broadcast_to(some.noise(), some.side.shape))
        return some

    worth = {"a": rng.normal(0, 0.3), "b": rng.normal(0, 1), "c": rng.normal(0, 1), "d": rng.normal(0, 0.5)}
    causes = {"a": ("contract",), "b": ("contract", "a"), "c": ("b",), "d": (), "contract": ()}
    return World(people, worth, causes)


def _mixed(rng: np.random.Generator, size: float = 1.0) -> World:
    """Labels, a flag and numbers, all of which may depend on one another."""
    effect = size * rng.uniform(0.4, 1.2, 4) * rng.choice([-1, 1], 4)
    sides, worth = rng.normal(0, 1, (2, LABELS)), rng.normal(0, 0.8, (2, LABELS))

    def people(rng: np.random.Generator, n: int) -> People:
        some = People.of(rng, n)
        job = some.label("job", (effect[0] * some.side)[..., None] * sides[0]).astype(int)
        a = some.number("a", effect[1] * some.side + 0.7 * worth[0][job] + some.noise())
        flag = some.label("flag", np.stack([0 * a, effect[2] * some.side + 0.5 * a], -1))
        town = some.label("town", (0.6 * a)[..., None] * sides[1]).astype(int)
        some.number("b", effect[3] * some.side * (1 - flag) + 0.5 * flag + worth[1][town] + some.noise())
        return some

    told = {"job": worth[0], "flag": np.array([0, rng.normal(0, 1)]), "town": rng.normal(0, 0.5, LABELS)}
    causes = {"job": (), "a": ("job",), "flag": ("a",), "town": ("a",), "b": ("flag", "town")}
    return World(people, {**told, "a": rng.normal(0, 1), "b": rng.normal(0, 1)}, causes)


def _hidden(rng: np.random.Generator, *, declared: bool) -> World:
    """Something moves the group and the inputs alike; it is in no column, or in one that is not declared as fixed."""
    strength, inputs = rng.uniform(0.8, 2.0), rng.uniform(0.4, 1.0, 3)

    def people(rng: np.random.Generator, n: int) -> People:
        cause = rng.normal(0, 1, n)
        some = People.of(rng, n, strength * cause)
        if declared:
            some.number("cause", np.broadcast_to(cause, some.side.shape))
        for name, weight in zip(NUMBERS, inputs, strict=False):
            some.number(name, np.broadcast_to(weight * cause + some.noise(), some.side.shape))
        return some

    return World(people, {name: rng.uniform(0.3, 1) for name in NUMBERS[:3]}, None)


def _selection(rng: np.random.Generator) -> World:
    """The group has nothing to do with the inputs, but both decide who is in the data set."""
    weights, hard = rng.uniform(0.5, 1, 3), rng.uniform(1.0, 2.5)

    def people(rng: np.random.Generator, n: int) -> People:
        many = People.of(rng, 8 * n)
        values = np.stack([many.noise() for _ in weights])
        total = hard * many.side[0] + weights @ values + rng.normal(0, 0.5, 8 * n)
        there = np.flatnonzero(total > 0.5)[:n]
        some = People(rng, many.side[:, there])
        for name, value in zip(NUMBERS, values[:, there], strict=False):
            some.number(name, np.broadcast_to(value, some.side.shape))
        return some

    return World(people, {name: rng.uniform(0.3, 1) for name in NUMBERS[:3]}, None)


def _collider(rng: np.random.Generator) -> World:
    """The group and the inputs move a column that comes before the inputs in the order that is found."""
    effect, weights = rng.uniform(1, 2), rng.uniform(0.6, 1.2, 2)

    def people(rng: np.random.Generator, n: int) -> People:
        some = People.of(rng, n)
        values = [some.noise() for _ in weights]
        moved = effect * some.side + sum(w * v for w, v in zip(weights, values, strict=True)) + 0.3 * some.noise()
        some.number("moved", moved)
        for name, value in zip(NUMBERS, values, strict=False):
            some.number(name, np.broadcast_to(value, some.side.shape))
        return some

    return World(people, {name: rng.uniform(0.3, 1) for name in NUMBERS[:2]}, None)


WORLDS: dict[str, Callable[[np.random.Generator], World]] = {
    "linear": lambda rng: _sums(rng, 1.0),
    "nonlinear": lambda rng: _sums(rng, 1.0, bent=True),
    "mediated": _mediated,
    "mixed": _mixed,
    "weak": lambda rng: _sums(rng, 0.25),
    "null": lambda rng: _sums(rng, 0.0, bent=bool(rng.integers(2))),
    "null mixed": lambda rng: _mixed(rng, 0.0),
    "linear, order found": lambda rng: _sums(rng, 1.0)._replace(causes=None),
    "null, order found": lambda rng: _sums(rng, 0.0)._replace(causes=None),
    "hidden": lambda rng: _hidden(rng, declared=False),
    "undeclared": lambda rng: _hidden(rng, declared=True),
    "selection": _selection,
    "collider": _collider,
}


def _domain(world: World, some: People) -> TableDomain:
    number = Attribute("", "ordinal", high=HIGHEST)
    attributes = [Attribute("group", "nominal", values=("x", "y"), encode="none")]
    for name in some.columns:
        kind = Attribute("", "nominal", values=tuple("pqrs")) if name in ("job", "town") else number
        kind = Attribute("", "flag", values=("no", "yes")) if name in ("flag", "contract") else kind
        causes = None if world.causes is None else ("group", *world.causes[name])
        attributes.append(replace(kind, name=name, causes=causes))
    return TableDomain("world", tuple(attributes), ("group",))


def _score(world: World, names: list[str], codes: Floats) -> Floats:
    """Return the model's score of rows whose columns these are: (…)."""
    total = np.zeros(codes.shape[:-1])
    for i, name in enumerate(names):
        worth = world.worth.get(name, 0.0)
        number = (codes[..., i] - MIDDLE) / STEPS
        total += worth[codes[..., i].astype(int)] if isinstance(worth, np.ndarray) else worth * number
    return total


class Result(NamedTuple):
    """What one repeat came to."""

    truth: float
    rate: float
    baseline: float
    excess: float
    low: float
    high: float
    claimed: bool
    says: bool  # that it rests on assumptions the data cannot test


def repeat(name: str, n: int, seed: int, thorough: CounterfactualSettings | None = None) -> Result:
    """Make a world and a data set, and test the model."""
    torch.set_num_threads(1)
    rng = np.random.default_rng([seed, *name.encode()])
    world = WORLDS[name](rng)
    many = world.people(rng, MANY)
    names = list(many.columns)
    pairs = _score(world, names, np.stack(list(many.columns.values()), -1))
    bar = float(np.quantile(pairs[0], rng.uniform(0.3, 0.7)))
    truth = float(((pairs[0] > bar) != (pairs[1] > bar)).mean())
    some = world.people(rng, n)
    domain = _domain(world, some)
    columns = [some.side[0] + 0.5, *(codes[0] for codes in some.columns.values())]
    rows = torch.from_numpy(np.stack(columns, 1)).long()

    def decided(asked: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(_score(world, names, asked[:, 1:].double().numpy()) - bar)

    effect = CounterfactualTest(
        BlackBox(decided, domain), domain, rows, decision=Decision("threshold", 0.0), settings=thorough, seed=seed
    ).measure()
    words = " ".join(report_counterfactual_test(domain, rows, effect, 0.95).sentences)
    says = "rests on causal assumptions that the data cannot test" in words and "Had they been" not in words
    excess = effect.effect
    return Result(
        truth,
        effect.rate.value,
        effect.permutation_baseline.value,
        excess.value,
        excess.low,
        excess.high,
        effect.has_excess,
        says,
    )


def main() -> None:
    """Print a line for each world and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS), choices=list(WORLDS))
    parser.add_argument("--n", type=int, nargs="+", default=[700, 4000])
    parser.add_argument("--repeats", type=int, default=250)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seeds", choices=list(SEEDS), default="report")
    args = parser.parse_args()
    head = ("world", "n", "true share", "rate", "baseline", "excess", "bias", "coverage", "claimed", "width", "says so")
    print(f"| {' | '.join(head)} |\n{'| --- ' * len(head)}|", flush=True)
    with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
        seeds = range(SEEDS[args.seeds], SEEDS[args.seeds] + args.repeats)
        waiting = {
            (name, n): [pool.submit(repeat, name, n, seed) for seed in seeds] for name in args.worlds for n in args.n
        }
        for (name, n), every in waiting.items():
            found = np.array([one.result() for one in every], dtype=np.float64)
            truth, rate, baseline, excess, low, high, claimed, says = found.T
            figures = (truth, rate, baseline, excess, excess - truth)
            shares = ((low <= truth) & (truth <= high), claimed)
            cells = [name, f"{n:,}", *(f"{100 * figure.mean():.1f}" for figure in figures)]
            cells += [*(f"{100 * share.mean():.0f}%" for share in shares), f"{100 * (high - low).mean():.1f}"]
            print(f"| {' | '.join([*cells, f'{100 * says.mean():.0f}%'])} |", flush=True)


if __name__ == "__main__":
    main()
