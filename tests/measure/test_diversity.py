from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neuronfair import Decision, NeuronFairError, TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule, Span
from neuronfair.errors import DomainError
from neuronfair.measure import diversity as module
from neuronfair.measure.diversity import (
    Severity,
    count_clusters,
    count_regions,
    mean_distance,
    measure_severity,
    share_outside,
)
from neuronfair.searches.findings import Findings
from tests.planted import networks

DOMAIN = TableDomain(
    "d",
    (
        Attribute("a", "ordinal", low=0, high=8),
        Attribute("n", "nominal", values=("x", "y", "z")),
        Attribute("s", "flag"),
    ),
    ("s",),
)


def test_mean_distance_by_hand():
    rows = torch.tensor([[0, 0, 0], [4, 0, 1], [8, 2, 0]])
    # Pairs: (0.5 + 0) / 2, (1 + 1) / 2, (0.5 + 1) / 2; the sensitive column does not count.
    assert mean_distance(DOMAIN, rows) == pytest.approx((0.25 + 1.0 + 0.75) / 3)


def test_copies_have_no_distance_and_one_region():
    rows = torch.tensor([[3, 1, 0]] * 50)
    assert mean_distance(DOMAIN, rows) == 0.0
    assert count_regions(DOMAIN, rows) == 1
    assert mean_distance(DOMAIN, rows[:1]) == 0.0


def test_regions_by_hand():
    # Nine values in quarters: 0 to 2, 3 and 4, 5 and 6, 7 and 8.
    rows = torch.tensor([[0, 0, 0], [2, 0, 1], [3, 0, 0], [4, 1, 0], [8, 1, 0], [7, 1, 1]])
    assert count_regions(DOMAIN, rows) == 4


def test_the_corners_are_far_apart():
    rows = torch.tensor([[0, 0, 0], [8, 1, 0]])
    assert mean_distance(DOMAIN, rows) == 1.0


def test_a_walk_is_many_clusters_and_a_heap_is_one():
    walk = torch.tensor([[a, 0, 0] for a in range(9)])
    # Along the first of two attributes the ends are 0.5 apart: balls of radius 0.25 about the ends hold all.
    assert count_clusters(DOMAIN, walk, radius=0.5) == 1
    assert count_clusters(DOMAIN, walk, radius=0.25) == 2
    # About 0, 8 and 4, then 2 and 6; each reaches one step.
    assert count_clusters(DOMAIN, walk, radius=1 / 16) == 5
    assert count_clusters(DOMAIN, walk, radius=0.0) == 9
    assert count_clusters(DOMAIN, torch.tensor([[3, 1, 0], [3, 1, 1]] * 50), radius=0.0) == 1
    assert count_clusters(DOMAIN, walk[:0]) == 0


def test_a_finding_on_the_rim_belongs_to_the_ball():
    line = TableDomain("line", (Attribute("a", "ordinal", low=0, high=10), Attribute("s", "flag")), ("s",))
    for steps in range(1, 11):
        rows = torch.tensor([[0, 0], [steps, 0]])
        assert count_clusters(line, rows, radius=steps / 10) == 1
        assert count_clusters(line, rows, radius=steps / 10 - 1e-9) == 2


ROWS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=20).map(
    torch.tensor
)


@given(ROWS, st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_clusters_fall_with_the_radius_and_ignore_the_order(rows, one, other, seed):
    few, many = (count_clusters(DOMAIN, rows, radius=r) for r in (max(one, other), min(one, other)))
    assert 1 <= few <= many <= len(torch.unique(rows[:, :2], dim=0))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    assert count_clusters(DOMAIN, rows[order], radius=one) == count_clusters(DOMAIN, rows, radius=one)


def test_rows_of_another_domain_and_bad_radii_are_refused():
    rows, narrow = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 2, dtype=torch.int64)
    for call in (
        lambda: count_clusters(DOMAIN, narrow),
        lambda: count_regions(DOMAIN, narrow),
        lambda: mean_distance(DOMAIN, narrow),
    ):
        with pytest.raises(DomainError, match=r"3 columns of 'd', got shape \(2, 2\)"):
            call()
    with pytest.raises(NeuronFairError, match="radius"):
        count_clusters(DOMAIN, rows, radius=float("nan"))


def test_nothing_found_has_no_diversity():
    nobody = torch.empty(0, 3, dtype=torch.int8)
    assert (mean_distance(DOMAIN, nobody), count_regions(DOMAIN, nobody), count_clusters(DOMAIN, nobody)) == (0.0, 0, 0)


OUTSIDE_DOMAIN = TableDomain(
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
    assert share_outside(OUTSIDE_DOMAIN, rows, TABLE) == 5 / 8
    monkeypatch.setattr(module, "ROWS_PER_PASS", 3)
    assert share_outside(OUTSIDE_DOMAIN, rows.to(torch.int8), TABLE) == 5 / 8


@given(st.integers(0, 100))
def test_the_table_itself_is_inside(seed):
    rows = OUTSIDE_DOMAIN.sample(50, torch.Generator().manual_seed(seed))
    assert share_outside(OUTSIDE_DOMAIN, rows, rows) == 0


def test_empty_and_mismatched_rows():
    assert share_outside(OUTSIDE_DOMAIN, TABLE[:0], TABLE) == 0
    with pytest.raises(DomainError, match="no rows"):
        share_outside(OUTSIDE_DOMAIN, TABLE, TABLE[:0])
    with pytest.raises(DomainError, match="table: expected rows with the 3 columns"):
        share_outside(OUTSIDE_DOMAIN, TABLE, TABLE[:, :2])


SEVERITY_DOMAIN = networks.domain()


def findings(scores: list[list[float]], twin_scores: list[list[float]]) -> Findings:
    empty = Findings.empty(SEVERITY_DOMAIN, len(scores[0]))
    rows = torch.zeros(len(scores), 5, dtype=torch.int8)
    return replace(empty, packed=rows, scores=torch.tensor(scores), twin_scores=torch.tensor(twin_scores))


def test_gaps_by_hand():
    # The differences are (1, -1), (2, 0) and (-3, 1), so the gaps are 2, 2 and 4.
    three = findings([[2.0, 0.0], [2.0, 1.0], [0.0, 5.0]], [[1.0, 1.0], [0.0, 1.0], [3.0, 4.0]])
    assert measure_severity(three) == Severity(2.0, pytest.approx(3.8), 4.0)
    # For a threshold the last score alone counts: 1, 0 and 1.
    assert measure_severity(three, Decision("threshold", 0.5)) == Severity(1.0, 1.0, 1.0)


def test_the_95th_of_a_hundred():
    many = findings([[float(i)] for i in range(101)], [[0.0]] * 101)
    assert measure_severity(many, Decision("threshold", 0.5)) == Severity(50.0, pytest.approx(95.0), 100.0)


def test_nothing_found_has_no_severity():
    assert measure_severity(Findings.empty(SEVERITY_DOMAIN, 2)) is None
