"""Which fits are shown, and what a search without success says of more search."""

from __future__ import annotations

import pytest

from neuronfair.alternative_models.candidates import Candidate
from neuronfair.alternative_models.search import (
    BASELINE,
    FitLine,
    SearchedFits,
    ShownFit,
    bound_chance,
    choose_fits,
    find_best,
    find_front,
)
from neuronfair.measure.stats import Estimate


def fit(number: int, quality: float, measure: float, kind: str = "candidate", drawn=False, **more: object) -> FitLine:
    """A fit against a baseline with a quality of 0.8 and a measure of 0.3."""
    gains = {"quality_gain": quality - 0.8, "measure_gain": 0.3 - measure}
    errors = {"quality_error": 0.002, "measure_error": 0.01}
    candidate = Candidate(kind, number, number, {}, drawn)
    return FitLine(candidate, quality=quality, measure=measure, **errors, **gains, **more)


FIRST = FitLine(BASELINE, quality=0.8, measure=0.3)


def test_the_front_is_what_no_other_beats() -> None:
    fits = [fit(0, 0.8, 0.3), fit(1, 0.79, 0.1), fit(2, 0.79, 0.2), fit(3, 0.81, 0.25), fit(4, 0.7, 0.1)]
    assert [one.candidate.number for one in find_front([*fits, fit(5, 1.0, 0.0, error="failed")])] == [3, 1]


def test_the_one_with_the_most_evidence_is_shown_first_and_alike_ones_once() -> None:
    fits = (fit(0, 0.8, 0.2), fit(1, 0.797, 0.1), fit(2, 0.78, 0.0), fit(3, 0.8, 0.2), fit(4, 0.81, 0.31))
    controls = (fit(0, 0.8, 0.29, "control"), fit(1, 0.8, 0.31, "control"))
    shown = choose_fits(SearchedFits(FIRST, fits, controls), 0.005, 3, 0.95)
    assert [one.candidate.name for one in shown] == ["candidate-0", "candidate-1", "control-0"]


def test_the_bound_is_that_of_clopper_and_pearson_for_random_candidates_only() -> None:
    drawn = tuple(fit(i, 0.7, 0.3, drawn=True) for i in range(20))
    planned = (fit(20, 0.8, 0.1),)
    found = bound_chance(SearchedFits(FIRST, (*planned, *drawn), ()), 0.005, 0.95)
    assert (found.better, found.of) == (0, 20)
    assert found.high == pytest.approx(1 - 0.05 ** (1 / 20))
    assert bound_chance(SearchedFits(FIRST, planned, ()), 0.005, 0.95).high == 1.0


def test_a_control_that_reads_the_attribute_is_proposed_only_if_that_is_allowed() -> None:
    def shown(kind: str, measure: float, *reads: str) -> ShownFit:
        value = Estimate(measure, measure, measure)
        return ShownFit(Candidate(kind, 0, 0, {}), reads, Estimate(0.8, 0.7, 0.9), value, {}, better=True)

    reading, blind = shown("control", 0.1, "sex"), shown("candidate", 0.2)
    assert find_best([reading, blind], allow_disparate_treatment=False) is blind
    assert find_best([reading, blind], allow_disparate_treatment=True) is reading
    assert find_best([reading], allow_disparate_treatment=False) is None
