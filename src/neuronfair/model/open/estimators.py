"""Fitted models and functions that answer a table: as networks where their inside is known, else as black boxes."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import pickle
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from neuronfair.errors import ModelError, NeuronFairError, needs, one_line
from neuronfair.limits import TREE, TooLarge, check_array, check_size, members, repacked
from neuronfair.model.blackbox import as_scores
from neuronfair.model.decision import Scale
from neuronfair.model.open.classes import Labels, by_position, class_order, labels_of, ordered
from neuronfair.model.open.columns import CONSTANTS, WRAPPERS, input_names
from neuronfair.model.open.estimator_networks import NotLinear, hides_trees, is_network, is_perceptron, network_of
from neuronfair.model.open.inputs import (
    ModelInputs,
    as_array,
    estimator_inputs,
    first_accepted,
    function_inputs,
    positions,
)
from neuronfair.model.open.opened import Opened, Refit, black_box, white_box
from neuronfair.model.open.request import TOLERANCE, ModelFile, Request
from neuronfair.model.open.trees import catboost, lightgbm, xgboost
from neuronfair.model.open.trees.forests import forest_of, framework, tree_columns

DIGITS = 6  # of the answers that a function is known by
GROUPS = "sensitive_features"  # the argument by which models of Fairlearn are given the groups
# The one that says most first; the third, of Fairlearn, is the probability of decisions that are drawn at random.
_METHODS = ("predict_proba", "decision_function", "_pmf_predict", "predict")


@dataclass(frozen=True)
class Question:
    """How a model is asked with a table, and what its answers are.

    `classes` are the names that the model itself has for its scores, or for its `decisions`. `probability` says whether
    a single score is one; None: if it lies within 0 and 1. `columns` are those that it is given, if they are known.
    """

    answer: Callable[[Any], Any]
    classes: Any = None
    decisions: bool = False
    probability: bool | None = None
    columns: Sequence[str] | None = None
    note: str = ""


@dataclass(frozen=True)
class AnsweringModel:
    """A model that has answered the tried rows of a request, which it was given as `inputs`."""

    request: Request
    kind: str
    question: Question
    inputs: ModelInputs
    answers: np.ndarray
    labels: Labels | None

    @staticmethod
    def of(request: Request, kind: str, question: Question, ways: Sequence[ModelInputs]) -> AnsweringModel:
        """Return a model with the first inputs that it accepts."""
        inputs, answers = first_accepted(request, ways, lambda table: as_array(question.answer(table)))
        labels = labels_of(request.domain, _flat(answers)) if question.classes is None else None
        if inputs.by_position is None:
            by_position = reads_places(question.answer, inputs.of_rows(request.tried), answers)
            inputs = replace(inputs, by_position=by_position)
        return AnsweringModel(request, kind, question, inputs, answers, labels)

    def scores_of(self, answers: np.ndarray) -> np.ndarray:
        """Return answers as scores in the order of the domain's classes: (n, outputs)."""
        if self.labels is not None:
            return self.labels.scores(_flat(answers))
        classes = self.question.classes
        if self.question.decisions:
            answers = (answers.reshape(len(answers), 1) == np.asarray(classes)).astype(float)
        return as_scores(ordered(answers, class_order(self.request.domain, classes)))

    def scores_of_table(self, table: Any) -> np.ndarray:
        """Return the model's scores for what it is given."""
        return self.scores_of(as_array(self.question.answer(table)))

    def scores(self, rows: Tensor) -> np.ndarray:
        """Return the model's scores for rows of codes."""
        return self.scores_of_table(self.inputs.of_rows(rows))

    def note(self, *remarks: str) -> str:
        """Return all that the user must know of how the model is asked."""
        inputs = self.inputs
        in_order = positions(self.request) if inputs.by_position and not inputs.declared else ""
        matched = by_position(self.request.domain, self.question.classes)
        labels = "" if self.labels is None else self.labels.note
        first, *others = remarks
        return "; ".join(filter(None, (first, inputs.note, in_order, matched, labels, self.question.note, *others)))

    def completed(self, opened: Opened, **facts: Any) -> Opened:
        """Return an opened model with what is known of how it is asked."""
        of_frame = self.inputs.of_frame
        return replace(
            opened,
            inputs=self.scores_of_table if self.inputs.declared else None,
            scores_of_frame=None if of_frame is None else lambda table: self.scores_of_table(of_frame(table)),
            by_position=bool(self.inputs.by_position),
            **({"unassessed": "" if self.labels is None else self.labels.unassessed} | facts),
        )

    def black_box(self, note: str, print_of: str | None, **facts: Any) -> Opened:
        """Return the model as a black box."""
        made = black_box(
            self.request,
            self.kind,
            self.scores,
            note,
            probability=self.question.probability,
            print_of=print_of or f"{self.kind} {self.request.source}",
        )
        return self.completed(made, **facts)


