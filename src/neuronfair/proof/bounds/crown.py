"""Lines below and above a network over a box of records: CROWN, batched.

The inputs of a layer are bounded by lines that are carried back through all layers before it to the records's values.
The lines of an activation function hold between the bounds of its inputs (`activations.py`). The first step back
from a layer begins with its weights, the same for all boxes, so it is one product of matrices.

Rounding: how far the numbers of a network, and lines below and above them, can be off in float64.

With u = 2^-53, a sum of n products is off by at most γ_n = nu / (1 - nu) of the sum of their sizes, in whatever order
it is taken. Of each layer two sizes are carried forward, neuron by neuron, from the sizes of its weights:

- R, the size of all that meets in a line that is carried back from it to the input. |W| (S R + A) + |b|, with S the
  steepest slope and A the largest constant of a line for the activation function between -R and R. The bounds of the
  layer lie between -R and R, too. Carrying a line back takes the sums of all layers one after the other, so it is off
  by at most γ_N R, with N all their lengths together.
- E, how far the layer's numbers, computed in float64, may lie outside exact lines: what the layer before passes on
  (S E), what its function is off by, the sum of its own products, and what the weights themselves are off by: those of
  one layer are the network's own, those of several layers in a row are multiplied out and rounded once. The network
  itself computes these one after the other; a few u of each weight and of the bias are allowed for that.

The bound is twice E + γ_N R: the terms in u² that are left out are far smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import Unprovable
from neuronfair.limits import check_size
from neuronfair.model.encoding import Encoding, TableEncoding
from neuronfair.model.operators import Affine, Chain, Curve
from neuronfair.proof.bounds.activations import Relaxation, relax, values
from neuronfair.proof.bounds.margins import Lines, Margins
from neuronfair.proof.bounds.space import Axis, Boxes, Space

NUMBERS_PER_PASS = {"cpu": 1 << 20, "cuda": 1 << 27}  # of the largest array; on a CPU what fits into its cache
MULTIPLIED = 1 << 22  # numbers of the matrix of a first step, at most
POLICIES = ("adaptive", "flat")  # for the lines the better one is taken
MOST_SINGLE = 64  # sensitive values up to which each may get bounds or lines of its own
EVALUATED = 1 << 24  # numbers of records that are evaluated at once
OTHER = 3e5  # multiplications that take as long as all else that is done for a box
MOST_PLACES = 5_000  # of an attribute whose values have no order to the network
LISTED = 1 << 17  # codes up to which the numbers of all are looked at
U = 2.0**-53
READ = 16 * U  # of weight and bias: by how much a weight that was read may be off
MORE = 8  # sums beside the products of a layer: bias, constants, ends
STEEPEST = {"sigmoid": 0.251, "tanh": 1.001, "gelu": 1.13, "silu": 1.101, "elu": 1.001, "softplus": 1.001}


class BoundStrategy(NamedTuple):
    """How a network is bounded. What all sensitive values share is looser and cheaper; so is a single policy."""

    inner: bool  # whether the values share the bounds of inner layers
    last: bool  # whether they share the lines of the margins
    policies: tuple[str, ...]  # of the lines below activations in inner layers; the best bounds are taken


_SHARED = ((True, True), (True, False), (False, False))
STRATEGIES = tuple(BoundStrategy(*shared, policies) for policies in (POLICIES[:1], POLICIES) for shared in _SHARED)
LowHigh = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Crown:
    """A network over the features of a space. `start` is what its first layer adds for each sensitive value."""

    space: Space
    affines: tuple[Affine, ...]  # the first from features, the last to margins
    start: Tensor  # (values, neurons of the first layer)
    curves: tuple[Curve, ...]
    rounding: tuple[Tensor, ...]  # per layer, the margins last: how far its numbers may be off
    unread: bool = False  # no input that a sensitive value changes has any weight
    _steps: dict[tuple[int, bool], _Step] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def strategies(self) -> int:
        """How many bound strategies there are: a single layer is its own line."""
        return len(self._strategies) if self.curves else 1

    @cached_property
    def _strategies(self) -> tuple[BoundStrategy, ...]:
        """The strategies to choose from: with many sensitive values those in which these share everything."""
        return STRATEGIES if len(self.start) <= MOST_SINGLE else tuple(s for s in STRATEGIES if s.inner and s.last)

    def lines(self, boxes: Boxes, inner: Tensor | None = None, strategy: int = 0) -> Lines:
        """Return lines for all margins over boxes."""
        lines = self._of_one_layer(boxes) if not self.curves else self._of_all(boxes, inner, strategy)
        same = torch.full((len(boxes),), True, device=self.start.device) if self.unread else None
        return replace(lines, same=same)

    def _of_all(self, boxes: Boxes, inner: Tensor | None, strategy: int) -> Lines:
        taken = self._strategies[strategy]
        rows = self._rows(taken)
        if len(boxes) <= rows:
            return self._lines(boxes, inner, taken)
        pieces = [slice(i, i + rows) for i in range(0, len(boxes), rows)]
        parts = [self._lines(boxes[p], None if inner is None else inner[p], taken) for p in pieces]
        low, low_at, high, high_at, inner = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("low", "low_at", "high", "high_at", "inner")
        )
        return Lines(low, low_at, high, high_at, inner)

    enumeration_factor = 1.0  # how many times larger boxes than usual are enumerated

    def cost(self, strategy: int) -> float:
        """Return about how long a step of a strategy takes, compared with the others."""
        inner, last, policies = self._strategies[strategy]
        values = len(self.start)
        *before, end = self._multiplications or [0]  # a linear model has one layer
        work = sum(before) * len(policies) * (1 if inner else values) + len(POLICIES) * end * (1 if last else values)
        return 1.0 + work / OTHER

    @cached_property
    def _multiplications(self) -> list[int]:
        """About how many it takes to bound each layer behind the first."""
        steps = [0, *accumulate(affine.weight.numel() for affine in self.affines)]
        return [2 * len(affine.bias) * step for affine, step in zip(self.affines[1:], steps[1:], strict=False)]

    @property
    def slack(self) -> Tensor:
        """How far the margins may be off by rounding."""
        return self.rounding[-1]

    def margins_at(self, places: Tensor) -> Tensor:
        """Return the margins of records at places, with every sensitive value."""
        widest = max(len(affine.bias) for affine in self.affines)
        step = max(1, EVALUATED // (len(self.start) * widest))
        return torch.cat([self._margins_of(part) for part in torch.split(places, step)])

    def _margins_of(self, places: Tensor) -> Tensor:
        first, space = self.affines[0].weight, self.space
        x = places[:, space.linear].to(first.dtype) @ first[:, space.slopes].T
        for axis, begin, _ in space.tables:
            x = x + first.T[begin + places[:, axis]]
        x = x[:, None] + self.start
        for curve, affine in zip(self.curves, self.affines[1:], strict=True):
            x = affine(curve(x))
        return x

    def _rows(self, strategy: BoundStrategy) -> int:
        """How many boxes go through at once: those whose lines, for all sensitive values, are few enough numbers."""
        values, first = len(self.start), self.affines[0].weight.shape[1]
        copies = 1 if strategy.inner and strategy.last else values
        shared = first + values if copies == 1 else first  # joint lines have a constant for every value
        widest = max(2 * len(a.bias) * max(a.weight.shape[1], shared) for a in self.affines[1:])
        most = NUMBERS_PER_PASS[self.start.device.type] // (widest * copies)
        return max(16 if values <= MOST_SINGLE else 1, most)

    def _of_one_layer(self, boxes: Boxes) -> Lines:
        n, k = len(boxes), len(self.start)
        slopes = self.affines[0].weight.expand(n, 1, -1, -1)
        at = self.start.expand(n, k, -1)
        return Lines(slopes, at - self.slack, slopes, at + self.slack)

    def _lines(self, boxes: Boxes, inner: Tensor | None, strategy: BoundStrategy) -> Lines:
        bounds, inner_bounds = self._input_bounds(boxes, inner, strategy)
        if strategy.inner and not strategy.last:  # bounds for each value where they cost little, in the first layer
            k = len(self.start)
            repeated = ((low.repeat_interleave(k, 0), high.repeat_interleave(k, 0)) for low, high in bounds[1:])
            bounds = [self._first(boxes, False), *repeated]
        slopes, at = self._better(boxes, *(self._candidate_lines(bounds, strategy.last, policy) for policy in POLICIES))
        half = len(self.affines[-1].bias)
        low, high = at[..., :half] - self.slack, -at[..., half:] + self.slack
        return Lines(slopes[:, :, :half], low, -slopes[:, :, half:], high, inner_bounds)

    def _candidate_lines(self, bounds: Sequence[LowHigh], joint: bool, policy: str) -> tuple[Tensor, Tensor]:
        """Return lines below the margins and below minus the margins: (n, values or 1, lines, …)."""
        relaxed = [self._relaxation(number, between, joint, policy) for number, between in enumerate(bounds)]
        slopes, at = self._backward(relaxed, joint)
        k = 1 if joint else len(self.start)
        return slopes.view(-1, k, *slopes.shape[1:]), at if joint else at.view(-1, k, at.shape[-1])

    def _better(self, boxes: Boxes, one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the higher line of each pair, by their means over the box."""
        means = []
        for slopes, at in (one, other):
            mean = self.space.mean(boxes, slopes.flatten(1, 2)).view(slopes.shape[:3])
            means.append(mean + (at.mean(1, keepdim=True) if slopes.shape[1] < at.shape[1] else at))
        first = means[0] >= means[1]
        return torch.where(first[..., None], one[0], other[0]), torch.where(first, one[1], other[1])

    def _input_bounds(
        self, boxes: Boxes, inner: Tensor | None, strategy: BoundStrategy
    ) -> tuple[list[LowHigh], Tensor]:
        """Return the bounds of each activation's inputs, and of inner layers for all sensitive values together."""
        n, joint = len(boxes), strategy.inner
        k = 1 if joint else len(self.start)
        wide = boxes if joint else Boxes(boxes.low.repeat_interleave(k, 0), boxes.high.repeat_interleave(k, 0))
        bounds = [self._first(boxes, joint)]
        inner_bounds: list[Tensor] = []
        relaxed: dict[str, list[Relaxation]] = {policy: [] for policy in strategy.policies}
        done = 0
        for number, affine in enumerate(self.affines[1:-1]):
            step, (lowest, highest) = self._step(number + 1, joint), values(self.curves[number], *bounds[-1])
            least = lowest @ step.up + highest @ step.down + step.bias  # plain intervals, which may be better
            for policy, some in relaxed.items():
                some.append(self._relaxation(number, bounds[-1], joint, policy))
                slopes, at = self._backward(some, joint)
                found = self.space.least(wide, slopes) + (at.amin(1) if joint else at[:, 0])
                least = torch.maximum(least, found)
            half, off = len(affine.bias), self.rounding[number + 1]
            low, high = least[:, :half] - off, -least[:, half:] + off
            if inner is not None:  # bounds of a larger box hold for all values
                mine = inner[:, done : done + half].to(low.dtype)
                mine = mine if joint else mine.repeat_interleave(k, 0)
                low, high = torch.maximum(low, mine[..., 0]), torch.minimum(high, mine[..., 1])
                high = torch.maximum(low, high)
            done += half
            bounds.append((low, high))
            inner_bounds.append(torch.stack([low.view(n, k, half).amin(1), high.view(n, k, half).amax(1)], -1))
        return bounds, torch.cat(inner_bounds, 1) if inner_bounds else self.start.new_zeros(n, 0, 2)

    def _first(self, boxes: Boxes, joint: bool) -> LowHigh:
        """Return the bounds of the first activation's inputs, for all sensitive values together or for each."""
        first = self.affines[0].weight
        both = self.space.least(boxes, torch.cat([first, -first]))
        low, high = both[:, None, : len(first)], -both[:, None, len(first) :]
        lowest, highest = (self.start.amin(0)[None], self.start.amax(0)[None]) if joint else (self.start, self.start)
        return (low + lowest - self.rounding[0]).flatten(0, 1), (high + highest + self.rounding[0]).flatten(0, 1)

    def _relaxation(self, number: int, between: LowHigh, joint: bool, policy: str) -> Relaxation:
        """Return the lines of an activation; the first one's constants include `start` unless all values share it."""
        r = relax(self.curves[number], *between, policy)
        if number or joint:
            return r
        start = self.start.repeat(len(r.low) // len(self.start), 1)
        return Relaxation(r.low, torch.addcmul(r.low_at, r.low, start), r.high, torch.addcmul(r.high_at, r.high, start))

    def _backward(self, relaxed: Sequence[Relaxation], joint: bool) -> tuple[Tensor, Tensor]:
        """Return lines below the inputs of the layer behind the relaxed ones, and below the same with another sign.

        Slopes by feature, (n, lines, features), and constants, (n, values or 1, lines).
        """
        step = self._step(len(relaxed), joint)
        r = relaxed[-1]
        at = r.low_at @ step.up + r.high_at @ step.down + step.bias
        back = step.back(r)
        for number in reversed(range(len(relaxed) - 1)):
            r, slopes = relaxed[number], back[..., :-1]
            at = at + back[..., -1]
            up, down = slopes.clamp(min=0), slopes.clamp(max=0)
            at = at + (down @ r.high_at[..., None] + up @ r.low_at[..., None])[..., 0]
            back = torch.addcmul(up * r.low[:, None], down, r.high[:, None]) @ self._matrix(number, joint)
        width = self.space.features
        starts = back[..., width:]
        return back[..., :width], (at[..., None] + starts).transpose(1, 2) if joint else at[:, None]

    def _matrix(self, number: int, joint: bool) -> Tensor:
        """Return the weights and the bias of a layer; of the first one those of the features, and `start` if joint."""
        return self._matrices[number if number or not joint else -1]

    @cached_property
    def _matrices(self) -> list[Tensor]:
        inner = [torch.cat([a.weight, a.bias[:, None]], 1) for a in self.affines[1:]]
        return [self.affines[0].weight, *inner, torch.cat([self.affines[0].weight, self.start.T], 1)]

    def _step(self, layer: int, joint: bool) -> _Step:
        if (layer, joint) not in self._steps:
            weight, bias = self.affines[layer].weight, self.affines[layer].bias
            signed = torch.cat([weight, -weight])
            up, down = signed.clamp(min=0).T.contiguous(), signed.clamp(max=0).T.contiguous()
            matrix = self._matrix(layer - 1, joint)
            product = None
            if 2 * signed.numel() * matrix.shape[1] <= MULTIPLIED:
                parts = [(part[:, :, None] * matrix[:, None]).flatten(1) for part in (up, down)]
                product = torch.cat(parts)
            self._steps[layer, joint] = _Step(up, down, torch.cat([bias, -bias]), matrix, product)
        return self._steps[layer, joint]


@dataclass(frozen=True)
class _Step:
    """The first step back from a layer: its weights with both signs, by their sign, and what they are multiplied by."""

    up: Tensor  # (neurons, lines)
    down: Tensor
    bias: Tensor  # (lines,)
    matrix: Tensor
    product: Tensor | None  # (2 · neurons, lines · columns of the matrix), unless it would be too large

    def back(self, r: Relaxation) -> Tensor:
        """Return the slopes of the layer's lines by the inputs of the layer before it."""
        if self.product is None:
            return torch.addcmul(self.up.T * r.low[:, None], self.down.T, r.high[:, None]) @ self.matrix
        slopes = torch.cat([r.low, r.high], 1) @ self.product
        return slopes.view(len(r.low), self.up.shape[1], self.matrix.shape[1])


@dataclass(frozen=True)
class _Read:
    """An attribute as the network reads it."""

    axis: Axis
    effects: Tensor  # (features, neurons) what a place more, or each place, adds to the first layer
    first: Tensor  # (neurons,) what the first place of a linear axis adds
    size: Tensor  # (inputs,) how large the network's inputs can be by it, without sign


def crown_of(
    chain: Chain,
    encoding: Encoding,
    domain: TableDomain,
    classes: Sequence[Tensor],
    margins: Margins,
    device: torch.device,
) -> Crown:
    """Return the bounds of a chain. `classes` says which codes of each attribute rules tell apart; -1: outside."""
    affines = [Affine(a.weight.cpu(), a.bias.cpu()) for a in chain.affines]
    sizes = [Affine(a.weight.cpu(), a.bias.cpu()) for a in chain.sizes]
    curves = list(chain.curves)
    last = affines.pop()
    matrix = margins.matrix
    affines.append(Affine(matrix @ last.weight, matrix @ last.bias + margins.offset))
    # The model rounds its scores one by one, however near they are to each other.
    large = sizes.pop()
    sizes.append(Affine(matrix.abs() @ large.weight, matrix.abs() @ large.bias + margins.offset.abs()))
    if margins.squash:
        one = torch.ones(1, 1, dtype=torch.float64)
        curves.append(Curve("sigmoid"))
        affines.append(Affine(one, torch.zeros(1, dtype=torch.float64)))
        sizes.append(affines[-1])
    base = torch.zeros(len(domain.attributes), dtype=torch.int64)
    free = [c for c in range(len(domain.attributes)) if c not in domain.sensitive_columns]
    slope = _slope(affines)
    read = [_read(_AttributeInputs(encoding, base, c, affines[0].weight), classes[c], slope) for c in free]
    rows = base.repeat(len(domain.sensitive_values), 1)
    rows[:, list(domain.sensitive_columns)] = domain.sensitive_values
    inputs = _numbers(encoding, rows)
    first = affines[0]
    start = first(inputs) + sum((r.first for r in read), torch.zeros(len(first.bias), dtype=torch.float64))
    largest = sum((r.size for r in read), inputs.abs().amax(0))
    # Weights may be off by a rounding of the bias, too, for each input: see rounding.
    unread = not bool(((inputs - inputs[:1]).abs().amax(0) @ first.weight.abs().T).any())
    size = largest @ sizes[0].weight.T + sizes[0].bias * (1 + largest.sum())
    affines[0] = Affine(torch.cat([r.effects for r in read]).T.contiguous(), first.bias)
    rounding = errors_of([affines[0], *sizes[1:]], curves, size)
    rounding[-1] = rounding[-1] + margins.end_error
    space = Space(tuple(r.axis for r in read), device)
    return Crown(
        space,
        tuple(Affine(a.weight.to(device), a.bias.to(device)) for a in affines),
        start.to(device),
        tuple(curves),
        tuple(error.to(device) for error in rounding),
        unread,
    )


@dataclass(frozen=True)
class _AttributeInputs:
    """What the codes of one attribute give to the first layer, while the others are as in a base row."""

    encoding: Encoding
    base: Tensor  # (d,) codes
    column: int
    weight: Tensor  # (neurons, inputs) of the first layer

    def added(self, codes: Tensor) -> Tensor:
        """Return what codes add to the first layer, compared with the base: (n, neurons)."""
        return (_numbers(self.encoding, self._rows(codes)) - self._base_inputs) @ self.weight.T

    def size(self, codes: Tensor) -> Tensor:
        """Return how large inputs can be by these codes and the base together: (inputs,)."""
        return _numbers(self.encoding, self._rows(codes)).abs().amax(0) + self._base_inputs.abs()

    @cached_property
    def is_number(self) -> bool:
        """Whether the encoding of a table makes one number of the attribute."""
        return isinstance(self.encoding, TableEncoding) and not bool(self.encoding.is_block[self.column])

    def is_line(self, codes: Tensor) -> bool:
        """Return whether the inputs by consecutive codes lie on a line."""
        if isinstance(self.encoding, TableEncoding):
            empty = self.encoding.attributes[self.column].empty
            return self.is_number and (empty is None or empty not in codes[-1:])
        if len(codes) > LISTED:
            return False
        added = self.added(codes)
        step = (added[-1] - added[0]) / (len(codes) - 1)
        line = added[0] + step * torch.arange(len(codes), dtype=torch.float64)[:, None]
        return torch.allclose(line, added, rtol=1e-13, atol=1e-13 * float(added.abs().max()))

    def _rows(self, codes: Tensor) -> Tensor:
        rows = self.base.repeat(len(codes), 1)
        rows[:, self.column] = codes
        return rows

    @cached_property
    def _base_inputs(self) -> Tensor:
        return _numbers(self.encoding, self.base[None])[0]


def _read(inputs: _AttributeInputs, classes: Tensor, slope: Tensor) -> _Read:
    """Return an attribute as the network reads it: as a line where its codes lie on one, else place by place.

    `classes` says which codes rules tell apart, -1: outside. `slope` is about how much each neuron adds to the margin.
    """
    codes = (classes >= 0).nonzero()[:, 0]
    linear = _read_line(inputs, classes, codes)
    return linear if linear is not None else _read_list(inputs, classes, codes, slope)


def _ends(codes: Tensor) -> Tensor:
    """Return the first, a middle and the last code."""
    return codes[[0, len(codes) // 2, -1]]


def _read_line(inputs: _AttributeInputs, classes: Tensor, codes: Tensor) -> _Read | None:
    """Return an attribute each code of which adds one step more; None if they do not, or if no step adds anything."""
    unbroken = int(codes[-1] - codes[0]) + 1 == len(codes)
    if not unbroken or len(codes) < 2 or (len(codes) > 2 and not inputs.is_line(codes)):  # two always lie on a line
        return None
    ends = _ends(codes)
    first, _, last = inputs.added(ends)
    step = (last - first) / (len(codes) - 1)
    if not bool(step.any()):
        return None
    place_of_code = torch.where(classes >= 0, torch.arange(len(classes)) - codes[0], -1)
    axis = Axis(inputs.column, place_of_code, codes, torch.ones_like(codes), True)
    return _Read(axis, step[None], first, inputs.size(ends))


def _read_list(inputs: _AttributeInputs, classes: Tensor, codes: Tensor, slope: Tensor) -> _Read:
    """Return an attribute by places: codes that add the same and that rules treat alike have one place together.

    Places that rules treat alike come side by side, in the order of what they add to the margin.
    """
    effects, effect_of_code = _distinct_effects(inputs, codes)  # `_of_code`: in the order of `codes`
    kinds, kind_of_code = torch.unique(classes[codes] * len(effects) + effect_of_code, return_inverse=True)
    if len(kinds) > MOST_PLACES:
        raise Unprovable(f"an attribute has {len(kinds):,} values that it reads one by one; {MOST_PLACES:,} at most")
    class_of_kind, effect_of_kind = kinds // len(effects), effects[kinds % len(effects)]
    by_effect = torch.argsort(effect_of_kind @ slope, stable=True)
    kind_at_place = by_effect[torch.argsort(class_of_kind[by_effect], stable=True)]
    place_of_kind = torch.empty_like(kind_at_place)
    place_of_kind[kind_at_place] = torch.arange(len(kind_at_place))
    place_of_code = place_of_kind[kind_of_code]
    place = torch.full_like(classes, -1)
    place[codes] = place_of_code
    example_at_place = torch.empty_like(kind_at_place)
    example_at_place[place_of_code] = codes
    codes_at_place = torch.bincount(place_of_code, minlength=len(kinds))
    axis = Axis(inputs.column, place, example_at_place, codes_at_place, False)
    no_first = torch.zeros(inputs.weight.shape[0], dtype=torch.float64)
    size = inputs.size(codes if len(codes) <= LISTED else _ends(codes))
    return _Read(axis, effect_of_kind[kind_at_place], no_first, size)


def _distinct_effects(inputs: _AttributeInputs, codes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the different effects of codes on the first layer, (effects, neurons), and which is each code's."""
    if len(codes) <= LISTED:
        check_size(len(codes) * sum(inputs.weight.shape), "the values of an attribute", times=24)
        effects, effect_of_code = torch.unique(inputs.added(codes), dim=0, return_inverse=True)
        return effects, effect_of_code
    ends = inputs.added(_ends(codes))
    if inputs.is_number and bool((ends == ends[:1]).all()):  # numbers without any effect
        return inputs.added(codes[:1]), torch.zeros_like(codes)
    raise Unprovable(f"an attribute has {len(codes):,} values that it reads one by one; {LISTED:,} at most")


def _numbers(encoding: Encoding, rows: Tensor) -> Tensor:
    return encoding.encode(rows.to(encoding.device), torch.float64).flatten(1).cpu()


def _slope(affines: Sequence[Affine]) -> Tensor:
    """Return about how much each neuron of the first layer adds to the first margin: the network without its curves."""
    product = torch.eye(len(affines[0].bias), dtype=torch.float64)
    for affine in affines[1:]:
        product = affine.weight @ product
    return product[0]


def errors_of(affines: Sequence[Affine], curves: Sequence[Curve], size: Tensor) -> list[Tensor]:
    """Return for each layer by how much bounds and lines of its numbers must give way to be sure in float64.

    `size` (neurons of the first layer) is the size of all that meets there, |W| |x| + |b| (1 + Σ|x|) at most.
    """
    length = affines[0].weight.shape[1] + MORE
    reach, error = size, (_gamma(length) + READ) * size
    errors = [2 * (error + _gamma(length) * reach)]
    for curve, affine in zip(curves, affines[1:], strict=True):
        weight, bias = affine.weight.abs(), affine.bias.abs()
        steepest, value, constant, off = _sizes(curve, reach)
        terms = affine.weight.shape[1] + MORE
        length += terms
        error = weight @ (steepest * error + off) + _gamma(terms) * (weight @ value + bias)
        error = error + READ * (weight @ value + bias * (1 + value.sum()))
        reach = weight @ (steepest * reach + constant) + bias
        errors.append(2 * (error + _gamma(length) * reach))
    return errors


def _sizes(curve: Curve, reach: Tensor) -> tuple[float, Tensor, Tensor, Tensor]:
    """Return the steepest slope, the largest value and constant, and the rounding of a curve in [-reach, reach]."""
    if curve.name in ("relu", "leaky_relu"):
        steepest = max(1.0, abs(curve.leak))
        return steepest, steepest * reach, abs(1 - curve.leak) / 2 * reach, 2 * U * steepest * reach
    steepest = STEEPEST[curve.name]
    value = (steepest * reach + 1).clamp(max=1.0 if curve.name in ("sigmoid", "tanh") else float("inf"))
    return steepest, value, value + steepest * reach + 1e-3, 8 * U * (reach + 1)


def _gamma(n: int) -> float:
    return n * U / (1 - n * U)
