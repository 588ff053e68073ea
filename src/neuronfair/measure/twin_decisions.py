"""Decisions for records and for their counterfactual twins: counts by record and by group, and mediating attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.draws import Draws
from neuronfair.domain.population.counterfactuals import CounterfactualTwins
from neuronfair.domain.population.model import AUC_FOLDS, cross_validated_auc
from neuronfair.domain.table import TableDomain
from neuronfair.domain.twins import TwinRows
from neuronfair.measure.rate import find_favourable_class
from neuronfair.measure.stats import Estimate, excess
from neuronfair.model.blackbox import Model, score_in_batches
from neuronfair.model.decision import Decision

MAX_TWINS_PER_BATCH = 1 << 16  # twins that the model scores in one batch


@dataclass(frozen=True)
class GroupTransition:
    """How records of one group fare as records of another: shares of their twins."""

    group: tuple[int, ...]  # sensitive codes
    twin_group: tuple[int, ...]
    records: int
    flips: float  # different decisions
    losses: float = 0.0  # the record gets the favourable outcome and the twin does not
    gains: float = 0.0  # the twin gets it and the record does not


class ScoredRecords:
    """The scores of some records, and of the same records with other sensitive values."""

    def __init__(self, model: Model, domain: TableDomain, records: Tensor, decision: Decision) -> None:
        self._domain, self._records, self._decision = domain, records, decision
        self._score = partial(score_in_batches, model)
        self._flipped = domain.twins(records).rows
        self._record_scores = self._score(records)
        self._flipped_scores = self._score(self._flipped.flatten(0, 1)).view(*self._flipped.shape[:2], -1)
        self.favourable = find_favourable_class(domain, decision, model.outputs)
        self.outcome = self.favourable  # the class that is lost or gained: without a favourable outcome, the rarest
        if self.favourable is None and decision.classes(model.outputs):
            counts = torch.bincount(decision.decide(self._record_scores), minlength=decision.classes(model.outputs))
            self.outcome = int(torch.where(counts > 0, counts, len(records) + 1).argmin())

    def tally(self, grouped: Tensor, draws: Iterable[TwinRows], *, flipped: bool) -> TwinTally:
        """Compare the decisions for the records with those for their counterfactual twins.

        `grouped` are the records with the groups from which the twins were made. Where groups are shuffled (`flipped`
        False), the model scores twins with the record's own sensitive values.
        """
        columns, record_scores = list(self._domain.sensitive_columns), self._record_scores[:, None, None]
        base, base_scores = self._flipped, self._flipped_scores
        if not flipped:
            base = self._records[:, None].expand_as(base)
            base_scores = self._record_scores[:, None].expand_as(base_scores)
        counts = count, flips, losses, gains = torch.zeros(4, *base.shape[:2], device=base.device)
        draws, draws_per_batch = iter(draws), max(1, MAX_TWINS_PER_BATCH // max(1, count.numel()))
        while batch := list(islice(draws, draws_per_batch)):  # of few records, which make a small batch alone
            rows, valid = (torch.stack(parts, 1) for parts in zip(*batch, strict=True))
            if not flipped:
                rows[..., columns] = self._records[:, None, None, columns]
            # Twins that differ in the group only are scored once.
            changed = (rows != base[:, None]).any(-1) & valid
            scores = base_scores[:, None].repeat(1, len(batch), 1, 1)
            if bool(changed.any()):
                scores[changed] = self._score(rows[changed])
            outcomes = [valid, self._decision.differ(record_scores, scores)]
            if self.outcome is not None:
                before, after = (self._decision.decide(s) == self.outcome for s in (record_scores, scores))
                outcomes += [before & ~after, ~before & after]
            for counter, outcome in zip(counts, outcomes, strict=False):
                counter += (outcome & valid).sum(1)
        has_outcome = torch.zeros(len(self._record_scores), dtype=torch.bool, device=base.device)
        if self.outcome is not None:
            has_outcome = self._decision.decide(self._record_scores) == self.outcome
        return TwinTally(count, flips, losses, gains, self._domain.combinations.number(grouped), has_outcome)

    def pairs(
        self, counterfactuals: CounterfactualTwins, max_pairs: int, domain: TableDomain, grouped: Tensor
    ) -> CounterfactualPairs:
        """Return some records with one of their twins each; `grouped` as in `tally`.

        Where groups are shuffled, the twin keeps the sensitive values of the record.
        """
        record_count = max(1, max_pairs // self._flipped.shape[1])
        twin_rows = next(counterfactuals.draw(domain, grouped[:record_count], 1))
        exists = twin_rows.valid.nonzero()
        records, twins = self._records[:record_count][exists[:, 0]], twin_rows.rows[twin_rows.valid]
        if not torch.equal(grouped, self._records):
            columns = list(self._domain.sensitive_columns)
            twins[:, columns] = records[:, columns]
        return CounterfactualPairs(self._score, self._decision, records, twins)


@dataclass(frozen=True)
class TwinTally:
    """Counts of each record's twins in each other group."""

    count: Tensor  # (n, k)
    flips: Tensor
    losses: Tensor
    gains: Tensor
    group: Tensor  # (n,) the number of the combination of sensitive values
    has_outcome: Tensor  # (n,) bool: who gets the class that is lost or gained

    def select(self, records: Tensor) -> TwinTally:
        """Return the counts of some of the records, (n,) bool."""
        return TwinTally(*(getattr(self, field.name)[records] for field in fields(self)))

    @property
    def shares(self) -> Tensor:
        """The share of each record's twins that get a different decision: (n,)."""
        return self.flips.sum(1) / self.count.sum(1).clamp(min=1)

    def rate(self) -> float:
        """Return the mean share of different decisions over the records that have twins."""
        return self.mean(self.flips)

    def mean(self, twin_counts: Tensor) -> float:
        """Return the mean over records of the share of their twins that were counted."""
        totals = self.count.sum(1)
        shares = (twin_counts.sum(1) / totals.clamp(min=1)).double()
        return float(shares.sum() / (totals > 0).sum().clamp(min=1))

    def moves(self, domain: TableDomain) -> tuple[GroupTransition, ...]:
        """Return how records of each group fare as records of each other one."""
        values = [tuple(codes) for codes in domain.sensitive_values.tolist()]
        offsets = torch.arange(1, len(values), device=self.group.device)
        pairs = self.group[:, None] * len(values) + (self.group[:, None] + offsets) % len(values)
        cells, cell = torch.unique(pairs, return_inverse=True)
        sums = torch.zeros(5, len(cells), dtype=torch.float64, device=cell.device)
        counters = (self.count, self.count > 0, self.flips, self.losses, self.gains)
        sums.index_add_(1, cell.flatten(), torch.stack([counter.flatten().double() for counter in counters]))
        return tuple(
            GroupTransition(
                values[i // len(values)], values[i % len(values)], int(records), *(part / count for part in parts)
            )
            for i, (count, records, *parts) in zip(cells.tolist(), sums.T.tolist(), strict=True)
            if count
        )


def mean_moves(tables: Sequence[Sequence[GroupTransition]]) -> tuple[GroupTransition, ...]:
    """Return the mean of each move over several tables."""
    by_groups: dict[tuple[tuple[int, ...], tuple[int, ...]], list[GroupTransition]] = {}
    for move in (move for moves in tables for move in moves):
        by_groups.setdefault((move.group, move.twin_group), []).append(move)
    return tuple(
        GroupTransition(
            *pair,
            round(sum(move.records for move in moves) / len(moves)),
            *(sum(getattr(move, part) for move in moves) / len(moves) for part in ("flips", "losses", "gains")),
        )
        for pair, moves in by_groups.items()
    )


MAX_MEDIATORS = 5
ENOUGH_OF_EXCESS = 0.9  # share of the excess from which on no further mediator is added
MAX_PREDICTED_RECORDS = 5_000  # records whose group is predicted from their other attributes


class Mediator(NamedTuple):
    """Attributes, and the share of the excess that is removed if they are held fixed."""

    columns: tuple[int, ...]
    share: float


class CounterfactualPairs(NamedTuple):
    """Records, a twin of each, and the model that decides for both."""

    scores: Callable[[Tensor], Tensor]
    decision: Decision
    records: Tensor  # (n, d)
    twins: Tensor  # (n, d)

    def rate(self, held_columns: list[int]) -> float:
        """Return the share of pairs with different decisions if some columns of the record are held fixed."""
        held_twins = self.twins.clone()
        held_twins[:, held_columns] = self.records[:, held_columns]
        return float(self.decision.differ(self.scores(self.records), self.scores(held_twins)).double().mean())


def find_mediators(
    pairs: CounterfactualPairs, shuffled_pairs: Sequence[CounterfactualPairs], domain: TableDomain, effect: Estimate
) -> tuple[Mediator, ...]:
    """Return the most important mediating attributes, each with those before it and the share of the excess.

    The order is that of the Shapley values: the average contribution of an attribute if a record becomes the twin one
    attribute after the other, in a random order. `shuffled_pairs` give the baseline that remains if attributes are held
    fixed. Nothing is returned where the shares lie within the confidence interval of the excess. A sensitive attribute
    is never a mediator of itself.
    """

    def remaining_excess(held_columns: list[int]) -> float:
        return excess(pairs.rate(held_columns), fmean(shuffled.rate(held_columns) for shuffled in shuffled_pairs))

    total_excess = remaining_excess([])
    if total_excess <= 0:
        return ()
    contributions = shapley_contributions(pairs)
    ranked = contributions.argsort(descending=True, stable=True).tolist()
    mediators, held_columns = list[Mediator](), list[int]()
    for column in [column for column in ranked if column not in domain.sensitive_columns][:MAX_MEDIATORS]:
        if contributions[column] <= 0:
            break
        held_columns.append(column)
        share = min(1.0, max(0.0, 1 - remaining_excess(held_columns) / total_excess))
        mediators.append(Mediator(tuple(held_columns), share))
        if share >= ENOUGH_OF_EXCESS:
            break
    chance_share = (effect.value - effect.low) / effect.value
    return tuple(mediators) if any(mediator.share > chance_share for mediator in mediators) else ()


def shapley_contributions(pairs: CounterfactualPairs) -> Tensor:
    """Return the contribution of each column to the share of pairs with different decisions, their sum: (d,)."""
    records, twins, decision, scores = pairs.records, pairs.twins, pairs.decision, pairs.scores
    n, d = records.shape
    # "carriers" seeds these draws: another word would give other orders, and so other figures.
    order = Draws(0, "carriers").uniform(0, torch.arange(n, device=records.device), d, use="order").argsort(1)
    record_scores, current = scores(records), records.clone()
    before = torch.zeros(n, dtype=torch.float64, device=records.device)
    total = torch.zeros(d, dtype=torch.float64, device=records.device)
    current_scores, indices = record_scores.clone(), torch.arange(n, device=records.device)
    for step in range(d):
        column = order[:, step]
        value = twins[indices, column]
        changed = (current[indices, column] != value).nonzero()[:, 0]
        current[indices, column] = value
        if len(changed):
            current_scores[changed] = scores(current[changed])
        after = decision.differ(record_scores, current_scores).double()
        total.index_add_(0, column, after - before)
        before = after
    return total / max(1, n)


def group_predictability(domain: TableDomain, records: Tensor) -> float | None:
    """Return the ROC AUC with which the inputs of the model other than sensitive attributes predict the group.

    None where a group has too few records for cross-validation.
    """
    sample = records[:MAX_PREDICTED_RECORDS]
    group, counts = np.unique(
        domain.combinations.number(sample).cpu().numpy(), return_inverse=True, return_counts=True
    )[1:]
    free = [column for column in domain.changeable.nonzero()[:, 0].tolist() if domain.attributes[column].is_input]
    if len(counts) < 2 or counts.min() < AUC_FOLDS or not free:
        return None
    return cross_validated_auc([domain.attributes[column] for column in free], sample[:, free], group)
