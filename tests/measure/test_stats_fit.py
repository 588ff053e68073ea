"""How well scores fit labels, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from neuronfair import Decision
from neuronfair.measure.stats import Fit, scores_to_logits

HALF = Decision("threshold", 0.5)


def fit(probabilities, labels) -> Fit:
    return Fit.of(np.array(probabilities)[:, None], np.array(labels), HALF)


def test_the_area_counts_pairs_and_halves_ties():
    # Positives 0.9, 0.4 and negatives 0.4, 0.1: told apart in three of four pairs, one of them a tie.
    area, deviation = fit([0.9, 0.4, 0.4, 0.1], [1, 1, 0, 0]).auc()
    assert area == pytest.approx(3.5 / 4)
    # DeLong: placements of the positives 1 and 0.75, of the negatives 0.75 and 1; each variance is 1/32.
    assert deviation == pytest.approx(np.sqrt(2 * (1 / 32) / 2))
    assert fit([0.1, 0.1, 0.9, 0.9], [1, 1, 0, 0]).auc()[0] == 0


def test_a_difference_is_paired():
    one, other = fit([0.9, 0.4, 0.4, 0.1], [1, 1, 0, 0]), fit([0.9, 0.6, 0.4, 0.1], [1, 1, 0, 0])
    assert one.auc(one) == (0, 0)
    gain, deviation = other.auc(one)
    # Only the second positive and the first negative gain, half a pair of two each: variances of 0 and 0.5 halves.
    assert gain == pytest.approx(0.125)
    assert deviation == pytest.approx(np.sqrt(2 * (1 / 32) / 2))


def test_one_class_alone_tells_nothing():
    assert fit([0.9, 0.4], [1, 1]).auc() == (0.5, 0)


def test_errors_and_calibration():
    one = fit([0.8, 0.8, 0.8, 0.8], [1, 1, 1, 0])
    np.testing.assert_allclose(one.error, [0.08, 0.08, 0.08, 1.28])

    np.testing.assert_allclose(one.confidence, 0.8)
    # Four bins of one row each: three are right with 0.8, one is wrong with 0.8.
    assert one.calibration == pytest.approx((3 * 0.2 + 0.8) / 4)


def test_three_classes_are_each_told_from_the_others():
    scores = np.array([[3.0, 0, 0], [3, 0, 0], [0, 3, 0], [0, 3, 0], [0, 0, 3], [0, 0, 3]])
    right = Fit.of(scores, np.array([0, 0, 1, 1, 2, 2]), Decision())
    assert right.auc()[0] == 1
    # The first two classes exchanged: each of them is told from itself never, from the third class by half.
    assert Fit.of(scores, np.array([1, 1, 0, 0, 2, 2]), Decision()).auc()[0] == pytest.approx((0.25 + 0.25 + 1) / 3)


def test_probabilities_and_logits_are_one():
    logits = np.array([[0.5, -1.0], [2.0, 3.0]])
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    gap = logits[:, 1] - logits[:, 0]
    for scores, decision in (
        (logits, Decision()),
        (shares, Decision()),
        (shares[:, 1:], HALF),
        (gap[:, None], Decision("threshold", 0.0)),
    ):
        found = scores_to_logits(scores, decision)
        np.testing.assert_allclose(found[:, 1] - found[:, 0], gap)


def test_what_is_decided_follows_the_threshold():
    assert Fit.of(np.array([[0.4], [0.2]]), np.array([1, 0]), Decision("threshold", 0.3)).decisions.tolist() == [1, 0]
