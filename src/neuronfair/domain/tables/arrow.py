"""Tables read through Arrow: in memory, Parquet and Feather files, and plain CSV files.

narwhals gives the columns of a DataFrame of any library, and Arrow their dictionaries of different values.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from importlib.util import find_spec
from numbers import Number
from operator import eq
from pathlib import Path
from typing import Any

import narwhals
import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
from narwhals.exceptions import DuplicateError
from pyarrow import types
from pyarrow.interchange import from_dataframe

from neuronfair.domain.cells import cell_text
from neuronfair.domain.tables import (
    CELL_BYTES,
    TEXT_BYTES,
    Cells,
    ColumnBuilder,
    ColumnType,
    Meter,
    Sheet,
    check_width,
    make_sheet,
)
from neuronfair.errors import DataError, find_repeated, one_line
from neuronfair.limits import check_size
from neuronfair.sandbox import UnreadableError, read_sandboxed
from neuronfair.sandbox.readers import feather_table, parquet_table

MAX_LETTERS = csv.field_size_limit()  # letters of a cell, for Python's own reader
EMPTY_TEXT_BYTES = sys.getsizeof("")
MEMORY_PATH = Path("table")  # the name of a table in memory
ValueOf = dict[str, Any]  # what each text of a column stands for
_BLOCK_BYTES = 1 << 24  # bytes of a CSV file that are read at once


def read_columnar(content: bytes, path: Path, suffix: str) -> Sheet:
    """Read a Parquet or Feather file, after a sandboxed process: a hostile file may crash the reader."""
    form = "Parquet" if suffix in (".parquet", ".pq") else "Feather"
    remarks: tuple[str, ...] = ()
    try:
        if form == "Parquet":
            read_sandboxed("parquet", content, path)
            _check_parquet(content, path)
            table = parquet_table(content)
        else:
            size, rows, width = map(int, read_sandboxed("feather", content, path).split())
            check_size(3 * size + CELL_BYTES * rows * width, path)
            table, odd = feather_table(content)
            remarks = tuple(f"'{name}' holds lists or other values that are not read" for name in odd[:10])
        names = table.schema.names
        check_width(names, path)
        meter = Meter(path, len(content) + table.nbytes)
        read = [_encode_column(column, meter) for column in table.columns] if table.num_rows else []
    except (pyarrow.ArrowException, UnreadableError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: cannot be read as {form}: {one_line(error)}") from None
    if not read:
        raise DataError(f"{path}: no rows ({', '.join(names[:8])})")
    cells, values = zip(*read, strict=True)
    result = make_sheet(path, names, cells, range(1, table.num_rows + 1), unit="row", remarks=remarks)
    pandas = find_spec("pandas") is not None
    dtypes = [column.slice(0, 0).to_pandas().dtype if pandas else None for column in table.columns]
    return replace(result, types=dict(zip(result.columns, map(ColumnType, names, dtypes, values), strict=True)))


def read_csv(content: bytes, separator: str, width: int, path: Path) -> list[Cells] | None:
    """Return the columns of a CSV file in UTF-8 with a header and one row on each line; None for any other file.

    Python's own reader takes several times as long, but handles blank lines and line breaks, and names errors.
    """
    names = [str(index) for index in range(width)]
    text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    lines = content.count(b"\n") + (not content.endswith(b"\n"))
    try:
        table = pyarrow.csv.read_csv(
            pyarrow.BufferReader(content),
            pyarrow.csv.ReadOptions(column_names=names, skip_rows=1, block_size=_BLOCK_BYTES),
            pyarrow.csv.ParseOptions(delimiter=separator),
            pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, text)),
        )
    except pyarrow.ArrowException:
        return None
    if table.num_rows != lines - 1 or not table.num_rows:
        return None
    meter = Meter(path, len(content) + table.nbytes)
    columns = [_decode_texts(column.combine_chunks(), meter) for column in table.unify_dictionaries().columns]
    return columns if all(len(text) <= MAX_LETTERS for column in columns for text in column.texts) else None


def _decode_texts(column: Any, meter: Meter) -> Cells:
    """Return a column from an Arrow dictionary of texts, without blanks at their ends."""
    dictionary = column.dictionary
    meter.count(CELL_BYTES * len(column) + dictionary.nbytes + (TEXT_BYTES + EMPTY_TEXT_BYTES) * len(dictionary))
    texts = dictionary.to_pylist()
    if all(map(eq, texts, map(str.strip, texts))):
        return Cells(texts, column.indices.to_numpy())
    builder = ColumnBuilder(meter)
    numbers = np.array([builder[text] for text in texts], dtype=np.int32)
    builder.add_numbers(numbers[column.indices.to_numpy()])
    return builder.cells()


def _check_parquet(content: bytes, path: Path) -> None:
    """Refuse a file that its metadata shows to be too large."""
    with pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content)) as file:
        metadata, names = file.metadata, file.schema_arrow.names
    check_width(names, path)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    values = sum(group.column(i).num_values for group in groups for i in range(group.num_columns))
    size = 3 * sum(group.total_byte_size for group in groups)  # as it is unpacked, as a column, and as text
    check_size(size + CELL_BYTES * max(values, metadata.num_rows * len(names)), path)


def read_memory(table: Any) -> Sheet:
    """Return a table in memory (a DataFrame, an Arrow table, a mapping of columns) as columns of text.

    NaN, NA and None are empty cells, and whole numbers have no point.

    >>> sheet = read_memory({"age": [39, None], "score": [0.5, float("nan")], "smokes": [True, False]})
    >>> {name: list(cells) for name, cells in sheet.columns.items()}
    {'age': ['39', ''], 'score': ['0.5', ''], 'smokes': ['True', 'False']}
    """
    labels, columns = _split_columns(table)
    names = _check_names(labels)
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        raise DataError(f"{MEMORY_PATH}: its columns have different lengths: {', '.join(map(str, sorted(lengths)))}")
    if not lengths or lengths == {0}:
        raise DataError(f"{MEMORY_PATH}: no rows ({', '.join(names[:8])})")
    is_pandas = hasattr(table, "iloc")
    cells, column_types, spans = dict[str, Cells](), dict[str, ColumnType](), list[str]()
    for name, label, column in zip(names, labels, columns, strict=True):
        cells[name], values = _encode_column(column, Meter(MEMORY_PATH))
        dtype = column.to_native().dtype if is_pandas and isinstance(column, narwhals.Series) else None
        column_types[name] = ColumnType(label, dtype, values)
        spans += [name] if getattr(dtype, "kind", "") == "m" else []
    remarks = tuple(f"'{name}' holds durations, read as seconds" for name in spans)
    frame = table if is_pandas else None
    return Sheet(
        MEMORY_PATH, cells, range(1, lengths.pop() + 1), unit="row", remarks=remarks, types=column_types, frame=frame
    )


def _split_columns(table: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the labels of a table's columns, of any type, and the columns: lists, or Series of narwhals."""
    if isinstance(table, Mapping):
        return list(table), [list(column) for column in table.values()]
    try:
        frame = narwhals.from_native(table, eager_only=True, pass_through=True)
        if not isinstance(frame, narwhals.DataFrame) and hasattr(table, "__arrow_c_stream__"):
            frame = narwhals.from_native(pyarrow.table(table))
        elif not isinstance(frame, narwhals.DataFrame) and hasattr(table, "__dataframe__"):
            frame = narwhals.from_native(from_dataframe(table))
    except DuplicateError:
        _check_names(table.column_names if isinstance(table, pyarrow.Table) else table.columns)
        raise
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"{MEMORY_PATH}: cannot be read as an Arrow table ({one_line(error)})") from error
    if not isinstance(frame, narwhals.DataFrame):
        raise DataError(
            "expected a file, a DataFrame (pandas, Polars), an Arrow table or a mapping of columns, got "
            f"{type(table).__name__}"
        )
    return frame.columns, list(frame.iter_columns())


