"""The terminal: an audit on one screen, and names that cannot give the terminal orders."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

from neuronfair.audits.report import EncodingCheckReport, Report, Verdict
from neuronfair.audits.report.attribute import Note, ProofSummary, Rates
from neuronfair.audits.wording.verdict import conclude
from neuronfair.domain.schema.column_types import ExcludedColumn
from neuronfair.formatting import percent
from neuronfair.model.profile import interpret
from neuronfair.render.terminal import compose_audit, describe_profile, make_console, print_audit, progress_bar
from tests import reports
from tests.planted import networks


def shown(report, width: int = 200, *, verbose: bool = True) -> str:
    console = make_console()
    console.width = width
    with console.capture() as capture:
        print_audit(console, report, Path("RUN/report.html"), verbose=verbose)
    return capture.get()


def test_one_screen_ends_with_the_next_command_and_the_report():
    one = reports.attribute(
        groups=reports.GROUPS, disparity=reports.DISPARITY, counterfactual=reports.counterfactual(),
        proved=reports.proved(900, 30), health=(Note("a", "Something.", "Do."), Note("b", "More.", "Do.")),
    )  # fmt: skip
    lines = shown(conclude(reports.report(one)), 80, verbose=False).splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("Decisions depend on sex for ")
    assert lines[1].startswith("○ No threshold was set")
    assert lines[-2:] == ["  neuronfair show RUN/sex/frontier 17", "Report: RUN/report.html"]
    text = "\n".join(lines)
    for words in ("Flip rate", "Disparate-impact ratio", "Proxy excess", "Certified share",
                  "Worst pair, synthetic record: A person",
                  "Note: Something. Do. (1 more: --verbose)"):  # fmt: skip
        assert words in text, words
    assert "lift" not in text  # of searches: with --verbose


def test_all_tables_are_shown_when_asked():
    text = shown(reports.report(reports.attribute("sex"), reports.fair("race", rates=Rates(), searches=())))
    for words in ("All sensitive attributes", "Flip rates", "Appendix: searches for discriminatory inputs",
                  "• synthetic record: A person with age 39 is decided low; with sex M instead of F: high.",
                  "  neuronfair show RUN/sex/frontier 17"):  # fmt: skip
        assert words in text, words


def test_how_groups_fare_is_a_line_for_each_attribute():
    made = reports.report(reports.attribute("sex", groups=reports.GROUPS, disparity=reports.DISPARITY))
    text = shown(made)
    (line,) = [line for line in text.splitlines() if line.startswith("sex yes ")]
    for cell in (f"F {percent(0.26)}", f"M {percent(0.65)}", "0.40 (0.28–0.55)", "not known"):
        assert cell in line
    assert "Groups by sex that are too small to be compared: X (9 rows)." in text


def test_disparate_impact_without_a_favourable_outcome_asks_for_it():
    unset = replace(reports.DISPARITY, disparate_impact=None, favourable=False)
    text = shown(reports.report(reports.attribute("sex", groups=reports.GROUPS, disparity=unset)))
    assert "Set `favourable`" in text
    assert "set `favourable`" in text


def test_what_cannot_be_certified_is_said_once_below_the_table():
    why = ProofSummary.nothing(10, "it shows nothing of itself")
    text = shown(reports.report(reports.attribute(proved=why), reports.fair("race", proved=why)))
    table = text[text.index("Certified shares") :]
    assert table.count("No proof: it shows nothing of itself.") == 1


def test_what_could_not_be_checked_is_said():
    said = "Whether the model is right could not be checked."
    assert said in shown(reports.report(encoding_check=EncodingCheckReport("ok", said, 5)))
    assert said not in shown(reports.report(encoding_check=EncodingCheckReport("ok", said, 5, accuracy=0.9)))


def test_what_a_build_asked_is_answered():
    text = shown(reports.adult(findings=0))
    assert "FAILED rate > 0.01: its upper end is above 1" in text
    assert "passed regression_set.still_flips > 5: it is not above 5." in text
    assert "Regression set: 3 of 41 past counterexamples still flip; 2 no longer fit the input schema; 10 added" in text
    assert "Since last/audit.json: sex.rate fell from" in text
    assert "• People with hours per week at least 41 are discriminated against by sex." in text
    assert "Note: 612 of 1,000 seeds flip before any step. Compare with random." in text
    short = shown(reports.adult(findings=0), verbose=False)
    assert "FAILED rate > 0.01" in short
    assert "passed" not in short


def test_a_black_box_is_said_to_be_one():
    assert "Black box." in shown(reports.nothing_found())


def test_columns_that_were_left_out_are_named():
    made = reports.report()
    left_out = (ExcludedColumn("id", "an identifier"), ExcludedColumn("land\x1b", "constant"))
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
    assert "Note: (by race) One value only. Check the column." in text
    assert "Note: (by race) adf, by race. Compare." in text


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
    lines = compose_audit(reports.report(verdict=told)).renderables
    assert lines[0] == "A fact."
    assert (lines[1].plain.endswith("About thresholds."), lines[1].style) == (True, style)


def test_columns_that_were_left_out_are_named_by_their_reason():
    names = [ExcludedColumn(f"x{i}", "the model does not read it") for i in range(10)]
    made = reports.report()
    text = shown(replace(made, data=replace(made.data, left_out=(*names, ExcludedColumn("id", "a running number")))))
    assert "Left out: x0, x1, x2, x3, x4, x5, x6, x7, … (10 in all): the model does not read it." in text
    assert "Left out: id: a running number." in text


def test_counterfactual_twins_are_a_table_with_their_mediators():
    one = reports.attribute(counterfactual=reports.counterfactual())
    text = shown(reports.report(one, reports.fair("race")))
    for words in ("Counterfactual twins: proxy evidence", "81% of the effect goes", "AUC of 0.93", "Twins keep age"):
        assert words in text
    assert "Men as women lose '>50K' in 17.1% of cases." in text
    assert max(map(len, shown(reports.report(one), 80).splitlines())) <= 80


NAME = "a\x1b[31m\x1b]0;owned\x07[bold]\x9b\u202e:smile:[/bold]"
SHOWN = r"a\u001b[31m\u001b]0;owned\u0007[bold]\u009b\u202e:smile:[/bold]"


@pytest.fixture
def printed(monkeypatch):
    """Print on a terminal of 100 columns and return what reaches it."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")

    def call(thing, *, colours: bool = False) -> str:
        for name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("FORCE_COLOR" if colours else "NO_COLOR", "1")
        console = make_console()
        console.file = StringIO()
        console.print(thing)
        return console.file.getvalue()

    return call


