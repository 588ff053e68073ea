from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from neuronfair import Decision, Network, TableDomain, evaluate
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule
from neuronfair.domain.schema.toml import parse_domain
from neuronfair.model.encoding import TableEncoding
from neuronfair.searches.engine import Budget, run_phase
from neuronfair.searches.method import SearchContext, State
from neuronfair.searches.methods.frontier import (
    DEPTH_BINS,
    DEPTH_EDGES,
    LENGTH_BINS,
    MAX_PILOT,
    ROWS_REMEMBERED,
    Frontier,
    binning,
    estimate_chances,
)
from tests.conftest import PEOPLE
from tests.planted import networks

PEOPLE_DOMAIN = parse_domain(PEOPLE)
BY_RACE = PEOPLE_DOMAIN.with_sensitive("race")  # three values: families of three


def begin(context: SearchContext, rows: Tensor) -> State:
    number = torch.arange(len(rows))
    return Frontier().start(context, {"origin": number, "rows": rows, "found": torch.zeros_like(number)})


def measured(context: SearchContext, rows: Tensor) -> State:
    """The state after rows were judged for the first time."""
    evaluation = evaluate(context.network, context.domain, rows, context.decision)
    return Frontier().tell(context, begin(context, rows), rows, evaluation, 0)


def only_safe(domain: TableDomain) -> Tensor:
    """A table that trusts exactly the moves predicted to stay inside."""
    safe = torch.arange(DEPTH_BINS) > DEPTH_EDGES.index(0.0)
    return safe.float()[None, :, None].expand(len(domain.names), DEPTH_BINS, LENGTH_BINS).flatten()


# The split depth of a family


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([2, 3]), st.sampled_from([PEOPLE_DOMAIN, BY_RACE]))
def test_the_split_depth_is_positive_exactly_where_classes_differ(seed, classes, domain):
    context = networks.context(networks.random_module(domain, classes, seed=seed), domain)
    rows = networks.uniform_rows(domain, 200, seed)
    state = measured(context, rows)
    split = evaluate(context.network, domain, rows).discriminates
    assert torch.equal(context.decision.measure_split_depth(state["high"], state["low"]) > 0, split)
    assert torch.equal(state["inside"], split)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([PEOPLE_DOMAIN, BY_RACE]), st.sampled_from(["threshold", "tolerance"]))
def test_the_split_depth_is_positive_exactly_where_scores_differ(seed, domain, kind):
    decision = Decision(kind, 0.7)
    context = networks.context(networks.random_module(domain, 1, seed=seed), domain, decision=decision)
    rows = networks.uniform_rows(domain, 200, seed)
    state = measured(context, rows)
    # For a tolerance the family is split when its two ends are too far apart, wherever the row itself lies.
    twins, _ = domain.twins(rows)
    family = torch.cat([rows[:, None], twins], 1)
    split = evaluate(context.network, domain, family.flatten(0, 1), decision).discriminates.view(len(rows), -1).any(1)
    assert torch.equal(decision.measure_split_depth(state["high"], state["low"]) > 0, split)


def test_twins_that_do_not_exist_are_no_ends():
    rules = (Rule("b needs s below 2", {"b": (1,)}, {"s": (0, 1)}),)
    domain = TableDomain("d", (Attribute("s", "ordinal", low=0, high=3), Attribute("b", "flag")), ("s",), rules)
    module = nn.Sequential(networks.linear([[1.0, 0.0]], [0.0]), nn.ReLU(), networks.linear([[0.0], [1.0]], [1.5, 0.0]))
    state = measured(networks.context(module, domain), torch.tensor([[0, 1], [0, 0]]))
    assert state["inside"].tolist() == [False, True]
    assert state["high"].tolist() == [-0.5, 1.5]
    assert state["low"].tolist() == [-1.5, -1.5]


# Predicting where a move leads


