"""Modules that were trained on, written in the format they came in: safetensors, ONNX, Keras."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from neuronfair.errors import needs
from neuronfair.model.open.fed import Fed
from neuronfair.model.open.graph import Graph
from neuronfair.model.open.opened import Opened, Request
from neuronfair.model.weights import read_safetensors

_LEARNED = {"Gemm", "MatMul", "Conv", "Add"}  # operators of ONNX whose stored numbers were learned, not measured


def returnable(request: Request, reader: str, opened: Opened) -> Opened:
    """Return an opened model with what writes its module again, where that is known, and what may be trained in it."""
    if opened.module is None or opened.refit is not None:
        return opened
    if reader == "imported" and request.weights is not None:
        return replace(opened, save=partial(_save_weights, request))
    if reader == "onnx_file":
        return replace(opened, save=partial(_save_onnx, request), unlock=partial(_unlock_onnx, request))
    if reader == "keras_file":
        return replace(opened, save=partial(_save_keras, request, opened.module), unlock=_unlock_keras)
    return opened


def _save_weights(request: Request, module: nn.Module | None, path: Path) -> None:
    """Write the tensors that the file of weights held, under the names that they had there.

    What the network never uses is written as it was: a network that was followed through its code does not have it.
    """
    state = {} if module is None else module.state_dict()
    before = "inner." if isinstance(module, Fed) else ""
    held = read_safetensors(Path(str(request.weights)))[0]
    named = {name: state.get(f"{before}{name}", tensor) for name, tensor in held.items()}
    if not any(f"{before}{name}" in state for name in held):
        raise request.error(f"none of the tensors in {request.weights} is found in the network again")
    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in named.items()}, path)


def _read_onnx(request: Request) -> tuple[Any, set[str]]:
    """Return an ONNX model, and the names of the stored tensors that were learned."""
    from neuronfair.model.open.onnx_model import read_model

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
    from neuronfair.model.open.keras_file import _load

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
