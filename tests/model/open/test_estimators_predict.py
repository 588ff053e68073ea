"""Models as users have them: whatever answers a table is asked with the table as it came."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from neuronfair.audits.inputs import ModelSource, read_input
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import ModelError
from neuronfair.model.open import OpenedModel, wrap_model

pd = pytest.importorskip("pandas", reason="the package pandas is not installed")
pytest.importorskip("sklearn", reason="the package scikit-learn is not installed")

from sklearn.base import BaseEstimator, TransformerMixin  # noqa: E402
from sklearn.compose import make_column_transformer  # noqa: E402
from sklearn.ensemble import IsolationForest  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.pipeline import Pipeline, make_pipeline  # noqa: E402
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler  # noqa: E402


def read(table, *, model=None, columns=None, **how):
    """Read a table for a model."""
    return read_input(table, ModelSource(model, columns=columns), **how)


@pytest.fixture(scope="module")
def people():
    draws = np.random.default_rng(1)
    table = pd.DataFrame(
        {
            "age": draws.integers(18, 80, 300),
            "income": draws.integers(10, 90, 300),
            "sex": draws.choice(["f", "m"], 300),
            "job": draws.choice(["cook", "smith", "nurse"], 300),
        }
    )
    score = (table.age - 50) / 15 + (table.income - 50) / 20 + 1.2 * (table.sex == "m")
    return table.assign(hired=np.where(score + draws.logistic(size=300) > 0.6, "yes", "no"))


@pytest.fixture(scope="module")
def numbers(people):
    return people.assign(sex=(people.sex == "m") * 1, job=people.job.map({"cook": 0, "smith": 1, "nurse": 2}))


def inputs(table):
    return table.drop(columns=table.columns[-1])


def prepared():
    return make_column_transformer((StandardScaler(), ["age", "income"]), (OneHotEncoder(), ["sex", "job"]))


def opened(model, table, sensitive="sex", **how) -> tuple[OpenedModel, Dataset]:
    """Open a model as an audit does."""
    data = read(table, model=model, sensitive=sensitive, target=table.columns[-1], **how).data
    return wrap_model(model, data.domain, data), data


def flips(decide, table, column="sex") -> float:
    """The share of rows that get a different decision with another value, by the original model on original cells."""
    here, other = np.asarray(decide(table)), np.zeros(len(table), dtype=bool)
    for value in table[column].unique():
        changed = table.copy()
        changed[column] = pd.Series([value] * len(table)).astype(table[column].dtype)
        other |= np.asarray(decide(changed)) != here
    return other.mean()


def measured(found: OpenedModel, data: Dataset) -> float:
    twins, valid = data.domain.twins(data.rows)
    family = torch.stack([found.model.scores(part) for part in (data.rows, *twins.unbind(1))], 1)
    return found.decision.splits(family, valid).double().mean().item()


class Oversampled(Pipeline):
    """As a pipeline of imbalanced-learn: its samplers are left out of a prediction."""

    def predict_proba(self, x):
        for _, step in self.steps[:-1]:
            x = x if hasattr(step, "fit_resample") else step.transform(x)
        return self.steps[-1][1].predict_proba(x)

    def predict(self, x):
        return self.classes_[self.predict_proba(x).argmax(1)]


class Sampler(BaseEstimator):
    def fit_resample(self, x, y):
        return x, y


def test_a_pipeline_with_a_sampler_is_read_without_it(people):
    first, last = prepared(), LogisticRegression()
    last.fit(first.fit_transform(inputs(people)), people.hired)
    model = Oversampled([("first", first), ("sampler", Sampler()), ("last", last)])
    found, data = opened(model, people)
    assert found.white_box
    assert measured(found, data) == flips(model.predict, inputs(people)) > 0


def test_a_first_step_that_reads_columns_by_name_is_given_a_table(people):
    """A lambda cannot be pickled, so the model is known by its answers."""
    dummies = FunctionTransformer(lambda table: table.assign(sex=(table.sex == "m") * 1.0, job=0.0))
    model = make_pipeline(dummies, StandardScaler(), LogisticRegression()).fit(inputs(people), people.hired)
    found, data = opened(model, people)
    assert measured(found, data) == flips(model.predict, inputs(people)) > 0
    assert not found.by_position
    assert len(found.fingerprint) == 64
    assert opened(model, people)[0].fingerprint == found.fingerprint


class Years(BaseEstimator, TransformerMixin):
    def fit(self, table, labels=None):
        return self

    def transform(self, table):
        return np.c_[table["born"].dt.year, table["income"], table["sex"] == "m"].astype(float)


def test_dates_are_dates_for_a_model_that_was_trained_with_them(people, tmp_path):
    born = pd.to_datetime("2020-01-01") - pd.to_timedelta(people.age * 365, unit="D")
    table = people.assign(born=born)[["born", "income", "sex", "hired"]]
    model = make_pipeline(Years(), StandardScaler(), LogisticRegression()).fit(inputs(table), table.hired)
    found, data = opened(model, table)
    assert measured(found, data) == flips(model.predict, inputs(table)) > 0
    table.to_csv(tmp_path / "people.csv", index=False)  # where dates are texts
    data = read(tmp_path / "people.csv", model=model, sensitive="sex", target="hired").data
    again = wrap_model(model, data.domain, data)
    assert measured(again, data) == measured(found, data)
    assert again.white_box


class Arrays:
    """As TabNet: it takes arrays only, and cannot be pickled."""

    def __init__(self, model):
        self.model, self.classes_, self.lock = model, model.classes_, threading.Lock()

    def predict_proba(self, x):
        if not isinstance(x, np.ndarray):
            raise TypeError("expected an array")
        return self.model.predict_proba(x)

    def predict(self, x):
        return self.model.predict(x)


def test_a_model_of_arrays_is_given_the_cells_in_the_order_of_the_table(numbers):
    plain = LogisticRegression(max_iter=1000).fit(inputs(numbers).to_numpy(), numbers.hired)
    expected = flips(lambda table: plain.predict(table.to_numpy()), inputs(numbers))
    for model in (plain, Arrays(plain), plain.predict_proba):
        found, data = opened(model, numbers)
        assert measured(found, data) == expected > 0
        assert found.by_position
        assert "columns are matched by position, in the order of the table: age, income, sex, job" in found.note


def test_columns_may_be_called_by_numbers(numbers):
    table = numbers.set_axis(range(5), axis=1)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(inputs(table), table[4])
    by_name = SimpleNamespace(predict=lambda x: np.where(x[0] / 30 + x[2] > 2.2, "yes", "no"))
    for each in (model, by_name):
        found, data = opened(each, table, 2)
        assert measured(found, data) == flips(each.predict, inputs(table), 2) > 0
    assert not found.by_position


def rule(*names):
    """A class that has predict only, and answers with these labels."""

    def predict(table):
        return np.array(names)[((table["age"] > 45) | ((table["age"] > 30) & (table["sex"] == "m"))).astype(int)]

    return SimpleNamespace(predict=predict)


@pytest.mark.parametrize(
    "names", [("no", "yes"), (0, 1), (False, True), (-1, 1), (1, 2), ("reject", "accept")], ids=str
)
def test_labels_are_decisions(names, people):
    model = rule(*names)
    for each in (model, model.predict, lambda table: list(model.predict(table))):
        found, data = opened(each, people)
        assert measured(found, data) == flips(model.predict, inputs(people)) > 0
        assert not found.by_position
        own = names in (("no", "yes"), (0, 1), (False, True))
        assert bool(found.unassessed) is not own  # else accept would be taken for no


def test_labels_are_matched_to_the_classes_by_name(people):
    table = people.assign(hired=np.where(people.hired == "yes", 1, 2))
    found, data = opened(rule(2, 1), table)
    assert data.domain.target.classes == ("1", "2")
    decided = found.decision.decide(found.model.scores(data.rows)) + 1
    assert decided.tolist() == rule(2, 1).predict(table).tolist()
    late = found.scores_of_frame(people.assign(age=19))
    assert late[:, 1].all()


def test_an_answer_that_is_no_class_is_refused_or_counts_as_another(people):
    strange = SimpleNamespace(predict=lambda table: np.where(table.age > 200, "?", "yes"))
    found, _ = opened(strange, people)
    with pytest.raises(ModelError, match=r"returns '\?', which is none of no, yes"):
        found.scores_of_frame(people.assign(age=300))
    other = SimpleNamespace(predict=lambda table: np.where(table.age > 200, "?", np.where(table.age > 50, "a", "b")))
    found, _ = opened(other, people)
    assert found.scores_of_frame(people.assign(age=300)).argmax(1).tolist() == [2] * 300


def test_an_outlier_detector_is_not_compared_with_labels(numbers):
    model = IsolationForest(n_estimators=10, random_state=0).fit(inputs(numbers))
    found, data = opened(model, numbers)
    assert measured(found, data) == flips(model.predict, inputs(numbers))
    assert found.unassessed == "it detects outliers and was fitted without labels"


class ByGroup:
    """As Fairlearn's ThresholdOptimizer: a threshold for each group, and decisions that are drawn at random."""

    def __init__(self, model):
        self.estimator_ = model

    def predict(self, x, *, sensitive_features, random_state=None):
        share = self._pmf_predict(x, sensitive_features=sensitive_features)[:, 1]
        return (np.random.default_rng(random_state).random(len(x)) < share).astype(int)

    def _pmf_predict(self, x, *, sensitive_features):
        share = self.estimator_.predict_proba(x)[:, 1] * np.where(np.asarray(sensitive_features) == "m", 0.6, 1.0)
        return np.c_[1 - share, share]


