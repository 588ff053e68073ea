"""Sensitive columns that stand beside a table: who belongs to whom, and every way in which they may not fit."""

from __future__ import annotations

import numpy as np
import pytest

from neuronfair.domain.schema.infer import draft_domain
from neuronfair.domain.schema.toml import parse_domain
from neuronfair.domain.tables import Sheet, join_columns
from neuronfair.domain.tables.dataset import read_table
from neuronfair.domain.tables.files import read_sheet, with_columns
from neuronfair.errors import DataError

PEOPLE = "id,age,hired\np1,20,no\np2,30,yes\np3,40,no\np4,50,yes\n"
SEXES = "sex,id\nm,p4\nf,p2\nm,p9\nf,p3\nm,p1\n"  # in another order, and one who is not asked about


@pytest.fixture
def sheet(tmp_path):
    def made(name: str, text: str) -> Sheet:
        (tmp_path / name).write_text(text)
        return read_sheet(tmp_path / name)

    return made


def test_a_key_finds_everybody(sheet):
    joined = join_columns(sheet("people.csv", PEOPLE), sheet("sex.csv", SEXES), ["sex"], "id")
    assert list(joined.columns["sex"]) == ["m", "f", "f", "m"]
    assert joined.where(1) == "line 3 (sex.csv: line 3)"
    assert joined.remarks == ("sex from sex.csv, joined by 'id': they are not passed to the model",)


def test_one_of_a_file_may_stand_in_several_rows(sheet):
    joined = join_columns(sheet("visits.csv", "id,age\np1,20\np2,30\np1,21\n"), sheet("sex.csv", SEXES), ["sex"], "id")
    assert list(joined.columns["sex"]) == ["m", "f", "m"]


def test_without_a_key_rows_belong_together(sheet):
    others = sheet("others.csv", "sex,race\nf,a\nm,b\nf,b\nm,a\n")
    joined = join_columns(sheet("people.csv", PEOPLE), others, ["sex", "age"])
    assert list(joined.columns) == ["id", "age", "hired", "sex"]  # race was not asked for, and age is in the table
    assert list(joined.columns["sex"]) == ["f", "m", "f", "m"]


@pytest.mark.parametrize(
    ("text", "names", "key", "said"),
    [
        (SEXES, ["sex"], "idd", r"people.csv: no column 'idd' to join by. .*Did you mean 'id'"),
        ("sex,ident\nf,p1\n", ["sex"], "id", r"sex.csv: no column 'id' to join by. Known: sex, ident"),
        (SEXES, ["sexx"], "id", r"sex.csv: no column 'sexx'. .*Did you mean 'sex'"),
        (SEXES, ["age"], "id", r"sex.csv: has none of the sensitive columns; .*people.csv has age"),
        (SEXES, ["id"], "id", r"key 'id': is sensitive itself"),
        ("id,age\np1,1\n", ["age"], "id", r"sex.csv: has a column 'age', and so has .*people.csv"),
        ("id,sex\np1,f\np3,m\n", ["sex"], "id", r"sex.csv: 2 of 4 keys of .* are not in .*, the first 'p2' \(line 3\)"),
        ("id,sex\np1,f\np2,m\np2,f\n", ["sex"], "id", r"1 of 2 keys occur twice, the first 'p2' in line 3 and line 4"),
        ("sex\nf\nm\n", ["sex"], None, r"sex.csv: has 2 rows, and .*people.csv has 4"),
        ("sex,sex\nf,m\nf,m\nf,m\nf,m\n", ["sex"], None, r"sex.csv: the header names the column 'sex' twice"),
    ],
)
def test_what_does_not_fit_is_said_in_one_sentence(sheet, text, names, key, said):
    with pytest.raises(DataError, match=said):
        join_columns(sheet("people.csv", PEOPLE), sheet("sex.csv", text), names, key)


def test_an_empty_key_belongs_to_nobody(sheet):
    table = sheet("people.csv", "id,age\np1,20\n,30\n")
    with pytest.raises(DataError, match=r"1 of 2 keys of .*the first '' \(line 3\)"):
        join_columns(table, sheet("sex.csv", "id,sex\np1,f\n,m\n"), ["sex"], "id")


