"""Torch modules and .pt2 files; a layer in front makes the inputs of a module that takes several tensors."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind, TensorArgument
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from neuronfair.errors import ModelError, NeuronFairError, one_line
from neuronfair.limits import TooLargeError, check_size
from neuronfair.model.blackbox import as_scores
from neuronfair.model.encoding import ROWS_PER_PASS, TableEncoding
from neuronfair.model.network import ACTIVATIONS, eval_mode, with_functions_as_modules
from neuronfair.model.open.estimator_networks import NotLinear, PreprocessingLayer, make_linear_layer
from neuronfair.model.open.frames import declared_numbers
from neuronfair.model.open.opened import (
    TOLERANCE,
    ModelInputs,
    OpenedModel,
    OpenRequest,
    make_black_box,
    make_white_box,
    reproduces_scores,
)
from neuronfair.model.open.tensors import (
    NetworkInput,
    call_module,
    column_inputs,
    graph_inputs,
    list_arguments,
    preprocessed_tensors,
)
from neuronfair.model.weights import fingerprint, read_model

CHUNK_ROWS = 4096  # rows of one call while the layer is derived


class LookupMode(TorchFunctionMode):
    """Calls `on_lookup` with each tensor looked up by whole numbers of the rows; its result replaces the tensor.

    A tensor of the rows is plain until it is combined with a weight: a column that is cast to whole numbers is plain.
    """

    def __init__(self, inputs: Sequence[Tensor], on_lookup: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._see = on_lookup
        self._plain_by_id = {id(x): (x, True) for x in inputs}  # tensors are kept, so that no id is used again

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute as usual, then pass results of lookups to `on_lookup`."""
        result = func(*args, **(kwargs or {}))
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        known_tensors = [self._plain_by_id[id(x)] for x in read if id(x) in self._plain_by_id]
        if not known_tensors:
            return result
        is_plain_result = all(is_plain for _, is_plain in known_tensors)
        if is_plain_result and isinstance(result, Tensor) and result.is_floating_point():
            if not any(x.is_floating_point() for x, _ in known_tensors):
                result, is_plain_result = self._see(result), False
            else:
                is_plain_result = not any(x.is_floating_point() and id(x) not in self._plain_by_id for x in read)
        for x in tree_leaves(result):
            if isinstance(x, Tensor):
                self._plain_by_id[id(x)] = (x, is_plain_result)
        return result


@dataclass(frozen=True)
class EmbeddingSite:
    """An embedding lookup: the dimension of the rows in its result, and how many numbers it gives for a row."""

    dim: int
    width: int

    def of_rows(self, result: Tensor, rows: int) -> Tensor:
        """Return the numbers of each row: (n, width)."""
        return result.movedim(self.dim, 0).reshape(rows, self.width)

    def like(self, numbers: Tensor, result: Tensor) -> Tensor:
        """Return numbers of rows in the shape of the result."""
        return numbers.reshape(result.movedim(self.dim, 0).shape).movedim(0, self.dim)


class InputLayer(nn.Module):
    """A network with a layer in front that makes its inputs from the encoding of rows."""

    def __init__(
        self,
        inner: nn.Module,
        names: Sequence[str],
        inputs: Sequence[Tensor],
        sites: Sequence[EmbeddingSite],
        layer: PreprocessingLayer,
    ) -> None:
        super().__init__()
        self._names, self._sites = tuple(names), tuple(sites)
        self._kinds = [(tuple(x.shape[1:]), x.dtype) for x in inputs]
        self._widths = [math.prod(shape) for shape, _ in self._kinds]
        total = sum(self._widths)
        self.inner, self.inputs = inner, layer.part(0, total)
        self.looked_up = layer.part(total, layer.out_features) if sites else None

    def forward(self, x: Tensor) -> Any:
        """Return the output of the network for encoded rows."""
        parts = self.inputs(x).split(self._widths, 1)
        inputs = []
        for part, (shape, dtype) in zip(parts, self._kinds, strict=True):
            part = part if dtype.is_floating_point else part.detach().round().to(dtype)
            inputs.append(part.reshape(x.shape[0], *shape))
        if self.looked_up is None or not (torch.is_grad_enabled() and x.requires_grad):
            return call_module(self.inner, self._names, inputs)
        slopes = self.looked_up(x)
        slopes = slopes - slopes.detach()  # zero, but with a gradient
        site_slopes = zip(self._sites, slopes.split([site.width for site in self._sites], 1), strict=True)

        def on_lookup(result: Tensor) -> Tensor:
            site, slope = next(site_slopes)
            return result + site.like(slope, result).to(result.dtype)

        with LookupMode(inputs, on_lookup):
            return call_module(self.inner, self._names, inputs)


