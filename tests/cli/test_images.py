from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from neuronfair.images import search
from neuronfair.images.archive import draw_images
from neuronfair.images.search import search_images


@pytest.fixture
def photos(tmp_path):
    """A folder of drawn pictures with labels."""
    drawn = draw_images(40, 40, side=64)
    (tmp_path / "photos").mkdir()
    lines = ["file,is_face,cast"]
    for pixels, file, face, cast in zip(drawn.pixels, drawn.files, drawn.is_face, drawn.columns["cast"], strict=True):
        Image.fromarray(pixels.numpy().transpose(1, 2, 0)).save(tmp_path / "photos" / file)
        lines.append(f"{file},{int(face)},{cast}")
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    return "photos", "--labels", "labels.csv", "--sensitive", "cast"


def test_a_folder_is_audited_end_to_end_and_the_detector_can_be_used_again(run, photos, tmp_path):
    first = run("audit-images", *photos, "--steps", 3, "--epochs", 2, "--out", "first")
    assert first.status == 0, first
    assert "Pairs side by side" in first.out
    figures = json.loads((tmp_path / "first" / "figures.json").read_text())
    shift = figures["shift"]
    assert shift["faces"] == 40
    assert shift["detected"] == shift["attribute_flips"] + shift["attribute_never_flips"]
    assert {"neuronfair", "adf", "eidig", "halving", "neuronfair, random shift"} < set(figures["methods"])
    pairs = np.load(tmp_path / "first" / "pairs.npz")
    assert len(pairs["pictures"]) == len(pairs["twins"]) == figures["methods"]["halving"]["findings"]
    assert all(str(name).startswith("face") for name in pairs["seeds"])
    model = tmp_path / "first" / "detector.safetensors"
    again = run("audit-images", *photos, "--model", model, "--steps", 3, "--out", "second")
    assert again.status == 0, again
    other = json.loads((tmp_path / "second" / "figures.json").read_text())
    assert other["detection_rate"] == figures["detection_rate"]
    assert set(other["methods"]) == set(figures["methods"])


def test_mistakes_are_refused_in_one_line(refused, photos, tmp_path):
    folder, *labels, attribute = photos
    refused("audit-images", folder, "--sensitive", "cast", "--out", "o", says=("give --labels",))
    refused("audit-images", "fotos", *labels, attribute, "--out", "o", says=("neither a folder", "drawn"))
    refused("audit-images", folder, *labels, "caste", "--out", "o", says=("no column 'caste'", "'cast'"))
    refused("audit-images", folder, *labels, attribute, "--out", "photos", says=("not the folder of an audit",))
    refused("audit-images", *photos, "--device", "cuda:99", "--out", "o", says=("--device cuda:99", "not usable"))
    refused("audit-images", *photos, "--model", "none", "--out", "o", says=("no such file",))
    few = tmp_path / "labels.csv"
    few.write_text("file,cast\nface00000.png,warm\nface00001.png,cool\n")
    refused("audit-images", *photos, "--out", "o", says=("2 faces have a 'cast'", "At least 20"))
    everybody = "".join(f"face{i:05d}.png,{'warm' if i % 2 else 'cool'}\n" for i in range(40))
    few.write_text("file,cast\n" + everybody)
    refused("audit-images", *photos, "--out", "o", says=("one class only",))


def test_after_ctrl_c_the_same_command_goes_on(run, refused, monkeypatch, tmp_path):
    command = ("audit-images", "drawn", "--sensitive", "cast", "--faces", 20, "--steps", 2, "--epochs", 1, "--out", "o")
    searched = []

    def interrupted(*arguments, **options):
        searched.append(arguments[2])
        if len(searched) == 2:
            raise KeyboardInterrupt
        return search_images(*arguments, **options)

    monkeypatch.setattr(search, "search_images", interrupted)
    stopped = run(*command)
    assert (stopped.status, stopped.err) == (130, "")
    assert "Interrupted. The same command resumes" in stopped.out
    assert not (tmp_path / "o" / "figures.json").exists()
    refused(*command, "--seed", 1, says=("started with other pictures", "Choose another --out"))
    gone_on = run(*command)
    assert gone_on.status == 0, gone_on
    assert searched.count(searched[0]) == 1 + 2  # the method itself once, and its two controls
    assert searched.count(searched[1]) == 2
    refused(*command, "--force", "--model", "o/detector.safetensors", says=("lies in o", "--force"))
    assert (tmp_path / "o" / "figures.json").exists()
    assert run(*command, "--force", "--quiet").status == 0
    assert len(searched) == 2 + 7 + 8  # all of them anew; one of the first two was interrupted
