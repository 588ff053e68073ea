from __future__ import annotations

import math

import pytest

from neuronfair.measure.groups import difference, ratio
from neuronfair.measure.rate import Rate


def rates(*counts: tuple[int, int]) -> list[Rate]:
    return [Rate(found, of, "table", looks=len(counts)) for found, of in counts]


def test_ends_by_hand():
    # Nobody of 100 and all of 100: each interval errs in 1.25% on its side, so it ends at q = 0.0125 ** (1 / 100).
    q = 0.0125 ** (1 / 100)
    apart = difference(rates((100, 100), (0, 100)))
    assert (apart.value, apart.least, apart.most) == (1, 1, 0)
    assert (apart.low, apart.high) == pytest.approx((2 * q - 1, 1))
    share = ratio(rates((100, 100), (0, 100)))
    assert (share.value, share.low, share.least, share.most) == (0, 0, 1, 0)
    assert share.high == pytest.approx((1 - q) / q)


def test_alike_groups_may_still_differ():
    apart, share = difference(rates((30, 60), (30, 60))), ratio(rates((30, 60), (30, 60)))
    low, high = Rate(30, 60, "table", looks=2).interval
    assert (apart.value, apart.low, apart.high) == pytest.approx((0, 0, high - low))
    assert (share.value, share.low, share.high) == pytest.approx((1, low / high, 1))
    assert {apart.least, apart.most} == {0, 1}


def test_a_small_group_is_compared_with_others_and_not_with_itself():
    three = rates((5000, 10_000), (15, 30), (5000, 10_000))
    (_, large), (small_low, small_high) = three[0].interval, three[1].interval
    assert ratio(three).low == pytest.approx(small_low / large)
    assert difference(three).high == pytest.approx(max(small_high - three[0].interval[0], large - small_low))


def test_nobody_selected_has_no_ratio():
    assert ratio(rates((0, 50), (0, 60))) is None
    assert difference(rates((0, 50), (0, 60))).value == 0


@pytest.mark.parametrize(("p", "q"), [(0.3, 0.6), (0.5, 0.5), (0.1, 0.9), (0.05, 0.1)])
def test_the_interval_holds_the_truth_as_often_as_it_says(p, q):
    n, held = 12, {"ratio": 0.0, "difference": 0.0}
    for i in range(n + 1):
        for j in range(n + 1):
            chance = math.comb(n, i) * p**i * (1 - p) ** (n - i) * math.comb(n, j) * q**j * (1 - q) ** (n - j)
            share, apart = ratio(rates((i, n), (j, n))), difference(rates((i, n), (j, n)))
            held["ratio"] += chance * (share is None or share.low <= min(p, q) / max(p, q) <= share.high)
            held["difference"] += chance * (apart.low <= abs(p - q) <= apart.high)
    assert min(held.values()) >= 0.95
