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
    steps = [chosen for _, step, chosen in transformer.transformers_ if not (isinstance(step, str) and step == "drop")]
    read = {name for chosen in steps for name in selected_columns(names, chosen)}
    return [str(name) for name in names if name in read]


def steps_of(model: Any) -> list[Any]:
    """Return the steps of a pipeline that change or predict; none of another model."""
    return [step for _, step in _attribute(model, "steps") or () if step not in (None, "passthrough")]


def _parts(model: Any) -> Iterator[list[Any]]:
    """Yield the parts of a model that read the rows: the first step of a pipeline, the models in a wrapper."""
    yield steps_of(model)[:1]
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


MAX_CLASSES_SHOWN = 8  # in a note
REST = "another answer"  # the class of an answer that was not seen when the model was opened


def class_order(domain: TableDomain, classes: Sequence[Any] | None) -> list[int] | None:
    """Return the position of each class of the domain among the model's classes; None if their names differ.

    Texts are compared first, so that 1, "01" and True can be different classes; then numbers.
    """
    if classes is None or domain.target is None:
        return None
    for name in (cell_text, _number):
        names, wanted = [name(c) for c in classes], [name(c) for c in domain.target.classes]
        if sorted(names) == sorted(wanted) and len(set(names)) == len(names):
            return [names.index(c) for c in wanted]
    return None


def class_note(domain: TableDomain, classes: Sequence[Any] | None) -> str:
    """Return a remark if the model's classes match those of the domain by position only, else nothing."""
    if classes is None or domain.target is None or not domain.target.classes:
        return ""
    if class_order(domain, classes) is not None:
        return ""
    own, wanted = _listed(classes), _listed(domain.target.classes)
    if len(classes) != len(domain.target.classes):
        return f"its classes {own} are not those of the domain, {wanted}"
    return f"its classes {own} are taken for {wanted} in this order"


def ordered(scores: np.ndarray, order: list[int] | None) -> np.ndarray:
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

    def scores(self, answers: np.ndarray) -> np.ndarray:
        """Return answers as one-hot scores: (n, classes)."""
        known = {answer: self._place(answer) for answer in dict.fromkeys(answers.tolist())}
        chosen = np.array([known[answer] for answer in answers.tolist()])
        if (chosen < 0).any():
            raise ModelError(f"returns {answers[chosen < 0].tolist()[0]!r}, which is none of {_listed(self.names)}")
        return np.asarray(np.eye(len(self.names))[chosen])

    def _place(self, answer: Any) -> int:
        """Return the position of an answer's class, by its text or else as a number; -1 if there is none."""
        places = {_number(name): number for number, name in enumerate(self.names)}
        places |= {name: number for number, name in enumerate(self.names)}
        return places.get(cell_text(answer), places.get(_number(answer), places.get(REST, -1)))


def answer_labels(domain: TableDomain, answers: np.ndarray) -> Labels | None:
    """Return the labels among answers of a model, (n,); None if they are scores, or 0 and 1, which count as scores.

    Texts are labels. Numbers are labels if they name the domain's classes, or are two whole numbers such as -1 and 1.
    """
    if answers.ndim != 1:
        return None
    classes = () if domain.target is None else tuple(map(cell_text, domain.target.classes))
    wanted = Labels(classes, "it returns the names of classes")
    distinct = list(dict.fromkeys(answers.tolist()))
    known = sorted({_number(answer) for answer in distinct}, key=size_sort_key)
    are_classes = all(wanted._place(answer) >= 0 for answer in distinct)
    if answers.dtype.kind in "biuf":
        if set(known) <= {"0", "1"} or answers.dtype.kind == "b":
            return None
        whole = answers.dtype.kind in "iu" or not set(known) - {"-1", "1"}
        if not are_classes and not (whole and len(known) == 2):
            return None
    if are_classes:
        return wanted
    why = f"it returns {_listed(known)}, and the classes of the target are {_listed(classes)}" if classes else ""
    return Labels((*known, REST), why or f"it returns {_listed(known)}", why)


def shortened(names: Sequence[Any], limit: int) -> str:
    """Return the first names as a list, which says where there are more."""
    return ", ".join(map(str, names[:limit])) + (", …" if len(names) > limit else "")


def _listed(classes: Sequence[Any]) -> str:
    return shortened(classes, MAX_CLASSES_SHOWN)


def _number(thing: Any) -> str:
    """Return a class as text, so that 1, 1.0, True and "1" are one."""
    return canonical_number({"True": "1", "False": "0"}.get(cell_text(thing), thing))
