"""The operations that an exported graph may use: all of them are named here, and nothing else can be called.

The names are those of torch's own tensor operations that neither read nor write anything but their arguments, draw
nothing at random and take their sizes from tensors. What a file says is looked up in these tables as a whole.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from neuronfair.errors import ModelError
from neuronfair.limits import TooLarge
from neuronfair.model.open.graph import Unsupported

Call = Callable[..., Any]
LARGEST = 10**18  # of the whole numbers that sizes are worked out with
PIECES = 4096  # that a tensor may be cut into
_HOME = "torch.ops.aten."

# Numbers, one by one.
_POINTWISE = """
    abs acos acosh add.Tensor add.Scalar addcdiv addcmul alias angle asin asinh atan atan2 atanh bitwise_and.Tensor
    bitwise_not bitwise_or.Tensor bitwise_xor.Tensor ceil clamp clamp.Tensor clamp_max clamp_max.Tensor clamp_min
    clamp_min.Tensor clip clip.Tensor clone contiguous cos cosh deg2rad detach div.Scalar div.Tensor
    div.Tensor_mode div.Scalar_mode divide.Tensor divide.Scalar eq.Scalar eq.Tensor erf erfc erfinv exp exp2 expm1
    floor floor_divide floor_divide.Scalar fmax fmin fmod.Scalar fmod.Tensor frac full_like ge.Scalar ge.Tensor
    gt.Scalar gt.Tensor heaviside hypot isfinite isinf isnan le.Scalar le.Tensor lerp.Scalar lerp.Tensor
    lift_fresh_copy log log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor logit lt.Scalar
    lt.Tensor masked_fill.Scalar masked_fill.Tensor maximum minimum mul.Scalar mul.Tensor multiply.Tensor
    multiply.Scalar nan_to_num ne.Scalar ne.Tensor neg negative ones_like pow.Scalar pow.Tensor_Scalar
    pow.Tensor_Tensor positive rad2deg reciprocal relu remainder.Scalar remainder.Tensor round round.decimals rsqrt
    rsub.Scalar rsub.Tensor sgn sign sin sinh sqrt square sub.Scalar sub.Tensor subtract.Tensor subtract.Scalar tan
    true_divide.Tensor trunc where.ScalarSelf where.ScalarOther where.Scalar where.self xlogy.Tensor zeros_like
    __and__.Tensor __or__.Tensor __xor__.Tensor
    fill.Scalar fill.Tensor zero
"""
_SHAPES = """
    cat channel_shuffle column_stack concat concatenate constant_pad_nd diag_embed diagonal diff expand expand_as
    flatten.using_ints flip fliplr gather hstack index.Tensor index_select mT moveaxis.int movedim.int movedim.intlist
    narrow numpy_T pad permute pixel_shuffle pixel_unshuffle ravel reflection_pad1d reflection_pad2d repeat
    repeat_interleave.self_int replication_pad1d replication_pad2d reshape reshape_as roll select.int select_scatter
    slice.Tensor slice_scatter split.sizes split_with_sizes squeeze squeeze.dim squeeze.dims stack swapaxes
    sym_size.int t take_along_dim tile transpose.int tril triu unflatten.int unfold unsqueeze upsample_bilinear2d.vec
    upsample_linear1d.vec upsample_nearest1d.vec upsample_nearest2d.vec view view_as vstack _unsafe_view
"""
_REDUCTIONS = """
    all all.dim amax amin any any.dim aminmax argmax argmin cummax cummin cumprod cumsum linalg_vector_norm
    log_softmax.int logcumsumexp logsumexp max max.dim max.other mean mean.dim median.dim min min.dim min.other
    nansum norm.Scalar norm.ScalarOpt_dim prod prod.dim_int softmax.int sort std.correction std.dim std sum
    sum.dim_IntList topk var.correction var.dim var _log_softmax _softmax
"""
_LAYERS = """
    _adaptive_avg_pool2d _native_batch_norm_legit.no_stats _native_batch_norm_legit_no_training
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d addmm addmv avg_pool1d avg_pool2d
    avg_pool3d baddbmm bmm conv1d conv1d.padding conv2d conv2d.padding conv3d conv3d.padding conv_transpose1d
    conv_transpose2d.input convolution cosine_similarity dot einsum embedding glu group_norm hardshrink
    instance_norm layer_norm linear matmul max_pool1d max_pool2d max_pool2d_with_indices max_pool3d mm mv
    native_group_norm native_layer_norm outer pairwise_distance prelu rms_norm softshrink
    threshold vdot
