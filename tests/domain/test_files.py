from __future__ import annotations

import gzip

import pyarrow
import pyarrow.parquet
import pytest

from neuronfair.domain.files import MAX_COLUMNS, read_sheet
from neuronfair.errors import DataError
from neuronfair.limits import TooLarge


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
        (b"", "the file is empty"),
        (b"a,b\n", "no rows after the header line"),
        (b"a,b\n1,2\n1,2,3\n", "line 3: 3 cells under a header of 2 columns"),
        (b"a,a\n1,2\n", "the header names the column 'a' twice"),
        ("a,ß\n1,2\n".encode("utf-16"), "not a text file in UTF-8"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0)[:-9], "gzip file is damaged or ends too early"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0)[:10] + b"\xff" * 30, "gzip file is damaged"),
        (b'a,b\n1,"' + b"x" * 200_000 + b'"\n', "cannot be read as CSV"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, content, says):
    with pytest.raises(DataError, match=says) as error:
        sheet(tmp_path, content)
    assert str(error.value).startswith(str(tmp_path / "t.csv"))


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
    with pytest.raises(TooLarge, match=r"t\.csv\.gz"):
        sheet(tmp_path, content, "t.csv.gz")


def test_the_cells_of_a_table_are_counted(tmp_path, monkeypatch):
    """32 bytes a cell before it is read; while it is read, different texts count for more than equal ones."""
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "1000000")
    with pytest.raises(TooLarge):
        sheet(tmp_path, "a,b,c,d\n" + ",,,\n" * 8000)
    same = "a,b\n" + "xy,xy\n" * 4000
    assert len(sheet(tmp_path, same).lines) == 4000
    with pytest.raises(TooLarge):
        sheet(tmp_path, "a,b\n" + "".join(f"{i:x},{-i:x}\n" for i in range(4000)))


def test_equal_cells_are_kept_once(tmp_path):
    read = sheet(tmp_path, "a,b\nlong text, long text\nlong text ,x\n")
    assert read.columns["a"][0] is read.columns["a"][1] is read.columns["b"][0]


def test_a_header_of_many_columns(tmp_path):
    names = [f"c{i}" for i in range(MAX_COLUMNS)]
    content = ",".join(names) + "\n" + ",".join(names) + "\n"
    assert len(sheet(tmp_path, content).columns) == MAX_COLUMNS
    with pytest.raises(DataError, match="the header names the column 'c7' twice"):
        sheet(tmp_path, content.replace(f"c{MAX_COLUMNS - 1}", "c7"))
    with pytest.raises(DataError, match="has 50,001 columns"):
        sheet(tmp_path, content.replace("\n", ",more\n"))


def test_what_a_parquet_file_says_of_itself_is_checked_first(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": pyarrow.nulls(100_000, pyarrow.int64())}), path)
    assert path.stat().st_size < 2000
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "1000000")
    monkeypatch.setattr("neuronfair.domain.files.read_apart", lambda *_: b"")
    with pytest.raises(TooLarge, match=r"t\.parquet: would take"):
        read_sheet(path)
    names = [f"c{i}" for i in range(50)]
    pyarrow.parquet.write_table(pyarrow.table([[1]] * 50, names=names), path)
    monkeypatch.setattr("neuronfair.domain.files.MAX_COLUMNS", 49)
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
    with pytest.raises(TooLarge, match=r"t\.parquet: takes more than"):
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


def test_parquet_columns_of_other_kinds(tmp_path):
    times = pyarrow.array([0, 86_400_000_000], pyarrow.timestamp("us"))
    table = pyarrow.table({"list": [[1, 2], None], "bytes": [b"a", b"b"], "time": times, "whole": [2**53, -1]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    assert read_sheet(tmp_path / "t.parquet").columns == {
        "list": ["[1, 2]", ""],
        "bytes": ["b'a'", "b'b'"],
        "time": ["1970-01-01 00:00:00", "1970-01-02 00:00:00"],
        "whole": ["9007199254740992", "-1"],
    }
