from __future__ import annotations

import datetime
import gzip
import json
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronfair.cli.audit import AuditJob
from neuronfair.cli.options import TableOptions
from neuronfair.domain.schema.toml import parse_domain
from neuronfair.domain.tables import MAX_COLUMNS, files
from neuronfair.domain.tables.dataset import read_table
from neuronfair.domain.tables.files import read_header, read_sheet, split_table_name
from neuronfair.errors import DataError
from neuronfair.limits import SIZE_VARIABLE, TooLargeError
from tests.bombs import lying_archive, zipped


def sheet(folder, content, name="t.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_sheet(path)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|", ", "])
def test_any_common_separator(tmp_path, separator):
    read = sheet(tmp_path, f"a{separator}b\n1{separator}x y\n")
    assert read.columns == {"a": ["1"], "b": ["x y"]}


def test_a_byte_order_mark_windows_line_ends_quotes_and_spaces(tmp_path):
    read = sheet(tmp_path, '\ufeffa,b\r\n "1, 2" , x \r\n')
    assert read.columns == {"a": ["1, 2"], "b": ["x"]}


def test_rows_know_their_lines(tmp_path):
    read = sheet(tmp_path, '\na,b\n1,"two\nlines"\n\n3,4\n')
    assert read.columns["b"] == ["two\nlines", "4"]
    assert [read.where(i) for i in range(2)] == ["line 3", "line 6"]


def test_a_gzip_file_reads_like_a_plain_one(tmp_path):
    assert sheet(tmp_path, gzip.compress(b"a,b\n1,2\n", mtime=0), "t.csv.gz").columns == {"a": ["1"], "b": ["2"]}


def test_parquet_numbers_and_gaps(tmp_path):
    table = pyarrow.table(
        {"whole": [1.0, None], "half": [0.5, float("nan")], "text": [" x ", None], "yes": [True, False]}
    )
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    read = read_sheet(tmp_path / "t.parquet")
    assert read.columns == {"whole": ["1", ""], "half": ["0.5", ""], "text": ["x", ""], "yes": ["True", "False"]}
    assert read.where(1) == "row 2"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the table is empty"),
        (b"a,b\n", "no rows after the header"),
        (b"a,b\n1,2\n1,2,3\n", "line 3: 3 cells under a header of 2 columns"),
        (b"\n \n\n", "the table is empty"),
        (b"a,b\n1,x\0y\n", "line 2: holds a zero byte"),
        ("a,ß\n1,2\n".encode("utf-16-le"), "line 1: holds a zero byte"),
        ("a,ß\n1,2\n".encode("utf-16")[:-1], "UTF-16, but is none"),
        (b"a,b\n1,\x81\n", "not a text file in UTF-8 or Windows-1252"),
        (b"PK\3\4\0\0", "the zip archive is damaged"),
        (b"a,b\n1;2\n", "line 2: 1 cells under a header of 2 columns"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0)[:-9], "gzip file is damaged or ends too early"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0)[:10] + b"\xff" * 30, "gzip file is damaged"),
        (b'a,b\n1,"' + b"x" * 200_000 + b'"\n', "cannot be read as CSV"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, content, says):
    with pytest.raises(DataError, match=says) as error:
        sheet(tmp_path, content)
    assert str(error.value).startswith(str(tmp_path / "t.csv"))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("t.xlsx", b"a,b\n1,2\n", "is not a workbook, though its name says so"),
        ("t.zip", b"a,b\n1,2\n", "is not a zip archive"),
        ("t.db", b"a,b\n1,2\n", "is not an SQLite database"),
        ("t.json", b'[{"a": 1}]', "expected one JSON object on each line"),
    ],
)
def test_a_file_that_is_not_what_its_name_says(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=says):
        read_sheet(tmp_path / name)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1"])
def test_a_damaged_parquet_file(tmp_path, content):
    with pytest.raises(DataError, match=r"t\.parquet"):
        sheet(tmp_path, content, "t.parquet")


def test_a_parquet_file_without_rows(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"a": pyarrow.array([], "int64")}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="no rows"):
        read_sheet(tmp_path / "t.parquet")


def test_a_folder_and_a_missing_file(tmp_path):
    with pytest.raises(DataError, match="directory"):
        read_sheet(tmp_path)
    with pytest.raises(DataError, match="No such file"):
        read_sheet(tmp_path / "nothing.csv")


