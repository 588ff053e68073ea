"""Counterfactual twins: ranks and labels carried by hand, whole distributions, the same draws, and a known truth."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from benchmarks.truth.worlds import World
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.population import counterfactuals as carrying
from neuronfair.domain.population.counterfactuals import fit_counterfactuals, shuffle_groups, with_counterfactuals
from neuronfair.domain.rules import Rule, Span
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DomainError

GROUP = Attribute("group", "nominal", values=("a", "b"))
SCORE = Attribute("score", "ordinal", high=7)
JOB = Attribute("job", "nominal", values=("none", "clerk", "chief"))
HOURS = Attribute("hours", "ordinal", high=3, missing="keep")
RULES = (
    Rule("without a job no hours", {"job": ("none",)}, {"hours": Span(high=0)}),
    Rule("no chief in b", {"group": ("b",)}, {"job": ("none", "clerk")}),
)


def domain_of(*attributes, sensitive=("group",), rules=()):
    return TableDomain("people", attributes, sensitive, rules)


def everybody(domain):
    rows = torch.tensor(list(itertools.product(*(range(a.size) for a in domain.attributes))))
    return rows[domain.valid(rows)]


def repeated(*rows, times=100):
    return torch.tensor(rows).repeat(times, 1)


def halves(other=(GROUP, SCORE)):
    """A score of 0 to 3 in a and of 4 to 7 in b."""
    domain = domain_of(*other)
    return domain, repeated(*([group, 4 * group + x] for group in (0, 1) for x in range(4)))


def workers(rules=(), n=600, seed=0):
    """People of two groups with jobs that depend on the group, and hours that depend on both; some cells are empty."""
    domain, g = domain_of(GROUP, JOB, HOURS, rules=rules), torch.Generator().manual_seed(seed)
    group = torch.arange(n) % 2
    job = (torch.rand(n, generator=g) * (3 - group)).long()
    hours = ((torch.rand(n, generator=g) * (2 + job + group)).long()).clamp(max=3)
    hours[torch.rand(n, generator=g) < 0.1 + 0.3 * group] = 4
    return domain, domain.clip(torch.stack([group, job, hours], 1))


def drawn(how, domain, rows, draws=3):
    twins = list(how.draw(domain, rows, draws))
    return torch.stack([t.rows for t in twins]), torch.stack([t.valid for t in twins])


def test_the_typical_counterfactual_has_the_same_rank_in_the_other_group():
    domain, rows = halves()
    twins = with_counterfactuals(domain, fit_counterfactuals(domain, rows)).twins(rows)
    expected = torch.stack([1 - rows[:, 0], (rows[:, 1] + 4) % 8], 1)
    assert torch.equal(twins.rows[:, 0], expected)
    assert bool(twins.valid.all())


@pytest.mark.parametrize("rules", [(), RULES])
def test_the_counterfactuals_of_a_group_are_the_people_of_the_other(rules):
    """Everybody of one group, with every place they may stand at, as likely as they are: these are the other group."""
    domain, table = workers(rules)
    how = fit_counterfactuals(domain, table)
    rows = everybody(domain)
    chance = how.population.log_likelihood(rows).exp()
    grid = (torch.arange(40, dtype=torch.float64) + 0.5) / 40
    u = torch.stack([0 * grid.repeat(40), grid.repeat_interleave(40), grid.repeat(40)], 1)
    key = rows @ torch.tensor([100, 10, 1])
    for group in (0, 1):
        own, other = rows[:, 0] == group, rows[:, 0] != group
        many, at = rows[own].repeat_interleave(len(u), 0), u.repeat(int(own.sum()), 1)
        twins = how.transport(domain, many, torch.tensor([1]), at)
        assert bool(twins.valid.all())
        assert bool(domain.valid(twins.rows[:, 0]).all())
        weight = (chance[own] / chance[own].sum()).repeat_interleave(len(u)) / len(u)
        number = torch.searchsorted(key, twins.rows[:, 0] @ torch.tensor([100, 10, 1]))
        found = torch.zeros(len(rows), dtype=torch.float64).index_add_(0, number, weight)
        assert torch.allclose(found[other], chance[other] / chance[other].sum(), atol=0.01)


def test_where_both_groups_are_alike_a_counterfactual_is_the_same_person():
    domain = domain_of(GROUP, SCORE, JOB)
    rows = repeated(*([group, x, x % 3] for group in (0, 1) for x in range(8)), times=30)
    how = fit_counterfactuals(domain, rows)
    same = torch.cat([1 - rows[:, :1], rows[:, 1:]], 1)
    assert torch.equal(how.twins(domain, rows).rows[:, 0], same)
    for twins in how.draw(domain, rows, 3):
        assert torch.equal(twins.rows[:, 0], same)
    assert all(torch.equal(how.twins(domain, rows).rows[:, 0, c], rows[:, c]) for c in (1, 2))


def test_shuffled_groups_are_as_many_and_keep_the_other_rules():
    domain, rows = workers(RULES)
    free, shuffled = shuffle_groups(domain, rows, seed=1)
    assert [rule.name for rule in free.rules] == [RULES[0].name]
    assert torch.equal(shuffled[:, 1:], rows[:, 1:])
    assert shuffled[:, 0].sum() == rows[:, 0].sum()
    assert not torch.equal(shuffled, rows)
    assert bool(free.valid(shuffled).all())
    assert not torch.equal(shuffled, shuffle_groups(domain, rows, seed=2)[1])


def test_draws_belong_to_the_person(monkeypatch):
    domain, rows = workers(RULES)
    how = fit_counterfactuals(domain, rows)
    twins, valid = drawn(how, domain, rows)
    assert len(twins.flatten(1, 2).unique(dim=0)) == 3  # every draw is another
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    among, _ = drawn(how, domain, rows[order])
    assert torch.equal(among, twins[:, order])
    alone, _ = drawn(how, with_counterfactuals(domain, how), rows[7:9])
    assert torch.equal(alone, twins[:, 7:9])
    monkeypatch.setattr(carrying, "BATCH_TWINS", 77)
    small, small_valid = drawn(how, domain, rows)
    assert torch.equal(small, twins)
    assert torch.equal(small_valid, valid)
    assert [t.rows.shape for t in how.draw(domain, rows[:0], 1)] == [(0, 1, 3)]


def test_one_member_of_a_family_is_the_twin_of_that_number():
    domain, rows = workers()
    domain = with_counterfactuals(domain, fit_counterfactuals(domain, rows))
    number = torch.arange(len(rows)) % 2
    expected = torch.where(number[:, None] == 1, domain.twins(rows).rows[:, 0], rows)
    assert torch.equal(domain.member(rows, number), expected)
    assert torch.equal(domain.to("cpu").member(rows, number), expected)


@pytest.mark.parametrize("word", ["fixed", "legitimate"])
def test_what_is_fixed_or_legitimate_stays(word):
    """A label that is a copy of the group."""
    _, rows = halves()
    rows = torch.cat([rows, rows[:, :1]], 1)
    free = domain_of(GROUP, SCORE, replace(GROUP, name="uniform"))
    assert torch.equal(fit_counterfactuals(free, rows).twins(free, rows).rows[:, 0, 2], 1 - rows[:, 0])
    domain = domain_of(GROUP, SCORE, replace(GROUP, name="uniform", **{word: True}))
    how = fit_counterfactuals(domain, rows)
    assert how.columns(domain) == (0, 1)
    for twins in how.draw(domain, rows, 2):
        assert torch.equal(twins.rows[:, 0, 2], rows[:, 2])


def test_if_everything_stays_there_are_no_counterfactuals():
    domain, rows = halves((GROUP, replace(SCORE, legitimate=True)))
    with pytest.raises(
        DomainError, match=r"^people: every attribute is fixed or legitimate.*Leave some attributes free"
    ):
        fit_counterfactuals(domain, rows)


def test_of_a_graph_only_what_follows_from_the_group_moves():
    domain, rows = halves()
    names = {"pay": ("score",), "score": ("group",), "height": ()}
    domain = domain_of(GROUP, *(replace(SCORE, name=name, causes=causes) for name, causes in names.items()))
    rows = rows[:, [0, 1, 1, 1]]
    how = fit_counterfactuals(domain, rows)
    assert how.population.order.index(2) < how.population.order.index(1)
    twins = how.twins(domain, rows).rows[:, 0]
    assert torch.equal(twins[:, 1:3], (rows[:, 1:3] + 4) % 8)
    assert torch.equal(twins[:, 3], rows[:, 3])
    assert how.moving == {1, 2}


def test_what_does_not_follow_from_the_group_moves_where_a_rule_says_so():
    rule = Rule("b has low scores", {"group": ("b",)}, {"score": Span(high=3)})
    domain = domain_of(GROUP, replace(SCORE, causes=()), rules=(rule,))
    rows = repeated(*([0, x] for x in range(8)), *([1, x] for x in range(4)))
    how = fit_counterfactuals(domain, rows)
    twins = how.twins(domain, rows)
    assert bool(twins.valid.all())
    # Each of 0 to 3 has a chance of 2/12, each of 4 to 7 of 1/12; 4 stands at 8.5/12, which is 2 of four equal parts.
    assert twins.rows[[0, 2, 3, 4, 5, 6, 7], 0, 1].tolist() == [0, 1, 2, 2, 3, 3, 3]
    assert bool((twins.rows[rows[:, 0] == 0, 0, 1] < 4).all())


def test_three_groups_and_one_of_too_few_people():
    group = replace(GROUP, values=("a", "b", "c", "d"))
    domain = domain_of(group, replace(SCORE, high=11))
    rows = repeated(*([g, 4 * g + x] for g in range(3) for x in range(4)))
    rows = torch.cat([rows, torch.tensor([[3, 0]]).repeat(29, 1)])
    twins = fit_counterfactuals(domain, rows).twins(domain, rows)
    assert twins.rows.shape == (len(rows), 3, 2)
    for ahead in range(3):
        goal = (rows[:, 0] + ahead + 1) % 4
        assert torch.equal(twins.rows[:, ahead, 0], goal)
        known = (rows[:, 0] < 3) & (goal < 3)
        assert torch.equal(twins.valid[:, ahead], known)
        assert torch.equal(twins.rows[known, ahead, 1], 4 * goal[known] + rows[known, 1] % 4)


def test_two_sensitive_attributes():
    domain = domain_of(GROUP, SCORE, replace(GROUP, name="race"), sensitive=("group", "race"))
    rows = repeated(*([a, 4 * a + 2 * b + x, b] for a in (0, 1) for b in (0, 1) for x in (0, 1)))
    twins = fit_counterfactuals(domain, rows).twins(domain, rows).rows
    assert twins.shape == (len(rows), 3, 3)
    for k in range(3):
        assert torch.equal(twins[:, k, 1], 4 * twins[:, k, 0] + 2 * twins[:, k, 2] + rows[:, 1] % 2)
        assert bool((twins[:, k, [0, 2]] != rows[:, [0, 2]]).any(1).all())


def test_who_cannot_be_in_the_other_group_has_no_counterfactual():
    """A kept job that b does not allow."""
    domain, rows = workers(RULES)
    domain = replace(domain, attributes=(GROUP, replace(JOB, fixed=True), HOURS))
    twins = fit_counterfactuals(domain, rows).twins(domain, rows)
    assert torch.equal(twins.valid[:, 0], rows[:, 1] < 2)
    assert int((~twins.valid).sum()) > 50


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ([0] * 100, r"by group the table has a \(100\)"),
        ([0] * 100 + [1] * 5, r"two groups of at least 30 records.*by group the table has a \(100\) and b \(5\)"),
        ([], "the table has none"),
    ],
)
def test_tables_of_one_group_are_refused_in_a_sentence(groups, says):
    domain, _ = halves()
    rows = torch.tensor([[group, 0] for group in groups], dtype=torch.int64).view(-1, 2)
    with pytest.raises(DomainError, match=says):
        fit_counterfactuals(domain, rows)


@pytest.mark.parametrize(("kind", "agree"), [("linear", 0.85), ("mixed", 0.72)])
def test_counterfactuals_are_near_to_the_truth_of_a_made_up_world(kind, agree):
    """The flip test says that nobody's decision changes, and it is wrong about everybody whose does."""
    world = World(kind, 2000, seed=4)
    how = fit_counterfactuals(world.domain, world.rows)
    own, true = world.decided(world.rows), world.decided(world.truth)
    decided = world.decided(drawn(how, world.domain, world.rows, 8)[0][:, :, 0])
    changes = true != own
    assert float(changes.double().mean()) > 0.1
    assert abs(float((decided != own).double().mean() - changes.double().mean())) < 0.08
    assert float((decided == true).double().mean()) > agree
    assert float((decided == true)[:, changes].double().mean()) > 0.5
    assert float((decided == true)[:, ~changes].double().mean()) > agree
    # Somebody who knows all laws, but nobody's noise, is not much better.
    best = torch.stack([world.decided(world.again(seed)) for seed in range(8)])
    assert float((best == true).double().mean()) > float((decided == true).double().mean()) - 0.02


def test_nothing_depends_on_the_group_in_a_world_apart():
    world = World("apart", 2000, seed=0)
    assert torch.equal(world.rows[:, 1:], world.truth[:, 1:])
    assert torch.equal(world.again(0)[:, 1:], world.rows[:, 1:])


def test_what_has_nothing_to_do_with_the_group_stays_beside_what_has():
    """A number that was shuffled moves by what is estimated from 1,000 people, less than a tenth of its spread."""
    for seed in range(4):
        world = World("mixed", 1000, seed)
        rows = world.rows.clone()
        rows[:, 1] = rows[torch.randperm(1000, generator=torch.Generator().manual_seed(seed)), 1]
        how = fit_counterfactuals(world.domain, rows)
        assert len(how.moving) > 2
        moved = how.twins(world.domain, rows).rows[:, 0, 1] - rows[:, 1]
        assert float(moved.double().mean().abs()) < 0.1 * float(rows[:, 1].double().std())
