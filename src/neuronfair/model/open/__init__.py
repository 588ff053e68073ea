"""Open any model: our own weights, torch, ONNX, Keras, scikit-learn, XGBoost, or a function."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError, did_you_mean
from neuronfair.model.decision import Decision
from neuronfair.model.open.opened import Opened, Request

__all__ = ["Opened", "open_model"]

# Which module of this package reads which files; each has a function open(request).
_READERS = {
    ".safetensors": "own",
    ".npz": "own",
    ".pt2": "exported",
    ".onnx": "onnx_file",
    ".keras": "keras_file",
    ".h5": "keras_file",
    ".hdf5": "keras_file",
    ".skops": "scikit",
    ".joblib": "scikit",
    ".pkl": "scikit",
    ".pickle": "scikit",
    ".ubj": "boosted",
    ".json": "boosted",
}
_WITHOUT_PREPROCESS = {"own", "boosted"}
_IMPORTABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_PICKLED_TORCH = {".pt", ".pth", ".ckpt", ".bin"}


def open_model(
    model: Any,
    domain: TableDomain,
    rows: Tensor,
    *,
    weights: Path | None = None,
    trust_pickle: bool = False,
    device: str = "cpu",
    decision: Decision | None = None,
    preprocess: Callable[[Any], Any] | str | None = None,
) -> Opened:
    """Open a model for the people of a domain: a file, `package.module:name`, or one that is in memory.

    In memory it may be a torch module, a Keras or a fitted scikit-learn model, or a function from a pandas table to
    scores. `preprocess` is how a table became the model's inputs when it was trained: a function (or its
    `package.module:name`) from a DataFrame to a tensor, a tuple or a dictionary of them.
    `rows` are rows of the table, on which the model is tried. `weights` is a safetensors file for a torch module that
    `package.module:name` makes. Files that can run a program when opened are refused unless `trust_pickle` is set.
    `decision` replaces what the outputs suggest: the largest score, or a threshold for a single one.
    """
    if isinstance(model, Opened):
        return replace(model, decision=decision or model.decision)
    in_memory = not isinstance(model, (str, Path))
    source = getattr(model, "__qualname__", type(model).__name__) if in_memory else str(model)
    if not len(rows):
        raise ModelError(f"{source}: there are no rows to try the model on")
    request = Request(source, domain, rows, weights, trust_pickle, device, decision)
    if isinstance(preprocess, str):
        preprocess = _imported(request, preprocess)
    request = replace(request, preprocess=preprocess)
    if in_memory:
        from neuronfair.model.open.imported import open_object

        return open_object(request, model)
    path = request.path
    if _IMPORTABLE.fullmatch(request.source) and not path.exists():
        return _reader("imported")(request)
    if weights is not None:
        raise request.error("--weights belongs to a torch module given as package.module:name")
    if path.is_dir():
        raise request.error("is a folder, not a model file")
    suffix = path.suffix.lower()
    if not path.is_file():
        known = "" if suffix in _READERS else f" A model is a file ({', '.join(_READERS)}) or package.module:name"
        raise request.error(f"there is no such file.{known}")
    if suffix in _PICKLED_TORCH:
        raise request.error(
            "pickled models are refused, because opening one runs any program hidden in it. Name the function that "
            "makes the module (package.module:name) with its weights as safetensors, or save it with torch.export"
        )
    if suffix not in _READERS:
        raise request.error(f"a file that ends in '{suffix}' is no model. {did_you_mean(suffix, _READERS)}")
    if preprocess is not None and _READERS[suffix] in _WITHOUT_PREPROCESS:
        raise request.error(
            f"preprocess is for torch, Keras, ONNX and scikit-learn models; '{suffix}' files take no part"
        )
    return _reader(_READERS[suffix])(request)


def _imported(request: Request, name: str) -> Callable[[Any], Any]:
    found = import_module("neuronfair.model.open.imported").imported(request, name) if ":" in name else None
    if not callable(found):
        raise request.error(f"--preprocess {name}: expected package.module:name of a function of a DataFrame")
    function: Callable[[Any], Any] = found
    return function


def _reader(name: str) -> Callable[[Request], Opened]:
    reader: Callable[[Request], Opened] = import_module(f"neuronfair.model.open.{name}").open
    return reader
