"""The inputs of models that read a table: its columns as labels, numbers, categories or indicators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.attribute import MISSING, Attribute
from neuronfair.domain.cells import canonical_number, cell_text, is_missing, plain_float, plain_int
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables import ColumnType
from neuronfair.errors import ModelError, did_you_mean, require
from neuronfair.limits import check_size
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open.names import list_input_names, list_selected_columns, list_steps, shorten_list
from neuronfair.model.open.opened import ModelInputs, OpenRequest

_TRUTH_VALUES = {"True": True, "False": False}
EMPTY_FLAGS = ("?", "nan", "NaN", "NA", "None")  # endings of an indicator of empty cells


class ColumnCells(NamedTuple):
    """The cells of a column for codes, and for original cells, a Series."""

    of_codes: Callable[[np.ndarray], Any]
    of_cells: Callable[[Any], Any]


class FrameColumn(NamedTuple):
    """One column of a model's table: its label, its attribute with the position in the domain, and its cells."""

    label: Any
    attribute: str
    column_index: int
    cells: ColumnCells


def inputs_of_columns(columns: Sequence[FrameColumn], note: str = "") -> ModelInputs:
    """Return the columns, one after the other; a code without a value becomes an empty cell."""

    def of_rows(rows: Tensor) -> Any:
        codes = rows.cpu().numpy()
        return [column.cells.of_codes(codes[:, column.column_index]) for column in columns]

    def of_frame(frame: Any) -> Any:
        return [column.cells.of_cells(frame[column.attribute]) for column in columns]

    return ModelInputs(of_rows, of_frame, note=note)


def _make_frame(columns: Sequence[FrameColumn], note: str = "") -> ModelInputs:
    """Return a DataFrame with these columns."""
    pandas = require("pandas", "sklearn")

    def table(parts: Sequence[Any]) -> Any:
        frame = pandas.DataFrame(dict(enumerate(parts)))
        frame.columns = [column.label for column in columns]
        return frame

    return inputs_of_columns(columns, note).then(table)


def table_inputs(
    domain: TableDomain,
    columns: Sequence[str] | None = None,
    categories: Mapping[str, Collection[Any]] | None = None,
    *,
    categorical: bool = False,
    types: Mapping[str, ColumnType] | None = None,
    dates: bool = False,
) -> ModelInputs:
    """Return the DataFrame with the cells of the table itself.

    Labels that are numbers become numbers, as they do when a CSV file is read, and an empty cell is empty again.
    `columns` chooses and orders the columns. `categories` are those of fitted encoders by column, with the
    spelling of labels that they were fitted to. `categorical` makes texts categories. `types` are the names, dtypes
    and cells of the table that the rows came from. `dates` parses dates that are texts in the table.
    """
    pandas = require("pandas", "sklearn")
    frame_columns, names = list[FrameColumn](), set(domain.names)
    for name in domain.names if columns is None else columns:
        if name not in names:
            raise ModelError(
                f"the model reads a column '{name}', which the domain does not have. Add it to the domain file. "
                f"{did_you_mean(name, domain.names)}"
            )
        index = domain.column(name)
        attribute, column_type = domain.attributes[index], (types or {}).get(name, ColumnType(name))
        model_cells = set((categories or {}).get(name, ()))
        content, dtype = cells_of(attribute, model_cells), column_type.dtype
        if attribute.values:  # as in the table: 1, "1" and True differ where it has types
            labels = {code: label for label, code in attribute.extra.items()} | dict(enumerate(attribute.values))
            cells = {code: column_type.cells.get(labels.get(code, ""), cell) for code, cell in content.items()}
            # A model that knows 0 gets 0, also where the table has "0".
            respelled = {code: cell for code, cell in content.items() if cell in model_cells}
            respelled = {code: cell for code, cell in respelled.items() if cells[code] not in model_cells}
            content, dtype = cells | respelled, None if respelled else dtype
        dtype = np.dtype("datetime64[ns]") if dates and attribute.date is not None else dtype
        lookup = _convert_dtype(pandas.Series(list(content.values())), dtype)
        if categorical and lookup.dtype.kind not in "iufb":
            lookup = lookup.astype("category")
        label = column_type.label if types and name in types else name
        column_cells = _make_table_cells(attribute, content, lookup.array)
        if not attribute.values and column_type.cells and not model_cells.isdisjoint(content.values()):
            column_cells = number_cells(attribute)  # the table has texts, and the model knows numbers
        frame_columns.append(FrameColumn(label, name, index, column_cells))
    return _make_frame(frame_columns)


