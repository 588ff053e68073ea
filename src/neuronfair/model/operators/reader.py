"""The operators of a network, read one by one from its graph as a chain of affine maps and curves.

Every operator that meets a number of a row must be in one of the tables below. Any other one is refused by its name:
an unknown operator could bend, jump or branch where no sample shows it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from neuronfair.errors import ModelError
from neuronfair.model.operators.chain import Affine, AffineTensor, Chain, Curve, End, Shape, check_numbers, lengths

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
MAX_WIDTH = 10_000  # numbers that a layer takes or gives
REMEDY = "write forward() with linear layers and known activations"
_IDENTITIES = {"clone", "detach", "alias", "contiguous", "lift_fresh", "lift_fresh_copy", "dropout", "native_dropout"}
_VIEWS = {"view", "reshape", "_unsafe_view", "flatten", "squeeze", "unsqueeze", "unflatten", "view_as", "reshape_as"}
_CASTS = {"to", "_to_copy", "type_as", "float", "double"}
_CONSTANT_LIKE = {"new_zeros", "new_ones", "new_full", "full_like", "zeros_like", "ones_like"}
_SYMBOLIC = {"full", "zeros", "ones", *_CONSTANT_LIKE}
# On constants also these: continuous functions, so that rounding moves a weight by a rounding.
_CONTINUOUS = {
    *("abs", "amax", "amin", "addmm", "arange", "bmm", "clamp", "clamp_max", "clamp_min", "elu", "exp", "gelu"),
    *("leaky_relu", "linalg_vector_norm", "log", "max", "maximum", "min", "minimum", "mm", "mv", "norm", "pow"),
    *("reciprocal", "relu", "rsqrt", "scalar_tensor", "sigmoid", "silu", "softmax", "softplus", "sqrt", "tanh"),
    *("_softmax", "_weight_norm", "_weight_norm_interface", "dot", "outer", "diag", "repeat", "empty", "square", "eye"),
}


def is_known(name: str, *, on_constants: bool = False) -> bool:
    """Return whether an operator, by its name without the overload, may read the numbers of a row, or only weights."""
    plain = name[:-1] if name.endswith("_") and not name.startswith("__") else name
    tables: list[Collection[str]] = [_OPERATORS, _FUNCTIONS, ENDS, *([_CONTINUOUS, _SYMBOLIC] if on_constants else [])]
    return any(plain in names for names in tables)


def refuse_operator(name: str, reason: str = "") -> ModelError:
    """Return the error that names an operator."""
    return ModelError(f"its operator {name} {reason or 'is not one that bounds are known for'} ({REMEDY})")


@dataclass
class Reader:
    """Reads a functional graph of ATen operators whose batch size is a symbol. `dtype` is that of the module."""

    graph: fx.Graph
    values: Mapping[str, Tensor]  # constants by the names of their placeholders
    result: str  # the name of the node that holds the scores
    dtype: torch.dtype
    affines: list[Affine] = field(default_factory=list)
    sizes: list[Affine] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    end: End = "none"
    _rows: str = ""
    _results: dict[fx.Node, Any] = field(default_factory=dict)

    def read(self) -> Chain:
        """Return what the graph computes; the first operator that is not known is refused by its name."""
        (scores,) = (node for node in self.graph.nodes if node.name == self.result)
        pending, used_nodes = [scores], set[fx.Node]()  # the nodes that the scores depend on
        while pending:
            node = pending.pop()
            if node not in used_nodes:
                used_nodes.add(node)
                pending.extend(node.all_input_nodes)
        for node in self.graph.nodes:
            if node in used_nodes:
                self._results[node] = self._read_node(node, scores, used_nodes)
        form = self._results[scores]
        if not isinstance(form, AffineTensor):
            raise ModelError("its scores do not depend on its input")
        if form.rows != 0:
            raise ModelError("it mixes the numbers of several rows")
        self._add_affine(form)
        return Chain(tuple(self.affines), tuple(self.sizes), tuple(self.curves), self.end)

    def _read_node(self, node: fx.Node, scores: fx.Node, used_nodes: set[fx.Node]) -> Any:
        if node.op == "get_attr":  # a graph in the graph: its caller is refused
            return None
        if node.op == "placeholder":
            if node.name in self.values:
                value = self.values[node.name].detach().cpu()
                return value.double() if value.is_floating_point() else value
            self._rows = str(node.meta["val"].shape[0])
            shape = self._shape(node)
            _check_width(shape)
            return AffineTensor.of_layer(0, shape)
        if node.target is operator.getitem:
            return self._results[node.args[0]][node.args[1]]  # type: ignore[index]
        name, meta_value = get_name(node.target), node.meta.get("val")
        if isinstance(meta_value, _SYMBOLS):
            if name in ("item", "_local_scalar_dense"):
                raise refuse_operator(str(node.target), "takes a number out of a tensor")
            return meta_value  # a shape, which its readers check
        arguments = [self._fill_in(part) for part in node.args]
        options = {key: self._fill_in(part) for key, part in node.kwargs.items()}
        forms = any(isinstance(part, AffineTensor) for part in _list_leaves([arguments, options]))
        if not forms:
            return self._compute_constant(node, name, arguments, options)
        if name not in _OPERATORS and name not in _FUNCTIONS and name not in ENDS:
            raise refuse_operator(str(node.target))
        self._check_types(node, meta_value)
        if name in ENDS and _is_last(node, scores, used_nodes):
            return self._record_end(node, name, arguments)
        if name in _FUNCTIONS:
            form, curve = _FUNCTIONS[name](node, arguments)
            _check_width(form.shape)
            self._add_affine(form)
            self.curves.append(curve)
            return AffineTensor.of_layer(len(self.affines), form.shape)
        if name not in _OPERATORS:  # a softmax that is not the end
            raise refuse_operator(str(node.target), "is not the last one")
        if _is_random(node) and name not in _IDENTITIES:
            raise refuse_operator(str(node.target), "is random")
        try:
            return _OPERATORS[name](self, node, *arguments, **options)
        except (TypeError, RuntimeError, IndexError, ValueError) as error:  # in a form that the table does not have
            raise refuse_operator(str(node.target), f"is used in a form that is not known here ({error})") from error

    def _check_types(self, node: fx.Node, value: Any) -> None:
        """Refuse operators that round numbers of a row more than the module's own type does."""
        for tensor in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(tensor, Tensor):
                kind = tensor.dtype
                if not kind.is_floating_point or torch.finfo(kind).bits < max(32, torch.finfo(self.dtype).bits):
                    raise refuse_operator(
                        str(node.target), f"rounds to {str(kind).removeprefix('torch.')}, or gives truth values"
                    )

    def _fill_in(self, part: Any) -> Any:
        if isinstance(part, fx.Node):
            return self._results[part]
        if isinstance(part, (list, tuple)):
            return [self._fill_in(item) for item in part]
        return part

    def _shape(self, node: fx.Node) -> Shape:
        """Return the shape of a node's value, None for the rows."""
        sizes: list[int | None] = []
        for size in node.meta["val"].shape:
            if isinstance(size, int):
                sizes.append(size)
            elif str(size) == self._rows:
                sizes.append(None)
            else:
                raise refuse_operator(str(node.target), "makes a tensor whose shape depends on the rows")
        if sizes.count(None) > 1:
            raise ModelError("it mixes the numbers of several rows")
        return tuple(sizes)

    def _compute_constant(self, node: fx.Node, name: str, arguments: list[Any], options: dict[str, Any]) -> Any:
        """Return the result of an operator on weights, in float64."""
        leaves = _list_leaves([arguments, options])
        symbolic = any(isinstance(part, _SYMBOLS) for part in leaves)
        if symbolic and name not in (_SYMBOLIC | {"expand"}):
            raise refuse_operator(str(node.target), "reads the number of rows, or a number of a row")
        if not is_known(name, on_constants=True) or _is_random(node):
            raise refuse_operator(str(node.target))
        if name == "empty":
            raise refuse_operator(str(node.target), "gives uninitialised numbers")
        if symbolic:
            arguments = [_use_one_row(part) for part in arguments]
        source = next((part for part in leaves if isinstance(part, Tensor)), None)
        result = node.meta["val"]
        rounded = isinstance(result, Tensor) and not result.is_floating_point()
        if source is not None and source.is_floating_point() and rounded:
            raise refuse_operator(str(node.target), "rounds weights to whole numbers")
        if "dtype" in options and isinstance(options["dtype"], torch.dtype) and options["dtype"].is_floating_point:
            options["dtype"] = torch.float64
        if "device" in options:
            options["device"] = "cpu"
        options.pop("pin_memory", None)
        value = node.target(*arguments, **options)  # type: ignore[operator]
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    def _add_affine(self, form: AffineTensor) -> None:
        """Add a tensor as the input of the next layer."""
        if form.layer != len(self.affines):
            raise ModelError(f"layer {form.layer} is read again behind layer {len(self.affines)}: it is no chain")
        numbers, size = form.high, form.size
        check_numbers(sum(affine.weight.numel() for affine in self.affines) + numbers.numel())
        if not bool((numbers + size).isfinite().all()):
            raise ModelError("its weights hold NaN or infinite numbers")
        for maps, numbers_of_map in ((self.affines, numbers), (self.sizes, size)):
            maps.append(Affine(numbers_of_map[:, :-1].contiguous(), numbers_of_map[:, -1].contiguous()))

    def _record_end(self, node: fx.Node, name: str, arguments: list[Any]) -> AffineTensor:
        """Record a final softmax or sigmoid."""
        form: AffineTensor = arguments[0]
        if ENDS[name] == "softmax" and not (form.rows == 0 and len(form.shape) == 2 and arguments[1] in (1, -1)):
            raise refuse_operator(str(node.target), "does not run over the scores of a row")
        self.end = ENDS[name]
        return form


