from __future__ import annotations

import contextlib
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronfair.audits.gate.checks import compare_with
from neuronfair.audits.gate.thresholds import (
    ATTRIBUTE_METRICS,
    AUDIT_METRICS,
    METRICS,
    check_thresholds,
    read_expressions,
)
from neuronfair.audits.report.attribute import NOT_USED, Disparity, Gap, Note, ProofSummary, Rates
from neuronfair.errors import NeuronFairError
from neuronfair.measure.rate import Rate
from tests.reports import (
    MODEL,
    REGRESSION_SET,
    attribute,
    certified_rows,
    counterfactual,
    fair,
    proved,
    rate,
    report,
    search,
)


def fired(audit, *expressions):
    gate = check_thresholds(audit, expressions)
    assert gate.passed == (not any(c.fired for c in gate.checks))
    return [c.fired for c in gate.checks]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("domain.rate > 0.01", True),  # 3% of 10,000, interval 2.67 to 3.35%
        ("domain.rate > 3%", True),
        ("domain.rate > 0.0336", False),
        ("domain.rate >= 3.4%", False),
        ("domain.rate < 2.7%", True),  # the lower end
        ("domain.rate < 2.6%", False),
        ("rate.domain>.01", True),
        ("table.rate > 0.13", True),  # 2 of 50: from 0.488 to 13.7%
        ("table.rate > 0.14", False),
        ("rate.table > 0.13", True),
        ("rate > 0.13", True),  # the larger of the upper ends
        ("rate > 0.14", False),
        ("flip_rate > 0.13", True),
        ("flip_rate > 0.14", False),
        ("rate < 2.6%", True),  # the smaller of the lower ends
        ("rate < 0.4%", False),
        ("sex.rate > 1%", True),
        ("sex.rate > 14%", False),
        ("sex.flip_rate > 1%", True),
        ("sex.flip_rate > 14%", False),
        ("sex.table.rate > 14%", False),
        ("sex.domain.rate > 3%", True),
        ("sex.rate.table > 14%", False),
        ("findings > 79", True),
        ("findings > 80", False),
        ("findings < 60", True),  # the smallest search counts for a lower limit
        ("findings.neuronfair-plus > 50", False),
        ("findings.neuronfair-plus >= 50", True),
        ("gsr > 7.9%", True),
        ("lift > 5", True),
        ("lift.neuronfair-plus > 5", False),
        ("severity.p95 > 2", True),
        ("severity.max > 3e0", False),
        ("worst_auc > 0.3", True),
        ("worst_auc > 0.4", False),
        ("accuracy < 0.8", False),
        ("accuracy <= 0.8", True),
        ("accuracy.train < 95%", True),
    ],
)
def test_expressions_are_true_or_not(expression, expected):
    assert fired(report(), expression) == [expected]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("proved_fair < 90%", False),  # 900 of 1,000, and 30 proved discriminatory
        ("proved_fair < 90.1%", True),
        ("proved_fair <= 0.9", True),
        ("sex.proved_fair < 1", True),
        ("proved_discriminatory > 0", True),
        ("proved_discriminatory > 3%", False),
        ("undecided > 7%", False),
        ("sex.undecided >= 7%", True),
        ("open > 7%", False),  # the older spelling
        ("sex.open >= 7%", True),
    ],
)
def test_what_is_proved_is_compared_as_it_is(expression, expected):
    made = report(attribute(proved=proved(900, 30)))
    assert fired(made, expression) == [expected]


def test_certified_speaks_of_the_data_set():
    made = report(attribute(proved=proved(900, 30, data_set=certified_rows(600, 150))))
    kept, depends = check_thresholds(made, ["certified < 60%", "certified_discriminatory > 10%"]).checks
    assert (kept.fired, kept.value) == (False, 0.6)
    assert (depends.fired, depends.value) == (True, 0.15)
    with pytest.raises(NeuronFairError, match="there is no data set"):
        check_thresholds(report(attribute(proved=proved(900, 30))), ["certified < 60%"])


def test_a_single_open_person_is_not_fair():
    made = report(attribute(proved=proved(10**20 - 1, 0, 10**20)))
    assert fired(made, "proved_fair < 100%", "open > 0", "proved_fair >= 1") == [True, True, False]
    (one,) = check_thresholds(made, ["proved_fair < 100%"]).checks
    assert one.text == "Share of the input space certified not to depend by sex: above 99.9999%; it is below 100%."


