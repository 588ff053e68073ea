"""Some findings to show: those with the widest gaps, each as near to its row of the table as it can be."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from neuronfair.model.blackbox import Model
from neuronfair.searches.campaign import NO_SEED
from neuronfair.searches.config import SearchResult
from neuronfair.searches.evaluate import Pairs, evaluate
from neuronfair.searches.shrink import shrink

LOOK = 10_000  # findings with the widest gaps, among which the examples are chosen


def examples(outcome: SearchResult, network: Model, count: int) -> tuple[Pairs, Tensor]:
    """Return the findings with the widest score gaps, shrunk, one for each seed at most, and the seeds' own rows."""
    findings, domain, decision = outcome.findings, outcome.domain, outcome.config.decision
    findings = findings[findings.origin != NO_SEED]
    gaps = decision.gap(findings.scores, findings.twin_scores)
    worst = findings[gaps.topk(min(len(gaps), LOOK)).indices]
    _, first = np.unique(worst.origin.cpu().numpy(), return_index=True)
    worst = worst[torch.from_numpy(np.sort(first)[:count]).to(domain.device)]
    seeds = domain.clip(outcome.seeds[worst.origin])
    rows = shrink(network, domain, worst.rows, seeds, decision)
    return evaluate(network, domain, rows, decision).pairs(), seeds
