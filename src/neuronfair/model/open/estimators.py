"""Fitted estimators and functions of a table: networks where their weights can be read, else black boxes."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from neuronfair.errors import NeuronFairError, one_line, require
from neuronfair.limits import TREE_FACTOR, TooLargeError, check_array, check_size, read_members, repack
from neuronfair.model.blackbox import BlackBox, as_scores
from neuronfair.model.decision import Scale
from neuronfair.model.open.estimator_networks import NotLinear, has_unknown_code, is_network, is_perceptron, network_of
from neuronfair.model.open.frames import estimator_inputs, function_inputs
from neuronfair.model.open.names import (
    CONSTANTS,
    WRAPPERS,
    Labels,
    answer_labels,
    class_note,
    class_order,
    input_names,
    ordered,
    shortened,
)
from neuronfair.model.open.opened import (
    TOLERANCE,
    ModelFile,
    ModelInputs,
    OpenedModel,
    Request,
    black_box,
    fingerprinted_by_scores,
    white_box,
)
from neuronfair.model.open.trees import FILES, forest_of, framework, tree_columns
from neuronfair.model.open.trees.xgboost import BoosterPredictor

MAX_COLUMNS_SHOWN = 30  # in a note
GROUPS = "sensitive_features"  # the argument of Fairlearn's models for the demographic groups
# The most informative first; `_pmf_predict` of Fairlearn is the probability of decisions that are drawn at random.
_METHODS = ("predict_proba", "decision_function", "_pmf_predict", "predict")


EstimatorParts = tuple[list[Any], Any]  # the transformers of a pipeline, nested ones too, and its final estimator


@dataclass(frozen=True)
class PredictMethod:
    """How to call a model with a table, and what it returns.

    `classes` are the model's own names for the columns of its scores. With `decisions` it returns these names instead
    of scores. `probability` says whether a single score is a probability; None: if it lies within 0 and 1. `columns`
    are those that it reads, where they are known.
    """

    answer: Callable[[Any], Any]
    classes: Any = None
    decisions: bool = False
    probability: bool | None = None
    columns: Sequence[str] | None = None
    note: str = ""


@dataclass(frozen=True)
class FittedModel:
    """A model with the inputs that it accepts, and its `answers` to the tried rows of the request."""

    request: Request
    kind: str
    method: PredictMethod
    inputs: ModelInputs
    answers: np.ndarray
    labels: Labels | None
    scale: Scale | None = None  # of its scores, where its kind fixes it
    unassessed: str = ""  # why its decisions cannot be compared with labels

    @staticmethod
    def of(request: Request, kind: str, method: PredictMethod, ways: Sequence[ModelInputs]) -> FittedModel:
        """Return the model with the first of several inputs that it accepts."""
        inputs, answers = _first_accepted(request, ways, lambda table: _as_array(method.answer(table)))
        labels = answer_labels(request.domain, _flat(answers)) if method.classes is None else None
        if inputs.by_position is None:
            by_position = ignores_names(method.answer, inputs.of_rows(request.trial_rows), answers)
            inputs = replace(inputs, by_position=by_position)
        return FittedModel(request, kind, method, inputs, answers, labels)

    def scores_of(self, answers: np.ndarray) -> np.ndarray:
        """Return answers as scores in the order of the domain's classes: (n, outputs)."""
        if self.labels is not None:
            return self.labels.scores(_flat(answers))
        classes = self.method.classes
        if self.method.decisions:
            answers = (answers.reshape(len(answers), 1) == np.asarray(classes)).astype(float)
        return as_scores(ordered(answers, class_order(self.request.domain, classes)))

    @property
    def scores(self) -> ModelInputs:
        """What computes the model's scores."""
        return self.inputs.then(lambda table: self.scores_of(_as_array(self.method.answer(table))))

    def features(self, steps: Sequence[Any]) -> ModelInputs:
        """Return what computes the features that steps make of the inputs."""
        found = self.inputs
        for step in steps:
            found = found.then(_quiet(step.transform))
        return found

    def note(self, *remarks: str) -> str:
        """Return what the user must know about how the model is called."""
        inputs, in_order = self.inputs, ""
        if inputs.by_position and inputs.of_numbers is None:
            columns = shortened(self.request.domain.names, MAX_COLUMNS_SHOWN)
            in_order = (
                f"its inputs have no names, so columns are matched by position, in the order of the table: {columns}"
            )
        classes = class_note(self.request.domain, self.method.classes)
        labels = "" if self.labels is None else self.labels.note
        first, *others = remarks
        return "; ".join(filter(None, (first, inputs.note, in_order, classes, labels, self.method.note, *others)))

    def completed(self, opened: OpenedModel) -> OpenedModel:
        """Return an opened model with what is known about its inputs and answers."""
        return replace(
            opened,
            declared=self.inputs.of_numbers is not None,
            scores_of_frame=self.scores.of_frame,
            by_position=bool(self.inputs.by_position),
            scale=self.scale,
            unassessed=self.unassessed or ("" if self.labels is None else self.labels.unassessed),
        )

    def black_box(self, note: str, digest: str | None) -> OpenedModel:
        """Return the model as a black box."""
        known, probability = digest or f"{self.kind} {self.request.source}", self.method.probability
        made = black_box(self.request, self.kind, self.scores, note, probability=probability, digest=known)
        return self.completed(made)


