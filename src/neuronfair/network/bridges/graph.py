"""A graph of operations from a file, run as a torch module whose activations are parts with names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


class Unsupported(Exception):  # noqa: N818 - not an error: the model is then a black box, or refused in plain words
    """An operation of the graph, or a variant of one, that is not known here."""


@dataclass(frozen=True)
class Ref:
    """Stands for the value with this name in the arguments of a step."""

    name: str


@dataclass(frozen=True)
class Step:
    """One operation: its name, what it computes, from which arguments, and the names of its results.

    `call` is a function, or a module that becomes a part of the graph under the step's name.
    """

    name: str
    results: tuple[str, ...]
    call: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


class Graph(nn.Module):
    """Runs steps in order, from one input to one output; nothing but the given functions is ever called.

    >>> import torch
    >>> graph = Graph([Step("hidden", ("y",), nn.ReLU(), (Ref("x"),))], {}, "x", "y")
    >>> graph(torch.tensor([[-1.0, 2.0]])).tolist(), [name for name, _ in graph.named_children()]
    ([[0.0, 2.0]], ['hidden'])
    """

    def __init__(self, steps: Sequence[Step], tensors: Mapping[str, Tensor], given: str, result: str) -> None:
        super().__init__()
        self._given, self._result = given, result
        self._steps: list[tuple[tuple[str, ...], str | Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]] = []
        self._tensors: dict[str, str] = {}
        for name, tensor in tensors.items():
            place = self._place(name, "weights")
            self._tensors[name] = place
            # Floating-point numbers are parameters, so that .double() reaches them and the type of the whole is known.
            if tensor.is_floating_point():
                self.register_parameter(place, nn.Parameter(tensor.float(), requires_grad=False))
            else:
                self.register_buffer(place, tensor)
        for step in steps:
            call: str | Callable[..., Any] = step.call
            if isinstance(step.call, nn.Module):
                call = self._place(step.name, "part")
                self.add_module(call, step.call)
            self._steps.append((step.results, call, step.arguments, step.options))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for a batch of inputs."""
        values: dict[str, Any] = {name: getattr(self, place) for name, place in self._tensors.items()}
        values[self._given] = x
        for results, call, arguments, options in self._steps:
            function = getattr(self, call) if isinstance(call, str) else call
            value = function(*_filled(arguments, values), **_filled(options, values))
            if len(results) == 1 and not isinstance(value, (tuple, list)):
                values[results[0]] = value
            else:
                values.update(zip(results, value, strict=False))
        output: Tensor = values[self._result]
        return output

    def _place(self, name: str, fallback: str) -> str:
        """Return a name that a part of a module may have, near to the given one and not yet taken."""
        place = re.sub(r"\W+", "_", name).strip("_") or fallback
        taken = {*self._parameters, *self._buffers, *self._modules}
        while place in taken or hasattr(nn.Module, place) or place in self.__dict__:
            place += "_"
        return place


def _filled(arguments: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(arguments, Ref):
        return values[arguments.name]
    if isinstance(arguments, (list, tuple)):
        return type(arguments)(_filled(part, values) for part in arguments)
    if isinstance(arguments, Mapping):
        return {name: _filled(part, values) for name, part in arguments.items()}
    return arguments
