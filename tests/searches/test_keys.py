from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from neuronfair.searches import keys as module
from neuronfair.searches.keys import KeySet, are_among, is_sampled_miss

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


def test_each_chain_knows_its_own_last_keys_only(monkeypatch):
    monkeypatch.setattr(module, "CHAINS_PER_COMPARISON", 3)  # so that the chains are taken in several parts
    generator = torch.Generator().manual_seed(0)
    recent = torch.randint(-40, 40, (8, 16), generator=generator)
    keys = torch.randint(-40, 40, (8, 5), generator=generator)
    recent[0, 15], keys[0, 4] = 2**62, 2**62
    keys[1, 0] = 2**62  # met by another chain
    expected = [[key in last for key in asked] for last, asked in zip(recent.tolist(), keys.tolist(), strict=True)]
    assert are_among(recent, keys).tolist() == expected
    assert expected[0][4]
    assert not expected[1][0]


def test_one_of_64_misses_is_a_sample_by_its_key():
    keys = [*range(-500, 500), 2**62, -(2**63)]
    mixed = [(key * 0x9E3779B97F4A7C15) % 2**64 >> 33 for key in keys]
    assert is_sampled_miss(torch.tensor(keys)).tolist() == [number % 64 == 0 for number in mixed]
