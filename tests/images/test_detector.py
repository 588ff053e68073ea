from __future__ import annotations

import json

import pytest
import torch

from neuronfair.errors import ModelError, NeuronFairError
from neuronfair.images.archive import draw_images
from neuronfair.images.detector import (
    Detector,
    DetectorCard,
    build,
    build_small_body,
    extract_features,
    fit_attribute,
    fit_detector,
    load_body,
    load_detector,
    measure_accuracies,
    predict_classes,
    save_detector,
    train_on_images,
)


def test_an_unknown_body_is_refused():
    with pytest.raises(ModelError, match=r"no detector 'smal'.*Did you mean 'small'"):
        build("smal", side=64)


@pytest.fixture(scope="module")
def trained():
    pictures = draw_images(120, 120, side=32)
    return pictures, fit_detector("small", pictures.pixels, pictures.is_face, epochs=10)


def test_the_small_detector_learns_drawn_faces(trained):
    _, detector = trained
    fresh = draw_images(60, 60, side=32, seed=9)
    right, balanced = measure_accuracies(detector, fresh.pixels, fresh.is_face.long())
    assert right > 0.9
    assert balanced > 0.9
    assert not detector.training


def test_the_same_seed_gives_the_same_detector():
    pictures = draw_images(20, 20, side=32)
    first, second = (fit_detector("small", pictures.pixels, pictures.is_face, epochs=1, seed=4) for _ in range(2))
    other = fit_detector("small", pictures.pixels, pictures.is_face, epochs=1, seed=5)
    x = torch.rand(3, 3, 32, 32)
    assert torch.equal(first(x), second(x))
    assert not torch.equal(first(x), other(x))


def test_one_class_only_is_refused():
    pictures = draw_images(20, 0, side=32)
    with pytest.raises(ModelError, match="one class only"):
        fit_detector("small", pictures.pixels, pictures.is_face, epochs=1)


def test_balanced_accuracy_is_the_mean_over_classes():
    class Always(torch.nn.Module):
        def forward(self, x):
            return torch.tensor([[0.0, 1.0]]).repeat(len(x), 1)

    right, balanced = measure_accuracies(
        Always(), torch.zeros(4, 3, 2, 2, dtype=torch.uint8), torch.tensor([1, 1, 1, 0])
    )
    assert (right, balanced) == (0.75, 0.5)


def test_an_attribute_head_leaves_the_frozen_body_as_it_is(trained):
    pictures, detector = trained
    before = {name: t.clone() for name, t in detector.state_dict().items()}
    _, cast = pictures.attribute("cast")
    head = fit_attribute(detector, "small", pictures.pixels, cast)
    assert head.body is detector.body
    assert all(torch.equal(t, before[name]) for name, t in detector.state_dict().items())
    assert measure_accuracies(head, pictures.pixels, cast)[0] > 0.7
    assert torch.equal(
        predict_classes(head, pictures.pixels), head.head(extract_features(detector, pictures.pixels)).argmax(1)
    )


def test_a_body_of_its_own_is_another_body(trained):
    pictures, detector = trained
    _, cast = pictures.attribute("cast")
    own = fit_attribute(detector, "small", pictures.pixels[:40], cast[:40], own_body=True, epochs=1)
    assert own.body is not detector.body


def test_weights_files_keep_the_function_and_refuse_others(trained, tmp_path):
    pictures, detector = trained
    path = tmp_path / "detector.safetensors"
    save_detector(path, detector, DetectorCard("small", 32))
    loaded, card = load_detector(path)
    assert card == DetectorCard("small", 32)
    assert isinstance(loaded, Detector)
    assert torch.equal(predict_classes(loaded, pictures.pixels), predict_classes(detector, pictures.pixels))
    with pytest.raises(ModelError, match="not those of this network"):
        load_body(path, build_small_body())
    (tmp_path / "text.safetensors").write_text("no")
    with pytest.raises(ModelError, match="not a readable safetensors"):
        load_detector(tmp_path / "text.safetensors")
    with pytest.raises(ModelError, match="no such file"):
        load_detector(tmp_path / "none")


def test_a_pretrained_body_in_half_precision_is_where_training_starts(tmp_path):
    from safetensors.torch import save_file

    body = build_small_body()
    save_file(
        {name: t.half() if t.dim() == 4 else t for name, t in body.state_dict().items()}, tmp_path / "b.safetensors"
    )
    other = build_small_body()
    load_body(tmp_path / "b.safetensors", other)
    assert other.conv1[0].weight.dtype == torch.float32
    assert torch.allclose(other.conv1[0].weight, body.conv1[0].weight, atol=1e-3)


def test_a_pretrained_body_learns_at_a_tenth_of_the_rate(tmp_path):
    from safetensors.torch import save_file

    pictures = draw_images(20, 20, side=32)
    start = build("small", side=32)
    save_file(start.body.state_dict(), tmp_path / "body.safetensors")
    ours = fit_detector("small", pictures.pixels, pictures.is_face, epochs=1, weights=tmp_path / "body.safetensors")
    body, head = start.state_dict()["body.conv2.0.weight"], ours.state_dict()["body.conv2.0.weight"]
    slow = float((head - body).norm())
    again = build("small", side=32)
    again.body.load_state_dict(start.body.state_dict())
    train_on_images(again, pictures.pixels, pictures.is_face.long(), epochs=1)
    assert 0 < slow < 0.4 * float((again.state_dict()["body.conv2.0.weight"] - body).norm())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"side": 10**9}, "would take about"),
        ({"side": -32}, "the card"),
        ({"side": "wide"}, "the card"),
        ({"side": 1e999}, "the card"),
        ({"classes": 5}, "the card"),
        ({"body": "other"}, "no detector 'other'"),
        ({"more": 1}, "the card"),
        ({"side": 64}, "not those of this network"),
    ],
)
def test_a_card_that_cannot_be_is_refused(tmp_path, change, says):
    from safetensors.torch import save_file

    path = tmp_path / "detector.safetensors"
    card = {"body": "small", "side": 32, "classes": ["no face", "face"]} | change
    save_file(build("small", side=32).state_dict(), path, {"neuronfair-detector": json.dumps(card)})
    with pytest.raises(NeuronFairError, match=says):
        load_detector(path)
