"""torch.export archives (.pt2), read without running anything that the file brings along.

torch.export.load unpickles parts of an archive, evaluates expressions in it and looks functions up by name, so it is
safe for trusted files only. Here the graph is read as the JSON it is, its weights as the plain bytes they are, and its
operations are looked up in a table of torch's own tensor operations.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuronfair.errors import NeuronFairError, one_line
from neuronfair.limits import TREE, check_archive, check_size, open_archive, read_member
from neuronfair.model.open.aten import (
    CASTS,
    CHECKS,
    FUNCTIONS,
    OVERWRITING,
    VIEWS,
    activation,
    check_arguments,
)
from neuronfair.model.open.feeds import Input
from neuronfair.model.open.graph import Graph, Ref, Step, Unsupported, names_in
from neuronfair.model.open.inputs import open_graph
from neuronfair.model.open.opened import Opened, Request
from neuronfair.model.open.overwriting import Makes, without_overwriting

SCHEMA = 8  # the version of the archive's description of a graph that is read here
_AGAIN = "Save it again with torch.export.save of torch 2.9 or newer, or name the module as package.module:name"
_FLOATS = {6, 7, 8, 13}  # the numbers of the floating-point types, see below
_WHOLE = {4, 5}
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
_PLAIN = {"as_int": int, "as_bool": bool, "as_string": str}
_TENSORS = {"as_tensor", "as_tensors", "as_optional_tensors"}
_CONTIGUOUS = 1  # the number of the one memory format that matters, before a view


def open(request: Request) -> Opened:  # noqa: A001 - each reader has a function of this name
    """Read an exported program, whose batch size must be free."""
    try:
        graph, inputs = _read(request)
    except Unsupported as reason:
        raise request.error(f"not read here: {reason}. {_AGAIN}") from reason
    except NeuronFairError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in the readers
        said = f"{type(error).__name__}: {one_line(error)}"
        raise request.error(f"not a readable torch.export archive ({said})") from error
    return open_graph(request, "torch.export", graph, inputs)


def _read(request: Request) -> tuple[Graph, list[Input]]:
    with open_archive(request.content, request.path) as archive:
        archive.filename = request.source  # for messages
        check_archive(archive)
        names = archive.namelist()
        described = [name for name in names if name.endswith("/models/model.json")]
        if not described:
            raise Unsupported("an archive of an older torch, or not one of torch.export")
        root = described[0].removesuffix("models/model.json")
        program = json.loads(read_member(archive, described[0], times=TREE))
        if program["schema_version"]["major"] != SCHEMA:
            raise Unsupported(f"an archive of torch {program.get('torch_version')}, which is not known here")
        weights = _tensors(archive, root, "weights") | _tensors(archive, root, "constants")
    module = program["graph_module"]
    given, tensors = _inputs(request, module["signature"]["input_specs"], weights)
    graph = module["graph"]
    inputs = [_input(request, name, graph["tensor_values"][name]) for name in given]
    outputs = [spec["user_output"]["arg"] for spec in module["signature"]["output_specs"] if "user_output" in spec]
    if len(outputs) != 1 or "as_tensor" not in outputs[0]:
        raise request.error(f"returns {len(outputs)} values; one tensor of scores is expected")
    types = {name: value["dtype"] for name, value in graph["tensor_values"].items()}
    nodes = [node for node in graph["nodes"] if node["target"] not in CHECKS]
    plain = {*given, *(name for name, tensor in tensors.items() if not tensor.is_floating_point())}
    steps, result = without_overwriting(
        [(_step(node, types, plain), _makes(node["target"])) for node in nodes], outputs[0]["as_tensor"]["name"]
    )
    return Graph(steps, tensors, given, result), inputs


def _input(request: Request, name: str, described: Any) -> Input:
    batch, *sizes = described["sizes"]
    if "as_int" in batch:
        raise request.error(
            f"was exported for batches of {batch['as_int']} rows only. Export it with a dynamic batch size: "
            "torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim('batch')},))"
        )
    return Input(name, "float" if described["dtype"] in _FLOATS else "whole", tuple(size["as_int"] for size in sizes))


def _tensors(archive: zipfile.ZipFile, root: str, folder: str) -> dict[str, Tensor]:
    """Return the tensors of one folder of the archive by name."""
    place = f"{root}data/{folder}/"
    config = json.loads(read_member(archive, f"{place}model_{folder}_config.json", times=TREE))["config"]
    tensors, total = {}, 0
    for name, entry in config.items():
        if entry["use_pickle"] or entry.get("tensor_meta") is None:
            raise Unsupported(f"its {name!a} is pickled")
        meta = entry["tensor_meta"]
        if meta["dtype"] not in _TYPES:
            raise Unsupported(f"its {name!a} has a type of numbers that is not known here")
        flat: np.ndarray = np.frombuffer(read_member(archive, place + entry["path_name"]), _TYPES[meta["dtype"]])
        sizes, strides = ([part["as_int"] for part in meta[key]] for key in ("sizes", "strides"))
        start = meta["storage_offset"]["as_int"]
        last = start + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        # A stride of 0 would make many numbers of one.
        many = math.prod(max(1, size) for size in sizes) > max(1, len(flat))
        if min([0, *sizes, *strides, start]) < 0 or last >= len(flat) or many:
            raise ValueError(f"{name!a} is shorter than it says")
        total += flat.nbytes  # several names may share one member
        check_size(total, f"{archive.filename}, its {folder}")
        tensors[name] = torch.from_numpy(flat.copy()).as_strided(sizes, strides, start).clone()
    return tensors


def _inputs(request: Request, specs: list[Any], weights: Mapping[str, Tensor]) -> tuple[list[str], dict[str, Tensor]]:
    """Return the names of the inputs, and the weights by the names that they have in the graph."""
    given, tensors = [], {}
    for spec in specs:
        ((kind, entry),) = spec.items()
        if kind == "user_input":
            given.append(entry["arg"]["as_tensor"]["name"])
        elif kind in ("parameter", "buffer", "tensor_constant"):
            tensors[entry["arg"]["name"]] = weights[entry[f"{kind}_name"]]
        else:
            raise Unsupported(f"an input of kind {kind!a}")
    if not given:
        raise request.error("has no input")
    return given, tensors


def _makes(target: str) -> Makes:
    if target in OVERWRITING:
        return Makes.CHANGE
    return Makes.WINDOW if target in VIEWS else Makes.NEW


def _step(node: Any, types: Mapping[str, int], plain: set[str]) -> Step:
    """Return the step of a node; `plain` are the values that no weight has met, which grow as steps are read."""
    results = tuple(name for output in node["outputs"] for name in _result_names(output))
    target, inputs = OVERWRITING.get(node["target"], node["target"]), node["inputs"]
    name = node.get("name") or results[0]
    read = [_argument(i["arg"]) for i in inputs if i["arg"].keys() & _TENSORS]
    if plain.issuperset(names_in(read)):
        plain.update(results)
    if target in CASTS:  # a change of type, which must not undo that of the whole network
        whole = types[results[0]] in _WHOLE and results[0] in plain  # a code; else it has no gradient
        if not whole and types[results[0]] not in _FLOATS:
            raise Unsupported("a cast to whole numbers or truth values")
        return Step(name, results, Tensor.long if whole else _same, (_argument(inputs[0]["arg"]),))
    if target not in FUNCTIONS:
        raise Unsupported(f"the operation {ascii(target)[1:-1]}")
    positional = [_argument(i["arg"]) for i in inputs if i.get("kind", 1) == 1]
    named = {i["name"]: _argument(i["arg"]) for i in inputs if i.get("kind", 1) != 1}
    check_arguments(FUNCTIONS[target], positional, named)
    part = activation(target, positional[1:], named)
    if part is not None:
        return Step(name, results, part, tuple(positional[:1]))
    return Step(name, results, FUNCTIONS[target], tuple(positional), named)


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
    if kind in ("as_none", "as_device", "as_layout"):  # where and how it is kept is free here
        return None
    if kind == "as_memory_format":
        return torch.contiguous_format if value == _CONTIGUOUS else None
    if kind == "as_float":
        return float(value)  # infinity is a word
    if kind in _PLAIN and type(value) is _PLAIN[kind]:
        return value
    if kind in ("as_sym_int", "as_sym_bool", "as_sym_float"):
        return Ref(value["as_name"]) if "as_name" in value else _argument(value)
    if kind == "as_tensors":
        return [Ref(entry["name"]) for entry in value]
    if kind == "as_optional_tensors":
        return [_argument(entry) for entry in value]
    if kind in ("as_ints", "as_floats", "as_bools", "as_sym_ints"):
        return [_argument({kind[:-1]: entry}) for entry in value]
    raise Unsupported(f"an argument of kind {kind!a}")
