from __future__ import annotations

import pytest
import torch

from neuronfair import NeuronFairError
from neuronfair.model.encoding import TableEncoding, cluster_seeds
from tests.planted import networks

DOMAIN = networks.domain()


def four_crowds() -> torch.Tensor:
    """400 rows near one corner, and 20 near each of three others."""
    corners = torch.tensor([[0, 0, 0, 0, 0], [9, 9, 0, 0, 0], [0, 0, 9, 9, 0], [9, 9, 9, 9, 0]])
    rows = corners.repeat_interleave(torch.tensor([400, 20, 20, 20]), 0)
    return (rows - torch.randint(0, 2, rows.shape, generator=torch.Generator().manual_seed(0))).abs()


def crowd(rows: torch.Tensor) -> torch.Tensor:
    return (rows[:, 0] > 4).long() + 2 * (rows[:, 2] > 4).long()


def test_the_clusters_take_turns():
    seeds = cluster_seeds(TableEncoding.of(DOMAIN), four_crowds(), 60)
    rounds = crowd(seeds).view(15, 4)
    assert (rounds.sort(1).values == torch.arange(4)).all()  # each crowd once in every round, large or small
    assert (rounds == rounds[0]).all()


def test_an_empty_cluster_is_passed_over():
    seeds = cluster_seeds(TableEncoding.of(DOMAIN), four_crowds(), 460)
    assert torch.bincount(crowd(seeds)).tolist() == [400, 20, 20, 20]
    assert (crowd(seeds[80:]) == 0).all()


def test_more_seeds_than_rows_come_again():
    rows = networks.uniform_rows(DOMAIN, 7)
    seeds = cluster_seeds(TableEncoding.of(DOMAIN), rows, 17)
    assert torch.equal(seeds[7:14], seeds[:7])
    assert sorted(seeds[:7].tolist()) == sorted(rows.tolist())


def test_the_same_seed_gives_the_same_rows():
    rows = networks.uniform_rows(DOMAIN, 500)
    first = cluster_seeds(TableEncoding.of(DOMAIN), rows, 50, seed=1)
    assert torch.equal(first, cluster_seeds(TableEncoding.of(DOMAIN), rows, 50, seed=1))
    assert torch.equal(first[:20], cluster_seeds(TableEncoding.of(DOMAIN), rows, 20, seed=1))
    assert not torch.equal(first, cluster_seeds(TableEncoding.of(DOMAIN), rows, 50, seed=2))


def test_one_row_and_equal_rows():
    row = torch.tensor([[1, 2, 3, 4, 0]])
    assert cluster_seeds(TableEncoding.of(DOMAIN), row, 3).tolist() == row.repeat(3, 1).tolist()
    assert cluster_seeds(TableEncoding.of(DOMAIN), row.repeat(9, 1), 2).tolist() == row.repeat(2, 1).tolist()
    assert cluster_seeds(TableEncoding.of(DOMAIN), row, 0).shape == (0, 5)


def test_no_rows_are_refused():
    with pytest.raises(NeuronFairError, match="no rows"):
        cluster_seeds(TableEncoding.of(DOMAIN), torch.empty(0, 5, dtype=torch.int64), 3)
