"""The names that a model states of its inputs and classes, matched with those of a table or domain."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn

from neuronfair.domain.cells import canonical_number, cell_text, size_sort_key
from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError, did_you_mean

# Attributes with the names of inputs: of scikit-learn and XGBoost, LightGBM, CatBoost, and of boosters.
_NAME_ATTRIBUTES = ("feature_names_in_", "feature_name_", "feature_names_", "feature_names", "feature_name")
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


EstimatorParts = tuple[list[Any], Any]  # the transformers of a pipeline, nested ones too, and its final estimator


def match_columns(
    model: Any, names: Sequence[str] | None, columns: Sequence[str], origin: Literal["table", "domain"] = "table"
) -> tuple[str, ...] | None:
    """Return the columns that the names of a model's inputs refer to; None if none of them is known.

    An indicator of one value, such as 'sex_Male', refers to its column. A model that reads some of these columns and
    an unknown one is refused.

    >>> match_columns("model.ubj", ["age", "sex_Male", "sex_Female"], ["id", "age", "sex"])
    ('age', 'sex')
    """
    spelled = {"_".join(column.split()): column for column in columns}  # LightGBM writes _ for a blank
    spelled |= {column: column for column in columns}
    prefixes = {name: _list_prefixes(name) for name in names or ()}
    column_of = {name: next(filter(None, map(spelled.get, parts)), None) for name, parts in prefixes.items()}
    missing = [name for name, column in column_of.items() if column is None]
    if len(missing) == len(column_of):
        return None
    if missing:
        remedy = "Add it to the domain file. " if origin == "domain" else ""
        raise ModelError(
            f"{source_of(model)}: reads a column '{missing[0]}', which the {origin} does not have. {remedy}"
            f"{did_you_mean(missing[0], columns)}"
        )
    return tuple(dict.fromkeys(column for column in column_of.values() if column is not None))


def source_of(model: Any) -> str:
    """Return the name of a model in an error: its file, or its type."""
    return str(model) if isinstance(model, (str, Path)) else getattr(model, "__qualname__", type(model).__name__)


def _list_prefixes(name: str) -> Iterator[str]:
    """Yield a name, and its part before each _, the longest first."""
    while name:
        yield name
        name = name.rpartition("_")[0]


def list_input_names(model: Any) -> list[str] | None:
    """Return the names of the columns that a fitted model reads, also inside pipelines and wrappers."""
    if type(model).__module__.partition(".")[0] == "keras":
        return list_single_columns((tensor.name, tensor.shape[1:]) for tensor in _get_attribute(model, "inputs") or ())
    if isinstance(model, nn.Module):
        return None
    if inspect.ismethod(model):
        return list_input_names(model.__self__)
    if _get_attribute(model, "transformers_") is not None:
        return _list_transformed_columns(model)
    for parts in _list_readers(model):
        lists = [names for names in map(list_input_names, parts) if names is not None]
        if lists and len(lists) == len(parts):  # the longest list is in the right order
            return list(dict.fromkeys(name for names in sorted(lists, key=len, reverse=True) for name in names))
    exogenous = _get_attribute(_get_attribute(model, "model"), "exog_names")
    if exogenous is not None and not hasattr(model.model, "formula"):  # of statsmodels
        return [name for name in exogenous if name not in CONSTANTS]
    for name in _NAME_ATTRIBUTES:
        stated = _get_attribute(model, name)
        stated = stated() if name == "feature_name" and callable(stated) else stated  # a method of LightGBM's Booster
        words = list(stated) if isinstance(stated, (list, tuple, np.ndarray)) else []
        if words and all(isinstance(word, str) for word in words):
            return None if _are_numbered(words) else list(map(str, words))
    return None


def list_single_columns(inputs: Iterable[tuple[str, Sequence[int | None]]]) -> list[str] | None:
    """Return the names of the inputs of a graph, given by name and shape, if each is a single number."""
    shapes = dict(inputs)
    single = all(len(shape) < 2 and set(shape) <= {1, None} for shape in shapes.values())
    return list(shapes) if len(shapes) > 1 and single else None


def list_selected_columns(names: Sequence[str], selection: Any) -> list[str]:
    """Return the columns that a ColumnTransformer selects: by name, position, mask or slice."""
    if isinstance(selection, str):
        return [selection]
    if isinstance(selection, slice) and any(isinstance(end, str) for end in (selection.start, selection.stop)):
        start = None if selection.start is None else list(names).index(selection.start)
        selection = slice(start, None if selection.stop is None else list(names).index(selection.stop) + 1)
    if not isinstance(selection, slice) and all(isinstance(name, str) for name in selection):
        return list(selection)
    return [str(name) for name in np.asarray(names, dtype=object)[selection]]


def _list_transformed_columns(transformer: Any) -> list[str] | None:
    """Return the columns that a ColumnTransformer reads: those that it does not drop."""
    names = _get_attribute(transformer, "feature_names_in_")
    if names is None:
        return None
    read = [columns for _, step, columns in transformer.transformers_ if not (isinstance(step, str) and step == "drop")]
    selected = {name for columns in read for name in list_selected_columns(names, columns)}
    return [str(name) for name in names if name in selected]


def list_steps(model: Any) -> list[Any]:
    """Return the steps of a pipeline that change or predict; none of another model."""
    return [step for _, step in _get_attribute(model, "steps") or () if step not in (None, "passthrough")]


def find_inner_model(estimator: Any) -> Any:
    """Return the model that reads the rows: the estimator itself, or the one inside a wrapper such as a threshold."""
    attribute = WRAPPERS.get(type(estimator).__name__)
    if attribute is None:
        return estimator
    inner = getattr(estimator, attribute)
    return find_inner_model(next(iter(inner)) if isinstance(inner, list) or hasattr(inner, "iloc") else inner)


def split_pipeline(estimator: Any) -> EstimatorParts:
    """Return the transformers of a pipeline, nested ones too, and its final estimator."""
    if not hasattr(estimator, "steps"):
        return [], estimator
    *earlier, (_, last) = estimator.steps
    # A sampler of imbalanced-learn changes the rows in training only.
    steps = [step for _, step in earlier if step not in (None, "passthrough") and not hasattr(step, "fit_resample")]
    inner_steps, final = split_pipeline(last)
    return steps + inner_steps, final


def _list_readers(model: Any) -> Iterator[list[Any]]:
    """Yield the parts of a model that read the rows: the first step of a pipeline, the models in a wrapper."""
    yield list_steps(model)[:1]
    for attribute in ("best_estimator_", *filter(None, [WRAPPERS.get(type(model).__name__)])):
        part = _get_attribute(model, attribute)
        # With passthrough the last model gets all columns.
        if part is not None and _get_attribute(model, "passthrough") is not True:
            yield list(part) if isinstance(part, list) or hasattr(part, "iloc") else [part]


def _get_attribute(model: Any, name: str) -> Any:
    try:
        return getattr(model, name, None)
    except Exception:  # one that is not fitted
        return None


def _are_numbered(names: list[str]) -> bool:
    """Return whether LightGBM or CatBoost has numbered the columns, because they had no names."""
    return any(names == [f"{word}{i}" for i in range(len(names))] for word in ("Column_", ""))


MAX_CLASSES_SHOWN = 8  # in a note
OTHER_CLASS = "another answer"  # the class of an answer that was not seen when the model was opened


def match_classes(domain: TableDomain, classes: Sequence[Any] | None) -> list[int] | None:
    """Return the position of each class of the domain among the model's classes; None if their names differ.

    Texts are compared first, so that 1, "01" and True can be different classes; then numbers.
    """
    if classes is None or domain.target is None:
        return None
    for name in (cell_text, _to_number_text):
        names, domain_names = [name(c) for c in classes], [name(c) for c in domain.target.classes]
        if sorted(names) == sorted(domain_names) and len(set(names)) == len(names):
            return [names.index(c) for c in domain_names]
    return None


def describe_classes(domain: TableDomain, classes: Sequence[Any] | None) -> str:
    """Return a remark if the model's classes match those of the domain by position only, else nothing."""
    if classes is None or domain.target is None or not domain.target.classes:
        return ""
    if match_classes(domain, classes) is not None:
        return ""
    model_classes, domain_classes = _list_classes(classes), _list_classes(domain.target.classes)
    if len(classes) != len(domain.target.classes):
        return f"its classes {model_classes} are not those of the domain, {domain_classes}"
    return f"its classes {model_classes} are taken for {domain_classes} in this order"


