"""torch.export archives for tests: written by torch, and then changed by hand."""

from __future__ import annotations

import json
import warnings
import zipfile

import torch
from torch import nn


def export(module: nn.Module, path, x, *, dynamic: bool = True, decomposed: bool = False, functional: bool = False):
    shapes = ({0: torch.export.Dim("batch")},) if dynamic else None
    program = torch.export.export(module, (x[:3],), dynamic_shapes=shapes)
    if decomposed or functional:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its own future
            program = program.run_decompositions(None if decomposed else {})
    torch.export.save(program, path)
    return path


def rewritten(path, change):
    """Put what change(name, content) returns in the place of every member of an archive; None leaves it out."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            new = change(name, content)
            if new is not None:
                archive.writestr(name, new)
    return path


def edited(path, old: str, new: str, member: str = "models/model.json"):
    def change(name, content):
        if not name.endswith(member):
            return content
        assert old.encode() in content
        return content.replace(old.encode(), new.encode())

    return rewritten(path, change)


def with_json(path, change, member: str = "models/model.json"):
    """Let change(value) alter what a member of an archive says."""

    def changed(name, content):
        if not name.endswith(member):
            return content
        value = json.loads(content)
        change(value)
        return json.dumps(value)

    return rewritten(path, changed)


def with_nodes(path, nodes, result: str | None = None):
    """Put nodes at the front of an archive's graph, or at its end if they make its result."""

    def change(program):
        graph = program["graph_module"]["graph"]
        graph["nodes"][len(graph["nodes"]) if result else 0 : 0] = nodes
        if result:
            program["graph_module"]["signature"]["output_specs"][0]["user_output"]["arg"] = {
                "as_tensor": {"name": result}
            }

    return with_json(path, change)


def ref(name: str) -> dict:
    return {"as_tensor": {"name": name}}


def node(target: str, arguments, *outputs: str, **options) -> dict:
    """Return a node as archives write it; arguments are of the kinds that archives know, or plain values."""
    kinds = {str: "as_string", bool: "as_bool", int: "as_int", float: "as_float", list: "as_ints"}
    inputs = [
        {"name": name or "self", "arg": value if isinstance(value, dict) else {kinds[type(value)]: value}, "kind": kind}
        for kind, given in ((1, [("", a) for a in arguments]), (2, options.items()))
        for name, value in given
    ]
    return {
        "target": target,
        "inputs": inputs,
        "outputs": [ref(name) for name in outputs],
        "metadata": {},
        "name": (outputs or ("check",))[0],
    }
