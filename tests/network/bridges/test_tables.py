"""Codes as cells of the table they came from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError
from neuronfair.network.bridges.tables import Frames, cells

pd = pytest.importorskip("pandas", reason="the package pandas is not installed")


def labels(*values: str, missing: str | None = None) -> Attribute:
    return Attribute("a", "nominal", values=values, missing=missing)


@pytest.mark.parametrize(
    ("attribute", "known", "expected"),
    [
        (Attribute("a", "ordinal", low=3, high=5), (), [3, 4, 5]),
        (Attribute("a", "continuous", low=0, high=0.3, step=0.1), (), [0, 0.1, 0.2, 0.3]),
        (labels("x", "y"), (), ["x", "y"]),
        (labels("0", "1"), (), [0, 1]),
        (labels("0", "1"), ("0", "1"), ["0", "1"]),
        (labels("0.5", "1.0"), (), [0.5, 1.0]),
        (labels("True", "False"), (), [True, False]),
        (labels("x", "missing", missing="missing"), (), ["x", np.nan]),
        (labels("x", "missing", missing="missing"), ("x", "?"), ["x", "?"]),
        (labels("x", "missing", missing="missing"), ("x", "missing"), ["x", "missing"]),
        (labels("1", "missing", missing="missing"), (), [1, np.nan]),
        (labels("x", "unknown", missing="unknown"), (), ["x", "unknown"]),
        (labels("x", "unknown", missing="unknown"), ("x", "y"), ["x", np.nan]),
        (labels("x", "y"), (" x", " y"), [" x", " y"]),
        (labels("x", "missing"), (), ["x", "missing"]),
    ],
)
def test_cells_are_those_of_the_table(attribute, known, expected):
    found = cells(attribute, known)
    assert [type(cell) for cell in found] == [type(cell) for cell in expected]
    np.testing.assert_equal(found, expected)


def test_frames_are_the_table(people):
    rows = people.sample(50, torch.Generator().manual_seed(0))
    table = Frames(people).of_rows(rows)
    expected = people.to_table(rows)
    assert list(table.columns) == list(people.names)
    for name, column in expected.items():
        assert table[name].tolist() == column, name
    assert table.age.dtype.kind == "i"
    assert table.gain.dtype.kind == "f"
    again = Frames(people, ["gain", "sex"]).of_rows(rows)
    assert again.equals(table[["gain", "sex"]])


def test_a_code_outside_becomes_an_empty_cell():
    domain = TableDomain("d", (labels("x", "y"), Attribute("n", "ordinal", low=0, high=4)), ("a",))
    table = Frames(domain).of_rows(torch.tensor([[1, 4], [2, 5], [-1, 0]]))
    assert table["a"].isna().tolist() == [False, True, True]
    assert table["n"].isna().tolist() == [False, True, False]


def test_text_as_categories_keeps_all_of_them(people):
    table = Frames(people, categorical=True).of_rows(torch.zeros(2, 7, dtype=torch.int64))
    assert sorted(table.race.cat.categories) == ["A", "B", "C"]
    assert table.age.dtype.kind == "i"


def test_an_unknown_column_is_named(people):
    with pytest.raises(ModelError, match=r"reads a column 'agee'.*Did you mean 'age'"):
        Frames(people, ["agee"])
