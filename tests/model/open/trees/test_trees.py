"""Trees over codes give the scores of the models that they were read from, also behind preprocessing and for NaN."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, PolynomialFeatures
from sklearn.tree import DecisionTreeClassifier

from neuronfair import TableEncoding, certify, parse_domain
from neuronfair.errors import ModelError
from neuronfair.model import forest as forests
from neuronfair.model.forest import FittedTrees, Tree, build_forest
from neuronfair.model.open import wrap_model
from neuronfair.model.open.trees import catboost as catboost_trees
from neuronfair.model.open.trees import extract_forest
from neuronfair.searches.evaluate import evaluate

DOMAIN = """
sensitive = ["sex"]
[attributes]
age = { kind = "ordinal", low = 18, high = 80 }
sex = { kind = "flag", values = ["f", "m"] }
job = { kind = "nominal", values = ["a", "b", "c", "d", "e"], encode = "raw" }
debt = { kind = "continuous", low = 0, high = 10, step = 0.01 }
"""


@pytest.fixture(scope="module")
def table():
    domain = parse_domain(DOMAIN)
    rows = domain.sample(600, torch.Generator().manual_seed(0))
    x = TableEncoding.of(domain).encode(rows, torch.float64).numpy()
    x[:, 3] = np.where(x[:, 3] > 9.5, np.nan, x[:, 3])
    noise = np.random.default_rng(0).normal(size=600)
    score = x[:, 0] / 20 + 2 * x[:, 1] - (x[:, 2] == 3) * 2 - np.nan_to_num(x[:, 3]) / 3 + noise
    return domain, rows, x, score


def numbers(domain, *, full=False):
    encoding = TableEncoding.of(domain)

    def features(rows):
        x = encoding.encode(rows, torch.float64).numpy()
        x[:, 3] = np.where((x[:, 3] > 9.5) & (not full), np.nan, x[:, 3])
        return x

    return features


def xgboost(name, **more):
    return getattr(pytest.importorskip("xgboost"), name)(n_estimators=6, max_depth=3, **more)


def lightgbm(name, **more):
    return getattr(pytest.importorskip("lightgbm"), name)(n_estimators=6, min_child_samples=5, verbose=-1, **more)


MODELS = {
    "tree": (lambda: DecisionTreeClassifier(max_depth=4), 3),
    "forest": (lambda: RandomForestClassifier(7, max_depth=4, random_state=0), 2),
    "extra": (lambda: ExtraTreesRegressor(5, max_depth=4, random_state=0), 0),
    "histogram": (lambda: HistGradientBoostingClassifier(max_iter=5, categorical_features=[2]), 2),
    "histogram3": (lambda: HistGradientBoostingClassifier(max_iter=5), 3),
    "xgboost": (lambda: xgboost("XGBClassifier"), 2),
    "xgboost3": (lambda: xgboost("XGBClassifier"), 3),
    "xgboost-number": (lambda: xgboost("XGBRegressor"), 0),
    "lightgbm": (lambda: lightgbm("LGBMClassifier", categorical_feature=[2]), 2),
    "lightgbm3": (lambda: lightgbm("LGBMClassifier"), 3),
    "lightgbm-number": (lambda: lightgbm("LGBMRegressor"), 0),
    "boosted": (lambda: GradientBoostingClassifier(n_estimators=6), 2),
    "boosted3": (lambda: GradientBoostingClassifier(n_estimators=6), 3),
    "boosted-number": (lambda: GradientBoostingRegressor(n_estimators=6), 0),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_trees_over_codes_give_the_scores_of_the_model(table, name):
    domain, rows, x, score = table
    make, classes = MODELS[name]
    full = name.startswith("boosted")
    x = np.nan_to_num(x, nan=9.7) if full else x
    y = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes)) if classes else score
    features = numbers(domain, full=full)
    x = features(rows)
    model = make().fit(x, y)

    def ask(rows):
        return (model.predict_proba if classes else model.predict)(features(rows))

    made = extract_forest(model, features, ask, domain, rows[:50])
    fresh = domain.sample(500, torch.Generator().manual_seed(1))
    expected = torch.from_numpy(np.asarray(ask(fresh), dtype=np.float64).reshape(500, -1))
    torch.testing.assert_close(made.scores(fresh), expected, rtol=1e-5, atol=1e-5)
    assert int(made.cells[3].max()) < 200  # of 1,001 codes, those that no node tells apart are one


def test_preprocessing_is_found_by_asking(table):
    domain, rows, x, score = table
    x = np.nan_to_num(x, nan=1.0)
    prepare = ColumnTransformer(
        [("job", OneHotEncoder(), [2]), ("age", KBinsDiscretizer(4), [0])], remainder="passthrough"
    )
    pipeline = make_pipeline(prepare, RandomForestClassifier(5, max_depth=4, random_state=0)).fit(x, score > 1)
    raw = numbers(domain, full=True)

    def features(rows):
        made = pipeline[0].transform(raw(rows))
        return np.asarray(made.toarray() if hasattr(made, "toarray") else made)

    made = extract_forest(pipeline[-1], features, lambda r: pipeline.predict_proba(raw(r)), domain, rows[:50])
    fresh = domain.sample(500, torch.Generator().manual_seed(1))
    torch.testing.assert_close(made.scores(fresh).numpy(), pipeline.predict_proba(raw(fresh)), rtol=1e-6, atol=1e-6)


def test_what_are_no_trees_over_codes_is_refused(table):
    domain, rows, x, score = table
    x = np.nan_to_num(x, nan=1.0)
    raw = numbers(domain, full=True)
    linear = LogisticRegression().fit(x, score > 1)
    with pytest.raises(ModelError, match="trees of LogisticRegression are not known"):
        extract_forest(linear, raw, lambda r: linear.predict_proba(raw(r)), domain, rows[:50])
    mixing = make_pipeline(PolynomialFeatures(2), DecisionTreeClassifier(max_depth=3)).fit(x, score > 1)
    with pytest.raises(ModelError, match="combines several attributes"):
        extract_forest(
            mixing[-1], lambda r: mixing[0].transform(raw(r)), lambda r: mixing.predict_proba(raw(r)), domain, rows[:50]
        )
    begun = GradientBoostingClassifier(n_estimators=2, init=DecisionTreeClassifier(max_depth=1)).fit(x, score > 1)
    with pytest.raises(ModelError, match="its initial value is another model"):
        extract_forest(begun, raw, lambda r: begun.predict_proba(raw(r)), domain, rows[:50])
    other = DecisionTreeClassifier(max_depth=3).fit(x, score > 1)
    with pytest.raises(ModelError, match="could not be reproduced"):
        extract_forest(other, raw, lambda r: 1 - other.predict_proba(raw(r)) ** 2, domain, rows[:50])


def test_trees_that_would_take_too_long_are_refused(table, monkeypatch):
    """A stranger's tree may be a chain of any length: a walk through it takes a step for each of its nodes."""
    domain, rows, _, _ = table
    deep = 600
    inner = np.arange(deep)
    feature = np.concatenate([np.zeros(deep), np.full(deep + 1, -1)]).astype(np.int64)
    left = np.concatenate([deep + inner, np.full(deep + 1, -1)])
    right = np.concatenate([np.append(inner[1:], 2 * deep), np.full(deep + 1, -1)])
    chain = Tree(feature, left, right, np.zeros((2 * deep + 1, 1)), lambda node, numbers: numbers < 18 + node % 60)
    with pytest.raises(ModelError, match="deeper than 300"):
        build_forest(FittedTrees([chain], [0.0], "none"), numbers(domain, full=True), domain, rows[0])
    monkeypatch.setattr(forests, "MAX_NODES", 1000)
    with pytest.raises(ModelError, match="more than 1,000 nodes"):
        build_forest(FittedTrees([chain], [0.0], "none"), numbers(domain, full=True), domain, rows[0])


