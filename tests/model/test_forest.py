"""Cells: codes that no cut of any tree tells apart."""

from __future__ import annotations

import numpy as np
import pytest

from neuronfair import TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.model.forest import _cells


@pytest.mark.parametrize("seed", range(20))
def test_codes_share_a_cell_exactly_if_every_cut_sends_them_the_same_way(seed):
    rng = np.random.default_rng(seed)
    high, labels = rng.integers(2, 40, 2)
    domain = TableDomain(
        "cut",
        (
            Attribute("number", "ordinal", high=int(high) - 1),
            Attribute("word", "nominal", values=tuple(map(str, range(labels)))),
        ),
        ("word",),
    )
    cuts = {
        0: [np.arange(high) < rng.integers(0, high + 1) for _ in range(rng.integers(0, 6))],
        1: [rng.random(labels) < 0.5 for _ in range(rng.integers(0, 4))],
    }
    cells, sides = _cells(cuts, domain)
    for column, marks in cuts.items():
        cell = cells[column].numpy()
        ways = [tuple(bool(mark[code]) for mark in marks) for code in range(len(cell))]
        first = list(dict.fromkeys(ways))  # numbered as they appear
        assert cell.tolist() == [first.index(way) for way in ways]
        for mark, side in zip(marks, sides[column], strict=True):
            assert (side[cell] == mark).all()
