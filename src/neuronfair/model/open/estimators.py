"""Fitted estimators and functions of a table: networks where their weights can be read, else black boxes."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from neuronfair.errors import NeuronFairError, one_line, require
from neuronfair.limits import TooLargeError
from neuronfair.model.blackbox import BlackBox, as_scores
from neuronfair.model.decision import Scale
from neuronfair.model.formats import ModelFile, read_skops
from neuronfair.model.open.estimator_networks import (
    NotLinear,
    convert_estimator,
    has_unknown_code,
    is_network,
    is_perceptron,
)
from neuronfair.model.open.frames import describe_mistyped_columns, estimator_inputs, function_inputs
from neuronfair.model.open.names import (
    CONSTANTS,
    EstimatorParts,
    Labels,
    describe_classes,
    find_inner_model,
    find_labels,
    list_input_names,
    match_classes,
    order_classes,
    shorten_list,
    split_pipeline,
)
from neuronfair.model.open.opened import (
    TOLERANCE,
    ModelInputs,
    OpenedModel,
    OpenRequest,
    fingerprint_by_scores,
    make_black_box,
    make_white_box,
)
from neuronfair.model.open.trees import FILES, extract_forest, framework, tree_columns
from neuronfair.model.open.trees.xgboost import BoosterPredictor

MAX_COLUMNS_SHOWN = 30  # in a note
GROUPS_ARGUMENT = "sensitive_features"  # the argument of Fairlearn's models for the demographic groups
# The most informative first; `_pmf_predict` of Fairlearn is the probability of decisions that are drawn at random.
_PREDICT_METHODS = ("predict_proba", "decision_function", "_pmf_predict", "predict")


@dataclass(frozen=True)
class PredictMethod:
    """How to call a model with a table, and what it returns.

    `classes` are the model's own names for the columns of its scores. With `decisions` it returns these names instead
    of scores. `probability` says whether a single score is a probability; None: if it lies within 0 and 1. `columns`
    are those that it reads, where they are known.
    """

    predict: Callable[[Any], Any]
    classes: Any = None
    decisions: bool = False
    probability: bool | None = None
    columns: Sequence[str] | None = None
    note: str = ""


@dataclass(frozen=True)
class FittedModel:
    """A model with the inputs that it accepts, and its `predictions` to the tried rows of the request."""

    request: OpenRequest
    kind: str
    method: PredictMethod
    inputs: ModelInputs
    predictions: np.ndarray
    labels: Labels | None
    scale: Scale | None = None  # of its scores, where its kind fixes it
    unassessed: str = ""  # why its decisions cannot be compared with labels

    @staticmethod
    def of(
        request: OpenRequest, kind: str, method: PredictMethod, candidates: Sequence[ModelInputs], estimator: Any = None
    ) -> FittedModel:
        """Return the model with the first of several inputs that it accepts; the `estimator` explains why it fails."""
        inputs, predictions = _find_accepted_inputs(request, method, candidates, estimator)
        labels = find_labels(request.domain, _flatten_single_column(predictions)) if method.classes is None else None
        if inputs.by_position is None:
            by_position = ignores_names(method.predict, inputs.of_rows(request.trial_rows), predictions)
            inputs = replace(inputs, by_position=by_position)
        return FittedModel(request, kind, method, inputs, predictions, labels)

    def scores_of(self, predictions: np.ndarray) -> np.ndarray:
        """Return predictions as scores in the order of the domain's classes: (n, outputs)."""
        if self.labels is not None:
            return self.labels.scores(_flatten_single_column(predictions))
        classes = self.method.classes
        if self.method.decisions:
            predictions = (predictions.reshape(len(predictions), 1) == np.asarray(classes)).astype(float)
        return as_scores(order_classes(predictions, match_classes(self.request.domain, classes)))

    @property
    def scores(self) -> ModelInputs:
        """What computes the model's scores."""
        return self.inputs.then(lambda table: self.scores_of(_to_array(self.method.predict(table))))

    def features(self, steps: Sequence[Any]) -> ModelInputs:
        """Return what computes the features that steps make of the inputs."""
        features = self.inputs
        for step in steps:
            features = features.then(ignore_warnings(step.transform))
        return features

    def note(self, *remarks: str) -> str:
        """Return what the user must know about how the model is called."""
        inputs, in_order = self.inputs, ""
        if inputs.by_position and inputs.of_numbers is None:
            columns = shorten_list(self.request.domain.names, MAX_COLUMNS_SHOWN)
            in_order = (
                f"its inputs have no names, so columns are matched by position, in the order of the table: {columns}"
            )
        classes = describe_classes(self.request.domain, self.method.classes)
        labels = "" if self.labels is None else self.labels.note
        parts = (*remarks[:1], inputs.note, in_order, classes, labels, self.method.note, *remarks[1:])
        return "; ".join(filter(None, parts))

    def annotate(self, result: OpenedModel) -> OpenedModel:
        """Return an opened model with what is known about its inputs and predictions."""
        return replace(
            result,
            declared=self.inputs.of_numbers is not None,
            scores_of_frame=self.scores.of_frame,
            by_position=bool(self.inputs.by_position),
            scale=self.scale,
            unassessed=self.unassessed or ("" if self.labels is None else self.labels.unassessed),
        )

    def make_black_box(self, note: str, digest: str | None) -> OpenedModel:
        """Return the model as a black box."""
        fingerprint, probability = digest or f"{self.kind} {self.request.source}", self.method.probability
        result = make_black_box(self.request, self.kind, self.scores, note, probability=probability, digest=fingerprint)
        return self.annotate(result)


