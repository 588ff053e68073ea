"""A proof on the terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuronfair.audits.wording.summary import describe_certificate
from neuronfair.formatting import percent
from neuronfair.model.decision import Decision
from neuronfair.proof.certificate import DataSetClaims, FreshClaims, RecordShare, RowShare, ShareInterval
from neuronfair.render.terminal import BAR_WIDTH, compose_proof, describe_proof, make_console
from tests.proof.test_certificate_report import REPORT


def shown(report) -> str:
    console = make_console()
    with console.capture() as captured:
        console.print(compose_proof(report), width=100)
    return captured.get()


@pytest.mark.parametrize("counts", [(600, 300, 100), (999, 1, 0), (998, 1, 1), (0, 0, 1000), (0, 1000, 0), (1, 998, 1)])
def test_the_bar_is_as_long_as_it_should_be_and_leaves_nobody_out(counts):
    parts = [RowShare.of(count, 1000) for count in counts]
    report = replace(REPORT, proved_fair=parts[0], proved_discriminatory=parts[1], undecided=parts[2])
    bar = shown(report).splitlines()[0].rstrip()
    assert len(bar) == BAR_WIDTH
    assert [letter in bar for letter in "█▓░"] == [count > 0 for count in counts]
    assert abs(bar.count("█") - BAR_WIDTH * counts[0] / 1000) <= 2


def test_the_sentences():
    text = " ".join(describe_proof(REPORT))
    for phrase in (
        "Decisions are certified not to depend on sex and race for above 99.9999% of the records where age >= 60",
        f"and to depend on it for {percent(1e-24)}; {percent(2e-24)} is undecided. A higher --seconds may decide more.",
        "1,000,000,000,000,000,000,000,000 records in 1,000 boxes, 12 s; bounds of a network.",
    ):
        assert phrase in text
    assert "Interrupted" not in text
    assert "Interrupted: what was certified is kept." in " ".join(describe_proof(replace(REPORT, interrupted=True)))


def test_the_data_set_comes_first_with_its_counts():
    """Of 100 records, 20 have no twin; 60 of the other 80 are certified, 8 to depend."""
    rows = DataSetClaims(
        100, RecordShare(80, 0.8), RecordShare(8, 0.08), RecordShare(12, 0.12), without_twin=20, outside_domain=2
    )
    lines = describe_proof(replace(REPORT, data_set=rows))
    assert lines[0] == (
        "Decisions are certified not to depend on sex and race for 75% of 80 records in the data set with an allowed "
        "twin, and to depend on it for 10%; 15% are undecided. 20 more have none."
    )
    assert "In the data set: 80 certified (20 without an allowed twin), 8 certified to depend, 12 undecided." in lines
    assert any(line.startswith("2 of the undecided break a rule") for line in lines)


def test_an_audit_says_the_same_as_the_terminal():
    report = replace(REPORT, fresh=FreshClaims(50, *[ShareInterval(share, share, share) for share in (0.8, 0.1, 0.1)]))
    text = " ".join(describe_proof(report))
    assert describe_certificate(report)[0] in text
    interval = "(95% CI 80.0–80.0%)"
    assert f"for 80% {interval} of 50 realistic synthetic records, drawn after the proof, and to depend on it" in text


def test_what_is_exact_and_what_a_different_decision_is():
    parts = {
        "proved_fair": RowShare.of(4, 5),
        "proved_discriminatory": RowShare.of(1, 5),
        "undecided": RowShare.of(0, 5),
    }
    report = replace(REPORT, people=RowShare.of(5, 5), complete=True, decision=Decision("tolerance", 0.25), **parts)
    text = " ".join(describe_proof(report))
    assert "Nothing is undecided: the decision depends on sex and race for exactly 1." in text
    assert "Two decisions differ if their scores are more than 0.25 apart (--decision)." in text
    assert "--decision" not in " ".join(describe_proof(REPORT))
