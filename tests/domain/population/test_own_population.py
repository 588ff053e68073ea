"""People of the user's own sampler in the place of a model of the table."""

from __future__ import annotations

import pytest
import torch

from neuronfair import TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.population.model import own_population, read_people
from neuronfair.domain.rules import Rule, Span
from neuronfair.errors import DataError

DOMAIN = TableDomain(
    "people",
    (Attribute("age", "ordinal", low=0, high=9), Attribute("s", "flag")),
    ("s",),
    (Rule("nobody is 9", {"age": Span(low=9)}, {}),),
)


def test_the_people_are_those_that_were_given():
    rows = read_people({"age": [1, 2, 2], "s": [0, 1, 1], "more": ["x", "y", "z"]}, DOMAIN)
    assert rows.tolist() == [[1, 0], [2, 1], [2, 1]]
    population = own_population(DOMAIN, rows)
    assert population.draws_per_row == 1
    assert population.rows_at(torch.tensor([[0.0], [0.34], [0.99]])).tolist() == rows.tolist()
    drawn = population.sample(3000, torch.Generator().manual_seed(0))
    assert {tuple(row) for row in drawn.tolist()} == {(1, 0), (2, 1)}
    assert float((drawn[:, 0] == 2).double().mean()) == pytest.approx(2 / 3, abs=0.05)
    usual, seldom = torch.tensor([[2, 1]]), torch.tensor([[8, 0]])
    assert population.log_likelihood(usual) > population.log_likelihood(seldom)
    # The first is as far from the others as the seldom one is: half of those who are as unusual count.
    assert population.plausibility(usual) > population.plausibility(seldom) == pytest.approx(1 / 6)


def test_people_who_break_a_rule_are_left_out():
    assert read_people(lambda n: {"age": [9, 3], "s": [0, 1]}, DOMAIN).tolist() == [[3, 1]]
    with pytest.raises(DataError, match="population: expected people who keep the rules of people, got none"):
        read_people({"age": [9], "s": [0]}, DOMAIN)


def test_an_error_among_these_people_is_not_taken_for_one_of_the_table():
    with pytest.raises(DataError, match=r"^population: column 's' is missing"):
        read_people({"age": [3]}, DOMAIN)