@pytest.mark.parametrize("kind", ["two classes", "three classes", "number", "lopsided", "statistics"])
def test_trees_of_catboost_compare_categories_by_their_texts(table, kind):
    catboost = pytest.importorskip("catboost")
    pandas = pytest.importorskip("pandas")
    domain, rows, _, score = table
    raw = numbers(domain)

    def given(rows):
        x = raw(rows)
        jobs = np.array(list("abcde"))[x[:, 2].astype(int)]
        return pandas.DataFrame({"age": x[:, 0], "sex": x[:, 1], "job": jobs, "debt": x[:, 3]})

    options = {"one_hot_max_size": 1 if kind == "statistics" else 9, "cat_features": ["job"], "depth": 3}
    options |= {"iterations": 6, "verbose": 0, "allow_writing_files": False, "thread_count": 1}
    if kind == "lopsided":
        options["grow_policy"] = "Lossguide"
    made = catboost.CatBoostRegressor if kind == "number" else catboost.CatBoostClassifier
    classes = np.digitize(score, np.quantile(score, [0.3, 0.6] if kind == "three classes" else [0.5]))
    model = made(**options).fit(given(rows), score if kind == "number" else classes)

    def ask(rows):
        return (model.predict if kind == "number" else model.predict_proba)(given(rows))

    if kind == "statistics":
        with pytest.raises(ModelError, match="one_hot_max_size"):
            extract_forest(model, given, ask, domain, rows[:50])
        return
    trees = extract_forest(model, given, ask, domain, rows[:50])
    fresh = domain.sample(500, torch.Generator().manual_seed(1))
    expected = torch.from_numpy(np.asarray(ask(fresh), dtype=np.float64).reshape(500, -1))
    torch.testing.assert_close(trees.scores(fresh), expected, rtol=1e-6, atol=1e-6)
    assert int(trees.cells[2].max()) > 0  # jobs are told apart


