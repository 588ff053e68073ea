from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from experiments.planted import cast_classifier, cast_detector
from neuronfair import Decision, Network, NeuronFairError, evaluate, interpret
from neuronfair.domain.draws import Draws
from neuronfair.domain.twins import GROUP, SAMPLE
from neuronfair.errors import DataError
from neuronfair.images.archive import draw_images
from neuronfair.images.audit import ImageSplit, find_subject
from neuronfair.images.detector import draw_random_shift, find_attribute_shift, predict_classes
from neuronfair.images.domain import ImageDomain, ImageEncoding
from neuronfair.images.report import decode_findings
from neuronfair.images.search import (
    ImageSettings,
    list_image_methods,
    make_image_method,
    report_search,
    search_images,
    search_with_controls,
)
from neuronfair.searches.engine import Budget, PhaseResult, run_phase
from neuronfair.searches.findings import Findings
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import SearchContext
from neuronfair.searches.methods import METHODS, Setting

SIDE = 16
SHORT = ImageSettings(steps=12)


def split_of(pixels: torch.Tensor, held: torch.Tensor) -> ImageSplit:
    return ImageSplit(pixels, torch.ones_like(held), held.long() * 0, held)


def planted(*, reads_cast: bool):
    split = split_of(draw_images(60, 0, side=SIDE).pixels, torch.arange(60) % 4 == 0)
    return find_subject(cast_detector(reads_cast=reads_cast), cast_classifier(), split, name="drawn", sensitive="cast")


def figures(under_test):
    found = search_with_controls(under_test, list(list_image_methods()), SHORT)
    return found, {name: report_search(under_test.attribute, one) for name, one in found.items()}


@pytest.fixture(scope="module")
def biased():
    under_test = planted(reads_cast=True)
    return under_test, *figures(under_test)


def test_a_detector_that_reads_the_cast_is_found_out(biased):
    under_test, _, walks = biased
    assert under_test.profile.worst.biased == (1,)  # the neuron that reads the cast
    count = {name: walk.findings for name, walk in walks.items()}
    assert count["neuronfair"] >= 10
    assert count["neuronfair"] > 2 * count["neuronfair, random direction"]
    assert count["neuronfair, random shift"] == 0  # the size of the shift alone flips nothing
    assert count["neuronfair"] > count["adf"] > 0
    assert count["halving"] > 2 * count["neuronfair"]
    gaps = under_test.report()
    assert gaps.score_gap > 20 * gaps.score_gap_random_shift


def test_a_detector_that_is_blind_to_the_cast_is_not():
    under_test = planted(reads_cast=False)
    _, walks = figures(under_test)
    assert {walk.findings for walk in walks.values()} == {0}
    assert {walk.bias_l2 for walk in walks.values()} == {None}
    assert under_test.profile.worst.auc == 0
    assert under_test.report().score_gap == 0


def test_every_finding_is_a_pair_of_8_bit_pictures_for_which_the_decision_flips(biased):
    under_test, found, _ = biased
    domain, findings = under_test.domain, found["neuronfair"].findings
    assert evaluate(under_test.network, domain, findings.rows).discriminates.all()
    both = decode_findings(domain, findings)
    assert both.dtype == torch.uint8
    assert both.shape == (2 * len(findings), 3, SIDE, SIDE)
    classes = predict_classes(under_test.detector, both).chunk(2)
    assert (classes[0] != classes[1]).all()


def test_batches_of_walkers_do_not_change_what_is_found(biased):
    under_test, found, _ = biased
    numbers = torch.arange(len(under_test.domain.pictures))
    settings = replace(SHORT, chains=7)
    again = search_images(
        under_test.network, under_test.domain, "neuronfair", numbers, settings, profile=under_test.profile
    )
    whole = found["neuronfair"].findings
    assert set(again.findings.origin.tolist()) == set(whole.origin.tolist())
    assert again.findings.tried == whole.tried