def _find_accepted_inputs(
    request: OpenRequest, method: PredictMethod, candidates: Sequence[ModelInputs], estimator: Any
) -> tuple[ModelInputs, np.ndarray]:
    """Return the first inputs that a model accepts, and its predictions for the tried rows."""
    first: Exception | None = None
    for inputs in candidates:
        try:
            return inputs, _to_array(method.predict(inputs.of_rows(request.trial_rows)))
        except Exception as error:  # the model's own code
            first = first or error
    assert first is not None
    remedy = describe_mistyped_columns(estimator, candidates[0].of_rows(request.trial_rows))
    if request.inferred and any(not attribute.values for attribute in request.domain.attributes):
        remedy += '. If a column of numbers holds categories, say so in a domain file: kind = "nominal", values = […]'
    reason = f"{type(first).__name__}: {one_line(first)}"
    raise request.error(f"it refuses rows of the domain ({reason}){remedy}") from first


def _to_array(prediction: Any) -> np.ndarray:
    """Return what a model predicts as an array."""
    array: np.ndarray = np.asarray(prediction.detach().cpu() if isinstance(prediction, Tensor) else prediction)
    if array.ndim == 0:
        raise ValueError(f"expected one score or label for each row, got {type(prediction).__name__}")
    return array


def open_source(request: OpenRequest) -> OpenedModel:
    """Read the file of a fitted model."""
    estimator, remark = read_file(request)
    return open_estimator(request, estimator, request.digest, remark)


def list_names(file: ModelFile) -> list[str] | None:
    """Return the names of the columns that the model in a file reads, if it states them."""
    return list_input_names(read_file(file)[0])


def open_estimator(request: OpenRequest, estimator: Any, digest: str | None, remark: str = "") -> OpenedModel:
    """Return a fitted perceptron or linear model, with its preprocessing, as a network; any other as a black box.

    A pipeline gets the table's own labels and numbers. A bare estimator gets the columns of its feature names; without
    names, the domain's encoding or the table's own numbers. Without a `digest` the scores are part of the fingerprint.
    """
    estimator = getattr(estimator, "best_estimator_", estimator)  # a finished search for hyperparameters
    parts = split_pipeline(estimator)
    model = _fit_inputs(request, estimator, parts[1])
    if _predict_differs(model, estimator):
        method = replace(model.method, predict=_make_label_predictor(estimator), decisions=True, probability=None)
        model = replace(model, method=method)
        result: OpenedModel | str = "its decisions are not those of its largest score, so its method predict is used"
    else:
        result = _open_network(model, estimator, parts, remark)
    if isinstance(result, str):  # the reason
        result = _open_black_box(model, estimator, parts, model.note(result, remark), digest)
    if digest is None:
        return fingerprint_by_scores(request, result, estimator)
    # The weights of a network's first layer depend on the row that it was derived from, so they are no fingerprint.
    return replace(result, fingerprint=digest)


def _fit_inputs(request: OpenRequest, estimator: Any, final: Any) -> FittedModel:
    """Return an estimator with the first inputs that it accepts."""
    kind, method = framework(final) or "scikit-learn", find_predict_method(request, estimator, final)
    if method.columns is not None:
        candidates = function_inputs(request, method.columns)
    else:
        booster = isinstance(method.predict, BoosterPredictor)
        inner = method.predict if booster else find_inner_model(estimator)
        trees = None if booster else tree_columns(inner, request.domain)
        bare, columns = not split_pipeline(inner)[0], list_input_names(estimator)
        candidates = estimator_inputs(request, inner, bare=bare, names=columns, trees=trees)
    detects = isinstance(final, require("sklearn.base", "sklearn").OutlierMixin)
    return replace(
        FittedModel.of(request, kind, method, candidates, estimator),
        # Margins are plain numbers: a sigmoid would not turn them into probabilities.
        scale="numbers" if method.probability is False and kind != "XGBoost" else None,
        unassessed="it detects outliers and was fitted without labels" if detects else "",
    )