def test_a_packed_table_is_unpacked_up_to_the_limit_only(tmp_path, monkeypatch):
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "1000000")
    content = gzip.compress(b'a,b\n1,"' + b"x" * 30_000_000 + b'"\n', mtime=0)
    assert len(content) < 100_000
    with pytest.raises(TooLargeError, match=r"t\.csv\.gz"):
        sheet(tmp_path, content, "t.csv.gz")


@pytest.mark.parametrize("large", [0, 10**9])
def test_the_cells_of_a_table_are_counted(tmp_path, monkeypatch, large):
    """32 bytes a cell before it is read; while it is read, different texts count for more than equal ones."""
    monkeypatch.setattr(files, "MIN_QUICK", large)
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "1000000")
    with pytest.raises(TooLargeError):
        sheet(tmp_path, "a,b,c,d\n" + ",,,\n" * 8000)
    same = "a,b\n" + "xy,xy\n" * 4000
    assert len(sheet(tmp_path, same).lines) == 4000
    with pytest.raises(TooLargeError):
        sheet(tmp_path, "a,b\n" + "".join(f"{i:x},{-i:x}\n" for i in range(4000)))


def test_equal_cells_are_kept_once(tmp_path, monkeypatch):
    for large in (0, 10**9):  # for both readers
        monkeypatch.setattr(files, "MIN_QUICK", large)
        read = sheet(tmp_path, "a,b\nlong,x\nlong , x\n")
        assert read.columns["a"].texts == ["long"]
        assert read.columns == {"a": ["long", "long"], "b": ["x", "x"]}


def test_a_header_of_many_columns(tmp_path):
    names = [f"c{i}" for i in range(MAX_COLUMNS)]
    content = ",".join(names) + "\n" + ",".join(names) + "\n"
    assert len(sheet(tmp_path, content).columns) == MAX_COLUMNS
    assert [*sheet(tmp_path, content.replace(f"c{MAX_COLUMNS - 1}", "c7")).columns][-1] == "c7.1"
    equal = sheet(tmp_path, ",".join(["a"] * 2000) + "\n" + ",".join(names[:2000]) + "\n")
    assert [*equal.columns][-1] == "a.1999"
    assert len(equal.remarks) == 10
    with pytest.raises(DataError, match="has 50,001 columns"):
        sheet(tmp_path, content.replace("\n", ",more\n"))


def test_what_a_parquet_file_says_of_itself_is_checked_first(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": pyarrow.nulls(100_000, pyarrow.int64())}), path)
    assert path.stat().st_size < 2000
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "1000000")
    monkeypatch.setattr("neuronfair.domain.tables.arrow.read_sandboxed", lambda *_: b"")
    with pytest.raises(TooLargeError, match=r"t\.parquet: would take"):
        read_sheet(path)
    names = [f"c{i}" for i in range(50)]
    pyarrow.parquet.write_table(pyarrow.table([[1]] * 50, names=names), path)
    monkeypatch.setattr("neuronfair.domain.tables.MAX_COLUMNS", 49)
    with pytest.raises(DataError, match="has 50 columns"):
        read_sheet(path)


def test_a_parquet_file_that_unpacks_to_more_than_it_says(tmp_path, monkeypatch):
    """Each text is stored as what it adds to the one before, which is nothing."""
    path = tmp_path / "t.parquet"
    table = pyarrow.table({"a": ["x" * 1_000_000] * 60})
    options = {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY", "write_statistics": False}
    pyarrow.parquet.write_table(table, path, **options)
    assert path.stat().st_size < 100_000
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "30000000")
    with pytest.raises(TooLargeError, match=r"t\.parquet: takes more than"):
        read_sheet(path)
    pyarrow.parquet.write_table(table.slice(0, 3), path, **options)
    assert [len(cell) for cell in read_sheet(path).columns["a"]] == [1_000_000] * 3


def test_a_long_text_that_a_parquet_file_repeats_is_kept_once(tmp_path, monkeypatch):
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "50000000")
    long = pyarrow.array(["x" * 100_000])
    codes = pyarrow.array([0, None, 0] * 1000)
    table = pyarrow.table({"a": pyarrow.DictionaryArray.from_arrays(codes, long)})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet", store_schema=False)
    cells = read_sheet(tmp_path / "t.parquet").columns["a"]
    assert len(cells) == 3000
    assert {len(cell) for cell in cells} == {0, 100_000}
    assert cells[0] is cells[2999]
    assert len(cells.texts) == 2


