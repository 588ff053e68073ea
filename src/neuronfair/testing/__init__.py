"""Checks that every search method must pass; authors of methods can run them.

    import pytest
    from neuronfair.testing import CHECKS

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    def test_my_method(check):
        check("my-method")

The name is the one under which a package registers its method. A check fails with an AssertionError, or with the
exception of the method or the engine.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.network import Network
from neuronfair.searches.campaign import SearchResult, search
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.engine import Budget, Checkpoint, PhaseRecording, PhaseResult, run_phase
from neuronfair.searches.evaluate import Evaluation
from neuronfair.searches.findings import Findings
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import Method, SearchContext, State
from neuronfair.searches.methods import METHODS, Phases, Setting
from neuronfair.searches.methods.aequitas import Uniform
from neuronfair.testing.cases import CASES, CHAINS, COUNTERFACTUAL, PLAUSIBLE, case, linear, network, random_module

__all__ = ["CHECKS", "MethodCheck", "check_method"]


def check_method(name: str) -> None:
    """Run all checks on a method; the first failure is an AssertionError."""
    for check in CHECKS:
        check(name)


STEPS = 12
PHASES = ("global", "local")
ROWS = 32_000  # rows that a method is prepared for: enough for a pilot
FINDING_FIELDS = ("rows", "twin_values", "scores", "twin_scores", "origin", "step", "misses")  # of findings


@dataclass(frozen=True)
class MethodCheck:
    """One check: call it with the name of a method."""

    function: Callable[..., None]
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, name: str) -> None:
        """Run it; a failure is an AssertionError."""
        self.function(name, **dict(self.options))

    def __str__(self) -> str:
        return "-".join([self.function.__name__, *(str(value) for _, value in self.options)])


CHECKS: list[MethodCheck] = []


def add_check(**options: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a function to the list of checks, once for every combination of the options."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        for values in itertools.product(*options.values()):
            CHECKS.append(MethodCheck(function, tuple(zip(options, values, strict=True))))
        return function

    return register


@dataclass
class Spy:
    """A method that records its starts, the rows that it proposes and whether they discriminate."""

    inner: Method
    starts: dict[int, Tensor] = field(default_factory=dict)
    proposed: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # origin and rows, step by step
    discriminates: list[Tensor] = field(default_factory=list)  # whether they discriminate

    def start(self, context: SearchContext, state: State) -> State:
        """Start the method."""
        self.starts = dict(zip(state["origin"].tolist(), state["rows"], strict=True))
        return self.inner.start(context, state)

    def ask(self, context: SearchContext, state: State, t: int) -> Tensor:
        """Record the rows that the method proposes."""
        rows = self.inner.ask(context, state, t)
        self.proposed.append((state["origin"], rows))
        return rows

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Record whether they discriminate, and pass that on."""
        self.discriminates.append(evaluation.discriminates)
        return self.inner.tell(context, state, rows, evaluation, t)

    def path(self, origin: int) -> list[list[int]]:
        """Return all rows that one chain proposed."""
        return [row for numbers, rows in self.proposed for row in rows[numbers == origin].tolist()]

    def hits(self, origin: int) -> list[bool]:
        """Return which of them discriminate."""
        lines = zip(self.proposed, self.discriminates, strict=True)
        return [hit for (numbers, _), discriminates in lines for hit in discriminates[numbers == origin].tolist()]


@functools.cache
def _prepare_phases(name: str, example: str) -> Phases:
    return METHODS[name].make(Setting(case(example).context, KeySet(), ROWS))


def run_spied(
    name: str, example: str, phase: str, budget: Budget | None = None, **options: Any
) -> tuple[PhaseResult, Spy]:
    """Run one phase of a method on a case, and return its result and its record."""
    spy = Spy(getattr(_prepare_phases(name, example), f"{phase}_phase"))
    seeds = options.pop("seeds", case(example).starts(phase))
    return run_phase(case(example).context, spy, seeds, budget=budget or Budget(STEPS), **options), spy


def run_search(name: str, example: str, *, seed: int = 0, controls: bool = False) -> SearchResult:
    """Run a whole search by a method on a case."""
    subject = case(example)
    config = SearchConfig(name, CHAINS, STEPS, STEPS, seed=seed, decision=subject.decision, controls=controls)
    return search(subject.network, subject.domain, subject.rows, config, seeds=subject.seeds)


@functools.cache
def cached_search(name: str, example: str) -> SearchResult:
    """Return a whole search that several checks share."""
    return run_search(name, example, controls=example == "people")


