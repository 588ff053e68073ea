"""Preprocessing as a linear layer, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.model.open.estimator_networks import MAX_CURVE_VALUES, NotLinear, make_linear_layer
from neuronfair.model.open.opened import OpenRequest

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

    encoding, layer = make_linear_layer(transform, DOMAIN, torch.tensor([5, 1, 2]))
    assert [a.encode for a in encoding.attributes] == ["scaled", "scaled", "onehot"]
    # Age runs from -1 at 20 to 1 at 60: the feature from -2 to 2. Sex from -1 to 1: the feature from 0 to 3.
    np.testing.assert_allclose(layer.weight.detach()[:, :2], [[2.0, 0.0], [0.0, 1.5]], atol=1e-12)
    rows = DOMAIN.sample(200, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(layer(encoding.encode(rows, torch.float64)).detach(), transform(rows), atol=1e-9)


def test_a_crooked_number_becomes_a_lookup():
    def transform(rows):
        return np.abs(rows[:, :1].numpy() - 7.0)

    encoding, layer = make_linear_layer(transform, DOMAIN, torch.tensor([0, 0, 0]))
    assert encoding.attributes[0].encode == "onehot"
    rows = DOMAIN.sample(200, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(layer(encoding.encode(rows, torch.float64)).detach(), transform(rows), atol=1e-9)


def wide(values: int) -> TableDomain:
    return TableDomain("d", (Attribute("n", "ordinal", high=values - 1), *DOMAIN.attributes), ("sex",))


def square(rows):
    return np.stack([rows[:, 1].double(), rows[:, 0].double() ** 2 + 3 * rows[:, 2]], 1)


def test_a_crooked_number_with_many_values_becomes_a_curve_with_a_slope():
    domain = wide(1001)
    encoding, layer = make_linear_layer(square, domain, torch.tensor([7, 0, 0, 0]))
    assert encoding.attributes[0].encode == "scaled"
    rows = domain.sample(200, torch.Generator().manual_seed(0))
    rows[:2, 0] = torch.tensor([0, 1000])
    x = encoding.encode(rows, torch.float64).requires_grad_()
    features = layer(x)
    np.testing.assert_allclose(features.detach(), square(rows), rtol=1e-12, atol=1e-6)
    # n² has the slope 2n, here by a number that is 1 where n is 1000 and -1 where n is 0; one-sided at the ends.
    (slope,) = torch.autograd.grad(features[:, 1].sum(), x)
    expected = (2.0 * rows[:, 0]).clamp(1, 1999)
    np.testing.assert_allclose(slope[:, 0], 500 * expected, rtol=1e-9)
    np.testing.assert_allclose(layer.part(1, 2)(x).detach(), features[:, 1:].detach(), rtol=1e-12)
    assert len(layer.part(0, 1).curves) == 0


def test_a_crooked_number_with_very_many_values_is_refused():
    with pytest.raises(NotLinear, match="'n' is not linear"):
        make_linear_layer(square, wide(MAX_CURVE_VALUES + 1), torch.zeros(4, dtype=torch.int64))


def with_empty(points: int) -> TableDomain:
    number = Attribute("n", "ordinal", high=points - 1, missing="keep")
    return TableDomain("d", (number, *DOMAIN.attributes), ("sex",))


def filled(rows, value):
    """What stands for the number n, which is empty where it has the last code."""
    number = rows[:, 0].double().numpy()
    return np.where(number == 1000, value, number)


@pytest.mark.parametrize("value", [0, 123.25, 499.5, 999])
def test_an_empty_cell_that_stands_for_a_number_lies_on_its_line(value):
    domain = with_empty(1000)

    def transform(rows):
        return np.stack([filled(rows, value) / 50, 7 - 3 * filled(rows, value), rows[:, 2].double()], 1)

    rows = domain.sample(50, torch.Generator().manual_seed(0))
    rows[:3, 0] = torch.tensor([0, 999, 1000])
    for base in rows[:3]:
        encoding, layer = make_linear_layer(transform, domain, base)
        features = layer(encoding.encode(rows, torch.float64)).detach()
        np.testing.assert_allclose(features, transform(rows), rtol=1e-9, atol=1e-6)


def test_an_empty_cell_beside_the_line_is_a_value_of_a_lookup_or_refused():
    def apart(rows):  # the number, and whether it is empty
        return np.stack([filled(rows, 20), rows[:, 0].numpy() == 1000], 1)

    with pytest.raises(NotLinear, match="'n' is not linear"):
        make_linear_layer(apart, with_empty(1000), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(NotLinear, match="'n' is not linear"):  # an empty cell that continues the line
        make_linear_layer(lambda rows: rows[:, :1].numpy(), with_empty(1000), torch.zeros(4, dtype=torch.int64))
    for points in (1, 2, 100):
        domain = with_empty(points)
        rows = domain.sample(50, torch.Generator().manual_seed(0))
        rows[0, 0] = points
        encoding, layer = make_linear_layer(lambda rows: rows[:, :1].numpy(), domain, rows[1])
        np.testing.assert_allclose(layer(encoding.encode(rows, torch.float64)).detach(), rows[:, :1], atol=1e-9)


def test_every_number_that_may_be_empty_is_tried_so():
    request = OpenRequest("model", with_empty(100_000), torch.zeros(3, 4, dtype=torch.int64))
    assert (request.trial_rows[:, 0] == 100_000).sum() == 1
