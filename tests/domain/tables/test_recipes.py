"""From raw files to tables: by hand on a few lines, and cell by cell against the published encodings."""

from __future__ import annotations

import csv
import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from neuronfair.domain.tables import sources
from neuronfair.domain.tables.dataset import load_dataset
from neuronfair.model.encoding import TableEncoding

DATA = Path(os.environ.get("NEURONFAIR_DATA", Path(__file__).parents[4] / "shared" / "data")) / "structured"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the published tables are not at {DATA}")

ADULT_LINE = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, "
    "White, Male, 2174, 1902, 40, United-States, <=50K"
)
BANK = """"age";"job";"balance";"duration";"pdays";"previous";"y"
58;"management";2143;261;-1;0;"no"
97;"student";-51;1000;5;7;"yes"
18;"admin.";-5000;9;-1;0;"no"
"""
COMPAS_HEADER = (
    "id,sex,age,age_cat,race,juv_fel_count,juv_misd_count,juv_other_count,priors_count,days_b_screening_arrest,"
    "c_charge_degree,c_charge_desc,is_recid,score_text,priors_count,two_year_recid\n"
)


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURONFAIR_DATA", str(DATA.parent))


def published(name: str) -> tuple[list[str], np.ndarray]:
    with gzip.open(DATA / name, "rt", newline="") as file:
        header, *rows = csv.reader(file)
    return header, np.array(rows, dtype=np.int64)


def test_adult_drops_the_weight_and_the_full_stop():
    table = sources.adult_default(f"{ADULT_LINE}\n\n", f"|1x3 Cross validator\n{ADULT_LINE.replace('39', '25')}.\n")
    assert table["age"] == ["39", "25"]
    assert table["income"] == ["<=50K", "<=50K"]
    assert "fnlwgt" not in table
    assert "education_num" not in table


def test_adult_paper_divides_downwards():
    table = sources.adult_paper(ADULT_LINE, "")
    assert [table[n][0] for n in ("age", "fnlwgt", "capital_gain", "capital_loss")] == [3, 3, 2, 19]


def test_adult_education_num_only_repeats_education():
    table = sources._read_adult(*sources.read_texts("adult"))
    pairs = set(zip(table["education"], table["education_num"], strict=True))
    assert len(pairs) == len({e for e, _ in pairs}) == len({n for _, n in pairs}) == 16
    ranks = [education for education, _ in sorted(pairs, key=lambda pair: int(pair[1]))]
    assert list(load_dataset("adult").domain.attributes[2].values) == ranks


def test_german_in_words():
    line = "A11 6 A34 A43 1169 A65 A75 4 A93 A101 4 A121 67 A143 A152 2 A173 1 A192 A201 1\n"
    table = sources.german_default(line + line.replace("A93", "A92")[:-2] + "2\n")
    assert table["sex"] == ["male", "female"]
    assert table["credit"] == ["good", "bad"]
    assert table["purpose"][0] == "radio or television"
    assert table["foreign_worker"][0] == "yes"


def test_german_sample_is_balanced_and_repeats_nobody():
    chosen = sources._catalog_file("german.words.toml")["sample"]["rows"]
    assert len(set(chosen)) == 600
    credit = sources.german_paper(*sources.read_texts("german"))["credit"]
    assert (credit.count("good"), credit.count("bad")) == (300, 300)


def test_bank_paper_rounds_down_and_clips():
    table = sources.bank_paper(BANK)
    assert table["age"] == [5, 9, 1]
    assert table["balance"] == [42, -2, -20]
    assert table["duration"] == [26, 99, 0]
    assert table["pdays"] == [1, 0, 1]
    assert table["previous"] == [0, 1, 0]


def test_compas_filter_and_flags():
    good = "1,Male,69,Greater than 45,Other,0,0,0,2,-1,F,Battery,0,Low,99,0\n"
    text = COMPAS_HEADER + good
    for bad in (
        good.replace(",-1,F", ",31,F"),
        good.replace(",-1,F", ",,F"),
        good.replace(",-1,F", ",-1,O"),
        good.replace("Battery,0", "Battery,-1"),
        good.replace("Battery", ""),
    ):
        text += bad
    text += good.replace("Male", "Female").replace("Battery", "battery").replace("Other", "Caucasian")
    paper = sources.compas_paper(text)
    assert paper["priors_count"] == ["2", "2"], "the first of two columns of this name is meant"
    assert paper["race"] == ["not Caucasian", "Caucasian"]
    assert paper["c_charge_desc=Battery"] == [1, 0]
    assert sources.compas_default(text)["c_charge_desc"] == ["other", "other"]
    assert sources.compas_default(text)["c_charge_degree"] == ["felony", "felony"]


def test_meps_reads_codes_by_first_appearance():
    cells = ["0"] * len(sources._catalog_file("meps.words.toml"))
    names = list(sources._catalog_file("meps.words.toml"))
    cells[names.index("AGE")] = "44"
    cells[names.index("SEX")] = "1"
    text = "any header\n" + ",".join([*cells, "1"]) + "\n"
    table = sources.meps_default(text)
    assert (table["sex"], table["age"], table["income"]) == (["male"], ["44"], ["high income"])
    assert table["utilization"] == ["10 visits or more"]


@needs_data
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("adult", "census_numeric.csv.gz"),
        ("german", "credit_numeric.csv.gz"),
        ("bank", "bank_numeric.csv.gz"),
        ("compas", "compas_aif360_onehot.csv.gz"),
    ],
)
def test_paper_encoding_equals_the_published_table(name, file):
    header, cells = published(file)
    if header[0] == "id":
        header, cells = header[1:], cells[:, 1:]
    data = load_dataset(name, "paper")
    assert list(data.domain.names) == header[:-1]
    assert np.array_equal(TableEncoding.of(data.domain).encode(data.rows).numpy(), cells[:, :-1])
    assert np.array_equal(data.labels.numpy(), cells[:, -1])


@needs_data
def test_meps_paper_encoding_is_the_one_hot_matrix_of_the_code_book_values():
    header, cells = published("meps_panel21_codes.csv.gz")
    column = dict(zip(header, cells.T, strict=True))
    data = load_dataset("meps", "paper")
    matrix = TableEncoding.of(data.domain).encode(data.rows).numpy()
    assert matrix.shape == (15_675, 134)
    for place, name in enumerate(data.domain.names):
        feature, _, value = name.partition("=")
        expected = column[feature] == int(value) if value else column[feature]
        assert np.array_equal(matrix[:, place], expected), name
    assert data.domain.names[9:11] == ("SEX=1", "MARRY=1"), "feature 10 of AIF360, SEX=2, is taken out"
    assert np.array_equal(data.labels.numpy(), column["UTILIZATION"])


def test_published_cells_outside_the_bounds_survive():
    data = load_dataset("adult", "paper")
    column = {name: data.rows[:, i] for i, name in enumerate(data.domain.names)}
    beyond = {name: int((codes >= data.domain.sizes[i]).sum()) for i, (name, codes) in enumerate(column.items())}
    outside = {name: n for name, n in beyond.items() if n}
    assert outside == {
        "workclass": 1836, "fnlwgt": 29, "occupation": 1843, "capital_loss": 3, "native_country": 584,
    }  # fmt: skip
