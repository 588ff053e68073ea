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

from neuronfair.domain.draws import draw_order
from neuronfair.domain.population.counterfactuals import (
    DRAWS_PER_RECORD,
    CounterfactualTwins,
    fit_counterfactuals,
    shuffle_groups,
)
from neuronfair.domain.table import TableDomain, check_rows
from neuronfair.domain.twins import ATTRIBUTE_FLIPS
from neuronfair.errors import DomainError, NeuronFairError
from neuronfair.measure.stats import Estimate, excess, student_quantile
from neuronfair.measure.twin_decisions import (
    GroupTransition,
    Mediator,
    ScoredRecords,
    TwinTally,
    find_mediators,
    group_predictability,
    mean_moves,
)
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision

MAX_TWINS = 2_000_000  # twins of all records; with many groups, fewer records are compared
RESAMPLED_TWINS = 200_000  # twins in each shuffled or halved table, within the bounds of draws below
MIN_DRAWS, MAX_DRAWS = 2, 8
MAX_THREADS = 8  # threads that learn twins at the same time
MEDIATOR_PAIRS = 16_000  # pairs from which mediators are computed
MEDIATOR_TABLES = 4  # shuffled tables that give the baseline of the mediators
BASELINE_PAIRS = MEDIATOR_PAIRS // MEDIATOR_TABLES  # pairs from each shuffled table


@dataclass(frozen=True)
class CounterfactualSettings:
    """How many twins each record has, how many tables are shuffled and resampled, and which records are compared."""

    draws: int = DRAWS_PER_RECORD
    permutations: int = 20
    records: int | Tensor | None = None  # a number drawn at random, row numbers, or all that `MAX_TWINS` allows

    def __post_init__(self) -> None:
        for name, minimum in (("draws", 1), ("permutations", 2), ("records", 1)):
            value = getattr(self, name)
            if isinstance(value, int) and value < minimum:
                raise NeuronFairError(f"{name} must be {minimum} or more, got {value}")


@dataclass(frozen=True)
class CounterfactualEffect:
    """How often counterfactual twins get a different decision, and how much of that is not chance."""

    rate: Estimate  # share of a record's twins with a different decision, the mean of all records
    permutation_baseline: Estimate  # the same with groups shuffled; its interval holds one such table
    effect: Estimate  # excess: the rate without what chance adds to it
    with_twin: int  # records that have a twin
    draws: int
    permutations: int
    losses: float | None  # shares of all twins; None: no class is favourable
    gains: float | None
    moves: tuple[GroupTransition, ...]
    permutation_moves: tuple[GroupTransition, ...]  # the mean of all shuffled tables
    records: Tensor  # (n, d)
    shares: Tensor  # (n,) of each record's twins, those with a different decision
    mediators: tuple[Mediator, ...]
    auc: float | None  # group-predictability AUC: how well the other attributes predict the group
    small_groups: tuple[tuple[int, ...], ...]  # groups of too few records
    counterfactuals: CounterfactualTwins
    without_twin: int = 0  # records of large groups: rules tie their group to attributes that are held fixed
    sensitivity: Sensitivity | None = None  # None: there is no excess, or the model has no classes

    @property
    def has_excess(self) -> bool:
        """Whether there is an excess: shuffled groups do not reach the rate, and its interval lies above 0."""
        return self.rate.value > self.permutation_baseline.high and self.effect.low > 0


