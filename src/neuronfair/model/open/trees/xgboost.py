"""XGBoost: its files, checked number by number, the predictions of its boosters, and their trees."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError, one_line, require
from neuronfair.limits import check_size
from neuronfair.model.forest import FittedTrees, Floats, GoesLeft, Link, Tree, split_by_threshold
from neuronfair.model.formats import ModelFile
from neuronfair.model.open.opened import MAX_TRIAL_ROWS
from neuronfair.sandbox import UnreadableError, read_sandboxed

Json = dict[str, Any]  # a part of XGBoost's own format
BYTES_PER_SCORE = 80  # bytes that opening a model takes for each score of a tried row, measured


def read(file: ModelFile) -> tuple[Any, str]:
    """Return the booster in a file, up to the best round where training was stopped early, and a remark on that."""
    xgboost = require("xgboost", "xgboost")
    content, learner = _read_checked(file)
    best, rounds, note = find_best_rounds(learner), _count_rounds(learner), ""
    if best is not None and best < rounds:
        note = f"its first {best} of {rounds} rounds count, as XGBClassifier does after early stopping"
        _drop_later_rounds(learner, best)
        content = json.dumps({**json.loads(content), "learner": learner}).encode()
    return xgboost.Booster(model_file=bytearray(content)), note


class BoosterPredictor:
    """Predicts with a booster, and describes its inputs as estimators of scikit-learn do."""

    def __init__(self, booster: Any) -> None:
        self._booster, self._xgboost = booster, require("xgboost", "xgboost")
        learner = get_learner(booster)
        objective, best = learner["objective"]["name"], find_best_rounds(learner)
        self._margin = objective == "multi:softmax"  # it would return the number of a class instead of scores
        self.probability = objective != "binary:logitraw"
        self.note = ""
        if best is not None and best < _count_rounds(learner):
            rounds = _count_rounds(learner)
            self.note = f"all {rounds} rounds count, as Booster.predict does; booster[:{best}] are the best"
        entries = _tree_model(learner).get("cats", {}).get("enc", [])
        pairs = zip(learner.get("feature_names", []), entries, strict=False)
        self._number_values = {name: entry["values"] for name, entry in pairs if "type" in entry}
        self.categories_ = [_decode_categories(entry) for entry in entries]
        self.n_features_in_ = booster.num_features()
        if booster.feature_names is not None:
            self.feature_names_in_ = booster.feature_names

    def __call__(self, table: Any) -> Any:
        """Return the booster's scores."""
        # XGBoost would read a number as the position of a category.
        if self._number_values and hasattr(table, "assign"):
            kind = require("pandas", "xgboost").Categorical
            table = table.assign(**{name: kind(table[name], values) for name, values in self._number_values.items()})
        return self._booster.predict(self._xgboost.DMatrix(table, enable_categorical=True), output_margin=self._margin)


def list_columns(model: Any, domain: TableDomain) -> None:
    """Return nothing: its estimators name their columns as those of scikit-learn do."""


def get_learner(model: Any) -> Json:
    """Return the JSON of a booster, or of an estimator around one."""
    booster = model.get_booster() if hasattr(model, "get_booster") else model
    learner: Json = json.loads(bytes(booster.save_raw("json")))["learner"]
    return learner


