"""Every method of ours passes the checks that others can run on theirs, and a method that breaks a promise does not."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from neuronfair import NeuronFairError
from neuronfair.domain.table import TableDomain
from neuronfair.methods import METHODS, Evaluation, MethodEntry, Phases, SearchContext, State, draw_column
from neuronfair.testing import CHECKS, a_fresh_process_finds_the_same, check_method, run_search

IN_THIS_PROCESS = [check for check in CHECKS if check.function is not a_fresh_process_finds_the_same]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small batches are faster so, and other tests may run beside these."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", list(METHODS))
@pytest.mark.parametrize("check", IN_THIS_PROCESS, ids=str)
def test_every_method_keeps_its_promises(check, name):
    check(name)


def test_a_fresh_process_finds_the_same():
    a_fresh_process_finds_the_same(*METHODS)  # all in one process, to be quick


@pytest.mark.parametrize("name", [name for name, entry in METHODS.items() if entry.boundary])
def test_a_method_that_walks_to_a_boundary_is_refused_for_a_tolerance(name):
    with pytest.raises(NeuronFairError, match=f"'{name}' moves to a boundary; a tolerance has none.*frontier"):
        run_search(name, "score")


@dataclass(frozen=True)
class Roamer:
    """A method that keeps every promise: it changes one attribute at random, again and again."""

    def start(self, context: SearchContext, state: State) -> State:
        return state

    def ask(self, context: SearchContext, state: State, t: int) -> Tensor:
        return state["rows"]

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        return state | {"rows": context.domain.move(rows, self.step(context, state, rows, t))}

    def step(self, context: SearchContext, state: State, rows: Tensor, t: int) -> Tensor:
        column = draw_column(context, state, context.domain.changeable.double().expand(len(rows), -1), t)
        value = context.draws.below(context.domain.sizes[column], t, state["origin"], use="value")
        return rows.scatter(1, column, value)


class Lawless(Roamer):
    """Goes where nobody can be."""

    def tell(self, context, state, rows, evaluation, t):
        return state | {"rows": self.step(context, state, rows, t)}


class Changed(Roamer):
    """Changes the sensitive attribute."""

    def ask(self, context, state, t):
        rows = state["rows"].clone()
        column = context.domain.sensitive_columns[0]
        rows[:, column] = 1 - rows[:, column]
        return torch.where(context.domain.valid(rows)[:, None], rows, state["rows"])


class Careless(Roamer):
    """Goes where nobody is plausible."""

    def tell(self, context, state, rows, evaluation, t):
        return state | {"rows": TableDomain.move(context.domain, rows, self.step(context, state, rows, t))}


class Chancy(Roamer):
    """Takes random numbers from elsewhere."""

    def step(self, context, state, rows, t):
        return torch.where(torch.rand(rows.shape) < 0.2, (torch.rand(rows.shape) * context.domain.sizes).long(), rows)


class Social(Roamer):
    """Chains take over what the first one does."""

    def step(self, context, state, rows, t):
        moved = super().step(context, state, rows, t)
        return torch.where(moved[:1] != rows[:1], moved[:1], moved)


@dataclass(frozen=True)
class Private(Roamer):
    """Remembers something outside the state."""

    count: list[int] = field(default_factory=lambda: [0])

    def step(self, context, state, rows, t):
        self.count[0] += 1
        return super().step(context, state, rows, 1000 + self.count[0])


class Stale(Roamer):
    """Keeps something in the state that is not one line per chain."""

    def start(self, context, state):
        return state | {"bounds": torch.zeros(3)}


class Meddling(Roamer):
    """Disturbs the random numbers of whoever calls it."""

    def start(self, context, state):
        torch.manual_seed(0)
        return state


BROKEN = {
    Lawless: "rows_exist_and_keep_the_sensitive_values_of_their_seed-people-local",
    Changed: "rows_exist_and_keep_the_sensitive_values_of_their_seed-people-local",
    Careless: "rows_exist_and_keep_the_sensitive_values_of_their_seed-plausible-local",
    Chancy: "the_same_seed_finds_the_same_and_another_one_others",
    Social: "batches_change_no_path-local",
    Private: "a_killed_phase_goes_on_from_every_checkpoint-local",
    Stale: "the_state_is_tensors_with_one_line_per_chain-local",
    Meddling: "random_states_threads_and_rows_are_left_as_they_were",
}


@pytest.fixture
def named(monkeypatch):
    """Enter a method into the list for one test."""

    def enter(kind: type[Roamer]) -> str:
        name = kind.__name__.lower()
        monkeypatch.setitem(METHODS.entries, name, MethodEntry(lambda _: Phases(kind(), kind()), gradients=False))
        return name

    return enter


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_promise_is_noticed(kind, named):
    (check,) = [check for check in CHECKS if str(check) == BROKEN[kind]]
    check(named(Roamer))
    with pytest.raises(IndexError if kind is Stale else AssertionError):  # the engine stumbles over it
        check(named(kind))


def test_all_checks_at_once(named, monkeypatch):
    with pytest.raises(AssertionError):
        check_method(named(Changed))
    asked = []
    monkeypatch.setattr("neuronfair.testing.CHECKS", [asked.append] * 3)
    check_method("roamer")
    assert asked == ["roamer"] * 3
