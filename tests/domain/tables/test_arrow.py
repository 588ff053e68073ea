"""Tables in memory say the same as the files they could be written to."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pyarrow
import pytest

from neuronfair import infer_domain, parse_domain, read_table
from neuronfair.domain.tables.arrow import read_memory
from neuronfair.errors import DataError


def test_every_kind_of_a_pandas_column():
    pandas = pytest.importorskip("pandas", reason="the package pandas is not installed")
    day = datetime.datetime(2020, 1, 31)
    table = pandas.DataFrame(
        {
            "whole": [1.0, np.nan],
            "part": [0.5, 2.0],
            "text": [" a", None],
            "category": pandas.Categorical(["x", None]),
            "interval": pandas.cut([1, 5], [0, 2, 9]),
            "truth": [True, None],
            "nullable": pandas.array([7, None], dtype="Int64"),
            "day": [day, pandas.NaT],
            "moment": [day, day.replace(hour=9)],
            "mixed": ["1.0", 2],
            "absent": [pandas.NA, 3.0],
            "price": [decimal.Decimal("1.50"), decimal.Decimal("2.00")],
            "year": pandas.period_range("2020", "2021", freq="Y"),
            7: [1, 2],
        }
    )
    sheet = read_memory(table)
    assert sheet.columns == {
        "whole": ["1", ""],
        "part": ["0.5", "2"],
        "text": ["a", ""],
        "category": ["x", ""],
        "interval": ["(0, 2]", "(2, 9]"],
        "truth": ["True", ""],
        "nullable": ["7", ""],
        "day": ["2020-01-31", ""],
        "moment": ["2020-01-31", "2020-01-31 09:00:00"],
        "mixed": ["1.0", "2"],
        "absent": ["", "3"],
        "price": ["1.50", "2.00"],
        "year": ["2020", "2021"],
        "7": ["1", "2"],
    }
    assert sheet.where(1) == "row 2"


class Interchanged:
    """What only has the older protocol between DataFrames."""

    def __init__(self, table: pyarrow.Table) -> None:
        self.columns, self._table = table.column_names, table

    def __dataframe__(self, **options: bool) -> object:
        return self._table.__dataframe__(**options)


COLUMNS = {"age": [39, None], "score": [0.5, float("nan")], "job": ["cook", None]}
TEXTS = {"age": ["39", ""], "score": ["0.5", ""], "job": ["cook", ""]}


@pytest.mark.parametrize("kind", [dict, pyarrow.table, lambda columns: Interchanged(pyarrow.table(columns))])
def test_other_tables(kind):
    assert read_memory(kind(COLUMNS)).columns == TEXTS


def test_polars():
    polars = pytest.importorskip("polars", reason="the package polars is not installed")
    table = polars.DataFrame(COLUMNS | {"class": polars.Series(["a", "b"], dtype=polars.Categorical)})
    assert read_memory(table).columns == TEXTS | {"class": ["a", "b"]}
    with pytest.raises(DataError, match="got LazyFrame"):
        read_memory(table.lazy())


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (3, "expected a file, a DataFrame .* got int"),
        ({}, "no rows"),
        ({"a": []}, r"no rows \(a\)"),
        ({"a": [1], "b": [1, 2]}, "different lengths: 1, 2"),
        (pyarrow.Table.from_arrays([[1], [2]], names=["a", "a"]), "two columns named 'a'"),
    ],
)
def test_what_is_no_table_is_refused(table, says):
    with pytest.raises(DataError, match=says):
        read_memory(table)


def test_a_table_that_cannot_be_read_is_refused():
    class Broken:
        columns = ("a",)

        def __arrow_c_stream__(self, *_: object) -> object:
            raise ValueError("gone")

    with pytest.raises(DataError, match=r"table: cannot be read as an Arrow table \(gone\)"):
        read_memory(Broken())


def test_domain_and_rows_are_those_of_the_same_table_in_a_file(tmp_path):
    people = {"age": [20, 30, 41, 55, 60, 71], "sex": ["f", "m"] * 3, "hired": ["no", "yes", "yes"] * 2}
    lines = [",".join(map(str, line)) for line in zip(*people.values(), strict=True)]
    (tmp_path / "table.csv").write_text("\n".join([",".join(people), *lines]))
    text = infer_domain(people, sensitive=["sex"], target="hired").to_toml()
    written = infer_domain(tmp_path / "table.csv", sensitive=["sex"], target="hired").to_toml()
    assert text == written.replace("table.csv", "table")
    data, same = (read_table(one, parse_domain(text)) for one in (people, tmp_path / "table.csv"))
    assert data.rows.tolist() == same.rows.tolist()
    assert (data.labels.tolist(), data.name) == ([0, 1, 1] * 2, "table")
    with pytest.raises(DataError, match="table: row 1: attribute 'age': 19 is outside"):
        read_table(people | {"age": [19] * 6}, parse_domain(text))


def test_durations_are_seconds():
    pandas = pytest.importorskip("pandas")
    spans = pandas.to_timedelta(["00:01:00", None, "1 days 00:00:00.5"])
    found = read_memory(pandas.DataFrame({"waited": spans}))
    assert found.columns["waited"] == ["60", "", "86400.5"]
    assert found.remarks == ("'waited' holds durations, read as seconds",)
