"""Models that were trained again, written in the format they came in."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from neuronfair.errors import ModelError, needs, one_line
from neuronfair.model.open.graphs.graph import Graph
from neuronfair.model.open.input_layers import InputLayer
from neuronfair.model.open.request import Opened, Refit, Request
from neuronfair.model.weights import read_safetensors

_LEARNED = {"Gemm", "MatMul", "Conv", "Add"}  # operators of ONNX whose stored numbers were learned, not measured


def returnable(request: Request, reader: str, opened: Opened) -> Opened:
    """Return an opened model with what writes its module again, where that is known, and what may be trained in it."""
    if opened.module is None or opened.refit is not None:
        return opened
    if reader == "user_code" and request.weights is not None:
        return replace(opened, save=partial(_save_weights, request))
    if reader == "graphs.onnx_file":
        return replace(opened, save=partial(_save_onnx, request), unlock=partial(_unlock_onnx, request))
    if reader == "graphs.keras_file":
        return replace(opened, save=partial(_save_keras, request, opened.module), unlock=_unlock_keras)
    return opened


def _save_weights(request: Request, module: nn.Module | None, path: Path) -> None:
    """Write the tensors that the file of weights held, under the names that they had there.

    What the network never uses is written as it was: a network that was followed through its code does not have it.
    """
    state = {} if module is None else module.state_dict()
    before = "inner." if isinstance(module, InputLayer) else ""
    held = read_safetensors(Path(str(request.weights)))[0]
    named = {name: state.get(f"{before}{name}", tensor) for name, tensor in held.items()}
    if not any(f"{before}{name}" in state for name in held):
        raise request.error(f"none of the tensors in {request.weights} is found in the network again")
    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in named.items()}, path)


def _read_onnx(request: Request) -> tuple[Any, set[str]]:
    """Return an ONNX model, and the names of the stored tensors that were learned."""
    from neuronfair.model.open.graphs.onnx_file import read_model

    model = read_model(request)
    read = {name for node in model.graph.node if node.op_type in _LEARNED for name in node.input}
    return model, {tensor.name for tensor in model.graph.initializer} & read


def _weights_of(module: nn.Module | None, names: set[str]) -> Iterator[tuple[str, nn.Parameter]]:
    """Return the parameters of a graph that go by these names in its file."""
    for graph in (part for part in (module.modules() if module is not None else ()) if isinstance(part, Graph)):
        for name, place in graph.places.items():
            tensor = getattr(graph, place)
            if name in names and isinstance(tensor, nn.Parameter):
                yield name, tensor


def _unlock_onnx(request: Request, module: nn.Module) -> None:
    for _, tensor in _weights_of(module, _read_onnx(request)[1]):
        tensor.requires_grad_(True)


def _save_onnx(request: Request, module: nn.Module | None, path: Path) -> None:
    helper = needs("onnx", "onnx").numpy_helper
    model, names = _read_onnx(request)
    now = dict(_weights_of(module, names))
    for tensor in model.graph.initializer:
        if tensor.name in now:
            numbers = now[tensor.name].detach().cpu().numpy().astype(helper.to_array(tensor).dtype)
            tensor.CopyFrom(helper.from_array(numbers, tensor.name))
    path.write_bytes(model.SerializeToString())


def _unlock_keras(module: nn.Module) -> None:
    """Let dense layers be trained only: the numbers of other layers are not written back."""
    module.requires_grad_(False)
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.requires_grad_(True)


def _save_keras(request: Request, before: nn.Module, module: nn.Module | None, path: Path) -> None:
    """Write a Keras model with other numbers in its dense layers, which are found by those that they had before."""
    from neuronfair.model.open.graphs.keras_file import _load

    assert module is not None
    model = _load(request)
    parts = [(old, new) for old, new in zip(before.modules(), module.modules(), strict=True) if type(old) is nn.Linear]
    for layer in _dense_layers(model):
        kernel = torch.from_numpy(layer.get_weights()[0].T.copy()).float()
        place = next(i for i, (old, _) in enumerate(parts) if _same(old, kernel))
        new = parts.pop(place)[1]
        assert isinstance(new, nn.Linear)
        numbers = [new.weight.T, new.bias] if layer.use_bias else [new.weight.T]
        layer.set_weights([n.detach().cpu().numpy() for n in numbers])
    model.save(path)


def _same(layer: nn.Module, kernel: Tensor) -> bool:
    return isinstance(layer, nn.Linear) and torch.equal(layer.weight.detach().cpu().float(), kernel)


def _dense_layers(model: Any) -> Iterator[Any]:
    for layer in model.layers:
        if type(layer).__name__ == "Dense":
            yield layer
        elif hasattr(layer, "layers"):
            yield from _dense_layers(layer)


def refitting(
    estimator: Any, final: Any, given: Callable[[Tensor], Any], classes: np.ndarray, reopen: Callable[[Any], Opened]
) -> Refit:
    """Return what fits a copy of an estimator to rows and labels; `classes` are its own, in the order of the domain's.

    `final` stands at the end of it, `given` turns rows into what it is given, and `reopen` opens the copy.
    """

    def refit(rows: Tensor, labels: Tensor, seed: int) -> Opened:
        try:
            again = needs("sklearn.base", "sklearn").clone(estimator)
            last = again.steps[-1][1] if hasattr(again, "steps") else again
            if type(final).__module__.startswith("catboost") and hasattr(last, "set_params"):
                last.set_params(allow_writing_files=False)  # or it leaves a folder where the user stands
            with _quiet(seed):
                again.fit(given(rows), classes[labels.cpu().numpy()])
        except Exception as error:  # the estimator's own code
            raise ModelError(
                f"{type(final).__name__} cannot be fitted again with rows and labels alone ({one_line(error)}). Add "
                "the pairs to your own training data: --augment pairs.csv"
            ) from error
        return reopen(again)

    return refit


@contextmanager
def _quiet(seed: int) -> Iterator[None]:
    """Let nothing be printed, and start what draws from numpy's common random state at a known place."""
    state = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        np.random.set_state(state)


def dump(estimator: Any, path: Path) -> None:
    """Write an estimator in the format that the name of the file says."""
    suffix = path.suffix.lower()
    if suffix == ".skops":
        needs("skops.io", "sklearn").dump(estimator, path)
    elif suffix == ".joblib":
        needs("joblib", "sklearn").dump(estimator, path)
    else:  # whoever reads it with pickle could not read what joblib writes
        path.write_bytes(pickle.dumps(estimator))
