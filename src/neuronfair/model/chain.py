"""A network as a chain of matrices: what a page can compute by itself, and what a proof can bound.

Between one activation and the next an ordinary network is an affine map, whatever its modules are called. The map is
found by asking: the activations of a layer are replaced by zeros, then by one unit at a time, and what reaches the next
layer is read. Which activation it is, is seen from what goes in and comes out. What is no chain is refused.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from neuronfair.errors import ModelError, one_line
from neuronfair.model.layers import Site, evaluating
from neuronfair.model.network import Network

TRIED = 16  # random inputs on which each part must be affine
TOLERANCE = 1e-9  # of the numbers that meet there
MOST = 1 << 24  # numbers of all matrices
WIDEST = 10_000  # numbers that a layer takes: as many inputs of as many numbers are tried at once
FAR = 2.0**60  # so far from 0 that a bias, which is added and taken away again, takes nothing of a weight with it
EPS = torch.finfo(torch.float64).eps

End = Literal["none", "softmax", "sigmoid"]
_ENDS: dict[type[nn.Module], End] = {nn.Softmax: "softmax", nn.Sigmoid: "sigmoid"}
CURVES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "elu": functional.elu,
    "softplus": functional.softplus,
}


@dataclass(frozen=True)
class Affine:
    """weight @ x + bias, in float64."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return the images of rows."""
        return x @ self.weight.T + self.bias


@dataclass(frozen=True)
class Curve:
    """An activation function by its name; a leaky ReLU by its slope below 0."""

    name: str
    leak: float = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        """Return the function of numbers."""
        return functional.leaky_relu(x, self.leak) if self.name == "leaky_relu" else CURVES[self.name](x)


@dataclass(frozen=True)
class Chain:
    """Affine maps with a curve after each but the last, and what makes scores of the last one's numbers."""

    affines: tuple[Affine, ...]
    curves: tuple[Curve, ...]
    end: End

    def scores(self, x: Tensor) -> Tensor:
        """Return the scores of encoded rows, as the network gives them."""
        for affine, curve in zip(self.affines, self.curves, strict=False):
            x = curve(affine(x))
        x = self.affines[-1](x)
        return {"none": x, "softmax": x.softmax(-1), "sigmoid": x.sigmoid()}[self.end]


def chain_of(network: Network, rows: Tensor) -> Chain:
    """Return a network as a chain of float64 matrices; one that is none, or not on these rows, is refused.

    >>> from neuronfair.domain.data import catalog_domain
    >>> from neuronfair.model.zoo import fully_connected
    >>> domain = catalog_domain("adult", "paper")
    >>> chain = chain_of(Network(fully_connected(13, (8, 4)), domain), domain.sample(9, torch.Generator()))
    >>> [tuple(affine.weight.shape) for affine in chain.affines], chain.curves[0].name, chain.end
    ([(8, 13), (4, 8), (2, 4)], 'relu', 'none')
    """
    if len(network.encoding.shape) != 1:
        raise ModelError("the network takes pictures, not a list of numbers")
    layers = network.layers or ()
    exact = Network(copy.deepcopy(network.module).double(), network.encoding, layers=None if layers else ())
    sites = [*exact.sites.values()]
    widths = [network.encoding.shape[0], *(math.prod(site.shape) for site in sites), network.outputs]
    if max(widths) > WIDEST:
        raise ModelError(f"one of its layers takes more than {WIDEST:,} numbers")
    if sum(a * b for a, b in pairwise(widths)) > MOST:
        raise ModelError(f"its matrices have more than {MOST:,} numbers")
    try:
        return _asked(exact, sites, widths, network.encoding.encode(rows, torch.float64))
    except (RuntimeError, IndexError, ValueError) as error:  # its own code
        raise ModelError(f"it does not take numbers that no row gives ({one_line(error)})") from error


def _asked(exact: Network, sites: Sequence[Site], widths: Sequence[int], rows: Tensor) -> Chain:
    asked = _Asked(exact, sites)
    affines = tuple(asked.affine(number, widths[number]) for number in range(len(sites) + 1))
    curves = tuple(asked.curve(number) for number in range(len(sites)))
    chain = Chain(affines, curves, asked.end)
    x = torch.cat([asked.noise(4 * TRIED, widths[0]), rows])
    scores = asked.run(x, None, x)[1]
    near = 1e-6 * scores.abs().amax().clamp(min=1e-3)
    if not torch.allclose(chain.scores(x), scores, rtol=1e-6, atol=float(near)):
        raise ModelError("it is not a chain of layers")
    return chain


