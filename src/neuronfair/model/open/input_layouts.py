"""Ways to give rows to a network of several inputs: by a function of the user's, by name, or by what fits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from neuronfair.domain.attribute import Attribute
from neuronfair.errors import ModelError, one_line
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open.frames import Frames, cells
from neuronfair.model.open.request import Request

SHOWN = 6  # columns that a note names
REMEDY = (
    "Say how a table becomes its inputs: a function from a DataFrame to a tensor, a tuple or a dictionary of them, as "
    "preprocess=… or --preprocess package.module:name"
)


class Unmatched(Exception):  # noqa: N818 - whoever asks says it in the words of its format
    """The inputs of a network cannot be told from the domain alone."""


Raw = Literal["none", "named", "all"]


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


@dataclass(frozen=True)
class InputLayout:
    """How rows of codes become the inputs of a network, on the CPU; the note is for the user.

    The network is called with them by `names`, or in their order if there are none.
    """

    given: Callable[[Tensor], list[Tensor]]
    names: tuple[str, ...] = ()
    note: str = ""
    asked: str | None = None  # what makes them, where that may be any program
    of_frame: Callable[[Any], list[Tensor]] | None = None  # the same of a DataFrame of original cells

    def call(self, module: nn.Module, inputs: Sequence[Tensor]) -> Any:
        """Return what a module computes from inputs."""
        if not self.names:
            return module(*inputs)
        named = dict(zip(self.names, inputs, strict=True))
        return module(**named) if _takes(module, self.names) else module(named)


def by_domain(request: Request) -> InputLayout:
    """Return the numbers that the domain declares, in one tensor."""
    encoding = TableEncoding.of(request.domain.to("cpu"))
    return InputLayout(lambda rows: [encoding.encode(rows.cpu())])


def by_preprocess(request: Request) -> InputLayout:
    """Return what the user's own function makes of the table."""
    function, frames = request.preprocess, Frames(request.domain, types=request.types)
    assert function is not None

    def made(table: Any) -> Any:
        try:
            return function(table)
        except Exception as error:
            raise request.error(f"preprocess failed ({type(error).__name__}: {one_line(error)})") from error

    first = made(frames.of_rows(request.tried[:2]))
    names = tuple(map(str, first)) if isinstance(first, Mapping) else ()

    def given(table: Any) -> list[Tensor]:
        parts = made(table)
        if names:
            parts = [parts[name] for name in names]
        tensors = [_tensor(request, part) for part in (parts if isinstance(parts, (tuple, list)) else [parts])]
        if odd := [tuple(t.shape) for t in tensors if t.dim() == 0 or len(t) != len(table)]:
            raise request.error(f"preprocess was given {len(table)} rows and made a tensor of shape {odd[0]} of them")
        return tensors

    return InputLayout(
        lambda rows: given(frames.of_rows(rows)),
        names,
        "rows go through preprocess",
        "the function preprocess",
        lambda table: given(frames.of_frame(table)),
    )


def _tensor(request: Request, part: Any) -> Tensor:
    try:
        tensor = part.detach().cpu() if isinstance(part, Tensor) else torch.from_numpy(np.array(part))
    except (TypeError, ValueError) as error:
        raise request.error(f"preprocess must make tensors or arrays of numbers ({one_line(error)})") from error
    return tensor.float() if tensor.is_floating_point() else tensor


def _takes(module: nn.Module, names: Sequence[str]) -> bool:
    """Return whether a module's forward() has arguments of these names; else it is given one dictionary."""
    parameters = inspect.signature(module.forward).parameters
    return set(names) <= set(parameters) or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def arguments(module: nn.Module) -> list[str]:
    """Return the names of the inputs that a module cannot do without."""
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # compiled code
        return ["x"]
    return [p.name for p in parameters if p.default is p.empty and p.kind in plain]


def matched(request: Request, inputs: Sequence[NetworkInput], *, raw: Raw, texts: Sequence[str] = ()) -> InputLayout:
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
        raw = "all" if raw == "all" else "none"
        note = "; ".join(f"its input '{i.name}' is {_listed(i, a)}" for i, a in zip(inputs, taken, strict=True))
    as_is = raw != "none"
    makers = [[_column(request, a, i.kind, as_is, texts) for a in some] for i, some in zip(inputs, taken, strict=True)]

    def given(rows: Tensor) -> list[Tensor]:
        rows = rows.cpu()
        tensors = []
        for one, columns in zip(inputs, makers, strict=True):
            numbers = torch.stack([make(rows[:, place]) for place, make in columns], 1)
            numbers = numbers.float() if one.kind == "float" else numbers.round().long()
            tensors.append(numbers.reshape(len(rows), *one.shape))
        return tensors

    return InputLayout(given, tuple(i.name for i in inputs), note)


def guesses(request: Request, names: Sequence[str]) -> Iterator[list[NetworkInput]]:
    """Return what the arguments of a module may be: codes of labels and numbers, apart or each column for itself."""
    domain, count = request.domain, len(names)
    if names and set(names) <= set(domain.names):
        columns = [domain.attributes[domain.column(name)] for name in names]
        for whole, number in product(((), (1,)), repeat=2):
            yield [_one(a.name, whole if a.values else number, bool(a.values)) for a in columns]
        return
    for labels in _label_sets(request):
        k, m = len(labels), len(domain.attributes) - len(labels)
        if count == bool(k) + bool(m):
            orders = [[*[(k, True)] * bool(k), *[(m, False)] * bool(m)]]
            orders += [orders[0][::-1]] if k and m else []
            yield from ([_one(n, (w,), whole) for n, (w, whole) in zip(names, o, strict=True)] for o in orders)
        if k and m and count == k + 1:
            for shape in ((), (1,)):
                yield [*(_one(n, shape, True) for n in names[:-1]), _one(names[-1], (m,), False)]
                yield [_one(names[0], (m,), False), *(_one(n, shape, True) for n in names[1:])]


def _one(name: str, shape: tuple[int, ...], whole: bool) -> NetworkInput:
    return NetworkInput(name, "whole" if whole else "float", shape)


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
    raise Unmatched(
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
    encoding = TableEncoding([attribute if attribute.encode == "scaled" else _as_raw(attribute)])
    return place, lambda codes: encoding.encode(codes[:, None], torch.float64)[:, 0]


def _as_raw(attribute: Attribute) -> Attribute:
    return Attribute(attribute.name, attribute.kind, attribute.low, attribute.high, attribute.step)


def labels_of(attribute: Attribute) -> list[str]:
    """Return the words for all values of an attribute, as a text input is given them."""
    if attribute.size > 1 << 17:
        raise ModelError(
            f"'{attribute.name}' is given as text and has {attribute.size:,} values; at most 131,072 are made"
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
