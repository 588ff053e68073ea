"""Mediating attributes: those through which the group of a person reaches the decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.draws import Draws
from neuronfair.domain.table import TableDomain
from neuronfair.measure.stats import Estimate, excess
from neuronfair.model.decision import Decision

MAX_NAMED = 5  # carriers that are named
NEARLY_ALL = 0.9  # of the effect: nothing more is looked for
TOLD = 5_000  # people whose group is told from the other attributes
FOLDS = 3


class Mediator(NamedTuple):
    """Attributes, and the share of the effect that goes when they stay as they are."""

    columns: tuple[int, ...]
    share: float


class CounterfactualPairs(NamedTuple):
    """People and counterparts of theirs, and how they are decided."""

    scores: Callable[[Tensor], Tensor]
    decision: Decision
    people: Tensor  # (n, d)
    others: Tensor  # (n, d)

    def rate(self, kept: list[int]) -> float:
        """Return the share of pairs with different decisions if some columns of the twin are the person's."""
        mixed = self.others.clone()
        mixed[:, kept] = self.people[:, kept]
        return float(self.decision.differ(self.scores(self.people), self.scores(mixed)).double().mean())


def carriers(
    pairs: CounterfactualPairs, by_chance: Sequence[CounterfactualPairs], domain: TableDomain, effect: Estimate
) -> tuple[Mediator, ...]:
    """Return the first few mediating attributes, each with those before it: the share of the excess that all explain.

    They are put in order by what each contributes on average, if a person becomes the twin one attribute after the
    other, in a random order (Shapley). `by_chance` are pairs of shuffled groups: as what remains of the rate falls, so
    does what chance adds to it. Nothing is returned where what remains lies within the interval of the excess. A
    sensitive attribute is no mediator of its own.
    """

    def remaining(kept: list[int]) -> float:
        return excess(pairs.rate(kept), fmean(one.rate(kept) for one in by_chance))

    whole = remaining([])
    if whole <= 0:
        return ()
    given = contributions(pairs)
    free = [c for c in given.argsort(descending=True, stable=True).tolist() if c not in domain.sensitive_columns]
    found, kept = list[Mediator](), list[int]()
    for column in free[:MAX_NAMED]:
        if given[column] <= 0:
            break
        kept.append(column)
        share = min(1.0, max(0.0, 1 - remaining(kept) / whole))
        found.append(Mediator(tuple(kept), share))
        if share >= NEARLY_ALL:
            break
    chance = (effect.rate - effect.low) / effect.rate
    return tuple(found) if any(one.share > chance for one in found) else ()


def contributions(pairs: CounterfactualPairs) -> Tensor:
    """Return what each column contributes to the share of pairs with different decisions, which is their sum: (d,)."""
    people, others, decision, scores = pairs.people, pairs.others, pairs.decision, pairs.scores
    n, d = people.shape
    order = Draws(0, "carriers").uniform(0, torch.arange(n, device=people.device), d, use="order").argsort(1)
    own, way, before = scores(people), people.clone(), torch.zeros(n, dtype=torch.float64, device=people.device)
    found = torch.zeros(d, dtype=torch.float64, device=people.device)
    now, every = own.clone(), torch.arange(n, device=people.device)
    for step in range(d):
        column = order[:, step]
        value = others[every, column]
        moved = (way[every, column] != value).nonzero()[:, 0]
        way[every, column] = value
        if len(moved):
            now[moved] = scores(way[moved])
        after = decision.differ(own, now).double()
        found.index_add_(0, column, after - before)
        before = after
    return found / max(1, n)


def tells(domain: TableDomain, people: Tensor, groups: Tensor) -> float | None:
    """Return how well the attributes that the model is given tell the group, the sensitive ones apart: an AUC.

    Everybody is judged by boosted trees that have not seen them; of several groups it is the mean of one against the
    others. None where a group has too few people to try.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    some = people[:TOLD]
    kind = domain.combinations.number(some).cpu().numpy()
    known, kind, counts = np.unique(kind, return_inverse=True, return_counts=True)
    free = [column for column in domain.free.nonzero()[:, 0].tolist() if domain.attributes[column].is_input]
    if len(known) < 2 or counts.min() < FOLDS or not free:
        return None
    nominal = [i for i, c in enumerate(free) if not (a := domain.attributes[c]).ordered and a.size <= 255]
    trees = HistGradientBoostingClassifier(
        max_iter=60, categorical_features=nominal, early_stopping=False, random_state=0
    )
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    chances = cross_val_predict(
        trees, some[:, free].cpu().numpy().astype(np.float64), kind, cv=folds, method="predict_proba"
    )
    if len(known) == 2:
        return float(roc_auc_score(kind, chances[:, 1]))
    return float(roc_auc_score(kind, chances, multi_class="ovr", average="macro"))
