from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from neuronfair import Decision, TableDomain, evaluate
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.schema.toml import parse_domain
from neuronfair.model.encoding import TableEncoding
from neuronfair.searches.engine import Budget, Checkpoint, PhaseRecording, PhaseResult, run_phase
from neuronfair.searches.keys import NO_KEY, _slots, remember
from neuronfair.searches.method import SearchContext, State
from neuronfair.searches.methods.aequitas import Uniform
from neuronfair.searches.methods.symbgen import (
    MAX_BINS,
    ROWS_PER_QUEUE,
    CodeCells,
    Path,
    SymbGen,
    _negate_path,
    grow_tree_paths,
)
from tests.conftest import PEOPLE
from tests.planted import networks

PEOPLE_DOMAIN = parse_domain(PEOPLE)
DOMAIN = networks.domain()
FINDING, MISS = [5, 5, 5, 4, 0], [0, 0, 0, 0, 0]  # the planted network splits digits that add up to 19 or 20
QUICK = {"samples": 100, "depth": 6}


def planted() -> SearchContext:
    return networks.context(networks.one_biased_neuron(), DOMAIN)


def begin(method: SymbGen, context: SearchContext, rows: Tensor) -> State:
    number = torch.arange(len(rows))
    return method.start(context, {"origin": number, "rows": rows, "found": torch.zeros_like(number)})


def step(method: SymbGen, context: SearchContext, state: State, t: int) -> tuple[State, Tensor]:
    rows = method.ask(context, state, t)
    return method.tell(context, state, rows, evaluate(context.network, context.domain, rows, context.decision), t), rows


# The path


def numbered(*sizes: int) -> TableDomain:
    columns = [Attribute(f"a{i}", "ordinal", low=0, high=size - 1) for i, size in enumerate(sizes)]
    return TableDomain("numbered", (*columns, Attribute("s", "flag")), ("s",))


def test_the_path_is_that_of_scikit_learn():
    from sklearn.tree import DecisionTreeClassifier

    domain = numbered(4, 7, 30, 100)
    rows, pool = networks.uniform_rows(domain, 25), networks.uniform_rows(domain, 25 * 300, seed=1)
    samples = pool.view(25, 300, -1)
    noise = torch.randn(25, 300, generator=torch.Generator().manual_seed(2))
    labels = samples[..., 0] * 9 + samples[..., 2] - samples[..., 3] * samples[..., 4] + 9 * noise > 0
    path = grow_tree_paths(CodeCells(domain), rows, samples, labels, 12)
    compared = ended = 0
    for i in range(25):
        tree = DecisionTreeClassifier(random_state=0).fit(samples[i].numpy(), labels[i].numpy())
        inner, nodes = tree.tree_, tree.decision_path(rows[i : i + 1].numpy()).indices
        for level, (node, child) in enumerate(pairwise(nodes[:13])):
            theirs = (int(inner.feature[node]), int(inner.threshold[node] // 1))
            ours = (path.column[i, level].item(), path.threshold[i, level].item())
            if ours != theirs:  # then both must be equally good, and scikit-learn chose by chance
                there = torch.from_numpy(tree.decision_path(samples[i].numpy())[:, node].toarray()[:, 0] > 0)
                costs = [impurity(samples[i][there], labels[i][there], *split) for split in (ours, theirs)]
                assert costs[0] == pytest.approx(costs[1], abs=1e-9)
                break
            assert path.exists[i, level]
            assert path.left[i, level] == (child == inner.children_left[node])
            share = inner.n_node_samples[child] / inner.n_node_samples[node]
            assert path.confidence[i, level].item() == pytest.approx(share)
            compared += 1
        else:
            assert not path.exists[i, len(nodes) - 1 :].any()
            ended += len(nodes) <= 12
    assert compared > 80
    assert ended > 5


def impurity(samples: Tensor, labels: Tensor, column: int, threshold: int) -> float:
    """The Gini impurity that a split leaves, times the number of samples."""
    left = samples[:, column] <= threshold
    shares = [(labels[side].double().mean().item(), int(side.sum())) for side in (left, ~left)]
    return sum(2 * share * (1 - share) * count for share, count in shares)


def test_a_path_by_hand():
    domain = numbered(10)
    # The classes meet between the codes 2 and 7: of 4 samples 3 go right, as the row does.
    samples, labels = torch.tensor([[[2, 0], [7, 0], [8, 0], [9, 0]]]), torch.tensor([[True, False, False, False]])
    path = grow_tree_paths(CodeCells(domain), torch.tensor([[5, 1]]), samples, labels, 3)
    assert (path.column[0, 0], path.threshold[0, 0], path.left[0, 0], path.confidence[0, 0]) == (0, 4, False, 0.75)
    assert path.exists.tolist() == [[True, False, False]]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 5 * MAX_BINS), min_size=1, max_size=4))
