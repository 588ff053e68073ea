"""The model under test: a torch module whose hidden layers can be read, differentiated and silenced by name."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules import activation
from torch.utils.hooks import RemovableHandle

from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError, NeuronFairError, did_you_mean, one_line
from neuronfair.model.encoding import Encoding, TableEncoding

# Softmax and its variants turn scores into probabilities; attention is read at its output.
_NOT_HIDDEN = {"Softmax", "LogSoftmax", "Softmin", "Softmax2d", "MultiheadAttention", "Threshold"}
ACTIVATIONS: tuple[type[nn.Module], ...] = tuple(
    getattr(activation, name) for name in activation.__all__ if name not in _NOT_HIDDEN
)
ATTENTION = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.MultiheadAttention)
_ACTIVATION_NAMES = {
    *("celu", "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid", "mish", "relu"),
    *("relu6", "rrelu", "selu", "sigmoid", "silu", "softplus", "softsign", "tanh"),
}
# F.relu, torch.relu and aten.relu (of exported programs) are different objects with the same meaning; the in-place
# forms end in an underscore. Each with its name.
_ACTIVATION_FUNCTIONS = {
    getattr(function, "default", function): name
    for name in _ACTIVATION_NAMES
    for home in (functional, torch, torch.ops.aten)
    for spelling in (name, f"{name}_")
    if (function := getattr(home, spelling, None)) is not None
}


OutputHook = Callable[[nn.Module, int, Tensor], Tensor | None]


@dataclass(frozen=True)
class Site:
    """Where a layer is read: at the given call (first, second, …) of a module, whose output has this shape per row."""

    module: nn.Module
    call: int
    shape: tuple[int, ...]


@contextmanager
def eval_mode(parts: Iterable[nn.Module]) -> Iterator[None]:
    """Put the given modules, and only these, in eval mode for a while; afterwards each is as it was."""
    # Flags are set one by one: Module.train() would also switch parts that the user keeps in the other mode.
    training = [part for part in parts if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


@contextmanager
def forward_hooks(modules: Iterable[nn.Module], on_output: OutputHook) -> Iterator[None]:
    """Call on_output(module, call, output) for every output of the modules; its result replaces the output.

    Of several outputs, such as attention and its weights, it gets the first.
    """
    call_counts: Counter[nn.Module] = Counter()
    handles: list[RemovableHandle] = []

    def hook(module: nn.Module, _: Any, output: Any) -> Any:
        call_counts[module] += 1
        output_tensor: Any = output[0] if isinstance(output, tuple) and output else output
        replacement = on_output(module, call_counts[module], output_tensor)
        return replacement if output_tensor is output or replacement is None else (replacement, *output[1:])

    try:
        handles.extend(module.register_forward_hook(hook) for module in modules)
        yield
    finally:
        for handle in handles:
            handle.remove()


def _run_example(
    runner: nn.Module, modules: Iterable[nn.Module], example: Tensor
) -> tuple[Tensor, list[tuple[nn.Module, int, Any]]]:
    """Run the example once; return the result and every output of the modules, in forward order."""
    record: list[tuple[nn.Module, int, Any]] = []

    def on_output(module: nn.Module, call: int, output: Any) -> None:
        record.append((module, call, output))

    with torch.no_grad(), eval_mode(runner.modules()), forward_hooks(modules, on_output):
        return runner(example.clone()), record


def _make_site(name: str, module: nn.Module, call: int, output: Any, rows: int) -> Site:
    if not isinstance(output, Tensor) or output.dim() < 2 or len(output) != rows:
        kind = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ModelError(f"layer '{name}' must give one tensor ({rows}, …) for {rows} rows, got {kind}")
    return Site(module, call, tuple(output.shape[1:]))


def find_named_sites(module: nn.Module, names: Sequence[str], example: Tensor) -> dict[str, Site]:
    """Return where the named modules are read; 'relu#2' is the second call of the module 'relu'."""
    modules = dict(module.named_modules(remove_duplicate=False))
    names_by_call: dict[tuple[nn.Module, int], str] = {}
    for name in names:
        path, _, call = name.partition("#")
        if path not in modules or not (call == "" or call.isdecimal()):
            raise ModelError(f"the module has no part '{name}'. {did_you_mean(path, filter(None, modules))}")
        names_by_call[modules[path], int(call or 1)] = name
    _, record = _run_example(module, {part for part, _ in names_by_call}, example)
    sites = {
        names_by_call[part, call]: _make_site(names_by_call[part, call], part, call, output, len(example))
        for part, call, output in record
        if (part, call) in names_by_call
    }
    if unreached := [name for name in names if name not in sites]:
        raise ModelError(f"the forward pass never reaches {', '.join(unreached)}; leave out these layers")
    return sites


def find_activation_sites(module: nn.Module, example: Tensor) -> dict[str, Site]:
    """Return where hidden activation modules and attention are read, in forward order; empty if there are none.

    The attention inside a transformer layer is a part of that layer, which may skip it in a faster implementation.
    """
    modules = dict(module.named_modules())
    names = {part: _name_layer(path, modules) for path, part in modules.items() if isinstance(part, ACTIVATIONS)}
    names |= {part: part.label for part in modules.values() if isinstance(part, _ActivationFunction)}
    attention_parts = {  # with the rows in their first dimension, not the tokens
        path: part
        for path, part in modules.items()
        if isinstance(part, ATTENTION) and getattr(getattr(part, "self_attn", part), "batch_first", False)
    }
    nested = {p for part in attention_parts.values() for p in part.modules() if p is not part}
    names |= {part: path or "attention" for path, part in attention_parts.items() if part not in nested}
    result, record = _run_example(module, names, example)
    sites: dict[str, Site] = {}
    call_counts: Counter[str] = Counter()
    for part, call, output in record:
        # A final sigmoid or tanh, perhaps reshaped, is the network's output and not a hidden layer.
        if output.data_ptr() == result.data_ptr() and output.numel() == result.numel():
            continue
        call_counts[names[part]] += 1
        count = call_counts[names[part]]
        name = names[part] if count == 1 else f"{names[part]}#{count}"
        sites[name] = _make_site(name, part, call, output, len(example))
    return sites


def _name_layer(path: str, modules: Mapping[str, nn.Module]) -> str:
    """Name an activation that ends a Sequential after the Sequential, whose output it is."""
    while "." in path:
        parent, _, child = path.rpartition(".")
        parent_module = modules[parent]
        if not isinstance(parent_module, nn.Sequential) or next(reversed(parent_module._modules)) != child:
            break
        path = parent
    return path


class _ActivationFunction(nn.Module):
    """An activation function as a module, so that its output can be hooked, with the name of the layer."""

    def __init__(self, call: Callable[..., Tensor], label: str) -> None:
        super().__init__()
        self.call, self.label = call, label

    def forward(self, *args: Any, **options: Any) -> Tensor:
        return self.call(*args, **options)


def trace_activations(module: nn.Module, example: Tensor) -> tuple[nn.Module, dict[str, Site]]:
    """Return a traced copy of the module, which shares its parts, and its layers; activation functions are modules."""
    remedy = "name the modules whose outputs are the layers: Network(module, domain, layers=[…])"
    try:
        traced_copy = with_functions_as_modules(module)
        sites = find_activation_sites(traced_copy, example)
        same_scores = torch.equal(_run_example(traced_copy, (), example)[0], _run_example(module, (), example)[0])
    except Exception as error:  # tracing runs the user's forward() on stand-ins for tensors
        raise ModelError(f"no activation module found, and forward() cannot be traced ({error}); {remedy}") from error
    if not sites or not same_scores:
        raise ModelError(f"no hidden activation found in the module; {remedy}")
    return traced_copy, sites


class _Tracer(fx.Tracer):
    """Notes a branch on a tensor: forward() may catch the error, and the trace then has one side only."""

    has_branched = False

    def to_bool(self, obj: fx.Proxy) -> bool:
        self.has_branched = True
        return super().to_bool(obj)


def with_functions_as_modules(module: nn.Module) -> nn.Module:
    """Return a traced copy that shares the module's parts and has a part for each activation function."""
    tracer = _Tracer()
    with eval_mode(module.modules()):
        copy = fx.GraphModule(module, tracer.trace(module))
    if tracer.has_branched:
        raise ModelError("forward() branches on a tensor")
    count = 0
    for node in list(copy.graph.nodes):
        if node.op == "call_function" and node.target in _ACTIVATION_FUNCTIONS:
            function, label = node.target, _ACTIVATION_FUNCTIONS[node.target]
        elif node.op == "call_method" and node.target.rstrip("_") in _ACTIVATION_NAMES:
            function, label = getattr(Tensor, node.target), node.target
        else:
            continue
        count += 1
        source, path = node.args[0] if node.args else node.kwargs["input"], f"activation_function_{count}"
        before = source.target if source.op == "call_module" else source.name
        copy.add_submodule(path, _ActivationFunction(function, f"{before}_{label.rstrip('_')}"))
        with copy.graph.inserting_after(node):
            node.replace_all_uses_with(copy.graph.call_module(path, node.args, node.kwargs))
        copy.graph.erase_node(node)
    copy.recompile()
    del type(copy).__call__  # torch's own prints a traceback where forward() fails
    return copy