def test_parquet_columns_of_other_kinds(tmp_path):
    times = pyarrow.array([0, 86_400_000_000], pyarrow.timestamp("us"))
    table = pyarrow.table({"list": [[1, 2], None], "bytes": [b"a", b"b"], "time": times, "whole": [2**53, -1]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    assert read_sheet(tmp_path / "t.parquet").columns == {
        "list": ["[1, 2]", ""],
        "bytes": ["b'a'", "b'b'"],
        "time": ["1970-01-01", "1970-01-02"],
        "whole": ["9007199254740992", "-1"],
    }


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("a;b\n1,5;2,5\n", {"a": ["1,5"], "b": ["2,5"]}),  # decimal commas are no separators
        ('a;b\n"1;2";3,4\n', {"a": ["1;2"], "b": ["3,4"]}),
        ('"pay, gross";b\n1;2\n', {"pay, gross": ["1"], "b": ["2"]}),
        ("a,b\nx;y,z\n", {"a": ["x;y"], "b": ["z"]}),
        ("a\n1\n\n2\n", {"a": ["1", "2"]}),  # one column
    ],
)
def test_the_separator_is_the_one_that_fits_the_rows(tmp_path, content, columns):
    assert sheet(tmp_path, content).columns == columns


def test_other_encodings_are_detected_and_said(tmp_path):
    text = "name;größe\nJosé;1,80 €\n"
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-be"):
        mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
        read = sheet(tmp_path, mark + text.encode(encoding))
        assert read.columns == {"name": ["José"], "größe": ["1,80 €"]}
        assert read.remarks == ()
    read = sheet(tmp_path, text.encode("cp1252"))
    assert read.columns == {"name": ["José"], "größe": ["1,80 €"]}
    assert "Windows-1252" in read.remarks[0]


def test_a_name_that_comes_twice_is_refused_only_where_it_is_used(tmp_path):
    read = sheet(tmp_path, "sex,a,a,b,b,a.1\nF,1,2,5,5,7\nM,1,1,6,6,8\n")
    assert [*read.columns] == ["sex", "a", "a.2", "b", "b.1", "a.1"]
    assert read.remarks[0] == "the header names 'a' twice; the second is called 'a.2'"

    def rows(*names: str) -> list[list[int]]:
        lines = "\n".join(f'"{name}" = {{ kind = "ordinal", low = 0, high = 9 }}' for name in names)
        text = f'sensitive = ["sex"]\n[attributes]\nsex = {{ kind = "flag", values = ["F", "M"] }}\n{lines}\n'
        return read_table(read, parse_domain(text)).rows.tolist()

    assert rows("b", "a.1") == [[0, 5, 7], [1, 6, 8]]  # the two columns b are equal
    assert rows("a", "a.2") == [[0, 1, 2], [1, 1, 1]]
    with pytest.raises(DataError, match=r"the header names the column 'a' twice\. Rename one of the two"):
        rows("a")


