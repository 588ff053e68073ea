"""The inputs of a network that has several: by a function of the user's, by the names of columns, or by their types."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from neuronfair.domain.attribute import Attribute
from neuronfair.errors import ModelError, one_line
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open.frames import cells
from neuronfair.model.open.inputs import PREPROCESSED, ModelInputs, table_inputs
from neuronfair.model.open.request import Request

SHOWN = 6  # columns that a note names
MOST_TEXTS = 1 << 17  # values of an attribute that may be given as text
REMEDY = (
    "Say how a table becomes its inputs: a function from a DataFrame to a tensor, a tuple or a dictionary of them, as "
    "preprocess=… or --preprocess package.module:name"
)


Raw = Literal["none", "named", "all"]  # inputs that get numbers as in the table: none, those named as columns, or all


@dataclass(frozen=True)
class NetworkInput:
    """One input of a network: its name, what it takes, and its shape for one row, () for a single number."""

    name: str
    kind: Literal["float", "whole", "text"]
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """How many cells of a row it takes."""
        return int(np.prod(self.shape))


def call(module: nn.Module, names: Sequence[str], tensors: Sequence[Tensor]) -> Any:
    """Return what a module computes from tensors, by name or in their order; or from one dictionary of them."""
    if not names:
        return module(*tensors)
    named = dict(zip(names, tensors, strict=True))
    parameters = inspect.signature(module.forward).parameters
    by_name = set(names) <= set(parameters) or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return module(**named) if by_name else module(named)


def preprocessed_tensors(request: Request) -> ModelInputs:
    """Return what the user's own function makes of the table, as tensors."""
    function = request.preprocess
    assert function is not None

    def made(table: Any) -> Any:
        try:
            return function(table)
        except Exception as error:
            raise request.error(f"preprocess failed ({type(error).__name__}: {one_line(error)})") from error

    table = table_inputs(request)
    first = made(table.of_rows(request.tried[:2]))
    names = tuple(map(str, first)) if isinstance(first, Mapping) else ()

    def tensors(table: Any) -> list[Tensor]:
        parts = made(table)
        if names:
            parts = [parts[name] for name in names]
        found = [_tensor(request, part) for part in (parts if isinstance(parts, (tuple, list)) else [parts])]
        if odd := [tuple(t.shape) for t in found if t.dim() == 0 or len(t) != len(table)]:
            raise request.error(f"preprocess was given {len(table)} rows and made a tensor of shape {odd[0]} of them")
        return found

    return replace(table.then(tensors), names=names, note=PREPROCESSED, program="the function preprocess")


def _tensor(request: Request, part: Any) -> Tensor:
    try:
        tensor = part.detach().cpu() if isinstance(part, Tensor) else torch.from_numpy(np.array(part))
    except (TypeError, ValueError) as error:
        raise request.error(f"preprocess must make tensors or arrays of numbers ({one_line(error)})") from error
    return tensor.float() if tensor.is_floating_point() else tensor


def arguments(module: nn.Module) -> list[str]:
    """Return the names of the inputs that a module cannot do without."""
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # compiled code
        return ["x"]
    return [p.name for p in parameters if p.default is p.empty and p.kind in plain]


def graph_inputs(
    request: Request, inputs: Sequence[NetworkInput], *, raw: Raw = "none", texts: Sequence[str] = ()
) -> ModelInputs | None:
    """Return how the inputs that a file describes are made of rows; None for the numbers that the domain declares."""
    if request.preprocess is not None:
        return preprocessed_tensors(request)
    if len(inputs) == 1 and inputs[0].kind == "float" and inputs[0].name not in request.domain.names:
        return None
    return matched(request, inputs, raw=raw, texts=texts)


def column_inputs(request: Request, names: Sequence[str]) -> ModelInputs:
    """Return columns by the names of a module's arguments: labels as whole numbers (n,), other columns as (n, 1)."""
    if not set(names) <= set(request.domain.names):
        raise request.error(f"takes {', '.join(names)}, which cannot be told from the domain alone. {REMEDY}")
    columns = [request.domain.attributes[request.domain.column(name)] for name in names]
    whole, number = ("whole", ()), ("float", (1,))
    return matched(request, [NetworkInput(a.name, *(whole if a.values else number)) for a in columns])


