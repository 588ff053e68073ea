from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from neuronfair.errors import DataError, RunError
from neuronfair.images import audit
from neuronfair.images import search as searches
from neuronfair.images.archive import draw_images
from neuronfair.images.audit import audit_images
from neuronfair.images.report import ImageReport
from neuronfair.images.search import ImageSettings, search_images

PICTURES = draw_images(40, 40, side=32)
QUICK = ImageSettings(steps=3, epochs=2)


def untimed(report: ImageReport) -> dict:
    def without(entry):
        kept = {key: value for key, value in entry.items() if not key.startswith("seconds")}
        return {key: without(value) if isinstance(value, dict) else value for key, value in kept.items()}

    return without(json.loads(report.to_json()))


@pytest.mark.parametrize("own_body", [False, True])
def test_an_audit_that_was_killed_goes_on_and_finds_the_same(tmp_path, monkeypatch, own_body):
    settings = replace(QUICK, own_body=own_body)
    whole = audit_images(PICTURES, "cast", settings=settings)
    calls = []

    def killed(*arguments, **options):
        calls.append(arguments[2])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return search_images(*arguments, **options)

    monkeypatch.setattr(searches, "search_images", killed)
    with pytest.raises(KeyboardInterrupt):
        audit_images(PICTURES, "cast", settings=settings, folder=tmp_path / "run")
    for name in ("fit_detector", "fit_attribute"):
        monkeypatch.setattr(audit, name, None)  # what was trained is not trained again
    again = audit_images(PICTURES, "cast", settings=settings, folder=tmp_path / "run")
    assert len(calls) == 3 + len(again.searches) - 2
    assert untimed(again.report) == untimed(whole.report)
    for name, search in whole.searches.items():
        assert torch.equal(search.findings.packed, again.searches[name].findings.packed)
        assert torch.equal(search.findings.twin_scores, again.searches[name].findings.twin_scores)
    once_more = audit_images(PICTURES, "cast", settings=settings, folder=tmp_path / "run")
    assert len(calls) == 3 + len(again.searches) - 2
    assert once_more.report == again.report  # the seconds, too


def test_an_audit_does_not_go_on_with_something_else(tmp_path):
    run = tmp_path / "run"
    audit_images(PICTURES, "cast", settings=replace(QUICK, steps=0), folder=run)
    for pictures, settings, what in (
        (PICTURES, QUICK, "another budget or seed"),
        (draw_images(40, 40, side=32, seed=1), replace(QUICK, steps=0), "other pictures"),
        (replace(PICTURES, columns={"cast": ["warm", "cool"] * 40}), replace(QUICK, steps=0), "other labels"),
    ):
        with pytest.raises(RunError, match=f"started with {what}"):
            audit_images(pictures, "cast", settings=settings, folder=run)
    with pytest.raises(RunError, match="started with another model"):
        audit_images(PICTURES, "cast", detector=run / audit.DETECTOR_FILE, settings=replace(QUICK, steps=0), folder=run)
    with pytest.raises(DataError, match="sees pictures of 32 x 32, these are 16 wide"):
        audit_images(draw_images(40, 40, side=16), "cast", detector=run / audit.DETECTOR_FILE)
    with (run / "found-adf.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    with pytest.raises(RunError, match=r"found-adf.safetensors: damaged"):
        audit_images(PICTURES, "cast", settings=replace(QUICK, steps=0), folder=run)
