"""How values are carried: by hand, and that everybody of one distribution becomes the other distribution."""

from __future__ import annotations

import pytest
import torch

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.population.bins import Bins, Coupling


def coupling(*chances, ordered=True, empty=False):
    """Distributions over the codes 0, 1, …, each of which is a place."""
    table = torch.tensor(chances, dtype=torch.float64)
    size = table.shape[1]
    ones = torch.ones(size, dtype=torch.int64)
    codes = torch.arange(size)
    places = Bins(codes, ones, codes, torch.zeros(size, dtype=torch.float64), 0 * ones)
    return Coupling(places, ordered, size - 1 if empty else None, table)


def becomes(how, code, own=0, new=1, grid=600):
    """Count what a code becomes, for numbers u on an even grid; the last entry counts nothing beyond."""
    u = (torch.arange(grid, dtype=torch.float64) + 0.5) / grid
    full = torch.full((grid,), code)
    goals = how.transport(full, torch.full_like(full, own), torch.full_like(full, new), u)
    return torch.bincount(goals, minlength=how.chances.shape[1]).tolist()


def typical(how, code, own=0, new=1):
    return int(how.transport(*torch.tensor([[code], [own], [new]]), None))


def test_numbers_keep_their_rank():
    how = coupling([0.25] * 4 + [0] * 4, [0] * 4 + [0.25] * 4)
    for code in range(4):
        assert becomes(how, code)[code + 4] == 600
        assert becomes(how, code + 4, own=1, new=0)[code] == 600
        assert typical(how, code) == code + 4


def test_a_value_that_many_have_is_spread_over_as_many_ranks():
    how = coupling([0.25, 0.25, 0.25, 0.25], [0.5, 0, 0, 0.5], [0, 1, 0, 0], [0.2, 0.3, 0.5, 0])
    assert [becomes(how, code).index(600) for code in range(4)] == [0, 0, 3, 3]
    assert becomes(how, 0, own=1, new=0) == [300, 300, 0, 0]
    assert becomes(how, 3, own=1, new=0) == [0, 0, 300, 300]
    # Ranks 0.25 to 0.5 are the value 1 there; half of 0 has ranks below 0.2 … 0.5: two fifths of them 0.
    assert becomes(how, 0, own=1, new=3) == [240, 360, 0, 0]
    assert typical(how, 1, own=2, new=3) == 2  # rank 0.5 is where 2 begins
    assert typical(how, 2, own=3, new=1) == 3


def test_labels_stay_as_often_as_they_can_and_go_where_there_are_more():
    how = coupling([0.6, 0.2, 0.2, 0], [0.1, 0.5, 0.3, 0.1], ordered=False)
    # 0 stays with 0.1 / 0.6; the others lack 0.3, 0.1 and 0.1.
    assert becomes(how, 0) == [100, 300, 100, 100]
    assert becomes(how, 1) == [0, 600, 0, 0]
    assert becomes(how, 2) == [0, 0, 600, 0]
    # Back: 1 stays with 0.2 / 0.5, 2 with 0.2 / 0.3, 3 never; all others become 0.
    assert [becomes(how, code, own=1, new=0) for code in (1, 2, 3)] == [
        [360, 240, 0, 0],
        [200, 0, 400, 0],
        [600, 0, 0, 0],
    ]
    assert [typical(how, code) for code in range(3)] == [1, 1, 2]
    assert [typical(how, code, own=1, new=0) for code in range(4)] == [0, 0, 2, 0]


def test_an_empty_cell_is_no_large_number():
    how = coupling([0.2] * 5, [0.1] * 4 + [0.6], [0.4, 0.4, 0, 0, 0.2], [0, 0, 0, 0, 1], empty=True)
    # More empty cells: half of the numbers become empty, the others stay where they are.
    assert [becomes(how, code) for code in (0, 3)] == [[300, 0, 0, 0, 300], [0, 0, 0, 300, 300]]
    assert becomes(how, 4) == [0, 0, 0, 0, 600]
    # Fewer: a third stays empty, the others are anywhere among the numbers.
    assert becomes(how, 4, own=1, new=0) == [100, 100, 100, 100, 200]
    assert becomes(how, 2, own=1, new=0) == [0, 0, 600, 0, 0]
    # As many: numbers keep their rank among numbers.
    assert [becomes(how, code, new=2).index(600) for code in range(5)] == [0, 0, 1, 1, 4]
    assert becomes(how, 4, new=3) == becomes(how, 1, new=3) == [0, 0, 0, 0, 600]
    assert becomes(how, 4, own=3, new=1) == [60, 60, 60, 60, 360]
    assert [typical(how, 4, own=1, new=0), typical(how, 1), typical(how, 1, new=2)] == [2, 4, 0]


@pytest.mark.parametrize(("ordered", "empty"), [(True, False), (True, True), (False, False)])
def test_everybody_of_one_distribution_becomes_the_other(ordered, empty):
    g = torch.Generator().manual_seed(0)
    table = torch.rand(6, 5, generator=g, dtype=torch.float64) * (torch.rand(6, 5, generator=g) < 0.8) + 1e-3
    how = coupling(*(table / table.sum(1, keepdim=True)).tolist(), ordered=ordered, empty=empty)
    for own in range(6):
        for new in range(6):
            goals = torch.tensor([becomes(how, code, own, new) for code in range(5)], dtype=torch.float64) / 600
            assert torch.allclose(how.chances[own] @ goals, how.chances[new], atol=0.01)


def test_a_place_of_many_values_keeps_the_rank_within_it():
    attribute = Attribute("n", "ordinal", high=999)
    codes = torch.randint(200, 400, (500,), generator=torch.Generator().manual_seed(0))
    places = Bins.of(attribute, codes.numpy(), None, 8)
    everywhere = torch.arange(1000)
    for u in (0.01, 0.5, 0.99):
        share = places.share_of(everywhere, torch.full((1000,), u, dtype=torch.float64))
        assert torch.equal(places.code_at(places.bins_of(everywhere), share), everywhere)
    how = Coupling(places, True, None, torch.full((2, len(places)), 1 / len(places), dtype=torch.float64))
    one, zero = torch.ones_like(everywhere), torch.zeros_like(everywhere)
    assert torch.equal(how.transport(everywhere, zero, one, None), everywhere)


def test_no_rounding_leads_out_of_what_may_be():
    """Numbers next to 0 and 1, many distributions, and places without a chance at both ends."""
    table = torch.tensor([[0, 0.1, 0.2, 0.7, 0]] * 999 + [[0, 0.7, 0.2, 0.1, 0]], dtype=torch.float64)
    codes = torch.tensor([1, 2, 3]).repeat(2)
    u = torch.tensor([0.0] * 3 + [1 - 2**-53] * 3, dtype=torch.float64)
    for ordered in (True, False):
        how = coupling(*table.tolist(), ordered=ordered)
        for own in (0, 500, 998):
            at = torch.full_like(codes, own)
            for goals in (how.transport(codes, at, 0 * at + 999, u), how.transport(codes, 0 * at + 999, at, u)):
                assert bool(((goals > 0) & (goals < 4)).all())
