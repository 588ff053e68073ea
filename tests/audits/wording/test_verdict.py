"""The verdict: its level, its tone, and that it says no more than was measured."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from neuronfair.audits.report import EncodingCheckReport, Gate, GateCheck, Report, Verdict
from neuronfair.audits.report.attribute import (
    NO_PLAUSIBLE_TWIN,
    NO_SCORE_CHANGES,
    NOT_USED,
    AttributeReport,
    DirectionReport,
    FlipRateReport,
    Histogram,
    Note,
    ProofSummary,
    Rates,
    SeverityReport,
    SideReport,
)
from neuronfair.audits.wording.summary import propose_steps
from neuronfair.audits.wording.verdict import NO_THRESHOLD, conclude
from neuronfair.formatting import percent
from tests.reports import REPRODUCTION, attribute, counterfactual, fair, proved, rate, report, search

NOTHING = fair(rates=Rates(), searches=())
UNUSED, STILL = (Note(NOT_USED, "…", "…"),), (Note(NO_SCORE_CHANGES, "…", "…"),)
WRONG = EncodingCheckReport("wrong", "The encoding is probably wrong.", 50, accuracy=0.3)


def both(found: int, people: int = 1000) -> Rates:
    return Rates(table=rate(found, people, "table"), domain=rate(found, people))


def made(*attributes: AttributeReport, rows: int = 1000, interrupted: bool = False, **more: Any) -> Report:
    empty = report(**more)
    return replace(
        empty,
        attributes=attributes,
        data=replace(empty.data, rows=rows),
        reproduction=replace(REPRODUCTION, interrupted=interrupted),
    )


def verdict(*attributes: AttributeReport, thresholds_set: bool = False, **more: Any) -> Verdict:
    return conclude(made(*attributes, **more), thresholds_set=thresholds_set).verdict


def gate(*fired: tuple[str, str | None, bool]) -> Gate:
    checks = [GateCheck(text, name, 0.0, None, None, "value", failed, "…") for text, name, failed in fired]
    return Gate(not any(check.fired for check in checks), tuple(checks))


def test_a_dependence_is_told_as_a_fact_about_the_people_of_the_data_set():
    told = verdict(attribute(rates=both(10)), fair("race", rates=both(0)), fair("sex+race", rates=both(5)))
    assert (told.level, told.tone) == ("dependence found", "neutral")
    assert told.headline == "Decisions depend on sex for 1% of people (10 of 1,000)."
    assert told.details == (
        f"Decisions also depend on sex for {percent(0.01)} of synthetic records drawn uniformly from "
        "the declared input space.",
        f"Decisions also depend on sex and race ({percent(0.005)} of records in the data set).",
        "The searches found 100 discriminatory inputs (synthetic).",
    )
    assert (told.thresholds, told.threshold_text) == ("none set", NO_THRESHOLD)


def test_one_synthetic_record_of_50000_is_a_dependence_and_no_alarm():
    one = fair(rates=Rates(rate(0, 1000, "table"), rate(1, 50_000, "plausible"), rate(0, 50_000)))
    told = verdict(one)
    assert (told.level, told.tone) == ("dependence found", "neutral")
    assert told.headline == (
        "No decision in the data set depends on sex; 1 of 50,000 realistic synthetic records does."
    )


def test_flips_of_two_synthetic_populations_are_counted_apart():
    told = verdict(fair(rates=Rates(rate(0, 1000, "table"), rate(1, 500, "plausible"), rate(2, 50_000))))
    assert told.headline.endswith(
        "; 1 of 500 realistic synthetic records and 2 of 50,000 synthetic records drawn uniformly from the declared "
        "input space do."
    )


def test_an_exact_share_of_the_input_space_has_no_interval_and_the_model_is_not_called_blind():
    """One pair of 6,000 records flips, by proof, and no score in the data set moves."""
    exact = FlipRateReport("domain", 0.0, 0.0, 0.001, 5000, 0, 0.95)
    one = fair(rates=Rates(table=rate(0, 1000, "table"), domain=exact), proved=proved(5998, 2, 6000), health=STILL)
    told = verdict(one)
    assert told.level == "dependence found"
    assert told.headline == (
        "No decision in the data set depends on sex; 2 of all 6,000 records of the declared input space do."
    )
    assert "0.033% to" not in told.text
    assert "does not use" not in told.text
    assert "No score" not in told.text


def test_what_only_a_search_finds_is_a_dependence_of_synthetic_records():
    counted = fair(
        rates=both(0), searches=(search("adf", 50),), severity=SeverityReport(1, 2, 3, Histogram((0, 1), (101,)))
    )
    told = verdict(counted)
    assert (told.level, told.tone) == ("dependence found", "neutral")
    assert told.headline == (
        "No decision in the data set depends on sex; a search found 101 synthetic records for which it does."
    )
    bound = f"the upper {percent(0.95)} confidence bound is {percent(rate(0, 1000).high)}."
    assert f"None of 1,000 records in the data set: {bound}" in told.details


def test_only_a_failed_threshold_is_an_alarm():
    entries = (attribute(rates=both(10)), fair("race", rates=both(0)))
    failed = conclude(made(*entries, gate=gate(("rate > 1%", "sex", True), ("rate > 1%", "race", False))))
    assert (failed.verdict.level, failed.verdict.tone) == ("above the threshold", "alarm")
    assert [one.level for one in failed.attributes] == ["above the threshold", "no dependence found"]
    assert failed.verdict.threshold_text == "Threshold breached: rate > 1%."
    assert failed.verdict.headline.startswith("Decisions depend on sex for 1% of people")
    passed = verdict(*entries, gate=gate(("rate > 5%", "sex", False), ("accuracy < 50%", None, False)))
    assert (passed.level, passed.tone, passed.thresholds) == ("dependence found", "calm", "passed")
    assert passed.threshold_text == "No threshold breached (rate > 5%, accuracy < 50%)."


def test_a_failed_threshold_of_the_whole_audit_belongs_to_no_attribute():
    told = conclude(made(fair(rates=both(0)), gate=gate(("accuracy < 90%", None, True))))
    assert (told.verdict.level, told.verdict.tone) == ("above the threshold", "alarm")
    assert told.attributes[0].level == "no dependence found"


def test_proxy_evidence_is_never_an_alarm_by_itself():
    one = fair(health=UNUSED, counterfactual=counterfactual(), search_twins="counterfactual")
    told = verdict(one)
    assert (told.level, told.tone) == ("proxy evidence", "neutral")
    assert told.headline == (
        "The model does not use sex, but there is proxy evidence: counterfactual twins get a different decision "
        "19.0 percentage points more often than by chance."
    )
    assert propose_steps(conclude(made(one)))[-1].command.endswith("--fail-if 'counterfactual.excess > 5%'")
    found = counterfactual()
    assert told.details == (
        f"Counterfactual test (sex): {found.sentence}",
        found.disadvantaged,
        found.mediators_text,
        "This rests on causal assumptions that the data cannot test.",
    )
    limited = verdict(one, gate=gate(("counterfactual.excess > 5%", "sex", True)))
    assert (limited.level, limited.tone) == ("above the threshold", "alarm")


def test_a_failed_encoding_check_makes_an_audit_not_assessable_unless_the_encoding_is_trusted():
    one = attribute(rates=both(10))
    told = conclude(made(one, encoding_check=WRONG), thresholds_set=True)
    assert (told.verdict.level, told.attributes[0].level) == ("not assessable", "not assessable")
    assert told.verdict.tone == "caution"
    assert told.verdict.headline == "The input encoding check failed. The encoding is probably wrong."
    assert told.verdict.details[0].startswith("Decisions depend on sex for 1% of people")
    assert told.verdict.thresholds == "not evaluated"
    trusted = verdict(one, encoding_check=replace(WRONG, trusted=True))
    assert trusted.level == "dependence found"
    assert trusted.details[-1] == "Caution: The encoding is probably wrong."


def test_a_doubt_about_the_encoding_does_not_change_the_level():
    doubt = replace(WRONG, level="suspicious", text="It may be wrong.")
    told = verdict(fair(rates=both(0)), encoding_check=doubt)
    assert told.level == "no dependence found"
    assert told.details[-1] == "Caution: It may be wrong."
    unlabelled = verdict(fair(rates=both(0)), encoding_check=replace(doubt, accuracy=None))
    assert "But:" not in unlabelled.text


def test_a_model_that_decides_nothing_is_not_assessable():
    told = verdict(fair(rates=both(0), searches=(), health=(Note("constant-decision", "", ""),)))
    assert told.level == "not assessable"
    assert told.headline == "The model gave the same decision to every record, so dependence cannot be assessed."


def test_ctrl_c_before_anything_was_measured_is_not_assessable():
    for entries in ((), (NOTHING,)):
        told = verdict(*entries, interrupted=True)
        assert (told.level, told.tone) == ("not assessable", "caution")
        assert told.text.startswith("Nothing was measured. The audit was interrupted")
    assert verdict(fair(rates=both(0)), interrupted=True).level == "no dependence found"
    assert verdict(fair(rates=both(10)), interrupted=True).level == "dependence found"
    half = verdict(fair(rates=both(0)), replace(NOTHING, name="race", sensitive=("race",)), interrupted=True)
    assert half.level == "not assessable"


def test_a_sample_of_the_data_set_is_not_called_the_data_set():
    assert "(10 of 1,000 records drawn from 1,001)" in verdict(attribute(rates=both(10)), rows=1001).headline
    none = verdict(attribute(rates=Rates(rate(0, 1000, "table"), rate(1, 10, "plausible"))), rows=1001).headline
    assert none.startswith("No decision for 1,000 of 1,001 records in the data set depends on sex; ")


def test_the_data_set_decides_which_attribute_leads():
    def measured(name: str, table: int, drawn: int) -> AttributeReport:
        return fair(name, rates=Rates(table=rate(table, 1000, "table"), domain=rate(drawn, 1000)))

    told = verdict(measured("sex", 216, 21), measured("race", 28, 0), measured("age", 0, 97))
    assert told.headline.startswith("Decisions depend on sex for 21.6% of people")
    assert "Decisions also depend on race (2.8% of records in the data set)." in told.text
    assert "For synthetic records only, decisions also depend on age." in told.text


@pytest.mark.parametrize(
    ("plausible", "said"),
    [(None, ""), (0, ", none of them realistic"), (7, ", 7 of them realistic"), (80, ", all of them realistic")],
)
def test_how_many_of_those_found_are_plausible(plausible, said):
    one = fair(rates=both(10), searches=(search("frontier", 80),), plausible_found=plausible)
    assert f"The searches found 80 discriminatory inputs (synthetic){said}." in verdict(one).text


def test_nothing_found_gives_upper_bounds_and_no_certificate():
    told = verdict(fair(rates=both(0)), fair("marital_status", rates=both(0)))
    assert (told.level, told.tone) == ("no dependence found", "neutral")
    bound = f"the upper {percent(0.95)} confidence bound is {percent(rate(0, 1000).high)}."
    assert told.text == (
        f"No decision was found that depends on sex. None of 1,000 records in the data set: {bound} None of "
        f"1,000 synthetic records drawn uniformly from the declared input space: {bound} The searches tried 2,000 "
        "synthetic records and found none."
    )


def test_a_model_that_does_not_use_the_attribute_has_no_dependence_by_construction():
    told = verdict(fair("sex", health=UNUSED), fair("race"), rows=10_000)
    assert told.level == "no dependence found"
    assert told.headline == "The model does not use sex, so no decision depends on it directly."
    assert "Without a counterfactual test nothing is known about proxies." in told.details
    still = verdict(fair("sex", health=STILL))
    assert "does not use" not in still.text
    assert "No score in the data set changes with sex." in still.details


def test_the_verdict_says_what_is_certified():
    told = verdict(attribute(proved=proved(950)), fair("race", proved=proved(900, 0, 1000, "race")))
    assert told.text.endswith(
        f"Decisions are certified not to depend on race for {percent(0.9)} of the declared input space; {percent(0.1)} "
        "is undecided."
    )
    unprovable = ProofSummary.nothing(10, "it shows nothing of itself")
    assert "proof: it shows" not in verdict(fair(proved=unprovable)).text
    whole = FlipRateReport("domain", 0.0, 0.0, 0.001, 5000, 0, 0.95)
    told = verdict(fair(rates=Rates(domain=whole), proved=proved(1000)))
    assert told.headline == "No decision depends on sex: this is certified for the whole declared input space."


def test_where_no_effect_is_claimed_people_found_by_counterfactuals_are_no_evidence():
    nothing = counterfactual(claimed=False)
    one = attribute(
        rates=Rates(domain=rate(0, 50)), health=UNUSED, counterfactual=nothing, search_twins="counterfactual"
    )
    told = verdict(one)
    assert told.level == "no dependence found"
    assert "discriminatory input" not in told.text
    assert verdict(replace(one, health=(), search_twins="flip")).level == "dependence found"


def test_flips_come_first_where_there_are_any():
    told = verdict(
        attribute(counterfactual=counterfactual()), fair("race", health=UNUSED, counterfactual=counterfactual())
    )
    assert told.level == "dependence found"
    assert told.headline.startswith("Decisions depend on sex for ")
    assert "Counterfactual test (sex): Had they been" in told.text
    assert "Counterfactual test (race): Had they been" in told.text
    assert told.text.count("This rests on causal assumptions that the data cannot test.") == 1


def test_a_model_whose_decisions_never_flip_may_show_proxy_evidence():
    """What is certified of flips says nothing of proxies."""
    told = verdict(fair(counterfactual=counterfactual(), proved=proved(1000)))
    assert told.level == "proxy evidence"
    assert told.headline == "No decision depends on sex: this is certified for the whole declared input space."
    assert "Counterfactual test (sex): Had they been" in told.text


def test_the_level_is_kept_in_audit_json():
    told = conclude(made(attribute(rates=both(10))))
    again = Report.from_json(told.to_json())
    assert again.verdict == told.verdict
    assert (again.attributes[0].level, again.attributes[0].headline) == ("dependence found", told.verdict.headline)


def test_plausible_pairs_lead_and_the_raw_rate_follows():
    pairs = replace(rate(112, 10_866, "pairs"), left_out=550, alone=9134)
    rates = Rates(table=rate(662, 20_000, "table"), pairs=pairs)
    made = conclude(report(attribute(rates=rates)))
    told = "Decisions depend on sex for 1.0% of people with a plausible twin (112 of 10,866)."
    assert made.verdict.headline == told
    assert made.verdict.details[0] == (
        f"With implausible twins as well, the flip rate is {percent(662 / 20_000)} of people (662 of 20,000)."
    )


def test_the_headline_names_the_disadvantaged_group_of_two():
    found = DirectionReport("table", 100, (SideReport("Female", 6, 94), SideReport("Male", 94, 6)), "…")
    one = attribute(rates=both(100), direction=(found,))
    assert verdict(one).headline.endswith("(100 of 1,000); in 94 of these the decision is worse for sex Female.")
    several = replace(
        found, sides=(SideReport("A", 1, 9), SideReport("B", 5, 5), SideReport("C", 9, 1)), losers=("skin A",)
    )
    assert verdict(replace(one, direction=(several,))).headline.endswith(", mostly to the disadvantage of skin A.")
    pair = replace(several, losers=("sex Female", "race Other"))
    told = verdict(replace(one, direction=(pair,))).headline
    assert told.endswith(", mostly to the disadvantage of sex Female and, separately, of race Other.")  # no one group
    every = replace(found, sides=(SideReport("Female", 0, 100), SideReport("Male", 100, 0)))
    assert verdict(replace(one, direction=(every,))).headline.endswith(
        "in all of these the decision is worse for sex Female."
    )
    even = replace(found, sides=(SideReport("Female", 50, 50), SideReport("Male", 50, 50)))
    assert verdict(replace(one, direction=(even,))).headline.endswith("(100 of 1,000).")
    assert verdict(replace(one, direction=(replace(found, population="domain"),))).headline.endswith("(100 of 1,000).")


def test_a_paragraph_has_at_most_three_numbers():
    one = attribute(rates=both(10), counterfactual=counterfactual(), proved=proved(900, 30), plausible_found=7)
    told = verdict(one, fair("race", rates=both(5)))
    for paragraph in told.details:
        assert len(re.findall(r"\d[\d,.]*", paragraph)) <= 3, paragraph


def test_rules_that_leave_nobody_a_twin_are_no_evidence_of_fairness():
    """Rules that forbid every twin make a flip impossible, whatever the model does."""
    lonely = fair(health=(Note(NO_PLAUSIBLE_TWIN, "Nobody has one.", "Check the rules."),), proved=proved(1000))
    made = conclude(report(lonely))
    assert (made.verdict.level, made.attributes[0].level) == ("not assessable", "not assessable")
    assert made.verdict.headline.startswith("The rules leave nobody in the data set a plausible twin")


def test_flips_against_implausible_twins_only_are_said_to_be_such():
    pairs = replace(rate(0, 10_866, "pairs"), left_out=662, alone=9134)
    rates = Rates(table=rate(662, 20_000, "table"), pairs=pairs)
    (entry,) = conclude(report(attribute(rates=rates))).attributes
    assert ", but only against twins that are not plausible." in entry.headline
    # Where everybody has a plausible twin, pairs and people are the same and nothing more is said.
    same = Rates(table=rate(5, 100, "table"), pairs=rate(5, 100, "pairs"))
    (entry,) = conclude(report(attribute(rates=same))).attributes
    assert "plausible" not in entry.headline
    assert "5 of 100" in entry.headline
