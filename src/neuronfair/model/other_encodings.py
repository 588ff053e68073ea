"""Other ways to make numbers of the same rows: what a model may have been trained on instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from neuronfair.domain.attribute import Attribute
from neuronfair.model.encoding import middle_of

SCALES = (  # of the columns that are one number each
    "raw values",
    "codes from 0",
    "codes from 1",
    "values standardised by the table",
    "values scaled to 0 … 1",
    "values scaled to −1 … 1",
    "numbers standardised and labels as codes",
    "numbers scaled to 0 … 1 and labels as codes",
)
CODES = (  # which code a value has
    "every code one higher",
    "every code one lower",
    "labels in alphabetical order",
    "labels in reverse order",
    "labels by how frequent they are",
)
ORDERS = ("columns sorted by name", "columns in reverse order", "numbers before labels", "labels before numbers")


@dataclass(frozen=True)
class OtherEncoding:
    """One way to make numbers of rows; what is not said is as the domain file declares."""

    scale: str = ""
    codes: str = ""
    order: tuple[int, ...] = ()  # places of the columns
    moved: str = ""  # the order in words

    @property
    def text(self) -> str:
        """What is otherwise than declared, in words."""
        return ", ".join(filter(None, (self.scale, self.codes, self.moved)))


class Feeder:
    """Makes numbers of rows of codes in all these ways, each column once for each way."""

    def __init__(self, attributes: Sequence[Attribute], rows: Tensor) -> None:
        self.attributes, self._rows = tuple(attributes), rows.cpu().numpy()
        self._kept: dict[tuple[int, str, str], np.ndarray] = {}

    def numbers(self, feed: OtherEncoding, chosen: slice) -> np.ndarray:
        """Return the numbers of the chosen rows, as wide as the declared ones: (n, width)."""
        order = feed.order or range(len(self.attributes))
        given = (place for place in order if self.attributes[place].given)
        return np.concatenate([self._column(place, feed.scale, feed.codes)[chosen] for place in given], 1)

    def order(self, name: str) -> tuple[int, ...]:
        """Return the places of the columns in an order that has a name."""
        labels = [bool(a.values) and a.kind != "flag" for a in self.attributes]
        keys = {
            "columns sorted by name": lambda place: self.attributes[place].name,
            "columns in reverse order": lambda place: -place,
            "numbers before labels": lambda place: labels[place],
            "labels before numbers": lambda place: not labels[place],
        }
        return tuple(sorted(range(len(self.attributes)), key=keys[name]))

    def _column(self, place: int, scale: str, codes: str) -> np.ndarray:
        attribute = self.attributes[place]
        key = (place, "" if attribute.encode == "onehot" else scale, codes)
        if key not in self._kept:
            code = _renumbered(attribute, self._placed(place), codes)
            if attribute.encode == "onehot":
                self._kept[key] = (code[:, None] == np.arange(attribute.size)).astype(np.float32)
            else:
                self._kept[key] = _scaled(attribute, code, scale)[:, None].astype(np.float32)
        return self._kept[key]

    def _placed(self, place: int) -> np.ndarray:
        """Return the codes of a column, those of empty cells where the declared encoding puts them."""
        attribute, code = self.attributes[place], self._rows[:, place]
        if attribute.empty is None or attribute.encode == "onehot":
            return code
        return np.where(code == attribute.empty, middle_of(attribute), code)


def _renumbered(attribute: Attribute, code: np.ndarray, how: str) -> np.ndarray:
    """Return other codes for the same values; those without a label stay as they are."""
    if how in ("every code one higher", "every code one lower"):
        moved = code + (1 if how.endswith("higher") else -1)
        return moved % attribute.size if attribute.encode == "onehot" else moved
    if not how or not (attribute.values or attribute.kind == "flag") or attribute.empty is not None:
        return code
    known = (code >= 0) & (code < attribute.size)
    if how == "labels in alphabetical order":
        order = np.argsort([str(attribute.value(one)) for one in range(attribute.size)], kind="stable")
    elif how == "labels in reverse order":
        order = np.arange(attribute.size)[::-1]
    else:
        order = np.argsort(-np.bincount(code[known], minlength=attribute.size), kind="stable")
    return np.where(known, np.argsort(order)[np.where(known, code, 0)], code)


def _scaled(attribute: Attribute, code: np.ndarray, how: str) -> np.ndarray:
    """Return the number of each code."""
    low, step = (0.0, 1.0) if attribute.values else (float(attribute.low), float(attribute.step))
    value = low + step * code.astype(np.float64)
    if not how:
        return (value - attribute.center) / attribute.scale if attribute.encode == "scaled" else value
    if how in ("codes from 0", "codes from 1"):
        return code + float(how.endswith("1"))
    if how == "raw values" or (how.startswith("numbers") and attribute.values):
        return value
    if "standardised" in how:
        return np.asarray((value - value.mean()) / (value.std() or 1.0))
    share = (value - value.min()) / (np.ptp(value) or 1.0)
    return np.asarray(2 * share - 1 if "−1" in how else share)
