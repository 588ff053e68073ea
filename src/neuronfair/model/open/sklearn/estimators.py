"""scikit-learn models: perceptrons and linear models, also behind preprocessing, are networks; others black boxes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import isnan
from typing import Any

import numpy as np
from torch import Tensor, nn

from neuronfair.errors import ModelError, NeuronFairError, needs, one_line
from neuronfair.limits import TREE, TooLarge, check_array, check_size, members, repacked
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open import functions
from neuronfair.model.open.classes import by_position, class_order, labels_of, ordered
from neuronfair.model.open.columns import WRAPPERS, input_names
from neuronfair.model.open.estimator_inputs import EstimatorInputs, first_that_works, positions, readings, with_frames
from neuronfair.model.open.export import dump, refitting
from neuronfair.model.open.functions import by_groups
from neuronfair.model.open.request import ModelFile, Opened, Request
from neuronfair.model.open.sklearn.linear import is_network, is_perceptron, networks
from neuronfair.model.open.sklearn.preprocessing import MAX_CURVE, NotLinear, Transform, mixes_columns
from neuronfair.model.open.trees import xgboost_file
from neuronfair.model.open.trees.columns import framework, tree_columns
from neuronfair.model.open.trees.forests import forest_of

_METHODS = {"transform", "predict", "predict_proba", "decision_function"}  # of an object, not of its class
_LIBRARIES = {"sklearn", "xgboost", "lightgbm", "catboost"}  # whose trees are read
_STRAIGHT = {
    *("ColumnTransformer", "FeatureUnion", "Pipeline", "StandardScaler", "MinMaxScaler", "MaxAbsScaler"),
    *("RobustScaler", "OneHotEncoder", "OrdinalEncoder", "SimpleImputer", "VarianceThreshold", "PCA", "TruncatedSVD"),
}
# These bend numbers, too: known where every value of a number is tried.
_BENT = {
    "KBinsDiscretizer",
    "Binarizer",
    "TargetEncoder",
    "MissingIndicator",
    "PowerTransformer",
    "QuantileTransformer",
}
AGREE = 1e-5  # how close the network's scores must be to the pipeline's own, in parts of the largest if above 1
# Types in the files of ordinary perceptrons that skops does not list as safe; none of them runs anything when opened.
_PLAIN = {
    "numpy.dtype",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    "sklearn.compose._column_transformer._RemainderColsList",
}


def open(request: Request) -> Opened:  # noqa: A001 - each reader has a function of this name
    """Read a .skops file, or a pickle if pickles are trusted."""
    estimator, said = _read(request)
    old = next((w.message for w in said if w.category.__name__ == "InconsistentVersionWarning"), None)
    version = getattr(old, "original_sklearn_version", None)
    remark = f"it was saved by scikit-learn {version}, which is not the version used here" if version else ""
    return open_estimator(request, estimator, request.digest, remark)


def names(file: ModelFile) -> list[str] | None:
    """Return the names of the columns that the model in a file reads, if it says them."""
    return input_names(_read(file)[0])


def _read(file: ModelFile) -> tuple[Any, list[warnings.WarningMessage]]:
    """Return the model in a file, and the warnings that opening it gave."""
    needs("sklearn", "sklearn")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            skops = file.path.suffix.lower() == ".skops"
            estimator = _read_skops(file) if skops else needs("joblib", "sklearn").load(file.path)
        except (Exception, SystemExit) as error:
            if isinstance(error, NeuronFairError):
                raise
            raise file.error(f"cannot be read ({type(error).__name__}: {one_line(error)})") from error
    if not is_estimator(estimator):
        raise file.error(f"holds no model with a method predict, but {type(estimator).__name__}")
    return estimator, said


def is_estimator(thing: Any) -> bool:
    """Return whether something is a fitted model in the manner of scikit-learn."""
    return not isinstance(thing, (type, nn.Module)) and callable(getattr(thing, "predict", None))


def open_estimator(request: Request, estimator: Any, print_of: str | None, remark: str = "") -> Opened:
    """Return a fitted estimator as a network if it is a perceptron or linear, behind ordinary preprocessing or not.

    All others are black boxes. One whose inside cannot be read is asked with the table as it came, and the note says
    why. Without a fingerprint it is known by its answers.
    """
    if by_groups(estimator):
        why = "it is given the demographic groups beside its inputs"
        return functions.open_estimator(request, _kind(estimator), estimator, why, print_of)
    try:
        opened = _opened(request, estimator, print_of or "known by its answers", remark)
        return functions.known_by_answers(request, opened, estimator) if print_of is None else opened
    except TooLarge:
        raise
    except Exception as error:  # also of the estimator's own code
        reason = one_line(error).removeprefix(f"{request.source}: ")
        refused = error if isinstance(error, ModelError) else request.error(f"{type(error).__name__}: {reason}")
        try:
            return functions.open_estimator(request, _kind(estimator), estimator, reason, print_of)
        except ModelError as worse:
            if str(worse) == str(refused):
                raise refused from error
            again = one_line(worse).removeprefix(f"{request.source}: ")
            raise type(refused)(f"{refused}. Asked with the table as it came: {again}") from error


def _kind(estimator: Any) -> str:
    return framework(_split(estimator)[1]) or "scikit-learn"


def _opened(request: Request, estimator: Any, print_of: str, remark: str = "") -> Opened:
    """Return an estimator by what it is and what its parts say of their inputs.

    A pipeline is given the table's own labels and numbers. A bare estimator is given the columns that its feature
    names say; where it has no names, the numbers of the domain's encoding or the table's own.
    """
    estimator = getattr(estimator, "best_estimator_", estimator)  # a finished search for hyperparameters
    steps, final = _split(estimator)
    kind = framework(final) or "scikit-learn"
    if kind == "XGBoost" and type(estimator).__name__ == "Booster":
        return xgboost_file.open_booster(request, estimator, print_of)
    ask, probability = _question(request, estimator, final)
    reader = _reader(estimator)
    inputs = tree_columns(reader, request.domain) or reader
    ways = readings(request, inputs, bare=not _split(reader)[0], names=input_names(estimator))
    reading, answers = first_that_works(request, ways, ask)
    # What has no predict_proba has margins, which a sigmoid would not turn into probabilities.
    again: dict[str, Any] = {"scale": "numbers"} if probability is False else {}
    if _classes(final) is not None:
        named, order = np.asarray(_classes(final)), class_order(request.domain, _classes(final))
        reopen = partial(open_estimator, request, print_of="fitted again")
        again["refit"] = refitting(estimator, final, reading.given, named if order is None else named[order], reopen)
        again["save"] = lambda _, path: dump(estimator, path)
    if _is_detector(final):
        again["unassessed"] = "it looks for outliers and was fitted without labels"
    places = reading.by_position
    if places is None:
        places = functions.reads_places(ask, reading.given(request.tried), answers)
    again["by_position"] = places
    why = "boosted trees have no neurons to look at"
    if kind == "scikit-learn":
        why = f"{type(final).__name__} has no neurons to look at"
    said = positions(request) if places and not reading.declared else ""
    remark = "; ".join(filter(None, (reading.note, said, by_position(request.domain, _classes(final)), remark)))
    if _decides_otherwise(request, estimator, final, reading, answers):
        ask, probability = _by_predict(request, estimator, final), None
        why = "its decisions are not those of its largest score, so it is asked by its method predict"
    elif is_network(final):
        try:
            transform = _transform(steps, reading)
            wide = any(attribute.size > MAX_CURVE for attribute in request.domain.attributes)
            trusted = _STRAIGHT if wide else _STRAIGHT | _BENT
            encoding, modules = networks(request, transform, final, _unknown(estimator, trusted))
            module = next((each for each in modules if _agrees(each, encoding, request, answers)), None)
            if module is None:
                mixed = mixes_columns(transform, request.tried)
                raise NotLinear("its preprocessing mixes columns" if mixed else "its scores could not be reproduced")
            note = "; ".join(filter(None, ("its preprocessing has become the first layer" if steps else "", remark)))
            make = partial(request.white_box, kind, module, encoding=encoding, note=note)
            opened = make(probability=bool(probability), hidden=is_perceptron(final))
            # The numbers of the first layer depend on the row it was probed with, so they are no fingerprint.
            again["original"] = lambda rows: ask(reading.given(rows))
            known = replace(opened, fingerprint=print_of, inputs=ask if reading.declared else None, **again)
            return with_frames(known, ask, reading)
        except NotLinear as reason:
            why = str(reason)
    why = "; ".join(filter(None, (why, remark)))
    opened = request.black_box(
        kind, lambda rows: ask(reading.given(rows)), why, probability=probability, print_of=print_of
    )
    if not _hides_trees(estimator, steps, final):
        made = partial(
            forest_of, final, partial(_before, steps, reading), opened.model.scores, request.domain, request.tried
        )
        opened = opened.with_trees(made)
    return with_frames(replace(opened, inputs=ask if reading.declared else None, **again), ask, reading)


def _is_detector(final: Any) -> bool:
    return isinstance(final, needs("sklearn.base", "sklearn").OutlierMixin)


def _agrees(module: nn.Module, encoding: TableEncoding, request: Request, answers: np.ndarray) -> bool:
    """Return whether a network gives the model's own answers to the tried rows.

    The layers are built in float64, so that only the numbers of the network itself are rounded.
    """
    scores = module(encoding.encode(request.tried)).detach().numpy()
    atol = AGREE * max(1.0, np.abs(answers).max())
    return scores.shape == answers.shape and np.allclose(scores, answers, rtol=0, atol=atol)


def _read_skops(request: ModelFile) -> Any:
    skops = needs("skops.io", "sklearn")
    content = _checked(request)
    unknown = skops.get_untrusted_types(data=content)
    doubtful = [name for name in unknown if name not in _PLAIN]
    if doubtful and not request.trust_pickle:
        names = ", ".join(doubtful[:6]) + (", …" if len(doubtful) > 6 else "")
        raise request.error(f"holds types that can run a program when opened: {names}. If you trust it: --trust-pickle")
    return skops.loads(content, trusted=unknown)


def _checked(request: ModelFile) -> bytes:
    """Return a .skops archive, unpacked, after a look at how large it and the arrays in it are."""
    files = members(request.content, request.source)
    check_size(len(files["schema.json"]), request.source, times=TREE)
    total = sum(map(len, files.values()))
    for name, content in files.items():
        arrays = {name: content}
        if name.endswith(".npz"):  # a sparse matrix: an archive in the archive
            arrays = members(content, request.source, besides=total)
            total += sum(map(len, arrays.values()))
            files[name] = repacked(arrays)
        for array in arrays:
            if array.endswith(".npy"):
                check_array(arrays[array])
    asked = 0

    def note(entry: dict[str, Any]) -> None:
        nonlocal asked
        asked += len(files.get(entry.get("file", ""), ""))

    json.loads(files["schema.json"], object_hook=note)
    check_size(asked, request.source, times=2)  # an array that is asked for twice is read twice
    return repacked(files)


def _reader(estimator: Any) -> Any:
    """Return what is given the rows: a model itself, or the one in a wrapper such as one that sets its threshold."""
    place = WRAPPERS.get(type(estimator).__name__)
    if place is None:
        return estimator
    inner = getattr(estimator, place)
    return _reader(next(iter(inner)) if isinstance(inner, list) or hasattr(inner, "iloc") else inner)


def _split(estimator: Any) -> tuple[list[Any], Any]:
    """Return the transformers of a pipeline, also of one inside another, and what stands at its end."""
    if not hasattr(estimator, "steps"):
        return [], estimator
    *before, (_, last) = estimator.steps
    # A sampler of imbalanced-learn changes the rows of a training only.
    steps = [step for _, step in before if step not in (None, "passthrough") and not hasattr(step, "fit_resample")]
    more, final = _split(last)
    return steps + more, final


def _question(request: Request, estimator: Any, final: Any) -> tuple[Callable[[Any], np.ndarray], bool | None]:
    """Return how to ask an estimator for scores in the order of the domain's classes, and what a single one means."""
    classes = _classes(final)
    if isinstance(classes, list) or getattr(getattr(final, "_label_binarizer", None), "y_type_", "").startswith(
        "multilabel"
    ):
        raise request.error("decides several questions at once; give a function that answers one of them")
    order = class_order(request.domain, classes)
    name = next((name for name in ("predict_proba", "decision_function") if hasattr(estimator, name)), None)
    if name is not None:
        method = getattr(estimator, name)
        return lambda table: ordered(np.asarray(_quietly(method, table)), order), name == "predict_proba"
    if framework(final) == "CatBoost" and classes is not None:  # of the general class, whose scores are no shares
        method = partial(estimator.predict, prediction_type="Probability")
        return lambda table: ordered(np.asarray(_quietly(method, table)), order), True
    if classes is None:  # a regression: its number stands for the second class from one half on; or bare trees
        return lambda table: _numbers(request, _quietly(estimator.predict, table), len(table)), True
    return _by_predict(request, estimator, final), None


