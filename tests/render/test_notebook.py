"""What a notebook shows: rich's bar while an audit runs, and the first screen on a card."""

from __future__ import annotations

import pytest

from neuronfair.audits.report import DataReport, Verdict
from neuronfair.domain.schema.column_types import ExcludedColumn
from neuronfair.formatting import percent
from neuronfair.render import terminal
from neuronfair.render.page import render_verdict
from tests import reports


def test_a_notebook_without_widgets_has_no_bar_and_no_warning(monkeypatch):
    made = terminal._Console.__init__
    monkeypatch.setattr(terminal._Console, "__init__", lambda self, **o: made(self, force_jupyter=True, **o))
    monkeypatch.setattr(terminal, "find_spec", lambda name: None)
    with terminal.progress_bar("Auditing") as show:
        show(1, 4, "<x>", activity="Judging")


def test_the_card_says_what_was_left_out():
    data = DataReport(
        "people", 50, 2, ("sex",), left_out=(ExcludedColumn("id", "a number"), ExcludedColumn("name", "names"))
    )
    assert "50 records, 2 attributes, 2 columns left out" in render_verdict(reports.report(data=data))


@pytest.mark.parametrize(
    ("thresholds", "level", "colour", "sign"),
    [
        ("failed", "above the threshold", "#b3261e", "▲ It"),
        ("not evaluated", "not assessable", "#8a5a00", "◆ Not assessable. It"),
        ("passed", "dependence found", "#1b6e3c", "● It"),
        ("none set", "dependence found", "currentColor", "○ It"),
    ],
)
def test_the_colour_of_the_card_follows_the_thresholds(thresholds, level, colour, sign):
    told = Verdict(level, "A fact.", thresholds=thresholds, threshold_text="It is said.")
    card = render_verdict(reports.report(verdict=told))
    assert colour in card
    assert sign in card
    assert ">A fact.</p>" in card
    assert ("#b3261e" in card) is (thresholds == "failed")


def test_the_card_shows_the_metrics_of_each_attribute():
    one = reports.attribute(counterfactual=reports.counterfactual(), proved=reports.proved(900, 30))
    card = render_verdict(reports.report(one, reports.fair("<b>")))
    for words in ("<th>Flip rate</th>", "<th>Proxy excess</th>", "19.0 pp (18.1–19.9 pp)", f">{percent(0.9)}</td>"):
        assert words in card
    assert "<bdi>&lt;b&gt;</bdi>" in card
