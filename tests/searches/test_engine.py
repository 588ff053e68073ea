from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor, nn

from neuronfair import Decision, NeuronFairError, SearchConfig, TableDomain, evaluate, interpret, search
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.schema.toml import parse_domain
from neuronfair.errors import ModelError, RunError
from neuronfair.searches import engine
from neuronfair.searches.engine import Budget, Checkpoint, PhaseRecording, PhaseResult, run_phase
from neuronfair.searches.evaluate import Evaluation
from neuronfair.searches.findings import Findings
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import Method, SearchContext, State
from neuronfair.searches.methods.frontier import Frontier
from neuronfair.searches.methods.neuronfair import NeuronFair
from tests.conftest import PEOPLE
from tests.planted import networks
from tests.searches.test_evaluate import three_scores

DOMAIN = networks.domain()
# The planted network splits the rows whose digits add up to 19 or 20.
INSIDE, ALSO_INSIDE, OUTSIDE = [5, 5, 5, 4, 0], [5, 5, 5, 5, 0], [0, 0, 0, 0, 0]


@dataclass(frozen=True)
class Scripted:
    """A method that asks for the rows it was given: (steps, chains, d)."""

    path: Tensor
    at: dict[int, object] = field(default_factory=dict)  # what to do when step t is asked for
    gradients: bool = False

    def start(self, context: SearchContext, state: State) -> State:
        return state | {"told": torch.zeros_like(state["origin"])}

    def ask(self, context: SearchContext, state: State, t: int) -> Tensor:
        if t in self.at:
            self.at[t]()
        return self.path[t][state["origin"]]

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        return state | {"told": state["told"] + 1}


def planted() -> SearchContext:
    return networks.context(networks.one_biased_neuron(), DOMAIN)


def counting(steps: int, chains: int) -> Tensor:
    """Rows that are all different and all discriminate."""
    rows = torch.cartesian_prod(*[torch.arange(10)] * 4)
    rows = rows[(rows.sum(1) == 19) | (rows.sum(1) == 20)][: steps * chains]
    rows = torch.cat([rows, torch.zeros(len(rows), 1, dtype=torch.int64)], 1)
    return rows.view(steps, chains, 5)


def run(path: Tensor | list, budget: Budget, **options) -> PhaseResult:
    path = torch.as_tensor(path)
    return run_phase(planted(), Scripted(path, options.pop("at", {})), path[0], budget=budget, **options)


# Budgets


def test_every_step_judges_every_walker_once():
    result = run(counting(6, 4), Budget(steps=6))
    assert (len(result.findings), result.findings.tried, result.findings.evaluated, result.stop) == (
        24,
        24,
        24,
        "steps",
    )
    assert result.findings.step.tolist() == [t for t in range(6) for _ in range(4)]
    assert result.findings.origin.tolist() == [0, 1, 2, 3] * 6


@pytest.mark.parametrize("limit", range(0, 25, 3))
def test_instances_are_kept_to_the_row(limit):
    path = counting(6, 4)
    result = run(path, Budget(steps=6, instances=limit))
    assert (result.findings.tried, len(result.findings), result.stop) == (limit, limit, "instances")
    path[:, 1::2] = 0  # every other chain stays outside
    result = run(path, Budget(steps=6, instances=limit))
    assert result.findings.tried == min(limit, 13)


def test_findings_per_seed_retires_walkers_one_by_one():
    path = counting(6, 3)
    path[:2, 1] = 0  # the second chain is late by two steps
    result = run(path, Budget(steps=6, findings_per_seed=2))
    assert torch.bincount(result.findings.origin).tolist() == [2, 2, 2]
    assert result.findings.evaluated == 2 + 4 + 2
    assert result.stop == "walkers"


def test_a_walker_retires_although_another_met_its_rows_before():
    result = run([[INSIDE, INSIDE], [ALSO_INSIDE, ALSO_INSIDE]], Budget(steps=2, findings_per_seed=1))
    assert (len(result.findings), result.findings.evaluated, result.stop) == (1, 2, "walkers")


