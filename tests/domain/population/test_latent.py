"""Columns that shift: weak differences are kept, heavy values stay where they are, and moments are right."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.population.counterfactuals import fit_counterfactuals
from neuronfair.domain.population.latent import _truncated_moments
from neuronfair.domain.table import TableDomain

GROUP = Attribute("group", "flag", values=("a", "b"), encode="none")


def people(first, second, high: int = 200) -> tuple[TableDomain, torch.Tensor]:
    """Return people of two groups with these numbers."""
    domain = TableDomain("people", (GROUP, Attribute("number", "ordinal", high=high)), ("group",))
    parts = [np.stack([np.full(len(some), group), some], 1) for group, some in enumerate((first, second))]
    return domain, torch.from_numpy(np.concatenate(parts).clip(0, high).round().astype(np.int64))


def test_a_difference_that_no_split_would_see_moves_the_twins():
    """A tenth of a standard deviation between 1,500 people and 1,500: the mean of the shifts is that of the groups."""
    rng = np.random.default_rng(3)
    domain, rows = people(rng.normal(100, 20, 1500), rng.normal(102, 20, 1500))
    how = fit_counterfactuals(domain, rows)
    moved = (how.twins(domain, rows).rows[:, 0, 1] - rows[:, 1]).double()
    seen = float(rows[1500:, 1].double().mean() - rows[:1500, 1].double().mean())
    assert seen > 1
    assert float(moved[:1500].mean()) == pytest.approx(seen, abs=0.5)
    assert float(moved[1500:].mean()) == pytest.approx(-seen, abs=0.5)


def test_twins_have_the_distribution_of_their_group_where_one_value_is_heavy():
    """80% of a and 60% of b have 0: of the twins of a's people 60% have it, and nobody leaves 0 for a bit more."""
    rng = np.random.default_rng(0)
    first, second = (np.where(rng.random(2000) < zero, 0, rng.integers(50, 150, 2000)) for zero in (0.8, 0.6))
    domain, rows = people(first, second)
    how = fit_counterfactuals(domain, rows)
    twins = torch.cat([twins.rows[:2000, 0, 1] for twins in how.draw(domain, rows, 32)])
    assert float((twins == 0).double().mean()) == pytest.approx((second == 0).mean(), abs=0.03)
    assert float(((twins > 0) & (twins < 50)).double().mean()) < 0.01
    stayed = (rows[2000:, 1] == 0) & (how.twins(domain, rows).rows[2000:, 0, 1] == 0)
    assert int(stayed.sum()) == int((rows[2000:, 1] == 0).sum())  # a has more of them


def test_moments_of_a_number_between_two_others():
    """By summing over a fine grid; a narrow cell has its middle."""
    for low, high in ((-1.0, 0.5), (1.0, 3.0), (-4.7, 4.7)):
        grid = np.linspace(low, high, 200_001)
        weight = np.exp(-(grid**2) / 2)
        mean = (grid * weight).sum() / weight.sum()
        variance = ((grid - mean) ** 2 * weight).sum() / weight.sum()
        found = _truncated_moments(np.array([low]), np.array([high]))
        assert found[0][0] == pytest.approx(mean, abs=1e-4)
        assert found[1][0] == pytest.approx(variance, abs=1e-3)
    assert _truncated_moments(np.array([1.0]), np.array([1.0001]))[0][0] == pytest.approx(1.00005)
