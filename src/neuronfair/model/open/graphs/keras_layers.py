"""Keras layers as torch modules, in the layout of Keras; vocabularies are read as data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from neuronfair.errors import require
from neuronfair.limits import check_size
from neuronfair.model.open.graphs import Unsupported

LOOKUPS = ("IntegerLookup", "StringLookup")


class LayerFunction(nn.Module):
    """A function of a layer's inputs and of numbers that it holds, which become parameters under their names."""

    def __init__(self, function: Callable[..., Tensor], **numbers: nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, parameter in numbers.items():
            self.register_parameter(name, parameter)

    def forward(self, *parts: Tensor) -> Tensor:
        """Return the function of the inputs."""
        return self.function(*parts, *self.parameters())


MERGES: dict[str, Callable[[Sequence[Tensor], int], Tensor]] = {
    "Concatenate": lambda parts, axis: torch.cat(list(parts), axis),
    "Add": lambda parts, axis: reduce(torch.add, parts),
    "Subtract": lambda parts, axis: reduce(torch.sub, parts),
    "Multiply": lambda parts, axis: reduce(torch.mul, parts),
    "Maximum": lambda parts, axis: reduce(torch.maximum, parts),
    "Minimum": lambda parts, axis: reduce(torch.minimum, parts),
    "Average": lambda parts, axis: reduce(torch.add, parts) / len(parts),
}


def _make_merge(kind: str, axis: int) -> nn.Module:
    """Return what joins tensors along an axis, or number by number; whole numbers become what the others are."""

    def merge_parts(*parts: Tensor) -> Tensor:
        common = reduce(torch.promote_types, (part.dtype for part in parts))
        return MERGES[kind]([part.to(common) for part in parts], axis)

    return LayerFunction(merge_parts)


def _encode_categories(mode: str, depth: int) -> nn.Module:
    """Return what makes one input for each value: one-hot, or how often or whether it occurs in a row."""
    if mode not in ("one_hot", "multi_hot", "count"):
        raise Unsupported(f"the output mode '{mode}'")
    check_size(depth, "an encoding of categories", times=8)

    def encoded(x: Tensor, values: Tensor) -> Tensor:
        if mode == "one_hot" and x.dim() > 1 and x.shape[-1] == 1:
            x = x.squeeze(-1)
        hits = (x.unsqueeze(-1) == values).to(values.dtype)
        if mode == "one_hot":
            return hits
        return hits.amax(-2) if mode == "multi_hot" else hits.sum(-2)

    return LayerFunction(encoded, values=nn.Parameter(torch.arange(float(depth)), requires_grad=False))


class VocabularyIndex(nn.Module):
    """The positions of whole numbers in a vocabulary; unknown ones share positions by their remainder."""

    def __init__(self, position_of: dict[int, int], other: int, others: int) -> None:
        super().__init__()
        self.keys: Tensor
        self.places: Tensor
        keys = sorted(position_of)
        self.register_buffer("keys", torch.tensor(keys or [0]))
        # The name of the buffer is a part of the model's fingerprint.
        self.register_buffer("places", torch.tensor([position_of[key] for key in keys] or [other]))
        self.other, self.others = other, others

    def forward(self, x: Tensor) -> Tensor:
        """Return the position of each number."""
        x = x.long()
        key_index = torch.searchsorted(self.keys, x.contiguous()).clamp(max=len(self.keys) - 1)
        other = self.other + (x % self.others if self.others > 1 else 0)
        return torch.where(self.keys[key_index] == x, self.places[key_index], other)


def _convert_discretization(layer: Any) -> nn.Module:
    if layer.bin_boundaries is None:
        raise Unsupported(f"its layer '{layer.name}' has no boundaries")
    boundaries = nn.Parameter(torch.tensor(list(layer.bin_boundaries), dtype=torch.float32), requires_grad=False)
    part = LayerFunction(lambda x, b: torch.bucketize(x.to(b.dtype).contiguous(), b, right=True), boundaries=boundaries)
    return _add_encoding(layer, part, len(boundaries) + 1)


def convert_lookup(layer: Any, texts: Sequence[str]) -> nn.Module:
    """Return an IntegerLookup or StringLookup layer in torch; a text is its position in `texts`."""
    words = list(layer.get_vocabulary(include_special_tokens=False))
    of_text = type(layer).__name__ == "StringLookup"
    if layer.invert or not words or (of_text and (layer.num_oov_indices > 1 or not texts)):
        raise Unsupported(f"its layer '{layer.name}' is inverted, without a vocabulary or hashes unknown words")
    if layer.num_oov_indices > 1 and getattr(layer, "oov_method", "floormod") != "floormod":
        raise Unsupported(f"its layer '{layer.name}' hashes unknown numbers")
    as_integers = layer.output_mode == "int"
    first = int(layer.mask_token is not None and as_integers)
    start = first + layer.num_oov_indices
    position_of = {word: start + position for position, word in enumerate(words)}
    if layer.mask_token is not None:
        position_of[layer.mask_token] = 0 if as_integers else -1
    if of_text:
        position_of = {position: position_of[text] for position, text in enumerate(texts) if text in position_of}
    # With no place for what is unknown, Keras refuses such rows; here they are an index out of range.
    of_numbers = {int(key): position for key, position in position_of.items()}
    part = VocabularyIndex(of_numbers, first if start > first else -1, layer.num_oov_indices)
    return _add_encoding(layer, part, layer.max_tokens if layer.pad_to_max_tokens else start + len(words))


def _add_encoding(layer: Any, part: nn.Module, depth: int) -> nn.Module:
    return part if layer.output_mode == "int" else nn.Sequential(part, _encode_categories(layer.output_mode, depth))


def make_stand_ins(keras: Any) -> dict[str, type]:
    """Return stand-ins for layers that need TensorFlow, and could name any file as their vocabulary.

    They hold the configuration in the model file, and cannot be called.
    """

    class Lookup(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, **config: Any) -> None:
            super().__init__(name=config.get("name"))
            self._convert_input_args, self._allow_non_tensor_positional_args = False, True
            self.config = config
            self.mask_token, self.num_oov_indices = config.get("mask_token"), int(config.get("num_oov_indices", 1))
            if self.num_oov_indices < 0:
                raise ValueError(f"num_oov_indices is {self.num_oov_indices}; 0 or more were expected")
            check_size(self.num_oov_indices, "the places of unknown words", times=8)
            self.oov_token, self.oov_method = config.get("oov_token"), config.get("oov_method", "floormod")
            self.output_mode, self.invert = config.get("output_mode", "int"), bool(config.get("invert"))
            self.max_tokens, self.pad_to_max_tokens = config.get("max_tokens"), bool(config.get("pad_to_max_tokens"))
            words = config.get("vocabulary")
            self.vocabulary = list(words) if isinstance(words, (list, tuple)) else []
            self.built = True

        def get_config(self) -> Any:
            return self.config

        def get_vocabulary(self, include_special_tokens: bool = False) -> list[Any]:
            masked = self.mask_token is not None and self.output_mode == "int"
            special = [self.mask_token] * masked + [self.oov_token] * self.num_oov_indices
            count = len(special)
            return self.vocabulary[count:] if self.vocabulary[:count] == special else self.vocabulary

        def load_own_variables(self, store: Any) -> None:
            """Ignore the weights of words, which are not used."""

        def load_assets(self, folder: str | None) -> None:
            if folder is not None and not self.vocabulary:
                lines = (Path(folder) / "vocabulary.txt").read_text(encoding="utf-8").splitlines()
                self.vocabulary = [self.word(line) for line in lines]

        def compute_output_spec(self, inputs: Any) -> Any:
            if self.output_mode == "int":
                return keras.KerasTensor(inputs.shape, dtype="int64")
            depth = self.max_tokens if self.pad_to_max_tokens else self.config.get("vocabulary_size")
            depth = depth or len(self.get_vocabulary()) + self.num_oov_indices
            flat = self.output_mode != "one_hot" or (len(inputs.shape) > 1 and inputs.shape[-1] == 1)
            return keras.KerasTensor((*(inputs.shape[:-1] if flat else inputs.shape), depth))

    class IntegerLookup(Lookup):
        word = int

    class StringLookup(Lookup):
        word = str

    return {"IntegerLookup": IntegerLookup, "StringLookup": StringLookup}


def convert_layer(layer: Any, inputs: int = 1, texts: Sequence[str] = ()) -> dict[str, nn.Module]:
    """Return the torch modules of a Keras layer with this number of inputs; its activation is one of its own.

    A text is a position in `texts`.
    """
    kind = type(layer).__name__
    _check_layer(layer)
    if kind in MERGES:
        part: nn.Module | None = _make_merge(kind, getattr(layer, "axis", -1))
    elif kind in LOOKUPS and inputs == 1:
        part = convert_lookup(layer, texts)
    elif kind in _LAYERS and inputs == 1:
        part = _LAYERS[kind](layer)
    else:
        raise Unsupported(f"its layer '{layer.name}' ({kind}) has no counterpart in torch here")
    parts = {} if part is None else {layer.name: part}
    function = _convert_activation(layer)
    if function is not None:
        parts[layer.name if part is None else f"{layer.name}_{layer.activation.__name__}"] = function
    return parts


def _check_layer(layer: Any) -> None:
    """Refuse a class of the user's own, whatever its name, and weights that are not used as they are stored."""
    if type(layer).__module__.partition(".")[0] not in ("keras", __name__.partition(".")[0]):  # or a stand-in of ours
        raise Unsupported(f"its layer '{layer.name}' is of another class than Keras's own")
    if getattr(layer, "lora_enabled", False) or getattr(layer, "quantization_mode", None):
        raise Unsupported(f"its layer '{layer.name}' is quantized or has LoRA weights")


def _convert_activation(layer: Any) -> nn.Module | None:
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


def _make_scaling(scale: Any, shift: Any, axis: int = -1) -> nn.Module:
    """Return what multiplies and shifts along one axis: normalisation with fixed statistics, or rescaling."""

    def scaled(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        shape = [1] * x.dim()
        shape[axis] = -1
        scale, shift = (t.view(shape) if t.numel() > 1 else t for t in (scale, shift))
        return x * scale + shift

    return LayerFunction(scaled, scale=_to_parameter(scale), shift=_to_parameter(shift))


class ChannelsLast(nn.Module):
    """Runs a torch module, which expects channels first, on images with channels last."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """Return what the module computes, channels last."""
        inner: Tensor = self.inner(x.movedim(-1, 1))
        return inner.movedim(1, -1) if inner.dim() > 2 else inner


def _load_layer_weights(part: nn.Module, layer: Any, transpose: Callable[[np.ndarray], np.ndarray]) -> nn.Module:
    """Return a torch module with the weights of a layer, its matrix turned into torch's order."""
    weight, *bias = (_to_array(weight) for weight in layer.weights)
    state = {"weight": torch.from_numpy(transpose(weight).copy())}
    part.load_state_dict(state | ({"bias": torch.from_numpy(bias[0])} if layer.use_bias else {}))
    return part


def _convert_dense(layer: Any) -> nn.Module:
    before, after = layer.weights[0].shape
    return _load_layer_weights(nn.Linear(before, after, bias=layer.use_bias), layer, lambda weight: weight.T)


def _convert_convolution(layer: Any) -> nn.Module:
    height, width, before, after = layer.weights[0].shape
    strides, groups = tuple(layer.strides), layer.groups
    if layer.padding == "same" and strides != (1, 1):
        raise Unsupported(f"its layer '{layer.name}' has strides with padding 'same'")
    gaps, size = tuple(layer.dilation_rate), (height, width)
    convolution = nn.Conv2d(before * groups, after, size, strides, layer.padding, gaps, groups, layer.use_bias)
    return _match_layout(layer, _load_layer_weights(convolution, layer, lambda weight: weight.transpose(3, 2, 0, 1)))


def _make_pooling_converter(make: Callable[..., nn.Module]) -> Callable[[Any], nn.Module]:
    def convert_layer(layer: Any) -> nn.Module:
        if layer.padding != "valid":
            raise Unsupported(f"its layer '{layer.name}' has padding '{layer.padding}'")
        return _match_layout(layer, make(tuple(layer.pool_size), tuple(layer.strides)))

    return convert_layer


def _match_layout(layer: Any, inner: nn.Module) -> nn.Module:
    return inner if layer.data_format == "channels_first" else ChannelsLast(inner)


def _convert_batch_norm(layer: Any) -> nn.Module:
    mean, variance = _to_array(layer.moving_mean), _to_array(layer.moving_variance)
    scale = (_to_array(layer.gamma) if layer.scale else 1.0) / np.sqrt(variance + layer.epsilon)
    return _make_scaling(scale, (_to_array(layer.beta) if layer.center else 0.0) - mean * scale, layer.axis)


def _convert_layer_norm(layer: Any) -> nn.Module:
    axis = layer.axis if isinstance(layer.axis, int) else layer.axis[0] if len(layer.axis) == 1 else None
    if axis not in (-1, len(layer.input.shape) - 1) or getattr(layer, "rms_scaling", False):
        raise Unsupported(f"its layer '{layer.name}' normalises along other axes than the last")
    norm = nn.LayerNorm(layer.input.shape[-1], layer.epsilon)
    if layer.scale:
        norm.weight = _to_parameter(_to_array(layer.gamma))
    if layer.center:
        norm.bias = _to_parameter(_to_array(layer.beta))
    return norm


def _convert_normalization(layer: Any) -> nn.Module:
    mean, variance = (_to_array(figure).reshape(-1) for figure in (layer.mean, layer.variance))
    spread = np.maximum(np.sqrt(variance), 1e-7)  # as Keras does
    if layer.axis is not None and len(tuple(np.atleast_1d(layer.axis))) > 1:
        raise Unsupported(f"its layer '{layer.name}' normalises along several axes")
    axis = -1 if layer.axis is None else int(np.atleast_1d(layer.axis)[0])
    return _make_scaling(spread, mean, axis) if layer.invert else _make_scaling(1 / spread, -mean / spread, axis)


def _convert_relu(layer: Any) -> nn.Module:
    if layer.threshold:
        raise Unsupported(f"its layer '{layer.name}' has a threshold")
    if layer.max_value is not None:
        if layer.negative_slope:
            raise Unsupported(f"its layer '{layer.name}' has both a slope and a largest value")
        return nn.Hardtanh(0.0, float(layer.max_value))
    return nn.LeakyReLU(float(layer.negative_slope)) if layer.negative_slope else nn.ReLU()


def _convert_softmax(layer: Any) -> nn.Module:
    if layer.axis not in (-1, len(layer.input.shape) - 1):
        raise Unsupported(f"its layer '{layer.name}' is a softmax along another axis than the last")
    return nn.Softmax(-1)


def _convert_flatten(layer: Any) -> nn.Module:
    if layer.data_format == "channels_first":  # Keras turns it into channels last
        return LayerFunction(lambda x: x.movedim(1, -1).flatten(1))
    return nn.Flatten()


def _reshape_rows(shape: tuple[int, ...], x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], *shape)


_LAYERS: dict[str, Callable[[Any], nn.Module | None]] = {
    "Dense": _convert_dense,
    "Activation": lambda layer: None,
    "ReLU": _convert_relu,
    "LeakyReLU": lambda layer: nn.LeakyReLU(float(layer.negative_slope)),
    "ELU": lambda layer: nn.ELU(float(layer.alpha)),
    "Softmax": _convert_softmax,
    "BatchNormalization": _convert_batch_norm,
    "LayerNormalization": _convert_layer_norm,
    "Normalization": _convert_normalization,
    "Rescaling": lambda layer: _make_scaling(np.ravel(layer.scale), np.ravel(layer.offset)),
    **dict.fromkeys(("Dropout", "SpatialDropout1D", "GaussianDropout", "GaussianNoise"), lambda layer: None),
    "Embedding": lambda layer: LayerFunction(  # Keras truncates numbers that are not whole
        lambda x, weight: functional.embedding(x.long(), weight), weight=_to_parameter(_to_array(layer.embeddings))
    ),
    "CategoryEncoding": lambda layer: _encode_categories(layer.output_mode, layer.num_tokens),
    "Discretization": _convert_discretization,
    "Flatten": _convert_flatten,
    "Reshape": lambda layer: LayerFunction(partial(_reshape_rows, tuple(layer.target_shape))),
    "Conv2D": _convert_convolution,
    "MaxPooling2D": _make_pooling_converter(nn.MaxPool2d),
    "AveragePooling2D": _make_pooling_converter(nn.AvgPool2d),
    "GlobalAveragePooling2D": lambda layer: _match_layout(
        layer, nn.Sequential(nn.AdaptiveAvgPool2d(1), *([] if layer.keepdims else [nn.Flatten()]))
    ),
}


@contextmanager
def ignore_numpy_warning() -> Iterator[None]:
    """Silence a warning of NumPy 2 about the conversion of torch's tensors inside Keras."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        yield


def _to_array(weight: Any) -> np.ndarray:
    with ignore_numpy_warning():
        return np.array(require("keras", "keras").ops.convert_to_numpy(weight), dtype=np.float64)


def _to_parameter(numbers: Any) -> nn.Parameter:
    return nn.Parameter(torch.as_tensor(np.asarray(numbers, dtype=np.float64)).clone(), requires_grad=False)
