"""A graph of operations from a file, run as a torch module whose activations are parts with names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from neuronfair.errors import NeuronFairError
from neuronfair.model.encoding import ROWS_PER_PASS, TableEncoding
from neuronfair.model.open.measured import Measured, Need
from neuronfair.model.open.opened import Request

STEPS = 2000  # of one graph, and tensors of weights; a network of fifty layers has a few hundred


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
    """Runs steps in order, from its inputs to one output; nothing but the given functions is ever called.

    `given` names the inputs: tensors with a line for each row, in this order or by name.
    What a batch takes is worked out and checked before it is computed, and what no later step reads is let go.

    >>> import torch
    >>> graph = Graph([Step("hidden", ("y",), nn.ReLU(), (Ref("x"),))], {}, ["x"], "y")
    >>> graph(torch.tensor([[-1.0, 2.0]])).tolist(), [name for name, _ in graph.named_children()]
    ([[0.0, 2.0]], ['hidden'])
    """

    def __init__(self, steps: Sequence[Step], tensors: Mapping[str, Tensor], given: Sequence[str], result: str) -> None:
        super().__init__()
        if max(len(steps), len(tensors)) > STEPS:
            raise Unsupported(f"{len(steps):,} steps and {len(tensors):,} weights; at most {STEPS:,} each")
        self.given, self._result = tuple(given), result
        self._steps, self._last = tuple(steps), _last_reads(steps, result)
        self._tensors: dict[str, str] = {}
        self._needs: dict[int, Need] = {}
        self._bounds: tuple[Need, Need] | None = None
        for name, tensor in tensors.items():
            place = self._place(name, "weights")
            self._tensors[name] = place
            # Floating-point numbers are parameters, so that .double() reaches them and the type of the whole is known.
            if tensor.is_floating_point():
                self.register_parameter(place, nn.Parameter(tensor.float(), requires_grad=False))
            else:
                self.register_buffer(place, tensor)
        for step in steps:
            if isinstance(step.call, nn.Module):
                self.add_module(self._place(step.name, "part"), step.call)

    @property
    def places(self) -> Mapping[str, str]:
        """The names of the given tensors, and those that they have as parameters and buffers."""
        return self._tensors

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Return the output for a batch of inputs."""
        inputs = (*inputs, *(named[name] for name in self.given[len(inputs) :]))
        if torch.compiler.is_exporting():  # its operators are read, and nothing is computed
            return self._run(inputs)
        # What is looked up by whole numbers has a gradient, too.
        graded = torch.is_grad_enabled() and any(x.requires_grad or not x.is_floating_point() for x in inputs)
        self._need(inputs).check(gradients=graded, double=any(x.dtype == torch.float64 for x in inputs))
        return self._run(inputs)

    def settle(self, examples: Sequence[Tensor]) -> None:
        """Refuse a graph whose full pass does not fit; see whether smaller ones take memory in proportion."""
        passes = [
            self._measure([torch.empty(rows, *x.shape[1:], dtype=x.dtype, device="meta") for x in examples])
            for rows in (2, 3, ROWS_PER_PASS)
        ]
        if Measured.agree(passes):
            self._bounds = passes[0].need, passes[-1].need

    def _need(self, inputs: Sequence[Tensor]) -> Need:
        rows = len(inputs[0])
        if self._bounds is not None and rows <= ROWS_PER_PASS:
            return self._bounds[0].toward(self._bounds[1], rows)
        if rows not in self._needs:
            self._needs[rows] = self._measure([x.detach().to("meta") for x in inputs]).need
        return self._needs[rows]

    def _measure(self, inputs: Sequence[Tensor]) -> Measured:
        measured = Measured(len(inputs[0]))
        # Whoever watches what is computed is not shown what is only measured.
        with torch.no_grad(), torch._C.DisableTorchFunction(), measured:
            self._run(inputs, measured)
        return measured

    def _run(self, inputs: Sequence[Tensor], measured: Measured | None = None) -> Tensor:
        values: dict[str, Any] = {name: getattr(self, place) for name, place in self._tensors.items()}
        values.update(zip(self.given, inputs, strict=True))
        for step, done in zip(self._steps, self._last, strict=True):
            call = step.call
            if measured is not None:
                measured.step = step.name
                call = call.forward if isinstance(call, nn.Module) else call  # hooks are for what is computed
            value = call(*_filled(step.arguments, values), **_filled(step.options, values))
            if len(step.results) == 1 and not isinstance(value, (tuple, list)):
                values[step.results[0]] = value
            else:
                values.update(zip(step.results, value, strict=False))
            if measured is not None:
                measured.keep({name: values.get(name) for name in step.results}, done)
            for name in done:
                values.pop(name, None)
        output: Tensor = values[self._result]
        return output

    def _place(self, name: str, fallback: str) -> str:
        """Return a name that a part of a module may have, near to the given one and not yet taken."""
        place = re.sub(r"\W+", "_", name).strip("_") or fallback
        taken = {*self._parameters, *self._buffers, *self._modules}
        while place in taken or hasattr(nn.Module, place) or place in self.__dict__:
            place += "_"
        return place


def check_full_pass(request: Request, graph: Graph, examples: Sequence[Tensor] | None = None) -> None:
    """Refuse a graph that would need more memory for a full pass than a file may take; nothing is computed.

    `examples` are its inputs for some rows; by default the numbers that the domain declares.
    """
    if examples is None:
        examples = [torch.empty(1, TableEncoding.of(request.domain).width)]
    try:
        graph.settle(examples)
    except NeuronFairError as error:
        raise request.error(str(error)) from error
    except Exception:  # it will fail on rows, too, and there the reason is told in other words
        return


def _last_reads(steps: Sequence[Step], result: str) -> list[list[str]]:
    """Return, for each step, the values that neither a later step nor the result needs."""
    last = {
        name: number
        for number, step in enumerate(steps)
        for name in (*names_in([step.arguments, step.options]), *step.results)
    }
    done: list[list[str]] = [[] for _ in steps]
    for name, number in last.items():
        if name != result:
            done[number].append(name)
    return done


def names_in(arguments: Any) -> Iterator[str]:
    """Return the names of the values that arguments stand for."""
    waiting: list[Any] = [arguments]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Ref):
            yield value.name
        elif isinstance(value, (list, tuple)):
            waiting.extend(value)
        elif isinstance(value, Mapping):
            waiting.extend(value.values())


def _filled(arguments: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(arguments, Ref):
        return values[arguments.name]
    if isinstance(arguments, (list, tuple)):
        return type(arguments)(_filled(part, values) for part in arguments)
    if isinstance(arguments, Mapping):
        return {name: _filled(part, values) for name, part in arguments.items()}
    return arguments
