"""scikit-learn models, compared with scikit-learn itself, from a CSV file with ordinary flaws."""

from __future__ import annotations

import json
import pickle
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import FixedThresholdClassifier, GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import LinearSVC
from torch import Tensor

from neuronfair.domain.schema.infer import infer_domain
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import read_table
from neuronfair.errors import ModelError
from neuronfair.limits import TooLargeError, read_members
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open import wrap_model
from tests.bombs import lying_archive, npy, zipped
from tests.model.open.conftest import check_black_box, check_white_box
from tests.model.open.test_frames import CELLS, OUTSIDE

joblib = pytest.importorskip("joblib")
pd = pytest.importorskip("pandas", reason="the package pandas is not installed")
skops = pytest.importorskip("skops.io", reason="the package skops is not installed")


class Case(NamedTuple):
    folder: Path
    domain: TableDomain
    rows: Tensor
    x: Any  # the table as pandas reads it
    filled: Any  # the same after the domain has read it: an empty number is its median
    y: np.ndarray


@pytest.fixture
def case(tmp_path) -> Case:
    """A CSV file with text, numbers, decimals, a flag of 0 and 1, empty cells in text and in numbers; three classes."""
    rng = np.random.default_rng(0)
    n = 300
    table = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "sex": rng.choice(["Female", "Male"], n),
            "job": rng.choice(["clerk", "cook", "smith"], n),
            "hours": np.round(rng.uniform(0, 60, n), 1),
            "smokes": rng.integers(0, 2, n),
            "member": rng.choice([True, False], n),
            "city": rng.choice(["X", "Y", "?"], n),
        }
    )
    table.loc[rng.random(n) < 0.1, "job"] = None
    table.loc[rng.random(n) < 0.1, "hours"] = None
    score = table.age / 40 + (table.sex == "Male") + table.hours.fillna(30) / 30 + rng.normal(0, 0.3, n)
    table["loan"] = np.select([score > 3.2, score > 2.4], ["yes", "maybe"], "no")
    table.to_csv(tmp_path / "table.csv", index=False)
    domain = infer_domain(tmp_path / "table.csv", sensitive=["sex"], target="loan")
    data = read_table(tmp_path / "table.csv", domain)
    raw = pd.read_csv(tmp_path / "table.csv")
    x, y = raw.drop(columns="loan"), raw.loan.to_numpy()
    filled = x.assign(hours=x.hours.fillna(domain.attributes[3].missing))
    return Case(tmp_path, domain, data.rows, x, filled, y)


def columns(**options) -> ColumnTransformer:
    """Preprocessing as people write it."""
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    words = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore", **options))
    parts = [("numbers", numbers, ["age", "hours"]), ("words", words, ["sex", "job"])]
    parts += [("city", OrdinalEncoder(), ["city"]), ("member", "passthrough", ["member"])]
    return ColumnTransformer(parts, remainder=MinMaxScaler())


def perceptron(**options) -> MLPClassifier:
    return MLPClassifier(**{"hidden_layer_sizes": (8, 4), "max_iter": 12, "random_state": 0} | options)


