"""The inputs of networks: tensors of columns, which are found by their names or types, or made by `preprocess`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from neuronfair.domain.attribute import Attribute
from neuronfair.errors import ModelError, one_line
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open.frames import (
    PREPROCESSED,
    ColumnCells,
    FrameColumn,
    cells_of,
    code_cells,
    inputs_of_columns,
    number_cells,
    original_table,
)
from neuronfair.model.open.names import shorten_list
from neuronfair.model.open.opened import ModelInputs, OpenRequest

MAX_COLUMNS_SHOWN = 6  # of one input in a note
MAX_TEXTS = 1 << 17  # values of an attribute that may become text
REMEDY = (
    "Say how a table becomes its inputs: a function from a DataFrame to a tensor, a tuple or a dictionary of them, as "
    "preprocess=… or --preprocess package.module:name"
)


# Inputs that get unscaled numbers: none, all but labels, those named as columns, or all, also labels that are numbers.
Raw = Literal["none", "numbers", "named", "all"]


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


def call_module(module: nn.Module, names: Sequence[str], tensors: Sequence[Tensor]) -> Any:
    """Call a module with tensors: by name, in their order, or as one dictionary."""
    if not names:
        return module(*tensors)
    tensors_by_name = dict(zip(names, tensors, strict=True))
    parameters = inspect.signature(module.forward).parameters
    by_name = set(names) <= set(parameters) or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return module(**tensors_by_name) if by_name else module(tensors_by_name)


def preprocessed_tensors(request: OpenRequest) -> ModelInputs:
    """Return the tensors that the user's own preprocessing makes of the table."""
    function = request.preprocess
    assert function is not None

    def preprocess(table: Any) -> Any:
        try:
            return function(table)
        except Exception as error:
            raise request.error(f"preprocess failed ({type(error).__name__}: {one_line(error)})") from error

    table = original_table(request)
    first = preprocess(table.of_rows(request.trial_rows[:2]))
    names = tuple(map(str, first)) if isinstance(first, Mapping) else ()

    def tensors(table: Any) -> list[Tensor]:
        parts = preprocess(table)
        if names:
            parts = [parts[name] for name in names]
        tensors = [_to_tensor(request, part) for part in (parts if isinstance(parts, (tuple, list)) else [parts])]
        if misshapen := [tuple(t.shape) for t in tensors if t.dim() == 0 or len(t) != len(table)]:
            raise request.error(f"preprocess made a tensor of shape {misshapen[0]} from {len(table)} rows")
        return tensors

    return replace(table.then(tensors), names=names, note=PREPROCESSED, program="the function preprocess")


def _to_tensor(request: OpenRequest, part: Any) -> Tensor:
    try:
        tensor = part.detach().cpu() if isinstance(part, Tensor) else torch.from_numpy(np.array(part))
    except (TypeError, ValueError) as error:
        raise request.error(f"preprocess must make tensors or arrays of numbers ({one_line(error)})") from error
    return tensor.float() if tensor.is_floating_point() else tensor


def list_arguments(module: nn.Module) -> list[str]:
    """Return the names of the inputs that a module requires."""
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # compiled code
        return ["x"]
    return [p.name for p in parameters if p.default is p.empty and p.kind in plain]


def graph_inputs(
    request: OpenRequest, inputs: Sequence[NetworkInput], *, raw: Raw = "none", texts: Sequence[str] = ()
) -> ModelInputs | None:
    """Return the inputs that a file describes; None for the numbers that the domain declares."""
    if request.preprocess is not None:
        return preprocessed_tensors(request)
    if len(inputs) == 1 and inputs[0].kind == "float" and inputs[0].name not in request.domain.names:
        return None
    return matched_inputs(request, inputs, raw=raw, texts=texts)


def column_inputs(request: OpenRequest, names: Sequence[str]) -> ModelInputs:
    """Return columns by the names of a module's arguments: labels as whole numbers (n,), other columns as (n, 1).

    Numbers are scaled as a domain file declares, and those of the table itself where there is none.
    """
    if not set(names) <= set(request.domain.names):
        raise request.error(f"takes {', '.join(names)}, not all of which are columns of the domain. {REMEDY}")
    columns = [request.domain.attributes[request.domain.column(name)] for name in names]
    integer, number = ("whole", ()), ("float", (1,))
    inputs = [NetworkInput(a.name, *(integer if a.values else number)) for a in columns]
    return matched_inputs(request, inputs, raw="numbers" if request.inferred else "none")


