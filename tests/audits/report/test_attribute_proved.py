"""What is proved, in exact numbers and in words."""

from __future__ import annotations

import pytest

from neuronfair.audits.report.attribute import ProofSummary, RowShare
from neuronfair.formatting import percent
from tests.reports import proved


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        (
            (1_634_000_000_000_000, 1_591_516_000_000_000, 4_902_000_000_000),
            f"Decisions are certified not to depend on sex for {percent(0.974)} of the declared input space, and to "
            f"depend on it for {percent(0.003)}; {percent(0.023)} is undecided.",
        ),
        (
            (200, 100, 0),
            f"Decisions are certified not to depend on sex for {percent(0.5)} of the declared input space; "
            f"{percent(0.5)} is undecided.",
        ),
        (
            (200, 0, 50),
            f"Decisions are certified to depend on sex for {percent(0.25)} of the declared input space; "
            f"{percent(0.75)} is undecided.",
        ),
        (
            (200, 150, 50),
            f"Decisions are certified not to depend on sex for {percent(0.75)} of the declared input space, and to "
            f"depend on it for {percent(0.25)}.",
        ),
        ((200, 200, 0), "Certified for all of the declared input space: decisions do not depend on sex."),
        ((200, 0, 200), "Certified for all of the declared input space: decisions depend on sex."),
        ((200, 0, 0), "No decision was certified in 2.5 s, for any part of the declared input space."),
    ],
)
def test_it_is_said_in_plain_words(counts, sentence):
    made = proved(counts[1], counts[2], counts[0])
    assert made.sentence == sentence
    assert made.complete == (counts[0] == counts[1] + counts[2])
    parts = (made.proved_fair, made.undecided, made.proved_discriminatory)
    assert [int(part.count) for part in parts] == [counts[1], counts[0] - counts[1] - counts[2], counts[2]]


def test_several_attributes_are_named_together():
    assert "not to depend on sex and job title for" in proved(5, 2, 10, "sex+job_title").sentence


def test_almost_everybody_is_not_everybody():
    """10^20 people do not fit into a float: one of them must not be lost."""
    made = proved(10**20 - 1, 0, 10**20)
    assert made.proved_fair.share < 1
    assert made.undecided == RowShare("1", 1e-20)
    assert not made.complete
    assert "for above 99.9999" in made.sentence
    assert "below 0.0001" in made.sentence
    assert proved(10**20, 0, 10**20).proved_fair.share == 1


def test_where_nothing_can_be_proved_the_reason_is_said():
    made = ProofSummary.nothing(200, "it shows nothing of itself")
    assert (made.method, made.complete, made.undecided) == (None, False, RowShare("200", 1.0))
    assert made.sentence == "No proof: it shows nothing of itself."
