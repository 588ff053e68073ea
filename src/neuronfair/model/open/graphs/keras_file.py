"""Keras models: ordinary layers, joined in any way, become torch modules, others black boxes."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from neuronfair.errors import ModelError, one_line, require
from neuronfair.limits import TREE_FACTOR, TooLargeError, check_size, read_members, repack
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.formats import ModelFile
from neuronfair.model.open.frames import declared_numbers
from neuronfair.model.open.graphs import Graph, GraphStep, Ref, Unsupported, check_full_pass
from neuronfair.model.open.graphs.keras_layers import LOOKUPS, convert_layer, ignore_numpy_warning, make_stand_ins
from neuronfair.model.open.names import list_input_names
from neuronfair.model.open.opened import ModelInputs, OpenedModel, OpenRequest, compare_with_source, make_black_box
from neuronfair.model.open.tensors import NetworkInput, graph_inputs, list_texts, preprocessed_tensors
from neuronfair.model.open.torch_modules import open_module, open_with_inputs
from neuronfair.sandbox import read_sandboxed

MAX_NESTING = 20  # of models in models
Entry = dict[str, Any]  # a part of the description of a model


class _GraphBuilder:
    """Collects the steps of a graph of torch modules along a model; a text input is a position in `texts`."""

    def __init__(self, sources: Sequence[str], texts: Sequence[str]) -> None:
        self.steps: list[GraphStep] = []
        self.sources, self.texts = sources, texts

    def graph(self, model: Any) -> Graph:
        results = self.model(model, self.sources, 0)
        if len(results) != 1:
            raise Unsupported("it has several outputs")
        return Graph(self.steps, {}, self.sources, results[0]).float().eval()

    def model(self, model: Any, values: Sequence[str], depth: int) -> list[str]:
        """Add the steps of a model with these inputs; return the names of its outputs."""
        kind, is_keras = type(model).__name__, type(model).__module__.partition(".")[0] == "keras"
        if depth > MAX_NESTING:
            raise Unsupported(f"more than {MAX_NESTING} models in models")
        if kind == "Sequential" and is_keras:
            for layer in model.layers:
                values = self.layer(layer, values, depth)
            return list(values)
        if kind != "Functional" or not is_keras:
            raise Unsupported(f"it is of the class '{kind}', whose layers may be joined in any way")
        value_of = {id(tensor): value for tensor, value in zip(model.inputs, values, strict=True)}
        for _, nodes in sorted(model._nodes_by_depth.items(), reverse=True):
            for node in nodes:
                if type(node.operation).__name__ == "InputLayer":
                    continue
                options = [name for name, value in node.arguments.kwargs.items() if value not in (None, False)]
                if options and hasattr(node.operation, "trainable"):  # a layer; an operation is refused by its name
                    raise Unsupported(f"its layer '{node.operation.name}' is called with {options[0]}=")
                results = self.layer(node.operation, [value_of[id(tensor)] for tensor in node.input_tensors], depth)
                value_of |= {id(tensor): value for tensor, value in zip(node.output_tensors, results, strict=True)}
        return [value_of[id(tensor)] for tensor in model.outputs]

    def layer(self, layer: Any, values: Sequence[str], depth: int) -> list[str]:
        """Add the steps of a layer with these inputs; return the names of its outputs."""
        if type(layer).__name__ in ("Sequential", "Functional"):
            return self.model(layer, values, depth + 1)
        if not isinstance(layer, require("keras", "keras").layers.Layer):
            raise Unsupported(f"its operation '{layer.name}' has no counterpart in torch here")
        for name, part in convert_layer(layer, len(values), self.texts).items():
            result = f"value {len(self.steps)}"
            while result in self.sources:
                result += "'"
            self.steps.append(GraphStep(name, result, part, tuple(map(Ref, values))))
            values = [result]
        return list(values)


_MAX_BATCH_ROWS = 4096  # of one prediction by Keras; fewer if a layer makes many numbers of each
_MAX_BATCH_NUMBERS = 1 << 26
_MEMBERS = {"metadata.json", "config.json", "model.weights.h5"}  # of a .keras archive, besides the folder assets


def open_source(request: OpenRequest) -> OpenedModel:
    """Read a Keras model; layers that hold Python code are loaded only if the file is trusted."""
    return _open_model(request, _load_model(request), None)


def is_keras(model: Any) -> bool:
    """Return whether something is a Keras model; on torch, it is a torch module as well."""
    return any(c.__name__ == "Model" and c.__module__.partition(".")[0] == "keras" for c in type(model).__mro__)


def open_object(request: OpenRequest, model: Any) -> OpenedModel:
    """Open a Keras model in memory; its fingerprint covers its configuration and weights."""
    digest = hashlib.sha256(json.dumps(model.get_config(), default=str, sort_keys=True).encode())
    for weight in model.get_weights():
        digest.update(np.ascontiguousarray(weight).tobytes())
    return _open_model(request, model, digest.hexdigest())


def _open_model(request: OpenRequest, model: Any, digest: str | None) -> OpenedModel:
    try:
        inputs = _list_model_inputs(model)
        text_names = {i.name for i in inputs if i.kind == "text"}
        attributes = [attribute for attribute in request.domain.attributes if attribute.name in text_names]
        texts = list(dict.fromkeys(word for attribute in attributes for word in list_texts(attribute)))
        columns = graph_inputs(request, inputs, raw="all" if _has_preprocessing(model) else "named", texts=texts)
    except Unsupported as refusal:  # a model that does not describe its inputs
        columns = preprocessed_tensors(request) if request.preprocess is not None else None
        scores = _make_keras_scores(request, model, columns, ())
        return make_black_box(request, "Keras", scores, str(refusal), digest=digest)
    width = inputs[0].shape
    if columns is None and len(width) == 1 and width[0] != TableEncoding.of(request.domain).width:
        raise request.error(f"expects {width[0]} inputs. {request.width_text()}")
    scores = _make_keras_scores(request, model, columns, texts)
    try:
        graph = _GraphBuilder([i.name for i in inputs], texts).graph(model)
        check_full_pass(request, graph, (columns or declared_numbers(request)).of_rows(request.random_rows[:1]))
    except Unsupported as refusal:
        reason = "; ".join(filter(None, (str(refusal), "" if columns is None else columns.note)))
        try:
            return make_black_box(request, "Keras", scores, reason, digest=digest)
        except ModelError as error:
            raise ModelError(f"{error}; and {reason}") from error
    if columns is not None and texts and require("keras", "keras").config.backend() != "tensorflow":
        remark = "not compared with Keras itself, which takes text with TensorFlow only"
        result = open_with_inputs(request, "Keras", graph, columns, remark=remark)
    elif columns is not None:
        result = open_with_inputs(request, "Keras", graph, columns, source=scores)
    else:
        result = compare_with_source(request, open_module(request, "Keras", graph), scores, digest or "")
    return result if digest is None else replace(result, fingerprint=digest)


def _has_preprocessing(model: Any) -> bool:
    """Return whether a model scales its inputs itself, so that it takes unscaled numbers."""
    inner = (part for layer in model.layers for part in (layer, *getattr(layer, "layers", ())))
    return any(type(part).__name__ in ("Normalization", "Rescaling", "Discretization") for part in inner)


def list_names(file: ModelFile) -> list[str] | None:
    """Return the names of a model's inputs, if each is a column."""
    return list_input_names(_load_model(file))


