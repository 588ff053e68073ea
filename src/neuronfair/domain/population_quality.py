"""How good a population is: whether it foresees people it has not seen, and whether its own can be told from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.population import fit_people
from neuronfair.domain.table import TableDomain

COMPARED = 5_000  # people of each kind whom the classifier sees
FOLDS = 3


@dataclass(frozen=True)
class Quality:
    """What a population fitted to 70 % of the people makes of the other 30 %."""

    log_likelihood: float  # of one of them, on average, in nats
    auc: float  # how well boosted trees tell them from drawn people: 0.5 is not at all, 1 is always


def population_quality(domain: TableDomain, rows: Tensor, *, seed: int = 0) -> Quality | None:
    """Return how well a population of these people would describe others like them; None for fewer than ten."""
    if len(rows) < 10:
        return None
    people = domain.clip(rows)
    order = torch.randperm(len(people), generator=torch.Generator().manual_seed(seed)).to(people.device)
    cut = len(people) * 7 // 10
    model, held = fit_people(domain, people[order[:cut]], seed=seed), people[order[cut:]]
    drawn = model.sample(min(len(held), COMPARED), torch.Generator().manual_seed(seed + 1))
    return Quality(float(model.log_likelihood(held).mean()), told_apart(domain, held, drawn))


def told_apart(domain: TableDomain, real: Tensor, drawn: Tensor) -> float:
    """Return the AUC of boosted trees that tell real people from drawn ones: 0.5 is not at all, 1 is always.

    Everybody is judged by trees that have not seen them.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    n = min(len(real), len(drawn), COMPARED)
    rows = torch.cat([real[:n], drawn[:n]]).cpu().numpy().astype(np.float64)
    kind = np.repeat([1, 0], n)
    nominal = [i for i, a in enumerate(domain.attributes) if not a.ordered and a.size <= 255]
    trees = HistGradientBoostingClassifier(
        max_iter=60, categorical_features=nominal, early_stopping=False, random_state=0
    )
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    return float(roc_auc_score(kind, cross_val_predict(trees, rows, kind, cv=folds, method="predict_proba")[:, 1]))
