"""Margins, whose signs decide; what lines below and above them say about boxes; and the share of a box above a line.

`bound_share` returns a lower bound of the share of a box where a line is above 0.

Over a box a line is a sum of independent terms, one for each axis, so what it takes to know its distribution is the
product of their characteristic functions, which a linear axis has in closed form. With T the sum, `need` what it must
exceed, P a period and x = (T - need) / P, as long as |x| < 1,

    [T > need] = x + 1/2 + ψ(-x),  ψ(y) = y - floor(y) - 1/2,

and Vaaler's polynomial V of degree M - 1 keeps |V - ψ| ≤ F / 2M with F Fejér's kernel, so that the share is at least

    E x + 1/2 + Σ_k [ J(k / M) / πk · E sin 2πkx  -  (1 - k / M) / M · E cos 2πkx ] - 1 / 2M,
    J(t) = πt (1 - t) cot πt + t.

Two things make it cheap. Only K waves are computed: those from K + 1 to M - 1 are bounded by what the axes' functions
can be there at most. And P may be shorter than the sum's reach, as its tails are less than normal ones (a uniform
variable is strictly sub-Gaussian, and Hoeffding's lemma holds for the others): where x > 1 the formula says ⌈x⌉ instead
of 1, and that much is subtracted. See H. L. Montgomery, Ten Lectures (1994), chapter 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from neuronfair.errors import Unprovable
from neuronfair.model.decision import Decision
from neuronfair.proof.bounds.space import Boxes, Space

End = Literal["none", "softmax", "sigmoid"]
MIN_THRESHOLD, MAX_THRESHOLD = 1e-300, 1 - 1e-9  # of probabilities: beyond, their rounding decides
MIN_DEVIATION = 1e-12  # standard deviations below this are none
EPS = torch.finfo(torch.float64).eps
NUMBERS_PER_PASS = 1 << 22  # of lines at records


@dataclass(frozen=True)
class Lines:
    """Lines that hold everywhere in a box, with room for all rounding, also for a few more operations on them.

    In the shapes, values are all combinations of the sensitive attributes. The slopes may be the same for all of them:
    then they are given once, (n, 1, margins, features).
    """

    low_slope: Tensor  # (n, values or 1, margins, features)
    low_offset: Tensor  # (n, values, margins)
    high_slope: Tensor
    high_offset: Tensor
    inner: Tensor | None = None  # (n, …, 2) bounds of inner layers, which hold for the halves of a box, too
    same_margins: Tensor | None = None  # (n,) where all values surely have the same margins, whatever these are
    best_cut: Tensor | None = None  # (n, 2) where the model knows it: its axis, and the last position below


@dataclass(frozen=True)
class Margins:
    """Combinations of the sums before a model's end. With a tolerance there is one, the score itself.

    A line below margin r is number r among the *signed* lines, and one below minus margin r is number r + margins.
    A class is chosen where all its signed margins, a row of `classes`, are positive.
    """

    matrix: Tensor  # (margins, outputs)
    offset: Tensor  # (margins,)
    classes: Tensor  # (classes, rivals); empty with a tolerance
    tolerance: float | None = None
    squash: bool = False  # whether the score is a sigmoid of the sum
    end_error: float = 0.0  # how near to 0 a margin may be where the rounding of probabilities still decides

    def compute(self, sums: Tensor) -> Tensor:
        """Return the margins of sums (…, outputs)."""
        return sums @ self.matrix.T.to(sums) + self.offset.to(sums)

    def negate(self, signed: Tensor) -> Tensor:
        """Return the number of the signed line of the same margin the other way."""
        return (signed + len(self.matrix)) % (2 * len(self.matrix))

    def decide(self, margins: Tensor, slack: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Return which records certainly do not flip and which do, by margins (n, values, margins) within `slack`."""
        if self.tolerance is not None:
            gap = _largest_gap(margins[..., 0], margins[..., 0], valid)
            return gap <= self.tolerance - 2 * slack, gap > self.tolerance + 2 * slack
        return self.decide_by_signs(torch.cat([margins, -margins], -1) > torch.cat([slack, slack]), valid)

    def decide_by_signs(self, positive: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Return which are fair and which discriminatory, by which signed margins are certainly positive."""
        classes = self.classes.to(positive.device)
        chosen = positive[..., classes].all(-1)  # (n, values, classes)
        rejected = positive[..., self.negate(classes)].any(-1)
        fair = (chosen | ~valid[..., None]).all(1).any(1)
        unfair = ((chosen & valid[..., None]).any(1) & (rejected & valid[..., None]).any(1)).any(1)
        return fair, unfair


def _largest_gap(high: Tensor, low: Tensor, valid: Tensor) -> Tensor:
    """Return the highest number minus the lowest number of all valid values, of dimension 1."""
    return high.masked_fill(~valid, -torch.inf).amax(1) - low.masked_fill(~valid, torch.inf).amin(1)


def build_margins(decision: Decision, outputs: int, end: End) -> Margins:
    """Return the margins of the sums before a model's end whose signs are a decision."""
    output = torch.eye(outputs, dtype=torch.float64)
    if decision.kind == "argmax" and end == "sigmoid" and outputs > 1:
        raise Unprovable("it chooses among sigmoids, which rounding makes equal where they are near 1")
    if decision.kind == "argmax" and outputs > 2:
        pairs = list(combinations(range(outputs), 2))
        matrix = torch.stack([output[label] - output[rival] for label, rival in pairs])
        signed = {pair: number for number, pair in enumerate([*pairs, *((rival, label) for label, rival in pairs)])}
        classes = [[signed[label, rival] for rival in range(outputs) if rival != label] for label in range(outputs)]
        no_offset = torch.zeros(len(pairs), dtype=torch.float64)
        return Margins(matrix, no_offset, torch.tensor(classes), end_error=bound_end_error(None, end))
    two_classes = torch.tensor([[1], [0]])  # class 0 where the margin is negative
    if end == "softmax" and outputs != 2 and decision.kind != "argmax":
        raise Unprovable("its score is one of several probabilities that depend on each other")
    score = output[-1:] - output[:1] if end == "softmax" or decision.kind == "argmax" else output[-1:]
    no_offset = torch.zeros(1, dtype=torch.float64)
    if decision.kind == "argmax":
        return Margins(score, no_offset, two_classes, end_error=bound_end_error(None, end))
    if decision.kind == "tolerance":
        return Margins(score, no_offset, torch.zeros(0, 0, dtype=torch.int64), decision.value, end != "none")
    threshold = decision.value
    if end != "none":
        if 0 < threshold < MIN_THRESHOLD or MAX_THRESHOLD <= threshold <= 1:
            raise Unprovable(f"its threshold of {threshold:g} is so near 0 or 1 that rounding decides who reaches it")
        if not 0 < threshold < 1:  # all records lie on one side
            constant = torch.tensor([1.0 if threshold <= 0 else -1.0], dtype=torch.float64)
            return Margins(torch.zeros_like(score), constant, two_classes)
        threshold = math.log(threshold) - math.log1p(-threshold)
    offset = torch.tensor([-threshold], dtype=torch.float64)
    return Margins(score, offset, two_classes, end_error=bound_end_error(decision.value, end))


def bound_end_error(threshold: float | None, end: End) -> float:
    """Return how near to 0 a margin may be where rounding of the end decides; without a threshold, among classes.

    A probability p is off by a few EPS of itself, which a change of the sum by as much divided by 1 - p makes up for.
    """
    if end == "none":
        return 0.0
    if threshold is None:
        return 16 * EPS
    return 16 * EPS / (1 - threshold) + 8 * EPS * (abs(math.log(threshold)) + abs(math.log1p(-threshold)))


@dataclass(frozen=True)
class HalfSpaces:
    """Half-spaces of each box in which the decision is known: where its lines are above 0."""

    slopes: Tensor  # (n, lines, features)
    offsets: Tensor  # (n, lines)
    estimates: Tensor  # (n, lines) about which share lies above 0


@dataclass(frozen=True)
class BoxDecisions:
    """What lines say about boxes."""

    fair: Tensor  # (n,) no decision in the box flips
    unfair: Tensor  # (n,) every decision in the box flips
    fair_spaces: HalfSpaces  # of common lines, by signed margin; with a tolerance one
    flip_spaces: HalfSpaces  # of the two or more lines that must be positive for a flip
    undecided: Tensor  # (n, values or 1, margins) whose sign is not known


def decide_boxes(margins: Margins, space: Space, boxes: Boxes, lines: Lines, valid: Tensor) -> BoxDecisions:
    """Return what lines say about boxes whose records may have the sensitive values `valid`, (n, values)."""
    low, high = lines.low_slope, lines.high_slope
    lowest = space.find_minimum(boxes, low.flatten(1, 2)).view(low.shape[:3]) + lines.low_offset
    highest = lines.high_offset - space.find_minimum(boxes, -high.flatten(1, 2)).view(high.shape[:3])
    below, below_offset = _find_common_line(space, boxes, low, lines.low_offset, valid)
    above, above_offset = _find_common_line(space, boxes, -high, -lines.high_offset, valid)  # below minus the margins
    if margins.tolerance is not None:
        slopes, offsets = below + above, below_offset + above_offset + margins.tolerance
        fair = (space.find_minimum(boxes, slopes) + offsets)[:, 0] > 0
        unfair = (_largest_gap(lowest, highest, valid[..., None]) > margins.tolerance)[:, 0]
        undecided = ~(fair | unfair)[:, None, None].expand(-1, 1, 1)
        flip_spaces = _find_widest_gap(margins.tolerance, space, boxes, lines, valid)
    else:
        slopes, offsets = torch.cat([below, above], 1), torch.cat([below_offset, above_offset], 1)
        fair, unfair = margins.decide_by_signs(torch.cat([lowest > 0, highest < 0], -1), valid)
        undecided = (lowest <= 0) & (highest >= 0) & valid[..., None]
        flip_spaces = _find_likeliest_flip(margins, space, boxes, lines, valid)
    fair_spaces = _make_half_spaces(space, boxes, slopes, offsets)
    return BoxDecisions(fair, unfair, fair_spaces, flip_spaces, undecided)


def decide_records(
    margins: Margins, space: Space, lines: Lines, owner: Tensor, points: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor]:
    """Return which records do not flip and which do, by the lines of their boxes: bool (n,) each.

    `owner` is the number of each record's box, `valid` says which sensitive values the records of a box may have.
    """
    if lines.low_slope.shape[1:3] == (1, 1):
        lines, valid = _keep_extreme_lines(lines, valid)
    step = max(1, NUMBERS_PER_PASS // (lines.low_slope[0].numel() // max(1, space.features) * len(space.axes) + 1))
    parts = [slice(i, i + step) for i in range(0, max(1, len(owner)), step)]
    decisions = [_decide_part(margins, space, lines, owner[part], points[part].long(), valid) for part in parts]
    fair, unfair = (torch.cat(part) for part in zip(*decisions, strict=True))
    return fair, unfair


def _keep_extreme_lines(lines: Lines, valid: Tensor) -> tuple[Lines, Tensor]:
    """Return lines of one margin and the same slopes for all values, as lines of two values: the lowest and highest."""
    invalid = ~valid[..., None]
    extreme_offsets = [
        torch.stack([part.masked_fill(invalid, torch.inf).amin(1), part.masked_fill(invalid, -torch.inf).amax(1)], 1)
        for part in (lines.low_offset, lines.high_offset)
    ]
    lines = replace(lines, low_offset=extreme_offsets[0], high_offset=extreme_offsets[1])
    return lines, valid.any(1, keepdim=True).expand(-1, 2)


def _decide_part(
    margins: Margins, space: Space, lines: Lines, owner: Tensor, points: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor]:
    features, factors = space.find_terms(points)
    valid = valid[owner]
    margin_bounds = []
    for slopes, offsets, sign in ((lines.low_slope, lines.low_offset, -1), (lines.high_slope, lines.high_offset, 1)):
        # One axis after the other: (n, values or 1, margins)
        terms = [slopes[owner, :, :, f] * x[:, None, None] for f, x in zip(features.T, factors.T, strict=True)]
        size = sum((term.abs() for term in terms), offsets[owner].abs())
        rounding = (len(space.axes) + 8) * EPS * size
        margin_bounds.append(sum(terms, offsets[owner]) + sign * rounding)
    low, high = margin_bounds
    if margins.tolerance is None:
        return margins.decide_by_signs(torch.cat([low > 0, high < 0], -1), valid)
    widest, narrowest = _largest_gap(high, low, valid[..., None]), _largest_gap(low, high, valid[..., None])
    rounding = 4 * EPS * (low.abs().amax(1) + high.abs().amax(1) + margins.tolerance)
    return (widest < margins.tolerance - rounding)[:, 0], (narrowest > margins.tolerance + rounding)[:, 0]


def _find_common_line(
    space: Space, boxes: Boxes, slopes: Tensor, offsets: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor]:
    """Return one line below the lines of all valid values: (n, margins, features) and (n, margins)."""
    invalid = ~valid[..., None]
    if slopes.shape[1] == 1:
        return slopes[:, 0], offsets.masked_fill(invalid, torch.inf).amin(1)
    weight = valid.to(slopes.dtype)[..., None, None]
    mean = (slopes * weight).sum(1) / weight.sum(1)
    lowest = space.find_minimum(boxes, (slopes - mean[:, None]).flatten(1, 2)).view(slopes.shape[:3])
    return mean, (offsets + lowest).masked_fill(invalid, torch.inf).amin(1)


def _make_half_spaces(space: Space, boxes: Boxes, slopes: Tensor, offsets: Tensor) -> HalfSpaces:
    return HalfSpaces(slopes, offsets, _estimate_shares(space, boxes, slopes, offsets))


def _estimate_shares(space: Space, boxes: Boxes, slopes: Tensor, offsets: Tensor) -> Tensor:
    """Return about which share of each box lies above lines, as if these were normally distributed: (n, lines).

    Lines are (n, lines, features), or (n, values or 1, margins, features) with an offset for every value.
    """
    shape = slopes.shape[:-1]
    mean, variance = (moment.view(shape) for moment in space.find_moments(boxes, slopes.flatten(1, -2)))
    return 0.5 * torch.erfc(-(mean + offsets) / variance.sqrt().clamp(min=MIN_DEVIATION) / math.sqrt(2))


def _find_widest_gap(tolerance: float, space: Space, boxes: Boxes, lines: Lines, valid: Tensor) -> HalfSpaces:
    """Return the line above 0 where the scores of the two values that lie farthest apart in the mean do so."""
    box_index, invalid = torch.arange(len(boxes), device=lines.low_slope.device), ~valid
    shape = (*lines.low_offset.shape[:2], -1)
    low, high = lines.low_slope[:, :, 0].expand(*shape), -lines.high_slope[:, :, 0].expand(*shape)
    lowest_mean = space.find_moments(boxes, low)[0] + lines.low_offset[..., 0]
    highest_mean = lines.high_offset[..., 0] - space.find_moments(boxes, high)[0]
    upper = lowest_mean.masked_fill(invalid, -torch.inf).argmax(1)
    lower = highest_mean.masked_fill(invalid, torch.inf).argmin(1)
    slopes = (low[box_index, upper] + high[box_index, lower])[:, None]
    offsets = lines.low_offset[box_index, upper] - lines.high_offset[box_index, lower] - tolerance
    return _make_half_spaces(space, boxes, slopes, offsets)


def _find_likeliest_flip(margins: Margins, space: Space, boxes: Boxes, lines: Lines, valid: Tensor) -> HalfSpaces:
    """Return the lines of the likeliest flip: one value certainly has a class, and another certainly has not."""
    count = len(margins.matrix)
    box_index = torch.arange(len(boxes), device=lines.low_slope.device)
    shares = [
        _estimate_shares(space, boxes, slopes, offsets)
        for slopes, offsets in ((lines.low_slope, lines.low_offset), (-lines.high_slope, -lines.high_offset))
    ]
    share = torch.cat(shares, -1).masked_fill(~valid[..., None], -torch.inf)  # (n, values, signed margins)
    classes = margins.classes.to(share.device)
    rivals = classes.shape[1]
    chosen_share, chosen_value = (share[..., classes].sum(-1) - (rivals - 1)).max(1)  # (n, classes), and the value
    rejected, rival = share[..., margins.negate(classes)].max(-1)
    rejected_share, rejected_value = rejected.max(1)
    label = (chosen_share + rejected_share).argmax(1)  # the class
    chosen_value, rejected_value = chosen_value[box_index, label], rejected_value[box_index, label]
    conditions = [(chosen_value, classes[label, number]) for number in range(rivals)]
    conditions.append((rejected_value, margins.negate(classes[label, rival[box_index, rejected_value, label]])))
    parts = []
    low, high = (part.expand(*lines.low_offset.shape, -1) for part in (lines.low_slope, -lines.high_slope))
    for value, signed in conditions:
        margin, negative = signed % count, signed >= count
        slope = torch.where(negative[:, None], high[box_index, value, margin], low[box_index, value, margin])
        low_offset, high_offset = (part[box_index, value, margin] for part in (lines.low_offset, lines.high_offset))
        parts.append((slope, torch.where(negative, -high_offset, low_offset), share[box_index, value, signed]))
    slopes, offsets, estimates = (torch.stack(part, 1) for part in zip(*parts, strict=True))
    return HalfSpaces(slopes, offsets, estimates.clamp(min=0))


BLOCK = 8
WAVES = BLOCK * BLOCK  # K
PERIOD_FACTORS = (1, 2, 4, 16, 64)  # M is one of these multiples of K + 1: the one that loses least
BOXES_PER_PASS = {"cpu": 1 << 12, "cuda": 1 << 20}
WAVE_NUMBERS_PER_PASS = {"cpu": 1 << 17, "cuda": 1 << 25}  # on a processor, what its cache holds
MIN_TAIL_DEVIATIONS = 4.5  # deviations that the period holds at least
SUM_ROUNDING = 1e-10  # of waves in float64: their coefficients' sizes add up to 2, their phases are off by 1e-12
AXIS_ROUNDING = 2e-6  # of a linear axis, in float32: a wave is off by at most 14 units of 2^-24, all by 2 · 14 · 2^-24
MIN_COUNTED_DEVIATION = 1e-140  # deviation: the squares of smaller ones are too small for float64


@dataclass(frozen=True)
class _Terms:
    """A line over boxes as a sum of terms that are at least 0, apart from `need`, which it must exceed."""

    need: Tensor  # (n,) rounding included
    slope: Tensor  # (n, linear axes), at least 0
    width: Tensor  # (n, linear axes): the term is slope · {0, …, width}
    tables: tuple[tuple[Tensor, Tensor], ...]  # (n, positions) each: terms, and the shares of those that have them
    linear_mean: Tensor  # (n,) of the linear axes
    mean: Tensor  # (n,) of all
    maximum: Tensor  # (n,)
    variance: Tensor  # (n,) the sum is sub-Gaussian with this variance


def bound_share(space: Space, boxes: Boxes, slopes: Tensor, offset: Tensor) -> Tensor:
    """Return a lower bound of the share of each box where a line (n, features) plus its offset is above 0.

    Axes are independent and all their codes alike. Rounding is included; 1 is said only of a line that is above 0
    everywhere in the box.
    """
    rows = BOXES_PER_PASS[boxes.low.device.type]
    parts = [
        _bound_part(_split_into_terms(space, boxes[slice(i, i + rows)], slopes[i : i + rows], offset[i : i + rows]))
        for i in range(0, len(boxes), rows)
    ]
    return torch.cat(parts) if parts else offset.new_zeros(0)


def _split_into_terms(space: Space, boxes: Boxes, slopes: Tensor, offset: Tensor) -> _Terms:
    signed_slope = slopes[:, space.linear_features]
    slope = signed_slope.abs()
    low, high = boxes.low[:, space.linear_axes].to(slope), boxes.high[:, space.linear_axes].to(slope)
    width = high - low
    lowest = offset + (signed_slope * torch.where(signed_slope > 0, low, high)).sum(-1)
    size = offset.abs() + (slope * high).sum(-1)
    linear_mean = (slope * width).sum(-1) / 2
    mean, maximum = linear_mean, 2 * linear_mean
    variance = (slope.square() * width * (width + 2)).sum(-1) / 12
    tables = []
    for axis, start, count in space.tables:
        table, is_inside = slopes[:, start : start + len(count)], space.mark_inside(boxes, axis)
        table_minimum = table.masked_fill(~is_inside, torch.inf).amin(-1, keepdim=True)
        terms = (table - table_minimum).masked_fill(~is_inside, 0)
        shares = is_inside * count
        shares = shares / shares.sum(-1, keepdim=True)
        largest = terms.amax(-1)
        lowest, size = lowest + table_minimum[:, 0], size + (table * is_inside).abs().amax(-1)
        mean, maximum, variance = mean + (shares * terms).sum(-1), maximum + largest, variance + largest.square() / 4
        tables.append((terms, shares))
    need = (len(space.axes) + 8) * EPS * size - lowest
    return _Terms(need, slope, width, tuple(tables), linear_mean, mean, maximum, variance)


def _bound_part(terms: _Terms) -> Tensor:
    need, lead = terms.need, terms.mean - terms.need
    deviation = terms.variance.sqrt().clamp(min=1e-290)
    full_period = torch.maximum(need, terms.maximum - need) * (1 + 1e-12)
    period = torch.minimum(lead.abs() + MIN_TAIL_DEVIATIONS * deviation, full_period).clamp(min=1e-280)
    beyond_period = 1.01 * torch.exp(-((period - lead) / deviation).square() / 2)
    beyond_period = beyond_period.masked_fill(period >= full_period, 0)

    weights = _get_wave_weights(need.device)
    loss, factor_index = _bound_other_waves(terms, period, deviation)
    widest = max([WAVES * terms.slope.shape[1], *(BLOCK * table.shape[1] for table, _ in terms.tables)])
    rows = max(1, WAVE_NUMBERS_PER_PASS[need.device.type] // widest)
    parts = [slice(i, i + rows) for i in range(0, len(need), rows)]
    wave_sum = torch.cat([_sum_waves(terms, period, factor_index, part) for part in parts])
    loss = loss + weights.kernel_mean[factor_index] + beyond_period + AXIS_ROUNDING * terms.slope.shape[1]
    share = lead / period + 0.5 + wave_sum - loss
    tail = 1.01 * torch.exp(-(lead.clamp(min=0) / deviation).square() / 2)
    share = (torch.maximum(share, 1 - tail) - SUM_ROUNDING).clamp(0, 1 - SUM_ROUNDING)
    share = share.masked_fill((need >= terms.maximum) | (deviation < MIN_COUNTED_DEVIATION) | share.isnan(), 0)
    return share.masked_fill(need < 0, 1)


def _sum_waves(terms: _Terms, period: Tensor, factor_index: Tensor, part: slice) -> Tensor:
    """Return the sum of the waves that are computed, for some of the boxes."""
    weights, period, width = _get_wave_weights(period.device), period[part, None], terms.width[part]
    k = torch.arange(1, WAVES + 1, dtype=torch.float64, device=period.device)
    turns = (terms.slope[part] / period)[..., None] * k  # half turns of a slope's phase: (n, axes, K)
    full_turns = turns.round()
    angle = turns.sub_(full_turns).to(torch.float32).abs_().mul_(math.pi).add_(1e-30)  # so that 0 / 0 is 1
    codes = (width + 1).to(torch.float32)[..., None]
    product = (angle * codes).sin_().div_(angle.sin_().mul_(codes)).prod(1)
    sign = (width[:, None] @ full_turns)[:, 0] / 2  # sin(Nπ(m + y)) / sin(π(m + y)) has that of (-1)^m(N - 1)
    product = product * (1 - 4 * (sign - sign.floor()))
    phase = (terms.linear_mean[part] - terms.need[part])[:, None] / period * k * (2 * math.pi)
    cosine, sine = phase.cos().mul_(product), phase.sin_().mul_(product)
    for table, shares in terms.tables:
        c, s = _compute_table_waves(table[part] / period, shares[part])
        cosine, sine = cosine * c - sine * s, sine * c + cosine * s
    return (weights.sine[factor_index[part]] * sine - weights.cosine[factor_index[part]] * cosine).sum(-1)


def _compute_table_waves(terms: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means of cos 2πkt and sin 2πkt: of powers of the first wave, for k = 8i + j as products of two."""
    angle = terms * (2 * math.pi)
    near = torch.complex(angle.cos(), angle.sin_())[:, None]
    far = shares[:, None].to(near.dtype)
    for _ in range(BLOCK.bit_length() - 1):
        near = torch.cat([near, near * near[:, -1:]], 1)
    step = near[:, -1:]
    for _ in range(BLOCK.bit_length() - 1):
        far = torch.cat([far, far * step], 1)
        step = step * step
    waves = (far @ near.transpose(1, 2)).flatten(1)
    return waves.real, waves.imag


@dataclass(frozen=True)
class _WaveWeights:
    """The coefficients for each M: of the K waves that are computed, and the sum of the others' sizes."""

    size: Tensor  # (factors,) M
    sine: Tensor  # (factors, K)
    cosine: Tensor  # (factors, K)
    kernel_mean: Tensor  # (factors,) 1 / 2M
    others: Tensor  # (factors,)


@cache
def _get_wave_weights(device: torch.device) -> _WaveWeights:
    rows, size = [], torch.tensor([(WAVES + 1) * factor for factor in PERIOD_FACTORS], dtype=torch.float64)
    for m in size:
        k = torch.arange(1, int(m), dtype=torch.float64)
        t = k / m
        a = (math.pi * t * (1 - t) / torch.tan(math.pi * t) + t) / (math.pi * k)
        b = (1 - t) / m
        rows.append((a[:WAVES], b[:WAVES], 1.001 * torch.hypot(a, b)[WAVES:].sum()))
    sine, cosine, others = (torch.stack(column) for column in zip(*rows, strict=True))
    return _WaveWeights(*(part.to(device) for part in (size, sine, cosine, 0.5 / size, others)))


def _bound_other_waves(terms: _Terms, period: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the waves that are not computed can take away, and the M for which all that is lost is least."""
    weights = _get_wave_weights(period.device)
    half_angles = math.pi * (terms.slope / period[:, None])
    first = (half_angles * (WAVES + 1)).clamp(max=math.pi).sin_()
    last = (half_angles[..., None] * (weights.size - 1)).clamp_(max=math.pi).sin_()
    codes = (terms.width + 1)[..., None] * (1 - 1e-9)
    largest = (1 / (torch.minimum(first[..., None], last).clamp_(min=1e-15) * codes)).clamp_(max=1)
    others = largest.prod(1) * weights.others
    loss = others + (0.4 / 2) * (period / deviation)[:, None] / weights.size
    factor_index = loss.argmin(-1)
    return others.gather(1, factor_index[:, None])[:, 0], factor_index
