from __future__ import annotations

import re
from dataclasses import replace

import pytest

from neuronfair.audits.report.attribute import DirectionReport, Note, SideReport
from neuronfair.audits.report.proved import Proved
from neuronfair.audits.report.rates import Rates
from neuronfair.audits.report.report import EncodingCheckReport, PopulationReport, Report, Verdict
from neuronfair.domain.schema.column_types import LeftOut
from neuronfair.render.terminal import audit_report, make_console
from tests import reports


def shown(report, width: int = 200) -> str:
    console = make_console()
    console.width = width
    with console.capture() as capture:
        console.print(audit_report(report))
    return capture.get()


def test_the_verdict_comes_first_then_figures_and_the_worst():
    text = shown(reports.report(reports.attribute("sex"), reports.fair("race", rates=Rates(), searches=())))
    lines = text.splitlines()
    assert lines[0] == "Dependence found: The decision flips for 3% of people."
    (sex,) = [line for line in lines if line.startswith(" sex ")]
    assert re.split(" {2,}", sex.strip()) == [
        "sex", "4% (0.488–13.7%)", "3% (2.67–3.35%)", "frontier", "80", "8×",
    ]  # fmt: skip
    (race,) = [line for line in lines if line.startswith(" race ")]
    assert race.count("not known") == 2
    assert "• A person with age 39 is decided low; with sex M instead of F: high." in text
    assert "  neuronfair show RUN/sex/frontier 17" in text


def test_how_groups_fare_is_a_line_for_each_attribute():
    made = reports.report(reports.attribute("sex", groups=reports.GROUPS, disparity=reports.DISPARITY))
    text = shown(made)
    (line,) = [line for line in text.splitlines() if "F 26%" in line]
    assert [cell.strip() for cell in line.strip("│").split("│")] == [
        "sex", "yes", "F 26%", "M 65%", "0.40 (0.28–0.55)", "not known",
    ]  # fmt: skip
    assert "Groups by sex that are too small to be compared: X (9 rows)." in text


def test_disparate_impact_without_a_favourable_outcome_asks_for_it():
    unset = replace(reports.DISPARITY, disparate_impact=None, favourable=False)
    text = shown(reports.report(reports.attribute("sex", groups=reports.GROUPS, disparity=unset)))
    assert "│ set `favourable` │" in text


def test_what_is_proved_is_a_strip_with_its_shares():
    text = shown(reports.report(reports.attribute(proved=reports.proved(900, 30))))
    strip = "█" * 36 + "░░░▓"  # of 40: 90, 7 and 3%
    marked = f"{strip[:39]}│{strip[39:]}"  # 3% from the right
    assert f"{marked} sex: proved fair 90%, open 7%, proved discriminatory 3%\n" in text
    assert "█ proved fair, ░ open, ▓ proved discriminatory" in text


def test_what_cannot_be_proved_is_said_once():
    why = Proved.nothing(10, "it shows nothing of itself")
    text = shown(reports.report(reports.attribute(proved=why), reports.fair("race", proved=why)))
    assert text.count("No proof: it shows nothing of itself.") == 1
    assert "░" not in text


def test_what_could_not_be_checked_is_said():
    said = "Whether the model is right could not be checked."
    assert said in shown(reports.report(feeding=EncodingCheckReport("ok", said, 5)))
    assert said not in shown(reports.report(feeding=EncodingCheckReport("ok", said, 5, accuracy=0.9)))


def test_three_of_the_worst_by_their_gap_whatever_their_attribute():
    worst = [tuple(reports.finding(gap=gap, sentence=f"gap {gap}") for gap in gaps) for gaps in ((9, 2), (5, 4))]
    made = reports.report(reports.attribute("sex", worst=worst[0]), reports.attribute("race", worst=worst[1]))
    assert [line for line in shown(made).splitlines() if line.startswith("• gap")] == ["• gap 9", "• gap 5", "• gap 4"]


def test_what_a_build_asked_is_answered():
    text = shown(reports.adult(findings=0))
    assert "FAILED rate > 0.01: its upper end is above 1%." in text
    assert "passed corpus.still_flips > 5: it is not above 5." in text
    assert "Corpus: 3 of 41 past counterexamples still flip; 10 added to c.jsonl." in text
    assert "Since last/audit.json: sex.rate fell from 2.41% to 1.82%." in text
    assert "kept: neuronfair repair neuronfair-audit/sex/frontier --out fair.safetensors" in text
    assert "• People with hours per week at least 41 are discriminated against by sex." in text
    assert "Note: 612 of 1,000 seeds flip before any step. Compare with random." in text


def test_a_black_box_is_said_to_be_one():
    assert "Black box." in shown(reports.nothing_found())


def test_columns_that_were_left_out_are_named():
    made = reports.report()
    left_out = (LeftOut("id", "an identifier"), LeftOut("land\x1b", "constant"))
    assert "Left out" not in shown(made)
    text = shown(replace(made, data=replace(made.data, left_out=left_out)))
    assert "Left out: id: an identifier.\nLeft out: land\\u001b: constant." in text
    assert (
        Report.from_json(replace(made, data=replace(made.data, left_out=left_out)).to_json()).data.left_out == left_out
    )