def test_what_is_not_proved_is_not_known():
    with pytest.raises(NeuronFairError, match=r"is not known: no proof was tried for sex. Give --prove SECONDS"):
        check_thresholds(report(), ["proved_fair < 90%"])
    unprovable = ProofSummary.nothing(10, "it shows nothing of itself")
    for expression in ("proved_fair < 90%", "open > 5%"):
        with pytest.raises(NeuronFairError, match="is not known: nothing can be proved: it shows nothing of itself"):
            check_thresholds(report(attribute(proved=unprovable)), [expression])
    with pytest.raises(NeuronFairError, match="is a share between 0% and 100%"):
        check_thresholds(report(attribute(proved=proved(900))), ["proved_fair < 90"])


@pytest.mark.parametrize("compare", [">", ">=", "<", "<="])
def test_the_text_does_not_contradict_itself(compare):
    audit = report()
    rate = audit.attributes[0].rates.domain
    for end in (rate.low, rate.high):
        for number in (end, round(end, 4), round(end, 6), end + 1e-9, end - 1e-9):
            (one,) = check_thresholds(audit, [f"domain.rate {compare} {number:.17g}"]).checks
            judged = one.high if compare[0] == ">" else one.low
            low, high, limit = (float(text) for text in re.findall(r"([\d.]+)[%–]", one.text)[2:5])
            shown = high if compare[0] == ">" else low
            assert (shown > limit, shown < limit) == (judged > number, judged < number), one.text


def test_three_digits_are_enough_where_figures_lie_apart():
    (one,) = check_thresholds(report(), ["domain.rate > 1%"]).checks
    assert one.text.startswith("Flip rate by sex: 3.0% (95% CI 2.7–3.4%) of 10,000 synthetic records drawn")


def test_a_tiny_threshold_is_compared_as_a_power_of_ten():
    (one,) = check_thresholds(report(), ["domain.rate > 1e-298%"]).checks
    assert one.fired
    assert one.text.endswith("is above 1e-298%.".replace("-", "\N{MINUS SIGN}"))


def test_a_rate_is_judged_on_the_end_that_is_on_the_safe_side():
    few = report(attribute(found=0, people=100))  # the upper end is 3.6%
    gate = check_thresholds(few, ["domain.rate > 0.01", "domain.rate < 0.01"])
    assert [c.judged_on for c in gate.checks] == ["upper end", "lower end"]
    assert [c.fired for c in gate.checks] == [True, True]
    assert gate.checks[0].high == pytest.approx(1 - 0.025 ** (1 / 100))
    assert "too small to decide: about 370" in gate.checks[0].note  # 0.99 ** 368 < 0.025


