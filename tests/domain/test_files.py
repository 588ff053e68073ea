from __future__ import annotations

import gzip

import pyarrow
import pyarrow.parquet
import pytest

from neuronfair.domain.files import read_sheet
from neuronfair.errors import DataError


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
