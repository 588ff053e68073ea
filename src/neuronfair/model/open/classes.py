"""The classes of a model and those of the domain: which is which, and what to say where that is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neuronfair.domain.table import TableDomain

SHOWN = 8  # class names in a note


def class_order(domain: TableDomain, classes: Sequence[Any] | None) -> list[int] | None:
    """Return for each class of the domain its place among the model's classes; None if they are named otherwise."""
    if classes is None or domain.target is None:
        return None
    names = [_name(c) for c in classes]
    wanted = [_name(c) for c in domain.target.classes]
    return [names.index(c) for c in wanted] if sorted(names) == sorted(wanted) else None


def by_position(domain: TableDomain, classes: Sequence[Any] | None) -> str:
    """Return a remark if the model's classes can be matched to the domain's by their position only, else nothing."""
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


def _listed(classes: Sequence[Any]) -> str:
    return ", ".join(str(c) for c in classes[:SHOWN]) + (", …" if len(classes) > SHOWN else "")


def _name(thing: Any) -> str:
    """Return a class as text, so that 1, 1.0, True and "1" are one."""
    text = str(thing).strip()
    try:
        return f"{float({'True': '1', 'False': '0'}.get(text, text)):g}"
    except ValueError:
        return text