def _numbers(request: Request, answer: Any, rows: int) -> np.ndarray:
    """Return the numbers that a model without classes predicts; refuse labels, which are no quantities."""
    numbers = np.asarray(answer).reshape(rows, -1)
    if numbers.shape[1] == 1 and labels_of(request.domain, numbers[:, 0]) is not None:
        raise request.error("it predicts labels and does not say which there are")
    return numbers


def _by_predict(request: Request, estimator: Any, final: Any) -> Callable[[Any], np.ndarray]:
    """Return how to ask a classifier for its decisions: 1 for the class it chooses and 0 for the others."""
    known, order = np.asarray(_classes(final)), class_order(request.domain, _classes(final))
    return lambda table: ordered(_chosen(estimator, table)[:, None] == known, order).astype(float)


def _chosen(estimator: Any, table: Any) -> np.ndarray:
    return np.asarray(_quietly(estimator.predict, table)).reshape(len(table))


def _decides_otherwise(
    request: Request, estimator: Any, final: Any, reading: EstimatorInputs, answers: np.ndarray
) -> bool:
    """Return whether a classifier decides by something else than its largest score, such as a tuned threshold."""
    classes = _classes(final)
    if classes is None or (request.decision is not None and request.decision.kind != "argmax"):
        return False
    if answers.shape[1] == 1:  # the score of the second class, positive if it is chosen
        if request.decision is not None:  # one score has no largest
            return True
        answers = np.concatenate([-answers, answers], 1)
    try:
        chosen = _by_predict(request, estimator, final)(reading.given(request.tried)) > 0
    except Exception:  # the estimator's own code, which is then asked for scores only
        return False
    if chosen.shape != answers.shape or not (chosen.sum(1) == 1).all():
        return False
    return bool((answers.argmax(1) != chosen.argmax(1)).any())  # of equal scores it may choose another


