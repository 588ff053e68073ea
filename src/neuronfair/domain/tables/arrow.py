"""What pyarrow reads, as columns of text: Parquet and Feather (Arrow IPC) files, and the plainest CSV files."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from importlib.util import find_spec
from operator import eq
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet

from neuronfair.domain.tables.cells import CELL, TEXT, Cells, ColumnBuilder, Meter
from neuronfair.domain.tables.files import ColumnType, Sheet, check_width, sheet
from neuronfair.errors import DataError, one_line
from neuronfair.limits import check_size
from neuronfair.sandbox import Unreadable, read_apart, read_feather, read_parquet

LONGEST = csv.field_size_limit()  # letters of a cell, for Python's own reader
EMPTY = sys.getsizeof("")
_BLOCK = 1 << 24  # bytes of a CSV file that are read at once


def read(content: bytes, path: Path, suffix: str) -> Sheet:
    """Read the content of a file; it was read before in a process of its own, since it may end the process."""
    form = "Parquet" if suffix in (".parquet", ".pq") else "Feather"
    remarks: tuple[str, ...] = ()
    try:
        if form == "Parquet":
            read_apart("read_parquet", content, path)
            _check_parquet(content, path)
            table = read_parquet.columns(content)
        else:
            size, rows, width = map(int, read_apart("read_feather", content, path).split())
            check_size(3 * size + CELL * rows * width, path)
            table, odd = read_feather.columns(content)
            remarks = tuple(f"'{name}' holds lists or other values that are not read" for name in odd[:10])
        names = table.schema.names
        check_width(names, path)
        meter = Meter(path, len(content) + table.nbytes)
        cells = [_cells(column, meter) for column in table.columns] if table.num_rows else []
    except (pyarrow.ArrowException, Unreadable, ValueError, OverflowError) as error:
        raise DataError(f"{path}: cannot be read as {form}: {one_line(error)}") from None
    if not cells:
        raise DataError(f"{path}: no rows ({', '.join(names[:8])})")
    found = sheet(path, names, cells, range(1, table.num_rows + 1), unit="row", remarks=remarks)
    parts = zip(found.columns, names, table.columns, cells, strict=True)
    return replace(found, types={shown: _typed(name, column, texts) for shown, name, column, texts in parts})


def _typed(name: str, column: Any, cells: Cells) -> ColumnType:
    """Return how pandas has a column of Arrow: its dtype, and that texts are texts even if they look like numbers."""
    dtype = column.slice(0, 0).to_pandas().dtype if find_spec("pandas") is not None else None
    texts = pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type)
    return ColumnType(name, dtype, {text: text for text in cells.texts if text} if texts else {})


def read_csv(content: bytes, separator: str, width: int, path: Path) -> list[Cells] | None:
    """Return the columns of a CSV file in UTF-8 in which every line is a row of so many cells, the first the header.

    Python's own reader takes several times as long, but knows where a row stands if some are blank or of several
    lines, and what is wrong with a file: then this is None.
    """
    names = [str(place) for place in range(width)]
    text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    lines = content.count(b"\n") + (not content.endswith(b"\n"))
    try:
        table = pyarrow.csv.read_csv(
            pyarrow.BufferReader(content),
            pyarrow.csv.ReadOptions(column_names=names, skip_rows=1, block_size=_BLOCK),
            pyarrow.csv.ParseOptions(delimiter=separator),
            pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, text)),
        )
    except pyarrow.ArrowException:
        return None
    if table.num_rows != lines - 1 or not table.num_rows:
        return None
    meter = Meter(path, len(content) + table.nbytes)
    columns = [_texts(column.combine_chunks(), meter) for column in table.unify_dictionaries().columns]
    return columns if all(len(text) <= LONGEST for column in columns for text in column.texts) else None


def _texts(column: Any, meter: Meter) -> Cells:
    """Return a column of texts that knows each of them once, unless two are the same without blanks at their ends."""
    known = column.dictionary
    meter.count(CELL * len(column) + known.nbytes + (TEXT + EMPTY) * len(known))
    texts = known.to_pylist()
    if all(map(eq, texts, map(str.strip, texts))):
        return Cells(texts, column.indices.to_numpy())
    found = ColumnBuilder(meter)
    numbers = np.array([found[text] for text in texts], dtype=np.int32)
    found.add_numbers(numbers[column.indices.to_numpy()])
    return found.cells()


def _check_parquet(content: bytes, path: Path) -> None:
    """Refuse a file that is too large by what it says of itself."""
    with pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content)) as file:
        about, names = file.metadata, file.schema_arrow.names
    check_width(names, path)
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    values = sum(group.column(i).num_values for group in groups for i in range(group.num_columns))
    size = 3 * sum(group.total_byte_size for group in groups)  # as it is unpacked, as a column, and as text
    check_size(size + CELL * max(values, about.num_rows * len(names)), path)


def _cells(column: Any, meter: Meter) -> Cells:
    """Return the cells of a column as text; each different value becomes one once."""
    found = ColumnBuilder(meter)
    for part in column.chunks:
        try:
            coded = part if pyarrow.types.is_dictionary(part.type) else part.dictionary_encode()
            places = coded.indices.cast("int64").fill_null(len(coded.dictionary)).to_numpy()
            used, first = np.unique(places, return_index=True)
            used = used[np.argsort(first)]  # as they come; a category may not come at all
            values = coded.dictionary.take(pyarrow.array(used, mask=used == len(coded.dictionary))).to_pylist()
        except pyarrow.ArrowNotImplementedError:  # one by one: a few bytes of a file may be many long values
            found.add(_text(value.as_py()) for value in part)
            continue
        numbers = np.zeros(len(coded.dictionary) + 1, dtype=np.int32)
        numbers[used] = [found[_text(value)] for value in values]
        found.add_numbers(numbers[places])
    return found.cells()


def _text(cell: Any) -> str:
    if cell is None or cell != cell:  # NaN is the one value that differs from itself
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell)
