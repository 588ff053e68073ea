"""Lines below and above a network over a box of records: CROWN, batched.

The inputs of a layer are bounded by lines that are carried back through all layers before it to the records' values.
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
from neuronfair.proof.bounds.activations import Relaxation, bound_values, relax
from neuronfair.proof.bounds.margins import Lines, Margins
from neuronfair.proof.bounds.space import Axis, Boxes, Space

NUMBERS_PER_PASS = {"cpu": 1 << 20, "cuda": 1 << 27}  # of the largest array; on a CPU what fits into its cache
MAX_PRODUCT_NUMBERS = 1 << 22  # numbers of the matrix of a first step, at most
POLICIES = ("adaptive", "flat")  # for the lines the better one is taken
MAX_SEPARATE_VALUES = 64  # sensitive values up to which each may get bounds or lines of its own
EVALUATED_NUMBERS_PER_PASS = 1 << 24  # numbers of records that are evaluated at once
FIXED_COST = 3e5  # multiplications that take as long as all else that is done for a box
MAX_POSITIONS = 5_000  # of an attribute whose values have no order to the network
MAX_LISTED_CODES = 1 << 17  # codes up to which the numbers of all are looked at
UNIT_ROUNDOFF = 2.0**-53  # u
WEIGHT_ROUNDING = 16 * UNIT_ROUNDOFF  # of weight and bias: by how much a weight that was read may be off
EXTRA_TERMS = 8  # sums beside the products of a layer: bias, constants, ends
MAX_SLOPES = {"sigmoid": 0.251, "tanh": 1.001, "gelu": 1.13, "silu": 1.101, "elu": 1.001, "softplus": 1.001}


class BoundStrategy(NamedTuple):
    """How a network is bounded. What all sensitive values share is looser and cheaper; so is a single policy."""

    joint_inner: bool  # whether the values share the bounds of inner layers
    joint_last: bool  # whether they share the lines of the margins
    policies: tuple[str, ...]  # of the lines below activations in inner layers; the best bounds are taken


_SHARED = ((True, True), (True, False), (False, False))
STRATEGIES = tuple(BoundStrategy(*shared, policies) for policies in (POLICIES[:1], POLICIES) for shared in _SHARED)
LowHigh = tuple[Tensor, Tensor]
SlopesOffset = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Crown:
    """A network over the features of a space. `value_offsets`: what sensitive values add to the first layer."""

    space: Space
    affines: tuple[Affine, ...]  # the first from features, the last to margins
    value_offsets: Tensor  # (values, neurons of the first layer)
    curves: tuple[Curve, ...]
    rounding: tuple[Tensor, ...]  # per layer, the margins last: how far its numbers may be off
    ignores_sensitive: bool = False  # no input that a sensitive value changes has any weight
    _first_steps: dict[tuple[int, bool], _FirstStep] = field(default_factory=dict, init=False, compare=False)

    @property
    def strategy_count(self) -> int:
        """How many bound strategies there are: a single layer is its own line."""
        return len(self._bound_strategies) if self.curves else 1

    @cached_property
    def _bound_strategies(self) -> tuple[BoundStrategy, ...]:
        """The strategies to choose from: with many sensitive values those in which these share everything."""
        if len(self.value_offsets) <= MAX_SEPARATE_VALUES:
            return STRATEGIES
        return tuple(s for s in STRATEGIES if s.joint_inner and s.joint_last)

    def find_lines(self, boxes: Boxes, inner: Tensor | None = None, strategy: int = 0) -> Lines:
        """Return lines for all margins over boxes."""
        lines = self._find_lines_in_parts(boxes, inner, strategy) if self.curves else self._find_linear_lines(boxes)
        device = self.value_offsets.device
        return replace(lines, same_margins=torch.ones(len(boxes)).bool().to(device) if self.ignores_sensitive else None)

    def _find_lines_in_parts(self, boxes: Boxes, inner: Tensor | None, strategy: int) -> Lines:
        bound_strategy = self._bound_strategies[strategy]
        step = self._count_boxes_per_pass(bound_strategy)
        pieces = [slice(i, i + step) for i in range(0, max(1, len(boxes)), step)]
        parts = [self._find_lines(boxes[p], None if inner is None else inner[p], bound_strategy) for p in pieces]
        return Lines(*(parts[0] if len(parts) == 1 else (torch.cat(part) for part in zip(*parts, strict=True))))

    enumeration_factor = 1.0  # how many times larger boxes than usual are enumerated

    def estimate_cost(self, strategy: int) -> float:
        """Return about how long a step of a strategy takes, compared with the others."""
        joint_inner, joint_last, policies = self._bound_strategies[strategy]
        values = len(self.value_offsets)
        *inner_layers, last_layer = self._multiplications or [0]  # a linear model has one layer
        inner = sum(inner_layers) * len(policies) * (1 if joint_inner else values)
        return 1.0 + (inner + len(POLICIES) * last_layer * (1 if joint_last else values)) / FIXED_COST

    @cached_property
    def _multiplications(self) -> list[int]:
        """About how many it takes to bound each layer behind the first."""
        steps = [0, *accumulate(affine.weight.numel() for affine in self.affines)]
        return [2 * len(affine.bias) * step for affine, step in zip(self.affines[1:], steps[1:], strict=False)]

    @property
    def slack(self) -> Tensor:
        """How far the margins may be off by rounding."""
        return self.rounding[-1]

    def compute_margins(self, points: Tensor) -> Tensor:
        """Return the margins of records at points, with every sensitive value."""
        widest = max(len(affine.bias) for affine in self.affines)
        step = max(1, EVALUATED_NUMBERS_PER_PASS // (len(self.value_offsets) * widest))
        return torch.cat([self._run_forward(part) for part in torch.split(points, step)])

    def _run_forward(self, points: Tensor) -> Tensor:
        first, space = self.affines[0].weight, self.space
        x = points[:, space.linear_axes].to(first.dtype) @ first[:, space.linear_features].T
        for axis, start, _ in space.tables:
            x = x + first.T[start + points[:, axis]]
        x = x[:, None] + self.value_offsets
        for curve, affine in zip(self.curves, self.affines[1:], strict=True):
            x = affine(curve(x))
        return x

    def _count_boxes_per_pass(self, strategy: BoundStrategy) -> int:
        """How many boxes go through at once: those whose lines, for all sensitive values, are few enough numbers."""
        values, features = len(self.value_offsets), self.affines[0].weight.shape[1]
        copies = 1 if strategy.joint_inner and strategy.joint_last else values
        columns = features + values if copies == 1 else features  # joint lines have a constant for every value
        widest = max(2 * len(a.bias) * max(a.weight.shape[1], columns) for a in self.affines[1:])
        boxes_per_pass = NUMBERS_PER_PASS[self.value_offsets.device.type] // (widest * copies)
        return max(16 if values <= MAX_SEPARATE_VALUES else 1, boxes_per_pass)

    def _find_linear_lines(self, boxes: Boxes) -> Lines:
        n, k = len(boxes), len(self.value_offsets)
        slopes = self.affines[0].weight.expand(n, 1, -1, -1)
        offset = self.value_offsets.expand(n, k, -1)
        return Lines(slopes, offset - self.slack, slopes, offset + self.slack)

    def _find_lines(self, boxes: Boxes, inner: Tensor | None, strategy: BoundStrategy) -> tuple[Tensor, ...]:
        bounds, new_inner = self._find_input_bounds(boxes, inner, strategy)
        if strategy.joint_inner and not strategy.joint_last:  # bounds for each value where they cost little
            k = len(self.value_offsets)
            repeated = ((low.repeat_interleave(k, 0), high.repeat_interleave(k, 0)) for low, high in bounds[1:])
            bounds = [self._bound_first_layer(boxes, False), *repeated]
        candidates = (self._find_candidate_lines(bounds, strategy.joint_last, policy) for policy in POLICIES)
        slopes, offset = self._choose_higher_lines(boxes, *candidates)
        margins = len(self.affines[-1].bias)
        low_offset, high_offset = offset[..., :margins] - self.slack, -offset[..., margins:] + self.slack
        return slopes[:, :, :margins], low_offset, -slopes[:, :, margins:], high_offset, new_inner

    def _find_candidate_lines(self, bounds: Sequence[LowHigh], joint: bool, policy: str) -> SlopesOffset:
        """Return lines below the margins and below minus the margins: (n, values or 1, lines, …)."""
        relaxations = [self._relax(layer, low_high, joint, policy) for layer, low_high in enumerate(bounds)]
        slopes, offset = self._carry_back(relaxations, joint)
        k = 1 if joint else len(self.value_offsets)
        return slopes.view(-1, k, *slopes.shape[1:]), offset if joint else offset.view(-1, k, offset.shape[-1])

    def _choose_higher_lines(self, boxes: Boxes, lines: SlopesOffset, others: SlopesOffset) -> SlopesOffset:
        """Return the higher line of each pair, by their means over the box."""
        means = []
        for slopes, offset in (lines, others):
            mean = self.space.mean(boxes, slopes.flatten(1, 2)).view(slopes.shape[:3])
            means.append(mean + (offset.mean(1, keepdim=True) if slopes.shape[1] < offset.shape[1] else offset))
        is_higher = means[0] >= means[1]
        return torch.where(is_higher[..., None], lines[0], others[0]), torch.where(is_higher, lines[1], others[1])

    def _find_input_bounds(
        self, boxes: Boxes, inner: Tensor | None, strategy: BoundStrategy
    ) -> tuple[list[LowHigh], Tensor]:
        """Return the bounds of each activation's inputs, and of inner layers for all sensitive values together."""
        n, joint = len(boxes), strategy.joint_inner
        k = 1 if joint else len(self.value_offsets)
        copies = boxes if joint else Boxes(boxes.low.repeat_interleave(k, 0), boxes.high.repeat_interleave(k, 0))
        bounds = [self._bound_first_layer(boxes, joint)]
        inner_bounds: list[Tensor] = []
        relaxations_by_policy: dict[str, list[Relaxation]] = {policy: [] for policy in strategy.policies}
        start = 0
        for layer, affine in enumerate(self.affines[1:-1]):
            step = self._make_first_step(layer + 1, joint)
            lowest, highest = bound_values(self.curves[layer], *bounds[-1])
            lower = lowest @ step.up + highest @ step.down + step.bias  # plain intervals, which may be better
            for policy, relaxations in relaxations_by_policy.items():
                relaxations.append(self._relax(layer, bounds[-1], joint, policy))
                slopes, offset = self._carry_back(relaxations, joint)
                carried = self.space.find_minimum(copies, slopes) + (offset.amin(1) if joint else offset[:, 0])
                lower = torch.maximum(lower, carried)
            neurons, rounding = len(affine.bias), self.rounding[layer + 1]
            low, high = lower[:, :neurons] - rounding, -lower[:, neurons:] + rounding
            if inner is not None:  # bounds of a larger box hold for all values
                box_bounds = inner[:, start : start + neurons].to(low.dtype)
                box_bounds = box_bounds if joint else box_bounds.repeat_interleave(k, 0)
                low, high = torch.maximum(low, box_bounds[..., 0]), torch.minimum(high, box_bounds[..., 1])
                high = torch.maximum(low, high)
            start += neurons
            bounds.append((low, high))
            inner_bounds.append(torch.stack([low.view(n, k, neurons).amin(1), high.view(n, k, neurons).amax(1)], -1))
        return bounds, torch.cat(inner_bounds, 1) if inner_bounds else self.value_offsets.new_zeros(n, 0, 2)

    def _bound_first_layer(self, boxes: Boxes, joint: bool) -> LowHigh:
        """Return the bounds of the first activation's inputs, for all sensitive values together or for each."""
        weight = self.affines[0].weight
        minimum = self.space.find_minimum(boxes, torch.cat([weight, -weight]))
        low, high = minimum[:, None, : len(weight)], -minimum[:, None, len(weight) :]
        offsets = self.value_offsets
        lowest, highest = (offsets.amin(0)[None], offsets.amax(0)[None]) if joint else (offsets, offsets)
        return (low + lowest - self.rounding[0]).flatten(0, 1), (high + highest + self.rounding[0]).flatten(0, 1)

    def _relax(self, layer: int, bounds: LowHigh, joint: bool, policy: str) -> Relaxation:
        """Return the lines of an activation; offsets of the first include those of values, unless these are joint."""
        r = relax(self.curves[layer], *bounds, policy)
        if layer or joint:
            return r
        offsets = self.value_offsets.repeat(len(r.low_slope) // len(self.value_offsets), 1)
        low_offset = torch.addcmul(r.low_offset, r.low_slope, offsets)
        return Relaxation(r.low_slope, low_offset, r.high_slope, torch.addcmul(r.high_offset, r.high_slope, offsets))

    def _carry_back(self, relaxations: Sequence[Relaxation], joint: bool) -> SlopesOffset:
        """Return lines below the inputs of the layer behind some relaxed ones, and below the same with another sign.

        Slopes by feature, (n, lines, features), and offsets, (n, values or 1, lines). r is a layer's relaxation.
        """
        step = self._make_first_step(len(relaxations), joint)
        r = relaxations[-1]
        offset = r.low_offset @ step.up + r.high_offset @ step.down + step.bias
        carried = step.carry_back(r)
        for layer in reversed(range(len(relaxations) - 1)):
            r, slopes = relaxations[layer], carried[..., :-1]
            offset = offset + carried[..., -1]
            up, down = slopes.clamp(min=0), slopes.clamp(max=0)
            offset = offset + (down @ r.high_offset[..., None] + up @ r.low_offset[..., None])[..., 0]
            carried = torch.addcmul(up * r.low_slope[:, None], down, r.high_slope[:, None]) @ self._matrix(layer, joint)
        features = self.space.features
        value_slopes = carried[..., features:]
        return carried[..., :features], (offset[..., None] + value_slopes).transpose(1, 2) if joint else offset[:, None]

    def _matrix(self, layer: int, joint: bool) -> Tensor:
        """Return the weights and the bias of a layer; of the first one those of the features, if joint and values."""
        return self._matrices[layer if layer or not joint else -1]

    @cached_property
    def _matrices(self) -> list[Tensor]:
        inner = [torch.cat([a.weight, a.bias[:, None]], 1) for a in self.affines[1:]]
        return [self.affines[0].weight, *inner, torch.cat([self.affines[0].weight, self.value_offsets.T], 1)]

    def _make_first_step(self, layer: int, joint: bool) -> _FirstStep:
        if (layer, joint) not in self._first_steps:
            weight, bias = self.affines[layer].weight, self.affines[layer].bias
            signed = torch.cat([weight, -weight])
            up, down = signed.clamp(min=0).T.contiguous(), signed.clamp(max=0).T.contiguous()
            matrix = self._matrix(layer - 1, joint)
            product = None
            if 2 * signed.numel() * matrix.shape[1] <= MAX_PRODUCT_NUMBERS:
                parts = [(part[:, :, None] * matrix[:, None]).flatten(1) for part in (up, down)]
                product = torch.cat(parts)
            self._first_steps[layer, joint] = _FirstStep(up, down, torch.cat([bias, -bias]), matrix, product)
        return self._first_steps[layer, joint]


@dataclass(frozen=True)
class _FirstStep:
    """The first step back from a layer: its weights with both signs, by their sign, and what they are multiplied by."""

    up: Tensor  # (neurons, lines)
    down: Tensor
    bias: Tensor  # (lines,)
    matrix: Tensor
    product: Tensor | None  # (2 · neurons, lines · columns of the matrix), unless it would be too large

    def carry_back(self, r: Relaxation) -> Tensor:
        """Return the slopes of the layer's lines by the inputs of the layer before it, of relaxation r."""
        if self.product is None:
            return torch.addcmul(self.up.T * r.low_slope[:, None], self.down.T, r.high_slope[:, None]) @ self.matrix
        slopes = torch.cat([r.low_slope, r.high_slope], 1) @ self.product
        return slopes.view(len(r.low_slope), self.up.shape[1], self.matrix.shape[1])


@dataclass(frozen=True)
class _AttributeReading:
    """An attribute as the network reads it."""

    axis: Axis
    effects: Tensor  # (features, neurons) what a position more, or each position, adds to the first layer
    first_effect: Tensor  # (neurons,) what the first position of a linear axis adds
    max_inputs: Tensor  # (inputs,) how large the network's inputs can be by it, without sign


def build_crown(
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
    end = affines.pop()
    matrix = margins.matrix
    affines.append(Affine(matrix @ end.weight, matrix @ end.bias + margins.offset))
    # The model rounds its scores one by one, however near they are to each other.
    score_sizes = sizes.pop()
    sizes.append(Affine(matrix.abs() @ score_sizes.weight, matrix.abs() @ score_sizes.bias + margins.offset.abs()))
    if margins.squash:
        unit = torch.ones(1, 1, dtype=torch.float64)
        curves.append(Curve("sigmoid"))
        affines.append(Affine(unit, torch.zeros(1, dtype=torch.float64)))
        sizes.append(affines[-1])
    base_row = torch.zeros(len(domain.attributes), dtype=torch.int64)
    free_columns = [column for column in range(len(domain.attributes)) if column not in domain.sensitive_columns]
    slopes = _estimate_slopes(affines)
    first = affines[0]
    inputs = [_AttributeInputs(encoding, base_row, column, first.weight) for column in free_columns]
    readings = [_read_attribute(part, classes[part.column], slopes) for part in inputs]
    rows = base_row.repeat(len(domain.sensitive_values), 1)
    rows[:, list(domain.sensitive_columns)] = domain.sensitive_values
    sensitive_inputs = _encode_rows(encoding, rows)
    value_offsets = first(sensitive_inputs) + sum(reading.first_effect for reading in readings)
    max_inputs = sum((reading.max_inputs for reading in readings), sensitive_inputs.abs().amax(0))
    # Weights may be off by a rounding of the bias, too, for each input: see rounding.
    ignores_sensitive = not bool(((sensitive_inputs - sensitive_inputs[:1]).abs().amax(0) @ first.weight.abs().T).any())
    first_sizes = max_inputs @ sizes[0].weight.T + sizes[0].bias * (1 + max_inputs.sum())
    affines[0] = Affine(torch.cat([reading.effects for reading in readings]).T.contiguous(), first.bias)
    rounding = bound_errors([affines[0], *sizes[1:]], curves, first_sizes)
    rounding[-1] = rounding[-1] + margins.end_error
    space = Space(tuple(reading.axis for reading in readings), device)
    return Crown(
        space,
        tuple(Affine(a.weight.to(device), a.bias.to(device)) for a in affines),
        value_offsets.to(device),
        tuple(curves),
        tuple(error.to(device) for error in rounding),
        ignores_sensitive,
    )


@dataclass(frozen=True)
class _AttributeInputs:
    """What the codes of one attribute give to the first layer, while the others are as in a base row."""

    encoding: Encoding
    base: Tensor  # (d,) codes
    column: int
    weight: Tensor  # (neurons, inputs) of the first layer

    def find_effects(self, codes: Tensor) -> Tensor:
        """Return what codes add to the first layer, compared with the base: (n, neurons)."""
        return (_encode_rows(self.encoding, self._make_rows(codes)) - self._base_inputs) @ self.weight.T

    def find_max_inputs(self, codes: Tensor) -> Tensor:
        """Return how large inputs can be by these codes and the base together: (inputs,)."""
        return _encode_rows(self.encoding, self._make_rows(codes)).abs().amax(0) + self._base_inputs.abs()

    @cached_property
    def is_number(self) -> bool:
        """Whether the encoding of a table makes one number of the attribute."""
        return isinstance(self.encoding, TableEncoding) and not bool(self.encoding.is_block[self.column])

    def is_line(self, codes: Tensor) -> bool:
        """Return whether the inputs by consecutive codes lie on a line."""
        if isinstance(self.encoding, TableEncoding):
            empty = self.encoding.attributes[self.column].empty
            return self.is_number and (empty is None or empty not in codes[-1:])
        if len(codes) > MAX_LISTED_CODES:
            return False
        effects = self.find_effects(codes)
        step = (effects[-1] - effects[0]) / (len(codes) - 1)
        line = effects[0] + step * torch.arange(len(codes), dtype=torch.float64)[:, None]
        return torch.allclose(line, effects, rtol=1e-13, atol=1e-13 * float(effects.abs().max()))

    def _make_rows(self, codes: Tensor) -> Tensor:
        rows = self.base.repeat(len(codes), 1)
        rows[:, self.column] = codes
        return rows

    @cached_property
    def _base_inputs(self) -> Tensor:
        return _encode_rows(self.encoding, self.base[None])[0]


def _read_attribute(inputs: _AttributeInputs, classes: Tensor, slopes: Tensor) -> _AttributeReading:
    """Return an attribute as the network reads it: as a line where its codes lie on one, else position by position.

    `classes` says which codes rules tell apart, -1: outside. `slopes` say about how much a neuron adds to the margin.
    """
    codes = (classes >= 0).nonzero()[:, 0]
    reading = _read_linear(inputs, classes, codes)
    return reading if reading is not None else _read_by_position(inputs, classes, codes, slopes)


def _sample_codes(codes: Tensor) -> Tensor:
    """Return the first, a middle and the last code."""
    return codes[[0, len(codes) // 2, -1]]


def _read_linear(inputs: _AttributeInputs, classes: Tensor, codes: Tensor) -> _AttributeReading | None:
    """Return an attribute each code of which adds one step more; None if they do not, or if no step adds anything."""
    is_contiguous = int(codes[-1] - codes[0]) + 1 == len(codes)
    if not is_contiguous or len(codes) < 2 or (len(codes) > 2 and not inputs.is_line(codes)):  # two are always one
        return None
    sample = _sample_codes(codes)
    first, _, last = inputs.find_effects(sample)
    step = (last - first) / (len(codes) - 1)
    if not bool(step.any()):
        return None
    position_of_code = torch.where(classes >= 0, torch.arange(len(classes)) - codes[0], -1)
    axis = Axis(inputs.column, position_of_code, codes, torch.ones_like(codes), True)
    return _AttributeReading(axis, step[None], first, inputs.find_max_inputs(sample))


def _read_by_position(inputs: _AttributeInputs, classes: Tensor, codes: Tensor, slopes: Tensor) -> _AttributeReading:
    """Return an attribute by positions: codes that add the same and that rules treat alike have one position together.

    Positions that rules treat alike come side by side, in the order of what they add to the margin.
    """
    effects, effect_of_code = _find_distinct_effects(inputs, codes)  # the second in the order of `codes`
    kinds, kind_of_code = torch.unique(classes[codes] * len(effects) + effect_of_code, return_inverse=True)
    if len(kinds) > MAX_POSITIONS:
        raise Unprovable(f"an attribute has {len(kinds):,} values that it reads one by one; {MAX_POSITIONS:,} at most")
    class_of_kind, effect_of_kind = kinds // len(effects), effects[kinds % len(effects)]
    by_effect = torch.argsort(effect_of_kind @ slopes, stable=True)
    kind_at_position = by_effect[torch.argsort(class_of_kind[by_effect], stable=True)]
    position_of_kind = torch.empty_like(kind_at_position)
    position_of_kind[kind_at_position] = torch.arange(len(kind_at_position))
    position_of_listed = position_of_kind[kind_of_code]
    position_of_code = torch.full_like(classes, -1)
    position_of_code[codes] = position_of_listed
    example_codes = torch.empty_like(kind_at_position)
    example_codes[position_of_listed] = codes
    code_counts = torch.bincount(position_of_listed, minlength=len(kinds))
    axis = Axis(inputs.column, position_of_code, example_codes, code_counts, False)
    no_offset = torch.zeros(inputs.weight.shape[0], dtype=torch.float64)
    max_inputs = inputs.find_max_inputs(codes if len(codes) <= MAX_LISTED_CODES else _sample_codes(codes))
    return _AttributeReading(axis, effect_of_kind[kind_at_position], no_offset, max_inputs)


def _find_distinct_effects(inputs: _AttributeInputs, codes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the different effects of codes on the first layer, (effects, neurons), and which is each code's."""
    if len(codes) <= MAX_LISTED_CODES:
        check_size(len(codes) * sum(inputs.weight.shape), "the values of an attribute", times=24)
        effects, effect_of_code = torch.unique(inputs.find_effects(codes), dim=0, return_inverse=True)
        return effects, effect_of_code
    sample_effects = inputs.find_effects(_sample_codes(codes))
    if inputs.is_number and bool((sample_effects == sample_effects[:1]).all()):  # numbers without any effect
        return inputs.find_effects(codes[:1]), torch.zeros_like(codes)
    raise Unprovable(f"an attribute has {len(codes):,} values that it reads one by one; {MAX_LISTED_CODES:,} at most")


def _encode_rows(encoding: Encoding, rows: Tensor) -> Tensor:
    return encoding.encode(rows.to(encoding.device), torch.float64).flatten(1).cpu()


def _estimate_slopes(affines: Sequence[Affine]) -> Tensor:
    """Return about how much each neuron of the first layer adds to the first margin: the network without its curves."""
    product = torch.eye(len(affines[0].bias), dtype=torch.float64)
    for affine in affines[1:]:
        product = affine.weight @ product
    return product[0]


def bound_errors(affines: Sequence[Affine], curves: Sequence[Curve], first_sizes: Tensor) -> list[Tensor]:
    """Return for each layer by how much bounds and lines of its numbers must give way to be sure in float64.

    `first_sizes` (neurons of the first layer) are the sizes of all that meets there: |W| |x| + |b| (1 + Σ|x|) at most.
    """
    length = affines[0].weight.shape[1] + EXTRA_TERMS
    reach, error = first_sizes, (_gamma(length) + WEIGHT_ROUNDING) * first_sizes
    errors = [2 * (error + _gamma(length) * reach)]
    for curve, affine in zip(curves, affines[1:], strict=True):
        weight, bias = affine.weight.abs(), affine.bias.abs()
        steepest, value, constant, curve_rounding = _bound_curve(curve, reach)
        terms = affine.weight.shape[1] + EXTRA_TERMS
        length += terms
        error = weight @ (steepest * error + curve_rounding) + _gamma(terms) * (weight @ value + bias)
        error = error + WEIGHT_ROUNDING * (weight @ value + bias * (1 + value.sum()))
        reach = weight @ (steepest * reach + constant) + bias
        errors.append(2 * (error + _gamma(length) * reach))
    return errors


def _bound_curve(curve: Curve, reach: Tensor) -> tuple[float, Tensor, Tensor, Tensor]:
    """Return the steepest slope, the largest value and constant, and the rounding of a curve in [-reach, reach]."""
    if curve.name in ("relu", "leaky_relu"):
        steepest = max(1.0, abs(curve.leak))
        return steepest, steepest * reach, abs(1 - curve.leak) / 2 * reach, 2 * UNIT_ROUNDOFF * steepest * reach
    steepest = MAX_SLOPES[curve.name]
    value = (steepest * reach + 1).clamp(max=1.0 if curve.name in ("sigmoid", "tanh") else float("inf"))
    return steepest, value, value + steepest * reach + 1e-3, 8 * UNIT_ROUNDOFF * (reach + 1)


def _gamma(n: int) -> float:
    return n * UNIT_ROUNDOFF / (1 - n * UNIT_ROUNDOFF)
