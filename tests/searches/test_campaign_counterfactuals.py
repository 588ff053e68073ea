"""Searches that compare people with their counterfactuals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from neuronfair.domain.population.counterfactuals import CounterfactualTwins, fit_counterfactuals, with_counterfactuals
from neuronfair.domain.population.plausible import PlausibleDomain
from neuronfair.errors import DomainError, NeuronFairError
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision
from neuronfair.model.profile import interpret
from neuronfair.render.search import compose_search
from neuronfair.searches import evaluate as searching
from neuronfair.searches.campaign import search
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.evaluate import count_flips_of_drawn_twins, counterfactuals_of, evaluate, with_twins
from neuronfair.searches.shrink import shrink
from neuronfair.testing.cases import Young
from tests.planted.proxies import by_a, moved_domain, moved_rows

# A person of the first group with a = 3 stands where one of the second has a = 8. The network decides by a > 6.5, so
# the decision is another for the counterfactuals of a = 2, 3, 4 in the first group and of a = 7, 8, 9 in the second.
DOMAIN, ROWS = moved_domain(), moved_rows()
NETWORK = by_a(DOMAIN)
PLAN = SearchConfig("frontier", seeds=20, steps=20, global_steps=10, controls=False, twins="counterfactual")
BESIDE = fit_counterfactuals(DOMAIN, ROWS)


@pytest.fixture(scope="module")
def outcome():
    return search(NETWORK, DOMAIN, ROWS, PLAN)


def usual(rows):
    return rows[:, 0] // 5 == rows[:, 2]


def test_a_network_that_does_not_read_the_group_is_searched_by_counterfactuals(outcome):
    assert len(search(NETWORK, DOMAIN, ROWS, replace(PLAN, twins="flip")).findings) == 0
    found = outcome.findings
    known = usual(found.rows)
    rows, twins = found.rows[known], found.twins(outcome.domain)[known]
    assert set(map(tuple, rows[:, [0, 2]].tolist())) == {(2, 0), (3, 0), (4, 0), (7, 1), (8, 1), (9, 1)}
    assert torch.equal(twins, rows + torch.tensor([5, 0, 1]) * (1 - 2 * rows[:, 2:]))
    # Somebody of the other group is somebody else, with other counterfactuals.
    assert len(set(outcome.domain.key(found.rows).tolist())) == len(found)
    assert outcome.summary()["violations"] == 0


def test_counterfactuals_that_are_known_are_not_fitted_again(outcome, monkeypatch):
    monkeypatch.setattr(searching, "fit_counterfactuals", None)
    domain = with_counterfactuals(DOMAIN, BESIDE)
    assert with_twins(domain, ROWS, "counterfactual") is domain
    assert counterfactuals_of(with_twins(DOMAIN, ROWS, "counterfactual", BESIDE)) is BESIDE
    assert with_twins(DOMAIN, ROWS, "flip", BESIDE) is DOMAIN
    for where, known in ((DOMAIN, {"counterfactuals": BESIDE}), (domain, {})):
        again = search(NETWORK, where, ROWS, PLAN, **known).findings
        assert torch.equal(again.packed, outcome.findings.packed)
        assert torch.equal(again.twin_values, outcome.findings.twin_values)


def test_what_is_no_kind_of_twin_or_cannot_be_fitted():
    with pytest.raises(NeuronFairError, match="twins must be flip or counterfactual, got 'counterfactuals'"):
        SearchConfig(twins="counterfactuals")
    with pytest.raises(DomainError, match="counterfactuals need two groups of at least 30 records"):
        search(NETWORK, DOMAIN, ROWS[:20], PLAN)


def test_counterfactuals_among_plausible_people():
    young = Young(DOMAIN)  # the plausibility of a person is 1 - a / 9
    outcome = search(NETWORK, DOMAIN, ROWS, replace(PLAN, plausible=0.6), population=young)  # a is 3 at most
    assert isinstance(outcome.domain, PlausibleDomain)
    found = outcome.findings
    assert set(found.rows[usual(found.rows)][:, 0].tolist()) == {2, 3}
    # The counterfactual itself need not be plausible.
    assert (found.twins(outcome.domain)[usual(found.rows)][:, 0] >= 7).all()
    moved = outcome.domain.to("cpu")
    assert isinstance(moved.twinning, CounterfactualTwins)
    assert moved.twinning is not outcome.domain.twinning  # its tables were moved with the domain


def test_two_counterfactuals_who_differ_say_nothing_of_the_person():
    domain, rows = moved_domain(3), moved_rows(3)
    score = BlackBox(lambda x: x[:, :1], domain)  # the score is a
    middle = torch.tensor([[7, 4, 1]])  # whose counterfactuals have 2 and 12
    beside = with_counterfactuals(domain, fit_counterfactuals(domain, rows))
    assert beside.twins(middle).rows[0, :, 0].tolist() == [12, 2]
    for tolerance, differs in ((7.0, False), (4.0, True)):
        judged = evaluate(score, beside, middle, Decision("tolerance", tolerance))
        assert judged.discriminates.tolist() == [differs]
    pairs = judged.pairs()
    assert torch.equal(pairs.rows, middle)
    assert abs(float(pairs.twin_scores - pairs.scores)) == 5


def test_shrinking_keeps_the_group_and_the_other_decision(outcome):
    found = outcome.findings
    seeds = outcome.domain.clip(outcome.seeds)[found.origin.clamp(min=0)]
    rows = shrink(NETWORK, outcome.domain, found.rows, seeds)
    assert torch.equal(rows[:, 2], found.rows[:, 2])
    assert evaluate(NETWORK, outcome.domain, rows).discriminates.all()
    assert (rows != seeds).sum() < (found.rows != seeds).sum()


def test_neurons_react_to_counterfactuals(outcome):
    assert not interpret(NETWORK, DOMAIN, ROWS).worst.reacts
    profile = interpret(NETWORK, outcome.domain, ROWS)
    assert profile.worst.reacts
    assert profile.worst.biased == (0,)  # which reads a
    assert profile.worst.act_diff.tolist() == [5.0, 0.0]


def test_the_share_of_drawn_counterfactuals_who_are_decided_otherwise():
    domain, people = with_counterfactuals(DOMAIN, BESIDE), torch.tensor([[0, 3, 0], [4, 3, 0], [9, 3, 1], [5, 3, 1]])
    flips, drawn = count_flips_of_drawn_twins(NETWORK, domain, people, Decision())
    assert drawn.tolist() == [32] * 4
    assert flips.tolist() == [0, 32, 32, 0]
    assert [part.tolist() for part in count_flips_of_drawn_twins(NETWORK, domain, people[:0], Decision())] == [[], []]
    assert count_flips_of_drawn_twins(NETWORK, DOMAIN, people, Decision()) is None


def test_people_of_a_group_that_is_hardly_there_have_no_counterfactuals():
    domain, rows = moved_domain(3), moved_rows(3)
    rows = torch.cat([rows[rows[:, 2] < 2], rows[rows[:, 2] == 2][:10]])
    network = by_a(domain)
    outcome = search(network, domain, rows, PLAN)
    assert set(outcome.findings.rows[:, 2].tolist()) | set(outcome.findings.twins(outcome.domain)[:, 2].tolist()) == {
        0,
        1,
    }
    console = Console(width=400)
    with console.capture() as written:
        console.print(compose_search(outcome, network, Path("run")))
    assert "Groups with too few records for counterfactual twins, which are left out: 1" in written.get()