def _is_random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _check_width(shape: Shape) -> None:
    if math.prod(size or 1 for size in shape) > MAX_WIDTH:
        raise ModelError(f"one of its layers takes more than {MAX_WIDTH:,} numbers")


def get_name(target: Any) -> str:
    """Return the name of an operator without its overload."""
    packet = getattr(target, "overloadpacket", target)
    return str(getattr(packet, "__name__", packet))


def _list_leaves(parts: Any) -> list[Any]:
    if isinstance(parts, dict):
        parts = list(parts.values())
    if isinstance(parts, (list, tuple)):
        return [leaf for part in parts for leaf in _list_leaves(part)]
    return [parts]


def _use_one_row(part: Any) -> Any:
    if isinstance(part, list):
        return [_use_one_row(item) for item in part]
    return 1 if isinstance(part, torch.SymInt) else part


def _is_last(node: fx.Node, scores: fx.Node, used_nodes: set[fx.Node]) -> bool:
    """Return whether a node's value is only reshaped before it becomes the scores."""
    while node is not scores:
        (*others, user) = [user for user in node.users if user in used_nodes]
        if others or user.op != "call_function" or get_name(user.target) not in (_VIEWS | _IDENTITIES):
            return False
        node = user
    return True


ActivationReader = Callable[[fx.Node, list[Any]], tuple[AffineTensor, Curve]]
ENDS: dict[str, End] = {"softmax": "softmax", "_softmax": "softmax", "sigmoid": "sigmoid"}