def _first_accepted(
    request: Request, ways: Sequence[ModelInputs], predict: Callable[[Any], Any]
) -> tuple[ModelInputs, Any]:
    """Return the first inputs that a model accepts, and its answers to the tried rows."""
    first: Exception | None = None
    for inputs in ways:
        try:
            return inputs, predict(inputs.of_rows(request.trial_rows))
        except Exception as error:  # the model's own code
            first = first or error
    assert first is not None
    remedy = ""
    if request.inferred and any(not attribute.values for attribute in request.domain.attributes):
        remedy = '. If a column of numbers holds categories, say so in a domain file: kind = "nominal", values = […]'
    why = f"{type(first).__name__}: {one_line(first)}"
    raise request.error(f"it refuses rows of the domain ({why}){remedy}") from first


def _as_array(answer: Any) -> np.ndarray:
    """Return a model's answer as an array."""
    found: np.ndarray = np.asarray(answer.detach().cpu() if isinstance(answer, Tensor) else answer)
    if found.ndim == 0:
        raise ValueError(f"expected one score or label for each row, got {type(answer).__name__}")
    return found


def open(request: Request) -> OpenedModel:  # noqa: A001 - each reader has a function of this name
    """Read the file of a fitted model."""
    estimator, remark = read_file(request)
    return open_estimator(request, estimator, request.digest, remark)


def names(file: ModelFile) -> list[str] | None:
    """Return the names of the columns that the model in a file reads, if it states them."""
    return input_names(read_file(file)[0])


def open_function(request: Request, function: Any) -> OpenedModel:
    """Return a function of a table as a black box; its fingerprint covers its source code and its scores."""
    columns = input_names(function)
    columns = columns if columns is not None and set(columns) <= set(request.domain.names) else None
    method = PredictMethod(_quiet(function) if inspect.ismethod(function) else function)
    fitted = FittedModel.of(request, "Python function", method, function_inputs(request, columns))
    why = "a Python function has no weights to read; it gets tables of labels and numbers"
    return fingerprinted_by_scores(request, fitted.black_box(fitted.note(why), None), function)


def open_estimator(request: Request, estimator: Any, digest: str | None, remark: str = "") -> OpenedModel:
    """Return a fitted perceptron or linear model, with its preprocessing, as a network; any other as a black box.

    A pipeline gets the table's own labels and numbers. A bare estimator gets the columns of its feature names; without
    names, the domain's encoding or the table's own numbers. Without a `digest` the scores are part of the fingerprint.
    """
    estimator = getattr(estimator, "best_estimator_", estimator)  # a finished search for hyperparameters
    parts = _split(estimator)
    fitted = _fitted_model(request, estimator, parts[1])
    if _predict_differs(fitted, estimator):
        method = replace(fitted.method, answer=_predicted_labels(estimator), decisions=True, probability=None)
        fitted = replace(fitted, method=method)
        network, why = None, "its decisions are not those of its largest score, so its method predict is used"
    else:
        network, why = _network(fitted, estimator, parts, remark)
    opened = network or _black_box(fitted, estimator, parts, fitted.note(why, remark), digest)
    if digest is None:
        return fingerprinted_by_scores(request, opened, estimator)
    # The weights of a network's first layer depend on the row that it was derived from, so they are no fingerprint.
    return replace(opened, fingerprint=digest)