def test_as_many_people_as_it_asks_for_are_enough():
    assert fired(report(attribute(found=0, people=370)), "domain.rate > 0.01") == [False]
    text = check_thresholds(report(attribute(found=4, people=500)), ["domain.rate > 0.01"]).checks[0].note
    needed = int(text.partition("about ")[2].partition(" records")[0].replace(",", ""))
    assert Rate(round(0.008 * needed), needed, "domain").interval[1] <= 0.0101
    assert Rate(round(0.004 * needed), needed // 2, "domain").interval[1] > 0.01


def test_it_says_when_more_people_would_not_help():
    assert "No sample can" in check_thresholds(report(fair()), ["rate > 0"]).checks[0].note
    likely = check_thresholds(report(attribute(found=6, people=500)), ["domain.rate > 0.01"]).checks[0].note
    assert "a larger sample would hardly change that" in likely
    sure = check_thresholds(report(attribute(found=300)), ["domain.rate > 0.01"]).checks[0].explained
    assert "needed" not in sure
    assert (
        "10,000 synthetic records drawn uniformly from the declared input space; the upper end is above 1%. 300 of"
        in sure
    )


def test_a_table_that_is_too_small_is_said_to_be():
    small = Rates(table=rate(0, 50, "table"), domain=rate(0, 10_000))  # 0 of 50: at most 7.11%
    (one,) = check_thresholds(report(attribute(rates=small)), ["rate > 5%"]).checks
    assert one.fired
    assert (
        "too small to decide: about 72 records are needed, and the data set has 50." in one.note
    )  # 0.95 ** 72 < 0.025


def test_no_model_passes_by_the_milder_population():
    """COMPAS: 21.6% of the table, 2.12% of synthetic records; "rate > 5%" passed."""
    synthetic = rate(212, 10_000, "plausible")
    compas = report(attribute("race", rates=Rates(table=rate(1333, 6172, "table"), plausible=synthetic)))
    assert fired(compas, "rate > 5%", "race.rate > 5%", "table.rate > 5%", "plausible.rate > 5%") == [
        True, True, True, False,
    ]  # fmt: skip
    (one,) = check_thresholds(compas, ["rate > 5%"]).checks
    assert (one.figure, one.judged_on) == ("table.rate", "upper end")
    assert one.value == 1333 / 6172
    of = "6,172 records in the data set"
    assert one.text == f"Flip rate by race: 21.6% (95% CI 20.6–22.6%) of {of}; the upper end is above 5%."
    milder = "Other populations: 2.1% (upper end 2.4%) of 10,000 realistic synthetic records."
    assert one.note == f"1,333 of 6,172 flip. {milder}"
    mirrored = report(attribute(rates=Rates(table=rate(131, 6172, "table"), plausible=rate(2160, 10_000, "plausible"))))
    (one,) = check_thresholds(mirrored, ["rate > 5%"]).checks
    assert (one.fired, one.figure) == (True, "plausible.rate")


def test_the_flip_rate_speaks_of_people_and_not_of_records_drawn_uniformly():
    drawn = report(attribute(rates=Rates(table=rate(10, 6172, "table"), domain=rate(2160, 10_000))))
    assert fired(drawn, "flip_rate > 5%", "domain.rate > 5%") == [False, True]
    assert check_thresholds(drawn, ["flip_rate > 5%"]).checks[0].note == "10 of 6,172 flip."


def test_one_population_is_enough_to_be_judged_by():
    only = report(attribute(rates=Rates(plausible=rate(300, 10_000, "plausible"))))
    assert fired(only, "rate > 3.4%") == [False]
    with pytest.raises(NeuronFairError, match=r"'table.rate' is not known: it was not measured for sex"):
        check_thresholds(only, ["table.rate > 3.4%"])


def between(value: float, low: float, high: float, **more) -> Gap:
    return Gap("selection rate", value, low, high, "F", "M", **more)


GROUPS = Disparity(">50K", 0.95, between(0.85, 0.75, 0.9), between(0.1, 0.05, 0.15), between(0.2, 0.1, 0.3))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("disparate_impact < 0.8", True),  # the lower end
        ("disparate_impact < 70%", False),
        ("disparate_impact > 0.8", True),
        ("sex.disparate_impact > 0.9", False),
        ("selection_rate.difference > 12%", True),  # the upper end
        ("selection_rate.difference > 15%", False),
        ("error_rate.difference > 0.29", True),
        ("sex.error_rate.difference < 0.09", False),
    ],
)
def test_gaps_between_groups_are_judged_on_the_safe_side(expression, expected):
    assert fired(report(attribute(disparity=GROUPS)), expression) == [expected]


def test_the_text_of_a_gap_names_the_groups_and_who_was_left_out():
    small = tuple(f"{name} (9 rows)" for name in "ABCDE")
    gaps = replace(GROUPS, disparate_impact=between(0.85, 0.75, 0.9, left_out=small))
    (one,) = check_thresholds(report(attribute(disparity=gaps)), ["disparate_impact < 0.8"]).checks
    assert one.explained == (
        "Disparate-impact ratio by sex: 0.85 (95% CI 0.75–0.9); the lower end is below 0.8. The selection rate "
        "('>50K') is highest for M and lowest for F. The sample is too small to rule it out. Groups that "
        "are too small are left out: A (9 rows), B (9 rows), C (9 rows) and 2 more."
    )


def test_a_gap_that_is_not_known_is_an_error():
    why = {"error_rate.difference": "the table has no labels"}
    unknown = replace(GROUPS, error_rate_difference=None, unknown=why)
    with pytest.raises(NeuronFairError, match=r"'error_rate.difference' is not known: the table has no labels"):
        check_thresholds(report(attribute(disparity=unknown)), ["error_rate.difference > 5%"])
    with pytest.raises(NeuronFairError, match=r"'disparate_impact' is not known: .* tolerance"):
        check_thresholds(report(), ["disparate_impact < 0.8"])


