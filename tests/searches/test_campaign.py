from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.searches.campaign import SearchResult
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.engine import PhaseResult
from neuronfair.searches.findings import Findings


def outcome(columns: int, tried: int) -> SearchResult:
    flags = tuple(Attribute(f"a{i}", kind="flag", values=("no", "yes")) for i in range(columns))
    domain = TableDomain("flags", flags, ("a0",))
    phase = PhaseResult(Findings.empty(domain, 2), 0, "steps", 1.0)
    local = replace(phase, findings=replace(phase.findings, tried=tried))
    return SearchResult(SearchConfig(), domain, torch.zeros(0, columns), None, phase, local, None, None, ())


def test_the_chance_that_somebody_was_taken_for_another():
    assert outcome(40, 10**9).collision_chance == 0.0  # 2^39 people have numbers of their own
    # A billion people are 5 * 10^17 pairs, and 2^63 is 9.22 * 10^18: 0.0542 pairs are expected to share a key.
    assert outcome(80, 10**9).collision_chance == pytest.approx(1 - math.exp(-0.0542), rel=1e-3)
    assert outcome(80, 2).collision_chance == pytest.approx(2.0**-63)
    assert outcome(80, 1).summary()["confused"] == 0.0
