"""Tables in files: CSV, Parquet, Feather, JSON lines, workbooks, archives, SQLite; and columns given next to them."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import numpy as np

from neuronfair.domain.cells import cell_text
from neuronfair.domain.tables import (
    CELL_BYTES,
    ROW_BYTES,
    ColumnBuilder,
    Meter,
    Sheet,
    check_width,
    join_columns,
    make_sheet,
)
from neuronfair.errors import DataError, did_you_mean, one_line, require
from neuronfair.limits import (
    TEXT_FACTOR,
    TooLargeError,
    check_size,
    open_archive,
    read_bytes,
    read_members,
    repack,
    unpack_gzip,
)

MIN_QUICK, _MAX_WIDTH = (
    1_000_000,
    2_000,
)  # bytes from which on, and columns up to which, a quicker reader is worth a try
_SEPARATORS = ",;\t|"
_SAMPLE_LETTERS = 1 << 16  # letters by which the separator is chosen
_JSON_LINES = (".jsonl", ".ndjson")
_SQLITE_MARK = b"SQLite format 3\0"
_BINARY_KINDS = {  # what a file with such a name must begin like, and does not if it is read as text
    **dict.fromkeys((".xlsx", ".xlsm"), "a workbook"),
    **dict.fromkeys((".sqlite", ".sqlite3", ".db"), "an SQLite database"),
    ".zip": "a zip archive",
}
_COLUMNAR = dict.fromkeys((".parquet", ".pq", ".feather", ".arrow", ".ipc"), 1)  # these say how large they are
NumberedRows = Iterator[tuple[int, list[str]]]  # rows of text with their numbers
_UTF16 = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_NOT_UTF8_REMARK = "the file is not UTF-8 and was read as Windows-1252: check letters such as ä, é or €"


def read_sheet(path: str | Path | Sheet | Any) -> Sheet:
    """Read a table from a file or from memory (a DataFrame, an Arrow table, a mapping of columns).

    Files: CSV with a header (comma, semicolon, tab or | between the cells; also as .gz), Parquet, Feather, JSON lines
    (.jsonl, .ndjson), a zip archive of one table, a sheet of a workbook (.xlsx), a table of an SQLite database. Where
    there are several, `file.sqlite::name` names one. A file that would take too much memory is refused, before it is
    unpacked or while it is read.
    """
    if isinstance(path, Sheet):
        return path
    if not isinstance(path, (str, Path)):
        from neuronfair.domain.tables.arrow import read_memory

        return read_memory(path)
    path, inner = split_table_name(path)
    try:
        with path.open("rb") as file:
            start = file.read(16)
        if start == _SQLITE_MARK:
            return read_sqlite(path, inner)
        return _read_content(
            read_bytes(path, times=_COLUMNAR.get(path.suffix.lower(), TEXT_FACTOR)), path, path.suffix.lower(), inner
        )
    except (EOFError, zlib.error):
        raise DataError(f"{path}: the gzip file is damaged or ends too early") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except csv.Error as error:
        raise DataError(f"{path}: cannot be read as CSV: {error}") from None


def split_table_name(name: str | Path) -> tuple[Path, str | None]:
    """Return a file and the name of the table in it, if one is given: `people.sqlite::applicants`.

    >>> split_table_name("people.sqlite::applicants")[1]
    'applicants'
    """
    path, colons, inner = str(name).rpartition("::")
    return (Path(name), None) if not colons or Path(name).exists() else (Path(path), inner)


def _read_content(content: bytes, path: Path, suffix: str, inner: str | None) -> Sheet:
    """Return the table in the content of a file; `suffix` is that of its name, or of a name in an archive."""
    from neuronfair.domain.tables import arrow

    if suffix in _COLUMNAR:
        return arrow.read_columnar(content, path, suffix)
    if content[:2] == b"\x1f\x8b":
        content, suffix = unpack_gzip(content, path, times=TEXT_FACTOR), Path(path.stem).suffix.lower()
    if content.startswith(b"PK\3\4"):
        if is_workbook(content, path):
            return read_workbook(content, path, inner)
        name, content = read_archive_member(content, path, inner)
        if content.startswith((b"PK\3\4", b"\x1f\x8b", _SQLITE_MARK)):
            raise DataError(f"{path}: '{name}' is an archive or a database inside an archive. Unpack it first")
        return _read_content(content, path, Path(name).suffix.lower(), None)
    if inner is not None:
        raise DataError(f"{path}: is one table, so '::{inner}' names nothing in it. Leave it out")
    if suffix in _JSON_LINES:
        return read_json_lines(content, path)
    if suffix == ".json":
        raise DataError(f"{path}: expected one JSON object on each line, in a file .jsonl. Save it so, or as CSV")
    if content and suffix in _BINARY_KINDS:
        raise DataError(f"{path}: is not {_BINARY_KINDS[suffix]}, though its name says so. Correct the name")
    return _read_text_table(content, path)


def read_header(path: Path) -> list[str] | None:
    """Return the names of a CSV file's columns from its first lines; None where these are not enough."""
    path, inner = split_table_name(path)
    if inner is not None or path.suffix.lower() in _JSON_LINES:
        return None
    with path.open("rb") as file:
        content = file.read(_SAMPLE_LETTERS)
    try:
        text = content.decode("utf-8-sig", "strict" if len(content) < _SAMPLE_LETTERS else "ignore")
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=_choose_separator(text), skipinitialspace=True)
        header = next((cells for cells in rows if any(map(str.strip, cells))), None)
    except (UnicodeDecodeError, csv.Error):
        return None
    plain = header is not None and "\0" not in text and rows.line_num < text.count("\n")
    return [name.strip() for name in header] if plain and header is not None else None