def _read_checked(file: ModelFile) -> tuple[bytes, Json]:
    """Return the model as JSON, written by XGBoost in a sandbox, and its entry 'learner', with checked trees."""
    if b"learner" not in file.content[:64]:
        raise file.error("not an XGBoost model: it does not begin with the entry 'learner'")
    try:
        content = read_sandboxed("xgboost", file.content, file.source)
        learner = json.loads(content)["learner"]
        _check_learner(learner, file.source)
        return content, learner
    except (UnreadableError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise file.error(f"not a readable XGBoost model ({one_line(error)})") from None


def find_best_rounds(learner: Json) -> int | None:
    """Return the number of rounds that early stopping has chosen; None without it, or for a linear model."""
    best = learner.get("attributes", {}).get("best_iteration")
    return None if best is None or "trees" not in _tree_model(learner) else int(best) + 1


def _count_rounds(learner: Json) -> int:
    return len(_tree_model(learner)["iteration_indptr"]) - 1


def _drop_later_rounds(learner: Json, rounds: int) -> None:
    """Remove the trees of later rounds; a slice of a booster would lose its categories."""
    booster, model = learner["gradient_booster"], _tree_model(learner)
    ends = model["iteration_indptr"][: rounds + 1]
    model["iteration_indptr"] = ends
    model["trees"], model["tree_info"] = model["trees"][: ends[-1]], model["tree_info"][: ends[-1]]
    model["gbtree_model_param"]["num_trees"] = str(ends[-1])
    if "weight_drop" in booster:  # of trees some of which are dropped in training
        booster["weight_drop"] = booster["weight_drop"][: ends[-1]]


def _tree_model(learner: Json) -> Json:
    booster = learner["gradient_booster"]
    model: Json = booster.get("gbtree", booster)["model"]
    return model


def _decode_categories(entry: Json) -> list[str]:
    """Return the categories of a column that XGBoost stores as text; none for numbers."""
    if not entry.get("offsets") or "type" in entry:
        return []
    return [bytes(entry["values"][start:end]).decode() for start, end in pairwise(entry["offsets"])]


def extract_trees(model: Any) -> FittedTrees:
    """Return the trees of XGBoost from its JSON."""
    learner = get_learner(model)
    if learner["gradient_booster"]["name"] != "gbtree":
        raise ModelError(f"XGBoost's {learner['gradient_booster']['name']} is more than a sum of trees")
    parameters, inner = learner["learner_model_param"], learner["gradient_booster"]["model"]
    outputs = max(1, int(parameters["num_class"]))
    trees = []
    best_round = getattr(model, "best_iteration", None) if hasattr(model, "early_stopping_rounds") else None
    last = len(inner["trees"]) if best_round is None else inner["iteration_indptr"][best_round + 1]
    for number, tree in enumerate(inner["trees"][:last]):
        left = np.array(tree["left_children"])
        leaf = left < 0
        limit = np.array(tree["split_conditions"], dtype=np.float32).astype(np.float64)
        value = np.zeros((len(left), outputs))
        value[:, inner["tree_info"][number]] = np.where(leaf, limit, 0.0)
        sets = {
            node: set(tree["categories"][start : start + size])
            for node, start, size in zip(
                tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"], strict=True
            )
        }
        missing = np.array(tree["default_left"], dtype=bool)
        goes_left = _split_by_sets(sets, missing, split_by_threshold(limit, missing, strict=True, single=True))
        feature = np.where(leaf, -1, tree["split_indices"])
        trees.append(Tree(feature, left, np.array(tree["right_children"]), value, goes_left))
    guess = np.atleast_1d(np.array(json.loads(parameters["base_score"]), dtype=np.float64))
    objective = learner["objective"]["name"]
    link: Link = "none"
    if objective in ("binary:logistic", "reg:logistic"):
        guess, link = np.log(guess / (1 - guess)), "sigmoid"
    elif objective.startswith("multi:"):
        link = "softmax"
    return FittedTrees(trees, (guess * np.ones(outputs)).tolist(), link)


def _split_by_sets(sets: dict[int, set[int]], missing: npt.NDArray[np.bool_], otherwise: GoesLeft) -> GoesLeft:
    def goes_left(node: int, values: Floats) -> npt.NDArray[np.bool_]:
        if node not in sets:
            return otherwise(node, values)
        chosen = np.isin(values, list(sets[node]))  # those of the set go right
        return np.where(np.isnan(values), missing[node], ~chosen)

    return goes_left


# XGBoost trusts its file: it reads, or writes, an index beyond an array in foreign memory.
def _check_learner(learner: Json, source: str) -> None:
    """Refuse a model with an index of a column, class, tree, node or category that does not exist."""
    parameters = learner["learner_model_param"]
    columns, *classes = (int(parameters.get(name, 0)) for name in ("num_feature", "num_class", "num_target"))
    model = _tree_model(learner)
    trees = model.get("trees", [])
    for tree in trees:
        _check_tree(tree, columns)
    check_size(max(1, *classes) * MAX_TRIAL_ROWS, f"{source}: its answers", times=BYTES_PER_SCORE)
    check_indices("a tree counts for a class", model.get("tree_info", []), max(1, *classes))
    rounds = model.get("iteration_indptr", [])
    if rounds:
        check_offsets("the rounds", rounds, len(trees))
    best = find_best_rounds(learner)
    if best is not None and not 1 <= best < max(2, len(rounds)):
        raise ValueError("its best round does not exist")
    if cats := model.get("cats"):
        _check_categories(cats)


def _check_categories(cats: Json) -> None:
    entries, bounds, order = cats["enc"], cats["feature_segments"], cats["sorted_idx"]
    for entry in entries:
        if "offsets" in entry:
            check_offsets("the names of categories", entry["offsets"] or [0], len(entry["values"]))
            if "type" not in entry and not all(0 <= value < 256 for value in entry["values"]):
                raise ValueError("the names of its categories are no text")
    counts = [len(entry["offsets"] or [0]) - 1 if "offsets" in entry else len(entry["values"]) for entry in entries]
    if bounds or entries or order:
        check_offsets("the categories", bounds or [0], len(order))
        if np.diff(bounds).tolist() != counts:
            raise ValueError("it counts its categories in two ways")
    for count, (start, end) in zip(counts, pairwise(bounds), strict=bool(counts)):
        if sorted(order[start:end]) != list(range(count)):
            raise ValueError("the order of its categories is not one")


def check_indices(subject: str, indices: Any, count: int) -> None:
    """Refuse an index of something that does not exist."""
    indices = np.asarray(indices)
    if not ((indices >= 0) & (indices < count)).all():
        raise ValueError(f"{subject} that does not exist")


def check_offsets(subject: str, offsets: Any, end: int) -> None:
    """Refuse bounds of parts of an array that do not begin with 0, rise, and end with its end."""
    if offsets[0] != 0 or offsets[-1] != end or any(a > b for a, b in pairwise(offsets)):
        raise ValueError(f"{subject} are not cut where they end")


def _check_tree(tree: Json, columns: int) -> None:
    """Refuse a tree with cycles or branches that do not exist, with which XGBoost would never end."""
    check_indices("a tree asks for a column", tree["split_indices"], columns)
    left, right = np.asarray(tree["left_children"]), np.asarray(tree["right_children"])
    node_index = np.arange(len(left))
    inner = left != -1
    for branch in (left, right):
        if branch.shape != node_index.shape or ((branch <= node_index) | (branch >= len(node_index)))[inner].any():
            raise ValueError("a branch of a tree leads nowhere")
    if (right != -1)[~inner].any():
        raise ValueError("a branch of a tree leads nowhere")
    check_indices("a tree tells categories at a node", tree.get("categories_nodes", []), len(node_index))
    ends = np.add(tree.get("categories_segments", []), tree.get("categories_sizes", []), dtype=np.float64)
    check_indices("a tree names a category", [*tree.get("categories_segments", []), *ends], len(tree["categories"]) + 1)
