"""ONNX files: dense and convolutional graphs become torch modules, others black boxes run by onnxruntime."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import torch

from neuronfair.errors import ModelError, NeuronFairError, one_line, require
from neuronfair.limits import SIZE_VARIABLE, TEXT_FACTOR, TooLargeError, check_size, max_bytes
from neuronfair.model.formats import ModelFile
from neuronfair.model.open.frames import declared_numbers, table_inputs
from neuronfair.model.open.graphs import Graph, GraphStep, Ref, Unsupported, check_full_pass
from neuronfair.model.open.graphs.onnx_operators import SHAPE_OPERATORS, find_operator, make_activation
from neuronfair.model.open.names import describe_classes, list_single_columns, match_classes, order_classes
from neuronfair.model.open.opened import ModelInputs, OpenedModel, OpenRequest, compare_with_source, make_black_box
from neuronfair.model.open.tensors import NetworkInput, graph_inputs
from neuronfair.model.open.torch_modules import open_module, open_with_inputs
from neuronfair.sandbox import UnreadableError, read_sandboxed

MAX_MESSAGES = 1_000_000  # messages in a file: nodes, attributes, tensors, shapes
MAX_GRAPH_NODES = 100_000  # when functions that call each other are written out
_ENDLESS_OPERATORS = {"Loop", "StringConcat"}  # can run, or grow outside of what onnxruntime can be held to


def read_model(request: ModelFile) -> Any:
    """Return the model of an ONNX file with all its tensors; it refers to no other file any more."""
    onnx = require("onnx", "onnx")
    check_size(len(request.content), request.path, times=TEXT_FACTOR)
    try:
        read_sandboxed("onnx", request.content, request.path)  # two bytes can become a message of 160
        model = onnx.load_model_from_string(request.content)
        _check_model(request, onnx, model)
    except UnreadableError as error:
        raise request.error(f"not a readable ONNX file ({error})") from error
    except NeuronFairError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in the reader
        raise request.error(f"not a readable ONNX file ({one_line(error)})") from error
    return model


def _check_model(request: ModelFile, onnx: Any, model: Any) -> None:
    total = 0
    for count, part in enumerate(_walk_messages(model)):
        if count > MAX_MESSAGES:
            raise request.error(f"has more than {MAX_MESSAGES:,} parts")
        if isinstance(part, onnx.NodeProto) and part.op_type in _ENDLESS_OPERATORS:
            raise request.error(f"uses the operator {part.op_type}, which can run or grow without end")
        if isinstance(part, (onnx.TensorProto, onnx.SparseTensorProto)):
            kind = (part.values if isinstance(part, onnx.SparseTensorProto) else part).data_type
            size = (
                math.prod(max(1, length) for length in part.dims) * onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize
            )
            total += size
            check_size(total, request.path, times=TEXT_FACTOR)
            if isinstance(part, onnx.TensorProto) and (part.external_data or part.data_location):
                part.raw_data = _read_external_data(request, part, size)
                part.ClearField("external_data")
                part.ClearField("data_location")
    functions = {(f.domain, f.name, f.overload): f.node for f in model.functions}
    if _count_expanded_nodes(model.graph.node, functions, {}) > MAX_GRAPH_NODES:
        raise request.error(f"has more than {MAX_GRAPH_NODES:,} nodes, its functions written out")


def _walk_messages(message: Any) -> Iterator[Any]:
    """Return a message and all messages in it."""
    waiting = [message]
    while waiting:
        part = waiting.pop()
        yield part
        for field, value in part.ListFields():
            if field.message_type is not None:
                waiting.extend([value] if hasattr(value, "ListFields") else value)


def _read_external_data(request: ModelFile, tensor: Any, size: int) -> bytes:
    """Return the bytes of a tensor in another file, which must be in the model's own folder."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    parts = PurePosixPath(location).parts
    if not parts or ".." in parts or set("\\:\0") & set(location) or location.startswith("/"):
        raise request.error(f"keeps weights in {location!a}, outside of its own folder, which is refused")
    path = request.path.parent
    for part in parts:
        path = path / part
        if path.is_symlink():
            reason = "which is a link or reached by one; copy the file itself"
            raise request.error(f"keeps weights in {location!a}, {reason}")
    if not path.is_file():
        raise request.error(f"keeps weights in {location!a}, which is not there. Put it beside the model")
    start, end = int(entries.get("offset", 0)), path.stat().st_size
    length = int(entries.get("length", end - start))
    if start < 0 or length != size or start + length > end:
        raise request.error(f"keeps weights in {location!a}, which is shorter or longer than it says")
    with path.open("rb") as file:
        file.seek(start)
        return file.read(length)


