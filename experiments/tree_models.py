"""Boosted trees and forests of the five tables, default domains, opened as a user's model would be."""

from __future__ import annotations

from functools import cache
from typing import Any

from neuronfair.domain.data import Data
from neuronfair.errors import needs
from neuronfair.experiments.cases import data
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open import Opened, open_model

from sklearn.ensemble import RandomForestClassifier

KINDS = ("xgboost", "forest")
LEAVES = 600  # of a tree of the forest, at most: Bank's then stay within what `model/forest.py` takes apart


@cache
def tree_model(data_name: str, kind: str, seed: int) -> tuple[Opened, Data]:
    """Return trees fitted to 70 % of the rows of a table, and the whole table.

    They are given the numbers of the domain's encoding, so that no pandas is needed; thresholds on them are thresholds
    on codes.
    """
    table = data(data_name, "default")
    train = table.split(seed).train
    fitted = _estimator(kind, seed).fit(TableEncoding.of(table.domain).encode(train.rows).numpy(), train.labels.numpy())
    return open_model(fitted, table.domain, table.rows), table


def _estimator(kind: str, seed: int) -> Any:
    if kind == "forest":
        return RandomForestClassifier(100, min_samples_leaf=5, max_leaf_nodes=LEAVES, random_state=seed)
    xgboost = needs("xgboost", "xgboost")
    return xgboost.XGBClassifier(n_estimators=100, max_depth=5, learning_rate=0.2, random_state=seed, n_jobs=1)