def _open_network(model: FittedModel, estimator: Any, parts: EstimatorParts, remark: str) -> OpenedModel | str:
    """Return a perceptron or linear model as a network, or why it is none."""
    (steps, final), request = parts, model.request
    if not is_network(final):
        library = model.kind == "scikit-learn"
        return f"{type(final).__name__} has no neurons" if library else "boosted trees have no neurons"
    note = model.note("its preprocessing has become the first layer" if steps else "", remark)
    try:
        scores = model.scores_of(model.predictions)
        encoding, module = convert_estimator(request, estimator, final, model.features(steps), scores)
        result = make_white_box(
            request,
            model.kind,
            module,
            encoding=encoding,
            note=note,
            probability=bool(model.method.probability),
            hidden=is_perceptron(final),
        )
    except TooLargeError:
        raise
    except NotLinear as reason:
        return str(reason)
    except Exception as error:  # the estimator's own code
        return f"its weights could not be read ({one_line(error)})"
    return model.annotate(replace(result, original=model.scores.of_rows))


def _open_black_box(
    model: FittedModel, estimator: Any, parts: EstimatorParts, note: str, digest: str | None
) -> OpenedModel:
    """Return an estimator as a black box, with its trees where they determine its scores."""
    (steps, final), request = parts, model.request
    result = model.make_black_box(note, digest)
    if model.inputs.program is None and not has_unknown_code(estimator, steps, final):
        assert isinstance(result.model, BlackBox)
        features, scores = model.features(steps).of_rows, result.model.scores
        order = match_classes(request.domain, model.method.classes)
        result.model.trees = cache(
            partial(extract_forest, final, features, scores, request.domain, request.trial_rows, order)
        )
    return result


def find_predict_method(request: OpenRequest, estimator: Any, final: Any) -> PredictMethod:
    """Return how to call a fitted model: for probabilities, scores or decisions, by the methods that it has."""
    if framework(final) == "XGBoost" and type(final).__name__ == "Booster":
        booster = BoosterPredictor(final)
        return PredictMethod(booster, probability=booster.probability, note=booster.note)
    name = next(name for name in _PREDICT_METHODS if callable(getattr(estimator, name, None)))
    method = ignore_warnings(getattr(estimator, name))
    classes: Any = getattr(final, "classes_", None)
    if not isinstance(classes, list) and (np.ndim(classes) != 1 or not len(classes)):
        classes = None
    target_type = str(getattr(getattr(final, "_label_binarizer", None), "y_type_", "")).startswith("multilabel")
    if isinstance(classes, list) or target_type:
        raise request.error("predicts several targets at once; pass a function that predicts one of them")
    is_random = name == "_pmf_predict"
    note = "its decisions are drawn at random, so their probabilities are compared" if is_random else ""
    if takes_sensitive_features(estimator):
        return _with_sensitive_features(request, estimator, method, note)
    exogenous = getattr(getattr(estimator, "model", None), "exog_names", None)
    if exogenous is not None and not hasattr(estimator.model, "formula"):  # of statsmodels
        return _with_constant(request, method, list(exogenous))
    if name == "predict" and classes is not None:
        if framework(final) != "CatBoost":
            return PredictMethod(method, classes, decisions=True)
        method = ignore_warnings(partial(estimator.predict, prediction_type="Probability"))
    # A regression's number stands for the second class from one half on.
    return PredictMethod(method, classes, probability=name != "decision_function", note=note)


def _with_sensitive_features(
    request: OpenRequest, estimator: Any, method: Callable[..., Any], note: str
) -> PredictMethod:
    """Return how to call a model of Fairlearn that takes the demographic groups next to its inputs."""
    groups, inputs = list(request.domain.sensitive), list_input_names(estimator) or list(request.domain.names)
    note = "; ".join(filter(None, (note, f"it gets {', '.join(groups)} as {GROUPS_ARGUMENT}")))

    def predict(table: Any) -> Any:
        return method(table[inputs], **{GROUPS_ARGUMENT: table[groups if len(groups) > 1 else groups[0]]})

    columns = [*inputs, *(group for group in groups if group not in inputs)]
    return PredictMethod(predict, probability=True, columns=columns, note=note)


def _with_constant(request: OpenRequest, method: Callable[..., Any], names: list[str]) -> PredictMethod:
    """Return how to call a model of statsmodels, which gets a column of ones where it was fitted with one."""
    indices = [index for index, name in enumerate(names) if name in CONSTANTS]
    inputs = [name for name in names if name not in CONSTANTS]
    columns = inputs if set(inputs) <= set(request.domain.names) else list(request.domain.names)

    def predict(table: Any) -> Any:
        numbers = table.to_numpy(dtype=np.float64)
        for index in indices:
            numbers = np.insert(numbers, index, 1.0, axis=1)
        return method(numbers)

    note = "it gets a column of ones, as it was fitted" if indices else ""
    return PredictMethod(predict, columns=columns, note=note)


