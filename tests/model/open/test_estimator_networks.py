"""Linear models of scikit-learn: networks without hidden layers that answer as the models do."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestRegressor, StackingClassifier, VotingClassifier
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
    SGDRegressor,
)
from sklearn.model_selection import TunedThresholdClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC

from neuronfair.api import audit
from neuronfair.audits.gate.thresholds import check_thresholds
from neuronfair.audits.settings import AuditSettings
from neuronfair.domain.table import Target
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import ModelError, NeuronFairError
from neuronfair.model.decision import Decision
from neuronfair.model.open import wrap_model
from neuronfair.model.open.frames import table_inputs
from neuronfair.model.profile import interpret
from neuronfair.render.page import render_audit
from neuronfair.searches.methods import check_method, list_able
from tests.conftest import FLIPS
from tests.model.open.conftest import check_black_box, check_white_box

pytest.importorskip("pandas", reason="the package pandas is not installed")

WORDS = ["sex", "relationship", "marital", "race"]


@pytest.fixture
def table(crowd):
    return table_inputs(crowd.domain).of_rows(crowd.rows)


def fitted(final, table, y):
    """A model behind ordinary preprocessing."""
    before = make_column_transformer((OneHotEncoder(), WORDS), remainder=StandardScaler())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some do not end
        return make_pipeline(before, final).fit(table, y)


def answers(model, table) -> np.ndarray:
    kind = next(n for n in ("predict_proba", "decision_function", "predict") if hasattr(model, n))
    return getattr(model, kind)(table)


CLASSIFIERS = [
    (LogisticRegression(), 2),
    (LogisticRegression(), 3),
    (LinearSVC(), 2),
    (LinearSVC(), 3),
    (RidgeClassifier(), 2),
    (LinearDiscriminantAnalysis(), 2),
    (SGDClassifier(loss="log_loss", random_state=0), 2),
    (SGDClassifier(loss="log_loss", random_state=0), 3),
    (SVC(kernel="linear"), 2),
    (SVC(kernel="linear"), 3),
]


@pytest.mark.parametrize(("final", "classes"), CLASSIFIERS, ids=str)
def test_classifiers(final, classes, crowd, table):
    y = np.digitize(crowd.rows[:, 0], [20, 50][: classes - 1])
    model = fitted(final, table, y)
    found = wrap_model(model, replace(crowd.domain, target=None), crowd.rows)
    if isinstance(final, SVC) and classes == 3:  # its scores for three classes are votes
        check_black_box(found, crowd.rows, answers(model, table), "its scores could not be reproduced")
        return
    check_white_box(found, crowd.rows, answers(model, table), [])
    assert "a linear model, a network without hidden layers" in found.note
    assert found.decision == (Decision() if found.model.outputs > 1 else Decision("threshold", 0.0))
    assert (found.decision.decide(found.model.scores(crowd.rows)).numpy() == model.predict(table)).all()


def test_the_score_of_two_classes_follows_the_order_of_the_domain(crowd, table):
    model = fitted(LinearSVC(), table, np.where(crowd.labels == 1, "yes", "no"))
    domain = replace(crowd.domain, target=Target("y", ("yes", "no")), favourable=None)
    found = wrap_model(model, domain, crowd.rows)
    check_white_box(found, crowd.rows, -model.decision_function(table), [])
    assert found.scale == "numbers"  # margins
    chosen = np.array(domain.target.classes)[found.decision.decide(found.model.scores(crowd.rows))]
    assert (chosen == model.predict(table)).all()


@pytest.mark.parametrize("final", [LinearRegression(), Ridge(), SGDRegressor(random_state=0)], ids=str)
def test_regressions(final, crowd, table):
    model = fitted(final, table, crowd.rows[:, 0] * 20.0 + crowd.rows[:, 1])
    found = wrap_model(model, crowd.domain, crowd.rows)
    assert (found.white_box, found.decision.kind) == (True, "tolerance")
    np.testing.assert_allclose(found.model.scores(crowd.rows)[:, 0].numpy(), model.predict(table), rtol=1e-3, atol=0.01)


@pytest.mark.parametrize("final", [PoissonRegressor(), RandomForestRegressor(3, random_state=0)], ids=str)
def test_regressions_that_are_no_lines(final, crowd, table):
    model = fitted(final, table, crowd.rows[:, 0] * 20.0 + 1)
    found = wrap_model(model, crowd.domain, crowd.rows)
    assert (found.white_box, found.decision.kind) == (False, "tolerance")
    np.testing.assert_allclose(found.model.scores(crowd.rows)[:, 0].numpy(), model.predict(table))


@pytest.mark.parametrize("wrap", [
    lambda inner: CalibratedClassifierCV(inner, cv=2),
    lambda inner: VotingClassifier([("a", inner), ("b", inner)], voting="soft"),
    lambda inner: StackingClassifier([("a", inner)], cv=2),
])  # fmt: skip
def test_a_pipeline_in_another_model_is_given_the_table(wrap, crowd, table):
    inner = fitted(LogisticRegression(), table, crowd.labels)
    model = wrap(inner).fit(table, crowd.labels)
    found = wrap_model(model, crowd.domain, crowd.rows)
    check_black_box(found, crowd.rows, model.predict_proba(table), f"{type(model).__name__} has no neurons")


def test_a_tuned_threshold_and_one_of_the_user(crowd, table):
    inner = fitted(LogisticRegression(), table, crowd.labels)
    model = TunedThresholdClassifierCV(inner, cv="prefit", refit=False, scoring="recall").fit(table, crowd.labels)
    assert (model.predict(table) != inner.predict(table)).any()
    found = wrap_model(model, crowd.domain, crowd.rows)
    check_black_box(found, crowd.rows, model.predict(table)[:, None] == model.classes_, "its method predict")
    strict = wrap_model(inner, crowd.domain, crowd.rows, decision=Decision("threshold", 0.3))
    chosen = strict.decision.decide(strict.model.scores(crowd.rows))
    np.testing.assert_array_equal(chosen, inner.predict_proba(table)[:, 1] >= 0.3)


def test_nothing_inside_is_looked_at_and_gradients_are_followed(crowd, table):
    model = fitted(LogisticRegression(), table, crowd.labels)
    found = wrap_model(model, crowd.domain, crowd.rows)
    with pytest.raises(ModelError, match="no hidden layer"):
        interpret(found.model, crowd.domain, crowd.rows)
    with pytest.raises(NeuronFairError, match=r"'neuronfair' follows neurons, and a linear model has none.*frontier"):
        check_method("neuronfair", found.model)
    assert "frontier" in list_able(found.model)
    assert not {"neuronfair-plus", "neuronfair", "neuronfair-printed"} & set(list_able(found.model))
    data = Dataset("people", crowd.domain, crowd.rows, crowd.labels)
    result = audit(model, data, settings=AuditSettings.quick(seeds=5, steps=5, samples=500, **FLIPS))
    (entry,) = result.report.attributes
    assert entry.interpretation is None
    assert [search.method for search in entry.searches] == ["frontier", "aequitas"]
    assert entry.searches[0].findings > 0
    with pytest.raises(NeuronFairError, match="a linear model has no hidden layers"):
        check_thresholds(result.report, ["worst_auc > 0.5"])
    assert "The model is linear and has no hidden layers" in render_audit(result.report)
