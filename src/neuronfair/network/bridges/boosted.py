"""XGBoost model files (.ubj, .json): black boxes that are given the columns they were trained on."""

from __future__ import annotations

import json
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

from neuronfair.network.bridges.apart import read_apart
from neuronfair.network.bridges.opened import Opened, Request, needs, one_line
from neuronfair.network.bridges.readings import first_that_works, readings

# XGBoost's reader can crash, or ask for all memory, on a damaged file.
_READ = """
sys.modules |= {"sklearn": None, "pandas": None}  # not needed there, and slow to import
import xgboost
sys.stdout.buffer.write(xgboost.Booster(model_file=sys.argv[1]).save_raw("json"))
"""


def open(request: Request) -> Opened:  # noqa: A001 - each bridge has a function of this name
    """Read trees that XGBoost has saved."""
    xgboost = needs("xgboost", "xgboost")
    content = _checked(request)
    booster = xgboost.Booster(model_file=bytearray(content))
    objective = json.loads(content)["learner"]["objective"]["name"]
    margin = objective == "multi:softmax"  # it would answer with the number of a class instead of scores

    def ask(table: Any) -> np.ndarray:
        return np.asarray(booster.predict(xgboost.DMatrix(table, enable_categorical=True), output_margin=margin))

    inputs = SimpleNamespace(n_features_in_=booster.num_features(), categories_=_categories(content))
    if booster.feature_names is not None:
        inputs.feature_names_in_ = booster.feature_names
    reading, _ = first_that_works(request, readings(request, inputs, bare=True), ask)
    why = "; ".join(filter(None, ("boosted trees have no neurons to look at", reading.note)))
    probability = objective != "binary:logitraw"
    return request.black_box("XGBoost", lambda rows: ask(reading.given(rows)), why, probability=probability)


def _checked(request: Request) -> bytes:
    """Return the model as JSON, read in another process, after a look at its trees."""
    with request.path.open("rb") as file:
        if b"learner" not in file.read(64):
            raise request.error("not an XGBoost model: it does not begin with the entry 'learner'")
    if request.path.suffix.lower() == ".json":
        _check(request, request.path.read_bytes())
    content = read_apart(request, _READ, "XGBoost model")
    _check(request, content)
    return content


def _check(request: Request, content: bytes) -> None:
    try:
        learner = json.loads(content)["learner"]
        columns = int(learner["learner_model_param"]["num_feature"])
        for tree in _model(learner).get("trees", []):
            _check_tree(tree, columns)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise request.error(f"not a readable XGBoost model ({type(error).__name__}: {one_line(error)})") from None


def _model(learner: dict[str, Any]) -> dict[str, Any]:
    booster = learner["gradient_booster"]
    model: dict[str, Any] = booster.get("gbtree", booster)["model"]
    return model


def _categories(content: bytes) -> list[list[str]]:
    """Return the categories of each column that XGBoost remembers, none for numbers."""
    known = _model(json.loads(content)["learner"]).get("cats", {}).get("enc", [])
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
