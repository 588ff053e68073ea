"""The first screen: four metrics, each of how many and of whom, the status of the thresholds, and what to do next."""

from __future__ import annotations

from dataclasses import replace

from neuronfair.audits.report import EncodingCheckReport, Gate, GateCheck
from neuronfair.audits.report.attribute import NOT_USED, Note, ProofSummary, Rates
from neuronfair.audits.settings import AuditSettings
from neuronfair.audits.wording.summary import (
    NOT_MEASURED,
    describe_pair,
    explain_twin,
    list_limits,
    metrics,
    propose_steps,
    select_realistic_pairs,
    status,
)
from neuronfair.audits.wording.verdict import conclude
from neuronfair.formatting import percent
from neuronfair.render.tables import tabulate_overview
from tests.reports import (
    DISPARITY,
    GROUPS,
    adult,
    attribute,
    certified_rows,
    counterfactual,
    fair,
    finding,
    proved,
    rate,
    report,
)


def test_every_metric_says_of_how_many_and_of_whom():
    one = attribute(groups=GROUPS, disparity=DISPARITY, counterfactual=counterfactual(), proved=proved(900, 30))
    flips, impact, excess, certified = metrics(one)
    assert (flips.value, flips.of) == ("4.0%", f"of {one.rates.table.people}")
    assert flips.interval.startswith(f"{percent(0.95)} CI 0.5–")
    assert (impact.value, impact.range) == ("0.40", "0.28–0.55")
    assert impact.of == f"the model decides 'yes' for {percent(0.26)} of F versus {percent(0.65)} of M, of 209 records"
    assert excess.value == "19.0 pp"
    assert excess.of.startswith("more decisions than by chance change if values that go with sex change too")
    assert excess.of.endswith(", of 20,000 people")
    assert excess.note == "rests on untested causal assumptions"
    assert certified.value == percent(0.9)
    assert certified.of == "of the declared input space (1,000 records) proved not to depend on sex"
    assert certified.note == f"{percent(0.07)} undecided"
    assert not certified.interval  # exact


def test_what_was_not_measured_says_why():
    why = ProofSummary.nothing(10, "it shows nothing of itself")
    unset = replace(DISPARITY, disparate_impact=None, favourable=False)
    flips, impact, excess, certified = metrics(attribute(rates=Rates(), disparity=unset, proved=why))
    assert {one.value for one in (flips, impact, excess, certified)} == {NOT_MEASURED}
    assert "Set `favourable`" in impact.text
    assert certified.text == "No proof: it shows nothing of itself."
    assert "this may be chance" in metrics(attribute(counterfactual=counterfactual(claimed=False)))[2].text


def test_the_flip_rate_is_that_of_the_data_set_before_synthetic_records():
    rates = Rates(table=rate(0, 1000, "table"), domain=rate(30, 100))
    assert metrics(attribute(rates=rates))[0].value == percent(0)
    pairs = metrics(attribute(rates=replace(rates, pairs=rate(1, 90, "pairs"))))[0]
    assert pairs.of == "of 90 people in the data set with a plausible twin"
    unused = fair(health=(Note(NOT_USED, "…", "…"),))
    assert metrics(unused)[0].note == "the model does not use sex"


def test_the_certified_share_is_that_of_records_with_an_allowed_twin():
    """26,600 of 48,842 are certified, but 22,043 of these have no twin: 4,557 of 26,799 are left."""
    rows = replace(certified_rows(26_600, 271, 48_842), without_twin=22_043)
    certified = metrics(attribute(proved=proved(900, data_set=rows)))[3]
    assert certified.value == percent(4_557 / 26_799) == "17.0%"
    assert certified.of == "of 26,799 records in the data set proved not to depend on sex"
    assert certified.note == "82.0% undecided; 1.0% proved to depend; the rules allow no twin of 22,043 more"
    flips = metrics(attribute(proved=proved(900, data_set=certified_rows(0, 45, 1000))))[3]
    assert flips.text == "Undecided: 95.5% of 1,000 records in the data set; 4.5% proved to depend"  # 0% is no verdict
    alone = replace(certified_rows(100, 0, 100), without_twin=100)
    nobody = metrics(attribute(proved=proved(900, data_set=alone)))[3]
    assert (nobody.value, nobody.of) == (NOT_MEASURED, "None of 100 records in the data set has an allowed twin.")


def test_a_plausible_twin_is_explained_where_the_first_screen_speaks_of_one():
    assert explain_twin(()) == explain_twin((attribute(),)) == ""
    one = attribute(rates=Rates(pairs=rate(112, 10_866, "pairs")))
    text = "Plausible twin: the same record with another sex that fits the rest"
    assert explain_twin((one,)) == f"{text} (no female husband)."
    of_many = explain_twin((replace(one, sensitive=("sex", "race"), twins=9),))
    assert "another sex or race that fits" in of_many
    assert of_many.endswith("of up to 9 such twins, one different decision is enough.")