def test_a_search_that_is_out_of_time_begins_no_further_batch(biased):
    under_test, _, _ = biased
    settings = ImageSettings(steps=2, chains=5, seconds=0.0)
    short = search_images(under_test.network, under_test.domain, "adf", torch.arange(20), settings)
    assert short.seeds == 5
    assert short.findings.tried <= 10


def test_nothing_to_start_from_is_said():
    dark = torch.zeros(5, 3, SIDE, SIDE, dtype=torch.uint8)
    nobody, detector = torch.zeros(5, dtype=torch.bool), cast_detector(reads_cast=True)
    with pytest.raises(DataError, match="finds no face"):
        find_subject(
            cast_detector(reads_cast=True), cast_classifier(), split_of(dark, nobody), name="dark", sensitive="cast"
        )
    red = torch.full((5, 3, SIDE, SIDE), 100, dtype=torch.uint8)
    red[:, :2] = 255
    with pytest.raises(DataError, match="no shift flips 'cast'"):
        find_subject(detector, cast_classifier(), split_of(red, nobody), name="red", sensitive="cast")


def linear_classifier(weight: list[float], bias: float) -> Network:
    """Scores 0 and w · x + b for pictures of one pixel with three colours."""
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0, 0.0, 0.0], weight]))
        layer.bias.copy_(torch.tensor([0.0, bias]))
    return nn.Sequential(nn.Flatten(), layer, nn.Identity())


def pixel(*colour: int) -> torch.Tensor:
    return torch.tensor(colour, dtype=torch.uint8).view(1, 3, 1, 1)


def test_the_smallest_level_that_flips_the_class_is_taken():
    # 255 (w · x + b) = 2 r - g + 0 b - 10.5: the step of ε levels against it changes it by 3 ε.
    classifier = linear_classifier([2 * 255.0, -255.0, 0.0], -10.5)
    above = find_attribute_shift(classifier, pixel(30, 40, 7))  # 9.5: class 1; flipped by 3 ε > 9.5
    assert above.size.tolist() == [4]
    assert above.levels.flatten().tolist() == [-4, 4, 0]
    below = find_attribute_shift(classifier, pixel(20, 30, 7))  # -0.5: class 0; flipped by the first level
    assert below.size.tolist() == [1]
    assert below.levels.flatten().tolist() == [1, -1, 0]


def test_only_levels_of_the_schedule_are_tried():
    classifier = linear_classifier([2 * 255.0, -255.0, 0.0], -10.5)
    assert find_attribute_shift(classifier, pixel(30, 40, 7), (10, 7, 2)).size.tolist() == [7]
    none = find_attribute_shift(classifier, pixel(250, 0, 7), (1, 2))
    assert none.size.tolist() == [0]
    assert not none.flips.any()
    assert none.levels.flatten().tolist() == [0, 0, 0]


def test_a_shift_that_only_works_beyond_white_does_not_count():
    classifier = linear_classifier([255.0, 0.0, 0.0], -255.5)  # needs red above 255.5
    assert find_attribute_shift(classifier, pixel(255, 0, 0)).size.tolist() == [0]