class _Asked:
    """A network that is asked what its parts do."""

    def __init__(self, network: Network, sites: Sequence[Site]) -> None:
        self._network, self._sites = network, sites
        self._generator = torch.Generator().manual_seed(0)
        self._last: nn.Module | None = None
        hidden = {site.module for site in sites}
        ends = [part for part in network.runner.modules() if type(part) in _ENDS and part not in hidden]
        self._last = next((part for part in ends if self._is_last(part)), None)
        self.end: End = "none" if self._last is None else _ENDS[type(self._last)]

    def _is_last(self, part: nn.Module) -> bool:
        """Return whether what a module computes, when it is called last, is what the network gives."""
        seen: list[Tensor] = []
        handle = part.register_forward_hook(lambda _, __, output: seen.append(output))
        try:
            x = self.noise(2, self._network.encoding.shape[0])
            result = self.run(x, None, x)[1]
        finally:
            handle.remove()
        return bool(seen) and torch.equal(seen[-1].reshape(-1), result.reshape(-1))

    def noise(self, rows: int, width: int) -> Tensor:
        x = torch.randn(rows, width, dtype=torch.float64, generator=self._generator)
        return x.to(self._network.device)

    def affine(self, number: int, width: int) -> Affine:
        """Return the map from the activations of a layer (0: the input) to what the next one is given."""
        zero = torch.zeros(1, width, dtype=torch.float64, device=self._network.device)
        units = torch.eye(width, dtype=torch.float64, device=self._network.device)
        bias = self._ask(number, zero)[0]
        weight = self._added(number, units, bias)
        with suppress(RuntimeError, IndexError, ValueError):  # it need not take such numbers
            exact = self._added(number, FAR * units, bias) / FAR
            if bool(((exact - weight).abs() <= 8 * EPS * (weight.abs() + bias.abs()[:, None])).all()):
                weight = exact
            elif (
                number
            ):  # a layer's own numbers may be as large as they like: it bends somewhere, if only for few people
                raise self._bent(number)
        affine = Affine(weight, bias)
        x = self.noise(TRIED, width)
        image = affine(x)
        near = TOLERANCE * (x.abs() @ affine.weight.abs().T + bias.abs() + 1)
        if not bool(((self._ask(number, x) - image).abs() <= near).all()):
            raise self._bent(number)
        return affine

    def _bent(self, number: int) -> ModelError:
        before = "the input" if number == 0 else f"layer {number}"
        return ModelError(f"what follows {before} is not an affine map of it alone")

    def _added(self, number: int, activations: Tensor, bias: Tensor) -> Tensor:
        """Return what each of some activations adds to what the next layer is given: (neurons, activations)."""
        return torch.cat([self._ask(number, part) for part in torch.split(activations, 512)]).T - bias[:, None]

    def curve(self, number: int) -> Curve:
        """Return the activation function of a layer."""
        site = self._sites[number]
        x = torch.cat(
            [torch.linspace(-9, 9, 145, dtype=torch.float64), torch.tensor([-1e12, -300.0, -30.0, 30.0, 300.0, 1e12])]
        )
        x = x.to(self._network.device, torch.float64)
        x = x[:, None].expand(-1, math.prod(site.shape)).reshape(-1, *site.shape)
        given, seen = self._through(site, x)
        below = (given < 0) & (given > -30)
        for curve in (*map(Curve, CURVES), Curve("leaky_relu", float((seen[below] / given[below]).median()))):
            if torch.allclose(curve(given), seen, rtol=1e-12, atol=1e-12):
                return curve
        raise ModelError(f"its activation {type(site.module).__name__} is not known here")

    def _through(self, site: Site, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what a layer's activation is given, replaced by x, and what it makes of it."""
        seen: list[Tensor] = []
        calls = 0

        def before(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
            nonlocal calls
            calls += 1
            return (x.clone(), *inputs[1:]) if calls == site.call else None

        def after(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            if calls == site.call:
                seen.append(output.detach().clone())

        handles = [site.module.register_forward_pre_hook(before), site.module.register_forward_hook(after)]
        try:
            with torch.no_grad(), evaluating(self._network.runner.modules()):
                self._network.runner(self.noise(len(x), self._network.encoding.shape[0]))
        finally:
            for handle in handles:
                handle.remove()
        return x, seen[0]

    def _ask(self, number: int, activations: Tensor) -> Tensor:
        """Return what the next layer is given, or the last numbers, where a layer has these activations."""
        if number == 0:
            return self.run(activations, None, activations)[0][0]
        noise = self.noise(len(activations), self._network.encoding.shape[0])  # which must not matter
        return self.run(noise, number, activations)[0][number]

    def run(self, x: Tensor, number: int | None, activations: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return what each layer, and the end, is given for inputs, and the scores; one layer may be overwritten."""
        given: dict[tuple[nn.Module, int], Tensor] = {}
        calls: dict[nn.Module, int] = {}
        chosen = None if number is None else self._sites[number - 1]

        def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            calls[module] = calls.get(module, 0) + 1
            given[module, calls[module]] = inputs[0].detach().flatten(1).clone()

        def after(module: nn.Module, _: Any, output: Tensor) -> Tensor | None:
            if chosen is not None and (module, calls[module]) == (chosen.module, chosen.call):
                return activations.reshape(output.shape)
            return None

        modules = {site.module for site in self._sites} | ({self._last} if self._last is not None else set())
        handles = [m.register_forward_pre_hook(before) for m in modules]
        handles += [m.register_forward_hook(after) for m in modules]
        try:
            with torch.no_grad(), evaluating(self._network.runner.modules()):
                result: Tensor = self._network.runner(x.clone()).reshape(len(x), -1)
        finally:
            for handle in handles:
                handle.remove()
        seen = [given[site.module, site.call] for site in self._sites]
        return [*seen, result if self._last is None else given[self._last, calls[self._last]]], result
