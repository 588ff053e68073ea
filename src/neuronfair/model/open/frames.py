"""Rows as the table that a pipeline was trained on: a pandas DataFrame of labels and numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from neuronfair.domain.attribute import MISSING, MISSING_CELLS, Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError, did_you_mean, needs
from neuronfair.limits import check_size

_TRUTH = {"True": True, "False": False}


class Column:
    """The cells of one attribute: what stood in the table for each code, also for one outside the bounds."""

    def __init__(self, attribute: Attribute, content: Mapping[int, Any], lookup: Any) -> None:
        self._attribute, self._lookup = attribute, lookup  # the cells of `content`, in its order
        self._codes = np.array(list(content))
        self._order = np.argsort(self._codes)

    def of(self, codes: np.ndarray) -> Any:
        """Return the cells of codes; one that stands for nothing is an empty cell."""
        place = np.searchsorted(self._codes, codes, sorter=self._order).clip(max=len(self._codes) - 1)
        place = self._order[place]
        beyond = self._codes[place] != codes
        if not beyond.any():
            return self._lookup.take(place)
        if self._attribute.values:
            return self._lookup.take(np.where(beyond, -1, place), allow_fill=True)
        distinct, inverse = np.unique(codes[beyond], return_inverse=True)
        numbers = np.array([self._attribute.value(code) for code in distinct.tolist()])[inverse]
        cells = np.asarray(self._lookup)[place]
        cells = cells.astype(np.result_type(cells, numbers))
        cells[beyond] = numbers
        return cells


class TypedColumn:
    """The cells of one attribute as the categories that a model knows, or as texts if it keeps no list of them."""

    def __init__(self, attribute: Attribute, categories: Sequence[Any] | None) -> None:
        self._pandas, self._attribute = needs("pandas", "sklearn"), attribute
        texts = [label for label in attribute.values if label != MISSING or label != attribute.missing]
        self._content = cells(attribute, texts if categories is None else categories)
        self._kind = None if categories is None else self._pandas.CategoricalDtype(list(categories))
        self._named = {spelling(category): category for category in categories or ()}
        if self._named and not any(spelling(cell) in self._named for cell in self._content.values()):
            raise ModelError(
                f"none of the values of '{attribute.name}' is a category that the model knows. "
                f"{did_you_mean(str(next(iter(self._content.values()))), map(str, categories or ()))}"
            )

    def of(self, codes: np.ndarray) -> Any:
        """Return the cells of codes: what the model has never seen is empty, and an empty text is 'nan'."""
        distinct, inverse = np.unique(codes, return_inverse=True)
        values = [self._cell(code) for code in distinct.tolist()]
        if self._kind is None:
            return np.array([str(value) for value in values], dtype=object)[inverse]
        known = [self._named.get(spelling(value), np.nan) for value in values]
        return self._pandas.Categorical(known, dtype=self._kind).take(inverse)

    def _cell(self, code: int) -> Any:
        beyond = np.nan if self._attribute.values else self._attribute.value(code)
        return self._content.get(code, beyond)


class Frames:
    """Turns rows of codes into DataFrames with the cells that the table itself held.

    Labels that are numbers become numbers, as they do when a CSV file is read, and an empty cell becomes empty again.
    `columns` chooses and orders the columns. `known` are the categories of fitted encoders by column: they tell how the
    labels were spelled when they were fitted, if otherwise than in the domain. `categorical` gives text as categories.
    `typed` are columns that are given as just these categories, or as texts where there is no list of them.
    """

    def __init__(
        self,
        domain: TableDomain,
        columns: Sequence[str] | None = None,
        known: Mapping[str, Collection[Any]] | None = None,
        *,
        categorical: bool = False,
        typed: Mapping[str, Sequence[Any] | None] | None = None,
    ) -> None:
        self._pandas = needs("pandas", "sklearn")
        self.columns = tuple(domain.names if columns is None else columns)
        own = set(domain.names)
        for name in self.columns:
            if name not in own:
                raise ModelError(
                    f"the model reads a column '{name}', which the domain does not have. Add it to the domain file. "
                    f"{did_you_mean(name, domain.names)}"
                )
        self._cells: list[tuple[int, Column | TypedColumn]] = []
        for name in self.columns:
            place = domain.column(name)
            if typed is not None and name in typed:
                self._cells.append((place, TypedColumn(domain.attributes[place], typed[name])))
                continue
            content = cells(domain.attributes[place], (known or {}).get(name, ()))
            lookup = self._pandas.Series(list(content.values()))
            if categorical and lookup.dtype.kind not in "iufb":
                lookup = lookup.astype("category")
            self._cells.append((place, Column(domain.attributes[place], content, lookup.array)))

    def of_rows(self, rows: Tensor | np.ndarray) -> Any:
        """Return rows of codes as a table; a code that stands for nothing becomes an empty cell."""
        codes = rows.cpu().numpy() if isinstance(rows, Tensor) else rows
        table = {
            name: cells.of(codes[:, place]) for name, (place, cells) in zip(self.columns, self._cells, strict=True)
        }
        return self._pandas.DataFrame(table, columns=list(self.columns))


def cells(attribute: Attribute, known: Collection[Any] = ()) -> dict[int, Any]:
    """Return what stands in a table for each code of an attribute, also for codes without a value of their own.

    >>> cells(Attribute("smokes", "nominal", values=("0", "1", "missing"), missing="missing"))
    {0: 0, 1: 1, 2: nan}
    >>> cells(Attribute("job", "nominal", values=("cook", "smith"), missing=-1, extra={"n/k": 3}))
    {0: 'cook', 1: 'smith', 3: 'n/k', -1: nan}
    >>> cells(Attribute("job", "nominal", values=("cook", "other"), other="other", extra={"smith": 1}))
    {0: 'cook', 1: 'smith'}
    """
    if not attribute.values:
        check_size(attribute.size, f"attribute '{attribute.name}', which has {attribute.size:,} values,", times=100)
        numbers: dict[int, Any] = {code: attribute.value(code) for code in range(attribute.points)}
        return numbers if attribute.empty is None else numbers | {attribute.empty: np.nan}
    spelled: dict[str, Any] = {text.strip(): text for text in known if isinstance(text, str)}
    labels: dict[int, str] = dict(enumerate(attribute.values))
    labels |= {code: label for label, code in attribute.extra.items() if code not in labels}
    if attribute.other is not None:  # no model has seen that word, so it is given one of those that it stands for
        place = attribute.values.index(attribute.other)
        labels[place] = next((label for label, code in attribute.extra.items() if code == place), attribute.other)
    empty = attribute.missing if isinstance(attribute.missing, str) else None
    present = [label for label in labels.values() if label != empty]
    mark = next((text for text in spelled.values() if text.strip().casefold() in MISSING_CELLS), np.nan)
    if not any(label in spelled for label in labels.values()):
        if all(label in _TRUTH for label in present):
            spelled |= _TRUTH
        else:
            spelled |= _as_numbers(present)
    if empty is not None and empty not in spelled and (known or empty == MISSING):
        spelled[empty] = mark
    found: dict[int, Any] = {code: spelled.get(label, label) for code, label in labels.items()}
    if isinstance(attribute.missing, (int, float)):  # the code of an empty cell, which may have no label
        found.setdefault(int(attribute.missing), mark)
    return found


def spelling(cell: Any) -> str:
    """Return a cell as text, so that 1, 1.0 and "1" are one."""
    try:
        return str(cell) if isinstance(cell, bool) else f"{float(cell):.15g}"
    except (ValueError, OverflowError):
        return str(cell).strip()


def _as_numbers(labels: Sequence[str]) -> dict[str, int | float]:
    """Return the labels as numbers, or nothing if one of them is none."""
    try:
        numbers = {label: float(label) for label in labels}
    except ValueError:
        return {}
    return {label: int(n) if n.is_integer() and "." not in label else n for label, n in numbers.items()}