def _count_expanded_nodes(nodes: Iterable[Any], functions: Mapping[Any, Any], counts: dict[Any, float]) -> float:
    """Return how many nodes there are when every function is written out where it is called."""
    total = 0.0
    for node in nodes:
        name = (node.domain, node.op_type, node.overload)
        if name in functions and name not in counts:
            counts[name] = math.inf  # if it calls itself; else replaced by the next line
            counts[name] = _count_expanded_nodes(functions[name], functions, counts)
        total += counts.get(name, 1)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                total += _count_expanded_nodes(graph.node, functions, counts)
    return total


STANDARD = ("", "ai.onnx")  # the names of the standard's own domain of operators
OLDEST_VERSION = 9  # the first version of the standard whose operators are those known here
_FLOAT_TYPES = {1: torch.float32, 11: torch.float64}
_TYPES = {f"tensor({name})": np.dtype(name) for name in ("int64", "int32", "int16", "int8", "uint8", "bool", "float16")}
_TYPES |= {"tensor(float)": np.dtype("float32"), "tensor(double)": np.dtype("float64")}
_INTEGER_TYPES = {2, 3, 4, 5, 6, 7, 9}  # and truth values


def open_source(request: OpenRequest) -> OpenedModel:
    """Read an ONNX graph; its scores are its output of floating-point numbers."""
    model = read_model(request)
    inputs = _list_graph_inputs(model.graph)
    outputs = model.graph.output
    if len(outputs) == 1 and any(n.op_type == "ArgMax" and n.output[0] == outputs[0].name for n in model.graph.node):
        raise request.error("ends in ArgMax, which hides the scores. Export the model without it")
    if not inputs:
        raise request.error("has no input")
    described = [item for item in map(_make_network_input, inputs) if item is not None]
    columns = graph_inputs(request, described, raw="named") if len(described) == len(inputs) else None
    try:
        graph = _build_graph(require("onnx", "onnx"), model, [item.name for item in inputs])
        if columns is None and len(inputs) > 1:
            raise Unsupported("an input of text or of no fixed width")
        examples = (columns or declared_numbers(request)).of_rows(request.trial_rows[:2])
        check_full_pass(request, graph, examples)
        graph(*examples)
    except Unsupported as reason:
        return _open_with_onnxruntime(request, model, inputs, columns, f"{reason} has no counterpart in torch here")
    except ModelError:
        raise
    except Exception as error:  # another width or a fixed batch size, or a damaged graph
        shape = ", ".join(str(d.dim_value or d.dim_param or "?") for d in inputs[0].type.tensor_type.shape.dim)
        raise request.error(
            f"expects input of shape ({shape}) and fails on rows of this domain ({one_line(error)}). "
            f"{request.width_text()}, or export the model with a dynamic batch size"
        ) from error
    try:
        source, remark = _make_onnx_scores(request, model, inputs, columns), ""
    except ModelError as error:  # without onnxruntime there is nothing to compare with
        source, remark = None, f"not compared with its source: {one_line(error)}"
    if columns is not None:
        return open_with_inputs(request, "ONNX", graph, columns, source=source, remark=remark)
    result = open_module(request, "ONNX", graph)
    if source is None:
        return replace(result, note=f"{result.note.removesuffix('.')}; {remark}.")
    return compare_with_source(request, result, source)


def list_names(file: ModelFile) -> list[str] | None:
    """Return the names of a graph's inputs, if each is a column."""
    shapes = ((item.name, item.type.tensor_type.shape.dim[1:]) for item in _list_graph_inputs(read_model(file).graph))
    return list_single_columns((name, [size.dim_value or None for size in shape]) for name, shape in shapes)


def _list_graph_inputs(graph: Any) -> list[Any]:
    stored = {tensor.name for tensor in graph.initializer}
    return [item for item in graph.input if item.name not in stored]


def _make_network_input(item: Any) -> NetworkInput | None:
    """Return an input of a graph; None if it is no tensor of numbers with a fixed width."""
    tensor = item.type.tensor_type
    sizes = [size.dim_value for size in tensor.shape.dim[1:]]
    if not tensor.shape.dim or not all(sizes) or tensor.elem_type not in (_FLOAT_TYPES.keys() | _INTEGER_TYPES):
        return None
    return NetworkInput(item.name, "float" if tensor.elem_type in _FLOAT_TYPES else "whole", tuple(sizes))


