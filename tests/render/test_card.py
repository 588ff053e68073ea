"""A model card: one page that says what was seen, and what was not."""

from __future__ import annotations

from dataclasses import replace

from neuronfair.audits.report.attribute import DirectionReport, GroupReport, SideReport
from neuronfair.audits.report.report import DecisionReport
from neuronfair.render.card import model_card
from tests import reports

HURT = DirectionReport(
    "table", 900, (SideReport("Female", 88, 812), SideReport("Male", 812, 88)), "In 812 of 900 pairs …"
)


def test_it_says_what_was_seen_and_how():
    made = reports.with_first(reports.adult(), direction=(HURT,))
    made = replace(made, data=replace(made.data, favourable=">50K"))
    text = model_card(made)
    for words in (
        "# Model card: trained on adult", "**Decisions depend on sex for 6.07% of people", "84.9% (test)",
        "- Decides: income: &lt;=50K or &gt;50K", "- Hoped for: &gt;50K", "45,222 rows, 13 attributes",
        "| sex | 20,000 rows of the table | 6.07% (5.74–6.4",
        "| sex | 20,000 people drawn uniformly from the domain | 1.82% (1.6",
        "share (interval with 95% confidence)", "- In 812 of 900 pairs …",
        "- sex: For 95% of all 1.0 × 10¹⁵ people of the domain it is proved", "| sex | Male | 15,679 | 24% |",
        "Of the people found (40,000 by sex)", "it does not prove that there are none", "612 of 1,000 seeds flip",
        "seed 0", "`neuronfair audit adult --sensitive sex --seed 0 --out neuronfair-audit`",
    ):  # fmt: skip
        assert words in text, words
    assert text.count("is decided '") == 3
    assert len(text) < 6000  # a page


def test_only_the_largest_groups_are_listed():
    groups = tuple(GroupReport(f"age {i}", i, 0.5) for i in range(50))
    text = model_card(reports.report(reports.attribute(groups=groups)))
    assert [f"| age {i} |" in text for i in (49, 44, 43, 0)] == [True, True, False, False]


def test_what_is_not_known_is_left_out():
    made = reports.nothing_found()
    text = model_card(replace(made, decision=DecisionReport("tolerance", 0.1), data=replace(made.data, target=None)))
    assert "black box" in text
    assert "more than 0.1" in text
    for words in ("None", "Accuracy", "Hoped", "Whom it hurts", "Worst cases", "Decides"):
        assert words not in text


def test_names_stay_names():
    made = reports.report(model=replace(reports.MODEL, source="<b>*m*</b>\n# x"))
    assert "# Model card: &lt;b&gt;\\*m\\*&lt;/b&gt; \\# x\n" in model_card(made)


def test_it_shows_counterparts_and_what_they_are_worth():
    text = model_card(reports.report(reports.attribute(counterpart=reports.counterpart())))
    assert "## Counterfactual twins: proxy evidence" in text
    assert "| sex | 19% (18.1–19.9%) | 0.03% (0–0.07%) |" in text
    assert "on causal assumptions that the data cannot test" in text
    assert "were not tested" not in text
    assert "were not tested" in model_card(reports.report())
