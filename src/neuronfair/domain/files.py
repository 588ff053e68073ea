"""Tables on disk, read as columns of text: CSV with any common separator, or Parquet."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuronfair.errors import DataError

_SEPARATORS = ",;\t|"


@dataclass(frozen=True)
class Sheet:
    """The columns of a table as text, an empty cell as '', and the line of the file that each row stands on."""

    columns: dict[str, list[str]]
    lines: Sequence[int]
    unit: str = "line"

    def where(self, row: int) -> str:
        """Return where a row is found in its file."""
        return f"{self.unit} {self.lines[row]}"


def read_sheet(path: str | Path) -> Sheet:
    """Read a CSV file with a header (comma, semicolon, tab or | between the cells; also as .gz), or a Parquet file."""
    path = Path(path)
    try:
        content = path.read_bytes()
        if path.suffix.lower() in (".parquet", ".pq"):
            return _parquet(path)
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        return _csv(content.decode("utf-8-sig"), path)
    except (EOFError, zlib.error):
        raise DataError(f"{path}: the gzip file is damaged or ends too early") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: this is not a text file in UTF-8. Expected a CSV file with a header line") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except csv.Error as error:
        raise DataError(f"{path}: cannot be read as CSV: {error}") from None


def _csv(text: str, path: Path) -> Sheet:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_separator(text), skipinitialspace=True)
    header: list[str] = []
    rows: list[list[str]] = []
    lines: list[int] = []
    before = 0
    for cells in reader:
        line, before = before + 1, reader.line_num  # a quoted cell may run over several lines
        if not any(cell.strip() for cell in cells) and len(cells) <= 1:
            continue  # a blank line
        if not header:
            header = [name.strip() for name in cells]
        elif len(cells) != len(header):
            raise DataError(f"{path}: line {line}: {len(cells)} cells under a header of {len(header)} columns")
        else:
            rows.append(cells)
            lines.append(line)
    if not header:
        raise DataError(f"{path}: the file is empty. Expected a header line and at least one row")
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise DataError(f"{path}: the header names the column '{twice[0]}' twice")
    if not rows:
        raise DataError(f"{path}: no rows after the header line ({', '.join(header[:8])})")
    columns = {
        name: [cell.strip() for cell in cells] for name, cells in zip(header, zip(*rows, strict=True), strict=True)
    }
    return Sheet(columns, lines)


def _separator(text: str) -> str:
    """Return the separator that cuts the header line into most parts."""
    header = text.lstrip().partition("\n")[0]
    return max(_SEPARATORS, key=header.count)


def _parquet(path: Path) -> Sheet:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: cannot be read as Parquet: {' '.join(str(error).split())}") from None
    if table.num_rows == 0:
        raise DataError(f"{path}: no rows ({', '.join(table.column_names[:8])})")
    columns = {str(name): [_text(cell) for cell in cells] for name, cells in table.to_pydict().items()}
    return Sheet(columns, range(1, table.num_rows + 1), unit="row")


def _text(cell: Any) -> str:
    if cell is None or cell != cell:  # NaN is the one value that differs from itself
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()
