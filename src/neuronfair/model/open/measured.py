"""What a graph from a file would take, worked out before anything of it is computed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from neuronfair.errors import ModelError
from neuronfair.limits import TooLarge, check_size
from neuronfair.model.encoding import ROWS_PER_PASS

GRADIENTS = 4  # a pass with gradients keeps what all steps have made, and may take that many times as much
RANK = 32  # dimensions of a tensor; numpy has no more than 64
_SMALL = 1024  # numbers: shapes are computed with, and such tensors keep their numbers
_NUMBER = 4  # bytes; float64 takes twice as much, for the few passes that need it
_CONVOLUTION = torch.ops.aten.convolution.default
_READ = torch.ops.aten._local_scalar_dense.default


@dataclass(frozen=True)
class Need:
    """What a pass of so many rows makes in all its steps, and in its widest convolution: how many numbers.

    In float64 a convolution lays every window of every row side by side; those are its `columns`.
    """

    rows: int
    total: float
    columns: float

    def check(self, *, gradients: bool, double: bool) -> None:
        """Refuse a pass that keeps too much, though each step for itself would fit."""
        most = max(self.total / GRADIENTS if gradients else 0, self.columns if double else 0)
        check_numbers(most, self.rows, "a pass")

    def toward(self, other: Need, rows: int) -> Need:
        """Return what a pass of `rows` takes, if it grows in proportion from this one to the other."""
        share = (rows - self.rows) / (other.rows - self.rows)
        total, columns = (a + share * (b - a) for a, b in ((self.total, other.total), (self.columns, other.columns)))
        return Need(rows, total, columns)


def check_numbers(numbers: float, rows: int, what: str) -> None:
    """Refuse more numbers than a file may take; passes of more rows than usual may take more."""
    check_size(numbers * _NUMBER / max(1.0, rows / ROWS_PER_PASS), f"{what} of {rows:,} rows")


class Measured(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it operations on tensors of the meta device give shapes, and none may be larger than a file may take.

    Small tensors that do not depend on the input are computed: a graph may reshape by sizes that it has worked out.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.step, self.rows = "", rows
        self.sizes: list[tuple[float, ...]] = []  # of tensors, and all numbers that could become sizes
        self._total = self._columns = 0
        self._alive: dict[str, int] = {}
        self._made: set[int] = set()  # where the small tensors are that were computed

    @property
    def need(self) -> Need:
        """What has been measured so far."""
        return Need(self.rows, self._total, self._columns)

    def keep(self, made: Mapping[str, Any], done: Iterable[str]) -> None:
        """Count what a step has made, and then forget the values that no later step reads."""
        self._alive |= {name: _numbers(value) for name, value in made.items()}
        self.sizes += [(value,) for value in made.values() if isinstance(value, (int, float))]
        self._total += sum(self._alive[name] for name in made)
        check_numbers(sum(self._alive.values()), self.rows, f"its step {self.step!a} for a pass")
        for name in done:
            self._alive.pop(name, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Work out the shape of what one of torch's own operations returns."""
        kwargs = kwargs or {}
        if func is _READ:
            return func(*args, **kwargs)
        if func._schema.is_mutable and any(map(self._is_weight, _written(func, args, kwargs))):
            raise ModelError(f"its step {self.step!a} changes the weights. Save the model in evaluation mode")
        shapes = tree_map_only(Tensor, _shape, (args, kwargs))
        result = func(*shapes[0], **shapes[1])
        check_numbers(_numbers(result), self.rows, f"its step {self.step!a} for a pass")
        self.sizes += [tuple(tensor.shape) for tensor in _tensors(result)]
        if func is _CONVOLUTION:
            self._columns = max(self._columns, _windows(args, result))
        given = _tensors((args, kwargs))
        if any(tensor.is_meta for tensor in given):
            return result
        if func.is_view:
            return func(*args, **kwargs)
        if max(map(_numbers, (given, result))) > _SMALL:
            return result
        args, kwargs = tree_map_only(Tensor, Tensor.cpu, (args, kwargs))
        known = func(*args, **kwargs)
        for tensor in _tensors(known):
            self._made.add(tensor.data_ptr())
            if not tensor.is_meta:
                self.sizes.append(tuple(tensor.flatten().tolist()))
        return known

    @staticmethod
    def agree(passes: Sequence[Measured]) -> bool:
        """Return whether each size is the same in all passes, or one of its numbers is in proportion to the rows."""
        for sizes in zip(*(measured.sizes for measured in passes), strict=False):
            if len({len(size) for size in sizes}) > 1:
                return False
            varied = [numbers for numbers in zip(*sizes, strict=True) if len(set(numbers)) > 1]
            shares = {number / one.rows for numbers in varied for number, one in zip(numbers, passes, strict=True)}
            if len(varied) > 1 or len(shares) > 1:
                return False
        return len({len(measured.sizes) for measured in passes}) == 1

    def _is_weight(self, tensor: Tensor) -> bool:
        return not tensor.is_meta and tensor.untyped_storage().data_ptr() not in self._made


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Return the tensors that an operation overwrites."""
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    return _tensors([given[argument.name] for argument in func._schema.arguments if argument.is_write])


def _shape(tensor: Tensor) -> Tensor:
    if tensor.is_meta:
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _numbers(value: Any) -> int:
    """Return how many numbers there are in a result; an empty tensor may be long, too, and then cut into parts."""
    tensors = _tensors(value)
    if any(tensor.dim() > RANK for tensor in tensors):
        raise TooLarge(f"a tensor of more than {RANK} dimensions")
    return sum(math.prod(max(1, length) for length in tensor.shape) for tensor in tensors)


def _windows(args: Any, result: Tensor) -> int:
    image, weight, transposed = args[0], args[1], args[6]
    places = image if transposed else result
    return int(places.numel() // max(1, places.shape[1]) * math.prod(weight.shape[1:]))
