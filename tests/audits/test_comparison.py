from __future__ import annotations

from dataclasses import replace

import pytest

from neuronfair import BlackBox, NeuronFairError, SearchConfig, search
from neuronfair.audits.comparison import compare_methods
from neuronfair.measure.stats import mean_interval
from neuronfair.searches.campaign import random_directions
from neuronfair.searches.methods import METHODS, frontier, list_able
from tests.planted import networks
from tests.scale.pools import Pickled

DOMAIN = networks.domain()
NETWORK = networks.network(networks.one_biased_neuron(), DOMAIN)
ROWS = networks.uniform_rows(DOMAIN, 200)
PLAN = SearchConfig(seeds=20, steps=15)


def test_the_interval_is_students():
    from scipy import stats

    values = [3.0, 4.5, 1.0, 7.25]
    mean, half = mean_interval(values, 0.9)
    low, high = stats.t.interval(0.9, len(values) - 1, loc=mean, scale=stats.sem(values))
    assert (mean, mean - half, mean + half) == pytest.approx((sum(values) / 4, low, high))
    assert mean_interval([]) == (None, None)
    assert mean_interval([2.0]) == (2.0, None)


def test_every_line_is_what_a_search_alone_would_say():
    result = compare_methods(NETWORK, DOMAIN, ROWS, ["neuronfair", "adf", "uniform"], PLAN)
    assert [entry["method"] for entry in result.methods()] == ["neuronfair", "adf", "uniform"]
    for entry in result.methods():
        alone = search(
            NETWORK, DOMAIN, ROWS, SearchConfig(entry["method"], seeds=20, steps=15, controls=False)
        ).summary()
        for name in ("findings", "tried", "gsr", "rows_evaluated"):
            assert entry[name] == alone[name], (entry["method"], name)
        assert entry["rows_per_finding"] == alone["rows_evaluated"] / alone["findings"]
        assert entry["lift"] == pytest.approx(alone["gsr"] / result.random.rate)
        assert "plus_minus" not in entry


def test_lift_is_over_the_strongest_control_of_any_method():
    methods = ["neuronfair", "adf", "uniform"]
    result = compare_methods(NETWORK, DOMAIN, ROWS, methods, PLAN)
    blind = {m: search(NETWORK, DOMAIN, ROWS, SearchConfig(m, seeds=20, steps=15)).random_direction for m in methods}
    rates = {f"random directions of {m}": count.success_rate for m, count in blind.items() if count}
    assert len(rates) == 2  # uniform has no directions
    rates["random people"] = result.random.rate
    assert result.strongest == max(rates.items(), key=lambda control: control[1])
    for entry in result.methods():
        assert entry["random_direction_gsr"] == (
            blind[entry["method"]].success_rate if blind[entry["method"]] else None
        )
        assert entry["lift_over_strongest_control"] == pytest.approx(entry["gsr"] / max(rates.values()))


def test_a_pool_makes_the_same_comparison():
    """Everything goes there and back as bytes, as between processes; only seconds may differ."""
    told = []
    given = {"repeats": 2, "progress": lambda *line: told.append(line)}
    alone = compare_methods(NETWORK, DOMAIN, ROWS, ["neuronfair", "uniform"], PLAN, **given)
    apart = compare_methods(NETWORK, DOMAIN, ROWS, ["neuronfair", "uniform"], PLAN, pool=Pickled(), **given)
    assert untimed(apart) == untimed(alone)
    assert (apart.seeds, apart.rates, apart.strongest) == (alone.seeds, alone.rates, alone.strongest)
    assert told[-1][0] == "4 searches"
    opened = compare_methods(NETWORK, DOMAIN, ROWS, ["uniform"], PLAN, pool=Pickled(), opens=opened_there)
    assert untimed(opened) == untimed(compare_methods(NETWORK, DOMAIN, ROWS, ["uniform"], PLAN))


def opened_there():
    return networks.network(networks.one_biased_neuron(), DOMAIN)


def untimed(comparison):
    return [
        (one.method, one.seed, {k: v for k, v in one.figures.items() if "seconds" not in k}) for one in comparison.lines
    ]


def test_ctrl_c_leaves_what_a_pool_has_finished():
    class Stopped(Pickled):
        def map(self, work, shared, items, **options):
            yield from super().map(work, shared, items[:1], **options)
            raise KeyboardInterrupt

    result = compare_methods(NETWORK, DOMAIN, ROWS, ["uniform", "adf"], PLAN, pool=Stopped())
    assert (result.interrupted, [line.method for line in result.lines], result.rates) == (True, ["uniform"], ())


def test_without_controls_there_are_figures_and_no_rates():
    result = compare_methods(NETWORK, DOMAIN, ROWS, ["adf"], replace(PLAN, controls=False))
    (entry,), alone = (
        result.methods(),
        search(NETWORK, DOMAIN, ROWS, SearchConfig("adf", seeds=20, steps=15, controls=False)),
    )
    assert (entry["findings"], entry["gsr"]) == (len(alone.findings), alone.total.success_rate)
    assert (result.rates, result.strongest, entry["lift"], entry["random_direction_gsr"]) == ((), None, None, None)


