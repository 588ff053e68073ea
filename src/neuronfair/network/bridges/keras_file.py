"""Keras 3 files: straight-line models of ordinary layers become torch modules, others black boxes."""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Container
from typing import Any

from torch import Tensor, nn

from neuronfair.network.bridges.apart import read_apart
from neuronfair.network.bridges.graph import Unsupported
from neuronfair.network.bridges.keras_layers import convert, without_numpy_warning
from neuronfair.network.bridges.opened import Opened, Request, needs, one_line
from neuronfair.network.bridges.tables import Frames
from neuronfair.network.encoding import TableEncoding

# The HDF5 library can hang on a damaged file, also on one inside a .keras archive.
_READ = """
import h5py, io, zipfile
if sys.argv[1].lower().endswith(".keras"):
    archive = zipfile.ZipFile(sys.argv[1])
    files = [io.BytesIO(archive.read(name)) for name in archive.namelist() if name.endswith(".h5")]
else:
    files = [sys.argv[1]]
for place in files:
    with h5py.File(place) as file:
        dict(file.attrs)
        file.visititems(lambda _, item: (dict(item.attrs), isinstance(item, h5py.Dataset) and item[()]) and None)
"""


def open(request: Request) -> Opened:  # noqa: A001 - each bridge has a function of this name
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


def _free(name: str, taken: Container[str]) -> str:
    return name if name not in taken else _free(f"{name}_", taken)


def _load(request: Request) -> Any:
    os.environ.setdefault("KERAS_BACKEND", "torch")  # read once, when Keras is imported
    keras = needs("keras", "keras")
    read_apart(request, _READ, "Keras file")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old files make Keras talk about optimizers, which play no part here
        try:
            return keras.saving.load_model(request.path, compile=False, safe_mode=not request.trust_pickle)
        except Exception as error:  # a damaged file can fail anywhere in the reader
            text = one_line(error)
            if "safe_mode" in text or "Lambda" in text or "lambda" in text:
                raise request.error(
                    "holds a layer with Python code (Lambda), which would run when opened. If you trust the file: "
                    "--trust-pickle"
                ) from error
            raise request.error(f"not a readable Keras file ({type(error).__name__}: {text})") from error


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

    def ask(rows: Tensor) -> Any:
        with without_numpy_warning():
            return model.predict(given(rows), batch_size=4096, verbose=0)

    return ask, told