@pytest.mark.parametrize("domain", [PEOPLE_DOMAIN, BY_RACE], ids=["sex", "race"])
def test_the_ends_of_a_linear_network_are_predicted_exactly(domain):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(2, TableEncoding.of(domain).width, generator=generator).tolist()
    linear = networks.linear(weight, [0.3, -0.2]).double()
    network = Network(linear.eval(), domain, layers=())
    context = replace(networks.context(networks.random_module(domain), domain), network=network)
    rows = networks.uniform_rows(domain, 50)
    state = measured(context, rows)
    weights = margin_weights_of(context, rows)
    for column in domain.changeable.nonzero()[:, 0].tolist():
        codes = torch.randint(domain.attributes[column].size, (50, 1), generator=generator)
        high, low, _ = Frontier()._predict(context, state, torch.full((50, 1), column), codes)
        moved = rows.clone()
        moved[:, column] = codes[:, 0]
        margins = (family_scores(context, moved) * weights[:, None]).sum(2)
        assert torch.allclose(high[:, 0], margins.amax(1))
        assert torch.allclose(low[:, 0], margins.amin(1))


def family_scores(context: SearchContext, rows: Tensor) -> Tensor:
    evaluation = evaluate(context.network, context.domain, rows, context.decision)
    return torch.cat([evaluation.scores[:, None], evaluation.twin_scores], 1)


def margin_weights_of(context: SearchContext, rows: Tensor) -> Tensor:
    scores = family_scores(context, rows)
    return context.decision.find_margin_weights(scores, torch.ones(scores.shape[:2], dtype=torch.bool))


def test_cells_by_hand():
    domain = networks.domain()
    context = networks.context(networks.one_biased_neuron(), domain)
    # The digits add up to 19: class 0 leads by 0.5 for s = 0 and trails by 1.5 for s = 1.
    state = measured(context, torch.tensor([[5, 5, 5, 4, 0]]))
    assert (state["high"].tolist(), state["low"].tolist()) == ([1.5], [-0.5])
    # One up: 0.5 and -1.5, split depth 0.5, change 1 + 1: 0.25 lies in the bin that 0.125 opens.
    columns, codes = torch.tensor([[0, 3]]), torch.tensor([[6, 7]])
    high, low, cells = Frontier()._predict(context, state, columns, codes)
    assert (high.tolist(), low.tolist()) == ([[0.5, -1.5]], [[-1.5, -3.5]])
    one_up = (0 * DEPTH_BINS + DEPTH_EDGES.index(0.25)) * LENGTH_BINS + 0
    three_up = (3 * DEPTH_BINS + DEPTH_EDGES.index(-0.25)) * LENGTH_BINS + 1  # depth -1.5, change 6; a way of 2 to 3
    assert cells.tolist() == [[one_up, three_up]]


def test_a_walker_inside_takes_a_move_that_stays_inside():
    domain = networks.domain()
    context = networks.context(networks.one_biased_neuron(), domain)
    rows = networks.uniform_rows(domain, 2000)
    rows = rows[(rows[:, :4] > 0).all(1)]  # at 0 the neurons have a kink
    state = measured(context, rows[evaluate(context.network, domain, rows).discriminates])
    method = Frontier(stay_chances=only_safe(domain))
    assert len(state["rows"]) > 100
    for t in range(1, 5):
        asked = method.ask(context, state, t)
        columns, codes, exists = method._draw_moves(context, state, t)
        moved = state["rows"][:, None].repeat(1, method.candidates, 1).scatter(2, columns[..., None], codes[..., None])
        stays = evaluate(context.network, domain, moved.flatten(0, 1)).discriminates.view(exists.shape) & exists
        assert torch.equal(evaluate(context.network, domain, asked).discriminates, stays.any(1))
        assert ((asked != state["rows"]).sum(1) == 1).all()


