"""Asking everybody in boxes: only where the people can be counted."""

import torch

from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.proof.boxes.space import Axis, Boxes, Space
from neuronfair.proof.decide import prove as proving
from neuronfair.proof.decide.counts import can_enumerate
from neuronfair.proof.decide.prove import prove
from neuronfair.proof.problem import problem_of
from tests.planted import networks


def test_boxes_of_more_people_than_64_bits_count_are_cut_instead() -> None:
    places, many = torch.arange(2), torch.tensor([1 << 40, 1 << 40])
    space = Space(tuple(Axis(column, places, places, many, False) for column in range(2)))
    boxes = Boxes(torch.zeros(3, 2, dtype=torch.int64), torch.tensor([[1, 1], [1, 0], [0, 0]]))
    assert can_enumerate(space, boxes, most=4).tolist() == [False, True, True]
    assert can_enumerate(space, boxes, most=1).tolist() == [False, False, True]


def test_one_layer_is_bounded_in_one_way_however_long_it_takes(monkeypatch) -> None:
    monkeypatch.setattr(proving, "SMALL", 1)
    domain = networks.domain(attributes=3)
    layer = networks.linear([[1.0, 1.0, 1.0, -2.0]], [-14.5])
    network = Network(torch.nn.Sequential(layer).eval(), domain, layers=())
    proof = prove(problem_of(network, domain, decision=Decision("threshold", 0.0)), seconds=60)
    sums = [sum(map(int, f"{number:03}")) for number in range(1_000)]
    assert proof.complete
    assert proof.discriminatory == 2 * sum(14.5 < total < 16.5 for total in sums)
