"""LightGBM model files (.txt): black boxes that are given the columns they were trained on."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from neuronfair.errors import needs, one_line
from neuronfair.limits import TEXT, check_size
from neuronfair.model.open.frames import spelling
from neuronfair.model.open.request import TRIED, ModelFile, Opened, Request
from neuronfair.model.open.sklearn import estimators
from neuronfair.model.open.trees.columns import PLACE, categorical_places, entries
from neuronfair.sandbox import Unreadable, read_apart

_ANSWER = 80  # bytes that opening a model takes for one score of one row that it is tried on
HEAD = 1 << 20  # bytes of a file that come before its trees, at most
_KINDS = (str, int, float, bool)


def open(request: Request) -> Opened:  # noqa: A001 - each reader has a function of this name
    """Read trees that LightGBM has saved as text."""
    lightgbm = needs("lightgbm", "lightgbm")
    if not request.content.startswith((b"tree\n", b"tree\r\n")):
        raise request.error("not a LightGBM model: it does not begin with the line 'tree'. Other text is no model")
    check_size(len(request.content), request.source, times=TEXT)
    try:
        _checked(request.content.decode(), request.source)  # first: LightGBM would walk in circles
        text = read_apart("read_lightgbm", request.content, request.source).decode()
        trees, rest = _checked(text, request.source)
        categories = _categories(rest)
    except (Unreadable, ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise request.error(f"not a readable LightGBM model ({one_line(error)})") from None
    # Without the parameters of the training, which name files and machines, and the lengths of the trees.
    booster = lightgbm.Booster(model_str=f"{trees}\nend of trees\n\npandas_categorical:{json.dumps(categories)}\n")
    booster.categorical_places = categorical_places(rest)
    return estimators.open_estimator(request, booster, request.digest)


def names(file: ModelFile) -> list[str] | None:
    """Return the names of the columns that the trees were trained on, unless LightGBM has made them up."""
    found = re.search(rb"^feature_names=(.*)$", file.content[:HEAD], re.MULTILINE)
    known = found[1].decode(errors="replace").split() if found else []
    return known if not all(map(PLACE.fullmatch, known)) else None


def _categories(text: str) -> list[list[Any]]:
    """Return the lists of categories of a table of pandas."""
    found = re.search(r"^pandas_categorical:(.*)$", text, re.MULTILINE)
    known = (json.loads(found[1]) if found else None) or []
    for values in known:
        if not values or not all(isinstance(value, _KINDS) for value in values):
            raise ValueError("its categories are no texts or numbers")
        if len({spelling(value) for value in values}) < len(values):
            raise ValueError("a category comes twice")
    return list(known)


# LightGBM believes its file: a node that does not exist is read in foreign memory, and a way back has no end.
def _checked(text: str, source: str) -> tuple[str, str]:
    """Return head and trees of a model without their lengths, and the rest, after a look at every number."""
    model, _, rest = text.partition("\nend of trees\n")
    head, *trees = re.split(r"^Tree=\d+$", model, flags=re.MULTILINE)
    said = entries(head)
    columns = int(said["max_feature_idx"]) + 1
    names = said["feature_names"].split(" ")
    if not 1 <= columns == len(names) == len(set(names)):
        raise ValueError("its columns do not have one name each")
    answers, rounds = int(said["num_class"]), int(said["num_tree_per_iteration"])
    if answers < 1 or rounds < 1 or len(trees) % rounds or rounds not in (answers, 1):
        raise ValueError("it does not have as many trees for each class")
    check_size(answers * TRIED, f"{source}: its answers", times=_ANSWER)
    for tree in trees:
        _check_tree(entries(tree), columns)
    return re.sub(r"^tree_sizes=.*\n", "", model, flags=re.MULTILINE), rest


def _check_tree(tree: dict[str, str], columns: int) -> None:
    """Refuse a tree whose branches lead nowhere or back, or that asks for what does not exist."""
    leaves, kinds = int(tree["num_leaves"]), int(tree.get("num_cat", 0))
    lengths = [len(tree["leaf_value"].split())]
    if tree.get("is_linear", "0") != "0":
        counts, used = _numbers(tree, "num_features"), _numbers(tree, "leaf_features")
        lengths += [len(counts), len(tree["leaf_const"].split())]
        if (counts < 0).any() or counts.sum() != len(used) or len(tree["leaf_coeff"].split()) != len(used):
            raise ValueError("a leaf asks for columns that do not exist")
        _check_places("a leaf asks for a column", used, columns)
    if leaves < 1 or set(lengths) != {leaves}:
        raise ValueError("a tree does not have the leaves it counts")
    if leaves == 1:
        return
    left, right, asked, kind = (
        _numbers(tree, n) for n in ("left_child", "right_child", "split_feature", "decision_type")
    )
    threshold = np.array(tree["threshold"].split(), dtype=np.float64)
    if {len(part) for part in (left, right, asked, kind, threshold)} != {leaves - 1}:
        raise ValueError("a tree does not have the branches it counts")
    _check_places("a tree asks for a column", asked, columns)
    place = np.arange(leaves - 1)
    for branch in (left, right):  # a branch below 0 is the end in a leaf: -1 in the first
        if ((branch >= 0) & ((branch <= place) | (branch >= leaves - 1))).any() or (branch < -leaves).any():
            raise ValueError("a branch of a tree leads nowhere")
    sets = threshold[kind % 2 == 1]
    _check_places("a tree tells categories", sets, kinds)
    if kinds:
        bounds, bits = _numbers(tree, "cat_boundaries"), _numbers(tree, "cat_threshold")
        if len(bounds) != kinds + 1 or bounds[0] != 0 or bounds[-1] != len(bits) or (np.diff(bounds) < 0).any():
            raise ValueError("the categories of a tree are not cut where they end")


def _numbers(tree: dict[str, str], name: str) -> np.ndarray:
    return np.array(tree.get(name, "").split(), dtype=np.int64)


def _check_places(what: str, places: np.ndarray, count: int) -> None:
    if not ((places >= 0) & (places < count)).all():
        raise ValueError(f"{what} that does not exist")
