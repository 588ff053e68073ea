"""Codes become the numbers of a network, and gradients become moves of attributes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neuronfair import TableEncoding, parse_domain
from tests.conftest import PEOPLE

DOMAIN = parse_domain(PEOPLE)
ENCODING = TableEncoding.of(DOMAIN)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def person(**cells: list[object]) -> dict[str, list[object]]:
    person: dict[str, list[object]] = {"age": [30], "sex": ["M"], "relationship": ["Wife"], "marital": ["Married"]}
    return person | {"race": ["B"], "gain": [2.5], "loss": [0]} | cells


def test_encode_by_hand(people):
    row = people.from_table(person())
    x = TableEncoding.of(people).encode(row)
    wife, married, race_b = [0, 1, 0, 0], [1, 0, 0], [0, 1, 0]
    expected = [(30 - 40) / 10, 1, *wife, *married, *race_b, (2.5 - 10) / 5, 0]
    assert x.shape == (1, TableEncoding.of(people).width)
    assert x[0].tolist() == pytest.approx(expected)


def test_encode_leaves_a_block_empty_for_an_unknown_code(people):
    row = people.from_table(person())
    row[0, 4] = 9
    assert TableEncoding.of(people).encode(row)[0, 9:12].tolist() == [0, 0, 0]


@given(st.integers(0, 2**31))
def test_effects_are_the_change_of_a_linear_function(seed):
    rows = DOMAIN.sample(30, generator(seed))
    gradient = torch.randn(30, ENCODING.width, generator=generator(seed), dtype=torch.float64)
    columns = torch.randint(7, (30, 5), generator=generator(seed))
    codes = (torch.rand(30, 5, generator=generator(seed)) * DOMAIN.sizes[columns]).long()
    effects = ENCODING.effects(gradient, rows, columns, codes)
    for m in range(5):
        moved = rows.scatter(1, columns[:, m : m + 1], codes[:, m : m + 1])
        change = ENCODING.encode(moved, torch.float64) - ENCODING.encode(rows, torch.float64)
        assert torch.allclose(effects[:, m], (change * gradient).sum(1), atol=1e-9)