def _check_names(labels: Iterable[Any]) -> tuple[str, ...]:
    """Return the labels of columns as names; refuse duplicates."""
    names = tuple(map(str, labels))
    if (twice := find_repeated(names)) is not None:
        raise DataError(f"{MEMORY_PATH}: has two columns named '{twice}'. Rename one of them")
    return names


def _encode_column(column: Any, meter: Meter) -> tuple[Cells, ValueOf]:
    """Return the cells of a column, and the value of each text unless all are numbers.

    Each different value becomes a text once. A column that Arrow cannot encode as a dictionary is read value by value.
    """
    builder = ColumnBuilder(meter)
    try:
        array = column.to_arrow() if isinstance(column, narwhals.Series) else column
        array = pyarrow.array(array, from_pandas=True) if isinstance(array, list) else array
        array = array if isinstance(array, pyarrow.ChunkedArray) else pyarrow.chunked_array([array])
        coded = array.unify_dictionaries() if types.is_dictionary(array.type) else array.dictionary_encode()
        dictionary = coded.chunk(0).dictionary
        if types.is_nested(dictionary.type) or isinstance(
            dictionary.type, pyarrow.BaseExtensionType
        ):  # intervals of pandas
            raise TypeError
        indices = np.concatenate(
            [value.indices.cast("int64").fill_null(len(dictionary)).to_numpy() for value in coded.chunks]
        )
        first = np.full(len(dictionary) + 1, len(indices))
        first[indices[::-1]] = np.arange(len(indices))[::-1]  # the last write is that of the first row
        used = np.argsort(first)[: int((first < len(indices)).sum())]  # in the order of their first rows
        distinct = dictionary.take(pyarrow.array(used, mask=used == len(dictionary))).to_pylist()
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):  # objects of several kinds, periods, …
        stands_for: ValueOf = {}
        builder.add(_note_values(column.to_native() if isinstance(column, narwhals.Series) else column, stands_for))
        return builder.cells(), stands_for
    texts = list(map(cell_text, distinct))
    numbers = np.zeros(len(dictionary) + 1, dtype=np.int32)
    numbers[used] = [builder[text] for text in texts]
    builder.add_numbers(numbers[indices])
    if all(
        value is None or (isinstance(value, (Number, timedelta)) and not isinstance(value, bool)) for value in distinct
    ):
        return builder.cells(), {}
    return builder.cells(), {text.strip(): value for text, value in zip(texts, distinct, strict=True) if text}


def _note_values(values: Iterable[Any], stands_for: ValueOf) -> Iterator[str]:
    for item in values:
        value = item.as_py() if isinstance(item, pyarrow.Scalar) else item
        text = cell_text(value)
        if text:
            stands_for[text] = value
        yield text
