from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from experiments.planted import cast_classifier, cast_detector
from neuronfair import Network, evaluate
from neuronfair.errors import DataError
from neuronfair.images.detector import predictions
from neuronfair.images.drawn import drawn_pictures
from neuronfair.images.page import finding_pictures
from neuronfair.images.report import walk_report
from neuronfair.images.search import PictureSettings, search_pictures
from neuronfair.images.subject import ImageSplit, compare, flip, random_like, subject
from neuronfair.searches.methods import image_methods

SIDE = 16
SHORT = PictureSettings(steps=12)


def split_of(pixels: torch.Tensor, held: torch.Tensor) -> ImageSplit:
    return ImageSplit(pixels, torch.ones_like(held), held.long() * 0, held)


def planted(*, reads_cast: bool):
    split = split_of(drawn_pictures(60, 0, side=SIDE).pixels, torch.arange(60) % 4 == 0)
    return subject(cast_detector(reads_cast=reads_cast), cast_classifier(), split, name="drawn", sensitive="cast")


def figures(under_test):
    found = compare(under_test, list(image_methods()), SHORT)
    return found, {name: walk_report(under_test.attribute, one) for name, one in found.items()}


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
    both = finding_pictures(domain, findings)
    assert both.dtype == torch.uint8
    assert both.shape == (2 * len(findings), 3, SIDE, SIDE)
    classes = predictions(under_test.detector, both).chunk(2)
    assert (classes[0] != classes[1]).all()


def test_batches_of_walkers_do_not_change_what_is_found(biased):
    under_test, found, _ = biased
    numbers = torch.arange(len(under_test.domain.pictures))
    settings = replace(SHORT, walkers=7)
    again = search_pictures(
        under_test.network, under_test.domain, "neuronfair", numbers, settings, profile=under_test.profile
    )
    whole = found["neuronfair"].findings
    assert set(again.findings.origin.tolist()) == set(whole.origin.tolist())
    assert again.findings.tried == whole.tried


def test_a_search_that_is_out_of_time_begins_no_further_batch(biased):
    under_test, _, _ = biased
    settings = PictureSettings(steps=2, walkers=5, seconds=0.0)
    short = search_pictures(under_test.network, under_test.domain, "adf", torch.arange(20), settings)
    assert short.seeds == 5
    assert short.findings.tried <= 10


def test_nothing_to_start_from_is_said():
    dark = torch.zeros(5, 3, SIDE, SIDE, dtype=torch.uint8)
    nobody, detector = torch.zeros(5, dtype=torch.bool), cast_detector(reads_cast=True)
    with pytest.raises(DataError, match="finds no face"):
        subject(
            cast_detector(reads_cast=True), cast_classifier(), split_of(dark, nobody), name="dark", sensitive="cast"
        )
    red = torch.full((5, 3, SIDE, SIDE), 100, dtype=torch.uint8)
    red[:, :2] = 255
    with pytest.raises(DataError, match="no shift flips 'cast'"):
        subject(detector, cast_classifier(), split_of(red, nobody), name="red", sensitive="cast")


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
    above = flip(classifier, pixel(30, 40, 7))  # 9.5: class 1; flipped by 3 ε > 9.5
    assert above.size.tolist() == [4]
    assert above.levels.flatten().tolist() == [-4, 4, 0]
    below = flip(classifier, pixel(20, 30, 7))  # -0.5: class 0; flipped by the first level
    assert below.size.tolist() == [1]
    assert below.levels.flatten().tolist() == [1, -1, 0]


def test_only_levels_of_the_schedule_are_tried():
    classifier = linear_classifier([2 * 255.0, -255.0, 0.0], -10.5)
    assert flip(classifier, pixel(30, 40, 7), (10, 7, 2)).size.tolist() == [7]
    none = flip(classifier, pixel(250, 0, 7), (1, 2))
    assert none.size.tolist() == [0]
    assert not none.flips.any()
    assert none.levels.flatten().tolist() == [0, 0, 0]


def test_a_shift_that_only_works_beyond_white_does_not_count():
    classifier = linear_classifier([255.0, 0.0, 0.0], -255.5)  # needs red above 255.5
    assert flip(classifier, pixel(255, 0, 0)).size.tolist() == [0]


def test_batches_do_not_change_the_shift():
    pictures = torch.randint(0, 256, (300, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    classifier = cast_classifier()
    whole = flip(classifier, pictures)
    assert torch.equal(whole.size[250:], flip(classifier, pictures[250:]).size)
    assert (whole.levels.abs().amax((1, 2, 3)) == whole.size).all()


def test_more_than_two_classes_flip_to_any_other():
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight.copy_(255 * torch.eye(3))
        layer.bias.zero_()
    classifier = nn.Sequential(nn.Flatten(), layer)
    found = flip(classifier, pixel(100, 97, 0))
    assert found.size.tolist() == [2]  # 98 against 99
    assert found.levels.flatten().tolist()[:2] == [-2, 2]


def test_the_random_control_has_the_same_size_and_another_direction():
    pictures = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    shift = flip(cast_classifier(), pictures)
    other = random_like(shift, seed=3)
    assert torch.equal(other.abs(), shift.levels.abs())
    moved = shift.levels != 0
    assert float((other == shift.levels)[moved].float().mean()) == pytest.approx(0.5, abs=0.05)
    assert torch.equal(random_like(shift, seed=3), other)
