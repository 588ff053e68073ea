"""Rows of codes as the table that a pipeline was trained on: a pandas DataFrame of labels and numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from neuronfair.domain.attribute import MISSING, MISSING_CELLS, Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.sheet import ColumnType
from neuronfair.errors import ModelError, did_you_mean, needs
from neuronfair.limits import check_size

_TRUTH = {"True": True, "False": False}
EMPTY_FLAGS = ("?", "nan", "NaN", "NA", "None")  # endings of an indicator of empty cells


class ColumnCells(Protocol):
    """One column of a model's table: its cells for codes, and for original cells."""

    def of_codes(self, codes: np.ndarray) -> Any:
        """Return the cells of codes."""

    def of_cells(self, cells: Any) -> Any:
        """Return original cells, a Series, in the form that the model reads."""


class CellColumn:
    """The original cells of one attribute for each code, also for codes outside the bounds."""

    def __init__(self, attribute: Attribute, content: Mapping[int, Any], lookup: Any) -> None:
        self._attribute, self._lookup = attribute, lookup  # the cells of `content`, in its order
        self._content = content
        self._codes = np.array(list(content))
        self._order = np.argsort(self._codes)

    def of_codes(self, codes: np.ndarray) -> Any:
        """Return the cells of codes; a code without a value is an empty cell."""
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

    def of_cells(self, cells: Any) -> Any:
        """Return original cells, with labels spelled as the model knows them."""
        attribute, empty = self._attribute, cells.isna()
        if not attribute.values:
            return cells.array
        labels = {label: code for code, label in enumerate(attribute.values)} | dict(attribute.extra)
        spelled = {label: self._content[code] for label, code in labels.items() if code in self._content}
        distinct = cells.astype(object).unique()
        made = {cell: spelled.get(as_text(cell), cell) for cell in distinct if cell == cell and cell is not None}
        code = int(attribute.codes([None])[0]) if attribute.missing is not None and empty.any() else None
        filled = np.nan if code is None else self._content.get(code, np.nan)
        same = all(spelled is cell for cell, spelled in made.items()) and filled != filled
        if same and not hasattr(self._lookup, "categories"):
            return cells.array
        found = cells.astype(object).map(made).where(~empty, filled)
        return found.astype(self._lookup.dtype).array if _holds(self._lookup, found) else found.infer_objects().array


class CategoryColumn:
    """The cells of one attribute as the categories of a model, or as texts if it has no list of them."""

    def __init__(self, attribute: Attribute, categories: Sequence[Any] | None) -> None:
        self._pandas, self._attribute = needs("pandas", "sklearn"), attribute
        texts = [label for label in attribute.values if label != MISSING or label != attribute.missing]
        self._content = cells_of(attribute, texts if categories is None else categories)
        self._dtype = None if categories is None else self._pandas.CategoricalDtype(list(categories))
        self._known = _Categories(categories or ())
        if categories and all(self._known.of(cell) is np.nan for cell in self._content.values()):
            raise ModelError(
                f"none of the values of '{attribute.name}' is a category that the model knows. "
                f"{did_you_mean(str(next(iter(self._content.values()))), map(str, categories or ()))}"
            )

    def of_codes(self, codes: np.ndarray) -> Any:
        """Return the cells of codes: unknown categories are empty, and an empty text is 'nan'."""
        distinct, inverse = np.unique(codes, return_inverse=True)
        beyond = self._attribute.value if not self._attribute.values else lambda code: np.nan
        values = [self._content[code] if code in self._content else beyond(code) for code in distinct.tolist()]
        return self._made(values, inverse, str)

    def of_cells(self, cells: Any) -> Any:
        """Return original cells in the same way."""
        numbers, distinct = self._pandas.factorize(cells.astype(object), use_na_sentinel=False)
        return self._made(list(distinct), numbers, lambda cell: as_text(np.nan if self._pandas.isna(cell) else cell))

    def _made(self, values: Sequence[Any], places: np.ndarray, text: Callable[[Any], str]) -> Any:
        if self._dtype is None:
            return np.array([text(value) for value in values], dtype=object)[places]
        return self._pandas.Categorical([self._known.of(v) for v in values], dtype=self._dtype).take(places)


