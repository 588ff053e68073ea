"""Counterfactual twins, measured: a copy of the group flips all, chance claims nothing, and the right columns carry."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.counterfactual_worlds import repeat
from neuronfair import BlackBox, NeuronFairError, TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule
from neuronfair.domain.table import Target
from neuronfair.errors import DomainError
from neuronfair.measure.counterfactual_effect import (
    CounterfactualSettings,
    CounterfactualTest,
    compare_group_risks,
    derive_seed,
    e_value,
)
from neuronfair.measure.stats import Estimate, excess
from neuronfair.measure.twin_decisions import (
    CounterfactualPairs,
    GroupTransition,
    TwinTally,
    find_mediators,
    group_predictability,
    mean_moves,
    shapley_contributions,
)
from neuronfair.model.decision import Decision

DOMAIN = TableDomain(
    "people",
    (
        Attribute("group", "nominal", values=("a", "b")),
        Attribute("copy", "nominal", values=("p", "q")),
        Attribute("score", "ordinal", low=0, high=9),
        Attribute("noise", "ordinal", low=0, high=9),
    ),
    ("group",),
    target=Target("hired", ("no", "yes")),
    favourable="yes",
)
GROUP, COPY, SCORE, NOISE = range(4)
QUICK = CounterfactualSettings(draws=4, permutations=4)


def table(n: int = 600, seed: int = 0) -> torch.Tensor:
    """People of two groups: a copy of the group, a score of 0 to 4 in a and of 5 to 9 in b, and noise."""
    generator = torch.Generator().manual_seed(seed)
    group = torch.arange(n) % 2
    score, noise = (torch.randint(size, (n,), generator=generator) for size in (5, 10))
    return torch.stack([group, group, score + 5 * group, noise], 1)


def reads(column: int, least: int = 1, *, domain: TableDomain = DOMAIN) -> BlackBox:
    """A model that says yes where a column has so high a code."""
    return BlackBox(lambda rows: (rows[:, column] >= least).double(), domain)


def effect(column: int, least: int = 1, progress=None, **how):
    how = {"settings": QUICK, "decision": Decision("threshold", 0.5), **how}
    return CounterfactualTest(reads(column, least), DOMAIN, table(), **how).measure(progress)


def test_a_copy_of_the_group_flips_everybody_and_carries_all_of_it():
    """b has the copy that is hired: as people of a they all lose, those of a gain; with shuffled groups hardly any."""
    found = effect(COPY)
    assert found.rate.value == 1
    assert found.rate.low > 0.98
    assert found.permutation_baseline.value <= 0.05
    assert found.effect.value == pytest.approx(1, abs=0.01)  # chance takes away as many as it adds
    assert found.has_excess
    assert found.with_twin == 600
    assert (found.losses, found.gains) == (0.5, 0.5)
    assert found.moves == (
        GroupTransition((0,), (1,), 300, 1.0, 0.0, 1.0),
        GroupTransition((1,), (0,), 300, 1.0, 1.0, 0.0),
    )
    assert [(one.columns, one.share) for one in found.mediators] == [((COPY,), 1.0)]
    assert bool((found.shares == 1).all())
    assert found.auc == pytest.approx(1.0)


def test_ranks_are_carried_between_groups_that_do_not_overlap():
    """A score of 5 to 9 in b is one of 0 to 4 in a: who had 7 or more has 2 to 4, so that 3 of 5 in b lose."""
    found = effect(SCORE, 7)
    lost = float((table()[:, SCORE] >= 7).double().mean())
    assert found.losses == pytest.approx(lost, abs=0.02)
    assert found.gains == pytest.approx(lost, abs=0.1)  # the same ranks in a
    assert found.has_excess
    assert found.mediators[0].columns == (SCORE,)


def test_what_the_group_does_not_move_is_not_claimed():
    found = effect(NOISE, 5)
    assert not found.has_excess
    assert found.rate.value <= 0.05
    assert found.effect.low <= 0


def test_a_model_that_reads_the_group_has_the_direct_effect_and_its_placebo_none():
    """A shuffled group is nothing that the model reads."""
    found = effect(GROUP)
    assert found.rate.value == 1
    assert found.permutation_baseline.value == 0
    assert not {GROUP} & {column for one in found.mediators for column in one.columns}


def test_the_same_seed_gives_the_same_figures_and_progress_goes_to_its_end():
    seen = []
    one, other = (effect(SCORE, 7, progress=lambda *told: seen.append(told)) for _ in range(2))
    assert (one.rate, one.permutation_baseline, one.effect, one.moves) == (
        other.rate,
        other.permutation_baseline,
        other.effect,
        other.moves,
    )
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen[: len(seen) // 2]] == list(range(1, seen[-1][1] + 1))


def test_without_a_favourable_class_nothing_is_lost_or_gained():
    domain = TableDomain(DOMAIN.name, DOMAIN.attributes, DOMAIN.sensitive, target=DOMAIN.target)
    model = reads(COPY, domain=domain)
    found = CounterfactualTest(model, domain, table(), decision=Decision("threshold", 0.5), settings=QUICK).measure()
    assert (found.losses, found.gains) == (None, None)
    assert found.rate.value == 1


def test_few_people_are_a_sample_and_all_of_them_the_same_whatever_comes_later():
    few = effect(SCORE, 7, settings=CounterfactualSettings(draws=4, permutations=2, records=50))
    assert few.with_twin == 50
    assert len(few.records) == len(few.shares) == 50


def test_small_groups_are_left_out_and_named():
    domain = TableDomain(
        "people",
        (Attribute("group", "nominal", values=("a", "b", "c")), *DOMAIN.attributes[1:]),
        ("group",),
        target=DOMAIN.target,
        favourable="yes",
    )
    rows = table()
    rows[:5, GROUP] = 2
    model = reads(COPY, domain=domain)
    found = CounterfactualTest(model, domain, rows, decision=Decision("threshold", 0.5), settings=QUICK).measure()
    assert found.small_groups == ((2,),)
    assert found.with_twin == 595
    assert {(move.group, move.twin_group) for move in found.moves} == {((0,), (1,)), ((1,), (0,))}


@pytest.mark.parametrize("wrong", [{"draws": 0}, {"permutations": 1}, {"records": 0}])
def test_what_cannot_be_measured_is_refused(wrong):
    with pytest.raises(NeuronFairError, match=f"{next(iter(wrong))} must be"):
        CounterfactualSettings(**wrong)


def test_a_group_of_five_people_is_refused_with_its_size():
    rows = table()
    rows[:, GROUP] = 0
    rows[:5, GROUP] = 1
    with pytest.raises(DomainError, match=r"two groups of at least 30 records.*a \(595\) and b \(5\)"):
        CounterfactualTest(reads(COPY), DOMAIN, rows, decision=Decision("threshold", 0.5)).measure()


def test_contributions_add_up_and_two_copies_share():
    """Who is hired by either of two flags: each of them contributes half, and only both together carry it all."""
    people = torch.zeros(400, 4, dtype=torch.int64)
    others = people.clone()
    others[:, [COPY, SCORE]] = 1
    others[:, NOISE] = 3

    def scores(rows: torch.Tensor) -> torch.Tensor:
        return (rows[:, [COPY, SCORE]].amax(1, keepdim=True) > 0).double()

    pairs = CounterfactualPairs(scores, Decision("threshold", 0.5), people, others)
    given = shapley_contributions(pairs)
    assert given.sum() == pytest.approx(1.0)
    assert given[COPY] == pytest.approx(0.5, abs=0.1)
    assert given[NOISE] == given[GROUP] == 0
    found = find_mediators(pairs, [nobody(people)], DOMAIN, Estimate(1.0, 0.9, 1.0))
    assert [one.share for one in found] == [0.0, 1.0]
    assert set(found[1].columns) == {COPY, SCORE}


def nobody(people: torch.Tensor) -> CounterfactualPairs:
    """Pairs of shuffled groups, none of which differ."""
    return CounterfactualPairs(lambda rows: torch.zeros(len(rows), 1), Decision("threshold", 0.5), people, people)


def test_what_chance_gives_is_no_mediator():
    """Of 400 pairs 40 differ in the noise, as many as with shuffled groups; a copy of the group moves 40 more."""
    people = torch.zeros(400, 4, dtype=torch.int64)
    others = people.clone()
    others[:40, NOISE] = 1
    others[40:80, COPY] = 1

    def scores(rows: torch.Tensor) -> torch.Tensor:
        return (rows[:, [COPY, NOISE]].amax(1, keepdim=True) > 0).double()

    pairs = CounterfactualPairs(scores, Decision("threshold", 0.5), people, others)
    shuffled = others.clone()
    shuffled[:, COPY] = 0
    by_chance = [CounterfactualPairs(scores, Decision("threshold", 0.5), people, shuffled)]
    found = find_mediators(pairs, by_chance, DOMAIN, Estimate(excess(0.2, 0.1), 0.05, 0.25))
    assert [(one.columns, one.share) for one in found[:1]] == [((COPY,), 1.0)]
    chance_only = CounterfactualPairs(scores, Decision("threshold", 0.5), people, shuffled)
    assert find_mediators(chance_only, by_chance, DOMAIN, Estimate(0.1, 0.05, 0.15)) == ()


def test_nothing_is_named_where_what_remains_lies_within_the_interval():
    """Holding the copy fixed removes a half, and the excess itself may be smaller than half of what was seen."""
    people = torch.zeros(100, 4, dtype=torch.int64)
    others = people.clone()
    others[:10, COPY], others[10:20, GROUP] = 1, 1

    def scores(rows: torch.Tensor) -> torch.Tensor:
        return (rows[:, [COPY, GROUP]].amax(1, keepdim=True) > 0).double()

    pairs = CounterfactualPairs(scores, Decision("threshold", 0.5), people, others)
    named = find_mediators(pairs, [nobody(people)], DOMAIN, Estimate(0.2, 0.15, 0.25))
    assert [(one.columns, one.share) for one in named] == [((COPY,), 0.5)]
    assert find_mediators(pairs, [nobody(people)], DOMAIN, Estimate(0.2, 0.08, 0.3)) == ()


@pytest.mark.parametrize(
    ("rate", "baseline", "expected"),
    [(0.0, 0.0, 0.0), (0.3, 0.0, 0.3), (0.04, 0.05, 0.0), (0.05, 0.05, 0.0), (0.5, 0.05, 0.5), (1.0, 0.02, 1.0)],
)
def test_chance_is_taken_off_where_it_adds_something(rate, baseline, expected):
    """All of it where there is nothing else, and none of it where twins move much farther than estimates err."""
    assert excess(rate, baseline) == pytest.approx(expected, abs=1e-6)


def test_the_excess_of_a_shift_with_a_known_error_is_the_shift():
    """Half of the people are shifted by 1, the error is normal: 0.5 * h(1) is seen, and 0.5 is the truth."""
    draws = torch.randn(400_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for shift in (0.5, 1.0, 2.0):
        seen, by_chance = (float((0.1 * (s + draws)).abs().mean()) for s in (shift, 0.0))
        assert excess(seen, by_chance) == pytest.approx(0.1 * shift, rel=0.02)


def test_two_seeds_share_no_shuffle():
    several = [derive_seed(seed, use, number) for seed in (0, 1) for use in ("shuffle", "half") for number in range(20)]
    assert len(set(several)) == 80


def test_a_tally_weighs_people_and_not_counterfactuals():
    """One person with one counterfactual, who flips, and one with three, none of whom do: half of the people."""
    count, flips = torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [0.0]])
    tally = TwinTally(count, flips, flips * 0, flips, torch.tensor([0, 1]), torch.tensor([False, False]))
    assert tally.rate() == 0.5
    assert tally.select(torch.tensor([False, True])).rate() == 0
    moves = tally.moves(DOMAIN)
    assert moves == (GroupTransition((0,), (1,), 1, 1.0, 0.0, 1.0), GroupTransition((1,), (0,), 1, 0.0, 0.0, 0.0))
    assert mean_moves([moves[:1], [GroupTransition((0,), (1,), 3, 0.0, 0.5, 0.0)]]) == (
        GroupTransition((0,), (1,), 2, 0.5, 0.25, 0.5),
    )


def test_without_anybody_who_has_a_counterfactual_nothing_is_measured():
    """The copy is kept, and rules tie it to the group: nobody of the other group has it."""
    fixed = replace(DOMAIN.attributes[COPY], fixed=True)
    rules = [Rule(f"{a} has {p}", {"group": (a,)}, {"copy": (p,)}) for a, p in (("a", "p"), ("b", "q"))]
    attributes = (DOMAIN.attributes[GROUP], fixed, *DOMAIN.attributes[SCORE:])
    domain = replace(DOMAIN, attributes=attributes, rules=tuple(rules))
    with pytest.raises(DomainError, match="no record has a twin"):
        CounterfactualTest(reads(SCORE, domain=domain), domain, table(), decision=Decision("threshold", 0.5)).measure()


def test_only_what_the_model_is_given_tells_the_group():
    hidden = replace(DOMAIN.attributes[COPY], encode="none")
    domain = replace(DOMAIN, attributes=(DOMAIN.attributes[GROUP], hidden, DOMAIN.attributes[NOISE]))
    rows = table()[:, [GROUP, COPY, NOISE]]
    assert group_predictability(domain, rows) < 0.7


def test_people_whom_rules_leave_without_a_twin_are_counted():
    """The copy is kept; those of a who have p have nobody in b to be."""
    fixed = replace(DOMAIN.attributes[COPY], fixed=True)
    attributes = (DOMAIN.attributes[GROUP], fixed, *DOMAIN.attributes[SCORE:])
    domain = replace(DOMAIN, attributes=attributes, rules=(Rule("b has q", {"group": ("b",)}, {"copy": ("q",)}),))
    rows = table()
    rows[:100:2, COPY] = 1
    model = reads(SCORE, 5, domain=domain)
    found = CounterfactualTest(model, domain, rows, decision=Decision("threshold", 0.5), settings=QUICK).measure()
    assert (found.with_twin, found.without_twin) == (350, 250)


def test_a_world_with_a_hidden_confounder_says_what_it_rests_on():
    found = repeat("hidden", 300, 0, CounterfactualSettings(draws=2, permutations=3))
    assert found.truth == 0
    assert found.says


HIDDEN_DOMAIN = TableDomain(
    "people",
    (Attribute("group", "flag", values=("a", "b"), encode="none"), Attribute("x", "flag", values=("no", "yes"))),
    ("group",),
)


def test_the_e_value_of_a_ratio_by_hand():
    assert e_value(1.0) == 1
    assert e_value(2.0) == e_value(0.5) == pytest.approx(2 + 2**0.5)
    assert e_value(3.9) == pytest.approx(7.26, abs=0.01)  # VanderWeele and Ding 2017: breastfeeding


def test_a_group_is_its_own_people_and_the_twins_of_the_others():
    """Two of a, one of whom gets it, and one of b, who does not; both of a lose nothing, the one of b gains in half."""
    count = torch.full((3, 1), 2.0)
    nothing, gained = torch.zeros(3, 1), torch.tensor([[0.0], [0.0], [1.0]])
    tally = TwinTally(count, gained, nothing, gained, torch.tensor([0, 0, 1]), torch.tensor([True, False, False]))
    as_a, as_b, people = compare_group_risks(tally)[0, 1]
    assert (as_a, as_b, people) == (pytest.approx(1.5 / 3), pytest.approx(1 / 3), 3)


@pytest.mark.parametrize(("in_a", "in_b", "with_it", "without"), [(0.2, 0.6, 0.8, 0.2), (0.3, 0.6, 0.6, 0.1)])
def test_what_a_confounder_makes_alone_needs_no_stronger_one(in_a, in_b, with_it, without):
    """Something hidden goes with the group and with x; the group itself changes nothing, and x is all that decides.

    Its risk ratios are `in_b / in_a` with the group and `with_it / without` with the decision: the bound of Ding and
    VanderWeele says that the E-value is not larger than the larger of the two, and what is seen not above their factor.
    """
    rows = []
    for group, share in ((0, in_a), (1, in_b)):
        yes = round(1000 * (share * with_it + (1 - share) * without))
        rows += [[group, 1]] * yes + [[group, 0]] * (1000 - yes)
    model = BlackBox(lambda some: some[:, 1].double(), HIDDEN_DOMAIN)
    found = (
        CounterfactualTest(
            model,
            HIDDEN_DOMAIN,
            torch.tensor(rows),
            decision=Decision("threshold", 0.5),
            settings=CounterfactualSettings(32, 8),
        )
        .measure()
        .sensitivity
    )
    strength = (in_b / in_a, with_it / without)
    assert (found.likelier_group, found.rarer_group, found.outcome) == ((1,), (0,), 1)
    expected = (in_b * with_it + (1 - in_b) * without) / (in_a * with_it + (1 - in_a) * without)
    assert found.ratio == pytest.approx(expected, rel=0.06)
    assert found.ratio <= 1.05 * strength[0] * strength[1] / (sum(strength) - 1)
    assert 1 < found.e_value_low < found.e_value <= max(strength)
