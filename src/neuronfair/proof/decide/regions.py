"""Regions: boxes around single records, grown as large as they stay proved, and written as a rule."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.schema.toml import allowed_codes, written
from neuronfair.errors import DomainError
from neuronfair.proof.bounds.margins import box_signs
from neuronfair.proof.boxes.space import Boxes
from neuronfair.proof.decide.counts import can_enumerate, enumerated_people, varied
from neuronfair.proof.problem import Problem, unread

NUMBERS = 1 << 24  # of the lines of boxes that are bounded at once
LISTED = 4_096  # combinations of places up to which records are enumerated where there are no bounds
STEPS = 6  # of different lengths that are tried in each direction at once
VOLUME = 1e-6  # how much volume counts beside records when a region grows


@dataclass(frozen=True)
class Grower:
    """Grows regions. `places` are those of records that show where most are: (n, axes)."""

    problem: Problem
    places: Tensor

    def grown(self, place: Tensor, *, fair: bool) -> Boxes | None:
        """Return a box around a place in which every decision is proved fair, or all to flip; None if none is.

        In each round the box takes the step that gains most records, by how many have such values on that axis alone.
        What is not proved of a smaller box is not tried again with a larger one.
        """
        box = Boxes(place[None].clone(), place[None].clone())
        if not bool(self.proved(box, fair=fair)):
            return None
        whole = self.problem.space.everything()
        limit = torch.stack([whole.low[0], whole.high[0]])  # how far each end may go: (2, axes)
        while True:
            end, axis, target = self._steps(box, limit)
            if not len(end):
                return box
            low, high = (part.repeat(len(end), 1) for part in (box.low, box.high))
            number = torch.arange(len(end), device=end.device)
            low[number[end == 0], axis[end == 0]] = target[end == 0]
            high[number[end == 1], axis[end == 1]] = target[end == 1]
            tried = Boxes(low, high)
            proved = self.proved(tried, fair=fair)
            for e, a, last in torch.stack([end, axis, target], 1)[~proved].tolist():
                limit[e, a] = max(int(limit[e, a]), last + 1) if e == 0 else min(int(limit[e, a]), last - 1)
            if bool(proved.any()):
                best = int(self.mass(tried).masked_fill(~proved, -torch.inf).argmax())
                box = tried[slice(best, best + 1)]

    def proved(self, boxes: Boxes, *, fair: bool) -> Tensor:
        """Return of which boxes it is proved that no decision in them flips, or that all do: bool (n,)."""
        owner, pieces, pattern = self.pieces(boxes)
        problem = self.problem
        alone = (problem.people.valid[pattern].sum(1) < 2) | unread(problem.domain)  # they have no other twin
        found = alone & fair
        size = len(problem.domain.sensitive_values) * (problem.space.features + len(problem.space.axes))
        for some in torch.split((~alone).nonzero()[:, 0], max(1, NUMBERS // size)):
            found[some] = self._proved(pieces[some], pattern[some], fair)
        failed = torch.zeros(len(boxes), device=owner.device).index_add_(0, owner, (~found).float())
        return failed == 0

    def _proved(self, boxes: Boxes, pattern: Tensor, fair: bool) -> Tensor:
        problem, bounder = self.problem, self.problem.bounder
        if bounder is None:
            few = can_enumerate(problem.space, boxes, LISTED)
            counts = enumerated_people(problem, boxes[few], pattern[few])[0 if fair else 1]
            found = torch.zeros(len(boxes), dtype=torch.bool, device=few.device)
            found[few] = counts.double() == varied(problem.space, boxes[few])
            return found
        lines = bounder.lines(boxes, way=bounder.ways - 1)
        signs = box_signs(problem.margins, problem.space, boxes, lines, problem.people.valid[pattern])
        if not fair:
            return signs.unfair
        return signs.fair if lines.same is None else signs.fair | lines.same

    def pieces(self, boxes: Boxes) -> tuple[Tensor, Boxes, Tensor]:
        """Return the parts of boxes whose records may have the same sensitive values: whose they are, and patterns."""
        people = self.problem.people
        owners, lows, highs, patterns = list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor]()
        step = max(1, (1 << 22) // (len(people.boxes) * boxes.low.shape[1]))
        for begin in range(0, len(boxes), step):
            part = boxes[slice(begin, begin + step)]
            low = torch.maximum(part.low[:, None], people.boxes.low)
            high = torch.minimum(part.high[:, None], people.boxes.high)
            owner, root = ((low <= high).all(2) & people.inside[people.pattern].any(1)).nonzero(as_tuple=True)
            owners.append(owner + begin)
            lows.append(low[owner, root])
            highs.append(high[owner, root])
            patterns.append(people.pattern[root])
        return torch.cat(owners), Boxes(torch.cat(lows), torch.cat(highs)), torch.cat(patterns)

    def _steps(self, box: Boxes, limit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return steps of different lengths in all directions: which end moves, on which axis, and to which place."""
        here = torch.stack([box.low[0], box.high[0]])
        room = torch.stack([here[0] - limit[0], limit[1] - here[1]]).clamp(min=0)
        lengths = torch.stack([*((room / 2**i).ceil() for i in range(STEPS)), room.clamp(max=1)])
        which, end, axis = (lengths > 0).nonzero(as_tuple=True)
        length = lengths[which, end, axis].long()
        target = torch.where(end == 0, here[end, axis] - length, here[end, axis] + length)
        steps = torch.unique(torch.stack([end, axis, target], 1), dim=0)
        return steps[:, 0], steps[:, 1], steps[:, 2]

    def mass(self, boxes: Boxes) -> Tensor:
        """Return about how many records boxes hold, as a logarithm, if the axes were independent."""
        before, axes = self._before, torch.arange(boxes.low.shape[1], device=boxes.low.device)
        inside = before[axes, boxes.high + 1] - before[axes, boxes.low]
        lengths = (boxes.high - boxes.low + 1).double()
        return inside.clamp(min=0.5).log().sum(1) + VOLUME * lengths.log().sum(1)

    @cached_property
    def _before(self) -> Tensor:
        """How many records stand before each place of each axis: (axes, most places + 1)."""
        axes = self.problem.space.axes
        result = torch.zeros(len(axes), max(map(len, axes)) + 1, dtype=torch.float64, device=self.places.device)
        for number, axis in enumerate(axes):
            result[number, 1 : len(axis) + 1] = torch.bincount(self.places[:, number], minlength=len(axis)).cumsum(0)
        return result