def _make_table_cells(attribute: Attribute, content: Mapping[int, Any], lookup: Any) -> ColumnCells:
    """Return the original cells of an attribute; `lookup` is an array of the cells in `content`, by code."""
    pandas = require("pandas", "sklearn")
    index = pandas.Index(list(content))

    def of_codes(codes: np.ndarray) -> Any:
        positions = index.get_indexer(codes)
        outside = positions < 0
        if attribute.values or not outside.any():
            # A label that does not exist is an empty cell.
            return lookup.take(positions, allow_fill=bool(outside.any()))
        distinct, inverse = np.unique(codes[outside], return_inverse=True)
        numbers = np.array([attribute.value(code) for code in distinct.tolist()])[inverse]
        cells = np.asarray(lookup)[positions]
        cells = cells.astype(np.result_type(cells, numbers))
        cells[outside] = numbers
        return cells

    def of_cells(cells: Any) -> Any:  # with labels spelled as the model knows them
        if not attribute.values:
            return cells.array
        empty, labels = cells.isna(), {label: code for code, label in enumerate(attribute.values)}
        labels |= dict(attribute.extra)
        spelled = {label: content[code] for label, code in labels.items() if code in content}
        distinct = cells[~empty].astype(object).unique()
        cell_of = {cell: spelled.get(cell_text(cell), cell) for cell in distinct}
        code = int(attribute.codes([None])[0]) if attribute.missing is not None and empty.any() else None
        empty_cell = np.nan if code is None else content.get(code, np.nan)
        categories = set(getattr(lookup, "categories", ()))
        if not categories and empty_cell != empty_cell and all(spelled is cell for cell, spelled in cell_of.items()):
            return cells.array
        replaced = cells.astype(object).map(cell_of).where(~empty, empty_cell)
        fits_categories = bool(categories) and set(replaced.dropna().unique()) <= categories
        return replaced.astype(lookup.dtype).array if fits_categories else replaced.infer_objects().array

    return ColumnCells(of_codes, of_cells)


def category_cells(attribute: Attribute, categories: Sequence[Any] | None) -> ColumnCells:
    """Return the cells of an attribute as the categories of a model, or as texts if it has no list of them.

    Unknown categories are empty, and an empty text is 'nan'.
    """
    pandas = require("pandas", "sklearn")
    texts = [label for label in attribute.values if label != MISSING or label != attribute.missing]
    content = cells_of(attribute, texts if categories is None else categories)
    dtype = None if categories is None else pandas.CategoricalDtype(list(categories))
    category_of = _make_category_finder(categories or ())
    if categories and all(category_of(cell) is np.nan for cell in content.values()):
        raise ModelError(
            f"none of the values of '{attribute.name}' is a category that the model knows. "
            f"{did_you_mean(str(next(iter(content.values()))), map(str, categories))}"
        )

    def build_cells(values: Sequence[Any], indices: np.ndarray, text: Callable[[Any], str]) -> Any:
        if dtype is None:
            return np.array([text(value) for value in values], dtype=object)[indices]
        return pandas.Categorical([category_of(value) for value in values], dtype=dtype).take(indices)

    def of_codes(codes: np.ndarray) -> Any:
        distinct, inverse = np.unique(codes, return_inverse=True)
        value_outside = attribute.value if not attribute.values else lambda code: np.nan
        return build_cells([content[c] if c in content else value_outside(c) for c in distinct.tolist()], inverse, str)

    def of_cells(cells: Any) -> Any:
        numbers, distinct = pandas.factorize(cells.astype(object), use_na_sentinel=False)
        return build_cells(list(distinct), numbers, lambda cell: "nan" if pandas.isna(cell) else cell_text(cell))

    return ColumnCells(of_codes, of_cells)


