"""Tables on disk, read as columns of text: CSV with any common separator, or Parquet."""

from __future__ import annotations

import csv
import io
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuronfair.apart import Unreadable, read_apart
from neuronfair.errors import DataError, one_line, repeated
from neuronfair.limits import TEXT, check_size, max_bytes, read_bytes, unpacked

MAX_COLUMNS = 50_000  # the domain file of a wider table would be too large to be read again
# What a table takes in memory besides its texts: for each row a list; for each cell its place in a row and in a column,
# and its code, twice; for each different text its place in a dictionary.
_ROW, _CELL, _TEXT = 100, 32, 100
_SEPARATORS = ",;\t|"


@dataclass(frozen=True)
class Sheet:
    """The columns of a table as text, an empty cell as '', and the line of the file that each row stands on."""

    path: Path
    columns: dict[str, list[str]]
    lines: Sequence[int]
    unit: str = "line"

    def where(self, row: int) -> str:
        """Return where a row is found in its file."""
        return f"{self.unit} {self.lines[row]}"


def read_sheet(path: str | Path | Sheet | Any) -> Sheet:
    """Read a CSV file with a header (comma, semicolon, tab or | between the cells; also as .gz), or a Parquet file.

    A file that would take too much memory is refused, before it is unpacked or while it is read. What was read before
    is not read again. A table in memory (a DataFrame, an Arrow table, a mapping of columns) is taken as a file is.
    """
    if isinstance(path, Sheet):
        return path
    if not isinstance(path, (str, Path)):
        from neuronfair.domain.memory import sheet_of

        return sheet_of(path)
    path = Path(path)
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            return _parquet(read_bytes(path), path)
        content = read_bytes(path, times=TEXT)
        if content[:2] == b"\x1f\x8b":
            content = unpacked(content, path, times=TEXT)
        return _csv(content, path)
    except (EOFError, zlib.error):
        raise DataError(f"{path}: the gzip file is damaged or ends too early") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: this is not a text file in UTF-8. Expected a CSV file with a header line") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except csv.Error as error:
        raise DataError(f"{path}: cannot be read as CSV: {error}") from None


def _csv(content: bytes, path: Path) -> Sheet:
    file = io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="")
    separator = _separator(next((line for line in file if line.strip()), ""))
    file.seek(0)
    # Before anything is read; a separator inside a text counts as well, which does not matter.
    cells_at_most = content.count(separator.encode()) + content.count(b"\n")
    check_size(len(content) + _CELL * cells_at_most, path)
    reader = csv.reader(file, delimiter=separator, skipinitialspace=True)
    header: list[str] = []
    rows: list[list[str]] = []
    lines: list[int] = []
    texts = _Texts(path, len(content))
    before = 0
    for cells in reader:
        line, before = before + 1, reader.line_num  # a quoted cell may run over several lines
        if not any(cell.strip() for cell in cells) and len(cells) <= 1:
            continue  # a blank line
        if not header:
            header = [name.strip() for name in cells]
            _check_header(header, path)
        elif len(cells) != len(header):
            raise DataError(f"{path}: line {line}: {len(cells)} cells under a header of {len(header)} columns")
        else:
            rows.append(texts.of(cells))
            lines.append(line)
    if not header:
        raise DataError(f"{path}: the file is empty. Expected a header line and at least one row")
    if not rows:
        raise DataError(f"{path}: no rows after the header line ({', '.join(header[:8])})")
    return Sheet(path, dict(zip(header, map(list, zip(*rows, strict=True)), strict=True)), lines)


class _Texts(dict[str, str]):
    """The different texts in the cells of a table, each kept once, and how much memory the table takes so far."""

    def __init__(self, path: Path, taken: int) -> None:
        self._path, self._taken, self._most = path, taken, max_bytes()

    def __missing__(self, text: str) -> str:
        self._taken += sys.getsizeof(text) + _TEXT
        self[text] = text
        return text

    def of(self, cells: Iterable[str]) -> list[str]:
        """Return cells without blanks at their ends."""
        texts = [self[text] for text in map(str.strip, cells)]
        self._taken += _ROW + _CELL * len(texts)
        if self._taken > self._most:
            check_size(self._taken, self._path)
        return texts


def _check_header(names: Sequence[str], path: Path) -> None:
    if len(names) > MAX_COLUMNS:
        raise DataError(f"{path}: has {len(names):,} columns, and {MAX_COLUMNS:,} at most are read. Leave some out")
    twice = repeated(names)
    if twice is not None:
        raise DataError(f"{path}: the header names the column '{twice}' twice")


def _separator(header: str) -> str:
    """Return the separator that cuts the header line into most parts."""
    return max(_SEPARATORS, key=header.count)


def _parquet(content: bytes, path: Path) -> Sheet:
    import pyarrow
    import pyarrow.parquet

    from neuronfair.apart.parquet import columns

    try:
        read_apart("parquet", content, path)  # it may be damaged so that the library ends the process
        with pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content)) as file:
            about, names = file.metadata, file.schema_arrow.names
        _check_header(names, path)
        groups = [about.row_group(i) for i in range(about.num_row_groups)]
        values = sum(group.column(i).num_values for group in groups for i in range(group.num_columns))
        size = 3 * sum(group.total_byte_size for group in groups)  # as it is unpacked, as a column, and as text
        check_size(size + _CELL * max(values, about.num_rows * len(names)), path)
        table = columns(content)
        texts = _Texts(path, len(content) + table.nbytes)
        cells = {str(name): texts.of(_cells(table[name])) for name in names}
    except (pyarrow.ArrowException, Unreadable, ValueError, OverflowError) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {one_line(error)}") from None
    if table.num_rows == 0:
        raise DataError(f"{path}: no rows ({', '.join(names[:8])})")
    return Sheet(path, cells, range(1, table.num_rows + 1), unit="row")


def _cells(column: Any) -> Iterator[str]:
    """Yield the cells of a Parquet column as text; each different value becomes one once."""
    import pyarrow

    for part in column.chunks:
        if pyarrow.types.is_nested(part.type):
            yield from map(_text, part.to_pylist())
            continue
        coded = part if pyarrow.types.is_dictionary(part.type) else part.dictionary_encode()
        texts = [_text(value) for value in coded.dictionary.to_pylist()]
        yield from ("" if code is None else texts[code] for code in coded.indices.to_pylist())


def _text(cell: Any) -> str:
    if cell is None or cell != cell:  # NaN is the one value that differs from itself
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell)
