"""LightGBM: its files, checked number by number, the columns of its boosters, and their trees."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from neuronfair.domain.cells import canonical_number
from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError, one_line, require
from neuronfair.limits import TEXT_FACTOR, check_size
from neuronfair.model.forest import FittedTrees, Floats, Link, Tree
from neuronfair.model.formats import ModelFile
from neuronfair.model.open.frames import TreeColumns, cells_of
from neuronfair.model.open.opened import MAX_TRIAL_ROWS
from neuronfair.model.open.trees.xgboost import SCORE_SIZE, check_offsets, check_places
from neuronfair.sandbox import Unreadable, read_sandboxed

_PLACE = re.compile(r"Column_\d+")  # LightGBM's name of a column without a name
_KINDS = (str, int, float, bool)


def read(file: ModelFile) -> tuple[Any, str]:
    """Return the booster that LightGBM has saved as text."""
    lightgbm = require("lightgbm", "lightgbm")
    if not file.content.startswith((b"tree\n", b"tree\r\n")):
        raise file.error("not a LightGBM model: it does not begin with the line 'tree'. Other text is no model")
    check_size(len(file.content), file.source, times=TEXT_FACTOR)
    try:
        _checked(file.content.decode(), file.source)  # first, since LightGBM would loop for ever
        text = read_sandboxed("lightgbm", file.content, file.source).decode()
        trees, rest = _checked(text, file.source)
        categories = _categories(rest)
    except (Unreadable, ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise file.error(f"not a readable LightGBM model ({one_line(error)})") from None
    # Without the parameters of the training, which name files and machines, and the lengths of the trees.
    booster = lightgbm.Booster(model_str=f"{trees}\nend of trees\n\npandas_categorical:{json.dumps(categories)}\n")
    booster.categorical_places = categorical_places(rest)
    return booster, ""


def columns_of(model: Any, domain: TableDomain) -> TreeColumns:
    """Return the columns that a model was trained on."""
    booster = getattr(model, "booster_", model)
    names, known = tuple(booster.feature_name()), booster.pandas_categorical or []
    places = getattr(booster, "categorical_places", None)
    places = categorical_places(booster.model_to_string(num_iteration=1)) if places is None else places
    if len(places) != len(known):  # some are numbers, or have an order, which LightGBM reads as numbers
        places = _matching(names, known, domain)
    typed = {names[place]: values for place, values in zip(places, known, strict=True) if place < len(names)}
    return TreeColumns(names, typed, named=not all(map(_PLACE.fullmatch, names)))


def entries(text: str) -> dict[str, str]:
    """Return the lines of a part of a LightGBM model: names and values."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def categorical_places(text: str) -> list[int]:
    """Return the positions of categorical columns, by the parameters in the text of a LightGBM model.

    >>> categorical_places("parameters:\\n[categorical_feature: 1,3]\\n")
    [1, 3]
    """
    found = re.search(r"^\[categorical_feature: ([\d,]*)\]", text, re.MULTILINE)
    return [int(place) for place in found[1].split(",") if place] if found else []


def _matching(names: Sequence[str], known: Sequence[Sequence[Any]], domain: TableDomain) -> list[int]:
    """Return for each list of categories the next column that has values among them."""
    own = {name.replace(" ", "_"): attribute for name, attribute in zip(domain.names, domain.attributes, strict=True)}
    places, left = [], list(enumerate(names))
    for values in known:
        wanted = {canonical_number(value) for value in values}
        while left:
            place, name = left.pop(0)
            attribute = own.get(name.replace(" ", "_"))
            cells = [] if attribute is None else cells_of(attribute, values).values()
            if not wanted.isdisjoint(map(canonical_number, cells)):
                places.append(place)
                break
        else:
            places.append(len(names))  # of a column that the domain does not have, which is refused later
    return places


def _categories(text: str) -> list[list[Any]]:
    """Return the lists of categories of a table of pandas."""
    found = re.search(r"^pandas_categorical:(.*)$", text, re.MULTILINE)
    known = (json.loads(found[1]) if found else None) or []
    for values in known:
        if not values or not all(isinstance(value, _KINDS) for value in values):
            raise ValueError("its categories are no texts or numbers")
        if len({canonical_number(value) for value in values}) < len(values):
            raise ValueError("a category comes twice")
    return list(known)


