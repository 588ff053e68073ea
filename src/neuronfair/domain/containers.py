"""Tables inside other files, read as columns of text: a zip archive, a workbook, an SQLite database; and JSON lines."""

from __future__ import annotations

import io
import json
import sqlite3
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from datetime import date, datetime
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from neuronfair.domain.cells import CELL, ROW, Column, Meter
from neuronfair.domain.files import Sheet, check_width, sheet
from neuronfair.errors import DataError, did_you_mean, needs, one_line
from neuronfair.limits import TEXT, TooLarge, check_size, members, repacked

SECONDS = 60  # that a database may take to give its rows: a damaged one can lead in circles
_AT_ONCE = 1000  # rows
_CELLS_AT_ONCE = 1 << 16


def one_of(path: Path, kind: str, names: Sequence[str], wanted: str | None) -> str:
    """Return the table that is meant: the one that is named, or the only one."""
    if wanted is not None:
        if wanted not in names:
            raise DataError(f"{path}: has no {kind} '{wanted}'. {did_you_mean(wanted, names)}")
        return wanted
    if len(names) != 1:
        some = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        has = f"has {len(names)} {kind}s ({some}). Name one" if names else f"has no {kind} with a table"
        raise DataError(f"{path}: {has}" + (f": {path}::{names[0]}" if names else ""))
    return names[0]


def archive_member(content: bytes, path: Path, wanted: str | None) -> tuple[str, bytes]:
    """Return the name and the content of the table in a zip archive, unpacked if it is not too large."""
    try:
        files = members(content, path, times=TEXT)
    except zipfile.BadZipFile as error:
        raise DataError(f"{path}: the zip archive is damaged ({one_line(error)})") from None
    tables = [name for name in files if not name.startswith("__MACOSX/") and PurePosixPath(name).name[:1] != "."]
    name = one_of(path, "file", tables, wanted)
    return name, files[name]


