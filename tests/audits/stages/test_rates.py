"""Rates of several populations."""

from __future__ import annotations

from dataclasses import replace

from neuronfair.audits.report.attribute import Rates, widen_interval
from tests import reports


def test_plausible_pairs_lead():
    every = Rates(*(reports.rate(1, 10, name) for name in ("table", "plausible", "domain")))
    paired = replace(every, pairs=reports.rate(1, 10, "pairs"))
    assert [rate.population for rate in every.available] == ["table", "plausible", "domain"]
    assert [rate.population for rate in paired.available] == ["pairs", "table", "plausible", "domain"]


def test_the_interval_of_drawn_people_covers_that_of_the_data_set():
    """Many draws know the model's own rate well; 500 rows do not tell how far the model is off."""
    drawn, real = reports.rate(37_440, 200_000, "plausible"), reports.rate(80, 500, "table")
    both = widen_interval(drawn, real)
    assert (both.low, both.high) == (real.low, real.high)
    assert replace(both, low=drawn.low, high=drawn.high) == drawn
    apart = widen_interval(drawn, reports.rate(10, 500, "table"))
    assert apart.low < 10 / 500 < apart.high == drawn.high


def test_who_is_not_in_the_pairs_is_said():
    rate = reports.rate(10, 500, "pairs")
    assert rate.omission == ""
    assert replace(rate, alone=1).omission == ("Not counted, without a plausible twin: 1 of 501 people.")
    assert replace(rate, alone=2000, left_out=30).omission == (
        "Not counted, without a plausible twin: 2,000 of 2,500 people. "
        "Left out because the twin is not plausible: 30 flips."
    )
    assert replace(rate, left_out=7).omission == "Left out because the twin is not plausible: 7 flips."
