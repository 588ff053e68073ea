"""What is proved, in exact numbers and in words."""

from __future__ import annotations

import pytest

from neuronfair.audits.report.proved import Part, Proved
from tests.reports import proved


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        (
            (1_634_000_000_000_000, 1_591_516_000_000_000, 4_902_000_000_000),
            "For 97.4% of all 1.6 × 10¹⁵ people of the domain it is proved that sex does not change the decision; for "
            "0.3% that it does; 2.3% is open.",
        ),
        (
            (200, 100, 0),
            "For 50% of all 200 people of the domain it is proved that sex does not change the decision; for nobody "
            "that it does; 50% is open.",
        ),
        (
            (200, 0, 50),
            "For 25% of all 200 people of the domain it is proved that sex changes the decision; for nobody that it "
            "does not; 75% is open.",
        ),
        (
            (200, 150, 50),
            "For 75% of all 200 people of the domain it is proved that sex does not change the decision; for the "
            "other 25% that it does.",
        ),
        ((200, 200, 0), "For all 200 people of the domain it is proved that sex does not change the decision."),
        ((200, 0, 200), "For all 200 people of the domain it is proved that sex changes the decision."),
        ((200, 0, 0), "Of all 200 people of the domain nothing was proved in 2.5 s."),
    ],
)
def test_it_is_said_in_plain_words(counts, sentence):
    made = proved(counts[1], counts[2], counts[0])
    assert made.sentence == sentence
    assert made.complete == (counts[0] == counts[1] + counts[2])
    assert [int(part.count) for _, part in made.parts] == [counts[1], counts[0] - counts[1] - counts[2], counts[2]]


def test_several_attributes_change_it_together():
    sentence = proved(5, 2, 10, "sex+job_title").sentence
    assert "sex and job title do not change the decision; for 20% that they do; 30% is open" in sentence
    assert "that sex and job title change the decision; for nobody that" in proved(0, 2, 10, "sex+job_title").sentence


def test_almost_everybody_is_not_everybody():
    """10^20 people do not fit into a float: one of them must not be lost."""
    made = proved(10**20 - 1, 0, 10**20)
    assert made.proved_fair.share < 1
    assert made.open == Part("1", 1e-20)
    assert not made.complete
    assert made.sentence.startswith("For above 99.9999% of all 1.0 × 10²⁰ people")
    assert made.sentence.endswith("for nobody that it does; below 0.0001% is open.")
    assert proved(10**20, 0, 10**20).proved_fair.share == 1


def test_where_nothing_can_be_proved_the_reason_is_said():
    made = Proved.nothing(200, "it shows nothing of itself")
    assert (made.method, made.complete, made.open) == (None, False, Part("200", 1.0))
    assert made.sentence == "No proof: it shows nothing of itself."
