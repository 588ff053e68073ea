"""Matches the classes of a model with those of the domain, by name or by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronfair.domain.cells import canonical_number, cell_text, numbers_first
from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError

SHOWN = 8  # class names in a note
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
    known = sorted({_number(answer) for answer in distinct}, key=numbers_first)
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


def _listed(classes: Sequence[Any]) -> str:
    return ", ".join(str(c) for c in classes[:SHOWN]) + (", …" if len(classes) > SHOWN else "")


def _number(thing: Any) -> str:
    """Return a class as text, so that 1, 1.0, True and "1" are one."""
    return canonical_number({"True": "1", "False": "0"}.get(cell_text(thing), thing))
