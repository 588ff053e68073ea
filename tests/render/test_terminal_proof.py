"""A proof on the terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuronfair.model.decision import Decision
from neuronfair.proof.report import Part
from neuronfair.render.terminal import WIDTH, make_console, proof_report, sentences
from tests.proof.test_report import REPORT


def shown(report) -> str:
    console = make_console()
    with console.capture() as captured:
        console.print(proof_report(report), width=100)
    return captured.get()


@pytest.mark.parametrize("counts", [(600, 300, 100), (999, 1, 0), (998, 1, 1), (0, 0, 1000), (0, 1000, 0), (1, 998, 1)])
def test_the_bar_is_as_long_as_it_should_be_and_leaves_nobody_out(counts):
    parts = [Part.of(count, 1000) for count in counts]
    report = replace(REPORT, proved_fair=parts[0], proved_discriminatory=parts[1], undecided=parts[2])
    bar = shown(report).splitlines()[0].rstrip()
    assert len(bar) == WIDTH
    assert [letter in bar for letter in "█▓░"] == [count > 0 for count in counts]
    assert abs(bar.count("█") - WIDTH * counts[0] / 1000) <= 2


def test_the_sentences():
    text = " ".join(sentences(REPORT))
    for said in (
        "Of 1,000,000,000,000,000,000,000,000 records where age >= 60, it is certified for above 99.9999",
        "Undecided: below 0.0001",
        "1,000 boxes in 12 s; bounds of a network.",
    ):
        assert said in text
    assert "Interrupted" not in text
    assert "Interrupted: what was certified is kept." in " ".join(sentences(replace(REPORT, interrupted=True)))


def test_what_is_exact_and_what_a_different_decision_is():
    parts = {"proved_fair": Part.of(4, 5), "proved_discriminatory": Part.of(1, 5), "undecided": Part.of(0, 5)}
    report = replace(REPORT, people=Part.of(5, 5), complete=True, decision=Decision("tolerance", 0.25), **parts)
    text = " ".join(sentences(report))
    assert "Nothing is undecided: the decision depends on sex and race for exactly 1." in text
    assert "Two decisions differ if their scores are more than 0.25 apart (--decision)." in text
    assert "--decision" not in " ".join(sentences(REPORT))