def _build_graph(onnx: Any, model: Any, inputs: list[str]) -> Graph:
    version = min((o.version for o in model.opset_import if o.domain in STANDARD), default=OLDEST_VERSION)
    if version < OLDEST_VERSION:
        raise Unsupported(f"a graph older than version {OLDEST_VERSION} of the operators")
    result = _find_scores_output(model.graph)
    if result is None:
        raise Unsupported("an output that is no tensor of scores")
    nodes = _list_needed_nodes(model.graph.node, result)
    own_operators = {function.name for function in model.functions if function.domain in STANDARD}
    names_read = {result, *(name for node in nodes for name in node.input)}
    _check_nodes(nodes, own_operators, names_read)
    if any(tensor.values.name in names_read for tensor in model.graph.sparse_initializer):
        raise Unsupported("a sparse tensor")
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    steps: list[GraphStep] = []
    names_used = {result}
    for node in nodes:
        attributes = {a.name: _read_attribute(onnx, a) for a in node.attribute}
        if node.op_type == "Constant":
            constants[node.output[0]] = np.asarray(next(iter(attributes.values())))
            continue
        names = node.input
        part = make_activation(node.op_type, attributes, [_resolve_input(name, constants) for name in names])
        if part is not None:
            names = names[:1]  # bounds and the like are in the part already
        arguments: tuple[Any, ...] = tuple(Ref(name) if name else None for name in names)
        # A shape is a part of the graph.
        if node.op_type in SHAPE_OPERATORS and len(names) > 1 and names[1] in constants:
            arguments, names = (arguments[0], constants[names[1]].flatten().tolist()), names[:1]
        call = find_operator(node.op_type, attributes, version) if part is None else part
        steps.append(GraphStep(node.name or node.output[0], node.output[0], call, arguments))
        names_used.update(names)
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in constants.items() if name in names_used}
    if any(tensor.dtype == torch.float16 for tensor in tensors.values()):
        raise Unsupported("arithmetic in 16 bits")
    return Graph(steps, tensors, inputs, result).eval()


def _check_nodes(nodes: Iterable[Any], own_operators: set[str], names_read: set[str]) -> None:
    """Refuse operators outside of the standard, also under its names, and nodes with several outputs that count."""
    for node in nodes:
        if node.domain not in STANDARD or node.op_type in own_operators:
            raise Unsupported(f"the operator {node.domain or 'its own'}.{node.op_type}")
        later = set(filter(None, node.output[1:]))
        if later & names_read or (later and node.op_type == "BatchNormalization"):  # of a batch in training
            raise Unsupported(f"another output of {node.op_type} than the first")


def _resolve_input(name: str, constants: Mapping[str, np.ndarray]) -> Any:
    """Return an input of a node as a number that the file fixes, a reference, or None where it is left out."""
    if name in constants and constants[name].size == 1:
        return constants[name].item()
    return Ref(name) if name else None


def _find_scores_output(graph: Any) -> str | None:
    """Return the name of the output that holds the scores, if there is a tensor of them."""
    names = [o.name for o in graph.output if o.type.tensor_type.elem_type in _FLOAT_TYPES]
    return next((name for name in names if "prob" in name.lower()), names[0] if names else None)


def _list_needed_nodes(nodes: Any, result: str) -> list[Any]:
    """Return the nodes that the result depends on, in order."""
    names_needed, node_list = {result}, []
    for node in reversed(nodes):
        if names_needed.intersection(node.output):
            node_list.append(node)
            names_needed.update(node.input)
    return node_list[::-1]


def _read_attribute(onnx: Any, attribute: Any) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return value.decode() if isinstance(value, bytes) else value


def _open_with_onnxruntime(
    request: OpenRequest, model: Any, inputs: list[Any], columns: ModelInputs | None, reason: str
) -> OpenedModel:
    """Return a graph that only onnxruntime can run: it reads the table itself, if it can, or numbers."""
    scores = None
    for inputs_tried in (columns,) if request.preprocess is not None else (None, columns):
        try:
            scores = _make_onnx_scores(request, model, inputs, inputs_tried)
        except ModelError as error:
            last = error
            continue
        with suppress(Exception):  # the graph refuses these rows, so the next way is tried
            scores.of_rows(request.random_rows[:2])
            break
    if scores is None:
        raise request.error(f"{reason}, and {last}") from last
    return make_black_box(request, "ONNX", scores, "; ".join(filter(None, (reason, scores.note))))


