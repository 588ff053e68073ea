"""Trees over codes: their cells, which no cut tells apart, and their scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from neuronfair import TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.errors import ModelError
from neuronfair.model.forest import Forest, _group_codes, _list_levels


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
    cells, sides = _group_codes(cuts, domain)
    for column, marks in cuts.items():
        cell = cells[column].numpy()
        ways = [tuple(bool(mark[code]) for mark in marks) for code in range(len(cell))]
        first = list(dict.fromkeys(ways))  # numbered as they appear
        assert cell.tolist() == [first.index(way) for way in ways]
        for mark, side in zip(marks, sides[column], strict=True):
            assert (side[cell] == mark).all()


def grown(rng, leaves: int, sizes: list[int], forest: list[list]) -> int:
    """Append a random tree to the lists of a forest, and return its root."""
    at = len(forest[0])
    for column, value in zip(forest, (-1, at, at, rng.normal(size=2), np.zeros(max(sizes), dtype=bool)), strict=True):
        column.append(value)
    if leaves > 1:
        here = int(rng.integers(1, leaves))
        forest[0][at] = int(rng.integers(len(sizes)))
        forest[4][at] = rng.random(max(sizes)) < 0.5
        forest[1][at], forest[2][at] = (grown(rng, some, sizes, forest) for some in (here, leaves - here))
    return at


def random_forest(seed: int, leaves: list[int]) -> Forest:
    """A forest of trees with so many leaves, over three attributes with shuffled cells."""
    rng = np.random.default_rng(seed)
    sizes, lists = [2, 5, 9], [[], [], [], [], []]
    roots = [grown(rng, count, sizes, lists) for count in leaves]
    attribute, left, right = (torch.tensor(part) for part in lists[:3])
    value, side = (torch.from_numpy(np.stack(part)) for part in lists[3:])
    cells = tuple(torch.from_numpy(rng.permutation(size)) for size in sizes)
    levels = _list_levels(np.array(roots), left.numpy(), right.numpy())
    base = torch.tensor([0.5, -0.25], dtype=torch.float64)
    return Forest(torch.tensor(roots), attribute, left, right, value, side, cells, base, "none", len(levels))


def walked(forest: Forest, row: list[int]) -> torch.Tensor:
    """What a row's leaves add up to, from node to node."""
    total = forest.base.clone()
    for root in forest.roots.tolist():
        node = root
        while int(forest.left[node]) != node:
            column = int(forest.attribute[node])
            left = bool(forest.side[node, forest.cells[column][row[column]]])
            node = int((forest.left if left else forest.right)[node])
        total += forest.value[node]
    return total


@pytest.mark.parametrize("leaves", [[1], [1, 2], [63], [64, 1], [65, 3, 130], [31] * 12, [200, 127]])
def test_scores_are_those_of_the_leaves_that_rows_walk_to(leaves):
    forest = random_forest(len(leaves), leaves)
    rows = torch.cartesian_prod(*(torch.arange(len(cell)) for cell in forest.cells))
    expected = torch.stack([walked(forest, row) for row in rows.tolist()])
    assert_close(forest.scores(rows), expected, rtol=0, atol=1e-12)
    assert_close(forest.scores(rows[:0]), expected[:0])


def test_a_node_with_two_parents_is_refused():
    forest = random_forest(0, [4])
    left, right = forest.left.clone(), forest.right.clone()
    right[0] = left[0]
    with pytest.raises(ModelError, match="several parents"):
        replace(forest, right=right).scores(torch.zeros(1, 3, dtype=torch.int64))
    left[left[0]] = 0  # and one that leads back
    with pytest.raises(ModelError, match=r"several parents|deeper"):
        replace(forest, left=left).scores(torch.zeros(1, 3, dtype=torch.int64))
