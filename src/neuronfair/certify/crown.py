"""Lines below and above a network over a box of people: CROWN, batched.

What a layer is given is bounded by lines that are carried back through all layers before it to the people's values.
The lines of an activation function hold between the bounds of what it is given (`activations.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from neuronfair.certify.activations import Relaxation, relax
from neuronfair.certify.bounds import Lines
from neuronfair.certify.space import Boxes, Space
from neuronfair.model.chain import Affine, Curve

NUMBERS = 1 << 19  # of the largest array of a pass on a CPU: what fits into its cache
# Whether all sensitive values share one relaxation, which is looser and cheaper; and how a ReLU is bounded from below.
WAYS = ((True, "adaptive"), (False, "adaptive"), (True, "flat"), (False, "flat"))


@dataclass(frozen=True)
class Crown:
    """A network over the features of a space. `start` is what its first layer adds for each sensitive value."""

    space: Space
    affines: tuple[Affine, ...]  # the first from features, the last to margins
    start: Tensor  # (values, neurons of the first layer)
    curves: tuple[Curve, ...]
    rounding: tuple[Tensor, ...]  # per layer, the margins last: how far its numbers may be off
    ways: int = len(WAYS)

    def lines(self, boxes: Boxes, known: Tensor | None = None, way: int = 0) -> Lines:
        """Return lines for all margins over boxes."""
        joint, policy = WAYS[way]
        if not self.curves:
            return self._of_one_layer(boxes)
        if boxes.low.device.type != "cpu" or len(boxes) <= self._rows:
            return self._lines(boxes, known, joint, policy)
        pieces = [slice(i, i + self._rows) for i in range(0, len(boxes), self._rows)]
        parts = [self._lines(boxes[p], None if known is None else known[p], joint, policy) for p in pieces]
        low, low_at, high, high_at, inner = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("low", "low_at", "high", "high_at", "inner")
        )
        return Lines(low, low_at, high, high_at, inner)

    @cached_property
    def _rows(self) -> int:
        """How many boxes go through at once on a CPU."""
        widest = max((2 * a.weight.shape[0] * a.weight.shape[1] for a in self.affines[1:]), default=1)
        return max(16, NUMBERS // widest)

    def cost(self, way: int) -> float:
        """Return about how long a way takes: as long for each value as for all of them together."""
        return 1.0 if WAYS[way][0] else float(len(self.start))

    @property
    def slack(self) -> Tensor:
        """How far the margins may be off by rounding."""
        return self.rounding[-1]

    def margins(self, places: Tensor) -> Tensor:
        """Return the margins of people at places, with every sensitive value."""
        first, space = self.affines[0].weight, self.space
        x = places[:, space.linear].to(first.dtype) @ first[:, space.slopes].T
        for axis, begin, _ in space.tables:
            x = x + first.T[begin + places[:, axis]]
        x = x[:, None] + self.start
        for curve, affine in zip(self.curves, self.affines[1:], strict=True):
            x = affine(curve(x))
        return x

    def _of_one_layer(self, boxes: Boxes) -> Lines:
        n, k = len(boxes), len(self.start)
        slopes = self.affines[0].weight.expand(n, 1, -1, -1)
        at = self.start.expand(n, k, -1)
        return Lines(slopes, at - self.slack, slopes, at + self.slack, slopes.new_zeros(n, 0, 2))

    def _lines(self, boxes: Boxes, known: Tensor | None, joint: bool, policy: str) -> Lines:
        n, k = len(boxes), 1 if joint else len(self.start)
        first = self.affines[0].weight
        both = self.space.least(boxes, torch.cat([first, -first]).expand(n, -1, -1))
        low, high = both[:, : len(first)], -both[:, len(first) :]
        lowest, highest = (self.start.amin(0)[None], self.start.amax(0)[None]) if joint else (self.start, self.start)
        low, high = (low[:, None] + lowest).flatten(0, 1), (high[:, None] + highest).flatten(0, 1)  # (n · k, neurons)
        low, high = low - self.rounding[0], high + self.rounding[0]
        wide = boxes if joint else Boxes(boxes.low.repeat_interleave(k, 0), boxes.high.repeat_interleave(k, 0))
        relaxed: list[Relaxation] = []
        inner: list[Tensor] = []
        done = 0
        for number, curve in enumerate(self.curves):
            relaxed.append(relax(curve, low, high, policy))
            weight, bias = self.affines[number + 1].weight, self.affines[number + 1].bias
            signed = torch.cat([weight, -weight])
            slopes, at, before = self._carried(relaxed, signed)
            at = at + torch.cat([bias, -bias])
            half = len(weight)
            if number + 1 == len(self.curves):
                break
            starts = self._starts(before, joint)
            least = self.space.least(wide, slopes) + at + (starts.amin(1) if joint else starts.flatten(0, 1))
            low = least[:, :half] - self.rounding[number + 1]
            high = -least[:, half:] + self.rounding[number + 1]
            if known is not None:  # bounds of a larger box hold for all values
                mine = known[:, done : done + half].to(low.dtype)
                mine = mine if joint else mine.repeat_interleave(k, 0)
                low, high = torch.maximum(low, mine[..., 0]), torch.minimum(high, mine[..., 1])
                high = torch.maximum(low, high)
            done += half
            told = torch.stack([low.view(n, k, half).amin(1), high.view(n, k, half).amax(1)], -1)
            inner.append(told)
        at = at.view(n, k, 2 * half) + self._starts(before, joint)  # (n, values, lines)
        slopes = slopes.view(n, k, 2 * half, -1)
        told = torch.cat(inner, 1) if inner else low.new_zeros(n, 0, 2)
        return Lines(
            slopes[:, :, :half], at[..., :half] - self.slack, -slopes[:, :, half:], -at[..., half:] + self.slack, told
        )

    def _carried(self, relaxed: Sequence[Relaxation], slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return lines below combinations (lines, neurons) of the last layer's activations.

        That is: slopes by feature, constants, and slopes by the first layer's neurons, without the constants that
        these are given (`start`).
        """
        at: Tensor = slopes.new_zeros(1)
        for number in reversed(range(len(relaxed))):
            r = relaxed[number]
            up, down = slopes.clamp(min=0), slopes.clamp(max=0)
            if slopes.dim() == 2:
                at = r.low_at @ up.T + r.high_at @ down.T
            else:
                at = at + (down @ r.high_at[..., None] + up @ r.low_at[..., None])[..., 0]
            slopes = torch.addcmul(up * r.low[:, None], down, r.high[:, None])
            if number:
                affine = self.affines[number]
                at = at + slopes @ affine.bias
                slopes = slopes @ affine.weight
        return slopes @ self.affines[0].weight, at, slopes

    def _starts(self, before: Tensor, joint: bool) -> Tensor:
        """Return what each value adds to lines, by their slopes by the first layer's neurons: (n, values, lines)."""
        if joint:
            return (before @ self.start.T).transpose(1, 2)
        return (before.view(-1, len(self.start), *before.shape[1:]) @ self.start[..., None])[..., 0]