def test_batches_do_not_change_the_shift():
    pictures = torch.randint(0, 256, (300, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    classifier = cast_classifier()
    whole = find_attribute_shift(classifier, pictures)
    assert torch.equal(whole.size[250:], find_attribute_shift(classifier, pictures[250:]).size)
    assert (whole.levels.abs().amax((1, 2, 3)) == whole.size).all()


def test_more_than_two_classes_flip_to_any_other():
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight.copy_(255 * torch.eye(3))
        layer.bias.zero_()
    classifier = nn.Sequential(nn.Flatten(), layer)
    found = find_attribute_shift(classifier, pixel(100, 97, 0))
    assert found.size.tolist() == [2]  # 98 against 99
    assert found.levels.flatten().tolist()[:2] == [-2, 2]


def test_the_random_control_has_the_same_size_and_another_direction():
    pictures = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    shift = find_attribute_shift(cast_classifier(), pictures)
    other = draw_random_shift(shift, seed=3)
    assert torch.equal(other.abs(), shift.levels.abs())
    moved = shift.levels != 0
    assert float((other == shift.levels)[moved].float().mean()) == pytest.approx(0.5, abs=0.05)
    assert torch.equal(draw_random_shift(shift, seed=3), other)


FACES, STEPS = 24, 12
LINES = ("packed", "twin_values", "scores", "twin_scores", "origin", "step", "misses")
every_method = pytest.mark.parametrize("name", list_image_methods())


@pytest.fixture(scope="module")
def domain() -> ImageDomain:
    faces = draw_images(FACES, 0, side=16).pixels
    return ImageDomain("drawn", faces, find_attribute_shift(cast_classifier(), faces).levels, ("cast",))


def walked(name: str, domain: ImageDomain, parts: list[list[int]], seed: int = 0) -> tuple[Findings, Tensor]:
    """What a method finds from the seed pictures, batch by batch, and all rows that it asks for."""
    network = Network(cast_detector(reads_cast=True), ImageEncoding(domain))
    profile = interpret(network, domain, domain.seeds)
    context = SearchContext(network, domain, Decision(), Draws(seed, "global"), profile)
    seen, asked = KeySet(), []
    walk = make_image_method(name, Setting(context, seen, 0))

    class Noted(type(walk)):
        def ask(self, *arguments):
            asked.append(super().ask(*arguments))
            return asked[-1]

    noted = Noted(**vars(walk))
    budget = Budget(STEPS, findings_per_seed=1)
    found = [
        run_phase(context, noted, domain.rows(numbers), budget=budget, origin=numbers, key_set=seen).findings
        for numbers in map(torch.tensor, parts)
    ]
    return Findings.join(found), torch.cat(asked)


@every_method
def test_rows_stay_in_the_domain_and_keep_the_flag(name, domain):
    found, rows = walked(name, domain, [[*range(FACES)]])
    assert 0 < len(found) <= found.tried <= found.evaluated
    assert domain.valid(rows).all()
    assert (rows[:, GROUP] == 0).all()
    assert set(rows[:, SAMPLE].tolist()) == set(range(FACES))


@every_method
def test_every_finding_satisfies_definition_1_when_it_is_judged_anew(name, domain):
    found, _ = walked(name, domain, [[*range(FACES)]])
    rows, twins = found.rows, found.twins(domain)
    assert domain.valid(rows).all()
    assert ((rows != twins).sum(1) == 1).all()
    assert (rows[:, GROUP] != twins[:, GROUP]).all()
    exact = Network(cast_detector(reads_cast=True), ImageEncoding(domain)).double()
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
    assert (parts.tried, parts.evaluated) == (one.tried, one.evaluated)
    order = [part.packed[:, SAMPLE].argsort() for part in (one, parts)]
    assert torch.equal(one.packed[order[0]], parts.packed[order[1]])
    assert torch.equal(one.step[order[0]], parts.step[order[1]])


def test_the_methods_of_pictures_are_those_of_tables_and_halving():
    assert list_image_methods() == {
        "neuronfair": "neuronfair-printed",
        "eidig": "eidig5",
        "adf": "adf",
        "halving": "neuronfair-printed",
    }
    assert set(list_image_methods().values()) <= set(METHODS)
    with pytest.raises(NeuronFairError, match="no method 'fgsm' for images"):
        make_image_method("fgsm", None)


def test_ctrl_c_in_the_engine_is_not_a_result(domain, monkeypatch):
    network = Network(cast_detector(reads_cast=True), ImageEncoding(domain))
    nothing = PhaseResult(Findings.empty(domain, 2), 0, "interrupted", 0.1)
    monkeypatch.setattr("neuronfair.images.search.run_phase", lambda *_, **__: nothing)
    with pytest.raises(KeyboardInterrupt):
        search_images(network, domain, "adf", torch.arange(3))