def _fitted_model(request: Request, estimator: Any, final: Any) -> FittedModel:
    """Return an estimator with the first inputs that it accepts."""
    kind, method = framework(final) or "scikit-learn", predict_method(request, estimator, final)
    if method.columns is not None:
        ways = function_inputs(request, method.columns)
    else:
        booster = isinstance(method.answer, BoosterPredictor)
        reader = method.answer if booster else _reader(estimator)
        trees = None if booster else tree_columns(reader, request.domain)
        bare, columns = not _split(reader)[0], input_names(estimator)
        ways = estimator_inputs(request, reader, bare=bare, names=columns, trees=trees)
    detects = isinstance(final, require("sklearn.base", "sklearn").OutlierMixin)
    return replace(
        FittedModel.of(request, kind, method, ways),
        # Margins are plain numbers: a sigmoid would not turn them into probabilities.
        scale="numbers" if method.probability is False and kind != "XGBoost" else None,
        unassessed="it detects outliers and was fitted without labels" if detects else "",
    )


def _network(fitted: FittedModel, estimator: Any, parts: EstimatorParts, remark: str) -> tuple[OpenedModel | None, str]:
    """Return a perceptron or linear model as a network, or why it is none."""
    (steps, final), request = parts, fitted.request
    if not is_network(final):
        library = fitted.kind == "scikit-learn"
        return None, f"{type(final).__name__} has no neurons" if library else "boosted trees have no neurons"
    note = fitted.note("its preprocessing has become the first layer" if steps else "", remark)
    try:
        scores = fitted.scores_of(fitted.answers)
        encoding, module = network_of(request, estimator, final, fitted.features(steps), scores)
        opened = white_box(
            request,
            fitted.kind,
            module,
            encoding=encoding,
            note=note,
            probability=bool(fitted.method.probability),
            hidden=is_perceptron(final),
        )
    except TooLargeError:
        raise
    except NotLinear as reason:
        return None, str(reason)
    except Exception as error:  # the estimator's own code
        return None, f"its weights could not be read ({one_line(error)})"
    return fitted.completed(replace(opened, original=fitted.scores.of_rows)), ""


def _black_box(
    fitted: FittedModel, estimator: Any, parts: EstimatorParts, note: str, digest: str | None
) -> OpenedModel:
    """Return an estimator as a black box, with its trees where they determine its scores."""
    (steps, final), request = parts, fitted.request
    opened = fitted.black_box(note, digest)
    if fitted.inputs.program is None and not has_unknown_code(estimator, steps, final):
        assert isinstance(opened.model, BlackBox)
        features, scores = fitted.features(steps).of_rows, opened.model.scores
        order = class_order(request.domain, fitted.method.classes)
        opened.model.trees = cache(
            partial(forest_of, final, features, scores, request.domain, request.trial_rows, order)
        )
    return opened


def predict_method(request: Request, estimator: Any, final: Any) -> PredictMethod:
    """Return how to call a fitted model: for probabilities, scores or decisions, by the methods that it has."""
    if framework(final) == "XGBoost" and type(final).__name__ == "Booster":
        booster = BoosterPredictor(final)
        return PredictMethod(booster, probability=booster.probability, note=booster.note)
    name = next(name for name in _METHODS if callable(getattr(estimator, name, None)))
    method = _quiet(getattr(estimator, name))
    classes: Any = getattr(final, "classes_", None)
    if not isinstance(classes, list) and (np.ndim(classes) != 1 or not len(classes)):
        classes = None
    several = str(getattr(getattr(final, "_label_binarizer", None), "y_type_", "")).startswith("multilabel")
    if isinstance(classes, list) or several:
        raise request.error("predicts several targets at once; pass a function that predicts one of them")
    random = name == "_pmf_predict"
    note = "its decisions are drawn at random, so their probabilities are compared" if random else ""
    if takes_sensitive_features(estimator):
        return _with_sensitive_features(request, estimator, method, note)
    exogenous = getattr(getattr(estimator, "model", None), "exog_names", None)
    if exogenous is not None and not hasattr(estimator.model, "formula"):  # of statsmodels
        return _with_constant(request, method, list(exogenous))
    if name == "predict" and classes is not None:
        if framework(final) != "CatBoost":
            return PredictMethod(method, classes, decisions=True)
        method = _quiet(partial(estimator.predict, prediction_type="Probability"))
    # A regression's number stands for the second class from one half on.
    return PredictMethod(method, classes, probability=name != "decision_function", note=note)