def open(request: Request) -> Opened:  # noqa: A001 - each reader has a function of this name
    """Read the file of a fitted model."""
    estimator, remark = read_file(request)
    return open_estimator(request, estimator, request.digest, remark)


def names(file: ModelFile) -> list[str] | None:
    """Return the names of the columns that the model in a file reads, if it says them."""
    return input_names(read_file(file)[0])


def open_function(request: Request, function: Any) -> Opened:
    """Return a function of a table as a black box, known by its source code and by its answers."""
    columns = _known_columns(request, function)
    question = Question(_quiet(function) if inspect.ismethod(function) else function)
    answering = AnsweringModel.of(request, "Python function", question, function_inputs(request, columns))
    why = "a Python function shows nothing of itself; it is given tables of labels and numbers"
    return known_by_answers(request, answering.black_box(answering.note(why), None), function)


def open_estimator(request: Request, estimator: Any, print_of: str | None, remark: str = "") -> Opened:
    """Return a fitted estimator as a network if it is a perceptron or linear, behind ordinary preprocessing or not.

    All others are black boxes. A pipeline is given the table's own labels and numbers. A bare estimator is given the
    columns that its feature names say; where it has no names, the numbers of the domain's encoding or the table's own.
    Without a fingerprint it is known by its answers.
    """
    estimator = getattr(estimator, "best_estimator_", estimator)  # a finished search for hyperparameters
    steps, final = _split(estimator)
    kind = framework(final) or "scikit-learn"
    question = question_of(request, estimator, final)
    if question.columns is not None:
        ways = function_inputs(request, question.columns)
    else:
        booster = isinstance(question.answer, xgboost.BoosterPredictor)
        reader = question.answer if booster else _reader(estimator)
        trees = None if booster else tree_columns(reader, request.domain)
        bare, columns = not _split(reader)[0], input_names(estimator)
        ways = estimator_inputs(request, reader, bare=bare, names=columns, trees=trees)
    answering = AnsweringModel.of(request, kind, question, ways)
    facts = _facts(answering, estimator, final)
    why = "boosted trees have no neurons to look at"
    if kind == "scikit-learn":
        why = f"{type(final).__name__} has no neurons to look at"
    opened: Opened | None = None
    if _decides_otherwise(answering, estimator):
        decisions = replace(question, answer=_predict(estimator), decisions=True, probability=None)
        answering = replace(answering, question=decisions)
        why = "its decisions are not those of its largest score, so it is asked by its method predict"
    elif is_network(final):
        try:
            scores = answering.scores_of(answering.answers)
            encoding, module = network_of(request, estimator, (steps, final), answering.inputs, scores)
            note = answering.note("its preprocessing has become the first layer" if steps else "", remark)
            make = partial(white_box, request, kind, module, encoding=encoding, note=note)
            made = make(probability=bool(question.probability), hidden=is_perceptron(final))
            opened = answering.completed(replace(made, original=answering.scores), **facts)
        except TooLarge:
            raise
        except NotLinear as reason:
            why = str(reason)
        except Exception as error:  # the estimator's own code
            why = f"its inside was not read ({one_line(error)})"
    if opened is None:
        opened = answering.black_box(answering.note(why, remark), print_of, **facts)
        if answering.inputs.program is None and not hides_trees(estimator, steps, final):
            order = class_order(request.domain, question.classes)
            before = partial(_before, steps, answering.inputs)
            ask, tried = opened.model.scores, request.tried
            opened = opened.with_trees(partial(forest_of, final, before, ask, request.domain, tried, order))
    if print_of is None:
        return known_by_answers(request, opened, estimator)
    # The numbers of a network's first layer depend on the row it was probed with, so they are no fingerprint.
    return replace(opened, fingerprint=print_of)


