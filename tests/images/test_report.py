from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from experiments.planted import cast_classifier, cast_detector
from neuronfair import Network
from neuronfair.errors import DataError
from neuronfair.images.audit import ImageAudit
from neuronfair.images.domain import ImageDomain, ImageEncoding
from neuronfair.images.report import (
    ImageReport,
    amplify,
    describe_image_audit,
    make_finding_panels,
    render_image_audit,
    write_results,
)
from neuronfair.images.search import (
    ImageSearch,
    measure_change_norms,
    measure_remaining_flips,
    measure_score_gap,
    measure_shift_norms,
    report_search,
)
from neuronfair.searches.findings import Findings
from tests.images.reports import NAMES, REPORT, WALK


def test_a_report_is_read_back_as_it_was():
    assert ImageReport.from_json(REPORT.to_json()) == REPORT


def test_entries_of_the_file():
    entries = json.loads(REPORT.to_json())
    assert entries["methods"]["halving, random shift"]["share_of_faces"] == 0.25
    assert entries["shift"]["attribute_never_flips"] == 1


@pytest.mark.parametrize("text", ["{}", "[", '{"schema": 3, "pictures": "many"}'])
def test_what_is_damaged_is_refused(text):
    with pytest.raises(DataError, match=r"x: not a figures\.json that can be read"):
        ImageReport.from_json(text, "x")


def test_the_sentences_say_what_was_measured():
    lines = describe_image_audit(REPORT)
    assert len(lines) == 5
    assert "A shift of 25.5 grey levels on average flips the <gender> of 1 of them; 1 never flip" in lines[1]
    assert lines[2] == (
        "NeuronFair finds a pair with different decisions for 25.0% (0.6–80.6%) of 4 faces. In random directions the "
        "share is 25%, and with a random shift of equal size 25%. 1 of 2 images on the way flip."
    )


def test_a_classifier_that_guesses_is_said_to():
    advice = "The detector's frozen body tells little of <gender>: --own-body trains a body for it."
    assert describe_image_audit(REPORT)[0].endswith(advice)
    assert not describe_image_audit(replace(REPORT, own_body=True))[0].endswith(advice)
    assert not describe_image_audit(replace(REPORT, classifier_balanced_accuracy=0.81))[0].endswith(
        advice
    )  # 0.5 + 0.6 · 0.5


def test_norms_by_hand():
    pictures = torch.full((1, 3, 2, 2), 100, dtype=torch.uint8)
    shift = torch.zeros(1, 3, 2, 2, dtype=torch.int8)
    shift[0, 0] = 51
    domain = ImageDomain("x", pictures, shift)
    rows = domain.seeds.clone()
    rows[0, 2] = 151
    assert measure_shift_norms(domain, rows).tolist() == pytest.approx([0.4])  # four pixels by 0.2
    assert measure_change_norms(domain, rows).tolist() == pytest.approx([0.2])
    rows[0, 1] = 1  # on the shifted side the walk is the same
    assert measure_change_norms(domain, rows).tolist() == pytest.approx([0.2])


def test_the_attribute_of_a_pair_may_no_longer_flip_after_the_walk():
    pictures = torch.full((2, 3, 2, 2), 100, dtype=torch.uint8)
    shift = torch.zeros(2, 3, 2, 2, dtype=torch.int8)
    shift[:, 0] = 2
    pictures[:, 0] = 99
    domain = ImageDomain("x", pictures, shift)
    classifier = cast_classifier()
    rows = domain.seeds.clone()
    assert measure_remaining_flips(classifier, domain, rows) == 1.0
    rows[1, 2:6] = 150
    assert measure_remaining_flips(classifier, domain, rows) == 0.5
    detector = Network(cast_detector(reads_cast=True), ImageEncoding(domain))
    assert measure_score_gap(detector, domain, rows) == pytest.approx(0.5 * 2 * 2 / 255, rel=1e-4)


