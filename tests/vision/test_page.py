from __future__ import annotations

import torch
from PIL import Image

from neuronfair.search.findings import Findings
from neuronfair.vision.domain import ImageDomain
from neuronfair.vision.page import amplified, panels, write_page, write_sheet

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


def test_the_page_holds_its_pictures_and_escapes_words(tmp_path):
    domain, findings = one_pair()
    table = {"a<b": {"findings": 3}}
    write_page(tmp_path / "r.html", domain, findings, title="T & U", lines=["x < y"], table=table, classes=CLASSES)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 5
    assert "http" not in page
    for words in ("T &amp; U", "x &lt; y", "a&lt;b", "twin: no face"):
        assert words in page
    write_page(tmp_path / "e.html", domain, findings[:0], title="", lines=[], table={}, classes=CLASSES)
    assert "Nothing was found" in (tmp_path / "e.html").read_text(encoding="utf-8")


def test_the_sheet_is_a_picture(tmp_path):
    write_sheet(tmp_path / "s.png", *one_pair(), CLASSES)
    with Image.open(tmp_path / "s.png") as image:
        assert image.format == "PNG"
        assert image.getpixel((6, 6)) == (100, 100, 100)
