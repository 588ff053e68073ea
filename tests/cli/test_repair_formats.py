"""`neuronfair repair` gives every model back in the format it came in, or the pairs to train it with."""

from __future__ import annotations

import csv
import json
import os
import pickle
import shutil
import sys
import warnings
from pathlib import Path

import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file, save_file

from neuronfair.domain.schema.toml import read_domain
from neuronfair.domain.tables.dataset import read_table
from neuronfair.model.decision import Decision
from neuronfair.model.open import wrap_model
from neuronfair.model.open.graphs import onnx_file
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.repairs import evaluate, labels, retrain
from neuronfair.repairs.evaluate import accuracy_of
from neuronfair.store.run import Run
from tests.cli.test_repair import call
from tests.cli.test_search import trained_table

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
OWN = """
from torch import nn
def make():
    return nn.Sequential(nn.Linear({}, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1), nn.Sigmoid())
"""
RUN = ("repair", "run", "--data", "table.csv")
SHORT = ("--share", 1, "--repeats", 1, "--max-loss", 1, "--label", "twins")
TRUST = "--trust-pickle"


def fitted(last):
    """A pipeline of scikit-learn that has learned the table."""
    pandas = pytest.importorskip("pandas")
    compose = pytest.importorskip("sklearn.compose")
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    table = pandas.read_csv("table.csv")
    first = compose.make_column_transformer((OneHotEncoder(), ["sex", "race", "job"]), (StandardScaler(), ["age"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a perceptron that has not converged
        return make_pipeline(first, last).fit(table.drop(columns="income"), table.income)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a table in which sex counts, a network that has learned it, and what a search of it found."""
    path = trained_table(tmp_path_factory.mktemp("table"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        words = ("search", "table.csv", "--domain", "table.toml", "--no-controls", "-q", "--starts", 20, "--steps", 10)
        call(patch, *words, "--model", "model.safetensors", "--out", "run")
    return path


@pytest.fixture(autouse=True)
def copies(folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for name, less in (("SEEDS", 8), ("STEPS", 4), ("SAMPLES", 2000), ("DRAWS", 10)):
        monkeypatch.setattr(evaluate, name, less)
    monkeypatch.setattr(labels, "QUICK", TrainingSettings(epochs=3, batch=64))
    monkeypatch.setattr(retrain, "SAMPLES", 1000)
    yield
    sys.modules.pop("own_module", None)


def table():
    return read_table("table.csv", read_domain(Path("table.toml")))


def layers() -> list[tuple]:
    """The weights of the network, (inputs, outputs), and its biases."""
    state = load_file("model.safetensors")
    names = sorted({name.rpartition(".")[0] for name in state})
    return [(state[f"{name}.weight"].T.numpy(), state[f"{name}.bias"].numpy()) for name in names]


def estimator(path: str) -> None:
    from sklearn.neural_network import MLPClassifier

    model = fitted(MLPClassifier((8,), max_iter=60, learning_rate_init=0.02, random_state=0))
    pytest.importorskip("skops.io").dump(model, path)


def forest(path: str) -> None:
    from sklearn.ensemble import RandomForestClassifier

    model = fitted(RandomForestClassifier(7, max_depth=4))  # without a random_state
    if path.endswith(".pkl"):
        Path(path).write_bytes(pickle.dumps(model))
    else:
        pytest.importorskip("joblib").dump(model, path)


def graph(path: str) -> None:
    """The same network in ONNX, as shares, behind a shift and back that no training may touch."""
    onnx = pytest.importorskip("onnx")
    node, stored, last = onnx.helper.make_node, [("mean", layers()[0][0][:, 0])], "x"
    nodes = [node("Sub", ["x", "mean"], ["centred"]), node("Add", ["centred", "mean2"], ["h0"])]
    stored.append(("mean2", layers()[0][0][:, 0]))
    last = "h0"
    for i, (weight, bias) in enumerate(layers()):
        stored += [(f"w{i}", weight), (f"b{i}", bias)]
        nodes.append(node("Gemm", [last, f"w{i}", f"b{i}"], [f"z{i}"]))
        last = f"z{i}"
        if i < len(layers()) - 1:
            nodes.append(node("Relu", [last], [f"h{i + 1}"]))
            last = f"h{i + 1}"
    nodes.append(node("Softmax", [last], ["y"], axis=-1))
    value = onnx.helper.make_tensor_value_info
    inputs, outputs = [value("x", 1, ["n", len(layers()[0][0])])], [value("y", 1, ["n", 2])]
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in stored]
    made = onnx.helper.make_graph(nodes, "net", inputs, outputs, tensors)
    model = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)


def keras_model(path: str) -> None:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keras = pytest.importorskip("keras", reason="the package keras is not installed")
        sizes = [weight.shape[1] for weight, _ in layers()]
        dense = [
            keras.layers.Dense(size, activation="softmax" if i == len(sizes) - 1 else "relu")
            for i, size in enumerate(sizes)
        ]
        model = keras.Sequential([keras.Input((len(layers()[0][0]),)), *dense])
        for layer, numbers in zip(dense, layers(), strict=True):
            layer.set_weights(list(numbers))
        model.save(path)


FORMATS = {"m.skops": estimator, "m.pkl": forest, "m.onnx": graph, "m.keras": keras_model}


@pytest.mark.parametrize("name", FORMATS)
def test_a_model_comes_back_in_its_own_format(run, name):
    FORMATS[name](name)
    out = Path(name).with_stem("fair")
    trust = (TRUST,) if out.suffix == ".pkl" else ()
    before = Path(name).read_bytes()
    result = run(*RUN, "--model", name, *trust, "--out", out, *SHORT, "--json", "figures.json")
    assert (result.status, result.err) == (0, ""), result
    shown = " ".join(result.out.split())
    assert "opened again and compared" in shown
    assert "not known which rows the model was trained with" in shown
    estimated = FORMATS[name] in (estimator, forest)
    assert ("compared with the same fit without findings" in shown) == estimated
    figures = json.loads(Path("figures.json").read_text(encoding="utf-8"))
    assert figures["after"]["rate"] < figures["before"]["rate"]
    data = table()
    again = wrap_model(out, data.domain, data.rows, trust_pickle=True)
    assert accuracy_of(again.model, data.split(0).test, Decision()) == figures["after"]["accuracy"]["test"]
    assert Path(name).read_bytes() == before
    was = figures["repair"]["without_findings"]["accuracy"] if estimated else figures["before"]["accuracy"]["test"]
    assert figures["accuracy_lost"] == was - figures["after"]["accuracy"]["test"]
    if out.suffix == ".onnx":
        import onnx

        old, new = (
            {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer} for path in (name, out)
        )
        assert (old["mean"] == new["mean"]).all()
        assert (old["w0"] != new["w0"]).any()
    if out.suffix == ".pkl":
        assert type(pickle.loads(out.read_bytes())).__name__ == "Pipeline"


def test_a_module_with_one_output_comes_back_as_weights(run):
    weights = {}
    *hidden, (weight, bias) = layers()
    for i, (w, b) in enumerate([*hidden, (weight[:, 1:] - weight[:, :1], bias[1:] - bias[:1])]):
        weights |= {f"{2 * i}.weight": torch.tensor(w.T.copy()), f"{2 * i}.bias": torch.tensor(b)}
    save_file(weights, "w.safetensors")
    Path("own_module.py").write_text(OWN.format(len(hidden[0][0])), encoding="utf-8")
    model = ("--model", "own_module:make", "--weights", "w.safetensors")
    words = ("search", "table.csv", "--domain", "table.toml", "--no-controls", "-q", "--starts", 10, "--steps", 10)
    assert run(*words, *model, "--out", "other").status == 0
    result = run("repair", "other", "--data", "table.csv", *model, "--out", "fair.safetensors", *SHORT)
    assert (result.status, result.err) == (0, ""), result
    new = load_file("fair.safetensors")
    assert new.keys() == weights.keys()
    assert any((new[name] != weights[name]).any() for name in new)
    assert not Path("fair.json").exists()  # only our own weights have a card


def test_a_file_that_gives_other_scores_is_not_written(refused, monkeypatch):
    graph("m.onnx")
    monkeypatch.setattr(onnx_file, "_save", lambda request, _, path: path.write_bytes(request.content))
    refused(*RUN, "--model", "m.onnx", "--out", "fair.onnx", *SHORT, says=("fair.onnx", "gives other scores"))


@pytest.mark.parametrize("name", ["pairs.csv", "pairs.parquet"])
@pytest.mark.parametrize("label", ["ensemble", "seed", "twins"])
def test_pairs_for_the_users_own_training(run, name, label):
    result = run(*RUN, "--augment", name, "--share", 0.5, "--label", label, "-q")
    assert (result.status, result.out, result.err) == (0, "", "")
    if name.endswith(".csv"):
        with Path(name).open(newline="", encoding="utf-8") as file:
            lines = [{**line, "age": int(line["age"])} for line in csv.DictReader(file)]
    else:
        lines = pyarrow.parquet.read_table(name).to_pylist()
    assert list(lines[0]) == ["age", "sex", "race", "job", "income"]
    if label != "seed":  # a finding that no training row led to has no label
        assert len(lines) == 2 * round(0.5 * len(Run.open(Path("run")).findings()))
    for person, twin in zip(lines[::2], lines[1::2], strict=True):
        assert {person.pop("sex"), twin.pop("sex")} == {"F", "M"}
        assert person == twin
    assert {line["income"] for line in lines} <= {"low", "high"}
    assert len(read_table(name, read_domain(Path("table.toml")))) == len(lines)


def test_pairs_need_no_model_unless_its_twins_vote(run, refused):
    """A pickle that a run folder names is not opened for them."""
    forest("m.joblib")
    words = ("search", "table.csv", "--domain", "table.toml", "--method", "uniform", "--no-controls", "-q")
    made = run(*words, "--model", "m.joblib", TRUST, "--starts", 20, "--steps", 5, "--out", "black")
    assert made.status == 0, made
    black = ("repair", "black", "--data", "table.csv")
    assert run(*black, "--augment", "pairs.csv").status == 0
    refused(*black, "--augment", "more.csv", "--label", "twins", says=("a pickle", "--trust-pickle"))
    named = ("--label", "twins", "--model", "m.joblib", TRUST)
    assert run(*black, "--augment", "more.csv", *named).status == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), ("--out", "--augment")),
        (("--augment", "pairs.xls"), ("pairs.xls", ".csv or .parquet")),
        (("--augment", "no/pairs.csv"), ("there is no folder",)),
        (("--out", "fair.ubj", "--model", "m.ubj"), ("m.ubj", "--augment pairs.csv")),
        (("--out", "fair.safetensors", "--model", "mine:score"), ("mine:score", "--augment pairs.csv")),
        (("--out", "fair.skops", "--model", "model.safetensors"), ("fair.skops", ".safetensors")),
        (("--out", "fair.onnx", "--model", "m.onnx"), ("m.onnx", "no such file")),
        (("--out", "fair.onnx", "--model", "m.onnx", "--how", "neurons"), ("--how neurons", "m.onnx")),
        (("--out", "fair.joblib", "--model", "m.joblib"), ("m.joblib", "a pickle")),
        (("--out", "fair.safetensors", TRUST), (TRUST, "--model")),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_wrong_words(refused, words, says):
    Path("m.joblib").touch()
    refused(*RUN, *words, says=says)