def fitted(model, x, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(x, y)


def save(model, case, suffix=".joblib") -> Path:
    path = case.folder / f"model{suffix}"
    if suffix == ".skops":
        skops.dump(model, path)
    else:
        joblib.dump(model, path)
    return path


def opened(model, case, suffix=".joblib"):
    return wrap_model(save(model, case, suffix), case.domain, case.rows, trust_pickle=suffix != ".skops")


def by_class(model, case) -> np.ndarray:
    """The model's probabilities in the order of the domain's classes, which is not always its own."""
    order = [list(model.classes_).index(name) for name in case.domain.target.classes]
    return model.predict_proba(case.filled)[:, order]


def test_a_pipeline_from_a_skops_file(case):
    model = fitted(make_pipeline(columns(drop="if_binary"), perceptron()), case.x, case.y)
    found = opened(model, case, ".skops")
    check_white_box(found, case.rows, by_class(model, case), [8, 4])
    assert (found.kind, found.decision) == ("scikit-learn", Decision())
    assert "preprocessing has become the first layer" in found.note
    kinds = {a.name: a.encode for a in found.model.encoding.attributes}
    assert kinds["age"] == kinds["hours"] == kinds["sex"] == "scaled"
    assert kinds["job"] == kinds["city"] == "onehot"
    assert [a.size for a in found.model.encoding.attributes] == case.domain.sizes.tolist()


def test_opening_it_again_changes_nothing(case):
    model = fitted(make_pipeline(columns(), perceptron()), case.x, case.y)
    found = opened(model, case, ".skops")
    again = wrap_model(found.source, case.domain, case.rows.flip(0))  # as `replay` does, from other rows
    assert again.model.encoding.attributes == found.model.encoding.attributes
    assert again.fingerprint == found.fingerprint


@pytest.mark.parametrize("activation", ["relu", "tanh", "logistic"])
def test_two_classes_share_one_output(activation, case):
    y = np.where(case.y == "no", "no", "yes")
    model = fitted(make_pipeline(columns(drop="first"), perceptron(activation=activation)), case.x, y)
    target = case.domain.target.__class__("loan", ("yes", "no"))  # not in the alphabet's order
    domain = TableDomain(case.domain.name, case.domain.attributes, ("sex",), target=target)
    found = wrap_model(save(model, case), domain, case.rows, trust_pickle=True)
    check_white_box(found, case.rows, model.predict_proba(case.filled)[:, ::-1], [8, 4])
    assert found.decision == Decision()


def test_a_regression_is_decided_at_one_half(case):
    scalers = [("a", RobustScaler(), ["age"]), ("s", MaxAbsScaler(), ["smokes"])]
    before = ColumnTransformer([*scalers, ("sex", OneHotEncoder(sparse_output=True), ["sex"])])
    y = (case.y == "yes").astype(float)
    model = fitted(make_pipeline(before, MLPRegressor(hidden_layer_sizes=(6,), max_iter=12, random_state=0)), case.x, y)
    found = opened(model, case)
    check_white_box(found, case.rows, model.predict(case.filled), [6])
    assert found.decision == Decision("threshold", 0.5)


def test_pipelines_in_pipelines_and_finished_searches(case):
    model = make_pipeline("passthrough", make_pipeline(columns(), make_pipeline(StandardScaler(), perceptron())))
    search = fitted(GridSearchCV(model, {}, cv=2), case.x, case.y)
    found = opened(search, case)
    check_white_box(found, case.rows, by_class(search.best_estimator_, case), [8, 4])


def test_a_lookup_where_there_is_no_straight_line(case):
    bins = KBinsDiscretizer(4, encode="ordinal", strategy="uniform", quantile_method="averaged_inverted_cdf")
    model = fitted(make_pipeline(ColumnTransformer([("bins", bins, ["age"])]), perceptron()), case.x, case.y)
    found = opened(model, case)
    check_white_box(found, case.rows, by_class(model, case), [8, 4])
    assert found.model.encoding.attributes[0].encode == "onehot"


def test_a_curve_where_there_are_too_many_values_for_a_lookup(case):
    before = ColumnTransformer([("square", FunctionTransformer(np.square), ["hours"])])
    model = fitted(make_pipeline(before, StandardScaler(), perceptron()), case.filled, case.y)
    check_white_box(opened(model, case), case.rows, by_class(model, case), [8, 4])


def test_preprocessing_that_mixes_columns_is_a_black_box(case):
    before = ColumnTransformer([("both", PolynomialFeatures(2), ["age", "smokes"])])
    model = fitted(make_pipeline(before, StandardScaler(), perceptron()), case.filled, case.y)
    check_black_box(opened(model, case), case.rows, by_class(model, case), "mixes columns")


def test_other_models_are_black_boxes(case):
    model = fitted(make_pipeline(columns(), RandomForestClassifier(5, random_state=0)), case.x, case.y)
    found = opened(model, case)
    check_black_box(found, case.rows, by_class(model, case), "RandomForestClassifier has no neurons")
    assert found.decision == Decision()


def test_scores_of_other_kinds(case):
    y = np.where(case.y == "no", "no", "yes")
    machine = fitted(make_pipeline(columns(), LinearSVC()), case.x, y)
    target = case.domain.target.__class__("loan", ("no", "yes"))
    domain = TableDomain(case.domain.name, case.domain.attributes, ("sex",), target=target)
    found = wrap_model(save(machine, case), domain, case.rows, trust_pickle=True)
    check_white_box(found, case.rows, machine.decision_function(case.filled), [])
    assert found.decision == Decision("threshold", 0.0)
    line = fitted(make_pipeline(columns(), Ridge()), case.x, (y == "yes") * 1.0)
    found = opened(line, case)
    check_white_box(found, case.rows, line.predict(case.filled), [])
    assert found.decision == Decision("threshold", 0.5)


def test_a_bare_model_of_dummies(case):
    x = pd.get_dummies(case.filled)
    assert "sex_Male" in x.columns
    model = fitted(perceptron(), x, case.y)
    order = [list(model.classes_).index(name) for name in case.domain.target.classes]
    check_white_box(opened(model, case), case.rows, model.predict_proba(x)[:, order], [8, 4])
    with pytest.raises(ModelError, match=r"reads a column 'sex_Mule'.*Did you mean 'sex_Male'"):
        opened(fitted(perceptron(), x.rename(columns={"sex_Male": "sex_Mule"}), case.y), case)


def test_a_bare_model_of_categories_and_one_of_places(case):
    text = ["sex", "job", "city"]
    x = case.filled.astype(dict.fromkeys(text, "category"))
    model = HistGradientBoostingClassifier(max_iter=5).fit(x, case.y)
    order = [list(model.classes_).index(name) for name in case.domain.target.classes]
    check_black_box(opened(model, case), case.rows, model.predict_proba(x)[:, order], "HistGradientBoosting")
    places = case.filled.copy()
    for name in text:
        places[name] = case.rows[:, case.domain.column(name)].numpy()
    model = RandomForestClassifier(5, random_state=0).fit(places, case.y)
    found = opened(model, case)
    check_black_box(found, case.rows, model.predict_proba(places)[:, order], "labels become their positions")


def test_people_outside_the_bounds_are_asked_about_as_they_are():
    """With an empty cell (missing = -1), a label that has no value of its own, and numbers beyond the bounds."""
    rows = OUTSIDE.from_table({name: cells * 20 for name, cells in CELLS.items()})
    table = pd.DataFrame({name: cells * 20 for name, cells in CELLS.items()})
    y = (table["a"].isin(["?", "z"]) | (table["n"] > 21)).astype(int) + (table["f"] < 0)
    dummies = pd.get_dummies(table)
    places = table.assign(a=rows[:, 0].numpy())
    text = make_pipeline(OneHotEncoder(handle_unknown="ignore"), RandomForestClassifier(3, random_state=0)).fit(
        table, y
    )
    for x in (dummies, dummies.rename(columns={"a_?": "a_nan"}), places):
        model = RandomForestClassifier(3, random_state=0).fit(x, y)
        check_black_box(wrap_model(model, OUTSIDE, rows), rows, model.predict_proba(x), "has no neurons")
    check_black_box(wrap_model(text, OUTSIDE, rows), rows, text.predict_proba(table), "has no neurons")


def test_a_network_behind_preprocessing_is_compared_on_rows_outside_the_bounds():
    """An empty cell is a category of its own for the pipeline, and no value of the domain."""
    inside = {"a": ["x", "y"] * 300, "n": [16, 20, 17] * 200, "f": [0, 1, 0.5, 0.5] * 150, "s": [0, 1, 1] * 200}
    table = pd.DataFrame({name: [*inside[name], *CELLS[name]] for name in inside})
    rows = OUTSIDE.from_table({name: table[name].tolist() for name in inside})
    y = (table["a"].isin(["?", "y"])).astype(int)
    words = ColumnTransformer([("a", OneHotEncoder(), ["a"])], remainder=StandardScaler())
    model = fitted(make_pipeline(words, perceptron(max_iter=60)), table, y)
    check_black_box(wrap_model(model, OUTSIDE, rows), rows, model.predict_proba(table), "could not be reproduced")


def test_a_bare_model_without_names_is_given_the_encoding(case):
    x = TableEncoding.of(case.domain).encode(case.rows).numpy()
    model = fitted(perceptron(), x, case.y)
    order = [list(model.classes_).index(name) for name in case.domain.target.classes]
    found = opened(model, case)
    check_white_box(found, case.rows, model.predict_proba(x)[:, order], [8, 4])
    assert "numbers of the domain's encoding" in found.note
    with pytest.raises(ModelError, match="expects 2 inputs"):
        opened(fitted(perceptron(), x[:, :2], case.y), case)


def test_a_pipeline_without_names_is_given_the_columns_in_order(case):
    before = ColumnTransformer([("n", StandardScaler(), [0]), ("w", OneHotEncoder(), [1, 6])])
    x = case.filled.to_numpy()
    model = fitted(make_pipeline(before, perceptron()), x, case.y)
    order = [list(model.classes_).index(name) for name in case.domain.target.classes]
    check_white_box(opened(model, case), case.rows, model.predict_proba(x)[:, order], [8, 4])
    with pytest.raises(ModelError, match="expects 6 columns, but the domain 'table' has 7"):
        opened(fitted(make_pipeline(StandardScaler(), perceptron()), np.eye(300, 6), case.y), case)


def test_the_classes_may_have_other_names(case):
    model = fitted(make_pipeline(columns(), perceptron()), case.x, np.unique(case.y, return_inverse=True)[1])
    found = opened(model, case)
    check_white_box(found, case.rows, model.predict_proba(case.filled), [8, 4])
    assert f"its classes 0, 1, 2 are taken for {', '.join(case.domain.target.classes)} in this order" in found.note
    model = fitted(make_pipeline(columns(), LogisticRegression()), case.x, case.y == "yes")
    assert "its classes False, True are not those of the domain" in opened(model, case).note


def test_a_pickle_is_opened_only_if_trusted(case):
    path = case.folder / "model.pkl"

    class Trap:
        def __reduce__(self):
            return eval, (f"__import__('pathlib').Path({str(case.folder / 'trap')!r}).touch()",)

    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ModelError, match=r"runs any program hidden in it.*--trust-pickle.*skops"):
        wrap_model(path, case.domain, case.rows)
    assert not (case.folder / "trap").exists()
    with pytest.raises(ModelError, match="expected a model with a method predict, got NoneType"):
        wrap_model(path, case.domain, case.rows, trust_pickle=True)