@pytest.mark.parametrize(
    ("budget", "stop"),
    [
        (Budget(steps=0), "steps"),
        (Budget(instances=0), "instances"),
        (Budget(seconds=0), "seconds"),
        (Budget(findings_per_seed=0), "walkers"),
    ],
)
def test_a_budget_of_zero_judges_nobody(budget, stop):
    result = run(counting(6, 4), budget)
    assert (len(result.findings), result.findings.tried, result.findings.evaluated) == (0, 0, 0)
    assert result.stop == stop


def test_a_negative_budget_is_refused():
    with pytest.raises(NeuronFairError, match="findings per seed must be 0 or more, got -1"):
        Budget(findings_per_seed=-1)
    for refusing in (Budget, SearchConfig):
        with pytest.raises(NeuronFairError, match="seconds must be 0 or more, got nan"):
            refusing(seconds=float("nan"))


def test_a_search_of_another_version_cannot_go_on():
    seeds, places = torch.zeros(3, 5, dtype=torch.int64), []
    run_phase(planted(), Frontier(), seeds, budget=Budget(steps=3), recording=PhaseRecording(places.append))
    state = {name: tensor for name, tensor in places[-1].state.items() if name != "sloping"}
    old = replace(places[-1], state=state, stop=None)
    with pytest.raises(RunError, match="started by another version"):
        run_phase(planted(), Frontier(), seeds, budget=Budget(steps=6), recording=PhaseRecording(resume=old))


def test_no_seeds_give_no_findings():
    for method in (Scripted(torch.empty(1, 0, 5, dtype=torch.int64)), Frontier()):
        result = run_phase(planted(), method, torch.empty(0, 5, dtype=torch.int64), budget=Budget())
        assert (len(result.findings), result.findings.success_rate, result.stop) == (0, 0.0, "walkers")


# Who counts


def test_people_are_counted_once_whatever_their_sensitive_value():
    other_sex = [*INSIDE[:4], 1]
    result = run([[INSIDE, other_sex, OUTSIDE], [INSIDE, ALSO_INSIDE, OUTSIDE]], Budget(steps=2))
    assert (len(result.findings), result.findings.tried, result.findings.evaluated) == (2, 3, 6)
    assert result.findings.rows.tolist() == [INSIDE, ALSO_INSIDE]
    assert result.findings.origin.tolist() == [0, 1]


def test_people_of_an_earlier_phase_do_not_count_again():
    seen = KeySet()
    run([[INSIDE, OUTSIDE]], Budget(steps=1), key_set=seen)
    assert len(seen) == 2
    result = run([[INSIDE, OUTSIDE, ALSO_INSIDE]], Budget(steps=1), key_set=seen)
    assert (len(result.findings), result.findings.tried, result.findings.evaluated) == (1, 1, 3)


def test_seeds_outside_the_domain_are_clipped():
    saved: list[Checkpoint] = []
    seeds = torch.tensor([[99, 1, -5, 0, 7]])
    run_phase(planted(), Scripted(seeds[None]), seeds, budget=Budget(steps=0), recording=PhaseRecording(saved.append))
    assert saved[-1].state["rows"].tolist() == [[9, 1, 0, 0, 1]]


def test_the_twin_of_a_finding_is_decided_otherwise():
    result = run(counting(2, 8), Budget(steps=2))
    context, found = planted(), result.findings
    own = context.network.scores(found.rows)
    other = context.network.scores(found.twins(DOMAIN))
    assert (own.argmax(1) != other.argmax(1)).all()
    assert torch.equal(own, found.scores)
    assert torch.equal(other, found.twin_scores)


def test_whoever_was_beyond_the_budget_may_count_in_a_later_phase():
    seen = KeySet()
    path = [[OUTSIDE, INSIDE, ALSO_INSIDE]]
    run(path, Budget(steps=1, instances=2), key_set=seen)
    result = run(path, Budget(steps=1), key_set=seen)
    assert result.findings.rows.tolist() == [ALSO_INSIDE]


