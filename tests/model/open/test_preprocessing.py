"""Preprocessing as a linear layer, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.model.open.preprocessing import MAX_LOOKUP, NotLinear, linear_layer

DOMAIN = TableDomain(
    "d",
    (
        Attribute("age", "ordinal", low=20, high=60),
        Attribute("sex", "flag", values=("F", "M")),
        Attribute("race", "nominal", values=("A", "B", "C"), encode="onehot"),
    ),
    ("sex",),
)


def test_a_sum_of_columns_is_one_layer():
    table = np.array([[1.0, 0.0], [0.0, 5.0], [-2.0, 7.0]])

    def transform(rows):
        age, sex, race = rows.numpy().T
        return np.stack([(age + 20 - 40) / 10, 3.0 * sex + 1], 1) + table[race]

    encoding, layer = linear_layer(transform, DOMAIN, torch.tensor([5, 1, 2]))
    assert [a.encode for a in encoding.attributes] == ["scaled", "scaled", "onehot"]
    # Age runs from -1 at 20 to 1 at 60: the feature from -2 to 2. Sex from -1 to 1: the feature from 0 to 3.
    np.testing.assert_allclose(layer.weight.detach()[:, :2], [[2.0, 0.0], [0.0, 1.5]], atol=1e-12)
    rows = DOMAIN.sample(200, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(layer(encoding.encode(rows, torch.float64)).detach(), transform(rows), atol=1e-9)


def test_a_crooked_number_becomes_a_lookup():
    def transform(rows):
        return np.abs(rows[:, :1].numpy() - 7.0)

    encoding, layer = linear_layer(transform, DOMAIN, torch.tensor([0, 0, 0]))
    assert encoding.attributes[0].encode == "onehot"
    rows = DOMAIN.sample(200, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(layer(encoding.encode(rows, torch.float64)).detach(), transform(rows), atol=1e-9)


def test_a_crooked_number_with_many_values_is_refused():
    wide = TableDomain("d", (Attribute("n", "ordinal", high=MAX_LOOKUP), *DOMAIN.attributes), ("sex",))
    with pytest.raises(NotLinear, match="'n' is no straight line"):
        linear_layer(lambda rows: rows[:, :1].double().numpy() ** 2, wide, torch.zeros(4, dtype=torch.int64))
