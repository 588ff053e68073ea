from __future__ import annotations

from dataclasses import replace

import pytest

from neuronfair.audits.folder import read_report
from neuronfair.audits.gate.checks import compare_with
from neuronfair.audits.report import DecisionReport
from neuronfair.audits.report.attribute import Interpretation, Rates
from neuronfair.errors import DataError
from neuronfair.limits import TooLargeError
from tests.reports import MODEL, REPRODUCTION, attribute, counterfactual, fair, layer, proved, report, search


def changes(now, then):
    return {change.figure: change for change in compare_with(now, then).changes}


def test_the_same_audit_has_not_changed():
    result = compare_with(report(), report(), "old/audit.json")
    assert result.file == "old/audit.json"
    assert result.text == "No rate changed significantly."
    assert [(c.figure, c.significant) for c in result.changes] == [
        ("sex.table.rate", False),
        ("sex.domain.rate", False),
    ]


def test_a_rate_changed_if_the_intervals_are_apart():
    change = changes(report(attribute(found=500)), report(attribute(found=300)))["sex.domain.rate"]
    before, after = attribute(found=300).rates.domain, attribute(found=500).rates.domain
    assert (change.before, change.after, change.significant) == (0.03, 0.05, True)
    assert change.low == after.low - before.high > 0
    assert change.high == after.high - before.low
    assert change.text == (
        "Flip rate of synthetic records drawn uniformly from the declared input space (sex) rose "
        "from 3.0% (2.7–3.4%) to 5.0% (4.6–5.4%)."
    )
    fell = compare_with(report(fair()), report())
    assert "Flip rate of synthetic records drawn uniformly from the declared input space (sex) fell" in fell.text


def test_overlapping_intervals_are_said_to_overlap():
    result = compare_with(report(attribute(found=320)), report(attribute(found=300)))
    assert "rate" in result.text
    assert "rose" not in result.text
    assert "overlap, so this may be chance" in result.changes[0].text
    assert not result.changes[0].significant


def test_what_is_proved_is_compared_where_both_have_a_proof():
    then, now = report(attribute(proved=proved(900, 30))), report(attribute(proved=proved(940, 30)))
    seen = changes(now, then)
    assert (
        seen["sex.proved_fair"].text == "Share of the input space certified not to depend (sex) went from 90% to 94%."
    )
    assert seen["sex.undecided"].text == "Undecided share of the input space (sex) went from 7% to 3%."
    assert "sex.proved_discriminatory" not in seen
    assert not any("proved" in figure for figure in changes(now, report()))


def test_figures_without_an_interval_are_shown_if_they_differ():
    now = report(
        attribute(
            searches=(search("frontier", 90), search("adf", 7)),
            severity=replace(attribute().severity, p95=2.0),
            interpretation=Interpretation("l1", (layer("l1", 0.25),)),
        ),
        model=replace(MODEL, accuracy={"test": 0.85}),
    )
    seen = changes(now, report())
    assert {name: (c.before, c.after) for name, c in seen.items() if "rate" not in name} == {
        "sex.findings.frontier": (80, 90),
        "sex.gsr.frontier": (0.08, 0.09),
        "sex.severity.p95": (2.5, 2.0),
        "sex.worst_auc": (0.4, 0.25),
        "accuracy.test": (0.8, 0.85),
    }
    assert seen["accuracy.test"].text == "Accuracy on the test part went from 80% to 85%."


def test_attributes_that_only_one_audit_has_are_named():
    text = compare_with(report(attribute("sex"), attribute("race")), report(attribute("age"), attribute("sex"))).text
    assert "Audited only now: race. Audited only then: age." in text


def test_what_is_unknown_is_left_out():
    black_box = attribute(rates=Rates(), interpretation=None, severity=None, searches=())
    assert changes(report(black_box, model=replace(MODEL, accuracy=None)), report()) == {}


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"reproduction": replace(REPRODUCTION, domain="d2")}, "another input schema"),
        ({"decision": DecisionReport("threshold", 0.5)}, "was threshold 0.5 and is now argmax"),
    ],
)
def test_what_means_something_else_is_not_compared(part, says):
    result = compare_with(report(), report(**part))
    assert result.changes == ()
    assert says in result.text


def test_another_table_is_mentioned():
    then = report(reproduction=replace(REPRODUCTION, rows="r2"))
    result = compare_with(report(), then)
    assert result.changes
    assert "other records than then" in result.text


def test_a_baseline_is_read_back(tmp_path):
    path = tmp_path / "audit.json"
    path.write_text(report().to_json(), encoding="utf-8")
    assert read_report(path) == report()


def test_a_folder_or_nothing_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(DataError, match=str(path)):
            read_report(path)


def test_a_file_that_would_take_too_much_memory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "audit.json"
    path.write_text("[" + "[]," * 1000 + "[]]")
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "90000")
    with pytest.raises(TooLargeError, match=r"audit\.json"):
        read_report(path)


def test_counterfactuals_are_compared_where_both_have_them():
    then, now = (report(attribute(counterfactual=counterfactual(claimed=claimed))) for claimed in (False, True))
    seen = changes(now, then)
    assert (
        seen["sex.counterfactual.rate"].text
        == "Flip rate of counterfactual twins (sex) rose from 3.1% (1.9–4.3%) to 19.0% (18.1–19.9%)."
    )
    assert seen["sex.counterfactual.excess"].significant
    assert not any("counterfactual" in figure for figure in changes(now, report()))


def test_counterfactual_metrics_of_other_declarations_are_not_compared():
    """Twins that keep age, or that follow a graph, are other people than twins that do not."""
    then = report(attribute(counterfactual=counterfactual(fixed=("age", "race"))))
    now = report(attribute(counterfactual=counterfactual(graph=("income <- sex",))))
    result = compare_with(now, then)
    assert not any("counterfactual" in change.figure for change in result.changes)
    assert "sex are not compared: the two audits declare different fixed and causes attributes." in result.text
    assert "sex.counterfactual.rate" in changes(then, then)
