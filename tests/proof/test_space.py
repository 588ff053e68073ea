"""Sums over boxes against every person of them."""

from __future__ import annotations

import pytest
import torch

from neuronfair.proof.bounds.space import Boxes
from tests.proof import worlds

SPACES = {
    "numbers": (5, 4),
    "tables": ([1, 3, 2], [2, 2]),
    "both": ([1, 4], 6, [3, 1, 1, 2], 2),
    "one place": ([7], 1, 3),
}


@pytest.fixture(params=SPACES.values(), ids=SPACES.keys())
def world(request):
    space = worlds.space_of(*request.param)
    boxes = worlds.random_boxes(space, 12)
    slopes = torch.randn(12, 3, space.features, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return space, boxes, slopes


def test_sizes_are_codes(world):
    space, boxes, _ = world
    for number, sizes in enumerate(space.sizes(boxes)):
        places = worlds.places_of(boxes, number)
        for i, axis in enumerate(space.axes):
            assert sizes[i] == axis.count[places[:, i].unique()].sum()


def test_least_mean_variance_and_reach(world):
    space, boxes, slopes = world
    least, shared = space.least(boxes, slopes), space.least(boxes, slopes[0])
    mean, variance = space.moments(boxes, slopes)
    reach = space.reach(boxes, slopes)
    assert torch.equal(mean, space.mean(boxes, slopes))
    for n in range(len(boxes)):
        places = worlds.places_of(boxes, n)
        features, weight = worlds.features_of(space, places), worlds.weights_of(space, places).double()
        weight = weight / weight.sum()
        line = features @ slopes[n].T
        assert torch.allclose(least[n], line.amin(0), atol=1e-12)
        assert torch.allclose(shared[n], (features @ slopes[0].T).amin(0), atol=1e-12)
        own_mean = weight @ line
        assert torch.allclose(mean[n], own_mean, atol=1e-12)
        assert torch.allclose(variance[n], weight @ (line - own_mean).square(), atol=1e-12)
        for i in range(len(space.axes)):
            one = torch.where(torch.arange(len(space.axes)) == i, places, boxes.low[n])
            moved = worlds.features_of(space, one) @ slopes[n].T
            assert torch.allclose(reach[n, :, i], moved.amax(0) - moved.amin(0), atol=1e-12)


def test_halves_are_the_box():
    space = worlds.space_of(6, [2, 1, 1, 5])
    boxes = Boxes(torch.tensor([[0, 0], [3, 1]]), torch.tensor([[5, 3], [4, 3]]))
    axis = torch.tensor([0, 1])
    middle = space.middle(boxes, axis)
    assert middle.tolist() == [2, 2]
    halves = space.halves(boxes, axis, middle)
    assert halves.low.tolist() == [[0, 0], [3, 1], [3, 0], [3, 3]]
    assert halves.high.tolist() == [[2, 3], [4, 2], [5, 3], [4, 3]]
    assert boxes.high.tolist() == [[5, 3], [4, 3]]  # as they were


def test_features_and_everything():
    space = worlds.space_of([1, 1, 1], 9, [4])
    assert space.first == (0, 3, 4, 5)
    assert (space.features, space.slopes.tolist(), space.linear.tolist()) == (5, [3], [1])
    whole = space.everything()
    assert (whole.low.tolist(), whole.high.tolist()) == ([[0, 0, 0]], [[2, 8, 0]])
    assert space.sizes(whole).tolist() == [[3, 9, 4]]
