"""Models that are asked with a table: functions, and whatever has predict_proba, decision_function or predict."""

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from neuronfair.errors import one_line
from neuronfair.model.blackbox import as_scores
from neuronfair.model.open.classes import Labels, labels_of
from neuronfair.model.open.columns import CONSTANTS, input_names
from neuronfair.model.open.estimator_inputs import EstimatorInputs, positions
from neuronfair.model.open.frames import Frames
from neuronfair.model.open.request import TOLERANCE, Opened, Request

DIGITS = 6  # of the answers that a function is known by
GROUPS = "sensitive_features"  # the argument by which models of Fairlearn are given the groups
_METHODS = ("predict_proba", "decision_function", "_pmf_predict", "predict")  # the one that says most first
Answer = Callable[[Any], Any]  # from a table to scores, numbers or labels


@dataclass(frozen=True)
class TableQuestion:
    """How a model is asked with a table: which columns it reads, in which order if that is known."""

    answer: Answer
    columns: Sequence[str] | None = None
    probability: bool | None = None  # whether a single score is one; None: if it lies within 0 and 1
    note: str = ""


def open_function(request: Request, function: Any) -> Opened:
    """Return a function of a table as a black box, known by its source code and by its answers."""
    columns = input_names(function)
    why = "a Python function shows nothing of itself; it is given tables of labels and numbers"
    known = columns if columns is not None and set(columns) <= set(request.domain.names) else None
    question = TableQuestion(_quiet(function) if inspect.ismethod(function) else function, known)
    return known_by_answers(request, open_asked(request, "Python function", question, why), function)


def open_estimator(request: Request, kind: str, estimator: Any, reason: str, print_of: str | None) -> Opened:
    """Return a fitted model as a black box that is asked with tables, because its inside could not be read."""
    question = question_of(request, estimator)
    opened = open_asked(
        request, kind, question, f"its inside was not read ({reason}); it is given the table as it came"
    )
    if print_of is None:
        return known_by_answers(request, opened, estimator)
    return replace(opened, fingerprint=print_of)


def open_asked(request: Request, kind: str, question: TableQuestion, why: str) -> Opened:
    """Return what answers tables as a black box: with scores, or with labels in numbers or text."""
    reading, answers = _accepted(request, question)
    labels = labels_of(request.domain, answers)
    ask = partial(_scores, question.answer, labels)
    by_position = question.columns is None and reads_places(question.answer, reading.given(request.tried), answers)
    said = ("" if labels is None else labels.note, question.note, positions(request) if by_position else "")
    found = request.black_box(
        kind,
        lambda rows: ask(reading.given(rows)),
        "; ".join(filter(None, (why, *said))),
        probability=question.probability,
        print_of=f"{kind} {request.source}",
    )
    assert reading.of_frame is not None
    of_frame = reading.of_frame
    return replace(
        found,
        scores_of_frame=lambda table: ask(of_frame(table)),
        by_position=by_position,
        unassessed="" if labels is None else labels.unassessed,
    )


def question_of(request: Request, estimator: Any) -> TableQuestion:
    """Return how a fitted model is asked: for probabilities, scores, or decisions, by what it has."""
    name = next(name for name in _METHODS if callable(getattr(estimator, name, None)))
    method, columns = _quiet(getattr(estimator, name)), input_names(estimator)
    known = columns if columns is not None and set(columns) <= set(request.domain.names) else None
    note = "its decisions are drawn at random, so the probability of each is compared" * (name == "_pmf_predict")
    groups = list(request.domain.sensitive)
    if by_groups(estimator):
        read = columns or list(request.domain.names)
        note = "; ".join(filter(None, (note, f"it is given {', '.join(groups)} as {GROUPS}")))
        return TableQuestion(
            lambda table: method(table[read], **{GROUPS: table[groups if len(groups) > 1 else groups[0]]}),
            [*read, *(group for group in groups if group not in read)],
            note=note,
        )
    exogenous = getattr(getattr(estimator, "model", None), "exog_names", None)
    if exogenous is not None and not hasattr(estimator.model, "formula"):  # of statsmodels
        return _with_ones(request, method, list(exogenous))
    return TableQuestion(
        method, known, probability=True if name in ("predict_proba", "_pmf_predict") else None, note=note
    )


