"""Errors that tell users what was expected, what came, where, and what to do."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Collection, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

DEBUG_VARIABLE = "NEURONFAIR_DEBUG"  # the variable that shows tracebacks
MAX_LETTERS = 1000  # letters of a message
MAX_COMPARED_LETTERS, MAX_COMPARED_WORDS = 100, 5000  # longest word, and most words, that are compared for suggestions


class NeuronFairError(Exception):
    """The base class of all errors that this package raises on purpose; the command line shows one line."""

    status = 2  # the exit status of the command line

    def __str__(self) -> str:
        text = super().__str__()  # it may quote a name or a cell of any length
        return text if len(text) <= MAX_LETTERS else f"{text[: MAX_LETTERS // 2]} […] {text[-MAX_LETTERS // 2 :]}"


class DomainError(NeuronFairError):
    """The description of the inputs is wrong, or a row does not fit it."""


class CellError(DomainError):
    """A cell of a table does not fit its attribute; `row` counts from 0."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row + 1}: {reason}")
        self.row, self.reason = row, reason


class DataError(NeuronFairError):
    """A data file is missing, damaged, or does not match its domain."""


class ModelError(NeuronFairError):
    """A model or weights file cannot be used for what was asked."""


class Unprovable(ModelError):  # noqa: N818
    """Nothing can be proved about such a model."""


class Contradiction(NeuronFairError):  # noqa: N818
    """A proof and the model disagree: one of the two is wrong, and the proof must not be used."""

    status = 3


class EncodingError(NeuronFairError):
    """A model seems to be given other inputs than it was trained on, or the order of its inputs is not confirmed."""


class RunError(NeuronFairError):
    """A run folder cannot be used for what was asked."""


class OtherRunError(RunError):
    """A folder holds a run that was begun with other inputs or settings, so it cannot be resumed."""


def require(package: str, extra: str, purpose: str = "such a model", kind: type[NeuronFairError] = ModelError) -> Any:
    """Import an optional package, or say how to install it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise kind(
            f"{purpose} needs the package '{package.partition('.')[0]}', which cannot be imported "
            f"({one_line(error)}). Install it: pip install 'neuronfair[{extra}]'"
        ) from error


def internal_message(error: BaseException) -> str:
    """Return the message for an unexpected error: what it is, where, and what to do."""
    frames = traceback.extract_tb(error.__traceback__)
    site = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return (
        f"internal error: {type(error).__name__}{site}: {one_line(error)}. This says nothing about the model. Please "
        f"report it where you have neuronfair from, with the command and the traceback, which {DEBUG_VARIABLE}=1 shows"
    )


def one_line(error: BaseException) -> str:
    """Return the message of an error in one line of limited length."""
    return " ".join(str(error)[:2000].split())[:300] or type(error).__name__


def find_repeated(words: Iterable[str]) -> str | None:
    """Return a word that occurs twice, or None.

    >>> find_repeated(["age", "sex", "age"])
    'age'
    """
    earlier_words: set[str] = set()
    return next((word for word in words if word in earlier_words or earlier_words.add(word)), None)  # type: ignore[func-returns-value]


def refuse_unknown(options: Iterable[str], known_options: Collection[str]) -> None:
    """Raise an error for the first option that is not known."""
    for name in options:
        if name not in known_options:
            raise NeuronFairError(f"there is no option '{name}'. {did_you_mean(name, known_options)}")


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return the end of an error message: the candidates and, if there is one, the nearest match.

    >>> did_you_mean("sexx", ["age", "sex"])
    "Known: age, sex. Did you mean 'sex'?"
    """
    word, candidates = str(word), [str(candidate) for candidate in candidates]
    listing = ", ".join(candidates[:20]) + (f", … ({len(candidates)} in all)" if len(candidates) > 20 else "")
    # Comparing takes long for long words, and for each of many.
    short = [candidate for candidate in candidates if len(candidate) <= MAX_COMPARED_LETTERS]
    comparable = sorted(short, key=lambda candidate: abs(len(candidate) - len(word)))[:MAX_COMPARED_WORDS]
    matches = difflib.get_close_matches(word, comparable, n=1) if len(word) <= MAX_COMPARED_LETTERS else []
    return f"Known: {listing}." + (f" Did you mean '{matches[0]}'?" if matches else "")
