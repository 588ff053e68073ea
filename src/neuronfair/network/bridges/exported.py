"""torch.export archives (.pt2), read without running anything that the file brings along.

torch.export.load unpickles parts of an archive, evaluates expressions in it and looks functions up by name, so it is
safe for trusted files only. Here the graph is read as the JSON it is, its weights as the plain bytes they are, and its
operations may be torch's own tensor operations only.
"""

from __future__ import annotations

import json
import operator
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuronfair.errors import ModelError
from neuronfair.network.bridges.graph import Graph, Ref, Step, Unsupported
from neuronfair.network.bridges.opened import Opened, Request, one_line

SCHEMA = 8  # the version of the archive's description of a graph that is read here
_AGAIN = "Save it again with torch.export.save of torch 2.9 or newer, or name the module as package.module:name"
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    f"_operator.{name}": getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "neg", "getitem")
}
_REFUSED = {"from_file"}  # of torch's tensor operations, the one that opens files
_FLOATS = {6, 7, 8, 13}  # the numbers of the floating-point types, see below
_CASTS = tuple(f"torch.ops.aten.{name}." for name in ("to", "_to_copy", "type_as"))
# The numbers that archives use for torch's types.
_TYPES = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.float16,
    7: np.float32,
    8: np.float64,
    12: np.bool_,
}


def open(request: Request) -> Opened:  # noqa: A001 - each bridge has a function of this name
    """Read an exported program with one input, whose batch size must be free."""
    try:
        graph = _read(request)
    except Unsupported as reason:
        raise request.error(f"{reason}. {_AGAIN}") from reason
    except ModelError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in the readers
        said = f"{type(error).__name__}: {one_line(error)}"
        raise request.error(f"not a readable torch.export archive ({said})") from error
    return request.white_box("torch.export", graph)


def _read(request: Request) -> Graph:
    with zipfile.ZipFile(request.path) as archive:
        names = archive.namelist()
        described = [name for name in names if name.endswith("/models/model.json")]
        if not described:
            raise Unsupported("an archive of an older torch, or not one of torch.export")
        root = described[0].removesuffix("models/model.json")
        program = json.loads(archive.read(described[0]))
        if program["schema_version"]["major"] != SCHEMA:
            raise Unsupported(f"an archive of torch {program.get('torch_version')}, which is not known here")
        weights = _tensors(archive, root, "weights") | _tensors(archive, root, "constants")
    module = program["graph_module"]
    given, tensors = _inputs(request, module["signature"]["input_specs"], weights)
    graph = module["graph"]
    sizes = graph["tensor_values"][given]["sizes"]
    if "as_int" in sizes[0]:
        raise request.error(
            f"was exported for batches of {sizes[0]['as_int']} rows only. Export it with a dynamic batch size: "
            "torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim('batch')},))"
        )
    outputs = [spec["user_output"]["arg"] for spec in module["signature"]["output_specs"] if "user_output" in spec]
    if len(outputs) != 1 or "as_tensor" not in outputs[0]:
        raise request.error(f"returns {len(outputs)} values; one tensor of scores is expected")
    types = {name: value["dtype"] for name, value in graph["tensor_values"].items()}
    nodes = [node for node in graph["nodes"] if node["outputs"]]  # the others are checks of shapes and types
    steps = [_step(node, types) for node in nodes]
    return Graph(steps, tensors, given, outputs[0]["as_tensor"]["name"])


def _tensors(archive: zipfile.ZipFile, root: str, folder: str) -> dict[str, Tensor]:
    """Return the tensors of one folder of the archive by name."""
    config = json.loads(archive.read(f"{root}data/{folder}/model_{folder}_config.json"))["config"]
    tensors = {}
    for name, entry in config.items():
        if entry["use_pickle"] or entry.get("tensor_meta") is None:
            raise Unsupported(f"its '{name}' is pickled")
        meta = entry["tensor_meta"]
        if meta["dtype"] not in _TYPES:
            raise Unsupported(f"its '{name}' has a type of numbers that is not known here")
        flat: np.ndarray = np.frombuffer(
            archive.read(f"{root}data/{folder}/{entry['path_name']}"), _TYPES[meta["dtype"]]
        )
        sizes, strides = ([part["as_int"] for part in meta[key]] for key in ("sizes", "strides"))
        start = meta["storage_offset"]["as_int"]
        last = start + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        if min([0, *sizes, *strides, start]) < 0 or last >= len(flat):
            raise ValueError(f"'{name}' is shorter than it says")
        tensors[name] = torch.from_numpy(flat.copy()).as_strided(sizes, strides, start).clone()
    return tensors