def test_a_plausible_twin_is_not_explained_where_the_model_does_not_use_the_attribute():
    note = Note(NOT_USED, "The model does not read it.", "Look at counterfactuals.")
    unused = fair(rates=Rates(pairs=rate(0, 10_866, "pairs")), health=(note,))
    assert explain_twin((unused,)) == ""
    assert explain_twin((replace(unused, health=()),)) != ""


def test_an_unknown_ratio_says_why():
    unknown = replace(DISPARITY, disparate_impact=None, unknown={"disparate_impact": "too few groups"})
    assert metrics(attribute(disparity=unknown))[1].text == "Not known: too few groups."


def test_the_status_is_that_of_the_thresholds_alone():
    one = conclude(report(attribute()))
    assert status(one) == "○ No threshold was set, so this report does not pass or fail the model."
    check = GateCheck("rate > 1%", "sex", 0.0, None, None, "value", fired=True, text="…")
    assert status(conclude(replace(one, gate=Gate(False, (check,))))) == "▲ Threshold breached: rate > 1%."
    unsure = replace(one, gate=Gate(False, (replace(check, exceeded=False),)))
    assert status(conclude(unsure)) == "▲ Threshold not ruled out by so few records: rate > 1%."
    passed = replace(one, gate=Gate(True, (replace(check, fired=False),)))
    assert status(conclude(passed)) == "● No threshold breached (rate > 1%)."
    empty = conclude(report(fair(rates=Rates(), searches=())))
    assert status(empty).startswith("◆ Not assessable. No threshold was set")


def test_one_flipped_synthetic_record_is_no_alarm_and_a_failed_threshold_is():
    one = fair(rates=Rates(rate(0, 1000, "table"), rate(1, 50_000, "plausible"), rate(0, 50_000)))
    assert conclude(report(one)).verdict.tone == "neutral"
    check = GateCheck("rate > 1%", "sex", 0.0, None, None, "value", fired=True, text="…")
    assert conclude(report(one, gate=Gate(False, (check,)))).verdict.tone == "alarm"


def test_three_steps_each_with_a_command():
    steps = propose_steps(conclude(replace(adult(), gate=None)))
    assert [step.command.split()[1] for step in steps if step.command] == ["show", "alternatives", "audit"]
    assert steps[2].command.endswith("--fail-if 'flip_rate > 1%'")
    assert len(propose_steps(adult())) == 3
    silent = report(fair(), reproduction=replace(report().reproduction, command=""))
    assert propose_steps(conclude(silent)) == ()  # a call from Python


def test_real_records_come_before_synthetic_ones():
    found, real = finding(gap=9.0, plausibility=0.3), finding(method="table", gap=1.0, plausibility=0.3, replay=None)
    made = report(attribute(worst=(found, real)))
    assert select_realistic_pairs(made.attributes, 3) == [real, found]
    assert describe_pair(real).startswith("real record: ")
    assert describe_pair(found).startswith("synthetic record: ")
    assert propose_steps(conclude(made))[0].command == found.replay  # a record of the data set has no run to show it


def test_a_quick_look_says_what_is_smaller():
    reduced = AuditSettings.quick(samples=50_000).reduced
    parts = "starting rows 50/200", "search steps 30/100", "proof seconds 2/6", "permutations 5/20"
    assert reduced == parts
    assert AuditSettings().reduced == AuditSettings(steps=400).reduced == ()
    made = report(reproduction=replace(report().reproduction, reduced=reduced[:2]))
    told = "A quick look (budget used/default): starting rows 50/200, search steps 30/100."
    assert list_limits(made) == [told]


def test_people_without_a_plausible_twin_are_counted():
    pairs = replace(rate(112, 10_866, "pairs"), alone=9134)
    one = attribute(rates=Rates(pairs=pairs))
    assert metrics(one)[0].note == "9,134 more have none"
    assert tabulate_overview((one,)).rows[0][:3] == ("sex", "1", "10,866")


def test_plausible_pairs_are_shown_alone_if_there_are_any():
    rare, usual = finding(gap=9.0, plausibility=0.0), finding(gap=1.0, plausibility=0.3)
    assert select_realistic_pairs((attribute(worst=(rare, usual)),), 3) == [usual]
    assert select_realistic_pairs((attribute(worst=(rare,)),), 3) == [rare]


def test_what_limits_the_result_is_said_once():
    doubt = EncodingCheckReport("suspicious", "It may be wrong.", 50, accuracy=0.3)
    made = report(attribute(), encoding_check=doubt, reproduction=replace(report().reproduction, interrupted=True))
    made = replace(made, data=replace(made.data, domain_inferred=True))
    assert [line.split()[0] for line in list_limits(made)] == ["The", "Input", "The"]
    unchecked = replace(doubt, level="ok", text="It could not be checked.", accuracy=None)
    assert list_limits(report(encoding_check=unchecked)) == ["It could not be checked."]
    assert list_limits(report(encoding_check=replace(unchecked, accuracy=0.9))) == []