def is_workbook(content: bytes) -> bool:
    """Return whether a zip archive is a workbook of Excel."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return "[Content_Types].xml" in archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, OSError):
        return False


def read_workbook(content: bytes, path: Path, wanted: str | None) -> Sheet:
    """Read a sheet of a workbook (.xlsx): the values of its cells, no formulas, links or programs."""
    openpyxl = needs("openpyxl", "excel", "reading .xlsx", DataError)
    try:
        files = members(content, path, times=TEXT)
        for name, part in files.items():
            if name.endswith((".xml", ".rels")) and (b"<!DOCTYPE" in part or b"<!ENTITY" in part or b"\0" in part):
                raise DataError(f"{path}: '{name}' declares entities, or is not UTF-8, which no workbook needs")
        book = openpyxl.load_workbook(io.BytesIO(repacked(files)), read_only=True, data_only=True, keep_links=False)
        with closing(book):
            name = one_of(path, "sheet", [one.title for one in book.worksheets], wanted)
            lines = book[name].iter_rows(values_only=True)
            return _table(((number, [_text(cell) for cell in line]) for number, line in enumerate(lines, 1)), path)
    except (DataError, TooLarge):
        raise
    except Exception as error:  # a damaged workbook can fail anywhere in the reader
        raise DataError(f"{path}: cannot be read as .xlsx: {one_line(error)}") from None


def read_json_lines(content: bytes, path: Path) -> Sheet:
    """Read a file with one JSON object on each line; a name that an object does not have is an empty cell."""
    header: dict[str, int] = {}
    rows: list[tuple[int, dict[str, str]]] = []
    meter = Meter(path, len(content))
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            # Numbers as they are written: a float would round those of many digits.
            found = json.loads(line, parse_float=str, parse_int=str, object_pairs_hook=_Pairs)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: line {number}: is not JSON ({one_line(error)})") from None
        if not isinstance(found, _Pairs):
            raise DataError(f"{path}: line {number}: expected an object {{…}}, got {type(found).__name__}")
        row = {}
        for name, value in found:
            if name in row or isinstance(value, (list, _Pairs)):
                what = "comes twice" if name in row else "holds a list or an object. Expected a text or a number"
                raise DataError(f"{path}: line {number}: '{name}' {what}")
            row[name] = _text(value)
            header.setdefault(name, len(header))
        meter.count(ROW + CELL * len(header) + sum(map(len, row.values())))
        rows.append((number, row))
    lines = ((number, [row.get(name, "") for name in header]) for number, row in rows)
    return _table(lines, path, list(header), unit="line")


class _Pairs(list[tuple[str, Any]]):
    """The entries of a JSON object, also where a name comes twice."""


def read_sqlite(path: Path, wanted: str | None) -> Sheet:
    """Read a table of an SQLite database, which is opened to be read only and runs nothing that it brings along."""
    check_size(path.stat().st_size, path, times=TEXT)
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        raise DataError(f"{path}: {log.name} holds changes that are not in the file yet. Close what writes to it first")
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)) as database:
            end = time.monotonic() + SECONDS
            database.set_progress_handler(lambda: time.monotonic() > end, 10_000)
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA cell_size_check = ON")
            (said,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if said != "ok":  # SQLite reads what is missing at the end as empty pages
                raise ValueError(f"it is damaged: {one_line(ValueError(said))}")
            listed = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
            names = [one for (one,) in database.execute(f"{listed} AND sql NOT LIKE 'CREATE VIRTUAL%'")]
            name = one_of(path, "table", names, wanted).replace('"', '""')
            found = database.execute(f'SELECT * FROM "{name}"')
            header = [column for column, *_ in found.description]
            lines = ((number, [_text(cell) for cell in line]) for number, line in enumerate(found, 1))
            return _table(lines, path, header)
    except (sqlite3.Error, ValueError, OverflowError) as error:
        raise DataError(f"{path}: cannot be read as an SQLite database: {one_line(error)}") from None


def _table(
    lines: Iterable[tuple[int, list[str]]], path: Path, header: list[str] | None = None, *, unit: str = "row"
) -> Sheet:
    """Return rows of text as a table; without a header, the first row that is not blank is it."""
    source, meter, numbers = _counted(iter(lines), Meter(path)), Meter(path), list[int]()
    if header is None:
        header = next((_trimmed(cells) for _, cells in source if any(cells)), [])
    if not header or not any(header):
        raise DataError(f"{path}: the table is empty. Expected a header and at least one row")
    check_width(header, path)
    columns = [Column(meter) for _ in header]
    while some := list(islice(source, max(1, min(_AT_ONCE, _CELLS_AT_ONCE // len(header))))):
        rows = [(number, cells) for number, cells in some if any(cells)]
        for number, cells in rows:
            if len(_trimmed(cells)) > len(header):
                raise DataError(f"{path}: {unit} {number}: {len(_trimmed(cells))} cells under {len(header)} columns")
            numbers.append(number)
        meter.count(ROW * len(rows))
        for place, column in enumerate(columns):
            column.add(cells[place] if place < len(cells) else "" for _, cells in rows)
    if not numbers:
        raise DataError(f"{path}: no rows under the header ({', '.join(header[:8])})")
    names = [name.strip() for name in header]
    return sheet(path, names, [column.cells() for column in columns], numbers, unit=unit)


def _counted(lines: Iterator[tuple[int, list[str]]], meter: Meter) -> Iterator[tuple[int, list[str]]]:
    """Yield rows as long as they do not take too much together, blank ones, too: few bytes may stand for many."""
    for number, cells in lines:
        meter.count(CELL * len(cells) + ROW)
        yield number, cells


def _trimmed(cells: list[str]) -> list[str]:
    """Return cells without the empty ones at the end."""
    last = next((place for place in range(len(cells), 0, -1) if cells[place - 1]), 0)
    return cells[:last]


def _text(value: Any) -> str:
    """Return a cell as text: an empty one as '', a whole number without a point, midnight as a date."""
    if value is None or value != value:  # NaN is the one value that differs from itself
        return ""
    if isinstance(value, bytes):
        raise ValueError("a cell holds bytes, and texts or numbers were expected")
    if isinstance(value, datetime) and value.time() == datetime.min.time():
        return value.date().isoformat()
    if isinstance(value, (date, datetime)):
        return str(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()
