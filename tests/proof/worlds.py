"""Small domains of all kinds of attributes, and spaces made by hand, for tests of the prover's parts."""

from __future__ import annotations

import random
from itertools import product

import torch
from torch import Tensor

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule, Span
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DomainError
from neuronfair.proof.bounds.space import Axis, Boxes, CutTree, Space, ValidRecords

AGE = Attribute("age", "ordinal", low=0, high=5)
JOB = Attribute("job", "nominal", values=("a", "b", "c"), encode="onehot")
SEX = Attribute("sex", "flag")
RACE = Attribute("race", "nominal", values=("x", "y", "z"), encode="onehot")
PAY = Attribute("pay", "continuous", low=0, high=1, step=0.25, encode="scaled", center=0.4, scale=0.3, missing="keep")


def people(*rules: Rule) -> TableDomain:
    """6 ages, 3 jobs, and the sensitive sex (2) and race (3)."""
    return TableDomain("people", (AGE, SEX, JOB, RACE), ("sex", "race"), rules)


def random_domain(seed: int) -> TableDomain:
    """Return people with up to four random rules, of which one may forbid nothing and none everything."""
    draw = random.Random(seed)
    attributes = (AGE, SEX, JOB, RACE, PAY)
    while True:
        rules = []
        for number in range(draw.randint(0, 4)):
            one, other = draw.sample(attributes, 2)
            when, then = {one.name: _some(draw, one)}, {other.name: _some(draw, other)}
            rules.append(Rule(f"rule {number}", when | then, {}) if draw.random() < 0.5 else Rule("r", when, then))
        try:
            return TableDomain("random", attributes, ("sex", "race"), tuple(rules))
        except DomainError:  # nobody is left
            continue


def _some(draw: random.Random, attribute: Attribute) -> Span | tuple:
    if attribute.name == "age" and draw.random() < 0.5:
        low = draw.randint(0, 4)
        return Span(low, draw.randint(low, 5))
    codes = draw.sample(range(attribute.grid_size), draw.randint(1, attribute.grid_size - 1))
    return tuple(attribute.value(code) for code in codes)


def every_code(domain: TableDomain) -> list[Tensor]:
    return [torch.ones(a.size, dtype=torch.bool) for a in domain.attributes]


def plain_space(domain: TableDomain, allowed: list[Tensor] | None = None) -> Space:
    """One place for every code that is allowed, those of labels in reverse order."""
    axes = []
    for column, attribute in enumerate(domain.attributes):
        if attribute.name in domain.sensitive:
            continue
        ok = torch.ones(attribute.size, dtype=torch.bool) if allowed is None else allowed[column]
        codes = ok.nonzero()[:, 0]
        linear = not attribute.values and bool(codes[-1] - codes[0] + 1 == len(codes))
        codes = codes if linear else codes.flip(0)
        place = torch.full((attribute.size,), -1)
        place[codes] = torch.arange(len(codes))
        axes.append(Axis(column, place, codes, torch.ones_like(codes), linear))
    return Space(tuple(axes))


def space_of(*axes: int | list[int]) -> Space:
    """A number: a linear axis of so many places; a list: how many codes stand at each place of another one."""
    made = []
    for column, kind in enumerate(axes):
        count = torch.ones(kind, dtype=torch.int64) if isinstance(kind, int) else torch.tensor(kind)
        place = torch.repeat_interleave(torch.arange(len(count)), count.clamp(max=9))
        made.append(Axis(column, place, count.cumsum(0) - count, count, isinstance(kind, int)))
    return Space(tuple(made))


def records_in(boxes: Boxes, valid: Tensor, inside: Tensor) -> ValidRecords:
    """One box, of the first pattern."""
    first, cuts = torch.tensor([0]), CutTree.of_roots(1, torch.device("cpu"))
    return ValidRecords(boxes, first, valid, inside, first, cuts.nodes)


def random_boxes(space: Space, n: int, seed: int = 0) -> Boxes:
    generator = torch.Generator().manual_seed(seed)
    ends = [torch.randint(0, len(axis), (n, 2), generator=generator).sort(-1)[0] for axis in space.axes]
    return Boxes(torch.stack([e[:, 0] for e in ends], 1), torch.stack([e[:, 1] for e in ends], 1))


def places_of(boxes: Boxes, number: int = 0) -> Tensor:
    """All places of one box: (m, axes)."""
    ends = zip(boxes.low[number].tolist(), boxes.high[number].tolist(), strict=True)
    return torch.tensor(list(product(*(range(a, b + 1) for a, b in ends))))


def features_of(space: Space, places: Tensor) -> Tensor:
    """What a line is multiplied by at places: a linear axis's place, and one-hot places of the others."""
    result = torch.zeros(len(places), space.features, dtype=torch.float64)
    for i, axis in enumerate(space.axes):
        first = space.first_features[i]
        if axis.linear:
            result[:, first] = places[:, i].double()
        else:
            result[torch.arange(len(places)), first + places[:, i]] = 1.0
    return result


def weights_of(space: Space, places: Tensor) -> Tensor:
    """How many combinations of codes stand at places."""
    return torch.stack([axis.count[places[:, i]] for i, axis in enumerate(space.axes)]).prod(0)
