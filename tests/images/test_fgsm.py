from __future__ import annotations

import pytest
import torch
from torch import nn

from neuronfair import Network
from neuronfair.experiments.planted import cast_classifier
from neuronfair.images.attribute_shift import flip, random_like


def linear_classifier(weight: list[float], bias: float) -> Network:
    """Scores 0 and w · x + b for pictures of one pixel with three colours."""
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0, 0.0, 0.0], weight]))
        layer.bias.copy_(torch.tensor([0.0, bias]))
    return nn.Sequential(nn.Flatten(), layer, nn.Identity())


def pixel(*colour: int) -> torch.Tensor:
    return torch.tensor(colour, dtype=torch.uint8).view(1, 3, 1, 1)


def test_the_smallest_level_that_flips_the_class_is_taken():
    # 255 (w · x + b) = 2 r - g + 0 b - 10.5: the step of ε levels against it changes it by 3 ε.
    classifier = linear_classifier([2 * 255.0, -255.0, 0.0], -10.5)
    above = flip(classifier, pixel(30, 40, 7))  # 9.5: class 1; flipped by 3 ε > 9.5
    assert above.size.tolist() == [4]
    assert above.levels.flatten().tolist() == [-4, 4, 0]
    below = flip(classifier, pixel(20, 30, 7))  # -0.5: class 0; flipped by the first level
    assert below.size.tolist() == [1]
    assert below.levels.flatten().tolist() == [1, -1, 0]


def test_only_levels_of_the_schedule_are_tried():
    classifier = linear_classifier([2 * 255.0, -255.0, 0.0], -10.5)
    assert flip(classifier, pixel(30, 40, 7), (10, 7, 2)).size.tolist() == [7]
    none = flip(classifier, pixel(250, 0, 7), (1, 2))
    assert none.size.tolist() == [0]
    assert not none.flips.any()
    assert none.levels.flatten().tolist() == [0, 0, 0]


def test_a_shift_that_only_works_beyond_white_does_not_count():
    classifier = linear_classifier([255.0, 0.0, 0.0], -255.5)  # needs red above 255.5
    assert flip(classifier, pixel(255, 0, 0)).size.tolist() == [0]


def test_batches_do_not_change_the_shift():
    pictures = torch.randint(0, 256, (300, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    classifier = cast_classifier()
    whole = flip(classifier, pictures)
    assert torch.equal(whole.size[250:], flip(classifier, pictures[250:]).size)
    assert (whole.levels.abs().amax((1, 2, 3)) == whole.size).all()


def test_more_than_two_classes_flip_to_any_other():
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight.copy_(255 * torch.eye(3))
        layer.bias.zero_()
    classifier = nn.Sequential(nn.Flatten(), layer)
    found = flip(classifier, pixel(100, 97, 0))
    assert found.size.tolist() == [2]  # 98 against 99
    assert found.levels.flatten().tolist()[:2] == [-2, 2]


def test_the_random_control_has_the_same_size_and_another_direction():
    pictures = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    shift = flip(cast_classifier(), pictures)
    other = random_like(shift, seed=3)
    assert torch.equal(other.abs(), shift.levels.abs())
    moved = shift.levels != 0
    assert float((other == shift.levels)[moved].float().mean()) == pytest.approx(0.5, abs=0.05)
    assert torch.equal(random_like(shift, seed=3), other)
