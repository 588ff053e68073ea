from __future__ import annotations

import pytest
import torch

from neuronfair import Network, interpret, judge
from neuronfair.errors import DataError
from neuronfair.vision.audit import after, compare, improve, subject
from neuronfair.vision.detector import fit_attribute, fit_detector, predictions
from neuronfair.vision.domain import ImageDomain
from neuronfair.vision.drawn import drawn_pictures
from neuronfair.vision.encoding import PictureEncoding
from neuronfair.vision.planted import cast_classifier, cast_detector
from neuronfair.vision.quality import score_gap, shift_norms, still_turned, walk_norms
from neuronfair.vision.repair import finding_pictures
from neuronfair.vision.search import search_pictures

SIDE = 16


def planted(*, reads_cast: bool):
    faces = drawn_pictures(60, 0, side=SIDE).pixels
    held = torch.arange(60) % 4 == 0
    return subject(cast_detector(reads_cast=reads_cast), cast_classifier(), faces, held, name="drawn", sensitive="cast")


@pytest.fixture(scope="module")
def biased():
    under_test = planted(reads_cast=True)
    return under_test, *compare(under_test, ("neuronfair", "adf", "eidig", "halving"), steps=12)


def test_a_detector_that_reads_the_cast_is_found_out(biased):
    under_test, _, figures = biased
    assert under_test.profile.worst.biased == (1,)  # the neuron that reads the cast
    assert figures["neuronfair"]["idis"] >= 10
    assert figures["neuronfair"]["idis"] > 2 * figures["neuronfair, random direction"]["idis"]
    assert figures["neuronfair, random shift"]["idis"] == 0  # the size of the shift alone turns nothing
    assert figures["neuronfair"]["idis"] > figures["adf"]["idis"] > 0
    assert figures["halving"]["idis"] > 2 * figures["neuronfair"]["idis"]
    gaps = under_test.figures()
    assert gaps["score_gap"] > 20 * gaps["score_gap_random_shift"]


def test_a_detector_that_is_blind_to_the_cast_is_not():
    under_test = planted(reads_cast=False)
    _, figures = compare(under_test, ("neuronfair", "adf", "eidig", "halving"), steps=12)
    assert {line["idis"] for line in figures.values()} == {0}
    assert under_test.figures()["auc"] == 0
    assert under_test.figures()["score_gap"] == 0


def test_every_finding_is_a_pair_of_8_bit_pictures_that_are_decided_otherwise(biased):
    under_test, found, _ = biased
    domain, findings = under_test.domain, found["neuronfair"].findings
    assert domain.valid(findings.rows).all()
    assert judge(under_test.network, domain, findings.rows).discriminates.all()
    both = finding_pictures(domain, findings)
    assert both.dtype == torch.uint8
    assert both.shape == (2 * len(findings), 3, SIDE, SIDE)
    classes = predictions(under_test.detector, both).chunk(2)
    assert (classes[0] != classes[1]).all()
    assert findings.tried <= findings.judged


def test_batches_of_walkers_do_not_change_what_is_found(biased):
    under_test, found, _ = biased
    numbers = torch.arange(under_test.turned)
    again = search_pictures(
        under_test.network, under_test.domain, "neuronfair", numbers, profile=under_test.profile, steps=12, walkers=7
    )
    whole = found["neuronfair"].findings
    assert set(again.findings.origin.tolist()) == set(whole.origin.tolist())
    assert again.findings.tried == whole.tried


def test_a_search_that_is_out_of_time_begins_no_further_batch(biased):
    under_test, _, _ = biased
    numbers = torch.arange(under_test.turned)
    short = search_pictures(under_test.network, under_test.domain, "adf", numbers, steps=2, walkers=5, seconds=0.0)
    assert short.seeds == 5
    assert short.findings.tried <= 10


def test_norms_by_hand():
    pictures = torch.full((1, 3, 2, 2), 100, dtype=torch.uint8)
    shift = torch.zeros(1, 3, 2, 2, dtype=torch.int8)
    shift[0, 0] = 51
    domain = ImageDomain("x", pictures, shift)
    rows = domain.seeds.clone()
    rows[0, 2] = 151
    assert shift_norms(domain, rows).tolist() == pytest.approx([0.4])  # four pixels by 0.2
    assert walk_norms(domain, rows).tolist() == pytest.approx([0.2])
    rows[0, 1] = 1  # on the shifted side the walk is the same
    assert walk_norms(domain, rows).tolist() == pytest.approx([0.2])


def test_the_attribute_of_a_pair_may_no_longer_turn_after_the_walk():
    pictures = torch.full((2, 3, 2, 2), 100, dtype=torch.uint8)
    shift = torch.zeros(2, 3, 2, 2, dtype=torch.int8)
    shift[:, 0] = 2
    pictures[:, 0] = 99
    domain = ImageDomain("x", pictures, shift)
    classifier = cast_classifier()
    rows = domain.seeds.clone()
    assert still_turned(classifier, domain, rows) == 1.0
    rows[1, 2:6] = 150
    assert still_turned(classifier, domain, rows) == 0.5
    assert still_turned(classifier, domain, rows[:0]) is None
    detector = Network(cast_detector(reads_cast=True), PictureEncoding(domain))
    assert score_gap(detector, domain, rows) == pytest.approx(0.5 * 2 * 2 / 255, rel=1e-4)


def test_nothing_to_start_from_is_said():
    dark = torch.zeros(5, 3, SIDE, SIDE, dtype=torch.uint8)
    nobody = torch.zeros(5, dtype=torch.bool)
    with pytest.raises(DataError, match="finds no face"):
        subject(cast_detector(reads_cast=True), cast_classifier(), dark, nobody, name="dark", sensitive="cast")
    red = torch.full((5, 3, SIDE, SIDE), 100, dtype=torch.uint8)
    red[:, :2] = 255
    with pytest.raises(DataError, match="no shift turns 'cast'"):
        subject(cast_detector(reads_cast=True), cast_classifier(), red, nobody, name="red", sensitive="cast")


def test_retraining_touches_a_copy_and_uses_no_held_out_face():
    pictures = drawn_pictures(80, 80, side=32)
    detector = fit_detector("small", pictures.pixels, pictures.is_face, epochs=3)
    _, cast = pictures.attribute("cast")
    face = pictures.is_face
    classifier = fit_attribute(detector, "small", pictures.pixels[face], cast[face])
    held = torch.arange(80) % 4 == 0
    under_test = subject(detector, classifier, pictures.pixels[face], held, name="drawn", sensitive="cast")
    found = search_pictures(
        under_test.network, under_test.domain, "adf", torch.arange(under_test.turned), steps=6, walkers=64
    )
    before = {name: t.clone() for name, t in detector.state_dict().items()}
    fresh = drawn_pictures(20, 20, side=32, seed=5)
    module, line = improve(
        under_test, found, pictures.pixels, pictures.is_face, fresh.pixels, fresh.is_face, epochs=1, steps=3
    )
    assert all(torch.equal(t, before[name]) for name, t in detector.state_dict().items())
    assert any(not torch.equal(t, before[name]) for name, t in module.state_dict().items())
    assert line["used"] == int((~under_test.held[found.findings.origin]).sum())
    assert 0 <= line["detection_rate"] <= 1
    same = after(under_test, detector, fresh.pixels, fresh.is_face, steps=3)
    out = under_test.held.nonzero()[:, 0]
    profile = interpret(under_test.network, under_test.domain, under_test.domain.rows(out))
    assert same["auc"] == pytest.approx(profile.worst.auc)
