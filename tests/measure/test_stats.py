from __future__ import annotations

import pytest
from scipy.stats import binomtest

from neuronfair.measure.stats import clopper_pearson


@pytest.mark.parametrize("count", [0, 1, 17, 50])
def test_the_exact_interval_is_that_of_the_binomial_test(count):
    low, high = binomtest(count, 50).proportion_ci(0.9, "exact")
    assert [*clopper_pearson(count, 50, 0.9)] == pytest.approx([count / 50, low, high])
    assert clopper_pearson(count, 50, 0.8, looks=2) == clopper_pearson(count, 50, 0.9)
