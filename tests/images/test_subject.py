from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from neuronfair import judge
from neuronfair.errors import DataError
from neuronfair.experiments.planted import cast_classifier, cast_detector
from neuronfair.images.detector import predictions
from neuronfair.images.drawn import drawn_pictures
from neuronfair.images.measures import walk_report
from neuronfair.images.repair import finding_pictures
from neuronfair.images.search import PictureSettings, search_pictures
from neuronfair.images.subject import ImageSplit, compare, subject
from neuronfair.searches.methods import picture_methods

SIDE = 16
SHORT = PictureSettings(steps=12)


def split_of(pixels: torch.Tensor, held: torch.Tensor) -> ImageSplit:
    return ImageSplit(pixels, torch.ones_like(held), held.long() * 0, held)


def planted(*, reads_cast: bool):
    split = split_of(drawn_pictures(60, 0, side=SIDE).pixels, torch.arange(60) % 4 == 0)
    return subject(cast_detector(reads_cast=reads_cast), cast_classifier(), split, name="drawn", sensitive="cast")


def figures(under_test):
    found = compare(under_test, list(picture_methods()), SHORT)
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
    assert judge(under_test.network, domain, findings.rows).discriminates.all()
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
