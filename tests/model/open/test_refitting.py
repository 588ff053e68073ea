"""Estimators, fitted anew in their own framework."""

from __future__ import annotations

import numpy as np
import pytest

from neuronfair.errors import ModelError
from neuronfair.model.open import wrap_model

pytest.importorskip("pandas")
linear_model = pytest.importorskip("sklearn.linear_model")


class Needy(linear_model.LogisticRegression):
    """It is given more than rows and labels where it was trained."""

    def fit(self, x, y, weight=None):
        if weight is None:
            raise ValueError("weights are missing")
        return super().fit(x, y)


def trees(name: str):
    package, kind = name.split(":")
    return getattr(pytest.importorskip(package, reason=f"the package {package} is not installed"), kind)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sklearn.linear_model:LogisticRegression", {}),
        ("sklearn.ensemble:HistGradientBoostingClassifier", {"max_iter": 5}),
        ("sklearn.linear_model:SGDClassifier", {}),  # draws from numpy's common random state
        ("xgboost:XGBClassifier", {"n_estimators": 3, "n_jobs": 1}),
        ("lightgbm:LGBMClassifier", {"n_estimators": 3, "n_jobs": 1, "verbose": -1}),
        ("catboost:CatBoostClassifier", {"iterations": 3, "thread_count": 1, "allow_writing_files": False}),
    ],
)
def test_the_same_settings_learn_other_labels(name, options, crowd, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    classes = np.array([0, 1]) if "xgb" in name else np.array(["no", "yes"])
    model = trees(name)(**options).fit(crowd.x.numpy(), classes[crowd.labels.numpy()])
    opened = wrap_model(model, crowd.domain, crowd.rows)
    capsys.readouterr()
    state = np.random.get_state()[1].tolist()
    same, turned = (opened.refit(crowd.rows, labels, 1) for labels in (crowd.labels, 1 - crowd.labels))
    assert np.random.get_state()[1].tolist() == state
    assert capsys.readouterr().out == ""
    right = [
        float((opened.decision.chosen(one.model.scores(crowd.rows)) == crowd.labels).double().mean())
        for one in (same, turned)
    ]
    assert right[0] > 0.5 > right[1]
    again = opened.refit(crowd.rows, crowd.labels, 1)
    assert (again.model.scores(crowd.rows) == same.model.scores(crowd.rows)).all()
    assert list(tmp_path.iterdir()) == []


def test_an_estimator_that_needs_more_than_rows_and_labels(crowd):
    model = Needy().fit(crowd.x.numpy(), crowd.labels.numpy(), 1)
    opened = wrap_model(model, crowd.domain, crowd.rows)
    with pytest.raises(ModelError, match=r"Needy cannot be fitted again .*weights are missing.* --augment"):
        opened.refit(crowd.rows, crowd.labels, 0)


def test_a_regression_is_not_refitted(crowd):
    model = linear_model.LinearRegression().fit(crowd.x.numpy(), crowd.labels.numpy())
    assert wrap_model(model, crowd.domain, crowd.rows).refit is None
