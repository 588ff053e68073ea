"""Tables in archives, workbooks, databases and JSON lines: the same cells as in a CSV file, and nothing runs."""

from __future__ import annotations

import datetime
import gzip
import json
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from neuronfair.cli.audit_job import AuditJob
from neuronfair.cli.options import TableOptions
from neuronfair.domain.tables.files import read_header, read_sheet, table_file
from neuronfair.errors import DataError
from neuronfair.limits import VARIABLE, TooLarge
from tests.bombs import lying_archive, zipped

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
    monkeypatch.setenv(VARIABLE, "1000000")
    path.write_bytes(zipped({"t.csv": b"a,b\n" + b"1,2\n" * 100_000}))
    with pytest.raises(TooLarge, match=r"t\.zip"):
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
    monkeypatch.setenv(VARIABLE, "20000000")
    with pytest.raises((TooLarge, DataError)):
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
    monkeypatch.setenv(VARIABLE, str(9 * path.stat().st_size))
    with pytest.raises(TooLarge, match=r"large\.db"):
        read_sheet(path)
    monkeypatch.delenv(VARIABLE)
    (tmp_path / "large.db-wal").write_bytes(b"changes")
    with pytest.raises(DataError, match="holds changes that are not in the file yet"):
        read_sheet(path)


def test_a_name_inside_is_for_files_that_hold_several(tmp_path):
    path = tmp_path / "a::b.csv"
    path.write_bytes(CSV)
    assert table_file(path) == (path, None)
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
    assert AuditJob(TableOptions(data=f"{tmp_path / 't.db'}::people")).reads == (tmp_path / "t.db",)


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
