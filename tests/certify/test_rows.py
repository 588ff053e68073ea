"""Neighbourhoods: what is certified is compared with everybody being asked, one by one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations, product

import pytest
import torch
from torch import Tensor, nn

from neuronfair.certify import rows as module
from neuronfair.certify.bounds import Unprovable
from neuronfair.certify.rows import answering, certified
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule, Span
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DomainError
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.search.judge import judge
from tests.planted.networks import domain as plain
from tests.planted.networks import linear, network, random_module, uniform_rows

RULES = (
    Rule("no a0 of 3 or 4 for s = 1", {"s": ("1",), "a0": Span(3, 4)}, {}),
    Rule("b needs a1", {"b": ("X",)}, {"a1": Span(2, 9)}),
)
SMALL = TableDomain(
    "small",
    (
        Attribute("a0", "ordinal", low=0, high=5),
        Attribute("a1", "ordinal", low=0, high=4, step=1),
        Attribute("b", "nominal", values=("X", "Y", "Z"), encode="onehot"),
        Attribute("a2", "continuous", low=0, high=1, step=0.25),
        Attribute("s", "flag"),
        Attribute("r", "nominal", values=("A", "B", "C"), encode="onehot"),
    ),
    ("s", "r"),
)


def by_hand(exact, domain: TableDomain, rows: Tensor, decision: Decision, changed: int) -> list[bool]:
    """Ask about every neighbour of every row."""
    free = [c for c in range(len(domain.attributes)) if c not in domain.sensitive_columns]
    flips = torch.zeros(len(rows), dtype=torch.bool)
    for columns in combinations(free, changed):
        for codes in product(*(range(domain.attributes[c].size) for c in columns)):
            near = rows.clone()
            near[:, list(columns)] = torch.tensor(codes)
            flips |= domain.valid(near) & judge(exact, domain, near, decision).discriminates
    return (~flips).tolist()


@cache
def biased() -> Network:
    """Class 1 from a sum of a0 … a3 of 19 on for s = 0, and of 20 on for s = 1: only a sum of 19 flips."""
    hidden = nn.Sequential(linear([[1.0, 1.0, 1.0, 1.0, -1.0]], [0.0]), nn.ReLU())
    return network(nn.Sequential(*hidden, linear([[0.0], [1.0]], [18.5, 0.0])), plain())


def test_neighbourhoods_of_a_known_boundary():
    known = {  # person: (safe if one changes, safe if two change)
        (0, 0, 0, 0): (True, True),  # two can become 18
        (0, 0, 0, 1): (True, False),  # 9 + 9 + 1
        (1, 2, 3, 3): (True, False),  # one can become 17
        (0, 4, 4, 4): (False, False),  # 7 + 12
        (9, 9, 9, 9): (True, False),  # one can become 27, two 18
        (5, 5, 5, 4): (False, False),  # flips itself
    }
    rows = torch.tensor([[*person, s] for person in known for s in (0, 1)])
    found = certified(biased(), plain(), rows)
    assert found.one.tolist() == [one for one, _ in known.values() for _ in (0, 1)]
    assert found.two.tolist() == [two for _, two in known.values() for _ in (0, 1)]
    assert (found.certified_1, found.certified_2, found.of, found.complete) == (8, 2, 12, True)


def shifted(domain: TableDomain, outputs: int, seed: int) -> Network:
    """A random network in which sensitive values say little, and which mostly says the same."""
    made = random_module(domain, outputs, seed=seed)
    with torch.no_grad():
        made[0].weight[:, -4:] *= 0.1  # s, and the block of r
        made[2].bias[-1] += 5.0
    return network(made, domain)


CASES = {  # domain, outputs, seed of the network, decision
    "classes": (SMALL, 2, 2, Decision()),
    "three classes": (SMALL, 3, 2, Decision()),
    "threshold": (SMALL, 1, 6, Decision("threshold", 0.1)),
    "tolerance": (SMALL, 1, 1, Decision("tolerance", 1.5)),
    "rules": (replace(SMALL, rules=RULES), 2, 3, Decision()),
    "rules and a tolerance": (replace(SMALL, rules=RULES), 1, 1, Decision("tolerance", 1.5)),
}


@pytest.mark.parametrize("name", CASES)
def test_networks_and_black_boxes_say_what_asking_everybody_says(name, monkeypatch):
    domain, outputs, seed, decision = CASES[name]
    model = shifted(domain, outputs, seed)
    rows = uniform_rows(domain, 40, seed=3)
    rows = torch.cat([rows, rows[:5]])
    expected = [by_hand(model.double(), domain, rows, decision, changed) for changed in (1, 2)]
    assert 0 < sum(expected[1]) < sum(expected[0]) < len(rows)  # the case says something
    box = BlackBox(model.double().scores, domain)
    monkeypatch.setattr("neuronfair.certify.subject.MOST_ASKED", 0)
    assert answering(model, domain, decision).bounder is not None
    assert answering(box, domain, decision).bounder is None
    for one, small in ((model, 64), (model, 2), (box, 64)):  # nearly all is asked, or nearly all is bounded
        monkeypatch.setattr(module, "SMALL", small)
        found = certified(one, domain, rows, decision=decision)
        assert [found.one.tolist(), found.two.tolist()] == expected
        assert found.complete
