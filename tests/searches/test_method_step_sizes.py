from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.searches.method import (
    MAX_UNIT_STEP_VALUES,
    STEPS_BEYOND,
    StepSizes,
    draw_neighbours,
    inverse_influence,
    step_uphill,
    step_where_agreed,
    stretch,
)
from neuronfair.searches.methods import METHODS
from neuronfair.searches.methods.adf import Adf
from neuronfair.searches.methods.aequitas import Aequitas
from tests.planted import networks

# Ten people: six without a gain, and gains of 10, 20, 30 and 40 on a grid that ends 255 codes farther on.
DOMAIN = TableDomain(
    "gains",
    (
        Attribute("gain", "ordinal", low=0, high=295),
        Attribute("few", "ordinal", low=0, high=MAX_UNIT_STEP_VALUES - 1),
        Attribute("pay", "ordinal", low=0, high=199, missing="keep"),
        Attribute("s", "flag"),
    ),
    ("s",),
)
GAINS = [0, 0, 0, 0, 0, 0, 10, 20, 30, 40]
ROWS = torch.tensor([[gain, 3, 50, 0] for gain in GAINS])
EMPTY = 200
MANY = 2000


@pytest.fixture(scope="module")
def step_sizes() -> StepSizes:
    made = StepSizes.of(DOMAIN, ROWS)
    assert made is not None
    return made


def stepped(step_sizes: StepSizes, code: int, way: int, u: float) -> int:
    base = torch.tensor([[code, 3, 50, 0]])
    return int(
        step_sizes.stretch(base, base + torch.tensor([[way, 0, 0, 0]]), torch.full((1, 4), u, dtype=torch.float64))[
            0, 0
        ]
    )


def test_only_long_orders_have_a_pace(step_sizes):
    assert step_sizes.columns.tolist() == [0, 2]
    assert step_sizes.values[0].tolist() == [*[0] * STEPS_BEYOND, *GAINS, 41, 43, 47, 55, 71, 103, 167, 295]
    assert StepSizes.of(replace(DOMAIN, encoding="paper"), ROWS) is None
    assert StepSizes.of(DOMAIN, ROWS[:0]) is None
    moving = StepSizes.of(DOMAIN.with_sensitive("gain"), ROWS)
    assert moving is not None
    assert moving.columns.tolist() == [2]  # what does not move needs none


@pytest.mark.parametrize(
    ("code", "way", "places", "room", "there"),
    [
        (0, 1, 1, 12, 10),  # from the end of the heap to the next place
        (0, 1, 2, 12, 20),
        (0, 1, 0.3, 12, 3),  # between two places in proportion
        (0, 1, 0, 12, 1),  # one code at least
        (0, 1, 12, 12, 295),  # the whole way
        (15, 1, 1, 10.5, 25),
        (40, -1, 1, 17, 30),
        (40, -1, 17, 17, 0),
        (10, -1, 1, 14, 0),  # back to the heap
        (40, 1, 2, 8, 43),  # beyond the table
        (295, -1, 1, 25, 167),
        (0, -1, 0, 0, -1),  # beyond a bound by one code, for `move` to clip
        (295, 1, 0, 0, 296),
    ],
)
def test_steps_by_hand(step_sizes, code, way, places, room, there):
    u = math.log1p(places) / math.log1p(room) if room else 0.5
    assert stepped(step_sizes, code, way, u) == there


def test_a_step_goes_at_least_one_code_its_way(step_sizes):
    generator = torch.Generator().manual_seed(0)
    base = torch.stack([torch.randint(0, 2960, (MANY,), generator=generator)] * 4, 1) % torch.tensor(
        [296, MAX_UNIT_STEP_VALUES, 200, 2]
    )
    way = torch.randint(-1, 2, base.shape, generator=generator)
    codes = step_sizes.stretch(base, base + way, torch.rand(base.shape, generator=generator, dtype=torch.float64))
    assert torch.equal((codes - base).sign(), way)
    assert torch.equal(codes[:, [1, 3]], (base + way)[:, [1, 3]])
    assert (codes[:, 0] >= -1).all()
    assert (codes[:, 0] <= 296).all()


