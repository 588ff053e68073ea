"""One column given others: a small classification tree over places, smoothed from the root to the leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuronfair.domain.structure import Floats, Numbers, Question, coarse

STRENGTHS = (1.0, 4.0, 16.0, 64.0)  # people whom the parent's chances count for in a node
NUMBER, CHOICE = 0.5, 1.25  # nats that a split must gain for each chance it learns, and for each e-fold of choice
DEEPEST = 16
SMALLEST = 5  # people in a leaf
GROUPS = 16  # of a column's places, while splits are looked for: more make it slow and no better


@dataclass(frozen=True)
class Tree:
    """The chances of a column's places, given the places of others. Children come after their parents."""

    column: Numbers  # (nodes,) which is asked; -1 in a leaf
    children: tuple[Numbers, ...]  # (nodes,): for each place of that column, the node to go to; empty in a leaf
    chances: Floats  # (nodes, places)


@dataclass(frozen=True)
class Target:
    """The column whose chances a tree gives."""

    column: int
    size: int  # places
    ordered: bool


def grow(places: Numbers, target: Target, asked: Sequence[Question], sample: Numbers, *, sure: bool = False) -> Tree:
    """Return the tree of a column, grown with a sample of the people; if `sure`, hardly ever with a split by chance."""
    ends = (np.array([-1]), [np.zeros(0, dtype=np.int64)])
    column, children = _splits(places[sample], target, asked, sure) if asked else ends
    return filled(places, target.column, target.size, column, children)


def filled(places: Numbers, target: int, size: int, column: Numbers, children: Sequence[Numbers]) -> Tree:
    """Return a tree with the chances of all people, pruned.

    How strongly a node is drawn to its parent, and which splits stay, is what predicts each person best from all the
    others (leave-one-out likelihood, which counts give exactly).
    """
    parent = np.full(len(column), -1)
    for node, goes in enumerate(children):
        parent[goes] = node
    counts = _counts(places, target, size, column, children)
    levels = _levels(parent)
    for level in levels[:0:-1]:
        np.add.at(counts, parent[level], counts[level])
    fits = [_pruned(counts, parent, levels, strength) for strength in STRENGTHS]
    _, leaf, chances = max(fits, key=lambda fit: fit[0])
    return _compact(column, children, leaf, chances)


def _splits(places: Numbers, target: Target, asked: Sequence[Question], sure: bool) -> tuple[Numbers, list[Numbers]]:
    """Return a tree without chances. A split must gain what its numbers, and the choice among all splits, cost.

    It learns as many chances as the column's entropy stands for, less one. Half a nat for each is what a split by mere
    chance would gain; the best of many such splits gains the logarithm of their number more. That predicts best. If it
    is to be `sure`, what the best by chance gains counts in full, which is more where many chances are learned (the
    bound of Laurent and Massart 2000 for half a chi-squared number).
    """
    from sklearn.tree import DecisionTreeClassifier

    own = places[:, target.column]
    most = target.size if sure else GROUPS  # few groups learn few chances: splits by chance would cost too little
    y = coarse(np.bincount(own, minlength=target.size).astype(np.float64), target.ordered, most)[own]
    share = np.bincount(y) / len(y)
    share = share[share > 0]
    x = np.stack([q.scores[places[:, q.column]] for q in asked], 1).astype(np.float32)
    ways = sum(len(np.unique(q.scores)) - 1 for q in asked)
    learned, choice = np.exp(-(share * np.log(share)).sum()) - 1, np.log1p(ways)
    cost = NUMBER * learned + (np.sqrt(learned * choice) + choice if sure else CHOICE * choice)
    learner = DecisionTreeClassifier(
        criterion="entropy",  # in bits
        max_depth=DEEPEST,
        min_samples_leaf=SMALLEST,
        min_impurity_decrease=cost / np.log(2) / len(y),
        random_state=0,
    )
    tree = learner.fit(x, y, check_input=False).tree_
    column = np.full(tree.node_count, -1)
    children = [np.zeros(0, dtype=np.int64)] * tree.node_count
    for node in np.flatnonzero(tree.children_left >= 0):
        question = asked[tree.feature[node]]
        column[node] = question.column
        left = question.scores.astype(np.float32) <= tree.threshold[node]
        children[node] = np.where(left, tree.children_left[node], tree.children_right[node]).astype(np.int64)
    return column, children


def _counts(places: Numbers, target: int, size: int, column: Numbers, children: Sequence[Numbers]) -> Floats:
    """Return how many people of each place of the target end in each leaf: (nodes, places)."""
    length = np.array([len(goes) for goes in children])
    base = length.cumsum() - length
    flat = np.concatenate(children)
    leaf = np.zeros(len(places), dtype=np.int64)
    going = np.arange(len(places) if column[0] >= 0 else 0)
    while len(going):
        node = leaf[going]
        leaf[going] = node = flat[base[node] + places[going, column[node]]]
        going = going[column[node] >= 0]
    found = np.bincount(leaf * size + places[:, target], minlength=len(column) * size)
    return found.reshape(-1, size).astype(np.float64)


def _levels(parent: Numbers) -> list[Numbers]:
    """Return the nodes by their distance from the root."""
    levels = [np.array([0])]
    while len(below := np.flatnonzero(np.isin(parent, levels[-1]))):
        levels.append(below)
    return levels


def _pruned(
    counts: Floats, parent: Numbers, levels: Sequence[Numbers], strength: float
) -> tuple[float, npt.NDArray[np.bool_], Floats]:
    """Return the leave-one-out likelihood of the best pruning, which nodes are leaves in it, and all chances."""
    people = counts.sum(1, keepdims=True)
    chances, others = np.empty_like(counts), np.empty_like(counts)
    even = np.full((1, counts.shape[1]), 1 / counts.shape[1])
    for depth, level in enumerate(levels):
        above, left = (chances[parent[level]], others[parent[level]]) if depth else (even, even)
        chances[level] = (counts[level] + strength * above) / (people[level] + strength)
        # A node's chances without one of its people, who has this place.
        left = np.maximum(counts[level] - 1, 0) + strength * left
        others[level] = left / (np.maximum(people[level] - 1, 0) + strength)
    value = (counts * np.log(others)).sum(1)  # as a leaf
    leaf = np.ones(len(counts), dtype=bool)
    split = np.zeros(len(counts))
    for level in levels[:0:-1]:
        np.add.at(split, parent[level], value[level])
        above = np.unique(parent[level])
        leaf[above] = split[above] <= value[above]
        value[above] = np.maximum(split[above], value[above])
    return float(value[0]), leaf, chances


def _compact(column: Numbers, children: Sequence[Numbers], leaf: npt.NDArray[np.bool_], chances: Floats) -> Tree:
    """Return the tree that ends in these leaves, without what lies below them."""
    kept, waiting = [], [0]
    while waiting:
        node = waiting.pop()
        kept.append(node)
        waiting += [] if leaf[node] else sorted(set(children[node].tolist()), reverse=True)
    number = np.zeros(len(column), dtype=np.int64)
    number[kept] = np.arange(len(kept))
    goes = tuple(np.zeros(0, dtype=np.int64) if leaf[node] else number[children[node]] for node in kept)
    return Tree(np.where(leaf, -1, column)[kept], goes, chances[kept])
