from __future__ import annotations

import re

import pytest

from neuronfair.verdict.baseline import compare_with
from neuronfair.verdict.gate import check
from neuronfair.verdict.markdown import markdown
from tests.verdict.summaries import attribute, fair, pair, summary


def cells(line: str) -> list[str]:
    """The cells of a line of a table, cut where GitHub cuts it."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_it_shows_verdict_figures_and_pairs():
    text = markdown(summary(attribute("sex"), fair("race")))
    assert text.startswith("## Fairness audit: discriminates\n\n3 % of all valid people are decided otherwise.\n")
    table = [cells(line) for line in text.splitlines() if line.startswith("|")]
    assert table[2] == [
        "sex",
        "3 % (2.67 to 3.35 %)",
        "4 % (0.488 to 13.7 %)",
        "frontier 80, neuronfair 50",
        "frontier × 8, neuronfair × 4",
    ]
    assert table[3][:1] + table[3][3:] == ["race", "frontier 0, neuronfair 0", "–"]
    assert "`neuronfair replay RUN/sex/frontier 17`" in text
    assert "with sex M instead of F: high." in text
    assert "Again: `neuronfair audit people.csv`" in text
    assert "Interrupted" not in text
    assert "None" not in text


def test_it_shows_limits_corpus_changes_and_repair():
    audit = summary(corpus={"file": "c.jsonl", "replayed": 3, "still_wrong": 1, "mended": 2, "added": 4, "unfit": 1})
    audit["corpus"] |= {"examples": ["age 39: decided low"], "notes": ["line 3: column 'x' is missing"]}
    audit["baseline"] = compare_with(audit, summary(attribute(found=100)))
    audit["repair"] = {"text": "Retrain with `neuronfair repair`."}
    audit["gate"] = check(audit, ["rate > 0.01", "findings > 1000"])
    audit["reproduction"]["interrupted"] = True
    text = markdown(audit)
    assert "### Limits: failed" in text
    assert [cells(line)[:2] for line in text.splitlines() if line.startswith("| `")] == [
        ["`rate > 0.01`", "**fired**"],
        ["`findings > 1000`", "ok"],
    ]
    assert "3 of c.jsonl judged again: 1 are still decided otherwise, 2 are mended, 1 no longer fit" in text
    assert "4 added" in text
    assert "- age 39: decided low\n- line 3: column 'x' is missing" in text
    assert "sex.rate rose from 1 %" in text
    assert r"Retrain with \`neuronfair repair\`." in text
    assert "**Interrupted" in text
    audit["gate"]["passed"] = True
    assert "### Limits: passed" in markdown(audit)


def test_words_of_the_table_stay_words():
    name = "<script>a|b</script>"
    audit = summary(attribute(name, worst=[pair(name) | {"sentence": "*x*\n# [y](z) `q` _w_", "replay": "a ``b` c"}]))
    audit["gate"] = check(audit, [f"{name}.rate > 1%"])
    text = markdown(audit)
    assert "&lt;script&gt;a\\|b&lt;/script&gt;" in text
    assert r"\*x\* \# \[y\](z) \`q\` \_w\_" in text
    assert "```a ``b` c```" in text
    widths = [len(cells(line)) for line in text.splitlines() if line.startswith("|")]
    assert widths == [5, 5, 5, 3, 3, 3]
    assert text.count("<script>") == 1  # the limit, which is code
    assert "`<script>a\\|b</script>.rate > 1%`" in text


def test_code_may_end_in_a_backtick():
    audit = summary()
    audit["reproduction"]["command"] = "`x`"
    assert "Again: `` `x` ``" in markdown(audit)


def test_what_was_not_kept_has_no_line_to_see_it_again():
    assert "None" not in markdown(summary(attribute(worst=[pair() | {"replay": None}])))


def test_control_characters_are_written_out():
    name = "a\x1b[31m\x9b\u202e\u2028b"
    audit = summary(attribute(name))
    audit["reproduction"]["command"] = f"neuronfair audit {name!s}.csv"
    audit["gate"] = check(audit, ["rate > 1%"])
    text = markdown(audit)
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
        ("1.5 %", "1.5 %"),
        ("a\n\n| b", r"a \| b"),
        ("&lt;", "&amp;lt;"),
    ],
)
def test_no_word_becomes_a_link_a_list_a_formula_or_html(words, written):
    corpus = {"file": "c", "replayed": 1, "still_wrong": 1, "mended": 0, "added": 0, "examples": [words]}
    assert f"\n- {written}\n" in markdown(summary(corpus=corpus))
