from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neuronfair import TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule, Span
from neuronfair.errors import DomainError
from neuronfair.measure import diversity as module
from neuronfair.measure.diversity import FindingQuality, quality

DOMAIN = TableDomain(
    "d",
    (
        Attribute("a", "ordinal", low=0, high=9),
        Attribute("n", "nominal", values=("w", "x", "y", "z")),
        Attribute("s", "flag"),
    ),
    ("s",),
    rules=(Rule("no 9 with x", {"a": Span(9, 9), "n": ("x",)}, {}),),
)
TABLE = torch.tensor([[2, 0, 0], [7, 3, 1], [5, 1, 0]])  # a from 2 to 7; w, x and z


def test_shares_by_hand(monkeypatch):
    rows = torch.tensor(
        [
            [2, 0, 0],  # as in the table
            [4, 3, 1],  # a new combination of known values
            [8, 0, 0],  # beyond the range
            [1, 0, 0],  # below it
            [5, 2, 0],  # y lies between the labels seen, and was not seen
            [9, 1, 0],  # beyond the range, and breaks the rule
            [9, 2, 0],  # beyond the range twice over
            [5, 0, 1],
        ]
    )
    expected = FindingQuality(invalid=1 / 8, outside=5 / 8, doubtful=5 / 8)
    assert quality(DOMAIN, rows, TABLE) == expected
    monkeypatch.setattr(module, "ROWS_PER_PASS", 3)
    assert quality(DOMAIN, rows.to(torch.int8), TABLE) == expected


def test_either_fault_makes_a_row_doubtful():
    table = torch.tensor([[0, 0, 0], [9, 1, 1]])  # the rule may be broken inside the range of the data
    rows = torch.tensor([[9, 1, 0], [9, 2, 0], [3, 0, 0]])
    assert quality(DOMAIN, rows, table) == FindingQuality(1 / 3, 1 / 3, 2 / 3)


@given(st.integers(0, 100))
def test_the_table_itself_is_inside(seed):
    rows = DOMAIN.sample(50, torch.Generator().manual_seed(seed))
    assert quality(DOMAIN, rows, rows) == FindingQuality(0.0, 0.0, 0.0)


def test_empty_and_mismatched_rows():
    assert quality(DOMAIN, TABLE[:0], TABLE) == FindingQuality(0.0, 0.0, 0.0)
    with pytest.raises(DomainError, match="no rows"):
        quality(DOMAIN, TABLE, TABLE[:0])
    with pytest.raises(DomainError, match="table: expected rows with the 3 columns"):
        quality(DOMAIN, TABLE, TABLE[:, :2])
