from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch

from neuronfair.formatting import percent
from neuronfair.measure.rate import Ablation, AblationOutcome
from neuronfair.model.profile import BiasProfile, LayerBias
from neuronfair.plots import PICTURE_SUFFIXES, saved_figure
from neuronfair.render.terminal import describe_profile, list_interpretation, make_console, make_layer_table

PROFILE = BiasProfile(
    (LayerBias("first", torch.tensor([0.0, 0.1, 2.0])), LayerBias("dead", torch.zeros(2, dtype=torch.float64))), pairs=7
)
DOMAIN = SimpleNamespace(sensitive=("sex", "race"))
ABLATION = Ablation(
    "first",
    (2,),
    AblationOutcome(0.25, 0.8),
    AblationOutcome(0.0001, 0.75),
    (AblationOutcome(0.2, 0.7), AblationOutcome(0.3, 0.5)),
)


def draw(path, title) -> None:
    with saved_figure(path, size=(7, 6)) as figure:
        PROFILE.plot(figure.add_subplot(), title=title)


def shown(thing) -> str:
    console = make_console()
    with console.capture() as text:
        console.print(thing)
    return text.get()


@pytest.mark.parametrize("suffix", PICTURE_SUFFIXES)
def test_every_kind_of_picture(tmp_path, suffix):
    path = tmp_path / f"as{suffix}"
    draw(path, "people")
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert path.read_bytes().startswith(starts[suffix])
    assert list(tmp_path.iterdir()) == [path]


def test_a_picture_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(OSError, match="No space"):
        draw(tmp_path / "as.png", "people")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("title", ["income in $ and $x_", r"$\frac$", "\x1b[31m\u202e--><b>", "年齢 \ud800"])
def test_names_in_pictures_are_no_formulas_and_no_markup(tmp_path, title):
    draw(tmp_path / "as.svg", title)
    text = (tmp_path / "as.svg").read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert "\x1b" not in text
    draw(tmp_path / "as.png", title)


def test_a_link_that_was_named_stays_a_link(tmp_path):
    (tmp_path / "link.svg").symlink_to(tmp_path / "real.svg")
    draw(tmp_path / "link.svg", "people")
    assert (tmp_path / "link.svg").is_symlink()
    assert (tmp_path / "real.svg").read_bytes().startswith(b"<?xml")


def test_the_table_marks_the_worst_layer_and_the_dead_one():
    text = shown(make_layer_table(PROFILE, DOMAIN))
    assert "sex and race" in text
    assert "first  ◀ most biased" in text
    assert "none reacts" in text


def test_the_verdict_in_words():
    text = describe_profile(PROFILE, ABLATION, DOMAIN)
    assert "Most biased layer: first. 1 of its 3 neurons reacts strongly to sex and race" in text
    assert f"Flip rate in the data set: {percent(0.25)} at an accuracy of " in text
    assert f"switched off: {percent(0.0001)} at an accuracy of {percent(0.75)}" in text
    assert f"{percent(0.25)} at an accuracy of {percent(0.6)}, mean of 2 draws" in text


def test_without_labels_no_accuracy():
    bare = replace(
        ABLATION,
        before=AblationOutcome(0.25, None),
        after=AblationOutcome(0.0, None),
        random=(AblationOutcome(0.25, None),) * 2,
    )
    assert "accuracy" not in describe_profile(PROFILE, bare, DOMAIN)
    result = list_interpretation(PROFILE, bare)
    assert result["ablation"]["random"] == {"draws": 2, "rate": 0.25, "accuracy": None}


def test_a_network_that_does_not_react():
    dead = BiasProfile(PROFILE.layers[1:], pairs=7)
    assert describe_profile(dead, ABLATION, DOMAIN).startswith(
        "No neuron reacted to sex and race in 7 pairs of a record and a twin."
    )


def test_json_has_what_is_promised():
    result = list_interpretation(PROFILE, None)
    assert result["worst"] == "first"
    assert result["layers"][0]["biased"] == [2]
    assert result["layers"][1]["reacts"] is False
    assert "ablation" not in result


def test_a_profile_in_a_few_lines_and_as_a_frame():
    assert repr(PROFILE).splitlines()[0] == "Most biased layer: first (7 pairs of a record and a twin compared)"
    assert "dead: AS-AUC 0.000, 0 of 2 neurons biased" in repr(PROFILE)
    assert PROFILE.to_frame()["biased"].tolist() == [1, 0]
    assert len(repr(BiasProfile(PROFILE.layers * 9, pairs=1)).splitlines()) == 10
    axes = PROFILE.plot()
    assert len(axes.get_lines()) == 4  # two curves, one cut, and y = x
