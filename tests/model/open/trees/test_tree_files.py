"""LightGBM and CatBoost, in memory, pickled and from their files, compared with themselves."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from torch import Tensor

from neuronfair.domain.schema.infer import infer_domain
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import read_table
from neuronfair.errors import ModelError
from neuronfair.limits import TooLargeError
from neuronfair.model.decision import Decision
from neuronfair.model.open import wrap_model
from neuronfair.model.open.frames import TreeColumns, estimator_inputs
from neuronfair.model.open.opened import OpenRequest
from tests.model.open.conftest import check_black_box

joblib = pytest.importorskip("joblib")
pd = pytest.importorskip("pandas", reason="the package pandas is not installed")
lightgbm = pytest.importorskip("lightgbm", reason="the package lightgbm is not installed")
catboost = pytest.importorskip("catboost", reason="the package catboost is not installed")

CATEGORIES = ["sex", "job title", "grade"]


class Case(NamedTuple):
    domain: TableDomain
    rows: Tensor
    x: Any  # the table as pandas reads it
    classes: np.ndarray
    kinds: np.ndarray  # three of them
    price: np.ndarray


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Case:
    """A table with a blank in a name, empty cells among words and numbers, and categories that are numbers."""
    rng, n = np.random.default_rng(0), 300
    x = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "sex": rng.choice(["F", "M"], n),
            "job title": rng.choice(["cook", "clerk", "smith"], n),
            "grade": rng.integers(1, 6, n),
            "hours": rng.integers(1, 60, n).astype(float),
        }
    )
    x.loc[rng.random(n) < 0.1, "job title"] = None
    x.loc[rng.random(n) < 0.2, "hours"] = np.nan
    score = x.age / 20 + (x.sex == "M") + x.hours.isna() * 2 + (x.grade == 3) + rng.normal(0, 0.2, n)
    path = tmp_path_factory.mktemp("trees") / "table.csv"
    y = np.where(score > 3.4, "yes", "no")
    x.assign(y=y).to_csv(path, index=False)
    domain = infer_domain(path, sensitive=["sex"], target="y", keep_missing=True)
    kinds = np.array(["a", "b", "c"])[np.digitize(score, [2.8, 4])]
    return Case(domain, read_table(path, domain).rows, x, y, kinds, 1e4 * score.to_numpy())


def typed(x) -> Any:
    return x.astype(dict.fromkeys(CATEGORIES, "category"))


def texts(x) -> Any:
    return x.assign(**{name: x[name].astype(object).where(x[name].notna(), "nan").astype(str) for name in CATEGORIES})


def leaves(kind: str = "LGBMClassifier", **options):
    return getattr(lightgbm, kind)(**{"n_estimators": 4, "num_leaves": 8, "verbose": -1, "n_jobs": 1} | options)


def cats(kind: str = "CatBoostClassifier", names=CATEGORIES, **options):
    settings = {"iterations": 4, "depth": 3, "verbose": 0, "allow_writing_files": False, "thread_count": 1}
    return getattr(catboost, kind)(cat_features=names, **settings | options)


def sources(model, path: Path) -> dict[str, Any]:
    """The same model in memory, pickled, and in the file that its framework writes."""
    joblib.dump(model, path.with_suffix(".joblib"))
    own = path.with_suffix(".txt" if hasattr(model, "booster_") else ".cbm")
    (model.booster_ if hasattr(model, "booster_") else model).save_model(own)
    return {"memory": model, "pickle": path.with_suffix(".joblib"), "file": own}


@pytest.mark.parametrize(("make", "given"), [(leaves, typed), (cats, texts)])
def test_two_classes(make, given, case, tmp_path):
    model = make().fit(given(case.x), case.classes)
    answers = model.predict_proba(given(case.x))
    for how, source in sources(model, tmp_path / "model").items():
        found = wrap_model(source, case.domain, case.rows, trust_pickle=how == "pickle")
        one = how == "file" and make is leaves  # its file does not know the classes, so there is one probability
        check_black_box(found, case.rows, answers[:, 1] if one else answers, "boosted trees have no neurons")
        assert found.kind == ("LightGBM" if make is leaves else "CatBoost")
        assert found.decision == (Decision("threshold", 0.5) if one else Decision())
        assert "places" not in found.note
    with pytest.raises(ModelError, match="a pickle, and opening one runs"):
        wrap_model(tmp_path / "model.joblib", case.domain, case.rows)


@pytest.mark.parametrize(("make", "given"), [(leaves, typed), (cats, texts)])
def test_three_classes(make, given, case, tmp_path):
    model = make().fit(given(case.x), case.kinds)
    for source in sources(model, tmp_path / "model").values():
        found = wrap_model(source, case.domain, case.rows, trust_pickle=True)
        check_black_box(found, case.rows, model.predict_proba(given(case.x)), "boosted trees")
        assert found.decision == Decision()


@pytest.mark.parametrize(
    ("make", "given"), [(lambda: leaves("LGBMRegressor"), typed), (lambda: cats("CatBoostRegressor"), texts)]
)
def test_a_regression_gets_a_tolerance_and_says_so(make, given, case, tmp_path):
    model = make().fit(given(case.x), case.price)
    answers = model.predict(given(case.x))
    first, last = np.quantile(answers[np.linspace(0, len(case.rows) - 1, 256).astype(int)], [0.25, 0.75])
    for source in sources(model, tmp_path / "model").values():
        found = wrap_model(source, case.domain, case.rows, trust_pickle=True)
        np.testing.assert_allclose(found.model.scores(case.rows)[:, 0].numpy(), answers, rtol=1e-6)
        assert found.decision.kind == "tolerance"
        assert found.decision.value == pytest.approx(0.2 * (last - first) / 1.349, rel=0.05)  # two digits of it
        assert f"differ by more than {found.decision.value:g}, a fifth of their robust standard deviation" in found.note
        told = wrap_model(source, case.domain, case.rows, trust_pickle=True, decision=Decision("tolerance", 7.0))
        assert told.decision == Decision("tolerance", 7.0)
        assert "a regression" not in told.note


def test_other_ways_to_give_columns_to_lightgbm(case):
    x = case.x
    dummies = pd.get_dummies(x)  # 'job title_cook', which LightGBM writes with '_' for the blank
    ordered = typed(x).assign(grade=pd.Categorical(x.grade, ordered=True))  # which LightGBM reads as a number
    words = typed(x.assign(grade=x.grade.astype(str)))  # numbers as texts
    places = x[["age", "grade"]].assign(sex=(x.sex == "M") * 1)
    for table in (dummies, ordered, words, places):
        model = leaves().fit(table, case.classes)
        found = wrap_model(model, case.domain, case.rows)
        check_black_box(found, case.rows, model.predict_proba(table), "boosted trees")
        assert ("labels become their positions" in found.note) == (table is places)
    booster = leaves().fit(typed(x), case.classes).booster_
    check_black_box(wrap_model(booster, case.domain, case.rows), case.rows, booster.predict(typed(x)), "boosted")
    numbers = x[["age", "grade", "hours"]]
    model = leaves().fit(numbers.to_numpy(), case.classes)
    small = TableDomain("t", tuple(case.domain.attributes[case.domain.column(n)] for n in numbers), ("grade",))
    found = wrap_model(model, small, case.rows[:, [0, 3, 4]])
    check_black_box(found, case.rows[:, [0, 3, 4]], model.predict_proba(numbers.to_numpy()), "in the domain's order")
    with pytest.raises(ModelError, match="expects 3 inputs"):
        wrap_model(model, case.domain, case.rows)


def test_other_ways_to_give_columns_to_catboost(case):
    x = texts(case.x)
    model = cats(names=[1, 2, 3]).fit(x.to_numpy(), case.classes)
    found = wrap_model(model, case.domain, case.rows)
    check_black_box(found, case.rows, model.predict_proba(x.to_numpy()), "in the domain's order")
    pool = catboost.Pool(x, (case.classes == "yes") * 1, cat_features=CATEGORIES)
    settings = {"loss_function": "Logloss", "iterations": 3, "verbose": 0, "allow_writing_files": False}
    model = catboost.CatBoost(settings).fit(pool)
    found = wrap_model(model, case.domain, case.rows)
    check_black_box(found, case.rows, model.predict(x, prediction_type="Probability"), "boosted trees")


def test_columns_and_categories_that_the_domain_does_not_have(case):
    x = typed(case.x)
    model = leaves().fit(x.rename(columns={"sex": "sx"}), case.classes)
    with pytest.raises(ModelError, match=r"reads a column 'sx', which is neither .*Did you mean 'sex'"):
        wrap_model(model, case.domain, case.rows)
    other = case.x.assign(sex=case.x.sex.map({"F": "female", "M": "male"}))
    with pytest.raises(ModelError, match=r"none of the values of 'sex' is a category that the model knows.*female"):
        wrap_model(leaves().fit(typed(other), case.classes), case.domain, case.rows)


def test_an_unfit_file_is_refused_in_one_line(case, tmp_path):
    path = tmp_path / "model.txt"
    text = leaves().fit(typed(case.x), case.classes).booster_.model_to_string()

    def refused(content: str, says: str) -> None:
        path.write_text(content)
        with pytest.raises(ModelError, match=says) as error:
            wrap_model(path, case.domain, case.rows)
        assert "\n" not in str(error.value)

    refused("age,sex\n1,F\n", "not a LightGBM model: it does not begin with the line 'tree'")
    unreadable = "not a readable LightGBM model"
    refused(text[:800], unreadable)
    for name, value in (
        *(("left_child", "0"), ("right_child", "99999"), ("left_child", "-99999"), ("split_feature", "77")),
        *(("num_leaves", "3"), ("cat_boundaries", "0 9"), ("max_feature_idx", "3"), ("num_class", "0")),
    ):
        start = text.index(f"\n{name}=") + len(name) + 2
        end = text.index("\n", start)
        rest = text[start:end].split(" ", 1)[1:] if " " not in value else []
        refused(text[:start] + " ".join([value, *rest]) + text[end:], unreadable)
    known = json.loads(text.partition("pandas_categorical:")[2])
    for wrong in ([["F", "F"], *known[1:]], [[None], *known[1:]], [[], *known[1:]]):
        refused(text.partition("pandas_categorical:")[0] + f"pandas_categorical:{json.dumps(wrong)}\n", unreadable)
    path = tmp_path / "model.cbm"
    refused("tree", "not a CatBoost model: it does not begin with 'CBM1'")
    refused("CBM1" + "x" * 100, "not a readable CatBoost model")


def test_a_model_with_lines_in_its_leaves(case, tmp_path):
    x = case.x[["age", "grade"]]
    model = leaves("LGBMRegressor", linear_tree=True).fit(x, case.price)
    path = sources(model, tmp_path / "model")["file"]
    found = wrap_model(path, case.domain, case.rows)
    np.testing.assert_allclose(found.model.scores(case.rows)[:, 0].numpy(), model.predict(x), rtol=1e-6)
    path.write_text(path.read_text().replace("leaf_features=0", "leaf_features=7", 1))
    with pytest.raises(ModelError, match="not a readable LightGBM model"):
        wrap_model(path, case.domain, case.rows)


def test_trees_of_many_forms_are_read(case, tmp_path):
    x = texts(case.x)
    model = cats(grow_policy="Lossguide").fit(x, case.classes)
    found = wrap_model(sources(model, tmp_path / "model")["file"], case.domain, case.rows)
    check_black_box(found, case.rows, model.predict_proba(x), "boosted trees")


def test_a_file_that_is_too_large_is_refused(case, tmp_path, monkeypatch):
    paths = [sources(leaves().fit(typed(case.x), case.classes), tmp_path / "model")["file"]]
    paths += [sources(cats().fit(texts(case.x), case.classes), tmp_path / "model")["file"]]
    for path in paths:
        monkeypatch.setenv("NEURONFAIR_MAX_BYTES", str(path.stat().st_size - 1))
        with pytest.raises(TooLargeError, match=path.name):
            wrap_model(path, case.domain, case.rows)


@pytest.mark.parametrize(("package", "suffix"), [("lightgbm", ".txt"), ("catboost", ".cbm")])
def test_a_package_that_is_not_installed_is_named(package, suffix, case, tmp_path, monkeypatch):
    (tmp_path / f"model{suffix}").write_text("tree\n")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModelError, match=rf"needs the package '{package}'.*pip install 'neuronfair\[{package}\]'"):
        wrap_model(tmp_path / f"model{suffix}", case.domain, case.rows)


def test_a_booster_of_xgboost_in_memory(case):
    xgboost = pytest.importorskip("xgboost", reason="the package xgboost is not installed")
    x = typed(case.x)
    model = xgboost.XGBClassifier(n_estimators=3, enable_categorical=True, n_jobs=1).fit(x, (case.classes == "yes") * 1)
    found = wrap_model(model.get_booster(), case.domain, case.rows)
    check_black_box(found, case.rows, model.predict_proba(x)[:, 1], "boosted trees")
    assert (found.kind, found.decision) == ("XGBoost", Decision("threshold", 0.5))


def test_empty_cells_reach_the_trees(case):
    """The median in their place would be another person."""
    x = typed(case.x)
    model = leaves().fit(x, case.classes)
    empty = case.rows[:, 4] == case.domain.attributes[4].empty
    assert (empty.numpy() == case.x.hours.isna()).all()
    answers = wrap_model(model, case.domain, case.rows).model.scores(case.rows).numpy()
    filled = model.predict_proba(x.assign(hours=x.hours.fillna(x.hours.median())))
    assert np.abs(answers - filled)[empty].max() > 0.1


def test_trees_without_names_are_given_what_the_domain_declares(crowd):
    names = tuple(f"Column_{place}" for place in range(crowd.x.shape[1]))
    columns = TreeColumns(names, {}, has_names=False)
    (inputs,) = estimator_inputs(OpenRequest("trees", crowd.domain, crowd.rows), None, bare=True, trees=columns)
    assert inputs.of_numbers is not None
    np.testing.assert_array_equal(inputs.of_rows(crowd.rows), crowd.x)


def test_a_damaged_catboost_file_ends_in_one_clear_line(case, tmp_path):
    """CatBoost keeps what it cannot write again as text, such as a version that is not UTF-8."""
    content = bytes(cats(one_hot_max_size=9).fit(texts(case.x), case.classes)._serialize_model())
    path, draws, said = tmp_path / "model.cbm", np.random.default_rng(0), []
    for _ in range(40):
        damaged = bytearray(content)
        for place in draws.integers(4, len(content), 3):
            damaged[place] = draws.integers(128, 256)
        path.write_bytes(damaged)
        try:
            wrap_model(path, case.domain, case.rows).trees()
        except ModelError as error:
            said.append(str(error))
    assert any("CatBoost cannot write its trees, so it is damaged" in line for line in said)
    assert any("not a readable CatBoost model" in line for line in said)
    assert not any("\n" in line for line in said)


@pytest.mark.filterwarnings("ignore:The argument 'eval_set' is deprecated")
def test_after_early_stopping_the_best_rounds_count(case, tmp_path):
    """LightGBM writes and asks the best rounds only, and CatBoost cuts the others off."""
    rng = np.random.default_rng(1)
    y = np.where(rng.random(len(case.classes)) < 0.3, "no", case.classes)
    x = typed(case.x)
    model = leaves(n_estimators=80, num_leaves=31, min_child_samples=3)
    model.fit(x[:150], y[:150], eval_set=[(x[150:], y[150:])], callbacks=[lightgbm.early_stopping(5, verbose=False)])
    assert 0 < model.best_iteration_ < 80
    other = cats(iterations=80, depth=6, one_hot_max_size=9, learning_rate=0.5)
    words = texts(case.x)
    other.fit(words[:150], y[:150], eval_set=(words[150:], y[150:]), early_stopping_rounds=5)
    assert other.tree_count_ == other.best_iteration_ + 1 < 80
    for made, table in ((model, x), (other, words)):
        answers = made.predict_proba(table)
        for how, source in sources(made, tmp_path / "model").items():
            found = wrap_model(source, case.domain, case.rows, trust_pickle=how == "pickle")
            one = how == "file" and made is model
            check_black_box(found, case.rows, answers[:, 1] if one else answers, "boosted trees")
            trees = found.trees().scores(case.rows).numpy()
            np.testing.assert_allclose(trees[:, -1], answers[:, 1], atol=1e-6)
    settings = {"objective": "binary", "verbose": -1, "num_threads": 1, "min_data_in_leaf": 3}
    train = lightgbm.Dataset(x[:150], y[:150] == "yes")
    valid = train.create_valid(x[150:], label=y[150:] == "yes")
    stop = [lightgbm.early_stopping(5, verbose=False)]
    booster = lightgbm.train(settings, train, 80, valid_sets=[valid], callbacks=stop, keep_training_booster=True)
    assert 0 < booster.best_iteration < booster.current_iteration()
    booster.save_model(tmp_path / "all.txt")
    for source in (booster, tmp_path / "all.txt"):
        found = wrap_model(source, case.domain, case.rows)
        check_black_box(found, case.rows, booster.predict(x), "boosted trees")
        np.testing.assert_allclose(found.trees().scores(case.rows)[:, 0].numpy(), booster.predict(x), atol=1e-6)