def test_the_quick_reader_leaves_large_cells_to_the_other(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MIN_QUICK", 0)
    with pytest.raises(DataError, match="cannot be read as CSV"):
        sheet(tmp_path, "a,b\n1," + "x" * 200_000 + "\n")


@settings(max_examples=150, deadline=None, database=None)
@given(st.lists(st.sampled_from(["a", "b", ",", ",", '"', "\n", "\n", " ", "\r", ";", "é"]), max_size=25))
def test_both_readers_of_csv_files_agree(parts):
    """The quick one reads what it reads as Python's own does, and leaves all else to that."""

    def read() -> object:
        try:
            found = files._read_text_table(("a,b\n1,2\n" + "".join(parts)).encode(), Path("t.csv"))
        except DataError as error:
            return str(error)
        return {name: list(cells) for name, cells in found.columns.items()}, list(found.lines), found.copies

    with pytest.MonkeyPatch.context() as patch:
        plainly = read()
        patch.setattr(files, "MIN_QUICK", 0)
        assert read() == plainly


def test_feather_files_and_streams(tmp_path):
    part = pyarrow.table(
        {
            "whole": [1.0, None],
            "word": pyarrow.DictionaryArray.from_arrays([1, 0], ["x", "y ", "not used"]),
            "yes": [True, False],
            "list": [[1], []],
            "empty": pyarrow.nulls(2),
        }
    )
    table = pyarrow.concat_tables([part, part.slice(0, 1)])
    columns = {"whole": ["1", "", "1"], "word": ["y", "x", "y"], "yes": ["True", "False", "True"], "empty": [""] * 3}
    for compression in ("uncompressed", "zstd"):
        pyarrow.feather.write_feather(table, tmp_path / "t.feather", compression=compression)
        read = read_sheet(tmp_path / "t.feather")
        assert read.columns == columns
        assert read.columns["word"].texts == ["y", "x"]
        assert read.remarks == ("'list' holds lists or other values that are not read",)
    with pyarrow.ipc.new_stream(tmp_path / "t.arrow", table.schema) as stream:
        stream.write_table(table)
    assert read_sheet(tmp_path / "t.arrow").columns == columns
    view = pyarrow.table({"a": pyarrow.array(["x ", "y", None, "x"]).cast(pyarrow.string_view())})  # as Polars writes
    pyarrow.feather.write_feather(view, tmp_path / "t.feather")
    assert read_sheet(tmp_path / "t.feather").columns == {"a": ["x", "y", "", "x"]}


@pytest.mark.parametrize("content", [b"", b"ARROW1", b"ARROW1" + bytes(100) + b"ARROW1", bytes(100)])
def test_a_damaged_feather_file(tmp_path, content):
    with pytest.raises(DataError, match=r"t\.feather"):
        sheet(tmp_path, content, "t.feather")


def test_what_a_feather_file_unpacks_to_is_limited(tmp_path, monkeypatch):
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "3000000")
    path = tmp_path / "t.feather"
    pyarrow.feather.write_feather(pyarrow.table({"a": ["x" * 50_000_000]}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    with pytest.raises(TooLargeError, match=r"t\.feather: takes more than"):
        read_sheet(path)
    pyarrow.feather.write_feather(pyarrow.table({"a": pyarrow.nulls(1_000_000_000)}), path)  # rows of no bytes
    with pytest.raises(TooLargeError, match=r"t\.feather: would take"):
        read_sheet(path)
    repeated = pyarrow.array(["x" * 20_000] * 1000).cast(pyarrow.string_view())
    pyarrow.feather.write_feather(pyarrow.table({"a": repeated}), path, compression="zstd")
    with pytest.raises(TooLargeError):  # 20 MB, although the file is small
        read_sheet(path)


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"a;b c; d \n1;2;3\n", ["a", "b c", "d"]),
        (b'\xef\xbb\xbf\n"a,1",b\n1,2\n', ["a,1", "b"]),
        (b"a,b\n" + b"1,\xc3\xa4\n" * 20_000, ["a", "b"]),
        (b'"a,b\n1,2\n', None),  # where the header ends is not known
        (b"a,b", None),
        (b"", None),
        ("a,b\n1,2\n".encode("utf-16"), None),
        (b"PAR1\0\0\n\0\n", None),
    ],
)
def test_a_header_is_known_by_the_first_lines(tmp_path, content, names):
    (tmp_path / "table.csv").write_bytes(content)
    assert read_header(tmp_path / "table.csv") == names


CSV = b"age,sex,pay\n30,f,1.5\n41,m,\n"
CELLS = {"age": ["30", "41"], "sex": ["f", "m"], "pay": ["1.5", ""]}


def cells(path) -> dict[str, list[str]]:
    return {name: list(column) for name, column in read_sheet(path).columns.items()}


