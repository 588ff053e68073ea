from __future__ import annotations

import re
from dataclasses import replace

import pytest

from neuronfair.audits.report.proved import Proved
from neuronfair.audits.report.report import BaselineReport, FigureChange, Gate, GateCheck, RepairReport
from neuronfair.render.markdown import markdown
from tests import reports
from tests.reports import CORPUS, REPRODUCTION, attribute, fair, finding, report


def check(expression: str, *, fired: bool = True) -> GateCheck:
    return GateCheck(expression, None, 0.03, None, None, "value", fired, "it is above 1%.")


def cells(line: str) -> list[str]:
    """The cells of a line of a table, cut where GitHub cuts it."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_it_shows_verdict_figures_and_pairs():
    text = markdown(report(attribute("sex"), fair("race")))
    assert text.startswith("## Fairness audit: dependence found\n\nThe decision flips for 3% of people.\n")
    table = [cells(line) for line in text.splitlines() if line.startswith("|")]
    assert table[2] == [
        "sex",
        "4% (0.488–13.7%)",
        "3% (2.67–3.35%)",
        "frontier 80, neuronfair 50",
        "frontier 8×, neuronfair 4×",
    ]
    assert table[0][1:3] == ["flips, of rows of the table", "flips, of people drawn uniformly from the domain"]
    assert table[3][:1] + table[3][3:] == ["race", "frontier 0, neuronfair 0", "–"]
    assert "`neuronfair show RUN/sex/frontier 17`" in text
    assert "with sex M instead of F: high." in text
    assert "Again: `neuronfair audit people.csv`" in text
    assert "Interrupted" not in text
    assert "None" not in text


def test_it_shows_what_is_proved():
    why = Proved.nothing(10, "it shows nothing of itself")
    text = markdown(report(attribute("sex", proved=reports.proved(900, 30)), fair("race", proved=why)))
    assert "### Proof" in text
    assert "▓ sex: proved fair 90%, open 7%, proved discriminatory 3%\n" in text
    assert "- No proof: it shows nothing of itself." in text
    assert "### Proof" not in markdown(report())


def test_it_shows_how_groups_fare():
    text = markdown(report(attribute("sex", groups=reports.GROUPS, disparity=reports.DISPARITY), fair("race")))
    (line,) = [cells(line) for line in text.splitlines() if line.startswith("| sex | yes")]
    assert line == ["sex", "yes", "F 26%", "M 65%", "0.40 (0.28–0.55)", "not known"]
    assert "Groups by sex that are too small to be compared: X (9 rows)." in text
    assert "Groups of the table" not in markdown(report())


def test_it_shows_limits_corpus_changes_and_repair():
    change = FigureChange("sex.rate", 0.01, 0.03, 0.01, 0.02, True, "sex.rate rose from 1% to 3%.")
    text = markdown(
        report(
            corpus=CORPUS,
            baseline=BaselineReport("old.json", (change,), "Something changed."),
            repair=RepairReport("retraining", "Retrain with `x`.", "neuronfair repair RUN"),
            gate=Gate(False, (check("rate > 0.01"), check("findings > 1000", fired=False))),
            reproduction=replace(REPRODUCTION, interrupted=True),
        )
    )
    assert "### Limits: failed" in text
    assert [cells(line)[:2] for line in text.splitlines() if line.startswith("| `")] == [
        ["`rate > 0.01`", "**fired**"],
        ["`findings > 1000`", "ok"],
    ]
    assert "3 of c.jsonl judged again: 1 still flip, 2 are fixed, 1 no longer fit" in text
    assert "4 added" in text
    assert "- age 39: decided low\n- line 3: column 'x' is missing" in text
    assert "Something changed.\n\n- sex.rate rose from 1% to 3%." in text
    assert r"Retrain with \`x\`. A longer one, whose result is kept: `neuronfair repair RUN`" in text
    assert "**Interrupted" in text
    assert "### Limits: passed" in markdown(report(gate=Gate(True, ())))


def test_words_of_the_table_stay_words():
    name = "<script>a|b</script>"
    worst = finding(name, sentence="*x*\n# [y](z) `q` _w_", replay="a ``b` c")
    text = markdown(report(attribute(name, worst=(worst,)), gate=Gate(False, (check(f"{name}.rate > 1%"),))))
    assert "&lt;script&gt;a\\|b&lt;/script&gt;" in text
    assert r"\*x\* \# \[y\](z) \`q\` \_w\_" in text
    assert "```a ``b` c```" in text
    widths = [len(cells(line)) for line in text.splitlines() if line.startswith("|")]
    assert widths == [5, 5, 5, 3, 3, 3]
    assert text.count("<script>") == 1  # the limit, which is code
    assert "`<script>a\\|b</script>.rate > 1%`" in text


def test_code_may_end_in_a_backtick():
    assert "Again: `` `x` ``" in markdown(report(reproduction=replace(REPRODUCTION, command="`x`")))


def test_what_was_not_kept_has_no_line_to_see_it_again():
    assert "None" not in markdown(report(attribute(worst=(finding(replay=None),))))


def test_control_characters_are_written_out():
    name = "a\x1b[31m\x9b\u202e\u2028b"
    again = replace(REPRODUCTION, command=f"neuronfair audit {name}.csv")
    text = markdown(report(attribute(name), reproduction=again, gate=Gate(False, (check("rate > 1%"),))))
    assert [sign for sign in text if not sign.isprintable() and sign != "\n"] == []
    assert r"a\\u001b\[31m\\u009b\\u202e b" in text
    assert r"`neuronfair audit a\u001b[31m\u009b\u202e b.csv`" in text


@pytest.mark.parametrize(
    ("words", "written"),
    [
        ("[x](javascript:alert(1))", r"\[x\](javascript:alert(1))"),
        ("![x](http://a.b/c.png)", r"!\[x\](http:<!-- -->//a.b/c.png)"),
        ("<img src=x onerror=y>", "&lt;img src=x onerror=y&gt;"),
        ("see HTTPS://a.b and www.a.b", "see HTTPS:<!-- -->//a.b and www<!-- -->.a.b"),
        ("@admin a@b.c", "<!-- -->@admin a<!-- -->@b.c"),
        ("$\\frac{1}{2}$", r"\$\\frac{1}{2}\$"),
        ("- a", r"\- a"),
        ("12. a", r"12\. a"),
        ("1.5%", "1.5%"),
        ("a\n\n| b", r"a \| b"),
        ("&lt;", "&amp;lt;"),
    ],
)
def test_no_word_becomes_a_link_a_list_a_formula_or_html(words, written):
    assert f"\n- {written}\n" in markdown(report(corpus=replace(CORPUS, examples=(words,))))


def test_it_shows_counterparts():
    text = markdown(report(attribute(counterpart=reports.counterpart()), fair("race")))
    assert "### Counterfactual twins: proxy evidence" in text
    (line,) = [line for line in text.splitlines() if line.startswith("| sex | 19%")]
    assert cells(line) == ["sex", "19% (18.1–19.9%)", "0.03% (0–0.07%)", "19% (18.1–19.9%)", "11%", "5%"]
    assert "81% of the effect goes through relationship and marital status." in text
    assert "**Whom it hurts.** Men as women lose" in text
    assert "have too few people to say" in text
    assert "Counterfactual twins" not in markdown(report())
