"""The operators of ONNX graphs by themselves; `test_onnx_file.py` compares them with onnxruntime."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from neuronfair.model.open.graphs import Ref, Unsupported
from neuronfair.model.open.graphs.onnx_operators import find_operator, make_activation


def test_no_padding_is_taken_by_any_of_its_names():
    x, weight = torch.tensor([[[1.0, 2.0, 4.0]]]), torch.tensor([[[1.0, 10.0]]])
    for attributes in ({}, {"auto_pad": "NOTSET"}, {"auto_pad": "VALID"}):
        assert find_operator("Conv", attributes, 17)(x, weight).tolist() == [[[21.0, 42.0]]]


def test_what_is_not_supported_is_said_before_anything_is_computed():
    with pytest.raises(Unsupported, match="the padding SAME_UPPER"):
        find_operator("MaxPool", {"kernel_shape": [2], "auto_pad": "SAME_UPPER"}, 17)
    with pytest.raises(Unsupported, match="the attribute volume of Conv"):
        find_operator("Conv", {"volume": 11}, 17)
    with pytest.raises(Unsupported, match="the operator Loop"):
        find_operator("Loop", {}, 17)


def test_a_bound_that_the_graph_computes_is_not_left_out():
    low, high = torch.tensor(0.0), torch.tensor(0.5)
    computed, x = Ref("high"), torch.tensor([-1.0, 0.25, 2.0])
    assert make_activation("Clip", {}, [Ref("x"), 0.0, computed]) is None
    assert make_activation("Clip", {}, [Ref("x"), Ref("low"), 1.0]) is None
    assert isinstance(make_activation("Clip", {}, [Ref("x"), 0.0]), nn.ReLU)
    assert isinstance(make_activation("Clip", {"min": 0.0}, [Ref("x")]), nn.ReLU)
    assert (
        make_activation("Clip", {}, [Ref("x"), 1.0, 0.0]) is None
    )  # as the standard says, the upper bound then counts
    clip = find_operator("Clip", {}, 13)
    assert clip(x, low, high).tolist() == [0.0, 0.25, 0.5]
    assert clip(x, None, high).tolist() == [-1.0, 0.25, 0.5]
    assert clip(x, torch.tensor(1.0), low).tolist() == [0.0, 0.0, 0.0]
    assert clip(x).tolist() == x.tolist()
    assert find_operator("Clip", {"max": 0.5}, 9)(x).tolist() == [-1.0, 0.25, 0.5]


def test_a_softmax_without_an_axis_is_over_all_but_the_rows_before_version_13():
    x = torch.arange(8.0).view(1, 2, 4)
    assert find_operator("Softmax", {}, 13)(x).sum().item() == pytest.approx(2)
    with pytest.raises(Unsupported, match="along axis 1"):
        find_operator("Softmax", {}, 12)(x)
    assert find_operator("LogSoftmax", {}, 12)(x[0]).exp().sum(1).tolist() == pytest.approx([1, 1])


def test_a_power_of_whole_numbers_is_a_whole_number():
    power = find_operator("Pow", {}, 17)(torch.tensor([2, 3]), torch.tensor(0.5))
    assert power.tolist() == [1, 1]
    assert not power.is_floating_point()
