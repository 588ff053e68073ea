"""Boxes, their cuts, and the records that rules allow in them."""

from __future__ import annotations

import math
import random
from itertools import product

import pytest
import torch

from neuronfair.domain.rules import Rule, Span
from neuronfair.errors import Unprovable
from neuronfair.proof.bounds import space as spaces
from neuronfair.proof.bounds.space import LEAF, Boxes, CutTree, find_valid_records, refine_classes
from tests.proof import worlds

SPACES = {
    "numbers": (5, 4),
    "tables": ([1, 3, 2], [2, 2]),
    "both": ([1, 4], 6, [3, 1, 1, 2], 2),
    "one place": ([7], 1, 3),
}


@pytest.fixture(params=SPACES.values(), ids=SPACES.keys())
def world(request):
    space = worlds.space_of(*request.param)
    boxes = worlds.random_boxes(space, 12)
    slopes = torch.randn(12, 3, space.features, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return space, boxes, slopes


def test_sizes_are_codes(world):
    space, boxes, _ = world
    for number, sizes in enumerate(space.count_codes(boxes)):
        places = worlds.places_of(boxes, number)
        for i, axis in enumerate(space.axes):
            assert sizes[i] == axis.count[places[:, i].unique()].sum()


def test_least_mean_variance_and_reach(world):
    space, boxes, slopes = world
    least, shared = space.find_minimum(boxes, slopes), space.find_minimum(boxes, slopes[0])
    mean, variance = space.find_moments(boxes, slopes)
    reach = space.find_ranges(boxes, slopes)
    assert torch.equal(mean, space.mean(boxes, slopes))
    for n in range(len(boxes)):
        places = worlds.places_of(boxes, n)
        features, weight = worlds.features_of(space, places), worlds.weights_of(space, places).double()
        weight = weight / weight.sum()
        line = features @ slopes[n].T
        assert torch.allclose(least[n], line.amin(0), atol=1e-12)
        assert torch.allclose(shared[n], (features @ slopes[0].T).amin(0), atol=1e-12)
        own_mean = weight @ line
        assert torch.allclose(mean[n], own_mean, atol=1e-12)
        assert torch.allclose(variance[n], weight @ (line - own_mean).square(), atol=1e-12)
        for i in range(len(space.axes)):
            one = torch.where(torch.arange(len(space.axes)) == i, places, boxes.low[n])
            moved = worlds.features_of(space, one) @ slopes[n].T
            assert torch.allclose(reach[n, :, i], moved.amax(0) - moved.amin(0), atol=1e-12)


def test_halves_are_the_box():
    space = worlds.space_of(6, [2, 1, 1, 5])
    boxes = Boxes(torch.tensor([[0, 0], [3, 1]]), torch.tensor([[5, 3], [4, 3]]))
    axis = torch.tensor([0, 1])
    middle = space.find_middle(boxes, axis)
    assert middle.tolist() == [2, 2]
    halves = space.split(boxes, axis, middle)
    assert halves.low.tolist() == [[0, 0], [3, 1], [3, 0], [3, 3]]
    assert halves.high.tolist() == [[2, 3], [4, 2], [5, 3], [4, 3]]
    assert boxes.high.tolist() == [[5, 3], [4, 3]]  # as they were


def test_features_and_everything():
    space = worlds.space_of([1, 1, 1], 9, [4])
    assert space.first_features == (0, 3, 4, 5)
    assert (space.features, space.linear_features.tolist(), space.linear_axes.tolist()) == (5, [3], [1])
    whole = space.full_box()
    assert (whole.low.tolist(), whole.high.tolist()) == ([[0, 0, 0]], [[2, 8, 0]])
    assert space.count_codes(whole).tolist() == [[3, 9, 4]]


CPU = torch.device("cpu")


def cut_at_random(seed: int, cuts: int = 200) -> tuple[CutTree, Boxes, torch.Tensor]:
    """Everything, cut again and again, several boxes at a time: the tree, its leaves, and their numbers."""
    draw, space = random.Random(seed), worlds.space_of(40, [1, 2, 3, 1], 25)
    tree, boxes, node = CutTree.of_roots(1, CPU), space.full_box(), torch.zeros(1, dtype=torch.int64)
    for _ in range(cuts):
        axis = torch.tensor([draw.randrange(3) for _ in range(len(boxes))])
        can = boxes.high.gather(1, axis[:, None]) > boxes.low.gather(1, axis[:, None])
        some = (can[:, 0] & (torch.rand(len(boxes)) < 0.2)).nonzero()[:, 0]
        rest = torch.tensor([i for i in range(len(boxes)) if i not in set(some.tolist())], dtype=torch.int64)
        last = space.find_middle(boxes[some], axis[some])
        halves = space.split(boxes[some], axis[some], last)
        node = torch.cat([node[rest], tree.cut(node[some], axis[some], last)])
        boxes = Boxes.concatenate([boxes[rest], halves])
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
    assert tree.find_leaves(some).tolist() == node[held_by(boxes, some)].tolist()
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
    last = space.find_middle(mine[wide], axis[wide])
    halves, children = space.split(mine[wide], axis[wide], last), own.cut(wide, axis[wide], last)
    number = tree.graft(node[part], own)
    narrow = torch.tensor([i for i in range(len(part)) if i not in set(wide.tolist())], dtype=torch.int64)
    others = torch.arange(1, len(boxes), 2)
    leaves = Boxes.concatenate([boxes[others], mine[narrow], halves])
    nodes = torch.cat([node[others], node[part][narrow], number[children]])
    some = places(2_000)
    assert tree.find_leaves(some).tolist() == nodes[held_by(leaves, some)].tolist()
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


def _held(domain, space, found):
    """Return the pattern of every combination of places, and see that each lies in one box."""
    pattern = torch.full([len(axis) for axis in space.axes], -1)
    for number in range(len(found.boxes)):
        ends = zip(found.boxes.low[number].tolist(), found.boxes.high[number].tolist(), strict=True)
        where = tuple(slice(a, b + 1) for a, b in ends)
        assert (pattern[where] == -1).all()
        pattern[where] = found.pattern[number]
    assert (pattern >= 0).all()
    return pattern


def _checked(domain, allowed=None):
    """Hold the boxes of a domain against its own word about every row; return the people."""
    space = worlds.plain_space(domain, allowed)
    allowed = allowed or worlds.every_code(domain)
    found = find_valid_records(domain, space, allowed)
    pattern = _held(domain, space, found)
    values = domain.sensitive_values
    count = 0
    for places in product(*(range(len(axis)) for axis in space.axes)):
        rows = torch.zeros(len(values), len(domain.attributes), dtype=torch.int64)
        rows[:, list(domain.sensitive_columns)] = values
        for axis, place in zip(space.axes, places, strict=True):
            rows[:, axis.column] = axis.codes[place]
        valid = domain.valid(rows)
        member = torch.stack([allowed[c][rows[:, c]] for c in range(rows.shape[1])]).all(0)
        assert torch.equal(found.valid[pattern[places]], valid)
        assert torch.equal(found.in_region[pattern[places]], valid & member)
        count += int((valid & member).sum())
    counts = found.count(space, found.boxes, found.pattern)
    assert sum(counts) == count
    whole = math.prod(int(axis.count.sum()) for axis in space.axes) * len(values)
    share = found.share(space, found.boxes, found.pattern)
    assert share.tolist() == pytest.approx([c / whole for c in counts])
    return found, count


def test_without_rules_there_is_one_box():
    found, count = _checked(worlds.people())
    assert len(found.boxes) == 1
    assert count == 6 * 3 * 6
    assert found.valid.all()


def test_a_rule_on_free_attributes_cuts_once_for_each_condition():
    domain = worlds.people(Rule("the young have no job c", {"age": Span(0, 1)}, {"job": ("a", "b")}))
    found, count = _checked(domain)
    assert count == domain.count == (18 - 2) * 6
    assert sorted(found.valid.all(1).tolist()) == [False, True]  # everybody exists, or nobody
    assert len(found.boxes) == 3


def test_a_rule_that_names_a_sensitive_attribute_takes_its_values():
    domain = worlds.people(Rule("no woman of 5", {"age": Span(5, 5), "sex": (0.0,)}, {}))
    found, count = _checked(domain)
    assert count == domain.count == 18 * 6 - 3 * 3
    assert sorted(found.valid.sum(1).tolist()) == [3, 6]


def test_a_value_that_no_one_may_have_is_nowhere_valid():
    domain = worlds.people(Rule("no x", {"race": ("x",)}, {"race": ("y", "z")}))
    found, count = _checked(domain)
    assert len(found.boxes) == 1
    assert count == domain.count == 18 * 4


def test_a_rule_between_sensitive_attributes_alone_cuts_nothing():
    found, count = _checked(worlds.people(Rule("x are men", {"race": ("x",)}, {"sex": (1.0,)})))
    assert len(found.boxes) == 1
    assert count == 18 * 5


def test_rules_that_overlap():
    rules = (
        Rule("one", {"age": (0, 2, 4)}, {"job": ("b",)}),
        Rule("two", {"job": ("b",), "age": Span(3, 5)}, {"sex": (0.0,), "race": ("x", "y")}),
        Rule("three", {"age": Span(2, 3), "race": ("y",)}, {}),
    )
    domain = worlds.people(*rules)
    _, count = _checked(domain)
    assert count == domain.count


@pytest.mark.parametrize("seed", range(12))
def test_any_rules(seed):
    domain = worlds.random_domain(seed)
    _, count = _checked(domain)
    assert count == domain.count


def test_a_region_of_free_and_sensitive_values():
    domain = worlds.people(Rule("no woman of 5", {"age": Span(5, 5), "sex": (0.0,)}, {}))
    allowed = worlds.every_code(domain)
    allowed[0] = torch.tensor([False, True, False, False, True, True])  # ages 1, 4, 5
    allowed[3] = torch.tensor([True, False, True])  # x or z
    found, count = _checked(domain, allowed)
    assert count == 2 * 3 * 4 + 3 * 2  # at 5 two men
    alone = found.valid.sum(1) == 3
    assert found.in_region[alone].sum(1).tolist() == [2]  # a twin may lie outside


def test_too_many_boxes_are_refused(monkeypatch):
    monkeypatch.setattr(spaces, "MAX_RULE_BOXES", 2)
    domain = worlds.people(Rule("r", {"age": (0, 2, 4)}, {"job": ("b",)}))
    with pytest.raises(Unprovable, match="cut the domain into more than 2 boxes"):
        find_valid_records(domain, worlds.plain_space(domain), worlds.every_code(domain))


def test_codes_that_no_rule_tells_apart_are_of_one_class():
    domain = worlds.people(Rule("r", {"age": Span(2, 3)}, {"job": ("b",)}), Rule("s", {"age": (3,)}, {"sex": (1.0,)}))
    allowed = worlds.every_code(domain)
    allowed[0] = torch.tensor([True, True, True, True, False, True])
    age, sex, job, race = (part.tolist() for part in refine_classes(domain, allowed))
    assert age[4] == -1
    assert age[0] == age[1] == age[5]
    assert len({age[0], age[2], age[3]}) == 3
    assert job[0] == job[2] != job[1]
    assert sex[0] != sex[1]
    assert len(set(race)) == 1


def test_more_people_than_int64_holds_are_counted_exactly():
    space = worlds.space_of([10**9, 3], [10**9], [10**9])
    boxes = space.full_box()
    found = worlds.records_in(boxes, torch.ones(1, 2, dtype=torch.bool), torch.tensor([[True, False]]))
    assert found.count(space, boxes, found.pattern) == [(10**9 + 3) * 10**18]
    assert found.count(space, boxes[:0], found.pattern[:0]) == []
