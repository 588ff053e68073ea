"""Tables of strangers with models of trees: empty cells stay empty, and a quantity needs no classes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from neuronfair.cli import options
from neuronfair.domain.schema.toml import read_domain
from tests.conftest import FLIPS_ONLY

joblib = pytest.importorskip("joblib")
pd = pytest.importorskip("pandas", reason="the package pandas is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table with empty cells among its numbers, on which much depends, and three models of it."""
    place = tmp_path_factory.mktemp("tables")
    rng, n = np.random.default_rng(0), 200
    x = pd.DataFrame(
        {"age": rng.integers(18, 80, n), "sex": rng.integers(0, 2, n), "pay": rng.integers(5, 400, n) * 1.0}
    )
    x.loc[rng.random(n) < 0.3, "pay"] = np.nan
    score = x.age / 30 + x.sex + 2 * x.pay.isna()
    y, price = np.where(score > 2.8, "yes", "no"), (1e5 * score).round(1)
    x.assign(y=y).to_csv(place / "classes.csv", index=False)
    x.assign(price=price).to_csv(place / "prices.csv", index=False)
    trees = HistGradientBoostingClassifier(max_iter=10).fit(x, y)
    joblib.dump(trees, place / "trees.joblib")
    joblib.dump(make_pipeline(SimpleImputer(), LogisticRegression(max_iter=1000)).fit(x, y), place / "line.joblib")
    return place, trees.score(x, y)


def test_only_a_model_that_reads_empty_cells_is_given_them(folder):
    place, accuracy = folder

    def loaded(model: str):
        source = options.ModelOptions(str(place / model), trust_pickle=True)
        found = options.TableOptions(str(place / "classes.csv"), "sex", "y").load(source)
        return found.source, found.data, found.domain_text

    source, table, text = loaded("trees.joblib")
    assert 'missing = "keep"' in text
    opened = source.open(table)
    right = (opened.decision.decide(opened.model.scores(table.rows)) == table.labels).double().mean()
    assert float(right) == accuracy > 0.9
    source, table, text = loaded("line.joblib")
    assert 'missing = "keep"' not in text
    assert source.open(table).white_box


def test_a_quantity_is_audited_without_classes_or_decision(folder, run, tmp_path):
    lightgbm = pytest.importorskip("lightgbm", reason="the package lightgbm is not installed")
    place, _ = folder
    table = pd.read_csv(place / "prices.csv")
    model = lightgbm.LGBMRegressor(n_estimators=10, verbose=-1, n_jobs=1).fit(table.drop(columns="price"), table.price)
    model.booster_.save_model(tmp_path / "prices.txt")
    words = ("audit", place / "prices.csv", "--model", "prices.txt", "--sensitive", "sex", "--target", "price")
    done = run(
        *words, "--quick", *FLIPS_ONLY, "--starts", 5, "--steps", 3, "--samples", 300, "--verbose", "--out", "out"
    )
    assert (done.status, done.err) == (0, "")
    assert "a fifth of their robust standard deviation" in " ".join(done.out.split())
    domain = read_domain(tmp_path / "out" / "domain.toml")
    assert domain.target.classes == ()
    assert domain.attributes[2].empty is not None
    report = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert report["decision"]["kind"] == "tolerance"
    sentence = report["attributes"][0]["worst"][0]["sentence"]
    assert " gets a score of " in sentence
    assert "e+" not in sentence
    done = run(*words[:4], "--sensitive", "sex", "--target", "price", "--decision", "tolerance=1e9", "--out", "far",
               "--quick", *FLIPS_ONLY, "--starts", 5, "--steps", 3, "--samples", 300)  # fmt: skip
    assert done.status == 0
    assert json.loads((tmp_path / "far" / "audit.json").read_text())["attributes"][0]["rates"]["table"]["rate"] == 0
