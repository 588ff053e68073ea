"""The trees inside fitted models of scikit-learn and of boosted trees, as their own files and objects tell them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError, one_line
from neuronfair.limits import TooLarge
from neuronfair.model.forest import Forest, Link, Tree, forest
from neuronfair.model.open.trees.catboost_trees import Hashed, trees_of_catboost
from neuronfair.model.open.trees.columns import entries

MOST_CLASSES = 6  # whose order is looked for
EMPTIED = 64  # rows that are tried with an empty cell, for each column that may have one
AGREE = 1e-5  # how close the scores must be to the model's own
Told = tuple[list[Tree], list[float], Link]  # trees, what is added to their sum, and what makes scores of it


def forest_of(
    final: Any, given: Callable[[Tensor], Any], ask: Callable[[Tensor], Any], domain: TableDomain, tried: Tensor
) -> Forest:
    """Return the trees of a fitted model over codes.

    `given` makes of rows what the model itself is given, and `ask` its scores, which the trees must reproduce on the
    tried rows, and on some of them with an empty cell in each column that may have one.
    """
    name = type(final).__name__
    if name == "Booster":
        name += f" of {type(final).__module__.partition('.')[0]}"
    if name not in _READERS:
        raise ModelError(f"the trees of {name} are not known here")
    try:
        return _reproduced(final, name, given, ask, domain, tried)
    except TooLarge as error:  # the model can still be asked
        raise ModelError(f"its trees are too large ({one_line(error)})") from error


def _reproduced(
    final: Any,
    name: str,
    given: Callable[[Tensor], Any],
    ask: Callable[[Tensor], Any],
    domain: TableDomain,
    tried: Tensor,
) -> Forest:
    trees, base, link = _READERS[name](final)
    before = Hashed(final) if name.startswith("CatBoost") else getattr(final, "_preprocessor", None)
    features = partial(_numbers, given, before)
    tried = torch.cat([tried, *_emptied(domain, tried)])
    scores = torch.from_numpy(np.asarray(ask(tried), dtype=np.float64).reshape(len(tried), -1))
    made = forest(trees, features, domain, tried[0], base, link)
    for matrix, end in _arrangements(len(base), link, scores.shape[1]):
        arranged = replace(made, value=made.value @ matrix, base=made.base @ matrix, link=end)
        if torch.allclose(arranged.scores(tried), scores, rtol=AGREE, atol=AGREE):
            return arranged
    raise ModelError("its scores could not be reproduced from its trees")


def _emptied(domain: TableDomain, rows: Tensor) -> Iterator[Tensor]:
    """Yield rows with an empty cell in one column after the other: a table may have too few to notice an error."""
    for column, attribute in enumerate(domain.attributes):
        if attribute.empty is not None:
            emptied = rows[:EMPTIED].clone()
            emptied[:, column] = attribute.empty
            yield emptied


def _numbers(given: Callable[[Tensor], Any], before: Any, rows: Tensor) -> npt.NDArray[np.float64]:
    """Return what the trees compare: a category is its place among the categories, an empty cell NaN."""
    table = given(rows)
    if before is not None:  # histogram-based boosting puts its categories first, CatBoost makes numbers of texts
        return np.asarray(before.transform(table), dtype=np.float64)
    if hasattr(table, "dtypes") and hasattr(table, "columns"):
        places = {name: table[name].cat.codes for name in table.columns if hasattr(table[name], "cat")}
        table = table.assign(**{name: codes.where(codes >= 0, np.nan) for name, codes in places.items()})
    return np.asarray(table.toarray() if hasattr(table, "toarray") else table, dtype=np.float64)


def _arrangements(sums: int, link: Link, outputs: int) -> list[tuple[Tensor, Link]]:
    """Return the ways in which sums may stand for scores: one for two classes, or several in another order."""
    one = torch.eye(2, dtype=torch.float64)
    if sums == 1 and outputs == 2 and link == "sigmoid":  # softmax of (0, z) is the sigmoid of z
        return [(one[1:], "softmax"), (one[:1], "softmax")]
    if sums != outputs or outputs > MOST_CLASSES:
        return []
    return [(torch.eye(sums, dtype=torch.float64)[:, list(order)], link) for order in permutations(range(sums))]


def _threshold(
    node: int,
    numbers: npt.NDArray[np.float64],
    *,
    limit: npt.NDArray[np.float64],
    missing: npt.NDArray[np.bool_],
    strict: bool = False,
    single: bool = False,
) -> npt.NDArray[np.bool_]:
    """Return which numbers go left at a node: those up to, or below, its limit, and empty ones where it says so."""
    numbers = numbers.astype(np.float32).astype(np.float64) if single else numbers
    below = numbers < limit[node] if strict else numbers <= limit[node]
    return np.asarray(np.where(np.isnan(numbers), missing[node], below), dtype=bool)


def _of_tree(tree: Any, value: npt.NDArray[np.float64]) -> Tree:
    """Return a tree of scikit-learn."""
    missing = getattr(tree, "missing_go_to_left", np.zeros(tree.node_count)).astype(bool)
    feature = np.where(tree.children_left < 0, -1, tree.feature).astype(np.int64)
    goes = partial(_threshold, limit=tree.threshold, missing=missing, single=True)
    return Tree(feature, tree.children_left.astype(np.int64), tree.children_right.astype(np.int64), value, goes)


def _averaged(model: Any) -> Told:
    """Return a forest of scikit-learn, or one tree: the mean of what its leaves hold."""
    parts = getattr(model, "estimators_", [model])
    trees = []
    for part in parts:
        held = part.tree_.value[:, 0].astype(np.float64)
        held = held / held.sum(1, keepdims=True) if hasattr(model, "classes_") else held
        trees.append(_of_tree(part.tree_, held / len(parts)))
    return trees, [0.0] * trees[0].value.shape[1], "none"


def _boosted(model: Any) -> Told:
    """Return gradient boosting of scikit-learn: a first guess, and trees that are added to it."""
    outputs = model.estimators_.shape[1]
    trees = []
    for stage in model.estimators_:
        for number, part in enumerate(stage):
            value = np.zeros((part.tree_.node_count, outputs))
            value[:, number] = model.learning_rate * part.tree_.value[:, 0, 0]
            trees.append(_of_tree(part.tree_, value))
    rows = np.zeros((1, model.n_features_in_), dtype=np.float32)
    added = sum(tree.value[_leaf(tree, rows[0])] for tree in trees)
    base = np.asarray(model._raw_predict(rows))[0] - added
    return trees, base.tolist(), _link(model, outputs)


def _leaf(tree: Tree, row: npt.NDArray[np.float32]) -> int:
    node = 0
    while tree.feature[node] >= 0:
        left = tree.goes_left(node, row[tree.feature[node] : tree.feature[node] + 1].astype(np.float64))[0]
        node = int(tree.left[node] if left else tree.right[node])
    return node


def _link(model: Any, outputs: int) -> Link:
    if not hasattr(model, "classes_"):
        return "none"
    return "sigmoid" if outputs == 1 else "softmax"


def _histogram(model: Any) -> Told:
    """Return histogram-based gradient boosting of scikit-learn."""
    outputs = len(model._predictors[0])
    trees = []
    for stage in model._predictors:
        for number, part in enumerate(stage):
            nodes = part.nodes
            value = np.zeros((len(nodes), outputs))
            value[:, number] = nodes["value"]
            feature = np.where(nodes["is_leaf"], -1, nodes["feature_idx"]).astype(np.int64)
            goes = partial(_histogram_side, nodes=nodes, sets=part.raw_left_cat_bitsets)
            left, right = nodes["left"].astype(np.int64), nodes["right"].astype(np.int64)
            trees.append(Tree(feature, left, right, value, goes))
    return trees, np.ravel(model._baseline_prediction).astype(float).tolist(), _link(model, outputs)


def _histogram_side(node: int, numbers: npt.NDArray[np.float64], *, nodes: Any, sets: Any) -> npt.NDArray[np.bool_]:
    one = nodes[node]
    if one["is_categorical"]:
        place = np.nan_to_num(numbers, nan=0.0).astype(np.int64)
        inside = (sets[one["bitset_idx"]][place // 32] >> (place % 32).astype(np.uint32)) & 1
        return np.where(np.isnan(numbers), bool(one["missing_go_to_left"]), inside.astype(bool))
    return np.where(np.isnan(numbers), bool(one["missing_go_to_left"]), numbers <= one["num_threshold"])


def _xgboost(model: Any) -> Told:
    """Return the trees of XGBoost from what it writes."""
    booster = model.get_booster() if hasattr(model, "get_booster") else model
    learner = json.loads(bytes(booster.save_raw("json")))["learner"]
    if learner["gradient_booster"]["name"] != "gbtree":
        raise ModelError(f"XGBoost's {learner['gradient_booster']['name']} is more than a sum of trees")
    said, inner = learner["learner_model_param"], learner["gradient_booster"]["model"]
    outputs = max(1, int(said["num_class"]))
    trees = []
    best = getattr(model, "best_iteration", None) if hasattr(model, "early_stopping_rounds") else None
    last = len(inner["trees"]) if best is None else inner["iteration_indptr"][best + 1]
    for number, told in enumerate(inner["trees"][:last]):
        left = np.array(told["left_children"])
        leaf = left < 0
        limit = np.array(told["split_conditions"], dtype=np.float32).astype(np.float64)
        value = np.zeros((len(left), outputs))
        value[:, inner["tree_info"][number]] = np.where(leaf, limit, 0.0)
        sets = {
            node: set(told["categories"][start : start + size])
            for node, start, size in zip(
                told["categories_nodes"], told["categories_segments"], told["categories_sizes"], strict=True
            )
        }
        missing = np.array(told["default_left"], dtype=bool)
        goes = partial(_xgboost_side, limit=limit, missing=missing, sets=sets)
        feature = np.where(leaf, -1, told["split_indices"])
        trees.append(Tree(feature, left, np.array(told["right_children"]), value, goes))
    guess = np.atleast_1d(np.array(json.loads(said["base_score"]), dtype=np.float64))
    objective = learner["objective"]["name"]
    link: Link = "none"
    if objective in ("binary:logistic", "reg:logistic"):
        guess, link = np.log(guess / (1 - guess)), "sigmoid"
    elif objective.startswith("multi:"):
        link = "softmax"
    return trees, (guess * np.ones(outputs)).tolist(), link


def _xgboost_side(
    node: int,
    numbers: npt.NDArray[np.float64],
    *,
    limit: npt.NDArray[np.float64],
    missing: npt.NDArray[np.bool_],
    sets: dict[int, set[int]],
) -> npt.NDArray[np.bool_]:
    if node in sets:  # those of the set go right
        chosen = np.isin(numbers, list(sets[node]))
        return np.where(np.isnan(numbers), missing[node], ~chosen)
    return _threshold(node, numbers, limit=limit, missing=missing, strict=True, single=True)


def _lightgbm(model: Any) -> Told:
    """Return the trees of LightGBM from what it writes; what it tells as JSON is as deep as its trees."""
    head, *trees = re.split(r"^Tree=\d+$", getattr(model, "booster_", model).model_to_string(), flags=re.MULTILINE)
    said = entries(head)
    outputs = int(said["num_tree_per_iteration"])
    links: dict[str, Link] = {"binary": "sigmoid", "multiclass": "softmax"}
    link = links.get(said.get("objective", "").split(" ")[0], "none")
    return [_lightgbm_tree(entries(t), i % outputs, outputs) for i, t in enumerate(trees)], [0.0] * outputs, link


def _lightgbm_tree(told: dict[str, str], output: int, outputs: int) -> Tree:
    """Return a tree: its branches, then its leaves, which its branches name by -1, -2, …."""
    if told.get("is_linear", "0") != "0":
        raise ModelError("its leaves are linear models")
    leaves = np.array(told["leaf_value"].split(), dtype=np.float64)
    inner = len(leaves) - 1

    def numbers(name: str, kind: type = np.int64) -> npt.NDArray[Any]:
        return np.array(told.get(name, "").split() if inner else [], dtype=kind)

    ends = np.full(len(leaves), -1)
    ways = [np.where(way < 0, inner - way - 1, way) for way in (numbers("left_child"), numbers("right_child"))]
    value = np.zeros((inner + len(leaves), outputs))
    value[inner:, output] = leaves
    goes = partial(
        _lightgbm_side,
        kinds=numbers("decision_type"),
        limits=numbers("threshold", np.float64),
        bounds=numbers("cat_boundaries"),
        bits=numbers("cat_threshold", np.uint32),
    )
    left, right = (np.concatenate([way, ends]) for way in ways)
    return Tree(np.concatenate([numbers("split_feature"), ends]), left, right, value, goes)


def _lightgbm_side(
    node: int,
    numbers: npt.NDArray[np.float64],
    *,
    kinds: npt.NDArray[np.int64],
    limits: npt.NDArray[np.float64],
    bounds: npt.NDArray[np.int64],
    bits: npt.NDArray[np.uint32],
) -> npt.NDArray[np.bool_]:
    kind, empty = int(kinds[node]), np.isnan(numbers)
    if kind & 1:  # a set of categories goes left, as bits
        words = bits[bounds[int(limits[node])] : bounds[int(limits[node]) + 1]]
        place = np.where(empty | (numbers < 0), 32 * len(words), numbers).astype(np.int64)
        known = place < 32 * len(words)
        inside = words[np.where(known, place // 32, 0)] >> (place % 32).astype(np.uint32) & 1
        return np.asarray(known & (inside == 1), dtype=bool)
    plain = np.where(empty, 0.0, numbers) <= limits[node]
    missing = kind >> 2 & 3  # none, zero, NaN
    strays = {0: np.zeros_like(empty), 1: empty | (np.abs(numbers) <= 1e-35), 2: empty}[missing]
    return np.asarray(np.where(strays, bool(kind & 2), plain), dtype=bool)


_READERS: dict[str, Callable[[Any], Told]] = {
    **dict.fromkeys(("DecisionTreeClassifier", "DecisionTreeRegressor"), _averaged),
    **dict.fromkeys(("RandomForestClassifier", "RandomForestRegressor"), _averaged),
    **dict.fromkeys(("ExtraTreesClassifier", "ExtraTreesRegressor"), _averaged),
    **dict.fromkeys(("GradientBoostingClassifier", "GradientBoostingRegressor"), _boosted),
    **dict.fromkeys(("HistGradientBoostingClassifier", "HistGradientBoostingRegressor"), _histogram),
    **dict.fromkeys(("XGBClassifier", "XGBRegressor", "Booster of xgboost"), _xgboost),
    **dict.fromkeys(("LGBMClassifier", "LGBMRegressor", "Booster of lightgbm"), _lightgbm),
    **dict.fromkeys(("CatBoost", "CatBoostClassifier", "CatBoostRegressor"), trees_of_catboost),
}