class SourceNetwork:
    """A module with the inputs that it takes itself, before an input layer makes them."""

    def __init__(self, inner: nn.Module, inputs: ModelInputs) -> None:
        self.inner, self.inputs = inner, inputs
        tensors = [*inner.parameters(), *inner.buffers()]
        self.dtype = next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
        self.device = next((t.device for t in tensors), torch.device("cpu"))

    def tensors(self, rows: Tensor) -> list[Tensor]:
        """Return the inputs of rows, on the device of the network."""
        return self._move_to_network(self.inputs.of_rows(rows))

    @property
    def scores(self) -> ModelInputs:
        """What computes the output of the network."""
        return self.inputs.then(lambda tensors: as_scores(self._run(self._move_to_network(tensors)).cpu()))

    def _move_to_network(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [x.to(self.device, self.dtype if x.is_floating_point() else x.dtype) for x in inputs]

    def sites(self, rows: Tensor) -> tuple[list[Tensor], list[EmbeddingSite]]:
        """Return the inputs of two rows, and the embedding lookups of the network."""
        (inputs, two), (_, three) = (self._record_lookups(rows[:count]) for count in (2, 3))
        if len(two) != len(three):
            raise NotLinear("it does other lookups for other numbers of rows")
        return inputs, [_find_site(a, b) for a, b in zip(two, three, strict=True)]

    def features(self, sites: Sequence[EmbeddingSite], rows: Tensor) -> np.ndarray:
        """Return the inputs and the results of lookups for each row: (n, features)."""
        lines = []
        for part in torch.split(rows, CHUNK_ROWS):
            inputs, results = self._record_lookups(part)
            if len(results) != len(sites):
                raise NotLinear("it does other lookups for other rows")
            looked_up = [site.of_rows(r, len(part)) for site, r in zip(sites, results, strict=True)]
            lines.append(torch.cat([x.reshape(len(part), -1).double() for x in (*inputs, *looked_up)], 1).cpu())
        return torch.cat(lines).numpy()

    def _record_lookups(self, rows: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        inputs, results = self.tensors(rows), list[Tensor]()

        def on_lookup(result: Tensor) -> Tensor:
            results.append(result.detach().clone())
            return result

        with LookupMode(inputs, on_lookup):
            self._run(inputs)
        return inputs, results

    def _run(self, inputs: Sequence[Tensor]) -> Tensor:
        with torch.no_grad(), eval_mode(self.inner.modules()):
            result = call_module(self.inner, self.inputs.names, [x.clone() for x in inputs])
        if not isinstance(result, Tensor):
            raise ModelError(f"the module must return one tensor of scores, got {type(result).__name__}")
        return result


def _find_site(two_rows: Tensor, three_rows: Tensor) -> EmbeddingSite:
    """Return the lookup, given its results for two and for three rows."""
    dims = [dim for dim, (a, b) in enumerate(zip(two_rows.shape, three_rows.shape, strict=False)) if a != b]
    grows = len(dims) == 1 and two_rows.shape[dims[0]] * 3 == three_rows.shape[dims[0]] * 2
    if two_rows.dim() != three_rows.dim() or not grows:
        raise NotLinear("it mixes rows in one dimension, so that their gradients cannot be separated")
    return EmbeddingSite(dims[0], two_rows.numel() // 2)


def with_input_layer(request: OpenRequest, network: SourceNetwork) -> tuple[TableEncoding, InputLayer]:
    """Return the encoding and the network behind an input layer; refuse inputs that no such layer can make."""
    in_domain = ((request.trial_rows >= 0) & (request.trial_rows < request.domain.to("cpu").sizes)).all(1)
    rows = request.trial_rows[in_domain]
    try:
        inputs, sites = network.sites(rows)
        if not sites and not any(x.is_floating_point() for x in inputs):
            raise NotLinear("its code cannot be traced from whole numbers to its layers")
        width = sum(x[0].numel() for x in inputs) + sum(site.width for site in sites)
        check_size(ROWS_PER_PASS * width, f"{request.source}, its inputs", times=4)
        encoding, layer = make_linear_layer(partial(network.features, sites), request.domain, torch.zeros_like(rows[0]))
        features = network.features(sites, rows)
    except (NotLinear, NeuronFairError):
        raise
    except Exception as error:  # the network's own code
        raise request.error(f"fails on rows of the domain ({type(error).__name__}: {one_line(error)})") from error
    if not np.isfinite(features).all():
        raise NotLinear("its inputs are NaN or infinite for some rows")
    encoded_features = layer(encoding.encode(rows, torch.float64)).detach().numpy()
    if (np.abs(encoded_features - features) > TOLERANCE * (1 + np.abs(features).max(0))).any():
        raise NotLinear("its inputs mix columns")
    inner = network.inner
    if not any(isinstance(part, ACTIVATIONS) for part in inner.modules()):
        try:
            inner = with_functions_as_modules(inner)
        except Exception:  # its forward() cannot be traced, so its layers stay unknown
            inner = network.inner
    layered = InputLayer(inner, network.inputs.names, inputs, sites, layer)
    layered.training = network.inner.training
    layered.inputs.unknown_program = network.inputs.program
    for part in filter(None, (layered.inputs, layered.looked_up)):  # the user's own parts are not changed
        part.to(network.device, network.dtype)
    return encoding, layered


def open_with_inputs(
    request: OpenRequest,
    kind: str,
    inner: nn.Module,
    inputs: ModelInputs,
    *,
    source: ModelInputs | None = None,
    remark: str = "",
) -> OpenedModel:
    """Return a network whose inputs are not the domain's encoding: a white box, or a black box with the reason.

    `source` computes scores with what the module was converted from, where there is one, to compare with.
    """
    network, digest = SourceNetwork(inner, inputs), fingerprint(inner)
    scores, note = source or network.scores, "; ".join(filter(None, (inputs.note, remark)))
    try:
        encoding, module = with_input_layer(request, network)
        result = make_white_box(request, kind, module, encoding=encoding, note=note)
        if not result.white_box:
            raise NotLinear("no hidden activation was found in it")
        if not all(reproduces_scores(request, result, target.of_rows) for target in (network.scores, scores)):
            raise NotLinear("its scores could not be reproduced in torch")
        of_frame = network.scores.of_frame
        return replace(result, fingerprint=digest, original=scores.of_rows, scores_of_frame=of_frame)
    except NotLinear as refusal:
        reason = "; ".join(filter(None, (str(refusal), note)))
    return make_black_box(request, kind, scores, reason, digest=digest)


def open_module(request: OpenRequest, kind: str, module: nn.Module) -> OpenedModel:
    """Return a torch module, with preprocessed inputs, the columns that its arguments name, or one tensor.

    One tensor holds the numbers that the domain declares; a module with embedding lookups gets an input layer.
    """
    if request.preprocess is not None:
        return open_with_inputs(request, kind, module, preprocessed_tensors(request))
    names = list_arguments(module)
    if len(names) > 1:
        return open_with_inputs(request, kind, module, column_inputs(request, names))
    network = SourceNetwork(module, declared_numbers(request))
    try:
        if not network.sites(request.random_rows)[1]:
            return make_white_box(request, kind, module)
        encoding, layered = with_input_layer(request, network)
    except TooLargeError:
        raise
    except Exception:  # it refuses these numbers, which white_box reports, or has no gradients by its lookups
        return make_white_box(request, kind, module)
    return replace(make_white_box(request, kind, layered, encoding=encoding), fingerprint=fingerprint(module))


def open_weights(request: OpenRequest) -> OpenedModel:
    """Read own weights; refuse those made for another domain or encoding."""
    fewer = request.without_sensitive(lambda others: TableEncoding(others).width)
    return make_white_box(request, "neuronfair", read_model(request.path, request.domain, fewer))


def open_exported(request: OpenRequest) -> OpenedModel:
    """Load a torch.export archive that the user trusts: torch's loader unpickles parts of it.

    Its batch size must be free. Without trust it is refused by its name (`model/formats.py`).
    """
    try:
        program = torch.export.load(io.BytesIO(request.content))
    except Exception as error:  # a damaged file can fail anywhere in torch's loader
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise request.error(f"not a torch.export archive that this torch can load ({reason})") from error
    outputs = program.graph_signature.user_outputs
    if len(outputs) != 1:
        raise request.error(f"returns {len(outputs)} values; one tensor of scores is expected")
    inputs, module = graph_inputs(request, _list_network_inputs(request, program)), _to_plain_module(program)
    if inputs is None:
        return open_module(request, "torch.export", module)
    return open_with_inputs(request, "torch.export", module, inputs)


def _to_plain_module(program: torch.export.ExportedProgram) -> nn.Module:
    """Return the program as a plain module: torch's own refuses eval(), and has a part that checks shapes."""
    module = program.module()
    graph = module.graph
    graph.set_codegen(fx.graph.CodeGen())
    for node in list(graph.nodes):
        if node.op == "call_module" and node.target == "_guards_fn":
            graph.erase_node(node)
        elif node.op == "output":
            node.args = (tree_leaves(node.args)[0],)
    return fx.GraphModule(module, graph).eval()


def _list_network_inputs(request: OpenRequest, program: torch.export.ExportedProgram) -> list[NetworkInput]:
    """Return the inputs of the program, all of them tensors."""
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    if not specs or not all(isinstance(spec.arg, TensorArgument) for spec in specs):
        raise request.error("expected tensors as its only inputs")
    inputs = []
    for name in (spec.arg.name for spec in specs):
        (count, *sizes), is_integer = values[name].shape, not values[name].is_floating_point()
        if isinstance(count, int):
            raise request.error(
                f"was exported for batches of {count} rows only. Export it with a dynamic batch size: "
                "torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim('batch')},))"
            )
        inputs.append(NetworkInput(name, "whole" if is_integer else "float", tuple(map(int, sizes))))
    return inputs
