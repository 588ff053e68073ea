"""Keras layers in torch, in the layout of Keras: the channels of a picture last unless a layer says otherwise."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuronfair.errors import needs
from neuronfair.model.open.graph import Unsupported
from neuronfair.model.open.keras_lookups import LOOKUPS, MERGES, Embedded, Encoded, Merge, discretization, lookup


def convert(layer: Any, inputs: int = 1, texts: Sequence[str] = ()) -> dict[str, nn.Module]:
    """Return the torch modules of one Keras layer that is given so many tensors, its activation apart.

    A text is its place in `texts`.
    """
    kind = type(layer).__name__
    makers = _LAYERS if inputs == 1 else {}
    if kind in MERGES:
        part: nn.Module | None = Merge(kind, getattr(layer, "axis", -1))
    elif kind in LOOKUPS and inputs == 1:
        part = lookup(layer, texts)
    elif kind in makers:
        part = makers[kind](layer)
    else:
        raise Unsupported(f"its layer '{layer.name}' ({kind}) has no counterpart in torch here")
    parts = {} if part is None else {layer.name: part}
    function = _activation(layer)
    if function is not None:
        parts[layer.name if part is None else f"{layer.name}_{layer.activation.__name__}"] = function
    return parts


def _activation(layer: Any) -> nn.Module | None:
    activation = getattr(layer, "activation", None)
    name = getattr(activation, "__name__", None)
    if activation is None or name == "linear":
        return None
    if name not in _ACTIVATIONS or not activation.__module__.startswith("keras."):
        raise Unsupported(f"its layer '{layer.name}' has the activation '{name}', which has no counterpart here")
    return _ACTIVATIONS[name]()


_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "leaky_relu": lambda: nn.LeakyReLU(0.2),
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "softsign": nn.Softsign,
    "hard_sigmoid": nn.Hardsigmoid,
    "softmax": lambda: nn.Softmax(-1),
    "log_softmax": lambda: nn.LogSoftmax(-1),
}


class Affine(nn.Module):
    """Multiplies and shifts along one axis: normalisation with fixed figures, or rescaling."""

    def __init__(self, scale: Any, shift: Any, axis: int = -1) -> None:
        super().__init__()
        self.scale, self.shift = _parameter(scale), _parameter(shift)
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Return x · scale + shift."""
        shape = [1] * x.dim()
        shape[self.axis] = -1
        scale, shift = (t.view(shape) if t.numel() > 1 else t for t in (self.scale, self.shift))
        return x * scale + shift