ByGroup.__name__ = "ThresholdOptimizer"


def test_a_model_that_is_given_the_groups_apart_is_compared_by_the_probability_of_its_decisions(people):
    x = people[["age", "income"]]
    model = ByGroup(LogisticRegression().fit(x, people.hired == "yes"))
    found, data = opened(model, people.assign(hired=(people.hired == "yes") * 1, id=range(300))[[*people, "hired"][:5]])

    def decide(table):
        return model._pmf_predict(table[["age", "income"]], sensitive_features=table.sex)[:, 1] >= 0.5

    assert measured(found, data) == flips(decide, inputs(people)) > 0
    assert data.domain.names == ("age", "income", "sex")
    assert "it gets sex as sensitive_features" in found.note


def test_a_column_of_ones_is_added_for_models_of_statsmodels(numbers):
    weights = np.array([-4.0, 0.04, 0.03, 0.8, 0.0])
    model = SimpleNamespace(
        model=SimpleNamespace(exog_names=["const", "age", "income", "sex", "job"]),
        predict=lambda x: 1 / (1 + np.exp(-np.asarray(x, dtype=float) @ weights)),
    )
    found, data = opened(model, numbers.assign(id=range(300))[["id", *numbers]])
    expected = flips(lambda x: model.predict(np.c_[np.ones(300), x]) >= 0.5, inputs(numbers))
    assert measured(found, data) == expected > 0
    assert not found.by_position


