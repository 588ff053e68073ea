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
from neuronfair.model.open.graphs.keras_layers import LOOKUPS, convert, stand_ins, without_numpy_warning
from neuronfair.model.open.names import list_input_names
from neuronfair.model.open.opened import ModelInputs, OpenedModel, Request, compare_with_source, make_black_box
from neuronfair.model.open.tensors import NetworkInput, graph_inputs, list_texts, preprocessed_tensors
from neuronfair.model.open.torch_modules import open_module, open_with_inputs
from neuronfair.sandbox import read_sandboxed

DEPTH = 20  # of models in models
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
        kind, own = type(model).__name__, type(model).__module__.partition(".")[0] == "keras"
        if depth > DEPTH:
            raise Unsupported(f"more than {DEPTH} models in models")
        if kind == "Sequential" and own:
            for layer in model.layers:
                values = self.layer(layer, values, depth)
            return list(values)
        if kind != "Functional" or not own:
            raise Unsupported(f"it is of the class '{kind}', whose layers may be joined in any way")
        known = {id(tensor): value for tensor, value in zip(model.inputs, values, strict=True)}
        for _, nodes in sorted(model._nodes_by_depth.items(), reverse=True):
            for node in nodes:
                if type(node.operation).__name__ == "InputLayer":
                    continue
                options = [name for name, value in node.arguments.kwargs.items() if value not in (None, False)]
                if options and hasattr(node.operation, "trainable"):  # a layer; an operation is refused by its name
                    raise Unsupported(f"its layer '{node.operation.name}' is called with {options[0]}=")
                made = self.layer(node.operation, [known[id(tensor)] for tensor in node.input_tensors], depth)
                known |= {id(tensor): value for tensor, value in zip(node.output_tensors, made, strict=True)}
        return [known[id(tensor)] for tensor in model.outputs]

    def layer(self, layer: Any, values: Sequence[str], depth: int) -> list[str]:
        """Add the steps of a layer with these inputs; return the names of its outputs."""
        if type(layer).__name__ in ("Sequential", "Functional"):
            return self.model(layer, values, depth + 1)
        if not isinstance(layer, require("keras", "keras").layers.Layer):
            raise Unsupported(f"its operation '{layer.name}' has no counterpart in torch here")
        for name, part in convert(layer, len(values), self.texts).items():
            result = f"value {len(self.steps)}"
            while result in self.sources:
                result += "'"
            self.steps.append(GraphStep(name, result, part, tuple(map(Ref, values))))
            values = [result]
        return list(values)


_ROWS = 4096  # of one prediction by Keras; fewer if a layer makes many numbers of each
_NUMBERS = 1 << 26
_MEMBERS = {"metadata.json", "config.json", "model.weights.h5"}  # of a .keras archive, besides the folder assets


def open(request: Request) -> OpenedModel:  # noqa: A001 - each reader has a function of this name
    """Read a Keras model; layers that hold Python code are loaded only if the file is trusted."""
    return _open(request, _load(request), None)


def is_keras(thing: Any) -> bool:
    """Return whether something is a Keras model; on torch, it is a torch module as well."""
    return any(c.__name__ == "Model" and c.__module__.partition(".")[0] == "keras" for c in type(thing).__mro__)


def open_object(request: Request, model: Any) -> OpenedModel:
    """Open a Keras model in memory; its fingerprint covers its configuration and weights."""
    known = hashlib.sha256(json.dumps(model.get_config(), default=str, sort_keys=True).encode())
    for weight in model.get_weights():
        known.update(np.ascontiguousarray(weight).tobytes())
    return _open(request, model, known.hexdigest())


def _open(request: Request, model: Any, known: str | None) -> OpenedModel:
    try:
        inputs = _inputs(model)
        read = {i.name for i in inputs if i.kind == "text"}
        texts = list(dict.fromkeys(word for a in request.domain.attributes if a.name in read for word in list_texts(a)))
        found = graph_inputs(request, inputs, raw="all" if _prepares(model) else "named", texts=texts)
    except Unsupported as reason:  # a model that does not describe its inputs
        found = preprocessed_tensors(request) if request.preprocess is not None else None
        return make_black_box(request, "Keras", _scores_of(request, model, found, ()), str(reason), digest=known)
    width = inputs[0].shape
    if found is None and len(width) == 1 and width[0] != TableEncoding.of(request.domain).width:
        raise request.error(f"expects {width[0]} inputs. {request.width_text()}")
    scores = _scores_of(request, model, found, texts)
    try:
        graph = _GraphBuilder([i.name for i in inputs], texts).graph(model)
        check_full_pass(request, graph, (found or declared_numbers(request)).of_rows(request.random_rows[:1]))
    except Unsupported as reason:
        why = "; ".join(filter(None, (str(reason), "" if found is None else found.note)))
        try:
            return make_black_box(request, "Keras", scores, why, digest=known)
        except ModelError as error:
            raise ModelError(f"{error}; and {why}") from error
    if found is not None and texts and require("keras", "keras").config.backend() != "tensorflow":
        remark = "not compared with Keras itself, which takes text with TensorFlow only"
        opened = open_with_inputs(request, "Keras", graph, found, remark=remark)
    elif found is not None:
        opened = open_with_inputs(request, "Keras", graph, found, source=scores)
    else:
        opened = compare_with_source(request, open_module(request, "Keras", graph), scores, known or "")
    return opened if known is None else replace(opened, fingerprint=known)


