"""How often the decision flips where a part is proved: only the rest is sampled, and the interval is exact as ever.

The boxes of a proof are two strata: those in which everybody is decided, whose discriminatory people are known, and the
others, from which people are drawn uniformly. With d discriminatory people in the first, m people in the second and n
in all, the rate is (d + q m) / n, where q is the share of discriminatory people in the second; so an exact interval of
q is one of the rate, m / n times as wide. Never wider than that of as many people drawn from everybody, so there is
nothing to choose. What is proved inside the boxes of the second stratum bounds the rate for certain.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from neuronfair.certify.people import exact_count
from neuronfair.certify.proof import Leaves, Proof
from neuronfair.certify.space import Axis, Boxes
from neuronfair.certify.subject import Subject, rows_at
from neuronfair.measure.rate import Rate
from neuronfair.model.blackbox import Model
from neuronfair.model.encoding import ROWS_PER_PASS, families
from neuronfair.search.judge import judge


@dataclass(frozen=True)
class StrataRate:
    """The share of discriminatory people of a region, of which a part is proved and the rest was sampled."""

    people: int  # of the region
    fair: int  # proved, at least
    discriminatory: int  # proved, at least
    settled: int  # discriminatory people of the boxes in which everybody is decided
    left: int  # people of the other boxes
    sample: Rate | None  # of people drawn uniformly from these; None where there is nobody

    @property
    def rate(self) -> float:
        """The share: what is proved, and for the rest what was found."""
        return self._share(self.sample.rate if self.sample is not None else 0.0)

    @property
    def interval(self) -> tuple[float, float]:
        """The interval that holds the true share with the confidence of the sample; a point where all is proved."""
        low, high = self.sample.interval if self.sample is not None else (0.0, 0.0)
        return self._share(low), self._share(high)

    @property
    def error(self) -> float:
        """Half the width of the interval."""
        low, high = self.interval
        return (high - low) / 2

    def _share(self, q: float) -> float:
        count = self.settled + Fraction(q) * self.left
        return float(min(max(count, Fraction(self.discriminatory)), Fraction(self.people - self.fair)) / self.people)


def strata_rate(
    model: Model,
    subject: Subject,
    proof: Proof,
    *,
    samples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> StrataRate:
    """Return how often the decision flips among the people of a proof, from so many people of boxes not all decided."""
    rest = Rest.of(subject, proof.leaves)
    sample = None
    if rest.people:
        found, draw = 0, rest.drawn(seed)
        for part in families(model.encoding, subject.domain, torch.arange(samples))[0]:
            rows = draw(len(part)).to(model.encoding.device)
            found += int(judge(model, subject.domain.to(rows.device), rows, subject.decision).discriminates.sum())
            if progress:
                progress(int(part[-1]) + 1, samples)
        sample = Rate(found, samples, "domain", confidence)
    return StrataRate(proof.people, proof.fair, proof.discriminatory, rest.settled, rest.people, sample)


@dataclass(frozen=True)
class Rest:
    """The boxes of a proof in which not everybody is decided."""

    subject: Subject
    boxes: Boxes
    valid: Tensor  # (n, values) which sensitive values their people may have
    count: list[int]  # how many people each has
    settled: int  # discriminatory people of the boxes that are not among these

    @staticmethod
    def of(subject: Subject, leaves: Leaves) -> Rest:
        """Return the boxes that are left, of all boxes of a proof."""
        boxes = Boxes(torch.from_numpy(leaves.low).long(), torch.from_numpy(leaves.high).long())
        valid = _valid(subject, boxes)
        space = subject.space
        small = exact_count(space.axes) * valid.shape[1] < 2**62
        kind = np.int64 if small else object
        sizes = space.sizes(boxes.to(space.device)).cpu().numpy().astype(kind)
        people = sizes.prod(1) * valid.sum(1).numpy().astype(kind)
        unfair = np.array(leaves.discriminatory, dtype=kind)
        whole = people == np.array(leaves.fair, dtype=kind) + unfair
        left = torch.from_numpy(~whole.astype(bool))
        return Rest(subject, boxes[left], valid[left], people[~whole].tolist(), int(unfair[whole].sum()))

    @cached_property
    def people(self) -> int:
        """How many people they have together."""
        return sum(self.count)

    def drawn(self, seed: int) -> Callable[[int], Tensor]:
        """Return what draws so many people uniformly and independently, as rows of codes."""
        choose, draw = random.Random(seed), np.random.default_rng(seed)
        ends = list(accumulate(self.count))
        domain, axes = self.subject.domain, self.subject.space.axes
        columns = [_Column.of(axis) for axis in axes]

        def rows(n: int) -> Tensor:
            chosen = torch.tensor([bisect_right(ends, choose.randrange(ends[-1])) for _ in range(n)])
            low, high, valid = self.boxes.low[chosen], self.boxes.high[chosen], self.valid[chosen]
            result = torch.empty(n, len(domain.attributes), dtype=torch.int64)
            for number, (axis, column) in enumerate(zip(axes, columns, strict=True)):
                first, last = column.before[low[:, number]], column.before[high[:, number] + 1]
                result[:, axis.column] = column.codes[torch.from_numpy(draw.integers(first, last))]
            which = torch.from_numpy(draw.integers(0, valid.sum(1).numpy()))
            value = (valid.cumsum(1) > which[:, None]).int().argmax(1)  # the first that has so many before it
            result[:, list(domain.sensitive_columns)] = domain.sensitive_values.cpu()[value]
            return result

        return rows


@dataclass(frozen=True)
class _Column:
    """The codes of an axis in the order of their places, and how many stand before each place."""

    codes: Tensor
    before: np.ndarray

    @staticmethod
    def of(axis: Axis) -> _Column:
        order = axis.place.cpu().argsort(stable=True)
        counts = axis.count.cpu().numpy() if not axis.linear else np.ones(len(axis), dtype=np.int64)
        inside = order[len(order) - int(counts.sum()) :]  # those outside the region stand first
        return _Column(inside, np.concatenate([[0], counts.cumsum()]))


def _valid(subject: Subject, boxes: Boxes) -> Tensor:
    """Return which sensitive values the people of each box may have: those of one of them, since all are alike."""
    domain, inside = subject.domain, subject.people.inside.any(0).cpu()
    if not domain.rules:
        return inside.expand(len(boxes), -1)
    parts = []
    for low in torch.split(boxes.low, max(1, ROWS_PER_PASS // len(inside))):
        rows = rows_at(domain, subject.space, low)
        parts.append(domain.valid(rows.flatten(0, 1)).view(len(low), -1) & inside)
    return torch.cat(parts)