def number_cells(attribute: Attribute) -> ColumnCells:
    """Return the cells of an attribute as numbers; an empty one is NaN."""
    content = cells_of(attribute)
    numbers = require("pandas", "sklearn").array(np.array(list(content.values()), dtype=np.float64))
    original = _make_table_cells(attribute, content, numbers)

    def of_cells(cells: Any) -> Any:
        if cells.dtype.kind == "m":  # durations are read as seconds
            cells = cells.dt.total_seconds()
        if cells.dtype.kind in "iufb":
            return cells.to_numpy(dtype=np.float64, na_value=np.nan)
        numbers = [attribute.number(cell_text(cell)) for cell in cells]
        return np.array([np.nan if number is None else number for number in numbers])

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


def cells_of(attribute: Attribute, categories: Collection[Any] = ()) -> dict[int, Any]:
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
        numbers: dict[int, Any] = {code: attribute.value(code) for code in range(attribute.grid_size)}
        return numbers if attribute.empty is None else numbers | {attribute.empty: np.nan}
    texts = {text.strip(): text for text in categories if isinstance(text, str)}
    spelled: dict[str, str | float] = {**texts}
    labels: dict[int, str] = dict(enumerate(attribute.values))
    labels |= {code: label for label, code in attribute.extra.items() if code not in labels}
    if attribute.other is not None:  # no model has seen the word for all others, so one of these takes its place
        other = attribute.values.index(attribute.other)
        labels[other] = next((label for label, code in attribute.extra.items() if code == other), attribute.other)
    empty = attribute.missing if isinstance(attribute.missing, str) else None
    present = [label for label in labels.values() if label != empty]
    mark = next((text for stripped, text in texts.items() if is_missing(stripped)), np.nan)
    if not any(label in spelled for label in labels.values()):
        if all(label in _TRUTH_VALUES for label in present):
            spelled |= _TRUTH_VALUES
        else:
            with suppress(ValueError):
                spelled |= {label: _parse_number(label) for label in present}
    if empty is not None and empty not in spelled and (categories or empty == MISSING):
        spelled[empty] = mark
    cells: dict[int, Any] = {code: spelled.get(label, label) for code, label in labels.items()}
    if isinstance(attribute.missing, (int, float)):  # the code of an empty cell, which may have no label
        cells.setdefault(int(attribute.missing), mark)
    return cells


def _convert_dtype(cells: Any, dtype: Any) -> Any:
    """Return cells, a Series, with the dtype of the table, if it can hold them: no int holds an empty cell.

    A table may have too small numbers for all values of the domain: 300 would become 44 in bytes.
    """
    if dtype is None or cells.dtype == dtype:
        return cells
    try:
        if dtype.kind == "m":  # durations are read as seconds
            return require("pandas", "sklearn").to_timedelta(cells, unit="s").astype(dtype)
        if dtype.kind == "M":
            return require("pandas", "sklearn").to_datetime(cells).astype(dtype)
        converted = cells.astype(dtype)
    except (TypeError, ValueError, OverflowError):
        return cells
    is_exact = (converted.isna() == cells.isna()).all() and converted.nunique() == cells.nunique()
    if is_exact and converted.dtype.kind in "iuf" and cells.dtype.kind in "iuf":
        integers = cells % 1 == 0
        is_exact = (converted[integers].astype(cells.dtype) == cells[integers]).all()
    return converted if is_exact else cells