def _activation_reader(name: str, **defaults: float | str) -> ActivationReader:
    """Return an activation that is known with its default parameters only."""

    def read_activation(node: fx.Node, arguments: list[Any]) -> tuple[AffineTensor, Curve]:
        used = dict(zip(defaults, arguments[1:], strict=False)) | node.kwargs
        if len(arguments) > 1 + len(defaults) or any(value != defaults.get(key) for key, value in used.items()):
            parameters = ", ".join(f"{key}={value}" for key, value in used.items())
            raise refuse_operator(str(node.target), f"has the parameters {parameters}, with which it is not known")
        return arguments[0], Curve(name)

    return read_activation


def _read_leaky(node: fx.Node, arguments: list[Any]) -> tuple[AffineTensor, Curve]:
    slope: Any = arguments[1] if len(arguments) > 1 else node.kwargs.get("negative_slope", 0.01)
    if isinstance(slope, Tensor):  # the learned slope of a PReLU
        slope = slope.item() if slope.numel() == 1 else math.nan
    if isinstance(slope, AffineTensor) or not math.isfinite(slope):
        raise refuse_operator(str(node.target), "has several slopes, or none that is a number")
    return arguments[0], Curve("leaky_relu", float(slope))


_FUNCTIONS: dict[str, ActivationReader] = {
    **{name: _activation_reader(name) for name in ("relu", "sigmoid", "tanh", "silu")},
    **dict.fromkeys(("leaky_relu", "prelu", "_prelu_kernel"), _read_leaky),
    "gelu": _activation_reader("gelu", approximate="none"),
    "elu": _activation_reader("elu", alpha=1, scale=1, input_scale=1),
    "softplus": _activation_reader("softplus", beta=1, threshold=20),
}


