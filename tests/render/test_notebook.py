from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from neuronfair.audits.report.proved import Proved
from neuronfair.audits.report.rates import Rates
from neuronfair.audits.report.report import DataReport, Verdict
from neuronfair.domain.schema.column_types import LeftOut
from neuronfair.render import notebook, terminal
from tests import reports


class Place:
    """What IPython hands back for something that is shown: it can be shown anew."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def update(self, what: str) -> None:
        self.shown.append(what)


def test_a_bar_below_the_cell_goes_when_the_work_is_done(monkeypatch):
    place = Place()
    shown = SimpleNamespace(HTML=str, display=lambda what, display_id: place)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    monkeypatch.setattr(notebook, "EVERY", 0)
    made = terminal._Console.__init__
    monkeypatch.setattr(terminal._Console, "__init__", lambda self, **o: made(self, force_jupyter=True, **o))
    with terminal.progress_bar("Auditing") as show:
        show(1, 4, "<x>", what="Judging")
        show(0, None)
        show(7, None)
    assert place.shown == [
        'Judging <progress value="1" max="4"></progress> 1/4 &lt;x&gt;',
        "Auditing … ",
        "Auditing 7 ",
        "",
    ]


def test_it_is_not_drawn_all_the_time(monkeypatch):
    place = Place()
    monkeypatch.setitem(
        sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=lambda what, display_id: place)
    )
    monkeypatch.setattr(notebook.time, "monotonic", iter([1.0, 1.0, 1.1, 1.3, 1.3]).__next__)
    with notebook.notebook_bar("Auditing") as show:
        for done in range(3):
            show(done, None)
    assert place.shown == ["Auditing … ", "Auditing 2 ", ""]


def test_the_card_says_what_was_left_out():
    data = DataReport("people", 50, 2, ("sex",), left_out=(LeftOut("id", "a number"), LeftOut("name", "names")))
    assert "50 rows, 2 attributes, 2 columns left out" in notebook.verdict_card(reports.report(data=data))


@pytest.mark.parametrize(
    ("thresholds", "level", "colour", "sign"),
    [
        ("failed", "above the threshold", "#b3261e", "▲ Above the threshold"),
        ("not evaluated", "not assessable", "#8a5a00", "◆ Not assessable"),
        ("passed", "dependence found", "#1b6e3c", "● Dependence found"),
        ("none set", "dependence found", "currentColor", "○ Dependence found"),
    ],
)
def test_the_colour_of_the_card_follows_the_thresholds(thresholds, level, colour, sign):
    card = notebook.verdict_card(reports.report(verdict=Verdict(level, "It is.", thresholds=thresholds)))
    assert colour in card
    assert sign in card
    assert ("#b3261e" in card) is (thresholds == "failed")


def test_the_card_has_the_populations_that_were_measured():
    one = reports.attribute(rates=Rates(domain=reports.rate(3, 100)))
    card = notebook.verdict_card(reports.report(one))
    assert "<th>of the domain</th>" in card
    assert "<td>3%</td>" in card
    assert "of the table" not in card


def test_the_card_shows_what_is_proved():
    card = notebook.verdict_card(
        reports.report(reports.attribute(proved=reports.proved(900, 30)), reports.fair("race"))
    )
    assert '<span title="proved fair" style="flex:0.9;' in card
    assert "right:3.00%;" in card  # the sampled rate
    assert "90%, 7%, 3%" in card
    why = Proved.nothing(10, "it shows <nothing>")
    assert "<td>No proof: it shows &lt;nothing&gt;.</td>" in notebook.verdict_card(
        reports.report(reports.attribute(proved=why))
    )
    assert "proved" not in notebook.verdict_card(reports.report())


def test_the_card_shows_counterparts():
    card = notebook.verdict_card(
        reports.report(reports.attribute(counterpart=reports.counterpart()), reports.fair("race"))
    )
    assert "<th>as counterparts (groups shuffled)</th>" in card
    assert "<td>19% (0.03%)</td>" in card
    assert "counterparts" not in notebook.verdict_card(reports.report())
