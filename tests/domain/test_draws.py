"""Random numbers that are functions of their address."""

from __future__ import annotations

import torch
from scipy import stats

from neuronfair.domain.draws import Draws

ORIGIN = torch.arange(4000)


def test_draws_depend_on_their_address_only():
    draws = Draws(7, "local")
    whole = draws.uniform(3, ORIGIN, 5, use="a")
    some = torch.tensor([17, 3999, 2])
    assert torch.equal(draws.uniform(3, some, 5, use="a"), whole[some])
    assert torch.equal(draws.uniform(3, ORIGIN, 2, use="a"), whole[:, :2])


def test_every_part_of_the_address_matters():
    base = Draws(7, "local").uniform(3, ORIGIN, 1, use="a")
    others = [
        Draws(8, "local").uniform(3, ORIGIN, 1, use="a"),
        Draws(7, "global").uniform(3, ORIGIN, 1, use="a"),
        Draws(7, "local").uniform(4, ORIGIN, 1, use="a"),
        Draws(7, "local").uniform(3, ORIGIN, 1, use="b"),
    ]
    for other in others:
        assert abs(stats.pearsonr(base[:, 0], other[:, 0]).statistic) < 0.06
        assert (base == other).sum() == 0


def test_some_places_of_the_numbers_can_be_drawn_alone():
    whole = Draws(7, "local").uniform(3, ORIGIN, 90, use="a")
    assert torch.equal(Draws(7, "local").uniform(3, ORIGIN, (0, 1, 30, 61), use="a"), whole[:, [0, 1, 30, 61]])


def test_numbers_stay_for_so_many_steps():
    draws = Draws(7, "local")
    for t in (20, 21, 29):
        assert torch.equal(draws.uniform(t, ORIGIN, 3, use="a", interval=10), draws.uniform(20, ORIGIN, 3, use="a"))


def test_numbers_are_those_of_splitmix64():
    mask = 2**64 - 1

    def mix(x):
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    draws, golden = Draws(7, "local"), 0x9E3779B97F4A7C15
    chain = mix((5 * golden + draws.start(3, "a")) & mask)
    expected = [(mix((chain + place * golden) & mask) >> 11) / 2**53 for place in (1, 2)]
    assert draws.uniform(3, torch.tensor([5]), 2, use="a")[0].tolist() == expected


def test_draws_look_uniform_and_normal():
    draws = Draws(0, "x")
    u = draws.uniform(0, ORIGIN, 10, use="u")
    assert u.min() >= 0
    assert u.max() < 1
    assert stats.kstest(u.flatten(), "uniform").pvalue > 1e-4
    assert stats.kstest(u[:, 3], "uniform").pvalue > 1e-4
    assert stats.kstest(draws.normal(0, ORIGIN, 10, use="n").flatten(), "norm").pvalue > 1e-4


def test_below_reaches_every_number():
    limit = torch.full((4000, 1), 6)
    counts = torch.bincount(Draws(0, "x").below(limit, 0, ORIGIN, use="b")[:, 0])
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-4
