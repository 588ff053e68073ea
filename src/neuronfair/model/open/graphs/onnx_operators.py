"""The operators of ONNX graphs of dense and convolutional networks, in torch.

Each function takes the inputs of a node and, as keywords, its attributes; an attribute that it does not name is not
supported. Where versions of ONNX differ, both forms are taken.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from neuronfair.model.open.graphs.graph import Unsupported


def activation(kind: str, attributes: dict[str, Any], constants: Sequence[Any]) -> nn.Module | None:
    """Return the module of an activation function, or None if the operator is none.

    `constants` are the values of the node's inputs where these are fixed, else None.
    """
    if kind in _SIMPLE and not attributes:
        return _SIMPLE[kind]()
    if kind == "LeakyRelu":
        return nn.LeakyReLU(attributes.get("alpha", 0.01))
    if kind == "Elu":
        return nn.ELU(attributes.get("alpha", 1.0))
    if kind == "Selu":
        return _Selu(**attributes)
    if kind == "Gelu":
        return nn.GELU(approximate=attributes.get("approximate", "none"))
    if kind == "Clip":
        low, high = (*constants[1:], None, None)[:2]
        low, high = attributes.get("min", low), attributes.get("max", high)
        if low is not None and high is not None:
            return nn.Hardtanh(float(low), float(high))
        return nn.ReLU() if low == 0 else None
    return None


class _Selu(nn.SELU):
    def __init__(self, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> None:
        super().__init__()
        self.alpha, self.gamma = alpha, gamma

    def forward(self, x: Tensor) -> Tensor:
        return self.gamma * functional.elu(x, self.alpha)


_SIMPLE: dict[str, type[nn.Module]] = {
    "Relu": nn.ReLU,
    "Sigmoid": nn.Sigmoid,
    "Tanh": nn.Tanh,
    "Mish": nn.Mish,
    "Softplus": nn.Softplus,
    "Softsign": nn.Softsign,
    "HardSwish": nn.Hardswish,
}


def operator(kind: str, attributes: dict[str, Any]) -> Callable[..., Any]:
    """Return the function of an operator with its attributes filled in."""
    if kind not in _OPERATORS:
        raise Unsupported(f"the operator {kind}")
    function, attributes = _OPERATORS[kind], dict(attributes)
    padding = attributes.pop("auto_pad", "NOTSET")
    if padding not in ("NOTSET", "VALID"):  # pads, or none
        raise Unsupported(f"the padding {padding}")
    known = {name for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}
    if unknown := set(attributes) - known:
        raise Unsupported(f"the attribute {min(unknown)} of {kind}")
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
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    n = weight.dim() - 2
    x = _padded(x, pads, n, 0.0)
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[n - 1]
    return function(x, weight, bias, list(strides or [1] * n), 0, list(dilations or [1] * n), group)


def _max_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
) -> Tensor:
    n = len(kernel_shape)
    x = _padded(x, pads, n, -math.inf)
    function = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[n - 1]
    steps, gaps = list(strides or [1] * n), list(dilations or [1] * n)
    pooled: Tensor = function(x, list(kernel_shape), steps, 0, gaps, ceil_mode=bool(ceil_mode))
    return pooled


def _average_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    n = len(kernel_shape)
    function = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[n - 1]
    if ceil_mode or (any(pads or ()) and not count_include_pad):
        raise Unsupported("AveragePool with a ceiling or with padding that does not count")
    x = _padded(x, pads, n, 0.0)
    return function(x, list(kernel_shape), list(strides or [1] * n))


def _padded(x: Tensor, pads: Sequence[int] | None, n: int, value: float) -> Tensor:
    if not any(pads or ()):
        return x
    before, after = list(pads or ())[:n], list(pads or ())[n:]
    # torch counts from the last dimension.
    flat = [amount for pair in zip(reversed(before), reversed(after), strict=True) for amount in pair]
    return functional.pad(x, flat, value=value)


def _flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    if axis == 1:  # rows stay rows, whatever their number
        return x.flatten(1)
    raise Unsupported(f"Flatten along axis {axis}")


def _reshape(x: Tensor, shape: Tensor | Sequence[int], *, allowzero: int = 0) -> Tensor:
    sizes = [int(size) for size in shape.tolist()] if isinstance(shape, Tensor) else shape
    return x.reshape([x.shape[i] if size == 0 and not allowzero else size for i, size in enumerate(sizes)])


def _shape(x: Tensor) -> Tensor:
    # Beside x, for it meets weights there; but a graph that is only measured needs the numbers.
    return torch.tensor(x.shape, device="cpu" if x.is_meta else x.device)


def _transpose(x: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    return x.permute(*(perm or range(x.dim())[::-1]))


def _squeeze(x: Tensor, places: Tensor | Sequence[int] | None = None, *, axes: Sequence[int] | None = None) -> Tensor:
    dims = _axes(places, axes)
    return x.squeeze() if dims is None else x.squeeze(tuple(dims))


def _unsqueeze(x: Tensor, places: Tensor | Sequence[int] | None = None, *, axes: Sequence[int] | None = None) -> Tensor:
    dims = _axes(places, axes) or []
    rank = x.dim() + len(dims)
    for place in sorted(dim % rank for dim in dims):
        x = x.unsqueeze(place)
    return x


def _axes(places: Tensor | Sequence[int] | None, axes: Sequence[int] | None) -> list[int] | None:
    if places is not None:
        return [int(axis) for axis in (places.flatten().tolist() if isinstance(places, Tensor) else places)]
    return None if axes is None else list(axes)


def _softmax(x: Tensor, *, axis: int = -1, log: bool = False) -> Tensor:
    if axis not in (-1, x.dim() - 1):
        raise Unsupported(f"Softmax along axis {axis}")
    return x.log_softmax(-1) if log else x.softmax(-1)


def _dropout(x: Tensor, share: Any = None, training: Any = None, *, ratio: float = 0.5, seed: int = 0) -> Tensor:
    if training is not None and bool(training):
        raise Unsupported("Dropout in training mode")
    return x


def _cast(x: Tensor, *, to: int, saturate: int = 1) -> Tensor:
    # 1, 10, 11 and 16 are the floating-point types: there the type of the whole network stays, be it float64.
    if to in (1, 10, 11, 16):
        return x if x.is_floating_point() else x.float()
    if to in (6, 7):
        return x.long()
    raise Unsupported(f"a cast to type {to}")


def _divide(a: Tensor, b: Tensor) -> Tensor:
    whole = not (a.is_floating_point() or b.is_floating_point())
    return torch.div(a, b, rounding_mode="trunc" if whole else None)


def _concat(*parts: Tensor, axis: int) -> Tensor:
    return torch.cat(parts, axis)


def _clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    return x.clamp(low, high)


def _gather(x: Tensor, index: Tensor, *, axis: int = 0) -> Tensor:
    # As onnxruntime does, negative places count from the end and those that do not exist are an error.
    places: list[slice | Tensor] = [slice(None)] * (axis % x.dim())
    return x[(*places, index)]


SHAPED = {"Reshape", "Squeeze", "Unsqueeze"}  # whose second input says a shape or dimensions

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
    "Pow": torch.pow,
    "Softmax": _softmax,
    "LogSoftmax": partial(_softmax, log=True),
    "BatchNormalization": _batch_norm,
    "Conv": _conv,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda x: x.mean(tuple(range(2, x.dim())), keepdim=True),
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Cast": _cast,
    "Identity": lambda x: x,
    "Dropout": _dropout,
    "Clip": _clip,
    "Shape": _shape,
    "Gather": _gather,
}
