from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from neuronfair import Decision
from neuronfair.measure.diversity import Severity, severity
from neuronfair.searches.findings import Findings
from tests.planted import networks

DOMAIN = networks.domain()


def findings(scores: list[list[float]], twin_scores: list[list[float]]) -> Findings:
    empty = Findings.empty(DOMAIN, len(scores[0]))
    rows = torch.zeros(len(scores), 5, dtype=torch.int8)
    return replace(empty, packed=rows, scores=torch.tensor(scores), twin_scores=torch.tensor(twin_scores))


def test_gaps_by_hand():
    # The differences are (1, -1), (2, 0) and (-3, 1), so the gaps are 2, 2 and 4.
    three = findings([[2.0, 0.0], [2.0, 1.0], [0.0, 5.0]], [[1.0, 1.0], [0.0, 1.0], [3.0, 4.0]])
    assert severity(three) == Severity(2.0, pytest.approx(3.8), 4.0)
    # For a threshold the last score alone counts: 1, 0 and 1.
    assert severity(three, Decision("threshold", 0.5)) == Severity(1.0, 1.0, 1.0)


def test_the_95th_of_a_hundred():
    many = findings([[float(i)] for i in range(101)], [[0.0]] * 101)
    assert severity(many, Decision("threshold", 0.5)) == Severity(50.0, pytest.approx(95.0), 100.0)


def test_nothing_found_has_no_severity():
    assert severity(Findings.empty(DOMAIN, 2)) is None
