from __future__ import annotations

import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from neuronfair import NeuronFairError
from neuronfair.measure.stats import deviation, spearman

NUMBERS = st.lists(st.integers(-5, 5).map(float), min_size=3, max_size=12)


def test_spearman_by_hand():
    # Ranks 1 2 3 4 against 1 3 2 4: 1 - 6 (1 + 1) / (4 * 15).
    assert spearman([0.1, 0.2, 0.3, 0.4], [5, 70, 6, 800]) == pytest.approx(0.8)
    assert spearman([1, 2, 3], [9, 8, 7]) == pytest.approx(-1)


@given(st.data())
def test_spearman_is_that_of_scipy_and_does_not_care_about_units(data):
    first = data.draw(NUMBERS)
    second = data.draw(st.permutations(first))
    if len(set(first)) < 2:
        assert spearman(first, second) is None
        return
    value = spearman(first, second)
    assert value == pytest.approx(spearmanr(first, second).statistic)
    assert spearman([3 * x + 1 for x in first], [x**3 for x in second]) == pytest.approx(value)


def test_no_order_no_correlation():
    assert spearman([1, 1, 1], [1, 2, 3]) is None
    assert spearman([1, 2, 3], [4, 4, 4]) is None
    assert spearman([1], [2]) is None
    assert spearman([], []) is None


def test_bad_input_is_refused():
    with pytest.raises(NeuronFairError, match="3 values and 2"):
        spearman([1, 2, 3], [1, 2])
    with pytest.raises(NeuronFairError, match="NaN"):
        spearman([1, float("nan")], [1, 2])


def test_deviation_by_hand():
    # Mean 3, squares 4 + 1 + 9 = 14, over n - 1 = 2.
    assert deviation([1, 2, 6]) == pytest.approx(7**0.5)
    assert deviation([1]) is None
    assert deviation([]) is None
    values = np.random.default_rng(0).random(20)
    assert deviation(list(values)) == pytest.approx(np.std(values, ddof=1))


@pytest.fixture
def printed(shared_data):
    path = shared_data.parent / "paper" / "tables.toml"
    if not path.is_file():
        pytest.skip("the figures printed in the paper are not here: put them at ../paper/tables.toml beside the data")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def test_table_9_follows_from_its_own_figures(printed):
    for case, line in printed["auc"].items():
        rates = printed["dm_rs"][case]
        assert deviation(line["values"]) == pytest.approx(line["sigma_auc"], abs=5e-5), case
        assert deviation(rates) == pytest.approx(line["sigma_dm_rs"], abs=5e-5), case
        assert spearman(line["values"], rates) == pytest.approx(line["spearman"]), case


def test_the_factor_of_8_46_does_not_follow_from_table_9(printed):
    auc, rates = np.array([(line["sigma_auc"], line["sigma_dm_rs"]) for line in printed["auc"].values()]).T
    assert np.mean(auc / rates) == pytest.approx(10.45, abs=0.01)
    assert auc.mean() / rates.mean() == pytest.approx(5.96, abs=0.01)