def test_a_draft_leaves_the_key_out_and_gives_no_model_what_came_from_the_file(sheet):
    joined = join_columns(sheet("people.csv", PEOPLE), sheet("sex.csv", SEXES), ["sex"], "id")
    draft = draft_domain(joined, sensitive=["sex"], target="hired")
    assert [(one.column, one.reason) for one in draft.left_out] == [("id", "the key")]
    domain = draft.domain
    assert [(a.name, a.is_input) for a in domain.attributes] == [("age", True), ("sex", False)]
    assert read_table(joined, domain).rows[:, 1].tolist() == [1, 0, 0, 1]


def test_a_bad_cell_is_told_by_its_place_in_both_files(sheet):
    text = parse_domain(
        'sensitive = ["sex"]\n[attributes]\nage = { kind = "ordinal", low = 0, high = 99 }\n'
        'sex = { kind = "flag", values = ["f", "m"], encode = "none" }\n'
    )
    joined = join_columns(sheet("people.csv", PEOPLE), sheet("sex.csv", SEXES.replace("f,p3", ",p3")), ["sex"], "id")
    with pytest.raises(DataError, match=r"people.csv: line 4 \(sex.csv: line 5\): .*'sex': the cell is empty"):
        read_table(joined, text)


# In memory


def test_names_stay_names():
    table = {"age": [1, 2], "sex": ["f", "m"], "job": ["a", "b"]}
    assert with_columns(table, None) == (table, ())
    assert with_columns(table, "sex") == (table, ("sex",))
    assert with_columns(table, ["sex", "job"]) == (table, ("sex", "job"))
    assert with_columns(table, np.array(["sex", "job"])) == (table, ("sex", "job"))


def test_arrays_and_mappings_stand_beside_the_table():
    sheet, names = with_columns({"age": [1, 2, 3]}, np.array([0, 1, 0]))
    assert (names, list(sheet.columns["sensitive"])) == (("sensitive",), ["0", "1", "0"])
    sheet, names = with_columns({"age": [1, 2]}, {"sex": ["f", None], "race": ["a", "b"]})
    assert (names, list(sheet.columns["sex"]), sheet.joined.names) == (("sex", "race"), ["f", ""], ("sex", "race"))
    with pytest.raises(DataError, match=r"one dimension, got the shape \(2, 2\)"):
        with_columns({"age": [1, 2]}, np.zeros((2, 2)))
    with pytest.raises(DataError, match="sensitive values: 3 for a table of 2 rows"):
        with_columns({"age": [1, 2]}, {"sex": ["f", "m", "f"]})
    with pytest.raises(DataError, match="sensitive values: has a column 'age', and so has table"):
        with_columns({"age": [1, 2]}, {"age": [1, 2]})


def test_pandas_goes_by_its_index_where_both_have_the_same():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"age": [1, 2, 3]}, index=["a", "b", "c"])
    shuffled = pandas.Series(["m", "f", "x"], index=["c", "a", "b"], name="sex")
    sheet, names = with_columns(table, shuffled)
    assert (names, list(sheet.columns["sex"])) == (("sex",), ["f", "x", "m"])
    other_names = shuffled.reset_index(drop=True)
    assert list(with_columns(table, other_names)[0].columns["sex"]) == ["m", "f", "x"]
    for index in (["a", "a", "b"], ["b", "c", "d"]):  # row by row, "a" or "b" would get the value of another
        with pytest.raises(DataError, match="name some of the same rows, and others"):
            with_columns(table, shuffled.set_axis(index))
    twice = table.set_axis(["a", "a", "b"])
    assert list(with_columns(twice, shuffled.set_axis(twice.index))[0].columns["sex"]) == ["m", "f", "x"]
    assert with_columns(table, shuffled.rename(None))[1] == ("sensitive",)
    both = pandas.DataFrame({"sex": ["f", "m", "f"], "race": ["a", "b", "a"]}, index=["b", "a", "c"])
    assert list(with_columns(table, both)[0].columns["race"]) == ["b", "a", "a"]
    with pytest.raises(DataError, match="sensitive values: 2 for a table of 3 rows"):
        with_columns(table, shuffled[:2])


def test_polars_goes_row_by_row():
    polars = pytest.importorskip("polars")
    sheet, names = with_columns(polars.DataFrame({"age": [1, 2]}), polars.Series("sex", ["f", "m"]))
    assert (names, list(sheet.columns["sex"])) == (("sex",), ["f", "m"])
    assert with_columns(polars.DataFrame({"age": [1, 2]}), polars.Series(["f", "m"]))[1] == ("sensitive",)
