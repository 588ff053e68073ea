"""A network as a checker reads it: its module is run once with unknown numbers, and every operation must be known.

What goes through the module is no number but an affine map of what the last activation gave, or of the input. Every
operation of torch that is applied to it is looked up here by its name; one that is not listed, or that asks for the
numbers themselves (a comparison, a branch, a clamp), is refused. So nothing is sampled, and nothing of the prover's
own reading is used.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from neuronfair.errors import one_line
from neuronfair.limits import check_size
from neuronfair.proof.certificate import CertificateError
from neuronfair.proof.checker.region import Floats

BATCHES = (3, 1021)  # rows that it seems to be given: what it computes must not depend on their number
WIDEST = 10_000  # numbers of a layer
MAX_MATRIX_SIZE = 1 << 24  # numbers of all matrices

End = Literal["none", "softmax", "sigmoid"]


@dataclass(frozen=True)
class CheckedCurve:
    """An activation function by its name; a leaky ReLU by its slope below 0."""

    name: str
    leak: float = 0.0


class CheckedLayer(NamedTuple):
    """An affine map. `size` bounds the numbers that were added up to make each weight and bias, so their rounding."""

    weight: Floats  # (neurons, inputs)
    bias: Floats
    weight_size: Floats
    bias_size: Floats


@dataclass(frozen=True)
class ReadNetwork:
    """Affine maps with a curve after each but the last, and what makes scores of the last one's numbers."""

    layers: tuple[CheckedLayer, ...]
    curves: tuple[CheckedCurve, ...]
    end: End
    steps: int  # operations that made one affine map, at most
    widest: int  # numbers that one of them added up, at most


class _Unreadable(Exception):  # noqa: N818 - becomes a CertificateError, whatever a module catches
    """What a module does cannot be read."""


class _AffineMap(NamedTuple):
    """Row 0 is what is added, row j what number j of the layer before is multiplied by: (1 + inputs, …)."""

    rows: Tensor
    size: Tensor  # the same with all numbers positive: bounds what rounding can do
    stage: int  # how many activations lie before it
    steps: int