def takes_sensitive_features(model: Any) -> bool:
    """Return whether a model takes the demographic groups next to its inputs."""
    try:
        return GROUPS_ARGUMENT in inspect.signature(model.predict).parameters
    except (AttributeError, TypeError, ValueError):
        return False


def ignore_warnings(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method without its warnings about unknown categories and names, which would come with every call."""

    def call(*arguments: Any, **named: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return method(*arguments, **named)

    return call


def _make_label_predictor(estimator: Any) -> Callable[[Any], Any]:
    return lambda table: np.asarray(ignore_warnings(estimator.predict)(table)).reshape(len(table))


def _predict_differs(model: FittedModel, estimator: Any) -> bool:
    """Return whether predict() differs from the class of the largest score, as with a tuned threshold."""
    decision, method, scores = model.request.decision, model.method, model.scores_of(model.predictions)
    if method.classes is None or method.decisions or (decision is not None and decision.kind != "argmax"):
        return False
    if _has_own_threshold(estimator):
        return True
    if scores.shape[1] == 1:  # the score of the second class, positive if it is chosen
        if decision is not None:  # one score has no largest
            return True
        scores = np.concatenate([-scores, scores], 1)
    by_decisions = replace(model, method=replace(method, decisions=True))
    try:
        labels = model.inputs.then(_make_label_predictor(estimator)).of_rows(model.request.trial_rows)
        predicted = by_decisions.scores_of(labels) > 0
    except Exception:  # the estimator's own code; then its scores are used
        return False
    if predicted.shape != scores.shape or not (predicted.sum(1) == 1).all():
        return False
    return bool((scores.argmax(1) != predicted.argmax(1)).any())  # it may break ties in another way


def _has_own_threshold(estimator: Any) -> bool:
    """Return whether predict() has a threshold of its own: so near to one half that no tried row shows it, perhaps."""
    final = split_pipeline(estimator)[1]
    if type(final).__name__ == "CatBoostClassifier":
        return final.get_probability_threshold() not in (None, 0.5)
    return type(final).__name__ in ("FixedThresholdClassifier", "TunedThresholdClassifierCV")


def ignores_names(predict: Callable[[Any], Any], table: Any, predictions: np.ndarray) -> bool:
    """Return whether a model reads columns by position: reversed names give the same answers."""
    if not hasattr(table, "columns"):
        return True
    if table.shape[1] < 2:
        return False
    try:
        swapped = _to_array(predict(table.set_axis(table.columns[::-1], axis=1)))
    except Exception:  # the user's own code, which does not find a name
        return False
    if swapped.shape != predictions.shape:
        return False
    if all(array.dtype.kind in "fiub" for array in (swapped, predictions)):
        numbers = swapped.astype(float), predictions.astype(float)
        agrees = np.allclose(*numbers, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    else:
        agrees = bool((swapped == predictions).all())
    return agrees and len(np.unique(predictions.astype(str), axis=0)) > 1


def _flatten_single_column(predictions: np.ndarray) -> np.ndarray:
    return predictions[:, 0] if predictions.ndim == 2 and predictions.shape[1] == 1 else predictions


def read_file(file: ModelFile) -> tuple[Any, str]:
    """Return the model in a file, and a remark for the user. Pickles are opened: the caller checks the trust flag."""
    suffix = file.path.suffix.lower()
    if suffix in FILES:
        model_and_remark: tuple[Any, str] = FILES[suffix].read(file)
        return model_and_remark
    require("sklearn", "sklearn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            estimator = read_skops(file) if suffix == ".skops" else require("joblib", "sklearn").load(file.path)
        except (Exception, SystemExit) as error:
            if isinstance(error, NeuronFairError):
                raise
            writer = "skops.io.dump" if suffix == ".skops" else "joblib.dump or pickle.dump"
            raise file.error(
                f"cannot be read ({type(error).__name__}: {one_line(error)}). It is damaged, or no file of {writer}: "
                "write it again, with the same versions of its libraries"
            ) from error
    if not is_estimator(estimator):
        raise file.error(f"expected a model with a method predict, got {type(estimator).__name__}")
    version_warning = next((w.message for w in caught if w.category.__name__ == "InconsistentVersionWarning"), None)
    version = getattr(version_warning, "original_sklearn_version", None)
    return estimator, f"it was saved by scikit-learn {version}, which is not the version used here" if version else ""


def is_estimator(model: Any) -> bool:
    """Return whether an object has the method predict of a scikit-learn estimator."""
    return not isinstance(model, (type, nn.Module)) and callable(getattr(model, "predict", None))
