"""A tree of cuts: every record finds the box that holds it."""

from __future__ import annotations

import random

import pytest
import torch

from neuronfair.proof.bounds.space import LEAF, Boxes, CutTree
from tests.proof import worlds

CPU = torch.device("cpu")


def cut_at_random(seed: int, cuts: int = 200) -> tuple[CutTree, Boxes, torch.Tensor]:
    """Everything, cut again and again, several boxes at a time: the tree, its leaves, and their numbers."""
    draw, space = random.Random(seed), worlds.space_of(40, [1, 2, 3, 1], 25)
    tree, boxes, node = CutTree.of_roots(1, CPU), space.everything(), torch.zeros(1, dtype=torch.int64)
    for _ in range(cuts):
        axis = torch.tensor([draw.randrange(3) for _ in range(len(boxes))])
        can = boxes.high.gather(1, axis[:, None]) > boxes.low.gather(1, axis[:, None])
        some = (can[:, 0] & (torch.rand(len(boxes)) < 0.2)).nonzero()[:, 0]
        rest = torch.tensor([i for i in range(len(boxes)) if i not in set(some.tolist())], dtype=torch.int64)
        last = space.middle(boxes[some], axis[some])
        halves = space.halves(boxes[some], axis[some], last)
        node = torch.cat([node[rest], tree.cut(node[some], axis[some], last)])
        boxes = Boxes.joined([boxes[rest], halves])
        if len(boxes) > 400:
            break
    return tree, boxes, node


def held_by(boxes: Boxes, places: torch.Tensor) -> torch.Tensor:
    """By brute force: which box holds each place."""
    inside = (places[:, None] >= boxes.low) & (places[:, None] <= boxes.high)
    assert (inside.all(2).sum(1) == 1).all()
    return inside.all(2).long().argmax(1)


def places(n: int) -> torch.Tensor:
    return torch.stack([torch.randint(0, size, (n,)) for size in (40, 4, 25)], 1)


@pytest.mark.parametrize("seed", range(5))
def test_a_record_finds_its_box(seed):
    torch.manual_seed(seed)
    tree, boxes, node = cut_at_random(seed)
    some = places(2_000)
    assert len(boxes) > 50
    assert tree.leaves(some).tolist() == node[held_by(boxes, some)].tolist()
    assert tree.is_sound(3)
    assert (tree.nodes[:, 0] == LEAF).sum() == len(boxes)


def test_trees_of_pieces_are_grafted():
    """Leaves that others go on with: the whole tree leads to what they have cut."""
    torch.manual_seed(3)
    tree, boxes, node = cut_at_random(3, 4)
    space, part = worlds.space_of(40, [1, 2, 3, 1], 25), torch.arange(0, len(boxes), 2)
    own = CutTree.of_roots(len(part), CPU)
    axis, mine = torch.zeros(len(part), dtype=torch.int64), boxes[part]
    wide = (mine.high[:, 0] > mine.low[:, 0]).nonzero()[:, 0]
    last = space.middle(mine[wide], axis[wide])
    halves, children = space.halves(mine[wide], axis[wide], last), own.cut(wide, axis[wide], last)
    number = tree.graft(node[part], own)
    narrow = torch.tensor([i for i in range(len(part)) if i not in set(wide.tolist())], dtype=torch.int64)
    others = torch.arange(1, len(boxes), 2)
    leaves = Boxes.joined([boxes[others], mine[narrow], halves])
    nodes = torch.cat([node[others], node[part][narrow], number[children]])
    some = places(2_000)
    assert tree.leaves(some).tolist() == nodes[held_by(leaves, some)].tolist()
    assert tree.is_sound(3)


@pytest.mark.parametrize(
    ("row", "column", "number"),
    [(0, 0, 7), (0, 0, -2), (0, 2, 9), (0, 2, 4), (1, 2, -1), (1, 2, 1), (1, 2, 2), (2, 0, 1)],
)
def test_a_tree_made_by_hand_is_not_sound(row, column, number):
    nodes = torch.tensor([[0, 5, 1], [1, 1, 3], [-1, 0, 0], [-1, 0, 0], [-1, 0, 0]], dtype=torch.int32)
    assert CutTree(nodes).is_sound(3)
    nodes[row, column] = number
    assert not CutTree(nodes).is_sound(3)