class _Unknowns(torch.Tensor):
    """Unknown numbers of a batch: they have a shape, and a map that they are the image of."""

    image: _AffineMap
    reading: _Reader
    shared: bool  # another tensor looks at the same numbers, so they must not be overwritten

    @staticmethod
    def of(image: _AffineMap, reading: _Reader, *, shared: bool = False) -> _Unknowns:
        """Return numbers of a batch that are the image of the layer before."""
        shape = (reading.batch, *image.rows.shape[1:])
        numbers: _Unknowns = torch.Tensor._make_wrapper_subclass(_Unknowns, shape, dtype=torch.float64)
        numbers.image, numbers.reading, numbers.shared = image, reading, shared
        return numbers

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note what fails: a module that asks for the numbers themselves must not go on without them."""
        try:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        except Exception as error:
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, _Unknowns):
                    leaf.reading.unknown = leaf.reading.unknown or one_line(error)
            raise

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise _Unreadable(f"it uses '{func}' where its operations cannot be read")


def read_network(module: nn.Module, width: int) -> ReadNetwork:
    """Return what a module computes from a list of `width` numbers; a module with an unknown operation is refused.

    >>> read = read_network(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1), nn.Sigmoid()), 3)
    >>> [layer.weight.shape for layer in read.layers], read.curves[0].name, read.end
    ([(2, 3), (1, 2)], 'relu', 'sigmoid')
    """
    exact = copy.deepcopy(module).double().eval()
    before = [part.clone() for part in (*exact.parameters(), *exact.buffers())]
    first, second = (_read_for_batch(exact, width, batch) for batch in BATCHES)
    after = [*exact.parameters(), *exact.buffers()]
    if len(before) != len(after) or not all(map(torch.equal, before, after)):
        raise CertificateError("the network changes its own numbers when it is asked, so it cannot be checked")
    if not _are_equal(first, second):
        raise CertificateError("the network computes other things when it is asked again, or for other numbers of rows")
    if sum(layer.weight.size for layer in first.layers) > MAX_MATRIX_SIZE:
        raise CertificateError(
            f"the matrices of the network have more than {MAX_MATRIX_SIZE:,} numbers, too many to be checked"
        )
    return first


def _are_equal(network: ReadNetwork, other: ReadNetwork) -> bool:
    if (network.curves, network.end, len(network.layers)) != (other.curves, other.end, len(other.layers)):
        return False
    pairs = zip(network.layers, other.layers, strict=True)
    return all(np.array_equal(a, b) for layers in pairs for a, b in zip(*layers, strict=True))


def _read_for_batch(module: nn.Module, width: int, batch: int) -> ReadNetwork:
    if width > WIDEST:
        raise CertificateError(f"the network takes more than {WIDEST:,} numbers, too many to be checked")
    reading = _Reader(batch)
    try:
        with torch.no_grad(), reading:
            result = module(_Unknowns.of(_make_identity((width,), 0), reading))
    except _Unreadable as reason:
        raise CertificateError(f"the network cannot be checked: {reason}") from None
    except Exception as error:  # the module's own code, which may have caught ours
        cause = reading.unknown or one_line(error)
        raise CertificateError(f"the network cannot be checked: {cause}") from error
    if reading.unknown is not None:
        raise CertificateError(f"the network cannot be checked: {reading.unknown}")
    if not isinstance(result, _Unknowns) or len(result) != batch or result.dim() > 2:
        raise CertificateError("the network cannot be checked: it does not return one list of scores for each row")
    return reading.build_network(result.image)


def _make_identity(shape: Sequence[int], stage: int) -> _AffineMap:
    """Return the map that leaves all numbers of a layer as they are."""
    count = int(np.prod(shape, dtype=np.int64))
    if count > WIDEST:
        raise _Unreadable(f"one of its layers has more than {WIDEST:,} numbers")
    rows = torch.cat([torch.zeros(1, count, dtype=torch.float64), torch.eye(count, dtype=torch.float64)])
    rows = rows.view(-1, *shape)
    return _AffineMap(rows, rows, stage, 0)


class _Reader(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it every operation of torch is looked up; those that do not touch the unknown numbers are computed."""

    def __init__(self, batch: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.batch = batch
        self.unknown: str | None = None
        self.widest = 1
        self._layers: list[tuple[CheckedLayer, CheckedCurve, int]] = []
        self._known_tensors: dict[int, Tensor] = {}  # kept, lest another tensor gets the number of one

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute, follow or refuse an operation."""
        kwargs = kwargs or {}
        try:
            if self.unknown is not None:
                raise _Unreadable(self.unknown)
            if any(isinstance(leaf, _Unknowns) for leaf in tree_leaves((args, kwargs))):
                return self._follow(func, args, kwargs)
            return self._compute(func, args, kwargs)
        except _Unreadable as reason:
            self.unknown = str(reason)
            raise

    def _compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute with numbers that are known, such as weights; what is drawn or overwritten is refused."""
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise _Unreadable(f"it draws random numbers with '{_get_operation_name(func)}'")
        if func._schema.is_mutable and any(
            isinstance(leaf, Tensor) and id(leaf) not in self._known_tensors for leaf in tree_leaves(args[:1])
        ):
            raise _Unreadable(f"it overwrites numbers of its own with '{_get_operation_name(func)}'")
        result = func(*args, **kwargs)
        self._known_tensors.update((id(leaf), leaf) for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        return result

    def _follow(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = _get_operation_name(func)
        in_place = name.endswith("_") and not name.startswith("_")
        base_name = name.removesuffix("_") if in_place else name
        operation = _OPERATIONS.get(base_name)
        if operation is None and base_name not in _MOVES:
            raise _Unreadable(f"it uses '{name}', which is not one of the operations that can be checked")
        if in_place and (not isinstance(args[0], _Unknowns) or args[0].shared):
            raise _Unreadable(f"it overwrites numbers with '{name}' that are read elsewhere, too")
        try:
            result = self.move(func, *args, **kwargs) if operation is None else operation(self, *args, **kwargs)
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            raise _Unreadable(f"it uses '{name}' in a way that cannot be checked ({one_line(error)})") from error
        if in_place:
            if not isinstance(result, _Unknowns) or result.shape != args[0].shape:
                raise _Unreadable(f"it overwrites numbers of another shape with '{name}'")
            args[0].image = result.image
            return args[0]
        return result

    def make_numbers(self, rows: Tensor, size: Tensor, like: _AffineMap, *, steps: int = 1) -> _Unknowns:
        """Return numbers whose map has such rows."""
        check_size(rows.numel(), "the numbers of a layer", times=16)
        return _Unknowns.of(_AffineMap(rows, size, like.stage, like.steps + steps), self)

    def move(self, func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the numbers that an operation moves, repeats or drops: it is tried on their positions in the batch."""
        if not isinstance(x, _Unknowns):
            raise _Unreadable("it picks numbers by others that depend on the input")
        indices = torch.arange(x.numel()).view(x.shape)
        picked = func(indices, *args, **kwargs)
        x.shared = True
        parts = [self._pick(x.image, part) for part in (picked if isinstance(picked, (list, tuple)) else [picked])]
        return parts if isinstance(picked, (list, tuple)) else parts[0]

    def _pick(self, image: _AffineMap, indices: Tensor) -> _Unknowns:
        """Return numbers by their positions in the batch, if each row keeps its own, and all rows the same ones."""
        check_size(indices.numel(), "the numbers of a layer", times=32)
        width = image.rows.shape[1:].numel()
        if indices.dim() == 0 or len(indices) != self.batch:
            raise _Unreadable("it picks, moves or joins the rows of a batch")
        first = torch.arange(self.batch).mul(width).view(-1, *[1] * (indices.dim() - 1))
        within = indices - first
        if not bool(((within >= 0) & (within < width) & (within == within[:1])).all()):
            raise _Unreadable("it picks, moves or joins the rows of a batch")
        shape, within = within.shape[1:], within[0].flatten()
        check_size(len(image.rows) * len(within), "the numbers of a layer", times=16)
        rows, size = (part.reshape(len(part), -1)[:, within].view(-1, *shape) for part in (image.rows, image.size))
        return _Unknowns.of(_AffineMap(rows, size, image.stage, image.steps), self, shared=True)

    def make_constant(self, value: Any, like: _AffineMap) -> Tensor:
        """Return a known number or tensor as it meets a map's rows: the same for all rows of a batch."""
        if not isinstance(value, Tensor):
            return torch.tensor(float(value), dtype=torch.float64)
        tensor = value.double()
        if tensor.dim() > like.rows.dim():
            raise _Unreadable("it lays the rows of a batch side by side")
        if tensor.dim() == like.rows.dim() and len(tensor) != 1:
            if len(tensor) != self.batch or not torch.equal(tensor, tensor[:1].expand_as(tensor)):
                raise _Unreadable("it treats the rows of a batch differently")
            tensor = tensor[:1]
        return tensor

    def lift(self, value: Any, like: _AffineMap, shape: Sequence[int]) -> _AffineMap:
        """Return known numbers as a map that adds them and reads nothing."""
        tensor = self.make_constant(value, like).expand(1, *shape)
        rows = torch.cat([tensor, torch.zeros(len(like.rows) - 1, *shape, dtype=torch.float64)])
        return _AffineMap(rows, rows.abs(), like.stage, 0)

    def activate(self, x: Any, curve: CheckedCurve) -> _Unknowns:
        """Return what a curve makes of numbers: the first map ends here, and another begins."""
        if not isinstance(x, _Unknowns):
            raise _Unreadable(f"it uses '{curve.name}' in a way that cannot be checked")
        if x.image.stage != len(self._layers):
            raise _Unreadable("two of its activations read the same layer, so it is not a chain of layers")
        if self._layers and self._layers[-1][1].name == "softmax":
            raise _Unreadable("it goes on behind a softmax")
        self._layers.append((_build_layer(x.image), curve, x.image.steps))
        return _Unknowns.of(_make_identity(x.image.rows.shape[1:], len(self._layers)), self)

    def build_network(self, image: _AffineMap) -> ReadNetwork:
        """Return the chain that ends with some numbers."""
        if image.stage != len(self._layers):
            raise CertificateError("the network cannot be checked: its scores are not those of its last layer")
        layers, curves = ([layer for layer, _, _ in self._layers], [curve for _, curve, _ in self._layers])
        steps = max([image.steps, *(count for _, _, count in self._layers)])
        unit = _make_identity(image.rows.shape[1:], 0).rows
        ends: dict[str, End] = {"softmax": "softmax", "sigmoid": "sigmoid"}
        is_identity = image.rows.shape == unit.shape and torch.equal(image.rows, unit)
        if curves and curves[-1].name in ends and is_identity:
            return ReadNetwork(tuple(layers), tuple(curves[:-1]), ends[curves[-1].name], steps, self.widest)
        if curves and curves[-1].name == "softmax":
            raise CertificateError("the network cannot be checked: it goes on behind a softmax")
        return ReadNetwork((*layers, _build_layer(image)), tuple(curves), "none", steps, self.widest)


def _build_layer(image: _AffineMap) -> CheckedLayer:
    rows, size = (part.reshape(len(part), -1).numpy() for part in (image.rows, image.size))
    if not np.isfinite(size).all():
        raise _Unreadable("its weights are not finite")
    return CheckedLayer(rows[1:].T.copy(), rows[0].copy(), size[1:].T.copy(), size[0].copy())


def _get_operation_name(func: Any) -> str:
    return str(func._schema.name.removeprefix("aten::"))


def _add(reading: _Reader, x: Any, y: Any, *, alpha: float = 1, sign: float = 1) -> _Unknowns:
    """Add `alpha * sign` times the second to the first; one of them may be known."""
    factor = float(alpha) * sign
    like: _AffineMap = x.image if isinstance(x, _Unknowns) else y.image
    maps = []
    for part in (x, y):
        if isinstance(part, _Unknowns):
            maps.append(part.image)
        else:
            tensor = reading.make_constant(part, like)
            shape = tensor.shape[1:] if tensor.dim() == like.rows.dim() else tensor.shape
            maps.append(reading.lift(tensor, like, np.broadcast_shapes(tuple(shape), tuple(like.rows.shape[1:]))))
    left, right = maps
    if left.stage != right.stage:
        raise _Unreadable("it adds numbers from before and behind an activation, so it is not a chain of layers")
    if left.rows.dim() != right.rows.dim():
        raise _Unreadable("it lays the rows of a batch side by side")
    steps = max(left.steps, right.steps) + 1
    return _Unknowns.of(
        _AffineMap(left.rows + factor * right.rows, left.size + abs(factor) * right.size, left.stage, steps), reading
    )


def _multiply(reading: _Reader, x: Any, y: Any, *, inverse: bool = False) -> _Unknowns:
    if isinstance(x, _Unknowns) and isinstance(y, _Unknowns):
        raise _Unreadable("it multiplies or divides numbers by each other that both depend on the input")
    if inverse and isinstance(y, _Unknowns):
        raise _Unreadable("it divides by a number that depends on the input")
    unknown, constant = (x, y) if isinstance(x, _Unknowns) else (y, x)
    factor = reading.make_constant(constant, unknown.image)
    factor = 1 / factor if inverse else factor
    image = unknown.image
    return reading.make_numbers(image.rows * factor, image.size * factor.abs(), image, steps=2 if inverse else 1)


def _multiply_matrix(reading: _Reader, x: Any, weight: Any) -> _Unknowns:
    if not isinstance(x, _Unknowns) or isinstance(weight, _Unknowns):
        raise _Unreadable("it multiplies matrices that both depend on the input, or from the other side")
    image, matrix = x.image, weight.double()
    reading.widest = max(reading.widest, len(matrix))
    return reading.make_numbers(image.rows @ matrix, image.size @ matrix.abs(), image)


def _addmm(reading: _Reader, bias: Any, x: Any, weight: Any, *, beta: float = 1, alpha: float = 1) -> _Unknowns:
    product = _multiply_matrix(reading, x, weight)
    product = product if alpha == 1 else _multiply(reading, product, alpha)
    return _add(reading, product, bias if beta == 1 else _scale(reading, bias, beta))


def _scale(reading: _Reader, x: Any, factor: float) -> Any:
    return _multiply(reading, x, factor) if isinstance(x, _Unknowns) else x * factor


def _normalise(
    reading: _Reader,
    x: Any,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    *rest: Any,
) -> tuple[_Unknowns, Tensor, Tensor]:
    *training, _, eps = rest
    if any(training) or mean is None or variance is None:
        raise _Unreadable("it normalises by the other rows of a batch")
    shape = [-1, *[1] * (x.dim() - 2)]
    result = _add(reading, x, -mean.view(shape))
    result = _multiply(reading, result, (1 / (variance + eps).sqrt()).view(shape))
    if weight is not None:
        result = _multiply(reading, result, weight.view(shape))
    if bias is not None:
        result = _add(reading, result, bias.view(shape))
    nothing = torch.empty(0, dtype=torch.float64)
    return result, nothing, nothing


def _convolve(reading: _Reader, x: Any, weight: Any, bias: Any, *settings: Any) -> _Unknowns:
    if not isinstance(x, _Unknowns) or isinstance(weight, _Unknowns) or isinstance(bias, _Unknowns):
        raise _Unreadable("it convolves numbers that both depend on the input")
    image = x.image
    reading.widest = max(reading.widest, weight[0].numel())
    rows, size = (
        torch.ops.aten.convolution(part, kernel, None, *settings)
        for part, kernel in ((image.rows, weight.double()), (image.size, weight.double().abs()))
    )
    result = reading.make_numbers(rows, size, image)
    return result if bias is None else _add(reading, result, bias.view(-1, *[1] * (rows.dim() - 2)))


def _sum(reading: _Reader, x: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> _Unknowns:
    summed_dims = {dim_index % x.dim() for dim_index in dims or range(x.dim())}
    if 0 in summed_dims or dtype not in (None, torch.float64):
        raise _Unreadable("it adds up the rows of a batch")
    image = x.image
    reading.widest = max(reading.widest, math.prod(x.shape[dim_index] for dim_index in summed_dims))
    rows, size = (part.sum(sorted(summed_dims), keepdim) for part in (image.rows, image.size))
    return reading.make_numbers(rows, size, image)


def _mean(reading: _Reader, x: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> _Unknowns:
    total = _sum(reading, x, dims, keepdim, dtype=dtype)
    return _multiply(reading, total, int(np.prod(x.shape)) // max(1, int(np.prod(total.shape))), inverse=True)


def _join(reading: _Reader, parts: Sequence[Any], dim: int = 0) -> _Unknowns:
    unknown = [part for part in parts if isinstance(part, _Unknowns)]
    like, axis = unknown[0].image, dim % unknown[0].dim()
    if axis == 0:
        raise _Unreadable("it picks, moves or joins the rows of a batch")
    maps = []
    for part in parts:
        if not isinstance(part, _Unknowns) and len(part) != reading.batch:
            raise _Unreadable("it joins other rows to those of a batch")
        maps.append(part.image if isinstance(part, _Unknowns) else reading.lift(part, like, part.shape[1:]))
    if len({image.stage for image in maps}) > 1:
        raise _Unreadable("it joins numbers from before and behind an activation, so it is not a chain of layers")
    rows, size = (torch.cat([getattr(image, name) for image in maps], axis) for name in ("rows", "size"))
    return reading.make_numbers(rows, size, max(maps, key=lambda image: image.steps), steps=0)


def _stack(reading: _Reader, parts: Sequence[Any], dim: int = 0) -> _Unknowns:
    unsqueeze = torch.ops.aten.unsqueeze.default
    widened = [reading.move(unsqueeze, p, dim) if isinstance(p, _Unknowns) else p.unsqueeze(dim) for p in parts]
    return _join(reading, widened, dim)


def _copy_numbers(reading: _Reader, x: Any, **options: Any) -> Any:
    device, dtype = options.get("device"), options.get("dtype")
    if device is not None and torch.device(device).type == "meta":
        return torch.empty(x.shape, dtype=dtype or x.dtype, device="meta")  # a shape, and no numbers
    if dtype not in (None, torch.float64) or (device is not None and torch.device(device).type != "cpu"):
        raise _Unreadable(f"it turns numbers into {dtype or device}, which rounds them")
    return reading.make_numbers(x.image.rows, x.image.size, x.image, steps=0)


def _keep_numbers(reading: _Reader, x: Any, **_: Any) -> _Unknowns:
    return reading.make_numbers(x.image.rows, x.image.size, x.image, steps=0)


def _softmax(reading: _Reader, x: Any, dim: int, *_: Any) -> _Unknowns:
    if x.dim() != 2 or dim % 2 != 1:
        raise _Unreadable("its softmax is not one over the scores of a row")
    return reading.activate(x, CheckedCurve("softmax"))


def _gelu(reading: _Reader, x: Any, *, approximate: str = "none") -> _Unknowns:
    if approximate != "none":
        raise _Unreadable(f"its activation gelu ({approximate}) is not known")
    return reading.activate(x, CheckedCurve("gelu"))


def _elu(reading: _Reader, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> _Unknowns:
    if (alpha, scale, input_scale) != (1, 1, 1):
        raise _Unreadable("its activation elu has other slopes than 1, which is not known")
    return reading.activate(x, CheckedCurve("elu"))


def _softplus(reading: _Reader, x: Any, beta: float = 1, threshold: float = 20) -> _Unknowns:
    if (beta, threshold) != (1, 20):
        raise _Unreadable("its activation softplus has another beta or threshold than 1 and 20, which is not known")
    return reading.activate(x, CheckedCurve("softplus"))


def _prelu(reading: _Reader, x: Any, weight: Any) -> _Unknowns:
    if isinstance(weight, _Unknowns) or len(weight.unique()) != 1:
        raise _Unreadable("its neurons have different slopes below 0, which is not known")
    return reading.activate(x, CheckedCurve("leaky_relu", float(weight.flatten()[0])))


_MOVES = (  # operations that only move, repeat or drop numbers
    *("view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "slice", "select", "index", "index_select"),
    *("unsqueeze", "squeeze", "split", "split_with_sizes", "unbind", "detach", "alias"),
)
_Call = Callable[..., Any]
_OPERATIONS: dict[str, _Call] = {
    "add": _add,
    "sub": lambda reading, x, y, alpha=1: _add(reading, x, y, alpha=alpha, sign=-1),
    "rsub": lambda reading, x, y, alpha=1: _add(reading, _scale(reading, x, -float(alpha)), y),
    "mul": _multiply,
    "div": lambda reading, x, y: _multiply(reading, x, y, inverse=True),
    "neg": lambda reading, x: _multiply(reading, x, -1.0),
    "mm": _multiply_matrix,
    "addmm": _addmm,
    "convolution": _convolve,
    "native_batch_norm": _normalise,
    "_native_batch_norm_legit_no_training": _normalise,
    "sum": _sum,
    "mean": _mean,
    "cat": _join,
    "stack": _stack,
    "clone": _keep_numbers,
    "_to_copy": _copy_numbers,
    "relu": lambda reading, x: reading.activate(x, CheckedCurve("relu")),
    "sigmoid": lambda reading, x: reading.activate(x, CheckedCurve("sigmoid")),
    "tanh": lambda reading, x: reading.activate(x, CheckedCurve("tanh")),
    "silu": lambda reading, x: reading.activate(x, CheckedCurve("silu")),
    "leaky_relu": lambda reading, x, slope=0.01: reading.activate(x, CheckedCurve("leaky_relu", float(slope))),
    "_prelu_kernel": _prelu,
    "gelu": _gelu,
    "elu": _elu,
    "softplus": _softplus,
    "_softmax": _softmax,
}
