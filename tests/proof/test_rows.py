"""Neighbourhoods: what is certified is compared with everybody being asked, one by one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations, product

import pytest
import torch
from torch import Tensor, nn

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule, Span
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DomainError
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.proof.bounds.lines import Unprovable
from neuronfair.proof.decide import rows as module
from neuronfair.proof.decide.rows import answering, certified
from neuronfair.searches.evaluate import evaluate
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
            flips |= domain.valid(near) & evaluate(exact, domain, near, decision).discriminates
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
    monkeypatch.setattr("neuronfair.proof.problem.MOST_ASKED", 0)
    assert answering(model, domain, decision).bounder is not None
    assert answering(box, domain, decision).bounder is None
    for one, small in ((model, 64), (model, 2), (box, 64)):  # nearly all is asked, or nearly all is bounded
        monkeypatch.setattr(module, "SMALL", small)
        found = certified(one, domain, rows, decision=decision)
        assert [found.one.tolist(), found.two.tolist()] == expected
        assert found.complete


def test_rows_for_which_time_runs_out_are_not_certified_and_said_to_be_so():
    rows = uniform_rows(plain(), 20, seed=1)
    found = certified(biased(), plain(), rows, seconds=0.0)
    assert (found.certified_1, found.certified_2, found.of, found.complete) == (0, 0, 20, False)
    assert not found.looked_one.any()
    assert not found.looked_two.any()


def test_ctrl_c_keeps_what_is_known(monkeypatch):
    monkeypatch.setattr(module, "TOGETHER", {1: 8, 2: 8})
    rows = torch.cartesian_prod(*[torch.arange(2)] * 5)  # all are safe with one attribute, few with two
    whole = certified(biased(), plain(), rows)
    assert (whole.certified_1, whole.certified_2) == (32, 2)
    seen = []

    def stop(changed: int, done: int, of: int) -> None:
        seen.append((changed, done, of))
        if changed == 2:
            raise KeyboardInterrupt

    found = certified(biased(), plain(), rows, progress=stop)
    assert seen == [(1, 8, 32), (1, 16, 32), (1, 24, 32), (1, 32, 32), (2, 8, 32)]
    assert found.one.all()
    assert found.looked_two.tolist() == [True] * 8 + [False] * 24
    assert found.two.tolist() == [True] * 2 + [False] * 30
    assert not found.complete


def test_rows_outside_the_domain_are_not_certified():
    domain = replace(SMALL, rules=RULES)
    rows = uniform_rows(domain, 3, seed=0).repeat(2, 1)
    rows[3, 0] = 77
    rows[4, 1] = -1
    rows[5, [0, 4]] = torch.tensor([3, 1])  # the first rule forbids it
    found = certified(
        BlackBox(lambda codes: codes[:, 0] * 0.0, domain), domain, rows, decision=Decision("threshold", 1.0)
    )
    assert found.outside.tolist() == [False] * 3 + [True] * 3
    assert found.one.tolist() == found.two.tolist() == [True] * 3 + [False] * 3
    assert found.complete


WIDE = TableDomain(
    "wide",
    (
        Attribute("income", "ordinal", low=0, high=99_999),
        Attribute("wealth", "ordinal", low=0, high=99_999),
        Attribute("a", "ordinal", low=0, high=3),
        Attribute("s", "flag"),
    ),
    ("s",),
)


def test_attributes_that_cannot_be_enumerated_are_bounded():
    # Class 1 from income + wealth + 100,000 a = 450,001 on, for s = 1 from 450,003 on: two sums flip.
    hidden = linear([[1.0, 1.0, 100_000.0, -2.0]], [2.0])
    model = network(nn.Sequential(hidden, nn.ReLU(), linear([[0.0], [1.0]], [450_002.5, 0.0])), WIDE)
    known = {  # person: (safe if one changes, safe if two change)
        (5, 5, 1): (True, True),  # 400,004 at most, or 299,998
        (5, 5, 3): (True, False),  # 400,004 at most; then 150,001 of income and wealth do
        (99_000, 5, 1): (True, False),  # 399,005 at most; then 498,999
        (60_000, 50_000, 3): (False, False),  # 459,999
        (60_000, 90_001, 3): (False, False),  # flips itself
    }
    found = certified(model, WIDE, torch.tensor([[*person, s] for person in known for s in (0, 1)]))
    assert found.one.tolist() == [one for one, _ in known.values() for _ in (0, 1)]
    assert found.two.tolist() == [two for _, two in known.values() for _ in (0, 1)]
    assert found.complete


def test_pairs_that_nobody_can_bound_are_not_looked_at():
    box = BlackBox(lambda codes: (codes[:, 0] > 10) * 1.0, WIDE)
    rows = torch.tensor([[5, 5, 1, 0]])
    found = certified(box, WIDE, rows, decision=Decision("threshold", 0.5))
    assert found.one.tolist() == found.looked_one.tolist() == [True]
    assert found.two.tolist() == found.looked_two.tolist() == [False]
    assert not found.complete


def test_more_values_than_memory_holds_are_refused():
    domain = replace(WIDE, attributes=(Attribute("huge", "ordinal", low=0, high=2**40), *WIDE.attributes))
    box = BlackBox(lambda codes: codes[:, 1] * 1.0, domain)
    with pytest.raises(Unprovable, match="'huge' has more than"):
        certified(box, domain, torch.zeros(1, 5, dtype=torch.int64), decision=Decision("threshold", 0.5))
    with pytest.raises(DomainError, match="expected rows with the 4 columns of 'wide'"):
        certified(box, WIDE, torch.zeros(1, 5, dtype=torch.int64))
