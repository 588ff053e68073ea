"""Tree ensembles of XGBoost, LightGBM, CatBoost and scikit-learn as trees over codes, checked by the models' scores.

Each library has a module with `read` (a model and a remark from a file), `list_columns` and `extract_trees`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError, one_line
from neuronfair.limits import TooLargeError
from neuronfair.model.forest import FittedTrees, Floats, Forest, GoesLeft, Link, Tree, build_forest, split_by_threshold
from neuronfair.model.open.frames import TreeColumns
from neuronfair.model.open.trees import catboost, lightgbm, xgboost

MAX_EMPTIED_ROWS = 64  # rows to check with an empty cell, for each column that may have one
TOLERANCE = 1e-5  # how close the scores must be to the model's own
LIBRARIES = {"XGBoost": xgboost, "LightGBM": lightgbm, "CatBoost": catboost}
FILES = {".ubj": xgboost, ".json": xgboost, ".txt": lightgbm, ".cbm": catboost}


def framework(model: Any) -> str:
    """Return the name of a model's library of boosted trees, or an empty text."""
    home = type(model).__module__.partition(".")[0]
    return next((name for name in LIBRARIES if name.lower() == home), "")


def tree_columns(model: Any, domain: TableDomain) -> TreeColumns | None:
    """Return the columns of a fitted model of LightGBM or CatBoost; None for any other."""
    kind = framework(model)
    return LIBRARIES[kind].list_columns(model, domain) if kind else None


def extract_forest(
    final: Any,
    inputs: Callable[[Tensor], Any],
    predict: Callable[[Tensor], Any],
    domain: TableDomain,
    trial_rows: Tensor,
    order: Sequence[int] | None = None,
) -> Forest:
    """Return the trees of a fitted model over codes.

    `inputs` makes the model's own inputs of rows, and `predict` its scores. The trees must reproduce these on the tried
    rows, and on some of them with an empty cell in each column that may have one. `order` says where the domain's
    classes are among the model's own.
    """
    name = type(final).__name__
    if name == "Booster":
        name += f" of {type(final).__module__.partition('.')[0]}"
    if name not in _TREE_EXTRACTORS:
        raise ModelError(f"the trees of {name} are not known here")
    try:
        fitted_trees = _TREE_EXTRACTORS[name](final)
        encoder = (
            catboost.CategoryHashes(final) if name.startswith("CatBoost") else getattr(final, "_preprocessor", None)
        )
        for column, attribute in enumerate(domain.attributes):  # a table may have too few empty cells
            if attribute.empty is not None:
                emptied = trial_rows[:MAX_EMPTIED_ROWS].clone()
                emptied[:, column] = attribute.empty
                trial_rows = torch.cat([trial_rows, emptied])
        forest = build_forest(fitted_trees, partial(_compute_tree_inputs, inputs, encoder), domain, trial_rows[0])
    except TooLargeError as error:  # the model still has scores
        raise ModelError(f"its trees are too large ({one_line(error)})") from error
    scores = torch.from_numpy(np.asarray(predict(trial_rows), dtype=np.float64).reshape(len(trial_rows), -1))
    forest = _order_classes(forest, scores.shape[1], order)
    result = forest.scores(trial_rows)
    if result.shape != scores.shape or not torch.allclose(result, scores, rtol=TOLERANCE, atol=TOLERANCE):
        raise ModelError("its scores could not be reproduced from its trees")
    return forest


def _compute_tree_inputs(inputs: Callable[[Tensor], Any], encoder: Any, rows: Tensor) -> Floats:
    """Return the features of the trees: a category is its position among the categories, an empty cell NaN."""
    table = inputs(rows)
    if encoder is not None:  # the encoder of histogram-based boosting, or the hashes of CatBoost
        return np.asarray(encoder.transform(table), dtype=np.float64)
    if hasattr(table, "dtypes") and hasattr(table, "columns"):
        category_codes = {name: table[name].cat.codes for name in table.columns if hasattr(table[name], "cat")}
        table = table.assign(**{name: codes.where(codes >= 0, np.nan) for name, codes in category_codes.items()})
    return np.asarray(table.toarray() if hasattr(table, "toarray") else table, dtype=np.float64)


def _order_classes(forest: Forest, outputs: int, order: Sequence[int] | None) -> Forest:
    """Return trees with a score for each class, in the domain's order."""
    sums = len(forest.base)
    matrix = torch.eye(max(sums, outputs), dtype=torch.float64)
    link = forest.link
    if sums == 1 and outputs == 2 and link == "sigmoid":  # softmax of (0, z) is the sigmoid of z
        matrix, link = matrix[1:], "softmax"
    if order is not None and len(order) == matrix.shape[1]:
        matrix = matrix[:, list(order)]
    if len(matrix) != sums:
        return forest
    return replace(forest, value=forest.value @ matrix, base=forest.base @ matrix, link=link)


