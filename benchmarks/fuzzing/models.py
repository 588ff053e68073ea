"""Small valid model files of every kind that can be opened."""

from __future__ import annotations

import io
import os
import pickle
import re
import warnings
from typing import Any

from neuronfair.model.encoding import TableEncoding

import numpy as np

from .mutate import Files, unzipped, zipped
from .specimens import domain, network, people, written


def _encoded() -> np.ndarray[Any, Any]:
    """The people as numbers for a model."""
    return TableEncoding.of(domain()).encode(people().rows).numpy()


def npz() -> list[Files]:
    arrays = {"W0": np.ones((7, 4)), "b0": np.ones(4), "W1": np.ones((4, 2)), "b1": np.ones(2)}
    plain = io.BytesIO()
    np.savez(plain, **arrays)
    return [{"model.npz": zipped(unzipped(plain.getvalue()))}]


def safetensors() -> list[Files]:
    from neuronfair.model.weights import save_weights

    module, card = network()
    with_card = written(lambda path: save_weights(path, module, card), ".safetensors")
    from safetensors.torch import save as to_bytes

    return [{"model.safetensors": with_card}, {"model.safetensors": to_bytes(module.state_dict())}]


def onnx() -> list[Files]:
    from onnx import TensorProto, external_data_helper, helper, numpy_helper

    def model(nodes: list[Any], tensors: dict[str, Any], inputs: dict[str, Any] | None = None) -> Any:
        described = inputs or {"x": (TensorProto.FLOAT, 7)}
        given = [helper.make_tensor_value_info(n, kind, ["n", k]) for n, (kind, k) in described.items()]
        ends = [given, [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])]]
        weights = [numpy_helper.from_array(tensor, name) for name, tensor in tensors.items()]
        graph = helper.make_graph(nodes, "g", *ends, weights)
        versions = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
        return helper.make_model(graph, opset_imports=versions, ir_version=8)

    def dense(before: str) -> list[Any]:
        return [
            helper.make_node("Gemm", [before, "W", "b"], ["a"], transB=1),
            helper.make_node("Relu", ["a"], ["r"]),
            helper.make_node("Gemm", ["r", "V"], ["y"], transB=1),
        ]

    tensors = {"W": np.ones((4, 7), "f"), "b": np.ones(4, "f"), "V": np.ones((2, 4), "f")}
    plain, outer = model(dense("x"), tensors), model(dense("x"), tensors)
    shaped = [
        helper.make_node("Reshape", ["x", "s"], ["i"]),
        helper.make_node("Conv", ["i", "K"], ["c"], kernel_shape=[3], pads=[1, 1]),
        helper.make_node("Flatten", ["c"], ["f"]),
    ]
    conv = model([*shaped, *dense("f")], tensors | {"s": np.array([-1, 1, 7]), "K": np.ones((1, 1, 3), "f")})
    trees = helper.make_node(
        "LinearRegressor", ["x"], ["y"], domain="ai.onnx.ml", coefficients=[0.1] * 14, intercepts=[0.0, 1.0], targets=2
    )
    external_data_helper.convert_model_to_external_data(outer, location="weights.bin", size_threshold=0)
    data = b"".join(t.raw_data for t in outer.graph.initializer)
    place = 0
    for tensor in outer.graph.initializer:
        external_data_helper.set_external_data(tensor, "weights.bin", place, len(tensor.raw_data))
        place += len(tensor.raw_data)
        tensor.ClearField("raw_data")
    looked_up = [
        helper.make_node("Gather", ["E", "cat"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("Cast", ["cat"], ["w"], to=TensorProto.FLOAT),
        helper.make_node("Concat", ["f", "num", "w"], ["j"], axis=1),
    ]
    two = {"cat": (TensorProto.INT64, 3), "num": (TensorProto.FLOAT, 2)}
    wide = tensors | {"W": np.ones((4, 11), "f"), "E": np.arange(6, dtype="f").reshape(3, 2)}
    codes = model([*looked_up, *dense("j")], wide, two)
    models = [{"model.onnx": m.SerializeToString()} for m in (plain, conv, model([trees], {}), codes)]
    return [*models, {"model.onnx": outer.SerializeToString(), "weights.bin": data}]


def skops() -> list[Files]:
    import skops.io

    return [{"model.skops": _without_chance(skops.io.dumps(model))} for model in _estimators()]


def joblib() -> list[Files]:
    content = pickle.dumps(_estimators()[0])
    return [{f"model{suffix}": content} for suffix in (".joblib", ".pkl", ".pickle", ".pt", ".bin")]


def _estimators() -> list[Any]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    perceptron = MLPClassifier((2,), max_iter=2, random_state=0)
    models = [perceptron, LogisticRegression(), make_pipeline(StandardScaler(), perceptron)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not learned everything
        return [model.fit(_encoded(), people().labels.numpy()) for model in models]


def ubj() -> list[Files]:
    return _boosted(".ubj")


def xgboost_json() -> list[Files]:
    return _boosted(".json")


def _categories() -> Any:
    import pandas

    cells = domain().to_table(people().rows)
    return pandas.DataFrame(cells).astype(dict.fromkeys(("sex", "race", "job"), "category"))


def _boosted(suffix: str) -> list[Files]:
    import xgboost

    labels = people().labels.numpy()
    models = []
    for data in (xgboost.DMatrix(_categories(), labels, enable_categorical=True), xgboost.DMatrix(_encoded(), labels)):
        trees = xgboost.train({"objective": "binary:logistic", "max_depth": 2, "nthread": 1}, data, 2)
        models.append({f"model{suffix}": written(trees.save_model, suffix)})
    return models


def lightgbm() -> list[Files]:
    import lightgbm

    settings, labels = (
        {"verbose": -1, "num_threads": 1, "num_leaves": 4, "min_data_in_leaf": 2},
        people().labels.numpy(),
    )
    models = []
    for data, more in ((_categories(), {"objective": "binary"}), (_encoded(), {"linear_tree": True})):
        trees = lightgbm.train(settings | more, lightgbm.Dataset(data, labels, params=settings | more), 2)
        models.append({"model.txt": trees.model_to_string().encode()})
    return models


def catboost() -> list[Files]:
    import catboost

    cells = _categories().astype(dict.fromkeys(("sex", "race", "job"), str))
    settings = {"iterations": 2, "depth": 2, "verbose": False, "allow_writing_files": False, "thread_count": 1}
    models = []
    for grown in ("SymmetricTree", "Lossguide"):
        trees = catboost.CatBoostClassifier(grow_policy=grown, cat_features=["sex", "race", "job"], **settings)
        trees.fit(cells, people().labels.numpy())
        for chance in ("train_finish_time", "model_guid"):
            trees.get_metadata()[chance] = ""
        models.append({"model.cbm": bytes(trees._serialize_model())})
    return models


def h5() -> list[Files]:
    return _keras(".h5")


def keras() -> list[Files]:
    return [{"model.keras": _without_chance(file["model.keras"])} for file in _keras(".keras")]


def _without_chance(archive: bytes) -> bytes:
    """The same archive with small numbers for the addresses of objects, and without the day."""
    numbers: dict[bytes, bytes] = {}

    def small(found: re.Match[bytes]) -> bytes:
        return numbers.setdefault(found[0], b"%d" % (1000 + len(numbers)))

    def changed(text: bytes) -> bytes:
        return re.sub(rb"\d{4}-\d\d-\d\d@[\d:]+", b"", re.sub(rb"\b1\d{14}\b", small, text))

    members = [(name, part) for name, part in unzipped(archive) if name.endswith(".json")]
    members += [(name, part) for name, part in unzipped(archive) if not name.endswith(".json")]
    return zipped([(changed(name.encode()).decode(), changed(part)) for name, part in members])


def _keras(suffix: str) -> list[Files]:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    from neuronfair.model.open.graphs.keras_layers import make_stand_ins

    import keras

    layers = keras.layers
    models = []
    for kind in ("straight", "joined", "inputs"):
        keras.utils.clear_session()
        keras.utils.set_random_seed(0)
        given = keras.Input((7,))
        hidden = layers.Dense(3, activation="relu")(given)
        if kind == "joined":
            hidden = layers.Add()([hidden, layers.Dense(3)(given)])
        model = keras.Model(given, layers.Dense(2)(hidden))
        if kind == "inputs":
            kinds = {
                "age": "float32",
                "sex": "int32",
                "job": "int64",
                "race": "string" if suffix == ".keras" else "int32",
            }
            named = {name: keras.Input((1,), name=name, dtype=kind) for name, kind in kinds.items()}
            race = named["race"]
            if suffix == ".keras":  # without TensorFlow no other file can have a vocabulary
                race = make_stand_ins(keras)["StringLookup"](name="words", vocabulary=["C", "A"])(race)
            parts = [
                layers.Normalization(mean=40.0, variance=100.0)(named["age"]),
                layers.Flatten()(layers.Embedding(3, 2)(race)),
                layers.Flatten()(layers.Embedding(2, 2)(named["sex"])),
                layers.CategoryEncoding(2, output_mode="one_hot")(named["job"]),
                layers.Discretization([30.0, 60.0], output_mode="one_hot")(named["age"]),
            ]
            model = keras.Model(named, layers.Dense(2)(layers.Dense(3, activation="relu")(layers.Concatenate()(parts))))
        models.append({f"model{suffix}": written(model.save, suffix)})
    return models
