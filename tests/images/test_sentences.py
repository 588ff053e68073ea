from __future__ import annotations

from dataclasses import replace

from neuronfair.images.report import sentences
from tests.images.reports import REPAIRED, REPORT, WALK


def test_the_sentences_say_what_was_measured():
    lines = sentences(REPORT)
    assert len(lines) == 5
    assert "a shift of 25.5 grey levels in the mean flips the <gender> of 1 of them, 1 never flip" in lines[1]
    assert lines[2] == (
        "NeuronFair finds a pair whose decision flips for 25 % (0.6–80.6) of 4 faces; the same walk in random "
        "directions for 25 %, with a random shift of equal size instead of the attribute for 25 %. Of 2 pictures on "
        "its way, 1 flip (GSR 50 %)."
    )
    assert sentences(REPAIRED)[5] == (
        "Retrained with 7 pairs that halving found: AUC 0.300 to 0.100, detection rate 90 % to 90 %, found again "
        "on held-out faces 4 of 10 to 2 of 10."
    )


def test_a_classifier_that_guesses_is_said_to():
    advice = "The detector's frozen body tells little of <gender>: --own-body trains a body for it."
    assert sentences(REPORT)[0].endswith(advice)
    assert not sentences(replace(REPORT, own_body=True))[0].endswith(advice)
    assert not sentences(replace(REPORT, classifier_balanced_accuracy=0.81))[0].endswith(advice)  # 0.5 + 0.6 · 0.5


def test_a_latent_shift_is_said_to_be_one_beside_that_of_fgsm():
    walks = REPORT.methods | {
        f"{name}, fgsm shift": replace(WALK, share_of_faces=0.5) for name in ("neuronfair", "halving")
    }
    lines = sentences(replace(REPORT, shift=replace(REPORT.shift, kind="latent"), methods=walks))
    assert "a shift along the groups of the faces' latent space of 25.5 grey levels" in lines[1]
    assert "with the FGSM shift for 50 %. Of 2 pictures" in lines[3]
