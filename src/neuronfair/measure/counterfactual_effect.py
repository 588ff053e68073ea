"""How often people at the same place of another group's distribution get a different decision, beyond chance."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import islice
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.interface import TwinRows
from neuronfair.domain.population.counterfactuals import DRAWS, Counterparts, fit_counterparts, placebo
from neuronfair.domain.table import TableDomain
from neuronfair.domain.twins import FLIPS
from neuronfair.errors import DomainError, NeuronFairError
from neuronfair.measure.direction import favourable_class
from neuronfair.measure.mediators import Carrier, CounterfactualPairs, carriers, tells
from neuronfair.measure.stats import Estimate, check_rows, excess, student
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision

AT_ONCE = 1 << 16  # counterparts that the model is asked about together


@dataclass(frozen=True)
class Move:
    """How people of one group fare as people of another: shares of their counterparts."""

    own: tuple[int, ...]  # sensitive codes
    other: tuple[int, ...]
    people: int
    flips: float  # decided otherwise
    lost: float = 0.0  # the favourable class is decided for the person, and not for the counterpart
    gained: float = 0.0  # the other way round


class ScoredPeople:
    """A model, and what it says of some people and of who differs from them in the group only."""

    def __init__(self, model: Model, domain: TableDomain, people: Tensor, decision: Decision) -> None:
        self._model, self._domain, self._people, self._decision = model, domain, people, decision
        self._flipped = domain.twins(people).rows
        self._own = self._scores(people)
        self._flipped_scores = self._scores(self._flipped.flatten(0, 1)).view(*self._flipped.shape[:2], -1)
        self.favourable = favourable_class(domain, decision, model.outputs)
        self.outcome = self.favourable  # the class that is lost or gained: where none is hoped for, the rarest
        if self.favourable is None and decision.classes(model.outputs):
            counts = torch.bincount(decision.chosen(self._own), minlength=decision.classes(model.outputs))
            self.outcome = int(torch.where(counts > 0, counts, len(people) + 1).argmin())

    def _scores(self, rows: Tensor) -> Tensor:
        parts = torch.split(rows, max(1, self._model.encoding.rows_per_pass))
        return torch.cat([self._model.scores(part) for part in parts])

    def tally(self, grouped: Tensor, draws: Iterable[TwinRows], *, flipped: bool) -> MoveTally:
        """Compare the decisions for the people and for their counterparts.

        `grouped` are the people with the groups that were used. Of shuffled groups the model knows nothing: then
        (`flipped` False) it is asked about counterparts with the person's own sensitive values.
        """
        columns, own = list(self._domain.sensitive_columns), self._own[:, None, None]
        base, known = self._flipped, self._flipped_scores
        if not flipped:
            base, known = self._people[:, None].expand_as(base), self._own[:, None].expand_as(known)
        counts = torch.zeros(4, *base.shape[:2], device=base.device)
        draws, together = iter(draws), max(1, AT_ONCE // max(1, base.shape[0] * base.shape[1]))
        while several := list(islice(draws, together)):  # of few people, who make a small batch alone
            rows, valid = (torch.stack(parts, 1) for parts in zip(*several, strict=True))
            if not flipped:
                rows[..., columns] = self._people[:, None, None, columns]
            # Who differs in nothing but the group is asked about once.
            moved = (rows != base[:, None]).any(-1) & valid
            scores = known[:, None].repeat(1, len(several), 1, 1)
            if bool(moved.any()):
                scores[moved] = self._scores(rows[moved])
            seen = [valid, self._decision.differ(own, scores)]
            if self.outcome is not None:
                before, after = (self._decision.chosen(s) == self.outcome for s in (own, scores))
                seen += [before & ~after, ~before & after]
            for count, one in zip(counts, seen, strict=False):
                count += (one & valid).sum(1)
        has = torch.zeros(len(self._own), dtype=torch.bool, device=base.device)
        if self.outcome is not None:
            has = self._decision.chosen(self._own) == self.outcome
        return MoveTally(counts[0], counts[1], counts[2], counts[3], self._domain.combinations.number(grouped), has)

    def pairs(self, counterparts: Counterparts, most: int, domain: TableDomain, grouped: Tensor) -> CounterfactualPairs:
        """Return some people with one of their twins each, and the model that decides; `grouped` as in `tally`.

        Both have the sensitive values that the person has where groups are shuffled, since the model knows nothing of
        that.
        """
        many = max(1, most // self._flipped.shape[1])
        twins = next(counterparts.drawn(domain, grouped[:many], 1))
        exists = twins.valid.nonzero()
        people, others = self._people[:many][exists[:, 0]], twins.rows[twins.valid]
        if not torch.equal(grouped, self._people):
            columns = list(self._domain.sensitive_columns)
            others[:, columns] = people[:, columns]
        return CounterfactualPairs(self._scores, self._decision, people, others)


@dataclass(frozen=True)
class MoveTally:
    """What was counted of each person's counterparts in each other group."""

    count: Tensor  # (n, k)
    flips: Tensor
    lost: Tensor
    gained: Tensor
    group: Tensor  # (n,) the number of the combination of sensitive values
    has: Tensor  # (n,) bool: who gets the class that is lost or gained

    def of(self, some: Tensor) -> MoveTally:
        """Return what was counted of some of the people, (n,) bool."""
        return MoveTally(*(getattr(self, field.name)[some] for field in fields(self)))

    @property
    def shares(self) -> Tensor:
        """The share of each person's counterparts who are decided otherwise: (n,)."""
        return self.flips.sum(1) / self.count.sum(1).clamp(min=1)

    def rate(self) -> float:
        """Return the mean share of those who have counterparts."""
        return self.mean(self.flips)

    def mean(self, counted: Tensor) -> float:
        """Return the mean over people of the share of counterparts that were counted."""
        every = self.count.sum(1)
        shares = (counted.sum(1) / every.clamp(min=1)).double()
        return float(shares.sum() / (every > 0).sum().clamp(min=1))

    def moves(self, domain: TableDomain) -> tuple[Move, ...]:
        """Return how people of each group fare as people of each other one."""
        values = [tuple(codes) for codes in domain.sensitive_values.tolist()]
        places = torch.arange(1, len(values), device=self.group.device)
        pairs = self.group[:, None] * len(values) + (self.group[:, None] + places) % len(values)
        cells, cell = torch.unique(pairs, return_inverse=True)
        sums = torch.zeros(5, len(cells), dtype=torch.float64, device=cell.device)
        every = (self.count, self.count > 0, self.flips, self.lost, self.gained)
        sums.index_add_(1, cell.flatten(), torch.stack([counted.flatten().double() for counted in every]))
        return tuple(
            Move(values[i // len(values)], values[i % len(values)], int(people), *(part / count for part in parts))
            for i, (count, people, *parts) in zip(cells.tolist(), sums.T.tolist(), strict=True)
            if count
        )


def mean_moves(every: Sequence[Sequence[Move]]) -> tuple[Move, ...]:
    """Return the means of several tables, move by move."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Move]] = {}
    for move in (move for moves in every for move in moves):
        found.setdefault((move.own, move.other), []).append(move)
    return tuple(
        Move(
            *pair,
            round(sum(move.people for move in moves) / len(moves)),
            *(sum(getattr(move, part) for move in moves) / len(moves) for part in ("flips", "lost", "gained")),
        )
        for pair, moves in found.items()
    )


class Sensitivity(NamedTuple):
    """How much likelier a decision is for the same people in one group than in another, and the E-value of that."""

    more: tuple[int, ...]  # sensitive codes of the group in which the decision is likelier
    less: tuple[int, ...]
    outcome: int  # the class
    ratio: float  # of the two shares of people who get it
    e_value: float
    e_value_low: float  # of the lower end of the ratio's interval; 1: nothing is needed


def e_value(ratio: float) -> float:
    """Return how strongly, as a risk ratio, something hidden must go with both group and decision to give a ratio.

    A confounder U with risk ratios a (group and U) and b (U and decision) can raise a ratio of 1 to a b / (a + b - 1)
    at most; the E-value is the smallest value of the larger of the two. 1 means that nothing is needed.
    """
    ratio = max(ratio, 1 / ratio) if ratio > 0 else float("inf")
    return ratio + sqrt(ratio * (ratio - 1))


def sensitivity(
    tally: MoveTally, halves: Sequence[MoveTally], domain: TableDomain, outcome: int | None, confidence: float
) -> Sensitivity | None:
    """Return the E-value of the two groups between which most decisions differ on balance; None: there is no ratio."""
    values, risks = [tuple(codes) for codes in domain.sensitive_values.tolist()], as_groups(tally)
    if outcome is None or not risks:
        return None
    pair = max(risks, key=lambda pair: abs(risks[pair][0] - risks[pair][1]) * risks[pair][2])
    first, second, _ = risks[pair]
    if first < second:
        pair, first, second = pair[::-1], second, first
    if second <= 0:
        return None
    found = [as_groups(half).get((min(pair), max(pair))) for half in halves]
    order = 1 if pair[0] < pair[1] else -1
    logs = [order * log(one[0] / one[1]) for one in found if one is not None and min(one[:2]) > 0]
    if len(logs) < 2:
        return None
    reach = student(confidence, len(logs)) * float(torch.tensor(logs, dtype=torch.float64).std())
    ratio = first / second
    low = max(1.0, exp(log(ratio) - reach))
    return Sensitivity(values[pair[0]], values[pair[1]], outcome, ratio, e_value(ratio), e_value(low))


def as_groups(tally: MoveTally) -> dict[tuple[int, int], tuple[float, float, int]]:
    """Return for each two groups how many of their people get a class if all are in the one, or in the other.

    Of the people of one group it is their own decision that counts, of those of the other that of their twins.
    """
    size, has = tally.count.shape[1] + 1, tally.has.double()
    share = (tally.count > 0).double()
    as_other = has[:, None] + (tally.gained - tally.lost) / tally.count.clamp(min=1)
    found = {}
    for first in range(size):
        for second in range(first + 1, size):
            sums, people = [0.0, 0.0], 0.0
            for own, ahead, place in ((first, second - first, 0), (second, size - second + first, 1)):
                there = (tally.group == own).double() * share[:, ahead - 1]
                sums[place] += float((there * has).sum())
                sums[1 - place] += float((there * as_other[:, ahead - 1]).sum())
                people += float(there.sum())
            if people:
                found[first, second] = (sums[0] / people, sums[1] / people, round(people))
    return found


MOST = 2_000_000  # counterparts of the table's people; of fewer people where there are many groups
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
class CounterpartEffect:
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
    carriers: tuple[Carrier, ...]
    auc: float | None  # with which the other attributes tell the group: 0.5 is not at all
    left_out: tuple[tuple[int, ...], ...]  # groups of too few people
    counterparts: Counterparts
    without: int = 0  # people of large groups who have no twin: rules tie their group to what is held fixed
    sensitivity: Sensitivity | None = None  # None: nothing is claimed, or the model decides for no class

    @property
    def claimed(self) -> bool:
        """Whether there is an excess: shuffled groups do not reach the rate, and its interval lies above 0."""
        return self.rate.rate > self.placebo.high and self.effect.low > 0


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
    counterparts = fit_counterparts(domain, table)
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
    shuffled, halves, by_chance = list[MoveTally](), list[MoveTally](), list[CounterfactualPairs]()
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
    found = CounterpartEffect(
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
    tally: MoveTally, shuffled: Sequence[MoveTally], halves: Sequence[MoveTally], confidence: float
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
    counterparts: Counterparts


def _learned(domain: TableDomain, table: Tensor, count: int, groups: Tensor, seed: int) -> Iterator[_Learned]:
    """Yield so many of both kinds in turn. They are learned side by side while the ones before are looked at."""

    def shuffled(number: int) -> _Learned:
        free, mixed = placebo(domain, table, address(seed, "shuffle", number))
        return _Learned(free, mixed, None, fit_counterparts(free, mixed, groups=groups))

    def halved(number: int) -> _Learned:
        generator = torch.Generator().manual_seed(address(seed, "half", number))
        half = torch.zeros(len(table), dtype=torch.bool)
        half[torch.randperm(len(table), generator=generator)[: len(table) // 2]] = True
        half = half.to(table.device)
        return _Learned(domain, table, half, fit_counterparts(domain, table[half], groups=groups))

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
