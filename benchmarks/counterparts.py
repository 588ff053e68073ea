"""How near counterparts come to the truth, and how often they claim what is not so.

    python -m benchmarks.counterparts truth --people 2000 10000 --worlds 20
    python -m benchmarks.counterparts claims --people 1000 --worlds 100
    taskset -c 0,1 python -m benchmarks.counterparts time --kinds adult/sex

`truth`: in made-up worlds (benchmarks/truth/worlds.py) everybody's true counterpart is known, and so is the decision on
it. The share of people of whom that decision is told: by drawn counterparts and by the typical one; by drawn ones with
the world's graph; by somebody who knows all laws of the world but nobody's noise (best); by the flip test, which says
that nothing changes; by a random person of the other group. Besides, the true rate of changes, ours, and that of
the permutation baseline.

`claims`: how often an effect is claimed for models that decide by an attribute that has nothing to do with the group
(alone), by all attributes where none has (apart), and by a copy of the group (copy: all flip).

`time`: the seconds of a whole measurement (32 counterparts of everybody, 20 permutations, 20 resampled tables) on two
threads, with boosted trees that are not given the attribute; the training of the trees is not counted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import neuronfair  # noqa: F401 - before torch: it keeps idle threads from spinning

# isort: split
from neuronfair.domain.population.counterfactuals import fit_counterfactuals, shuffle_groups
from neuronfair.domain.table import TableDomain
from neuronfair.measure.counterfactual_effect import CounterfactualSettings, CounterfactualTest
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision

import numpy as np
import torch
from benchmarks.truth.worlds import KINDS, World
from experiments.counterparts import trained, unread
from torch import Tensor

TRUTH = ("true", "ours", "placebo", "drawn", "typical", "with graph", "best", "flip test", "random")


def with_graph(world: World) -> TableDomain:
    """Return the world's domain with the causes that each attribute has."""
    group, *others = world.domain.attributes
    causes = [("group", *(others[i].name for i in np.flatnonzero(line))) for line in world.weights]
    named = (replace(attribute, causes=of) for attribute, of in zip(others, causes, strict=True))
    return replace(world.domain, attributes=(group, *named))


def told(world: World, draws: int, seed: int) -> list[float]:
    """Return the figures of `TRUTH` of one world."""
    own, true = world.decided(world.rows), world.decided(world.truth)

    def drawn(domain: TableDomain, rows: Tensor) -> tuple[Tensor, Tensor]:
        how = fit_counterfactuals(domain, rows)
        decided = [world.decided(twins.rows[:, 0]) for twins in how.draw(domain, rows, draws)]
        return torch.stack(decided), world.decided(how.twins(domain, rows).rows[:, 0])

    ours, typical = drawn(world.domain, world.rows)
    nothing, _ = drawn(*shuffle_groups(world.domain, world.rows, seed))
    graph, _ = drawn(with_graph(world), world.rows)
    best = torch.stack([world.decided(world.again(t)) for t in range(draws)])
    chance = torch.stack([own[someone_else(world.rows[:, 0], t)] for t in range(draws)])
    changes = [(decided != own).double().mean() for decided in (true, ours, nothing)]
    agrees = [(decided == true).double().mean() for decided in (ours, typical, graph, best, own, chance)]
    return [float(share) for share in (*changes, *agrees)]


def someone_else(group: Tensor, seed: int) -> Tensor:
    """Return for each person a random one of the other group."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.empty_like(group)
    for value in (0, 1):
        others = (group != value).nonzero()[:, 0]
        mine = (group == value).nonzero()[:, 0]
        found[mine] = others[torch.randint(len(others), mine.shape, generator=generator)]
    return found


def subject(kind: str, people: int, seed: int) -> tuple[World, Tensor, Callable[[Tensor], Tensor]]:
    """Return a world, its table, and the scores of a model whose effect is known to be none or all."""
    world = World("apart" if kind == "apart" else "mixed", people, seed)
    rows = world.rows.clone()
    if kind == "alone":  # the number of another person
        rows[:, 1] = rows[torch.randperm(people, generator=torch.Generator().manual_seed(seed)), 1]
        middle = rows[:, 1].double().median()
        return world, rows, lambda some: some[:, 1] - middle + 0.5
    if kind == "copy":
        rows[:, 2] = rows[:, 0]
        return world, rows, lambda some: some[:, 2] - 0.5
    return world, rows, world.score


def row(cells: Sequence[object]) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def truth(args: argparse.Namespace) -> None:
    """Print how often the true decision is told, in percent, the mean of some worlds."""
    row(("world", "people", *TRUTH))
    row(["---"] * (2 + len(TRUTH)))
    for kind in args.kinds or KINDS:
        for people in args.people:
            seeds = range(args.seed, args.seed + args.worlds)
            means = np.mean([told(World(kind, people, seed), args.draws, seed) for seed in seeds], 0)
            row((kind, f"{people:,}", *(f"{100 * mean:.1f}" for mean in means)))


def claims(args: argparse.Namespace) -> None:
    """Print how often an effect is claimed."""
    row(("model", "people", "worlds", "claimed", "mean rate, %", "largest", "mean placebo, %"))
    row(["---"] * 7)
    thorough, decision = CounterfactualSettings(draws=args.draws), Decision("threshold", 0.0)
    for kind in args.kinds or ("alone", "apart", "copy"):
        for people in args.people:
            found = []
            for seed in range(args.seed, args.seed + args.worlds):
                world, rows, score = subject(kind, people, seed)
                model = BlackBox(lambda some, score=score: score(some).double(), world.domain)
                effect = CounterfactualTest(model, world.domain, rows, decision=decision, settings=thorough).measure()
                found.append((effect.has_excess, effect.rate.value, effect.permutation_baseline.value))
            claimed, rate, nothing = np.array(found).T
            shares = (f"{100 * share:.2f}" for share in (rate.mean(), rate.max(), nothing.mean()))
            row((kind, f"{people:,}", args.worlds, int(claimed.sum()), *shares))


def seconds(args: argparse.Namespace) -> None:
    """Print how long a whole measurement takes."""
    row(("table", "people", "seconds", "rate, %", "placebo, %"))
    row(["---"] * 5)
    torch.set_num_threads(2)
    for case in args.kinds or ("adult/sex",):
        name, sensitive = case.split("/")
        table = unread(name, sensitive)
        model = trained(table, "xgboost", 0, quick=False)
        begun = time.perf_counter()
        effect = CounterfactualTest(model, table.domain, table.rows).measure()
        passed = time.perf_counter() - begun
        row(
            (
                case,
                f"{effect.with_twin:,}",
                f"{passed:.1f}",
                *(f"{100 * one.value:.2f}" for one in (effect.rate, effect.permutation_baseline)),
            )
        )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("truth", "claims", "time"))
    parser.add_argument("--kinds", nargs="+", help="some of the worlds, of the models, or tables with an attribute")
    parser.add_argument("--people", type=int, nargs="+", default=[2000])
    parser.add_argument("--worlds", type=int, default=10)
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1000, help="of the first world")
    args = parser.parse_args()
    torch.set_num_threads(1)
    {"truth": truth, "claims": claims, "time": seconds}[args.part](args)


if __name__ == "__main__":
    main()
