"""Who gets the favourable decision and who loses it, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import torch

from neuronfair import BlackBox, Decision, TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule
from neuronfair.domain.table import Target
from neuronfair.measure.direction import Direction, DirectionTally, Side, favourable_class
from neuronfair.measure.rate import flip_rate
from neuronfair.searches.evaluate import Pairs, evaluate

HALF = Decision("threshold", 0.5)
DOMAIN = TableDomain(
    "t",
    (Attribute("a", "ordinal", low=0, high=9), Attribute("race", "nominal", values=("A", "B", "C"))),
    ("race",),
    target=Target("loan", ("no", "yes")),
    favourable="yes",
)
ROWS = torch.tensor([[a, race] for a in range(10) for race in range(3)])


def of(domain: TableDomain, rows: torch.Tensor) -> Direction | None:
    """The model says yes from a + race = 5 on: a = 3 is a yes for C only, a = 4 for B and C."""
    model = BlackBox(lambda rows: (rows.sum(1) >= 5).double(), domain)
    return flip_rate(model, domain, population=rows, decision=HALF).direction


def test_each_value_is_counted_once_in_every_family():
    assert of(DOMAIN, ROWS[::3]) == Direction(2, (Side((0,), 0, 2), Side((2,), 2, 0), Side((1,), 1, 1)))
    # Whichever member of its family a person is, it is the same family.
    assert of(DOMAIN, ROWS[1::3]) == of(DOMAIN, ROWS[2::3]) == of(DOMAIN, ROWS[::3])


def test_the_other_class_turns_it_round():
    assert of(replace(DOMAIN, favourable="no"), ROWS[::3]) == Direction(
        2, (Side((2,), 0, 2), Side((0,), 2, 0), Side((1,), 1, 1))
    )


def test_a_twin_that_does_not_exist_gets_and_loses_nothing():
    domain = replace(DOMAIN, rules=(Rule("no C at 3", {"a": (3,), "race": ("C",)}, {}),))
    assert of(domain, ROWS[::3]) == Direction(1, (Side((0,), 0, 1), Side((1,), 1, 0), Side((2,), 1, 0)))


def test_a_row_outside_the_bounds_counts_for_no_value():
    outside = torch.tensor([[3, 7]])  # taken for C, of which B and A are the others: both are refused
    assert of(replace(DOMAIN, outside="keep"), outside) == Direction(0, ())


def test_pairs():
    rows, twins = torch.tensor([[3, 0], [4, 1]]), torch.tensor([[3, 2], [4, 0]])
    tally = DirectionTally(DOMAIN, favourable=1)
    tally.add_pairs(Pairs(rows, twins, torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [0.0]])), HALF)
    assert tally.direction() == Direction(2, (Side((0,), 0, 2), Side((1,), 1, 0), Side((2,), 1, 0)))


def test_several_batches_add_up():
    model = BlackBox(lambda rows: (rows.sum(1) >= 5).double(), DOMAIN)
    tally = DirectionTally(DOMAIN, favourable=1)
    for part in torch.split(ROWS[::3], 3):
        tally.add(evaluate(model, DOMAIN, part, HALF))
    assert tally.direction() == of(DOMAIN, ROWS[::3])


def test_without_a_favourable_class_nobody_loses():
    assert of(replace(DOMAIN, favourable=None), ROWS) is None
    assert favourable_class(DOMAIN, HALF, 1) == 1
    assert favourable_class(DOMAIN, Decision(), 3) is None  # the model decides among three classes, the table has two
    assert favourable_class(DOMAIN, Decision("tolerance", 0.1), 1) is None
