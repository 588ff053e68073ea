"""Networks that come as graphs, from ONNX and Keras: a torch module whose memory is measured before it runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from neuronfair.errors import NeuronFairError
from neuronfair.limits import TooLargeError, check_size
from neuronfair.model.encoding import ROWS_PER_PASS
from neuronfair.model.open.opened import Request

GRADIENTS = 4  # a pass with gradients keeps the results of all steps, and may take that many times as much
RANK = 32  # dimensions of a tensor; numpy has no more than 64
_SMALL = 1024  # numbers: smaller tensors are computed, since shapes may depend on them
_NUMBER = 4  # bytes; float64 takes twice as much, for the few passes that need it
_CONVOLUTION = torch.ops.aten.convolution.default
_READ = torch.ops.aten._local_scalar_dense.default


@dataclass(frozen=True)
class PassSize:
    """How many numbers a pass of some rows makes in all its steps, and in its widest convolution.

    In float64 a convolution copies every window of every row; those are its `columns`.
    """

    rows: int
    total: float
    columns: float

    def check(self, *, gradients: bool, double: bool) -> None:
        """Refuse a pass that needs too much memory in all, even if each step fits."""
        most = max(self.total / GRADIENTS if gradients else 0, self.columns if double else 0)
        check_numbers(most, self.rows, "a pass")

    def interpolated(self, other: PassSize, rows: int) -> PassSize:
        """Return the size of a pass of `rows`, interpolated between this one and another."""
        share = (rows - self.rows) / (other.rows - self.rows)
        total, columns = (a + share * (b - a) for a, b in ((self.total, other.total), (self.columns, other.columns)))
        return PassSize(rows, total, columns)


def check_numbers(numbers: float, rows: int, what: str) -> None:
    """Refuse more numbers than a file may take; passes of more rows than usual may take more."""
    check_size(numbers * _NUMBER / max(1.0, rows / ROWS_PER_PASS), f"{what} of {rows:,} rows")


class MemoryMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operations on tensors of the meta device, and refuses results larger than a file may take.

    Small tensors that do not depend on the input are computed: a graph may reshape by sizes that it computes.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.step, self.rows = "", rows
        self.sizes: list[tuple[float, ...]] = []  # of tensors, and all numbers that could become sizes
        self._total = self._columns = 0
        self._alive: dict[str, int] = {}

    @property
    def need(self) -> PassSize:
        """The size of the pass so far."""
        return PassSize(self.rows, self._total, self._columns)

    def keep(self, name: str, value: Any, done: Iterable[str]) -> None:
        """Count the result of a step, then forget the values that no later step reads."""
        self._alive[name] = _numbers(value)
        if isinstance(value, (int, float)):
            self.sizes.append((value,))
        self._total += self._alive[name]
        check_numbers(sum(self._alive.values()), self.rows, f"its step {self.step!a} for a pass")
        for name in done:
            self._alive.pop(name, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the shape of the result of one of torch's operations."""
        kwargs = kwargs or {}
        if func is _READ:
            return func(*args, **kwargs)
        shapes = tree_map_only(Tensor, _shape, (args, kwargs))
        result = func(*shapes[0], **shapes[1])
        check_numbers(_numbers(result), self.rows, f"its step {self.step!a} for a pass")
        self.sizes += [tuple(tensor.shape) for tensor in _tensors(result)]
        if func is _CONVOLUTION:
            self._columns = max(self._columns, _windows(args, result))
        read = _tensors((args, kwargs))
        if any(tensor.is_meta for tensor in read):
            return result
        if func.is_view:
            return func(*args, **kwargs)
        if max(map(_numbers, (read, result))) > _SMALL:
            return result
        args, kwargs = tree_map_only(Tensor, Tensor.cpu, (args, kwargs))
        known = func(*args, **kwargs)
        self.sizes += [tuple(tensor.flatten().tolist()) for tensor in _tensors(known) if not tensor.is_meta]
        return known

    @staticmethod
    def proportional(passes: Sequence[MemoryMeter]) -> bool:
        """Return whether each size is the same in all passes, or one of its numbers is in proportion to the rows."""
        for sizes in zip(*(meter.sizes for meter in passes), strict=False):
            if len({len(size) for size in sizes}) > 1:
                return False
            varied = [numbers for numbers in zip(*sizes, strict=True) if len(set(numbers)) > 1]
            shares = {number / one.rows for numbers in varied for number, one in zip(numbers, passes, strict=True)}
            if len(varied) > 1 or len(shares) > 1:
                return False
        return len({len(meter.sizes) for meter in passes}) == 1


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _shape(tensor: Tensor) -> Tensor:
    if tensor.is_meta:
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _numbers(value: Any) -> int:
    """Return how many numbers there are in a result; an empty tensor may be long, too, and then cut into parts."""
    tensors = _tensors(value)
    if any(tensor.dim() > RANK for tensor in tensors):
        raise TooLargeError(f"a tensor of more than {RANK} dimensions")
    return sum(math.prod(max(1, length) for length in tensor.shape) for tensor in tensors)