def rule_of(problem: Problem, low: Tensor, high: Tensor) -> str:
    """Return the conditions of a box, as `--where` takes them; an empty text has no condition."""
    met: dict[int, npt.NDArray[np.bool_]] = {}
    for number, axis in enumerate(problem.space.axes):
        place = axis.place.cpu().numpy()
        if (int(low[number]), int(high[number])) != (0, len(axis) - 1) or not (place >= 0).all():
            met[axis.column] = (place >= int(low[number])) & (place <= int(high[number]))
    attributes = problem.domain.attributes
    words = " and ".join(_in_words(attributes[column], mask) for column, mask in met.items())
    try:
        codes = allowed_codes(problem.domain, words)
        if all(np.array_equal(codes[column].numpy(), mask) for column, mask in met.items()):
            return words
    except DomainError:
        pass
    return ", ".join(written(attributes[column], mask) for column, mask in met.items())


def _in_words(attribute: Attribute, met: npt.NDArray[np.bool_]) -> str:
    """Return the condition that some codes of an attribute meet: a comparison, or a list of values."""
    name, codes, last = _quoted(attribute.name), np.flatnonzero(met), attribute.points - 1
    first, end = int(codes[0]), int(codes[-1])
    if attribute.ordered and not attribute.values and len(codes) == end - first + 1 and end <= last:
        low, high = (_quoted(str(attribute.value(code))) for code in (first, end))
        if first == end:
            return f"{name} == {low}"
        ends = [f"{name} >= {low}"] * (first > 0) + [f"{name} <= {high}"] * (end < last or attribute.size > last + 1)
        return " and ".join(ends)
    others = np.flatnonzero(~met)
    negated, listed = ("not ", others) if 0 < len(others) < len(codes) else ("", codes)
    return f"{name} {negated}in [{', '.join(_quoted(str(attribute.value(int(code)))) for code in listed)}]"


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return word if re.fullmatch(r"[\w.+-]+", word) and word.lower() != "and" else f'"{escaped}"'