def test_a_face_from_which_several_pictures_were_found_counts_once():
    """Of five faces, the second led to three pictures and the fifth to one: two faces, four pictures of eight tried."""
    pictures = torch.full((5, 3, 2, 2), 100, dtype=torch.uint8)
    domain = ImageDomain("x", pictures, torch.ones(5, 3, 2, 2, dtype=torch.int8))
    origin = torch.tensor([1, 4, 1, 1])
    rows, scores = domain.rows(origin), torch.zeros(4, 2)
    found = Findings(rows, torch.ones(4, 1, dtype=torch.int64), scores, scores, origin, origin * 0, rows[:0], tried=8)
    walk = report_search(cast_classifier(), ImageSearch(domain, found, 5, 1.0))
    assert (walk.seeds, walk.faces_found, walk.share_of_faces) == (5, 2, 0.4)
    assert (walk.share_low, walk.share_high) == pytest.approx((0.0527, 0.8534), abs=1e-4)  # Clopper and Pearson
    assert (walk.findings, walk.gsr) == (4, 0.5)


CLASSES = ("no face", "face")


def one_pair() -> tuple[ImageDomain, Findings]:
    pictures = torch.full((1, 3, 4, 4), 100, dtype=torch.uint8)
    domain = ImageDomain("x", pictures, torch.full((1, 3, 4, 4), -2, dtype=torch.int8), ("gender",))
    rows = domain.seeds.clone()
    rows[0, 2] = 110
    number = torch.zeros(1, dtype=torch.int64)
    own, other = torch.tensor([[0.1, 0.9]]), torch.tensor([[0.8, 0.2]])
    return domain, Findings(rows, torch.tensor([[1]]), own, other, number, number, rows[:0])


def test_differences_are_amplified_around_grey():
    picture, times = amplify(torch.tensor([[[-3, 0, 2]]], dtype=torch.int16))
    assert times == 42
    assert picture.flatten().tolist() == [128 - 126, 128, 128 + 84]
    assert amplify(torch.zeros(1, 1, 2))[1] == 1


def test_a_pair_is_shown_with_both_differences_and_both_decisions():
    (line,) = make_finding_panels(*one_pair(), CLASSES)
    assert [text for _, text in line] == ["seed", "picture: face", "twin: no face", "Δ bias × 12", "Δ gender × 63"]
    seed, own, twin, walk, shift = (picture for picture, _ in line)
    assert (int(seed[0, 0, 0]), int(own[0, 0, 0]), int(twin[0, 0, 0])) == (100, 110, 108)
    assert (int(walk[0, 0, 0]), int(walk[0, 0, 1])) == (248, 128)
    assert (shift == 2).all()


def audited(findings: Findings, domain: ImageDomain) -> ImageAudit:
    report = replace(REPORT, methods=dict.fromkeys(NAMES, replace(WALK, findings=len(findings))))
    found = {"halving": ImageSearch(domain, findings, 1, 3.0)}
    subject = SimpleNamespace(domain=domain, attribute=cast_classifier(), random=domain)
    return ImageAudit(report, subject, found, CLASSES, ("x.png",))


def test_the_page_holds_its_pictures_and_escapes_words(tmp_path):
    domain, findings = one_pair()
    page = render_image_audit(audited(findings, domain))
    assert page.count("data:image/png;base64,") == 3 + 5
    assert "http://" not in page
    assert "https://" not in page
    for words in (
        "&lt;gender&gt;",
        "a&lt;b (AS-AUC",
        'data-label="Of faces"><div>25.0% (0.6–80.6%)<',
        'data-label="GSR"><div>50%<',
        "attribute shift: f<",
        "twin: no face",
    ):
        assert words in page
    assert "No pair was found" in render_image_audit(audited(findings[:0], domain))
    write_results(tmp_path, audited(findings, domain))
    pairs = np.load(tmp_path / "pairs.npz")
    assert (pairs["pictures"][0, 0, 0, 0], pairs["twins"][0, 0, 0, 0], pairs["seeds"][0]) == (110, 108, "x.png")