def _read_identity(reader: Reader, node: fx.Node, x: AffineTensor, *rest: Any, **options: Any) -> Any:
    name = get_name(node.target)
    training = rest[1] if len(rest) > 1 else options.get("train", True)
    if name in ("dropout", "native_dropout") and training is not False:
        raise refuse_operator(str(node.target), "drops numbers at random")
    return (x, None) if name == "native_dropout" else x


def _read_constant_like(reader: Reader, node: fx.Node, x: AffineTensor, *rest: Any, **options: Any) -> Tensor:
    """Return constants in the shape of a tensor of rows."""
    name = get_name(node.target)
    value = {"zeros": 0.0, "ones": 1.0}.get(name.removesuffix("_like").removeprefix("new_"), rest[-1] if rest else None)
    return torch.full(lengths(reader._shape(node)), float(_to_number(node, value)), dtype=torch.float64)


Form = AffineTensor | Tensor


def _reshape(reader: Reader, node: fx.Node, x: Form, *rest: Any, **options: Any) -> Form:
    shape = reader._shape(node)
    return x.reshape(lengths(shape)) if isinstance(x, Tensor) else x.reshape(shape)


def _expand(reader: Reader, node: fx.Node, x: Form, *rest: Any, **options: Any) -> Form:
    shape = reader._shape(node)
    return x.expand(lengths(shape)) if isinstance(x, Tensor) else x.expand(shape)


def _transpose(reader: Reader, node: fx.Node, x: AffineTensor, a: int, b: int) -> AffineTensor:
    order = [*range(len(x.shape))]
    order[a], order[b] = order[b], order[a]
    return x.permute(order)


