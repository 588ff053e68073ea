"""Boxes of people who may have the same twins."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from neuronfair.domain.rules import Rule, Span
from neuronfair.errors import Unprovable
from neuronfair.proof.bounds import space as module
from neuronfair.proof.bounds.space import people_of, refined
from tests.proof import worlds


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
    found = people_of(domain, space, allowed)
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
        assert torch.equal(found.inside[pattern[places]], valid & member)
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
    assert found.inside[alone].sum(1).tolist() == [2]  # a twin may lie outside


def test_too_many_boxes_are_refused(monkeypatch):
    monkeypatch.setattr(module, "MOST_BOXES", 2)
    domain = worlds.people(Rule("r", {"age": (0, 2, 4)}, {"job": ("b",)}))
    with pytest.raises(Unprovable, match="cut the domain into more than 2 boxes"):
        people_of(domain, worlds.plain_space(domain), worlds.every_code(domain))


def test_codes_that_no_rule_tells_apart_are_of_one_class():
    domain = worlds.people(Rule("r", {"age": Span(2, 3)}, {"job": ("b",)}), Rule("s", {"age": (3,)}, {"sex": (1.0,)}))
    allowed = worlds.every_code(domain)
    allowed[0] = torch.tensor([True, True, True, True, False, True])
    age, sex, job, race = (part.tolist() for part in refined(domain, allowed))
    assert age[4] == -1
    assert age[0] == age[1] == age[5]
    assert len({age[0], age[2], age[3]}) == 3
    assert job[0] == job[2] != job[1]
    assert sex[0] != sex[1]
    assert len(set(race)) == 1


def test_more_people_than_int64_holds_are_counted_exactly():
    space = worlds.space_of([10**9, 3], [10**9], [10**9])
    boxes = space.everything()
    found = worlds.people_in(boxes, torch.ones(1, 2, dtype=torch.bool), torch.tensor([[True, False]]))
    assert found.count(space, boxes, found.pattern) == [(10**9 + 3) * 10**18]
    assert found.count(space, boxes[:0], found.pattern[:0]) == []
