"""Open a model of any kind: own weights, torch, ONNX, Keras, scikit-learn, boosted trees, or a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import ModelError
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision
from neuronfair.model.formats import OWN_WEIGHTS, reader_of
from neuronfair.model.network import Network
from neuronfair.model.open.opened import (
    ModelFile,
    Opened,
    Request,
    for_whole_domain,
    restricted_to_inputs,
    with_preprocess,
)

__all__ = ["Opened", "wrap_model"]


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
) -> Opened:
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
    if isinstance(model, Opened):
        return replace(model, decision=decision or model.decision)
    in_memory = not isinstance(model, (str, Path))
    source = getattr(model, "__qualname__", type(model).__name__) if in_memory else str(model)
    types, inferred = (rows.types, rows.inferred) if isinstance(rows, Dataset) else ({}, False)
    rows = rows.rows if isinstance(rows, Dataset) else rows
    if not len(rows):
        raise ModelError(f"{source}: there are no rows to try the model on")
    request = Request(source, domain, rows, weights, device, decision, trust_pickle=trust_pickle)
    request = replace(request, types=types, inferred=inferred)
    if isinstance(preprocess, str):
        preprocess = _imported(request, preprocess)
    whole = replace(request, preprocess=preprocess)
    if isinstance(model, (Network, BlackBox)):  # made for rows of the whole domain
        return with_preprocess(import_module(f"{__name__}.user_code").open_object(whole, model), preprocess)
    request = restricted_to_inputs(whole)
    if in_memory:
        opened: Opened = import_module(f"{__name__}.user_code").open_object(request, model)
        return with_preprocess(for_whole_domain(whole, opened), preprocess)
    name = reader_of(request.source, weights=weights, trust_pickle=trust_pickle)
    if preprocess is not None and name == OWN_WEIGHTS:
        raise request.error("preprocess is not for weights of this package, whose inputs the domain declares")
    module, _, function = name.partition(":")
    opened = getattr(import_module(f"{__name__}.{module}"), function)(request)
    return with_preprocess(for_whole_domain(whole, opened), preprocess)


def names_in(file: ModelFile) -> Sequence[str] | None:
    """Return the names of the inputs of a model in a file; None if it has none, or is made by a call only."""
    module = reader_of(file.source, trust_pickle=file.trust_pickle).partition(":")[0]
    reader = import_module(f"{__name__}.{module}")
    names: Sequence[str] | None = reader.names(file) if hasattr(reader, "names") else None
    return names


def _imported(request: Request, name: str) -> Callable[[Any], Any]:
    found = import_module(f"{__name__}.user_code").imported(request, name) if ":" in name else None
    if not callable(found):
        raise request.error(f"--preprocess {name}: expected package.module:name of a function of a DataFrame")
    function: Callable[[Any], Any] = found
    return function
