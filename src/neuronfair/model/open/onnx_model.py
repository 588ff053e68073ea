"""ONNX files as they are parsed, checked before anything runs: what they hold, and which other files they name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from neuronfair.apart import Unreadable, read_apart
from neuronfair.errors import NeuronFairError, needs, one_line
from neuronfair.limits import TEXT, check_size
from neuronfair.model.open.opened import File

PARTS = 1_000_000  # messages in a file: nodes, attributes, tensors, shapes
NODES = 100_000  # when functions that call each other are written out
_ENDLESS = {"Loop", "StringConcat"}  # can run, or grow outside of what onnxruntime can be held to


def read_model(request: File) -> Any:
    """Return the model of an ONNX file with all its tensors inside; it names no other file any more."""
    onnx = needs("onnx", "onnx")
    check_size(len(request.content), request.path, times=TEXT)
    try:
        read_apart("graphs", b"p" + request.content, request.path)  # two bytes can become a message of 160
        model = onnx.load_model_from_string(request.content)
        _check(request, onnx, model)
    except Unreadable as error:
        raise request.error(f"not a readable ONNX file ({error})") from error
    except NeuronFairError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in the reader
        raise request.error(f"not a readable ONNX file ({one_line(error)})") from error
    return model


def _check(request: File, onnx: Any, model: Any) -> None:
    total = 0
    for count, part in enumerate(_parts(model)):
        if count > PARTS:
            raise request.error(f"has more than {PARTS:,} parts")
        if isinstance(part, onnx.NodeProto) and part.op_type in _ENDLESS:
            raise request.error(f"uses the operator {part.op_type}, which can run or grow without end")
        if isinstance(part, (onnx.TensorProto, onnx.SparseTensorProto)):
            size = math.prod(max(1, length) for length in part.dims) * _width(onnx, part)
            total += size
            check_size(total, request.path, times=TEXT)
            if isinstance(part, onnx.TensorProto) and (part.external_data or part.data_location):
                part.raw_data = _outside(request, part, size)
                part.ClearField("external_data")
                part.ClearField("data_location")
    functions = {(f.domain, f.name, f.overload): f.node for f in model.functions}
    if _written_out(model.graph.node, functions, {}) > NODES:
        raise request.error(f"has more than {NODES:,} nodes, its functions written out")


def _parts(message: Any) -> Iterator[Any]:
    """Return a message and all messages in it, wherever the standard puts them."""
    waiting = [message]
    while waiting:
        part = waiting.pop()
        yield part
        for field, value in part.ListFields():
            if field.message_type is not None:
                waiting.extend([value] if hasattr(value, "ListFields") else value)


def _width(onnx: Any, tensor: Any) -> int:
    if isinstance(tensor, onnx.SparseTensorProto):
        tensor = tensor.values
    return int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _outside(request: File, tensor: Any, size: int) -> bytes:
    """Return the bytes of a tensor that lie in another file, which must be in the model's own folder."""
    said = {entry.key: entry.value for entry in tensor.external_data}
    place = said.get("location", "")
    parts = PurePosixPath(place).parts
    if not parts or ".." in parts or set("\\:\0") & set(place) or place.startswith("/"):
        raise request.error(f"keeps weights in {place!a}, outside of its own folder, which is refused")
    path = request.path.parent
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise request.error(f"keeps weights in {place!a}, which is a link or reached by one; copy the file itself")
    if not path.is_file():
        raise request.error(f"keeps weights in {place!a}, which is not there. Put it beside the model")
    start, end = int(said.get("offset", 0)), path.stat().st_size
    length = int(said.get("length", end - start))
    if start < 0 or length != size or start + length > end:
        raise request.error(f"keeps weights in {place!a}, which is shorter or longer than it says")
    with path.open("rb") as file:
        file.seek(start)
        return file.read(length)


def _written_out(nodes: Iterable[Any], functions: Mapping[Any, Any], known: dict[Any, float]) -> float:
    """Return how many nodes there are when every function is written out where it is called."""
    total = 0.0
    for node in nodes:
        name = (node.domain, node.op_type, node.overload)
        if name in functions and name not in known:
            known[name] = math.inf  # unless it calls itself, it is known in a moment
            known[name] = _written_out(functions[name], functions, known)
        total += known.get(name, 1)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                total += _written_out(graph.node, functions, known)
    return total