def test_figures_are_written_as_people_read_them():
    texts = [
        c.explained for c in check_thresholds(report(), ["findings > 1e6", "gsr > 0.5", "severity.p95 > 2"]).checks
    ]
    assert texts == [
        "findings by sex: 80; it is not above 1,000,000. Search by frontier.",
        "gsr by sex: 8%; it is not above 50%. Search by frontier.",
        "95th percentile of the score gaps by sex: 2.5; it is above 2.",
    ]


def test_a_figure_is_checked_for_every_attribute_unless_one_is_named():
    both = report(attribute("sex"), fair("race"), attribute("sex+race"))
    gate = check_thresholds(both, ["rate > 0.01", "race.findings > 0", "sex+race.rate > 1%", "accuracy < 0.5"])
    seen = [(c.attribute, c.fired) for c in gate.checks]
    assert seen == [
        ("sex", True),
        ("race", False),
        ("sex+race", True),
        ("race", False),
        ("sex+race", True),
        (None, False),
    ]
    assert not gate.passed


def test_columns_may_have_odd_names():
    odd = report(attribute("a>b.c"), attribute("age in years"))
    assert fired(odd, "a>b.c.rate > 1%", "age in years.lift < 1") == [True, False]


def test_a_model_that_nobody_was_found_for_passes_every_limit():
    assert (
        fired(report(fair()), "findings > 0", "gsr > 0", "lift > 1", "severity.p95 > 0", "rate > 0.001") == [False] * 5
    )


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("rat > 0.01", "no metric 'rat'.*Did you mean 'rate'"),
        ("sexx.rate > 0.01", "Did you mean 'sex.flip_rate'"),
        ("sex.accuracy > 1", "no metric 'sex.accuracy'"),
        ("findings.adf > 1", "no metric 'findings.adf'"),
        ("rate", "expected a metric"),
        ("rate = 1", "expected a metric"),
        ("rate > 0,01", "expected a metric"),
        ("rate > x", "expected a metric"),
        ("> 1", "expected a metric"),
        ("", "expected a metric"),
        ("rate > 1e999", "finite"),
        ("__import__('os') > 1", "no metric"),
        ("regression_set.still_flips > 0", "Set --regression-set"),
        ("rate.change > 0", "Give --baseline"),
    ],
)
def test_what_cannot_be_judged_is_an_error(expression, says):
    with pytest.raises(NeuronFairError, match=says):
        check_thresholds(report(), ["rate > 0.5", expression])


@pytest.mark.parametrize(
    ("expression", "audit"),
    [
        ("worst_auc > 0.3", report(attribute(interpretation=None))),
        ("rate > 0.01", report(attribute(rates=Rates()))),
        ("severity.p95 > 1", report(attribute(severity=None))),
        ("lift > 1", report(attribute(searches=(search("frontier", 5, None),)))),
        ("findings > 1", report(attribute(searches=()))),
        ("accuracy < 0.5", report(model=replace(MODEL, accuracy=None))),
        ("accuracy.train < 0.5", report(model=replace(MODEL, accuracy={"test": 0.7}))),
    ],
)
def test_an_unknown_figure_is_an_error_and_not_a_pass(expression, audit):
    with pytest.raises(NeuronFairError, match=r"not known|no search"):
        check_thresholds(audit, [expression])


@pytest.mark.parametrize(
    "expression", ["rate > 0.01", "rate.table > 0.9", "findings > 0", "gsr > 0", "severity.max > 9", "rate.change > 0"]
)
def test_a_model_that_decides_alike_for_everybody_does_not_pass(expression):
    constant = fair(health=(Note("constant-decision", "", ""),))
    with pytest.raises(NeuronFairError, match=r"gave the same decision to every record, so it cannot be assessed"):
        check_thresholds(report(constant), [expression])
    assert fired(report(constant), "worst_auc > 0.3", "accuracy < 0.5") == [True, False]
    other = fair(health=(Note("train-mode", "", ""),))
    assert fired(report(other), "rate > 0.01") == [False]


def test_why_there_is_no_layer():
    cut = report(attribute(interpretation=None))
    with pytest.raises(NeuronFairError, match="interrupted before the layers were interpreted"):
        check_thresholds(replace(cut, model=replace(MODEL, layers={"layer1": 4})), ["worst_auc > 0.3"])
    with pytest.raises(NeuronFairError, match="a linear model has no hidden layers"):
        check_thresholds(replace(cut, model=replace(MODEL, layers={})), ["worst_auc > 0.3"])
    with pytest.raises(NeuronFairError, match="a black box has no layers"):
        check_thresholds(replace(cut, model=replace(MODEL, white_box=False)), ["worst_auc > 0.3"])