# Failures


class Fragile(nn.Module):
    """The planted network, which fails at its fourth batch."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner, self.how, self.calls = networks.one_biased_neuron(), how, -1  # the first call finds the layers

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 4 and self.how == "raise":
            raise ZeroDivisionError("the model broke")
        return self.inner(x) * (float(self.how) if self.calls > 4 and self.how != "raise" else 1.0)


def hooks(module: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in module.modules())


@pytest.mark.parametrize("how", ["nan", "inf"])
def test_scores_that_are_not_numbers_end_the_search(how):
    context = networks.context(Fragile(how), DOMAIN)
    with pytest.raises(ModelError, match="NaN or infinite"):
        run_phase(context, Scripted(counting(20, 4)), counting(20, 4)[0], budget=Budget(steps=20))


@pytest.mark.parametrize("how", ["raise", "nan", "1.0"])
def test_the_model_is_left_as_it_was(how):
    module = Fragile(how)
    context = networks.context(module, DOMAIN)
    profile = interpret(
        networks.network(networks.one_biased_neuron(), DOMAIN), DOMAIN, networks.uniform_rows(DOMAIN, 9)
    )
    profile = replace(profile, layers=tuple(replace(layer, name="inner.0") for layer in profile.layers))
    context = replace(context, profile=profile)
    module.train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    handler = signal.getsignal(signal.SIGINT)
    try:
        run_phase(context, NeuronFair(), networks.uniform_rows(DOMAIN, 20), budget=Budget(steps=10))
    except (ZeroDivisionError, ModelError):
        assert how != "1.0"
    assert all(m.training for m in module.modules())
    assert hooks(module) == 0
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in module.parameters())
    assert signal.getsignal(signal.SIGINT) is handler


def test_ctrl_c_keeps_what_was_found_and_ends_after_the_step():
    before = signal.getsignal(signal.SIGINT)
    saved: list[Checkpoint] = []
    press = {3: lambda: os.kill(os.getpid(), signal.SIGINT)}
    result = run(counting(20, 4), Budget(steps=20), at=press, recording=PhaseRecording(saved.append))
    assert (result.stop, len(result.findings)) == ("interrupted", 16)  # the step that was under way is whole
    assert (saved[-1].t, saved[-1].stop, saved[-1].state["told"].tolist()) == (4, "interrupted", [4] * 4)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupted_phase_goes_on():
    saved: list[Checkpoint] = []
    press = {3: lambda: os.kill(os.getpid(), signal.SIGINT)}
    run(counting(20, 4), Budget(steps=20), at=press, recording=PhaseRecording(saved.append))
    result = run(counting(20, 4), Budget(steps=20), recording=PhaseRecording(resume=saved[-1]))
    assert_same(result.findings, run(counting(20, 4), Budget(steps=20)).findings)


def test_a_second_ctrl_c_ends_at_once():
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(counting(20, 4), Budget(steps=20), at={3: twice})
    assert signal.getsignal(signal.SIGINT) is before


def test_progress_is_told_after_every_step(monkeypatch):
    monkeypatch.setattr(engine, "SECONDS_BETWEEN_COUNTS", -1.0)
    told: list[tuple[int, int, int]] = []
    run(counting(3, 4), Budget(steps=3), progress=lambda *numbers: told.append(numbers))
    assert told == [(1, 3, 4), (2, 3, 8), (3, 3, 12), (3, 3, 12)]


# The same findings, whatever happens on the way

PEOPLE_DOMAIN = parse_domain(PEOPLE)
SEEDS = networks.uniform_rows(PEOPLE_DOMAIN, 60, seed=5)
TESTED = {
    "global": NeuronFair(),
    "printed": NeuronFair(local=True),
    "metropolis": NeuronFair(local=True, after_miss="metropolis", sign="random"),
    "reset": NeuronFair(local=True, after_miss="reset", sign="random", choice="inverse"),
    "frontier": Frontier(),
}
BUDGET = Budget(steps=40, findings_per_seed=25)


def people_world() -> SearchContext:
    module = networks.random_module(PEOPLE_DOMAIN, seed=1)
    profile = interpret(networks.network(module, PEOPLE_DOMAIN), PEOPLE_DOMAIN, SEEDS)
    return networks.context(module, PEOPLE_DOMAIN, profile=profile)


WORLD = people_world()
PREPARED: dict[str, Method] = {}


def ready(name: str) -> Method:
    if name not in PREPARED:
        method = TESTED[name]
        PREPARED[name] = method.prepare(WORLD)[0] if isinstance(method, Frontier) else method
    return PREPARED[name]


def explore(name: str, *, every: int = 7, **options) -> tuple[PhaseResult, list[Checkpoint]]:
    saved: list[Checkpoint] = []
    seeds = options.pop("seeds", SEEDS)
    return run_phase(
        WORLD, ready(name), seeds, budget=BUDGET, recording=PhaseRecording(saved.append, interval=every), **options
    ), saved


def assert_same(found: Findings, other: Findings) -> None:
    for name in ("rows", "twin_values", "scores", "twin_scores", "origin", "step", "misses"):
        assert torch.equal(getattr(found, name), getattr(other, name)), name
    assert (found.tried, found.evaluated) == (other.tried, other.evaluated)


@pytest.mark.parametrize("name", TESTED)
def test_a_run_goes_on_from_every_checkpoint_bit_for_bit(name):
    whole, saved = explore(name)
    assert len(whole.findings) > 20
    assert [c.t for c in saved[:3]] == [7, 14, 21]
    assert_same(Findings.join([c.findings for c in saved]), whole.findings)
    for i, last in enumerate(saved):
        so_far = Findings.join([c.findings for c in saved[: i + 1]])
        lines = torch.cat([c.lines for c in saved[: i + 1]])
        assert len(lines) == so_far.tried
        resumed = run_phase(
            WORLD,
            ready(name),
            SEEDS,
            budget=BUDGET,
            recording=PhaseRecording(resume=replace(last, findings=so_far, lines=lines)),
        )
        assert_same(resumed.findings, whole.findings)
        assert resumed.stop == whole.stop


@pytest.mark.parametrize("name", TESTED)
def test_seeds_in_two_batches_find_the_same_people(name):
    whole = explore(name)[0].findings
    seen = KeySet()
    parts = [
        explore(name, seeds=SEEDS[part], origin=part, key_set=seen)[0].findings
        for part in (torch.arange(35, 60), torch.arange(0, 35))
    ]
    both = Findings.join(parts)
    assert set(PEOPLE_DOMAIN.key(both.rows).tolist()) == set(PEOPLE_DOMAIN.key(whole.rows).tolist())
    assert both.tried == whole.tried


@pytest.mark.parametrize("name", TESTED)
def test_every_finding_discriminates_and_exists(name):
    found = explore(name)[0].findings
    assert evaluate(WORLD.network, PEOPLE_DOMAIN, found.rows).discriminates.all()
    assert PEOPLE_DOMAIN.valid(found.rows).all()
    assert PEOPLE_DOMAIN.valid(found.misses.long()).all()
    sensitive = list(PEOPLE_DOMAIN.sensitive_columns)
    assert torch.equal(found.rows[:, sensitive], SEEDS[found.origin][:, sensitive])
    assert (found.twin_values != found.rows[:, sensitive]).any(1).all()
    assert len(PEOPLE_DOMAIN.key(found.rows).unique()) == len(found)
    assert found.tried >= len(found)
    assert found.evaluated >= found.tried


@pytest.mark.parametrize("name", TESTED)
def test_another_run_seed_finds_others(name):
    if name == "global":
        pytest.skip("the global phase draws only the extra neurons, of which a layer of 12 has none")
    other = replace(WORLD, draws=replace(WORLD.draws, seed=1))
    found = run_phase(other, ready(name), SEEDS, budget=BUDGET).findings
    assert not torch.equal(found.rows, explore(name)[0].findings.rows)


# Planted discrimination is found


@pytest.mark.parametrize("name", ["reset", "frontier"])
def test_two_sensitive_attributes_at_once(name):
    domain, found = planted_search(name, networks.one_biased_pair(), networks.sex_and_race())
    assert len(domain.sensitive_values) == 10
    assert_sums(found.rows, {19, 20})
    # Only sex 1 with race D is decided otherwise: everybody else's twin is that one, although both attributes differ.
    pair = torch.tensor([1, 3])
    is_pair = (found.rows[:, 4:] == pair).all(1)
    assert (found.twin_values[~is_pair] == pair).all()
    assert ((found.rows[:, 4:] != pair).all(1)).any()


@pytest.mark.parametrize("name", ["reset", "frontier"])
def test_three_classes(name):
    _, found = planted_search(name, networks.three_classes(), DOMAIN)
    assert_sums(found.rows, {11, 12, 23, 24})


@pytest.mark.parametrize("name", ["reset", "frontier"])
def test_a_score_with_a_tolerance(name):
    _, found = planted_search(name, networks.biased_score(), DOMAIN, Decision("tolerance", 1.5))
    assert set(found.rows[:, 0].tolist()) == {8, 9}
    assert len(found) > 400


@pytest.mark.parametrize("name", ["reset", "frontier"])
def test_a_score_with_a_threshold_far_from_zero(name):
    # The sum and 2 s on top, against 28.5: split where the digits add up to 27 or 28.
    module = nn.Sequential(
        networks.linear([[1.0, 1.0, 1.0, 1.0, 2.0]], [0.0]), nn.ReLU(), networks.linear([[1.0]], [0])
    )
    _, found = planted_search(name, module, DOMAIN, Decision("threshold", 28.5))
    assert_sums(found.rows, {27, 28})


def planted_search(
    name: str, module: nn.Module, domain: TableDomain, decision: Decision | None = None
) -> tuple[TableDomain, Findings]:
    seeds = networks.uniform_rows(domain, 100, seed=3)
    profile = interpret(networks.network(module, domain), domain, seeds)
    context = networks.context(module, domain, profile=profile, decision=decision)
    method = TESTED[name]
    method = method.prepare(context)[0] if isinstance(method, Frontier) else method
    return domain, run_phase(context, method, seeds, budget=Budget(steps=60)).findings


def assert_sums(rows: Tensor, sums: set[int]) -> None:
    assert set(rows[:, :4].sum(1).tolist()) == sums
    assert len(rows) > 50


@pytest.mark.parametrize("name", ["neuronfair", "frontier"])
def test_guided_search_needs_a_fifth_of_the_rows_that_random_search_needs(name):
    domain = networks.large_domain()
    module = networks.one_biased_neuron(inputs=11, boundary=networks.MIDDLE)
    rows = networks.uniform_rows(domain, 200_000)
    random_rate = evaluate(networks.network(module, domain), domain, rows).discriminates.double().mean()
    assert 0.001 < random_rate < 0.02
    profile = interpret(networks.network(module, domain), domain, rows[:500])
    assert profile.worst.biased == (3,)
    context = networks.context(module, domain, profile=profile)
    seeds = rows[:400]
    if name == "frontier":
        method = Frontier().prepare(context)[0]  # the rows of its pilot count too
        found = run_phase(context, method, seeds[:100], budget=Budget(steps=200)).findings
    else:
        first = run_phase(context, NeuronFair(), seeds, budget=Budget(steps=40, findings_per_seed=1)).findings
        found = run_phase(context, TESTED["reset"], first.rows, budget=Budget(steps=1000)).findings
    families = context.network.rows_forward / 2
    assert families < 0.2 * len(found) / random_rate


def test_a_domain_in_which_nothing_may_change_is_refused():
    domain = TableDomain("one", (Attribute("s", "flag"),), ("s",))
    network = networks.network(networks.random_module(domain), domain)
    with pytest.raises(NeuronFairError, match="every attribute is sensitive"):
        search(network, domain, torch.zeros(3, 1, dtype=torch.int64))


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 0, 2], [1, 2, 0]])
def test_who_meets_a_person_first_does_not_decide_whether_it_is_found(order):
    """Twins score 0, 0.5 and 1 with a tolerance of 0.6: nobody lies too far from the one in the middle."""
    domain, module = three_scores()
    context = networks.context(module, domain, decision=Decision("tolerance", 0.6))
    path = torch.tensor([[7, 0], [7, 1], [7, 2]])[order][None]
    found = run_phase(context, Scripted(path), path[0], budget=Budget(steps=1)).findings
    assert (len(found), found.tried, found.rejected) == (1, 1, 0)
    ends = {tuple(found.rows[0].tolist()), tuple(found.twins(domain)[0].tolist())}
    assert ends == {(7, 0), (7, 2)}
    assert {float(found.scores), float(found.twin_scores)} == {0.0, 1.0}


class Rounded(nn.Module):
    """The planted network, which in float32 splits the twins of a row that begins with 9, too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = networks.one_biased_neuron()

    def forward(self, x: Tensor) -> Tensor:
        wrong = (x[:, 0] == 9) & (x[:, -1] == 1) & (x.dtype == torch.float32)
        return torch.where(wrong[:, None], 1e3 * torch.eye(2, dtype=x.dtype)[1], self.inner(x))