def _make_category_finder(categories: Sequence[Any]) -> Callable[[Any], Any]:
    """Return what finds the category of a cell: the same value, or the only number that rounds to it; NaN for none.

    A domain has the numbers of a table to twelve digits, and a model may know 0.30000000000000004.
    """
    exact = {canonical_number(category): category for category in categories}
    rounded = [(_round_number(category), category) for category in categories if isinstance(category, float)]
    rounded_counts = Counter(number for number, _ in rounded)
    by_rounding = {number: category for number, category in rounded if rounded_counts[number] == 1}

    def find_category(cell: Any) -> Any:
        category = exact.get(canonical_number(cell))
        if category is None and isinstance(cell, (int, float)):
            category = by_rounding.get(_round_number(cell))
        return np.nan if category is None else category

    return find_category


def _round_number(number: float) -> float:
    return float(f"{number:.12g}")  # as `Attribute.value`


def _parse_number(label: str) -> int | float:
    """Return a label as a number; a whole one of any length, for a float has only sixteen digits."""
    try:
        return plain_int(label)
    except ValueError:  # "0.5", "1e3"
        number = plain_float(label)
        return int(number) if number.is_integer() and "." not in label else number


PREPROCESSED = "rows go through preprocess"
MAX_MISTYPED = 5  # columns in an error
# Attributes of fitted scalers and linear models, whose columns are numbers.
_NUMERIC_STATE = ("mean_", "scale_", "center_", "data_min_", "max_abs_", "coef_", "coefs_", "tree_")
MAX_FLAGS = 256  # values of a number that may each have a column of their own


@dataclass(frozen=True)
class TreeColumns:
    """The columns of boosted trees: their names, and the values of those that are categories; None: any text."""

    names: tuple[str, ...]
    categories: Mapping[str, Sequence[Any] | None]
    has_names: bool  # by the user, not by their position


def original_table(request: OpenRequest, columns: Sequence[str] | None = None, **options: Any) -> ModelInputs:
    """Return the table itself, with the names and dtypes that it had."""
    return table_inputs(request.domain.to("cpu"), columns, types=request.types, **options)


def declared_numbers(request: OpenRequest, note: str = "") -> ModelInputs:
    """Return the numbers that the domain file declares, as one tensor."""
    encoding = TableEncoding.of(request.domain.to("cpu"))
    return ModelInputs(
        lambda rows: [encoding.encode(rows.cpu())],
        of_numbers=lambda numbers: [torch.from_numpy(numbers)],
        note=note,
        by_position=True,
    )


def preprocess_table(request: OpenRequest) -> ModelInputs:
    """Return the table after the user's own preprocessing."""
    assert request.preprocess is not None
    return original_table(request).then(request.preprocess, note=PREPROCESSED, program="the function preprocess")


def estimator_inputs(
    request: OpenRequest,
    estimator: Any,
    *,
    bare: bool,
    names: list[str] | None = None,
    trees: TreeColumns | None = None,
) -> list[ModelInputs]:
    """Return the inputs that fit what an estimator states about them, the most likely first.

    `bare` says that it has no preprocessing of its own. `names` are the columns that it reads, and `trees` those of
    boosted trees.
    """
    if request.preprocess is not None:
        return [preprocess_table(request)]
    if trees is not None:
        return [_make_tree_inputs(request, trees)]
    names = names or list_input_names(estimator)
    if names is None:
        return _make_positional_inputs(request, estimator, bare)
    if set(names) <= set(request.domain.names):
        categories = find_categories(estimator, names)
        table = original_table(request, names, categories=categories, categorical=bare)
        numbers = [number_columns(request, names)] if bare else []
        return [table, *numbers, *_list_other_forms(request, table, names)]
    if bare:
        return [number_columns(request, names)]
    unknown_name = next(name for name in names if name not in request.domain.names)
    raise request.error(
        f"reads a column '{unknown_name}', which the domain does not have. Add it to the domain file. "
        f"{did_you_mean(unknown_name, request.domain.names)}"
    )