@functools.cache
def cached_phase(name: str, example: str, phase: str) -> tuple[PhaseResult, Spy]:
    """Return a phase that several checks share."""
    return run_spied(name, example, phase)


def hash_findings(outcome: SearchResult) -> str:
    """Return a hash of all findings of a search."""
    findings = outcome.findings
    tensors = [getattr(findings, line).contiguous().numpy().tobytes() for line in FINDING_FIELDS]
    return hashlib.sha256(b"".join(tensors)).hexdigest()


# Rows and findings


@add_check(example=(*CASES, PLAUSIBLE), phase=PHASES)
def rows_exist_and_keep_the_sensitive_values_of_their_seed(name: str, example: str, phase: str) -> None:
    """Every proposed row is valid and has the sensitive values of its seed; the first one is the seed."""
    domain, (_, spy) = case(example).domain, cached_phase(name, example, phase)
    rows = torch.cat([rows for _, rows in spy.proposed])
    assert rows.dtype == torch.int64
    assert domain.valid(rows).all()
    if phase == "local" and example != "plain":  # as printed, NeuronFair has no slope to follow on the plain one
        assert len(set(map(tuple, rows.tolist()))) > 2 * CHAINS  # it goes somewhere
    if isinstance(spy.inner, Uniform):
        return  # random rows have no seed
    columns = list(domain.sensitive_columns)
    for origin, start in spy.starts.items():
        path = torch.tensor(spy.path(origin))
        assert (path[:, columns] == start[columns]).all()
        assert torch.equal(path[0], start)  # the seed itself comes first


@add_check(example=(*CASES, COUNTERFACTUAL))
def findings_satisfy_definition_1(name: str, example: str) -> None:
    """Every finding is a valid record and a twin of it with a different decision."""
    domain, decision = case(example).domain, case(example).decision
    if METHODS[name].boundary and decision.kind == "tolerance":
        return  # it is refused
    outcome = cached_search(name, example)
    findings = outcome.findings
    assert len(outcome.global_phase.findings) > 0
    assert len(outcome.local_phase.findings) > 0 or example == "plain"
    rows, twins = findings.rows, findings.twins(domain)
    assert domain.valid(rows).all()
    assert domain.valid(twins).all()
    differs = rows != twins
    assert differs[:, list(domain.sensitive_columns)].any(1).all()
    differs[:, list(domain.twin_columns)] = False
    assert not differs.any()
    assert (domain.twins(rows).rows == twins[:, None]).all(2).any(1).all()
    exact = network(case(example).module, domain).double()
    scores, twin_scores = (exact.scores(x) for x in (rows, twins))
    if decision.kind == "argmax":
        assert (scores.argmax(1) != twin_scores.argmax(1)).all()
    else:
        assert ((scores - twin_scores).abs() > decision.value).all()
    assert torch.allclose(findings.scores.double(), scores, atol=1e-3)
    assert torch.allclose(findings.twin_scores.double(), twin_scores, atol=1e-3)
    assert len(set(domain.key(rows).tolist())) == len(findings)
    assert len(findings) <= findings.tried <= findings.evaluated


@add_check()
def a_network_that_decides_nothing_gives_no_findings(name: str) -> None:
    """A network with one decision gives no findings, and the budget is used up."""
    domain, rows = case("people").domain, case("people").seeds
    first = nn.Linear(TableEncoding.of(domain).width, 6)
    module = nn.Sequential(first, nn.ReLU(), linear([[0.0] * 6] * 2, [1.0, 0.0]))
    outcome = search(network(module, domain), domain, rows, SearchConfig(name, CHAINS, STEPS, STEPS), seeds=rows)
    assert len(outcome.findings) == 0
    assert outcome.global_phase.findings.evaluated == CHAINS * STEPS
    assert [note.name for note in outcome.health][:1] == ["constant-decision"]
    assert (outcome.random is None, outcome.interrupted) == (False, False)


@add_check()
def no_seeds_give_no_findings(name: str) -> None:
    """A search without seeds proposes no rows."""
    subject = case("people")
    no_rows = subject.rows[:0]
    for phase in PHASES:
        result, spy = run_spied(name, "people", phase, seeds=no_rows)
        assert (len(result.findings), result.findings.evaluated, result.stop) == (0, 0, "walkers")
        assert spy.proposed == []
    config = SearchConfig(name, seeds=0, steps=STEPS)
    outcome = search(subject.network, subject.domain, subject.rows, config, seeds=no_rows)
    assert (len(outcome.findings), outcome.findings.evaluated, outcome.interrupted) == (0, 0, False)


# The same seed gives the same findings


