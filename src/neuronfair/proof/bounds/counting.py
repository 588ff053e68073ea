"""How many people of a box lie above a line, counted from below: never more than there are.

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
from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.proof.bounds.space import Boxes, Space

BLOCK = 8
WAVES = BLOCK * BLOCK  # K
FINER = (1, 2, 4, 16, 64)  # M is one of these multiples of K + 1: the one that loses least
ROWS = {"cpu": 1 << 12, "cuda": 1 << 20}  # boxes at a time
NUMBERS = {"cpu": 1 << 17, "cuda": 1 << 25}  # of waves at a time: on a processor, what its cache holds
TAILS = 4.5  # deviations that the period holds at least
ROUNDING = 1e-10  # of sums of waves in float64: their coefficients' sizes add up to 2, their phases are off by 1e-12
AXIS = 2e-6  # of a linear axis, in float32: a wave is off by 14 units of 2^-24 at most, so 2 · 14 · 2^-24 in all
EPS = torch.finfo(torch.float64).eps
SMALLEST = 1e-140  # deviation: the squares of smaller ones are too small for float64


@dataclass(frozen=True)
class _Terms:
    """A line over boxes as a sum of terms that are at least 0, apart from `need`, which it must exceed."""

    need: Tensor  # (n,) rounding included
    slope: Tensor  # (n, linear axes), at least 0
    width: Tensor  # (n, linear axes): the term is slope · {0, …, width}
    tables: tuple[tuple[Tensor, Tensor], ...]  # (n, places) each: terms, and the shares of those who have them
    mean: Tensor  # (n,) of the linear axes
    middle: Tensor  # (n,) of all
    most: Tensor  # (n,)
    spread: Tensor  # (n,) the sum is sub-Gaussian with this variance


def share_above(space: Space, boxes: Boxes, slopes: Tensor, at: Tensor) -> Tensor:
    """Return a lower bound of the share of each box's people for whom a line (n, features) plus a constant is above 0.

    Axes are independent and all their codes alike. Rounding is included; 1 is said only of a line that is above 0
    everywhere in the box.
    """
    rows = ROWS[boxes.low.device.type]
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
    rows = max(1, NUMBERS[need.device.type] // widest)
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