def question_of(request: Request, estimator: Any, final: Any) -> Question:
    """Return how a fitted model is asked: for probabilities, scores, or decisions, by what it has."""
    if framework(final) == "XGBoost" and type(final).__name__ == "Booster":
        booster = xgboost.BoosterPredictor(final)
        return Question(booster, probability=booster.probability, note=booster.note)
    name = next(name for name in _METHODS if callable(getattr(estimator, name, None)))
    method, classes = _quiet(getattr(estimator, name)), _classes(final)
    several = str(getattr(getattr(final, "_label_binarizer", None), "y_type_", "")).startswith("multilabel")
    if isinstance(classes, list) or several:
        raise request.error("decides several questions at once; give a function that answers one of them")
    note = "its decisions are drawn at random, so the probability of each is compared" * (name == "_pmf_predict")
    if by_groups(estimator):
        return _with_groups(request, estimator, method, note)
    exogenous = getattr(getattr(estimator, "model", None), "exog_names", None)
    if exogenous is not None and not hasattr(estimator.model, "formula"):  # of statsmodels
        return _with_ones(request, method, list(exogenous))
    if name == "predict" and classes is not None:
        if framework(final) != "CatBoost":
            return Question(method, classes, decisions=True)
        method = _quiet(partial(estimator.predict, prediction_type="Probability"))
    # A regression's number stands for the second class from one half on.
    return Question(method, classes, probability=name != "decision_function", note=note)


def _with_groups(request: Request, estimator: Any, method: Callable[..., Any], note: str) -> Question:
    """Return a question to a model of Fairlearn, which is given the demographic groups next to its inputs."""
    groups, inputs = list(request.domain.sensitive), input_names(estimator) or list(request.domain.names)
    note = "; ".join(filter(None, (note, f"it is given {', '.join(groups)} as {GROUPS}")))

    def answer(table: Any) -> Any:
        return method(table[inputs], **{GROUPS: table[groups if len(groups) > 1 else groups[0]]})

    return Question(answer, probability=True, columns=[*inputs, *(g for g in groups if g not in inputs)], note=note)


def _with_ones(request: Request, method: Callable[..., Any], names: list[str]) -> Question:
    """Return a question to a model of statsmodels, which is given a column of ones where it was fitted with one."""
    places = [place for place, name in enumerate(names) if name in CONSTANTS]
    inputs = [name for name in names if name not in CONSTANTS]
    known = inputs if set(inputs) <= set(request.domain.names) else list(request.domain.names)

    def answer(table: Any) -> Any:
        numbers = table.to_numpy(dtype=np.float64)
        for place in places:
            numbers = np.insert(numbers, place, 1.0, axis=1)
        return method(numbers)

    return Question(answer, columns=known, note="it is given a column of ones, as it was fitted" if places else "")


def by_groups(model: Any) -> bool:
    """Return whether a model must be given the demographic groups next to its inputs."""
    try:
        return GROUPS in inspect.signature(model.predict).parameters
    except (AttributeError, TypeError, ValueError):
        return False


def _known_columns(request: Request, model: Any) -> list[str] | None:
    columns = input_names(model)
    return columns if columns is not None and set(columns) <= set(request.domain.names) else None


