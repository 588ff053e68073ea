"""What a decision asks of a model's sums: margins whose signs decide, and what lines over a box say about them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from neuronfair.model.decision import Decision
from neuronfair.proof.bounds.lines import Lines, Unprovable
from neuronfair.proof.boxes.space import Boxes, Space

End = Literal["none", "softmax", "sigmoid"]
NEAR = 1 - 1e-9  # thresholds of probabilities up to which their rounding does not matter
SURE = 1e-12  # standard deviations below this are none


@dataclass(frozen=True)
class Margins:
    """Margins: combinations of the sums before a model's end. With a tolerance there is one, the score itself.

    A line below margin r is number r among the *signed* lines, and one below minus margin r is number r + margins.
    Class c is chosen where all the signed margins `classes[c]` are positive.
    """

    matrix: Tensor  # (margins, outputs)
    offset: Tensor  # (margins,)
    classes: Tensor  # (classes, rivals); empty with a tolerance
    tolerance: float | None = None
    squash: bool = False  # whether the score is a sigmoid of the sum

    def margins(self, sums: Tensor) -> Tensor:
        """Return the margins of sums (…, outputs)."""
        return sums @ self.matrix.T.to(sums) + self.offset.to(sums)

    def opposite(self, signed: Tensor) -> Tensor:
        """Return the number of the signed line of the same margin the other way."""
        return (signed + len(self.matrix)) % (2 * len(self.matrix))

    def asked(self, margins: Tensor, slack: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Return who is decided alike, and who not, by margins (n, values, margins) that are right up to `slack`."""
        if self.tolerance is not None:
            score, off = margins[..., 0], ~valid
            wide = score.masked_fill(off, -torch.inf).amax(1) - score.masked_fill(off, torch.inf).amin(1)
            return wide <= self.tolerance - 2 * slack, wide > self.tolerance + 2 * slack
        signed = torch.cat([margins, -margins], -1) > torch.cat([slack, slack])
        return self._decided(signed, valid)

    def _decided(self, signed: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Return which are fair and which discriminate, by which signed margins are surely positive."""
        classes = self.classes.to(signed.device)
        sure = signed[..., classes].all(-1)  # (n, values, classes)
        never = signed[..., self.opposite(classes)].any(-1)
        fair = (sure | ~valid[..., None]).all(1).any(1)
        unfair = ((sure & valid[..., None]).any(1) & (never & valid[..., None]).any(1)).any(1)
        return fair, unfair


def question_of(decision: Decision, outputs: int, end: End) -> Margins:
    """Return what a decision asks of the sums before a model's end."""
    one = torch.eye(outputs, dtype=torch.float64)
    if decision.kind == "argmax" and end == "sigmoid" and outputs > 1:
        raise Unprovable("it chooses among sigmoids, which rounding makes equal where they are near 1")
    if decision.kind == "argmax" and outputs > 2:
        pairs = list(combinations(range(outputs), 2))
        matrix = torch.stack([one[a] - one[b] for a, b in pairs])
        classes = [
            [pairs.index((c, j)) if c < j else pairs.index((j, c)) + len(pairs) for j in range(outputs) if j != c]
            for c in range(outputs)
        ]
        return Margins(matrix, torch.zeros(len(pairs), dtype=torch.float64), torch.tensor(classes))
    either = torch.tensor([[1], [0]])  # class 0 where the margin is negative
    if end == "softmax" and outputs != 2 and decision.kind != "argmax":
        raise Unprovable("its score is one of several probabilities that depend on each other")
    score = one[-1:] - one[:1] if end == "softmax" or decision.kind == "argmax" else one[-1:]
    if decision.kind == "argmax":
        return Margins(score, torch.zeros(1, dtype=torch.float64), either)
    if decision.kind == "tolerance":
        nothing = torch.zeros(1, dtype=torch.float64)
        return Margins(score, nothing, torch.zeros(0, 0, dtype=torch.int64), decision.value, end != "none")
    limit = decision.value
    if end != "none":
        if NEAR <= limit <= 1:
            raise Unprovable(f"its threshold of {limit:g} is so near 1 that rounding decides who reaches it")
        if not 0 < limit < 1:  # everybody lies on one side
            return Margins(torch.zeros_like(score), torch.tensor([1.0 if limit <= 0 else -1.0]).double(), either)
        limit = math.log(limit) - math.log1p(-limit)
    return Margins(score, torch.tensor([-limit], dtype=torch.float64), either)


@dataclass(frozen=True)
class Halves:
    """Half-spaces of each box in which the decision is known: a line (n, features) and a constant for each."""

    slopes: Tensor  # (n, lines, features)
    at: Tensor  # (n, lines)
    guess: Tensor  # (n, lines) about which share lies above 0


@dataclass(frozen=True)
class MarginSigns:
    """What lines say about boxes."""

    fair: Tensor  # (n,) the whole box is decided alike
    unfair: Tensor  # (n,) the whole box is decided otherwise for some values
    alike: Halves  # of common lines, by signed margin; with a tolerance one
    flips: Halves  # of the two or more lines that must be positive for a flip
    undecided: Tensor  # (n, values or 1, margins) whose sign is not known


def look(question: Margins, space: Space, boxes: Boxes, lines: Lines, valid: Tensor) -> MarginSigns:
    """Return what lines say about boxes whose people may have the sensitive values `valid`, (n, values)."""
    least = space.least(boxes, lines.low.flatten(1, 2)).view(lines.low.shape[:3]) + lines.low_at
    most = lines.high_at - space.least(boxes, -lines.high.flatten(1, 2)).view(lines.high.shape[:3])
    below, below_at = _common(space, boxes, lines.low, lines.low_at, valid)
    above, above_at = _common(space, boxes, -lines.high, -lines.high_at, valid)  # below minus the margins
    if question.tolerance is not None:
        slopes, at = below + above, below_at + above_at + question.tolerance
        alike = _halves(space, boxes, slopes, at)
        fair = (space.least(boxes, slopes) + at)[:, 0] > 0
        off = ~valid[..., None]
        wide = least.masked_fill(off, -torch.inf).amax(1) - most.masked_fill(off, torch.inf).amin(1)
        unfair = (wide > question.tolerance)[:, 0]
        undecided = ~(fair | unfair)[:, None, None].expand(-1, 1, 1)
    else:
        fair, unfair = question._decided(torch.cat([least > 0, most < 0], -1), valid)
        alike = _halves(space, boxes, torch.cat([below, above], 1), torch.cat([below_at, above_at], 1))
        undecided = (least <= 0) & (most >= 0) & valid[..., None]
    return MarginSigns(fair, unfair, alike, _flips(question, space, boxes, lines, valid), undecided)


def _common(space: Space, boxes: Boxes, slopes: Tensor, at: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return one line below the lines of all valid values: (n, margins, features) and (n, margins)."""
    off = ~valid[..., None]
    if slopes.shape[1] == 1:
        return slopes[:, 0], at.masked_fill(off, torch.inf).amin(1)
    weight = valid.to(slopes.dtype)[..., None, None]
    mean = (slopes * weight).sum(1) / weight.sum(1)
    rest = space.least(boxes, (slopes - mean[:, None]).flatten(1, 2)).view(slopes.shape[:3])
    return mean, (at + rest).masked_fill(off, torch.inf).amin(1)


def _halves(space: Space, boxes: Boxes, slopes: Tensor, at: Tensor) -> Halves:
    mean, variance = space.moments(boxes, slopes)
    return Halves(slopes, at, _normal((mean + at) / variance.sqrt().clamp(min=SURE)))


def _flips(question: Margins, space: Space, boxes: Boxes, lines: Lines, valid: Tensor) -> Halves:
    """Return the lines of the likeliest flip: of one value that is surely of a class, and of one that surely is not."""
    n, k, q = lines.low_at.shape
    rows = torch.arange(n, device=lines.low.device)
    low, high = (t.expand(n, k, q, -1) for t in (lines.low, -lines.high))
    if question.tolerance is not None:
        off = ~valid
        mean = space.moments(boxes, low[:, :, 0])[0] + lines.low_at[..., 0]
        mean_high = -space.moments(boxes, high[:, :, 0])[0] + lines.high_at[..., 0]
        v = mean.masked_fill(off, -torch.inf).argmax(1)
        w = mean_high.masked_fill(off, torch.inf).argmin(1)
        slopes = (low[rows, v] + high[rows, w]).view(n, 1, -1)
        at = lines.low_at[rows, v] - lines.high_at[rows, w] - question.tolerance
        return _halves(space, boxes, slopes, at)
    guess = []
    for slopes, at in ((lines.low, lines.low_at), (-lines.high, -lines.high_at)):
        mean, variance = (m.view(slopes.shape[:3]) for m in space.moments(boxes, slopes.flatten(1, 2)))
        guess.append(_normal((mean + at) / variance.sqrt().clamp(min=SURE)))
    signed = torch.cat(guess, -1).masked_fill(~valid[..., None], -torch.inf)  # (n, values, 2 q)
    classes = question.classes.to(signed.device)
    rivals = classes.shape[1]
    sure = signed[..., classes].sum(-1) - (rivals - 1)
    never, which = signed[..., question.opposite(classes)].max(-1)
    best_sure, v = sure.max(1)  # (n, classes)
    best_never, w = never.max(1)
    c = (best_sure + best_never).argmax(1)
    v, w = v[rows, c], w[rows, c]
    needed = [(v, classes[c, r]) for r in range(rivals)]
    needed.append((w, question.opposite(classes[c, which[rows, w, c]])))
    needed_slopes, needed_at, shares = list[Tensor](), list[Tensor](), list[Tensor]()
    for value, number in needed:
        margin, upper = number % q, (number >= q)
        needed_slopes.append(torch.where(upper[:, None], high[rows, value, margin], low[rows, value, margin]))
        needed_at.append(torch.where(upper, -lines.high_at[rows, value, margin], lines.low_at[rows, value, margin]))
        shares.append(signed[rows, value, number])
    return Halves(torch.stack(needed_slopes, 1), torch.stack(needed_at, 1), torch.stack(shares, 1).clamp(min=0))


def _normal(x: Tensor) -> Tensor:
    return 0.5 * torch.erfc(-x / math.sqrt(2))
