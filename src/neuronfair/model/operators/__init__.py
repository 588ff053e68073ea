"""Reads a network as a chain of matrices and activation functions, which a proof can bound.

Between one activation and the next an ordinary network is an affine map. Maps and activations are read from the graph
of its operators (`reader`), never from samples: a sample misses what bends, jumps or branches for few rows. A module
with an unknown operator is refused by its name.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from neuronfair.errors import ModelError, NeuronFairError, one_line
from neuronfair.model.network import Network, eval_mode
from neuronfair.model.operators.chain import Affine, Chain, Curve
from neuronfair.model.operators.purity import check_parts, check_pure
from neuronfair.model.operators.reader import MAX_WIDTH, Reader

__all__ = ["Affine", "Chain", "Curve", "read_chain"]

_CODE_ATTRIBUTES = ("forward", "_forward_hooks", "_forward_pre_hooks", "_compiled_call_impl")  # attributes of a module
SCORE_TOLERANCE = 1e-6  # relative to the largest score, of the chain's scores to the network's own


def read_chain(network: Network, rows: Tensor) -> Chain:
    """Return a network as a chain of float64 matrices; refuse any other network with the reason.

    The weights are those of the module, each as it is, in float64. On the rows the chain must give the network's own
    scores.

    >>> from neuronfair.domain.tables.dataset import catalog_domain
    >>> from neuronfair.model.weights import fully_connected
    >>> domain = catalog_domain("adult", "paper")
    >>> chain = read_chain(Network(fully_connected(13, (8, 4)), domain), domain.sample(9, torch.Generator()))
    >>> [tuple(affine.weight.shape) for affine in chain.affines], chain.curves[0].name, chain.end
    ([(8, 13), (4, 8), (2, 4)], 'relu', 'none')
    """
    if len(network.encoding.shape) != 1:
        raise ModelError("the network takes pictures, not a list of numbers")
    (width,) = network.encoding.shape
    if width > MAX_WIDTH:
        raise ModelError(f"one of its layers takes more than {MAX_WIDTH:,} numbers")
    module, device = network.module, network.device
    check_parts(module)
    chain = _read_plain_layers(module)
    if chain is None:
        check_pure(module, width, network.dtype, device)
        with torch.no_grad(), eval_mode(module.modules()), _silence_torch():
            chain = _read_graph(module, torch.zeros(3, width, dtype=network.dtype, device=device))
    chain = chain.to(device)
    scores = network.double().scores(rows)
    ours = chain.scores(network.encoding.encode(rows, torch.float64))
    near = SCORE_TOLERANCE * scores.abs().amax().clamp(min=1e-3)
    if ours.shape != scores.shape or not torch.allclose(ours, scores.double(), rtol=SCORE_TOLERANCE, atol=float(near)):
        raise ModelError("the operators of its graph give other scores than it does")
    return chain


class _WrappedModule(nn.Module):
    """A module called as a whole, with its hooks, on one tensor of rows."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, rows: Tensor) -> Tensor:
        result: Tensor = self.module(rows)
        return result


def _read_plain_layers(module: nn.Module) -> Chain | None:
    """Return what torch's own linear layers and ReLUs in turn compute, without a graph; None for any other module.

    The graph would say the same, but torch takes seconds to import what makes it.
    """
    layers = _list_plain_layers(module)
    if layers is None or len(layers) % 2 == 0:
        return None
    linear, activations = layers[::2], layers[1::2]
    if {type(layer) for layer in linear} != {nn.Linear} or not {type(layer) for layer in activations} <= {nn.ReLU}:
        return None
    affines = tuple(_read_affine(cast(nn.Linear, layer)) for layer in linear)
    parts = [part for affine in affines for part in (affine.weight, affine.bias)]
    if not all(bool(part.isfinite().all()) and max(part.shape) <= MAX_WIDTH for part in parts):
        return None  # which the graph refuses with the reason
    sizes = tuple(Affine(affine.weight.abs(), affine.bias.abs()) for affine in affines)
    return Chain(affines, sizes, (Curve("relu"),) * len(activations), "none")


def _read_affine(layer: nn.Linear) -> Affine:
    weight = layer.weight.detach().cpu().double()
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach().cpu().double()
    return Affine(weight, bias)


def _list_plain_layers(module: nn.Module) -> list[nn.Module] | None:
    """Return the layers of torch's own that run one after the other; None where a hook or other code may run."""
    hooked = _has_any_global_hook()  # type: ignore[no-untyped-call]
    if hooked or any(vars(module).get(name) for name in _CODE_ATTRIBUTES):
        return None
    if type(module) is not nn.Sequential:
        return [module]
    parts = [_list_plain_layers(part) for part in module]
    return None if None in parts else [layer for part in parts if part is not None for layer in part]


def _read_graph(module: nn.Module, example: Tensor) -> Chain:
    """Return what the graph of a module's operators computes, for any number of rows."""
    count = torch.export.Dim("rows")
    try:
        wrapped = _WrappedModule(module)
        wrapped.training = False
        program = torch.export.export(wrapped, (example,), dynamic_shapes=({0: count},), strict=False)
        schemas = (getattr(node.target, "_schema", None) for node in program.graph.nodes)
        if any(schema is not None and schema.is_mutable for schema in schemas):
            program = program.run_decompositions({})  # the same without operators that write into tensors
    except NeuronFairError:
        raise
    except Exception as error:  # the module's own code, on stand-ins for tensors
        raise ModelError(
            "its operators cannot be read: forward() must compute with tensors alone, in the same way for every row "
            f"and any number of rows (x.shape[0], not len(x)): {one_line(error)}"
        ) from error
    signature = program.graph_signature
    if signature.buffers_to_mutate:
        raise ModelError(f"forward() changes the buffer '{next(iter(signature.buffers_to_mutate.values()))}'")
    tensors = {**program.state_dict, **program.constants}
    values = {spec.arg.name: tensors[spec.target] for spec in signature.input_specs if spec.target is not None}
    (result,) = signature.user_outputs
    return Reader(program.graph, values, str(result), example.dtype).read()


@contextmanager
def _silence_torch() -> Iterator[None]:
    """Silence torch's warnings about the export, which is internal."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