def _assert_equal_findings(findings: Findings, other: Findings) -> None:
    for name in FINDING_FIELDS:
        assert torch.equal(getattr(findings, name), getattr(other, name)), name
    assert (findings.tried, findings.evaluated, findings.rejected) == (other.tried, other.evaluated, other.rejected)


def _drop_times(outcome: SearchResult) -> dict[str, object]:
    return {key: value for key, value in outcome.summary().items() if not key.startswith("seconds")}


@add_check()
def the_same_seed_finds_the_same_and_another_one_others(name: str) -> None:
    """The seed of the run determines all random numbers."""
    outcome = cached_search(name, "people")
    repeated, other_seed = (run_search(name, "people", seed=seed, controls=True) for seed in (0, 1))
    _assert_equal_findings(outcome.findings, repeated.findings)
    assert _drop_times(outcome) == _drop_times(repeated)
    assert set(map(tuple, outcome.findings.rows.tolist())) != set(map(tuple, other_seed.findings.rows.tolist()))
    assert outcome.random != other_seed.random
    assert (outcome.random_direction is not None) == METHODS[name].gradients


@add_check()
def a_fresh_process_finds_the_same(*names: str) -> None:
    """Findings depend on no state of this process; a new one finds the method by its name."""
    script = (
        "import sys\n"
        "from neuronfair.testing import hash_findings, run_search\n"
        "for name in sys.argv[1:]: print(hash_findings(run_search(name, 'people')))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", script, *names]
    fresh = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert fresh.returncode == 0, fresh.stderr
    assert fresh.stdout.split() == [hash_findings(cached_search(name, "people")) for name in names]


@add_check(phase=PHASES)
def batches_change_no_path(name: str, phase: str) -> None:
    """Chains are independent: each takes the same steps in any batch."""
    seeds, domain = case("people").starts(phase), case("people").domain
    # Chains that retire make the batches smaller on the way.
    budget = Budget(STEPS, findings_per_seed=5)
    result, spy = run_spied(name, "people", phase, budget)
    parts, key_set = [torch.tensor([6, 1, 4]), torch.tensor([0, 7, 2, 5, 3])], KeySet()
    split = [run_spied(name, "people", phase, budget, seeds=seeds[p], origin=p, key_set=key_set) for p in parts]
    for part, (_, other) in zip(parts, split, strict=True):
        for origin in part.tolist():
            assert other.path(origin) == spy.path(origin)
            assert other.hits(origin) == spy.hits(origin)
    joined = Findings.join([result.findings for result, _ in split])
    assert set(domain.key(joined.rows).tolist()) == set(domain.key(result.findings.rows).tolist())
    assert (joined.tried, joined.evaluated) == (result.findings.tried, result.findings.evaluated)


@add_check(phase=PHASES)
def a_killed_phase_goes_on_from_every_checkpoint(name: str, phase: str) -> None:
    """The state holds the whole memory of a method."""
    saved: list[Checkpoint] = []
    result, spy = run_spied(name, "pair", phase, recording=PhaseRecording(saved.append, interval=5))
    assert [checkpoint.t for checkpoint in saved] == [5, 10, STEPS]
    assert len(result.findings) > 0
    for i, last in enumerate(saved):
        so_far = Findings.join([checkpoint.findings for checkpoint in saved[: i + 1]])
        lines = torch.cat([checkpoint.lines for checkpoint in saved[: i + 1]])
        # A state that is read from a file shares no memory with the old one.
        state = {key: value.clone() for key, value in last.state.items()}
        last_state = replace(last, state=state, findings=so_far, lines=lines)
        resumed, resumed_spy = run_spied(name, "pair", phase, recording=PhaseRecording(resume=last_state))
        _assert_equal_findings(resumed.findings, result.findings)
        assert resumed.stop == result.stop
        for resumed_rows, original_rows in zip(resumed_spy.proposed, spy.proposed[last.t :], strict=True):
            assert all(map(torch.equal, resumed_rows, original_rows))


@add_check(phase=PHASES)
def the_state_is_tensors_with_one_line_per_chain(name: str, phase: str) -> None:
    """The lines of retired chains are removed from the state."""
    saved: list[Checkpoint] = []
    seeds = case("people").seeds  # of which three retire at once
    recording = PhaseRecording(saved.append, interval=1)
    run_spied(name, "people", phase, Budget(STEPS, findings_per_seed=1), seeds=seeds, recording=recording)
    living = [len(checkpoint.state["origin"]) for checkpoint in saved]
    assert any(0 < count < CHAINS for count in living)  # some have retired
    for checkpoint, count in zip(saved, living, strict=True):
        assert {len(value) for value in checkpoint.state.values()} == {count}


