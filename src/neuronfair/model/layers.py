"""Finds the hidden layers of a torch module, and reads them during a forward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules import activation
from torch.utils.hooks import RemovableHandle

from neuronfair.errors import ModelError, did_you_mean

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
    getattr(found, "default", found): name
    for name in _ACTIVATION_NAMES
    for home in (functional, torch, torch.ops.aten)
    for spelling in (name, f"{name}_")
    if (found := getattr(home, spelling, None)) is not None
}


@dataclass(frozen=True)
class Site:
    """Where a layer is read: at the given call (first, second, …) of a module, whose output has this shape per row."""

    module: nn.Module
    call: int
    shape: tuple[int, ...]


@contextmanager
def evaluating(parts: Iterable[nn.Module]) -> Iterator[None]:
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
def hooked(modules: Iterable[nn.Module], look: Callable[[nn.Module, int, Tensor], Tensor | None]) -> Iterator[None]:
    """Call look(module, call, output) for every output of the modules; its result replaces the output.

    Of several outputs, such as attention and its weights, it gets the first.
    """
    calls: Counter[nn.Module] = Counter()
    handles: list[RemovableHandle] = []

    def hook(module: nn.Module, _: Any, output: Any) -> Any:
        calls[module] += 1
        first: Any = output[0] if isinstance(output, tuple) and output else output
        other = look(module, calls[module], first)
        return other if first is output or other is None else (other, *output[1:])

    try:
        handles.extend(module.register_forward_hook(hook) for module in modules)
        yield
    finally:
        for handle in handles:
            handle.remove()


def _trial(
    runner: nn.Module, modules: Iterable[nn.Module], example: Tensor
) -> tuple[Tensor, list[tuple[nn.Module, int, Any]]]:
    """Run the example once; return the result and every output of the modules, in forward order."""
    record: list[tuple[nn.Module, int, Any]] = []

    def look(module: nn.Module, call: int, output: Any) -> None:
        record.append((module, call, output))

    with torch.no_grad(), evaluating(runner.modules()), hooked(modules, look):
        return runner(example.clone()), record


def _site(name: str, module: nn.Module, call: int, output: Any, rows: int) -> Site:
    if not isinstance(output, Tensor) or output.dim() < 2 or len(output) != rows:
        kind = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ModelError(f"layer '{name}' must give one tensor ({rows}, …) for {rows} rows, got {kind}")
    return Site(module, call, tuple(output.shape[1:]))


def named_sites(module: nn.Module, names: Sequence[str], example: Tensor) -> dict[str, Site]:
    """Return where the named modules are read; 'relu#2' is the second call of the module 'relu'."""
    modules = dict(module.named_modules(remove_duplicate=False))
    wanted: dict[tuple[nn.Module, int], str] = {}
    for name in names:
        path, _, call = name.partition("#")
        if path not in modules or not (call == "" or call.isdecimal()):
            raise ModelError(f"the module has no part '{name}'. {did_you_mean(path, filter(None, modules))}")
        wanted[modules[path], int(call or 1)] = name
    _, record = _trial(module, {part for part, _ in wanted}, example)
    found = {
        wanted[part, call]: _site(wanted[part, call], part, call, output, len(example))
        for part, call, output in record
        if (part, call) in wanted
    }
    if lost := [name for name in names if name not in found]:
        raise ModelError(f"the forward pass never reaches {', '.join(lost)}; leave out these layers")
    return found


def activation_sites(module: nn.Module, example: Tensor) -> dict[str, Site]:
    """Return where hidden activation modules and attention are read, in forward order; empty if there are none.

    The attention inside a transformer layer is a part of that layer, which may skip it in a faster implementation.
    """
    modules = dict(module.named_modules())
    names = {part: _climb(path, modules) for path, part in modules.items() if isinstance(part, ACTIVATIONS)}
    names |= {part: part.label for part in modules.values() if isinstance(part, _Function)}
    blocks = {path: part for path, part in modules.items() if isinstance(part, ATTENTION) and _rows_first(part)}
    inner = {p for part in blocks.values() for p in part.modules() if p is not part}
    names |= {part: path or "attention" for path, part in blocks.items() if part not in inner}
    return _hidden_sites(module, names, example)


def has_activations(sites: Mapping[str, Site]) -> bool:
    """Return whether activations are among the layers, and not only attention."""
    return any(not isinstance(site.module, ATTENTION) for site in sites.values())


def _rows_first(block: nn.Module) -> bool:
    """Return whether an attention layer has the rows in its first dimension, not the tokens."""
    attention = getattr(block, "self_attn", block)
    return bool(getattr(attention, "batch_first", False))


def _climb(path: str, modules: Mapping[str, nn.Module]) -> str:
    """Name an activation that ends a Sequential after the Sequential, whose output it is."""
    while "." in path:
        parent, _, child = path.rpartition(".")
        box = modules[parent]
        if not isinstance(box, nn.Sequential) or next(reversed(box._modules)) != child:
            break
        path = parent
    return path


def _hidden_sites(runner: nn.Module, names: Mapping[nn.Module, str], example: Tensor) -> dict[str, Site]:
    result, record = _trial(runner, names, example)
    sites: dict[str, Site] = {}
    used: Counter[str] = Counter()
    for part, call, output in record:
        # A final sigmoid or tanh, perhaps reshaped, is the network's output and not a hidden layer.
        if output.data_ptr() == result.data_ptr() and output.numel() == result.numel():
            continue
        used[names[part]] += 1
        count = used[names[part]]
        name = names[part] if count == 1 else f"{names[part]}#{count}"
        sites[name] = _site(name, part, call, output, len(example))
    return sites


class _Function(nn.Module):
    """An activation function as a module, so that its output can be hooked, with the name of the layer."""

    def __init__(self, call: Callable[..., Tensor], label: str) -> None:
        super().__init__()
        self.call, self.label = call, label

    def forward(self, *args: Any, **options: Any) -> Tensor:
        return self.call(*args, **options)


def traced(module: nn.Module, example: Tensor) -> tuple[nn.Module, dict[str, Site]]:
    """Return a traced copy of the module, which shares its parts, and its layers; activation functions are modules."""
    advice = "name the modules whose outputs are the layers: Network(module, domain, layers=[…])"
    try:
        copy = with_functions_as_modules(module)
        sites = activation_sites(copy, example)
        same = torch.equal(_trial(copy, (), example)[0], _trial(module, (), example)[0])
    except Exception as error:  # tracing runs the user's forward() on stand-ins for tensors
        raise ModelError(f"no activation module found, and forward() cannot be traced ({error}); {advice}") from error
    if not sites or not same:
        raise ModelError(f"no hidden activation found in the module; {advice}")
    return copy, sites


def with_functions_as_modules(module: nn.Module) -> nn.Module:
    """Return a traced copy that shares the module's parts and has a part for each activation function."""
    with evaluating(module.modules()):
        copy = fx.GraphModule(module, fx.Tracer().trace(module))
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
        copy.add_submodule(path, _Function(function, f"{before}_{label.rstrip('_')}"))
        with copy.graph.inserting_after(node):
            node.replace_all_uses_with(copy.graph.call_module(path, node.args, node.kwargs))
        copy.graph.erase_node(node)
    copy.recompile()
    del type(copy).__call__  # torch's own prints a traceback where forward() fails
    return copy
