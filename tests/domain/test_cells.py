"""Cells as text, and the numbers and dates in texts."""

from __future__ import annotations

import datetime
from decimal import Decimal

import numpy as np
import pytest

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.cells import canonical_number, cell_text, parse_number, size_sort_key
from neuronfair.domain.schema.infer import draft_domain
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.files import read_sheet
from neuronfair.errors import CellError
from neuronfair.model.open.frames import cells_of, flag_cells, number_cells, table_inputs

pandas = pytest.importorskip("pandas")

UNDERSCORES = ["1_2", "3_4", "5_6", "7_8"]


@pytest.mark.parametrize("decimal", [".", ","])
def test_a_text_with_an_underscore_is_no_number(decimal):
    assert parse_number("1_2", decimal) is None
    assert canonical_number("1_2") == "1_2"
    assert size_sort_key("1_2") == (True, 0.0, "1_2")


@pytest.mark.parametrize("kind", ["ordinal", "continuous"])
def test_a_number_with_an_underscore_is_a_bad_cell(kind):
    attribute = Attribute("a", kind, low=0, high=99)
    for cells in (["12", "1_2"], read_sheet({"a": ["12", "1_2"]}).columns["a"]):
        with pytest.raises(CellError, match=r"row 2: attribute 'a': expected a number, got '1_2'"):
            attribute.codes(cells)


def test_a_column_of_numbers_with_underscores_has_labels(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("code,sex\n" + "".join(f"{UNDERSCORES[i % 4]},{'fm'[i % 3 == 0]}\n" for i in range(40)))
    code = draft_domain(path, sensitive=["sex"]).domain.attributes[0]
    assert code.values == tuple(UNDERSCORES)
    assert cells_of(code) == dict(enumerate(UNDERSCORES))  # and not 12, 34, … for the model


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e16, "10000000000000000"),
        (np.float32(3), "3"),
        (np.float64(0.1), "0.1"),
        (Decimal("1.0"), "1"),
        (-0.0, "0"),
        (np.bool_(True), "True"),
        (pandas.NaT, ""),
        (pandas.NA, ""),
        (pandas.Timestamp("2020-01-01"), "2020-01-01"),
        (datetime.datetime(2020, 1, 1, 9), "2020-01-01 09:00:00"),
        (datetime.timedelta(minutes=2), "120"),
    ],
)
def test_a_cell_has_one_text_in_every_reader(value, text):
    assert cell_text(value) == text
    column = read_sheet(pandas.DataFrame({"a": pandas.Series([value, "text"], dtype=object)})).columns["a"]
    assert column[0] == text


@pytest.mark.parametrize(
    ("cells", "label"),
    [
        (pandas.Series([1e16, 2.0]), "10000000000000000"),
        (pandas.Series(pandas.to_datetime(["2020-01-01", "2021-06-30"])), "2020-01-01"),
    ],
)
def test_an_indicator_column_is_set_for_the_text_that_the_table_has(cells, label):
    texts = read_sheet(pandas.DataFrame({"a": cells})).columns["a"]
    assert texts[0] == label
    attribute = Attribute("a", "nominal", values=tuple(texts))
    assert flag_cells(attribute, label, 0).of_cells(cells).tolist() == [1, 0]


def test_empty_cells_of_nullable_columns_are_read():
    texts = pandas.Series(["a", None, "b"], dtype="string")
    labels = Attribute("c", "nominal", values=("a", "b", "missing"), missing="missing")
    domain = TableDomain("people", (labels,), ("c",))
    read = table_inputs(domain).of_frame(pandas.DataFrame({"c": texts}))["c"]
    assert read.isna().tolist() == [False, True, False]
    numbers = number_cells(Attribute("n", "ordinal", low=0, high=9, missing=0))
    assert np.isnan(numbers.of_cells(pandas.Series(["1", pandas.NA], dtype=object))[1])
