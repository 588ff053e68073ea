"""Whether people would be decided otherwise had they been of another group: counterparts, beside a placebo."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.base import Twins
from neuronfair.domain.counterpart_fit import fit_counterparts, placebo
from neuronfair.domain.counterparts import DRAWS, Counterparts
from neuronfair.domain.table import TableDomain
from neuronfair.domain.twinning import FLIPS
from neuronfair.errors import DomainError, NeuronFairError
from neuronfair.measure.carriers import Carrier, carriers, tells
from neuronfair.measure.moves import Asked, Move, Tally, mean_moves
from neuronfair.measure.rows import check_rows
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision

MOST = 2_000_000  # counterparts of the table's people; of fewer people where there are many groups
AGAIN = 200_000  # counterparts in each shuffled and each resampled table, if that many draws are not too many
LEAST_DRAWS = 2
AT_A_TIME = 8  # tables that are learned side by side, at most
CARRIED = 16_000  # counterparts that are asked what carries the effect


class Estimate(NamedTuple):
    """A share and its interval."""

    rate: float
    low: float
    high: float


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
class CounterpartEffect:
    """How often the decision would be another in another group, and how much of that is not chance."""

    rate: Estimate  # share of a person's counterparts decided otherwise, the mean of all people
    placebo: Estimate  # the same with groups shuffled; its interval holds what one such table gives
    effect: Estimate  # their difference
    of: int  # people
    draws: int
    placebos: int
    lost: float | None  # shares of all counterparts; None: no class is favourable
    gained: float | None
    moves: tuple[Move, ...]
    placebo_moves: tuple[Move, ...]  # the mean of all shuffled tables
    people: Tensor  # (n, d)
    shares: Tensor  # (n,) of each person's counterparts, those decided otherwise
    carriers: tuple[Carrier, ...]
    auc: float | None  # with which the other attributes tell the group: 0.5 is not at all
    left_out: tuple[tuple[int, ...], ...]  # groups of too few people
    counterparts: Counterparts

    @property
    def claimed(self) -> bool:
        """Whether there is an effect: the interval of the rate does not reach that of the placebo."""
        return self.rate.low > self.placebo.high


def counterpart_effect(
    model: Model,
    domain: TableDomain,
    rows: Tensor,
    *,
    decision: Decision | None = None,
    thorough: Thoroughness | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> CounterpartEffect:
    """Compare the people of a table with their counterparts in other groups.

    The rate is the mean share of flips among a person's counterparts. Beside it the same is done with tables whose
    groups are shuffled, which have no effect; the effect is what the rate exceeds their mean by. Intervals come from
    as many tables whose people are drawn anew with replacement: counterparts are learned from each of them.
    """
    thorough, decision = thorough or Thoroughness(), decision or Decision()
    if not 0 < confidence < 1:
        raise NeuronFairError(f"confidence must lie between 0 and 1, got {confidence}")
    decision.check(model.outputs)
    check_rows(domain, rows, "counterparts")
    domain = replace(domain, twinning=FLIPS)
    table = domain.clip(rows)
    counterparts = fit_counterparts(domain, table)
    chosen = _people(domain, table, counterparts, thorough, seed)
    people = table[chosen]
    if len(people) == 0:
        raise DomainError(f"{domain.name}: nobody who is compared is of a group that is large enough for counterparts")
    others = len(domain.combinations.others)
    again = min(thorough.draws, max(LEAST_DRAWS, AGAIN // (len(people) * others)))
    show = _Steps(progress, thorough.draws + 2 * thorough.placebos * (again + 1))
    asked = Asked(model, domain, people, decision)
    drawn = counterparts.drawn(domain, people, thorough.draws)
    tally = asked.tally(people, show.each(drawn), flipped=True)
    if not bool(tally.count.any()):
        raise DomainError(
            f"{domain.name}: nobody has a counterpart. Rules tie the group to attributes that are fixed or legitimate"
        )
    shuffled, resampled = list[Tally](), list[float]()
    for one in _learned(domain, table, thorough.placebos, counterparts.groups, seed):
        show.done()
        draws = show.each(one.counterparts.drawn(one.domain, one.rows[chosen], again))
        found = asked.tally(one.rows[chosen], draws, flipped=one.weights is not None)
        if one.weights is None:
            shuffled.append(found)
        else:
            resampled.append(found.rate(one.weights[chosen]))
    rate, nothing = tally.rate(), torch.tensor([one.rate() for one in shuffled], dtype=torch.float64)
    wide = _quantile(confidence, thorough.placebos) * float(nothing.std())
    spread = _quantile(confidence, thorough.placebos) * float(torch.tensor(resampled, dtype=torch.float64).std())
    level = float(nothing.mean())
    both = sqrt(spread**2 + wide**2 / thorough.placebos)
    effect = rate - level
    pairs = asked.pairs(counterparts, CARRIED)
    some = tally.count.sum(1) > 0
    directed = asked.favourable is not None
    return CounterpartEffect(
        rate=Estimate(rate, max(0.0, rate - spread), min(1.0, rate + spread)),
        placebo=Estimate(level, max(0.0, level - wide * _once(thorough)), min(1.0, level + wide * _once(thorough))),
        effect=Estimate(effect, effect - both, effect + both),
        of=int(some.sum()),
        draws=thorough.draws,
        placebos=thorough.placebos,
        lost=tally.mean(tally.lost) if directed else None,
        gained=tally.mean(tally.gained) if directed else None,
        moves=tally.moves(domain),
        placebo_moves=mean_moves([one.moves(domain) for one in shuffled]),
        people=people[some],
        shares=tally.shares[some],
        carriers=carriers(pairs, domain, effect),
        auc=tells(domain, people, counterparts.groups),
        left_out=_left_out(domain, table, counterparts),
        counterparts=counterparts,
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

    def each(self, draws: Iterable[Twins]) -> Iterator[Twins]:
        """Give draws on, a step each."""
        for twins in draws:
            yield twins
            self.done()


class _Learned(NamedTuple):
    """Counterparts learned from a table whose groups are shuffled, or whose people are drawn anew."""

    domain: TableDomain
    rows: Tensor  # of the whole table, with the groups that were used
    weights: Tensor | None  # how often each person was drawn; None: groups are shuffled
    counterparts: Counterparts


def _learned(domain: TableDomain, table: Tensor, count: int, groups: Tensor, seed: int) -> Iterator[_Learned]:
    """Yield so many of both kinds in turn. They are learned side by side while the ones before are looked at."""

    def shuffled(number: int) -> _Learned:
        free, mixed = placebo(domain, table, seed + number)
        return _Learned(free, mixed, None, fit_counterparts(free, mixed, groups=groups))

    def resampled(number: int) -> _Learned:
        generator = torch.Generator().manual_seed(seed + number)
        index = torch.randint(len(table), (len(table),), generator=generator).to(table.device)
        weights = torch.bincount(index, minlength=len(table))
        return _Learned(domain, table, weights, fit_counterparts(domain, table[index], groups=groups))

    pool = ThreadPoolExecutor(max_workers=max(1, min(AT_A_TIME, torch.get_num_threads())))
    try:
        waiting = deque[Future[_Learned]]()
        for number in range(count):
            waiting.extend((pool.submit(shuffled, number), pool.submit(resampled, number)))
        while waiting:
            yield waiting.popleft().result()  # which is not kept any longer
    finally:
        pool.shutdown(cancel_futures=True)


def _people(
    domain: TableDomain, table: Tensor, counterparts: Counterparts, thorough: Thoroughness, seed: int
) -> Tensor:
    """Return which people of the table are compared with their counterparts: of groups that are large enough."""
    known = counterparts.groups[domain.combinations.number(table)]
    if isinstance(thorough.people, Tensor):
        known = known & torch.zeros_like(known).index_fill(0, thorough.people, True)
    known = known.nonzero()[:, 0]
    most = max(1, MOST // (len(domain.combinations.others) * thorough.draws))
    most = min(most, thorough.people) if isinstance(thorough.people, int) else most
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))[:most]
    return known[order.to(known.device)]


def _left_out(domain: TableDomain, table: Tensor, counterparts: Counterparts) -> tuple[tuple[int, ...], ...]:
    """Return the groups that are too small, of those that the table has."""
    counts = torch.bincount(domain.combinations.number(table), minlength=len(counterparts.groups))
    small = (counts > 0) & ~counterparts.groups
    return tuple(tuple(codes) for codes in domain.sensitive_values[small].tolist())


def _quantile(confidence: float, tables: int) -> float:
    """Return how many standard deviations, known from so many tables, an interval reaches to either side."""
    from scipy.stats import t

    return float(t.isf((1 - confidence) / 2, tables - 1))


def _once(thorough: Thoroughness) -> float:
    """Return how much wider an interval is that holds one more shuffled table, and not their mean only."""
    return sqrt(1 + 1 / thorough.placebos)
