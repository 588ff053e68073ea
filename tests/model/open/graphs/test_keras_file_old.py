"""HDF5 files as Keras 2.2.4-tf wrote them, built by hand: no such Keras can be installed any more."""

from __future__ import annotations

import itertools
import json
import os

import numpy as np
import pytest
import torch

from neuronfair.model.open import wrap_model
from tests.model.open.conftest import check_white_box

os.environ.setdefault("KERAS_BACKEND", "torch")
h5py = pytest.importorskip("h5py", reason="the package h5py is not installed")
pytest.importorskip("keras", reason="the package keras is not installed")


def started(name: str, **config) -> dict:
    return {"class_name": name, "config": {**config, "dtype": "float32"}}


def dense(name: str, units: int, activation: str, width: int | None = None) -> dict:
    first = {} if width is None else {"batch_input_shape": [None, width]}
    config = {"name": name, "trainable": True, **first, "dtype": "float32", "units": units, "activation": activation}
    config |= {"use_bias": True, "kernel_initializer": started("GlorotUniform", seed=None)}
    config |= {"bias_initializer": started("Zeros"), "kernel_regularizer": None, "bias_regularizer": None}
    config |= {"activity_regularizer": None, "kernel_constraint": None, "bias_constraint": None}
    return {"class_name": "Dense", "config": config}


def weights_of(sizes, seed=0):
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(0, 0.3, (a, b)).astype("f4"), rng.normal(size=b).astype("f4")) for a, b in itertools.pairwise(sizes)
    ]


def written(path, config: dict, weights, names, *, as_text: bool = False) -> None:
    def kept(text: str):
        return text if as_text else np.bytes_(text)

    loss = {"optimizer_config": {"class_name": "Nadam", "config": {"learning_rate": 0.001}}, "loss": "mse"}
    with h5py.File(path, "w") as file:
        file.attrs["keras_version"], file.attrs["backend"] = kept("2.2.4-tf"), kept("tensorflow")
        file.attrs["model_config"], file.attrs["training_config"] = kept(json.dumps(config)), kept(json.dumps(loss))
        held = file.create_group("model_weights")
        held.attrs["keras_version"], held.attrs["backend"] = kept("2.2.4-tf"), kept("tensorflow")
        held.attrs["layer_names"] = [name.encode() for name in names]
        for name, (kernel, bias) in zip(names, weights, strict=True):
            layer = held.create_group(name)
            layer.attrs["weight_names"] = [f"{name}/kernel:0".encode(), f"{name}/bias:0".encode()]
            layer[f"{name}/kernel:0"], layer[f"{name}/bias:0"] = kernel, bias
        file["optimizer_weights/Nadam/iter:0"] = np.int64(3)


def computed(x: torch.Tensor, weights) -> np.ndarray:
    for place, (kernel, bias) in enumerate(weights):
        x = x @ torch.from_numpy(kernel) + torch.from_numpy(bias)
        x = x.relu() if place < len(weights) - 1 else x.sigmoid()
    return x


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_plain_network_opens(as_list, as_text, crowd, tmp_path):
    sizes = [crowd.x.shape[1], 8, 4, 1]
    weights, names = weights_of(sizes), ["dense", "dense_1", "dense_2"]
    layers = [
        dense(name, units, "sigmoid" if name == names[-1] else "relu", sizes[0] if name == "dense" else None)
        for name, units in zip(names, sizes[1:], strict=True)
    ]
    config = {"class_name": "Sequential", "config": layers if as_list else {"name": "sequential", "layers": layers}}
    written(tmp_path / "old.h5", config, weights, names, as_text=as_text)
    found = wrap_model(tmp_path / "old.h5", crowd.domain, crowd.rows)
    check_white_box(found, crowd.rows, computed(crowd.x, weights), [8, 4])
    assert found.kind == "Keras"


def test_a_network_of_named_inputs_opens(crowd, tmp_path):
    """The functional API, whose class was called Model."""
    width = crowd.x.shape[1]
    weights, names = weights_of([width, 6, 1]), ["dense", "dense_1"]
    given = {"batch_input_shape": [None, width], "dtype": "float32", "sparse": False, "ragged": False, "name": "x"}
    layers = [{"class_name": "InputLayer", "config": given, "name": "x", "inbound_nodes": []}]
    for name, units, before in (("dense", 6, "x"), ("dense_1", 1, "dense")):
        part = dense(name, units, "relu" if units == 6 else "sigmoid")
        layers.append({**part, "name": name, "inbound_nodes": [[[before, 0, 0, {}]]]})
    config = {"name": "model", "layers": layers, "input_layers": [["x", 0, 0]], "output_layers": [["dense_1", 0, 0]]}
    written(tmp_path / "old.h5", {"class_name": "Model", "config": config}, [*weights], names)
    found = wrap_model(tmp_path / "old.h5", crowd.domain, crowd.rows)
    check_white_box(found, crowd.rows, computed(crowd.x, weights), [6])