_RESHAPING_FUNCTIONS = ("View", "Squeeze", "Select", "Alias", "Clone")  # in the names that autograd gives to functions


class _LayerReached(BaseException):
    """Ends a forward pass after the last wanted layer; no Exception, so that a model cannot catch it."""


class Network:
    """A torch module in eval mode on one device, whose hidden layers are known by name. It takes rows of codes.

    `encoding` says how the module reads rows; a domain means the encoding that it declares. A forward pass finds the
    layers in order: the outputs of attention and of activation modules or, without these, activation functions.
    `layers` overrides this with the names of any modules, whose outputs are then the layers. The module itself is never
    changed; if it is on another device than the encoding, a copy of it is moved.

    `rows_forward` counts the rows given to `scores` and `activations`, `rows_backward` those given to `gradient`.

    >>> from neuronfair.domain.tables.dataset import catalog_domain
    >>> from neuronfair.model.weights import fully_connected
    >>> network = Network(fully_connected(13, (8, 4)), catalog_domain("adult", "paper"))
    >>> network.neurons, network.outputs
    ({'layer1': 8, 'layer2': 4}, 2)
    """

    def __init__(
        self,
        module: nn.Module,
        encoding: Encoding | TableDomain,
        *,
        layers: Sequence[str] | None = None,
    ) -> None:
        self.encoding: Encoding = TableEncoding.of(encoding) if isinstance(encoding, TableDomain) else encoding
        # "cuda" becomes "cuda:0", as tensors report it.
        self.device = torch.empty(0, device=self.encoding.device).device
        on_device = all(t.device == self.device for t in (*module.parameters(), *module.buffers()))
        self.module = module if on_device else copy.deepcopy(module).to(self.device)
        float_dtypes = (p.dtype for p in module.parameters() if p.is_floating_point())
        self.dtype = next(float_dtypes, torch.float32)
        self.rows_forward = 0
        self.rows_backward = 0
        self.runner = self.module
        self._parts = tuple(self.module.modules())
        self._masks: dict[str, Tensor] = {}
        example = self.encoding.example
        self._row_shape = example.shape[1:]
        example = self._encode(example)
        with _module_errors(self.module, example):
            with torch.no_grad(), eval_mode(self._parts):
                self.outputs = int(_to_scores(self.module(example), example).shape[1])
            self._find_layers(layers)

    def _find_layers(self, names: Sequence[str] | None) -> None:
        example = self.encoding.example
        if names is not None:
            self.sites = find_named_sites(self.module, names, self._encode(example))
        else:
            self.sites = find_activation_sites(self.module, self._encode(example))
            if all(isinstance(site.module, ATTENTION) for site in self.sites.values()):
                # There are no activation modules, so find activation functions as well.
                try:
                    self.runner, self.sites = trace_activations(self.module, self._encode(example))
                except ModelError:  # one that cannot be traced must have attention
                    if not self.sites:
                        raise
                self._parts = tuple(self.runner.modules())
        self.layers = tuple(self.sites)
        shapes = {name: torch.empty((1, *site.shape), device="meta") for name, site in self.sites.items()}
        self.neurons = {name: self.flat(output).shape[1] for name, output in shapes.items()}

    def flat(self, output: Tensor) -> Tensor:
        """Return the activations of a layer as one number for each neuron: (n, neurons)."""
        return output.flatten(1)

    def spread(self, neurons: Tensor, shape: Sequence[int]) -> Tensor:
        """Return what belongs to each neuron, (neurons,) or (n, neurons), in the shape of a layer's output."""
        return neurons.view(*neurons.shape[:-1], *shape)

    def double(self) -> Network:
        """Return a copy of this network that computes in float64."""
        try:
            return Network(copy.deepcopy(self.module).double(), self.encoding, layers=())
        except Exception as error:  # the module's own code
            raise ModelError(
                f"no copy of the module computes in float64, in which findings are checked: {one_line(error)}. Tensors "
                "that it makes must be of its input's type"
            ) from error

    def with_encoding(self, encoding: Encoding) -> Network:
        """Return the same network with another encoding of rows."""
        network = copy.copy(self)
        network.encoding = encoding
        return network

    def scores(self, rows: Tensor) -> Tensor:
        """Return the scores of rows: (n, outputs), without a gradient."""
        return self.scores_of_inputs(self._encode(rows))

    def scores_of_inputs(self, inputs: Tensor | np.ndarray) -> Tensor:
        """Return the scores of encoded rows, (n, *shape)."""
        x = torch.as_tensor(inputs, dtype=self.dtype, device=self.device)
        with torch.no_grad():
            result, _ = self._forward(x, ())
        self.rows_forward += len(x)
        return self._check_scores(result, x)

    def activations(self, rows: Tensor, layers: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Return the activations of the named layers (all by default), each flattened to (n, neurons)."""
        layers_read = self.layers if layers is None else tuple(layers)
        if not layers_read:
            return {}
        x = self._encode(rows)
        with torch.no_grad():
            _, activations = self._forward(x, layers_read)
        self.rows_forward += len(x)
        return {name: activations[name] for name in layers_read}

    def gradient(
        self,
        rows: Tensor,
        objective: Callable[[Tensor], Tensor],
        *,
        layer: str | None = None,
        through: tuple[str, Tensor] | None = None,
    ) -> Tensor:
        """Return the gradient of an objective with respect to the network input of rows: (n, *shape).

        `objective` takes the layer's activations (n, neurons), or the scores when no layer is named, and returns a
        number, or one number per row (their sum is differentiated: rows do not influence each other). `through` names
        a layer and the neurons of each row, bool (n, neurons), that let gradients pass; all others count as constants.
        """
        inputs = self._encode(rows).detach().requires_grad_()
        with torch.enable_grad():
            # A copy: a module may write into its input, but not into a leaf.
            with self._limit_gradient(through):
                result, activations = self._forward(inputs.clone(), () if layer is None else (layer,))
            value = objective(self._check_scores(result, inputs) if layer is None else activations[layer])
            if value.shape not in ((), (len(inputs),)):
                raise ModelError(
                    f"an objective returns one number, or one per row ({len(inputs)},); got {tuple(value.shape)}"
                )
            if not value.requires_grad:
                raise ModelError("the objective has no gradient: it detaches or does not use its argument")
            total = value.sum() if value.dim() else value
            with _module_errors(self.module, inputs):
                (gradient,) = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
        self.rows_backward += len(inputs)
        return gradient

    @contextmanager
    def _limit_gradient(self, through: tuple[str, Tensor] | None) -> Iterator[None]:
        """Let gradients pass through some neurons of a layer only."""
        if through is None:
            yield
            return
        name, neuron_mask = through
        self._check_layers([name])
        site = self.sites[name]

        def on_output(module: nn.Module, call: int, output: Tensor) -> Tensor | None:
            if (module, call) != (site.module, site.call):
                return None
            if output.requires_grad:  # in the backward pass alone, which is four times as fast as a choice among values
                output.register_hook(  # type: ignore[no-untyped-call]
                    lambda gradient: torch.where(self.spread(neuron_mask, gradient.shape[1:]), gradient, 0.0)
                )
            return None

        with forward_hooks({site.module}, on_output):
            yield

    def ends_in(self, *words: str) -> bool:
        """Return whether the last operations have these words in autograd's names, the very last one first.

        Operations that only reshape do not count.
        """
        with torch.enable_grad():
            result, _ = self._forward(self._encode(self.encoding.example).requires_grad_().clone(), ())
        function: Any = result.grad_fn
        for word in words:
            while function is not None and any(reshaped in function.name() for reshaped in _RESHAPING_FUNCTIONS):
                function = function.next_functions[0][0]
            if function is None or word not in function.name():
                return False
            function = next((before for before, _ in function.next_functions), None)
        return True

    @contextmanager
    def ablated(self, layer: str, neurons: Sequence[int] | Tensor) -> Iterator[Network]:
        """Silence neurons: within this context their activations are 0 in every call. Contexts may be nested.

        >>> from neuronfair.domain.tables.dataset import catalog_domain
        >>> domain = catalog_domain("adult", "paper")
        >>> network = Network(nn.Sequential(nn.Linear(13, 4), nn.Sigmoid(), nn.Linear(4, 2)), domain)
        >>> with network.ablated("1", [0, 2]):
        ...     (network.activations(torch.ones(1, 13))["1"] == 0).tolist()
        [[True, False, True, False]]
        """
        self._check_layers([layer])
        size = self.neurons[layer]
        chosen = torch.as_tensor(neurons, dtype=torch.long, device=self.device).flatten()
        if chosen.numel() and not 0 <= int(chosen.min()) <= int(chosen.max()) < size:
            raise ModelError(f"layer '{layer}' has neurons 0 to {size - 1}, got {chosen.tolist()}")
        mask = torch.zeros(size, dtype=torch.bool, device=self.device)
        mask[chosen] = True
        mask = self.spread(mask, self.sites[layer].shape)
        outer = self._masks
        self._masks = {**outer, layer: mask | outer[layer] if layer in outer else mask}
        try:
            yield self
        finally:
            self._masks = outer

    def _encode(self, rows: Tensor) -> Tensor:
        if rows.shape[1:] != self._row_shape or rows.dim() == 0:
            expected = ", ".join(map(str, self._row_shape))
            raise ModelError(f"expected a batch of rows of shape (n, {expected}), got {tuple(rows.shape)}")
        return self.encoding.encode(rows, self.dtype)

    def _check_layers(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.sites:
                raise ModelError(f"the network has no layer '{name}'. {did_you_mean(name, self.sites)}")

    def _check_scores(self, result: Tensor, x: Tensor) -> Tensor:
        scores = _to_scores(result, x)
        if scores.shape[1] != self.outputs:
            raise ModelError(f"the module gave {self.outputs} scores a row at first and {scores.shape[1]} now")
        return scores

    def _forward(self, x: Tensor, layers: Sequence[str]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the output and the wanted layers' activations; with wanted layers, stop at the last of them."""
        if not layers and not self._masks:
            with _module_errors(self.module, x), eval_mode(self._parts):
                return self.runner(x), {}
        self._check_layers(layers)
        masks, remaining, activations = self._masks, set(layers), dict[str, Tensor]()
        sites = {name: self.sites[name] for name in (*masks, *layers)}
        names = {(site.module, site.call): name for name, site in sites.items()}

        def on_output(module: nn.Module, call: int, output: Tensor) -> Tensor | None:
            name = names.get((module, call))
            if name is None:
                return None
            if output.shape != (len(x), *sites[name].shape):
                expected = ", ".join(map(str, (len(x), *sites[name].shape)))
                raise ModelError(f"layer '{name}' must give ({expected}) for these rows, got {tuple(output.shape)}")
            if name in masks:
                output = output.masked_fill(masks[name], 0.0)
            if name in remaining:
                remaining.discard(name)
                # A copy, since a later in-place operation may overwrite the output; none follows the last layer.
                activations[name] = self.flat(output).clone() if remaining else self.flat(output)
                if not remaining:
                    raise _LayerReached
            return output

        try:
            hooks = forward_hooks({module for module, _ in names}, on_output)
            with _module_errors(self.module, x), eval_mode(self._parts), hooks:
                result = self.runner(x)
        except _LayerReached:
            return x, activations
        if remaining:
            raise ModelError(f"the forward pass did not reach {', '.join(sorted(remaining))} for these rows")
        return result, activations


def _to_scores(result: Tensor, x: Tensor) -> Tensor:
    if not isinstance(result, Tensor) or not result.is_floating_point():
        kind = result.dtype if isinstance(result, Tensor) else type(result).__name__
        raise ModelError(f"the module must return one tensor of floating-point scores, got {kind}")
    if result.device != x.device:
        raise ModelError(f"the module was given rows on {x.device} and must return scores there, got {result.device}")
    if result.dim() == 1:
        result = result.unsqueeze(1)
    if result.dim() != 2 or len(result) != len(x):
        raise ModelError(f"the module must return scores ({len(x)}, outputs), got {tuple(result.shape)}")
    return result.float() if result.element_size() < 4 else result  # numpy knows no bfloat16


@contextmanager
def _module_errors(module: nn.Module, x: Tensor) -> Iterator[None]:
    """Turn any error of the module's own code into a ModelError with the shape of the rows."""
    try:
        yield
    except NeuronFairError:
        raise
    except Exception as error:
        first = next((part for part in module.modules() if isinstance(part, nn.Linear)), None)
        misfit = f" (its first linear layer expects width {first.in_features})" if first is not None else ""
        hint = misfit if first is not None and first.in_features != x.shape[-1] else ""
        raise ModelError(f"the module failed on rows of shape {tuple(x.shape)}{hint}: {one_line(error)}") from error
