"""The operators of ONNX graphs of dense and convolutional networks, in torch.

Each function takes the inputs of a node and, as keywords, its attributes; an attribute that it does not name is not
supported. Where versions of ONNX differ, both forms are taken.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from neuronfair.model.open.graphs import Ref, Unsupported

Sizes = Sequence[int]


class _Selu(nn.SELU):
    def __init__(self, alpha: float, gamma: float) -> None:
        super().__init__()
        self.alpha, self.gamma = alpha, gamma

    def forward(self, x: Tensor) -> Tensor:
        return self.gamma * functional.elu(x, self.alpha)


def _fixed_clip(inputs: Sequence[Any], *, min: Any = None, max: Any = None) -> nn.Module | None:  # noqa: A002
    """Return a Clip whose bounds are numbers of the file; None if the graph computes a bound, or has the lower only."""
    low, high = (*inputs[1:], None, None)[:2]
    low, high = low if min is None else min, high if max is None else max
    if isinstance(low, Ref) or isinstance(high, Ref):
        return None
    if high is None:
        return nn.ReLU() if low == 0 else None
    return nn.Hardtanh(float(low), float(high)) if low is not None and low < high else None


def _clip(x: Tensor, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None) -> Tensor:  # noqa: A002
    low, high = low if min is None else min, high if max is None else max
    return x if low is None and high is None else x.clamp(low, high)


# The activation functions, from a node's inputs as `make_activation` gets them, and its attributes.
_ACTIVATIONS: dict[str, Callable[..., nn.Module | None]] = {
    "Relu": lambda _: nn.ReLU(),
    "Sigmoid": lambda _: nn.Sigmoid(),
    "Tanh": lambda _: nn.Tanh(),
    "Mish": lambda _: nn.Mish(),
    "Softplus": lambda _: nn.Softplus(),
    "Softsign": lambda _: nn.Softsign(),
    "HardSwish": lambda _: nn.Hardswish(),
    "LeakyRelu": lambda _, *, alpha=0.01: nn.LeakyReLU(alpha),
    "Elu": lambda _, *, alpha=1.0: nn.ELU(alpha),
    "Selu": lambda _, *, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875: _Selu(alpha, gamma),
    "Gelu": lambda _, *, approximate="none": nn.GELU(approximate=approximate),
    "Clip": _fixed_clip,
}


def make_activation(kind: str, attributes: Mapping[str, object], inputs: Sequence[Any]) -> nn.Module | None:
    """Return the module of an activation function, or None if the operator is none.

    Each of the node's inputs is a number where the file fixes it, a `Ref` where the graph computes it, or None where
    the node leaves it out.
    """
    if kind not in _ACTIVATIONS:
        return None
    _check_attributes(kind, _ACTIVATIONS[kind], attributes)
    return _ACTIVATIONS[kind](inputs, **attributes)


def _check_attributes(kind: str, function: Callable[..., Any], attributes: Iterable[str]) -> None:
    supported = {name for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}
    if unknown := set(attributes) - supported:
        raise Unsupported(f"the attribute {min(unknown)} of {kind}")


def find_operator(kind: str, attributes: Mapping[str, object], version: int) -> Callable[..., Any]:
    """Return the function of an operator in a version of the standard, with its attributes filled in."""
    if kind not in _OPERATORS:
        raise Unsupported(f"the operator {kind}")
    function, attributes = _OPERATORS[kind], dict(attributes)
    if version < SOFTMAX_AXIS_VERSION and kind in ("Softmax", "LogSoftmax"):
        attributes.setdefault("axis", 1)  # this axis and all later ones together
    padding = attributes.pop("auto_pad", "NOTSET")
    if padding not in ("NOTSET", "VALID"):  # pads, or none
        raise Unsupported(f"the padding {padding}")
    _check_attributes(kind, function, attributes)
    return partial(function, **attributes)


def _gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803 - the standard's names
    transB: int = 0,  # noqa: N803
) -> Tensor:
    a, b = a.T if transA else a, b.T if transB else b
    if c is not None and alpha == beta == 1.0:
        return torch.addmm(c, a, b)
    return alpha * (a @ b) + (0.0 if c is None else beta * c)


def _batch_norm(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Tensor:
    if training_mode:
        raise Unsupported("BatchNormalization in training mode")
    return functional.batch_norm(x, mean, variance, scale, shift, False, 0.0, epsilon)


def _conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    dilations: Sizes = (),
    group: int = 1,
    kernel_shape: Sizes = (),
    pads: Sizes = (),
    strides: Sizes = (),
) -> Tensor:
    n = weight.dim() - 2
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[n - 1]
    units = [1] * n
    return function(_pad(x, pads, n, 0.0), weight, bias, list(strides or units), 0, list(dilations or units), group)


def _max_pool(
    x: Tensor,
    *,
    kernel_shape: Sizes,
    ceil_mode: int = 0,
    dilations: Sizes = (),
    pads: Sizes = (),
    storage_order: int = 0,
    strides: Sizes = (),
) -> Tensor:
    n = len(kernel_shape)
    function = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[n - 1]
    steps, gaps = list(strides or [1] * n), list(dilations or [1] * n)
    x = _pad(x, pads, n, -math.inf)
    pooled: Tensor = function(x, list(kernel_shape), steps, 0, gaps, ceil_mode=bool(ceil_mode))
    return pooled


def _average_pool(
    x: Tensor,
    *,
    kernel_shape: Sizes,
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    pads: Sizes = (),
    strides: Sizes = (),
) -> Tensor:
    if ceil_mode or (any(pads) and not count_include_pad):
        raise Unsupported("AveragePool with a ceiling or with padding that does not count")
    n = len(kernel_shape)
    function = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[n - 1]
    return function(_pad(x, pads, n, 0.0), list(kernel_shape), list(strides or [1] * n))


def _pad(x: Tensor, pads: Sizes, n: int, value: float) -> Tensor:
    if not any(pads):
        return x
    # torch counts from the last dimension.
    flat = [amount for pair in zip(reversed(pads[:n]), reversed(pads[n:]), strict=True) for amount in pair]
    return functional.pad(x, flat, value=value)


def _flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    if axis == 1:  # rows stay rows, whatever their number
        return x.flatten(1)
    raise Unsupported(f"Flatten along axis {axis}")


def _reshape(x: Tensor, shape: Tensor | Sizes, *, allowzero: int = 0) -> Tensor:
    sizes = [int(size) for size in shape.tolist()] if isinstance(shape, Tensor) else shape
    return x.reshape([x.shape[i] if size == 0 and not allowzero else size for i, size in enumerate(sizes)])


def _get_shape(x: Tensor) -> Tensor:
    # Beside x, for it meets weights there; but a graph that is only measured needs the numbers.
    return torch.tensor(x.shape, device="cpu" if x.is_meta else x.device)


def _squeeze(x: Tensor, axis_input: Tensor | Sizes | None = None, *, axes: Sizes | None = None) -> Tensor:
    dims = _list_axes(axis_input, axes)
    return x.squeeze() if dims is None else x.squeeze(tuple(dims))


def _unsqueeze(x: Tensor, axis_input: Tensor | Sizes | None = None, *, axes: Sizes | None = None) -> Tensor:
    dims = _list_axes(axis_input, axes) or []
    rank = x.dim() + len(dims)
    for axis in sorted(dim % rank for dim in dims):
        x = x.unsqueeze(axis)
    return x


def _list_axes(axis_input: Tensor | Sizes | None, axes: Sequence[int] | None) -> list[int] | None:
    if axis_input is not None:
        return [int(axis) for axis in (axis_input.flatten().tolist() if isinstance(axis_input, Tensor) else axis_input)]
    return None if axes is None else list(axes)


def _softmax(log: bool, x: Tensor, *, axis: int = -1) -> Tensor:
    if axis not in (-1, x.dim() - 1):
        raise Unsupported(f"Softmax along axis {axis}")
    return x.log_softmax(-1) if log else x.softmax(-1)


def _dropout(x: Tensor, share: Any = None, training: Any = None, *, ratio: float = 0.5, seed: int = 0) -> Tensor:
    if training is not None and bool(training):
        raise Unsupported("Dropout in training mode")
    return x


def _cast(x: Tensor, *, to: int, saturate: int = 1) -> Tensor:
    if to in (1, 11):  # the type of the whole network stays, be it float64; types of 16 bits would round or overflow
        return x if x.is_floating_point() else x.float()
    if to in (6, 7):
        return x.long()
    raise Unsupported(f"a cast to type {to}")


def _divide(a: Tensor, b: Tensor) -> Tensor:
    is_integer = not (a.is_floating_point() or b.is_floating_point())
    return torch.div(a, b, rounding_mode="trunc" if is_integer else None)


def _gather(x: Tensor, index: Tensor, *, axis: int = 0) -> Tensor:
    # As onnxruntime does, negative places count from the end and those that do not exist are an error.
    selection: list[slice | Tensor] = [slice(None)] * (axis % x.dim())
    return x[(*selection, index)]


SOFTMAX_AXIS_VERSION = 13  # the version of the standard from which a softmax is along one axis, by default the last
SHAPE_OPERATORS = {"Reshape", "Squeeze", "Unsqueeze"}  # whose second input says a shape or dimensions

_OPERATORS: dict[str, Callable[..., Any]] = {
    "Gemm": _gemm,
    "MatMul": lambda a, b: a @ b,
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": _divide,
    "Neg": torch.neg,
    "Exp": torch.exp,
    "Log": torch.log,
    "Sqrt": torch.sqrt,
    "Erf": torch.erf,
    "Pow": lambda a, b: torch.pow(a, b).to(a.dtype),
    "Softmax": partial(_softmax, False),
    "LogSoftmax": partial(_softmax, True),
    "BatchNormalization": _batch_norm,
    "Conv": _conv,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda x: x.mean(tuple(range(2, x.dim())), keepdim=True),
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Transpose": lambda x, *, perm=None: x.permute(*(perm or range(x.dim())[::-1])),
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": lambda *parts, axis: torch.cat(parts, axis),
    "Cast": _cast,
    "Identity": lambda x: x,
    "Dropout": _dropout,
    "Clip": _clip,
    "Shape": _get_shape,
    "Gather": _gather,
}