def test_accuracy_is_that_on_unseen_rows_or_else_on_the_table():
    only_table = report(model=replace(MODEL, accuracy={"table": 0.7}))
    assert fired(only_table, "accuracy < 0.8", "accuracy.table < 0.6") == [True, False]
    with pytest.raises(NeuronFairError, match="not known"):
        check_thresholds(only_table, ["accuracy.test < 0.8"])


def test_the_regression_set_can_be_limited():
    audit = report(regression_set=replace(REGRESSION_SET, replayed=5, still_flips=2, fixed=3, unfit=1))
    assert fired(audit, "regression_set.still_flips > 0", "regression_set.fixed < 3", "regression_set.unfit >= 1") == [
        True,
        False,
        True,
    ]
    unfit = report(regression_set=replace(REGRESSION_SET, replayed=0, still_flips=0, fixed=0, unfit=4))
    assert fired(unfit, "regression_set.unfit > 0") == [True]
    with pytest.raises(NeuronFairError, match=r"none of the 4 counterexamples in c\.jsonl fits"):
        check_thresholds(unfit, ["regression_set.still_flips > 0"])


@pytest.mark.parametrize(("before", "after", "expected"), [(300, 300, False), (300, 330, False), (300, 500, True)])
def test_a_change_counts_only_if_it_is_shown(before, after, expected):
    now, then = (
        report(attribute(rates=Rates(plausible=rate(found, 10_000, "plausible"), domain=rate(found, 10_000))))
        for found in (after, before)
    )
    audit = replace(now, baseline=compare_with(now, then))
    assert fired(audit, "flip_rate.change > 0", "sex.flip_rate.change > 0", "rate.change > 0") == [expected] * 3
    named = ("plausible.rate.change > 0", "rate.plausible.change > 0", "domain.rate.change > 0")
    assert fired(audit, *named) == [expected] * 3


def test_plausible_people_count_as_the_others_do():
    """The upper ends are 10.6% of the table, 3.35% of plausible people and 0.18% of the domain."""
    three = Rates(rate(1, 50, "table"), rate(300, 10_000, "plausible"), rate(10, 10_000))
    made = report(attribute(rates=three))
    assert fired(made, "plausible.rate > 2%", "plausible.rate > 4%", "domain.rate > 2%") == [True, False, False]
    (one,) = check_thresholds(made, ["rate > 4%"]).checks
    assert (one.fired, one.figure) == (True, "table.rate")
    (one,) = check_thresholds(report(attribute(rates=replace(three, table=None))), ["rate > 2%"]).checks
    assert (one.fired, one.figure) == (True, "plausible.rate")
    assert "of 10,000 realistic synthetic records" in one.text
    then = report(attribute(rates=replace(three, plausible=rate(100, 10_000, "plausible"))))
    (one,) = check_thresholds(replace(made, baseline=compare_with(made, then)), ["plausible.rate.change > 0"]).checks
    assert (one.fired, one.value) == (True, pytest.approx(0.02))


def _at_confidence(one, confidence: float):
    rates = {rate.population: replace(rate, confidence=confidence) for rate in one.rates.available}
    return replace(one, rates=Rates(**rates))


def test_a_change_of_one_population_is_enough():
    drawn = (rate(300, 10_000, "plausible"), rate(100, 10_000, "plausible"))
    then = report(attribute(rates=Rates(table=rate(10, 1000, "table"), plausible=drawn[0])))
    now = report(attribute(rates=Rates(table=rate(90, 1000, "table"), plausible=drawn[1])))
    (one,) = check_thresholds(replace(now, baseline=compare_with(now, then)), ["rate.change > 0"]).checks
    assert (one.fired, one.figure) == (True, "table.rate.change")
    assert one.value == pytest.approx(0.08)
    assert "95% CI" in one.text
    less = [replace(one, attributes=(_at_confidence(one.attributes[0], 0.9),)) for one in (now, then)]
    (one,) = check_thresholds(replace(less[0], baseline=compare_with(*less)), ["rate.change > 0"]).checks
    assert "90% CI" in one.text
    (one,) = check_thresholds(replace(now, baseline=compare_with(now, then)), ["rate.change < 0"]).checks
    assert (one.fired, one.figure) == (True, "plausible.rate.change")