def doubled(x):
    return x * 2


def test_doubtful_types_in_skops_are_named(case):
    before = ColumnTransformer([("own", FunctionTransformer(doubled), ["age"])])
    model = fitted(make_pipeline(before, perceptron()), case.x, case.y)
    path = save(model, case, ".skops")
    with pytest.raises(ModelError, match=re.escape("doubled. If you trust it: --trust-pickle")):
        wrap_model(path, case.domain, case.rows)
    check_white_box(
        wrap_model(path, case.domain, case.rows, trust_pickle=True), case.rows, by_class(model, case), [8, 4]
    )


def test_refusals(case):
    model = fitted(make_pipeline(columns(), perceptron()), case.x.assign(extra=1), case.y)
    with pytest.raises(ModelError, match="reads a column 'extra', which the domain does not have"):
        opened(model, case)
    strict = ColumnTransformer([("w", OneHotEncoder(), ["sex"])])
    model = fitted(make_pipeline(strict, perceptron()), case.x[case.x.sex == "Male"], case.y[case.x.sex == "Male"])
    with pytest.raises(ModelError, match=r"refuses rows of the domain .*unknown categories.*Female"):
        opened(model, case)
    x = TableEncoding.of(case.domain).encode(case.rows).numpy()
    several = fitted(perceptron(), x, np.eye(3, dtype=int)[[0, 1, 2] * 100])
    with pytest.raises(ModelError, match="several targets at once"):
        opened(several, case)
    path = save(model, case, ".skops")
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ModelError, match="cannot be read"):
        wrap_model(path, case.domain, case.rows)


