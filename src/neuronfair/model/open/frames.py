"""The inputs of a model for rows of codes, and those of models that read a table: a DataFrame of labels and numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from neuronfair.domain.attribute import MISSING, Attribute
from neuronfair.domain.cells import canonical_number, cell_text, is_missing, plain_float, plain_int
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables import ColumnType
from neuronfair.errors import ModelError, did_you_mean, needs
from neuronfair.limits import check_size

_TRUTH = {"True": True, "False": False}
EMPTY_FLAGS = ("?", "nan", "NaN", "NA", "None")  # endings of an indicator of empty cells


@dataclass(frozen=True)
class ModelInputs:
    """How rows of codes become the inputs of a model, and a DataFrame of original cells where it reads a table.

    This is the one way from codes to a model that computes with its own inputs: tables, arrays or tensors. Only a
    network that is differentiated by its inputs reads codes by a `TableEncoding`, which also leads gradients back.

    `note` tells the user about it. `declared` says that the inputs are the numbers that the domain file declares,
    `by_position` that columns are matched by their order alone (None: not yet known). Tensors are passed by `names`, or
    in their order where there are none. `program` names what makes the inputs, if that may be any program.
    """

    of_rows: Callable[[Tensor], Any]
    of_frame: Callable[[Any], Any] | None = None
    note: str = ""
    declared: bool = False
    by_position: bool | None = False
    names: tuple[str, ...] = ()
    program: str | None = None

    def then(self, function: Callable[[Any], Any], **changes: Any) -> ModelInputs:
        """Return these inputs after a function."""
        of_rows, of_frame = self.of_rows, self.of_frame
        made = None if of_frame is None else (lambda table: function(of_frame(table)))
        return replace(self, of_rows=lambda rows: function(of_rows(rows)), of_frame=made, **changes)


class ColumnCells(NamedTuple):
    """The cells of a column for codes, and for original cells, a Series."""

    of_codes: Callable[[np.ndarray], Any]
    of_cells: Callable[[Any], Any]


class FrameColumn(NamedTuple):
    """One column of a model's table: its label, its attribute with the position in the domain, and its cells."""

    label: Any
    attribute: str
    place: int
    cells: ColumnCells


def inputs_of_columns(columns: Sequence[FrameColumn], note: str = "") -> ModelInputs:
    """Return a DataFrame with these columns; a code without a value becomes an empty cell."""
    pandas = needs("pandas", "sklearn")

    def table(parts: Sequence[Any]) -> Any:
        made = pandas.DataFrame(dict(enumerate(parts)))
        made.columns = [column.label for column in columns]
        return made

    def of_rows(rows: Tensor) -> Any:
        codes = rows.cpu().numpy()
        return table([column.cells.of_codes(codes[:, column.place]) for column in columns])

    def of_frame(frame: Any) -> Any:  # its columns have the names of the attributes
        return table([column.cells.of_cells(frame[column.attribute]) for column in columns])

    return ModelInputs(of_rows, of_frame, note)


def table_inputs(
    domain: TableDomain,
    columns: Sequence[str] | None = None,
    known: Mapping[str, Collection[Any]] | None = None,
    *,
    categorical: bool = False,
    types: Mapping[str, ColumnType] | None = None,
    dates: bool = False,
) -> ModelInputs:
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
        made.append(FrameColumn(label, name, place, _original(attribute, content, lookup.array)))
    return inputs_of_columns(made)


def _original(attribute: Attribute, content: Mapping[int, Any], lookup: Any) -> ColumnCells:
    """Return the original cells of an attribute; `lookup` is an array of the cells in `content`, by code."""
    pandas = needs("pandas", "sklearn")
    index = pandas.Index(list(content))

    def of_codes(codes: np.ndarray) -> Any:
        place = index.get_indexer(codes)
        beyond = place < 0
        if attribute.values or not beyond.any():
            return lookup.take(place, allow_fill=bool(beyond.any()))  # a label that does not exist is an empty cell
        distinct, inverse = np.unique(codes[beyond], return_inverse=True)
        numbers = np.array([attribute.value(code) for code in distinct.tolist()])[inverse]
        cells = np.asarray(lookup)[place]
        cells = cells.astype(np.result_type(cells, numbers))
        cells[beyond] = numbers
        return cells

    def of_cells(cells: Any) -> Any:  # with labels spelled as the model knows them
        if not attribute.values:
            return cells.array
        empty, labels = cells.isna(), {label: code for code, label in enumerate(attribute.values)}
        labels |= dict(attribute.extra)
        spelled = {label: content[code] for label, code in labels.items() if code in content}
        distinct = cells[~empty].astype(object).unique()
        made = {cell: spelled.get(cell_text(cell), cell) for cell in distinct}
        code = int(attribute.codes([None])[0]) if attribute.missing is not None and empty.any() else None
        filled = np.nan if code is None else content.get(code, np.nan)
        categories = set(getattr(lookup, "categories", ()))
        if not categories and filled != filled and all(spelled is cell for cell, spelled in made.items()):
            return cells.array
        found = cells.astype(object).map(made).where(~empty, filled)
        holds = bool(categories) and set(found.dropna().unique()) <= categories
        return found.astype(lookup.dtype).array if holds else found.infer_objects().array

    return ColumnCells(of_codes, of_cells)


