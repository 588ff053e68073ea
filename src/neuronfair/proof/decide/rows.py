"""Whether the people of a table are safe from flips, and everybody near them, too: one or two attributes changed.

The neighbours of a person are boxes of places with one or two axes free. Small boxes are asked, person by person;
larger ones are bounded where the model can be, and halved until they are proved or small.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.measure.stats import check_rows
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision
from neuronfair.model.open import Opened
from neuronfair.model.training_loop import one_thread
from neuronfair.proof.bounds.lines import Bounder, Unprovable
from neuronfair.proof.bounds.margins import Margins, look
from neuronfair.proof.boxes.enumerate import members
from neuronfair.proof.boxes.space import Axis, Boxes, Space
from neuronfair.proof.problem import MOST_VALUES, answers, problem_of, rows_at, unread

SMALL = 128  # places of a box that are asked one by one rather than bounded
MOST = 10**8  # neighbours of one person that are asked where nothing can be bounded
PEOPLE = 1 << 12  # that are asked together: what they take in a network fits into the cache of a CPU
BOUNDED = 16  # people who can be asked in the time that it takes to bound a box, about
TOGETHER = {1: 256, 2: 16}  # people whose neighbours are looked at together, by how many attributes change

Progress = Callable[[int, int, int], None]  # how many attributes change, people done, of how many


class Answering(Protocol):
    """A model over places: what a `Subject` is, too."""

    @property
    def domain(self) -> TableDomain:
        """Who exists."""

    @property
    def space(self) -> Space:
        """The axes, which hold every value of the domain."""

    @property
    def question(self) -> Margins:
        """What decides."""

    @property
    def margins(self) -> Callable[[Tensor], Tensor]:
        """The margins of people at places, with every sensitive value."""

    @property
    def slack(self) -> Tensor:
        """How far these may be off."""

    @property
    def bounder(self) -> Bounder | None:
        """What bounds them over boxes, if anything does."""


@dataclass(frozen=True)
class Certified:
    """Of which rows of a table it is proved that nobody near them is decided otherwise for a sensitive value alone."""

    one: Tensor  # (n,) nobody who differs from this person in one other attribute at most
    two: Tensor  # (n,) in two at most
    looked_one: Tensor  # (n,) False: there was no time, so nothing is known
    looked_two: Tensor
    outside: Tensor  # (n,) not a person of the domain: nothing is proved
    interrupted: bool = False  # by Ctrl-C, so that there was no time for all

    @property
    def of(self) -> int:
        """How many rows there are."""
        return len(self.one)

    @property
    def certified_1(self) -> int:
        """How many are safe if any one attribute changes."""
        return int(self.one.sum())

    @property
    def certified_2(self) -> int:
        """How many are safe if any two attributes change."""
        return int(self.two.sum())

    @property
    def complete(self) -> bool:
        """Whether there was time for all."""
        return bool((self.looked_one & self.looked_two).all())


def certified(
    model: Opened | Model,
    domain: TableDomain,
    rows: Tensor,
    *,
    decision: Decision | None = None,
    seconds: float = 60.0,
    progress: Progress | None = None,
    subject: Answering | None = None,
) -> Certified:
    """Say of each row of a table whether its neighbours are proved to be free of flips.

    The neighbours are the valid people who differ from it in one, or in two attributes that are not sensitive, whatever
    their values; a flip is a valid twin who is decided otherwise. Rows for which time runs out are not certified, and
    said to be so; Ctrl-C ends it like the time, and is said. `subject` is the model as a prover takes it, where that is
    known, over all of the domain.
    """
    check_rows(domain, rows, "certified")
    end = time.perf_counter() + seconds
    asked = subject if subject is not None else answering(model, domain, decision)
    rows, domain = rows.cpu(), asked.domain
    inside = domain.valid(rows)
    if unread(domain):
        known = torch.ones_like(inside)
        return Certified(inside, inside, known, known, ~inside)
    space, values = asked.space, domain.combinations.number(rows)
    clipped = torch.minimum(rows.clamp(min=0), domain.sizes - 1)
    places = torch.stack([axis.place.cpu()[clipped[:, axis.column]] for axis in space.axes] + [values], 1)
    # People whom neither the model nor a rule tells apart have the same neighbours.
    distinct, back = torch.unique(places[inside], dim=0, return_inverse=True)
    free, looked = torch.zeros(2, 2, len(distinct), dtype=torch.bool)  # by attributes changed, and person
    people = _People(asked, distinct[:, :-1], distinct[:, -1])
    first = torch.full((len(distinct),), len(rows)).scatter_reduce(0, back, torch.arange(len(back)), "amin")
    order = first.argsort()  # as in the table, if time runs out
    interrupted = False
    try:
        with one_thread(space.device.type == "cpu"):  # batches are small: threads would wait
            people.look(order, free, looked, end, progress)
    except KeyboardInterrupt:
        interrupted = True
    flags = torch.zeros(4, len(rows), dtype=torch.bool)
    flags[:, inside] = torch.cat([free, looked])[:, back]
    flags[2:, ~inside] = True
    return Certified(flags[0], flags[1], flags[2], flags[3], ~inside, interrupted)


def answering(model: Opened | Model, domain: TableDomain, decision: Decision | None = None) -> Answering:
    """Return a model as what can be bounded or, if it cannot, what can be asked."""
    try:
        return problem_of(model, domain, decision=decision)
    except Unprovable:
        if max(attribute.size for attribute in domain.attributes) > MOST_VALUES:
            raise
    asked = model.model if isinstance(model, Opened) else model
    decision = decision or (model.decision if isinstance(model, Opened) else Decision())
    return _Asked.of(asked, domain.to("cpu"), decision)


@dataclass(frozen=True)
class _Asked:
    """A model of which nothing is known but its answers; every value is a place."""

    domain: TableDomain
    space: Space
    question: Margins
    margins: Callable[[Tensor], Tensor]
    slack: Tensor
    bounder: None = None

    @staticmethod
    def of(model: Model, domain: TableDomain, decision: Decision) -> _Asked:
        codes = {c: torch.arange(a.size) for c, a in enumerate(domain.attributes) if c not in domain.sensitive_columns}
        space = Space(tuple(Axis(c, own, own, torch.ones_like(own), True) for c, own in codes.items()))
        return _Asked(domain, space, *answers(model, domain, decision, space))


@dataclass(frozen=True)
class _People:
    """Different people, by their places and the number of their sensitive value."""

    asked: Answering
    places: Tensor  # (n, axes)
    value: Tensor  # (n,)

    @property
    def neighbours(self) -> int:
        """How many neighbours each has who differ in two attributes."""
        return sum(len(a) * len(b) for a, b in combinations(self.asked.space.axes, 2))

    def look(self, order: Tensor, free: Tensor, looked: Tensor, end: float, progress: Progress | None) -> None:
        """Look at the neighbours of all, in order, until time is over: `free` and `looked` say what is known so far."""
        for changed in (1, 2):
            todo = order if changed == 1 else order[free[0][order]]
            looked[changed - 1] = looked[0] & ~free[0]  # who is not safe with one attribute is not with two
            if changed == 2 and self.asked.bounder is None and self.neighbours > MOST:
                break
            for part in torch.split(todo, TOGETHER[changed]):
                safe, known = self.safe(part, changed, lambda: time.perf_counter() >= end)
                free[changed - 1, part], looked[changed - 1, part] = safe & known, known
                if not bool(known.all()):
                    break
                if progress is not None:
                    progress(changed, int(looked[changed - 1].sum()), len(order))

    def safe(self, who: Tensor, changed: int, late: Callable[[], bool]) -> tuple[Tensor, Tensor]:
        """Return who has no neighbour who flips, and of whom this is known: bool, both."""
        boxes, owner = self._around(who, changed)
        safe = torch.ones(len(who), dtype=torch.bool)
        while len(boxes):
            if late():
                return safe, ~safe
            sizes = (boxes.high - boxes.low + 1).prod(1)
            cost = torch.where(sizes <= self._small, sizes, BOUNDED)
            taken = int((cost.flip(0).cumsum(0) <= PEOPLE).sum().clamp(min=1))
            rest, part, mine = boxes[:-taken], boxes[-taken:], owner[-taken:]
            small = sizes[-taken:] <= self._small
            if bool(small.any()):
                safe[mine[small][self._flips(part[small], self.value[who[mine[small]]])]] = False
            part, mine = part[~small], mine[~small]
            if len(part):
                proved, axis = self._bounded(part)
                part, axis, mine = part[~proved], axis[~proved], mine[~proved].repeat(2)
                part = self.asked.space.halves(part, axis, self.asked.space.middle(part, axis))
            boxes, owner = Boxes.joined([rest, part]), torch.cat([owner[:-taken], mine])
            boxes, owner = boxes[safe[owner]], owner[safe[owner]]
        return safe, torch.ones_like(safe)

    @property
    def _small(self) -> int:
        """How many places of a box are asked one by one."""
        return SMALL if self.asked.bounder is not None else PEOPLE

    def _around(self, who: Tensor, changed: int) -> tuple[Boxes, Tensor]:
        """Return boxes that hold all neighbours of people, and whose each is, by its place in `who`."""
        whole = self.asked.space.everything().high.cpu()[0]
        free = (whole > 0).nonzero()[:, 0]
        here, owner = self.places[who], torch.arange(len(who))
        boxes = [Boxes(here, here)] if changed == 1 else []
        for axes in torch.combinations(free, changed) if len(free) >= changed else ():
            boxes.append(Boxes(here.index_fill(1, axes, 0), here.index_copy(1, axes, whole[axes].expand(len(who), -1))))
        return Boxes.joined(boxes) if boxes else Boxes(here[:0], here[:0]), owner.repeat(len(boxes))

    def _flips(self, boxes: Boxes, value: Tensor) -> Tensor:
        """Return which boxes hold a valid person with this sensitive value who is not surely decided like all twins."""
        asked = self.asked
        box, places = members(boxes)
        margins = asked.margins(places.to(asked.space.device)).cpu()
        valid = torch.ones(margins.shape[:2], dtype=torch.bool)
        if asked.domain.rules:
            rows = rows_at(asked.domain, asked.space, places)
            valid = ~asked.domain.broken(rows.flatten(0, 1)).any(1).view(valid.shape)
        alike, _ = asked.question.asked(margins, asked.slack.cpu(), valid)
        exists = valid.gather(1, value[box, None])[:, 0]
        flips = torch.zeros(len(boxes), dtype=torch.bool)
        flips[box[exists & ~alike]] = True
        return flips

    def _bounded(self, boxes: Boxes) -> tuple[Tensor, Tensor]:
        """Return which boxes are proved to be free of flips, and along which axis each is to be cut otherwise."""
        asked, wide = self.asked, boxes.high > boxes.low
        if asked.bounder is None:
            return torch.zeros(len(boxes), dtype=torch.bool), (boxes.high - boxes.low).argmax(1)
        boxes = boxes.to(asked.space.device)
        lines = asked.bounder.lines(boxes)
        # Alike for all values is more than alike for those that exist, and what a box can be proved for at once.
        every = torch.ones(lines.low_at.shape[:2], dtype=torch.bool, device=asked.space.device)
        proved = look(asked.question, asked.space, boxes, lines, every).fair
        proved = proved if lines.same is None else proved | lines.same
        reach = asked.space.reach(boxes, lines.low.flatten(1, 2)).amax(1).cpu()
        return proved.cpu(), reach.masked_fill(~wide, -1.0).argmax(1)