def test_bins_divide_the_codes(sizes):
    bins = CodeCells(numbered(*sizes))
    for column, size in enumerate([*sizes, 2]):
        rows = torch.zeros(size, len(sizes) + 1, dtype=torch.int64)
        rows[:, column] = torch.arange(size)
        cells = bins.cells(rows)[:, column]
        assert (bins.column[cells] == column).all()
        assert ((bins.lowest[cells] <= rows[:, column]) & (rows[:, column] <= bins.highest[cells])).all()
        assert len(cells.unique()) == min(size, MAX_BINS)


def test_many_codes_are_split_between_bins():
    domain = numbered(3, 100_000)
    samples = networks.uniform_rows(domain, 4000).view(2, 2000, 3)
    path = grow_tree_paths(CodeCells(domain), samples[:, 0], samples, samples[..., 1] >= 40_000, 1)
    assert (path.column == 1).all()
    assert ((path.threshold - 40_000).abs() < 2 * 100_000 / MAX_BINS).all()


# What lies beyond it


def hand_made() -> Path:
    """a0 <= 7, a1 > 2, s <= 0, a0 > 3, a2 > 4, and a level that does not exist."""
    return Path(
        torch.tensor([[0, 1, 4, 0, 2, 0]]),
        torch.tensor([[7, 2, 0, 3, 4, 0]]),
        torch.tensor([[True, False, True, False, False, True]]),
        torch.tensor([[0.9, 0.8, 0.6, 0.5, 0.2, 0.0]], dtype=torch.float64),
        torch.tensor([[True, True, True, True, True, False]]),
    )


ROW = [5, 5, 5, 5, 0]
INF = float("inf")


@pytest.mark.parametrize(
    ("local", "boxes", "ranks"),
    [
        # The attribute of the negated constraint alone moves; the mean is over the whole path.
        (
            True,
            {0: {0: (8, 9)}, 1: {1: (0, 2)}, 3: {0: (0, 3)}, 4: {2: (0, 4)}},
            [1 + 2.2 / 5, 1 + 2.4 / 5, INF, 1 + 3.0 / 5, 1 + 3.6 / 5, INF],
        ),
        # The path before the negated constraint is kept; its end is where the row's side holds less than 0.3.
        (
            False,
            {0: {0: (8, 9)}, 1: {0: (0, 7), 1: (0, 2)}, 3: {0: (0, 3), 1: (3, 9)}},
            [10 - 0.1, 10 - 1.1 / 2, INF, 10 - 2.2 / 3, INF, INF],
        ),
    ],
    ids=["local", "global"],
)
def test_children_by_hand(local, boxes, ranks):
    seen = []
    for corner in (0.0, 0.3, 0.999):
        u = torch.full((1, 6, 5), corner, dtype=torch.float64)
        children, rank = _negate_path(planted(), torch.tensor([ROW]), hand_made(), u, local=local)
        assert rank[0].tolist() == pytest.approx(ranks)
        seen.append(children[0])
    for child, box in boxes.items():
        for column in range(5):
            low, high = box.get(column, (ROW[column], ROW[column]))
            assert (seen[0][child, column], seen[2][child, column]) == (low, high)
            assert low <= seen[1][child, column] <= high


def test_a_box_without_a_point_gives_no_child():
    path = Path(*(x[:, :2] for x in hand_made()))._replace(
        column=torch.tensor([[0, 0]]), threshold=torch.tensor([[7, 6]]), left=torch.tensor([[True, True]])
    )
    u = torch.zeros(1, 2, 5, dtype=torch.float64)
    # Above 7 and at most 6 there is nothing; at most 7 and above 6 there is 7.
    children, ranks = _negate_path(planted(), torch.tensor([ROW]), path, u, local=True)
    assert ranks.isinf().tolist() == [[True, False]]
    assert children[0, 1].tolist() == [7, 5, 5, 5, 0]


# The queue


def test_the_lowest_rank_is_asked_for_first():
    context, method = planted(), SymbGen(**QUICK)
    state = begin(method, context, torch.tensor([MISS, FINDING]))
    assert torch.equal(method.ask(context, state, 0), state["rows"])
    for t in range(6):
        state, rows = step(method, context, state, t)
        assert (state["ranks"].diff() >= 0)[state["ranks"][:, 1:].isfinite()].all()
        assert torch.equal(method.ask(context, state, t + 1), state["queue"][:, 0].long())
        assert not torch.equal(rows, method.ask(context, state, t + 1))


