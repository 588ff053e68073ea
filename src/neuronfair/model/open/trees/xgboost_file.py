"""XGBoost models (.ubj, .json, boosters): black boxes that are given the columns they were trained on."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

from neuronfair.errors import needs, one_line
from neuronfair.limits import check_size
from neuronfair.model.blackbox import as_scores
from neuronfair.model.open.estimator_inputs import first_that_works, positions, readings, with_frames
from neuronfair.model.open.request import TRIED, ModelFile, Opened, Request
from neuronfair.model.open.trees.forests import forest_of
from neuronfair.sandbox import Unreadable, read_apart

Json = dict[str, Any]  # a part of what XGBoost writes
_ANSWER = 80  # bytes that opening a model takes for one score of one row that it is tried on, measured


def open(request: Request) -> Opened:  # noqa: A001 - each reader has a function of this name
    """Read trees that XGBoost has saved, up to the best round where training was stopped early."""
    xgboost = needs("xgboost", "xgboost")
    content, learner = _checked(request)
    rounds = best_rounds(learner)
    note = ""
    if rounds is not None and rounds < _rounds(learner):
        note = f"its first {rounds} of {_rounds(learner)} rounds count, as XGBClassifier does after early stopping"
        _cut(learner, rounds)
        content = json.dumps({**json.loads(content), "learner": learner}).encode()
    return _opened(request, xgboost.Booster(model_file=bytearray(content)), learner, request.digest, note)


def open_booster(request: Request, booster: Any, print_of: str) -> Opened:
    """Take trees that are in memory: all rounds, as the method predict of a booster does."""
    learner = json.loads(booster.save_raw("json"))["learner"]
    best, note = best_rounds(learner), ""
    if best is not None and best < _rounds(learner):
        note = f"all {_rounds(learner)} rounds count, as Booster.predict does; give booster[:{best}] for the best"
    return _opened(request, booster, learner, print_of, note)


def _opened(request: Request, booster: Any, learner: Json, print_of: str, note: str) -> Opened:
    xgboost = needs("xgboost", "xgboost")
    objective = learner["objective"]["name"]
    margin = objective == "multi:softmax"  # it would answer with the number of a class instead of scores

    numbers = _numbers(learner)

    def ask(table: Any) -> np.ndarray:
        if numbers and hasattr(table, "assign"):  # else XGBoost would take a number for the place of a category
            kind = needs("pandas", "xgboost").Categorical
            table = table.assign(**{name: kind(table[name], values) for name, values in numbers.items()})
        return np.asarray(booster.predict(xgboost.DMatrix(table, enable_categorical=True), output_margin=margin))

    inputs = SimpleNamespace(n_features_in_=booster.num_features(), categories_=_categories(learner))
    if booster.feature_names is not None:
        inputs.feature_names_in_ = booster.feature_names
    reading, _ = first_that_works(request, readings(request, inputs, bare=True), ask)
    said = positions(request) if reading.by_position and not reading.declared else ""
    why = "; ".join(filter(None, ("boosted trees have no neurons to look at", reading.note, said, note)))
    opened = request.black_box(
        "XGBoost",
        lambda rows: ask(reading.given(rows)),
        why,
        probability=objective != "binary:logitraw",
        print_of=print_of,
    )
    of_frame = reading.of_frame
    if of_frame is not None:
        opened = replace(opened, scores_of_frame=lambda table: as_scores(ask(of_frame(table))))
    trees = partial(forest_of, booster, reading.given, opened.model.scores, request.domain, request.tried)
    places = reading.by_position is True
    known = replace(opened.with_trees(trees), inputs=ask if reading.declared else None, by_position=places)
    return with_frames(known, ask, reading)


def names(file: ModelFile) -> list[str] | None:
    """Return the names of the columns that the trees were trained on, if they were told."""
    return _checked(file)[1].get("feature_names") or None


def _checked(request: ModelFile) -> tuple[bytes, Json]:
    """Return the model as JSON, written by XGBoost in another process, and what it says, after a look at its trees."""
    if b"learner" not in request.content[:64]:
        raise request.error("not an XGBoost model: it does not begin with the entry 'learner'")
    try:
        content = read_apart("read_xgboost", request.content, request.source)
        learner = json.loads(content)["learner"]
        _check(learner, request.source)
        return content, learner
    except (Unreadable, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise request.error(f"not a readable XGBoost model ({one_line(error)})") from None


def best_rounds(learner: Json) -> int | None:
    """Return after how many rounds early stopping has found a model best; None without it, or for a linear model."""
    best = learner.get("attributes", {}).get("best_iteration")
    return None if best is None or "trees" not in _model(learner) else int(best) + 1


def _rounds(learner: Json) -> int:
    return len(_model(learner)["iteration_indptr"]) - 1


def _cut(learner: Json, rounds: int) -> None:
    """Leave out the trees of later rounds; a slice of a booster would lose its categories."""
    booster, model = learner["gradient_booster"], _model(learner)
    ends = model["iteration_indptr"][: rounds + 1]
    model["iteration_indptr"] = ends
    model["trees"], model["tree_info"] = model["trees"][: ends[-1]], model["tree_info"][: ends[-1]]
    model["gbtree_model_param"]["num_trees"] = str(ends[-1])
    if "weight_drop" in booster:  # of trees some of which are dropped in training
        booster["weight_drop"] = booster["weight_drop"][: ends[-1]]


def _model(learner: Json) -> Json:
    booster = learner["gradient_booster"]
    model: Json = booster.get("gbtree", booster)["model"]
    return model


def _categories(learner: Json) -> list[list[str]]:
    """Return the categories of each column that XGBoost remembers, none for numbers."""
    known = _model(learner).get("cats", {}).get("enc", [])
    return [
        [bytes(entry["values"][start:end]).decode() for start, end in pairwise(entry["offsets"])]
        if entry.get("offsets") and "type" not in entry
        else []
        for entry in known
    ]


def _numbers(learner: Json) -> dict[str, list[float]]:
    """Return the categories that are numbers, by the name of their column."""
    known, names = _model(learner).get("cats", {}).get("enc", []), learner.get("feature_names", [])
    return {name: entry["values"] for name, entry in zip(names, known, strict=False) if "type" in entry}


# XGBoost believes its file: a place beyond an array is read, or written, in foreign memory.
def _check(learner: Json, source: str) -> None:
    """Refuse a model one of whose numbers points to a column, class, tree, node or category that does not exist."""
    said = learner["learner_model_param"]
    columns, *classes = (int(said.get(name, 0)) for name in ("num_feature", "num_class", "num_target"))
    model = _model(learner)
    trees = model.get("trees", [])
    for tree in trees:
        _check_tree(tree, columns)
    check_size(max(1, *classes) * TRIED, f"{source}: its answers", times=_ANSWER)
    _check_places("a tree counts for a class", model.get("tree_info", []), max(1, *classes))
    rounds = model.get("iteration_indptr", [])
    if rounds:
        _check_offsets("the rounds", rounds, len(trees))
    best = best_rounds(learner)
    if best is not None and not 1 <= best < max(2, len(rounds)):
        raise ValueError("its best round does not exist")
    if cats := model.get("cats"):
        _check_categories(cats)


def _check_categories(cats: Json) -> None:
    known, bounds, order = cats["enc"], cats["feature_segments"], cats["sorted_idx"]
    for entry in known:
        if "offsets" in entry:
            _check_offsets("the names of categories", entry["offsets"] or [0], len(entry["values"]))
            if "type" not in entry and not all(0 <= value < 256 for value in entry["values"]):
                raise ValueError("the names of its categories are no text")
    counts = [len(entry["offsets"] or [0]) - 1 if "offsets" in entry else len(entry["values"]) for entry in known]
    if bounds or known or order:
        _check_offsets("the categories", bounds or [0], len(order))
        if np.diff(bounds).tolist() != counts:
            raise ValueError("it counts its categories in two ways")
    for count, (start, end) in zip(counts, pairwise(bounds), strict=bool(counts)):
        if sorted(order[start:end]) != list(range(count)):
            raise ValueError("the order of its categories is not one")


def _check_places(what: str, places: Any, count: int) -> None:
    if any(not 0 <= place < count for place in places):
        raise ValueError(f"{what} that does not exist")


def _check_offsets(what: str, offsets: Any, end: int) -> None:
    """Refuse bounds of parts of an array that do not begin with 0, rise, and end with its end."""
    if offsets[0] != 0 or offsets[-1] != end or any(a > b for a, b in pairwise(offsets)):
        raise ValueError(f"{what} are not cut where they end")


def _check_tree(tree: Json, columns: int) -> None:
    """Refuse a tree whose branches lead nowhere or back, so that XGBoost would never end."""
    _check_places("a tree asks for a column", tree["split_indices"], columns)
    left, right = np.asarray(tree["left_children"]), np.asarray(tree["right_children"])
    place = np.arange(len(left))
    inner = left != -1
    for branch in (left, right):
        if branch.shape != place.shape or ((branch <= place) | (branch >= len(place)))[inner].any():
            raise ValueError("a branch of a tree leads nowhere")
    if (right != -1)[~inner].any():
        raise ValueError("a branch of a tree leads nowhere")
    _check_places("a tree tells categories at a node", tree.get("categories_nodes", []), len(place))
    ends = np.add(tree.get("categories_segments", []), tree.get("categories_sizes", []), dtype=np.float64)
    _check_places("a tree names a category", [*tree.get("categories_segments", []), *ends], len(tree["categories"]) + 1)
