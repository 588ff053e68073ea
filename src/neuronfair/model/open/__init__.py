"""Open any model: our own weights, torch, ONNX, Keras, scikit-learn, boosted trees, or a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError
from neuronfair.model.decision import Decision
from neuronfair.model.open.opened import Opened, Request
from neuronfair.model.open.returning import returnable
from neuronfair.model.sources import reader_of

__all__ = ["Opened", "open_model"]


def open_model(
    model: Any,
    domain: TableDomain,
    rows: Tensor,
    *,
    weights: Path | None = None,
    trust_pickle: bool = False,
    device: str = "cpu",
    decision: Decision | None = None,
) -> Opened:
    """Open a model for the people of a domain: a file, `package.module:name`, or one that is in memory.

    In memory it may be a torch module, a fitted scikit-learn model, or a function from a pandas table to scores.
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
    if in_memory:
        from neuronfair.model.open.imported import open_object

        return open_object(request, model)
    name = reader_of(request.source, weights=weights, trust_pickle=trust_pickle)
    reader: Callable[[Request], Opened] = import_module(f"neuronfair.model.open.{name}").open
    return returnable(request, name, reader(request))