def _load_model(request: ModelFile) -> Any:
    os.environ.setdefault("KERAS_BACKEND", "torch")  # read once, when Keras is imported
    keras = require("keras", "keras")
    content = _check_content(request)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # Keras warns about optimizers in old files, which are not used
        path = Path(folder) / f"model{request.path.suffix.lower()}"
        path.write_bytes(content)  # so that Keras reads the bytes that were checked
        options = {"compile": False, "safe_mode": not request.trust_pickle, "custom_objects": make_stand_ins(keras)}
        try:
            if keras.config.backend() == "torch":
                # Without memory for the numbers first: a layer may be declared with more than the file holds.
                with keras.device("meta"):
                    keras.saving.load_model(path, **options)
            return keras.saving.load_model(path, **options)
        except Exception as error:  # a damaged file can fail anywhere in the reader
            text = one_line(error)
            if "safe_mode" in text or "Lambda" in text or "lambda" in text:
                raise request.error(
                    "holds a layer with Python code (Lambda), which would run when opened. If you trust the file: "
                    "--trust-pickle"
                ) from error
            raise request.error(f"not a readable Keras file ({type(error).__name__}: {text})") from error


def _check_content(request: ModelFile) -> bytes:
    """Return the content of the file, with its archive unpacked, after a check in a sandbox."""
    content = weights = request.content
    try:
        if request.path.suffix.lower() == ".keras":
            files = read_members(content, request.source, times=2)
            unknown = [name for name in files if name not in _MEMBERS and not name.startswith("assets/")]
            if unknown:
                raise ValueError(f"the archive holds '{unknown[0]}'")
            check_size(len(files["config.json"]), request.source, times=TREE_FACTOR)
            files["config.json"] = json.dumps(json.loads(files["config.json"], object_hook=_use_stand_in)).encode()
            content, weights = repack(files), files["model.weights.h5"]
        read_sandboxed("hdf5", weights, request.source)
        if content is request.content:
            content = _convert_to_keras3(content)
    except TooLargeError:
        raise
    except Exception as error:  # a damaged archive can fail anywhere in the reader
        raise request.error(f"not a readable Keras file ({one_line(error)})") from error
    return content


