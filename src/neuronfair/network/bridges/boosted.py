"""XGBoost model files (.ubj, .json): black boxes that are given the columns they were trained on."""

from __future__ import annotations

import json
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

from neuronfair.apart import Unreadable, read_apart
from neuronfair.network.bridges.opened import Opened, Request, needs, one_line
from neuronfair.network.bridges.readings import first_that_works, readings


def open(request: Request) -> Opened:  # noqa: A001 - each bridge has a function of this name
    """Read trees that XGBoost has saved."""
    xgboost = needs("xgboost", "xgboost")
    content, learner = _checked(request)
    booster = xgboost.Booster(model_file=bytearray(content))
    objective = learner["objective"]["name"]
    margin = objective == "multi:softmax"  # it would answer with the number of a class instead of scores

    def ask(table: Any) -> np.ndarray:
        return np.asarray(booster.predict(xgboost.DMatrix(table, enable_categorical=True), output_margin=margin))

    inputs = SimpleNamespace(n_features_in_=booster.num_features(), categories_=_categories(learner))
    if booster.feature_names is not None:
        inputs.feature_names_in_ = booster.feature_names
    reading, _ = first_that_works(request, readings(request, inputs, bare=True), ask)
    why = "; ".join(filter(None, ("boosted trees have no neurons to look at", reading.note)))
    probability = objective != "binary:logitraw"
    return request.black_box("XGBoost", lambda rows: ask(reading.given(rows)), why, probability=probability)


def _checked(request: Request) -> tuple[bytes, dict[str, Any]]:
    """Return the model as JSON, written by XGBoost in another process, and what it says, after a look at its trees."""
    if b"learner" not in request.content[:64]:
        raise request.error("not an XGBoost model: it does not begin with the entry 'learner'")
    try:
        content = read_apart("trees", request.content, request.source)
        learner = json.loads(content)["learner"]
        columns = int(learner["learner_model_param"]["num_feature"])
        for tree in _model(learner).get("trees", []):
            _check_tree(tree, columns)
        return content, learner
    except (Unreadable, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise request.error(f"not a readable XGBoost model ({one_line(error)})") from None


def _model(learner: dict[str, Any]) -> dict[str, Any]:
    booster = learner["gradient_booster"]
    model: dict[str, Any] = booster.get("gbtree", booster)["model"]
    return model


def _categories(learner: dict[str, Any]) -> list[list[str]]:
    """Return the categories of each column that XGBoost remembers, none for numbers."""
    known = _model(learner).get("cats", {}).get("enc", [])
    return [
        [bytes(entry["values"][start:end]).decode() for start, end in pairwise(entry["offsets"])]
        if entry["offsets"] and "type" not in entry
        else []
        for entry in known
    ]


def _check_tree(tree: dict[str, Any], columns: int) -> None:
    """Refuse a tree whose branches lead nowhere or back, where XGBoost would read foreign memory or never end."""
    if any(not 0 <= column < columns for column in tree["split_indices"]):
        raise ValueError("a tree asks for a column that does not exist")
    left, right = np.asarray(tree["left_children"]), np.asarray(tree["right_children"])
    place = np.arange(len(left))
    inner = left != -1
    for branch in (left, right):
        if branch.shape != place.shape or ((branch <= place) | (branch >= len(place)))[inner].any():
            raise ValueError("a branch of a tree leads nowhere")
    if (right != -1)[~inner].any():
        raise ValueError("a branch of a tree leads nowhere")