def test_a_fall_can_be_asked_for():
    now, then = (report(attribute(rates=Rates(plausible=rate(n, 10_000, "plausible")))) for n in (100, 300))
    audit = replace(now, baseline=compare_with(now, then))
    gate = check_thresholds(audit, ["sex.rate.change < 0", "rate.change < -0.019"])
    assert [c.fired for c in gate.checks] == [True, False]  # at least 1.45 points lower
    assert gate.checks[0].value == pytest.approx(-0.02)
    assert gate.checks[0].judged_on == "upper end"


def test_a_change_that_cannot_be_compared_is_an_error():
    now, then = report(), report(attribute("race"))
    with pytest.raises(
        NeuronFairError, match=r"'flip_rate.change' is not known: sex cannot be compared.*only then: race"
    ):
        check_thresholds(replace(now, baseline=compare_with(now, then)), ["rate.change > 0"])


def test_the_older_spelling_of_the_flip_rate_means_the_same():
    for older, name in (("rate > 1%", "flip_rate"), ("sex.rate.change > 0", "flip_rate.change")):
        (limit,) = read_expressions([older], ["sex"], [])
        assert (limit.expression, limit.metric) == (older, name)


def test_expressions_can_be_read_before_the_audit():
    limits = read_expressions(["flip_rate > 1%", "sex.lift.adf <= 2.5e1"], ["sex"], ["adf"])
    assert [(x.attribute, x.metric, x.compare, x.number) for x in limits] == [
        (None, "flip_rate", ">", 0.01),
        ("sex", "lift.adf", "<=", 25.0),
    ]


@given(st.text(max_size=30), st.sampled_from([">", ">=", "<", "<="]), st.floats(0.001, 0.999))
def test_any_column_name_can_be_named(name, compare, number):
    name = name.strip()
    limits = read_expressions([f"{name}.rate {compare} {number:.6f}"], [name], [])
    if name:
        assert limits[0].attribute in (name, None)
        assert math.isclose(limits[0].number, number, abs_tol=1e-6)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(NeuronFairError):
        read_expressions([text], ["sex"], ["frontier"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "rate > 1",
            "rate is a share between 0% and 100%, so this threshold can never be met. Did you mean 'rate > 1%'?",
        ),
        (
            "rate >= 1",
            "rate is a share between 0% and 100%, so this threshold is ambiguous. Did you mean 'rate >= 1%'?",
        ),
        ("rate > 5", "Did you mean 'rate > 5%'?"),
        ("rate > 150%", "can never be met."),
        ("rate > 100%", "can never be met."),
        ("rate < 0", "can never be met."),
        ("rate >= 0", "is always met."),
        ("sex.rate.table >= 1.5", "Did you mean 'sex.rate.table >= 1.5%'?"),
        ("gsr > 1", "gsr is a share between 0% and 100%"),
        ("gsr.frontier > 2", "Did you mean 'gsr.frontier > 2%'?"),
        ("accuracy < 0", "accuracy is a share between 0% and 100%, so this threshold can never be met."),
        ("accuracy < 70", "is always met. Did you mean 'accuracy < 70%'?"),
        ("disparate_impact > 1", "a ratio between 0 and 1, so this threshold can never be met. The smaller the ratio"),
        ("disparate_impact < 80", "Did you mean 'disparate_impact < 0.8'?"),
        ("error_rate.difference > 1", "a difference of shares between 0% and 100%"),
        ("counterfactual.excess < -1", "a difference of shares between -100% and 100%"),
        ("rate.change > 2", "Did you mean 'rate.change > 2%'?"),
        (
            "worst_auc > 50",
            "an area between 0 and 1, so this threshold can never be met. Did you mean 'worst_auc > 0.5'?",
        ),
        ("findings < 0", "findings is a count of at least 0, so this threshold can never be met."),
        ("findings >= 0", "is always met."),
        ("findings > 5%", "findings is a count of at least 0. Leave out the %"),
        ("lift < 0", "a ratio of at least 0"),
        ("severity.max >= 0", "a score gap of at least 0, so this threshold is always met."),
        ("regression_set.still_flips < 0", "a count of at least 0"),
    ],
)
def test_a_threshold_that_cannot_fail_or_pass_is_refused_with_what_was_probably_meant(text, says):
    with pytest.raises(NeuronFairError, match=re.escape(says)):
        read_expressions([text], ["sex"], ["frontier"])


