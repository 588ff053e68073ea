"""The operators of ONNX graphs by themselves; `test_onnx_file.py` compares them with onnxruntime."""

from __future__ import annotations

import pytest
import torch

from neuronfair.model.open.graphs import Unsupported
from neuronfair.model.open.graphs.onnx_operators import operator


def test_no_padding_is_taken_by_any_of_its_names():
    x, weight = torch.tensor([[[1.0, 2.0, 4.0]]]), torch.tensor([[[1.0, 10.0]]])
    for attributes in ({}, {"auto_pad": "NOTSET"}, {"auto_pad": "VALID"}):
        assert operator("Conv", attributes)(x, weight).tolist() == [[[21.0, 42.0]]]


def test_what_is_not_supported_is_said_before_anything_is_computed():
    with pytest.raises(Unsupported, match="the padding SAME_UPPER"):
        operator("MaxPool", {"kernel_shape": [2], "auto_pad": "SAME_UPPER"})
    with pytest.raises(Unsupported, match="the attribute volume of Conv"):
        operator("Conv", {"volume": 11})
    with pytest.raises(Unsupported, match="the operator Loop"):
        operator("Loop", {})
