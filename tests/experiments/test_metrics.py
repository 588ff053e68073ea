from __future__ import annotations

import tomllib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics.pairwise import cosine_distances

from experiments import metrics
from experiments.metrics import coverage_rates, deviation, generation_diversity, spearman
from neuronfair import NeuronFairError, TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.errors import DomainError
from neuronfair.model.encoding import TableEncoding
from tests.measure.test_diversity import DOMAIN, ROWS

PLANE = TableDomain("p", tuple(Attribute(n, "ordinal", low=0, high=9) for n in "xys"), ("s",))
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


def test_coverage_and_diversity_by_hand():
    ours = torch.tensor([[1, 0, 0], [0, 2, 0]])  # along both axes
    theirs = torch.tensor([[3, 0, 0], [4, 3, 0], [5, 0, 0], [9, 0, 0]])
    # Theirs lie at 0, at 1 - 4/5 from the first axis, at 0 and at 0; ours at 0 and, the second, at 1 - 3/5.
    radii = (0.0, 0.19, 0.21, 0.39, 0.41)
    assert coverage_rates(PLANE, ours, theirs, radii) == (0.75, 0.75, 1.0, 1.0, 1.0)
    assert coverage_rates(PLANE, theirs, ours, radii) == (0.5, 0.5, 0.5, 0.5, 1.0)
    assert generation_diversity(PLANE, ours, theirs, radii) == (1.5, 1.5, 2.0, 2.0, 1.0)


def test_no_ratio_where_the_baseline_covers_nothing():
    one, other = torch.tensor([[1, 0, 0]]), torch.tensor([[0, 1, 0]])
    assert generation_diversity(PLANE, one, other, (0.5, 1.0)) == (None, 1.0)
    assert coverage_rates(PLANE, one, other[:0], (0.5,)) == (0.0,)
    assert coverage_rates(PLANE, one[:0], other, (0.5,)) == (0.0,)
    assert generation_diversity(PLANE, one, other[:0], (0.5,)) == (None,)


def test_a_row_of_zeros_is_near_itself_only():
    zero, other = torch.tensor([[0, 0, 0]]), torch.tensor([[1, 0, 0]])
    assert coverage_rates(PLANE, zero, zero, (0.0,)) == (1.0,)
    assert coverage_rates(PLANE, zero, other, (0.99, 1.0)) == (0.0, 1.0)


@given(ROWS, ROWS, st.lists(st.floats(0, 2), min_size=1, max_size=6).map(sorted))
def test_coverage_grows_with_the_radius_and_with_the_centres(first, second, radii):
    rates = coverage_rates(DOMAIN, first, second, radii)
    assert list(rates) == sorted(rates)
    more = coverage_rates(DOMAIN, torch.cat([first, second[:1]]), second, radii)
    assert all(a <= b for a, b in zip(rates, more, strict=True))
    assert generation_diversity(DOMAIN, first, first, radii) == (1.0,) * len(radii)
    assert generation_diversity(DOMAIN, first, second, (2.0,)) == (1.0,)


def test_coverage_is_that_of_sklearn_in_any_batches(people, monkeypatch):
    first, second = (people.sample(n, torch.Generator().manual_seed(n)) for n in (200, 300))
    x, y = (TableEncoding.of(people).encode(rows, torch.float64).numpy() for rows in (first, second))
    nearest = cosine_distances(y, x).min(1)
    radii = (1e-4, 1e-3, 0.01, 0.1)
    monkeypatch.setattr(metrics, "BLOCK", 1000)
    assert coverage_rates(people, first, second, radii) == tuple((nearest <= r).mean() for r in radii)


def test_rows_of_another_domain_and_bad_radii_are_refused():
    rows, narrow = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 2, dtype=torch.int64)
    for call in (
        lambda: coverage_rates(DOMAIN, rows, narrow, (0.1,)),
        lambda: coverage_rates(DOMAIN, narrow, rows, (0.1,)),
        lambda: generation_diversity(DOMAIN, rows, narrow, (0.1,)),
    ):
        with pytest.raises(DomainError, match=r"3 columns of 'd', got shape \(2, 2\)"):
            call()
    with pytest.raises(NeuronFairError, match=r"radius must be 0 or more, got -0\.1"):
        coverage_rates(DOMAIN, rows, rows, (-0.1,))
