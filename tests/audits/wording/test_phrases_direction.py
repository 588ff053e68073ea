"""The disadvantaged group in words."""

from __future__ import annotations

from neuronfair import TableDomain
from neuronfair.audits.report import attribute
from neuronfair.audits.wording.phrases import report_direction
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import Target
from neuronfair.measure.rate import Direction, GroupOutcomes

COLUMNS = (
    Attribute("a", "ordinal", low=0, high=9),
    Attribute("sex", "flag", values=("Female", "Male")),
    Attribute("skin_colour", "nominal", values=("A", "B", "C")),
)
DOMAIN = TableDomain("t", COLUMNS, ("sex",), target=Target("loan", ("no", "yes")), favourable="yes")


def said(domain: TableDomain, people: int, *sides: GroupOutcomes, population="table") -> str:
    (one,) = report_direction(domain, population, Direction(people, sides))
    return one.sentence


def test_two_values():
    sides = GroupOutcomes((0,), 88, 812), GroupOutcomes((1,), 812, 88)
    for order in (sides, sides[::-1]):
        assert said(DOMAIN, 900, *order) == (
            "In 812 of 900 pairs in the data set (all allowed twins), the decision is worse for sex Female: not 'yes'."
        )
    assert said(DOMAIN, 1, GroupOutcomes((0,), 1, 0), GroupOutcomes((1,), 0, 1), population="findings") == (
        "In 1 of 1 pair that the searches found, the decision is worse for sex Male: not 'yes'."
    )
    (entry,) = report_direction(DOMAIN, "domain", Direction(900, sides))
    assert entry.sides == (attribute.SideReport("Female", 88, 812), attribute.SideReport("Male", 812, 88))
    assert (entry.population, entry.people) == ("domain", 900)


def test_of_several_groups_those_that_lose_most_often_are_named():
    sides = (
        GroupOutcomes((0, 0), 1, 90),
        GroupOutcomes((1, 2), 88, 0),
        GroupOutcomes((0, 1), 2, 80),
        GroupOutcomes((0, 2), 3, 40),
        GroupOutcomes((1, 1), 5, 5),
    )
    assert said(DOMAIN.with_sensitive("sex", "skin_colour"), 1200, *sides, population="domain") == (
        "In 1,200 cases drawn uniformly from the declared input space, 'yes' depends on sex and skin colour, mostly to "
        "the disadvantage of sex Female and, separately, of skin colour A."
    )
    even = [GroupOutcomes((code,), 2, 2) for code in range(3)]
    assert said(DOMAIN.with_sensitive("skin_colour"), 4, *even) == (
        "In 4 cases in the data set (all allowed twins), 'yes' depends on skin colour, with no group clearly at a "
        "disadvantage."
    )


def test_of_numbers_the_lower_or_the_higher_lose():
    """Ages 0, 4 and 9 lose in 8, 4 and 1 of 10 cases: those who lose are 25/13 on average, those who gain 105/17."""
    sides = GroupOutcomes((0,), 2, 8), GroupOutcomes((4,), 6, 4), GroupOutcomes((9,), 9, 1)
    (young,) = report_direction(DOMAIN.with_sensitive("a"), "table", Direction(10, sides))
    assert young.losers == ("lower a",)
    (old,) = report_direction(
        DOMAIN.with_sensitive("a"), "table", Direction(10, tuple(GroupOutcomes(c, lost, got) for c, got, lost in sides))
    )
    assert old.losers == ("higher a",)


def test_nobody_loses():
    assert report_direction(DOMAIN, "table", None) == report_direction(DOMAIN, "table", Direction(0, ())) == ()


def test_of_thousands_of_values_some_are_kept():
    ages = TableDomain("t", (Attribute("age", "ordinal", low=0, high=99),), ("age",), favourable="yes",
                       target=Target("loan", ("no", "yes")))  # fmt: skip
    (entry,) = report_direction(ages, "table", Direction(9, tuple(GroupOutcomes((code,), 0, 9) for code in range(100))))
    assert len(entry.sides) == 20
