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


class _Unknown(Exception):  # noqa: N818 - becomes a CertificateError, whatever a module's own code catches
    """What a module does cannot be read."""


class _Map(NamedTuple):
    """Row 0 is what is added, row j what number j of the layer before is multiplied by: (1 + inputs, …)."""

    rows: Tensor
    size: Tensor  # the same with all numbers positive: bounds what rounding can do
    stage: int  # how many activations lie before it
    steps: int


class _Numbers(torch.Tensor):
    """Unknown numbers of a batch: they have a shape, and a map that they are the image of."""

    image: _Map
    reading: _Reading
    shared: bool  # another tensor looks at the same numbers, so they must not be overwritten

    @staticmethod
    def of(image: _Map, reading: _Reading, *, shared: bool = False) -> _Numbers:
        """Return numbers of a batch that are the image of the layer before."""
        shape = (reading.batch, *image.rows.shape[1:])
        made: _Numbers = torch.Tensor._make_wrapper_subclass(_Numbers, shape, dtype=torch.float64)
        made.image, made.reading, made.shared = image, reading, shared
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note what fails: a module that asks for the numbers themselves must not go on without them."""
        try:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        except Exception as error:
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, _Numbers):
                    leaf.reading.unknown = leaf.reading.unknown or one_line(error)
            raise

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise _Unknown(f"it uses '{func}' where its operations cannot be read")


def read_network(module: nn.Module, width: int) -> ReadNetwork:
    """Return what a module computes from a list of `width` numbers; a module with an unknown operation is refused.

    >>> read = read_network(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1), nn.Sigmoid()), 3)
    >>> [layer.weight.shape for layer in read.layers], read.curves[0].name, read.end
    ([(2, 3), (1, 2)], 'relu', 'sigmoid')
    """
    exact = copy.deepcopy(module).double().eval()
    before = [part.clone() for part in (*exact.parameters(), *exact.buffers())]
    first, second = (_read(exact, width, batch) for batch in BATCHES)
    after = [*exact.parameters(), *exact.buffers()]
    if len(before) != len(after) or not all(map(torch.equal, before, after)):
        raise CertificateError("the network changes its own numbers when it is asked, so it cannot be checked")
    if not _same(first, second):
        raise CertificateError("the network computes other things when it is asked again, or for other numbers of rows")
    if sum(layer.weight.size for layer in first.layers) > MAX_MATRIX_SIZE:
        raise CertificateError(
            f"the matrices of the network have more than {MAX_MATRIX_SIZE:,} numbers, too many to be checked"
        )
    return first


def _same(one: ReadNetwork, other: ReadNetwork) -> bool:
    if (one.curves, one.end, len(one.layers)) != (other.curves, other.end, len(other.layers)):
        return False
    pairs = zip(one.layers, other.layers, strict=True)
    return all(np.array_equal(a, b) for layers in pairs for a, b in zip(*layers, strict=True))


def _read(module: nn.Module, width: int, batch: int) -> ReadNetwork:
    if width > WIDEST:
        raise CertificateError(f"the network takes more than {WIDEST:,} numbers, too many to be checked")
    reading = _Reading(batch)
    try:
        with torch.no_grad(), reading:
            result = module(_Numbers.of(_unit((width,), 0), reading))
    except _Unknown as reason:
        raise CertificateError(f"the network cannot be checked: {reason}") from None
    except Exception as error:  # the module's own code, which may have caught ours
        why = reading.unknown or one_line(error)
        raise CertificateError(f"the network cannot be checked: {why}") from error
    if reading.unknown is not None:
        raise CertificateError(f"the network cannot be checked: {reading.unknown}")
    if not isinstance(result, _Numbers) or len(result) != batch or result.dim() > 2:
        raise CertificateError("the network cannot be checked: it does not return one list of scores for each row")
    return reading.finished(result.image)


def _unit(shape: Sequence[int], stage: int) -> _Map:
    """Return the map that leaves all numbers of a layer as they are."""
    count = int(np.prod(shape, dtype=np.int64))
    if count > WIDEST:
        raise _Unknown(f"one of its layers has more than {WIDEST:,} numbers")
    rows = torch.cat([torch.zeros(1, count, dtype=torch.float64), torch.eye(count, dtype=torch.float64)])
    rows = rows.view(-1, *shape)
    return _Map(rows, rows, stage, 0)


class _Reading(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it every operation of torch is looked up; those that do not touch the unknown numbers are computed."""

    def __init__(self, batch: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.batch = batch
        self.unknown: str | None = None
        self.widest = 1
        self._closed: list[tuple[CheckedLayer, CheckedCurve, int]] = []
        self._made: dict[int, Tensor] = {}  # kept, lest another tensor gets the number of one

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute, follow or refuse an operation."""
        kwargs = kwargs or {}
        try:
            if self.unknown is not None:
                raise _Unknown(self.unknown)
            if any(isinstance(leaf, _Numbers) for leaf in tree_leaves((args, kwargs))):
                return self._follow(func, args, kwargs)
            return self._compute(func, args, kwargs)
        except _Unknown as reason:
            self.unknown = str(reason)
            raise

    def _compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute with numbers that are known, such as weights; what is drawn or overwritten is refused."""
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise _Unknown(f"it draws random numbers with '{_name(func)}'")
        if func._schema.is_mutable and any(
            isinstance(leaf, Tensor) and id(leaf) not in self._made for leaf in tree_leaves(args[:1])
        ):
            raise _Unknown(f"it overwrites numbers of its own with '{_name(func)}'")
        result = func(*args, **kwargs)
        self._made.update((id(leaf), leaf) for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        return result

    def _follow(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = _name(func)
        into = name.endswith("_") and not name.startswith("_")
        plain = name.removesuffix("_") if into else name
        known = _OPERATIONS.get(plain)
        if known is None and plain not in _MOVES:
            raise _Unknown(f"it uses '{name}', which is not one of the operations that can be checked")
        if into and (not isinstance(args[0], _Numbers) or args[0].shared):
            raise _Unknown(f"it overwrites numbers with '{name}' that are read elsewhere, too")
        try:
            result = self.moved(func, *args, **kwargs) if known is None else known(self, *args, **kwargs)
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            raise _Unknown(f"it uses '{name}' in a way that cannot be checked ({one_line(error)})") from error
        if into:
            if not isinstance(result, _Numbers) or result.shape != args[0].shape:
                raise _Unknown(f"it overwrites numbers of another shape with '{name}'")
            args[0].image = result.image
            return args[0]
        return result

    def made(self, rows: Tensor, size: Tensor, like: _Map, *, steps: int = 1) -> _Numbers:
        """Return numbers whose map has such rows."""
        check_size(rows.numel(), "the numbers of a layer", times=16)
        return _Numbers.of(_Map(rows, size, like.stage, like.steps + steps), self)

    def moved(self, func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the numbers that an operation moves, repeats or drops: it is tried on their places in the batch."""
        if not isinstance(x, _Numbers):
            raise _Unknown("it picks numbers by others that depend on the input")
        places = torch.arange(x.numel()).view(x.shape)
        found = func(places, *args, **kwargs)
        x.shared = True
        parts = [self._picked(x.image, part) for part in (found if isinstance(found, (list, tuple)) else [found])]
        return parts if isinstance(found, (list, tuple)) else parts[0]

    def _picked(self, image: _Map, places: Tensor) -> _Numbers:
        """Return numbers by their places in the batch, if each row keeps its own, and all rows the same ones."""
        check_size(places.numel(), "the numbers of a layer", times=32)
        width = image.rows.shape[1:].numel()
        if places.dim() == 0 or len(places) != self.batch:
            raise _Unknown("it picks, moves or joins the rows of a batch")
        first = torch.arange(self.batch).mul(width).view(-1, *[1] * (places.dim() - 1))
        within = places - first
        if not bool(((within >= 0) & (within < width) & (within == within[:1])).all()):
            raise _Unknown("it picks, moves or joins the rows of a batch")
        shape, within = within.shape[1:], within[0].flatten()
        check_size(len(image.rows) * len(within), "the numbers of a layer", times=16)
        rows, size = (part.reshape(len(part), -1)[:, within].view(-1, *shape) for part in (image.rows, image.size))
        return _Numbers.of(_Map(rows, size, image.stage, image.steps), self, shared=True)

    def constant(self, value: Any, like: _Map) -> Tensor:
        """Return a known number or tensor as it meets a map's rows: the same for all rows of a batch."""
        if not isinstance(value, Tensor):
            return torch.tensor(float(value), dtype=torch.float64)
        known = value.double()
        if known.dim() > like.rows.dim():
            raise _Unknown("it lays the rows of a batch side by side")
        if known.dim() == like.rows.dim() and len(known) != 1:
            if len(known) != self.batch or not torch.equal(known, known[:1].expand_as(known)):
                raise _Unknown("it treats the rows of a batch differently")
            known = known[:1]
        return known

    def lifted(self, value: Any, like: _Map, shape: Sequence[int]) -> _Map:
        """Return known numbers as a map that adds them and reads nothing."""
        known = self.constant(value, like).expand(1, *shape)
        rows = torch.cat([known, torch.zeros(len(like.rows) - 1, *shape, dtype=torch.float64)])
        return _Map(rows, rows.abs(), like.stage, 0)

    def activated(self, x: Any, curve: CheckedCurve) -> _Numbers:
        """Return what a curve makes of numbers: the first map ends here, and another begins."""
        if not isinstance(x, _Numbers):
            raise _Unknown(f"it uses '{curve.name}' in a way that cannot be checked")
        if x.image.stage != len(self._closed):
            raise _Unknown("two of its activations read the same layer, so it is not a chain of layers")
        if self._closed and self._closed[-1][1].name == "softmax":
            raise _Unknown("it goes on behind a softmax")
        self._closed.append((_layer(x.image), curve, x.image.steps))
        return _Numbers.of(_unit(x.image.rows.shape[1:], len(self._closed)), self)

    def finished(self, image: _Map) -> ReadNetwork:
        """Return the chain that ends with some numbers."""
        if image.stage != len(self._closed):
            raise CertificateError("the network cannot be checked: its scores are not those of its last layer")
        layers, curves = [layer for layer, _, _ in self._closed], [curve for _, curve, _ in self._closed]
        steps = max([image.steps, *(count for _, _, count in self._closed)])
        unit = _unit(image.rows.shape[1:], 0).rows
        ends: dict[str, End] = {"softmax": "softmax", "sigmoid": "sigmoid"}
        same = image.rows.shape == unit.shape and torch.equal(image.rows, unit)
        if curves and curves[-1].name in ends and same:
            return ReadNetwork(tuple(layers), tuple(curves[:-1]), ends[curves[-1].name], steps, self.widest)
        if curves and curves[-1].name == "softmax":
            raise CertificateError("the network cannot be checked: it goes on behind a softmax")
        return ReadNetwork((*layers, _layer(image)), tuple(curves), "none", steps, self.widest)


def _layer(image: _Map) -> CheckedLayer:
    rows, size = (part.reshape(len(part), -1).numpy() for part in (image.rows, image.size))
    if not np.isfinite(size).all():
        raise _Unknown("its weights are not finite")
    return CheckedLayer(rows[1:].T.copy(), rows[0].copy(), size[1:].T.copy(), size[0].copy())


def _name(func: Any) -> str:
    return str(func._schema.name.removeprefix("aten::"))


def _added(reading: _Reading, x: Any, y: Any, *, alpha: float = 1, sign: float = 1) -> _Numbers:
    """Add `alpha * sign` times the second to the first; one of them may be known."""
    times = float(alpha) * sign
    like: _Map = x.image if isinstance(x, _Numbers) else y.image
    maps = []
    for part in (x, y):
        if isinstance(part, _Numbers):
            maps.append(part.image)
        else:
            known = reading.constant(part, like)
            shape = known.shape[1:] if known.dim() == like.rows.dim() else known.shape
            maps.append(reading.lifted(known, like, np.broadcast_shapes(tuple(shape), tuple(like.rows.shape[1:]))))
    one, two = maps
    if one.stage != two.stage:
        raise _Unknown("it adds numbers from before and behind an activation, so it is not a chain of layers")
    if one.rows.dim() != two.rows.dim():
        raise _Unknown("it lays the rows of a batch side by side")
    steps = max(one.steps, two.steps) + 1
    return _Numbers.of(_Map(one.rows + times * two.rows, one.size + abs(times) * two.size, one.stage, steps), reading)


def _times(reading: _Reading, x: Any, y: Any, *, inverse: bool = False) -> _Numbers:
    if isinstance(x, _Numbers) and isinstance(y, _Numbers):
        raise _Unknown("it multiplies or divides numbers by each other that both depend on the input")
    if inverse and isinstance(y, _Numbers):
        raise _Unknown("it divides by a number that depends on the input")
    unknown, known = (x, y) if isinstance(x, _Numbers) else (y, x)
    factor = reading.constant(known, unknown.image)
    factor = 1 / factor if inverse else factor
    image = unknown.image
    return reading.made(image.rows * factor, image.size * factor.abs(), image, steps=2 if inverse else 1)


def _matrix(reading: _Reading, x: Any, weight: Any) -> _Numbers:
    if not isinstance(x, _Numbers) or isinstance(weight, _Numbers):
        raise _Unknown("it multiplies matrices that both depend on the input, or from the other side")
    image, known = x.image, weight.double()
    reading.widest = max(reading.widest, len(known))
    return reading.made(image.rows @ known, image.size @ known.abs(), image)


def _addmm(reading: _Reading, bias: Any, x: Any, weight: Any, *, beta: float = 1, alpha: float = 1) -> _Numbers:
    product = _matrix(reading, x, weight)
    product = product if alpha == 1 else _times(reading, product, alpha)
    return _added(reading, product, bias if beta == 1 else _scaled(reading, bias, beta))


def _scaled(reading: _Reading, x: Any, factor: float) -> Any:
    return _times(reading, x, factor) if isinstance(x, _Numbers) else x * factor


def _normed(
    reading: _Reading,
    x: Any,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    *rest: Any,
) -> tuple[_Numbers, Tensor, Tensor]:
    *training, _, eps = rest
    if any(training) or mean is None or variance is None:
        raise _Unknown("it normalises by the other rows of a batch")
    shape = [-1, *[1] * (x.dim() - 2)]
    result = _added(reading, x, -mean.view(shape))
    result = _times(reading, result, (1 / (variance + eps).sqrt()).view(shape))
    if weight is not None:
        result = _times(reading, result, weight.view(shape))
    if bias is not None:
        result = _added(reading, result, bias.view(shape))
    nothing = torch.empty(0, dtype=torch.float64)
    return result, nothing, nothing


def _convolved(reading: _Reading, x: Any, weight: Any, bias: Any, *settings: Any) -> _Numbers:
    if not isinstance(x, _Numbers) or isinstance(weight, _Numbers) or isinstance(bias, _Numbers):
        raise _Unknown("it convolves numbers that both depend on the input")
    image = x.image
    reading.widest = max(reading.widest, weight[0].numel())
    rows, size = (
        torch.ops.aten.convolution(part, kernel, None, *settings)
        for part, kernel in ((image.rows, weight.double()), (image.size, weight.double().abs()))
    )
    result = reading.made(rows, size, image)
    return result if bias is None else _added(reading, result, bias.view(-1, *[1] * (rows.dim() - 2)))


def _summed(reading: _Reading, x: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> _Numbers:
    places = {place % x.dim() for place in dims or range(x.dim())}
    if 0 in places or dtype not in (None, torch.float64):
        raise _Unknown("it adds up the rows of a batch")
    image = x.image
    reading.widest = max(reading.widest, math.prod(x.shape[place] for place in places))
    rows, size = (part.sum(sorted(places), keepdim) for part in (image.rows, image.size))
    return reading.made(rows, size, image)


def _mean(reading: _Reading, x: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> _Numbers:
    total = _summed(reading, x, dims, keepdim, dtype=dtype)
    return _times(reading, total, int(np.prod(x.shape)) // max(1, int(np.prod(total.shape))), inverse=True)


def _joined(reading: _Reading, parts: Sequence[Any], dim: int = 0) -> _Numbers:
    unknown = [part for part in parts if isinstance(part, _Numbers)]
    like, place = unknown[0].image, dim % unknown[0].dim()
    if place == 0:
        raise _Unknown("it picks, moves or joins the rows of a batch")
    maps = []
    for part in parts:
        if not isinstance(part, _Numbers) and len(part) != reading.batch:
            raise _Unknown("it joins other rows to those of a batch")
        maps.append(part.image if isinstance(part, _Numbers) else reading.lifted(part, like, part.shape[1:]))
    if len({image.stage for image in maps}) > 1:
        raise _Unknown("it joins numbers from before and behind an activation, so it is not a chain of layers")
    rows, size = (torch.cat([getattr(image, name) for image in maps], place) for name in ("rows", "size"))
    return reading.made(rows, size, max(maps, key=lambda image: image.steps), steps=0)


def _stacked(reading: _Reading, parts: Sequence[Any], dim: int = 0) -> _Numbers:
    unsqueeze = torch.ops.aten.unsqueeze.default
    widened = [reading.moved(unsqueeze, p, dim) if isinstance(p, _Numbers) else p.unsqueeze(dim) for p in parts]
    return _joined(reading, widened, dim)


def _copied(reading: _Reading, x: Any, **options: Any) -> Any:
    device, dtype = options.get("device"), options.get("dtype")
    if device is not None and torch.device(device).type == "meta":
        return torch.empty(x.shape, dtype=dtype or x.dtype, device="meta")  # a shape, and no numbers
    if dtype not in (None, torch.float64) or (device is not None and torch.device(device).type != "cpu"):
        raise _Unknown(f"it turns numbers into {dtype or device}, which rounds them")
    return reading.made(x.image.rows, x.image.size, x.image, steps=0)


def _same_numbers(reading: _Reading, x: Any, **_: Any) -> _Numbers:
    return reading.made(x.image.rows, x.image.size, x.image, steps=0)


def _softmax(reading: _Reading, x: Any, dim: int, *_: Any) -> _Numbers:
    if x.dim() != 2 or dim % 2 != 1:
        raise _Unknown("its softmax is not one over the scores of a row")
    return reading.activated(x, CheckedCurve("softmax"))


def _gelu(reading: _Reading, x: Any, *, approximate: str = "none") -> _Numbers:
    if approximate != "none":
        raise _Unknown(f"its activation gelu ({approximate}) is not known")
    return reading.activated(x, CheckedCurve("gelu"))


def _elu(reading: _Reading, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> _Numbers:
    if (alpha, scale, input_scale) != (1, 1, 1):
        raise _Unknown("its activation elu has other slopes than 1, which is not known")
    return reading.activated(x, CheckedCurve("elu"))


def _softplus(reading: _Reading, x: Any, beta: float = 1, threshold: float = 20) -> _Numbers:
    if (beta, threshold) != (1, 20):
        raise _Unknown("its activation softplus has another beta or threshold than 1 and 20, which is not known")
    return reading.activated(x, CheckedCurve("softplus"))


def _prelu(reading: _Reading, x: Any, weight: Any) -> _Numbers:
    if isinstance(weight, _Numbers) or len(weight.unique()) != 1:
        raise _Unknown("its neurons have different slopes below 0, which is not known")
    return reading.activated(x, CheckedCurve("leaky_relu", float(weight.flatten()[0])))


_MOVES = (  # operations that only move, repeat or drop numbers
    *("view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "slice", "select", "index", "index_select"),
    *("unsqueeze", "squeeze", "split", "split_with_sizes", "unbind", "detach", "alias"),
)
_Call = Callable[..., Any]
_OPERATIONS: dict[str, _Call] = {
    "add": _added,
    "sub": lambda reading, x, y, alpha=1: _added(reading, x, y, alpha=alpha, sign=-1),
    "rsub": lambda reading, x, y, alpha=1: _added(reading, _scaled(reading, x, -float(alpha)), y),
    "mul": _times,
    "div": lambda reading, x, y: _times(reading, x, y, inverse=True),
    "neg": lambda reading, x: _times(reading, x, -1.0),
    "mm": _matrix,
    "addmm": _addmm,
    "convolution": _convolved,
    "native_batch_norm": _normed,
    "_native_batch_norm_legit_no_training": _normed,
    "sum": _summed,
    "mean": _mean,
    "cat": _joined,
    "stack": _stacked,
    "clone": _same_numbers,
    "_to_copy": _copied,
    "relu": lambda reading, x: reading.activated(x, CheckedCurve("relu")),
    "sigmoid": lambda reading, x: reading.activated(x, CheckedCurve("sigmoid")),
    "tanh": lambda reading, x: reading.activated(x, CheckedCurve("tanh")),
    "silu": lambda reading, x: reading.activated(x, CheckedCurve("silu")),
    "leaky_relu": lambda reading, x, slope=0.01: reading.activated(x, CheckedCurve("leaky_relu", float(slope))),
    "_prelu_kernel": _prelu,
    "gelu": _gelu,
    "elu": _elu,
    "softplus": _softplus,
    "_softmax": _softmax,
}
