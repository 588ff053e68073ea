"""CatBoost: its files, the columns of its models, and their trees, which it writes as JSON."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError, one_line, require
from neuronfair.model.forest import FittedTrees, Floats, Link, Tree
from neuronfair.model.formats import ModelFile
from neuronfair.model.open.frames import TreeColumns
from neuronfair.sandbox import UnreadableError, read_sandboxed

LINKS: dict[str, Link] = {
    "Logloss": "sigmoid",
    "CrossEntropy": "sigmoid",
    "MultiClass": "softmax",
    "MultiClassOneVsAll": "sigmoid",
}
TreesJson = Any  # a part of what CatBoost writes


def read(file: ModelFile) -> tuple[Any, str]:
    """Return the classifier or regressor in a file, after CatBoost has rewritten it in a sandbox."""
    catboost = require("catboost", "catboost")
    if not file.content.startswith(b"CBM1"):
        raise file.error("not a CatBoost model: it does not begin with 'CBM1'")
    try:
        content = read_sandboxed("catboost", file.content, file.source)
        model = catboost.CatBoost().load_model(blob=content)
    except (UnreadableError, catboost.CatBoostError) as error:
        raise file.error(f"not a readable CatBoost model ({one_line(error)})") from None
    kind = catboost.CatBoostClassifier if len(model.classes_) else catboost.CatBoostRegressor
    return kind().load_model(blob=content), ""


def list_columns(model: Any, domain: TableDomain) -> TreeColumns:
    """Return the columns that a model was trained on."""
    names = tuple(model.feature_names_)
    categories = dict.fromkeys(names[index] for index in model.get_cat_feature_indices())
    return TreeColumns(names, categories, has_names=names != tuple(map(str, range(len(names)))))


def extract_trees(model: Any) -> FittedTrees:
    """Return the trees of CatBoost, in which a category is the hash of its text (`CategoryHashes`)."""
    written = _write_json(model)
    try:
        return _parse_trees(written)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise ModelError(
            f"the JSON that CatBoost writes of its trees is unknown ({type(error).__name__}: {one_line(error)})"
        ) from error


def _parse_trees(document: TreesJson) -> FittedTrees:
    columns = {
        split: [feature["flat_feature_index"] for feature in document["features_info"].get(kind, [])]
        for split, kind in (("FloatFeature", "float_features"), ("OneHotFeature", "categorical_features"))
    }
    empty = {  # the columns whose empty cells count as larger than every number
        feature["flat_feature_index"]
        for feature in document["features_info"].get("float_features", [])
        if feature["nan_value_treatment"] == "AsTrue"
    }
    scale, base = document["scale_and_bias"]
    bases = np.atleast_1d(np.array(base, dtype=np.float64))
    grown = [_grow_oblivious(tree, len(bases)) for tree in document.get("oblivious_trees", [])]
    grown = grown or document.get("trees", [])
    trees = [_parse_tree(tree, columns, empty, scale, len(bases)) for tree in grown]
    loss = document["model_info"]["params"]["loss_function"]["type"]
    return FittedTrees(trees, bases.tolist(), LINKS.get(loss, "none"))


class CategoryHashes:
    """Encodes a table as CatBoost does: a category becomes its hash, which CatBoost writes when it saves a model."""

    def __init__(self, model: Any) -> None:
        self._model, self._hashes = model, dict[str, float]()

    def transform(self, table: Any) -> Floats:
        """Return the cells of a table as numbers."""
        kinds = set(self._model.get_cat_feature_indices())
        cells = np.asarray(table, dtype=object)
        texts = {str(text) for column in kinds for text in cells[:, column]}
        if not texts <= self._hashes.keys():
            pool = require("catboost", "catboost").Pool(table, cat_features=sorted(kinds))
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.json"
                self._model.save_model(str(path), format="json", pool=pool)
                entries = json.loads(path.read_bytes())["features_info"]["cat_features_hash"]
            self._hashes |= {entry["value"]: float(entry["hash"]) for entry in entries}
        numbers = np.empty(cells.shape)
        for column in range(cells.shape[1]):
            values = [self._hashes[str(cell)] for cell in cells[:, column]] if column in kinds else cells[:, column]
            numbers[:, column] = np.asarray(values, dtype=np.float64)
        return numbers


def _write_json(model: Any) -> TreesJson:
    """Return a model as JSON, written in a sandbox, since a damaged model can end the process."""
    try:
        content: TreesJson = json.loads(
            read_sandboxed("catboost trees", bytes(model._serialize_model()), "a CatBoost model")
        )
    except (UnreadableError, ValueError, RecursionError) as error:  # a name that is not UTF-8 is a ValueError
        raise ModelError(f"CatBoost cannot write its trees, so it is damaged ({one_line(error)})") from None
    return content


def _grow_oblivious(tree: TreesJson, outputs: int) -> TreesJson:
    """Return a tree with one split per level as nodes; the first split is the last bit of a leaf's index."""
    values = np.array(tree["leaf_values"], dtype=np.float64).reshape(-1, outputs)
    nodes: list[TreesJson] = [{"value": value} for value in values]
    for split in tree["splits"]:
        nodes = [{"split": split, "left": a, "right": b} for a, b in zip(nodes[::2], nodes[1::2], strict=True)]
    return nodes[0]


def _parse_tree(tree: TreesJson, columns: dict[str, list[int]], empty: set[int], scale: float, outputs: int) -> Tree:
    nodes, ways = [tree], list[tuple[int, int]]()
    for node in nodes:  # the list grows
        ways.append((len(nodes), len(nodes) + 1) if "split" in node else (0, 0))
        nodes += [node["left"], node["right"]] if "split" in node else []
    splits = [node.get("split") for node in nodes]
    other = next((split["split_type"] for split in splits if split and split["split_type"] not in columns), None)
    if other is not None:
        raise ModelError(
            "its trees compare statistics of its categories and not the categories themselves. "
            "Train it with one_hot_max_size as large as the longest list of categories"
        )
    feature = np.full(len(nodes), -1)
    value = np.zeros((len(nodes), outputs))

    def goes_left(node: int, values: Floats) -> npt.NDArray[np.bool_]:
        split = splits[node]
        assert split is not None
        if split["split_type"] == "OneHotFeature":
            return np.asarray(values != split["value"] % 2**32, dtype=bool)
        above = values.astype(np.float32) > np.float32(split["border"])
        return ~np.where(np.isnan(values), int(feature[node]) in empty, above)

    for index, (node, split) in enumerate(zip(nodes, splits, strict=True)):
        if split is None:
            value[index] = scale * np.asarray(node["value"])
        else:
            number = split.get("float_feature_index", split.get("cat_feature_index"))
            feature[index] = columns[split["split_type"]][number]
    left, right = np.array(ways).T
    return Tree(feature, left, right, value, goes_left)