NUMBERS = (-1e9, -2, -1.000001, -1, -0.999, -1e-9, 0, 1e-9, 0.5, 0.999, 1, 1.000001, 2, 50, 100, 150, 1e9)


@pytest.mark.parametrize(
    "name", [*ATTRIBUTE_METRICS, *AUDIT_METRICS, "gsr.frontier", "findings.frontier", "lift.frontier"]
)
def test_a_threshold_is_taken_if_some_value_meets_it_and_some_does_not(name):
    metric = METRICS.get(name) or METRICS[name.partition(".")[0]]
    top = min(metric.high, 1e12)
    compares = {">": lambda x, t: x > t, ">=": lambda x, t: x >= t, "<": lambda x, t: x < t, "<=": lambda x, t: x <= t}
    for sign, compare in compares.items():
        for number in NUMBERS:
            values = (metric.low, top, *(min(max(number + step, metric.low), top) for step in (-1e-12, 0, 1e-12)))
            possible = {compare(value, number) for value in values}
            try:
                read_expressions([f"{name} {sign} {number:.12f}"], [], ["frontier"])
                taken = True
            except NeuronFairError as error:
                taken = "is ambiguous" in str(error)  # 1, which may be meant as 1 or 100%
            assert taken is (len(possible) == 2), (name, sign, number)


def test_every_metric_has_a_range():
    assert set(METRICS) == {*ATTRIBUTE_METRICS, *AUDIT_METRICS}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("counterfactual.rate > 0.19", True),  # 19% between 18.1 and 19.9
        ("counterfactual.rate > 0.195", True),
        ("counterfactual.rate > 0.2", False),
        ("counterfactual.rate < 0.185", True),  # the lower end
        ("counterfactual.excess > 0.198", True),  # 18.97 between 18.06 and 19.88
        ("counterfactual.excess > 0.199", False),
        ("sex.counterfactual.excess > 5%", True),
    ],
)
def test_counterfactuals_are_judged_on_the_safe_side(expression, expected):
    assert fired(report(attribute(counterfactual=counterfactual())), expression) == [expected]


def test_the_text_of_counterfactuals_says_what_they_are_and_when_people_are_too_few():
    (one,) = check_thresholds(
        report(attribute(counterfactual=counterfactual())), ["counterfactual.rate > 0.195"]
    ).checks
    assert (
        one.text == "Flip rate of counterfactual twins by sex: 19.0% (95% CI 18.1–19.9%); the upper end is above 19.5%."
    )
    assert "Had they been of the other group" in one.note
    assert "or the number of shuffles, is too small" in one.note


def test_counterfactuals_that_are_not_known_are_an_error():
    with pytest.raises(NeuronFairError, match=r"'counterfactual.rate' is not known: no counterfactual test was"):
        check_thresholds(report(), ["counterfactual.rate > 0.1"])
    impossible = attribute(health=(Note("no-counterfactuals", "Nobody was compared: too few.", "…"),))
    with pytest.raises(NeuronFairError, match=r"not known: Nobody was compared: too few"):
        check_thresholds(report(impossible), ["counterfactual.excess > 0.1"])


def test_an_empty_flip_test_is_said_to_be_empty():
    unread = fair(health=(Note(NOT_USED, "…", "…"),))
    (one,) = check_thresholds(report(unread), ["rate > 0.01"]).checks
    assert not one.fired
    assert "flips do not show proxies: limit counterfactual.excess, too" in one.note
    assert "says nothing" not in check_thresholds(report(fair()), ["rate > 0.01"]).checks[0].text


def test_a_change_of_counterfactuals_is_judged_on_what_is_certain():
    """From 3.1 (1.9 to 4.3) to 19% (18.1–19.9%): by 13.8 points at least; flips do not enter."""
    now, then = (report(attribute(counterfactual=counterfactual(claimed=claimed))) for claimed in (True, False))
    changed = replace(now, baseline=compare_with(now, then))
    assert fired(changed, "counterfactual.rate.change > 13.7%", "counterfactual.rate.change > 13.9%") == [True, False]
    assert fired(changed, "counterfactual.excess.change > 0", "rate.change > 0") == [True, False]