def _convert_tree(tree: Any, value: Floats) -> Tree:
    """Return a tree of scikit-learn."""
    missing = getattr(tree, "missing_go_to_left", np.zeros(tree.node_count)).astype(bool)
    left, right = tree.children_left.astype(np.int64), tree.children_right.astype(np.int64)
    feature = np.where(left < 0, -1, tree.feature).astype(np.int64)
    return Tree(feature, left, right, value, split_by_threshold(tree.threshold, missing, single=True))


def _convert_averaging_forest(model: Any) -> FittedTrees:
    """Return a forest of scikit-learn, or one tree: the mean of its leaves."""
    parts = getattr(model, "estimators_", [model])
    trees = []
    for part in parts:
        leaf_values = part.tree_.value[:, 0].astype(np.float64)
        leaf_values = leaf_values / leaf_values.sum(1, keepdims=True) if hasattr(model, "classes_") else leaf_values
        trees.append(_convert_tree(part.tree_, leaf_values / len(parts)))
    return FittedTrees(trees, [0.0] * trees[0].value.shape[1], "none")


def _convert_boosting(model: Any) -> FittedTrees:
    """Return gradient boosting of scikit-learn: an initial value, and trees that are added to it."""
    if model.init not in (None, "zero"):
        raise ModelError("its initial value is another model")
    outputs = model.estimators_.shape[1]
    trees = []
    for stage in model.estimators_:
        for number, part in enumerate(stage):
            value = np.zeros((part.tree_.node_count, outputs))
            value[:, number] = model.learning_rate * part.tree_.value[:, 0, 0]
            trees.append(_convert_tree(part.tree_, value))
    base = model._raw_predict_init(np.zeros((1, model.n_features_in_), dtype=np.float32))[0]
    return FittedTrees(trees, base.tolist(), _find_link(model, outputs))


def _find_link(model: Any, outputs: int) -> Link:
    if not hasattr(model, "classes_"):
        return "none"
    return "sigmoid" if outputs == 1 else "softmax"


def _convert_histogram_boosting(model: Any) -> FittedTrees:
    """Return histogram-based gradient boosting of scikit-learn."""
    outputs = len(model._predictors[0])
    trees = []
    for stage in model._predictors:
        for number, part in enumerate(stage):
            nodes = part.nodes
            value = np.zeros((len(nodes), outputs))
            value[:, number] = nodes["value"]
            feature = np.where(nodes["is_leaf"], -1, nodes["feature_idx"]).astype(np.int64)
            goes_left = _split_by_histogram(nodes, part.raw_left_cat_bitsets)
            left, right = nodes["left"].astype(np.int64), nodes["right"].astype(np.int64)
            trees.append(Tree(feature, left, right, value, goes_left))
    base = np.ravel(model._baseline_prediction).astype(float).tolist()
    return FittedTrees(trees, base, _find_link(model, outputs))


def _split_by_histogram(nodes: Any, sets: Any) -> GoesLeft:
    def goes_left(node: int, numbers: Floats) -> npt.NDArray[np.bool_]:
        split, sides = nodes[node], numbers <= nodes[node]["num_threshold"]
        if split["is_categorical"]:
            category = np.nan_to_num(numbers, nan=0.0).astype(np.int64)
            sides = ((sets[split["bitset_idx"]][category // 32] >> (category % 32).astype(np.uint32)) & 1).astype(bool)
        return np.where(np.isnan(numbers), bool(split["missing_go_to_left"]), sides)

    return goes_left


_TREE_EXTRACTORS: dict[str, Callable[[Any], FittedTrees]] = {
    **dict.fromkeys(("DecisionTreeClassifier", "DecisionTreeRegressor"), _convert_averaging_forest),
    **dict.fromkeys(("RandomForestClassifier", "RandomForestRegressor"), _convert_averaging_forest),
    **dict.fromkeys(("ExtraTreesClassifier", "ExtraTreesRegressor"), _convert_averaging_forest),
    **dict.fromkeys(("GradientBoostingClassifier", "GradientBoostingRegressor"), _convert_boosting),
    **dict.fromkeys(("HistGradientBoostingClassifier", "HistGradientBoostingRegressor"), _convert_histogram_boosting),
    **dict.fromkeys(("XGBClassifier", "XGBRegressor", "Booster of xgboost"), xgboost.extract_trees),
    **dict.fromkeys(("LGBMClassifier", "LGBMRegressor", "Booster of lightgbm"), lightgbm.extract_trees),
    **dict.fromkeys(("CatBoost", "CatBoostClassifier", "CatBoostRegressor"), catboost.extract_trees),
}
