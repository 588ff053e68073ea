"""ADF, EIDIG and Aequitas: their formulas against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from neuronfair import Decision, TableDomain, evaluate
from neuronfair.domain.attribute import Attribute
from neuronfair.searches.engine import Budget, run_phase
from neuronfair.searches.evaluate import Evaluation
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import (
    Method,
    SearchContext,
    State,
    confidence,
    draw_column,
    inverse_influence,
    metropolis,
)
from neuronfair.searches.methods import METHODS, Setting
from neuronfair.searches.methods.adf import Adf
from neuronfair.searches.methods.aequitas import Aequitas, Uniform
from neuronfair.searches.methods.eidig import EidigGlobal, EidigLocal
from tests.planted import networks

MANY = 20_000  # chains, where shares are measured
DOMAIN = networks.domain(attributes=3)
FAR, UP = 1000.0, 100.0


def two_planes(w0: list[float], b0: float, w1: list[float], b1: float, *, outputs: int = 2) -> nn.Sequential:
    """A network with z = w0 · a + b0 for s = 0 and w1 · a + b1 for s = 1: its score, or two classes get 0 and z."""
    first = networks.linear([[*w0, -FAR], [*w1, FAR]], [UP + b0, UP + b1 - FAR])  # one of them is far below 0
    second = [[1.0, 1.0]] if outputs == 1 else [[0.0, 0.0], [1.0, 1.0]]
    return nn.Sequential(first, nn.ReLU(), networks.linear(second, [-UP] if outputs == 1 else [0.0, -UP])).double()


def context(*planes: list[float] | float, decision: Decision | None = None) -> SearchContext:
    outputs = 2 if decision is None else 1
    return networks.context(two_planes(*planes, outputs=outputs), DOMAIN, decision=decision)


def begin(method: Method, context: SearchContext, rows: Tensor) -> State:
    number = torch.arange(len(rows))
    return method.start(context, {"origin": number, "rows": rows, "found": torch.zeros_like(number)})


def judged(context: SearchContext, rows: Tensor, found: list[bool] | Tensor | None = None) -> Evaluation:
    """What the network says of rows; or, with `found`, which of them it is to be said to discriminate."""
    evaluation = evaluate(context.network, context.domain, rows, context.decision)
    if found is None:
        return evaluation
    return replace(evaluation, discriminates=torch.as_tensor(found))


def told(method: Method, context: SearchContext, state: State, rows: Tensor, t: int, found=None) -> State:
    return method.tell(context, state, rows, judged(context, rows, found), t)


def step_from(method: Method, context: SearchContext, *row: int) -> list[int]:
    """Where the first step leads from one row, as a difference."""
    rows = torch.tensor([row])
    return (told(method, context, begin(method, context, rows), rows, 0)["rows"] - rows)[0].tolist()


def walkers_at(*row: int, count: int = MANY) -> Tensor:
    return torch.tensor(row).repeat(count, 1)


def near(shares: Tensor, expected: list[float], count: int = MANY) -> bool:
    """Whether measured shares are within four standard deviations of the expected ones."""
    exact = torch.tensor(expected, dtype=torch.float64)
    return bool(((shares.double() - exact).abs() <= 4 * (exact * (1 - exact) / count).sqrt() + 1e-12).all())


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


# How sure a decision is


def test_confidence_is_the_probability_of_the_class_or_the_way_to_the_threshold():
    scores = torch.tensor([[0.0, 2.0], [3.0, 0.0]], dtype=torch.float64)
    assert confidence(Decision(), scores).tolist() == pytest.approx([sigmoid(2.0), sigmoid(3.0)])
    assert confidence(Decision("threshold", 0.5), scores[:, 1:]).tolist() == [1.5, 0.5]
    assert confidence(Decision("threshold", 2.5), scores[:, 1:]).tolist() == [0.5, 2.5]


# ADF and EIDIG, global: the steps that both have in common

UPHILL_TESTED = pytest.mark.parametrize("method", [Adf(), EidigGlobal()], ids=["adf", "eidig"])


@UPHILL_TESTED
def test_a_step_makes_the_decision_less_certain(method):
    w = [1.0, -2.0, 0.5]
    # Row and twin belong to class 1 (z > 0): z must fall. With z < 0 they belong to class 0: z must rise.
    assert step_from(method, context(w, 3.0, w, 2.0), 4, 2, 4, 0) == [-1, 1, -1, 0]
    assert step_from(method, context(w, -9.0, w, -8.0), 4, 2, 4, 0) == [1, -1, 1, 0]
    assert step_from(method, context(w, 3.0, w, 2.0), 4, 2, 4, 1) == [-1, 1, -1, 0]


@UPHILL_TESTED
def test_attributes_on_which_row_and_twin_disagree_stay(method):
    # z = 5 + a0 + a1 + a2 for the row, 5 + 2 a0 - a1 for its twin: the twin does not feel a2.
    here = context([1.0, 1.0, 1.0], 5.0, [2.0, -1.0, 0.0], 5.0)
    assert step_from(method, here, 4, 4, 4, 0) == [-1, 0, 0, 0]
    # A row and a twin of two classes pull every attribute in opposite directions.
    assert step_from(method, context([1.0, 1.0, 1.0], -11.0, [1.0, 1.0, 1.0], -13.0), 4, 4, 4, 0) == [0, 0, 0, 0]


@UPHILL_TESTED
def test_steps_end_at_the_bounds(method):
    w = [1.0, -1.0, 1.0]
    assert step_from(method, context(w, 9.5, w, 9.5), 0, 9, 5, 0) == [0, 0, -1, 0]


@UPHILL_TESTED
def test_a_score_goes_towards_its_threshold(method):
    w, decision = [1.0, -2.0, 1.0], Decision("threshold", 3.0)
    assert step_from(method, context(w, 0.0, w, 0.5, decision=decision), 5, 0, 5, 0) == [-1, 1, -1, 0]  # 10 against 3
    assert step_from(method, context(w, -8.0, w, -8.5, decision=decision), 5, 2, 5, 0) == [1, -1, 1, 0]  # -2 against 3


@UPHILL_TESTED
def test_a_nominal_attribute_goes_to_the_value_that_is_least_certain(method):
    race = Attribute("race", "nominal", values=("A", "B", "C"), encode="onehot")
    domain = TableDomain("d", (race, Attribute("a", "ordinal", low=0, high=9), Attribute("s", "flag")), ("s",))
    # z = 4 A + 2 B + 3 C + a - 1: class 1, so that B is the least certain.
    first = networks.linear([[4.0, 2.0, 3.0, 1.0, 0.0]], [-1.0])
    module = nn.Sequential(first, nn.ReLU(), networks.linear([[0.0], [1.0]], [0.0, 0.0])).double()
    here = networks.context(module, domain)
    rows = torch.tensor([[0, 5, 0], [1, 5, 1], [2, 5, 0]])
    assert told(method, here, begin(method, here, rows), rows, 0)["rows"].tolist() == [[1, 4, 0], [1, 4, 1], [1, 4, 0]]


def test_for_adf_a_twin_without_a_gradient_has_no_say():
    # z = 1 + relu(2 + a0 - a1 + a2 - 1000 s): nothing moves it where s is 1.
    first = networks.linear([[1.0, -1.0, 1.0, -FAR]], [2.0])
    module = nn.Sequential(first, nn.ReLU(), networks.linear([[0.0], [1.0]], [0.0, 1.0])).double()
    flat_twin = networks.context(module, DOMAIN)
    assert step_from(Adf(), flat_twin, 4, 4, 4, 0) == [-1, 1, -1, 0]
    assert step_from(EidigGlobal(), flat_twin, 4, 4, 4, 0) == [0, 0, 0, 0]
    # The other way round the row itself knows no way.
    assert step_from(Adf(), flat_twin, 4, 4, 4, 1) == [0, 0, 0, 0]


def test_for_adf_all_rows_go_on_from_where_they_are():
    here = context([1.0, -2.0, 0.5], 3.0, [1.0, -2.0, 0.5], 2.0)
    rows, method = torch.tensor([[8, 1, 4, 0]]), Adf()
    state = begin(method, here, rows)
    for t in range(3):
        state = told(method, here, state, state["rows"], t)
    assert state["rows"].tolist() == [[5, 4, 1, 0]]


# ADF, local


def test_adf_moves_what_matters_least():
    # For the row z = 3 + a0 + 2 a1 - a2 - 8 = 1, for its twin z = 3 a0 - a1 - 6 = 2: with p the probability of class 1
    # the gradients of -log p are -(1 - p) times the weights.
    here = context([1.0, 2.0, -1.0], -7.0, [3.0, -1.0, 0.0], -6.0)
    rows = walkers_at(4, 4, 4, 0)
    assert judged(here, rows[:1]).scores.tolist() == [[0.0, 1.0]]
    assert judged(here, rows[:1]).twin_scores.tolist() == [[[0.0, 2.0]]]
    own, other = 1 - sigmoid(1.0), 1 - sigmoid(2.0)
    weights = [1 / (own * 1 + other * 3), 1 / (own * 2 + other * 1), 1 / (own * 1 + other * 0)]
    method = Adf(local=True)
    moved = told(method, here, begin(method, here, rows), rows, 0)["rows"] - rows
    assert (moved.abs().sum(1) == 1).all()  # one attribute, one step
    assert near((moved[:, :3] != 0).double().mean(0), [w / sum(weights) for w in weights])
    assert near((moved == 1).any(1).double().mean(), 0.5)


def test_inverse_influence_by_hand():
    here = context([1.0, 1.0, 1.0], 0.0, [1.0, 1.0, 1.0], 0.0)
    g = torch.tensor([[0.5, -2.0, 0.0, 7.0]])
    g_twin = torch.tensor([[-0.5, 2.0, 0.0, 7.0]])
    weights = inverse_influence(here, torch.tensor([[4, 4, 4, 0]]), g, g_twin)
    assert weights[0].tolist() == pytest.approx(
        [1.0, 0.25, 1e9, 0.0]
    )  # opposite signs do not cancel; the sensitive one is not free


def test_choices_have_their_probabilities_and_never_a_weight_of_zero():
    here = context([1.0, 1.0, 1.0], 0.0, [1.0, 1.0, 1.0], 0.0)
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0], dtype=torch.float64).repeat(MANY, 1)
    chosen = draw_column(here, {"origin": torch.arange(MANY)}, weights, 5)
    assert near(torch.bincount(chosen[:, 0], minlength=4) / MANY, [0.0, 0.25, 0.75, 0.0])


def test_metropolis():
    here = context([1.0, 1.0, 1.0], 0.0, [1.0, 1.0, 1.0], 0.0)
    yes, no = torch.ones(MANY, dtype=torch.bool), torch.zeros(MANY, dtype=torch.bool)
    origin = torch.arange(MANY)
    assert near(metropolis(here, {"origin": origin, "missed": no}, no, 3).double().mean(), 1 / math.e)
    assert metropolis(here, {"origin": origin, "missed": yes}, no, 3).all()
    assert metropolis(here, {"origin": origin, "missed": no}, yes, 3).all()
    assert metropolis(here, {"origin": origin, "missed": yes}, yes, 3).all()


@pytest.mark.parametrize("method", [Adf(local=True), Aequitas()], ids=["adf", "aequitas"])
def test_a_miss_is_kept_with_its_probability(method):
    here = context([1.0, 2.0, 1.0], 5.0, [1.0, 2.0, 1.0], 5.0)
    seeds = walkers_at(4, 4, 4, 0)
    yes, no = torch.ones(MANY, dtype=torch.bool), torch.zeros(MANY, dtype=torch.bool)
    state = told(method, here, begin(method, here, seeds), seeds, 0, yes)
    assert torch.equal(state["base"], seeds)
    rows = state["rows"]
    after_miss = told(method, here, state, rows, 1, no)
    kept = (after_miss["base"] == rows).all(1)
    assert near(kept.double().mean(), 1 / math.e)
    assert torch.equal(after_miss["base"][~kept], seeds[~kept])
    assert torch.equal(after_miss["missed"], kept)
    # Whoever stands on a miss keeps the next one; whoever went back may go back again.
    rows = after_miss["rows"]
    again = (told(method, here, after_miss, rows, 2, no)["base"] == rows).all(1)
    assert again[kept].all()
    assert near(again[~kept].double().mean(), 1 / math.e, int((~kept).sum()))
    found = told(method, here, state, state["rows"], 1, yes)
    assert torch.equal(found["base"], state["rows"])
    # The very first row is where the chain stands, finding or not.
    first = told(method, here, begin(method, here, seeds), seeds, 0, no)
    assert torch.equal(first["base"], seeds)
    assert first["missed"].all()


def test_adf_compares_with_the_twin_of_the_row_it_stands_on():
    here = context([1.0, 2.0, 1.0], 5.0, [1.0, 2.0, 1.0], 5.0)
    method, seeds = Adf(local=True), walkers_at(4, 4, 4, 0, count=64)
    state = begin(method, here, seeds)
    for t in range(6):
        state = told(method, here, state, state["rows"], t, torch.arange(64) % 3 == t % 3)
        twin = state["base"].clone()
        twin[:, 3] = 1
        assert torch.equal(state["twin"], twin)


# EIDIG, global


def test_momentum_by_hand():
    # z = a0 - 2 a1 + 1 for the row and one less for its twin.
    w = [1.0, -2.0, 0.0]
    here, method = context(w, 1.0, w, 0.0), EidigGlobal()
    rows = torch.tensor([[5, 1, 3, 0]])
    first = told(method, here, begin(method, here, rows), rows, 0)
    assert first["rows"].tolist() == [[4, 2, 3, 0]]  # a2 has no slope and stays
    second = told(method, here, first, first["rows"], 1)

    def slope(z: float) -> float:  # of the probability of the class that is decided
        return sigmoid(z) * (1 - sigmoid(z)) * (1 if z > 0 else -1)

    # z = 4 and 3 at first, then 1 and 0.
    assert first["g"][0, :3].tolist() == pytest.approx([slope(4) * x for x in w])
    assert first["g_twin"][0, :3].tolist() == pytest.approx([slope(3) * x for x in w])
    assert second["g"][0, :3].tolist() == pytest.approx([(0.5 * slope(4) + slope(1)) * x for x in w])


@pytest.mark.parametrize(("past", "step"), [(-1.9, [-1, -1, -1, 0]), (-2.1, [1, 1, 1, 0])])
def test_momentum_may_overrule_the_gradient(past, step):
    w = [1.0, 1.0, 1.0]
    here, method = context(w, 2.0, w, 2.0), EidigGlobal()
    rows = torch.tensor([[4, 4, 4, 0]])
    fresh = told(method, here, begin(method, here, rows), rows, 0)
    state = begin(method, here, rows) | {"g": past * fresh["g"], "g_twin": past * fresh["g_twin"]}
    assert (told(method, here, state, rows, 1)["rows"] - rows)[0].tolist() == step


# EIDIG, local


def test_eidig_moves_what_matters_least():
    # As for ADF, with the gradient of p: p (1 - p) times the weights.
    here = context([1.0, 2.0, -1.0], -7.0, [3.0, -1.0, 0.0], -6.0)
    rows = walkers_at(4, 4, 4, 0)
    own, other = (sigmoid(z) * (1 - sigmoid(z)) for z in (1.0, 2.0))
    weights = [1 / (own * 1 + other * 3), 1 / (own * 2 + other * 1), 1 / (own * 1 + other * 0)]
    method = EidigLocal()
    state = told(method, here, begin(method, here, rows), rows, 0)
    assert state["weights"][0].tolist() == pytest.approx([*weights, 0.0])
    moved = state["rows"] - rows
    assert (moved.abs().sum(1) == 1).all()
    assert near((moved[:, :3] != 0).double().mean(0), [w / sum(weights) for w in weights])
    assert near((moved == 1).any(1).double().mean(), 0.5)


CURVED = ([1.0, 2.0, -1.0], -7.0, [3.0, -1.0, 0.0], -6.0)


def test_a_miss_leads_back_to_the_seed_and_its_probabilities():
    here, method = context(*CURVED), EidigLocal(interval=2)
    seeds = walkers_at(4, 4, 4, 0, count=3)
    state = told(method, here, begin(method, here, seeds), seeds, 0, [True] * 3)
    first = state["weights"]
    for t, found in enumerate(([True, True, False], [True, True, True]), 1):
        rows = walkers_at(4 + t, 4, 4, 0, count=3)
        state = told(method, here, state, rows, t, found)
        assert torch.equal(state["base"], torch.where(torch.tensor(found)[:, None], rows, seeds))
    # After two findings in a row the probabilities are those of the second one; the third chain has one only.
    assert not torch.isclose(state["weights"][:2], first[:2]).all(1).any()
    fresh = told(method, here, begin(method, here, rows), rows, 0)["weights"]
    assert torch.equal(state["weights"][:2], fresh[:2])
    assert torch.equal(state["weights"][2], first[2])
    assert state["run"].tolist() == [0, 0, 1]
    state = told(method, here, state, state["rows"], 3, [False, True, False])
    assert state["base"][[0, 2]].tolist() == seeds[:2].tolist()
    assert torch.equal(state["weights"], torch.stack([first[0], fresh[1], first[2]]))
    assert state["run"].tolist() == [0, 1, 0]
    # The next step starts from the seed again.
    assert ((state["rows"] - state["base"]).abs().sum(1) == 1).all()


@pytest.mark.parametrize(("interval", "times"), [(5, [0, 5, 10]), (3, [0, 3, 6, 9, 12]), (None, [0])])
def test_gradients_are_computed_seldom(interval, times):
    here, method = context(*CURVED), EidigLocal(interval=interval)
    seeds = walkers_at(4, 4, 4, 0, count=7)
    state, spent = begin(method, here, seeds), []
    for t in range(14):
        before = here.network.rows_backward
        state = told(method, here, state, state["rows"], t, [True] * 7)
        spent.append(here.network.rows_backward - before)
    assert spent == [14 if t in times else 0 for t in range(14)]  # seven rows and their twins


def test_a_miss_starts_the_count_anew():
    here, method = context(*CURVED), EidigLocal(interval=5)
    seeds = walkers_at(4, 4, 4, 0, count=2)
    state, spent = begin(method, here, seeds), []
    for t in range(12):
        before = here.network.rows_backward
        state = told(method, here, state, state["rows"], t, [True, t != 3])
        spent.append(here.network.rows_backward - before)
    # The first chain is due at steps 5 and 10, the second, which missed at step 3, at step 8.
    assert spent == [4, 0, 0, 0, 0, 2, 0, 0, 2, 0, 2, 0]


def test_the_two_variants_of_eidig_by_name():
    setting = Setting(context(*CURVED), KeySet(), 100)
    assert tuple(METHODS["eidig5"].make(setting))[:2] == (EidigGlobal(), EidigLocal(interval=5))
    assert tuple(METHODS["eidiginf"].make(setting))[:2] == (EidigGlobal(), EidigLocal(interval=None))


@pytest.mark.parametrize("interval", [5, None])
def test_eidig_walks_blindly_too(interval):
    here = replace(context(*CURVED), blind=True)
    result = run_phase(here, EidigLocal(interval), walkers_at(4, 4, 4, 0, count=6), budget=Budget(20))
    assert result.findings.evaluated == 120
    assert here.network.rows_backward == 0


# Aequitas

PLAIN = ([1.0, 1.0, 1.0], 5.0, [1.0, 1.0, 1.0], 5.0)


def learned(method: Aequitas, found: bool, **state: list[float] | int | bool) -> tuple[list[float], list[float]]:
    """The chances and the directions after the step that `state` describes."""
    here, rows = context(*PLAIN), torch.tensor([[4, 4, 4, 0]])
    given = {
        name: torch.tensor([value], dtype=torch.float64) if isinstance(value, list) else torch.tensor([[value]])
        for name, value in state.items()
    }
    after = told(method, here, begin(method, here, rows) | given, rows, 1, [found])
    return after["chance"][0].tolist(), after["down"][0].tolist()


def test_all_attributes_and_directions_are_equal_at_first():
    here, rows = context(*PLAIN), torch.tensor([[4, 4, 4, 0]])
    state = begin(Aequitas(), here, rows)
    for after in (
        state,
        told(Aequitas(), here, state, rows, 0, [True]),
        told(Aequitas(), here, state, rows, 0, [False]),
    ):
        assert after["chance"][0].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
        assert after["down"][0].tolist() == [0.5] * 4  # the seed itself teaches nothing


@pytest.mark.parametrize(
    ("found", "went_down", "down"),
    [(True, True, 0.501), (True, False, 0.499), (False, True, 0.499), (False, False, 0.501)],
)
def test_learning_by_hand(found, went_down, down):
    given = {"chance": [0.5, 0.2, 0.3, 0.0], "column": 1, "went_down": went_down}
    chance, after = learned(Aequitas(), found, **given)
    total = 1.001 if found else 0.999
    assert chance == pytest.approx([0.5 / total, (0.201 if found else 0.199) / total, 0.3 / total, 0.0], abs=1e-12)
    assert after == pytest.approx([0.5, down, 0.5, 0.5], abs=1e-12)
    # Semi-directed: directions only. Random: nothing.
    chance, after = learned(Aequitas(learns="directions"), found, **given)
    assert chance == [0.5, 0.2, 0.3, 0.0]
    assert after == pytest.approx([0.5, down, 0.5, 0.5], abs=1e-12)
    assert learned(Aequitas(learns="nothing"), found, **given) == ([0.5, 0.2, 0.3, 0.0], [0.5] * 4)


def test_chances_stay_chances():
    fast = Aequitas(learning_rate=0.25)
    chance, down = learned(
        fast, False, chance=[0.1, 0.4, 0.5, 0.0], down=[0.1, 0.5, 0.9, 0.5], column=0, went_down=True
    )
    assert chance == pytest.approx([0.0, 0.4 / 0.9, 0.5 / 0.9, 0.0])
    assert down == [0.0, 0.5, 0.9, 0.5]
    chance, down = learned(fast, True, chance=[0.1, 0.4, 0.5, 0.0], down=[0.1, 0.5, 0.9, 0.5], column=2, went_down=True)
    assert chance == pytest.approx([0.1 / 1.25, 0.4 / 1.25, 0.75 / 1.25, 0.0])
    assert down == [0.1, 0.5, 1.0, 0.5]


def test_attributes_and_directions_are_drawn_with_their_chances():
    here, rows, method = context(*PLAIN), walkers_at(4, 4, 4, 0), Aequitas()
    chance = torch.tensor([0.7, 0.1, 0.2, 0.0], dtype=torch.float64).repeat(MANY, 1)
    down = torch.tensor([0.2, 1.0, 0.0, 0.5], dtype=torch.float64).repeat(MANY, 1)
    after = told(method, here, begin(method, here, rows) | {"chance": chance, "down": down}, rows, 0)
    moved = after["rows"] - rows
    assert (moved.abs().sum(1) == 1).all()
    assert near((moved != 0).double().mean(0), [0.7, 0.1, 0.2, 0.0])
    assert near((moved[:, 0] == -1).double().mean(), 0.7 * 0.2)
    assert not (moved[:, 1] == 1).any()
    assert not (moved[:, 2] == -1).any()
    # What is remembered is what was done.
    assert torch.equal(after["column"][:, 0], (moved != 0).int().argmax(1))
    assert torch.equal(after["went_down"][:, 0], (moved == -1).any(1))


def test_a_nominal_attribute_goes_to_every_other_value(people):
    here = networks.context(networks.random_module(people, seed=1), people)
    race = people.column("race")
    rows = people.sample(1, torch.Generator().manual_seed(0)).repeat(MANY, 1)
    rows[:, race] = 1
    method = Aequitas()
    chance = torch.zeros(MANY, len(people.names), dtype=torch.float64)
    chance[:, race] = 1.0
    for down in (0.0, 1.0):  # a direction means nothing to it
        state = begin(method, here, rows)
        state |= {"chance": chance, "down": torch.full_like(state["down"], down)}
        after = told(method, here, state, rows, 0)["rows"]
        assert near(torch.bincount(after[:, race], minlength=3) / MANY, [0.5, 0.0, 0.5])
        after[:, race] = 1
        assert torch.equal(after, rows)


def test_every_walker_learns_for_itself_and_finds_the_way():
    # Only rows with a0 below 2 are split: steps down of a0, and none of its steps up, lead to findings.
    here = networks.context(two_planes([0.0, 0.0, 0.0], -1.0, [-1.0, 0.0, 0.0], 1.5), DOMAIN)
    rows = torch.cartesian_prod(torch.arange(10), torch.tensor([4]), torch.tensor([4]), torch.tensor([0, 1]))
    assert torch.equal(judged(here, rows).discriminates, rows[:, 0] < 2)
    method = Aequitas(learning_rate=0.01)
    state = begin(method, here, walkers_at(1, 4, 4, 0, count=500))
    for t in range(60):
        state = told(method, here, state, state["rows"], t)
    assert state["down"][:, 0].mean() > 0.51
    assert torch.allclose(state["chance"].sum(1), torch.ones(500, dtype=torch.float64))
    assert len(state["down"].unique(dim=0)) > 100


@pytest.mark.parametrize(
    ("name", "local"),
    [
        ("aequitas", Aequitas()),
        ("aequitas-semi", Aequitas(learns="directions")),
        ("aequitas-random", Aequitas(learns="nothing")),
        ("uniform", Uniform()),
    ],
)
def test_the_global_phase_of_aequitas_is_uniform(name, local):
    assert tuple(METHODS[name].make(Setting(context(*PLAIN), KeySet(), 100)))[:2] == (Uniform(), local)
    assert not METHODS[name].gradients


def test_uniform_rows_are_uniform_over_the_rows_that_exist_and_have_no_seed(people):
    here = networks.context(networks.random_module(people, seed=1), people)
    state = begin(Uniform(), here, people.sample(1, torch.Generator().manual_seed(0)).repeat(MANY, 1))
    rows = Uniform().ask(here, state, 4)
    assert torch.equal(Uniform().tell(here, state, rows, judged(here, rows), 4)["rows"], state["rows"])
    other = begin(Uniform(), here, people.sample(MANY, torch.Generator().manual_seed(1)))
    assert torch.equal(Uniform().ask(here, other, 4), rows)
    assert not torch.equal(Uniform().ask(here, other, 5), rows)
    assert people.valid(rows).all()
    # A husband or wife has 2 of the 3 marital values, everybody else all 3: 10 pairs, all equally frequent.
    pairs = rows[:, people.column("relationship")] * 3 + rows[:, people.column("marital")]
    shares = torch.bincount(pairs, minlength=12) / MANY
    assert near(shares, [0.1, 0.1, 0.0, 0.1, 0.1, 0.0, *[0.1] * 6])
    assert near(rows[:, people.column("sex")].double().mean(), 0.5)
