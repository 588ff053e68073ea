"""The columns of a table that a model reads, by the names that it has for its inputs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn

from neuronfair.errors import ModelError, did_you_mean

# Attributes with the names of inputs: of scikit-learn and XGBoost, LightGBM, CatBoost, and of boosters.
_NAMES = ("feature_names_in_", "feature_name_", "feature_names_", "feature_names", "feature_name")
CONSTANTS = ("const", "Intercept")  # what statsmodels calls a column of ones
# The attribute with the fitted model that reads the rows, or with several of them.
WRAPPERS = {
    "FixedThresholdClassifier": "estimator_",
    "TunedThresholdClassifierCV": "estimator_",
    "FrozenEstimator": "estimator",
    "TransformedTargetRegressor": "regressor_",
    "CalibratedClassifierCV": "calibrated_classifiers_",
    "_CalibratedClassifier": "estimator",
    "VotingClassifier": "estimators_",
    "VotingRegressor": "estimators_",
    "StackingClassifier": "estimators_",
    "StackingRegressor": "estimators_",
    "ThresholdOptimizer": "estimator_",  # of Fairlearn, as the next two
    "ExponentiatedGradient": "predictors_",
    "GridSearch": "predictors_",
}


def matched_columns(
    model: Any, names: Sequence[str] | None, known: Sequence[str], place: Literal["table", "domain"] = "table"
) -> tuple[str, ...] | None:
    """Return the columns that the names of a model's inputs refer to; None if none of them is known.

    An indicator of one value, such as 'sex_Male', refers to its column. A model that reads some of these columns and
    an unknown one is refused.

    >>> matched_columns("model.ubj", ["age", "sex_Male", "sex_Female"], ["id", "age", "sex"])
    ('age', 'sex')
    """
    spelled = {"_".join(column.split()): column for column in known}  # LightGBM writes _ for a blank
    spelled |= {column: column for column in known}
    found = {name: next((spelled[part] for part in _beginnings(name) if part in spelled), None) for name in names or ()}
    missing = [name for name, column in found.items() if column is None]
    if len(missing) == len(found):
        return None
    if missing:
        remedy = "Add it to the domain file. " if place == "domain" else ""
        raise ModelError(
            f"{source_of(model)}: reads a column '{missing[0]}', which the {place} does not have. {remedy}"
            f"{did_you_mean(missing[0], known)}"
        )
    return tuple(dict.fromkeys(column for column in found.values() if column is not None))


def source_of(model: Any) -> str:
    """Return the name of a model in an error: its file, or its type."""
    return str(model) if isinstance(model, (str, Path)) else getattr(model, "__qualname__", type(model).__name__)


def _beginnings(name: str) -> Iterator[str]:
    """Yield a name, and its part before each _, the longest first."""
    while name:
        yield name
        name = name.rpartition("_")[0]


def input_names(model: Any) -> list[str] | None:
    """Return the names of the columns that a fitted model reads, also inside pipelines and wrappers."""
    if type(model).__module__.partition(".")[0] == "keras":
        return single_columns((tensor.name, tensor.shape[1:]) for tensor in _attribute(model, "inputs") or ())
    if isinstance(model, nn.Module):
        return None
    if inspect.ismethod(model):
        return input_names(model.__self__)
    if _attribute(model, "transformers_") is not None:
        return _transformed(model)
    for parts in _parts(model):
        every = [names for names in map(input_names, parts) if names is not None]
        if every and len(every) == len(parts):  # the longest list is in the right order
            return list(dict.fromkeys(name for names in sorted(every, key=len, reverse=True) for name in names))
    exogenous = _attribute(_attribute(model, "model"), "exog_names")
    if exogenous is not None and not hasattr(model.model, "formula"):  # of statsmodels
        return [name for name in exogenous if name not in CONSTANTS]
    for name in _NAMES:
        stated = _attribute(model, name)
        stated = stated() if name == "feature_name" and callable(stated) else stated  # a method of LightGBM's Booster
        words = list(stated) if isinstance(stated, (list, tuple, np.ndarray)) else []
        if words and all(isinstance(word, str) for word in words):
            return None if _numbered(words) else list(map(str, words))
    return None


def single_columns(inputs: Iterable[tuple[str, Sequence[int | None]]]) -> list[str] | None:
    """Return the names of the inputs of a graph, given by name and shape, if each is a single number."""
    known = list(inputs)
    single = all(size in (1, None) for _, shape in known for size in shape) and all(len(s) < 2 for _, s in known)
    return [name for name, _ in known] if len(known) > 1 and single else None


def selected_columns(names: Sequence[str], chosen: Any) -> list[str]:
    """Return the columns that a ColumnTransformer selects: by name, position, mask or slice."""
    if isinstance(chosen, str):
        return [chosen]
    if isinstance(chosen, slice) and any(isinstance(end, str) for end in (chosen.start, chosen.stop)):
        start = None if chosen.start is None else list(names).index(chosen.start)
        chosen = slice(start, None if chosen.stop is None else list(names).index(chosen.stop) + 1)
    if not isinstance(chosen, slice) and all(isinstance(name, str) for name in chosen):
        return list(chosen)
    return [str(name) for name in np.asarray(names, dtype=object)[chosen]]


def _transformed(transformer: Any) -> list[str] | None:
    """Return the columns that a ColumnTransformer reads: those that it does not drop."""
    names = _attribute(transformer, "feature_names_in_")
    if names is None:
        return None
    steps = [(step, chosen) for _, step, chosen in transformer.transformers_]
    read = {name for step, chosen in steps if not _drops(step) for name in selected_columns(names, chosen)}
    return [str(name) for name in names if name in read]


def _drops(step: Any) -> bool:
    return isinstance(step, str) and step == "drop"


def _parts(model: Any) -> Iterator[list[Any]]:
    """Yield the parts of a model that read the rows: the first step of a pipeline, the models in a wrapper."""
    steps = [step for _, step in _attribute(model, "steps") or () if step not in (None, "passthrough")]
    yield steps[:1]
    for place in ("best_estimator_", *filter(None, [WRAPPERS.get(type(model).__name__)])):
        part = _attribute(model, place)
        if part is not None and _attribute(model, "passthrough") is not True:  # else the last model gets all columns
            yield list(part) if isinstance(part, list) or hasattr(part, "iloc") else [part]


def _attribute(model: Any, what: str) -> Any:
    try:
        return getattr(model, what, None)
    except Exception:  # one that is not fitted
        return None


def _numbered(names: list[str]) -> bool:
    """Return whether LightGBM or CatBoost has numbered the columns, because they had no names."""
    return any(names == [f"{word}{i}" for i in range(len(names))] for word in ("Column_", ""))
