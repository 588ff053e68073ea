"""Codes become the numbers of a network, and gradients become moves of attributes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronfair import TableEncoding, parse_domain
from neuronfair.domain.table import TableDomain
from neuronfair.model.encoding import cluster_seeds
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


# An attribute that a network is not given


def unread(*names: str) -> TableDomain:
    """The people, of whom a network is not told all."""
    return replace(
        DOMAIN, attributes=tuple(replace(a, encode="none") if a.name in names else a for a in DOMAIN.attributes)
    )


def test_what_is_not_given_has_no_inputs():
    domain = unread("age", "race")  # a number, the first of all, and a block
    rows, kept = domain.sample(20, generator()), [1, *range(2, 9), 12, 13]
    assert torch.equal(TableEncoding.of(domain).encode(rows), ENCODING.encode(rows)[:, kept])
    numbers = replace(domain, rules=(), attributes=domain.attributes[:2])  # no block among them
    assert torch.equal(TableEncoding.of(numbers).encode(rows[:, :2]), rows[:, 1:2].float())


@settings(max_examples=20)
@given(st.integers(0, 2**31))
def test_what_is_not_given_has_no_effect_and_the_others_have_theirs(seed):
    domain = unread("age", "race", "gain")
    encoding = TableEncoding.of(domain)
    rows = domain.sample(30, generator(seed))
    gradient = torch.randn(30, encoding.width, generator=generator(seed), dtype=torch.float64)
    columns = torch.randint(7, (30, 5), generator=generator(seed))
    codes = (torch.rand(30, 5, generator=generator(seed)) * domain.sizes[columns]).long()
    effects = encoding.effects(gradient, rows, columns, codes)
    for m in range(5):
        moved = rows.scatter(1, columns[:, m : m + 1], codes[:, m : m + 1])
        change = encoding.encode(moved, torch.float64) - encoding.encode(rows, torch.float64)
        assert torch.allclose(effects[:, m], (change * gradient).sum(1), atol=1e-9)
    for column in (0, 4, 5):
        assert (encoding.influence(gradient, rows)[:, column] == 0).all()
        assert torch.equal(encoding.step_uphill(gradient, rows)[:, column], rows[:, column])


def test_an_empty_cell_that_is_not_given_has_no_effect():
    domain = parse_domain(
        'sensitive = ["sex"]\n[attributes]\nage = { kind = "ordinal", low = 0, high = 9 }\n'
        'pay = { kind = "ordinal", low = 0, high = 4, missing = "keep", encode = "none" }\n'
        'sex = { kind = "flag", encode = "none" }\n'
    )
    encoding, rows = TableEncoding.of(domain), torch.tensor([[3, 5, 0], [4, 2, 1]])
    assert encoding.encode(rows).tolist() == [[3.0], [4.0]]
    moves = torch.tensor([[1], [1]])
    assert encoding.effects(torch.ones(2, 1), rows, moves, torch.tensor([[0], [5]])).tolist() == [[0.0], [0.0]]


def test_seeds_come_from_clusters_of_what_is_given():
    rows = DOMAIN.sample(12, generator())
    rows[:, [0, 2, 3, 4, 5, 6]] = rows[:1, [0, 2, 3, 4, 5, 6]]
    rows[:, 1] = torch.arange(12) % 2  # they differ in their sex only
    assert len(cluster_seeds(TableEncoding.of(unread("sex")), rows, 5)) == 5


@pytest.mark.parametrize("encode", ["raw", "scaled", "onehot"])
def test_one_move_of_every_attribute_in_turn(people, encode):
    # All are numbers, in the first two, and nothing is looked up; or some are blocks.
    plain = [replace(a, encode="scaled" if encode == "scaled" else "raw") for a in people.attributes]
    encoding = TableEncoding.of(people) if encode == "onehot" else TableEncoding(plain)
    generator = torch.Generator().manual_seed(1)
    rows, codes = people.sample(20, generator), people.sample(20, generator)
    gradient = torch.randn(20, encoding.width, generator=generator)
    columns = torch.arange(rows.shape[1]).expand(rows.shape)
    turn = encoding.effects(gradient, rows, None, codes)
    assert torch.equal(turn, encoding.effects(gradient, rows, columns, codes))
    for column in range(rows.shape[1]):
        moved = rows.clone()
        moved[:, column] = codes[:, column]
        change = ((encoding.encode(moved) - encoding.encode(rows)) * gradient).sum(1)
        assert torch.allclose(turn[:, column], change, atol=1e-3, rtol=1e-3)