@pytest.mark.parametrize(
    "decision",
    [
        Decision(),
        Decision("threshold", 28.5),
    ],
    ids=["argmax", "threshold"],
)
def test_a_walker_outside_heads_for_the_boundary(decision):
    domain = networks.domain()
    if decision.kind == "argmax":
        module, middle = networks.one_biased_neuron(), 19.5
    else:  # the sum and 2 s on top
        first = networks.linear([[1.0, 1.0, 1.0, 1.0, 2.0]], [0.0])
        module, middle = nn.Sequential(first, nn.ReLU(), networks.linear([[1.0]], [0.0])), 27.5
    context = networks.context(module, domain, decision=decision)
    rows = networks.uniform_rows(domain, 500)
    rows = rows[(rows[:, :4].sum(1) - middle).abs() > 6]
    asked = Frontier(candidates=200).ask(context, measured(context, rows), 2)
    before, after = (rows[:, :4].sum(1) - middle).abs(), (asked[:, :4].sum(1) - middle).abs()
    assert (after < before).all()
    assert after.double().mean() < 0.4 * before.double().mean()


# Plateaus

# relu(a0 - 5) decides: flat for a0 below 6.
PLATEAU = nn.Sequential(
    networks.linear([[1.0, 0.0, 0.0, 0.0, 1.0]], [-5.5]), nn.ReLU(), networks.linear([[0.0], [1.0]], [1.0, 0.0])
)


def test_a_walker_on_a_plateau_is_drawn_anew():
    domain = networks.domain()
    context = networks.context(PLATEAU, domain)
    rows = torch.tensor([[1, 4, 4, 4, 0]]).repeat(300, 1)
    asked = Frontier().ask(context, measured(context, rows), 2)
    assert (asked[:, 4] == 0).all()
    for column in range(4):  # all attributes, to any value
        assert set(asked[:, column].tolist()) == set(range(10))


def test_a_slope_is_not_given_up_for_a_plateau_nor_a_finding_for_a_miss():
    domain = networks.domain()
    context = networks.context(PLATEAU, domain)
    flat, steep, inside = [1, 4, 4, 4, 0], [9, 4, 4, 4, 0], [6, 4, 4, 4, 0]
    assert measured(context, torch.tensor([flat, steep, inside]))["inside"].tolist() == [False, False, True]

    def after(first: list[int], second: list[int]) -> list[int]:
        rows = torch.tensor([second])
        state = measured(context, torch.tensor([first]))
        return Frontier().tell(context, state, rows, evaluate(context.network, domain, rows), 1)["rows"][0].tolist()

    assert after(steep, flat) == steep
    assert after(flat, steep) == steep
    assert after(inside, steep) == inside
    assert after(steep, inside) == inside
    assert after(flat, [0, 4, 4, 4, 0]) == [0, 4, 4, 4, 0]


# The pilot and its table


def test_the_table_depends_on_network_domain_and_seed_only():
    context = networks.context(networks.random_module(PEOPLE_DOMAIN), PEOPLE_DOMAIN)
    table = Frontier().prepare(context)[0].stay_chances
    again = Frontier().prepare(replace(context, draws=replace(context.draws, phase="other")))[0].stay_chances
    other = Frontier().prepare(replace(context, draws=replace(context.draws, seed=1)))[0].stay_chances
    assert table is not None
    assert torch.equal(table, again)
    assert not torch.equal(table, other)
    assert ((table > 0) & (table < 1)).all()
    by_depth = table.view(len(PEOPLE_DOMAIN.names), DEPTH_BINS, LENGTH_BINS).mean((0, 2))
    # What is predicted to be safe is safe more often; the outermost bins, which nobody reached, say nothing.
    assert by_depth[-6:-1].min() > 0.8 > 0.2 > by_depth[3:6].max()


def test_ctrl_c_in_the_pilot_is_not_swallowed(monkeypatch):
    context = networks.context(networks.one_biased_neuron(), networks.domain())
    ask, calls = Frontier.ask, []

    def pressed_once(self: Frontier, context: SearchContext, state: State, t: int) -> Tensor:
        calls.append(t)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return ask(self, context, state, t)

    monkeypatch.setattr(Frontier, "ask", pressed_once)
    _, pilot = Frontier().prepare(context)
    assert pilot.stop == "interrupted"


