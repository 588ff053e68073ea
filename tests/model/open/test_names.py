"""What models of every kind say of the columns that they read."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError
from neuronfair.model.open import feature_names, wrap_model
from neuronfair.model.open.graphs.keras_layers import ignore_numpy_warning
from neuronfair.model.open.names import list_input_names, list_selected_columns, list_single_columns, match_columns

os.environ.setdefault("KERAS_BACKEND", "torch")  # read once, when Keras is imported
pandas = pytest.importorskip("pandas", reason="the package pandas is not installed")

from sklearn.calibration import CalibratedClassifierCV  # noqa: E402
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_transformer  # noqa: E402
from sklearn.ensemble import StackingClassifier, VotingClassifier  # noqa: E402
from sklearn.linear_model import LinearRegression, LogisticRegression  # noqa: E402
from sklearn.model_selection import FixedThresholdClassifier, GridSearchCV  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

NAMES = ["id", "age", "hours", "height"]
DICE = np.random.default_rng(0)
X = pandas.DataFrame(DICE.normal(size=(40, 4)), columns=NAMES)
Y = (X["age"] > 0).astype(int)


def columns_of(model, known, *, trust_pickle=False):
    return match_columns(model, feature_names(model, trust_pickle=trust_pickle), known)


def dropping(final=None):
    """A pipeline that is fitted to four columns and reads two of them."""
    chosen = make_column_transformer((StandardScaler(), ["hours"]), ("passthrough", [1]), ("drop", ["id"]))
    return make_pipeline(chosen, final or LogisticRegression())


@pytest.mark.parametrize(
    "model",
    [
        dropping(),
        make_pipeline("passthrough", dropping()),
        GridSearchCV(dropping(), {}, cv=2),
        CalibratedClassifierCV(dropping(), cv=2),
        FixedThresholdClassifier(dropping()),
        TransformedTargetRegressor(dropping(LinearRegression())),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_pipeline_reads_what_its_first_step_does_not_drop(model):
    assert columns_of(model.fit(X, Y), [*NAMES, "target"]) == ("age", "hours")


def test_several_models_read_what_one_of_them_reads():
    tall = make_pipeline(make_column_transformer((StandardScaler(), ["height", "hours"])), LogisticRegression())
    both, bare = [("a", dropping()), ("b", tall)], [("a", dropping()), ("b", LogisticRegression())]
    assert set(list_input_names(VotingClassifier(both).fit(X, Y))) == {"age", "hours", "height"}
    assert set(list_input_names(StackingClassifier(both, cv=2).fit(X, Y))) == {"age", "hours", "height"}
    assert list_input_names(VotingClassifier(bare).fit(X, Y)) == NAMES
    assert list_input_names(StackingClassifier(both, cv=2, passthrough=True).fit(X, Y)) == NAMES


def test_several_models_are_given_what_each_of_them_reads():
    attributes = tuple(Attribute(name, "continuous", low=-5, high=5, step=0.5) for name in NAMES[1:])
    domain = TableDomain("d", attributes, ("age",))
    rows = domain.sample(40, torch.Generator().manual_seed(0))
    table = pandas.DataFrame(rows.numpy() / 2 - 5, columns=NAMES[1:])
    parts = [make_pipeline(make_column_transformer((StandardScaler(), [name])), LogisticRegression()) for name in table]
    model = VotingClassifier([*zip("abc", parts, strict=True)], voting="soft").fit(
        table, table["height"] > table["age"]
    )
    found = wrap_model(model, domain, rows)
    np.testing.assert_allclose(found.model.scores(rows), model.predict_proba(table), atol=1e-6)


def test_columns_may_be_chosen_in_any_way():
    assert list_selected_columns(NAMES, "age") == ["age"]
    assert (
        list_selected_columns(NAMES, [0, 3])
        == list_selected_columns(NAMES, np.array([True, False, False, True]))
        == ["id", "height"]
    )
    assert (
        list_selected_columns(NAMES, slice(2, None))
        == list_selected_columns(NAMES, slice("hours", "height"))
        == ["hours", "height"]
    )
    assert list_selected_columns(NAMES, slice(None, "age")) == ["id", "age"]
    rest = ColumnTransformer([("words", "drop", ["id"])], remainder="passthrough").fit(X)
    assert list_input_names(rest) == NAMES[1:]
    assert list_input_names(ColumnTransformer([("all", "passthrough", [0])]).fit(X.to_numpy())) is None


def test_flags_of_single_values_and_blanks_count_for_their_column():
    model = SimpleNamespace(feature_name_=["capital_gain", "sex_Male", "marital_status_never", "age"])
    known = ["age", "sex", "marital", "marital_status", "capital gain", "id"]
    assert columns_of(model, known) == ("capital gain", "sex", "marital_status", "age")


@pytest.mark.parametrize(
    "names", [None, [], ["Column_0", "Column_1"], ["0", "1", "2"], ["other", "names"], [1, 2]], ids=str
)
def test_models_that_do_not_say(names):
    assert columns_of(SimpleNamespace(feature_names_=names), ["0", "age"]) is None


def test_networks_functions_and_what_is_not_fitted_do_not_say():
    class Unfitted:
        @property
        def feature_names_(self) -> list[str]:
            raise RuntimeError("not fitted")

    for model in (nn.Linear(2, 2), len, Unfitted(), LogisticRegression().fit(X.to_numpy(), Y)):
        assert columns_of(model, NAMES) is None


def test_a_column_that_is_missing_is_named():
    with pytest.raises(ModelError, match=r"LogisticRegression: reads a column 'hours', which the table does not have"):
        columns_of(LogisticRegression().fit(X, Y), ["id", "age", "height", "houses"])


def test_graphs_have_names_if_each_input_is_a_column():
    assert list_single_columns([("age", [1]), ("job", []), ("sex", [None])]) == ["age", "job", "sex"]
    assert list_single_columns([("numbers", [12]), ("job", [1])]) is None
    assert list_single_columns([("numbers", [1])]) is None
    assert list_single_columns([("pixels", [1, 1]), ("job", [1])]) is None


def test_keras(tmp_path):
    keras = pytest.importorskip("keras", reason="the package keras is not installed")
    inputs = [keras.Input((1,), name=name) for name in ("age", "hours")]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(inputs)))
    with ignore_numpy_warning():
        model.save(tmp_path / "model.keras")
    for source in (model, tmp_path / "model.keras"):
        assert columns_of(source, NAMES) == ("age", "hours")
    assert columns_of(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), NAMES) is None


def test_onnx(tmp_path):
    onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
    make, number = onnx.helper, onnx.TensorProto.FLOAT
    inputs = [make.make_tensor_value_info(name, number, [None, 1]) for name in ("age", "hours")]
    output = make.make_tensor_value_info("score", number, [None, 1])
    graph = make.make_graph([make.make_node("Add", ["age", "hours"], ["score"])], "sum", inputs, [output])
    onnx.save(make.make_model(graph), tmp_path / "model.onnx")
    assert columns_of(tmp_path / "model.onnx", NAMES) == ("age", "hours")


def test_xgboost(tmp_path):
    xgboost = pytest.importorskip("xgboost", reason="the package xgboost is not installed")
    model = xgboost.XGBClassifier(n_estimators=1, n_jobs=1).fit(X[["age", "hours"]], Y)
    model.save_model(tmp_path / "model.ubj")
    for source in (model, model.get_booster(), tmp_path / "model.ubj"):
        assert columns_of(source, NAMES) == ("age", "hours")
    assert columns_of(xgboost.XGBClassifier(n_estimators=1, n_jobs=1).fit(X.to_numpy(), Y), NAMES) is None


def test_lightgbm():
    lightgbm = pytest.importorskip("lightgbm", reason="the package lightgbm is not installed")
    table = X.rename(columns={"hours": "working hours"})
    model = lightgbm.LGBMClassifier(n_estimators=1, verbose=-1, n_jobs=1).fit(table[["working hours", "age"]], Y)
    for source in (model, model.booster_):
        assert columns_of(source, list(table)) == ("working hours", "age")
    assert columns_of(lightgbm.LGBMClassifier(n_estimators=1, verbose=-1).fit(X.to_numpy(), Y), NAMES) is None


def test_files_and_code(tmp_path, monkeypatch):
    skops = pytest.importorskip("skops.io", reason="the package skops is not installed")
    joblib = pytest.importorskip("joblib", reason="the package joblib is not installed")
    model = LogisticRegression().fit(X, Y)
    skops.dump(model, tmp_path / "model.skops")
    joblib.dump(model, tmp_path / "model.joblib")
    assert columns_of(tmp_path / "model.skops", NAMES) == tuple(NAMES)
    assert columns_of(str(tmp_path / "model.joblib"), NAMES, trust_pickle=True) == tuple(NAMES)
    with pytest.raises(ModelError, match="a pickle, and opening one runs any program"):
        columns_of(tmp_path / "model.joblib", NAMES)
    (tmp_path / "theirs.py").write_text(
        "class Model:\n    feature_names_in_ = ['age']\n\n\nmodel = Model()\n\n\ndef make():\n    raise RuntimeError\n"
    )
    monkeypatch.chdir(tmp_path)
    assert columns_of("theirs:model", NAMES) == ("age",)
    assert columns_of("theirs:make", NAMES) is columns_of("theirs:Model", NAMES) is None  # nothing is made
    (tmp_path / "model.safetensors").touch()
    assert columns_of("model.safetensors", NAMES) is None  # a reader without names, which is not called