def matched(
    request: Request, inputs: Sequence[NetworkInput], *, raw: Raw = "none", texts: Sequence[str] = ()
) -> ModelInputs:
    """Return how rows become the inputs that a file describes: columns by their names, or by what fits.

    Whole numbers are the places of labels among the values of the domain, or numbers as they are in the table. `raw`
    says which inputs get all numbers so, and not as the domain declares them: those that bear the names of columns, or
    all. A text is given as its place in `texts`.
    """
    domain = request.domain.to("cpu")
    if {i.name for i in inputs} <= set(domain.names) and all(i.width == 1 for i in inputs):
        taken = [[domain.attributes[domain.column(i.name)]] for i in inputs]
        note = "each input is the column of its name"
        if any(a.values and i.kind != "text" and _numbers(a) is None for i, (a,) in zip(inputs, taken, strict=True)):
            note += ", with labels as their places in the domain"
    else:
        taken = _by_kind(request, inputs)
        raw = "none" if raw == "named" else raw
        note = "; ".join(f"its input '{i.name}' is {_listed(i, a)}" for i, a in zip(inputs, taken, strict=True))
    as_is = raw != "none"
    makers = [[_column(request, a, i.kind, as_is, texts) for a in some] for i, some in zip(inputs, taken, strict=True)]

    def tensors(rows: Tensor) -> list[Tensor]:
        rows = rows.cpu()
        found = []
        for one, columns in zip(inputs, makers, strict=True):
            numbers = torch.stack([make(rows[:, place]) for place, make in columns], 1)
            numbers = numbers.float() if one.kind == "float" else numbers.round().long()
            found.append(numbers.reshape(len(rows), *one.shape))
        return found

    return ModelInputs(tensors, names=tuple(i.name for i in inputs), note=note)


def _label_sets(request: Request) -> list[list[Attribute]]:
    """Return which attributes may be given as whole numbers: those with labels, or those without an order and flags."""
    attributes = request.domain.attributes
    sets = [[a for a in attributes if a.values], [a for a in attributes if a.kind in ("nominal", "flag")]]
    return sets if sets[0] != sets[1] else sets[:1]


def _by_kind(request: Request, inputs: Sequence[NetworkInput]) -> list[list[Attribute]]:
    """Return the attributes of each input, in the domain's order, if labels and numbers fill them exactly."""
    wanted = {kind: sum(i.width for i in inputs if i.kind == kind) for kind in ("whole", "float")}
    for labels in _label_sets(request):
        rest = {"whole": list(labels), "float": [a for a in request.domain.attributes if a not in labels]}
        if all(i.kind in rest for i in inputs) and {kind: len(some) for kind, some in rest.items()} == wanted:
            return [[rest[i.kind].pop(0) for _ in range(i.width)] for i in inputs]
    shown = ", ".join(f"'{i.name}' ({i.width} {'numbers' if i.kind == 'float' else 'whole numbers'})" for i in inputs)
    count = len(_label_sets(request)[0])
    raise request.error(
        f"its inputs {shown} do not fit the domain '{request.domain.name}', which has {count} columns of labels and "
        f"{len(request.domain.attributes) - count} of numbers. {REMEDY}"
    )


def _column(
    request: Request, attribute: Attribute, kind: str, raw: bool, texts: Sequence[str]
) -> tuple[int, Callable[[Tensor], Tensor]]:
    """Return the place of a column, and how its codes become numbers."""
    place = request.domain.column(attribute.name)
    if kind == "text":
        table = torch.tensor([texts.index(text) for text in labels_of(attribute)], dtype=torch.float64)
        return place, lambda codes: table[codes.clamp(0, len(table) - 1)]
    if attribute.values:
        numbers = _numbers(attribute) if raw else None
        if numbers is None:
            return place, lambda codes: codes.double()
        return place, lambda codes: numbers[codes.clamp(0, len(numbers) - 1)]
    if raw or kind == "whole":
        return place, lambda codes: codes.double() * attribute.step + attribute.low
    number = attribute if attribute.encode == "scaled" else replace(attribute, encode="raw")
    encoding = TableEncoding([number])
    return place, lambda codes: encoding.encode(codes[:, None], torch.float64)[:, 0]


def labels_of(attribute: Attribute) -> list[str]:
    """Return the words for all values of an attribute, as a text input is given them."""
    if attribute.size > MOST_TEXTS:
        raise ModelError(
            f"'{attribute.name}' is given as text and has {attribute.size:,} values; at most {MOST_TEXTS:,} are made"
        )
    return [str(attribute.value(code)) for code in range(attribute.size)]


def _numbers(attribute: Attribute) -> Tensor | None:
    """Return what stands in the table for labels that are numbers, all of them."""
    content = cells(attribute)
    found = [content[code] for code in range(attribute.size)]
    if any(isinstance(cell, str) or cell != cell for cell in found):
        return None
    return torch.tensor(found, dtype=torch.float64)


def _listed(one: NetworkInput, attributes: Sequence[Attribute]) -> str:
    names = ", ".join(a.name for a in attributes[:SHOWN]) + (", …" if len(attributes) > SHOWN else "")
    if one.kind == "whole":
        return f"the places of {names} among the domain's values"
    return f"{names} as the domain declares them"