def test_a_pilot_that_saw_nothing_trusts_what_is_predicted_to_be_safe():
    nothing = torch.zeros(3, DEPTH_BINS, LENGTH_BINS, dtype=torch.float64)
    by_depth = estimate_chances(nothing, nothing).view(3, DEPTH_BINS, LENGTH_BINS)[1, :, 2]
    assert (by_depth.diff() > 0).all()
    assert torch.allclose(by_depth[[0, DEPTH_BINS // 2, -1]], torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64))
    # Eight tries outweigh it by half: (8 hits + 8 * chance) / 16 at every level, from the coarsest to the finest.
    tries = nothing.clone()
    tries[1, 0, 2] = 8
    assert estimate_chances(tries, tries).view(3, DEPTH_BINS, LENGTH_BINS)[1, 0, 2].item() == pytest.approx(
        1 - 0.95 / 8
    )


def test_the_pilot_finds_people_where_there_are_few():
    """Outside it heads for the boundary as a search does: every chain is inside after a few steps."""
    domain = networks.large_domain()
    context = networks.context(networks.one_biased_neuron(inputs=11, boundary=networks.MIDDLE), domain)
    _, pilot = Frontier().prepare(context)
    early = pilot.findings.origin[pilot.findings.step < 20]
    assert len(early.unique()) == len(pilot.findings.origin.unique()) == MAX_PILOT


# Where it was


def test_a_walker_does_not_judge_a_row_again_that_it_remembers():
    module = networks.one_biased_neuron(inputs=11, weight=40.0, boundary=networks.MIDDLE)
    context = networks.context(module, networks.large_domain())  # a row has more neighbours than are remembered
    rows = networks.uniform_rows(context.domain, 40)
    state, method = measured(context, rows), Frontier(stay_chances=only_safe(context.domain))
    keys = [context.domain.key(rows)]
    for t in range(2, ROWS_REMEMBERED + 1):
        rows = method.ask(context, state, t)
        state = method.tell(context, state, rows, evaluate(context.network, context.domain, rows), t)
        keys.append(context.domain.key(rows))
    for chain in torch.stack(keys, 1):
        assert len(set(chain.tolist())) == ROWS_REMEMBERED
    assert torch.equal(state["recent"], torch.stack(keys, 1))


# Rules, and whether the guidance guides


@pytest.mark.parametrize(
    "candidates",
    [1, 24],
)
def test_every_row_it_asks_for_exists(candidates):
    context = networks.context(networks.random_module(PEOPLE_DOMAIN, seed=1), PEOPLE_DOMAIN)
    state = measured(context, networks.uniform_rows(PEOPLE_DOMAIN, 300))
    method = Frontier(candidates=candidates)
    for t in range(1, 6):
        assert PEOPLE_DOMAIN.valid(method.ask(context, state, t)).all()


def test_guidance_beats_the_blind_walk():
    domain = networks.large_domain()
    module = networks.one_biased_neuron(inputs=11, boundary=networks.MIDDLE)
    seeds = networks.uniform_rows(domain, 100)
    rates = {}
    for blind in (False, True):
        context = networks.context(module, domain, blind=blind)
        found = run_phase(context, Frontier().prepare(context)[0], seeds, budget=Budget(steps=50)).findings
        rates[blind] = found.success_rate
    assert rates[False] > 2 * rates[True]


def test_lengths_are_binned_by_their_logarithm():
    edges, lengths = binning(torch.float64, torch.device("cpu"))
    assert edges.tolist() == list(DEPTH_EDGES)
    ways = torch.arange(1, 2000)
    expected = torch.log2(ways.float()).long().clamp(max=LENGTH_BINS - 1)
    assert torch.equal(lengths[ways.clamp(max=len(lengths) - 1)], expected)
    assert int(lengths[0]) == 0  # no move
