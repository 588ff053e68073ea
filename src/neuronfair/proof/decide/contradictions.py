"""A proof against the model itself: people of its boxes are evaluated, and whoever contradicts it voids it.

A proof rests on how the model was read. So before it is used, the model as its users run it decides about random people
of the boxes, about the table's rows and about everybody that a search has found. Where a box is proved to hold no flip
and one is found in it, or the other way round, that is an error that names the person, the box and both statements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.errors import Contradiction
from neuronfair.model.blackbox import BlackBox, Model
from neuronfair.model.open import Opened
from neuronfair.proof.boxes.space import Boxes
from neuronfair.proof.decide.half_spaces import HalfSpaces
from neuronfair.proof.decide.strata import Drawing, valid_values
from neuronfair.proof.problem import Problem
from neuronfair.proof.result import Leaves, Proof
from neuronfair.proof.where import condition
from neuronfair.searches.evaluate import Evaluation, evaluate

EVALUATED = 20_000  # people of boxes, and as many rows, with all their twins; fewer where there are many twins
MEMBERS = 200_000  # people and twins together
ASKED = 2_000  # people about whom the source of a rebuilt model is asked
ROUNDED = 1e-4  # of the scores: so near to the boundary a model in float32 may decide otherwise than in float64
EXACT = 1e-9  # the same for float64
LINES = 4_096  # boxes of which a part is proved whose lines are computed again
FEW = 64  # boxes that are compared with each person
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class EvaluatedPeople:
    """People who were evaluated, and why."""

    what: str
    rows: Tensor


def check_against_model(
    subject: Problem, proof: Proof, opened: Opened | Model, seen: Sequence[EvaluatedPeople] = ()
) -> None:
    """Refuse a proof that the model contradicts: on people drawn from its boxes, or on those seen elsewhere."""
    model = opened.model if isinstance(opened, Opened) else opened
    values = len(subject.domain.sensitive_values)
    most = max(1, min(EVALUATED, MEMBERS // values))
    claims = _Claims.of(subject, proof.leaves)
    models: list[tuple[Model, float, int]] = [(model, ROUNDED, most)]
    if not isinstance(model, BlackBox):
        models.append((model.double(), EXACT, most))
    if isinstance(opened, Opened) and opened.original is not None:
        models.append((BlackBox(opened.original, model.encoding), ROUNDED, max(1, min(ASKED, most))))
    for found in (*seen, EvaluatedPeople("drawn at random", claims.drawn(most))):
        rows = found.rows.cpu().long()
        rows = rows[torch.from_numpy(np.random.default_rng(0).permutation(len(rows))[:most])]
        box = claims.located(rows)
        claimed = claims.of_people(rows[box >= 0], box[box >= 0])
        for asked, near, count in models:
            claims.compare(asked, claimed.first(count), near, found.what)


@dataclass(frozen=True)
class _Claimed:
    """People of whom something is claimed: their boxes, and whether it is that their decision does not flip."""

    rows: Tensor
    box: Tensor
    fair: Tensor  # bool; the others' flips

    def first(self, count: int) -> _Claimed:
        return _Claimed(self.rows[:count], self.box[:count], self.fair[:count])


@dataclass(frozen=True)
class _Claims:
    """What is claimed of each box: how many of its people flip, at least and at most."""

    subject: Problem
    boxes: Boxes
    inside: Tensor  # (n, values) the sensitive values of the people of the region in each box
    people: list[int]
    leaves: Leaves

    @staticmethod
    def of(subject: Problem, leaves: Leaves) -> _Claims:
        boxes = Boxes(torch.from_numpy(leaves.low).long(), torch.from_numpy(leaves.high).long())
        inside = valid_values(subject, boxes) & subject.people.inside.any(0).cpu()
        sizes = subject.space.sizes(boxes.to(subject.device)).cpu().numpy().astype(object)
        people = (sizes.prod(1) * inside.sum(1).numpy().astype(object)).tolist() if len(boxes) else []
        return _Claims(subject, boxes, inside, people, leaves)

    @cached_property
    def fair(self) -> Tensor:
        """Which boxes are proved fair as a whole."""
        return torch.tensor([a == b > 0 for a, b in zip(self.leaves.fair, self.people, strict=True)])

    @cached_property
    def flips(self) -> Tensor:
        """Which boxes are proved discriminatory as a whole."""
        return torch.tensor([a == b > 0 for a, b in zip(self.leaves.discriminatory, self.people, strict=True)])

    def drawn(self, most: int) -> Tensor:
        """Return people of boxes of which something is proved, of every one if there are not too many."""
        claims = zip(self.leaves.fair, self.leaves.discriminatory, self.people, strict=True)
        proved = torch.tensor([people > 0 and fair + flips > 0 for fair, flips, people in claims]).nonzero()[:, 0]
        if not len(proved):
            return torch.empty(0, len(self.subject.domain.attributes), dtype=torch.int64)
        draw = np.random.default_rng(0)
        if len(proved) > most:
            proved = proved[torch.from_numpy(draw.permutation(len(proved))[:most])]
        chosen = proved.repeat_interleave(max(1, most // len(proved)))
        return Drawing(self.subject).people(self.boxes[chosen], self.inside[chosen], draw)

    def of_people(self, rows: Tensor, box: Tensor) -> _Claimed:
        """Return those of whom something is claimed: by their whole box, or by the lines that hold in it."""
        fair, flips = self.fair[box], self.flips[box]
        partly = torch.tensor([fair > 0 for fair in self.leaves.fair])[box] & ~fair & ~flips
        if self.subject.bounder is not None and bool(partly.any()):
            chosen = torch.unique(box[partly])[:LINES]
            slabs = HalfSpaces.of(self.subject, self.boxes, valid_values(self.subject, self.boxes), chosen)
            fair |= partly & slabs.decided(box, rows)
        claimed = fair | flips
        return _Claimed(rows[claimed], box[claimed], fair[claimed])

    def located(self, rows: Tensor) -> Tensor:
        """Return the number of each person's box; -1 outside the region."""
        domain, axes = self.subject.domain, self.subject.space.axes
        known = ((rows >= 0) & (rows < domain.sizes.cpu())).all(1)
        known &= domain.valid(torch.where(known[:, None], rows, 0))
        places = torch.stack([axis.place.cpu()[torch.where(known, rows[:, axis.column], 0)] for axis in axes], 1)
        inside = (known & (places >= 0).all(1)).nonzero()[:, 0]
        result = np.full(len(rows), -1)
        low, high = self.boxes.low.numpy(), self.boxes.high.numpy()
        for some, boxes in _found(places[inside].numpy(), low, high):
            result[inside.numpy()[some]] = boxes
        return torch.from_numpy(result)

    def compare(self, model: Model, claimed: _Claimed, near: float, what: str) -> None:
        """Refuse what is claimed of people where a model decides otherwise about them."""
        if not len(claimed.rows):
            return
        domain = self.subject.domain.to(model.encoding.device)
        found = evaluate(model, domain, claimed.rows.to(domain.device), self.subject.decision)
        flip, alike = (part.cpu() for part in _surely(found, near))
        wrong = torch.where(claimed.fair, flip, alike)
        if bool(wrong.any()):
            number = int(wrong.nonzero()[0, 0])
            raise self._error(found[number : number + 1], int(claimed.box[number]), bool(flip[number]), what)

    def _error(self, found: Evaluation, box: int, flips: bool, what: str) -> Contradiction:
        domain = self.subject.domain
        pair = found.pairs()
        person = ", ".join(f"{a.name} {a.value(int(c))}" for a, c in zip(domain.attributes, pair.rows[0], strict=True))
        other = ", ".join(
            f"{domain.attributes[column].name} {domain.attributes[column].value(int(pair.twins[0, column]))}"
            for column in domain.sensitive_columns
        )
        numbers = [", ".join(f"{score:.6g}" for score in scores[0].tolist()) for scores in pair[2:]]
        says = "gets another decision" if flips else "gets the same decision"
        proved = "nobody's decision flips" if flips else "everybody's decision flips"
        return Contradiction(
            f"the proof and the model contradict each other, so the proof is void. Proved: where {self.rule(box)}, "
            f"{proved}. But the model says of a person there ({what}): {person}, scores {numbers[0]}; with {other} "
            f"it {says}, scores {numbers[1]}. The model was misread, or answers differently from call to call: please "
            "report this"
        )

    def rule(self, box: int) -> str:
        """Return a box as a condition."""
        parts = []
        for number, axis in enumerate(self.subject.space.axes):
            low, high = int(self.boxes.low[box, number]), int(self.boxes.high[box, number])
            place = axis.place.cpu()
            parts.append(condition(self.subject.domain.attributes[axis.column], (place >= low) & (place <= high)))
        return " and ".join(filter(None, (self.subject.where, *parts))) or "anything"