def _read_text_table(content: bytes, path: Path) -> Sheet:
    encoding = _UTF16.get(content[:2])
    if encoding is None and b"\0" in content:
        line = 1 + content.count(b"\n", 0, content.index(b"\0"))
        raise DataError(f"{path}: line {line}: holds a zero byte, so this is not a text file. Save the table as CSV")
    try:
        return _read_csv_table(content, path, encoding or "utf-8-sig")
    except UnicodeDecodeError:
        if encoding is not None:
            raise DataError(f"{path}: begins like a text file in UTF-16, but is none. Save it as UTF-8") from None
    try:
        return _read_csv_table(content, path, "cp1252", (_NOT_UTF8_REMARK,))
    except UnicodeDecodeError:
        raise DataError(f"{path}: this is not a text file in UTF-8 or Windows-1252. Save the table as UTF-8") from None


def _read_csv_table(content: bytes, path: Path, encoding: str, remarks: tuple[str, ...] = ()) -> Sheet:
    file = io.TextIOWrapper(io.BytesIO(content), encoding, newline="")
    separator = _choose_separator(file.read(_SAMPLE_LETTERS))
    file.seek(0)
    # Checked before anything is read; separators inside texts are counted as well.
    cells_at_most = content.count(separator.encode()) + content.count(b"\n")
    check_size(len(content) + CELL_BYTES * cells_at_most, path)
    if (
        encoding == "utf-8-sig"
        and len(content) >= MIN_QUICK
        and (quick := _read_fast(content, path, separator)) is not None
    ):
        return quick
    lines = _number_lines(csv.reader(file, delimiter=separator, skipinitialspace=True))
    return _build_sheet(lines, path, Meter(path, len(content)), unit="line", remarks=remarks)


def _number_lines(reader: Any) -> NumberedRows:
    """Yield the lines of a CSV file that are not blank, each with its number."""
    before = 0
    for cells in reader:
        line, before = before + 1, reader.line_num  # a quoted cell may contain line breaks
        if len(cells) > 1 or any(map(str.strip, cells)):
            yield line, cells


