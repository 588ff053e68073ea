"""ExpGA: who is chosen by an explanation, and how an island breeds."""

from __future__ import annotations

import pytest
import torch

from neuronfair import BlackBox, Decision, evaluate
from neuronfair.domain.draws import Draws
from neuronfair.searches.method import SearchContext
from neuronfair.searches.methods import expga
from neuronfair.searches.methods.expga import ExpgaGlobal, ExpgaLocal, breed, explain_scores
from tests.planted import networks

DOMAIN = networks.domain()  # a0 … a3 on 0 to 9, and the sensitive bit s


def context(ask):
    return SearchContext(BlackBox(ask, DOMAIN), DOMAIN, Decision("threshold", 0.5), Draws(0, "test"))


def test_a_linear_model_is_explained_by_its_weights():
    kept = torch.randint(0, 2, (1, 400, 3), generator=torch.Generator().manual_seed(0)).double()
    scores = kept @ torch.tensor([[2.0], [0.0], [-3.0]]).double()
    assert torch.allclose(explain_scores(kept, scores)[0, :, 0], torch.tensor([2.0, 0.0, 3.0]).double(), atol=0.1)


@pytest.mark.parametrize(("weight", "rank"), [(9.0, 0), (0.01, 2)])
def test_the_rank_of_the_sensitive_attribute_is_how_many_weigh_more(weight, rank):
    here = context(lambda rows: weight * rows[:, 4] + (rows[:, 0] == 3) + 2.0 * (rows[:, 1] == 3))
    rows = torch.tensor([[3, 3, 0, 0, 1]])
    assert ExpgaGlobal(400).count_heavier(here, rows, 1).tolist() == [rank]


def test_of_random_people_the_one_is_judged_whose_sensitive_attribute_ranks_higher():
    here = context(lambda rows: rows[:, 4] * (rows[:, 0] > 4) + 0.5 * (rows[:, 1] > 4))
    seeds = networks.uniform_rows(DOMAIN, 300)
    state = {"origin": torch.arange(300), "rows": seeds}
    asked = ExpgaGlobal().ask(here, state, 1)
    assert (asked[:, 4] == seeds[:, 4]).all()
    assert (asked[:, 0] > 4).double().mean() > 0.6  # the bit matters there alone; half of all people are there
    assert torch.equal(ExpgaGlobal().ask(here, state, 0), seeds)


def test_few_walkers_are_explained_at_a_time(monkeypatch):
    asked = []
    here = context(lambda rows: asked.append(len(rows)) or rows[:, 4] * (rows[:, 0] > 4) + 0.5 * (rows[:, 1] > 4))
    rows = networks.uniform_rows(DOMAIN, 30)
    whole, begun = ExpgaGlobal().count_heavier(here, rows, 1), len(asked)
    monkeypatch.setattr(expga, "ROWS_PER_PASS", 700)
    assert torch.equal(ExpgaGlobal().count_heavier(here, rows, 1), whole)
    assert asked[begun:] == [700, 700, 700, 700, 200]


def test_children_by_hand():
    people = torch.tensor([[[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]]])
    fitness = torch.tensor([[1.0, 3.0, 1.0]]).double()  # the second one takes the middle three fifths
    still = [0.9] * 4 + [0.0] * 4  # nothing mutates
    u = torch.tensor(
        [
            [
                [0.25, 0.95, 0.0, 0.0, 0.0, *still],  # the second, no crossover
                [0.79, 0.50, 0.99, 0.25, 0.65, *still],  # the second; places 1 and 2 come from the third
                [0.81, 0.95, 0.0, 0.0, 0.0, 0.04, 0.05, 0.9, 0.9, 0.75, 0.75, 0.0, 0.0],  # the third; the first mutates
            ]
        ]
    ).double()
    children = breed(people, fitness, u, torch.tensor([10, 10, 10, 10]))
    assert children[0].tolist() == [[2, 2, 2, 2], [2, 3, 3, 2], [7, 3, 3, 3]]


def test_an_island_judges_everybody_before_it_breeds():
    here = context(lambda rows: (rows[:, 0] > 4) * rows[:, 4].double())
    seeds = torch.tensor([[7, 0, 0, 0, 0], [8, 1, 1, 1, 1]])
    method = ExpgaLocal(members=4)
    state = method.start(here, {"origin": torch.arange(2), "rows": seeds})
    first = state["people"].clone()
    assert torch.equal(first[:, 0], seeds)
    for t in range(4):
        rows = method.ask(here, state, t)
        assert torch.equal(rows, first[:, t])
        evaluation = evaluate(here.network, DOMAIN, rows, here.decision)
        before, state = state, method.tell(here, state, rows, evaluation, t)
        if t < 3:
            assert state["fitness"][:, t].tolist() == [3.0 if x > 4 else 1.0 for x in rows[:, 0].tolist()]
            assert torch.equal(state["people"], before["people"])
    assert not torch.equal(state["people"], first)
    assert (state["people"][..., 4] == seeds[:, None, 4]).all()  # nobody changes the sensitive value
    assert (state["fitness"] == 1).all()