def _inputs(request: Request, specs: list[Any], weights: Mapping[str, Tensor]) -> tuple[str, dict[str, Tensor]]:
    """Return the name of the one input, and the weights by the names that they have in the graph."""
    given, tensors = [], {}
    for spec in specs:
        ((kind, entry),) = spec.items()
        if kind == "user_input":
            given.append(entry["arg"]["as_tensor"]["name"])
        elif kind in ("parameter", "buffer", "tensor_constant"):
            tensors[entry["arg"]["name"]] = weights[entry[f"{kind}_name"]]
        else:
            raise Unsupported(f"an input of kind '{kind}'")
    if len(given) != 1:
        raise request.error(f"has {len(given)} inputs; one tensor of encoded rows is expected")
    return given[0], tensors


def _step(node: Any, types: Mapping[str, int]) -> Step:
    results = tuple(name for output in node["outputs"] for name in _result_names(output))
    target, inputs = node["target"], node["inputs"]
    name = node.get("name") or results[0]
    if target.startswith(_CASTS):  # a change of type, which must not undo that of the whole network
        if types[results[0]] not in _FLOATS:
            raise Unsupported("a cast to whole numbers or truth values")
        return Step(name, results, _same, (_argument(inputs[0]["arg"]),))
    positional = [_argument(i["arg"]) for i in inputs if i.get("kind", 1) == 1]
    named = {i["name"]: _argument(i["arg"]) for i in inputs if i.get("kind", 1) != 1}
    if target in _ARITHMETIC:
        return Step(name, results, _ARITHMETIC[target], tuple(positional), named)
    home, kind, form = ([""] * 3 + target.rsplit(".", 2))[-3:]
    if home != "torch.ops.aten" or kind in _REFUSED:
        raise Unsupported(f"the operation {target}")
    part = _activation(kind, positional[1:], named)
    if part is not None:
        return Step(name, results, part, tuple(positional[:1]))
    function = getattr(getattr(torch.ops.aten, kind, None), form, None)
    if function is None:
        raise Unsupported(f"the operation {target}")
    return Step(name, results, function, tuple(positional), named)


def _same(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.float()


def _result_names(output: Any) -> list[str]:
    ((kind, value),) = output.items()
    if kind == "as_tensors":
        return [entry["name"] for entry in value]
    return [value["as_name"] if "as_name" in value else value["name"]]


def _argument(argument: Any) -> Any:
    ((kind, value),) = argument.items()
    if kind == "as_tensor":
        return Ref(value["name"])
    if kind in ("as_none", "as_device", "as_layout", "as_memory_format"):  # where and how it is kept is free here
        return None
    if kind in ("as_int", "as_float", "as_bool", "as_string", "as_ints", "as_floats", "as_bools"):
        return value
    if kind in ("as_sym_int", "as_sym_bool", "as_sym_float"):
        return _symbol(value)
    if kind == "as_sym_ints":
        return [_symbol(entry) for entry in value]
    if kind == "as_tensors":
        return [Ref(entry["name"]) for entry in value]
    raise Unsupported(f"an argument of kind '{kind}'")


def _symbol(value: Any) -> Any:
    return Ref(value["as_name"]) if "as_name" in value else next(iter(value.values()))


def _activation(kind: str, arguments: list[Any], options: Mapping[str, Any]) -> nn.Module | None:
    """Return the module of an activation function; those that end in '_' overwrite their input, as in the model."""
    name, inplace = kind.rstrip("_"), kind.endswith("_")
    makers: dict[str, Callable[..., nn.Module]] = {
        "relu": lambda: nn.ReLU(inplace),
        "relu6": lambda: nn.ReLU6(inplace),
        "selu": lambda: nn.SELU(inplace),
        "silu": lambda: nn.SiLU(inplace),
        "mish": lambda: nn.Mish(inplace),
        "hardswish": lambda: nn.Hardswish(inplace),
        "hardsigmoid": lambda: nn.Hardsigmoid(inplace),
        "sigmoid": nn.Sigmoid,
        "tanh": nn.Tanh,
        "softplus": nn.Softplus,
        "log_sigmoid": nn.LogSigmoid,
        "gelu": nn.GELU,
        "leaky_relu": lambda slope=0.01: nn.LeakyReLU(slope, inplace),
        "elu": lambda alpha=1.0: nn.ELU(alpha, inplace),
        "celu": lambda alpha=1.0: nn.CELU(alpha, inplace),
        "hardtanh": lambda low=-1.0, high=1.0: nn.Hardtanh(low, high, inplace),
    }
    if name not in makers:
        return None
    try:
        return makers[name](*arguments, **options)
    except TypeError:  # a variant that torch has as an operation, but not as a module
        return None