def _convert_to_keras3(content: bytes) -> bytes:
    """Return an HDF5 file that Keras 1 or 2 has written, its layers described as Keras 3 reads them."""
    buffer = io.BytesIO(content)
    with require("h5py", "keras").File(buffer, "r+") as file:
        texts = (file.attrs.get(name, "") for name in ("keras_version", "model_config"))
        version, config = (text.decode() if isinstance(text, bytes) else str(text) for text in texts)
        if not version.startswith(("1.", "2.")) or not config:
            return content
        file.attrs["model_config"] = json.dumps(json.loads(config, object_hook=_convert_entry_to_keras3))
    return buffer.getvalue()


def _convert_entry_to_keras3(entry: Entry) -> Entry:
    """Return a part of an old model's description for Keras 3, without the initializers of weights."""
    entry = {name: value for name, value in entry.items() if not name.endswith("_initializer")}
    layers, axis = entry.get("config"), entry.get("axis")
    if entry.get("class_name") == "Sequential" and isinstance(layers, list):
        layers = entry["config"] = {"name": "sequential", "layers": layers}
    if entry.get("class_name") == "Sequential" and isinstance(layers, dict) and layers.get("layers"):
        first = layers["layers"][0]
        if first["class_name"] != "InputLayer" and "batch_input_shape" in first["config"]:
            layer = {"name": "given", "batch_shape": first["config"].pop("batch_input_shape"), "dtype": "float32"}
            layers["layers"].insert(0, {"class_name": "InputLayer", "config": layer})
    if entry.get("class_name") == "Model" and isinstance(layers, dict) and "layers" in layers:
        entry["class_name"] = "Functional"
    if isinstance(axis, list) and len(axis) == 1:
        entry["axis"] = axis[0]
    return entry


def _use_stand_in(entry: Entry) -> Entry:
    return entry | {"registered_name": entry["class_name"]} if entry.get("class_name") in LOOKUPS else entry


def _list_model_inputs(model: Any) -> list[NetworkInput]:
    """Return the inputs that a model describes, by the names under which they are passed."""
    if not getattr(model, "inputs", None):
        raise Unsupported(f"it is of the class '{type(model).__name__}', which says nothing of its inputs")
    structure = getattr(model, "_inputs_struct", None)
    names = {id(tensor): name for name, tensor in structure.items()} if isinstance(structure, dict) else {}
    network_inputs = []
    for tensor in model.inputs:
        kind: Any = "text" if tensor.dtype == "string" else "float" if "float" in str(tensor.dtype) else "whole"
        shape = tuple(tensor.shape[1:])
        if None in shape:
            raise Unsupported("its inputs have no fixed width")
        network_inputs.append(NetworkInput(str(names.get(id(tensor), tensor.name)), kind, shape))
    return network_inputs


def _make_keras_scores(
    request: OpenRequest, model: Any, inputs: ModelInputs | None, texts: Sequence[str]
) -> ModelInputs:
    """Return the scores by Keras itself."""
    inputs, structure = inputs or declared_numbers(request), getattr(model, "_inputs_struct", None)
    words = np.array(list(texts) or [""], dtype=object)
    is_text = [tensor.dtype == "string" for tensor in getattr(model, "inputs", None) or ()] or [False]

    def arrays_of(tensors: Sequence[Tensor]) -> Any:
        if texts and require("keras", "keras").config.backend() != "tensorflow":
            raise ModelError("Keras takes text with TensorFlow only")
        numbers = zip(tensors, is_text, strict=True)
        arrays = [words[x.numpy()] if text else x.numpy() for x, text in numbers]
        if isinstance(structure, dict) and inputs.names:
            return dict(zip(inputs.names, arrays, strict=True))
        return arrays if len(arrays) > 1 else arrays[0]

    batch_size = max(1, min(_MAX_BATCH_ROWS, _MAX_BATCH_NUMBERS // _find_widest_layer(request, model)))

    def predict(tensors: Sequence[Tensor]) -> Any:
        with ignore_numpy_warning():
            return model.predict(arrays_of(tensors), batch_size=batch_size, verbose=0)

    return inputs.then(predict)


def _find_widest_layer(request: OpenRequest, model: Any) -> int:
    """Return how many numbers the widest layer makes of a row; refuse a model that would fill all memory."""
    widest = 1
    for layer in model.layers:
        tensors = [tensor for node in layer._inbound_nodes for tensor in node.output_tensors]
        widest = max([widest, *(math.prod(filter(None, tensor.shape[1:])) for tensor in tensors)])
        widest = max(widest, _find_widest_layer(request, layer) if hasattr(layer, "layers") else 1)
    check_size(widest, f"{request.source}, one row", times=8)
    return widest
