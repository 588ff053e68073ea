"""Lines below and above a network over a box of people: CROWN, batched.

What a layer is given is bounded by lines that are carried back through all layers before it to the people's values.
The lines of an activation function hold between the bounds of what it is given (`activations.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from neuronfair.certify.activations import Relaxation, relax
from neuronfair.certify.bounds import Lines
from neuronfair.certify.space import Boxes, Space
from neuronfair.model.chain import Affine, Curve

NUMBERS = 1 << 19  # of the largest array of a pass on a CPU: what fits into its cache


class Way(NamedTuple):
    """Whether all sensitive values share bounds of the inner layers, and lines: looser and cheaper; how ReLUs bend."""

    inner: bool
    last: bool
    policy: str


WAYS = tuple(Way(*shared, policy) for policy in ("adaptive", "flat") for shared in ((True, True), (True, False), (False, False)))


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
        if not self.curves:
            return self._of_one_layer(boxes)
        if boxes.low.device.type != "cpu" or len(boxes) <= self._rows:
            return self._lines(boxes, known, WAYS[way])
        pieces = [slice(i, i + self._rows) for i in range(0, len(boxes), self._rows)]
        parts = [self._lines(boxes[p], None if known is None else known[p], WAYS[way]) for p in pieces]
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
        inner, last, _ = WAYS[way]
        values = len(self.start)
        return 1.0 if last else 1.0 + 0.2 * (values - 1) if inner else float(values)

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

    def _lines(self, boxes: Boxes, known: Tensor | None, way: Way) -> Lines:
        given, told = self._given(boxes, known, way)
        n, k = len(boxes), 1 if way.last else len(self.start)
        if way.inner and not way.last:  # bounds for each value where they cost little, in the first layer
            given = [self._first(boxes, False), *((low.repeat_interleave(k, 0), high.repeat_interleave(k, 0)) for low, high in given[1:])]
        relaxed = [relax(curve, low, high, way.policy) for curve, (low, high) in zip(self.curves, given, strict=True)]
        last = self.affines[-1]
        slopes, at, before = self._carried(relaxed, torch.cat([last.weight, -last.weight]))
        half = len(last.bias)
        at = (at + torch.cat([last.bias, -last.bias])).view(n, k, 2 * half) + self._starts(before, way.last)
        slopes = slopes.view(n, k, 2 * half, -1)
        return Lines(
            slopes[:, :, :half], at[..., :half] - self.slack, -slopes[:, :, half:], -at[..., half:] + self.slack, told
        )

    def _given(self, boxes: Boxes, known: Tensor | None, way: Way) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Return between which numbers the input of each activation lies, and that for all values together."""
        n, joint = len(boxes), way.inner
        k = 1 if joint else len(self.start)
        wide = boxes if joint else Boxes(boxes.low.repeat_interleave(k, 0), boxes.high.repeat_interleave(k, 0))
        given = [self._first(boxes, joint)]
        told: list[Tensor] = []
        relaxed: list[Relaxation] = []
        done = 0
        for number, affine in enumerate(self.affines[1:-1]):
            relaxed.append(relax(self.curves[number], *given[-1], way.policy))
            slopes, at, before = self._carried(relaxed, torch.cat([affine.weight, -affine.weight]))
            starts = self._starts(before, joint)
            least = self.space.least(wide, slopes) + at + (starts.amin(1) if joint else starts.flatten(0, 1))
            half = len(affine.bias)
            low = least[:, :half] + affine.bias - self.rounding[number + 1]
            high = affine.bias - least[:, half:] + self.rounding[number + 1]
            if known is not None:  # bounds of a larger box hold for all values
                mine = known[:, done : done + half].to(low.dtype)
                mine = mine if joint else mine.repeat_interleave(k, 0)
                low, high = torch.maximum(low, mine[..., 0]), torch.minimum(high, mine[..., 1])
                high = torch.maximum(low, high)
            done += half
            given.append((low, high))
            told.append(torch.stack([low.view(n, k, half).amin(1), high.view(n, k, half).amax(1)], -1))
        return given, torch.cat(told, 1) if told else boxes.low.new_zeros(n, 0, 2, dtype=self.start.dtype)

    def _first(self, boxes: Boxes, joint: bool) -> tuple[Tensor, Tensor]:
        """Return between which numbers the input of the first activation lies, for all values together or for each."""
        first = self.affines[0].weight
        both = self.space.least(boxes, torch.cat([first, -first]).expand(len(boxes), -1, -1))
        low, high = both[:, None, : len(first)], -both[:, None, len(first) :]
        lowest, highest = (self.start.amin(0)[None], self.start.amax(0)[None]) if joint else (self.start, self.start)
        return (low + lowest - self.rounding[0]).flatten(0, 1), (high + highest + self.rounding[0]).flatten(0, 1)

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
