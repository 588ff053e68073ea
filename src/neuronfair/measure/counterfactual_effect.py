"""How often records at the same place of another group's distribution get a different decision, beyond chance."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.draws import random_order
from neuronfair.domain.population.counterfactuals import (
    DRAWS,
    CounterfactualTwins,
    fit_counterfactuals,
    shuffled_groups,
)
from neuronfair.domain.table import TableDomain, check_rows
from neuronfair.domain.twins import FLIPS
from neuronfair.errors import DomainError, NeuronFairError
from neuronfair.measure.stats import Estimate, excess, student
from neuronfair.measure.twin_decisions import (
    Mediator,
    Move,
    ScoredRecords,
    TwinTally,
    group_predictability,
    mean_moves,
    mediators,
)
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision

MAX_TWINS = 2_000_000  # twins of all records; with many groups, fewer records are compared
RESAMPLED_TWINS = 200_000  # twins in each shuffled or halved table, within the bounds of draws below
MIN_DRAWS, MAX_DRAWS = 2, 8
MAX_THREADS = 8  # that learn twins at the same time
MEDIATED_PAIRS = 16_000  # pairs from which mediators are computed
MEDIATED_TABLES = 4  # shuffled tables that give the baseline of the mediators


@dataclass(frozen=True)
class Thoroughness:
    """How many twins each record has, how many tables are shuffled and resampled, and which records are compared."""

    draws: int = DRAWS
    permutations: int = 20
    people: int | Tensor | None = None  # a number drawn at random, row numbers, or all that `MAX_TWINS` allows

    def __post_init__(self) -> None:
        for name, least in (("draws", 1), ("permutations", 2), ("people", 1)):
            got = getattr(self, name)
            if isinstance(got, int) and got < least:
                raise NeuronFairError(f"{name} must be {least} or more, got {got}")


@dataclass(frozen=True)
class CounterfactualEffect:
    """How often counterfactual twins get a different decision, and how much of that is not chance."""

    rate: Estimate  # share of a record's twins with a different decision, the mean of all records
    permutation_baseline: (
        Estimate  # permutation baseline: the same with groups shuffled; its interval holds one such table
    )
    effect: Estimate  # excess: the rate without what chance adds to it
    of: int  # records that have a twin
    draws: int
    permutations: int
    lost: float | None  # shares of all twins; None: no class is favourable
    gained: float | None
    moves: tuple[Move, ...]
    permutation_moves: tuple[Move, ...]  # the mean of all shuffled tables
    people: Tensor  # (n, d)
    shares: Tensor  # (n,) of each record's twins, those with a different decision
    mediators: tuple[Mediator, ...]
    auc: float | None  # group-predictability AUC: how well the other attributes predict the group
    left_out: tuple[tuple[int, ...], ...]  # groups of too few records
    counterfactuals: CounterfactualTwins
    without: int = 0  # records of large groups without a twin: rules tie their group to attributes that are held fixed
    sensitivity: Sensitivity | None = None  # None: there is no excess, or the model has no classes

    @property
    def claimed(self) -> bool:
        """Whether there is an excess: shuffled groups do not reach the rate, and its interval lies above 0."""
        return self.rate.value > self.permutation_baseline.high and self.effect.low > 0


class CounterfactualTest:
    """Compares the records of a data set with their counterfactual twins in other groups.

    The rate is the mean share of a record's twins that get a different decision. The permutation baseline is the same
    with shuffled groups. The excess is the rate without the part due to estimation error (`excess`). Its confidence
    interval comes from as many random halves of the data set, with twins learned from each half (delete-half jackknife:
    Shao and Wu 1989); the lower end subtracts the whole baseline.

    `measure` does it at once. The resampled tables do not depend on each other: `table` computes one, `effect` needs
    all of them.
    """

    def __init__(
        self,
        model: Model,
        domain: TableDomain,
        rows: Tensor,
        *,
        decision: Decision | None = None,
        thorough: Thoroughness | None = None,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> None:
        self.thorough, decision = thorough or Thoroughness(), decision or Decision()
        if not 0 < confidence < 1:
            raise NeuronFairError(f"confidence must lie between 0 and 1, got {confidence}")
        decision.check(model.outputs)
        check_rows(domain, rows, "counterfactual twins")
        self._confidence, self._seed = confidence, seed
        self.domain = domain = replace(domain, twinning=FLIPS)
        self.rows = rows
        self._clipped = table = domain.clip(rows)
        self.counterfactuals = fit_counterfactuals(domain, table)
        self._chosen = _compared(domain, table, self.counterfactuals, self.thorough, seed)
        self.people = records = table[self._chosen]
        if len(records) == 0:
            raise DomainError(
                f"{domain.name}: no compared person is of a group that is large enough for counterfactuals"
            )
        enough = RESAMPLED_TWINS // (len(records) * len(domain.combinations.others))
        self._again = min(self.thorough.draws, MAX_DRAWS, max(MIN_DRAWS, enough))
        self._scored = ScoredRecords(model, domain, records, decision)
        draws = self.counterfactuals.drawn(domain, records, self.thorough.draws)
        self._tally = self._scored.tally(records, draws, flipped=True)
        if not bool(self._tally.count.any()):
            raise DomainError(
                f"{domain.name}: no record has a twin. Rules tie the group to attributes that are fixed or legitimate"
            )

    def __len__(self) -> int:
        """Return how many tables are resampled: with shuffled groups, and random halves, in turn."""
        return 2 * self.thorough.permutations

    def measure(self, progress: Callable[[int, int], None] | None = None) -> CounterfactualEffect:
        """Return the effect."""
        return self.effect(self.tables(progress))

    def table(self, number: int) -> ResampledTable:
        """Return the decisions for twins that were learned from one resampled table."""
        return self._counted(self._learned(number), number)

    def tables(self, progress: Callable[[int, int], None] | None = None) -> list[ResampledTable]:
        """Return all resampled tables, whose twins are learned in threads ahead of their use."""
        pool = ThreadPoolExecutor(max_workers=max(1, min(MAX_THREADS, torch.get_num_threads())))
        results = list[ResampledTable]()
        try:
            waiting = deque(pool.submit(self._learned, number) for number in range(len(self)))
            while waiting:
                results.append(self._counted(waiting.popleft().result(), len(results)))  # and free its memory
                if progress is not None:
                    progress(len(results), len(self))
        finally:
            pool.shutdown(cancel_futures=True)
        return results

    def _learned(self, number: int) -> _Learned:
        domain, table, groups = self.domain, self._clipped, self.counterfactuals.groups
        if number % 2 == 0:
            free, mixed = shuffled_groups(domain, table, seed_for(self._seed, "shuffle", number // 2))
            return _Learned(free, mixed, None, fit_counterfactuals(free, mixed, groups=groups))
        half = torch.zeros(len(table), dtype=torch.bool)
        half[random_order(len(table), seed_for(self._seed, "half", number // 2))[: len(table) // 2]] = True
        half = half.to(table.device)
        return _Learned(domain, table, half, fit_counterfactuals(domain, table[half], groups=groups))

    def _counted(self, learned: _Learned, number: int) -> ResampledTable:
        records = learned.rows[self._chosen]
        draws = learned.counterfactuals.drawn(learned.domain, records, self._again)
        tally = self._scored.tally(records, draws, flipped=learned.half is not None)
        if learned.half is not None:
            return ResampledTable(tally.of(learned.half[self._chosen]), None)
        if number >= 2 * MEDIATED_TABLES:
            return ResampledTable(tally, None)
        pairs = self._scored.pairs(learned.counterfactuals, MEDIATED_PAIRS // MEDIATED_TABLES, learned.domain, records)
        return ResampledTable(tally, (pairs.records, pairs.others))

    def effect(self, tables: Sequence[ResampledTable]) -> CounterfactualEffect:
        """Return the effect, from all resampled tables."""
        domain, tally, scored, confidence = self.domain, self._tally, self._scored, self._confidence
        shuffled, halves = ([one.tally for one in tables[first::2]] for first in (0, 1))
        rate, baseline, effect = _estimates(tally, shuffled, halves, confidence)
        has_twin, directed = tally.count.sum(1) > 0, scored.favourable is not None
        result = CounterfactualEffect(
            rate=rate,
            permutation_baseline=baseline,
            effect=effect,
            of=int(has_twin.sum()),
            draws=self.thorough.draws,
            permutations=self.thorough.permutations,
            lost=tally.mean(tally.lost) if directed else None,
            gained=tally.mean(tally.gained) if directed else None,
            moves=tally.moves(domain),
            permutation_moves=mean_moves([one.moves(domain) for one in shuffled]),
            people=self.people[has_twin],
            shares=tally.shares[has_twin],
            mediators=(),
            auc=group_predictability(domain, self.people),
            left_out=_left_out(domain, self._clipped, self.counterfactuals),
            counterfactuals=self.counterfactuals,
            without=int((~has_twin).sum()),
        )
        if not result.claimed:
            return result
        pairs = scored.pairs(self.counterfactuals, MEDIATED_PAIRS, domain, self.people)
        by_chance = [pairs._replace(records=one.pairs[0], others=one.pairs[1]) for one in tables if one.pairs]
        return replace(
            result,
            mediators=mediators(pairs, by_chance, domain, effect),
            sensitivity=sensitivity(tally, halves, domain, scored.outcome, confidence),
        )


def _estimates(
    tally: TwinTally, shuffled: Sequence[TwinTally], halves: Sequence[TwinTally], confidence: float
) -> tuple[Estimate, Estimate, Estimate]:
    rate = tally.rate()
    baselines, halved = (torch.tensor([one.rate() for one in some], dtype=torch.float64) for some in (shuffled, halves))
    level, times = float(baselines.mean()), student(confidence, len(shuffled))
    spread, wide = float(halved.std()), times * float(baselines.std()) * sqrt(1 + 1 / len(shuffled))
    point = excess(rate, level)
    # For records without any shift the whole baseline is estimation error, however large the shift of others is: the
    # lower end allows for that.
    both = times * sqrt(spread**2 + float(baselines.var()) / len(shuffled))
    low = rate - level - both if rate > level + wide else min(0.0, rate - level - both)
    return (
        Estimate(rate, max(0.0, rate - times * spread), min(1.0, rate + times * spread)),
        Estimate(level, max(0.0, level - wide), min(1.0, level + wide)),
        Estimate(point, low, min(1.0, point + both)),
    )


class _Learned(NamedTuple):
    """Twins learned from a table whose groups are shuffled, or from a random half of the records."""

    domain: TableDomain
    rows: Tensor  # all rows, with the groups that were used
    half: Tensor | None  # (n,) bool; None: groups are shuffled
    counterfactuals: CounterfactualTwins


class ResampledTable(NamedTuple):
    """The decisions for twins that were learned from a resampled table, and some pairs if groups were shuffled."""

    tally: TwinTally
    pairs: tuple[Tensor, Tensor] | None  # records, and a twin of each


def seed_for(seed: int, use: str, number: int) -> int:
    """Return a separate seed for each use and number."""
    return int(np.random.SeedSequence([seed, *use.encode(), number]).generate_state(1, np.uint64)[0] >> 1)


def _compared(
    domain: TableDomain, table: Tensor, counterfactuals: CounterfactualTwins, thorough: Thoroughness, seed: int
) -> Tensor:
    """Return which records are compared with their counterfactual twins: those of groups that are large enough."""
    known = counterfactuals.groups[domain.combinations.number(table)]
    if isinstance(thorough.people, Tensor):
        known = known & torch.zeros_like(known).index_fill(0, thorough.people, True)
    known = known.nonzero()[:, 0]
    most = max(1, MAX_TWINS // (len(domain.combinations.others) * thorough.draws))
    most = min(most, thorough.people) if isinstance(thorough.people, int) else most
    order = random_order(len(known), seed)[:most]
    return known[order.to(known.device)]


def _left_out(domain: TableDomain, table: Tensor, counterfactuals: CounterfactualTwins) -> tuple[tuple[int, ...], ...]:
    counts = torch.bincount(domain.combinations.number(table), minlength=len(counterfactuals.groups))
    small = (counts > 0) & ~counterfactuals.groups
    return tuple(tuple(codes) for codes in domain.sensitive_values[small].tolist())


class Sensitivity(NamedTuple):
    """How much likelier a decision is for the same records in one group than in another, and its E-value.

    The E-value says how strong a hidden confounder must be to explain the difference away (VanderWeele and Ding, 2017).
    """

    more: tuple[int, ...]  # sensitive codes of the group in which the decision is likelier
    less: tuple[int, ...]
    outcome: int  # the class
    ratio: float  # risk ratio: share of records that get it in the one group and in the other
    e_value: float
    e_value_low: float  # of the lower confidence bound of the ratio; 1: no confounder is needed


def e_value(ratio: float) -> float:
    """Return the risk ratio that a confounder needs with both group and decision to explain a ratio.

    A confounder U with risk ratios a (group and U) and b (U and decision) can raise a ratio of 1 to a b / (a + b - 1)
    at most; the E-value is the smallest value of the larger of the two. 1 means that no confounder is needed.
    """
    ratio = max(ratio, 1 / ratio) if ratio > 0 else float("inf")
    return ratio + sqrt(ratio * (ratio - 1))


def sensitivity(
    tally: TwinTally, halves: Sequence[TwinTally], domain: TableDomain, outcome: int | None, confidence: float
) -> Sensitivity | None:
    """Return the E-value of the two groups with the largest net difference in decisions; None without a ratio."""
    values, risks = [tuple(codes) for codes in domain.sensitive_values.tolist()], group_risks(tally)
    if outcome is None or not risks:
        return None
    pair = max(risks, key=lambda pair: abs(risks[pair][0] - risks[pair][1]) * risks[pair][2])
    first, second, _ = risks[pair]
    if first < second:
        pair, first, second = pair[::-1], second, first
    if second <= 0:
        return None
    ratios = [group_risks(half).get((min(pair), max(pair))) for half in halves]
    order = 1 if pair[0] < pair[1] else -1
    logs = [order * log(one[0] / one[1]) for one in ratios if one is not None and min(one[:2]) > 0]
    if len(logs) < 2:
        return None
    reach = student(confidence, len(logs)) * float(torch.tensor(logs, dtype=torch.float64).std())
    ratio = first / second
    low = max(1.0, exp(log(ratio) - reach))
    return Sensitivity(values[pair[0]], values[pair[1]], outcome, ratio, e_value(ratio), e_value(low))


def group_risks(tally: TwinTally) -> dict[tuple[int, int], tuple[float, float, int]]:
    """Return for each two groups the shares of their records that get a class in either group, and their number.

    In their own group the record's decision counts, in the other one that of the twins.
    """
    size, has = tally.count.shape[1] + 1, tally.has.double()
    share = (tally.count > 0).double()
    as_other = has[:, None] + (tally.gained - tally.lost) / tally.count.clamp(min=1)
    risks = {}
    for first in range(size):
        for second in range(first + 1, size):
            sums, records = [0.0, 0.0], 0.0
            for own, ahead, place in ((first, second - first, 0), (second, size - second + first, 1)):
                weights = (tally.group == own).double() * share[:, ahead - 1]
                sums[place] += float((weights * has).sum())
                sums[1 - place] += float((weights * as_other[:, ahead - 1]).sum())
                records += float(weights.sum())
            if records:
                risks[first, second] = (sums[0] / records, sums[1] / records, round(records))
    return risks
