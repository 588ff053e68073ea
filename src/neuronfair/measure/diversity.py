"""How different the findings are from one another: a thousand copies of one person say no more than one."""

from __future__ import annotations

import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain

BINS = 4  # per ordered attribute, for counting regions
SAMPLE_PAIRS, SAMPLE_REGIONS = 2_000, 20_000


def mean_distance(domain: TableDomain, rows: Tensor, *, seed: int = 0) -> float:
    """Return the mean distance between two findings, from 0 (all alike) to 1 (opposite in every attribute).

    Sensitive attributes do not count. An ordered attribute counts with the share of its range between the two, a
    nominal one with 1 where they differ. At most 2,000 findings are compared, drawn at random.
    """
    columns = domain.free.nonzero()[:, 0]
    sample = _sample(rows, SAMPLE_PAIRS, seed)[:, columns]
    n = len(sample)
    if n < 2:
        return 0.0
    total = torch.zeros((), dtype=torch.float64, device=rows.device)
    for i, column in enumerate(columns.tolist()):
        codes = sample[:, i].double()
        apart = (codes[:, None] - codes).abs()
        if domain.ordered[column]:
            total += apart.sum() / max(1, int(domain.sizes[column]) - 1)
        else:
            total += (apart > 0).sum()
    return float(total / (n * (n - 1) * len(columns)))


def regions(domain: TableDomain, rows: Tensor, *, seed: int = 0) -> int:
    """Return how many regions of the domain the findings lie in, among at most 20,000 of them drawn at random.

    A region is a combination of nominal values and quarters of the ordered ranges; sensitive attributes do not count.
    """
    columns = domain.free.nonzero()[:, 0]
    sample, sizes = _sample(rows, SAMPLE_REGIONS, seed)[:, columns], domain.sizes[columns]
    coarse = torch.where(domain.ordered[columns] & (sizes > BINS), sample * BINS // sizes, sample)
    return len(torch.unique(coarse, dim=0))


def _sample(rows: Tensor, count: int, seed: int) -> Tensor:
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:count]
    return rows[order.to(rows.device)].long()
