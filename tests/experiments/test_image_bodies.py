"""The detectors of the paper."""

from __future__ import annotations

import pytest
import torch

from experiments.image_bodies import HEAD, resnet50, vgg16
from neuronfair import Network
from neuronfair.images.detector import build
from tests.planted.networks import Given


def parameters(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_the_bodies_have_the_published_numbers_of_parameters():
    assert parameters(vgg16(batch_norm=False)) == 14_714_688
    assert parameters(vgg16()) == 14_714_688 + 2 * 4_224  # scale and offset of each channel
    assert parameters(resnet50()) == 23_508_032


@pytest.mark.parametrize(("name", "width", "sites"), [("vgg16", 2048, 13), ("resnet50", 8192, 49), ("small", 1024, 3)])
def test_bodies_flatten_to_known_widths_and_all_activations_are_layers(name, width, sites):
    detector = build(name, side=64).eval()
    x = torch.rand(2, 3, 64, 64)
    assert detector.body(x).shape == (2, width)
    network = Network(detector, Given(x))
    body = [layer for layer in network.layers if layer.startswith("body")]
    assert len(body) == sites
    assert network.outputs == 2
    if name != "small":
        assert [network.neurons[f"head.layer{i + 1}"] for i in range(5)] == list(HEAD)