def test_an_empty_cell_has_no_place_in_the_order():
    rows = ROWS.clone()
    rows[:4, 2] = EMPTY
    step_sizes = StepSizes.of(DOMAIN, rows)
    assert step_sizes is not None
    assert step_sizes.values[1, STEPS_BEYOND:-STEPS_BEYOND].tolist() == [50] * len(rows)
    base = torch.tensor([[0, 3, EMPTY, 0], [0, 3, 50, 0]])
    codes = torch.tensor([[0, 3, 7, 0], [0, 3, EMPTY, 0]])
    assert torch.equal(step_sizes.stretch(base, codes, torch.full((2, 4), 0.9)), codes)


def test_the_reach_is_the_mean_of_the_steps(step_sizes):
    assert step_sizes.step_lengths(4)[[1, 3]].tolist() == [1, 1]
    wide, narrow = (StepSizes.of(DOMAIN, rows.repeat(100, 1)) for rows in (ROWS, ROWS.clamp(max=3)))
    assert wide is not None
    assert narrow is not None
    assert 1 < narrow.step_lengths(4)[0] < wide.step_lengths(4)[0] < 100


def test_every_step_is_in_scale():
    plain = networks.context(networks.random_module(DOMAIN), DOMAIN)
    paced = replace(plain, step_sizes=StepSizes.of(DOMAIN, ROWS))
    base = ROWS[6:7].repeat(MANY, 1)
    state = {"origin": torch.arange(MANY)}
    g = torch.ones(MANY, 4)
    for ways in (
        [draw_neighbours(here, state, base, 1) for here in (plain, paced)],
        [step_uphill(here, state, base, g, 1) for here in (plain, paced)],
        [step_where_agreed(here, state, base, g, g, 1) for here in (plain, paced)],
    ):
        codes, long = (one - base for one in ways)
        assert torch.equal(codes.sign(), long.sign())  # the pace changes lengths, not directions
        assert torch.equal(codes[:, 1], long[:, 1])
        assert set(codes[:, 0].tolist()) <= {1, -1}
        assert len(set(long[:, 0].tolist())) > 20
    some = {"origin": torch.arange(MANY)[100:200]}
    alone = stretch(paced, some, base[100:200], base[100:200] + 1, 5)
    assert torch.equal(alone, stretch(paced, state, base, base + 1, 5)[100:200])  # others do not matter
    # A step of a gain goes far, so it matters more than one code says.
    weights = inverse_influence(paced, base[:1], g[:1], g[:1])
    assert float(weights[0, 0]) == pytest.approx(0.5 / float(paced.step_sizes.step_lengths(4)[0]))
    assert float(weights[0, 1]) == 0.5


@pytest.mark.parametrize("method", [Aequitas(), Adf(local=True), METHODS["neuronfair-plus"].make(None).local_phase])
def test_walkers_leave_a_heap_and_meet_it_again(method):
    paced = replace(networks.context(networks.random_module(DOMAIN), DOMAIN), step_sizes=StepSizes.of(DOMAIN, ROWS))
    from neuronfair.model.profile import interpret
    from neuronfair.searches.evaluate import evaluate

    paced = replace(paced, profile=interpret(paced.network, DOMAIN, ROWS))
    rows, number = ROWS[7:8].repeat(MANY, 1), torch.arange(MANY)
    state = method.start(paced, {"origin": number, "rows": rows, "found": torch.zeros_like(number)})
    moved = method.tell(paced, state, rows, evaluate(paced.network, DOMAIN, rows), 0)["rows"]
    gains = moved[:, 0]
    assert ((gains == 0).sum() > 20) & ((gains > 40).sum() > 5) & ((gains < 20) & (gains > 0)).any()
    assert DOMAIN.valid(moved).all()
