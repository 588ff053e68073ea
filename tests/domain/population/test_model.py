"""Populations: exact distributions over the valid people, whose plausibility is uniform for real ones."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

from neuronfair import TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.population import trees
from neuronfair.domain.population.model import (
    EQUAL_NATS,
    PopulationLayout,
    UserPopulation,
    fit_likelihood,
    fit_population,
    grow_population,
    measure_quality,
    read_records,
    real_synthetic_auc,
)
from neuronfair.domain.rules import Rule, Span
from neuronfair.domain.tables.dataset import load_dataset
from neuronfair.errors import DataError, DomainError


def flag(name):
    return Attribute(name, "flag", values=("no", "yes"))


def small(*rules):
    """Three attributes of 2, 3 and 8 values, the last of them an empty cell."""
    attributes = (
        flag("married"),
        Attribute("job", "nominal", values=("none", "clerk", "chief")),
        Attribute("hours", "ordinal", low=0, high=6, missing="keep"),
    )
    return TableDomain("small", attributes, ("married",), rules)


RULES = (
    Rule("without a job no hours", {"job": ("none",)}, {"hours": Span(high=0)}),
    Rule("a chief is married", {"job": ("chief",)}, {"married": ("yes",)}),
)


def everybody(domain):
    return torch.tensor(list(itertools.product(*(range(a.size) for a in domain.attributes))))


def people(domain, n, seed=0):
    """Married people work more, and half of the clerks work six hours."""
    g = torch.Generator().manual_seed(seed)
    married = torch.randint(2, (n,), generator=g)
    job = (torch.rand(n, generator=g) * (1 + 2 * married)).long().clamp(max=2)
    hours = (torch.rand(n, generator=g) * (2 + 2 * job)).long() + job
    hours[(job == 1) & (torch.rand(n, generator=g) < 0.5)] = 6
    hours[torch.rand(n, generator=g) < 0.1] = 7  # an empty cell
    return domain.clip(torch.stack([married, job, hours.clamp(max=7)], 1))


def test_the_chances_of_one_flag_are_those_of_its_counts():
    domain = TableDomain("one", (flag("sex"),), ("sex",))
    model = fit_likelihood(domain, torch.tensor([[0]] * 3 + [[1]] * 9))
    # Of the strengths, 16 people at 1/2 each foresee every person from the others best: (3 + 8) / 28, (9 + 8) / 28.
    scores = {s: 3 * math.log((2 + s / 2) / (11 + s)) + 9 * math.log((8 + s / 2) / (11 + s)) for s in (1, 4, 16, 64)}
    best = max(scores, key=scores.get)
    chances = model.log_likelihood(torch.tensor([[0], [1]])).exp()
    expected = torch.tensor([(3 + best / 2) / (12 + best), (9 + best / 2) / (12 + best)], dtype=torch.float64)
    assert torch.allclose(chances, expected)


def test_a_column_that_follows_another_is_split_by_it():
    domain = TableDomain("two", (flag("sex"), flag("copy")), ("sex",))
    rows = torch.tensor([[0, 0]] * 40 + [[1, 1]] * 60)
    model = fit_likelihood(domain, rows)
    chances = model.log_likelihood(everybody(domain)).exp().view(2, 2)
    assert chances[0, 0] + chances[1, 1] > 0.95
    assert chances[0, 1] + chances[1, 0] > 0


@pytest.mark.parametrize("rules", [(), RULES[:1], RULES])
def test_likelihoods_add_up_to_one_over_exactly_the_valid_rows(rules):
    domain = small(*rules)
    model = fit_likelihood(domain, people(domain, 300))
    rows = everybody(domain)
    scores = model.log_likelihood(rows)
    assert torch.equal(scores.isfinite(), domain.valid(rows))
    assert float(scores.exp().sum()) == pytest.approx(1, abs=1e-12)
    outside = torch.tensor([[0, 1, 8], [-1, 1, 1], [2, 0, 0]])
    assert bool((model.log_likelihood(outside) == -torch.inf).all())


@pytest.mark.parametrize("rules", [(), RULES])
def test_people_are_drawn_as_often_as_their_likelihood_says(rules):
    domain = small(*rules)
    model = fit_likelihood(domain, people(domain, 300))
    drawn = model.sample(40_000, torch.Generator().manual_seed(1))
    assert bool(domain.valid(drawn).all())
    rows = everybody(domain)[domain.valid(everybody(domain))]
    expected = model.log_likelihood(rows).exp() * len(drawn)
    counted = torch.stack([(drawn == row).all(1).sum() for row in rows])
    few = expected < 10
    counted = torch.cat([counted[~few], counted[few].sum()[None]])
    expected = torch.cat([expected[~few], expected[few].sum()[None]])
    kept = expected > 0
    assert chisquare(counted[kept], expected[kept]).pvalue > 0.01


def test_the_same_place_gives_the_same_person_whoever_stands_beside():
    domain = small(*RULES)
    model = fit_likelihood(domain, people(domain, 300))
    u = torch.rand(500, model.draws_per_row, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u[0], u[1] = 0, 1 - 2**-53
    rows = model.rows_at(u)
    assert torch.equal(rows[100:200], model.rows_at(u[100:200]))
    assert bool(domain.valid(rows).all())
    assert model.rows_at(u[:0]).shape == (0, 3)


def test_what_comes_first_is_drawn_first():
    domain = small()
    model = grow_population(domain, PopulationLayout.of(domain, people(domain, 200), first=("hours", "married")))
    assert model.order[:2] == (2, 0)
    assert sorted(model.order) == [0, 1, 2]
    assert model.trees.split_columns(2) == set()  # the first column depends on nothing


def test_plausibility_is_uniform_for_people_it_has_not_seen():
    domain = small(*RULES)
    wide = TableDomain("wide", tuple(Attribute(f"n{i}", "ordinal", high=40) for i in range(5)), ("n0",))
    g = torch.Generator().manual_seed(0)
    base = torch.randint(20, (3000, 1), generator=g)
    rows = base + torch.randint(21, (3000, 5), generator=g)
    model = fit_population(wide, rows[:1500])
    # Two samples of 1,500 lie 0.06 apart in one case of a hundred.
    assert kstest(model.plausibility(rows[1500:]).numpy(), "uniform").statistic < 0.06
    # Where many are equal, half of the equals count: the mean is still one half.
    rows = people(domain, 4000)
    model = fit_population(domain, rows[:2000])
    assert float(model.plausibility(rows[2000:]).mean()) == pytest.approx(0.5, abs=0.03)


def test_plausibility_of_real_people_of_a_real_table():
    data = load_dataset("german")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1))
    rows = data.domain.clip(data.rows)[order]
    model = fit_population(data.domain, rows[:700])
    assert kstest(model.plausibility(rows[700:]).numpy(), "uniform").statistic < 0.1
    strangers = data.domain.sample(300, torch.Generator().manual_seed(0))
    assert float((model.plausibility(strangers) < 0.05).double().mean()) > 0.9
    assert bool((model.plausibility(torch.full((1, 20), -1)) == 0).all())


def test_spikes_and_heaps_come_out_as_often_as_they_are():
    domain = TableDomain("gain", (flag("sex"), Attribute("gain", "continuous", high=99999)), ("sex",))
    g = torch.Generator().manual_seed(0)
    gain = torch.randint(1, 20, (2000,), generator=g) * 5000
    gain[torch.rand(2000, generator=g) < 0.9] = 0
    model = fit_likelihood(domain, torch.stack([torch.randint(2, (2000,), generator=g), gain], 1))
    drawn = model.sample(5000, g)[:, 1]
    assert float((drawn == 0).double().mean()) == pytest.approx(float((gain == 0).double().mean()), abs=0.02)
    some = drawn[drawn > 0]
    assert float((some % 5000 == 0).double().mean()) > 0.9
    assert int(some.max()) > 50_000


def test_all_of_a_million_codes_have_a_chance():
    domain = TableDomain("much", (flag("sex"), Attribute("pay", "continuous", high=2**52)), ("sex",))
    g = torch.Generator().manual_seed(0)
    rows = torch.stack([torch.randint(2, (500,), generator=g), torch.randint(2**40, (500,), generator=g)], 1)
    model = fit_likelihood(domain, rows)
    assert bool(model.log_likelihood(torch.tensor([[0, 0], [1, 2**52], [1, 2**51 + 1]])).isfinite().all())
    drawn = model.sample(2000, g)
    assert bool(domain.valid(drawn).all())
    assert bool(model.log_likelihood(drawn).isfinite().all())
    assert 0.4 < float((drawn[:, 1] < 2**39).double().mean()) < 0.6


@pytest.mark.parametrize("n", [1, 2, 20])
def test_few_people_or_people_who_are_all_the_same_are_a_population(n):
    domain = small(*RULES)
    model = fit_population(domain, torch.tensor([[1, 2, 4]]).repeat(n, 1))
    drawn = model.sample(200, torch.Generator().manual_seed(0))
    assert bool(domain.valid(drawn).all())
    same = model.plausibility(torch.tensor([[1, 2, 4]]))
    assert 0.3 <= float(same) <= 1
    assert float(model.log_likelihood(everybody(domain)).exp().sum()) == pytest.approx(1)


def test_equal_people_are_equally_usual():
    domain = small()
    model = fit_population(domain, torch.tensor([[1, 2, 4]]).repeat(400, 1))
    assert float(model.plausibility(torch.tensor([[1, 2, 4]]))) == pytest.approx(0.5)
    assert EQUAL_NATS < 0.2


def test_people_who_break_rules_or_bounds_count_as_the_nearest_who_do_not():
    domain = small(*RULES)
    broken = torch.tensor([[0, 2, 5], [1, 0, 6], [5, 1, 99]]).repeat(20, 1)
    model = fit_population(domain, broken)
    assert torch.equal(model.reference, fit_population(domain, domain.clip(broken)).reference)
    assert bool(domain.valid(model.sample(500, torch.Generator().manual_seed(0))).all())
    assert bool((model.plausibility(broken) == 0).all())


def test_a_table_without_people_is_refused():
    with pytest.raises(DomainError, match="a population needs people"):
        fit_population(small(), torch.zeros(0, 3, dtype=torch.int64))


def test_a_nominal_column_with_very_many_values():
    domain = TableDomain(
        "codes", (flag("sex"), Attribute("zip", "nominal", values=tuple(map(str, range(3000))))), ("sex",)
    )
    g = torch.Generator().manual_seed(0)
    zips = (torch.rand(1000, generator=g) ** 4 * 3000).long()
    model = fit_likelihood(domain, torch.stack([torch.randint(2, (1000,), generator=g), zips], 1))
    assert len(model.bins[1]) <= 64
    assert float(model.log_likelihood(everybody(domain)).exp().sum()) == pytest.approx(1)


def test_the_column_that_tells_most_comes_first_and_then_the_one_told_most():
    g = np.random.default_rng(0)
    hub = g.integers(4, size=400)
    near, far = np.where(g.random(400) < 0.1, 0, hub), np.where(g.random(400) < 0.6, 0, hub)
    places = np.stack([g.integers(2, size=400), far, hub, near], 1)
    after = trees.order_columns(places, [2, 4, 4, 4], [True] * 4)
    assert list(after) == [2, 3, 1, 0]
    assert [list(earlier) for earlier in after.values()][:3] == [[], [2], [2, 3]]


def test_what_columns_tell_about_each_other_is_their_mutual_information_less_chance():
    g = np.random.default_rng(0)
    places = np.stack([g.integers(2, size=300), g.integers(5, size=300), g.integers(3, size=300)], 1)
    places[:, 2] = np.where(g.random(300) < 0.7, places[:, 1] % 3, places[:, 2])
    found = trees.find_information(places, [2, 5, 3], [True, False, True])
    for a, b in ((0, 1), (0, 2), (1, 2)):
        nats = 0.0
        for x in np.unique(places[:, a]):
            for y in np.unique(places[:, b]):
                both = ((places[:, a] == x) & (places[:, b] == y)).sum()
                if both:
                    nats += both * np.log(300 * both / (places[:, a] == x).sum() / (places[:, b] == y).sum())
        chance = (len(np.unique(places[:, a])) - 1) * (len(np.unique(places[:, b])) - 1) / 2
        assert found[a, b] == found[b, a] == pytest.approx(max(0.0, nats - chance) / 300)
    assert (np.diag(found) == 0).all()


def test_places_are_taken_together_with_their_neighbours_or_the_rarest_are():
    counts = np.array([10.0, 1, 1, 10, 1, 1, 8, 8])
    assert trees.coarsen(counts, True, 4).tolist() == [0, 1, 1, 1, 2, 2, 2, 3]
    assert trees.coarsen(counts, False, 4).tolist() == [0, 3, 3, 1, 3, 3, 2, 3]
    assert trees.coarsen(counts, True, 8).tolist() == [*range(8)]


def test_ties_of_far_apart_columns_of_a_wide_table_are_found():
    g = np.random.default_rng(0)
    places = g.integers(4, size=(500, 400))
    places[:, 399] = places[:, 0]
    after = trees.order_columns(places, [4] * 400, [True] * 400)
    order = list(after)
    later = max(0, 399, key=order.index)
    assert after[later][0] == 399 - later


def test_the_widest_tables_have_no_ties(monkeypatch):
    monkeypatch.setattr(trees, "MAX_COLUMNS_COMPARED", 2)
    domain = small(*RULES)
    model = grow_population(domain, PopulationLayout.of(domain, people(domain, 200), first=("hours",)))
    assert sorted(model.order) == [0, 1, 2]
    assert model.order[0] == 2
    assert float(model.log_likelihood(everybody(domain)).exp().sum()) == pytest.approx(1)
    assert len(model.trees.split_column) == 3  # leaves only


@pytest.mark.parametrize(("rows", "fits"), [(3, 4), (200, 6), (5000, 3), (20_000, 2)])
def test_a_model_is_fitted_no_oftener_than_its_scores_need_and_says_how_far_it_is(rows, fits):
    domain = small(*RULES)
    seen: list[tuple[int, int]] = []
    model = fit_population(domain, people(domain, rows), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 3 * fits) for done in range(1, 3 * fits + 1)]
    assert len(model.reference) >= min(rows, 2000)


def test_the_same_seed_gives_the_same_population():
    domain = small(*RULES)
    rows = people(domain, 200)
    one, two = (fit_population(domain, rows, seed=3) for _ in range(2))
    assert torch.equal(one.reference, two.reference)
    assert torch.equal(one.trees.chances, two.trees.chances)


def test_a_rule_that_cuts_a_column_into_many_pieces():
    odd = tuple(range(1, 200, 2))
    domain = TableDomain(
        "pieces",
        (flag("sex"), Attribute("age", "ordinal", high=199)),
        ("sex",),
        (Rule("odd", {"sex": ("yes",)}, {"age": odd}),),
    )
    model = fit_likelihood(domain, domain.sample(300, torch.Generator().manual_seed(0)))
    rows = everybody(domain)
    scores = model.log_likelihood(rows)
    assert torch.equal(scores.isfinite(), domain.valid(rows))
    assert float(scores.exp().sum()) == pytest.approx(1)
    assert bool(domain.valid(model.sample(2000, torch.Generator().manual_seed(0))).all())


def test_what_lies_far_beyond_everybody_is_not_plausible_and_hardly_drawn():
    gain = Attribute("gain", "ordinal", high=99_999)
    domain = TableDomain("gains", (Attribute("sex", "nominal", values=("f", "m")), gain), ("sex",))
    g = torch.Generator().manual_seed(0)
    for n in (60, 400):  # nearly every gain is one of its own, so that new ones are expected
        rows = torch.stack([torch.randint(2, (n,), generator=g), torch.randint(20_000, 23_000, (n,), generator=g)], 1)
        model = fit_population(domain, rows)
        between, over, under = model.plausibility(torch.tensor([[0, 21_500], [0, 50_000], [0, 0]])).tolist()
        assert between > 0.1
        assert max(over, under) < 0.01
        drawn = model.sample(20_000, g)[:, 1]
        beyond = (drawn < rows[:, 1].min()) | (drawn > rows[:, 1].max())
        assert 0 < float(beyond.double().mean()) < 3 / n


DOMAIN = TableDomain(
    "pair",
    (Attribute("sex", "flag", values=("f", "m")), Attribute("job", "nominal", values=tuple("abcd"))),
    ("sex",),
)


def test_people_drawn_alike_cannot_be_told_apart_and_copies_can():
    g = torch.Generator().manual_seed(0)
    real, drawn = DOMAIN.sample(400, g), DOMAIN.sample(400, g)
    assert real_synthetic_auc(DOMAIN, real, drawn) == pytest.approx(0.5, abs=0.08)
    real[:, 1], drawn[:, 1] = real[:, 0], 3 - drawn[:, 0]
    assert real_synthetic_auc(DOMAIN, real, drawn) == 1


def test_a_population_of_even_chances_is_found_to_be_that():
    rows = DOMAIN.sample(1000, torch.Generator().manual_seed(0))
    quality = measure_quality(DOMAIN, rows)
    assert quality.log_likelihood == pytest.approx(-math.log(8), abs=0.03)
    assert quality.auc == pytest.approx(0.5, abs=0.08)


def test_few_people_tell_nothing():
    assert measure_quality(DOMAIN, DOMAIN.sample(9, torch.Generator().manual_seed(0))) is None
    assert measure_quality(DOMAIN, torch.tensor([[0, 1]]).repeat(10, 1)).auc == pytest.approx(0.5, abs=0.5)


OWN_DOMAIN = TableDomain(
    "people",
    (Attribute("age", "ordinal", low=0, high=9), Attribute("s", "flag")),
    ("s",),
    (Rule("nobody is 9", {"age": Span(low=9)}, {}),),
)


def test_the_people_are_those_that_were_given():
    rows = read_records({"age": [1, 2, 2], "s": [0, 1, 1], "more": ["x", "y", "z"]}, OWN_DOMAIN)
    assert rows.tolist() == [[1, 0], [2, 1], [2, 1]]
    population = UserPopulation.of(OWN_DOMAIN, rows)
    assert population.draws_per_row == 1
    assert population.rows_at(torch.tensor([[0.0], [0.34], [0.99]])).tolist() == rows.tolist()
    drawn = population.sample(3000, torch.Generator().manual_seed(0))
    assert {tuple(row) for row in drawn.tolist()} == {(1, 0), (2, 1)}
    assert float((drawn[:, 0] == 2).double().mean()) == pytest.approx(2 / 3, abs=0.05)
    usual, seldom = torch.tensor([[2, 1]]), torch.tensor([[8, 0]])
    assert population.log_likelihood(usual) > population.log_likelihood(seldom)
    # The first is as far from the others as the seldom one is: half of those who are as unusual count.
    assert population.plausibility(usual) > population.plausibility(seldom) == pytest.approx(1 / 6)


def test_people_who_break_a_rule_are_left_out():
    assert read_records(lambda n: {"age": [9, 3], "s": [0, 1]}, OWN_DOMAIN).tolist() == [[3, 1]]
    with pytest.raises(DataError, match="population: expected people who keep the rules of people, got none"):
        read_records({"age": [9], "s": [0]}, OWN_DOMAIN)


def test_an_error_among_these_people_is_not_taken_for_one_of_the_table():
    with pytest.raises(DataError, match=r"^population: column 's' is missing"):
        read_records({"age": [3]}, OWN_DOMAIN)