def _classes(final: Any) -> Any:
    classes: Any = getattr(final, "classes_", None)
    return classes if isinstance(classes, list) or (np.ndim(classes) == 1 and len(classes)) else None


def _quietly(method: Callable[[Any], Any], table: Any) -> Any:
    """Call a method of an estimator; it may warn of unknown categories on every call, which the user knows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return method(table)


def _transform(steps: Sequence[Any], reading: EstimatorInputs) -> Transform:
    """Return what stands before the final estimator as a function of rows."""

    def transform(rows: Tensor) -> np.ndarray:
        features = _before(steps, reading, rows)
        return np.asarray(features.toarray() if hasattr(features, "toarray") else features, dtype=np.float64)

    return transform


def _unknown(part: Any, known: set[str]) -> str | None:
    """Return the class of the first part of a pipeline that may do anything to some rows; None: all are known.

    Known are scikit-learn's own models, and some of its transformers: each column by itself, or a linear mixture.
    """
    if part is None or isinstance(part, str):  # passthrough, drop
        return None
    kind = type(part)
    own = kind.__module__.partition(".")[0] == "sklearn" and not set(vars(part)) & _METHODS
    if own and kind.__name__ == "FunctionTransformer" and part.func is None:  # what a fitted passthrough is
        return None
    if not own or (hasattr(part, "transform") and not hasattr(part, "predict") and kind.__name__ not in known):
        return f"the step {kind.__name__}"
    inner = [step for _, step in getattr(part, "steps", ())] + [
        step for _, step in getattr(part, "transformer_list", ())
    ]
    inner += [step for _, step, _ in getattr(part, "transformers_", ())]
    return next((name for one in inner if (name := _unknown(one, known)) is not None), None)


def _hides_trees(estimator: Any, steps: Sequence[Any], final: Any) -> bool:
    """Return whether the trees alone may not say what a model decides.

    A step that may be any program stands before them, a method was replaced, or a number stands for an empty cell.
    """
    missing = getattr(final, "missing", None)  # of XGBoost: what counts as empty
    return (
        any(_unknown(step, _STRAIGHT | _BENT) is not None for step in steps)
        or any(set(vars(part)) & _METHODS for part in (estimator, final))
        or type(final).__module__.partition(".")[0] not in _LIBRARIES
        or (isinstance(missing, (int, float)) and not isnan(missing))
    )


def _before(steps: Sequence[Any], reading: EstimatorInputs, rows: Tensor) -> Any:
    """Return what the final estimator is given."""
    features = reading.given(rows)
    for step in steps:
        features = _quietly(step.transform, features)
    return features
