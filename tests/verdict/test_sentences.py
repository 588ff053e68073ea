"""The verdict: its level, and that it says no more than was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuronfair.verdict.entries import NOT_READ, AttributeReport, Histogram, Note, Severity
from neuronfair.verdict.proved import Proved
from neuronfair.verdict.rates import RateOf, Rates
from neuronfair.verdict.report import Verdict
from neuronfair.verdict.sentences import verdict
from tests.reports import attribute, counterpart, fair, proved, rate, search

NOTHING = fair(rates=Rates(), searches=())


def both(found: int, people: int = 1000) -> Rates:
    return Rates(table=rate(found, people, "table"), domain=rate(found, people))


def test_a_model_that_discriminates():
    told = verdict([attribute(rates=both(10)), fair("race", rates=both(0)), fair("sex+race", rates=both(5))], 1000)
    assert told == Verdict(
        "discriminates",
        "This model discriminates by sex: the decision flips for 1 % of the people in the table and 1 % of people "
        "drawn uniformly from the domain (between 0.481 % and 1.83 %) if only that changes. Among rows of the "
        "table also by sex and race (0.5 %). Among people drawn uniformly from the domain also by sex and race "
        "(0.5 %). The searches found 100 such people.",
    )


def test_a_model_that_does_not_decide():
    told = verdict([fair(rates=both(0), searches=(), health=(Note("constant-decision", "", ""),))], 100)
    assert told.level == "nothing found"
    assert told.text.endswith("such a model cannot be judged.")


def test_ctrl_c_before_anything_was_measured_is_no_calm_verdict():
    for entries in ([], [NOTHING]):
        told = verdict(entries, 1000, interrupted=True)
        assert told.level == "interrupted"
        assert told.text.startswith("Nothing was measured, so nothing can be said.")
        assert "no proof" not in told.text
    assert verdict([fair(rates=both(0))], 1000, interrupted=True).level == "nothing found"
    assert verdict([fair(rates=both(10))], 1000, interrupted=True).level == "discriminates"


def test_a_sample_of_the_table_is_not_called_the_table():
    assert "1 % of the people in the table and" in verdict([attribute(rates=both(10))], 1000).text
    assert "1 % of 1,000 people of the table and" in verdict([attribute(rates=both(10))], 1001).text


def test_each_sentence_speaks_of_one_population():
    def measured(name: str, table: int, drawn: int) -> AttributeReport:
        return fair(name, rates=Rates(table=rate(table, 1000, "table"), domain=rate(drawn, 1000)))

    told = verdict([measured("sex", 216, 21), measured("race", 28, 0), measured("age", 10, 97)], 1000)
    assert told.text.endswith(
        " if only that changes. Among rows of the table also by race (2.8 %) and age (1 %). "
        "Among people drawn uniformly from the domain also by age (9.7 %)."
    )


def test_the_table_is_named_first_also_where_nobody_in_it_is_hit():
    told = verdict([fair(rates=Rates(table=rate(0, 1000, "table"), domain=rate(10, 1000)))], 1000)
    assert "flips for 0 % of the people in the table and 1 % of people drawn uniformly" in told.text


@pytest.mark.parametrize(
    ("plausible", "said"),
    [(None, ""), (0, ", none of them plausible"), (7, ", 7 of them plausible"), (80, ", all of them plausible")],
)
def test_how_many_of_those_found_are_plausible(plausible, said):
    one = fair(rates=both(10), searches=(search("frontier", 80),), plausible_found=plausible)
    assert f"The searches found 80 such people{said}." in verdict([one], 1000).text


def test_people_are_counted_once():
    searches = (search("frontier", 80), search("adf", 50))
    counted = fair(rates=both(0), searches=searches, severity=Severity(1, 2, 3, Histogram((0, 1, 2), (60, 41))))
    assert counted.people_found == 101
    assert fair(searches=searches).people_found == 80  # not counted: so many at least
    told = verdict([counted], 1000)
    assert told.level == "suspicious"
    assert told.text.startswith(
        "A search found people whose decision flips: 101 by sex. They are rare: none of 1,000 rows of the table (so at "
        "most 0.368 %) and none of 1,000 people drawn uniformly from the domain (so at most 0.368 %), with 95 % "
        "confidence."
    )


def test_nobody_is_no_proof():
    told = verdict([fair(rates=both(0)), fair("marital_status", rates=both(0))], 1000)
    assert told.level == "nothing found"
    assert told.text == (
        "Nobody was found whose decision flips with sex and marital status: none of 1,000 rows of the table (so at "
        "most 0.368 %) and none of 1,000 people drawn uniformly from the domain (so at most 0.368 %), with 95 % "
        "confidence. 4,000 people were tried by search. That is no proof "
        "that there is nobody."
    )
    assert verdict([], 1000).text == "Nothing was looked at."


def test_a_model_that_does_not_read_the_attribute_says_nothing_about_it():
    unread = fair("sex", rates=Rates(), health=(Note(NOT_READ, "…", "…"),))
    told = verdict([unread, fair("race", rates=Rates())], 50)
    assert told.level == "nothing found"
    assert "The model does not read sex, so its decision cannot flip with it: that says nothing." in told.text
    assert "does not read" not in verdict([fair("sex")], 50).text


def test_the_verdict_says_what_is_proved():
    told = verdict([attribute(proved=proved(950)), fair("race", proved=proved(900, 0, 1000, "race"))], 1000)
    assert told.text.endswith(
        "For 90 % of all 1,000 people of the domain it is proved that race does not change the decision; for nobody "
        "that it does; 10 % is open."
    )
    unprovable = Proved.nothing(10, "it shows nothing of itself")
    assert "proof: it shows" not in verdict([fair(proved=unprovable)], 1000).text


def test_nobody_found_and_nobody_there_are_two_things():
    part = RateOf("domain", 0.0, 0.0, 0.0004, 1000, 0, 0.95, part=0.1)
    told = verdict([fair(rates=Rates(domain=part), proved=proved(999))], 1000).text
    assert "none of 1,000 people drawn uniformly from the 10 % in boxes that are not wholly proved (so at most" in told
    assert "That is no proof that there is nobody. For 99.9 % of all 1,000 people" in told
    whole = RateOf("domain", 0.0, 0.0, 0.0, 0, 0, 0.95, part=0.0)
    told = verdict([fair(rates=Rates(domain=whole), proved=proved(1000))], 1000).text
    assert told == (
        "Nobody was found whose decision flips with sex: none of all people of the domain, by proof, with 95 % "
        "confidence. 2,000 people were tried by search. It is proved that there is nobody in the domain."
    )


def test_a_search_that_its_gradients_hardly_helped_is_named():
    def entry(name: str, *lifts: float | None) -> AttributeReport:
        searches = [search(f"m{i}", lift_over_random_direction=lift) for i, lift in enumerate(lifts)]
        return attribute(name, rates=both(10), searches=tuple(searches))

    told = verdict([entry("sex", 1.094, 1.1), entry("race", None, 0.5)], 1000).text
    said = " A search hardly more successful than in random directions: "
    assert f"{said}m0 by sex (1.09 times) and m1 by race (0.50 times)." in told
    assert "random directions" not in verdict([entry("sex", 1.2, None)], 1000).text


UNREAD = (Note(NOT_READ, "…", "…"),)


def test_where_the_flip_test_is_empty_counterparts_lead():
    told = verdict([fair(health=UNREAD, counterpart=counterpart(), search_twins="counterpart")], 50)
    assert told.level == "discriminates"
    assert told.text == (
        "The model does not read sex, so the flip test is empty. Had they been of the other group, 19 % of 20,000 "
        "people would be decided otherwise. Men as women lose '>50K' in 17.1 % of cases. 81 % of the effect goes "
        "through relationship and marital status. That is evidence, no proof."
    )


def test_where_no_effect_is_claimed_people_found_by_counterparts_are_no_ground_for_suspicion():
    nothing = counterpart(claimed=False)
    one = attribute(rates=Rates(), health=UNREAD, counterpart=nothing, search_twins="counterpart")
    told = verdict([one], 50)
    assert told.level == "nothing found"
    assert told.text.startswith("The model does not read sex, so the flip test is empty. Had they")
    assert "found" not in told.text
    assert verdict([replace(one, health=(), search_twins="flip")], 50).level == "suspicious"


def test_flips_come_first_where_there_are_any():
    told = verdict([attribute(counterpart=counterpart()), fair("race", health=UNREAD, counterpart=counterpart())], 50)
    assert told.text.startswith("This model discriminates by sex: the decision flips for ")
    assert "Counterparts (sex): Had they been" in told.text
    assert "The model does not read race, so the flip test is empty. Had they been" in told.text
    assert told.text.count("That is evidence, no proof.") == 1


def test_a_model_whose_decisions_never_flip_may_discriminate_all_the_same():
    """What is proved of flips says nothing of who stands in for the attribute."""
    told = verdict([fair(counterpart=counterpart(), proved=proved(1000))], 50)
    assert told.level == "discriminates"
    assert told.text.startswith("Counterparts (sex): Had they been")
    assert "Nobody was found whose decision flips with sex" in told.text
    empty = verdict([fair(health=UNREAD, counterpart=counterpart(), proved=proved(999))], 50)
    assert "proved" not in empty.text
