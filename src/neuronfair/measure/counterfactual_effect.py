"""How often people at the same place of another group's distribution get a different decision, beyond chance."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.interface import TwinRows
from neuronfair.domain.population.counterfactuals import (
    DRAWS,
    CounterfactualTwins,
    fit_counterfactuals,
    shuffled_groups,
)
from neuronfair.domain.table import TableDomain, check_rows
from neuronfair.domain.twins import FLIPS
from neuronfair.errors import DomainError, NeuronFairError
from neuronfair.measure.confounding import Sensitivity, sensitivity
from neuronfair.measure.mediators import CounterfactualPairs, Mediator, carriers, tells
from neuronfair.measure.stats import Estimate, excess, student
from neuronfair.measure.twin_decisions import Move, ScoredPeople, TwinTally, mean_moves
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision

MAX_TWINS = 2_000_000  # counterparts of the table's people; of fewer people where there are many groups
AGAIN = 200_000  # counterparts in each shuffled and each resampled table, if that many draws are not too many
LEAST_DRAWS, MOST_DRAWS = 2, 8  # there
AT_A_TIME = 8  # tables that are learned side by side, at most
CARRIED = 16_000  # counterparts that are asked what carries the effect
SHUFFLED = 4  # shuffled tables that are asked the same


@dataclass(frozen=True)
class Thoroughness:
    """How many counterparts each person has, how many shuffled and resampled tables there are, and of whom."""

    draws: int = DRAWS
    placebos: int = 20
    # At most so many, drawn at random, or some by their places in the table; None: all that `MOST` counterparts allow.
    people: int | Tensor | None = None

    def __post_init__(self) -> None:
        for name, least in (("draws", 1), ("placebos", 2), ("people", 1)):
            got = getattr(self, name)
            if isinstance(got, int) and got < least:
                raise NeuronFairError(f"{name} must be {least} or more, got {got}")


@dataclass(frozen=True)
class CounterfactualEffect:
    """How often counterfactual twins get a different decision, and how much of that is not chance."""

    rate: Estimate  # share of a person's twins with a different decision, the mean of all people
    placebo: Estimate  # permutation baseline: the same with groups shuffled; its interval holds one such table
    effect: Estimate  # excess: the rate without what chance adds to it
    of: int  # people who have a twin
    draws: int
    placebos: int
    lost: float | None  # shares of all twins; None: no class is favourable
    gained: float | None
    moves: tuple[Move, ...]
    placebo_moves: tuple[Move, ...]  # the mean of all shuffled tables
    people: Tensor  # (n, d)
    shares: Tensor  # (n,) of each person's twins, those with a different decision
    carriers: tuple[Mediator, ...]
    auc: float | None  # with which the other attributes tell the group: 0.5 is not at all
    left_out: tuple[tuple[int, ...], ...]  # groups of too few people
    counterparts: CounterfactualTwins
    without: int = 0  # people of large groups who have no twin: rules tie their group to what is held fixed
    sensitivity: Sensitivity | None = None  # None: nothing is claimed, or the model decides for no class

    @property
    def claimed(self) -> bool:
        """Whether there is an excess: shuffled groups do not reach the rate, and its interval lies above 0."""
        return self.rate.rate > self.placebo.high and self.effect.low > 0


def counterfactual_effect(
    model: Model,
    domain: TableDomain,
    rows: Tensor,
    *,
    decision: Decision | None = None,
    thorough: Thoroughness | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> CounterfactualEffect:
    """Compare the people of a data set with their counterfactual twins in other groups.

    The rate is the mean share of a person's twins who get a different decision. The permutation baseline is the same
    with shuffled groups. The excess is the rate without what chance adds to it (`excess`). Its interval comes from as
    many random halves of the data set (delete-half jackknife: Shao and Wu 1989), for each of which twins are learned
    anew; the lower end takes the whole baseline off.
    """
    thorough, decision = thorough or Thoroughness(), decision or Decision()
    if not 0 < confidence < 1:
        raise NeuronFairError(f"confidence must lie between 0 and 1, got {confidence}")
    decision.check(model.outputs)
    check_rows(domain, rows, "counterparts")
    domain = replace(domain, twinning=FLIPS)
    table = domain.clip(rows)
    counterparts = fit_counterfactuals(domain, table)
    chosen = _people(domain, table, counterparts, thorough, seed)
    people = table[chosen]
    if len(people) == 0:
        raise DomainError(f"{domain.name}: nobody who is compared is of a group that is large enough for counterparts")
    enough = AGAIN // (len(people) * len(domain.combinations.others))
    again = min(thorough.draws, MOST_DRAWS, max(LEAST_DRAWS, enough))
    show = _Steps(progress, thorough.draws + 2 * thorough.placebos * (again + 1))
    asked = ScoredPeople(model, domain, people, decision)
    tally = asked.tally(people, show.each(counterparts.drawn(domain, people, thorough.draws)), flipped=True)
    if not bool(tally.count.any()):
        raise DomainError(
            f"{domain.name}: nobody has a counterpart. Rules tie the group to attributes that are fixed or legitimate"
        )
    shuffled, halves, by_chance = list[TwinTally](), list[TwinTally](), list[CounterfactualPairs]()
    for one in _learned(domain, table, thorough.placebos, counterparts.groups, seed):
        show.done()
        draws = show.each(one.counterparts.drawn(one.domain, one.rows[chosen], again))
        counted = asked.tally(one.rows[chosen], draws, flipped=one.half is not None)
        if one.half is not None:
            halves.append(counted.of(one.half[chosen]))
            continue
        shuffled.append(counted)
        if len(by_chance) < SHUFFLED:
            by_chance.append(asked.pairs(one.counterparts, CARRIED // SHUFFLED, one.domain, one.rows[chosen]))
    rate, placebo, effect = _estimates(tally, shuffled, halves, confidence)
    some, directed = tally.count.sum(1) > 0, asked.favourable is not None
    found = CounterfactualEffect(
        rate=rate,
        placebo=placebo,
        effect=effect,
        of=int(some.sum()),
        draws=thorough.draws,
        placebos=thorough.placebos,
        lost=tally.mean(tally.lost) if directed else None,
        gained=tally.mean(tally.gained) if directed else None,
        moves=tally.moves(domain),
        placebo_moves=mean_moves([one.moves(domain) for one in shuffled]),
        people=people[some],
        shares=tally.shares[some],
        carriers=(),
        auc=tells(domain, people, counterparts.groups),
        left_out=_left_out(domain, table, counterparts),
        counterparts=counterparts,
        without=int((~some).sum()),
    )
    if not found.claimed:
        return found
    pairs = asked.pairs(counterparts, CARRIED, domain, people)
    return replace(
        found,
        carriers=carriers(pairs, by_chance, domain, effect),
        sensitivity=sensitivity(tally, halves, domain, asked.outcome, confidence),
    )


def _estimates(
    tally: TwinTally, shuffled: Sequence[TwinTally], halves: Sequence[TwinTally], confidence: float
) -> tuple[Estimate, Estimate, Estimate]:
    """Return rate, permutation baseline and excess."""
    rate = tally.rate()
    nothing, half = (torch.tensor([one.rate() for one in some], dtype=torch.float64) for some in (shuffled, halves))
    level, times = float(nothing.mean()), student(confidence, len(shuffled))
    spread, wide = float(half.std()), times * float(nothing.std()) * sqrt(1 + 1 / len(shuffled))
    point = excess(rate, level)
    # Of people whom nothing moves, chance adds the whole baseline, however far others are moved: the lower end allows
    # for that.
    both = times * sqrt(spread**2 + float(nothing.var()) / len(shuffled))
    low = rate - level - both if rate > level + wide else min(0.0, rate - level - both)
    return (
        Estimate(rate, max(0.0, rate - times * spread), min(1.0, rate + times * spread)),
        Estimate(level, max(0.0, level - wide), min(1.0, level + wide)),
        Estimate(point, low, min(1.0, point + both)),
    )


class _Steps:
    """What is told of how far it is."""

    def __init__(self, progress: Callable[[int, int], None] | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def done(self) -> None:
        """Tell that one more step is done."""
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)

    def each(self, draws: Iterable[TwinRows]) -> Iterator[TwinRows]:
        """Give draws on, a step each."""
        for twins in draws:
            yield twins
            self.done()


class _Learned(NamedTuple):
    """Twins learned from a table whose groups are shuffled, or from a random half of the people."""

    domain: TableDomain
    rows: Tensor  # of the whole table, with the groups that were used
    half: Tensor | None  # (n,) bool; None: groups are shuffled
    counterparts: CounterfactualTwins


def _learned(domain: TableDomain, table: Tensor, count: int, groups: Tensor, seed: int) -> Iterator[_Learned]:
    """Yield so many of both kinds in turn. They are learned side by side while the ones before are looked at."""

    def shuffled(number: int) -> _Learned:
        free, mixed = shuffled_groups(domain, table, address(seed, "shuffle", number))
        return _Learned(free, mixed, None, fit_counterfactuals(free, mixed, groups=groups))

    def halved(number: int) -> _Learned:
        generator = torch.Generator().manual_seed(address(seed, "half", number))
        half = torch.zeros(len(table), dtype=torch.bool)
        half[torch.randperm(len(table), generator=generator)[: len(table) // 2]] = True
        half = half.to(table.device)
        return _Learned(domain, table, half, fit_counterfactuals(domain, table[half], groups=groups))

    pool = ThreadPoolExecutor(max_workers=max(1, min(AT_A_TIME, torch.get_num_threads())))
    try:
        waiting = deque[Future[_Learned]]()
        for number in range(count):
            waiting.extend((pool.submit(shuffled, number), pool.submit(halved, number)))
        while waiting:
            yield waiting.popleft().result()  # which is not kept any longer
    finally:
        pool.shutdown(cancel_futures=True)


def address(seed: int, use: str, number: int) -> int:
    """Return a seed of its own for each use and number: those of two runs share nothing unless their seeds do."""
    return int(np.random.SeedSequence([seed, *use.encode(), number]).generate_state(1, np.uint64)[0] >> 1)


def _people(
    domain: TableDomain, table: Tensor, counterparts: CounterfactualTwins, thorough: Thoroughness, seed: int
) -> Tensor:
    """Return which records are compared with their counterfactual twins: those of groups that are large enough."""
    known = counterparts.groups[domain.combinations.number(table)]
    if isinstance(thorough.people, Tensor):
        known = known & torch.zeros_like(known).index_fill(0, thorough.people, True)
    known = known.nonzero()[:, 0]
    most = max(1, MAX_TWINS // (len(domain.combinations.others) * thorough.draws))
    most = min(most, thorough.people) if isinstance(thorough.people, int) else most
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))[:most]
    return known[order.to(known.device)]


def _left_out(domain: TableDomain, table: Tensor, counterparts: CounterfactualTwins) -> tuple[tuple[int, ...], ...]:
    """Return the groups that are too small, of those that the table has."""
    counts = torch.bincount(domain.combinations.number(table), minlength=len(counterparts.groups))
    small = (counts > 0) & ~counterparts.groups
    return tuple(tuple(codes) for codes in domain.sensitive_values[small].tolist())