# LightGBM trusts its file: it reads a node that does not exist beyond its array, and follows a cycle for ever.
def _checked(text: str, source: str) -> tuple[str, str]:
    """Return head and trees of a model without their lengths, and the rest; refuse any number out of range."""
    model, _, rest = text.partition("\nend of trees\n")
    head, *trees = re.split(r"^Tree=\d+$", model, flags=re.MULTILINE)
    known = entries(head)
    columns = int(known["max_feature_idx"]) + 1
    names = known["feature_names"].split(" ")
    if not 1 <= columns == len(names) == len(set(names)):
        raise ValueError("its columns do not have one name each")
    answers, rounds = int(known["num_class"]), int(known["num_tree_per_iteration"])
    if answers < 1 or rounds < 1 or len(trees) % rounds or rounds not in (answers, 1):
        raise ValueError("it does not have as many trees for each class")
    check_size(answers * MAX_TRIAL_ROWS, f"{source}: its answers", times=SCORE_SIZE)
    for tree in trees:
        _check_tree(entries(tree), columns)
    return re.sub(r"^tree_sizes=.*\n", "", model, flags=re.MULTILINE), rest


def _check_tree(tree: dict[str, str], columns: int) -> None:
    """Refuse a tree with cycles, or with branches, columns or categories that do not exist."""
    leaves, kinds = int(tree["num_leaves"]), int(tree.get("num_cat", 0))
    lengths = [len(tree["leaf_value"].split())]
    if tree.get("is_linear", "0") != "0":
        counts, used = _numbers(tree, "num_features"), _numbers(tree, "leaf_features")
        lengths += [len(counts), len(tree["leaf_const"].split())]
        if (counts < 0).any() or counts.sum() != len(used) or len(tree["leaf_coeff"].split()) != len(used):
            raise ValueError("a leaf asks for columns that do not exist")
        check_places("a leaf asks for a column", used, columns)
    if leaves < 1 or set(lengths) != {leaves}:
        raise ValueError("a tree does not have the leaves it counts")
    if leaves == 1:
        return
    left, right, features, kind = (
        _numbers(tree, n) for n in ("left_child", "right_child", "split_feature", "decision_type")
    )
    threshold = np.array(tree["threshold"].split(), dtype=np.float64)
    if {len(part) for part in (left, right, features, kind, threshold)} != {leaves - 1}:
        raise ValueError("a tree does not have the branches it counts")
    check_places("a tree asks for a column", features, columns)
    place = np.arange(leaves - 1)
    for branch in (left, right):  # a branch below 0 ends in a leaf, the first at -1
        if ((branch >= 0) & ((branch <= place) | (branch >= leaves - 1))).any() or (branch < -leaves).any():
            raise ValueError("a branch of a tree leads nowhere")
    sets = threshold[kind % 2 == 1]
    check_places("a tree tells categories", sets, kinds)
    if kinds:
        bounds, bits = _numbers(tree, "cat_boundaries"), _numbers(tree, "cat_threshold")
        if len(bounds) != kinds + 1:
            raise ValueError("the categories of a tree are not cut where they end")
        check_offsets("the categories of a tree", bounds, len(bits))


def _numbers(tree: dict[str, str], name: str, kind: type = np.int64) -> npt.NDArray[Any]:
    return np.array(tree.get(name, "").split(), dtype=kind)


def trees_of(model: Any) -> FittedTrees:
    """Return the trees of LightGBM from what it writes as text; its JSON is as deep as its trees."""
    head, *trees = re.split(r"^Tree=\d+$", getattr(model, "booster_", model).model_to_string(), flags=re.MULTILINE)
    known = entries(head)
    outputs = int(known["num_tree_per_iteration"])
    links: dict[str, Link] = {"binary": "sigmoid", "multiclass": "softmax"}
    link = links.get(known.get("objective", "").split(" ")[0], "none")
    grown = [_tree(entries(text), number % outputs, outputs) for number, text in enumerate(trees)]
    return FittedTrees(grown, [0.0] * outputs, link)


def _tree(tree: dict[str, str], output: int, outputs: int) -> Tree:
    """Return a tree: its inner nodes, then its leaves, which are -1, -2, … in the text."""
    if tree.get("is_linear", "0") != "0":
        raise ModelError("its leaves are linear models")
    leaves = np.array(tree["leaf_value"].split(), dtype=np.float64)
    inner = len(leaves) - 1
    numbers = partial(_numbers, tree if inner else {})
    ends = np.full(len(leaves), -1)
    ways = [np.where(way < 0, inner - way - 1, way) for way in (numbers("left_child"), numbers("right_child"))]
    value = np.zeros((inner + len(leaves), outputs))
    value[inner:, output] = leaves
    kinds, limits = numbers("decision_type"), numbers("threshold", np.float64)
    bounds, bits = numbers("cat_boundaries"), numbers("cat_threshold", np.uint32)

    def goes_left(node: int, numbers: Floats) -> npt.NDArray[np.bool_]:
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

    left, right = (np.concatenate([way, ends]) for way in ways)
    return Tree(np.concatenate([numbers("split_feature"), ends]), left, right, value, goes_left)
