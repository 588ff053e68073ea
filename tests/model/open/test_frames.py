"""Codes as cells of the table they came from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from neuronfair.audits.inputs import ModelSource, read_input
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables import ColumnType
from neuronfair.errors import ModelError
from neuronfair.limits import TooLargeError
from neuronfair.model.open import wrap_model
from neuronfair.model.open.frames import cells_of, table_inputs

pd = pytest.importorskip("pandas", reason="the package pandas is not installed")


def read(table, *, model=None, columns=None, **how):
    """Read a table for a model."""
    return read_input(table, ModelSource(model, columns=columns), **how)


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
    found = list(cells_of(attribute, known).values())
    assert [type(cell) for cell in found] == [type(cell) for cell in expected]
    np.testing.assert_equal(found, expected)


def test_frames_are_the_table(people):
    rows = people.sample(50, torch.Generator().manual_seed(0))
    table = table_inputs(people).of_rows(rows)
    expected = people.to_table(rows)
    assert list(table.columns) == list(people.names)
    for name, column in expected.items():
        assert table[name].tolist() == column, name
    assert table.age.dtype.kind == "i"
    assert table.gain.dtype.kind == "f"
    assert table_inputs(people, ["gain", "sex"]).of_rows(rows).equals(table[["gain", "sex"]])


OUTSIDE = TableDomain(
    "d",
    (
        Attribute("a", "nominal", values=("x", "y"), encode="onehot", missing=-1, extra={"z": 40}),
        Attribute("n", "ordinal", low=16, high=20, encode="onehot"),
        Attribute("f", "continuous", low=0, high=1, step=0.5),
        Attribute("s", "flag"),
    ),
    ("s",),
    outside="keep",
)
CELLS = {"a": ["y", "?", "z", "x", "?"], "n": [20, 15, 16, 22, 22], "f": [1, 0, 1.5, -0.5, 0.5], "s": [0, 1, 0, 1, 0]}


@pytest.mark.parametrize("categorical", [False, True])
def test_codes_outside_their_bounds_keep_their_cells(categorical):
    table = table_inputs(OUTSIDE, categorical=categorical).of_rows(OUTSIDE.from_table(CELLS))
    assert table["n"].tolist() == CELLS["n"]
    assert table["n"].dtype.kind == "i"
    assert table["f"].tolist() == CELLS["f"]
    assert [cell if isinstance(cell, str) else "?" for cell in table["a"]] == CELLS["a"]
    assert table["a"].isna().tolist() == [False, True, False, False, True]
    if categorical:
        assert sorted(table["a"].cat.categories) == ["x", "y", "z"]


def test_an_encoder_that_knows_the_mark_of_an_empty_cell_is_given_it():
    table = table_inputs(OUTSIDE, categories={"a": ["?", "x", "y", "z"]}).of_rows(OUTSIDE.from_table(CELLS))
    assert table["a"].tolist() == CELLS["a"]


def test_a_code_that_stands_for_nothing_becomes_an_empty_cell():
    table = table_inputs(OUTSIDE).of_rows(torch.tensor([[2, 0, 0, 0], [0, 0, 0, 0]]))
    assert table["a"].isna().tolist() == [True, False]


def test_text_as_categories_keeps_all_of_them(people):
    table = table_inputs(people, categorical=True).of_rows(torch.zeros(2, 7, dtype=torch.int64))
    assert sorted(table.race.cat.categories) == ["A", "B", "C"]
    assert table.age.dtype.kind == "i"


def test_an_unknown_column_is_named(people):
    with pytest.raises(ModelError, match=r"reads a column 'agee'.*Did you mean 'age'"):
        table_inputs(people, ["agee"])


def test_a_table_over_very_many_values_is_not_made():
    with pytest.raises(TooLargeError, match="attribute 'a', which has 1,000,000,000,001 values"):
        cells_of(Attribute("a", "ordinal", low=0, high=10**12))


@pytest.fixture
def typed_table():
    """A table of every common dtype, with whole numbers as names of columns."""
    return pd.DataFrame(
        {
            0: pd.to_datetime(["2020-01-01", "2021-06-30", "2022-02-28", "2023-12-31"] * 3),
            1: pd.Categorical(["b", "a", "b", "a"] * 3, categories=["b", "a", "c"]),
            2: [True, False, False, True] * 3,
            3: ["0", "1", "1", "0"] * 3,
            4: np.array([1.0, 2.0, 3.0, 4.0] * 3, dtype=np.float32),
            5: np.array([5, 6, 7, 9] * 3, dtype=np.int32),
            "y": [0, 1, 0, 1] * 3,
        }
    )


def test_a_model_is_given_the_names_and_dtypes_of_the_table_that_the_rows_came_from(typed_table):
    data = read(typed_table, sensitive=["1"], target="y").data
    frames = table_inputs(data.domain, types=data.types)
    pd.testing.assert_frame_equal(frames.of_rows(data.rows), typed_table[[*range(6)]], check_column_type=False)


def test_original_cells_are_given_as_they_came_and_not_as_the_grid_has_them():
    domain = TableDomain(
        "d",
        (Attribute("age", "ordinal", low=0, high=100, step=10), Attribute("job", "nominal", values=("cook", "other"))),
        ("job",),
    )
    table = pd.DataFrame({"id": [7, 8], "job": ["cook", "smith"], "age": [31.5, 20.0]})
    found = table_inputs(domain).of_frame(table)
    assert found.columns.tolist() == ["age", "job"]
    assert found.to_numpy().tolist() == [[31.5, "cook"], [20.0, "smith"]]


def test_an_opened_model_gives_the_scores_of_a_table_of_original_cells():
    linear, pipeline = pytest.importorskip("sklearn.linear_model"), pytest.importorskip("sklearn.pipeline")
    scale = pytest.importorskip("sklearn.preprocessing").StandardScaler
    draws = np.random.default_rng(0)
    table = pd.DataFrame({"use": draws.exponential(size=200), "sex": draws.integers(0, 2, 200)})
    labels = draws.integers(0, 2, 200)
    model = pipeline.make_pipeline(scale(), linear.LogisticRegression()).fit(table, labels)
    whole = table.assign(id=range(200), label=labels)[["id", "sex", "use", "label"]]
    data = read(whole, model=model, sensitive="sex", target="label").data
    for source in (model, lambda rows: model.predict_proba(rows[["use", "sex"]])):
        opened = wrap_model(source, data.domain, data)
        assert np.array_equal(opened.scores_of_frame(whole), model.predict_proba(table))


@pytest.mark.parametrize(
    ("dtype", "high", "kept"),
    [
        ("uint8", 255, True),
        ("uint8", 256, False),  # 256 would become 0
        ("int8", 200, False),
        ("float16", 2048, True),
        ("float16", 2049, False),  # would become 2048
        ("float32", 2049, True),
        ("bool", 2, False),
    ],
)
def test_a_dtype_of_the_table_is_kept_only_if_it_holds_all_values_of_the_domain(dtype, high, kept):
    attributes = (Attribute("wage", "ordinal", low=0, high=high), Attribute("sex", "flag", low=0, high=1))
    domain = TableDomain("t", attributes, ("sex",))
    inputs = table_inputs(domain, types={"wage": ColumnType("wage", np.dtype(dtype))})
    made = inputs.of_rows(torch.arange(high + 1)[:, None] * torch.tensor([1, 0]))["wage"]
    assert (made.dtype == dtype) is kept
    assert made.astype(float).tolist() == list(range(high + 1))


GRADES = pd.DataFrame({"grade": [0, 1, 2, 3] * 3, "sex": ["f", "m"] * 6, "age": [20, 30, 40, 50, 60, 70] * 2})


def grade_model(encoder: str, table, scaled=("age",), encoded=("grade", "sex")):
    """A pipeline that encodes and scales columns, fitted to predict whether the age is above 40."""
    skl = pytest.importorskip("sklearn.preprocessing", reason="the package scikit-learn is not installed")
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    columns = make_column_transformer(
        (getattr(skl, encoder)(), list(encoded)), (skl.StandardScaler(), list(scaled)), remainder="drop"
    )
    return make_pipeline(columns, LogisticRegression()).fit(table, table["age"] + 5 * (GRADES["grade"] > 1) > 40)


@pytest.mark.parametrize("encoder", ["OneHotEncoder", "OrdinalEncoder"])
@pytest.mark.parametrize("text", ["{}", "0{}"])  # an inferred domain has "0" as a number, and "00" as a label
def test_encoders_of_numbers_read_columns_of_texts_that_spell_them(encoder, text):
    model = grade_model(encoder, GRADES)
    texts = GRADES.assign(grade=[text.format(grade) for grade in GRADES["grade"]], late=GRADES["age"] > 40)
    found = read(texts, model=model, sensitive=["sex"], target="late")
    expected = model.predict_proba(GRADES)
    opened = wrap_model(model, found.data.domain, found.data)
    order = list(map(str, found.data.domain.target.classes))
    expected = expected[:, [["False", "True"].index(name) for name in order]]
    np.testing.assert_allclose(opened.model.scores(found.data.rows).numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(opened.scores_of_frame(texts), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("encoded", "scaled", "fitted", "grade", "says"),
    [
        (
            ("sex",),
            ("age", "grade"),
            int,
            Attribute("grade", "nominal", values=("g0", "g1")),
            r"'grade' \(fitted to numbers, gets texts\)$",
        ),
        (
            ("sex", "grade"),
            ("age",),
            "g{}".format,
            Attribute("grade", "ordinal", low=0, high=3),
            r"'grade' \(fitted to texts, gets numbers\)$",
        ),
    ],
)
def test_a_refusal_names_the_columns_of_another_type(encoded, scaled, fitted, grade, says):
    model = grade_model("OneHotEncoder", GRADES.assign(grade=GRADES["grade"].map(fitted)), scaled, encoded)
    sex, age = Attribute("sex", "nominal", values=("f", "m")), Attribute("age", "ordinal", low=20, high=70)
    domain = TableDomain("grades", (grade, sex, age), ("sex",))
    with pytest.raises(ModelError, match=f"Types differ from its training: {says}"):
        wrap_model(model, domain, domain.sample(9, torch.Generator().manual_seed(0)))
