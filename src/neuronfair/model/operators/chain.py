"""Chains of affine maps and curves, and tensors of affine maps in twice the digits of float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from neuronfair.errors import ModelError

MAX_MATRIX_SIZE = 1 << 24  # numbers of one matrix
MAX_PRODUCTS = 1 << 30  # products in one sum
_SPLIT_FACTOR = float(2**27 + 1)
Shape = tuple[int | None, ...]  # None: the dimension of the rows


End = Literal["none", "softmax", "sigmoid"]
CURVES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "elu": functional.elu,
    "softplus": functional.softplus,
}


@dataclass(frozen=True)
class Curve:
    """An activation function by its name; a leaky ReLU by its slope below 0."""

    name: str
    leak: float = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        """Return the function of numbers."""
        return functional.leaky_relu(x, self.leak) if self.name == "leaky_relu" else CURVES[self.name](x)


@dataclass(frozen=True)
class Affine:
    """weight @ x + bias, in float64."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return the map of rows."""
        return x @ self.weight.T + self.bias


@dataclass(frozen=True)
class Chain:
    """Affine maps with a curve after each but the last, and the function `end` that turns the last numbers into scores.

    `sizes` are sums of absolute values for each weight and bias, since terms that cancel are rounded all the same; they
    bound the terms that the network itself adds, and so its rounding.
    """

    affines: tuple[Affine, ...]
    sizes: tuple[Affine, ...]
    curves: tuple[Curve, ...]
    end: End

    def scores(self, x: Tensor) -> Tensor:
        """Return the scores of encoded rows, as the network gives them."""
        for affine, curve in zip(self.affines, self.curves, strict=False):
            x = curve(affine(x))
        x = self.affines[-1](x)
        return {"none": x, "softmax": x.softmax(-1), "sigmoid": x.sigmoid()}[self.end]

    def to(self, device: torch.device) -> Chain:
        """Return the chain on a device."""
        affines, sizes = (
            tuple(Affine(affine.weight.to(device), affine.bias.to(device)) for affine in maps)
            for maps in (self.affines, self.sizes)
        )
        return replace(self, affines=affines, sizes=sizes)


def check_numbers(count: int) -> None:
    """Refuse matrices that are too large."""
    if count > MAX_MATRIX_SIZE:
        raise ModelError(f"its matrices have more than {MAX_MATRIX_SIZE:,} numbers")