def test_a_model_that_refuses_every_way_says_both_reasons(people):
    class Refusing:
        def predict(self, table):
            raise RuntimeError("licence expired")

    with pytest.raises(ModelError, match=r"Refusing: it refuses rows of the domain .RuntimeError: licence expired"):
        opened(Refusing(), people)


def test_a_function_that_answers_nothing_is_refused_in_one_line(people):
    with pytest.raises(ModelError, match="expected one score or label for each row, got NoneType"):
        opened(lambda table: None, people)


def test_a_threshold_that_no_tried_row_shows_decides():
    from sklearn.model_selection import FixedThresholdClassifier
    from sklearn.tree import DecisionTreeClassifier

    table = pd.DataFrame({"age": [20, 30, 40, 50] * 9, "sex": [0, 1, 1] * 12})
    labels = np.where(table.age > 35, "yes", "no")
    tree = DecisionTreeClassifier(max_depth=1).fit(table, labels)
    model = FixedThresholdClassifier(tree, threshold=0.499999, pos_label="yes").fit(table, labels)
    found = read(table.assign(hired=labels), model=model, sensitive="sex", target="hired")
    opened = ModelSource(model).open(found.data)
    assert "its method predict is used" in opened.note
    assert {*opened.model.scores(found.data.rows).flatten().tolist()} == {0.0, 1.0}


def test_the_threshold_of_catboost_decides_however_near_to_one_half():
    catboost = pytest.importorskip("catboost")
    table = pd.DataFrame({"age": [20, 30, 40, 50] * 9, "sex": [0, 1, 1] * 12})
    labels = np.where(table.age > 35, "yes", "no")
    model = catboost.CatBoostClassifier(iterations=2, depth=2, verbose=0, allow_writing_files=False).fit(table, labels)
    found = read(table.assign(hired=labels), model=model, sensitive="sex", target="hired")
    assert "its method predict is used" not in ModelSource(model).open(found.data).note
    model.set_probability_threshold(0.499999)
    assert "its method predict is used" in ModelSource(model).open(found.data).note
