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
from neuronfair.model.open.trees.xgboost import BYTES_PER_SCORE, check_indices, check_offsets
from neuronfair.sandbox import UnreadableError, read_sandboxed

_UNNAMED_COLUMN = re.compile(r"Column_\d+")  # LightGBM's name of a column without a name
_CATEGORY_TYPES = (str, int, float, bool)


def read(file: ModelFile) -> tuple[Any, str]:
    """Return the booster that LightGBM has saved as text."""
    lightgbm = require("lightgbm", "lightgbm")
    if not file.content.startswith((b"tree\n", b"tree\r\n")):
        raise file.error("not a LightGBM model: it does not begin with the line 'tree'. Other text is no model")
    check_size(len(file.content), file.source, times=TEXT_FACTOR)
    try:
        _check_text(file.content.decode(), file.source)  # first, since LightGBM would loop for ever
        text = read_sandboxed("lightgbm", file.content, file.source).decode()
        trees, footer = _check_text(text, file.source)
        categories = _parse_categories(footer)
    except (UnreadableError, ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise file.error(f"not a readable LightGBM model ({one_line(error)})") from None
    # Without the parameters of the training, which name files and machines, and the lengths of the trees.
    booster = lightgbm.Booster(model_str=f"{trees}\nend of trees\n\npandas_categorical:{json.dumps(categories)}\n")
    booster.categorical_columns = find_categorical_columns(footer)
    return booster, ""


def list_columns(model: Any, domain: TableDomain) -> TreeColumns:
    """Return the columns that a model was trained on."""
    booster = getattr(model, "booster_", model)
    names, category_lists = tuple(booster.feature_name()), booster.pandas_categorical or []
    indices = getattr(booster, "categorical_columns", None)
    indices = find_categorical_columns(booster.model_to_string(num_iteration=1)) if indices is None else indices
    if len(indices) != len(category_lists):  # some are numbers, or have an order, which LightGBM reads as numbers
        indices = _match_categories(names, category_lists, domain)
    typed = {names[index]: values for index, values in zip(indices, category_lists, strict=True) if index < len(names)}
    return TreeColumns(names, typed, has_names=not all(map(_UNNAMED_COLUMN.fullmatch, names)))


def parse_entries(text: str) -> dict[str, str]:
    """Return the lines of a part of a LightGBM model: names and values."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def find_categorical_columns(text: str) -> list[int]:
    """Return the positions of categorical columns, by the parameters in the text of a LightGBM model.

    >>> find_categorical_columns("parameters:\\n[categorical_feature: 1,3]\\n")
    [1, 3]
    """
    match = re.search(r"^\[categorical_feature: ([\d,]*)\]", text, re.MULTILINE)
    return [int(index) for index in match[1].split(",") if index] if match else []


def _match_categories(names: Sequence[str], category_lists: Sequence[Sequence[Any]], domain: TableDomain) -> list[int]:
    """Return for each list of categories the next column that has values among them."""
    attributes = {attribute.name.replace(" ", "_"): attribute for attribute in domain.attributes}
    indices, remaining = [], list(enumerate(names))
    for values in category_lists:
        category_numbers = {canonical_number(value) for value in values}
        while remaining:
            index, name = remaining.pop(0)
            attribute = attributes.get(name.replace(" ", "_"))
            cells = [] if attribute is None else cells_of(attribute, values).values()
            if not category_numbers.isdisjoint(map(canonical_number, cells)):
                indices.append(index)
                break
        else:
            indices.append(len(names))  # of a column that the domain does not have, which is refused later
    return indices


def _parse_categories(text: str) -> list[list[Any]]:
    """Return the lists of categories of a table of pandas."""
    match = re.search(r"^pandas_categorical:(.*)$", text, re.MULTILINE)
    category_lists = (json.loads(match[1]) if match else None) or []
    for values in category_lists:
        if not values or not all(isinstance(value, _CATEGORY_TYPES) for value in values):
            raise ValueError("its categories are no texts or numbers")
        if len({canonical_number(value) for value in values}) < len(values):
            raise ValueError("a category comes twice")
    return list(category_lists)


# LightGBM trusts its file: it reads a node that does not exist beyond its array, and follows a cycle for ever.
def _check_text(text: str, source: str) -> tuple[str, str]:
    """Return head and trees of a model without their lengths, and the rest; refuse any number out of range."""
    model, _, footer = text.partition("\nend of trees\n")
    head, *trees = re.split(r"^Tree=\d+$", model, flags=re.MULTILINE)
    header = parse_entries(head)
    columns = int(header["max_feature_idx"]) + 1
    names = header["feature_names"].split(" ")
    if not 1 <= columns == len(names) == len(set(names)):
        raise ValueError("its columns do not have one name each")
    classes, rounds = int(header["num_class"]), int(header["num_tree_per_iteration"])
    if classes < 1 or rounds < 1 or len(trees) % rounds or rounds not in (classes, 1):
        raise ValueError("it does not have as many trees for each class")
    check_size(classes * MAX_TRIAL_ROWS, f"{source}: its answers", times=BYTES_PER_SCORE)
    for tree in trees:
        _check_tree(parse_entries(tree), columns)
    return re.sub(r"^tree_sizes=.*\n", "", model, flags=re.MULTILINE), footer


def _check_tree(tree: dict[str, str], columns: int) -> None:
    """Refuse a tree with cycles, or with branches, columns or categories that do not exist."""
    leaves, category_sets = int(tree["num_leaves"]), int(tree.get("num_cat", 0))
    lengths = [len(tree["leaf_value"].split())]
    if tree.get("is_linear", "0") != "0":
        counts, used = _parse_numbers(tree, "num_features"), _parse_numbers(tree, "leaf_features")
        lengths += [len(counts), len(tree["leaf_const"].split())]
        if (counts < 0).any() or counts.sum() != len(used) or len(tree["leaf_coeff"].split()) != len(used):
            raise ValueError("a leaf asks for columns that do not exist")
        check_indices("a leaf asks for a column", used, columns)
    if leaves < 1 or set(lengths) != {leaves}:
        raise ValueError("a tree does not have the leaves it counts")
    if leaves == 1:
        return
    left, right, features, kind = (
        _parse_numbers(tree, n) for n in ("left_child", "right_child", "split_feature", "decision_type")
    )
    threshold = np.array(tree["threshold"].split(), dtype=np.float64)
    if {len(part) for part in (left, right, features, kind, threshold)} != {leaves - 1}:
        raise ValueError("a tree does not have the branches it counts")
    check_indices("a tree asks for a column", features, columns)
    node_index = np.arange(leaves - 1)
    for branch in (left, right):  # a branch below 0 ends in a leaf, the first at -1
        if ((branch >= 0) & ((branch <= node_index) | (branch >= leaves - 1))).any() or (branch < -leaves).any():
            raise ValueError("a branch of a tree leads nowhere")
    sets = threshold[kind % 2 == 1]
    check_indices("a tree tells categories", sets, category_sets)
    if category_sets:
        bounds, bits = _parse_numbers(tree, "cat_boundaries"), _parse_numbers(tree, "cat_threshold")
        if len(bounds) != category_sets + 1:
            raise ValueError("the categories of a tree are not cut where they end")
        check_offsets("the categories of a tree", bounds, len(bits))


def _parse_numbers(tree: dict[str, str], name: str, kind: type = np.int64) -> npt.NDArray[Any]:
    return np.array(tree.get(name, "").split(), dtype=kind)


def extract_trees(model: Any) -> FittedTrees:
    """Return the trees of LightGBM from what it writes as text; its JSON is as deep as its trees."""
    head, *tree_texts = re.split(r"^Tree=\d+$", getattr(model, "booster_", model).model_to_string(), flags=re.MULTILINE)
    header = parse_entries(head)
    outputs = int(header["num_tree_per_iteration"])
    links: dict[str, Link] = {"binary": "sigmoid", "multiclass": "softmax"}
    link = links.get(header.get("objective", "").split(" ")[0], "none")
    trees = [_parse_tree(parse_entries(text), number % outputs, outputs) for number, text in enumerate(tree_texts)]
    return FittedTrees(trees, [0.0] * outputs, link)


def _parse_tree(tree: dict[str, str], output: int, outputs: int) -> Tree:
    """Return a tree: its inner nodes, then its leaves, which are -1, -2, … in the text."""
    if tree.get("is_linear", "0") != "0":
        raise ModelError("its leaves are linear models")
    leaves = np.array(tree["leaf_value"].split(), dtype=np.float64)
    inner = len(leaves) - 1
    numbers = partial(_parse_numbers, tree if inner else {})
    ends = np.full(len(leaves), -1)
    children = [np.where(side < 0, inner - side - 1, side) for side in (numbers("left_child"), numbers("right_child"))]
    value = np.zeros((inner + len(leaves), outputs))
    value[inner:, output] = leaves
    kinds, limits = numbers("decision_type"), numbers("threshold", np.float64)
    bounds, bits = numbers("cat_boundaries"), numbers("cat_threshold", np.uint32)

    def goes_left(node: int, values: Floats) -> npt.NDArray[np.bool_]:
        kind, empty = int(kinds[node]), np.isnan(values)
        if kind & 1:  # a set of categories goes left, as bits
            words = bits[bounds[int(limits[node])] : bounds[int(limits[node]) + 1]]
            bit_index = np.where(empty | (values < 0), 32 * len(words), values).astype(np.int64)
            is_listed = bit_index < 32 * len(words)
            bit = words[np.where(is_listed, bit_index // 32, 0)] >> (bit_index % 32).astype(np.uint32) & 1
            return np.asarray(is_listed & (bit == 1), dtype=bool)
        plain = np.where(empty, 0.0, values) <= limits[node]
        missing = kind >> 2 & 3  # none, zero, NaN
        strays = {0: np.zeros_like(empty), 1: empty | (np.abs(values) <= 1e-35), 2: empty}[missing]
        return np.asarray(np.where(strays, bool(kind & 2), plain), dtype=bool)

    left, right = (np.concatenate([side, ends]) for side in children)
    return Tree(np.concatenate([numbers("split_feature"), ends]), left, right, value, goes_left)