DOUBTFUL, ALSO_DOUBTFUL = [9, 9, 9, 9, 0], [9, 9, 9, 8, 0]  # far from the boundary


def rounded(path: list, budget: Budget, **options) -> PhaseResult:
    rows = torch.tensor(path)
    return run_phase(networks.context(Rounded(), DOMAIN), Scripted(rows), rows[0], budget=budget, **options)


def test_a_hit_that_float64_rejects_does_not_retire_its_walker():
    path = [[DOUBTFUL, INSIDE], [DOUBTFUL, OUTSIDE], [ALSO_INSIDE, OUTSIDE], [OUTSIDE, OUTSIDE]]
    result = rounded(path, Budget(steps=4, findings_per_seed=1))
    assert result.findings.rows.tolist() == [INSIDE, ALSO_INSIDE]
    assert (result.findings.origin.tolist(), result.findings.step.tolist()) == ([1, 0], [0, 2])
    assert (result.findings.tried, result.findings.rejected) == (3, 1)  # the doubtful person counts once
    assert result.stop == "walkers"


def test_rejected_hits_do_not_count_after_an_interruption():
    path = [[DOUBTFUL, OUTSIDE], [ALSO_DOUBTFUL, OUTSIDE], [INSIDE, OUTSIDE], [ALSO_INSIDE, OUTSIDE]]
    saved: list[Checkpoint] = []
    budget = Budget(steps=4, findings_per_seed=2)
    whole = rounded(path, budget, recording=PhaseRecording(saved.append, interval=2))
    assert ([at.t for at in saved], saved[0].findings.rejected) == ([2, 4, 4], 2)
    again = rounded(path, budget, recording=PhaseRecording(resume=saved[0]))
    for result in (whole, again):
        assert result.findings.rows.tolist() == [INSIDE, ALSO_INSIDE]
        assert (result.stop, result.findings.rejected) == ("steps", 2)


def test_without_such_a_budget_rejected_hits_are_dropped_at_the_end():
    result = rounded([[DOUBTFUL, INSIDE], [DOUBTFUL, OUTSIDE]], Budget(steps=2))
    assert result.findings.rows.tolist() == [INSIDE]
    assert (result.findings.tried, result.findings.rejected, result.finding_count) == (3, 1, 1)