def test_random_directions_can_be_walked_without_a_search():
    config = SearchConfig("adf", seeds=20, steps=15)
    beside = search(NETWORK, DOMAIN, ROWS, config)
    assert random_directions(NETWORK, DOMAIN, ROWS, config, seeds=beside.seeds) == beside.random_direction


def test_repeats_are_other_run_seeds_and_give_an_interval():
    result = compare_methods(NETWORK, DOMAIN, ROWS, ["eidig5"], PLAN, repeats=3)
    alone = [
        search(NETWORK, DOMAIN, ROWS, SearchConfig("eidig5", 20, 15, seed=s, controls=False)).summary()
        for s in range(3)
    ]
    mean, half = mean_interval([a["gsr"] for a in alone])
    (entry,) = result.methods()
    assert len({line.figures["findings"] for line in result.lines}) > 1
    assert (entry["runs"], entry["gsr"], entry["plus_minus"]["gsr"]) == (3, pytest.approx(mean), pytest.approx(half))


def test_a_limit_of_instances_holds_for_every_method():
    for entry in compare_methods(
        NETWORK, DOMAIN, ROWS, ["adf", "frontier"], SearchConfig(seeds=20, steps=50, instances=30)
    ).methods():
        assert entry["tried"] <= 60


def test_a_fair_network_gives_figures_without_a_rate():
    fair = networks.network(networks.one_biased_neuron(weight=0.0), DOMAIN)
    result = compare_methods(fair, DOMAIN, ROWS, ["frontier", "uniform"], PLAN)
    assert result.random.flips == 0
    for entry in result.methods():
        assert (entry["findings"], entry["gsr"]) == (0, 0)
        assert entry["lift"] is entry["severity"] is entry["rows_per_finding"] is entry["diversity"] is None
        assert entry["lift_over_strongest_control"] is result.strongest is None


def test_a_black_box_is_compared_by_the_methods_that_can():
    box = BlackBox(lambda rows: NETWORK.scores(rows).numpy(), DOMAIN)
    assert set(list_able(box)) == {name for name, entry in METHODS.items() if not entry.gradients}
    assert set(list_able(NETWORK)) == set(METHODS)
    assert {e["method"] for e in compare_methods(box, DOMAIN, ROWS, ["aequitas", "uniform"], PLAN).methods()} == {
        "aequitas",
        "uniform",
    }
    with pytest.raises(NeuronFairError, match="follows gradients, and a black box has none"):
        compare_methods(box, DOMAIN, ROWS, ["aequitas", "adf"], PLAN)


@pytest.mark.parametrize(("methods", "repeats"), [([], 1), (["adf"], 0)])
def test_nothing_to_compare_is_refused(methods, repeats):
    with pytest.raises(NeuronFairError, match="at least"):
        compare_methods(NETWORK, DOMAIN, ROWS, methods, PLAN, repeats=repeats)


def test_a_pilot_is_part_of_the_budget(monkeypatch):
    monkeypatch.setattr(frontier, "PILOT_STEPS", 40)
    domain = networks.large_domain()
    module = networks.one_biased_neuron(11, 16, weight=40.0, boundary=networks.MIDDLE)
    network, rows = networks.network(module, domain), networks.uniform_rows(domain, 300)
    config = SearchConfig(seeds=100, steps=100, controls=False)
    starts = search(network, domain, rows, config).findings.rows[:100]
    free = search(network, domain, rows, replace(config, global_steps=0), seeds=starts).summary()
    assert free["findings_global"] == 0  # the pilot's findings count in the only phase there is
    assert free["rows_evaluated"] > 100 * (100 + 1)  # and so do the rows it has evaluated
    for steps in (0, 40):
        limited = replace(config, global_steps=steps, instances=4000)
        found = search(network, domain, rows, limited, seeds=None if steps else starts)
        assert found.total.tried <= 4000 * (2 if steps else 1)


def test_queries_count_what_a_surrogate_asks():
    plain, tree = compare_methods(NETWORK, DOMAIN, ROWS, ["uniform", "symbgen"], PLAN).methods()
    twins = 2  # a row and its twin
    assert plain["queries"] < 4 * twins * plain["rows_evaluated"] + 50_000
    assert tree["queries"] > 500 * tree["rows_evaluated"]


def test_queries_do_not_count_the_controls():
    (entry,) = compare_methods(NETWORK, DOMAIN, ROWS, ["adf"], PLAN).methods()
    before = NETWORK.rows_forward
    search(NETWORK, DOMAIN, ROWS, replace(PLAN, method="adf", controls=False))
    assert entry["queries"] == NETWORK.rows_forward - before
