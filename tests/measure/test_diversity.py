from __future__ import annotations

import pytest
import torch

from neuronfair import Attribute, TableDomain
from neuronfair.measure.diversity import mean_distance, regions

DOMAIN = TableDomain(
    "d",
    (
        Attribute("a", "ordinal", low=0, high=8),
        Attribute("n", "nominal", values=("x", "y", "z")),
        Attribute("s", "flag"),
    ),
    ("s",),
)


def test_mean_distance_by_hand():
    rows = torch.tensor([[0, 0, 0], [4, 0, 1], [8, 2, 0]])
    # Pairs: (0.5 + 0) / 2, (1 + 1) / 2, (0.5 + 1) / 2; the sensitive column does not count.
    assert mean_distance(DOMAIN, rows) == pytest.approx((0.25 + 1.0 + 0.75) / 3)


def test_copies_have_no_distance_and_one_region():
    rows = torch.tensor([[3, 1, 0]] * 50)
    assert mean_distance(DOMAIN, rows) == 0.0
    assert regions(DOMAIN, rows) == 1
    assert mean_distance(DOMAIN, rows[:1]) == 0.0


def test_regions_by_hand():
    # Nine values in quarters: 0 to 2, 3 and 4, 5 and 6, 7 and 8.
    rows = torch.tensor([[0, 0, 0], [2, 0, 1], [3, 0, 0], [4, 1, 0], [8, 1, 0], [7, 1, 1]])
    assert regions(DOMAIN, rows) == 4


def test_the_corners_are_far_apart():
    rows = torch.tensor([[0, 0, 0], [8, 1, 0]])
    assert mean_distance(DOMAIN, rows) == 1.0
