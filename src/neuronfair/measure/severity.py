"""How badly the findings are treated: the gap between the scores of a person and of the twin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neuronfair.model.decision import Decision
from neuronfair.search.findings import Findings


@dataclass(frozen=True)
class Severity:
    """The score gaps of findings, in the units of the network's scores: 0 would be no gap at all."""

    median: float
    p95: float  # 95 of 100 findings have this gap or a smaller one
    largest: float


def severity(findings: Findings, decision: Decision | None = None) -> Severity | None:
    """Return how large the score gaps of the findings are; None where nothing was found.

    The gap is that of `Decision.gap`. Use the decision of the search: for classes it is the change in the difference of
    two scores, for a threshold or a tolerance the change of the score.
    """
    if len(findings) == 0:
        return None
    gaps = (decision or Decision()).gap(findings.scores.double(), findings.twin_scores.double())
    median, p95, largest = np.quantile(gaps.cpu().numpy(), (0.5, 0.95, 1.0))
    return Severity(float(median), float(p95), float(largest))