class CounterfactualTest:
    """Compares the records of a data set with their counterfactual twins in other groups.

    The rate is the mean share of a record's twins that get a different decision. The permutation baseline is the same
    with shuffled groups. The excess is the rate without the part due to estimation error (`excess`). Its confidence
    interval comes from as many random halves of the data set, with twins learned from each half (delete-half jackknife:
    Shao and Wu 1989); the lower end subtracts the whole baseline.

    `measure` does it at once. The resampled tables do not depend on each other: `resample_table` computes one,
    `estimate_effect` needs all of them.
    """

    def __init__(
        self,
        model: Model,
        domain: TableDomain,
        rows: Tensor,
        *,
        decision: Decision | None = None,
        settings: CounterfactualSettings | None = None,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> None:
        self.settings, decision = settings or CounterfactualSettings(), decision or Decision()
        if not 0 < confidence < 1:
            raise NeuronFairError(f"confidence must lie between 0 and 1, got {confidence}")
        decision.check(model.outputs)
        check_rows(domain, rows, "counterfactual twins")
        self._confidence, self._seed = confidence, seed
        self.domain = domain = replace(domain, twinning=ATTRIBUTE_FLIPS)
        self.rows = rows
        self._clipped = table = domain.clip(rows)
        self.counterfactuals = fit_counterfactuals(domain, table)
        self._compared = _choose_records(domain, table, self.counterfactuals.groups, self.settings, seed)
        self.records = records = table[self._compared]
        if len(records) == 0:
            raise DomainError(
                f"{domain.name}: no compared person is of a group that is large enough for counterfactuals"
            )
        affordable_draws = RESAMPLED_TWINS // (len(records) * len(domain.combinations.others))
        self._resampled_draws = min(self.settings.draws, MAX_DRAWS, max(MIN_DRAWS, affordable_draws))
        self._scored_records = ScoredRecords(model, domain, records, decision)
        draws = self.counterfactuals.draw(domain, records, self.settings.draws)
        self._tally = self._scored_records.tally(records, draws, flipped=True)
        if not bool(self._tally.count.any()):
            raise DomainError(
                f"{domain.name}: no record has a twin. Rules tie the group to attributes that are fixed or legitimate"
            )

    def __len__(self) -> int:
        """Return how many tables are resampled: with shuffled groups, and random halves, in turn."""
        return 2 * self.settings.permutations

    def measure(self, progress: Callable[[int, int], None] | None = None) -> CounterfactualEffect:
        """Return the effect."""
        return self.estimate_effect(self.resample_tables(progress))

    def resample_table(self, number: int) -> ResampledTable:
        """Return the decisions for twins that were learned from one resampled table."""
        return self._tally_table(self._learn_twins(number), number)

    def resample_tables(self, progress: Callable[[int, int], None] | None = None) -> list[ResampledTable]:
        """Return all resampled tables, whose twins are learned in threads ahead of their use."""
        pool = ThreadPoolExecutor(max_workers=max(1, min(MAX_THREADS, torch.get_num_threads())))
        results = list[ResampledTable]()
        try:
            pending = deque(pool.submit(self._learn_twins, number) for number in range(len(self)))
            while pending:
                results.append(self._tally_table(pending.popleft().result(), len(results)))  # and free its memory
                if progress is not None:
                    progress(len(results), len(self))
        finally:
            pool.shutdown(cancel_futures=True)
        return results

    def _learn_twins(self, number: int) -> _LearnedTwins:
        domain, table, groups = self.domain, self._clipped, self.counterfactuals.groups
        if number % 2 == 0:
            domain, table = shuffle_groups(domain, table, derive_seed(self._seed, "shuffle", number // 2))
            return _LearnedTwins(domain, table, None, fit_counterfactuals(domain, table, groups=groups))
        half = torch.zeros(len(table), dtype=torch.bool)
        half[draw_order(len(table), derive_seed(self._seed, "half", number // 2))[: len(table) // 2]] = True
        half = half.to(table.device)
        return _LearnedTwins(domain, table, half, fit_counterfactuals(domain, table[half], groups=groups))

    def _tally_table(self, learned: _LearnedTwins, number: int) -> ResampledTable:
        records = learned.rows[self._compared]
        draws = learned.counterfactuals.draw(learned.domain, records, self._resampled_draws)
        tally = self._scored_records.tally(records, draws, flipped=learned.half is not None)
        if learned.half is not None:
            return ResampledTable(tally.select(learned.half[self._compared]), None)
        if number >= 2 * MEDIATOR_TABLES:
            return ResampledTable(tally, None)
        pairs = self._scored_records.pairs(learned.counterfactuals, BASELINE_PAIRS, learned.domain, records)
        return ResampledTable(tally, (pairs.records, pairs.twins))

    def estimate_effect(self, tables: Sequence[ResampledTable]) -> CounterfactualEffect:
        """Return the effect, from all resampled tables."""
        domain, tally, scored_records, confidence = self.domain, self._tally, self._scored_records, self._confidence
        baselines, halves = ([table.tally for table in tables[first::2]] for first in (0, 1))
        rate, baseline, effect = _estimate_rates(tally, baselines, halves, confidence)
        has_twin, has_favourable = tally.count.sum(1) > 0, scored_records.favourable is not None
        result = CounterfactualEffect(
            rate=rate,
            permutation_baseline=baseline,
            effect=effect,
            with_twin=int(has_twin.sum()),
            draws=self.settings.draws,
            permutations=self.settings.permutations,
            losses=tally.mean(tally.losses) if has_favourable else None,
            gains=tally.mean(tally.gains) if has_favourable else None,
            moves=tally.moves(domain),
            permutation_moves=mean_moves([tally.moves(domain) for tally in baselines]),
            records=self.records[has_twin],
            shares=tally.shares[has_twin],
            mediators=(),
            auc=group_predictability(domain, self.records),
            small_groups=_find_small_groups(domain, self._clipped, self.counterfactuals.groups),
            counterfactuals=self.counterfactuals,
            without_twin=int((~has_twin).sum()),
        )
        if not result.has_excess:
            return result
        pairs = scored_records.pairs(self.counterfactuals, MEDIATOR_PAIRS, domain, self.records)
        shuffled = [pairs._replace(records=table.pairs[0], twins=table.pairs[1]) for table in tables if table.pairs]
        return replace(
            result,
            mediators=find_mediators(pairs, shuffled, domain, effect),
            sensitivity=analyse_sensitivity(tally, halves, domain, scored_records.outcome, confidence),
        )


def _estimate_rates(
    tally: TwinTally, baselines: Sequence[TwinTally], halves: Sequence[TwinTally], confidence: float
) -> tuple[Estimate, Estimate, Estimate]:
    rate, tables, quantile = tally.rate(), len(baselines), student_quantile(confidence, len(baselines))
    baseline_rates, half_rates = (
        torch.tensor([resampled.rate() for resampled in tallies], dtype=torch.float64)
        for tallies in (baselines, halves)
    )
    baseline, error = float(baseline_rates.mean()), float(half_rates.std())
    baseline_margin = quantile * float(baseline_rates.std()) * sqrt(1 + 1 / tables)
    excess_rate = excess(rate, baseline)
    # For records without any shift the whole baseline is estimation error, however large the shift of others is: the
    # lower end allows for that.
    margin = quantile * sqrt(error**2 + float(baseline_rates.var()) / tables)
    low = rate - baseline - margin if rate > baseline + baseline_margin else min(0.0, rate - baseline - margin)
    return (
        Estimate(rate, max(0.0, rate - quantile * error), min(1.0, rate + quantile * error)),
        Estimate(baseline, max(0.0, baseline - baseline_margin), min(1.0, baseline + baseline_margin)),
        Estimate(excess_rate, low, min(1.0, excess_rate + margin)),
    )


class _LearnedTwins(NamedTuple):
    """Twins learned from a table whose groups are shuffled, or from a random half of the records."""

    domain: TableDomain
    rows: Tensor  # all rows, with the groups that were used
    half: Tensor | None  # (n,) bool; None: groups are shuffled
    counterfactuals: CounterfactualTwins


class ResampledTable(NamedTuple):
    """The decisions for twins that were learned from a resampled table, and some pairs if groups were shuffled."""

    tally: TwinTally
    pairs: tuple[Tensor, Tensor] | None  # records, and a twin of each


def derive_seed(seed: int, use: str, number: int) -> int:
    """Return a separate seed for each use and number."""
    return int(np.random.SeedSequence([seed, *use.encode(), number]).generate_state(1, np.uint64)[0] >> 1)


def _choose_records(
    domain: TableDomain, table: Tensor, large_groups: Tensor, settings: CounterfactualSettings, seed: int
) -> Tensor:
    """Return which records are compared with their counterfactual twins: those of groups that are large enough."""
    eligible = large_groups[domain.combinations.number(table)]
    if isinstance(settings.records, Tensor):
        eligible = eligible & torch.zeros_like(eligible).index_fill(0, settings.records, True)
    eligible = eligible.nonzero()[:, 0]
    limit = max(1, MAX_TWINS // (len(domain.combinations.others) * settings.draws))
    limit = min(limit, settings.records) if isinstance(settings.records, int) else limit
    order = draw_order(len(eligible), seed)[:limit]
    return eligible[order.to(eligible.device)]


def _find_small_groups(domain: TableDomain, table: Tensor, large_groups: Tensor) -> tuple[tuple[int, ...], ...]:
    counts = torch.bincount(domain.combinations.number(table), minlength=len(large_groups))
    small = (counts > 0) & ~large_groups
    return tuple(tuple(codes) for codes in domain.sensitive_values[small].tolist())


class Sensitivity(NamedTuple):
    """How much likelier a decision is for the same records in one group than in another, and its E-value.

    The E-value says how strong a hidden confounder must be to explain the difference away (VanderWeele and Ding, 2017).
    """

    likelier_group: tuple[int, ...]  # sensitive codes of the group in which the decision is likelier
    rarer_group: tuple[int, ...]
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


def analyse_sensitivity(
    tally: TwinTally, halves: Sequence[TwinTally], domain: TableDomain, outcome: int | None, confidence: float
) -> Sensitivity | None:
    """Return the E-value of the two groups with the largest net difference in decisions; None without a ratio."""
    values, risks = [tuple(codes) for codes in domain.sensitive_values.tolist()], compare_group_risks(tally)
    if outcome is None or not risks:
        return None
    pair = max(risks, key=lambda pair: abs(risks[pair][0] - risks[pair][1]) * risks[pair][2])
    first, second, _ = risks[pair]
    if first < second:
        pair, first, second = pair[::-1], second, first
    if second <= 0:
        return None
    half_risks = [compare_group_risks(half).get((min(pair), max(pair))) for half in halves]
    sign = 1 if pair[0] < pair[1] else -1
    logs = [sign * log(risks[0] / risks[1]) for risks in half_risks if risks is not None and min(risks[:2]) > 0]
    if len(logs) < 2:
        return None
    margin = student_quantile(confidence, len(logs)) * float(torch.tensor(logs, dtype=torch.float64).std())
    ratio = first / second
    low = max(1.0, exp(log(ratio) - margin))
    return Sensitivity(values[pair[0]], values[pair[1]], outcome, ratio, e_value(ratio), e_value(low))


def compare_group_risks(tally: TwinTally) -> dict[tuple[int, int], tuple[float, float, int]]:
    """Return for each two groups the shares of their records that get a class in either group, and their number.

    In their own group the record's decision counts, in the other one that of the twins.
    """
    size, has_outcome = tally.count.shape[1] + 1, tally.has_outcome.double()
    share = (tally.count > 0).double()
    twin_has_outcome = has_outcome[:, None] + (tally.gains - tally.losses) / tally.count.clamp(min=1)
    risks = {}
    for first in range(size):
        for second in range(first + 1, size):
            sums, records = [0.0, 0.0], 0.0
            for group, offset, side in ((first, second - first, 0), (second, size - second + first, 1)):
                weights = (tally.group == group).double() * share[:, offset - 1]
                sums[side] += float((weights * has_outcome).sum())
                sums[1 - side] += float((weights * twin_has_outcome[:, offset - 1]).sum())
                records += float(weights.sum())
            if records:
                risks[first, second] = (sums[0] / records, sums[1] / records, round(records))
    return risks