@dataclass(frozen=True)
class AffineTensor:
    """A tensor whose numbers are affine functions of one layer's neurons, the same for each row.

    `parts` is (3, *shape, neurons + 1): the weights and, last, the constant. Each number is the sum of a float64 and of
    a second one with its next digits. The third is its size, the sum of the absolute values of its terms, which bounds
    the network's own rounding. `rows` is the dimension of the rows, of length 1.
    """

    layer: int
    rows: int
    parts: Tensor

    @staticmethod
    def of_layer(layer: int, shape: Shape) -> AffineTensor:
        """Return the neurons of a layer themselves, in this shape."""
        sizes = lengths(shape)
        count = math.prod(sizes)
        check_numbers(count * (count + 1))
        parts = torch.zeros(3, count, count + 1, dtype=torch.float64)
        parts[[0, 2]] = torch.eye(count, count + 1, dtype=torch.float64)
        return AffineTensor(layer, shape.index(None), parts.reshape(3, *sizes, count + 1))

    @property
    def shape(self) -> Shape:
        """The shape, with None for the rows."""
        sizes = self.parts.shape[1:-1]
        return tuple(None if dim == self.rows else size for dim, size in enumerate(sizes))

    @property
    def high(self) -> Tensor:
        """The numbers, rounded to float64: (neurons of this tensor, neurons of the layer + 1)."""
        return self.parts[:2].sum(0).flatten(0, -2)

    @property
    def size(self) -> Tensor:
        """The sizes of the numbers, as `high` has them."""
        return self.parts[2].flatten(0, -2)

    def reshape(self, shape: Shape) -> AffineTensor:
        """Return the same numbers in another shape; rows must stay rows."""
        before = math.prod(size or 1 for size in self.shape[: self.rows])
        if None not in shape or math.prod(size or 1 for size in shape[: shape.index(None)]) != before:
            raise ModelError("it mixes the numbers of several rows")
        return AffineTensor(self.layer, shape.index(None), self.parts.reshape(3, *lengths(shape), self.parts.shape[-1]))

    def permute(self, order: Sequence[int]) -> AffineTensor:
        """Return the dimensions in another order."""
        order = [dim % len(self.shape) for dim in order]
        parts = self.parts.permute(0, *(dim + 1 for dim in order), self.parts.dim() - 1)
        return AffineTensor(self.layer, order.index(self.rows), parts)

    def select(self, dim: int, selection: slice | Tensor) -> AffineTensor:
        """Return some places of a dimension that is not that of the rows."""
        dim = self.check_dim(dim)
        index: list[slice | Tensor] = [slice(None)] * self.parts.dim()
        index[dim + 1] = selection
        return AffineTensor(self.layer, self.rows, self.parts[tuple(index)])

    def check_dim(self, dim: int) -> int:
        """Return a dimension counted from the first; refuse that of the rows."""
        dim %= len(self.shape)
        if dim == self.rows:
            raise ModelError("it mixes the numbers of several rows")
        return dim

    def expand(self, shape: Shape) -> AffineTensor:
        """Return copies along dimensions of length 1, or new ones in front."""
        if None not in shape or len(shape) - shape.index(None) != len(self.shape) - self.rows:
            raise ModelError("it mixes the numbers of several rows")
        sizes = lengths(shape)
        check_numbers(math.prod(sizes) * self.parts.shape[-1])
        parts = self.parts.reshape(3, *[1] * (len(shape) - len(self.shape)), *self.parts.shape[1:])
        return AffineTensor(self.layer, shape.index(None), parts.expand(3, *sizes, -1))

    def add(self, other: AffineTensor | Tensor, factor: float = 1.0) -> AffineTensor:
        """Return the sum with another one, or with constants, times a factor."""
        if isinstance(other, Tensor):
            parts = self.parts.new_zeros(3, *other.shape, self.parts.shape[-1])
            parts[0, ..., -1], parts[2, ..., -1] = other, other.abs()
            rows = self.rows - len(self.shape)
            if other.dim() >= -rows and other.shape[rows] != 1:
                raise ModelError("it adds other numbers to each row of a batch")
            other = AffineTensor(self.layer, other.dim() + rows, parts)
        if other.layer != self.layer:
            raise ModelError(f"it adds layer {self.layer} and layer {other.layer}, which are not one after the other")
        if len(self.shape) - self.rows != len(other.shape) - other.rows:
            raise ModelError("it mixes the numbers of several rows")
        added = other.parts
        if factor != 1.0:
            added = _multiply_parts(added, torch.tensor(factor, dtype=torch.float64))
        parts, added = _align_ranks(self.parts, added)
        return AffineTensor(self.layer, parts.dim() - 2 + self.rows - len(self.shape), _add_parts(parts, added))

    def multiply(self, factor: Tensor) -> AffineTensor:
        """Return the product with constants."""
        rows = self.rows - len(self.shape)
        if factor.dim() >= -rows and factor.shape[rows] != 1:
            raise ModelError("it multiplies each row of a batch by another number")
        factor = factor[..., None]
        parts = self.parts.reshape(3, *[1] * (factor.dim() - self.parts.dim() + 1), *self.parts.shape[1:])
        return AffineTensor(self.layer, parts.dim() - 2 + rows, _multiply_parts(parts, factor))

    def divide(self, divisor: Tensor) -> AffineTensor:
        """Return the quotient by constants."""
        estimate = self.multiply(1 / divisor)
        remainder = self.add(estimate.multiply(divisor), -1.0)  # what the rounded reciprocal leaves
        exact = estimate.add(remainder.multiply(1 / divisor))
        return AffineTensor(exact.layer, exact.rows, torch.cat([exact.parts[:2], estimate.parts[2:]]))

    def multiply_matrix(self, matrix: Tensor) -> AffineTensor:
        """Return the product with a matrix (n, m) along the last dimension, which must not be that of the rows."""
        last = self.check_dim(-1)
        sizes, count = self.parts.shape[1:-1], self.parts.shape[-1]
        outer = math.prod(sizes[:last])
        check_numbers(outer * matrix.shape[1] * count)
        parts = self.parts.reshape(3, outer, sizes[last], count)
        result = torch.zeros(3, outer, matrix.shape[1], count, dtype=torch.float64)
        if _has_single_readers(parts[..., :-1]):  # each neuron is read once: each weight of the result is one product
            result[0, ..., :-1] = torch.einsum("rkc,kn->rnc", parts[0, ..., :-1], matrix)
            result[2, ..., :-1] = torch.einsum("rkc,kn->rnc", parts[2, ..., :-1], matrix.abs())
            parts, part = parts[..., -1:], slice(-1, None)
        else:
            part = slice(None)
        if parts.numel() * matrix.shape[1] > MAX_PRODUCTS:
            raise ModelError(f"the product of its matrices takes more than {MAX_PRODUCTS:,} steps")
        for column in range(sizes[last]):
            if bool(parts[:, :, column].any()):
                term = _multiply_parts(parts[:, :, column, None, :], matrix[column][None, :, None])
                result[..., part] = _add_parts(result[..., part], term)
        return AffineTensor(self.layer, self.rows, result.reshape(3, *sizes[:last], matrix.shape[1], count))

    def apply_linear(self, function: Callable[[Tensor], Tensor], shape: Shape) -> AffineTensor:
        """Return what a linear operator on (rows, …) makes of it: its matrix is what it makes of units."""
        if self.rows != 0 or not shape or shape[0] is not None:
            raise ModelError("it mixes the numbers of several rows")
        sizes = lengths(self.shape)[1:]
        width, after = math.prod(sizes), math.prod(lengths(shape))
        check_numbers(width * max(width, after))
        matrix = function(torch.eye(width, dtype=torch.float64).reshape(width, *sizes)).reshape(width, after)
        flat = self.reshape((None, width)).multiply_matrix(matrix)
        return flat.reshape(shape)

    @staticmethod
    def concatenate(parts: Sequence[AffineTensor | Tensor], dim: int) -> AffineTensor:
        """Return tensors one after the other along a dimension that is not that of the rows."""
        first = next(part for part in parts if isinstance(part, AffineTensor))
        dim = first.check_dim(dim)
        all_parts = []
        for part in parts:
            if isinstance(part, Tensor):
                part = first.select(dim, slice(0, 1)).multiply(torch.zeros((), dtype=torch.float64)).add(part)
            if part.layer != first.layer:
                raise ModelError(
                    f"it joins layer {first.layer} and layer {part.layer}, which are not one after the other"
                )
            if part.rows != first.rows:
                raise ModelError("it mixes the numbers of several rows")
            all_parts.append(part.parts)
        return AffineTensor(first.layer, first.rows, torch.cat(all_parts, dim + 1))