def _quiet(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a model without its warnings, which would come with every call: unknown categories, names."""

    def call(*arguments: Any, **named: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return method(*arguments, **named)

    return call


def _facts(answering: AnsweringModel, estimator: Any, final: Any) -> dict[str, Any]:
    """Return what is known of an estimator besides its scores: their scale, and how it is fitted anew and written."""
    request, classes = answering.request, answering.question.classes
    facts: dict[str, Any] = {}
    if answering.question.probability is False and answering.kind != "XGBoost":
        scale: Scale = "numbers"  # margins, which a sigmoid would not turn into probabilities
        facts["scale"] = scale
    if classes is not None:
        order, known = class_order(request.domain, classes), np.asarray(classes)
        reopen = partial(open_estimator, request, print_of="fitted again")
        known = known if order is None else known[order]
        facts["refit"] = refitting(estimator, final, answering.inputs.of_rows, known, reopen)
        facts["save"] = lambda _, path: dump(estimator, path)
    if isinstance(final, needs("sklearn.base", "sklearn").OutlierMixin):
        facts["unassessed"] = "it looks for outliers and was fitted without labels"
    return facts


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


def _before(steps: Sequence[Any], inputs: ModelInputs, rows: Tensor) -> Any:
    """Return what the final estimator is given."""
    features = inputs.of_rows(rows)
    for step in steps:
        features = _quiet(step.transform)(features)
    return features


def _classes(final: Any) -> Any:
    classes: Any = getattr(final, "classes_", None)
    return classes if isinstance(classes, list) or (np.ndim(classes) == 1 and len(classes)) else None


def _predict(estimator: Any) -> Callable[[Any], Any]:
    return lambda table: np.asarray(_quiet(estimator.predict)(table)).reshape(len(table))


def _decides_otherwise(answering: AnsweringModel, estimator: Any) -> bool:
    """Return whether a classifier decides by something else than its largest score, such as a tuned threshold."""
    decision, question, scores = answering.request.decision, answering.question, answering.scores_of(answering.answers)
    if question.classes is None or question.decisions or (decision is not None and decision.kind != "argmax"):
        return False
    if scores.shape[1] == 1:  # the score of the second class, positive if it is chosen
        if decision is not None:  # one score has no largest
            return True
        scores = np.concatenate([-scores, scores], 1)
    by_decisions = replace(answering, question=replace(question, decisions=True))
    try:
        chosen = by_decisions.scores_of(_predict(estimator)(answering.inputs.of_rows(answering.request.tried))) > 0
    except Exception:  # the estimator's own code, which is then asked for scores only
        return False
    if chosen.shape != scores.shape or not (chosen.sum(1) == 1).all():
        return False
    return bool((scores.argmax(1) != chosen.argmax(1)).any())  # of equal scores it may choose another


def reads_places(answer: Callable[[Any], Any], table: Any, answers: np.ndarray) -> bool:
    """Return whether a model reads columns by their place: it answers the same if they exchange their names."""
    if not hasattr(table, "columns"):
        return True
    if table.shape[1] < 2:
        return False
    try:
        other = as_array(answer(table.set_axis(table.columns[::-1], axis=1)))
    except Exception:  # the user's own code, which misses a name
        return False
    if other.shape != answers.shape:
        return False
    if answers.dtype.kind in "fiub" and other.dtype.kind in "fiub":
        same = np.allclose(other.astype(float), answers.astype(float), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
        return bool(same) and len(np.unique(answers, axis=0)) > 1
    return bool((other == answers).all()) and len(set(_flat(answers).tolist())) > 1


def _flat(answers: np.ndarray) -> np.ndarray:
    return answers[:, 0] if answers.ndim == 2 and answers.shape[1] == 1 else answers


def known_by_answers(request: Request, found: Opened, code: Any) -> Opened:
    """Return a function, known by its source code and by its answers.

    The code alone is not enough: it may read a file or call other functions, which can change. The answers are those
    to rows that are the same for every table, and in a batch of their own.
    """
    scores = found.model.scores(request.drawn.to(request.device)).cpu().numpy()
    found.model.rows_forward = 0
    answers = (scores.round(DIGITS) + 0.0).tobytes()  # 0.0 turns -0.0 into 0.0
    return replace(found, fingerprint=hashlib.sha256(source_code(code).encode() + answers).hexdigest())


def source_code(function: Any) -> str:
    """Return the source code of a function, or the name of its type where there is none to read."""
    try:
        return inspect.getsource(function)
    except (TypeError, OSError):
        return repr(type(function))


def refitting(
    estimator: Any, final: Any, inputs: Callable[[Tensor], Any], classes: np.ndarray, reopen: Callable[[Any], Opened]
) -> Refit:
    """Return what fits a copy of an estimator to rows and labels; `classes` are its own, in the order of the domain's.

    `final` stands at the end of it, `inputs` turns rows into what it is given, and `reopen` opens the copy.
    """

    def refit(rows: Tensor, labels: Tensor, seed: int) -> Opened:
        state = np.random.get_state()
        np.random.seed(seed % 2**32)  # what draws from numpy's common random state starts at a known place
        try:
            again = needs("sklearn.base", "sklearn").clone(estimator)
            last = again.steps[-1][1] if hasattr(again, "steps") else again
            if type(final).__module__.startswith("catboost") and hasattr(last, "set_params"):
                last.set_params(allow_writing_files=False)  # or it leaves a folder where the user stands
            with redirect_stdout(io.StringIO()):
                _quiet(again.fit)(inputs(rows), classes[labels.cpu().numpy()])
        except Exception as error:  # the estimator's own code
            raise ModelError(
                f"{type(final).__name__} cannot be fitted again with rows and labels alone ({one_line(error)}). Add "
                "the pairs to your own training data: --augment pairs.csv"
            ) from error
        finally:
            np.random.set_state(state)
        return reopen(again)

    return refit


def dump(estimator: Any, path: Path) -> None:
    """Write an estimator in the format that the name of the file says."""
    suffix = path.suffix.lower()
    if suffix == ".skops":
        needs("skops.io", "sklearn").dump(estimator, path)
    elif suffix == ".joblib":
        needs("joblib", "sklearn").dump(estimator, path)
    else:  # whoever reads it with pickle could not read what joblib writes
        path.write_bytes(pickle.dumps(estimator))


# Types in the files of ordinary perceptrons that skops does not list as safe; none of them runs anything when opened.
_PLAIN = {
    "numpy.dtype",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    "sklearn.compose._column_transformer._RemainderColsList",
}


def read_file(file: ModelFile) -> tuple[Any, str]:
    """Return the model in a file, and a remark for the user; a pickle is opened whoever has made it."""
    suffix = file.path.suffix.lower()
    if suffix in (".ubj", ".json"):
        return xgboost.read(file)
    if suffix in (".txt", ".cbm"):
        return (lightgbm.read if suffix == ".txt" else catboost.read)(file), ""
    needs("sklearn", "sklearn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            estimator = _read_skops(file) if suffix == ".skops" else needs("joblib", "sklearn").load(file.path)
        except (Exception, SystemExit) as error:
            if isinstance(error, NeuronFairError):
                raise
            raise file.error(f"cannot be read ({type(error).__name__}: {one_line(error)})") from error
    if not is_estimator(estimator):
        raise file.error(f"holds no model with a method predict, but {type(estimator).__name__}")
    old = next((w.message for w in caught if w.category.__name__ == "InconsistentVersionWarning"), None)
    version = getattr(old, "original_sklearn_version", None)
    return estimator, f"it was saved by scikit-learn {version}, which is not the version used here" if version else ""


def is_estimator(thing: Any) -> bool:
    """Return whether something is a fitted model in the manner of scikit-learn."""
    return not isinstance(thing, (type, nn.Module)) and callable(getattr(thing, "predict", None))


def _read_skops(file: ModelFile) -> Any:
    skops = needs("skops.io", "sklearn")
    content = _checked(file)
    unknown = skops.get_untrusted_types(data=content)
    doubtful = [name for name in unknown if name not in _PLAIN]
    if doubtful and not file.trust_pickle:
        names = ", ".join(doubtful[:6]) + (", …" if len(doubtful) > 6 else "")
        raise file.error(f"holds types that can run a program when opened: {names}. If you trust it: --trust-pickle")
    return skops.loads(content, trusted=unknown)


def _checked(file: ModelFile) -> bytes:
    """Return a .skops archive, unpacked, after a look at how large it and the arrays in it are."""
    files = members(file.content, file.source)
    check_size(len(files["schema.json"]), file.source, times=TREE)
    total = sum(map(len, files.values()))
    for name, content in files.items():
        arrays = {name: content}
        if name.endswith(".npz"):  # a sparse matrix: an archive in the archive
            arrays = members(content, file.source, besides=total)
            total += sum(map(len, arrays.values()))
            files[name] = repacked(arrays)
        for array in arrays:
            if array.endswith(".npy"):
                check_array(arrays[array])
    read = 0

    def note(entry: dict[str, Any]) -> None:
        nonlocal read
        read += len(files.get(entry.get("file", ""), ""))

    json.loads(files["schema.json"], object_hook=note)
    check_size(read, file.source, times=2)  # an array that is named twice is read twice
    return repacked(files)