def _slice(
    reader: Reader, node: fx.Node, x: AffineTensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> AffineTensor:
    if reader._shape(node) == x.shape and step == 1:
        return x
    if not all(isinstance(end_index, int) or end_index is None for end_index in (start, end)):
        raise refuse_operator(str(node.target), "chooses places by the number of rows")
    return x.select(dim, slice(start, end, step))


def _select(reader: Reader, node: fx.Node, x: AffineTensor, dim: int, index: int) -> AffineTensor:
    dim = x.check_dim(dim)
    size = x.shape[dim]
    if not isinstance(index, int) or size is None:
        raise refuse_operator(str(node.target), "chooses a place by the numbers of a row")
    position = index % size
    return x.select(dim, slice(position, position + 1)).reshape(reader._shape(node))


def _index(reader: Reader, node: fx.Node, x: AffineTensor, indices: list[Any]) -> AffineTensor:
    arguments = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(arguments) != 1 or not isinstance(arguments[0][1], Tensor):
        raise refuse_operator(str(node.target), "chooses places by the numbers of a row, or several ways at once")
    ((dim, index),) = arguments
    return _index_select(reader, node, x, dim, index)


def _index_select(reader: Reader, node: fx.Node, x: AffineTensor, dim: int, index: Any) -> AffineTensor:
    is_list = isinstance(index, Tensor) and index.dim() <= 1 and index.dtype == torch.int64
    if not isinstance(x, AffineTensor) or not is_list:
        raise refuse_operator(str(node.target), "chooses places by the numbers of a row")
    return x.select(dim, index.reshape(-1)).reshape(reader._shape(node))


def _split(reader: Reader, node: fx.Node, x: AffineTensor, sizes: int | list[int], dim: int = 0) -> list[AffineTensor]:
    dim = x.check_dim(dim)
    length = x.shape[dim] or 0
    parts = [min(sizes, length - at) for at in range(0, length, sizes)] if isinstance(sizes, int) else sizes
    starts = [sum(parts[:number]) for number in range(len(parts))]
    return [x.select(dim, slice(at, at + size)) for at, size in zip(starts, parts, strict=True)]


def _unbind(reader: Reader, node: fx.Node, x: AffineTensor, dim: int = 0) -> list[AffineTensor]:
    dim = x.check_dim(dim)
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    return [x.select(dim, slice(index, index + 1)).reshape(shape) for index in range(x.shape[dim] or 0)]


def _stack(reader: Reader, node: fx.Node, parts: list[AffineTensor | Tensor], dim: int = 0) -> AffineTensor:
    dim %= len(reader._shape(node))
    wider = [
        part.unsqueeze(dim) if isinstance(part, Tensor) else part.reshape((*part.shape[:dim], 1, *part.shape[dim:]))
        for part in parts
    ]
    return AffineTensor.concatenate(wider, dim)


def _add(reader: Reader, node: fx.Node, a: Any, b: Any, alpha: float = 1, sign: int = 1) -> AffineTensor:
    alpha *= sign
    if isinstance(a, AffineTensor):
        return a.add(b if isinstance(b, AffineTensor) else _to_number(node, b), float(alpha))
    scaled: AffineTensor = b.multiply(_to_number(node, alpha))
    return scaled.add(_to_number(node, a))


def _mul(reader: Reader, node: fx.Node, a: Any, b: Any) -> AffineTensor:
    if isinstance(a, AffineTensor) and isinstance(b, AffineTensor):
        raise refuse_operator(str(node.target), "multiplies numbers of a row with each other")
    form, number = (a, b) if isinstance(a, AffineTensor) else (b, a)
    product: AffineTensor = form.multiply(_to_number(node, number))
    return product


def _div(reader: Reader, node: fx.Node, a: Any, b: Any, rounding_mode: Any = None) -> AffineTensor:
    if isinstance(b, AffineTensor) or rounding_mode is not None:
        raise refuse_operator(str(node.target), "divides by a number of a row, or rounds")
    quotient: AffineTensor = a.divide(_to_number(node, b))
    return quotient


def _to_number(node: fx.Node, value: Any) -> Tensor:
    if isinstance(value, _SYMBOLS):
        raise refuse_operator(str(node.target), "reads the number of rows, or a number of a row")
    return torch.as_tensor(value, dtype=torch.float64)


def _sum(reader: Reader, node: fx.Node, x: AffineTensor, dims: Any = None, *rest: Any, **options: Any) -> AffineTensor:
    shape = reader._shape(node)
    dims = range(len(x.shape)) if not dims else [dims] if isinstance(dims, int) else dims
    summed_dims = sorted(x.check_dim(dim) for dim in dims)
    order = [dim for dim in range(len(x.shape)) if dim not in summed_dims]
    kept_sizes = [x.shape[dim] for dim in order]
    count = math.prod(x.shape[dim] or 1 for dim in summed_dims)
    flat = x.permute([*order, *summed_dims]).reshape((*kept_sizes, count))
    return flat.multiply_matrix(torch.ones(count, 1, dtype=torch.float64)).reshape(shape)


def _mean(reader: Reader, node: fx.Node, x: AffineTensor, dims: Any = None, *rest: Any, **options: Any) -> AffineTensor:
    total = _sum(reader, node, x, dims)
    count = math.prod(size or 1 for size in x.shape) // math.prod(size or 1 for size in total.shape)
    return total.divide(torch.tensor(float(count), dtype=torch.float64))


def _linear(reader: Reader, node: fx.Node, x: Any, weight: Any, bias: Any = None) -> AffineTensor:
    if not isinstance(x, AffineTensor) or not isinstance(weight, Tensor):
        raise refuse_operator(str(node.target), "multiplies numbers of a row with each other")
    result = x.multiply_matrix(weight.T if weight.dim() == 2 else weight[:, None])
    return result if bias is None else result.add(bias)


def _addmm(
    reader: Reader, node: fx.Node, bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1
) -> AffineTensor:
    product = _matmul(reader, node, a, b)
    product = product if alpha == 1 else product.multiply(_to_number(node, alpha))
    if isinstance(bias, AffineTensor):
        return product.add(bias, float(beta))
    return product.add(_to_number(node, beta) * bias)


def _matmul(reader: Reader, node: fx.Node, a: Any, b: Any) -> AffineTensor:
    if isinstance(a, AffineTensor) and isinstance(b, AffineTensor):
        raise refuse_operator(str(node.target), "multiplies numbers of a row with each other")
    if isinstance(a, AffineTensor):
        b = b[0] if b.dim() == 3 and len(b) == 1 else b
        if b.dim() == 1:
            return a.multiply_matrix(b[:, None]).reshape(reader._shape(node))
        if b.dim() == 2:
            return a.multiply_matrix(b)
    elif isinstance(b, AffineTensor) and a.dim() == 2 and len(b.shape) == 2:
        return b.permute([1, 0]).multiply_matrix(a.T).permute([1, 0])
    raise refuse_operator(str(node.target), "multiplies by several matrices")


def _batch_norm(
    reader: Reader,
    node: fx.Node,
    x: AffineTensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Any,
    variance: Any,
    *rest: Any,
) -> Any:
    name = get_name(node.target)
    trained = False if name == "_native_batch_norm_legit_no_training" else rest[0]
    if trained or not isinstance(mean, Tensor) or not isinstance(variance, Tensor) or x.rows != 0:
        raise refuse_operator(str(node.target), "normalises by the rows of a batch")
    epsilon = rest[1] if name == "_native_batch_norm_legit_no_training" else rest[2]
    along = [-1, *[1] * (len(x.shape) - 2)]
    result = x.add(mean.reshape(along), -1.0).divide((variance + epsilon).sqrt().reshape(along))
    result = result if weight is None else result.multiply(weight.reshape(along))
    result = result if bias is None else result.add(bias.reshape(along))
    return result if name == "batch_norm" else (result, None, None)


def _convolution(reader: Reader, node: fx.Node, x: Any, weight: Any, bias: Any = None, *rest: Any) -> AffineTensor:
    if not isinstance(x, AffineTensor) or not isinstance(weight, Tensor):
        raise refuse_operator(str(node.target), "multiplies numbers of a row with each other")
    result = x.apply_linear(lambda units: node.target(units, weight, None, *rest), reader._shape(node))  # type: ignore[operator]
    return result if bias is None else result.add(bias.reshape(-1, *[1] * (len(result.shape) - 2)))


def _read_pooling(reader: Reader, node: fx.Node, x: AffineTensor, *rest: Any, **options: Any) -> AffineTensor:
    return x.apply_linear(lambda units: node.target(units, *rest, **options), reader._shape(node))  # type: ignore[operator]


def _read_padding(reader: Reader, node: fx.Node, x: AffineTensor, pads: list[int], *rest: Any) -> AffineTensor:
    is_pad = get_name(node.target) == "pad"
    mode, value = (rest[0], rest[1] if len(rest) > 1 else None) if is_pad else ("constant", None)
    value = rest[0] if get_name(node.target) == "constant_pad_nd" and rest else value
    if mode != "constant" or value not in (None, 0, 0.0):
        raise refuse_operator(str(node.target), "pads with other numbers than 0")
    return x.apply_linear(lambda units: functional.pad(units, pads), reader._shape(node))


_OPERATORS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_IDENTITIES, _read_identity),
    **dict.fromkeys(_VIEWS, _reshape),
    **dict.fromkeys(_CASTS, lambda reader, node, x, *rest, **options: x.double() if isinstance(x, Tensor) else x),
    **dict.fromkeys(_CONSTANT_LIKE, _read_constant_like),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), _expand),
    **dict.fromkeys(("t", "numpy_T"), lambda reader, node, x: x.permute(range(len(x.shape))[::-1])),
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    **dict.fromkeys(("mm", "matmul", "bmm", "mv"), _matmul),
    **dict.fromkeys(("batch_norm", "native_batch_norm", "_native_batch_norm_legit_no_training"), _batch_norm),
    **dict.fromkeys(("convolution", "conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d"), _read_pooling),
    **dict.fromkeys(("pad", "constant_pad_nd"), _read_padding),
    "linear": _linear,
    "add": _add,
    "sub": partial(_add, sign=-1),
    "mul": _mul,
    "div": _div,
    "addmm": _addmm,
    "rsub": lambda reader, node, a, b, alpha=1: _add(reader, node, b, a, -alpha),
    "neg": lambda reader, node, x: x.multiply(torch.tensor(-1.0, dtype=torch.float64)),
    "permute": lambda reader, node, x, order: x.permute(order),
    "sum": _sum,
    "mean": _mean,
    "transpose": _transpose,
    "slice": _slice,
    "select": _select,
    "index": _index,
    "index_select": _index_select,
    "unbind": _unbind,
    "cat": lambda reader, node, parts, dim=0: AffineTensor.concatenate(parts, dim),
    "stack": _stack,
}