def order_classes(scores: np.ndarray, order: list[int] | None) -> np.ndarray:
    """Return a model's scores in the order of the domain's classes."""
    if order is None:
        return scores
    if scores.ndim == 1:  # the score of the second of two classes
        return scores if order == [0, 1] else -scores
    return scores[:, order]


@dataclass(frozen=True)
class Labels:
    """The labels that a model returns instead of scores, in the order of the domain's classes where they match."""

    names: tuple[str, ...]
    note: str = ""
    unassessed: str = ""  # why they cannot be compared with the labels of the table

    def scores(self, predictions: np.ndarray) -> np.ndarray:
        """Return answers as one-hot scores: (n, classes)."""
        index_of = {answer: self._find_class(answer) for answer in dict.fromkeys(predictions.tolist())}
        indices = np.array([index_of[answer] for answer in predictions.tolist()])
        if (indices < 0).any():
            unknown = predictions[indices < 0].tolist()[0]
            raise ModelError(f"returns {unknown!r}, which is none of {_list_classes(self.names)}")
        return np.asarray(np.eye(len(self.names))[indices])

    def _find_class(self, prediction: Any) -> int:
        """Return the position of an answer's class, by its text or else as a number; -1 if there is none."""
        indices = {_to_number_text(name): number for number, name in enumerate(self.names)}
        indices |= {name: number for number, name in enumerate(self.names)}
        spellings = (cell_text(prediction), _to_number_text(prediction), OTHER_CLASS)
        return next((indices[spelling] for spelling in spellings if spelling in indices), -1)


