from __future__ import annotations

import math

import pytest
import torch

from neuronfair import Decision
from neuronfair.errors import DataError, DomainError, ModelError
from neuronfair.measure.groups import Group, compare_by_difference, compare_by_ratio, measure_groups
from neuronfair.measure.rate import Rate
from tests.planted import networks

DOMAIN = networks.domain()
# The second class wins when the digits add up to less than 18.5, or 20.5 where s is 1.
NETWORK = networks.network(networks.one_biased_neuron(), DOMAIN)
ROWS = torch.tensor(
    [[9, 9, 0, 0, 0], [9, 9, 1, 0, 0], [9, 9, 1, 0, 1], [9, 9, 9, 0, 1], [0, 0, 0, 0, 1], [1, 0, 0, 0, 1]]
)


def test_rates_by_hand(monkeypatch):
    labels = torch.tensor([1, 1, 1, 0, 0, 0])
    expected = (
        Group((0,), 2, (0.5, 0.5), 0.5, ((0, 0), (1, 1))),
        Group((1,), 4, (0.25, 0.75), 0.5, ((1, 2), (0, 1))),
    )
    assert measure_groups(NETWORK, DOMAIN, ROWS, labels) == expected
    monkeypatch.setattr(NETWORK.encoding, "rows_per_pass", 2)
    assert measure_groups(NETWORK, DOMAIN, ROWS, labels) == expected
    labels[1] = 0
    assert [g.accuracy for g in measure_groups(NETWORK, DOMAIN, ROWS, labels)] == [1.0, 0.5]
    assert [g.accuracy for g in measure_groups(NETWORK, DOMAIN, ROWS)] == [None, None]


def test_a_threshold_makes_two_classes():
    # The scores are 0.1 times the sum, and a0 - 6 on top where s is 1: 1.8, 1.9 and 4.9, 5.7, 0, 0.1.
    network = networks.network(networks.biased_score(), DOMAIN)
    decided = measure_groups(network, DOMAIN, ROWS, decision=Decision("threshold", 1.85))
    assert [g.selection for g in decided] == [(0.5, 0.5), (0.5, 0.5)]
    decided = measure_groups(network, DOMAIN, ROWS, decision=Decision("threshold", 5.0))
    assert [g.selection for g in decided] == [(1.0, 0.0), (0.75, 0.25)]


def test_every_combination_of_sensitive_values_is_a_group():
    domain = networks.sex_and_race()
    network = networks.network(networks.one_biased_pair(), domain)
    rows = domain.sample(3000, torch.Generator().manual_seed(0))
    labels = network.scores(rows).argmax(1)
    result = measure_groups(network, domain, rows, labels)
    assert [g.codes for g in result] == [(sex, race) for sex in range(2) for race in range(5)]
    assert sum(g.rows for g in result) == 3000
    assert {g.accuracy for g in result} == {1.0}
    assert all(sum(g.selection) == pytest.approx(1) for g in result)
    mine = (rows[:, 4] == 1) & (rows[:, 5] == 3)
    assert result[8].selection[1] == pytest.approx(float(labels[mine].double().mean()))


def test_three_classes():
    network = networks.network(networks.three_classes(), DOMAIN)
    # z = sum + 2 s against 12.25 and 24.25: 18, 19, 21, 29, 2, 3.
    assert [g.selection for g in measure_groups(network, DOMAIN, ROWS)] == [(0.0, 1.0, 0.0), (0.5, 0.25, 0.25)]


def test_bad_input_is_refused():
    assert measure_groups(NETWORK, DOMAIN, ROWS[:0]) == ()
    for labels in (torch.tensor([0, 1]), torch.tensor([0, 1, 0, 1, 0, 2]), torch.tensor([0, 1, 0, 1, 0, -1])):
        with pytest.raises(DataError, match="one label from 0 to 1 for each of 6 rows"):
            measure_groups(NETWORK, DOMAIN, ROWS, labels)
    with pytest.raises(ModelError, match="tolerance"):
        measure_groups(NETWORK, DOMAIN, ROWS, decision=Decision("tolerance", 0.1))
    with pytest.raises(DomainError, match="5 columns"):
        measure_groups(NETWORK, DOMAIN, ROWS[:, :4])


def rates(*counts: tuple[int, int]) -> list[Rate]:
    return [Rate(found, of, "table", looks=len(counts)) for found, of in counts]


def test_ends_by_hand():
    # Nobody of 100 and all of 100: each interval errs in 1.25% on its side, so it ends at q = 0.0125 ** (1 / 100).
    q = 0.0125 ** (1 / 100)
    apart = compare_by_difference(rates((100, 100), (0, 100)))
    assert (apart.value, apart.lowest, apart.highest) == (1, 1, 0)
    assert (apart.low, apart.high) == pytest.approx((2 * q - 1, 1))
    share = compare_by_ratio(rates((100, 100), (0, 100)))
    assert (share.value, share.low, share.lowest, share.highest) == (0, 0, 1, 0)
    assert share.high == pytest.approx((1 - q) / q)


def test_alike_groups_may_still_differ():
    apart, share = compare_by_difference(rates((30, 60), (30, 60))), compare_by_ratio(rates((30, 60), (30, 60)))
    low, high = Rate(30, 60, "table", looks=2).interval
    assert (apart.value, apart.low, apart.high) == pytest.approx((0, 0, high - low))
    assert (share.value, share.low, share.high) == pytest.approx((1, low / high, 1))
    assert {apart.lowest, apart.highest} == {0, 1}


def test_a_small_group_is_compared_with_others_and_not_with_itself():
    three = rates((5000, 10_000), (15, 30), (5000, 10_000))
    (_, large), (small_low, small_high) = three[0].interval, three[1].interval
    assert compare_by_ratio(three).low == pytest.approx(small_low / large)
    assert compare_by_difference(three).high == pytest.approx(max(small_high - three[0].interval[0], large - small_low))


def test_nobody_selected_has_no_ratio():
    assert compare_by_ratio(rates((0, 50), (0, 60))) is None
    assert compare_by_difference(rates((0, 50), (0, 60))).value == 0


@pytest.mark.parametrize(("p", "q"), [(0.3, 0.6), (0.5, 0.5), (0.1, 0.9), (0.05, 0.1)])
def test_the_interval_holds_the_truth_as_often_as_it_says(p, q):
    n, held = 12, {"ratio": 0.0, "difference": 0.0}
    for i in range(n + 1):
        for j in range(n + 1):
            chance = math.comb(n, i) * p**i * (1 - p) ** (n - i) * math.comb(n, j) * q**j * (1 - q) ** (n - j)
            share, apart = compare_by_ratio(rates((i, n), (j, n))), compare_by_difference(rates((i, n), (j, n)))
            held["ratio"] += chance * (share is None or share.low <= min(p, q) / max(p, q) <= share.high)
            held["difference"] += chance * (apart.low <= abs(p - q) <= apart.high)
    assert min(held.values()) >= 0.95
