"""Where walkers start."""

from __future__ import annotations

import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import NeuronFairError
from neuronfair.model.encoding import Encoding

CLUSTERS = 4  # N_c of the paper


def cluster_seeds(encoding: Encoding, rows: Tensor, count: int, *, seed: int = 0) -> Tensor:
    """Return seed rows taken in turn from the k-means clusters of a table, so that all kinds of people are among them.

    Who is near to whom is a matter of the encoding: a model's own. When more are asked for than there are rows, rows
    come again: their walkers draw other random numbers.
    """
    if len(rows) == 0:
        raise NeuronFairError("no rows to choose seeds from")
    from sklearn.cluster import KMeans

    points = encoding.encode(rows).cpu().numpy()
    clusters = min(CLUSTERS, len({point.tobytes() for point in points}))
    labels = torch.from_numpy(KMeans(clusters, n_init=1, random_state=seed).fit_predict(points)).long()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    labels = labels[order]
    # The k-th row of its cluster comes in round k; within a round the clusters take turns.
    turn = torch.empty(len(rows), dtype=torch.int64)
    for cluster in range(clusters):
        mine = labels == cluster
        turn[mine] = torch.arange(int(mine.sum()))
    round_robin = order[torch.argsort(turn * clusters + labels)]
    return rows[round_robin[torch.arange(count) % len(rows)].to(rows.device)]


def uniform_seeds(domain: TableDomain, count: int, *, seed: int = 0) -> Tensor:
    """Return seed rows drawn uniformly from the valid rows of the domain."""
    return domain.sample(count, torch.Generator().manual_seed(seed))


def given_seeds(rows: Tensor, count: int) -> Tensor:
    """Return the first `count` of the given rows, or all of them if they are fewer."""
    if len(rows) == 0:
        raise NeuronFairError("no rows to start from")
    return rows[:count]
