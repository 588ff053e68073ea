"""How often the decision flips where a part is proved: only the rest is sampled, and the interval is exact as ever.

The boxes of a proof are two strata: those in which everybody is decided, whose discriminatory people are known, and the
others, from which people are drawn uniformly. With d discriminatory people in the first, m people in the second and n
in all, the rate is (d + q m) / n, where q is the share of discriminatory people in the second; so an exact interval of
q is one of the rate, m / n times as wide. Never wider than that of as many people drawn from everybody, so there is
nothing to choose. What is proved inside the boxes of the second stratum bounds the rate for certain.

Where half-spaces prove much of those boxes, more people are drawn than are judged: those whom the lines of their box
decide are fair, and only the others are judged. Then q = p r, with p the share of the others, and r that of the
discriminatory people among them; both have exact intervals, which hold together (Bonferroni).
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

from neuronfair.measure.rate import Rate
from neuronfair.model.blackbox import Model
from neuronfair.model.encoding import ROWS_PER_PASS, families
from neuronfair.proof.boxes.people import exact_count
from neuronfair.proof.boxes.space import Axis, Boxes
from neuronfair.proof.decide.half_spaces import HalfSpaces
from neuronfair.proof.problem import Problem, rows_at
from neuronfair.proof.result import Leaves, Proof
from neuronfair.searches.evaluate import evaluate

DRAWN = 1 << 15  # people that are drawn at once
MOST_TIMES = 20  # as many people are drawn as are judged, at most
MOST_LINES = 20_000  # boxes whose lines are asked


@dataclass(frozen=True)
class StrataRate:
    """The share of discriminatory people of a region, of which a part is proved and the rest was sampled."""

    people: int  # of the region
    fair: int  # proved, at least
    discriminatory: int  # proved, at least
    settled: int  # discriminatory people of the boxes in which everybody is decided
    left: int  # people of the other boxes
    sample: Rate | None  # of people drawn uniformly from these and judged; None where nobody was
    judged: Rate | None = None  # how many of the people drawn had to be judged; None: all

    @property
    def rate(self) -> float:
        """The share: what is proved, and for the rest what was found."""
        return self._share(self.sample.rate * self.part if self.sample is not None else 0.0)

    @property
    def interval(self) -> tuple[float, float]:
        """The interval that holds the true share with the confidence of the sample; a point where all is proved."""
        low, high = self.sample.interval if self.sample is not None else (0.0, 1.0)
        least, most = self.judged.interval if self.judged is not None else (1.0, 1.0)
        return self._share(low * least), self._share(high * most)

    @property
    def part(self) -> float:
        """The share of the people left that those who were judged stand for, about."""
        return 1.0 if self.judged is None else self.judged.rate

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
    subject: Problem,
    proof: Proof,
    *,
    samples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> StrataRate:
    """Return how often the decision flips among the people of a proof, from so many people of boxes not all decided."""
    rest = Rest.of(subject, proof.leaves)
    known = proof.people, proof.fair, proof.discriminatory, rest.settled, rest.people
    if not rest.people:
        return StrataRate(*known, None)
    slabs = rest.slabs
    times = 1 if slabs is None else min(MOST_TIMES, rest.people // max(1, rest.people - sum(rest.fair)))
    draw, kept = rest.drawn(seed), list[Tensor]()
    for part in torch.split(torch.arange(samples * times), DRAWN):
        boxes, rows = draw(len(part))
        kept.append(rows if slabs is None else rows[~slabs.decided(boxes, rows)])
    people = torch.cat(kept)
    judged = None if slabs is None else Rate(len(people), samples * times, "domain", confidence, 2)
    people, found = people[:samples], 0
    parts = families(model.encoding, subject.domain, people)[0] if len(people) else ()
    domain, done = subject.domain.to(model.encoding.device), 0
    for rows in parts:
        found += int(evaluate(model, domain, rows.to(domain.device), subject.decision).discriminates.sum())
        done += len(rows)
        if progress:
            progress(done, len(people))
    sample = Rate(found, done, "domain", confidence, 1 if judged is None else 2) if done else None
    return StrataRate(*known, sample, judged)


@dataclass(frozen=True)
class Rest:
    """The boxes of a proof in which not everybody is decided."""

    subject: Problem
    boxes: Boxes
    valid: Tensor  # (n, values) which sensitive values their people and these people's twins may have
    inside: Tensor  # (n, values) and which of those belong to the region
    count: list[int]  # how many people each has
    fair: list[int]  # and how many of them are proved to be decided alike, at least
    settled: int  # discriminatory people of the boxes that are not among these

    @staticmethod
    def of(subject: Problem, leaves: Leaves) -> Rest:
        """Return the boxes that are left, of all boxes of a proof."""
        boxes = Boxes(torch.from_numpy(leaves.low).long(), torch.from_numpy(leaves.high).long())
        valid = valid_values(subject, boxes)
        inside = valid & subject.people.inside.any(0).cpu()
        space = subject.space
        small = exact_count(space.axes) * valid.shape[1] < 2**62
        kind = np.int64 if small else object
        sizes = space.sizes(boxes.to(space.device)).cpu().numpy().astype(kind)
        people = sizes.prod(1) * inside.sum(1).numpy().astype(kind)
        unfair = np.array(leaves.discriminatory, dtype=kind)
        fair = np.array(leaves.fair, dtype=kind)
        whole = (people == fair + unfair).astype(bool)
        left = torch.from_numpy(~whole)
        counts = people[~whole].tolist(), fair[~whole].tolist()
        return Rest(subject, boxes[left], valid[left], inside[left], *counts, int(unfair[whole].sum()))

    @cached_property
    def people(self) -> int:
        """How many people they have together."""
        return sum(self.count)

    @cached_property
    def slabs(self) -> HalfSpaces | None:
        """The lines of the boxes in which they decide the most people; None where they decide few."""
        if 2 * sum(self.fair) < self.people or self.subject.bounder is None:
            return None
        share = torch.tensor([fair / self.people for fair in self.fair], dtype=torch.float64)
        chosen = share.argsort(descending=True)[:MOST_LINES]
        return HalfSpaces.of(self.subject, self.boxes, self.valid, chosen[share[chosen] > 0])

    def drawn(self, seed: int) -> Callable[[int], tuple[Tensor, Tensor]]:
        """Return what draws so many people uniformly and independently: the number of their box, and rows of codes."""
        choose, draw = random.Random(seed), np.random.default_rng(seed)
        ends = list(accumulate(self.count))
        drawing = Drawing(self.subject)

        def drawn(n: int) -> tuple[Tensor, Tensor]:
            chosen = torch.tensor([bisect_right(ends, choose.randrange(ends[-1])) for _ in range(n)])
            return chosen, drawing.people(self.boxes[chosen], self.inside[chosen], draw)

        return drawn


class Drawing:
    """Draws people of boxes."""

    def __init__(self, subject: Problem) -> None:
        self._domain, self._axes = subject.domain, subject.space.axes
        self._columns = [_Column.of(axis) for axis in self._axes]

    def people(self, boxes: Boxes, inside: Tensor, draw: np.random.Generator) -> Tensor:
        """Return one person of each box, uniformly; `inside` says which sensitive values it may have, (n, values)."""
        result = torch.empty(len(boxes), len(self._domain.attributes), dtype=torch.int64)
        for number, (axis, column) in enumerate(zip(self._axes, self._columns, strict=True)):
            first, last = column.before[boxes.low[:, number]], column.before[boxes.high[:, number] + 1]
            result[:, axis.column] = column.codes[torch.from_numpy(draw.integers(first, last))]
        which = torch.from_numpy(draw.integers(0, inside.sum(1).numpy()))
        value = (inside.cumsum(1) > which[:, None]).int().argmax(1)  # the first that has so many before it
        result[:, list(self._domain.sensitive_columns)] = self._domain.sensitive_values.cpu()[value]
        return result


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


def valid_values(subject: Problem, boxes: Boxes) -> Tensor:
    """Return which sensitive values there are in each box: those of one person, since all are alike."""
    domain, values = subject.domain, len(subject.domain.sensitive_values)
    if not domain.rules:
        return torch.ones(len(boxes), values, dtype=torch.bool)
    parts = []
    for low in torch.split(boxes.low, max(1, ROWS_PER_PASS // values)):
        rows = rows_at(domain, subject.space, low)
        parts.append(domain.valid(rows.flatten(0, 1)).view(len(low), -1))
    return torch.cat(parts)
