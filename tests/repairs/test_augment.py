"""Pairs as training data: the cells of the user's table, to the letter."""

from __future__ import annotations

import csv

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain, Target
from neuronfair.errors import DataError
from neuronfair.repairs.labels import training_table, write_training_table

SPACE = TableDomain(
    "people",
    (
        Attribute("age", "ordinal", low=18, high=60, missing="keep"),
        Attribute("job", "nominal", values=("cook", "missing"), missing="missing"),
        Attribute("town", "nominal", values=("01069", "80331", "=1+1")),
        Attribute("debt", "ordinal", low=-5, high=5, step=0.5, missing=0),
        Attribute("word", "nominal", values=("missing", "there")),  # not an empty cell: none is declared
        Attribute("sex", "flag"),
    ),
    ("sex",),
    target=Target("loan", ("-5", "yes")),
)
PAIRS = torch.tensor([[[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]], [[43, 1, 2, 3, 1, 1], [43, 1, 2, 3, 1, 0]]])
TABLE = {
    "age": [18, 18, None, None],
    "job": ["cook", "cook", None, None],
    "town": ["01069", "01069", "=1+1", "=1+1"],
    "debt": [-5, -5, -3.5, -3.5],
    "word": ["missing", "missing", "there", "there"],
    "sex": [0, 1, 1, 0],
    "loan": ["yes", "yes", "-5", "-5"],
}


def test_both_people_of_a_pair_have_one_label_and_the_cells_of_the_table():
    table = training_table(SPACE, PAIRS, torch.tensor([1, 0]))
    assert table == TABLE
    assert torch.equal(SPACE.from_table(table), PAIRS.flatten(0, 1))


def test_csv_changes_no_cell(tmp_path):
    write_training_table(tmp_path / "pairs.csv", TABLE)
    with (tmp_path / "pairs.csv").open(newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    assert header == list(TABLE)
    assert lines[2] == ["", "", "=1+1", "-3.5", "there", "1", "-5"]


def test_parquet_keeps_types_and_the_zeros_of_postcodes(tmp_path):
    write_training_table(tmp_path / "pairs.parquet", TABLE)
    table = pq.read_table(tmp_path / "pairs.parquet")
    assert table.to_pydict() == TABLE
    assert table.schema.field("age").type == pa.int64()
    assert table.schema.field("debt").type == pa.float64()
    assert table.schema.field("town").type == pa.string()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "pairs.csv").mkdir()
    with pytest.raises(DataError, match=r"pairs\.csv: cannot be written"):
        write_training_table(tmp_path / "pairs.csv", TABLE)
