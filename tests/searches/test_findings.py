from __future__ import annotations

import torch

from neuronfair.searches.findings import Findings
from neuronfair.testing.cases import case


def test_counts_alone_hold_nothing_of_the_findings():
    nobody = Findings.empty(case("plain").domain, 2)
    rows = torch.zeros(1000, nobody.packed.shape[1], dtype=nobody.packed.dtype)
    number, scores = torch.zeros(1000, dtype=torch.int64), torch.zeros(1000, 2)
    found = Findings(rows, rows[:, :1].long(), scores, scores, number, number, rows, tried=5, evaluated=7, rejected=1)
    counts = found.counts()
    assert (len(counts), len(counts.misses)) == (0, 0)
    assert (counts.tried, counts.evaluated, counts.rejected) == (5, 7, 1)
    tensors = (counts.packed, counts.twin_values, counts.scores, counts.origin, counts.misses, counts.plausibility)
    assert all(tensor.untyped_storage().nbytes() == 0 for tensor in tensors)
