"""What every search method promises on tables, its form for pictures promises on pictures."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from experiments.planted import cast_classifier, cast_detector
from neuronfair import Decision, Network, NeuronFairError, interpret
from neuronfair.domain.draws import Draws
from neuronfair.images.domain import FLAG, SEED, ImageDomain, PictureEncoding
from neuronfair.images.drawn import drawn_pictures
from neuronfair.images.search import search_pictures
from neuronfair.images.subject import flip
from neuronfair.searches.engine import Budget, PhaseResult, run_phase
from neuronfair.searches.findings import Findings
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import World
from neuronfair.searches.methods import METHODS, Setting, image_methods, image_rule

FACES, STEPS = 24, 12
LINES = ("packed", "twin_values", "scores", "twin_scores", "origin", "step", "misses")
every_method = pytest.mark.parametrize("name", image_methods())


@pytest.fixture(scope="module")
def domain() -> ImageDomain:
    faces = drawn_pictures(FACES, 0, side=16).pixels
    return ImageDomain("drawn", faces, flip(cast_classifier(), faces).levels, ("cast",))


def walked(name: str, domain: ImageDomain, parts: list[list[int]], seed: int = 0) -> tuple[Findings, Tensor]:
    """What a method finds from the seed pictures, batch by batch, and all rows that it asks for."""
    network = Network(cast_detector(reads_cast=True), PictureEncoding(domain))
    profile = interpret(network, domain, domain.seeds)
    world = World(network, domain, Decision(), Draws(seed, "global"), profile)
    seen, asked = KeySet(), []
    walk = image_rule(name, Setting(world, seen, 0))

    class Noted(type(walk)):
        def ask(self, *arguments):
            asked.append(super().ask(*arguments))
            return asked[-1]

    noted = Noted(**vars(walk))
    budget = Budget(STEPS, findings_per_seed=1)
    found = [
        run_phase(world, noted, domain.rows(numbers), budget=budget, origin=numbers, seen=seen).findings
        for numbers in map(torch.tensor, parts)
    ]
    return Findings.join(found), torch.cat(asked)


@every_method
def test_rows_stay_in_the_domain_and_keep_the_flag(name, domain):
    found, rows = walked(name, domain, [[*range(FACES)]])
    assert 0 < len(found) <= found.tried <= found.judged
    assert domain.valid(rows).all()
    assert (rows[:, FLAG] == 0).all()
    assert set(rows[:, SEED].tolist()) == set(range(FACES))


@every_method
def test_every_finding_satisfies_definition_1_when_it_is_judged_anew(name, domain):
    found, _ = walked(name, domain, [[*range(FACES)]])
    rows, twins = found.rows, found.twins(domain)
    assert domain.valid(rows).all()
    assert ((rows != twins).sum(1) == 1).all()
    assert (rows[:, FLAG] != twins[:, FLAG]).all()
    exact = Network(cast_detector(reads_cast=True), PictureEncoding(domain)).double()
    own, other = exact.scores(rows), exact.scores(twins)
    assert (own.argmax(1) != other.argmax(1)).all()
    torch.testing.assert_close(found.scores.double(), own, atol=1e-3, rtol=0)
    assert len(domain.key(rows).unique()) == len(found)


@every_method
def test_the_same_seed_finds_the_same_also_in_two_batches(name, domain):
    one, asked = walked(name, domain, [[*range(FACES)]])
    again, asked_again = walked(name, domain, [[*range(FACES)]])
    assert torch.equal(asked, asked_again)
    assert all(torch.equal(getattr(one, line), getattr(again, line)) for line in LINES)
    parts, rows = walked(name, domain, [[*range(0, FACES, 2)], [*range(1, FACES, 2)]])
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, asked.tolist()))
    assert (parts.tried, parts.judged) == (one.tried, one.judged)
    order = [part.packed[:, SEED].argsort() for part in (one, parts)]
    assert torch.equal(one.packed[order[0]], parts.packed[order[1]])
    assert torch.equal(one.step[order[0]], parts.step[order[1]])


def test_the_methods_of_pictures_are_those_of_tables_and_halving():
    assert image_methods() == {
        "neuronfair": "neuronfair-printed",
        "eidig": "eidig5",
        "adf": "adf",
        "halving": "neuronfair-printed",
    }
    assert set(image_methods().values()) <= set(METHODS)
    with pytest.raises(NeuronFairError, match="no method 'fgsm' for images"):
        image_rule("fgsm", None)


def test_ctrl_c_in_the_engine_is_not_a_result(domain, monkeypatch):
    network = Network(cast_detector(reads_cast=True), PictureEncoding(domain))
    nothing = PhaseResult(Findings.empty(domain, 2), 0, "interrupted", 0.1)
    monkeypatch.setattr("neuronfair.images.search.run_phase", lambda *_, **__: nothing)
    with pytest.raises(KeyboardInterrupt):
        search_pictures(network, domain, "adf", torch.arange(3))