def test_an_estimator_in_a_users_module(case, monkeypatch):
    model = fitted(make_pipeline(columns(), perceptron()), case.x, case.y)
    save(model, case)
    (case.folder / "own_pipeline.py").write_text("import joblib\nmodel = joblib.load('model.joblib')\n")
    monkeypatch.chdir(case.folder)
    monkeypatch.syspath_prepend(case.folder)
    found = wrap_model("own_pipeline:model", case.domain, case.rows)
    check_white_box(found, case.rows, by_class(model, case), [8, 4])


def test_other_versions_are_mentioned(case, monkeypatch):
    model = fitted(make_pipeline(columns(), perceptron()), case.x, case.y)
    path = save(model, case)
    monkeypatch.setattr("sklearn.base.__version__", "99.1")
    found = wrap_model(path, case.domain, case.rows, trust_pickle=True)
    assert "it was saved by scikit-learn" in found.note
    assert torch.is_tensor(found.model.scores(case.rows))


def two_classes(case) -> tuple[TableDomain, np.ndarray]:
    """The domain with two classes, not in the alphabet's order, and labels for them."""
    target = case.domain.target.__class__("loan", ("yes", "no"))
    domain = TableDomain(case.domain.name, case.domain.attributes, ("sex",), target=target)
    return domain, np.where(case.y == "no", "no", "yes")


