"""Open a model of any kind: own weights, torch, ONNX, Keras, scikit-learn, boosted trees, or a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import ModelError
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision
from neuronfair.model.formats import WEIGHTS_READER, ModelFile, find_reader
from neuronfair.model.network import Network
from neuronfair.model.open.names import list_input_names, source_of
from neuronfair.model.open.opened import (
    OpenedModel,
    OpenRequest,
    add_preprocess_fingerprint,
    extend_to_domain,
    restrict_to_inputs,
)

__all__ = ["OpenedModel", "feature_names", "wrap_model"]


def wrap_model(
    model: Any,
    domain: TableDomain,
    rows: Tensor | Dataset,
    *,
    weights: Path | None = None,
    trust_pickle: bool = False,
    device: str = "cpu",
    decision: Decision | None = None,
    preprocess: Callable[[Any], Any] | str | None = None,
) -> OpenedModel:
    """Open a model for the rows of a domain: a file, `package.module:name`, or an object in memory.

    An object may be a torch module, a Keras model, a fitted scikit-learn model, or a function from a pandas table to
    scores. `preprocess` makes the model's inputs of a table, as in its training: a function (or its
    `package.module:name`) from a DataFrame to a tensor, a tuple or a dictionary of tensors. The model is tried on
    `rows`; with a `Dataset`, a model that reads tables gets the names and dtypes of the table that was read, and one
    without input names gets the table's own numbers unless an encoding is declared. `weights` is a safetensors file for
    a torch module that `package.module:name` makes. Files that can run a program when opened are refused unless
    `trust_pickle` is set. `decision` replaces the default: the class of the largest score, or a threshold for a single
    one. Attributes with encode "none" are no inputs of the model.
    """
    if isinstance(model, OpenedModel):
        return replace(model, decision=decision or model.decision)
    in_memory, source = not isinstance(model, (str, Path)), source_of(model)
    types, inferred = (rows.types, rows.inferred) if isinstance(rows, Dataset) else ({}, False)
    rows = rows.rows if isinstance(rows, Dataset) else rows
    if not len(rows):
        raise ModelError(f"{source}: there are no rows to try the model on")
    full = OpenRequest(
        source, domain, rows, weights, device, decision, types=types, inferred=inferred, trust_pickle=trust_pickle
    )
    if isinstance(preprocess, str):
        preprocess = _import_preprocess(full, preprocess)
    full = replace(full, preprocess=preprocess)
    # Networks and black boxes are made for rows of the whole domain.
    request = full if isinstance(model, (Network, BlackBox)) else restrict_to_inputs(full)
    if in_memory:
        result: OpenedModel = _import_reader("user_code").open_object(request, model)
    else:
        name = find_reader(source, weights=weights, trust_pickle=trust_pickle)
        if preprocess is not None and name == WEIGHTS_READER:
            raise request.error("preprocess is not for weights of this package, whose inputs the domain declares")
        module, _, function = name.partition(":")
        result = getattr(_import_reader(module), function)(request)
    if request is not full:
        result = extend_to_domain(full, result)
    return add_preprocess_fingerprint(result, preprocess)


def feature_names(model: Any, *, trust_pickle: bool = False) -> tuple[str, ...] | None:
    """Return the names of the inputs of a model, or of a model in a file.

    None if they have none, or if only a call would make the model.
    """
    if not isinstance(model, (str, Path)):
        names = list_input_names(model)
    else:
        file = ModelFile(str(model), trust_pickle=trust_pickle)
        reader = _import_reader(find_reader(file.source, trust_pickle=trust_pickle).partition(":")[0])
        names = reader.list_names(file) if hasattr(reader, "list_names") else None
    return None if names is None else tuple(names)


def _import_reader(name: str) -> ModuleType:
    return import_module(f"{__name__}.{name}")


def _import_preprocess(request: OpenRequest, name: str) -> Callable[[Any], Any]:
    function: Callable[[Any], Any] | None = None
    if ":" in name:
        function = _import_reader("user_code").import_object(request, name)
    if not callable(function):
        raise request.error(f"--preprocess {name}: expected package.module:name of a function of a DataFrame")
    return function
