"""What every search method promises, whatever it follows: one suite over the list of methods."""

from __future__ import annotations

import functools
import hashlib
import os
import random
import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neuronfair import Decision, Network, NeuronFairError, TableDomain, interpret, judge
from neuronfair.domain.toml import parse_domain
from neuronfair.errors import ModelError
from neuronfair.model.encoding import TableEncoding
from neuronfair.search.budget import Budget
from neuronfair.search.campaign import find
from neuronfair.search.engine import Checkpoint, PhaseResult, Record, search
from neuronfair.search.findings import Findings
from neuronfair.search.judge import Judgement
from neuronfair.search.keys import KeySet
from neuronfair.search.method import Method, State, World
from neuronfair.search.methods import METHODS, Phases, Setting, frontier, phases
from neuronfair.search.methods.uniform import Uniform
from neuronfair.search.outcome import Outcome, Plan
from tests.conftest import PEOPLE, ROOT
from tests.planted import networks

WALKERS, STEPS = 8, 12
PILOT = 20  # steps of a pilot, where a method has one


@dataclass(frozen=True)
class Case:
    """A model and a domain, with rows to start from: some anywhere, some that discriminate."""

    module: nn.Module
    domain: TableDomain
    decision: Decision = field(default_factory=Decision)

    @functools.cached_property
    def world(self) -> World:
        world = networks.world(self.module, self.domain, decision=self.decision)
        return replace(world, profile=interpret(world.network, self.domain, self.rows))

    @functools.cached_property
    def rows(self) -> Tensor:
        return networks.uniform_rows(self.domain, 200, seed=5)

    @functools.cached_property
    def split(self) -> Tensor:
        network = networks.network(self.module, self.domain)
        return judge(network, self.domain, self.rows, self.decision).discriminates

    @functools.cached_property
    def seeds(self) -> Tensor:
        """Five rows that do not discriminate and three that do."""
        return torch.cat([self.rows[~self.split][: WALKERS - 3], self.rows[self.split][:3]])

    def starts(self, phase: str) -> Tensor:
        return self.seeds if phase == "first" else self.rows[self.split][:WALKERS]


def cases() -> dict[str, Case]:
    people, plain = parse_domain(PEOPLE), networks.domain()
    pair = people.with_sensitive("sex", "marital")  # a rule ties the second one to who may be a husband
    return {
        "plain": Case(networks.one_biased_neuron(), plain),
        "people": Case(networks.random_module(people, seed=1), people),
        "pair": Case(networks.random_module(pair, 3, seed=2), pair),
        "score": Case(networks.random_module(people, 1, seed=3), people, Decision("tolerance", 2.5)),
    }


CASES = cases()


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small batches are faster so, and other tests may run beside these."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


every_method = pytest.mark.parametrize("name", METHODS)
every_case = pytest.mark.parametrize("case", CASES)
both_phases = pytest.mark.parametrize("phase", ["first", "local"])


@dataclass
class Spy:
    """A method, with a record of what it was started from, what it asked for and what it met."""

    inner: Method
    starts: dict[int, Tensor] = field(default_factory=dict)
    asked: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # origin and rows, step by step
    met: list[Tensor] = field(default_factory=list)  # whether they discriminate

    def start(self, world: World, state: State) -> State:
        self.starts = dict(zip(state["origin"].tolist(), state["rows"], strict=True))
        return self.inner.start(world, state)

    def ask(self, world: World, state: State, t: int) -> Tensor:
        rows = self.inner.ask(world, state, t)
        self.asked.append((state["origin"], rows))
        return rows

    def tell(self, world: World, state: State, rows: Tensor, judgement: Judgement, t: int) -> State:
        self.met.append(judgement.discriminates)
        return self.inner.tell(world, state, rows, judgement, t)

    def path(self, origin: int) -> list[list[int]]:
        """Every row that one walker asked for."""
        return [row for numbers, rows in self.asked for row in rows[numbers == origin].tolist()]

    def hits(self, origin: int) -> list[bool]:
        """Which of them discriminate."""
        lines = zip(self.asked, self.met, strict=True)
        return [hit for (numbers, _), met in lines for hit in met[numbers == origin].tolist()]


@functools.cache
def ready(name: str, case: str) -> Phases:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frontier, "PILOT_STEPS", PILOT)
        made = phases(name, Setting(CASES[case].world, KeySet(), 80 * PILOT))
    assert (made.pilot is not None) == (name == "frontier")
    return made