def _read_fast(content: bytes, path: Path, separator: str) -> Sheet | None:
    """Return a table whose lines are all rows; None where only Python's reader is exact."""
    from neuronfair.domain.tables import arrow

    if content.count(b"\r") != content.count(b"\r\n") or b'" ' in content or b' "' in content:
        return None
    line = content.partition(b"\n")[0].decode("utf-8-sig")
    try:
        header = [name.strip() for name in next(csv.reader([line], delimiter=separator, strict=True), [])]
    except csv.Error:  # its quotation marks do not end
        return None
    check_width(header, path)
    if not 2 <= len(header) <= _MAX_WIDTH or not any(header):  # of one column, a line of blanks would be no row
        return None
    columns = arrow.read_csv(content, separator, len(header), path)
    return None if columns is None else make_sheet(path, header, columns, range(2, 2 + len(columns[0])))


def _choose_separator(sample: str) -> str:
    """Return the separator with which most of the first lines have as many cells as the header; of a tie, the most."""

    def fit(separator: str) -> tuple[float, int]:
        reader = csv.reader(io.StringIO(sample, newline=""), delimiter=separator, skipinitialspace=True)
        widths = [len(cells) for cells in reader if any(map(str.strip, cells))]
        if len(sample) == _SAMPLE_LETTERS and len(widths) > 1:
            widths.pop()  # its end is not in the sample
        if not widths or widths[0] == 1:
            return 0.0, 1
        return widths.count(widths[0]) / len(widths), widths[0]

    return max(_SEPARATORS, key=fit)


SQLITE_SECONDS = 60  # that a database may take to give its rows: a damaged one can lead in circles
_ROWS_AT_ONCE, _CELLS_AT_ONCE = 1_000, 1 << 16


def choose_name(path: Path, kind: str, names: Sequence[str], requested: str | None) -> str:
    """Return the name of a table: the wanted one, or the only one."""
    if requested is not None:
        if requested not in names:
            raise DataError(f"{path}: has no {kind} '{requested}'. {did_you_mean(requested, names)}")
        return requested
    if len(names) != 1:
        listed_names = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        problem = f"has {len(names)} {kind}s ({listed_names}). Name one" if names else f"has no {kind} with a table"
        raise DataError(f"{path}: {problem}" + (f": {path}::{names[0]}" if names else ""))
    return names[0]


def read_archive_member(content: bytes, path: Path, requested: str | None) -> tuple[str, bytes]:
    """Return the name and the content of the table in a zip archive, unpacked if it is not too large."""
    try:
        files = read_members(content, path, times=TEXT_FACTOR)
    except zipfile.BadZipFile as error:
        raise DataError(f"{path}: the zip archive is damaged ({one_line(error)})") from None
    tables = [name for name in files if not name.startswith("__MACOSX/") and PurePosixPath(name).name[:1] != "."]
    name = choose_name(path, "file", tables, requested)
    return name, files[name]


def is_workbook(content: bytes, path: Path) -> bool:
    """Return whether a zip archive is a workbook of Excel."""
    try:
        with open_archive(content, path) as archive:
            return "[Content_Types].xml" in archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False


def read_workbook(content: bytes, path: Path, requested: str | None) -> Sheet:
    """Read a sheet of a workbook (.xlsx): the values of its cells, no formulas, links or programs."""
    openpyxl = require("openpyxl", "excel", "reading .xlsx", DataError)
    try:
        files = read_members(content, path, times=TEXT_FACTOR)
        for name, part in files.items():
            if name.endswith((".xml", ".rels")) and (b"<!DOCTYPE" in part or b"<!ENTITY" in part or b"\0" in part):
                raise DataError(f"{path}: '{name}' declares entities, or is not UTF-8, which no workbook needs")
        book = openpyxl.load_workbook(io.BytesIO(repack(files)), read_only=True, data_only=True, keep_links=False)
        with closing(book):
            name = choose_name(path, "sheet", [page.title for page in book.worksheets], requested)
            rows = enumerate(book[name].iter_rows(values_only=True), 1)
            texts = ((number, [_container_text(cell) for cell in row]) for number, row in rows)
            return _build_sheet(_pad_rows(_skip_blanks(texts, path)), path, Meter(path))
    except (DataError, TooLargeError):
        raise
    except Exception as error:  # a damaged workbook can fail anywhere in the reader
        raise DataError(f"{path}: cannot be read as .xlsx: {one_line(error)}") from None


