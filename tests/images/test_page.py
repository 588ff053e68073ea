from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch

from experiments.planted import cast_classifier
from neuronfair.images.audit import PictureAudit
from neuronfair.images.domain import ImageDomain
from neuronfair.images.page import amplified, panels, picture_page, write_results
from neuronfair.images.search import PictureSearch
from neuronfair.searches.findings import Findings
from tests.images.reports import NAMES, REPORT, WALK

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
    picture, times = amplified(torch.tensor([[[-3, 0, 2]]], dtype=torch.int16))
    assert times == 42
    assert picture.flatten().tolist() == [128 - 126, 128, 128 + 84]
    assert amplified(torch.zeros(1, 1, 2))[1] == 1


def test_a_pair_is_shown_with_both_differences_and_both_decisions():
    (line,) = panels(*one_pair(), CLASSES)
    assert [text for _, text in line] == ["seed", "picture: face", "twin: no face", "Δ bias × 12", "Δ gender × 63"]
    seed, own, twin, walk, shift = (picture for picture, _ in line)
    assert (int(seed[0, 0, 0]), int(own[0, 0, 0]), int(twin[0, 0, 0])) == (100, 110, 108)
    assert (int(walk[0, 0, 0]), int(walk[0, 0, 1])) == (248, 128)
    assert (shift == 2).all()


def audited(findings: Findings, domain: ImageDomain) -> PictureAudit:
    report = replace(REPORT, methods=dict.fromkeys(NAMES, replace(WALK, findings=len(findings))))
    found = {"halving": PictureSearch(domain, findings, 1, 3.0)}
    subject = SimpleNamespace(domain=domain, attribute=cast_classifier(), random=domain)
    return PictureAudit(report, subject, found, CLASSES, ("x.png",))


def test_the_page_holds_its_pictures_and_escapes_words(tmp_path):
    domain, findings = one_pair()
    page = picture_page(audited(findings, domain))
    assert page.count("data:image/png;base64,") == 3 + 5
    assert "http" not in page
    for words in (
        "&lt;gender&gt;",
        "a&lt;b, AUC",
        'data-label="Of faces"><div>25.0% (0.6–80.6%)<',
        'data-label="GSR"><div>50%<',
        "attribute shift: f<",
        "twin: no face",
    ):
        assert words in page
    assert "No pair was found" in picture_page(audited(findings[:0], domain))
    write_results(tmp_path, audited(findings, domain))
    pairs = np.load(tmp_path / "pairs.npz")
    assert (pairs["pictures"][0, 0, 0, 0], pairs["twins"][0, 0, 0, 0], pairs["seeds"][0]) == (110, 108, "x.png")
