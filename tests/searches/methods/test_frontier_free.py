"""frontier-free: effects learned from answers, thresholds of trees, and what a pilot is worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier

from neuronfair import BlackBox, Decision, TableDomain, evaluate, search, wrap_model
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.draws import Draws
from neuronfair.domain.population.model import UserPopulation
from neuronfair.errors import ModelError
from neuronfair.model.encoding import TableEncoding
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.method import SearchContext
from neuronfair.searches.methods.frontier_free import (
    MIN_PILOT_ROWS,
    EffectCells,
    Effects,
    FrontierFree,
    favour_ends,
    prepare_frontier_free,
)
from tests.planted import networks

DOMAIN = TableDomain(
    "d",
    (
        Attribute("s", "flag"),
        Attribute("a", "ordinal", low=0, high=3),
        Attribute("b", "nominal", values=("x", "y", "z")),
        Attribute("c", "ordinal", low=0, high=99),
    ),
    ("s",),
)
A, B = torch.tensor([0.0, 1.0, 4.0, 2.0]), torch.tensor([0.0, -3.0, 5.0])


def sums(rows):
    """What a and b add; the sensitive bit adds 1, and 2 more where b is z; c adds nothing."""
    return A[rows[:, 1]] + B[rows[:, 2]] + rows[:, 0] * (1 + 2 * (rows[:, 2] == 2))


def margins(rows):
    """Both classes, of which the second wins where the sums exceed 4.5."""
    total = (sums(rows) - 4.5) / 2
    return torch.stack([-total, total], 1)


def made(ask, decision=None, domain=DOMAIN):
    return SearchContext(BlackBox(ask, domain), domain, decision or Decision(), Draws(0, "test"))


def fitted(context, n=2000):
    rows = networks.uniform_rows(context.domain, n)
    blank = Effects.blank(context.domain, EffectCells.of(context.domain, None), context.network.outputs)
    return blank.fit(evaluate(context.network, context.domain, rows, context.decision))


def told(method, context, rows):
    """The state after rows were judged for the first time."""
    state = method.start(context, {"origin": torch.arange(len(rows)), "rows": rows, "found": torch.zeros(len(rows))})
    return method.tell(context, state, rows, evaluate(context.network, context.domain, rows, context.decision), 0)


# Effects


def test_the_effects_of_an_additive_model_are_its_own():
    effects = fitted(made(margins))
    rows = torch.tensor([[0, 0, 0, 7]])
    columns, codes = torch.tensor([[1, 1, 2, 2, 3]]), torch.tensor([[1, 2, 1, 2, 90]])
    high, low = effects.move_ends(torch.tensor([[-1.0, 1.0]]).double(), rows, columns, codes)
    # b = z adds 5 to both ends, and 2 more to the higher one alone.
    assert torch.allclose(high, torch.tensor([[1.0, 4.0, -3.0, 7.0, 0.0]]).double(), atol=0.05)
    assert torch.allclose(low, torch.tensor([[1.0, 4.0, -3.0, 5.0, 0.0]]).double(), atol=0.05)


def test_a_decision_for_the_other_class_turns_the_effects_round():
    effects = fitted(made(margins))
    ask = (torch.tensor([[0, 0, 0, 7]]), torch.tensor([[2]]), torch.tensor([[2]]))
    high, low = effects.move_ends(torch.tensor([[1.0, -1.0]]).double(), *ask)
    assert high.item() == pytest.approx(-5, abs=0.05)
    assert low.item() == pytest.approx(-7, abs=0.05)


@pytest.mark.parametrize("outputs", [1, 2])
def test_probabilities_are_read_as_logits_where_these_add_up(outputs):
    p = lambda rows: torch.sigmoid(0.3 * (sums(rows) - 4.5))  # noqa: E731
    decision = Decision("threshold", 0.5) if outputs == 1 else Decision()
    context = made(lambda rows: p(rows) if outputs == 1 else torch.stack([1 - p(rows), p(rows)], 1), decision)
    effects = fitted(context)
    assert effects.is_logarithmic
    weights = torch.ones(1, 1).double() if outputs == 1 else torch.tensor([[-1.0, 1.0]]).double()
    high, _ = effects.move_ends(weights, torch.tensor([[0, 0, 0, 7]]), torch.tensor([[2]]), torch.tensor([[2]]))
    assert high.item() == pytest.approx(0.3 * 7, abs=0.05)
    rows = networks.uniform_rows(DOMAIN, 300)
    state = told(FrontierFree(effects, torch.ones(4)), context, rows)
    inside = effects.decision(decision).measure_split_depth(state["high"], state["low"]) > 0
    assert torch.equal(inside, evaluate(context.network, DOMAIN, rows, decision).discriminates)


def test_scores_that_are_no_probabilities_or_have_a_tolerance_stay_as_they_are():
    assert not fitted(made(margins)).is_logarithmic
    assert not fitted(made(lambda rows: torch.sigmoid(sums(rows)), Decision("tolerance", 0.1))).is_logarithmic
    assert not fitted(made(lambda rows: sums(rows) / 20, Decision("threshold", 0.4))).is_logarithmic  # additive


def test_few_rows_and_many_values_have_the_same_solution_as_the_larger_system():
    context = made(margins)
    judged = evaluate(context.network, DOMAIN, networks.uniform_rows(DOMAIN, 40))
    effects = Effects.blank(DOMAIN, EffectCells.of(DOMAIN, None), 2)
    assert len(effects.bin_effects) > 39  # so 39 rows make the smaller system, and 40 of each the other one
    few = effects.fit(judged[:39])
    copies = replace(judged, **{n: getattr(judged, n)[:39].repeat(2, *[1] * (getattr(judged, n).dim() - 1)) for n in
                                ("rows", "family", "valid", "discriminates")})  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("neuronfair.searches.methods.frontier_free.RIDGE", 6.0)  # twice the people, twice the prior
        assert torch.allclose(effects.fit(copies).bin_effects, few.bin_effects)


def test_whole_rows_are_ranked_by_all_their_values():
    context = made(margins)
    # The sums run from 0 to 1 (outside by 3.5), from 4 to 5 (inside by 0.5), and from 9 to 12 (outside by 4.5).
    rows = torch.tensor([[0, 0, 0, 5], [0, 2, 0, 5], [0, 2, 2, 5]])
    assert torch.allclose(
        fitted(context).predict_depth(rows, context.decision), torch.tensor([-3.5, 0.5, -4.5]).double(), atol=0.05
    )
    scored = made(lambda rows: sums(rows), Decision("tolerance", 2.5))
    inside = fitted(scored).predict_depth(rows, scored.decision)
    assert torch.allclose(inside, torch.tensor([-1.5, -1.5, 0.5]).double(), atol=0.05)


# Cells and thresholds


def tree():
    """Three thresholds: c at 29.5 and 69.5, and s where c lies between them."""
    rows = networks.uniform_rows(DOMAIN, 4000)
    middle = (rows[:, 3] >= 30) & (rows[:, 3] < 70)
    x = TableEncoding.of(DOMAIN).encode(rows, torch.float64).numpy()
    return DecisionTreeClassifier(random_state=0).fit(x, (middle & (rows[:, 0] == 1)).long().numpy()), rows


def test_codes_between_two_thresholds_are_one_cell():
    model, rows = tree()
    box = wrap_model(model, DOMAIN, rows).model
    cells = EffectCells.of(DOMAIN, box.cells)
    assert cells.count.tolist() == [2, 1, 1, 3]
    column = torch.tensor([3, 3, 3, 3, 2])
    assert cells.find(column, torch.tensor([29, 30, 69, 70, 2])).tolist() == [0, 1, 1, 2, 0]
    u = torch.tensor([0.0, 0.0, 0.999, 0.5, 0.99])
    assert cells.draw(column, torch.tensor([0, 1, 1, 2, 0]), u).tolist() == [0, 30, 69, 85, 2]
    plain = EffectCells.of(DOMAIN, None)
    assert plain.draw(column, torch.tensor([1, 2, 3, 4, 0]), u).tolist() == [1, 2, 3, 4, 0]


def test_a_finding_roams_where_the_model_sees_no_difference_and_moves_cross_thresholds():
    model, rows = tree()
    opened = wrap_model(model, DOMAIN, rows)
    context = SearchContext(opened.model, DOMAIN, opened.decision, Draws(0, "test"))
    method = FrontierFree(Effects.blank(DOMAIN, EffectCells.of(DOMAIN, opened.model.cells), 2), torch.ones(4).double())
    starts = torch.tensor([[0, 1, 1, 50]]).repeat(200, 1)
    state = told(method, context, starts)
    assert state["inside"].all()
    asked = method.ask(context, state, 2)  # c alone has thresholds, and its middle is left for both sides
    assert ((asked[:, 3] < 30) | (asked[:, 3] >= 70)).all()
    assert len(asked[:, 1:3].unique(dim=0)) == 12  # a and b are free
    # Where no move can be trusted every second chain stays, and finds someone else for sure.
    asked = replace(method, stay_chances=torch.zeros(4 * 15 * 9).double()).ask(context, state, 2)
    stayed = (asked[:, 3] >= 30) & (asked[:, 3] < 70)
    assert 70 < int(stayed.sum()) < 130
    assert evaluate(context.network, DOMAIN, asked[stayed]).discriminates.all()


def test_trees_that_cannot_be_read_are_a_black_box_without_cells():
    box = BlackBox(margins, DOMAIN)
    assert box.cells is None

    def refuse():
        raise ModelError("too many nodes")

    box = BlackBox(margins, DOMAIN)
    box.trees = refuse
    assert box.cells is None


# Walks


def test_a_walker_does_not_ask_for_a_person_twice():
    domain = TableDomain("d", (Attribute("s", "flag"), Attribute("a", "ordinal", low=0, high=40)), ("s",))
    context = made(lambda rows: torch.stack([torch.zeros(len(rows)), rows[:, 0] - 0.5], 1), domain=domain)
    found = search(
        context.network, domain, torch.tensor([[0, 20]]), SearchConfig("frontier-free", 1, 30, 1, controls=False)
    )
    assert found.total.findings == found.total.tried == 31  # everybody is discriminated: the seed, and thirty others


def test_numbers_go_to_the_ends_and_keep_their_order():
    u = torch.linspace(0, 1, 1001).double()[:-1]
    v = favour_ends(u)
    assert (v[1:] >= v[:-1]).all()
    assert v.min() == 0
    assert v.max() < 1
    assert v[250].item() == pytest.approx(1 / 16)
    assert v[750].item() == pytest.approx(15 / 16)


def test_a_pilot_needs_rows_and_counts_what_it_finds():
    context = made(margins)
    assert prepare_frontier_free(context, rows=MIN_PILOT_ROWS - 1)[1] is None
    method, pilot = prepare_frontier_free(context, rows=400)
    assert pilot.findings.evaluated <= 400
    assert pilot.findings.tried > 0
    assert len(pilot.findings) == pilot.finding_count > 0
    # What adds nothing is trusted, what crosses the boundary is not.
    state = told(method, context, torch.tensor([[0, 2, 0, 5]]))  # 4 to 5: inside by 0.5
    columns, codes = torch.tensor([[3, 2]]), torch.tensor([[60, 2]])
    split_depth = method.measure_split_depth(context, state, columns, codes)
    assert split_depth[0, 0].item() == pytest.approx(0.5, abs=0.1)
    assert split_depth[0, 1].item() == pytest.approx(-4.5, abs=0.3)
    chance = method.stay_chances[method.find_kinds(context, state["rows"], columns, codes, split_depth)]
    assert chance[0, 0] > 0.9 > 0.5 > chance[0, 1]


@pytest.mark.parametrize(
    ("ask", "decision"),
    [
        (lambda rows: (margins(rows)[:, 1] > 0).double(), Decision("threshold", 0.5)),  # hard labels: nothing slopes
        (lambda rows: torch.stack([6 - sums(rows), torch.ones(len(rows)), sums(rows) - 4], 1), Decision()),
        (sums, Decision("tolerance", 2.5)),
    ],
)
def test_it_finds_more_than_random_people_whatever_the_model_says(ask, decision):
    context = made(ask, decision)
    outcome = search(context.network, DOMAIN, networks.uniform_rows(DOMAIN, 100), SearchConfig("frontier-free", 20, 40,
                   decision=decision))  # fmt: skip
    assert outcome.total.success_rate > 1.5 * outcome.random.success_rate > 0


def test_two_sensitive_attributes_are_no_obstacle():
    domain = DOMAIN.with_sensitive("s", "b")
    context = made(margins, domain=domain)
    outcome = search(context.network, domain, networks.uniform_rows(domain, 100), SearchConfig("frontier-free", 20, 40))
    assert outcome.total.success_rate >= outcome.random.success_rate > 0
    assert np.isin(outcome.findings.rows[:, 1].numpy(), range(4)).all()


def test_people_of_a_sampler_have_no_number_for_each_attribute():
    wide = replace(DOMAIN, attributes=(*DOMAIN.attributes, *(Attribute(n, "ordinal", low=0, high=9) for n in "efg")))
    rows = networks.uniform_rows(wide, 300)
    own = UserPopulation.of(wide, rows)
    config = SearchConfig("frontier-free", seeds=10, steps=40, global_steps=5, plausible=0.1, controls=False)
    found = search(BlackBox(margins, wide), wide, rows, config, population=own).findings
    assert len(found) > 0
    assert (own.plausibility(found.rows) >= 0.1).all()