def _with_sensitive_features(request: Request, estimator: Any, method: Callable[..., Any], note: str) -> PredictMethod:
    """Return how to call a model of Fairlearn that takes the demographic groups next to its inputs."""
    groups, inputs = list(request.domain.sensitive), input_names(estimator) or list(request.domain.names)
    note = "; ".join(filter(None, (note, f"it gets {', '.join(groups)} as {GROUPS}")))

    def answer(table: Any) -> Any:
        return method(table[inputs], **{GROUPS: table[groups if len(groups) > 1 else groups[0]]})

    return PredictMethod(
        answer, probability=True, columns=[*inputs, *(g for g in groups if g not in inputs)], note=note
    )


def _with_constant(request: Request, method: Callable[..., Any], names: list[str]) -> PredictMethod:
    """Return how to call a model of statsmodels, which gets a column of ones where it was fitted with one."""
    places = [place for place, name in enumerate(names) if name in CONSTANTS]
    inputs = [name for name in names if name not in CONSTANTS]
    known = inputs if set(inputs) <= set(request.domain.names) else list(request.domain.names)

    def answer(table: Any) -> Any:
        numbers = table.to_numpy(dtype=np.float64)
        for place in places:
            numbers = np.insert(numbers, place, 1.0, axis=1)
        return method(numbers)

    return PredictMethod(answer, columns=known, note="it gets a column of ones, as it was fitted" if places else "")


def takes_sensitive_features(model: Any) -> bool:
    """Return whether a model takes the demographic groups next to its inputs."""
    try:
        return GROUPS in inspect.signature(model.predict).parameters
    except (AttributeError, TypeError, ValueError):
        return False


