from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from neuronfair import BlackBox, Decision, NeuronFairError, TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.population.model import UserPopulation, fit_population
from neuronfair.domain.population.plausible import with_plausible_twins
from neuronfair.domain.rules import Rule, Span
from neuronfair.domain.table import Target
from neuronfair.domain.twins import ATTRIBUTE_FLIPS
from neuronfair.errors import DomainError
from neuronfair.measure.rate import (
    Direction,
    DirectionTally,
    GroupOutcomes,
    Rate,
    Until,
    find_favourable_class,
    flip_rate,
    plausible_pair_rate,
)
from neuronfair.model.encoding import TableEncoding
from neuronfair.searches.evaluate import Pairs, evaluate
from tests.planted import networks

DOMAIN = networks.domain()
NETWORK = networks.network(networks.one_biased_neuron(), DOMAIN)
EVERYBODY = torch.tensor(list(itertools.product(*[range(10)] * 4, range(2))))
# A row discriminates when its four digits add up to 19 (660 of 10,000) or to 20 (633).
TRUTH = 0.1293


@given(st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_the_interval_is_that_of_scipy_and_contains_the_rate(counts, confidence):
    found, sampled = counts
    rate = Rate(found, sampled, "domain", confidence)
    expected = binomtest(found, sampled).proportion_ci(confidence, method="exact")
    assert rate.interval == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert rate.interval[0] <= rate.rate <= rate.interval[1]
    assert rate.error == pytest.approx((expected.high - expected.low) / 2, abs=1e-9)


def test_the_interval_of_none_and_of_all_by_hand():
    # None of n: the upper end solves (1 - p)^n = 0.025.
    assert Rate(0, 50, "domain").interval == (0.0, pytest.approx(1 - 0.025 ** (1 / 50)))
    assert Rate(50, 50, "domain").interval == (pytest.approx(0.025 ** (1 / 50)), 1.0)


def test_several_looks_share_the_risk():
    assert Rate(7, 90, "domain", 0.95, looks=5).interval == pytest.approx(Rate(7, 90, "domain", 0.99).interval)


def test_everybody_gives_the_rate_exactly():
    rate = flip_rate(NETWORK, DOMAIN, population=EVERYBODY, samples=10**6)
    assert (rate.flips, rate.sampled, rate.rate) == (2586, 20_000, TRUTH)


@pytest.mark.parametrize("population", ["domain", "combinations"])
def test_a_sample_comes_near_the_known_rate(population):
    rate = flip_rate(NETWORK, DOMAIN, population=population, samples=40_000)
    assert (rate.sampled, rate.population) == (40_000, population)
    assert rate.rate == pytest.approx(TRUTH, abs=0.006)
    assert rate.interval[0] < TRUTH < rate.interval[1]


def test_rules_count_in_valid_and_not_in_domain():
    # Nobody with a0 of 1 or more exists: the other three digits must add up to 19 (45 of 1,000) or to 20 (36).
    domain = replace(DOMAIN, rules=(Rule("small", {"a0": Span(1, 9)}, {}),))
    assert flip_rate(NETWORK, domain, samples=40_000).rate == pytest.approx(0.081, abs=0.006)
    rate = flip_rate(NETWORK, domain, population="combinations", samples=40_000)
    assert rate.rate == pytest.approx(TRUTH, abs=0.006)


def test_people_without_a_twin_count_as_not_discriminated():
    domain = replace(DOMAIN, rules=(Rule("no such s", {"a0": Span(5, 9), "s": Span(1, 1)}, {}),))
    rows = EVERYBODY[domain.valid(EVERYBODY)]
    hit = torch.isin(rows[:, :4].sum(1), torch.tensor([19, 20])) & (rows[:, 0] < 5)
    rate = flip_rate(NETWORK, domain, population=rows, samples=10**6)
    assert (rate.flips, rate.sampled) == (int(hit.sum()), 15_000)


def test_part_of_a_table_is_drawn_without_replacement():
    rows = EVERYBODY[torch.isin(EVERYBODY[:, :4].sum(1), torch.tensor([19, 20]))][:30]
    rows = torch.cat([rows, torch.zeros(10, 5, dtype=torch.int64)])
    found = {flip_rate(NETWORK, DOMAIN, population=rows, samples=35, seed=s).flips for s in range(9)}
    # At least 25 of the 30 are among any 35 of 40, and 30 at most.
    assert min(found) >= 25
    assert max(found) <= 30
    assert len(found) > 1


def test_sampling_stops_when_the_error_is_small_enough():
    rate = flip_rate(NETWORK, DOMAIN, samples=Until(0.02, 100_000))
    assert rate.sampled == 2_000 or rate.sampled == 4_000
    assert rate.error <= 0.02
    assert rate.looks == 8  # 1,000, 2,000, … 64,000, 100,000
    before = Rate(round(rate.rate * rate.sampled / 2), rate.sampled // 2, "domain", looks=8)
    assert before.error > 0.02


def test_sampling_stops_at_the_cap():
    rate = flip_rate(NETWORK, DOMAIN, samples=Until(0.001, 3_000))
    assert (rate.sampled, rate.looks) == (3_000, 3)
    assert rate.error > 0.001
    assert flip_rate(NETWORK, DOMAIN, samples=Until(0.9, 500)).sampled == 500


def test_the_confidence_holds_although_it_is_looked_at_several_times():
    missed = 0
    for seed in range(100):
        low, high = flip_rate(NETWORK, DOMAIN, samples=Until(0.025, 4_000), confidence=0.9, seed=seed).interval
        missed += not low <= TRUTH <= high
    assert missed <= 10


def test_batches_do_not_change_the_rate_and_seeds_do(monkeypatch):
    whole = flip_rate(NETWORK, DOMAIN, samples=1_500)
    monkeypatch.setattr(NETWORK.encoding, "rows_per_pass", 64)
    seen: list[tuple[int, int]] = []
    assert flip_rate(NETWORK, DOMAIN, samples=1_500, progress=lambda *p: seen.append(p)) == whole
    assert (seen[0], seen[-1]) == ((32, 1_500), (1_500, 1_500))
    assert flip_rate(NETWORK, DOMAIN, samples=1_500, seed=1) != whole


def test_the_decision_is_used():
    network = networks.network(networks.biased_score(), DOMAIN)
    # The score of s = 1 lies max(0, a0 - 6) higher: more than 1.5 for a0 of 8 and 9.
    rate = flip_rate(
        network,
        DOMAIN,
        population=EVERYBODY,
        samples=10**6,
        decision=Decision("tolerance", 1.5),
    )
    assert rate.rate == 0.2


def test_whatever_gives_scores_can_be_measured():
    class Answers:
        dtype, outputs, encoding = torch.float64, 1, TableEncoding.of(DOMAIN)

        def scores(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :1] + x[:, -1:]  # 4.5 lies between the twins where a0 is 4

    rate = flip_rate(Answers(), DOMAIN, population=EVERYBODY, samples=10**6, decision=Decision("threshold", 4.5))
    assert rate.rate == 0.1


def test_plausible_people_of_a_sampler_are_judged_once_each():
    """All of them add up to 19, so everybody is hit, and not one in eight as in the domain."""
    rows = EVERYBODY[(EVERYBODY[:, :4] == torch.tensor([9, 9, 1, 0])).all(1)]
    rate = flip_rate(NETWORK, DOMAIN, population=UserPopulation(rows, fit_population(DOMAIN, rows)), samples=500)
    assert (rate.flips, rate.sampled, rate.population) == (len(rows), len(rows), "plausible")
    assert len(rows) < 500
    assert rate.interval == flip_rate(NETWORK, DOMAIN, population=rows, samples=500).interval


def test_plausible_people_are_drawn_from_their_model():
    rows = EVERYBODY[(EVERYBODY[:, :4] == torch.tensor([9, 9, 1, 0])).all(1)]
    rate = flip_rate(NETWORK, DOMAIN, population=fit_population(DOMAIN, rows), samples=500)
    assert (rate.sampled, rate.population) == (500, "plausible")


def test_bad_input_is_refused():
    with pytest.raises(NeuronFairError, match=r"no population 'tabel'.*Did you mean 'table'"):
        flip_rate(NETWORK, DOMAIN, population="tabel")
    with pytest.raises(NeuronFairError, match="the population 'table' is given by the data set"):
        flip_rate(NETWORK, DOMAIN, population="table")
    with pytest.raises(NeuronFairError, match="the population 'plausible' is given by a model"):
        flip_rate(NETWORK, DOMAIN, population="plausible")
    with pytest.raises(NeuronFairError, match="no rows to evaluate"):
        flip_rate(NETWORK, DOMAIN, population=EVERYBODY[:0])
    with pytest.raises(DomainError, match=r"5 columns of 'planted', got shape \(20000, 4\)"):
        flip_rate(NETWORK, DOMAIN, population=EVERYBODY[:, :4])
    with pytest.raises(NeuronFairError, match="error must be more than 0"):
        Until(0.0)
    for words, says in (({"samples": 0}, "samples"), ({"confidence": 1.0}, "confidence")):
        with pytest.raises(NeuronFairError, match=says):
            flip_rate(NETWORK, DOMAIN, **words)
    for found, sampled in ((0, 0), (3, 2), (-1, 2)):
        with pytest.raises(NeuronFairError, match="0 <= flips <= sampled"):
            Rate(found, sampled, "domain")


def tied(count: int) -> torch.Tensor:
    """People of whom those with 0 in the first column always have the flag, and the others often do."""
    g = torch.Generator().manual_seed(0)
    rows = torch.randint(10, (count, 5), generator=g)
    rows[:, 4] = torch.where(rows[:, 0] < 3, 1, torch.randint(2, (count,), generator=g))
    return rows


def test_the_flip_rate_over_plausible_pairs_is_that_of_a_plain_loop():
    rows = tied(2000)
    pairs = with_plausible_twins(DOMAIN, fit_population(DOMAIN, rows), rows)
    seen: list[tuple[int, int]] = []
    found = plausible_pair_rate(NETWORK, pairs, rows, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (2000, 2000)
    paired = flips = left_out = 0
    for row in rows:
        twin = row.clone()
        twin[4] = 1 - twin[4]
        differs = bool((NETWORK.scores(row[None]).argmax() != NETWORK.scores(twin[None]).argmax()).item())
        exists = bool(pairs.twins(row[None]).valid[0, 0])
        assert exists == (row[0] >= 3) or row[0] >= 3  # who must have the flag has no plausible twin
        paired += exists
        flips += exists and differs
        left_out += differs and not exists
    assert (found.rate.flips, found.rate.sampled, found.rate.population) == (flips, paired, "pairs")
    assert (found.implausible_only, found.without_twin) == (left_out, 2000 - paired)
    assert left_out > 50
    assert found.rate.interval == Rate(flips, paired, "domain").interval
    raw = flip_rate(NETWORK, DOMAIN, population=rows)
    assert raw.flips == flips + left_out


def test_twins_that_a_rule_forbids_are_left_out_of_the_pairs_and_counted():
    rule = Rule("small digits go with the flag", {"a0": Span(high=2)}, {"s": ("1",)})
    rows = tied(2000)
    free = plausible_pair_rate(NETWORK, with_plausible_twins(DOMAIN, fit_population(DOMAIN, rows), rows), rows)
    ruled = replace(DOMAIN, rules=(rule,))
    assert ruled.valid(rows).all()
    found = plausible_pair_rate(NETWORK, with_plausible_twins(ruled, fit_population(ruled, rows), rows), rows)
    assert (found.rate.flips, found.implausible_only) == (free.rate.flips, free.implausible_only)
    assert flip_rate(NETWORK, ruled, population=rows).flips == found.rate.flips


def test_without_any_plausible_twin_nothing_is_said_of_pairs():
    rows = tied(2000)
    pairs = with_plausible_twins(DOMAIN, fit_population(DOMAIN, rows), rows)
    assert plausible_pair_rate(NETWORK, pairs, rows[rows[:, 0] < 3]) is None
    some = plausible_pair_rate(NETWORK, pairs, rows, samples=100)
    assert some.rate.sampled + some.without_twin == 100
    with pytest.raises(NeuronFairError, match="measured by plausible_pair_rate"):
        flip_rate(NETWORK, replace(pairs, twinning=ATTRIBUTE_FLIPS), population="pairs")


HALF = Decision("threshold", 0.5)
DIRECTION_DOMAIN = TableDomain(
    "t",
    (Attribute("a", "ordinal", low=0, high=9), Attribute("race", "nominal", values=("A", "B", "C"))),
    ("race",),
    target=Target("loan", ("no", "yes")),
    favourable="yes",
)
ROWS = torch.tensor([[a, race] for a in range(10) for race in range(3)])


def of(domain: TableDomain, rows: torch.Tensor) -> Direction | None:
    """The model says yes from a + race = 5 on: a = 3 is a yes for C only, a = 4 for B and C."""
    model = BlackBox(lambda rows: (rows.sum(1) >= 5).double(), domain)
    return flip_rate(model, domain, population=rows, decision=HALF).direction


def test_each_value_is_counted_once_in_every_family():
    assert of(DIRECTION_DOMAIN, ROWS[::3]) == Direction(
        2, (GroupOutcomes((0,), 0, 2), GroupOutcomes((2,), 2, 0), GroupOutcomes((1,), 1, 1))
    )
    # Whichever member of its family a person is, it is the same family.
    assert of(DIRECTION_DOMAIN, ROWS[1::3]) == of(DIRECTION_DOMAIN, ROWS[2::3]) == of(DIRECTION_DOMAIN, ROWS[::3])


def test_the_other_class_turns_it_round():
    assert of(replace(DIRECTION_DOMAIN, favourable="no"), ROWS[::3]) == Direction(
        2, (GroupOutcomes((2,), 0, 2), GroupOutcomes((0,), 2, 0), GroupOutcomes((1,), 1, 1))
    )


def test_a_twin_that_does_not_exist_gets_and_loses_nothing():
    domain = replace(DIRECTION_DOMAIN, rules=(Rule("no C at 3", {"a": (3,), "race": ("C",)}, {}),))
    assert of(domain, ROWS[::3]) == Direction(
        1, (GroupOutcomes((0,), 0, 1), GroupOutcomes((1,), 1, 0), GroupOutcomes((2,), 1, 0))
    )


def test_a_row_outside_the_bounds_counts_for_no_value():
    outside = torch.tensor([[3, 7]])  # taken for C, of which B and A are the others: both are refused
    assert of(replace(DIRECTION_DOMAIN, outside="keep"), outside) == Direction(0, ())


def test_pairs():
    rows, twins = torch.tensor([[3, 0], [4, 1]]), torch.tensor([[3, 2], [4, 0]])
    tally = DirectionTally(DIRECTION_DOMAIN, favourable=1)
    tally.add_pairs(Pairs(rows, twins, torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [0.0]])), HALF)
    assert tally.direction() == Direction(
        2, (GroupOutcomes((0,), 0, 2), GroupOutcomes((1,), 1, 0), GroupOutcomes((2,), 1, 0))
    )


def test_several_batches_add_up():
    model = BlackBox(lambda rows: (rows.sum(1) >= 5).double(), DIRECTION_DOMAIN)
    tally = DirectionTally(DIRECTION_DOMAIN, favourable=1)
    for part in torch.split(ROWS[::3], 3):
        tally.add(evaluate(model, DIRECTION_DOMAIN, part, HALF))
    assert tally.direction() == of(DIRECTION_DOMAIN, ROWS[::3])


def test_without_a_favourable_class_nobody_loses():
    assert of(replace(DIRECTION_DOMAIN, favourable=None), ROWS) is None
    assert find_favourable_class(DIRECTION_DOMAIN, HALF, 1) == 1
    assert (
        find_favourable_class(DIRECTION_DOMAIN, Decision(), 3) is None
    )  # the model decides among three classes, the table has two
    assert find_favourable_class(DIRECTION_DOMAIN, Decision("tolerance", 0.1), 1) is None


def test_the_old_name_of_the_count_still_works_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"Rate\.found is now Rate\.flips"):
        assert Rate(3, 100, "domain").found == 3
