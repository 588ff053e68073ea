"""Other ways to make numbers of rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.tables.dataset import load_dataset
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.other_encodings import CODES, ORDERS, SCALES, Feeder, OtherEncoding

ALL = slice(None)
ATTRIBUTES = (
    Attribute("size", "ordinal", low=10, high=30, step=10, encode="scaled", center=20, scale=5),
    Attribute("job", "nominal", values=("smith", "cook", "baker")),
    Attribute("area", "nominal", values=("town", "land"), encode="onehot"),
)
ROWS = torch.tensor([[0, 0, 0], [1, 1, 1], [2, 2, 1], [2, 2, 1]])


def numbers(**feed) -> np.ndarray:
    return Feeder(ATTRIBUTES, ROWS).numbers(OtherEncoding(**feed), ALL)


@pytest.mark.parametrize("encoding", ["default", "paper"])
def test_what_is_not_said_is_as_declared(encoding):
    data = load_dataset("german", encoding)
    feeder = Feeder(data.domain.attributes, data.rows)
    declared = TableEncoding.of(data.domain).encode(data.rows).numpy()
    np.testing.assert_allclose(feeder.numbers(OtherEncoding(), ALL), declared, rtol=1e-6, atol=1e-6)
    feeds = [*(OtherEncoding(scale=one) for one in SCALES), *(OtherEncoding(codes=one) for one in CODES)]
    feeds += [OtherEncoding(order=feeder.order(one), moved=one) for one in ORDERS]
    assert {feeder.numbers(feed, slice(0, 5)).shape for feed in feeds} == {declared[:5].shape}


def test_an_empty_cell_is_where_the_declared_encoding_puts_it():
    kept = Attribute("size", "ordinal", low=10, high=30, step=10, missing="keep")
    attributes = [
        kept,
        replace(kept, encode="scaled", center=10, scale=5),
        replace(kept, encode="onehot"),
        Attribute("one", "flag", low=5, high=5, missing="keep"),
    ]
    rows = torch.tensor([[0, 0, 0, 0], [3, 3, 3, 1]])
    feeder, declared = Feeder(attributes, rows), TableEncoding(attributes).encode(rows).numpy()
    np.testing.assert_allclose(feeder.numbers(OtherEncoding(), ALL), declared)
    assert feeder.numbers(OtherEncoding(), ALL)[1].tolist() == [20, 0, 0, 0, 0, 1, 5]
    assert feeder.numbers(OtherEncoding(scale="codes from 0"), ALL)[1].tolist() == [1, 0, 0, 0, 0, 1, 0]
    assert feeder.numbers(OtherEncoding(codes="labels in reverse order"), ALL)[1, 0] == 20


@pytest.mark.parametrize(
    ("scale", "size", "job"),
    [
        ("", [-2, 0, 2, 2], [0, 1, 2, 2]),
        ("raw values", [10, 20, 30, 30], [0, 1, 2, 2]),
        ("codes from 0", [0, 1, 2, 2], [0, 1, 2, 2]),
        ("codes from 1", [1, 2, 3, 3], [1, 2, 3, 3]),
        ("values scaled to 0 … 1", [0, 0.5, 1, 1], [0, 0.5, 1, 1]),
        ("values scaled to −1 … 1", [-1, 0, 1, 1], [-1, 0, 1, 1]),
        ("numbers scaled to 0 … 1 and labels as codes", [0, 0.5, 1, 1], [0, 1, 2, 2]),
    ],
)
def test_scales_by_hand(scale, size, job):
    made = numbers(scale=scale)
    np.testing.assert_allclose(made[:, 0], size)
    np.testing.assert_allclose(made[:, 1], job)
    np.testing.assert_array_equal(made[:, 2:], [[1, 0], [0, 1], [0, 1], [0, 1]])  # a block has no scale


def test_standardised_means_mean_0_and_deviation_1():
    made = numbers(scale="values standardised by the table")[:, :2]
    np.testing.assert_allclose([made.mean(0), made.std(0)], [[0, 0], [1, 1]], atol=1e-6)


@pytest.mark.parametrize(
    ("codes", "size", "job", "town"),
    [
        ("every code one higher", [0, 2, 4, 4], [1, 2, 3, 3], [0, 1, 1, 1]),
        ("every code one lower", [-4, -2, 0, 0], [-1, 0, 1, 1], [0, 1, 1, 1]),
        ("labels in alphabetical order", [-2, 0, 2, 2], [2, 1, 0, 0], [0, 1, 1, 1]),
        ("labels in reverse order", [-2, 0, 2, 2], [2, 1, 0, 0], [0, 1, 1, 1]),
        ("labels by how frequent they are", [-2, 0, 2, 2], [1, 2, 0, 0], [0, 1, 1, 1]),
    ],
)
def test_codes_by_hand(codes, size, job, town):
    made = numbers(codes=codes)
    np.testing.assert_allclose(made[:, :3], np.stack([size, job, town], 1))


def test_a_code_without_a_label_stays():
    feeder = Feeder(ATTRIBUTES[1:2], torch.tensor([[-1], [0], [7]]))
    assert feeder.numbers(OtherEncoding(codes="labels in reverse order"), ALL)[:, 0].tolist() == [-1, 2, 7]


def test_orders_by_hand():
    feeder = Feeder(ATTRIBUTES, ROWS)
    orders = {name: feeder.order(name) for name in ORDERS}
    assert orders == {
        "columns sorted by name": (2, 1, 0),
        "columns in reverse order": (2, 1, 0),
        "numbers before labels": (0, 1, 2),
        "labels before numbers": (1, 2, 0),
    }
    moved = feeder.numbers(OtherEncoding(order=(1, 2, 0)), ALL)
    np.testing.assert_array_equal(moved, numbers()[:, [1, 2, 3, 0]])


def test_a_feed_says_what_is_otherwise():
    assert OtherEncoding().text == ""
    assert OtherEncoding("raw values", "every code one lower", (1, 0), "columns sorted by name").text == (
        "raw values, every code one lower, columns sorted by name"
    )


def test_what_is_not_given_is_in_no_feed():
    given = (ATTRIBUTES[0], replace(ATTRIBUTES[1], encode="none"), ATTRIBUTES[2])
    feeder = Feeder(given, ROWS)
    assert feeder.numbers(OtherEncoding(), ALL)[:2].tolist() == [[-2, 1, 0], [0, 0, 1]]
    turned = OtherEncoding(order=feeder.order("columns in reverse order"))
    assert feeder.numbers(turned, ALL)[:2].tolist() == [[1, 0, -2], [0, 1, 0]]
