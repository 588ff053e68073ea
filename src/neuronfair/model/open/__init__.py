"""Open any model: our own weights, torch, ONNX, Keras, scikit-learn, boosted trees, or a function."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError, did_you_mean
from neuronfair.model.decision import Decision
from neuronfair.model.open.opened import File, Opened, Request

__all__ = ["Opened", "open_model"]

# Which module of this package reads which files. Each has a function open(request), and names(file) if a file may say
# what its inputs are called.
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
    ".txt": "lightgbm_file",
    ".cbm": "catboost_file",
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
    request = Request(source, domain, rows, weights, device, decision, trust_pickle=trust_pickle)
    if isinstance(preprocess, str):
        preprocess = _imported(request, preprocess)
    request = replace(request, preprocess=preprocess)
    if in_memory:
        from neuronfair.model.open.imported import open_object

        return open_object(request, model)
    if weights is not None and not _is_importable(request):
        raise request.error("--weights belongs to a torch module given as package.module:name")
    opened: Opened = _reader(request).open(request)
    return opened


def names_in(file: File) -> Sequence[str] | None:
    """Return the names that a model gives to its inputs; None if it gives them none, or is not made yet."""
    reader = _reader(file)
    names: Sequence[str] | None = reader.names(file) if hasattr(reader, "names") else None
    return names


def _is_importable(file: File) -> bool:
    return bool(_IMPORTABLE.fullmatch(file.source)) and not file.path.exists()


def _reader(file: File) -> ModuleType:
    """Return the module that reads a model; refuse what is none, in no time."""
    path, suffix = file.path, file.path.suffix.lower()
    if _is_importable(file):
        return import_module("neuronfair.model.open.imported")
    if path.is_dir():
        raise file.error("is a folder, not a model file")
    if not path.is_file():
        known = "" if suffix in _READERS else f" A model is a file ({', '.join(_READERS)}) or package.module:name"
        raise file.error(f"there is no such file.{known}")
    if suffix in _PICKLED_TORCH:
        raise file.error(
            "pickled models are refused, because opening one runs any program hidden in it. Name the function that "
            "makes the module (package.module:name) with its weights as safetensors, or save it with torch.export"
        )
    if suffix not in _READERS:
        raise file.error(f"a file that ends in '{suffix}' is no model. {did_you_mean(suffix, _READERS)}")
    if isinstance(file, Request) and file.preprocess is not None and _READERS[suffix] in _WITHOUT_PREPROCESS:
        raise file.error(f"preprocess is for torch, Keras, ONNX and scikit-learn models; '{suffix}' files take no part")
    return import_module(f"neuronfair.model.open.{_READERS[suffix]}")


def _imported(request: Request, name: str) -> Callable[[Any], Any]:
    found = import_module("neuronfair.model.open.imported").imported(request, name) if ":" in name else None
    if not callable(found):
        raise request.error(f"--preprocess {name}: expected package.module:name of a function of a DataFrame")
    function: Callable[[Any], Any] = found
    return function