@pytest.mark.parametrize("local", [True, False])
def test_local_children_come_from_findings_only_and_before_global_ones(local):
    context, method = planted(), SymbGen(local, **QUICK)
    state, _ = step(method, context, begin(method, context, torch.tensor([FINDING, MISS])), 0)
    first, last = state["ranks"][:, 0], torch.where(state["ranks"].isfinite(), state["ranks"], 0).amax(1)
    assert (first < 2).tolist() == [local, False]
    assert ((last > 9) & (last < 10)).all()


def test_the_worst_of_a_full_queue_are_dropped():
    context, method = planted(), SymbGen(True, **QUICK)
    state = begin(method, context, torch.tensor([FINDING]))
    state["ranks"] = torch.arange(1.0, ROWS_PER_QUEUE + 1, dtype=torch.float64)[None] / 100  # all better than any child
    state, _ = step(method, context, state, 0)
    assert state["ranks"].shape == (1, ROWS_PER_QUEUE)
    assert (state["ranks"][:, :-1] < 1).all()
    assert 1 < state["ranks"][0, -1] < 2


def test_nobody_is_queued_twice():
    domain = networks.domain(attributes=2, high=4)
    context = networks.context(networks.one_biased_neuron(inputs=3, boundary=3.5), domain)
    people = torch.cartesian_prod(torch.arange(5), torch.arange(5), torch.tensor([0]))
    assert len(_slots(domain.key(people)).unique()) == 25  # so that nothing is forgotten
    method = SymbGen(True, **QUICK)
    state = begin(method, context, people[:10])
    asked: list[set[int]] = [set() for _ in range(10)]
    for t in range(30):
        waits = state["ranks"][:, 0].isfinite().tolist()
        state, rows = step(method, context, state, t)
        for chain, key in enumerate(domain.key(rows).tolist()):
            assert not (waits[chain] and key in asked[chain])
            if waits[chain]:
                asked[chain].add(key)
    assert sum(map(len, asked)) > 100


def test_a_restart_stays_near_the_seed():
    method, domain = SymbGen(), networks.large_domain()
    context = networks.context(networks.one_biased_neuron(inputs=11), domain)
    seeds = networks.uniform_rows(domain, 200)
    state = begin(method, context, seeds)
    state["ranks"] = torch.full_like(state["ranks"], torch.inf)
    rows = method.ask(context, state, 3)
    assert 0.4 < (rows == seeds)[:, :10].float().mean() < 0.6
    assert not torch.equal(rows, method.ask(context, state, 4))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=40))
def test_the_memory_forgets_but_never_invents(keys):
    keys = torch.tensor([keys])
    memory = remember(torch.full((1, 1024), NO_KEY), keys)
    assert set(memory.unique().tolist()) <= {NO_KEY, *keys[0].tolist()}
    assert len(memory.unique()) == 1 + len(_slots(keys).unique())
    assert torch.equal(remember(memory, torch.full((1, 3), NO_KEY)), memory)


# The search


@pytest.mark.parametrize("local", [True, False])
def test_every_row_it_asks_for_exists_and_keeps_the_sensitive_values(local):
    domain = PEOPLE_DOMAIN.with_sensitive("sex", "race")
    context = networks.context(networks.random_module(domain, seed=1), domain)
    seeds, method = networks.uniform_rows(domain, 60), SymbGen(local, **QUICK)
    state, columns = begin(method, context, seeds), list(domain.sensitive_columns)
    for t in range(12):
        state, rows = step(method, context, state, t)
        assert domain.valid(rows).all()
        assert torch.equal(rows[:, columns], seeds[:, columns])
        assert all(len(x) == 60 for x in state.values())
    assert not torch.equal(rows, seeds)


def pairs(*results: PhaseResult) -> set[tuple[int, ...]]:
    found = [result.findings for result in results]
    return {(*row, int(o), int(t)) for f in found for row, o, t in zip(f.rows.tolist(), f.origin, f.step, strict=True)}


