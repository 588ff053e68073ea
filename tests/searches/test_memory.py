"""Whom a chain has met among its last people."""

from __future__ import annotations

import torch

from neuronfair.searches import keys as visited


def test_each_walker_knows_its_own_last_keys_only(monkeypatch):
    monkeypatch.setattr(visited, "CHAINS", 3)  # so that the chains are taken in several parts
    generator = torch.Generator().manual_seed(0)
    recent = torch.randint(-40, 40, (8, 16), generator=generator)
    keys = torch.randint(-40, 40, (8, 5), generator=generator)
    recent[0, 15], keys[0, 4] = 2**62, 2**62
    keys[1, 0] = 2**62  # met by another chain
    expected = [[key in last for key in asked] for last, asked in zip(recent.tolist(), keys.tolist(), strict=True)]
    assert visited.among(recent, keys).tolist() == expected
    assert expected[0][4]
    assert not expected[1][0]
