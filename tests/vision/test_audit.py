from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from neuronfair import Network, interpret, judge
from neuronfair.errors import DataError, RunError
from neuronfair.experiments.planted import cast_classifier, cast_detector
from neuronfair.search.methods import picture_methods
from neuronfair.vision import audit, folder
from neuronfair.vision import subject as subjects
from neuronfair.vision.audit import audit_pictures
from neuronfair.vision.detector import fit_attribute, fit_detector, predictions
from neuronfair.vision.domain import ImageDomain
from neuronfair.vision.drawn import drawn_pictures
from neuronfair.vision.encoding import PictureEncoding
from neuronfair.vision.quality import score_gap, shift_norms, still_flips, walk_norms, walk_report
from neuronfair.vision.repair import finding_pictures, retrain, state
from neuronfair.vision.report import PictureReport
from neuronfair.vision.search import PictureSettings, search_pictures
from neuronfair.vision.subject import Split, compare, subject

SIDE = 16
SHORT = PictureSettings(steps=12)


def split_of(pixels: torch.Tensor, held: torch.Tensor) -> Split:
    return Split(pixels, torch.ones_like(held), held.long() * 0, held)


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


def test_the_attribute_of_a_pair_may_no_longer_flip_after_the_walk():
    pictures = torch.full((2, 3, 2, 2), 100, dtype=torch.uint8)
    shift = torch.zeros(2, 3, 2, 2, dtype=torch.int8)
    shift[:, 0] = 2
    pictures[:, 0] = 99
    domain = ImageDomain("x", pictures, shift)
    classifier = cast_classifier()
    rows = domain.seeds.clone()
    assert still_flips(classifier, domain, rows) == 1.0
    rows[1, 2:6] = 150
    assert still_flips(classifier, domain, rows) == 0.5
    detector = Network(cast_detector(reads_cast=True), PictureEncoding(domain))
    assert score_gap(detector, domain, rows) == pytest.approx(0.5 * 2 * 2 / 255, rel=1e-4)


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


def test_retraining_touches_a_copy_and_uses_no_held_out_face():
    pictures = drawn_pictures(80, 80, side=32)
    split = Split.of(pictures, "cast", "cpu", 0)
    detector = fit_detector("small", pictures.pixels, pictures.is_face, epochs=3)
    face = pictures.is_face
    classifier = fit_attribute(detector, "small", pictures.pixels[face], split.labels[face])
    under_test = subject(detector, classifier, split, name="drawn", sensitive="cast")
    settings = PictureSettings(steps=6, epochs=3)
    everybody = torch.arange(len(under_test.domain.pictures))
    findings = search_pictures(under_test.network, under_test.domain, "adf", everybody, settings).findings
    before = {name: t.clone() for name, t in detector.state_dict().items()}
    module, after = retrain(under_test, findings, settings)
    assert all(torch.equal(t, before[name]) for name, t in detector.state_dict().items())
    assert any(not torch.equal(t, before[name]) for name, t in module.state_dict().items())
    assert after.used == int((~under_test.held[findings.origin]).sum()) < len(findings)
    assert 0 <= after.detection_rate <= 1
    assert retrain(under_test, None, settings)[1].used == 0
    same = state(under_test, detector, settings)
    out = under_test.held.nonzero()[:, 0]
    profile = interpret(under_test.network, under_test.domain, under_test.domain.rows(out))
    assert same.auc == pytest.approx(profile.worst.auc)


# The whole audit


PICTURES = drawn_pictures(40, 40, side=32)
QUICK = PictureSettings(steps=3, epochs=2, repair_epochs=0)


def untimed(report: PictureReport) -> dict:
    def without(entry):
        kept = {key: value for key, value in entry.items() if not key.startswith("seconds")}
        return {key: without(value) if isinstance(value, dict) else value for key, value in kept.items()}

    return without(json.loads(report.to_json()))


@pytest.mark.parametrize("own_body", [False, True])
def test_an_audit_that_was_killed_goes_on_and_finds_the_same(tmp_path, monkeypatch, own_body):
    settings = replace(QUICK, own_body=own_body)
    whole = audit_pictures(PICTURES, "cast", settings=settings)
    calls = []

    def killed(*arguments, **options):
        calls.append(arguments[2])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return search_pictures(*arguments, **options)

    monkeypatch.setattr(subjects, "search_pictures", killed)
    with pytest.raises(KeyboardInterrupt):
        audit_pictures(PICTURES, "cast", settings=settings, folder=tmp_path / "run")
    for name in ("fit_detector", "fit_attribute"):
        monkeypatch.setattr(audit, name, None)  # what was trained is not trained again
    again = audit_pictures(PICTURES, "cast", settings=settings, folder=tmp_path / "run")
    assert len(calls) == 3 + len(again.found) - 2
    assert untimed(again.report) == untimed(whole.report)
    for name, search in whole.found.items():
        assert torch.equal(search.findings.packed, again.found[name].findings.packed)
        assert torch.equal(search.findings.twin_scores, again.found[name].findings.twin_scores)
    once_more = audit_pictures(PICTURES, "cast", settings=settings, folder=tmp_path / "run")
    assert len(calls) == 3 + len(again.found) - 2
    assert once_more.report == again.report  # the seconds, too


def test_an_audit_does_not_go_on_with_something_else(tmp_path):
    run = tmp_path / "run"
    audit_pictures(PICTURES, "cast", settings=replace(QUICK, steps=0), folder=run)
    for pictures, settings, what in (
        (PICTURES, QUICK, "another budget or seed"),
        (drawn_pictures(40, 40, side=32, seed=1), replace(QUICK, steps=0), "other pictures"),
        (replace(PICTURES, columns={"cast": ["warm", "cool"] * 40}), replace(QUICK, steps=0), "other labels"),
    ):
        with pytest.raises(RunError, match=f"begun with {what}"):
            audit_pictures(pictures, "cast", settings=settings, folder=run)
    with pytest.raises(RunError, match="begun with another model"):
        audit_pictures(PICTURES, "cast", detector=run / folder.WEIGHTS, settings=replace(QUICK, steps=0), folder=run)
    with (run / "found-adf.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    with pytest.raises(RunError, match=r"found-adf.safetensors: damaged"):
        audit_pictures(PICTURES, "cast", settings=replace(QUICK, steps=0), folder=run)


def test_a_report_is_read_back_as_it_was():
    report = audit_pictures(PICTURES, "cast", settings=replace(QUICK, repair_epochs=1)).report
    assert PictureReport.from_json(report.to_json()) == report
    with pytest.raises(DataError, match=r"not a figures\.json"):
        PictureReport.from_json("{}")