def explore(name: str, case: str, phase: str, budget: Budget | None = None, **options: Any) -> tuple[PhaseResult, Spy]:
    spy = Spy(getattr(ready(name, case), phase))
    seeds = options.pop("seeds", CASES[case].starts(phase))
    world = options.pop("world", CASES[case].world)
    return search(world, spy, seeds, budget=budget or Budget(STEPS), **options), spy


def full_search(name: str, case: str, *, seed: int = 0, controls: bool = False) -> Outcome:
    here = CASES[case]
    network = networks.network(here.module, here.domain)
    plan = Plan(name, WALKERS, STEPS, STEPS, seed=seed, decision=here.decision, controls=controls)
    return find(network, here.domain, here.rows, plan, seeds=here.seeds)


@functools.cache
def kept_search(name: str, case: str) -> Outcome:
    return full_search(name, case, controls=case == "people")


@functools.cache
def kept(name: str, case: str, phase: str) -> tuple[PhaseResult, Spy]:
    return explore(name, case, phase)


def assert_same(found: Findings, other: Findings) -> None:
    for name in ("rows", "twin_values", "scores", "twin_scores", "origin", "step", "misses"):
        assert torch.equal(getattr(found, name), getattr(other, name)), name
    assert (found.tried, found.judged, found.rejected) == (other.tried, other.judged, other.rejected)


# Who may be asked for, and who is found


@every_method
@every_case
@both_phases
def test_every_row_asked_for_exists_and_keeps_the_sensitive_values_of_its_seed(name, case, phase):
    domain, (_, spy) = CASES[case].domain, kept(name, case, phase)
    rows = torch.cat([rows for _, rows in spy.asked])
    assert rows.dtype == torch.int64
    assert domain.valid(rows).all()
    if phase == "local" and case != "plain":  # as printed, NeuronFair has no slope to follow on the plain one
        assert len(rows.unique(dim=0)) > 2 * WALKERS  # it goes somewhere
    if isinstance(spy.inner, Uniform):
        return  # random rows have no seed
    columns = list(domain.sensitive_columns)
    for origin, start in spy.starts.items():
        path = torch.tensor(spy.path(origin))
        assert (path[:, columns] == start[columns]).all()
        assert torch.equal(path[0], start)  # the seed itself comes first


@every_method
@every_case
def test_every_finding_satisfies_definition_1(name, case):
    domain, decision = CASES[case].domain, CASES[case].decision
    if METHODS[name].boundary and decision.kind == "tolerance":
        with pytest.raises(NeuronFairError, match=f"'{name}' walks to a boundary; a tolerance has none.*frontier"):
            kept_search(name, case)
        return
    outcome = kept_search(name, case)
    found = outcome.findings
    assert len(outcome.first.findings) > 0
    assert len(outcome.local.findings) > 0 or case == "plain"
    rows, twins = found.rows, found.twins(domain)
    assert domain.valid(rows).all()
    assert domain.valid(twins).all()
    sensitive = list(domain.sensitive_columns)
    differs = rows != twins
    assert differs[:, sensitive].any(1).all()
    assert not differs[:, domain.free].any()
    exact = networks.network(CASES[case].module, domain).double()
    own, other = (exact.scores(x) for x in (rows, twins))
    if decision.kind == "argmax":
        assert (own.argmax(1) != other.argmax(1)).all()
    else:
        assert ((own - other).abs() > decision.value).all()
    assert torch.allclose(found.scores.double(), own, atol=1e-3)
    assert torch.allclose(found.twin_scores.double(), other, atol=1e-3)
    assert len(domain.key(rows).unique()) == len(found)
    assert len(found) <= found.tried <= found.judged


@every_method
def test_a_network_that_decides_nothing(name):
    domain = CASES["people"].domain
    module = nn.Sequential(
        nn.Linear(TableEncoding.of(domain).width, 6), nn.ReLU(), networks.linear([[0.0] * 6] * 2, [1.0, 0.0])
    )
    rows = CASES["people"].seeds
    network = networks.network(module, domain)
    outcome = find(network, domain, rows, Plan(name, WALKERS, STEPS, STEPS), seeds=rows)
    assert len(outcome.findings) == 0
    assert outcome.first.findings.judged == WALKERS * STEPS
    assert [note.name for note in outcome.health][:1] == ["constant-decision"]
    assert (outcome.random is None, outcome.interrupted) == (False, False)


