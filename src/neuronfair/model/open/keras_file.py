"""Keras 3 files: straight-line models of ordinary layers become torch modules, others black boxes."""

from __future__ import annotations

import math
import os
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from neuronfair.apart import read_apart
from neuronfair.errors import needs, one_line
from neuronfair.limits import TREE, TooLarge, check_size, members, repacked
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open.columns import input_names
from neuronfair.model.open.frames import Frames
from neuronfair.model.open.graph import Unsupported
from neuronfair.model.open.keras_layers import convert, without_numpy_warning
from neuronfair.model.open.opened import File, Opened, Request

_ROWS = 4096  # that Keras is asked about at once, and fewer if a layer makes many numbers of each
_NUMBERS = 1 << 26
_MEMBERS = {"metadata.json", "config.json", "model.weights.h5"}  # of a .keras archive, besides the folder assets


def open(request: Request) -> Opened:  # noqa: A001 - each reader has a function of this name
    """Read a Keras model; layers that hold Python code are loaded only if the file is trusted."""
    model = _load(request)
    try:
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        for layer in _straight(model):
            for name, part in convert(layer).items():
                parts[_free(name.replace(".", "_"), parts)] = part
        module = nn.Sequential(parts)
    except Unsupported as reason:
        ask, told = _predictor(request, model)
        return request.black_box("Keras", ask, "; ".join(filter(None, (str(reason), told))))
    width = model.input_shape[1:]
    if len(width) == 1 and width[0] not in (None, TableEncoding.of(request.domain).width):
        raise request.error(f"expects {width[0]} inputs. {request.widths()}")
    opened = request.white_box("Keras", module.float().eval())
    ask, _ = _predictor(request, model)
    if request.reproduced(opened, ask):
        return opened
    return request.black_box("Keras", ask, "its scores could not be reproduced in torch")


def names(file: File) -> list[str] | None:
    """Return the names of a model's inputs, if each is a column."""
    return input_names(_load(file))


def _free(name: str, taken: Container[str]) -> str:
    return name if name not in taken else _free(f"{name}_", taken)


def _load(request: File) -> Any:
    os.environ.setdefault("KERAS_BACKEND", "torch")  # read once, when Keras is imported
    keras = needs("keras", "keras")
    content = _checked(request)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # old files make Keras talk about optimizers, which play no part here
        path = Path(folder) / f"model{request.path.suffix.lower()}"
        path.write_bytes(content)  # Keras is given what was checked, whatever becomes of the file meanwhile
        options = {"compile": False, "safe_mode": not request.trust_pickle}
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


def _checked(request: File) -> bytes:
    """Return the content of the file, its archive unpacked, after a look at it in another process."""
    content = weights = request.content
    try:
        if request.path.suffix.lower() == ".keras":
            files = members(content, request.source, times=2)
            odd = [name for name in files if name not in _MEMBERS and not name.startswith("assets/")]
            if odd:
                raise ValueError(f"the archive holds '{odd[0]}'")
            check_size(len(files["config.json"]), request.source, times=TREE)
            content, weights = repacked(files), files["model.weights.h5"]
        read_apart("hdf5", weights, request.source)
    except TooLarge:
        raise
    except Exception as error:  # a damaged archive can fail anywhere in the reader
        raise request.error(f"not a readable Keras file ({one_line(error)})") from error
    return content


def _straight(model: Any) -> list[Any]:
    """Return the layers of a model in which each layer is given what the one before has computed."""
    kind = type(model).__name__
    if kind == "Sequential":
        return [part for layer in model.layers for part in _inner(layer)]
    if kind != "Functional":
        raise Unsupported(f"it is of the class '{kind}', whose layers may be joined in any way")
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise Unsupported("it has several inputs or outputs")
    layers: list[Any] = []
    flowing = model.inputs[0]
    for layer in model.layers:
        if type(layer).__name__ == "InputLayer":
            continue
        here = [node for node in layer._inbound_nodes if any(tensor is flowing for tensor in node.input_tensors)]
        if len(here) != 1 or len(here[0].input_tensors) != 1:
            raise Unsupported(f"its layer '{layer.name}' is not on a straight line")
        flowing = here[0].output_tensors[0]
        layers += _inner(layer)
    if flowing is not model.outputs[0]:
        raise Unsupported("its layers do not form a straight line")
    return layers


def _inner(layer: Any) -> list[Any]:
    return _straight(layer) if type(layer).__name__ in ("Sequential", "Functional") else [layer]


def _predictor(request: Request, model: Any) -> tuple[Callable[[Tensor], Any], str]:
    """Return how to ask Keras itself, and a remark; with one input per column it is given columns of the table."""
    names = [tensor.name for tensor in model.inputs]
    told = ""
    if len(names) == 1:
        encoding = TableEncoding.of(request.domain.to("cpu"))

        def given(rows: Tensor) -> Any:
            return encoding.encode(rows.cpu()).numpy()
    else:
        frames = Frames(request.domain, names)
        told = "it is given columns of the table"

        def given(rows: Tensor) -> Any:
            return {name: column.to_numpy()[:, None] for name, column in frames.of_rows(rows).items()}

    most = max(1, min(_ROWS, _NUMBERS // _widest(request, model)))

    def ask(rows: Tensor) -> Any:
        with without_numpy_warning():
            return model.predict(given(rows), batch_size=most, verbose=0)

    return ask, told


def _widest(request: Request, model: Any) -> int:
    """Return how many numbers a layer makes of one row at most; refuse a model that would fill all memory."""
    widest = 1
    for layer in model.layers:
        tensors = [tensor for node in layer._inbound_nodes for tensor in node.output_tensors]
        widest = max([widest, *(math.prod(filter(None, tensor.shape[1:])) for tensor in tensors)])
        widest = max(widest, _widest(request, layer) if hasattr(layer, "layers") else 1)
    check_size(widest, f"{request.source}, one row", times=8)
    return widest