def _windows(args: Any, result: Tensor) -> int:
    image, weight, transposed = args[0], args[1], args[6]
    places = image if transposed else result
    return int(places.numel() // max(1, places.shape[1]) * math.prod(weight.shape[1:]))


STEPS = 2000  # of one graph, and tensors of weights; a network of fifty layers has a few hundred


class Unsupported(Exception):  # noqa: N818 - not an error: the model is then a black box, or refused in plain words
    """An operation of the graph, or a variant of one, is not supported."""


@dataclass(frozen=True)
class Ref:
    """A reference to the value with this name, in the arguments of a step."""

    name: str


@dataclass(frozen=True)
class GraphStep:
    """One operation: its name, the name of its result, what it computes, and from which arguments.

    `call` is a function, or a module that becomes a part of the graph under the step's name.
    """

    name: str
    result: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


class Graph(nn.Module):
    """Runs steps in order, from its inputs to one output; nothing but the given functions is ever called.

    `inputs` are the names of tensors with a line for each row, which are passed in this order or by name. The memory of
    a batch is checked before it is computed, and values that no later step reads are freed.

    >>> import torch
    >>> graph = Graph([GraphStep("hidden", "y", nn.ReLU(), (Ref("x"),))], {}, ["x"], "y")
    >>> graph(torch.tensor([[-1.0, 2.0]])).tolist(), [name for name, _ in graph.named_children()]
    ([[0.0, 2.0]], ['hidden'])
    """

    def __init__(
        self, steps: Sequence[GraphStep], tensors: Mapping[str, Tensor], inputs: Sequence[str], result: str
    ) -> None:
        super().__init__()
        if max(len(steps), len(tensors)) > STEPS:
            raise Unsupported(f"{len(steps):,} steps and {len(tensors):,} weights; at most {STEPS:,} each")
        self.inputs, self._result = tuple(inputs), result
        self._steps, self._last = tuple(steps), _last_reads(steps, result)
        self._tensors: dict[str, str] = {}
        self._needs: dict[int, PassSize] = {}
        self._bounds: tuple[PassSize, PassSize] | None = None
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

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Return the output for a batch of inputs."""
        inputs = (*inputs, *(named[name] for name in self.inputs[len(inputs) :]))
        if torch.compiler.is_exporting():  # its operators are read, and nothing is computed
            return self._run(inputs)
        # The results of embedding lookups have a gradient, too.
        graded = torch.is_grad_enabled() and any(x.requires_grad or not x.is_floating_point() for x in inputs)
        self._need(inputs).check(gradients=graded, double=any(x.dtype == torch.float64 for x in inputs))
        return self._run(inputs)

    def check_memory(self, examples: Sequence[Tensor]) -> None:
        """Refuse a graph whose full pass does not fit; find out whether memory grows in proportion to rows."""
        passes = [
            self._measure([torch.empty(rows, *x.shape[1:], dtype=x.dtype, device="meta") for x in examples])
            for rows in (2, 3, ROWS_PER_PASS)
        ]
        if MemoryMeter.proportional(passes):
            self._bounds = passes[0].need, passes[-1].need

    def _need(self, inputs: Sequence[Tensor]) -> PassSize:
        rows = len(inputs[0])
        if self._bounds is not None and rows <= ROWS_PER_PASS:
            return self._bounds[0].interpolated(self._bounds[1], rows)
        if rows not in self._needs:
            self._needs[rows] = self._measure([x.detach().to("meta") for x in inputs]).need
        return self._needs[rows]

    def _measure(self, inputs: Sequence[Tensor]) -> MemoryMeter:
        meter = MemoryMeter(len(inputs[0]))
        # Modes that watch torch functions do not see a measurement.
        with torch.no_grad(), torch._C.DisableTorchFunction(), meter:
            self._run(inputs, meter)
        return meter

    def _run(self, inputs: Sequence[Tensor], meter: MemoryMeter | None = None) -> Tensor:
        values: dict[str, Any] = {name: getattr(self, place) for name, place in self._tensors.items()}
        values.update(zip(self.inputs, inputs, strict=True))
        for step, done in zip(self._steps, self._last, strict=True):
            call = step.call
            if meter is not None:
                meter.step = step.name
                call = call.forward if isinstance(call, nn.Module) else call  # hooks are for what is computed
            value = values[step.result] = call(*_filled(step.arguments, values))
            if meter is not None:
                meter.keep(step.result, value, done)
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


def check_full_pass(request: Request, graph: Graph, examples: Sequence[Tensor]) -> None:
    """Refuse a graph that would need more memory for a full pass than a file may take; nothing is computed.

    `examples` are its inputs for some rows.
    """
    try:
        graph.check_memory(examples)
    except NeuronFairError as error:
        raise request.error(str(error)) from error
    except Exception:  # it fails on rows, too, and the reason is reported there
        return


def _last_reads(steps: Sequence[GraphStep], result: str) -> list[list[str]]:
    """Return, for each step, the values that neither a later step nor the result needs."""
    last = {name: number for number, step in enumerate(steps) for name in (*_names_read(step.arguments), step.result)}
    done: list[list[str]] = [[] for _ in steps]
    for name, number in last.items():
        if name != result:
            done[number].append(name)
    return done


def _names_read(arguments: Any) -> Iterator[str]:
    """Return the names of the values that arguments refer to."""
    if isinstance(arguments, Ref):
        yield arguments.name
    elif isinstance(arguments, (list, tuple)):
        for part in arguments:
            yield from _names_read(part)


def _filled(arguments: Any, values: Mapping[str, object]) -> Any:
    if isinstance(arguments, Ref):
        return values[arguments.name]
    if isinstance(arguments, (list, tuple)):
        return type(arguments)(_filled(part, values) for part in arguments)
    return arguments