@every_method
def test_no_seeds_give_no_findings(name):
    here = CASES["people"]
    nobody = here.rows[:0]
    for phase in ("first", "local"):
        result, spy = explore(name, "people", phase, seeds=nobody)
        assert (len(result.findings), result.findings.judged, result.stop) == (0, 0, "walkers")
        assert spy.asked == []
    network = networks.network(here.module, here.domain)
    outcome = find(network, here.domain, here.rows, Plan(name, seeds=0, steps=STEPS), seeds=nobody)
    assert (len(outcome.findings), outcome.findings.judged, outcome.interrupted) == (0, 0, False)


# The same seed finds the same people


def untimed(outcome: Outcome) -> dict[str, Any]:
    return {key: value for key, value in outcome.summary().items() if not key.startswith("seconds")}


@every_method
def test_the_same_seed_finds_the_same_and_another_one_others(name):
    one = kept_search(name, "people")
    again, other = (full_search(name, "people", seed=seed, controls=True) for seed in (0, 1))
    assert_same(one.findings, again.findings)
    assert untimed(one) == untimed(again)
    assert set(map(tuple, one.findings.rows.tolist())) != set(map(tuple, other.findings.rows.tolist()))
    assert one.random != other.random
    assert (one.random_direction is not None) == METHODS[name].gradients


def digest(outcome: Outcome) -> str:
    found = outcome.findings
    tensors = (found.rows, found.twin_values, found.scores, found.twin_scores, found.origin, found.step, found.misses)
    return hashlib.sha256(b"".join(t.contiguous().numpy().tobytes() for t in tensors)).hexdigest()


def test_a_fresh_process_finds_the_same():
    script = (
        "from tests.search.test_conformance import METHODS, digest, full_search\n"
        "for name in METHODS: print(digest(full_search(name, 'people')))"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "PYTHONHASHSEED": "7"}
    fresh = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    assert fresh.returncode == 0, fresh.stderr
    assert fresh.stdout.split() == [digest(kept_search(name, "people")) for name in METHODS]


@every_method
@both_phases
def test_batches_change_no_path(name, phase):
    case = "people"
    seeds, domain = CASES[case].starts(phase), CASES[case].domain
    # Walkers that retire make the batches smaller on the way.
    budget = Budget(STEPS, findings_per_seed=5)
    whole, spy = explore(name, case, phase, budget)
    parts, seen = [torch.tensor([6, 1, 4]), torch.tensor([0, 7, 2, 5, 3])], KeySet()
    split = [explore(name, case, phase, budget, seeds=seeds[p], origin=p, seen=seen) for p in parts]
    for part, (_, other) in zip(parts, split, strict=True):
        for origin in part.tolist():
            assert other.path(origin) == spy.path(origin)
            assert other.hits(origin) == spy.hits(origin)
    both = Findings.join([result.findings for result, _ in split])
    assert set(domain.key(both.rows).tolist()) == set(domain.key(whole.findings.rows).tolist())
    assert (both.tried, both.judged) == (whole.findings.tried, whole.findings.judged)


@every_method
@both_phases
def test_a_killed_phase_goes_on_from_every_checkpoint(name, phase):
    case = "pair"
    saved: list[Checkpoint] = []
    whole, spy = explore(name, case, phase, record=Record(saved.append, every=5))
    assert [where.t for where in saved] == [5, 10, STEPS]
    assert len(whole.findings) > 0
    for i, last in enumerate(saved):
        so_far = Findings.join([where.findings for where in saved[: i + 1]])
        keys = torch.cat([where.keys for where in saved[: i + 1]])
        # What is read from a file shares nothing with the process that wrote it.
        state = {key: value.clone() for key, value in last.state.items()}
        where = replace(last, state=state, findings=so_far, keys=keys)
        resumed, rest = explore(name, case, phase, record=Record(resume=where))
        assert_same(resumed.findings, whole.findings)
        assert resumed.stop == whole.stop
        for mine, before in zip(rest.asked, spy.asked[last.t :], strict=True):
            assert all(map(torch.equal, mine, before))


@every_method
@both_phases
def test_the_state_is_tensors_with_one_line_per_walker(name, phase):
    saved: list[Checkpoint] = []
    seeds = CASES["people"].seeds  # of which three retire at once
    explore(
        name, "people", phase, Budget(STEPS, findings_per_seed=1), seeds=seeds, record=Record(saved.append, every=1)
    )
    living = [len(where.state["origin"]) for where in saved]
    assert any(0 < count < WALKERS for count in living)  # some have retired
    for where, count in zip(saved, living, strict=True):
        assert {len(value) for value in where.state.values()} == {count}