def read_json_lines(content: bytes, path: Path) -> Sheet:
    """Read a file with one JSON object on each line; a missing name is an empty cell."""
    header: dict[str, int] = {}
    rows: list[tuple[int, dict[str, str]]] = []
    meter = Meter(path, len(content))
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            # Numbers stay text: a float would round those of many digits.
            entry = json.loads(line, parse_float=str, parse_int=str, object_pairs_hook=_Pairs)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: line {number}: is not JSON ({one_line(error)})") from None
        if not isinstance(entry, _Pairs):
            raise DataError(f"{path}: line {number}: expected an object {{…}}, got {type(entry).__name__}")
        row = {}
        for name, value in entry:
            if name in row or isinstance(value, (list, _Pairs)):
                problem = "comes twice" if name in row else "holds a list or an object. Expected a text or a number"
                raise DataError(f"{path}: line {number}: '{name}' {problem}")
            row[name] = _container_text(value)
            header.setdefault(name, len(header))
        meter.count(ROW_BYTES + CELL_BYTES * len(header) + sum(map(len, row.values())))
        rows.append((number, row))
    lines = ((number, [row.get(name, "") for name in header]) for number, row in rows)
    return _build_sheet(chain([(0, list(header))], _skip_blanks(lines, path)), path, Meter(path), unit="line")


class _Pairs(list[tuple[str, Any]]):
    """The entries of a JSON object, in which a name may occur twice."""


