"""Before and after: the same questions, and intervals that mean something."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from torch import nn

from neuronfair import Dataset, interpret
from neuronfair.domain.table import Target
from neuronfair.domain.tables.dataset import Split
from neuronfair.model.open import Opened, wrap_model
from neuronfair.repairs import evaluate
from neuronfair.repairs.evaluate import areas, measure_model
from neuronfair.repairs.neurons import Turn
from neuronfair.searches import engine
from tests.planted.networks import domain, network, one_biased_neuron, random_module, uniform_rows


@pytest.fixture(autouse=True)
def short(monkeypatch) -> None:
    monkeypatch.setattr(evaluate, "SEEDS", 20)
    monkeypatch.setattr(evaluate, "STEPS", 10)


def people(rows: int = 500) -> Dataset:
    space = replace(domain(), target=Target("y", ("no", "yes")))
    codes = uniform_rows(space, rows)
    return Dataset("planted", space, codes, (codes[:, :4].sum(1) < 18.5).long())


def opened(module: nn.Module, parts: Split) -> Opened:
    return wrap_model(module, parts.train.domain, parts.train.rows)


def test_a_fair_network_stands_better() -> None:
    parts = people().split(0)
    before = measure_model(opened(one_biased_neuron(), parts), parts, seed=1)
    after = measure_model(opened(Turn(0, (3,), 0.0).apply(one_biased_neuron()), parts), parts, seed=1)
    low, high = before.rate.interval
    assert 0.05 < low < before.rate.rate < high
    assert after.rate.found == 0 < before.rate.found
    assert before.search.findings > 0 == after.search.findings
    assert after.accuracy == {"train": 1.0, "validation": 1.0, "test": 1.0}
    assert before.accuracy["test"] < 1.0
    assert [group.codes for group in before.groups] == [(0,), (1,)]
    # For s = 1 the boundary lies higher, so more people are accepted; for s = 0 nothing changes.
    assert before.groups[0].selection == after.groups[0].selection
    assert before.groups[1].selection[1] > after.groups[1].selection[1]
    # The neuron still reacts; it is the way on from it that is closed.
    assert before.worst == after.worst
    assert measure_model(opened(one_biased_neuron(), parts), parts, seed=1) == before


def test_the_area_is_that_of_the_interpretation_and_lies_in_its_interval() -> None:
    space = domain()
    net = network(random_module(space), space)
    rows = uniform_rows(space, 300)
    profile = interpret(net, space, rows)
    (area,) = areas(net, space, rows)
    assert area.auc == pytest.approx(profile.layers[0].auc)
    assert area.low < area.auc < area.high
    (wider,) = areas(net, space, rows[:20])
    assert wider.high - wider.low > area.high - area.low


def test_the_interval_covers_the_area_of_the_whole_domain() -> None:
    space = domain()
    net = network(random_module(space, seed=1), space)
    truth = interpret(net, space, uniform_rows(space, 20_000, seed=9)).layers[0].auc
    found = [areas(net, space, uniform_rows(space, 100, seed=s), seed=s)[0] for s in range(20)]
    assert sum(area.low <= truth <= area.high for area in found) >= 16


def test_a_reaction_that_never_varies_has_no_width() -> None:
    space = domain()
    (area,) = areas(network(one_biased_neuron(), space), space, uniform_rows(space, 50))
    assert area.low == area.auc == area.high > 0  # neuron 3 reacts by 2 for everybody


def test_ctrl_c_ends_the_proof(monkeypatch) -> None:
    record = engine.PhaseTally.record

    def press(tally: engine.PhaseTally, *values: object) -> None:
        signal.raise_signal(signal.SIGINT)
        record(tally, *values)

    monkeypatch.setattr(engine.PhaseTally, "record", press)
    parts = people().split(0)
    with pytest.raises(KeyboardInterrupt):
        measure_model(opened(one_biased_neuron(), parts), parts)