def _prepares(model: Any) -> bool:
    """Return whether a model scales its inputs itself, so that it takes unscaled numbers."""
    inner = (part for layer in model.layers for part in (layer, *getattr(layer, "layers", ())))
    return any(type(part).__name__ in ("Normalization", "Rescaling", "Discretization") for part in inner)


def names(file: ModelFile) -> list[str] | None:
    """Return the names of a model's inputs, if each is a column."""
    return list_input_names(_load(file))


def _load(request: ModelFile) -> Any:
    os.environ.setdefault("KERAS_BACKEND", "torch")  # read once, when Keras is imported
    keras = require("keras", "keras")
    content = _checked(request)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # Keras warns about optimizers in old files, which are not used
        path = Path(folder) / f"model{request.path.suffix.lower()}"
        path.write_bytes(content)  # so that Keras reads the bytes that were checked
        options = {"compile": False, "safe_mode": not request.trust_pickle, "custom_objects": stand_ins(keras)}
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


def _checked(request: ModelFile) -> bytes:
    """Return the content of the file, with its archive unpacked, after a check in a sandbox."""
    content = weights = request.content
    try:
        if request.path.suffix.lower() == ".keras":
            files = read_members(content, request.source, times=2)
            odd = [name for name in files if name not in _MEMBERS and not name.startswith("assets/")]
            if odd:
                raise ValueError(f"the archive holds '{odd[0]}'")
            check_size(len(files["config.json"]), request.source, times=TREE_FACTOR)
            files["config.json"] = json.dumps(json.loads(files["config.json"], object_hook=_with_stand_in)).encode()
            content, weights = repack(files), files["model.weights.h5"]
        read_sandboxed("hdf5", weights, request.source)
        if content is request.content:
            content = _as_keras3(content)
    except TooLargeError:
        raise
    except Exception as error:  # a damaged archive can fail anywhere in the reader
        raise request.error(f"not a readable Keras file ({one_line(error)})") from error
    return content


def _as_keras3(content: bytes) -> bytes:
    """Return an HDF5 file that Keras 1 or 2 has written, its layers described as Keras 3 reads them."""
    held = io.BytesIO(content)
    with require("h5py", "keras").File(held, "r+") as file:
        texts = (file.attrs.get(name, "") for name in ("keras_version", "model_config"))
        version, config = (text.decode() if isinstance(text, bytes) else str(text) for text in texts)
        if not version.startswith(("1.", "2.")) or not config:
            return content
        file.attrs["model_config"] = json.dumps(json.loads(config, object_hook=_entry_as_keras3))
    return held.getvalue()


def _entry_as_keras3(entry: Entry) -> Entry:
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


def _with_stand_in(entry: Entry) -> Entry:
    return entry | {"registered_name": entry["class_name"]} if entry.get("class_name") in LOOKUPS else entry


def _inputs(model: Any) -> list[NetworkInput]:
    """Return the inputs that a model describes, by the names under which they are passed."""
    if not getattr(model, "inputs", None):
        raise Unsupported(f"it is of the class '{type(model).__name__}', which says nothing of its inputs")
    named = getattr(model, "_inputs_struct", None)
    names = {id(tensor): name for name, tensor in named.items()} if isinstance(named, dict) else {}
    found = []
    for tensor in model.inputs:
        kind: Any = "text" if tensor.dtype == "string" else "float" if "float" in str(tensor.dtype) else "whole"
        shape = tuple(tensor.shape[1:])
        if None in shape:
            raise Unsupported("its inputs have no fixed width")
        found.append(NetworkInput(str(names.get(id(tensor), tensor.name)), kind, shape))
    return found


def _scores_of(request: Request, model: Any, inputs: ModelInputs | None, texts: Sequence[str]) -> ModelInputs:
    """Return the scores by Keras itself."""
    inputs, named = inputs or declared_numbers(request), getattr(model, "_inputs_struct", None)
    words = np.array(list(texts) or [""], dtype=object)
    is_text = [tensor.dtype == "string" for tensor in getattr(model, "inputs", None) or ()] or [False]

    def arrays_of(tensors: Sequence[Tensor]) -> Any:
        if texts and require("keras", "keras").config.backend() != "tensorflow":
            raise ModelError("Keras takes text with TensorFlow only")
        numbers = zip(tensors, is_text, strict=True)
        arrays = [words[x.numpy()] if text else x.numpy() for x, text in numbers]
        if isinstance(named, dict) and inputs.names:
            return dict(zip(inputs.names, arrays, strict=True))
        return arrays if len(arrays) > 1 else arrays[0]

    most = max(1, min(_ROWS, _NUMBERS // _widest(request, model)))

    def predict(tensors: Sequence[Tensor]) -> Any:
        with without_numpy_warning():
            return model.predict(arrays_of(tensors), batch_size=most, verbose=0)

    return inputs.then(predict)


def _widest(request: Request, model: Any) -> int:
    """Return how many numbers the widest layer makes of a row; refuse a model that would fill all memory."""
    widest = 1
    for layer in model.layers:
        tensors = [tensor for node in layer._inbound_nodes for tensor in node.output_tensors]
        widest = max([widest, *(math.prod(filter(None, tensor.shape[1:])) for tensor in tensors)])
        widest = max(widest, _widest(request, layer) if hasattr(layer, "layers") else 1)
    check_size(widest, f"{request.source}, one row", times=8)
    return widest