def _list_other_forms(request: OpenRequest, table: ModelInputs, names: Sequence[str] | None) -> list[ModelInputs]:
    """Return the table with dates parsed, and the table as an array."""
    dated = any(attribute.date is not None for attribute in request.domain.attributes)
    others = [replace(original_table(request, names, dates=True), by_position=table.by_position)] if dated else []
    return [*others, table.then(lambda frame: frame.to_numpy(), by_position=names is None)]


def function_inputs(request: OpenRequest, names: Sequence[str] | None) -> list[ModelInputs]:
    """Return the inputs of a function: the table, or what `preprocess` makes of it."""
    if request.preprocess is not None:
        return [preprocess_table(request)]
    table = replace(original_table(request, names), by_position=None if names is None else False)
    return [table, *_list_other_forms(request, table, names)]


def _make_positional_inputs(request: OpenRequest, estimator: Any, bare: bool) -> list[ModelInputs]:
    """Return the inputs of an estimator without column names.

    A pipeline gets the table's cells. So does an estimator that does not state how many inputs it has, and any one if
    the domain was inferred from the table, since no other encoding is declared then.
    """
    domain, count = request.domain, _count_inputs(estimator)
    width = TableEncoding.of(domain).width
    forms = []
    if (request.inferred or not bare or count is None) and count in (None, len(domain.names)):
        table = original_table(request, categories=find_categories(estimator, domain.names))
        table = replace(table, by_position=None if count is None else True)
        forms = [table, *_list_other_forms(request, table, None)]
    if bare and count in (None, width):
        forms.append(_make_declared_array(request))
    if forms:
        return forms
    if bare:
        raise request.error(f"expects {count} inputs. {request.width_text()}")
    available = f"{len(domain.names)}{request.without_sensitive(len)}"
    raise request.error(f"expects {count} columns, but the domain '{domain.name}' has {available}")


def _make_declared_array(request: OpenRequest) -> ModelInputs:
    width = TableEncoding.of(request.domain).width
    note = f"it gets the {width} numbers of the domain's encoding, because it has no column names"
    return declared_numbers(request, note).then(lambda tensors: tensors[0].numpy())


def _make_tree_inputs(request: OpenRequest, trees: TreeColumns) -> ModelInputs:
    domain, names = request.domain, trees.names
    if trees.has_names:
        return number_columns(request, names, trees.categories)
    if len(names) == len(domain.names):
        pairs = zip(domain.names, names, strict=True)
        categories = {name: trees.categories[n] for name, n in pairs if n in trees.categories}
        note = "it gets the columns in the domain's order, because it has no column names"
        return replace(number_columns(request, domain.names, categories, note), by_position=True)
    if len(names) == TableEncoding.of(domain).width and not trees.categories:
        return _make_declared_array(request)
    raise request.error(f"expects {len(names)} inputs. {request.width_text()}")


def number_columns(
    request: OpenRequest,
    names: Sequence[str],
    categories: Mapping[str, Sequence[Any] | None] | None = None,
    note: str = "",
) -> ModelInputs:
    """Return columns of numbers: an attribute by its name, or an indicator of one value, as in 'sex_Male'.

    Columns in `categories` become these categories, or texts. LightGBM writes '_' for every blank in a name.
    """
    domain, categories = request.domain.to("cpu"), categories or {}
    flags = {
        f"{attribute.name}_{label}": (index, label, code)
        for index, attribute in enumerate(domain.attributes)
        for code, label in _list_flag_labels(attribute)
    }
    names_of_domain, uses_codes = set(domain.names), False
    blanks = {name.replace(" ", "_"): name for name in (*flags, *domain.names)}
    columns = []
    for label in names:
        name = label if label in names_of_domain or label in flags else blanks.get(label, label)
        if name not in names_of_domain and name not in flags:
            raise request.error(
                f"reads a column '{name}', which is neither an attribute of the domain nor one of its values. "
                f"{did_you_mean(name, [*domain.names, *flags])}"
            )
        index = domain.column(name) if name in names_of_domain else flags[name][0]
        attribute = domain.attributes[index]
        if name not in names_of_domain:
            cells = flag_cells(attribute, *flags[name][1:])
        elif label in categories:
            cells = category_cells(attribute, categories[label])
        elif any(isinstance(cell, str) for cell in cells_of(attribute).values()):
            cells, uses_codes = code_cells(attribute), True
        else:
            cells = number_cells(attribute)
        columns.append(FrameColumn(label, attribute.name, index, cells))
    remark = "labels become their positions in the domain" if uses_codes else ""
    return _make_frame(columns, "; ".join(filter(None, (note, remark))))


