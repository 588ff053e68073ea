"""Margins, whose signs decide, and what lines below and above them say about boxes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, Protocol

import torch
from torch import Tensor

from neuronfair.errors import Unprovable
from neuronfair.model.decision import Decision
from neuronfair.proof.bounds.space import Boxes, Space

End = Literal["none", "softmax", "sigmoid"]
ROUNDING_IMMUNE = 1 - 1e-9  # thresholds of probabilities up to which their rounding does not matter
SURE = 1e-12  # standard deviations below this are none
EPS = torch.finfo(torch.float64).eps
AT_ONCE = 1 << 22  # numbers of lines at records that are handled at once


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


class Bounder(Protocol):
    """A model whose margins can be bounded, in one or several ways; the best one is found by trying."""

    @property
    def space(self) -> Space:
        """What the lines are written over."""

    @property
    def ways(self) -> int:
        """How many ways there are."""

    def lines(self, boxes: Boxes, inner: Tensor | None = None, way: int = 0) -> Lines:
        """Return lines over boxes; `inner` holds the inner bounds of boxes that contain them."""

    def margins_at(self, places: Tensor) -> Tensor:
        """Return the margins of people at places (n, axes), with every sensitive value: (n, values, margins)."""

    def cost(self, way: int) -> float:
        """Return about how long a way takes, compared with the others."""

    @property
    def slack(self) -> Tensor:
        """How far the margins of rows may be off by rounding: (margins,)."""


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

    def of(self, sums: Tensor) -> Tensor:
        """Return the margins of sums (…, outputs)."""
        return sums @ self.matrix.T.to(sums) + self.offset.to(sums)

    def opposite(self, signed: Tensor) -> Tensor:
        """Return the number of the signed line of the same margin the other way."""
        return (signed + len(self.matrix)) % (2 * len(self.matrix))

    def decided(self, margins: Tensor, slack: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Return who certainly does not flip and who does, by margins (n, values, margins) that are off by `slack`."""
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
        return Margins(matrix, torch.zeros(len(pairs), dtype=torch.float64), torch.tensor(classes))
    either = torch.tensor([[1], [0]])  # class 0 where the margin is negative
    if end == "softmax" and outputs != 2 and decision.kind != "argmax":
        raise Unprovable("its score is one of several probabilities that depend on each other")
    score = output[-1:] - output[:1] if end == "softmax" or decision.kind == "argmax" else output[-1:]
    nothing = torch.zeros(1, dtype=torch.float64)
    if decision.kind == "argmax":
        return Margins(score, nothing, either)
    if decision.kind == "tolerance":
        return Margins(score, nothing, torch.zeros(0, 0, dtype=torch.int64), decision.value, end != "none")
    threshold = decision.value
    if end != "none":
        if ROUNDING_IMMUNE <= threshold <= 1:
            raise Unprovable(f"its threshold of {threshold:g} is so near 1 that rounding decides who reaches it")
        if not 0 < threshold < 1:  # everybody lies on one side
            return Margins(torch.zeros_like(score), torch.tensor([1.0 if threshold <= 0 else -1.0]).double(), either)
        threshold = math.log(threshold) - math.log1p(-threshold)
    return Margins(score, torch.tensor([-threshold], dtype=torch.float64), either)


@dataclass(frozen=True)
class HalfSpaces:
    """Half-spaces of each box in which the decision is known: where its lines are above 0."""

    slopes: Tensor  # (n, lines, features)
    at: Tensor  # (n, lines)
    estimate: Tensor  # (n, lines) about which share lies above 0


@dataclass(frozen=True)
class BoxSigns:
    """What lines say about boxes."""

    fair: Tensor  # (n,) nobody in the box flips
    unfair: Tensor  # (n,) everybody in the box flips
    alike: HalfSpaces  # of common lines, by signed margin; with a tolerance one
    flips: HalfSpaces  # of the two or more lines that must be positive for a flip
    undecided: Tensor  # (n, values or 1, margins) whose sign is not known


def box_signs(margins: Margins, space: Space, boxes: Boxes, lines: Lines, valid: Tensor) -> BoxSigns:
    """Return what lines say about boxes whose people may have the sensitive values `valid`, (n, values)."""
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
    step = max(1, AT_ONCE // (lines.low[0].numel() // max(1, space.features) * len(space.axes) + 1))
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
    return HalfSpaces(slopes, at, _share_above(space, boxes, slopes, at))


def _share_above(space: Space, boxes: Boxes, slopes: Tensor, at: Tensor) -> Tensor:
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
        _share_above(space, boxes, slopes, at)
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
