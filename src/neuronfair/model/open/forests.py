"""The trees inside fitted models of scikit-learn, XGBoost and LightGBM, as their own files and objects tell them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError
from neuronfair.model.forest import Forest, Link, Tree, forest

AGREE = 1e-5  # how close the scores must be to the model's own
Told = tuple[list[Tree], list[float], Link]  # trees, what is added to their sum, and what makes scores of it


def forest_of(
    final: Any, given: Callable[[Tensor], Any], ask: Callable[[Tensor], Any], domain: TableDomain, tried: Tensor
) -> Forest:
    """Return the trees of a fitted model over codes.

    `given` makes of rows what the model itself is given, and `ask` its scores, which the trees must reproduce on the
    tried rows.
    """
    name = type(final).__name__
    if name == "Booster":
        name += f" of {type(final).__module__.partition('.')[0]}"
    if name not in _READERS:
        raise ModelError(f"the trees of {name} are not known here")
    trees, base, link = _READERS[name](final)
    features = partial(_numbers, given, getattr(final, "_preprocessor", None))
    scores = torch.from_numpy(np.asarray(ask(tried), dtype=np.float64).reshape(len(tried), -1))
    for values, constants, ends in _arranged(trees, base, link, scores.shape[1]):
        made = forest(values, features, domain, tried[0], constants, ends)
        if torch.allclose(made.scores(tried), scores, rtol=AGREE, atol=AGREE):
            return made
    raise ModelError("its scores could not be reproduced from its trees")


def _numbers(given: Callable[[Tensor], Any], before: Any, rows: Tensor) -> npt.NDArray[np.float64]:
    """Return what the trees compare: a category is its place among the categories, an empty cell NaN."""
    table = given(rows)
    if before is not None:  # histogram-based boosting puts its categories first
        return np.asarray(before.transform(table), dtype=np.float64)
    if hasattr(table, "dtypes") and hasattr(table, "columns"):
        places = {name: table[name].cat.codes for name in table.columns if hasattr(table[name], "cat")}
        table = table.assign(**{name: codes.where(codes >= 0, np.nan) for name, codes in places.items()})
    return np.asarray(table.toarray() if hasattr(table, "toarray") else table, dtype=np.float64)


def _arranged(trees: list[Tree], base: list[float], link: Link, outputs: int) -> list[Told]:
    """Return the ways in which sums may stand for scores: one for two classes, or several in another order."""
    if len(base) == outputs == 1:
        return [(trees, base, link)]
    if len(base) == 1 and outputs == 2 and link == "sigmoid":  # softmax of (0, z) is the sigmoid of z
        pads = ([1.0, 0.0], [0.0, 1.0])
        return [(_spread(trees, np.array([pad[::-1]])), [base[0] * p for p in pad[::-1]], "softmax") for pad in pads]
    if len(base) == outputs and outputs <= 6:
        orders = [np.eye(outputs)[list(order)].T for order in permutations(range(outputs))]
        return [(_spread(trees, order), (np.array(base) @ order).tolist(), link) for order in orders]
    return []


def _spread(trees: list[Tree], matrix: npt.NDArray[np.float64]) -> list[Tree]:
    return [Tree(t.feature, t.left, t.right, t.value @ matrix, t.goes_left) for t in trees]


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
    said, inner = learner["learner_model_param"], learner["gradient_booster"]["model"]
    outputs = max(1, int(said["num_class"]))
    trees = []
    best = getattr(model, "best_iteration", None) if hasattr(model, "early_stopping_rounds") else None
    for number, told in enumerate(inner["trees"]):
        if best is not None and number >= (best + 1) * outputs:
            break
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
    """Return the trees of LightGBM from what it tells of itself."""
    booster = getattr(model, "booster_", model)
    told = booster.dump_model()
    outputs = int(told["num_tree_per_iteration"])
    trees = [
        _lightgbm_tree(info["tree_structure"], number % outputs, outputs)
        for number, info in enumerate(told["tree_info"])
    ]
    objective = str(told.get("objective", "")).split(" ")[0]
    links: dict[str, Link] = {"binary": "sigmoid", "multiclass": "softmax"}
    return trees, [0.0] * outputs, links.get(objective, "none")


def _lightgbm_tree(root: dict[str, Any], output: int, outputs: int) -> Tree:
    nodes, waiting = [root], [root]
    while waiting:
        one = waiting.pop()
        if "left_child" in one:
            children = [one["left_child"], one["right_child"]]
            one["places"] = (len(nodes), len(nodes) + 1)
            nodes += children
            waiting += children
    feature = np.array([one.get("split_feature", -1) for one in nodes])
    value = np.zeros((len(nodes), outputs))
    value[:, output] = [one.get("leaf_value", 0.0) for one in nodes]
    places = np.array([one.get("places", (-1, -1)) for one in nodes])
    return Tree(feature, places[:, 0], places[:, 1], value, partial(_lightgbm_side, nodes=nodes))


def _lightgbm_side(
    node: int, numbers: npt.NDArray[np.float64], *, nodes: Sequence[dict[str, Any]]
) -> npt.NDArray[np.bool_]:
    one = nodes[node]
    if one["decision_type"] == "==":
        chosen = np.isin(numbers, [float(part) for part in str(one["threshold"]).split("||")])
        return chosen & ~np.isnan(numbers)
    kind, left = one["missing_type"], bool(one["default_left"])
    empty = np.isnan(numbers) if kind == "NaN" else np.isnan(numbers) | (np.abs(numbers) <= 1e-35)
    plain = np.where(np.isnan(numbers), 0.0, numbers) <= one["threshold"]
    return plain if kind == "None" else np.where(empty, left, plain)


_READERS: dict[str, Callable[[Any], Told]] = {
    **dict.fromkeys(("DecisionTreeClassifier", "DecisionTreeRegressor"), _averaged),
    **dict.fromkeys(("RandomForestClassifier", "RandomForestRegressor"), _averaged),
    **dict.fromkeys(("ExtraTreesClassifier", "ExtraTreesRegressor"), _averaged),
    **dict.fromkeys(("GradientBoostingClassifier", "GradientBoostingRegressor"), _boosted),
    **dict.fromkeys(("HistGradientBoostingClassifier", "HistGradientBoostingRegressor"), _histogram),
    **dict.fromkeys(("XGBClassifier", "XGBRegressor", "Booster of xgboost"), _xgboost),
    **dict.fromkeys(("LGBMClassifier", "LGBMRegressor", "Booster of lightgbm"), _lightgbm),
}