"""
# Checks of shapes and types, which return nothing: a graph goes on without them.
CHECKS = frozenset(
    f"{_HOME}{name}"
    for name in (
        *("_assert_async.default", "_assert_async.msg", "_assert_scalar.default", "_assert_tensor_metadata.default"),
        *("sym_constrain_range.default", "sym_constrain_range_for_size.default"),
    )
)
CASTS = frozenset(
    f"{_HOME}{name}"
    for name in ("to.device", "to.dtype", "to.dtype_layout", "to.other", "_to_copy.default", "type_as.default")
)


# Activations become modules, whose outputs are layers; with the names of those arguments that the modules have, too.
_ACTIVATIONS: dict[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "gelu": (nn.GELU, ("approximate",)),
    "log_sigmoid": (nn.LogSigmoid, ()),
    "sigmoid": (nn.Sigmoid, ()),
    "softplus": (nn.Softplus, ("beta", "threshold")),
    "tanh": (nn.Tanh, ()),
    "celu": (nn.CELU, ("alpha",)),
    "elu": (nn.ELU, ("alpha",)),
    "hardsigmoid": (nn.Hardsigmoid, ()),
    "hardswish": (nn.Hardswish, ()),
    "hardtanh": (nn.Hardtanh, ("min_val", "max_val")),
    "leaky_relu": (nn.LeakyReLU, ("negative_slope",)),
    "mish": (nn.Mish, ()),
    "relu": (nn.ReLU, ()),
    "relu6": (nn.ReLU6, ()),
    "selu": (nn.SELU, ()),
    "silu": (nn.SiLU, ()),
}


def activation(target: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> nn.Module | None:
    """Return the module of an activation function; None for other operations, and for variants it does not have."""
    make, names = _ACTIVATIONS.get(target.removeprefix(_HOME).removesuffix(".default"), (None, ()))
    settings = dict(zip(names, arguments, strict=False)) | dict(options)
    plain = all(isinstance(value, (int, float, str)) for value in settings.values())
    if make is None or len(arguments) > len(names) or not settings.keys() <= set(names) or not plain:
        return None
    return make(**settings)


def check_arguments(call: Call, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Refuse a type of numbers or a layout: to torch these are numbers, which it does not check."""
    if isinstance(call, torch._ops.OpOverload):
        given = dict(zip((argument.name for argument in call._schema.arguments), arguments, strict=False)) | dict(
            options
        )
        if any(given.get(word) not in (None, torch.contiguous_format) for word in ("dtype", "layout", "memory_format")):
            raise Unsupported(f"the operation {call} with another type or layout")


def _overload(name: str) -> Call:
    packet, _, form = name.partition(".")
    call: Call = getattr(getattr(torch.ops.aten, packet), form or "default")
    return call


def _whole(call: Call) -> Call:
    """Return an operation on sizes that takes numbers only, and none without end."""

    def checked(*numbers: Any) -> Any:
        result = call(*numbers) if all(type(number) in (int, float) for number in numbers) else None
        if result is None or abs(result) > LARGEST:
            raise Unsupported(f"'{call.__name__}' of {numbers}")
        return result

    return checked


def _calm(name: str, place: int) -> Call:
    """Return an operation that draws at random, or learns, if an argument says so: which it must not."""
    call = _overload(name)

    def checked(*arguments: Any, **options: Any) -> Any:
        given = dict(enumerate(arguments)) | options
        if given.get(place) or given.get("train") or given.get("training") or given.get("dropout_p"):
            raise ModelError(f"'{name}' is in training mode. Save the model in evaluation mode")
        return call(*arguments, **options)

    return checked


def _cut(name: str, count: Call) -> Call:
    """Return an operation that cuts a tensor into pieces, but not into too many."""
    call = _overload(name)

    def checked(*arguments: Any) -> Any:
        if count(*arguments) > PIECES:
            raise TooLarge(f"'{name}' into {count(*arguments):,} pieces; at most {PIECES:,} are made")
        return call(*arguments)

    return checked


def _named(name: str) -> str:
    return _HOME + (name if "." in name else f"{name}.default")


FUNCTIONS: dict[str, Call] = {
    **{
        _named(name): _overload(name)
        for text in (_POINTWISE, _SHAPES, _REDUCTIONS, _LAYERS, " ".join(_ACTIVATIONS))
        for name in text.split()
        if hasattr(torch.ops.aten, name.partition(".")[0])  # some are newer than others
    },
    **{
        _named(name): _calm(name, place)
        for name, place in (
            ("alpha_dropout", 2),
            ("batch_norm", 5),
            ("dropout", 2),
            ("feature_dropout", 2),
            ("rrelu", 3),
            ("scaled_dot_product_attention", 4),
        )
    },
    _named("chunk"): _cut("chunk", lambda x, chunks, dim=0: chunks),
    _named("split.Tensor"): _cut("split.Tensor", lambda x, size, dim=0: x.shape[dim] // max(1, size)),
    _named("unbind.int"): _cut("unbind.int", lambda x, dim=0: x.shape[dim]),
    _named("copy"): lambda x, other, wait=True: other.expand_as(x).to(x.dtype),  # torch's own has no gradient
    _named("_weight_norm"): lambda v, g, dim=0: v * (g / torch.norm_except_dim(v, 2, dim)),  # torch's own can crash
    **{
        f"_operator.{call.__name__}": _whole(call)
        for call in (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg)
    },
}

# Their results are truth values, which would be overwritten as numbers.
_TRUTHS = {"eq", "ge", "gt", "le", "logical_and", "logical_not", "logical_or", "logical_xor", "lt", "ne"}
# What a network that overwrites its numbers calls, and what is called in its place: nothing is overwritten here.
OVERWRITING: dict[str, str] = {
    (f"{home}_.{form}"): name
    for name in FUNCTIONS
    if name.startswith(_HOME)
    for home, _, form in (name.rpartition("."),)
    if home.removeprefix(_HOME) not in _TRUTHS and hasattr(torch.ops.aten, f"{home.removeprefix(_HOME)}_")
}
# Operations whose results may be windows into their arguments, or an argument itself.
_WINDOWS = "alias alpha_dropout chunk contiguous detach dropout einsum feature_dropout positive split.Tensor unbind.int"
VIEWS = frozenset(_named(name) for name in f"{_SHAPES} {_WINDOWS}".split()) | CASTS
