"""Searches that stay among plausible people, and findings that say how usual they are."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from neuronfair.domain.population.model import fit_population
from neuronfair.domain.population.plausible import PlausibleDomain, keep_plausible
from neuronfair.errors import NeuronFairError
from neuronfair.render.search import compose_search
from neuronfair.searches.campaign import SearchResult, search
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.shrink import shrink
from neuronfair.testing.cases import Young, case, linear
from tests.planted.networks import domain, network, uniform_rows

DOMAIN = domain(attributes=2)
ROWS = uniform_rows(DOMAIN, 200)
YOUNG = Young(DOMAIN)  # the plausibility of a person is 1 - a0 / 9
# The second class wins where a0 + 2 s > 8.5: the decision flips with s for those whose a0 is 7 or 8.
OLD_ONES = network(
    nn.Sequential(linear([[1, 0, 0], [0, 0, 2]], [0, 0]), nn.ReLU(), linear([[0, 0], [1, 1]], [8.5, 0])), DOMAIN
)
PLAN = SearchConfig("frontier", seeds=20, steps=30, global_steps=10)


def told(outcome: SearchResult) -> str:
    console = Console(width=400)
    with console.capture() as written:
        console.print(compose_search(outcome, OLD_ONES, Path("run")))
    return written.get()


def searched(method: str = "frontier", least: float = 0.0, **known) -> SearchResult:
    return search(OLD_ONES, DOMAIN, ROWS, replace(PLAN, method=method, plausible=least), **known)


@pytest.mark.parametrize("method", ["frontier", "neuronfair-plus", "neuronfair", "aequitas"])
def test_where_all_the_bias_is_among_the_implausible_nobody_is_found(method):
    everywhere = searched(method, population=YOUNG)
    assert set(everywhere.findings.rows[:, 0].tolist()) == {7, 8}
    outcome = searched(method, 0.5, population=YOUNG)
    assert isinstance(outcome.domain, PlausibleDomain)
    assert (len(outcome.findings), outcome.findings.tried > 0) == (0, True)
    assert outcome.seeds[:, 0].max() == 4
    assert (outcome.findings.misses[:, 0] <= 4).all()
    # So did the controls.
    assert outcome.random.findings == 0 < outcome.random.tried <= 5 * 10
    assert outcome.random_direction is None or outcome.random_direction.findings == 0
    assert outcome.summary()["plausibility"] is None
    assert "Nothing was found. Minimum likelihood percentile of the records: 50%." in told(outcome)
    assert "drawn at random, realistic" in told(outcome)


def test_a_bound_between_those_who_are_found():
    outcome = searched(least=0.2, population=YOUNG)  # 1 - 7/9 is 0.222, 1 - 8/9 is 0.111
    assert set(outcome.findings.rows[:, 0].tolist()) == {7}
    assert torch.equal(outcome.findings.plausibility, torch.full((len(outcome.findings),), 2 / 9))
    assert outcome.summary()["plausibility"] == {"least": 0.01, "share": 1.0, "median": pytest.approx(2 / 9)}
    assert outcome.summary()["violations"] == 0
    assert "100% of the findings are realistic" in told(outcome)
    assert "Their median: 22nd likelihood percentile." in told(outcome)


def test_a_population_changes_nothing_but_what_is_said_of_the_findings():
    known, unknown = searched(population=YOUNG).findings, searched().findings
    for name in ("packed", "twin_values", "scores", "origin", "step", "misses", "tried", "evaluated", "rejected"):
        one, other = getattr(known, name), getattr(unknown, name)
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    assert torch.equal(known.plausibility, YOUNG.plausibility(known.rows).float())
    assert unknown.plausibility.dtype == torch.float32
    assert unknown.plausibility.isnan().all()
    assert torch.equal(known[3:5].plausibility, known.plausibility[3:5])
    assert searched().summary()["plausibility"] is None


def test_without_a_population_one_is_fitted_to_the_table():
    outcome = searched("uniform", 0.3)
    fitted = fit_population(DOMAIN, ROWS)
    assert torch.equal(outcome.findings.plausibility, fitted.plausibility(outcome.findings.rows).float())
    assert len(outcome.findings) > 0
    assert (fitted.plausibility(outcome.findings.rows) >= 0.3).all()


def test_seeds_of_your_own_who_are_not_plausible_are_left_out():
    seeds = torch.tensor([[9, 0, 0], [3, 5, 1], [8, 8, 1]])
    outcome = search(OLD_ONES, DOMAIN, ROWS, replace(PLAN, plausible=0.5), seeds=seeds, population=YOUNG)
    assert outcome.seeds.tolist() == [[3, 5, 1]]
    with pytest.raises(NeuronFairError, match="none of the 1 rows to start from"):
        search(OLD_ONES, DOMAIN, ROWS, replace(PLAN, plausible=0.5), seeds=seeds[:1], population=YOUNG)


@pytest.mark.parametrize("least", [1.0, 1.5, -0.1, math.nan])
def test_a_share_that_is_none(least):
    with pytest.raises(NeuronFairError, match=f"plausible must be 0 or more and below 1, got {least}"):
        SearchConfig(plausible=least)


def test_a_name_that_is_not_known():
    with pytest.raises(TypeError, match="populaton"):
        search(OLD_ONES, DOMAIN, ROWS, PLAN, populaton=YOUNG)


def test_shrunk_people_stay_plausible():
    inside = keep_plausible(DOMAIN, YOUNG, 0.2, ROWS)  # a0 up to 7
    found, seed = torch.tensor([[7, 9, 0]]), torch.tensor([[9, 2, 0]])
    assert shrink(OLD_ONES, DOMAIN, found, seed).tolist() == [[8, 2, 0]]
    assert shrink(OLD_ONES, inside, found, seed).tolist() == [[7, 2, 0]]


def test_values_drawn_anew_are_those_of_one_plausible_person():
    context, inside = case("plausible").context, case("plausible").domain
    u = torch.rand(50, len(inside.attributes), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lines = set(map(tuple, inside.records.tolist()))
    assert {tuple(row) for row in context.draw_codes(u).tolist()} <= lines
    assert torch.equal(case("people").context.draw_codes(u), (u * inside.sizes).long())