class ChannelsLast(nn.Module):
    """Runs a module of torch, which has the channels of a picture first, on pictures that have them last."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """Return what the module computes, channels last."""
        inner: Tensor = self.inner(x.movedim(-1, 1))
        return inner.movedim(1, -1) if inner.dim() > 2 else inner


def _dense(layer: Any) -> nn.Module:
    weights = [_array(w) for w in layer.weights]
    before, after = weights[0].shape
    linear = nn.Linear(before, after, bias=layer.use_bias)
    state = {"weight": torch.from_numpy(weights[0].T.copy())}
    linear.load_state_dict(state | ({"bias": torch.from_numpy(weights[1])} if layer.use_bias else {}))
    return linear


def _convolution(layer: Any) -> nn.Module:
    weights = [_array(w) for w in layer.weights]
    height, width, before, after = weights[0].shape
    padding = layer.padding
    if padding == "same" and tuple(layer.strides) != (1, 1):
        raise Unsupported(f"its layer '{layer.name}' has strides with padding 'same'")
    groups, bias = layer.groups, layer.use_bias
    convolution = nn.Conv2d(
        before * groups,
        after,
        (height, width),
        tuple(layer.strides),
        padding,
        tuple(layer.dilation_rate),
        groups,
        bias,
    )
    state = {"weight": torch.from_numpy(weights[0].transpose(3, 2, 0, 1).copy())}
    convolution.load_state_dict(state | ({"bias": torch.from_numpy(weights[1])} if bias else {}))
    return _in_layout(layer, convolution)


def _pooling(make: Callable[..., nn.Module]) -> Callable[[Any], nn.Module]:
    def convert(layer: Any) -> nn.Module:
        if layer.padding != "valid":
            raise Unsupported(f"its layer '{layer.name}' has padding '{layer.padding}'")
        return _in_layout(layer, make(tuple(layer.pool_size), tuple(layer.strides)))

    return convert


def _global_pooling(layer: Any) -> nn.Module:
    parts: list[nn.Module] = [nn.AdaptiveAvgPool2d(1)] + ([] if layer.keepdims else [nn.Flatten()])
    return _in_layout(layer, nn.Sequential(*parts))


def _in_layout(layer: Any, inner: nn.Module) -> nn.Module:
    return inner if layer.data_format == "channels_first" else ChannelsLast(inner)


def _batch_normalization(layer: Any) -> nn.Module:
    mean, variance = _array(layer.moving_mean), _array(layer.moving_variance)
    scale = (_array(layer.gamma) if layer.scale else 1.0) / np.sqrt(variance + layer.epsilon)
    return Affine(scale, (_array(layer.beta) if layer.center else 0.0) - mean * scale, layer.axis)


def _layer_normalization(layer: Any) -> nn.Module:
    axis = layer.axis if isinstance(layer.axis, int) else layer.axis[0] if len(layer.axis) == 1 else None
    if axis not in (-1, len(layer.input.shape) - 1) or getattr(layer, "rms_scaling", False):
        raise Unsupported(f"its layer '{layer.name}' normalises along other axes than the last")
    norm = nn.LayerNorm(layer.input.shape[-1], layer.epsilon)
    if layer.scale:
        norm.weight = _parameter(_array(layer.gamma))
    if layer.center:
        norm.bias = _parameter(_array(layer.beta))
    return norm


def _normalization(layer: Any) -> nn.Module:
    mean, variance = (_array(figure).reshape(-1) for figure in (layer.mean, layer.variance))
    spread = np.maximum(np.sqrt(variance), 1e-7)  # as Keras does
    if layer.axis is not None and len(tuple(np.atleast_1d(layer.axis))) > 1:
        raise Unsupported(f"its layer '{layer.name}' normalises along several axes")
    axis = -1 if layer.axis is None else int(np.atleast_1d(layer.axis)[0])
    return Affine(spread, mean, axis) if layer.invert else Affine(1 / spread, -mean / spread, axis)


def _rescaling(layer: Any) -> nn.Module:
    return Affine(np.asarray(layer.scale, dtype=np.float64).reshape(-1), np.asarray(layer.offset).reshape(-1) * 1.0)


def _relu(layer: Any) -> nn.Module:
    if layer.threshold:
        raise Unsupported(f"its layer '{layer.name}' has a threshold")
    if layer.max_value is not None:
        if layer.negative_slope:
            raise Unsupported(f"its layer '{layer.name}' has both a slope and a largest value")
        return nn.Hardtanh(0.0, float(layer.max_value))
    return nn.LeakyReLU(float(layer.negative_slope)) if layer.negative_slope else nn.ReLU()


def _softmax(layer: Any) -> nn.Module:
    if layer.axis not in (-1, len(layer.input.shape) - 1):
        raise Unsupported(f"its layer '{layer.name}' is a softmax along another axis than the last")
    return nn.Softmax(-1)


class Reshape(nn.Module):
    """Gives every row another shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def forward(self, x: Tensor) -> Tensor:
        """Return the rows in the new shape."""
        return x.reshape(x.shape[0], *self.shape)


_LAYERS: dict[str, Callable[[Any], nn.Module | None]] = {
    "Dense": _dense,
    "Activation": lambda layer: None,
    "ReLU": _relu,
    "LeakyReLU": lambda layer: nn.LeakyReLU(float(layer.negative_slope)),
    "ELU": lambda layer: nn.ELU(float(layer.alpha)),
    "Softmax": _softmax,
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_normalization,
    "Normalization": _normalization,
    "Rescaling": _rescaling,
    **dict.fromkeys(("Dropout", "SpatialDropout1D", "GaussianDropout", "GaussianNoise"), lambda layer: None),
    "Embedding": lambda layer: Embedded(_parameter(_array(layer.embeddings))),
    "CategoryEncoding": lambda layer: Encoded(layer.output_mode, layer.num_tokens),
    "Discretization": discretization,
    "Flatten": lambda layer: nn.Flatten(),
    "Reshape": lambda layer: Reshape(layer.target_shape),
    "Conv2D": _convolution,
    "MaxPooling2D": _pooling(nn.MaxPool2d),
    "AveragePooling2D": _pooling(nn.AvgPool2d),
    "GlobalAveragePooling2D": _global_pooling,
}


@contextmanager
def without_numpy_warning() -> Iterator[None]:
    """Silence what NumPy 2 says about how torch's tensors become arrays inside Keras."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        yield


def _array(weight: Any) -> np.ndarray:
    with without_numpy_warning():
        return np.array(needs("keras", "keras").ops.convert_to_numpy(weight), dtype=np.float64)


def _parameter(numbers: Any) -> nn.Parameter:
    return nn.Parameter(torch.as_tensor(np.asarray(numbers, dtype=np.float64)).clone(), requires_grad=False)
