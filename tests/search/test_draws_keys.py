from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from neuronfair.domain.draws import Draws
from neuronfair.search.keys import KeySet

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


SOME = st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.lists(SOME, max_size=40), max_size=8))
def test_a_key_set_behaves_like_a_set(batches):
    keys, seen = KeySet(capacity=16), set()
    for batch in batches:
        # The two extreme keys share a slot; no domain makes them.
        batch = [k for k in batch if k != 2**63 - 1]
        new = keys.add(torch.tensor(batch, dtype=torch.int64)).tolist()
        expected = []
        for key in batch:
            expected.append(key not in seen)
            seen.add(key)
        assert new == expected
        assert len(keys) == len(seen)


def test_a_key_set_grows():
    keys = KeySet(capacity=16)
    everything = torch.randint(-(2**62), 2**62, (100_000,), generator=torch.Generator().manual_seed(0))
    for part in everything.split(1000):
        keys.add(part)
    assert len(keys) == len(torch.unique(everything))
    assert not keys.add(everything).any()