def _surely(found: Evaluation, near: float) -> tuple[Tensor, Tensor]:
    """Return who is surely decided otherwise than a twin, and who surely alike, by scores that are right but for a bit.

    `near` is that bit, in parts of the largest score of a family, or of 1.
    """
    decision, family = found.decision, found.family.double()
    exists = torch.cat([torch.ones_like(found.valid[:, :1]), found.valid], 1)
    bit = near * family.abs().amax((1, 2)).clamp(min=1.0)
    if decision.kind == "tolerance":
        score = family[..., -1]
        wide = score.masked_fill(~exists, -torch.inf).amax(1) - score.masked_fill(~exists, torch.inf).amin(1)
        return wide > decision.value + 2 * bit, wide < decision.value - 2 * bit
    if decision.kind == "argmax":
        best = family.topk(2, -1).values
        margin = best[..., 0] - best[..., 1]
    else:
        margin = (family[..., -1] - decision.value).abs()
    sure = (margin > 2 * bit[:, None]) & exists
    chosen = decision.chosen(family)
    highest = chosen.masked_fill(~sure, -1).amax(1)
    lowest = chosen.masked_fill(~sure, 1 << 30).amin(1)
    return highest > lowest, (sure | ~exists).all(1) & (highest == lowest)


def _found(points: Numbers, low: Numbers, high: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield the numbers of some points and of the boxes that hold them; boxes do not overlap."""
    waiting = [(np.arange(len(points)), np.arange(len(low)))]
    while waiting:
        some, boxes = waiting.pop()
        if not len(some) or not len(boxes):
            continue
        cut = _cut(low[boxes], high[boxes]) if len(boxes) > FEW else None
        if cut is None:
            for part in np.array_split(some, -(-len(some) * len(boxes) // (1 << 20))):
                held = (points[part, None] >= low[boxes]) & (points[part, None] <= high[boxes])
                point, box = np.nonzero(held.all(2))
                yield part[point], boxes[box]
            continue
        axis, last = cut
        below = points[some, axis] <= last
        waiting.append((some[below], boxes[low[boxes, axis] <= last]))
        waiting.append((some[~below], boxes[high[boxes, axis] > last]))


def _cut(low: Numbers, high: Numbers) -> tuple[int, int] | None:
    """Return an axis and a place behind which to cut boxes, so that both sides have few; None where no cut helps."""
    best, result = len(low), None
    for axis in range(low.shape[1]):
        last = int(np.median(high[:, axis]))
        for place in (last, last - 1):
            larger = max(int((low[:, axis] <= place).sum()), int((high[:, axis] > place).sum()))
            if larger < best:
                best, result = larger, (axis, place)
    return result