def _quiet(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a model without its warnings, which would come with every call: unknown categories, names."""

    def asked(*given: Any, **named: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return method(*given, **named)

    return asked


def by_groups(model: Any) -> bool:
    """Return whether a model must be given the demographic groups beside its inputs."""
    try:
        return GROUPS in inspect.signature(model.predict).parameters
    except (AttributeError, TypeError, ValueError):
        return False


def _with_ones(request: Request, method: Answer, names: list[str]) -> TableQuestion:
    """Return a question to a model of statsmodels, which is given a column of ones where it was fitted with one."""
    places = [place for place, name in enumerate(names) if name in CONSTANTS]
    read = [name for name in names if name not in CONSTANTS]
    known = read if set(read) <= set(request.domain.names) else None

    def answer(table: Any) -> Any:
        numbers = table.to_numpy(dtype=np.float64)
        for place in places:
            numbers = np.insert(numbers, place, 1.0, axis=1)
        return method(numbers)

    return TableQuestion(answer, known, note="it is given a column of ones, as it was fitted" if places else "")


def _accepted(request: Request, question: TableQuestion) -> tuple[EstimatorInputs, np.ndarray]:
    """Return the first way to give rows that a model accepts, and its answers to the tried rows."""
    domain, types = request.domain.to("cpu"), request.types
    tables = [Frames(domain, question.columns, types=types)]
    if any(attribute.date is not None for attribute in domain.attributes):  # a text file has no dates, but texts
        tables.append(Frames(domain, question.columns, types=types, dates=True))
    ways = [_prepared(request, table.of_rows, table.of_frame) for table in tables]
    if request.preprocess is None:
        array = tables[0]
        ways.append(_prepared(request, _arrays(array.of_rows), _arrays(array.of_frame)))
    first: Exception | None = None
    for way in ways:
        try:
            return way, _plain(question.answer(way.given(request.tried)))
        except Exception as error:  # the user's own code
            first = first or error
    assert first is not None
    shape = (len(request.tried), len(tables[0].columns))
    raise request.error(f"the black box failed on rows of shape {shape}: {one_line(first)}") from first


def _prepared(request: Request, given: Answer, of_frame: Answer) -> EstimatorInputs:
    prepare = request.preprocess
    if prepare is None:
        return EstimatorInputs(given, of_frame=of_frame)
    return EstimatorInputs(lambda rows: prepare(given(rows)), of_frame=lambda table: prepare(of_frame(table)))


def _arrays(given: Answer) -> Answer:
    return lambda rows: given(rows).to_numpy()


def _plain(answer: Any) -> np.ndarray:
    found: np.ndarray = np.asarray(answer.detach().cpu() if isinstance(answer, torch.Tensor) else answer)
    if found.ndim == 0:
        raise ValueError(f"expected one score or label for each row, got {type(answer).__name__}")
    return found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found


def _scores(answer: Answer, labels: Labels | None, table: Any) -> np.ndarray:
    found = _plain(answer(table))
    return as_scores(found) if labels is None else labels.scores(found)


def reads_places(answer: Answer, table: Any, answers: np.ndarray) -> bool:
    """Return whether a model reads columns by their place: it answers the same if they exchange their names."""
    if not hasattr(table, "columns"):
        return True
    if table.shape[1] < 2:
        return False
    try:
        other = _plain(answer(table.set_axis(table.columns[::-1], axis=1)))
    except Exception:  # the user's own code, which misses a name
        return False
    if other.shape != answers.shape:
        return False
    if answers.dtype.kind in "fiub" and other.dtype.kind in "fiub":
        same = np.allclose(other.astype(float), answers.astype(float), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
        return bool(same) and len(np.unique(answers, axis=0)) > 1
    return bool((other == answers).all()) and len(set(answers.tolist())) > 1


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