def _quiet(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method without its warnings about unknown categories and names, which would come with every call."""

    def call(*arguments: Any, **named: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return method(*arguments, **named)

    return call


def _reader(estimator: Any) -> Any:
    """Return the model that reads the rows: the estimator itself, or the one inside a wrapper such as a threshold."""
    place = WRAPPERS.get(type(estimator).__name__)
    if place is None:
        return estimator
    inner = getattr(estimator, place)
    return _reader(next(iter(inner)) if isinstance(inner, list) or hasattr(inner, "iloc") else inner)


def _split(estimator: Any) -> EstimatorParts:
    if not hasattr(estimator, "steps"):
        return [], estimator
    *before, (_, last) = estimator.steps
    # A sampler of imbalanced-learn changes the rows in training only.
    steps = [step for _, step in before if step not in (None, "passthrough") and not hasattr(step, "fit_resample")]
    more, final = _split(last)
    return steps + more, final


def _predicted_labels(estimator: Any) -> Callable[[Any], Any]:
    return lambda table: np.asarray(_quiet(estimator.predict)(table)).reshape(len(table))


def _predict_differs(fitted: FittedModel, estimator: Any) -> bool:
    """Return whether predict() differs from the class of the largest score, as with a tuned threshold."""
    decision, method, scores = fitted.request.decision, fitted.method, fitted.scores_of(fitted.answers)
    if method.classes is None or method.decisions or (decision is not None and decision.kind != "argmax"):
        return False
    if _own_threshold(estimator):
        return True
    if scores.shape[1] == 1:  # the score of the second class, positive if it is chosen
        if decision is not None:  # one score has no largest
            return True
        scores = np.concatenate([-scores, scores], 1)
    by_decisions = replace(fitted, method=replace(method, decisions=True))
    try:
        chosen = (
            by_decisions.scores_of(_predicted_labels(estimator)(fitted.inputs.of_rows(fitted.request.trial_rows))) > 0
        )
    except Exception:  # the estimator's own code; then its scores are used
        return False
    if chosen.shape != scores.shape or not (chosen.sum(1) == 1).all():
        return False
    return bool((scores.argmax(1) != chosen.argmax(1)).any())  # it may break ties in another way


def _own_threshold(estimator: Any) -> bool:
    """Return whether predict() has a threshold of its own: so near to one half that no tried row shows it, perhaps."""
    final = _split(estimator)[1]
    if type(final).__name__ == "CatBoostClassifier":
        return final.get_probability_threshold() not in (None, 0.5)
    return type(final).__name__ in ("FixedThresholdClassifier", "TunedThresholdClassifierCV")


def ignores_names(answer: Callable[[Any], Any], table: Any, answers: np.ndarray) -> bool:
    """Return whether a model reads columns by position: reversed names give the same answers."""
    if not hasattr(table, "columns"):
        return True
    if table.shape[1] < 2:
        return False
    try:
        other = _as_array(answer(table.set_axis(table.columns[::-1], axis=1)))
    except Exception:  # the user's own code, which does not find a name
        return False
    if other.shape != answers.shape:
        return False
    if answers.dtype.kind in "fiub" and other.dtype.kind in "fiub":
        same = np.allclose(other.astype(float), answers.astype(float), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
        return bool(same) and len(np.unique(answers, axis=0)) > 1
    return bool((other == answers).all()) and len(set(_flat(answers).tolist())) > 1


def _flat(answers: np.ndarray) -> np.ndarray:
    return answers[:, 0] if answers.ndim == 2 and answers.shape[1] == 1 else answers


# Types in files of perceptrons that skops does not list as safe; opening them runs nothing.
_PLAIN = {
    "numpy.dtype",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    "sklearn.compose._column_transformer._RemainderColsList",
}


def read_file(file: ModelFile) -> tuple[Any, str]:
    """Return the model in a file, and a remark for the user. Pickles are opened: the caller checks the trust flag."""
    suffix = file.path.suffix.lower()
    if suffix in FILES:
        found: tuple[Any, str] = FILES[suffix].read(file)
        return found
    require("sklearn", "sklearn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            estimator = _read_skops(file) if suffix == ".skops" else require("joblib", "sklearn").load(file.path)
        except (Exception, SystemExit) as error:
            if isinstance(error, NeuronFairError):
                raise
            raise file.error(f"cannot be read ({type(error).__name__}: {one_line(error)})") from error
    if not is_estimator(estimator):
        raise file.error(f"expected a model with a method predict, got {type(estimator).__name__}")
    old = next((w.message for w in caught if w.category.__name__ == "InconsistentVersionWarning"), None)
    version = getattr(old, "original_sklearn_version", None)
    return estimator, f"it was saved by scikit-learn {version}, which is not the version used here" if version else ""


def is_estimator(thing: Any) -> bool:
    """Return whether an object has the method predict of a scikit-learn estimator."""
    return not isinstance(thing, (type, nn.Module)) and callable(getattr(thing, "predict", None))


def _read_skops(file: ModelFile) -> Any:
    skops = require("skops.io", "sklearn")
    content = _checked(file)
    unknown = skops.get_untrusted_types(data=content)
    doubtful = [name for name in unknown if name not in _PLAIN]
    if doubtful and not file.trust_pickle:
        names = ", ".join(doubtful[:6]) + (", …" if len(doubtful) > 6 else "")
        raise file.error(f"holds types that can run a program when opened: {names}. If you trust it: --trust-pickle")
    return skops.loads(content, trusted=unknown)


def _checked(file: ModelFile) -> bytes:
    """Return an unpacked .skops archive; refuse one that is too large, or whose arrays are."""
    files = read_members(file.content, file.source)
    check_size(len(files["schema.json"]), file.source, times=TREE_FACTOR)
    total = sum(map(len, files.values()))
    for name, content in files.items():
        arrays = {name: content}
        if name.endswith(".npz"):  # a sparse matrix: an archive in the archive
            arrays = read_members(content, file.source, extra_bytes=total)
            total += sum(map(len, arrays.values()))
            files[name] = repack(arrays)
        for array in arrays:
            if array.endswith(".npy"):
                check_array(arrays[array])
    read = 0

    def note(entry: Mapping[str, str]) -> None:
        nonlocal read
        read += len(files.get(entry.get("file", ""), ""))

    json.loads(files["schema.json"], object_hook=note)
    check_size(read, file.source, times=2)  # an array that is named twice is read twice
    return repack(files)