WITH_EMPTY_CELLS = parse_domain("""
sensitive = ["sex"]
[attributes]
income = { kind = "ordinal", low = 0, high = 15, missing = "keep" }
sex = { kind = "flag", values = ["f", "m"] }
debt = { kind = "ordinal", low = 0, high = 11, missing = "keep" }
town = { kind = "nominal", values = ["n", "s", "w"] }
""")


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("nan_mode", ["Min", "Max"])
@pytest.mark.parametrize("policy", ["SymmetricTree", "Depthwise", "Lossguide"])
def test_catboost_reads_empty_cells_of_every_column_also_the_first(policy, nan_mode, seed):
    """All rows of the domain against CatBoost itself, and the certificate against the count over all of them."""
    catboost, pandas = pytest.importorskip("catboost"), pytest.importorskip("pandas")
    domain = WITH_EMPTY_CELLS
    rows = torch.tensor(list(product(*(range(a.size) for a in domain.attributes))))

    def given(rows):
        x = rows.numpy().astype(float)
        x[x[:, 0] == 16, 0] = np.nan
        x[x[:, 2] == 12, 2] = np.nan
        town = np.array(["n", "s", "w"])[rows[:, 3].numpy()]
        sex = np.array(["f", "m"])[rows[:, 1].numpy()]
        return pandas.DataFrame({"income": x[:, 0], "sex": sex, "debt": x[:, 2], "town": town})

    table = given(rows)
    noise = np.random.default_rng(seed).normal(size=len(rows))
    person = (table.sex == "m") * np.where(table.income.isna(), 3, 1)
    score = table.income.fillna(6) / 6 + person - table.debt.fillna(2) / 4 + (table.town == "w") + noise
    options = {"nan_mode": nan_mode, "grow_policy": policy, "depth": 4, "iterations": 8, "one_hot_max_size": 9}
    options |= {"cat_features": ["sex", "town"], "verbose": 0, "allow_writing_files": False, "thread_count": 1}
    model = catboost.CatBoostClassifier(**options, random_seed=seed).fit(table, score > np.median(score))
    opened = wrap_model(model, domain, rows[::7])
    trees = opened.trees()
    expected = torch.from_numpy(model.predict_proba(table))
    torch.testing.assert_close(trees.scores(rows), expected, rtol=1e-6, atol=1e-6)
    flips = evaluate(opened.model, domain, rows, opened.decision).discriminates
    assert int(flips[rows[:, 0] == 16].sum()) > 0
    report = certify(model, domain)
    assert report.complete
    assert report.proved_discriminatory.count == str(int(flips.sum()))
    assert report.proved_fair.count == str(int((~flips).sum()))


def test_trees_that_are_wrong_about_empty_cells_are_not_accepted(monkeypatch):
    """Empty cells are seldom, so the rebuilt trees are compared with the model where cells were emptied, too."""
    catboost, pandas = pytest.importorskip("catboost"), pytest.importorskip("pandas")
    domain = WITH_EMPTY_CELLS
    rows = domain.sample(400, torch.Generator().manual_seed(0))

    def given(rows):
        x = rows.numpy().astype(float)
        x[x[:, 0] == 16, 0] = np.nan
        return pandas.DataFrame(x[:, :3], columns=["income", "sex", "debt"])

    table = given(rows)
    options = {"nan_mode": "Max", "depth": 4, "iterations": 8, "verbose": 0, "allow_writing_files": False}
    model = catboost.CatBoostClassifier(**options, thread_count=1).fit(
        table, table.income.isna() & (table.sex == 1) & (table.debt > 6)
    )
    told = catboost_trees._write_json

    def wrong(model):
        said = told(model)
        for one in said["features_info"]["float_features"]:
            one["nan_value_treatment"] = "AsFalse"
        return said

    monkeypatch.setattr(catboost_trees, "_write_json", wrong)
    filled = rows[(rows[:, 0] < 16) & (rows[:, 2] < 12)]
    with pytest.raises(ModelError, match="could not be reproduced"):
        extract_forest(model, given, lambda r: model.predict_proba(given(r)), domain, filled)


def test_trees_that_take_too_much_memory_are_unknown_trees(table, monkeypatch):
    domain, rows, x, score = table
    x = np.nan_to_num(x, nan=1.0)
    model = DecisionTreeClassifier(max_depth=6).fit(x, score > 1)
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "9000")
    raw = numbers(domain, full=True)
    with pytest.raises(ModelError, match="its trees are too large"):
        extract_forest(model, raw, lambda r: model.predict_proba(raw(r)), domain, rows[:50])