def lengths(shape: Shape) -> list[int]:
    """Return a shape with one row."""
    return [1 if size is None else size for size in shape]


def _has_single_readers(weights: Tensor) -> bool:
    """Return whether each neuron of the layer is read by one number at most, without second digits."""
    return not bool(weights[1].any()) and bool(((weights[0] != 0).flatten(0, 1).sum(0) <= 1).all())


def _align_ranks(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    rank = max(a.dim(), b.dim())
    a, b = (x.reshape(3, *[1] * (rank - x.dim()), *x.shape[1:]) for x in (a, b))
    return a, b


def _add_exactly(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return a sum in float64 and what its rounding leaves out (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _split_halves(a: Tensor) -> tuple[Tensor, Tensor]:
    high = _SPLIT_FACTOR * a
    high = high - (high - a)
    return high, a - high


def _add_parts(a: Tensor, b: Tensor) -> Tensor:
    high, low = _add_exactly(a[0], b[0])
    return torch.stack([*_add_exactly(high, low + (a[1] + b[1])), a[2] + b[2]])


def _multiply_parts(a: Tensor, factor: Tensor) -> Tensor:
    """Return numbers of twice the digits times a float64 (Dekker)."""
    high = a[0] * factor
    (ah, al), (bh, bl) = _split_halves(a[0]), _split_halves(factor)
    low = ((ah * bh - high) + ah * bl + al * bh) + al * bl
    return torch.stack([*_add_exactly(high, low + a[1] * factor), a[2] * factor.abs()])