def test_a_name_gives_the_terminal_no_orders():
    name = "se\x1b[31mx"
    text = shown(reports.report(reports.attribute(name), verdict=Verdict("dependence found", f"By {name}.")))
    assert "\x1b" not in text
    assert text.count("se\\u001b[31mx") >= 3


def test_every_note_is_shown_once_with_the_attributes_that_it_is_about():
    mode, rare, weak = (
        Note("train-mode", "In train mode.", "Call eval()."),
        Note("one-sensitive-value", "One value only.", "Check the column."),
        Note("weak-guidance", "adf, by race.", "Compare."),
    )
    sex, race = (
        reports.attribute("sex", health=(mode,)),
        reports.attribute("race", health=(mode, rare, weak)),
    )
    text = shown(reports.report(sex, race))
    assert text.count("In train mode. Call eval().") == 1
    assert "Note: In train mode." in text
    assert "Note: (race) One value only. Check the column." in text
    assert "Note: (race) adf, by race. Compare." in text


@pytest.mark.parametrize(
    ("thresholds", "level", "style"),
    [
        ("failed", "above the threshold", "bold red"),
        ("not evaluated", "not assessable", "bold yellow"),
        ("passed", "dependence found", "bold green"),
        ("none set", "dependence found", "bold"),
        ("none set", "proxy evidence", "bold"),
        ("none set", "no dependence found", "bold"),
    ],
)
def test_the_colour_follows_the_thresholds_and_nothing_else(thresholds, level, style):
    told = Verdict(level, "A fact.", thresholds=thresholds, threshold_text="About thresholds.")
    lines = audit_report(reports.report(verdict=told)).renderables
    assert (lines[0].plain, lines[0].style) == (f"{level.capitalize()}: A fact.", style)
    assert lines[1] == "About thresholds."


def test_columns_that_were_left_out_are_named_by_their_reason():
    names = [LeftOut(f"x{i}", "the model does not read it") for i in range(10)]
    made = reports.report()
    text = shown(replace(made, data=replace(made.data, left_out=(*names, LeftOut("id", "a running number")))))
    assert "Left out: x0, x1, x2, x3, x4, x5, x6, x7, … (10 in all): the model does not read it." in text
    assert "Left out: id: a running number." in text


def test_the_names_of_searches_are_not_cut_off_where_there_is_little_room():
    rates = Rates(*(reports.rate(20, 1000, who) for who in ("table", "plausible", "domain")))
    searches = (reports.search("frontier-free", 12_345, 1.25, 20_000),)
    text = shown(reports.report(reports.attribute("sex+race", rates=rates, searches=searches)), 80)
    assert re.search(r"sex\+race .* frontier-free +12,345 +1\.2×$", text, re.M)


def test_plausible_people_are_told_first_and_how_usual_they_are():
    """The widest gap is that of somebody who is like nobody."""
    people = [
        replace(reports.finding(), sentence=f"{who}.", gap=gap, plausibility=share)
        for who, gap, share in (("Nobody", 9.0, 0.0), ("One", 1.0, 0.05), ("Two", 2.0, 0.3))
    ]
    searches = (reports.search("frontier", plausible_share=0.125), reports.search("neuronfair"))
    made = reports.report(reports.attribute(worst=tuple(people), searches=searches))
    told = PopulationReport("table", 50, "Plausible people are drawn from a model of the table.", 0.61)
    text = shown(replace(made, data=replace(made.data, population=told)))
    order = [
        "• Two. As unusual as 1 in 3 people of the table.",
        "• One. As unusual as 1 in 20 people of the table.",
        "• Nobody. Not plausible: less usual than everybody in the table.",
    ]
    assert [line for line in text.splitlines() if line.startswith("• ")][:3] == order
    assert f"{told.text} Of the findings these are plausible: 12.5% by frontier (sex). Plausible: at or above" in text
    every = reports.attribute(searches=(reports.search("frontier", plausible_share=1.0),) * 2)
    text = shown(replace(reports.report(every), data=replace(made.data, population=told)))
    assert f"{told.text} All findings are plausible. Plausible: at or above the 1st likelihood percentile" in text


def test_counterparts_are_a_table_with_what_carries_them():
    one = reports.attribute(counterpart=reports.counterpart())
    text = shown(reports.report(one, reports.fair("race")))
    (line,) = [line for line in text.splitlines() if "0.03% (0–0.07%)" in line]
    assert re.split(" {2,}", line.strip()) == [
        "sex", "19% (18.1–19.9%)", "0.03% (0–0.07%)", "19% (18.1–19.9%)", "11%", "5%",
    ]  # fmt: skip
    for words in ("Counterfactual twins: proxy evidence", "81% of the effect goes", "AUC of 0.93", "Twins keep age"):
        assert words in text
    assert "Whom it hurts: Men as women lose '>50K' in 17.1% of cases." in text
    assert max(map(len, shown(reports.report(one), 80).splitlines())) <= 80


def test_whom_findings_by_counterparts_hurt_is_not_said_to_be_by_flips():
    hurt = DirectionReport("findings", 9, (SideReport("F", 0, 9), SideReport("M", 9, 0)), "In 9 of 9 pairs …")
    by_flips = reports.attribute(direction=(hurt,))
    assert "Whom it hurts: In 9 of 9" in shown(reports.report(by_flips))
    assert "In 9 of 9" not in shown(reports.report(replace(by_flips, search_twins="counterpart")))