def _make_onnx_scores(request: OpenRequest, model: Any, inputs: list[Any], columns: ModelInputs | None) -> ModelInputs:
    """Return the scores by onnxruntime, with a remark; a graph with an input per column reads the table itself."""
    session = _start_session(request, model.SerializeToString())
    names = [item.name for item in inputs]
    kinds = {item.name: item.type for item in session.get_inputs()}
    if columns is None and len(names) == 1 and kinds[names[0]] in ("tensor(float)", "tensor(double)"):
        columns = declared_numbers(request)
    types = {n: object if kind == "tensor(string)" else _TYPES.get(kind, np.float32) for n, kind in kinds.items()}
    source = table_inputs(request.domain, names) if columns is None else columns
    scores = _find_scores_output(model.graph)
    # A graph may end in dictionaries of class and probability, whose classes have names.
    zip_attributes = (a for node in model.graph.node if node.op_type == "ZipMap" for a in node.attribute)
    class_lists = ([*a.ints, *(text.decode() for text in a.strings)] for a in zip_attributes)
    classes: list[Any] | None = None if scores else next(class_lists, None)
    order = match_classes(request.domain, classes)
    reads = "it reads the table itself" if columns is None else columns.note
    remarks = (reads, describe_classes(request.domain, classes))
    lengths = (item.shape[0] for item in session.get_inputs() if item.shape)
    batch_size = next((length for length in lengths if isinstance(length, int) and length > 0), None)

    def predict(read: Any) -> np.ndarray:
        if columns is None:  # a DataFrame
            arrays = {name: cells.to_numpy(dtype=types[name])[:, None] for name, cells in read.items()}
        else:
            tensors = zip(columns.names or names, read, strict=True)
            arrays = {name: tensor.numpy().astype(types[name]) for name, tensor in tensors}
        count = len(arrays[names[0]])
        if batch_size is None or count == batch_size:
            return answered(arrays)
        # A graph for batches of one size: the last row fills them.
        batches = np.minimum(np.arange(-(-count // batch_size) * batch_size), count - 1).reshape(-1, batch_size)
        parts = [answered({name: array[batch] for name, array in arrays.items()}) for batch in batches]
        return np.concatenate(parts)[:count]

    def answered(arrays: dict[str, np.ndarray]) -> np.ndarray:
        try:
            answers = session.run([scores] if scores else None, arrays)
        except Exception as error:
            if "smaller than requested" not in str(error):
                raise
            raise request.error(
                f"needs more memory than {max_bytes() / 1e9:,.1f} GB. "
                f"If you trust it, set {SIZE_VARIABLE} to more bytes"
            ) from error
        tables = [answer for answer in answers if isinstance(answer, list)]
        if tables:  # a list with one dictionary of class and probability for each row
            keys = classes or list(tables[0][0])
            return order_classes(np.array([[row[key] for key in keys] for row in tables[0]]), order)
        floats = [a for a in answers if np.issubdtype(a.dtype, np.floating)]
        return np.asarray(floats[-1] if floats else answers[0]).reshape(len(arrays[names[0]]), -1)

    return source.then(predict, note="; ".join(filter(None, remarks)))


def _start_session(request: OpenRequest, model: bytes) -> Any:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # on import it keeps a device id and a database
    try:
        runtime = require("onnxruntime", "onnx")
        read_sandboxed("onnxruntime", model, request.path)  # a graph that crashes ends another process
        _limit_memory(runtime, max_bytes())
        options = runtime.SessionOptions()
        options.log_severity_level = 4  # errors are raised, and need not be printed as well
        options.add_session_config_entry("session.use_env_allocators", "1")
        # Given the bytes that were checked, it has no path from which to read other files. Its fallback would only try
        # the same again, and print about it.
        return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except TooLargeError:
        raise
    except Exception as error:
        raise ModelError(f"onnxruntime cannot run it ({one_line(error)})") from error


@lru_cache(maxsize=1)  # again only if the limit was changed
def _limit_memory(runtime: Any, limit: int) -> None:
    """Limit the memory that all graphs in onnxruntime share; it is allocated on demand."""
    memory = runtime.OrtMemoryInfo("Cpu", runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, runtime.OrtMemType.DEFAULT)
    runtime.create_and_register_allocator(memory, runtime.OrtArenaCfg({"max_mem": limit, "arena_extend_strategy": 1}))
