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
from neuronfair.model.open.opened import OpenRequest

GRADIENT_FACTOR = 4  # a pass with gradients keeps the results of all steps, and may take that many times as much
MAX_RANK = 32  # dimensions of a tensor; numpy has no more than 64
_MAX_COMPUTED_NUMBERS = 1024  # numbers: smaller tensors are computed, since shapes may depend on them
_BYTES_PER_NUMBER = 4  # bytes; float64 takes twice as much, for the few passes that need it
_CONVOLUTION = torch.ops.aten.convolution.default
_READ_SCALAR = torch.ops.aten._local_scalar_dense.default


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
        numbers = max(self.total / GRADIENT_FACTOR if gradients else 0, self.columns if double else 0)
        check_numbers(numbers, self.rows, "a pass")

    def interpolated(self, other: PassSize, rows: int) -> PassSize:
        """Return the size of a pass of `rows`, interpolated between this one and another."""
        share = (rows - self.rows) / (other.rows - self.rows)
        total, columns = (a + share * (b - a) for a, b in ((self.total, other.total), (self.columns, other.columns)))
        return PassSize(rows, total, columns)


def check_numbers(numbers: float, rows: int, subject: str) -> None:
    """Refuse more numbers than a file may take; passes of more rows than usual may take more."""
    check_size(numbers * _BYTES_PER_NUMBER / max(1.0, rows / ROWS_PER_PASS), f"{subject} of {rows:,} rows")


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

    def keep(self, name: str, value: Any, unused: Iterable[str]) -> None:
        """Count the result of a step, then forget the values that no later step reads."""
        self._alive[name] = _count_numbers(value)
        if isinstance(value, (int, float)):
            self.sizes.append((value,))
        self._total += self._alive[name]
        check_numbers(sum(self._alive.values()), self.rows, f"its step {self.step!a} for a pass")
        for name in unused:
            self._alive.pop(name, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the shape of the result of one of torch's operations."""
        kwargs = kwargs or {}
        if func is _READ_SCALAR:
            return func(*args, **kwargs)
        shapes = tree_map_only(Tensor, _to_meta, (args, kwargs))
        result = func(*shapes[0], **shapes[1])
        check_numbers(_count_numbers(result), self.rows, f"its step {self.step!a} for a pass")
        self.sizes += [tuple(tensor.shape) for tensor in _list_tensors(result)]
        if func is _CONVOLUTION:
            self._columns = max(self._columns, _count_window_numbers(args, result))
        inputs = _list_tensors((args, kwargs))
        if any(tensor.is_meta for tensor in inputs):
            return result
        if func.is_view:
            return func(*args, **kwargs)
        if max(map(_count_numbers, (inputs, result))) > _MAX_COMPUTED_NUMBERS:
            return result
        args, kwargs = tree_map_only(Tensor, Tensor.cpu, (args, kwargs))
        value = func(*args, **kwargs)
        self.sizes += [tuple(tensor.flatten().tolist()) for tensor in _list_tensors(value) if not tensor.is_meta]
        return value

    @staticmethod
    def proportional(passes: Sequence[MemoryMeter]) -> bool:
        """Return whether each size is the same in all passes, or one of its numbers is in proportion to the rows."""
        for sizes in zip(*(meter.sizes for meter in passes), strict=False):
            if len({len(size) for size in sizes}) > 1:
                return False
            varied = [numbers for numbers in zip(*sizes, strict=True) if len(set(numbers)) > 1]
            shares = {number / meter.rows for numbers in varied for number, meter in zip(numbers, passes, strict=True)}
            if len(varied) > 1 or len(shares) > 1:
                return False
        return len({len(meter.sizes) for meter in passes}) == 1


def _list_tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _to_meta(tensor: Tensor) -> Tensor:
    if tensor.is_meta:
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _count_numbers(value: Any) -> int:
    """Return how many numbers there are in a result; an empty tensor may be long, too, and then cut into parts."""
    tensors = _list_tensors(value)
    if any(tensor.dim() > MAX_RANK for tensor in tensors):
        raise TooLargeError(f"a tensor of more than {MAX_RANK} dimensions")
    return sum(math.prod(max(1, length) for length in tensor.shape) for tensor in tensors)


def _count_window_numbers(args: Any, result: Tensor) -> int:
    image, weight, transposed = args[0], args[1], args[6]
    positions = image if transposed else result
    return int(positions.numel() // max(1, positions.shape[1]) * math.prod(weight.shape[1:]))


MAX_STEPS = 2000  # of one graph, and tensors of weights; a network of fifty layers has a few hundred


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
        if max(len(steps), len(tensors)) > MAX_STEPS:
            raise Unsupported(f"{len(steps):,} steps and {len(tensors):,} weights; at most {MAX_STEPS:,} each")
        self.inputs, self._result = tuple(inputs), result
        self._steps, self._unused_after = tuple(steps), _list_unused_values(steps, result)
        self._tensor_attributes: dict[str, str] = {}
        self._sizes_by_rows: dict[int, PassSize] = {}
        self._bounds: tuple[PassSize, PassSize] | None = None
        for name, tensor in tensors.items():
            attribute = self._choose_attribute(name, "weights")
            self._tensor_attributes[name] = attribute
            # Floating-point numbers are parameters, so that .double() reaches them and the type of the whole is known.
            if tensor.is_floating_point():
                self.register_parameter(attribute, nn.Parameter(tensor.float(), requires_grad=False))
            else:
                self.register_buffer(attribute, tensor)
        for step in steps:
            if isinstance(step.call, nn.Module):
                self.add_module(self._choose_attribute(step.name, "part"), step.call)

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
        if rows not in self._sizes_by_rows:
            self._sizes_by_rows[rows] = self._measure([x.detach().to("meta") for x in inputs]).need
        return self._sizes_by_rows[rows]

    def _measure(self, inputs: Sequence[Tensor]) -> MemoryMeter:
        meter = MemoryMeter(len(inputs[0]))
        # Modes that watch torch functions do not see a measurement.
        with torch.no_grad(), torch._C.DisableTorchFunction(), meter:
            self._run(inputs, meter)
        return meter

    def _run(self, inputs: Sequence[Tensor], meter: MemoryMeter | None = None) -> Tensor:
        values: dict[str, Any] = {name: getattr(self, attribute) for name, attribute in self._tensor_attributes.items()}
        values.update(zip(self.inputs, inputs, strict=True))
        for step, unused in zip(self._steps, self._unused_after, strict=True):
            call = step.call
            if meter is not None:
                meter.step = step.name
                call = call.forward if isinstance(call, nn.Module) else call  # hooks are for what is computed
            value = values[step.result] = call(*_fill_in_values(step.arguments, values))
            if meter is not None:
                meter.keep(step.result, value, unused)
            for name in unused:
                values.pop(name, None)
        output: Tensor = values[self._result]
        return output

    def _choose_attribute(self, name: str, fallback: str) -> str:
        """Return a name that a part of a module may have, near to the given one and not yet taken."""
        attribute = re.sub(r"\W+", "_", name).strip("_") or fallback
        used_names = {*self._parameters, *self._buffers, *self._modules}
        while attribute in used_names or hasattr(nn.Module, attribute) or attribute in self.__dict__:
            attribute += "_"
        return attribute


def check_full_pass(request: OpenRequest, graph: Graph, examples: Sequence[Tensor]) -> None:
    """Refuse a graph that would need more memory for a full pass than a file may take; nothing is computed.

    `examples` are its inputs for some rows.
    """
    try:
        graph.check_memory(examples)
    except NeuronFairError as error:
        raise request.error(str(error)) from error
    except Exception:  # it fails on rows, too, and the reason is reported there
        return


def _list_unused_values(steps: Sequence[GraphStep], result: str) -> list[list[str]]:
    """Return, for each step, the values that neither a later step nor the result needs."""
    names = [(*_list_names_read(step.arguments), step.result) for step in steps]
    last = {name: number for number, step_names in enumerate(names) for name in step_names}
    unused: list[list[str]] = [[] for _ in steps]
    for name, number in last.items():
        if name != result:
            unused[number].append(name)
    return unused


def _list_names_read(arguments: Any) -> Iterator[str]:
    """Return the names of the values that arguments refer to."""
    if isinstance(arguments, Ref):
        yield arguments.name
    elif isinstance(arguments, (list, tuple)):
        for part in arguments:
            yield from _list_names_read(part)


def _fill_in_values(arguments: Any, values: Mapping[str, object]) -> Any:
    if isinstance(arguments, Ref):
        return values[arguments.name]
    if isinstance(arguments, (list, tuple)):
        return type(arguments)(_fill_in_values(part, values) for part in arguments)
    return arguments