# Budgets are exact


@add_check(phase=PHASES, steps=(0, 1, 5))
def a_budget_of_steps_is_kept(name: str, phase: str, steps: int) -> None:
    """Every chain takes exactly as many steps."""
    result, spy = run_spied(name, "people", phase, Budget(steps))
    assert (result.stop, result.findings.evaluated) == ("steps", steps * CHAINS)
    assert [len(spy.path(origin)) for origin in range(CHAINS)] == [steps] * CHAINS


@add_check(phase=PHASES)
def a_budget_of_records_is_kept(name: str, phase: str) -> None:
    """Exactly as many distinct records are evaluated."""
    all_findings = cached_phase(name, "people", phase)[0].findings
    assert len(all_findings) > 2
    for limit in (1, all_findings.tried - 1):
        result, _ = run_spied(name, "people", phase, Budget(STEPS, instances=limit))
        findings = result.findings
        assert (findings.tried, result.stop) == (limit, "instances")
        assert torch.equal(findings.rows, all_findings.rows[: len(findings)])


@add_check(phase=PHASES, limit=(1, 3))
def a_budget_of_findings_per_seed_is_kept(name: str, phase: str, limit: int) -> None:
    """A chain retires with its last finding."""
    _, spy = run_spied(name, "people", phase, Budget(STEPS, findings_per_seed=limit))
    for origin in range(CHAINS):
        hits = spy.hits(origin)
        assert hits[-1] if sum(hits) == limit else (sum(hits) < limit and len(hits) == STEPS)


class BrokenError(Exception):
    """The exception of the fragile model."""


class Fragile(nn.Module):
    """A network with everything that a search could change by mistake; it fails at a given call."""

    def __init__(self, domain: TableDomain, breaks_at: int | None = None) -> None:
        super().__init__()
        first, _, second = random_module(domain, seed=1)
        norm = nn.BatchNorm1d(TableEncoding.of(domain).width)
        self.parts = nn.Sequential(norm, nn.Dropout(), first, nn.ReLU(), second)
        self.breaks_at, self.calls = breaks_at, 0
        second.bias.requires_grad_(False)
        first.register_forward_hook(_hook_of_the_user)
        self.train()
        norm.eval()  # parts of it in one mode and parts in the other

    def forward(self, x: Tensor) -> Tensor:
        """Compute the scores, or break."""
        self.calls += 1
        if self.calls == self.breaks_at:
            raise BrokenError
        scores: Tensor = self.parts(x)
        return scores


def _hook_of_the_user(*_: Any) -> None: ...


def _record_module(module: nn.Module) -> list[object]:
    """Return everything that a search must not change."""
    values = [(name, value.tolist()) for name, value in module.state_dict().items()]
    modes = [part.training for part in module.modules()]
    slopes = [(p.requires_grad, p.grad is None) for p in module.parameters()]
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = [[list(getattr(part, kind).values()) for kind in kinds] for part in module.modules()]
    return [values, modes, slopes, hooks]


def _search_fragile(name: str, module: Fragile) -> None:
    domain, rows = case("people").domain, case("people").rows[:40]
    search(Network(module, domain), domain, rows, SearchConfig(name, CHAINS, STEPS, STEPS), seeds=case("people").seeds)


@add_check()
def the_module_is_left_as_it_was(name: str) -> None:
    """Weights, modes, gradients and hooks are unchanged, also after a search that fails."""
    domain = case("people").domain
    module = Fragile(domain)
    before = _record_module(module)
    _search_fragile(name, module)
    assert _record_module(module) == before
    for share in (0.4, 0.9):  # of the calls; the controls come last
        fragile = Fragile(domain, breaks_at=int(share * module.calls))
        try:
            _search_fragile(name, fragile)
        except ModelError:
            assert _record_module(fragile) == before
        else:
            raise AssertionError("the error of the model is lost")


@add_check()
def random_states_threads_and_rows_are_left_as_they_were(name: str) -> None:
    """A search changes neither random states nor settings nor rows of its caller."""
    subject = case("people")
    rows, seeds = subject.rows.clone(), subject.seeds.clone()
    threads, modes = torch.get_num_threads(), (torch.is_grad_enabled(), torch.get_default_dtype())
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    run_search(name, "people", controls=True)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]  # type: ignore[index]
    assert (threads, modes) == (torch.get_num_threads(), (torch.is_grad_enabled(), torch.get_default_dtype()))
    assert torch.equal(subject.rows, rows)
    assert torch.equal(subject.seeds, seeds)
