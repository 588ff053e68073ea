"""How good a population is said to be: near one half where people cannot be told apart, near one where they can."""

from __future__ import annotations

import math

import pytest
import torch

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.population.model import population_quality, real_synthetic_auc
from neuronfair.domain.table import TableDomain

DOMAIN = TableDomain(
    "pair",
    (Attribute("sex", "flag", values=("f", "m")), Attribute("job", "nominal", values=tuple("abcd"))),
    ("sex",),
)


def test_people_drawn_alike_cannot_be_told_apart_and_copies_can():
    g = torch.Generator().manual_seed(0)
    real, drawn = DOMAIN.sample(400, g), DOMAIN.sample(400, g)
    assert real_synthetic_auc(DOMAIN, real, drawn) == pytest.approx(0.5, abs=0.08)
    real[:, 1], drawn[:, 1] = real[:, 0], 3 - drawn[:, 0]
    assert real_synthetic_auc(DOMAIN, real, drawn) == 1


def test_a_population_of_even_chances_is_found_to_be_that():
    rows = DOMAIN.sample(1000, torch.Generator().manual_seed(0))
    quality = population_quality(DOMAIN, rows)
    assert quality.log_likelihood == pytest.approx(-math.log(8), abs=0.03)
    assert quality.auc == pytest.approx(0.5, abs=0.08)


def test_few_people_tell_nothing():
    assert population_quality(DOMAIN, DOMAIN.sample(9, torch.Generator().manual_seed(0))) is None
    assert population_quality(DOMAIN, torch.tensor([[0, 1]]).repeat(10, 1)).auc == pytest.approx(0.5, abs=0.5)
