"""torch.export archives (.pt2) that the user trusts: torch's own loader unpickles parts of them.

Without the trust flag such a file is refused by its name (`model/formats.py`); ONNX and safetensors are read as data.
"""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind, TensorArgument
from torch.utils._pytree import tree_leaves

from neuronfair.errors import one_line
from neuronfair.model.open.input_layers import graph_feed, open_fed, open_module
from neuronfair.model.open.input_layouts import NetworkInput
from neuronfair.model.open.request import Opened, Request


def open(request: Request) -> Opened:  # noqa: A001 - each reader has a function of this name
    """Load an exported program, whose batch size must be free."""
    try:
        program = torch.export.load(io.BytesIO(request.content))
    except Exception as error:  # a damaged file can fail anywhere in torch's loader
        said = f"{type(error).__name__}: {one_line(error)}"
        raise request.error(f"not a torch.export archive that this torch can load ({said})") from error
    outputs = program.graph_signature.user_outputs
    if len(outputs) != 1:
        raise request.error(f"returns {len(outputs)} values; one tensor of scores is expected")
    inputs, module = _inputs(request, program), _plain(program)
    feed = graph_feed(request, inputs)
    if feed is None:
        return open_module(request, "torch.export", module)
    return open_fed(request, "torch.export", module, feed)


def _plain(program: torch.export.ExportedProgram) -> nn.Module:
    """Return the program as a module of tensors: torch's own refuses eval(), and checks shapes by a part of its own."""
    module = program.module()
    graph = module.graph
    graph.set_codegen(fx.graph.CodeGen())
    for node in list(graph.nodes):
        if node.op == "call_module" and node.target == "_guards_fn":
            graph.erase_node(node)
        elif node.op == "output":
            node.args = (tree_leaves(node.args)[0],)
    return fx.GraphModule(module, graph)


def _inputs(request: Request, program: torch.export.ExportedProgram) -> list[NetworkInput]:
    """Return what the program takes: tensors with a row each."""
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    if not specs or not all(isinstance(spec.arg, TensorArgument) for spec in specs):
        raise request.error("expected tensors as its only inputs")
    return [_input(request, spec.arg.name, values[spec.arg.name]) for spec in specs]


def _input(request: Request, name: str, value: Any) -> NetworkInput:
    if isinstance(value.shape[0], int):
        raise request.error(
            f"was exported for batches of {value.shape[0]} rows only. Export it with a dynamic batch size: "
            "torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim('batch')},))"
        )
    return NetworkInput(name, "float" if value.is_floating_point() else "whole", tuple(int(n) for n in value.shape[1:]))