def matched_inputs(
    request: OpenRequest, inputs: Sequence[NetworkInput], *, raw: Raw = "none", texts: Sequence[str] = ()
) -> ModelInputs:
    """Return the inputs that a file describes: columns by their names, or by their types.

    An input of whole numbers gets the positions of labels among the values of the domain, or unscaled numbers. `raw`
    says which inputs get unscaled numbers throughout. A text becomes its position in `texts`.
    """
    domain = request.domain.to("cpu")
    if {i.name for i in inputs} <= set(domain.names) and all(i.width == 1 for i in inputs):
        attributes_of = [[domain.attributes[domain.column(i.name)]] for i in inputs]
        labelled = [a for (a,), i in zip(attributes_of, inputs, strict=True) if a.values and i.kind != "text"]
        note = "each input is the column of its name"
        if any(_label_numbers(attribute) is None for attribute in labelled):
            note += ", with labels as their positions in the domain"
    else:
        attributes_of = _assign_by_kind(request, inputs)
        raw = "none" if raw == "named" else raw
        note = "; ".join(map(_describe_input, inputs, attributes_of))
    columns = [
        FrameColumn(a.name, a.name, request.domain.column(a.name), _number_cells(a, item.kind, raw, texts))
        for item, attributes in zip(inputs, attributes_of, strict=True)
        for a in attributes
    ]

    def tensors(parts: Sequence[np.ndarray]) -> list[Tensor]:
        tensors, arrays = [], iter(parts)
        for item in inputs:
            numbers = torch.from_numpy(np.stack([next(arrays) for _ in range(item.width)], 1))
            numbers = numbers.float() if item.kind == "float" else numbers.round().long()
            tensors.append(numbers.reshape(len(numbers), *item.shape))
        return tensors

    return inputs_of_columns(columns, note).then(tensors, names=tuple(i.name for i in inputs))


def _assign_by_kind(request: OpenRequest, inputs: Sequence[NetworkInput]) -> list[list[Attribute]]:
    """Return the attributes of each input, in the domain's order, if labels and numbers fill them exactly."""
    widths = {kind: sum(i.width for i in inputs if i.kind == kind) for kind in ("whole", "float")}
    attributes = request.domain.attributes
    # Whole numbers may be all attributes with labels, or the nominal ones and flags alone.
    labelled = [a for a in attributes if a.values]
    for labels in (labelled, [a for a in attributes if a.kind in ("nominal", "flag")]):
        remaining = {"whole": list(labels), "float": [a for a in attributes if a not in labels]}
        counts = {kind: len(columns) for kind, columns in remaining.items()}
        if all(i.kind in remaining for i in inputs) and counts == widths:
            return [[remaining[i.kind].pop(0) for _ in range(i.width)] for i in inputs]
    kinds = {"float": "numbers", "whole": "whole numbers", "text": "whole numbers"}
    input_texts = ", ".join(f"'{i.name}' ({i.width} {kinds[i.kind]})" for i in inputs)
    count = len(labelled)
    raise request.error(
        f"its inputs {input_texts} do not fit the domain '{request.domain.name}', which has {count} columns of labels "
        f"and {len(attributes) - count} of numbers. {REMEDY}"
    )


def _number_cells(attribute: Attribute, kind: str, raw: Raw, texts: Sequence[str]) -> ColumnCells:
    """Return the cells of an attribute as numbers: of a text, a label, or a number as it is or as it is declared."""
    if kind == "text" or attribute.values:
        as_text = kind == "text"
        positions = [texts.index(text) for text in list_texts(attribute)] if as_text else None
        table = _label_numbers(attribute) if positions is None else np.array(positions, dtype=np.float64)
        as_codes = code_cells(attribute)
        if table is None or not (as_text or raw in ("named", "all")):
            return as_codes
        last = len(table) - 1
        return ColumnCells(
            lambda codes: table[codes.clip(0, last)],
            lambda cells: table[as_codes.of_cells(cells).astype(np.int64).clip(0, last)],
        )
    scaled = attribute.encode == "scaled" and raw == "none" and kind == "float"
    encoding = TableEncoding([attribute if scaled else replace(attribute, encode="raw")])
    numbers_of = number_cells(attribute).of_cells

    def encode(positions: np.ndarray) -> np.ndarray:
        return np.asarray(encoding.encode(torch.from_numpy(positions)[:, None], torch.float64)[:, 0])

    def of_cells(cells: Any) -> np.ndarray:
        positions = (numbers_of(cells) - attribute.low) / attribute.step
        if attribute.missing is not None:  # a network reads no NaN
            positions[np.isnan(positions)] = attribute.codes([None])[0]
        return encode(positions)

    return ColumnCells(encode, of_cells)


def list_texts(attribute: Attribute) -> list[str]:
    """Return all values of an attribute as texts, for a text input."""
    if attribute.size > MAX_TEXTS:
        raise ModelError(
            f"'{attribute.name}' is a text input with {attribute.size:,} values; at most {MAX_TEXTS:,} are supported"
        )
    return [str(attribute.value(code)) for code in range(attribute.size)]


def _label_numbers(attribute: Attribute) -> np.ndarray | None:
    """Return the labels of an attribute as numbers; None if one of them is none."""
    cells_by_code = cells_of(attribute)
    cells = [cells_by_code[code] for code in range(attribute.size)]
    if any(isinstance(cell, str) or cell != cell for cell in cells):
        return None
    return np.array(cells, dtype=np.float64)


def _describe_input(item: NetworkInput, attributes: Sequence[Attribute]) -> str:
    names = shorten_list([a.name for a in attributes], MAX_COLUMNS_SHOWN)
    content = f"the positions of {names} among the domain's values"
    return f"its input '{item.name}' is {content if item.kind == 'whole' else f'{names} as the domain declares them'}"