@pytest.mark.parametrize("local", [True, False])
def test_batches_and_a_kill_change_nothing(local):
    domain = networks.large_domain()
    context = networks.context(networks.one_biased_neuron(inputs=11, weight=40.0, boundary=networks.MIDDLE), domain)
    seeds, method, budget = networks.uniform_rows(domain, 60), SymbGen(local, **QUICK), Budget(steps=12)
    whole = run_phase(context, method, seeds, budget=budget)
    parts = torch.arange(60).split([13, 47])
    # People whom both parts meet count in both.
    split = [run_phase(context, method, seeds[part], budget=budget, origin=part) for part in parts]
    assert pairs(whole) <= pairs(*split)
    assert {p[:10] for p in pairs(whole)} == {p[:10] for p in pairs(*split)}
    assert len(whole.findings) > 50

    saved: list[Checkpoint] = []
    run_phase(context, method, seeds, budget=Budget(steps=7), recording=PhaseRecording(saved.append, interval=5))
    resumed = run_phase(context, method, seeds, budget=budget, recording=PhaseRecording(resume=saved[0]))
    assert (saved[0].t, pairs(resumed)) == (5, pairs(whole))


def test_a_walker_goes_on_alike_when_others_retire():
    context, method = planted(), SymbGen(**QUICK)
    seeds = networks.uniform_rows(DOMAIN, 80)
    together = run_phase(context, method, seeds, budget=Budget(steps=15, findings_per_seed=1))
    for number in together.findings.origin[-3:].tolist():
        alone = run_phase(context, method, seeds[number : number + 1], budget=Budget(15), origin=torch.tensor([number]))
        mine = {p for p in pairs(together) if p[-2] == number}
        assert mine <= pairs(alone)


def corner() -> nn.Module:
    """On `large_domain`: the second class is a1 >= 80, a2 >= 80 and a0 >= 50 + 20 s."""
    shortfalls = torch.zeros(3, 11)
    shortfalls[0, 1] = shortfalls[1, 2] = shortfalls[2, 0] = -1
    shortfalls[2, 10] = 20
    first = networks.linear(shortfalls.tolist(), [80.0, 80.0, 50.0])
    return nn.Sequential(first, nn.ReLU(), networks.linear([[1.0] * 3, [0.0] * 3], [0.0, 0.5]))


def test_both_phases_beat_random_rows():
    context = networks.context(corner(), networks.large_domain())
    seeds = networks.uniform_rows(context.domain, 40)  # one person in 125 is split
    budget = Budget(steps=30, findings_per_seed=1)
    chance = run_phase(context, Uniform(), seeds, budget=budget).findings
    first = run_phase(context, SymbGen(samples=200), seeds, budget=budget).findings
    assert first.success_rate > 5 * chance.success_rate
    local = run_phase(context, SymbGen(True, samples=200), first.rows, budget=Budget(30), origin=first.origin).findings
    assert local.success_rate > 5 * chance.success_rate


def test_a_constant_network_has_no_findings():
    module = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), networks.linear([[0.0] * 3] * 2, [1.0, 0.0]))
    context = networks.context(module, DOMAIN)
    result = run_phase(context, SymbGen(True, **QUICK), networks.uniform_rows(DOMAIN, 20), budget=Budget(steps=10))
    assert (len(result.findings), result.stop) == (0, "steps")
    assert result.findings.tried > 100  # it does not stay where it is


@pytest.mark.parametrize(
    ("module", "decision"),
    [
        (networks.three_classes(), Decision()),
        (networks.biased_score(), Decision("threshold", 2.0)),
        (networks.biased_score(), Decision("tolerance", 1.5)),
    ],
    ids=["three classes", "threshold", "tolerance"],
)
def test_every_kind_of_decision_is_searched(module, decision):
    context = networks.context(module, DOMAIN, decision=decision)
    result = run_phase(context, SymbGen(True, **QUICK), networks.uniform_rows(DOMAIN, 30), budget=Budget(steps=20))
    assert len(result.findings) > 10
    assert evaluate(context.network, DOMAIN, result.findings.rows, decision).discriminates.all()


@dataclass
class BlackBox:
    """Scores, and nothing else to look at."""

    inner: nn.Module
    dtype: torch.dtype = torch.float32
    outputs: int = 2
    encoding = TableEncoding.of(DOMAIN)

    def scores(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.inner(x.float())


def test_a_black_box_is_searched_like_a_network():
    method, context = SymbGen(True, **QUICK), planted()
    boxed = replace(context, network=BlackBox(networks.one_biased_neuron()))
    states = [begin(method, w, networks.uniform_rows(DOMAIN, 30)) for w in (context, boxed)]
    for t in range(8):
        states[0], rows = step(method, context, states[0], t)
        states[1], same = step(method, boxed, states[1], t)
        assert torch.equal(rows, same)