def in_a_table(**options) -> Table:
    table = Table(title=NAME, caption=NAME, **options)
    table.add_column(NAME)
    table.add_row(NAME)
    return table


@pytest.mark.parametrize(
    ("thing", "times"), [(NAME, 1), (Group(NAME, NAME), 2), (in_a_table(), 4)], ids=["text", "group", "table"]
)
def test_a_name_is_shown_as_it_is(printed, thing, times):
    text = printed(thing)
    assert text.count(SHOWN) == times
    assert [sign for sign in text if not sign.isprintable() and sign != "\n"] == []


def test_a_styled_text_is_coloured_by_us_alone(printed):
    text = printed(Text(NAME, style="bold red"), colours=True)
    assert text.startswith("\x1b[1;31ma")
    assert text.count("\x1b") == 2  # to colour, and back
    assert "\\u001b[31m" in text


def test_tables_stay_straight(printed):
    lines = [line for line in printed(in_a_table()).splitlines() if line[:1] in "┏┃┡│└"]
    assert len({len(line) for line in lines}) == 1


def test_a_name_with_a_line_break_does_not_make_a_line(printed):
    text = printed("sex\nFAILED\tno\rpassed")
    assert text == "sex\\u000aFAILED\\u0009no\\u000dpassed\n"
    assert printed(Text("two\nlines")) == "two\nlines\n"  # ours may


def test_names_in_a_progress_bar(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "300")
    with progress_bar(NAME) as show:
        show(1, 2, NAME, activity=NAME)
    text = capsys.readouterr().err
    assert text.count(SHOWN) >= 2  # what and note
    assert not {"\x07", "\x9b", "\u202e"} & set(text)
    assert "\x1b]" not in text


def test_neurons_that_do_not_react_are_a_finding_about_the_records():
    domain = networks.domain()
    fair = networks.network(networks.one_biased_neuron(weight=0.0), domain)
    profile = interpret(fair, domain, networks.uniform_rows(domain, 50))
    assert describe_profile(profile, None, domain) == "No neuron reacted to s in 50 pairs of a record and a twin."