def category_cells(attribute: Attribute, categories: Sequence[Any] | None) -> ColumnCells:
    """Return the cells of an attribute as the categories of a model, or as texts if it has no list of them.

    Unknown categories are empty, and an empty text is 'nan'.
    """
    pandas = needs("pandas", "sklearn")
    texts = [label for label in attribute.values if label != MISSING or label != attribute.missing]
    content = cells_of(attribute, texts if categories is None else categories)
    dtype = None if categories is None else pandas.CategoricalDtype(list(categories))
    category_of = _category_of(categories or ())
    if categories and all(category_of(cell) is np.nan for cell in content.values()):
        raise ModelError(
            f"none of the values of '{attribute.name}' is a category that the model knows. "
            f"{did_you_mean(str(next(iter(content.values()))), map(str, categories))}"
        )

    def made(values: Sequence[Any], places: np.ndarray, text: Callable[[Any], str]) -> Any:
        if dtype is None:
            return np.array([text(value) for value in values], dtype=object)[places]
        return pandas.Categorical([category_of(value) for value in values], dtype=dtype).take(places)

    def of_codes(codes: np.ndarray) -> Any:
        distinct, inverse = np.unique(codes, return_inverse=True)
        beyond = attribute.value if not attribute.values else lambda code: np.nan
        return made([content[c] if c in content else beyond(c) for c in distinct.tolist()], inverse, str)

    def of_cells(cells: Any) -> Any:
        numbers, distinct = pandas.factorize(cells.astype(object), use_na_sentinel=False)
        return made(list(distinct), numbers, lambda cell: "nan" if pandas.isna(cell) else cell_text(cell))

    return ColumnCells(of_codes, of_cells)


def number_cells(attribute: Attribute) -> ColumnCells:
    """Return the cells of an attribute as numbers; an empty one is NaN."""
    content = cells_of(attribute)
    numbers = needs("pandas", "sklearn").array(np.array(list(content.values()), dtype=np.float64))
    original = _original(attribute, content, numbers)

    def of_cells(cells: Any) -> Any:
        if cells.dtype.kind == "m":  # durations are read as seconds
            cells = cells.dt.total_seconds()
        if cells.dtype.kind in "iufb":
            return cells.to_numpy(dtype=np.float64, na_value=np.nan)
        found = [attribute.number(cell_text(cell)) for cell in cells]
        return np.array([np.nan if number is None else number for number in found])

    return ColumnCells(lambda codes: np.asarray(original.of_codes(codes), dtype=np.float64), of_cells)


def code_cells(attribute: Attribute) -> ColumnCells:
    """Return the positions of labels among the values of the domain."""
    return ColumnCells(
        lambda codes: codes.astype(np.float64), lambda cells: np.asarray(attribute.codes(cells), dtype=np.float64)
    )


def flag_cells(attribute: Attribute, value: str, code: int) -> ColumnCells:
    """Return an indicator of one value of an attribute, as `pandas.get_dummies` makes it: 'sex_Male'."""

    def of_cells(cells: Any) -> Any:
        texts = cells.map(cell_text)
        of_empty = value in EMPTY_FLAGS and value not in attribute.values
        return np.asarray(cells.isna() | texts.isin(EMPTY_FLAGS) if of_empty else texts == value, dtype=np.float64)

    return ColumnCells(lambda codes: (codes == code).astype(np.float64), of_cells)


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
    mark = next((text for text in spelled.values() if is_missing(text.strip())), np.nan)
    if not any(label in spelled for label in labels.values()):
        if all(label in _TRUTH for label in present):
            spelled |= _TRUTH
        else:
            with suppress(ValueError):
                spelled |= {label: _as_number(label) for label in present}
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


def _category_of(categories: Sequence[Any]) -> Callable[[Any], Any]:
    """Return what finds the category of a cell: the same value, or the only number that rounds to it; NaN for none.

    A domain has the numbers of a table to twelve digits, and a model may know 0.30000000000000004.
    """
    exact = {canonical_number(category): category for category in categories}
    rounded = [(_rounded(category), category) for category in categories if isinstance(category, float)]
    count = Counter(number for number, _ in rounded)
    near = {number: category for number, category in rounded if count[number] == 1}

    def found(cell: Any) -> Any:
        category = exact.get(canonical_number(cell))
        if category is None and isinstance(cell, (int, float)):
            category = near.get(_rounded(cell))
        return np.nan if category is None else category

    return found


def _rounded(number: float) -> float:
    return float(f"{number:.12g}")  # as `Attribute.value`


def _as_number(label: str) -> int | float:
    """Return a label as a number; a whole one of any length, for a float has only sixteen digits."""
    try:
        return plain_int(label)
    except ValueError:  # "0.5", "1e3"
        number = plain_float(label)
        return int(number) if number.is_integer() and "." not in label else number