def _list_flag_labels(attribute: Attribute) -> list[tuple[int, str]]:
    """Return the codes and labels of an attribute that may have an indicator column, also for an empty cell."""
    if not attribute.values:
        can_be_flags = attribute.size <= MAX_FLAGS
        return [(code, str(attribute.value(code))) for code in range(attribute.size)] if can_be_flags else []
    labels = [*((code, label) for label, code in attribute.extra.items()), *enumerate(attribute.values)]
    if attribute.missing is not None:
        labels += [(int(attribute.codes([None])[0]), mark) for mark in EMPTY_FLAGS]
    return labels


def _count_inputs(estimator: Any) -> int | None:
    """Return how many inputs an estimator has, or the first step of a pipeline that states it."""
    count: int | None = getattr(estimator, "n_features_in_", None)
    return _count_inputs(list_steps(estimator)[0]) if count is None and hasattr(estimator, "steps") else count


def describe_mistyped_columns(estimator: Any, table: Any) -> str:
    """Return the end of a sentence: the columns of a table of another type than an estimator was fitted to."""
    if not hasattr(table, "dtypes"):
        return ""
    trained = _find_column_kinds(estimator, list(table.columns))
    kinds = {name: "numbers" if table[name].dtype.kind in "iufb" else "texts" for name in trained}
    mistyped = [f"'{n}' (fitted to {trained[n]}, gets {kind})" for n, kind in kinds.items() if kind != trained[n]]
    return f". Types differ from its training: {shorten_list(mistyped, MAX_MISTYPED)}" if mistyped else ""


def _find_column_kinds(part: Any, columns: Sequence[str]) -> dict[str, str]:
    """Return whether columns were numbers or texts when an estimator was fitted, where its encoders or scalers say."""
    categories = find_categories(part, columns)
    texts = {name: any(isinstance(value, str) for value in values) for name, values in categories.items()}
    kinds = {name: "texts" if has_text else "numbers" for name, has_text in texts.items()}
    if any(getattr(part, name, None) is not None for name in _NUMERIC_STATE):
        return dict.fromkeys(columns, "numbers") | kinds
    for step in list_steps(part)[:1]:
        kinds |= _find_column_kinds(step, columns)
    for _, step, selection in getattr(part, "transformers_", ()):
        names = list_selected_columns(getattr(part, "feature_names_in_", columns), selection)
        kinds |= _find_column_kinds(step, names)
    return kinds


def find_categories(part: Any, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Return the categories of the fitted encoders in an estimator, by column."""
    if hasattr(part, "categories_"):
        return dict(zip(columns, map(list, part.categories_), strict=False))
    categories: dict[str, list[Any]] = {}
    if hasattr(part, "_preprocessor"):  # the encoder inside histogram-based boosting
        return find_categories(part._preprocessor, columns)
    for step in list_steps(part):
        categories = find_categories(step, columns) | categories  # the first encoder reads the original table
    names = getattr(part, "feature_names_in_", columns)
    for _, step, selection in getattr(part, "transformers_", ()):
        categories |= find_categories(step, list_selected_columns(names, selection))
    return categories