def database(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return path


PEOPLE = (
    "CREATE TABLE people (age INTEGER, sex TEXT, pay REAL)",
    "INSERT INTO people VALUES (30, 'f', 1.5), (41, 'm', NULL)",
)


def workbook(path: Path, **sheets) -> Path:
    openpyxl = pytest.importorskip("openpyxl", reason="the package openpyxl is not installed")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def test_a_zip_archive_of_one_table(tmp_path):
    path = tmp_path / "t.zip"
    path.write_bytes(zipped({"folder/people.csv": CSV, "__MACOSX/folder/._people.csv": b"x"}))
    assert cells(path) == CELLS
    path.write_bytes(zipped({"a.csv": CSV, "b.jsonl": b'{"age": 1}\n'}))
    with pytest.raises(DataError, match=r"has 2 files \(a.csv, b.jsonl\). Name one: .*t.zip::a.csv"):
        read_sheet(path)
    assert cells(f"{path}::a.csv") == CELLS
    assert cells(f"{path}::b.jsonl") == {"age": ["1"]}
    with pytest.raises(DataError, match=r"has no file 'c.csv'. Known: a.csv, b.jsonl"):
        read_sheet(f"{path}::c.csv")
    path.write_bytes(zipped({"inner.zip": zipped({"a.csv": CSV})}))
    with pytest.raises(DataError, match="inside an archive"):
        read_sheet(path)


def test_a_zip_archive_in_a_zip_and_bombs_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "t.zip"
    monkeypatch.setenv(SIZE_VARIABLE, "1000000")
    path.write_bytes(zipped({"t.csv": b"a,b\n" + b"1,2\n" * 100_000}))
    with pytest.raises(TooLargeError, match=r"t\.zip"):
        read_sheet(path)
    path.write_bytes(lying_archive("t.csv", b"a,b\n" + b"1,2\n" * 100_000, said=100))
    assert len(read_sheet(path).lines) < 100  # no more is unpacked than was said
    path.write_bytes(zipped({"../t.csv": CSV}))
    with pytest.raises(DataError, match="leads out of the archive"):
        read_sheet(path)


def test_a_sheet_of_a_workbook(tmp_path):
    rows = [
        ["age", "sex", "pay", "born", "ok"],
        [30, "f", 1.5, datetime.date(1990, 2, 3), True],
        [41.0, " m ", None, None, False],
    ]
    path = workbook(tmp_path / "t.xlsx", people=[*rows, []])
    found = read_sheet(path)
    assert {name: list(column) for name, column in found.columns.items()} == {
        **CELLS,
        "born": ["1990-02-03", ""],
        "ok": ["True", "False"],
    }
    assert found.where(1) == "row 3"
    workbook(path, people=rows, more=rows)
    with pytest.raises(DataError, match=r"has 2 sheets \(people, more\). Name one"):
        read_sheet(path)
    assert cells(f"{path}::more")["age"] == ["30", "41"]
    workbook(path, people=[["a"], [1, 2]])
    with pytest.raises(DataError, match="row 2: 2 cells under a header of 1 columns"):
        read_sheet(path)
    workbook(path, people=[])
    with pytest.raises(DataError, match="the table is empty"):
        read_sheet(path)


def test_a_hostile_workbook(tmp_path, monkeypatch):
    path = workbook(tmp_path / "t.xlsx", people=[["a"], [1]])
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    sheet = next(name for name in files if "worksheets/sheet" in name)
    lol = b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><x>&b;</x>'
    path.write_bytes(zipped({**files, sheet: lol}))
    with pytest.raises(DataError, match="declares entities"):
        read_sheet(path)
    far = files[sheet].replace(b'r="A2"', b'r="XFD1048576"').replace(b'<row r="2"', b'<row r="1048576"')
    path.write_bytes(zipped({**files, sheet: far}))
    monkeypatch.setenv(SIZE_VARIABLE, "20000000")
    with pytest.raises((TooLargeError, DataError)):
        read_sheet(path)
    path.write_bytes(zipped({**files, sheet: files[sheet][:200]}))
    with pytest.raises(DataError, match=r"cannot be read as \.xlsx"):
        read_sheet(path)


def test_json_lines(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"age": 30, "sex": "f", "pay": 1.5}\n\n{"sex": "m", "age": 41, "pay": null}\n')
    found = read_sheet(path)
    assert {name: list(column) for name, column in found.columns.items()} == CELLS
    assert found.where(1) == "line 3"
    (tmp_path / "t.ndjson.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert cells(tmp_path / "t.ndjson.gz") == CELLS
    path.write_text('{"id": 12345678901234567890.25, "ok": true}\n{"more": "x"}\n')
    assert cells(path) == {"id": ["12345678901234567890.25", ""], "ok": ["True", ""], "more": ["", "x"]}
    for text, says in (
        ("{", "line 1: is not JSON"),
        ('{"a": 1}\n[1]\n', "line 2: expected an object"),
        ('{"a": 1, "a": 2}\n', "line 1: 'a' comes twice"),
        ('{"a": [1]}\n', "line 1: 'a' holds a list"),
        ('{"a": ' * 100_000, "line 1: is not JSON"),
        ("\n", "the table is empty"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=says) as error:
            read_sheet(path)
        assert "\n" not in str(error.value)


def test_a_table_of_a_database(tmp_path):
    path = database(tmp_path / "t.sqlite", *PEOPLE)
    before = path.read_bytes()
    assert cells(path) == CELLS
    database(path, 'CREATE TABLE "odd ""name" (a)', 'INSERT INTO "odd ""name" VALUES (7.0)')
    with pytest.raises(DataError, match=r"has 2 tables .*Name one: .*t\.sqlite::people"):
        read_sheet(path)
    assert cells(f"{path}::people") == CELLS
    assert cells(f'{path}::odd "name') == {"a": ["7"]}
    assert sorted(one.name for one in tmp_path.iterdir()) == ["t.sqlite"]  # no journal, nothing written
    assert before[:16] == path.read_bytes()[:16]
    database(tmp_path / "b.db", "CREATE TABLE t (a)", "INSERT INTO t VALUES (x'00ff')")
    with pytest.raises(DataError, match="a cell holds bytes"):
        read_sheet(tmp_path / "b.db")


def test_a_hostile_database(tmp_path, monkeypatch):
    path = database(tmp_path / "t.db", *PEOPLE, "CREATE VIEW v AS SELECT load_extension('x') FROM people")
    assert cells(path) == CELLS  # a view is no table
    with pytest.raises(DataError, match="has no table 'v'"):
        read_sheet(f"{path}::v")
    content = bytearray(path.read_bytes())
    path.write_bytes(content[:5000])
    with pytest.raises(DataError, match="cannot be read as an SQLite database"):
        read_sheet(path)
    content[4096:4200] = bytes(104)
    path.write_bytes(content)
    with pytest.raises(DataError):
        read_sheet(path)
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000)"
    many = f"{numbers} INSERT INTO people SELECT i, i, i FROM n"
    path = database(tmp_path / "large.db", PEOPLE[0], many)
    monkeypatch.setenv(SIZE_VARIABLE, str(9 * path.stat().st_size))
    with pytest.raises(TooLargeError, match=r"large\.db"):
        read_sheet(path)
    monkeypatch.delenv(SIZE_VARIABLE)
    (tmp_path / "large.db-wal").write_bytes(b"changes")
    with pytest.raises(DataError, match="holds changes that are not in the file yet"):
        read_sheet(path)


def test_a_name_inside_is_for_files_that_hold_several(tmp_path):
    path = tmp_path / "a::b.csv"
    path.write_bytes(CSV)
    assert split_table_name(path) == (path, None)
    assert cells(path) == CELLS
    (tmp_path / "t.csv").write_bytes(CSV)
    with pytest.raises(DataError, match="is one table, so '::people' names nothing in it"):
        read_sheet(f"{tmp_path / 't.csv'}::people")
    with pytest.raises(DataError, match="No such file"):
        read_sheet(f"{tmp_path / 'none.db'}::people")


def test_the_header_of_such_a_file_is_not_known_by_its_first_lines(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"age": 1, "sex": 2}\n' * 3)
    (tmp_path / "t.zip").write_bytes(zipped({"t.csv": CSV}))
    database(tmp_path / "t.db", *PEOPLE)
    assert [read_header(tmp_path / name) for name in ("t.jsonl", "t.zip", "t.db", "t.db::people")] == [None] * 4
    assert AuditJob(TableOptions(data=f"{tmp_path / 't.db'}::people")).input_files == (tmp_path / "t.db",)


def test_an_audit_of_a_table_in_a_database(run, tmp_path):
    rows = ", ".join(f"({20 + i % 40}, '{'fm'[i % 2]}', '{'yes' if i % 40 > 15 else 'no'}')" for i in range(80))
    database(
        tmp_path / "t.db",
        "CREATE TABLE other (a)",
        "CREATE TABLE hires (age, sex, hired)",
        f"INSERT INTO hires VALUES {rows}",
    )
    words = ("audit", "t.db::hires", "--target", "hired", "--sensitive", "sex", "--model", "own_db:older", "--quick")
    (tmp_path / "own_db.py").write_text("def older(t):\n    return t['age'] + 5 * (t['sex'] == 'm') > 40\n")
    done = run(*words, "--starts", 3, "--steps", 2, "--samples", 300, "--twins", "flip", "--out", "out")
    assert (done.status, done.err) == (0, "")
    rates = json.loads(Path("out/audit.json").read_text())["attributes"][0]["rates"]["table"]
    flips = sum(20 + i % 40 + 5 > 40 >= 20 + i % 40 for i in range(80))
    assert rates["rate"] == pytest.approx(flips / 80)


def test_an_archive_of_very_many_members_is_refused_before_its_directory_is_read(tmp_path, monkeypatch):
    content = zipped({f"{i}": b"" for i in range(200)})
    monkeypatch.setenv(SIZE_VARIABLE, "199999")
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(TooLargeError, match=r"t\.zip"):
        sheet(tmp_path, content, "t.zip")