# Budgets are kept exactly


@every_method
@both_phases
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_budget_of_steps(name, phase, steps):
    result, spy = explore(name, "people", phase, Budget(steps))
    assert (result.stop, result.findings.judged) == ("steps", steps * WALKERS)
    assert [len(spy.path(origin)) for origin in range(WALKERS)] == [steps] * WALKERS


@every_method
@both_phases
def test_a_budget_of_instances(name, phase):
    whole = kept(name, "people", phase)[0].findings
    for limit in (1, whole.tried - 1):
        result, _ = explore(name, "people", phase, Budget(STEPS, instances=limit))
        assert (result.findings.tried, result.stop) == (limit, "instances")
        assert torch.equal(result.findings.rows, whole.rows[: len(result.findings)])


@every_method
@both_phases
def test_a_budget_of_findings(name, phase):
    whole = kept(name, "people", phase)[0].findings
    assert len(whole) > 2
    for limit in (1, len(whole)):
        result, _ = explore(name, "people", phase, Budget(STEPS, findings=limit))
        assert (len(result.findings), result.stop) == (limit, "findings")
        assert torch.equal(result.findings.rows, whole.rows[:limit])


@every_method
@both_phases
@pytest.mark.parametrize("limit", [1, 3])
def test_a_budget_of_findings_per_seed(name, phase, limit):
    _, spy = explore(name, "people", phase, Budget(STEPS, findings_per_seed=limit))
    for origin in range(WALKERS):
        hits = spy.hits(origin)
        assert hits[-1] if sum(hits) == limit else (sum(hits) < limit and len(hits) == STEPS)


# What is lent is given back as it was


class BrokenError(Exception):
    """What the fragile model raises."""


class Fragile(nn.Module):
    """A network with everything that could be disturbed, which breaks at a given call."""

    def __init__(self, domain: TableDomain, breaks_at: int | None = None) -> None:
        super().__init__()
        first, _, second = networks.random_module(domain, seed=1)
        self.parts = nn.Sequential(
            nn.BatchNorm1d(TableEncoding.of(domain).width), nn.Dropout(), first, nn.ReLU(), second
        )
        self.breaks_at, self.calls = breaks_at, 0
        second.bias.requires_grad_(False)
        first.register_forward_hook(do_nothing)
        self.train()
        self.parts[0].eval()  # parts of it in one mode and parts in the other

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.breaks_at:
            raise BrokenError
        return self.parts(x)


def do_nothing(*_: Any) -> None:
    """The hook of somebody else."""


def snapshot(module: nn.Module) -> list[Any]:
    """Everything that a search must leave alone."""
    values = [(name, value.tolist()) for name, value in module.state_dict().items()]
    modes = [part.training for part in module.modules()]
    slopes = [(p.requires_grad, p.grad is None) for p in module.parameters()]
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = [[list(getattr(part, kind).values()) for kind in kinds] for part in module.modules()]
    return [values, modes, slopes, hooks]


def search_fragile(name: str, module: Fragile) -> None:
    domain, rows = CASES["people"].domain, CASES["people"].rows[:40]
    network = Network(module, domain)
    find(network, domain, rows, Plan(name, WALKERS, STEPS, STEPS), seeds=CASES["people"].seeds)


@every_method
def test_the_module_is_left_as_it_was(name):
    domain = CASES["people"].domain
    module = Fragile(domain)
    before = snapshot(module)
    search_fragile(name, module)
    assert snapshot(module) == before
    for share in (0.4, 0.9):  # of the calls; the controls come last
        fragile = Fragile(domain, breaks_at=int(share * module.calls))
        with pytest.raises(ModelError):
            search_fragile(name, fragile)
        assert snapshot(fragile) == before


@every_method
def test_random_states_threads_and_rows_are_left_as_they_were(name):
    here = CASES["people"]
    rows, seeds = here.rows.clone(), here.seeds.clone()
    threads, modes = torch.get_num_threads(), (torch.is_grad_enabled(), torch.get_default_dtype())
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    full_search(name, "people", controls=True)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]
    assert (threads, modes) == (torch.get_num_threads(), (torch.is_grad_enabled(), torch.get_default_dtype()))
    assert torch.equal(here.rows, rows)
    assert torch.equal(here.seeds, seeds)
