from __future__ import annotations

import re
from dataclasses import replace

import pytest

from neuronfair.audits.report import BaselineReport, DecisionReport, FigureChange, Gate, GateCheck
from neuronfair.audits.report.attribute import DirectionReport, ProofSummary, Rates, SideReport
from neuronfair.audits.wording.summary import metrics
from neuronfair.audits.wording.verdict import conclude
from neuronfair.formatting import percent
from neuronfair.render.tables import write_markdown, write_model_card
from tests import reports
from tests.reports import REGRESSION_SET, REPRODUCTION, attribute, fair, finding, report


def check(expression: str, *, fired: bool = True) -> GateCheck:
    return GateCheck(expression, None, 0.03, None, None, "value", fired, "it is above 1%.")


def cells(line: str) -> list[str]:
    """The cells of a line of a table, cut where GitHub cuts it."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_it_shows_headline_metrics_steps_and_pairs():
    text = write_markdown(conclude(report(attribute("sex"), fair("race"))))
    assert text.startswith("## Decisions depend on sex for ")
    assert text.split("\n\n")[1].startswith("○ No threshold was set")
    table = [cells(line) for line in text.splitlines() if line.startswith("|")]
    assert table[2][:2] == ["Flip rate", "4.0%"]
    assert table[2][3].startswith("of 50 ")
    assert [line[0] for line in table[2:6]] == [one.name for one in metrics(attribute())]
    assert [line[0] for line in table[6:10]] == ["by", "---", "sex", "race"]
    assert "1. Look at the worst synthetic pair" in text
    assert "`neuronfair show RUN/sex/frontier 17`" in text
    assert "with sex M instead of F: high." in text
    assert "To reproduce: `neuronfair audit people.csv`" in text
    assert "interrupted" not in text
    assert "None" not in text


def test_tables_name_the_confidence_of_their_intervals():
    made = attribute("sex")
    rates = {rate.population: replace(rate, confidence=0.9) for rate in made.rates.available}
    for form in (write_markdown, write_model_card):
        assert "flip rate (95% CI)" in form(report(made))
        assert "95%" not in form(report(replace(made, rates=Rates(**rates))))


def test_it_shows_what_is_certified():
    why = ProofSummary.nothing(10, "it shows nothing of itself")
    text = write_markdown(report(attribute("sex", proved=reports.proved(900, 30)), fair("race", proved=why)))
    (line,) = [cells(line) for line in text.splitlines() if line.endswith("| 1,000 |")]
    assert line == ["sex", "input space", percent(0.9), percent(0.07), percent(0.03), "1,000"]
    rows = reports.proved(900, 30, data_set=reports.certified_rows(600, 100, 800))
    text = write_markdown(report(attribute("sex", proved=rows), fair("race", proved=why)))
    (line,) = [cells(line) for line in text.splitlines() if line.endswith("| 800 |")]
    assert line == ["sex", "data set", percent(0.75), percent(0.125), percent(0.125), "800"]
    assert "- No proof: it shows nothing of itself." in text
    assert "### Certified shares" not in write_markdown(report())


def test_it_shows_how_groups_fare():
    text = write_markdown(report(attribute("sex", groups=reports.GROUPS, disparity=reports.DISPARITY), fair("race")))
    (line,) = [cells(line) for line in text.splitlines() if line.startswith("| sex | yes")]
    assert line == ["sex", "yes", f"F {percent(0.26)}", f"M {percent(0.65)}", "0.40 (0.28–0.55)", "not known"]
    assert "Groups by sex that are too small to be compared: X (9 rows)." in text
    assert "Demographic groups" not in write_markdown(report())


def test_it_shows_thresholds_regression_set_and_changes():
    change = FigureChange("sex.rate", 0.01, 0.03, 0.01, 0.02, True, "sex.rate rose from 1% to 3%.")
    text = write_markdown(
        report(
            regression_set=REGRESSION_SET,
            baseline=BaselineReport("old.json", (change,), "Something changed."),
            gate=Gate(False, (check("rate > 0.01"), check("findings > 1000", fired=False))),
            reproduction=replace(REPRODUCTION, interrupted=True),
        )
    )
    assert "### Thresholds: failed" in text
    assert [cells(line)[:2] for line in text.splitlines() if line.startswith("| `")] == [
        ["`rate > 0.01`", "**failed**"],
        ["`findings > 1000`", "passed"],
    ]
    assert "3 of c.jsonl evaluated again: 1 still flip, 2 are fixed, 1 no longer fit" in text
    assert "4 added" in text
    assert "- age 39: decided low\n- line 3: column 'x' is missing" in text
    assert "Something changed.\n\n- sex.rate rose from 1% to 3%." in text
    assert "- The audit was interrupted" in text
    assert "### Thresholds: passed" in write_markdown(report(gate=Gate(True, ())))


def test_words_of_the_table_stay_words():
    name = "<script>a|b</script>"
    worst = finding(name, sentence="*x*\n# [y](z) `q` _w_", replay="a ``b` c")
    text = write_markdown(report(attribute(name, worst=(worst,)), gate=Gate(False, (check(f"{name}.rate > 1%"),))))
    assert "&lt;script&gt;a\\|b&lt;/script&gt;" in text
    assert r"\*x\* \# \[y\](z) \`q\` \_w\_" in text
    assert "```a ``b` c```" in text
    tables = [[cells(line) for line in part.splitlines()] for part in text.split("\n\n") if part.startswith("|")]
    assert all(len({len(line) for line in lines}) == 1 for lines in tables)
    assert text.count("<script>") == 1  # the threshold, which is code
    assert "`<script>a\\|b</script>.rate > 1%`" in text


def test_code_may_end_in_a_backtick():
    assert "To reproduce: `` `x` ``" in write_markdown(report(reproduction=replace(REPRODUCTION, command="`x`")))


def test_what_was_not_kept_has_no_line_to_see_it_again():
    assert "None" not in write_markdown(report(attribute(worst=(finding(replay=None),))))


def test_control_characters_are_written_out():
    name = "a\x1b[31m\x9b\u202e\u2028b"
    again = replace(REPRODUCTION, command=f"neuronfair audit {name}.csv")
    text = write_markdown(report(attribute(name), reproduction=again, gate=Gate(False, (check("rate > 1%"),))))
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
    assert f"\n- {written}\n" in write_markdown(report(regression_set=replace(REGRESSION_SET, examples=(words,))))


def test_it_shows_counterfactual_twins():
    text = write_markdown(report(attribute(counterfactual=reports.counterfactual()), fair("race")))
    assert "### Counterfactual twins: proxy evidence" in text
    (line,) = [line for line in text.splitlines() if line.startswith("| sex | 19.0%")]
    assert cells(line) == ["sex", "19.0% (18.1–19.9%)", "0.030% (0–0.070%)", "19.0 pp (18.1–19.9)", "11%", "5%"]
    assert "81% of the effect goes through relationship and marital status." in text
    assert "Men as women lose" in text
    assert "have too few people for a model" in text
    assert "Counterfactual twins" not in write_markdown(report())


def test_a_model_card_says_what_was_measured_and_how():
    sides = SideReport("Female", 88, 812), SideReport("Male", 812, 88)
    hurt = DirectionReport("table", 900, sides, "In 812 of 900 …")
    made = reports.with_first(reports.adult(), direction=(hurt,))
    text = write_model_card(replace(made, data=replace(made.data, favourable=">50K")))
    for words in (
        "# Model card: trained on adult", "**Decisions depend on sex for 6.07", "(test)",
        "- Decides: income: &lt;=50K or &gt;50K", "- Favourable outcome: &gt;50K", "45,222 records, 13 attributes",
        "## Flip rates", "1,213 of 20,000", "In 812 of 900 …", "## Certified shares", "612 of 1,000 seeds flip",
        "it does not certify that there are none", "seed 0",
        "`neuronfair audit adult --sensitive sex --seed 0 --out neuronfair-audit`",
    ):  # fmt: skip
        assert words in text, words
    assert "Appendix" not in text
    assert len(text) < 6000  # a page


def test_what_is_not_known_is_left_out_of_a_model_card():
    made = reports.nothing_found()
    text = write_model_card(
        replace(made, decision=DecisionReport("tolerance", 0.1), data=replace(made.data, target=None))
    )
    assert "black box" in text
    assert "more than 0.1" in text
    for words in ("None", "Accuracy", "Favourable", "Worst pairs", "Decides"):
        assert words not in text


def test_names_stay_names_in_a_model_card():
    made = reports.report(model=replace(reports.MODEL, source="<b>*m*</b>\n# x"))
    assert "# Model card: &lt;b&gt;\\*m\\*&lt;/b&gt; \\# x\n" in write_model_card(made)


def test_a_model_card_says_whether_proxies_were_tested():
    text = write_model_card(reports.report(reports.attribute(counterfactual=reports.counterfactual())))
    assert "## Counterfactual twins: proxy evidence" in text
    assert "on causal assumptions that the data cannot test" in text
    assert "were not tested" not in text
    assert "were not tested" in write_model_card(reports.report())
