"""Lines of trees hold for everybody in a box, are exact where nothing is lost, and lead to exact proofs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from neuronfair import parse_domain
from neuronfair.errors import Unprovable
from neuronfair.model.decision import Decision
from neuronfair.model.forest import MAX_DEPTH, FittedTrees, Forest, Link, Tree, build_forest
from neuronfair.proof import prove
from neuronfair.proof.bounds import trees
from neuronfair.proof.bounds.margins import build_margins
from neuronfair.proof.bounds.space import Boxes, Space, find_valid_records, refine_classes
from neuronfair.proof.bounds.trees import TreeBounds, build_tree_bounds
from neuronfair.proof.problem import ProofProblem, build_rows

DOMAIN = parse_domain("""
sensitive = ["sex", "race"]
[attributes]
age = { kind = "ordinal", low = 0, high = 11 }
sex = { kind = "flag", values = ["f", "m"] }
job = { kind = "nominal", values = ["a", "b", "c", "d", "e"] }
race = { kind = "nominal", values = ["x", "y", "z"] }
debt = { kind = "continuous", low = 0, high = 30, step = 1 }
town = { kind = "nominal", values = ["n", "s"] }
[[rules]]
if = { job = ["e"] }
then = { age = { min = 6 } }
""")
AGE, SEX, JOB, RACE, DEBT, TOWN = range(6)


def grown(feature: list[int], sets: list[set[int]], children: list[tuple[int, int]], value: Tensor) -> Tree:
    """A tree whose nodes send the codes of a set to the left."""
    left, right = np.array(children).T
    return Tree(np.array(feature), left, right, value.numpy(), lambda node, codes: np.isin(codes, list(sets[node])))


def planted(trees: list[Tree], outputs: int, link: Link = "none") -> Forest:
    def codes(rows: Tensor) -> np.ndarray:
        return rows.numpy().astype(np.float64)

    return build_forest(FittedTrees(trees, [0.1] * outputs, link), codes, DOMAIN, torch.zeros(6, dtype=torch.int64))


def random_forest(seed: int, count: int, depth: int, outputs: int, link: Link) -> Forest:
    """Trees of random questions; the last attribute is not read."""
    draws = np.random.default_rng(seed)
    trees = []
    for _ in range(count):
        feature, sets, children = [], [], []
        for node in range(2 ** (depth + 1) - 1):
            inner = node < 2**depth - 1 and (node == 0 or draws.random() < 0.9)
            column = int(draws.integers(0, TOWN))
            size = DOMAIN.attributes[column].size
            ordered = DOMAIN.attributes[column].is_ordered
            some = range(draws.integers(1, size)) if ordered else np.flatnonzero(draws.random(size) < 0.5).tolist()
            feature.append(column if inner else -1)
            sets.append(set(some))
            children.append((2 * node + 1, 2 * node + 2) if inner else (0, 0))
        trees.append(grown(feature, sets, children, torch.from_numpy(draws.normal(size=(len(feature), outputs)))))
    return planted(trees, outputs, link)


def everybody() -> list[Tensor]:
    return refine_classes(DOMAIN, [torch.ones(attribute.size, dtype=torch.bool) for attribute in DOMAIN.attributes])


def made(trees: Forest, decision: Decision | None = None) -> TreeBounds:
    question = build_margins(decision or Decision(), len(trees.base), trees.link)
    return build_tree_bounds(trees, DOMAIN, everybody(), question, torch.device("cpu"))


def random_boxes(space: Space, n: int) -> Boxes:
    ends = [
        torch.randint(0, len(axis), (n, 2), generator=torch.Generator().manual_seed(i))
        for i, axis in enumerate(space.axes)
    ]
    both = torch.stack(ends, 1).sort(-1).values
    return Boxes(both[..., 0], both[..., 1])


def places_of(boxes: Boxes, box: int) -> Tensor:
    ranges = [range(int(a), int(b) + 1) for a, b in zip(boxes.low[box], boxes.high[box], strict=True)]
    return torch.tensor(list(product(*ranges)))


def read(space: Space, slopes: Tensor, at: Tensor, places: Tensor) -> Tensor:
    """What lines (values, margins, features) say at places: (n, values, margins)."""
    features = places + torch.tensor(space.first_features[:-1])
    return slopes[..., features].sum(-1).permute(2, 0, 1) + at


CASES = {
    "two classes": (random_forest(0, 12, 3, 2, "softmax"), Decision()),
    "three classes": (random_forest(1, 9, 3, 3, "softmax"), Decision()),
    "a threshold": (random_forest(2, 8, 4, 1, "sigmoid"), Decision("threshold", 0.3)),
    "a number": (random_forest(3, 5, 5, 1, "none"), Decision("tolerance", 0.5)),
    "votes": (random_forest(4, 7, 2, 2, "none"), Decision("threshold", 0.2)),
}


@pytest.mark.parametrize("case", CASES)
def test_lines_hold_for_everybody_in_a_box(case: str) -> None:
    trees = made(*CASES[case])
    boxes = random_boxes(trees.space, 25)
    lines = trees.find_lines(boxes)
    sums = replace(trees.forest, link="none")
    for box in range(len(boxes)):
        places = places_of(boxes, box)
        rows = build_rows(DOMAIN, trees.space, places)
        margins = trees.margins.compute(sums.scores(rows.flatten(0, 1))).view(len(places), 6, -1)
        torch.testing.assert_close(trees.compute_margins(places), margins, rtol=0, atol=1e-12)
        below = read(trees.space, lines.low_slope[box], lines.low_offset[box], places)
        above = read(trees.space, lines.high_slope[box], lines.high_offset[box], places)
        assert (below <= margins).all()
        assert (margins <= above).all()
        assert lines.same_margins is not None
        assert not lines.same_margins[box] or (margins == margins[:, :1]).all()


@pytest.mark.parametrize("case", CASES)
def test_a_person_alone_is_bounded_by_the_margins(case: str) -> None:
    trees = made(*CASES[case])
    boxes = random_boxes(trees.space, 40)
    lines = trees.find_lines(Boxes(boxes.low, boxes.low))
    assert (lines.high_offset - lines.low_offset).max() < 1e-3  # the room for rounding
    for box in range(len(boxes)):
        places = boxes.low[box : box + 1]
        for slopes, at in ((lines.low_slope, lines.low_offset), (lines.high_slope, lines.high_offset)):
            said = read(trees.space, slopes[box], at[box], places)
            torch.testing.assert_close(said, trees.compute_margins(places), rtol=0, atol=1e-3)


def test_trees_that_ask_once_are_bounded_exactly() -> None:
    trees = made(random_forest(5, 30, 1, 2, "softmax"))
    whole = trees.space.full_box()
    lines = trees.find_lines(whole)
    places = places_of(whole, 0)
    for slopes, at in ((lines.low_slope, lines.low_offset), (lines.high_slope, lines.high_offset)):
        said = read(trees.space, slopes[0], at[0], places)
        torch.testing.assert_close(said, trees.compute_margins(places), rtol=0, atol=2e-3)


def test_the_best_shift_of_a_tree_that_asks_two_things() -> None:
    """A quarter goes left to 0; on the right a third of the debts gets 8, the others 2."""
    values = torch.tensor([[0.0], [0.0], [0.0], [8.0], [2.0]])
    tree = grown(
        [AGE, -1, DEBT, -1, -1],
        [{0, 1, 2}, set(), set(range(11)), set(), set()],
        [(1, 2), (0, 0), (3, 4), (0, 0), (0, 0)],
        values,
    )
    trees = made(planted([tree], 1), Decision("threshold", 0.0))
    whole = trees.space.full_box()
    lines = trees.find_lines(whole)
    mean = trees.space.find_moments(whole, lines.low_slope[:, 0])[0] + lines.low_offset[:, 0]
    # A shift of 8 leaves, besides 8 on the right, min(0, -6) where debts are large: 6 - 6 · 20/31; one of 2 leaves 1.5.
    best = max(0.75 * 8 - 6 * 20 / 31, 0.75 * 2)
    assert mean.item() == pytest.approx(best + 0.1, abs=1e-4)
    assert lines.best_cut is not None
    age = next(i for i, axis in enumerate(trees.space.axes) if axis.column == AGE)
    assert trees.space.axes[age].position_of_code[2] == lines.best_cut[0, 1]
    assert lines.best_cut[0, 0] == age


def test_places_are_what_neither_trees_nor_rules_tell_apart() -> None:
    values = torch.tensor([[0.0], [1.0], [0.0], [-3.0], [2.0]])
    tree = grown(
        [JOB, -1, JOB, -1, -1], [{1}, set(), {0, 3}, set(), set()], [(1, 2), (0, 0), (3, 4), (0, 0), (0, 0)], values
    )
    trees = planted([tree], 1)
    allowed = everybody()
    allowed[DEBT][5:] = -1
    question = build_margins(Decision("threshold", 0.0), 1, "none")
    axes = {
        axis.column: axis
        for axis in build_tree_bounds(trees, DOMAIN, allowed, question, torch.device("cpu")).space.axes
    }
    assert sorted(axes) == [AGE, JOB, DEBT, TOWN]
    assert axes[AGE].position_of_code.tolist() == [0] * 6 + [1] * 6  # the rule's condition
    assert axes[JOB].position_of_code.tolist() == [0, 1, 2, 0, 3]  # a and d -3, b 1, c 2, and e 2, but a rule names it
    assert axes[JOB].count.tolist() == [2, 1, 1, 1]
    assert axes[DEBT].position_of_code.tolist() == [0] * 5 + [-1] * 26
    assert axes[TOWN].count.tolist() == [2]


def test_where_no_sensitive_question_is_reached_all_values_are_the_same() -> None:
    values = torch.tensor([[0.0], [1.0], [0.0], [5.0], [-5.0]])
    tree = grown(
        [DEBT, -1, SEX, -1, -1],
        [set(range(10)), set(), {0}, set(), set()],
        [(1, 2), (0, 0), (3, 4), (0, 0), (0, 0)],
        values,
    )
    trees = made(planted([tree], 1), Decision("threshold", 0.0))
    assert trees.kind_of_value.unique().tolist() == [0, 1]  # race does not matter
    whole = trees.space.full_box()
    debt = next(i for i, axis in enumerate(trees.space.axes) if axis.column == DEBT)
    halves = trees.space.split(whole, torch.tensor([debt]), torch.tensor([0]))
    assert trees.find_lines(Boxes.concatenate([whole, halves])).same_margins.tolist() == [False, True, False]


@pytest.mark.parametrize("case", ["two classes", "three classes", "a number"])
def test_a_proof_says_exactly_who_is_decided_otherwise(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "MAX_ENUMERATED", 8)
    trees = made(*CASES[case])
    decision = CASES[case][1]
    allowed = [torch.ones(attribute.size, dtype=torch.bool) for attribute in DOMAIN.attributes]
    people = find_valid_records(DOMAIN, Space(trees.space.axes), allowed)
    problem = ProofProblem(
        DOMAIN,
        decision,
        "",
        trees.space,
        people,
        trees.margins,
        trees.compute_margins,
        trees.slack,
        trees,
        "bounds of trees",
    )
    proof = prove.prove(problem, seconds=60)
    free = [column for column in range(6) if column not in (SEX, RACE)]
    rows = torch.tensor(list(product(*(range(DOMAIN.attributes[c].size) for c in free))))
    family = torch.zeros(len(rows), 6, 6, dtype=torch.int64)
    family[:, :, free] = rows[:, None]
    family[:, :, [SEX, RACE]] = DOMAIN.sensitive_values
    family = family[DOMAIN.valid(family[:, 0])]
    scores = CASES[case][0].scores(family.flatten(0, 1)).view(len(family), 6, -1)
    flips = decision.splits(scores, torch.ones(len(family), 5, dtype=torch.bool))
    assert proof.record_count == 6 * len(family) == DOMAIN.count
    assert proof.complete
    assert proof.discriminatory == 6 * int(flips.sum())


def test_trees_that_are_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MAX_PARTS", 20)
    with pytest.raises(Unprovable, match="too large to be bounded"):
        made(*CASES["two classes"])


def test_a_tree_of_the_largest_depth_is_bounded() -> None:
    """A chain: each node sends the lowest debt that is left to a leaf, and the last asks for sex."""
    depth = MAX_DEPTH
    domain = parse_domain(f"""
    sensitive = ["sex"]
    [attributes]
    sex = {{ kind = "flag", values = ["f", "m"] }}
    debt = {{ kind = "continuous", low = 0, high = {depth}, step = 1 }}
    """)
    feature = [1, -1] * (depth - 1) + [0, -1, -1]
    sets = [set(range(node // 2 + 1)) for node in range(2 * depth - 2)] + [{0}]
    children = [(node + 1, node + 2) if f >= 0 else (0, 0) for node, f in enumerate(feature)]
    chain = grown(feature, sets, children, torch.arange(float(len(feature)))[:, None])
    codes = partial(np.asarray, dtype=np.float64)
    single = build_forest(FittedTrees([chain], [0.0], "none"), codes, domain, torch.zeros(2, dtype=torch.int64))
    classes = refine_classes(domain, [torch.ones(a.size, dtype=torch.bool) for a in domain.attributes])
    margins = build_margins(Decision("threshold", 0.0), 1, "none")
    bounds = build_tree_bounds(single, domain, classes, margins, torch.device("cpu"))
    assert single.depth == depth
    assert len(bounds.space.axes) == 1
    last = torch.tensor([[len(bounds.space.axes[0]) - 1]])
    boxes = Boxes.concatenate([Boxes(last, last), Boxes(last - 1, last - 1)])
    assert bounds.find_lines(boxes).same_margins.tolist() == [False, True]  # sex matters in the last place only


@pytest.mark.parametrize("link", ["sigmoid", "softmax"])
def test_a_tolerance_on_probabilities_is_refused(link):
    """The sums may lie further apart than the tolerance, and their probabilities not."""
    outputs = 1 if link == "sigmoid" else 2
    question = build_margins(Decision("tolerance", 0.1), outputs, link)
    classes = refine_classes(DOMAIN, [torch.ones(a.size, dtype=torch.bool) for a in DOMAIN.attributes])
    with pytest.raises(Unprovable, match="tolerance on probabilities of trees"):
        build_tree_bounds(random_forest(0, 2, 2, outputs, link), DOMAIN, classes, question, torch.device("cpu"))
