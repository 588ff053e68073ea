from __future__ import annotations

from dataclasses import replace

from neuronfair.vision.sentences import sentences
from tests.vision.reports import REPAIRED, REPORT


def test_the_sentences_say_what_was_measured():
    lines = sentences(REPORT)
    assert len(lines) == 5
    assert "a shift of 25.5 grey levels in the mean flips the <gender> of 1 of them, 1 never flip" in lines[1]
    assert sentences(REPAIRED)[5] == (
        "Retrained with 7 pairs that halving found: AUC 0.300 to 0.100, detection rate 90 % to 90 %, found again "
        "on held-out faces 4 of 10 to 2 of 10."
    )


def test_a_classifier_that_guesses_is_said_to():
    advice = "The detector's frozen body tells little of <gender>: --own-body trains a body for it."
    assert sentences(REPORT)[0].endswith(advice)
    assert not sentences(replace(REPORT, own_body=True))[0].endswith(advice)
    assert not sentences(replace(REPORT, classifier_balanced_accuracy=0.81))[0].endswith(advice)  # 0.5 + 0.6 · 0.5