def find_labels(domain: TableDomain, predictions: np.ndarray) -> Labels | None:
    """Return the labels among answers of a model, (n,); None if they are scores, or 0 and 1, which count as scores.

    Texts are labels. Numbers are labels if they name the domain's classes, or are two whole numbers such as -1 and 1.
    """
    if predictions.ndim != 1:
        return None
    classes = () if domain.target is None else tuple(map(cell_text, domain.target.classes))
    domain_labels = Labels(classes, "it returns the names of classes")
    distinct = list(dict.fromkeys(predictions.tolist()))
    numbers = sorted({_to_number_text(answer) for answer in distinct}, key=size_sort_key)
    are_classes = all(domain_labels._find_class(answer) >= 0 for answer in distinct)
    if predictions.dtype.kind in "biuf":
        if set(numbers) <= {"0", "1"} or predictions.dtype.kind == "b":
            return None
        are_integers = predictions.dtype.kind in "iu" or not set(numbers) - {"-1", "1"}
        if not are_classes and not (are_integers and len(numbers) == 2):
            return None
    if are_classes:
        return domain_labels
    note = f"it returns {_list_classes(numbers)}"
    unassessed = f"{note}, and the classes of the target are {_list_classes(classes)}" if classes else ""
    return Labels((*numbers, OTHER_CLASS), unassessed or note, unassessed)


def shorten_list(names: Sequence[Any], limit: int) -> str:
    """Return the first names as a list, which says where there are more."""
    return ", ".join(map(str, names[:limit])) + (", …" if len(names) > limit else "")


def _list_classes(classes: Sequence[Any]) -> str:
    return shorten_list(classes, MAX_CLASSES_SHOWN)


def _to_number_text(label: Any) -> str:
    """Return a class as text, so that 1, 1.0, True and "1" are one."""
    return canonical_number({"True": "1", "False": "0"}.get(cell_text(label), label))
