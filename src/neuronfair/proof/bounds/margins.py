"""Margins, whose signs decide; what lines below and above them say about boxes; and the share of a box above a line.

`share_above` returns a lower bound of the share of a box where a line is above 0.

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
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from neuronfair.errors import Unprovable
from neuronfair.model.decision import Decision
from neuronfair.proof.bounds.space import Boxes, Space

End = Literal["none", "softmax", "sigmoid"]
LEAST_THRESHOLD, MOST_THRESHOLD = 1e-300, 1 - 1e-9  # of probabilities: beyond, their rounding decides
SURE = 1e-12  # standard deviations below this are none
EPS = torch.finfo(torch.float64).eps
NUMBERS_PER_PASS = 1 << 22  # of lines at records


@dataclass(frozen=True)
class Lines:
    """Lines that hold everywhere in a box, with room for all rounding, also for a few more operations on them.

    `values` are all combinations of the sensitive attributes. The slopes may be the same for all of them: then they are
    given once, (n, 1, margins, features).
    """

    low: Tensor  # (n, values or 1, margins, features)
    low_at: Tensor  # (n, values, margins)
    high: Tensor
    high_at: Tensor
    inner: Tensor | None = None  # (n, …, 2) bounds of inner layers, which hold for the halves of a box, too
    same: Tensor | None = None  # (n,) where all values surely have the same margins, whatever these are
    cut: Tensor | None = None  # (n, 2) the best cut, where the model knows it: the axis, and the last place below


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

    def of(self, sums: Tensor) -> Tensor:
        """Return the margins of sums (…, outputs)."""
        return sums @ self.matrix.T.to(sums) + self.offset.to(sums)

    def opposite(self, signed: Tensor) -> Tensor:
        """Return the number of the signed line of the same margin the other way."""
        return (signed + len(self.matrix)) % (2 * len(self.matrix))

    def decided(self, margins: Tensor, slack: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Return which records certainly do not flip and which do, by margins (n, values, margins) within `slack`."""
        if self.tolerance is not None:
            score, off = margins[..., 0], ~valid
            gap = score.masked_fill(off, -torch.inf).amax(1) - score.masked_fill(off, torch.inf).amin(1)
            return gap <= self.tolerance - 2 * slack, gap > self.tolerance + 2 * slack
        return self.decided_by_signs(torch.cat([margins, -margins], -1) > torch.cat([slack, slack]), valid)

    def decided_by_signs(self, positive: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Return which are fair and which discriminatory, by which signed margins are certainly positive."""
        classes = self.classes.to(positive.device)
        chosen = positive[..., classes].all(-1)  # (n, values, classes)
        excluded = positive[..., self.opposite(classes)].any(-1)
        fair = (chosen | ~valid[..., None]).all(1).any(1)
        unfair = ((chosen & valid[..., None]).any(1) & (excluded & valid[..., None]).any(1)).any(1)
        return fair, unfair


def margins_of(decision: Decision, outputs: int, end: End) -> Margins:
    """Return the margins of the sums before a model's end whose signs are a decision."""
    output = torch.eye(outputs, dtype=torch.float64)
    if decision.kind == "argmax" and end == "sigmoid" and outputs > 1:
        raise Unprovable("it chooses among sigmoids, which rounding makes equal where they are near 1")
    if decision.kind == "argmax" and outputs > 2:
        pairs = list(combinations(range(outputs), 2))
        matrix = torch.stack([output[one] - output[other] for one, other in pairs])
        classes = [
            [
                pairs.index((label, rival)) if label < rival else pairs.index((rival, label)) + len(pairs)
                for rival in range(outputs)
                if rival != label
            ]
            for label in range(outputs)
        ]
        nothing = torch.zeros(len(pairs), dtype=torch.float64)
        return Margins(matrix, nothing, torch.tensor(classes), end_error=end_error(None, end))
    either = torch.tensor([[1], [0]])  # class 0 where the margin is negative
    if end == "softmax" and outputs != 2 and decision.kind != "argmax":
        raise Unprovable("its score is one of several probabilities that depend on each other")
    score = output[-1:] - output[:1] if end == "softmax" or decision.kind == "argmax" else output[-1:]
    nothing = torch.zeros(1, dtype=torch.float64)
    if decision.kind == "argmax":
        return Margins(score, nothing, either, end_error=end_error(None, end))
    if decision.kind == "tolerance":
        return Margins(score, nothing, torch.zeros(0, 0, dtype=torch.int64), decision.value, end != "none")
    threshold = decision.value
    if end != "none":
        if 0 < threshold < LEAST_THRESHOLD or MOST_THRESHOLD <= threshold <= 1:
            raise Unprovable(f"its threshold of {threshold:g} is so near 0 or 1 that rounding decides who reaches it")
        if not 0 < threshold < 1:  # all records lie on one side
            return Margins(torch.zeros_like(score), torch.tensor([1.0 if threshold <= 0 else -1.0]).double(), either)
        threshold = math.log(threshold) - math.log1p(-threshold)
    offset = torch.tensor([-threshold], dtype=torch.float64)
    return Margins(score, offset, either, end_error=end_error(decision.value, end))


def end_error(threshold: float | None, end: End) -> float:
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
    at: Tensor  # (n, lines)
    estimate: Tensor  # (n, lines) about which share lies above 0


@dataclass(frozen=True)
class BoxSigns:
    """What lines say about boxes."""

    fair: Tensor  # (n,) no decision in the box flips
    unfair: Tensor  # (n,) every decision in the box flips
    alike: HalfSpaces  # of common lines, by signed margin; with a tolerance one
    flips: HalfSpaces  # of the two or more lines that must be positive for a flip
    undecided: Tensor  # (n, values or 1, margins) whose sign is not known


def box_signs(margins: Margins, space: Space, boxes: Boxes, lines: Lines, valid: Tensor) -> BoxSigns:
    """Return what lines say about boxes whose records may have the sensitive values `valid`, (n, values)."""
    least = space.least(boxes, lines.low.flatten(1, 2)).view(lines.low.shape[:3]) + lines.low_at
    most = lines.high_at - space.least(boxes, -lines.high.flatten(1, 2)).view(lines.high.shape[:3])
    below, below_at = _common(space, boxes, lines.low, lines.low_at, valid)
    above, above_at = _common(space, boxes, -lines.high, -lines.high_at, valid)  # below minus the margins
    if margins.tolerance is not None:
        slopes, at = below + above, below_at + above_at + margins.tolerance
        alike = _half_spaces(space, boxes, slopes, at)
        fair = (space.least(boxes, slopes) + at)[:, 0] > 0
        off = ~valid[..., None]
        gap = least.masked_fill(off, -torch.inf).amax(1) - most.masked_fill(off, torch.inf).amin(1)
        unfair = (gap > margins.tolerance)[:, 0]
        undecided = ~(fair | unfair)[:, None, None].expand(-1, 1, 1)
        flips = _widest_gap(margins.tolerance, space, boxes, lines, valid)
    else:
        fair, unfair = margins.decided_by_signs(torch.cat([least > 0, most < 0], -1), valid)
        alike = _half_spaces(space, boxes, torch.cat([below, above], 1), torch.cat([below_at, above_at], 1))
        undecided = (least <= 0) & (most >= 0) & valid[..., None]
        flips = _likeliest_flip(margins, space, boxes, lines, valid)
    return BoxSigns(fair, unfair, alike, flips, undecided)


def decided_at(
    margins: Margins, space: Space, lines: Lines, box: Tensor, places: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor]:
    """Return which records do not flip and which do, by the lines of their boxes: bool (n,) each.

    `box` is the number of each record's box, `valid` says which sensitive values the records of a box may have.
    """
    if lines.low.shape[1:3] == (1, 1):
        lines, valid = _extremes(lines, valid)
    step = max(1, NUMBERS_PER_PASS // (lines.low[0].numel() // max(1, space.features) * len(space.axes) + 1))
    parts = [slice(i, i + step) for i in range(0, max(1, len(box)), step)]
    found = [_decided_at(margins, space, lines, box[part], places[part].long(), valid) for part in parts]
    fair, unfair = (torch.cat(part) for part in zip(*found, strict=True))
    return fair, unfair


def _extremes(lines: Lines, valid: Tensor) -> tuple[Lines, Tensor]:
    """Return lines of one margin and the same slopes for all values, as lines of two values: the lowest and highest."""
    off = ~valid[..., None]
    ends = [
        torch.stack([at.masked_fill(off, torch.inf).amin(1), at.masked_fill(off, -torch.inf).amax(1)], 1)
        for at in (lines.low_at, lines.high_at)
    ]
    return replace(lines, low_at=ends[0], high_at=ends[1]), valid.any(1, keepdim=True).expand(-1, 2)


def _decided_at(
    margins: Margins, space: Space, lines: Lines, box: Tensor, places: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor]:
    feature, factor = space.terms(places)
    valid = valid[box]
    ends = []
    for slopes, at, sign in ((lines.low, lines.low_at, -1), (lines.high, lines.high_at, 1)):
        # One axis after the other: (n, values or 1, margins)
        terms = [slopes[box, :, :, f] * x[:, None, None] for f, x in zip(feature.T, factor.T, strict=True)]
        size = sum((term.abs() for term in terms), at[box].abs())
        room = (len(space.axes) + 8) * EPS * size
        ends.append(sum(terms, at[box]) + sign * room)
    low, high = ends
    if margins.tolerance is None:
        return margins.decided_by_signs(torch.cat([low > 0, high < 0], -1), valid)
    off = ~valid[..., None]
    widest = high.masked_fill(off, -torch.inf).amax(1) - low.masked_fill(off, torch.inf).amin(1)
    surely = low.masked_fill(off, -torch.inf).amax(1) - high.masked_fill(off, torch.inf).amin(1)
    room = 4 * EPS * (low.abs().amax(1) + high.abs().amax(1) + margins.tolerance)
    return (widest < margins.tolerance - room)[:, 0], (surely > margins.tolerance + room)[:, 0]


def _common(space: Space, boxes: Boxes, slopes: Tensor, at: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return one line below the lines of all valid values: (n, margins, features) and (n, margins)."""
    off = ~valid[..., None]
    if slopes.shape[1] == 1:
        return slopes[:, 0], at.masked_fill(off, torch.inf).amin(1)
    weight = valid.to(slopes.dtype)[..., None, None]
    mean = (slopes * weight).sum(1) / weight.sum(1)
    rest = space.least(boxes, (slopes - mean[:, None]).flatten(1, 2)).view(slopes.shape[:3])
    return mean, (at + rest).masked_fill(off, torch.inf).amin(1)


def _half_spaces(space: Space, boxes: Boxes, slopes: Tensor, at: Tensor) -> HalfSpaces:
    return HalfSpaces(slopes, at, _estimated_share(space, boxes, slopes, at))


def _estimated_share(space: Space, boxes: Boxes, slopes: Tensor, at: Tensor) -> Tensor:
    """Return about which share of each box lies above lines, as if these were normally distributed: the shape of `at`.

    Lines are (n, lines, features), or (n, values or 1, margins, features) with a constant for every value.
    """
    shape = slopes.shape[:-1]
    mean, variance = (moment.view(shape) for moment in space.moments(boxes, slopes.flatten(1, -2)))
    return 0.5 * torch.erfc(-(mean + at) / variance.sqrt().clamp(min=SURE) / math.sqrt(2))


def _widest_gap(tolerance: float, space: Space, boxes: Boxes, lines: Lines, valid: Tensor) -> HalfSpaces:
    """Return the line above 0 where the scores of the two values that lie farthest apart in the mean do so."""
    box, off = torch.arange(len(boxes), device=lines.low.device), ~valid
    shape = (*lines.low_at.shape[:2], -1)
    low, high = lines.low[:, :, 0].expand(*shape), -lines.high[:, :, 0].expand(*shape)
    least_mean = space.moments(boxes, low)[0] + lines.low_at[..., 0]
    most_mean = lines.high_at[..., 0] - space.moments(boxes, high)[0]
    upper = least_mean.masked_fill(off, -torch.inf).argmax(1)
    lower = most_mean.masked_fill(off, torch.inf).argmin(1)
    slopes = (low[box, upper] + high[box, lower])[:, None]
    return _half_spaces(space, boxes, slopes, lines.low_at[box, upper] - lines.high_at[box, lower] - tolerance)


def _likeliest_flip(margins: Margins, space: Space, boxes: Boxes, lines: Lines, valid: Tensor) -> HalfSpaces:
    """Return the lines of the likeliest flip: one value certainly has a class, and another certainly has not."""
    count = len(margins.matrix)
    box = torch.arange(len(boxes), device=lines.low.device)
    shares = [
        _estimated_share(space, boxes, slopes, at)
        for slopes, at in ((lines.low, lines.low_at), (-lines.high, -lines.high_at))
    ]
    share = torch.cat(shares, -1).masked_fill(~valid[..., None], -torch.inf)  # (n, values, signed margins)
    classes = margins.classes.to(share.device)
    rivals = classes.shape[1]
    chosen_share, chosen_by = (share[..., classes].sum(-1) - (rivals - 1)).max(1)  # (n, classes), and the value
    excluded, rival = share[..., margins.opposite(classes)].max(-1)
    excluded_share, excluded_by = excluded.max(1)
    best = (chosen_share + excluded_share).argmax(1)  # the class
    chosen_by, excluded_by = chosen_by[box, best], excluded_by[box, best]
    needed = [(chosen_by, classes[best, number]) for number in range(rivals)]
    needed.append((excluded_by, margins.opposite(classes[best, rival[box, excluded_by, best]])))
    slopes, at, estimates = list[Tensor](), list[Tensor](), list[Tensor]()
    low, high = (part.expand(*lines.low_at.shape, -1) for part in (lines.low, -lines.high))
    for value, signed in needed:
        margin, negative = signed % count, signed >= count
        slopes.append(torch.where(negative[:, None], high[box, value, margin], low[box, value, margin]))
        at.append(torch.where(negative, -lines.high_at[box, value, margin], lines.low_at[box, value, margin]))
        estimates.append(share[box, value, signed])
    return HalfSpaces(torch.stack(slopes, 1), torch.stack(at, 1), torch.stack(estimates, 1).clamp(min=0))


BLOCK = 8
WAVES = BLOCK * BLOCK  # K
FINER = (1, 2, 4, 16, 64)  # M is one of these multiples of K + 1: the one that loses least
BOXES_PER_PASS = {"cpu": 1 << 12, "cuda": 1 << 20}
WAVE_NUMBERS_PER_PASS = {"cpu": 1 << 17, "cuda": 1 << 25}  # on a processor, what its cache holds
TAILS = 4.5  # deviations that the period holds at least
ROUNDING = 1e-10  # of sums of waves in float64: their coefficients' sizes add up to 2, their phases are off by 1e-12
AXIS = 2e-6  # of a linear axis, in float32: a wave is off by 14 units of 2^-24 at most, so 2 · 14 · 2^-24 in all
SMALLEST = 1e-140  # deviation: the squares of smaller ones are too small for float64


@dataclass(frozen=True)
class _Terms:
    """A line over boxes as a sum of terms that are at least 0, apart from `need`, which it must exceed."""

    need: Tensor  # (n,) rounding included
    slope: Tensor  # (n, linear axes), at least 0
    width: Tensor  # (n, linear axes): the term is slope · {0, …, width}
    tables: tuple[tuple[Tensor, Tensor], ...]  # (n, places) each: terms, and the shares of those that have them
    mean: Tensor  # (n,) of the linear axes
    middle: Tensor  # (n,) of all
    most: Tensor  # (n,)
    spread: Tensor  # (n,) the sum is sub-Gaussian with this variance


def share_above(space: Space, boxes: Boxes, slopes: Tensor, at: Tensor) -> Tensor:
    """Return a lower bound of the share of each box where a line (n, features) plus a constant is above 0.

    Axes are independent and all their codes alike. Rounding is included; 1 is said only of a line that is above 0
    everywhere in the box.
    """
    rows = BOXES_PER_PASS[boxes.low.device.type]
    parts = [
        _share(_terms(space, boxes[slice(i, i + rows)], slopes[i : i + rows], at[i : i + rows]))
        for i in range(0, len(boxes), rows)
    ]
    return torch.cat(parts) if parts else at.new_zeros(0)


def _terms(space: Space, boxes: Boxes, slopes: Tensor, at: Tensor) -> _Terms:
    steep = slopes[:, space.slopes]
    slope = steep.abs()
    low, high = boxes.low[:, space.linear].to(slope), boxes.high[:, space.linear].to(slope)
    width = high - low
    least = at + (steep * torch.where(steep > 0, low, high)).sum(-1)
    size = at.abs() + (slope * high).sum(-1)
    mean = (slope * width).sum(-1) / 2
    middle, most = mean, 2 * mean
    spread = (slope.square() * width * (width + 2)).sum(-1) / 12
    tables = []
    for axis, start, count in space.tables:
        own, inside = slopes[:, start : start + len(count)], space.inside(boxes, axis)
        lowest = own.masked_fill(~inside, torch.inf).amin(-1, keepdim=True)
        term = (own - lowest).masked_fill(~inside, 0)
        share = inside * count
        share = share / share.sum(-1, keepdim=True)
        top = term.amax(-1)
        least, size = least + lowest[:, 0], size + (own * inside).abs().amax(-1)
        middle, most, spread = middle + (share * term).sum(-1), most + top, spread + top.square() / 4
        tables.append((term, share))
    need = (len(space.axes) + 8) * EPS * size - least
    return _Terms(need, slope, width, tuple(tables), mean, middle, most, spread)


def _share(terms: _Terms) -> Tensor:
    need, ahead = terms.need, terms.middle - terms.need
    deviation = terms.spread.sqrt().clamp(min=1e-290)
    whole = torch.maximum(need, terms.most - need) * (1 + 1e-12)
    period = torch.minimum(ahead.abs() + TAILS * deviation, whole).clamp(min=1e-280)
    beyond = 1.01 * torch.exp(-((period - ahead) / deviation).square() / 2)
    beyond = beyond.masked_fill(period >= whole, 0)

    steps = _steps(need.device)
    rest, finer = _waves_left(terms, period, deviation)
    widest = max([WAVES * terms.slope.shape[1], *(BLOCK * term.shape[1] for term, _ in terms.tables)])
    rows = max(1, WAVE_NUMBERS_PER_PASS[need.device.type] // widest)
    found = torch.cat([_found(terms, period, finer, slice(i, i + rows)) for i in range(0, len(need), rows)])
    rest = rest + steps.flat[finer] + beyond + AXIS * terms.slope.shape[1]
    share = ahead / period + 0.5 + found - rest
    tail = 1.01 * torch.exp(-(ahead.clamp(min=0) / deviation).square() / 2)
    share = (torch.maximum(share, 1 - tail) - ROUNDING).clamp(0, 1 - ROUNDING)
    share = share.masked_fill((need >= terms.most) | (deviation < SMALLEST) | share.isnan(), 0)
    return share.masked_fill(need < 0, 1)


def _found(terms: _Terms, period: Tensor, finer: Tensor, rows: slice) -> Tensor:
    """Return the sum of the waves that are computed, for some of the boxes."""
    steps, period, width = _steps(period.device), period[rows, None], terms.width[rows]
    k = torch.arange(1, WAVES + 1, dtype=torch.float64, device=period.device)
    turns = (terms.slope[rows] / period)[..., None] * k  # half turns of a slope's phase: (n, axes, K)
    whole = turns.round()
    angle = turns.sub_(whole).to(torch.float32).abs_().mul_(math.pi).add_(1e-30)  # so that 0 / 0 is 1
    codes = (width + 1).to(torch.float32)[..., None]
    product = (angle * codes).sin_().div_(angle.sin_().mul_(codes)).prod(1)
    sign = (width[:, None] @ whole)[:, 0] / 2  # sin(Nπ(m + y)) / sin(π(m + y)) has that of (-1)^m(N - 1)
    product = product * (1 - 4 * (sign - sign.floor()))
    phase = (terms.mean[rows] - terms.need[rows])[:, None] / period * k * (2 * math.pi)
    cosine, sine = phase.cos().mul_(product), phase.sin_().mul_(product)
    for term, share in terms.tables:
        c, s = _table_waves(term[rows] / period, share[rows])
        cosine, sine = cosine * c - sine * s, sine * c + cosine * s
    return (steps.sine[finer[rows]] * sine - steps.cosine[finer[rows]] * cosine).sum(-1)


def _table_waves(term: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means of cos 2πkt and sin 2πkt: of powers of the first wave, for k = 8i + j as products of two."""
    angle = term * (2 * math.pi)
    near = torch.complex(angle.cos(), angle.sin_())[:, None]
    far = share[:, None].to(near.dtype)
    for _ in range(BLOCK.bit_length() - 1):
        near = torch.cat([near, near * near[:, -1:]], 1)
    step = near[:, -1:]
    for _ in range(BLOCK.bit_length() - 1):
        far = torch.cat([far, far * step], 1)
        step = step * step
    both = (far @ near.transpose(1, 2)).flatten(1)
    return both.real, both.imag


@dataclass(frozen=True)
class _Steps:
    """The coefficients for each M: of the K waves that are computed, and the sum of the others' sizes."""

    size: Tensor  # (finer,) M
    sine: Tensor  # (finer, K)
    cosine: Tensor  # (finer, K)
    flat: Tensor  # (finer,)
    rest: Tensor  # (finer,)


def _steps(device: torch.device) -> _Steps:
    if device not in _STEPS:
        sine, cosine, rest = [], [], []
        size = torch.tensor([(WAVES + 1) * factor for factor in FINER], dtype=torch.float64)
        for m in size:
            k = torch.arange(1, int(m), dtype=torch.float64)
            t = k / m
            a = (math.pi * t * (1 - t) / torch.tan(math.pi * t) + t) / (math.pi * k)
            b = (1 - t) / m
            sine.append(a[:WAVES])
            cosine.append(b[:WAVES])
            rest.append(1.001 * torch.hypot(a, b)[WAVES:].sum())
        parts = (size, torch.stack(sine), torch.stack(cosine), 0.5 / size, torch.stack(rest))
        _STEPS[device] = _Steps(*(part.to(device) for part in parts))
    return _STEPS[device]


_STEPS: dict[torch.device, _Steps] = {}


def _waves_left(terms: _Terms, period: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the waves that are not computed can take away, and the M for which all that is lost is least."""
    steps = _steps(period.device)
    half = math.pi * (terms.slope / period[:, None])
    first = (half * (WAVES + 1)).clamp(max=math.pi).sin_()
    last = (half[..., None] * (steps.size - 1)).clamp_(max=math.pi).sin_()
    codes = (terms.width + 1)[..., None] * (1 - 1e-9)
    largest = (1 / (torch.minimum(first[..., None], last).clamp_(min=1e-15) * codes)).clamp_(max=1)
    rest = largest.prod(1) * steps.rest
    loss = rest + (0.4 / 2) * (period / deviation)[:, None] / steps.size
    finer = loss.argmin(-1)
    return rest.gather(1, finer[:, None])[:, 0], finer