def read_sqlite(path: Path, requested: str | None) -> Sheet:
    """Read a table of an SQLite database, opened read-only and without running anything that it contains."""
    check_size(path.stat().st_size, path, times=TEXT_FACTOR)
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        raise DataError(f"{path}: {log.name} holds changes that are not in the file yet. Close what writes to it first")
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)) as database:
            end = time.monotonic() + SQLITE_SECONDS
            database.set_progress_handler(lambda: time.monotonic() > end, 10_000)
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA cell_size_check = ON")
            (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":  # SQLite reads what is missing at the end as empty pages
                raise ValueError(f"it is damaged: {one_line(ValueError(verdict))}")
            query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
            names = [table for (table,) in database.execute(f"{query} AND sql NOT LIKE 'CREATE VIRTUAL%'")]
            name = choose_name(path, "table", names, requested).replace('"', '""')
            cursor = database.execute(f'SELECT * FROM "{name}"')
            header = [column for column, *_ in cursor.description]
            lines = ((number, [_container_text(cell) for cell in line]) for number, line in enumerate(cursor, 1))
            return _build_sheet(chain([(0, header)], _skip_blanks(lines, path)), path, Meter(path))
    except (sqlite3.Error, ValueError, OverflowError) as error:
        raise DataError(f"{path}: cannot be read as an SQLite database: {one_line(error)}") from None


def _build_sheet(
    rows: NumberedRows, path: Path, meter: Meter, *, unit: str = "row", remarks: tuple[str, ...] = ()
) -> Sheet:
    """Return numbered rows of text, the first of which is the header, as a table."""
    header = [name.strip() for name in next(rows, (0, []))[1]]
    if not header:
        raise DataError(f"{path}: the table is empty. Expected a header and at least one row")
    check_width(header, path)
    columns, numbers = [ColumnBuilder(meter) for _ in header], list[int]()
    while batch := list(islice(rows, max(1, min(_ROWS_AT_ONCE, _CELLS_AT_ONCE // len(header))))):
        for number, cells in batch:
            if len(cells) != len(header):
                raise DataError(f"{path}: {unit} {number}: {len(cells)} cells under a header of {len(header)} columns")
            numbers.append(number)
        meter.count(ROW_BYTES * len(batch))
        for column, texts in zip(columns, zip(*(cells for _, cells in batch), strict=True), strict=True):
            column.add(texts)
    if not numbers:
        raise DataError(f"{path}: no rows after the header ({', '.join(header[:8])})")
    return make_sheet(path, header, [column.cells() for column in columns], numbers, unit=unit, remarks=remarks)


def _skip_blanks(lines: Iterable[tuple[int, list[str]]], path: Path) -> NumberedRows:
    """Yield rows that are not blank; few bytes may stand for many rows, so that their memory is limited."""
    meter = Meter(path)
    for number, cells in lines:
        meter.count(CELL_BYTES * len(cells) + ROW_BYTES)
        if any(cells):
            yield number, cells


def _pad_rows(lines: NumberedRows) -> NumberedRows:
    """Yield rows without empty cells beyond the width of the first one, the header, and filled up to it."""
    width = None
    for number, cells in lines:
        last = next(length for length in range(len(cells), 0, -1) if cells[length - 1])
        width = last if width is None else width
        yield number, cells[: max(last, width)] + [""] * (width - len(cells))


def _container_text(value: Any) -> str:
    """Return a cell of a workbook, a database or a JSON line as text."""
    if isinstance(value, bytes):
        raise ValueError("a cell holds bytes, and texts or numbers were expected")
    return cell_text(value)


UNNAMED = "sensitive"  # the name of a column in memory that has none
_VALUES_PATH = Path("sensitive values")  # their name in errors
_VALUES = ("Series", "DataFrame", "Table", "ndarray")  # types of columns in memory; other types are names


def with_columns(table: Any, sensitive: Any) -> tuple[Any, Sequence[str]]:
    """Return a table and the names of its sensitive columns; `sensitive` are names, or values to be joined.

    Values are a Series, a DataFrame, an array, or a mapping of columns. They are joined row by row; pandas objects by
    their index, where both have the same unique one in any order.

    >>> sheet, names = with_columns({"age": [20, 30]}, {"sex": ["f", "m"]})
    >>> names, list(sheet.columns["sex"])
    (('sex',), ['f', 'm'])
    """
    if sensitive is None or isinstance(sensitive, str):
        return table, (sensitive,) if sensitive else ()
    if isinstance(sensitive, int):  # a column label of pandas
        return table, (str(sensitive),)
    if not isinstance(sensitive, Mapping) and type(sensitive).__name__ not in _VALUES:
        return table, tuple(map(str, sensitive))
    if hasattr(table, "domain") and hasattr(table, "labels"):  # not a column of that name
        raise DataError(f"{table.name}: this table has its own domain. Name its sensitive attributes")
    sheet, columns = read_sheet(table), _name_values(sensitive)
    if isinstance(sensitive, np.ndarray) and set(map(str, sensitive.flat)) <= set(sheet.columns):
        return table, tuple(map(str, sensitive.flat))
    if _share_index(table, columns):
        columns = columns.loc[table.index]
    values = replace(read_sheet(columns), path=_VALUES_PATH)
    if len(values.lines) != len(sheet.lines):
        raise DataError(
            f"{_VALUES_PATH}: {len(values.lines):,} for a table of {len(sheet.lines):,} rows. Pass one per row, in "
            "the same order"
        )
    names = tuple(values.columns)
    return join_columns(sheet, values, names), names


def _name_values(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise DataError(f"sensitive values: expected an array of one dimension, got the shape {values.shape}")
        return {UNNAMED: values.tolist()}
    if type(values).__name__ == "Series":  # of pandas or Polars
        return values.to_frame(UNNAMED if values.name in (None, "") else str(values.name))
    return values


def _share_index(table: Any, columns: Any) -> bool:
    """Return whether two pandas objects have the same unique index in any order."""
    if not (hasattr(table, "iloc") and hasattr(columns, "iloc")) or len(table) != len(columns):
        return False
    rows, others = table.index, columns.index
    same_kind = rows.is_unique and others.is_unique and others.isin(rows).all()
    if not same_kind and not rows.equals(others) and others.isin(rows).any():
        raise DataError(
            "sensitive values: their index and the table's name some of the same rows, and others. Give both the same "
            "index, or reset_index() of both to join them row by row"
        )
    return bool(same_kind)
