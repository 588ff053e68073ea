from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from neuronfair import Decision, Network
from neuronfair.domain.draws import Draws
from neuronfair.images.domain import PIXELS, ImageDomain, ImageEncoding
from neuronfair.images.search import Halving
from neuronfair.searches.engine import Budget, run_phase
from neuronfair.searches.method import SearchContext


class Stride:
    """Every step makes all pixels darker by 40 levels."""

    def start(self, context, state):
        return state

    def ask(self, context, state, t):
        return state["rows"]

    def tell(self, context, state, rows, evaluation, t):
        codes = rows.clone()
        codes[:, PIXELS:] -= 40
        return state | {"rows": context.domain.move(rows, codes)}


def context(boundary: float) -> SearchContext:
    """Pictures of one grey pixel; class 1 from `boundary` levels of red on; the shift takes 3 levels away."""
    pictures = torch.full((1, 3, 1, 1), 200, dtype=torch.uint8)
    domain = ImageDomain("pixel", pictures, torch.full((1, 3, 1, 1), -3, dtype=torch.int8))
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0, 0.0, 0.0], [255.0, 0.0, 0.0]]))
        layer.bias.copy_(torch.tensor([0.0, -boundary]))
    network = Network(nn.Sequential(nn.Flatten(), layer), ImageEncoding(domain), layers=())
    return SearchContext(network, domain, Decision(), Draws(0, "test"))


def judged(boundary: float, method) -> tuple[list[int], list[int]]:
    """The levels of red that were judged, and those of the findings."""
    here = context(boundary)
    levels: list[int] = []
    ask = type(method).ask

    class Noted(type(method)):
        def ask(self, *arguments):
            rows = ask(self, *arguments)
            levels.append(int(rows[0, PIXELS]))
            return rows

    noted = Noted(method.inner) if isinstance(method, Halving) else Noted()
    result = run_phase(here, noted, here.domain.seeds, budget=Budget(steps=12, findings_per_seed=1))
    return levels, result.findings.rows[:, PIXELS].tolist()


def test_a_walk_steps_over_the_boundary_and_halving_goes_back_to_it():
    # A picture of l levels is class 1 from 141.5 on, its twin from 144.5 on: 142, 143 and 144 discriminate.
    assert judged(141.5, Stride()) == ([200, 160, 120, 80, 40, 0, 0, 0, 0, 0, 0, 0], [])
    assert judged(141.5, Halving(Stride())) == ([200, 160, 120, 140, 150, 145, 142], [142])


def test_a_walker_that_finds_nothing_in_between_walks_on():
    # The twin is lighter than black only: nobody discriminates at 0 levels of shift.
    here = context(141.5)
    domain = replace(here.domain, shift=here.domain.shift * 0)
    blind = SearchContext(here.network.with_encoding(ImageEncoding(domain)), domain, here.decision, Draws(0, "test"))
    result = run_phase(blind, Halving(Stride()), blind.domain.seeds, budget=Budget(steps=12, findings_per_seed=1))
    assert len(result.findings) == 0
    assert result.stop == "steps"
    assert result.findings.tried >= 9  # 200, 160, 120, six in between, and on from there


def test_walkers_halve_each_for_itself():
    pictures = torch.tensor([200, 110], dtype=torch.uint8).view(2, 1, 1, 1).repeat(1, 3, 1, 1)
    here = context(101.5)
    domain = ImageDomain("two", pictures, torch.full((2, 3, 1, 1), -3, dtype=torch.int8))
    both = run_phase(
        SearchContext(here.network.with_encoding(ImageEncoding(domain)), domain, Decision(), Draws(0, "test")),
        Halving(Stride()),
        domain.seeds,
        budget=Budget(steps=12, findings_per_seed=1),
    ).findings
    assert sorted(both.origin.tolist()) == [0, 1]
    assert all(102 <= level <= 104 for level in both.rows[:, PIXELS].tolist())
