"""Boosted trees and forests of the five tables, default domains, opened as a user's model would be."""

from __future__ import annotations

from typing import Any

from experiments.cases import data, once
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import require
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open import OpenedModel, wrap_model

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import RandomForestClassifier

KINDS = ("xgboost", "forest")
LEAVES = 600  # of a tree of the forest, at most: Bank's then stay within what `model/forest.py` takes apart


def fitted_trees(data_name: str, kind: str, seed: int) -> tuple[Any, Dataset]:
    """Return an estimator fitted to 70% of the rows of a table, and the whole table."""
    table = data(data_name, "default")
    return once(f"{data_name}-{kind}-{seed}", lambda: fit_trees(table, kind, seed)), table


def fit_trees(table: Dataset, kind: str, seed: int) -> Any:
    """Return an estimator fitted to 70% of the rows of a table.

    Its inputs are the numbers of the domain's encoding, so it needs no pandas; thresholds on them are thresholds on
    codes.
    """
    train = table.split(seed).train
    return _estimator(kind, seed).fit(encoded(train), train.labels.numpy())


def encoded(table: Dataset) -> npt.NDArray[np.float32]:
    """Return the inputs of trees."""
    return TableEncoding.of(table.domain).encode(table.rows).numpy()


def tree_model(data_name: str, kind: str, seed: int) -> tuple[OpenedModel, Dataset]:
    """Return fitted trees, opened as a user's would be, and the whole table."""
    fitted, table = fitted_trees(data_name, kind, seed)
    return wrap_model(fitted, table.domain, table.rows), table


def _estimator(kind: str, seed: int) -> Any:
    if kind == "forest":
        return RandomForestClassifier(100, min_samples_leaf=5, max_leaf_nodes=LEAVES, random_state=seed)
    xgboost = require("xgboost", "xgboost")
    return xgboost.XGBClassifier(n_estimators=100, max_depth=5, learning_rate=0.2, random_state=seed, n_jobs=1)
