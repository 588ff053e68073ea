"""A few records next to their counterfactual twins: of each group in turn, and none where nothing is claimed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from neuronfair import Dataset
from neuronfair.audits.stages.case import AttributeCase
from neuronfair.audits.stages.counterfactual import select_people
from neuronfair.measure.counterfactual_effect import CounterfactualEffect, CounterfactualTest
from neuronfair.measure.stats import Estimate
from neuronfair.model.decision import Decision
from tests.measure.test_counterfactual_effect import COPY, DOMAIN, QUICK, SCORE, reads, table

YES = Decision("threshold", 0.5)


@cache
def effect(column: int, least: int) -> CounterfactualEffect:
    return CounterfactualTest(reads(column, least), DOMAIN, table(), decision=YES, settings=QUICK).measure()


def beside(column: int, least: int, decision: Decision = YES, **other):
    rows = table()
    data = Dataset("people", DOMAIN, rows, rows[:, 0])
    case = AttributeCase(reads(column, least), data, decision, 10)
    return select_people(case, replace(effect(column, least), **other))


def test_people_of_both_groups_stand_beside_who_they_would_be():
    """Where a copy of the group decides, all in which a counterfactual differs is group, copy and score: 5 apart."""
    found = beside(COPY, 1)
    groups = [one.person.row["group"] for one in found]
    assert sorted(groups[:2]) == sorted(groups[2:]) == ["a", "b"]
    for one in found:
        person = one.person
        changes = {change.attribute: (change.own, change.twin) for change in person.changed}
        up = person.row["group"] == "a"
        assert changes["group"] == (("a", "b") if up else ("b", "a"))
        assert changes["copy"] == (("p", "q") if up else ("q", "p"))
        assert (changes["score"][1] - changes["score"][0] > 0) == up
        assert (person.decision, person.twin_decision) == (("no", "yes") if up else ("yes", "no"))
        assert one.share == 1
        assert DOMAIN.to_table(table()[person.number][None]) == {name: [cell] for name, cell in person.row.items()}
    assert len({one.person.number for one in found}) == 4


def test_those_with_the_largest_share_come_first():
    """Of b, those with 7 or more lose; of a, those whose rank is theirs gain, and are the only ones to be shown."""
    for one in beside(SCORE, 7):
        assert one.person.row["score"] >= 7 or one.person.row["group"] == "a"
        assert one.share > 0.9


def test_nobody_is_shown_where_no_effect_is_claimed():
    assert beside(COPY, 1, permutation_baseline=Estimate(1.0, 1.0, 1.0)) == ()


def test_with_a_tolerance_the_person_is_one_of_the_two():
    found = beside(COPY, 1, Decision("tolerance", 0.5))
    assert len(found) == 4
    for one in found:
        assert one.person.decision == ("a score of 0" if one.person.row["group"] == "a" else "a score of 1")