@pytest.mark.parametrize("where", ["in a pipeline", "around a pipeline", "around a frozen pipeline"])
@pytest.mark.parametrize("method", ["predict_proba", "decision_function"])
def test_a_tuned_threshold_decides_as_the_model_does(method, where, case):
    domain, y = two_classes(case)
    before = make_pipeline(columns(), LogisticRegression() if method == "predict_proba" else LinearSVC())

    def tuned(inner):
        return FixedThresholdClassifier(inner, threshold=0.7, pos_label="yes", response_method=method)

    if where == "in a pipeline":
        model = make_pipeline(before[0], tuned(before[1]))
    else:
        model = tuned(FrozenEstimator(before.fit(case.x, y)) if "frozen" in where else before)
    path = save(model.fit(case.x, y), case)
    chosen = model.predict(case.filled)
    assert (chosen != before.fit(case.x, y).predict(case.filled)).any()
    answers = np.stack([chosen == "yes", chosen == "no"], 1)
    found = wrap_model(path, domain, case.rows, trust_pickle=True)
    check_black_box(found, case.rows, answers, "its method predict is used")
    assert found.decision == Decision()
    scores = getattr(model, method)(case.filled)
    scores = scores[:, ::-1] if method == "predict_proba" else -scores
    chosen_by_user = Decision("threshold", 0.3)  # of the scores, so it is given them
    found = wrap_model(path, domain, case.rows, trust_pickle=True, decision=chosen_by_user)
    check_black_box(found, case.rows, scores, "FixedThresholdClassifier has no neurons")


def test_a_single_score_can_be_decided_by_class(case):
    """As `replay` asks for, even where no row that it is opened with is decided otherwise."""
    domain, y = two_classes(case)
    model = make_pipeline(columns(), LinearSVC()).fit(case.x, y)
    found = wrap_model(save(model, case), domain, case.rows, trust_pickle=True, decision=Decision())
    chosen = model.predict(case.filled)
    check_black_box(found, case.rows, np.stack([chosen == "yes", chosen == "no"], 1), "its method predict is used")


def test_ties_are_decided_as_the_model_itself_does(case):
    """Two equal scores: scikit-learn takes the first of its own classes, which is the last of the domain's."""
    domain, y = two_classes(case)
    for final in (RandomForestClassifier(2, random_state=0), KNeighborsClassifier(4)):
        model = make_pipeline(columns(), final).fit(case.x, y)
        assert (model.predict_proba(case.filled)[:, 0] == 0.5).any()
        found = wrap_model(save(model, case), domain, case.rows, trust_pickle=True)
        decided = np.asarray(domain.target.classes)[found.decision.decide(found.model.scores(case.rows))]
        assert (decided == model.predict(case.filled).astype(str)).all()
        assert "its method predict is used" in found.note


@pytest.mark.parametrize(
    "final", [Ridge(), MLPRegressor(hidden_layer_sizes=(8,), solver="lbfgs", max_iter=30, random_state=0)], ids=str
)
def test_a_regression_has_a_tolerance(final, case):
    pay = 3e4 + 500.0 * case.x.age.to_numpy() + 2e4 * (case.x.sex == "Male").to_numpy()
    model = fitted(make_pipeline(columns(), final), case.x, pay)
    path = save(model, case)
    found = wrap_model(path, case.domain, case.rows, trust_pickle=True)
    assert found.decision.kind == "tolerance"
    assert "a fifth of their robust standard deviation (interquartile range / 1.349)" in found.note
    found = wrap_model(path, case.domain, case.rows, trust_pickle=True, decision=Decision("tolerance", 1e3))
    assert found.decision == Decision("tolerance", 1e3)
    assert found.white_box  # large scores are compared by their size
    scores = found.model.scores(case.rows)[:, 0]
    np.testing.assert_allclose(scores.numpy(), model.predict(case.filled), rtol=1e-4)


