"""Steps of chains in slices: the same search, in memory that does not grow with chains and twins."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from neuronfair import Decision, interpret
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.searches import evaluate as judging
from neuronfair.searches import stepping as slicing
from neuronfair.searches.engine import Budget, run_phase
from neuronfair.searches.keys import KeySet
from neuronfair.searches.methods import METHODS, Setting
from neuronfair.searches.stepping import join_states, slice_chains
from neuronfair.testing import FINDING_FIELDS, STEPS, cached_phase, run_spied
from neuronfair.testing.cases import COUNTERFACTUAL, case
from tests.planted import networks


def hold(monkeypatch, domain: TableDomain, chains: int) -> None:
    """Let the families of so many chains fill the memory."""
    monkeypatch.setattr(slicing, "RECORDS_HELD", {"cpu": chains * len(domain.sensitive_values)})


def test_slices_hold_all_walkers_in_their_order(monkeypatch):
    domain = networks.sex_and_race()  # families of ten
    state = {"origin": torch.arange(7), "rows": torch.arange(14).view(7, 2)}
    assert slice_chains(domain, state) == [state]
    monkeypatch.setattr(slicing, "RECORDS_HELD", {"cpu": 39})
    parts = slice_chains(domain, state)
    assert [part["origin"].tolist() for part in parts] == [[0, 1, 2], [3, 4, 5], [6]]
    assert parts[2]["rows"].tolist() == [[12, 13]]
    assert all(torch.equal(join_states(parts)[name], state[name]) for name in state)
    monkeypatch.setattr(slicing, "RECORDS_HELD", {"cpu": 1})  # one family at least
    assert len(slice_chains(domain, state)) == 7


def assert_same(found, other) -> None:
    for line in FINDING_FIELDS:
        assert torch.equal(getattr(found.findings, line), getattr(other.findings, line)), line
    for figure in ("tried", "evaluated", "rejected"):
        assert getattr(found.findings, figure) == getattr(other.findings, figure)
    assert (found.stop, found.finding_count) == (other.stop, other.finding_count)


@pytest.mark.parametrize("name", ["neuronfair-plus", "frontier-free", "expga"])
def test_a_method_finds_the_same_in_slices(name, monkeypatch):
    whole, _ = cached_phase(name, "pair", "local")
    hold(monkeypatch, case("pair").domain, 3)
    parts, spy = run_spied(name, "pair", "local")
    assert [len(rows) for _, rows in spy.proposed[:3]] == [3, 3, 2]
    assert len(whole.findings) > 0
    assert_same(whole, parts)


@pytest.mark.parametrize("budget", [Budget(STEPS, instances=20), Budget(STEPS, findings_per_seed=2)])
@pytest.mark.parametrize("where", ["people", "score", COUNTERFACTUAL])
def test_budgets_are_kept_in_slices(budget, where, monkeypatch):
    whole, _ = run_spied("aequitas", where, "local", budget)
    hold(monkeypatch, case(where).domain, 3)
    assert_same(whole, run_spied("aequitas", where, "local", budget)[0])


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor holds that is made meanwhile."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple | list) else [result]:
            if isinstance(made, torch.Tensor):
                self.numbers = max(self.numbers, made.numel())
        return result


AGES = TableDomain(  # families of 500
    "ages",
    (
        *(Attribute(f"a{i}", "ordinal", low=0, high=9) for i in range(3)),
        Attribute("age", "ordinal", low=0, high=99),
        Attribute("race", "ordinal", low=0, high=4),
    ),
    ("age", "race"),
)


@pytest.mark.parametrize(
    ("name", "decision"),
    [
        ("neuronfair-plus", Decision()),
        ("frontier", Decision("tolerance", 5.0)),
        ("uniform", Decision("threshold", 1.0)),
    ],
)
def test_memory_does_not_grow_with_walkers_and_twins(name, decision, monkeypatch):
    module = networks.random_module(AGES)
    profile = interpret(networks.network(module, AGES), AGES, networks.uniform_rows(AGES, 2))
    context = networks.context(module, AGES, decision=decision, profile=profile)
    rule = METHODS[name].make(Setting(context, KeySet(), 0)).global_phase
    seeds = networks.uniform_rows(AGES, 300)

    def largest() -> int:
        with Largest() as spy:
            assert run_phase(context, rule, seeds, budget=Budget(2)).findings.evaluated == 600
        return spy.numbers

    assert largest() >= 300 * 500 * 2  # the scores of all twins of all chains
    monkeypatch.setattr(judging, "ROWS_PER_PASS", 5000)
    hold(monkeypatch, AGES, 30)
    empty = 1 << 16  # keys that a new set has room for; all else is smaller
    assert largest() <= empty