class NumberColumn:
    """The cells of one attribute as numbers."""

    def __init__(self, attribute: Attribute) -> None:
        content = cells_of(attribute)
        numbers = needs("pandas", "sklearn").array(np.array(list(content.values()), dtype=np.float64))
        self._attribute, self._cells = attribute, CellColumn(attribute, content, numbers)

    def of_codes(self, codes: np.ndarray) -> Any:
        """Return the numbers of codes."""
        return np.asarray(self._cells.of_codes(codes), dtype=np.float64)

    def of_cells(self, column: Any) -> Any:
        """Return the numbers in original cells; an empty one is NaN."""
        if column.dtype.kind == "m":  # durations are read as seconds
            column = column.dt.total_seconds()
        if column.dtype.kind in "iufb":
            return column.to_numpy(dtype=np.float64, na_value=np.nan)
        found = [None if cell is None or cell != cell else self._attribute.number(as_text(cell)) for cell in column]
        return np.array([np.nan if number is None else number for number in found])


class CodeColumn:
    """The codes of one attribute: the positions of its labels among the values of the domain."""

    def __init__(self, attribute: Attribute) -> None:
        self._attribute = attribute

    def of_codes(self, codes: np.ndarray) -> Any:
        """Return the codes as numbers."""
        return codes.astype(np.float64)

    def of_cells(self, column: Any) -> Any:
        """Return the codes of original cells."""
        return np.asarray(self._attribute.codes(column), dtype=np.float64)


class FlagColumn:
    """An indicator of one value of an attribute, as `pandas.get_dummies` makes it: 'sex_Male'."""

    def __init__(self, attribute: Attribute, value: str, code: int) -> None:
        self._value, self._code = value, code
        self._empty = value in EMPTY_FLAGS and value not in attribute.values

    def of_codes(self, codes: np.ndarray) -> Any:
        """Return 1 for the codes of the value."""
        return (codes == self._code).astype(np.float64)

    def of_cells(self, column: Any) -> Any:
        """Return 1 for original cells with the value."""
        texts = column.map(as_text)
        found = column.isna() | texts.isin(EMPTY_FLAGS) if self._empty else texts == self._value
        return np.asarray(found, dtype=np.float64)


class FrameColumn(NamedTuple):
    """One column of a model's table: its label, its attribute with the position in the domain, and its cells."""

    label: Any
    attribute: str
    place: int
    cells: ColumnCells


class Frames:
    """Turns rows of codes, and DataFrames of original cells, into the DataFrame that a model reads."""

    def __init__(self, columns: Sequence[FrameColumn]) -> None:
        self._columns, self._pandas = tuple(columns), needs("pandas", "sklearn")

    def of_rows(self, rows: Tensor | np.ndarray) -> Any:
        """Return rows of codes as a table; a code without a value becomes an empty cell."""
        codes = rows.cpu().numpy() if isinstance(rows, Tensor) else rows
        return self._table([column.cells.of_codes(codes[:, column.place]) for column in self._columns])

    def of_frame(self, table: Any) -> Any:
        """Return a table of original cells as the model reads it; its columns have the names of the attributes."""
        return self._table([column.cells.of_cells(table[column.attribute]) for column in self._columns])

    def _table(self, columns: Sequence[Any]) -> Any:
        table = self._pandas.DataFrame(dict(enumerate(columns)))
        table.columns = [column.label for column in self._columns]
        return table

    @staticmethod
    def of(
        domain: TableDomain,
        columns: Sequence[str] | None = None,
        known: Mapping[str, Collection[Any]] | None = None,
        *,
        categorical: bool = False,
        types: Mapping[str, ColumnType] | None = None,
        dates: bool = False,
    ) -> Frames:
        """Return the DataFrame with the cells of the table itself.

        Labels that are numbers become numbers, as they do when a CSV file is read, and an empty cell is empty again.
        `columns` chooses and orders the columns. `known` are the categories of fitted encoders by column, with the
        spelling of labels that they were fitted to. `categorical` makes texts categories. `types` are the names, dtypes
        and cells of the table that the rows came from. `dates` parses dates that are texts in the table.
        """
        pandas = needs("pandas", "sklearn")
        made, own = list[FrameColumn](), set(domain.names)
        for name in domain.names if columns is None else columns:
            if name not in own:
                raise ModelError(
                    f"the model reads a column '{name}', which the domain does not have. Add it to the domain file. "
                    f"{did_you_mean(name, domain.names)}"
                )
            place = domain.column(name)
            attribute, kind = domain.attributes[place], (types or {}).get(name, ColumnType(name))
            content = cells_of(attribute, (known or {}).get(name, ()))
            if attribute.values:  # as in the table: 1, "1" and True differ where it has types
                labels = {code: label for label, code in attribute.extra.items()} | dict(enumerate(attribute.values))
                content = {code: kind.cells.get(labels.get(code, ""), cell) for code, cell in content.items()}
            dtype = np.dtype("datetime64[ns]") if dates and attribute.date is not None else kind.dtype
            lookup = _with_dtype(pandas.Series(list(content.values())), dtype)
            if categorical and lookup.dtype.kind not in "iufb":
                lookup = lookup.astype("category")
            label = kind.label if types and name in types else name
            made.append(FrameColumn(label, name, place, CellColumn(attribute, content, lookup.array)))
        return Frames(made)