def test_scores_that_float32_cannot_reproduce(case):
    """Large numbers that cancel: the preprocessing is ordinary, so it is not blamed."""
    model = fitted(make_pipeline(columns(), perceptron()), case.x, case.y)
    final = model[-1]
    final.intercepts_[0] += 1e5
    final.intercepts_[1] -= 1e5 * final.coefs_[1].sum(0)
    found = opened(model, case)
    check_black_box(found, case.rows, by_class(model, case), "its scores could not be reproduced")
    assert "mixes columns" not in found.note


def skops_file(case, **changes: bytes) -> Path:
    """A perceptron in an archive with other members."""
    path = save(fitted(perceptron(), TableEncoding.of(case.domain).encode(case.rows).numpy(), case.y), case, ".skops")
    files = read_members(path.read_bytes(), path)
    path.write_bytes(zipped(files | {name.replace("_", "."): content for name, content in changes.items()}))
    return path


def test_an_archive_is_limited(case, monkeypatch):
    path = skops_file(case, more_npy=npy((5_000_000,), 8, 40_000_000))
    assert path.stat().st_size < 500_000
    assert wrap_model(path, case.domain, case.rows).white_box
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "30000000")
    with pytest.raises(TooLargeError, match=r"model\.skops"):
        wrap_model(path, case.domain, case.rows)
    path = skops_file(case, schema_json=b" " * 2_000_000)
    with pytest.raises(TooLargeError, match=r"model\.skops"):
        wrap_model(path, case.domain, case.rows)


def test_archives_in_an_archive_are_limited_together(case, monkeypatch):
    inner = zipped({"data.npy": npy((1_000_000,), 8, 8_000_000)})
    path = skops_file(case, **{f"m{i}_npz": inner for i in range(5)})
    assert wrap_model(path, case.domain, case.rows).white_box
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "30000000")
    with pytest.raises(TooLargeError, match=r"model\.skops"):
        wrap_model(path, case.domain, case.rows)


def test_arrays_that_declare_more_than_they_hold_are_refused(case):
    wrong = npy((10**12,), 8, 100)
    for changes in ({"more_npy": wrong}, {"more_npz": zipped({"data.npy": wrong})}):
        with pytest.raises(ModelError, match="is declared"):
            wrap_model(skops_file(case, **changes), case.domain, case.rows)


def test_an_array_that_is_asked_for_many_times_counts_many_times(case, monkeypatch):
    schema = json.dumps({"a": [{"file": "more.npy"}] * 100}).replace("file", "f\\u0069le").encode()
    path = skops_file(case, more_npy=npy((10_000,), 8, 80_000), schema_json=schema)
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "10000000")
    with pytest.raises(TooLargeError, match=r"model\.skops"):
        wrap_model(path, case.domain, case.rows)


def test_a_member_that_is_larger_than_it_says_is_not_unpacked(case, monkeypatch):
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "10000000")
    path = case.folder / "model.skops"
    path.write_bytes(lying_archive("schema.json", b"[" * 100_000_000, said=100))
    with pytest.raises(ModelError, match="cannot be read"):
        wrap_model(path, case.domain, case.rows)


def test_trees_are_not_read_where_they_alone_do_not_decide(case):
    """A step that may be any program, a method that was replaced: a sample of rows would not show what they do."""

    class Scaler(StandardScaler):
        pass

    def trees(*steps):
        forest = RandomForestClassifier(3, max_depth=3, random_state=0)
        return make_pipeline(columns(sparse_output=False), *steps, forest).fit(case.x, case.y)

    def read(model):
        return wrap_model(model, case.domain, case.rows).trees is not None

    assert read(trees())
    assert not read(trees(FunctionTransformer(np.abs)))
    assert not read(trees(Scaler()))
    patched = trees()
    own = patched.predict_proba
    patched.predict_proba = lambda rows: own(rows)
    assert not read(patched)


def test_trees_of_xgboost_with_a_number_for_empty_cells_are_not_read(crowd):
    xgboost = pytest.importorskip("xgboost", reason="the package xgboost is not installed")
    for missing, read in ((float("nan"), True), (999, False)):
        model = xgboost.XGBClassifier(n_estimators=3, missing=missing).fit(crowd.x.numpy(), crowd.labels.numpy())
        assert (wrap_model(model, crowd.domain, crowd.rows).trees is not None) == read
