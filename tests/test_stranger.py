"""A stranger's case: a table with texts and empty cells, a network made elsewhere, and only their files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import FLIPS_ONLY

SMALL = ("--quick", *FLIPS_ONLY, "--starts", 8, "--steps", 8, "--samples", 2000, "--out", "run")
JOBS = ("clerk", "driver", "nurse")
DOMAIN = """
name = "loans"
sensitive = ["sex"]
target = { column = "granted", classes = ["no", "yes"] }
[attributes]
age = { kind = "ordinal", low = 18, high = 79, encode = "scaled", center = 48, scale = 18, missing = 48 }
job = { kind = "nominal", values = ["clerk", "driver", "nurse", "none"], encode = "onehot", missing = "none" }
income = { kind = "ordinal", low = 500, high = 3999, encode = "scaled", center = 2200, scale = 1000 }
sex = { kind = "flag", values = ["F", "M"] }
"""


@pytest.fixture
def loans(tmp_path):
    """Applicants for a loan, some cells of which are empty; women need more income."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install 'neuronfair[sklearn]'")
    draw = np.random.default_rng(0)
    n = 401
    table = pandas.DataFrame(
        {
            "age": draw.integers(18, 80, n).astype(float),
            "job": draw.choice(JOBS, n),
            "income": draw.integers(500, 4000, n),
            "sex": draw.choice(["F", "M"], n),
        }
    )
    line = 1500 + 700 * (table.sex == "F") + 300 * (table.job == "driver")
    table["granted"] = np.where(table.income > line, "yes", "no")
    table.loc[:39, "age"] = np.nan  # 361 known ages: their median is one of them
    table.loc[20:59, "job"] = None
    table.to_csv(tmp_path / "loans.csv", index=False)
    return table


def swapped(table):
    return table.assign(sex=table.sex.map({"F": "M", "M": "F"}))


def audited(run, *words: object) -> dict:
    result = run("audit", "loans.csv", *words, *SMALL)
    assert (result.status, result.err) == (0, "")
    assert Path("run/report.html").stat().st_size > 10_000
    assert Path("run/domain.toml").exists()
    return json.loads(Path("run/audit.json").read_text(encoding="utf-8"))


def check(summary: dict, first, second) -> None:
    """The share of the table whose decision flips is the one that the model's own framework gives."""
    assert summary["model"]["white_box"]
    (sex,) = summary["attributes"]
    share = float((first != second).mean())
    assert share > 0.02
    assert sex["rates"]["table"]["rate"] == pytest.approx(share)
    assert sex["searches"][0]["findings"] > 0
    assert sex["worst"][0]["changed"][0]["attribute"] == "sex"


def test_a_scikit_learn_pipeline_and_a_table(run, loans):
    skops = pytest.importorskip("skops.io", reason="skops is not installed: pip install 'neuronfair[sklearn]'")
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    people, labels = loans.drop(columns="granted"), loans.granted
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    texts = make_pipeline(SimpleImputer(strategy="constant", fill_value="none"), OneHotEncoder(handle_unknown="ignore"))
    columns = ColumnTransformer([("numbers", numbers, ["age", "income"]), ("texts", texts, ["job", "sex"])])
    model = make_pipeline(columns, MLPClassifier((16,), solver="lbfgs", max_iter=200, random_state=0))
    model.fit(people, labels)
    skops.dump(model, "model.skops")
    summary = audited(run, "--model", "model.skops", "--target", "granted", "--sensitive", "sex")
    check(summary, model.predict(people), model.predict(swapped(people)))
    assert summary["model"]["accuracy"]["table"] == pytest.approx(model.score(people, labels))
    replayed = run("show", "run/sex/frontier", 0)
    assert replayed.status == 0
    assert "other weights" not in replayed.out


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_keras_network_and_a_domain_file(run, loans, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", os.environ.get("KERAS_BACKEND", "torch"))
    keras = pytest.importorskip("keras", reason="keras is not installed: pip install 'neuronfair[keras]'")
    Path("loans.toml").write_text(DOMAIN, encoding="utf-8")

    def inputs(table):
        job = table.job.fillna("none").to_numpy()
        age, income = (table.age.fillna(48) - 48) / 18, (table.income - 2200) / 1000
        columns = [age, *(job == name for name in (*JOBS, "none")), income, table.sex == "M"]
        return np.stack(columns, 1).astype("float32")

    keras.utils.set_random_seed(0)
    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input((7,)), dense(16, "relu"), dense(8, "tanh"), dense(1, "sigmoid")])
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy")
    model.fit(inputs(loans), (loans.granted == "yes").to_numpy().astype("float32"), epochs=15, verbose=0)
    model.save("model.keras")
    summary = audited(run, "--model", "model.keras", "--domain", "loans.toml")
    answers = [model.predict(inputs(table), verbose=0)[:, 0] >= 0.5 for table in (loans, swapped(loans))]
    check(summary, *answers)
    assert list(summary["model"]["layers"].values()) == [16, 8]
    assert summary["decision"] == {"kind": "threshold", "value": 0.5, "scale": "probabilities"}