def cells_of(attribute: Attribute, known: Collection[Any] = ()) -> dict[int, Any]:
    """Return the cell of a table for each code of an attribute, also for codes without a value of their own.

    >>> cells_of(Attribute("smokes", "nominal", values=("0", "1", "missing"), missing="missing"))
    {0: 0, 1: 1, 2: nan}
    >>> cells_of(Attribute("job", "nominal", values=("cook", "smith"), missing=-1, extra={"n/k": 3}))
    {0: 'cook', 1: 'smith', 3: 'n/k', -1: nan}
    >>> cells_of(Attribute("job", "nominal", values=("cook", "other"), other="other", extra={"smith": 1}))
    {0: 'cook', 1: 'smith'}
    """
    if not attribute.values:
        check_size(attribute.size, f"attribute '{attribute.name}', which has {attribute.size:,} values,", times=100)
        numbers: dict[int, Any] = {code: attribute.value(code) for code in range(attribute.points)}
        return numbers if attribute.empty is None else numbers | {attribute.empty: np.nan}
    spelled: dict[str, Any] = {text.strip(): text for text in known if isinstance(text, str)}
    labels: dict[int, str] = dict(enumerate(attribute.values))
    labels |= {code: label for label, code in attribute.extra.items() if code not in labels}
    if attribute.other is not None:  # no model has seen the word for all others, so one of these takes its place
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


def _with_dtype(cells: Any, dtype: Any) -> Any:
    """Return cells, a Series, with the dtype of the table, if it can hold them: no int holds an empty cell."""
    if dtype is None or cells.dtype == dtype:
        return cells
    try:
        if dtype.kind == "m":  # durations are read as seconds
            return needs("pandas", "sklearn").to_timedelta(cells, unit="s").astype(dtype)
        return needs("pandas", "sklearn").to_datetime(cells).astype(dtype) if dtype.kind == "M" else cells.astype(dtype)
    except (TypeError, ValueError):
        return cells


def _holds(lookup: Any, cells: Any) -> bool:
    """Return whether an array has categories, and all cells are among them."""
    known = set(lookup.categories if hasattr(lookup, "categories") else ())
    return bool(known) and all(cell in known for cell in cells.dropna().unique())


def as_text(cell: Any) -> str:
    """Return a cell as text, as tables in memory are read."""
    text = str(cell).strip()
    return text if isinstance(cell, str) else text.removesuffix(".0")


def spelling(cell: Any) -> str:
    """Return a cell as text, so that 1, 1.0 and "1" are one, and two different numbers never.

    >>> spelling(1.0), spelling("1"), spelling(-0.0), spelling(1000001), spelling(True), spelling("1e16")
    ('1', '1', '0', '1000001', 'True', '1E+16')
    """
    text = str(cell).strip()
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    if not number.is_finite():
        return text.casefold()
    exact = Context(prec=max(1, len(number.as_tuple().digits)), Emax=MAX_EMAX, Emin=MIN_EMIN)
    return str(number.normalize(exact)) if number else "0"


class _Categories:
    """Finds the category of a cell: the same value, or the only number that rounds to it.

    A domain has the numbers of a table to twelve digits, and a model may know 0.30000000000000004.
    """

    def __init__(self, categories: Sequence[Any]) -> None:
        self._exact = {spelling(category): category for category in categories}
        rounded = [(_rounded(category), category) for category in categories if isinstance(category, float)]
        count = Counter(number for number, _ in rounded)
        self._near = {number: category for number, category in rounded if count[number] == 1}

    def of(self, cell: Any) -> Any:
        """Return the category of a cell, NaN if there is none."""
        found = self._exact.get(spelling(cell))
        if found is None and isinstance(cell, (int, float)):
            found = self._near.get(_rounded(cell))
        return np.nan if found is None else found


def _rounded(number: float) -> float:
    return float(f"{number:.12g}")  # as `Attribute.value`


def _as_numbers(labels: Sequence[str]) -> dict[str, int | float]:
    """Return the labels as numbers; an empty dictionary if one of them is none."""
    try:
        numbers = {label: float(label) for label in labels}
    except ValueError:
        return {}
    return {label: _whole(label) if n.is_integer() and "." not in label else n for label, n in numbers.items()}


def _whole(label: str) -> int:
    """Return a whole number of any length; a float has only sixteen digits."""
    try:
        return int(label)
    except ValueError:  # "1e3"
        return int(float(label))
