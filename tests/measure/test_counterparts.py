"""Counterparts, measured: a copy of the group flips everybody, chance claims nothing, and the right columns carry."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from neuronfair import BlackBox, NeuronFairError, TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule
from neuronfair.domain.table import Target
from neuronfair.errors import DomainError
from neuronfair.measure.carriers import Pairs, carriers, contributions, tells
from neuronfair.measure.counterparts import Thoroughness, counterpart_effect
from neuronfair.measure.moves import Move, Tally, mean_moves
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
QUICK = Thoroughness(draws=4, placebos=4)


def table(n: int = 600, seed: int = 0) -> torch.Tensor:
    """People of two groups: a copy of the group, a score of 0 to 4 in a and of 5 to 9 in b, and noise."""
    generator = torch.Generator().manual_seed(seed)
    group = torch.arange(n) % 2
    score, noise = (torch.randint(size, (n,), generator=generator) for size in (5, 10))
    return torch.stack([group, group, score + 5 * group, noise], 1)


def reads(column: int, least: int = 1, *, domain: TableDomain = DOMAIN) -> BlackBox:
    """A model that says yes where a column has so high a code."""
    return BlackBox(lambda rows: (rows[:, column] >= least).double(), domain)


def effect(column: int, least: int = 1, **how):
    how = {"thorough": QUICK, "decision": Decision("threshold", 0.5), **how}
    return counterpart_effect(reads(column, least), DOMAIN, table(), **how)


def test_a_copy_of_the_group_flips_everybody_and_carries_all_of_it():
    """b has the copy that is hired: as people of a they all lose, those of a gain; with shuffled groups hardly any."""
    found = effect(COPY)
    assert found.rate == (1.0, 1.0, 1.0)
    assert found.placebo.rate <= 0.05
    assert found.effect.rate == 1 - found.placebo.rate
    assert found.claimed
    assert found.of == 600
    assert (found.lost, found.gained) == (0.5, 0.5)
    assert found.moves == (Move((0,), (1,), 300, 1.0, 0.0, 1.0), Move((1,), (0,), 300, 1.0, 1.0, 0.0))
    assert [(one.columns, one.share) for one in found.carriers] == [((COPY,), 1.0)]
    assert bool((found.shares == 1).all())
    assert found.auc == pytest.approx(1.0)


def test_ranks_are_carried_between_groups_that_do_not_overlap():
    """A score of 5 to 9 in b is one of 0 to 4 in a: who had 7 or more has 2 to 4, so that 3 of 5 in b lose."""
    found = effect(SCORE, 7)
    lost = float((table()[:, SCORE] >= 7).double().mean())
    assert found.lost == pytest.approx(lost, abs=0.02)
    assert found.gained == pytest.approx(lost, abs=0.1)  # the same ranks in a
    assert found.claimed
    assert found.carriers[0].columns == (SCORE,)


def test_what_the_group_does_not_move_is_not_claimed():
    found = effect(NOISE, 5)
    assert not found.claimed
    assert found.rate.rate <= 0.05
    assert found.effect.low <= 0


def test_a_model_that_reads_the_group_has_the_direct_effect_and_its_placebo_none():
    """A shuffled group is nothing that the model reads."""
    found = effect(GROUP)
    assert found.rate.rate == 1
    assert found.placebo.rate == 0
    assert found.carriers[0].columns == (GROUP,)


def test_the_same_seed_gives_the_same_figures_and_progress_goes_to_its_end():
    seen = []
    one, other = (effect(SCORE, 7, progress=lambda *told: seen.append(told)) for _ in range(2))
    assert (one.rate, one.placebo, one.effect, one.moves) == (other.rate, other.placebo, other.effect, other.moves)
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen[: len(seen) // 2]] == list(range(1, seen[-1][1] + 1))


def test_without_a_favourable_class_nothing_is_lost_or_gained():
    domain = TableDomain(DOMAIN.name, DOMAIN.attributes, DOMAIN.sensitive, target=DOMAIN.target)
    model = reads(COPY, domain=domain)
    found = counterpart_effect(model, domain, table(), decision=Decision("threshold", 0.5), thorough=QUICK)
    assert (found.lost, found.gained) == (None, None)
    assert found.rate.rate == 1


def test_few_people_are_a_sample_and_all_of_them_the_same_whatever_comes_later():
    few = effect(SCORE, 7, thorough=Thoroughness(draws=4, placebos=2, people=50))
    assert few.of == 50
    assert len(few.people) == len(few.shares) == 50


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
    found = counterpart_effect(model, domain, rows, decision=Decision("threshold", 0.5), thorough=QUICK)
    assert found.left_out == ((2,),)
    assert found.of == 595
    assert {(move.own, move.other) for move in found.moves} == {((0,), (1,)), ((1,), (0,))}


@pytest.mark.parametrize("wrong", [{"draws": 0}, {"placebos": 1}, {"people": 0}])
def test_what_cannot_be_measured_is_refused(wrong):
    with pytest.raises(NeuronFairError, match=f"{next(iter(wrong))} must be"):
        Thoroughness(**wrong)


def test_a_group_of_five_people_is_refused_with_its_size():
    rows = table()
    rows[:, GROUP] = 0
    rows[:5, GROUP] = 1
    with pytest.raises(DomainError, match=r"two groups of at least 30 people.*a \(595\) and b \(5\)"):
        counterpart_effect(reads(COPY), DOMAIN, rows, decision=Decision("threshold", 0.5))


def test_contributions_add_up_and_two_copies_share():
    """Who is hired by either of two flags: each of them contributes half, and only both together carry it all."""
    people = torch.zeros(400, 4, dtype=torch.int64)
    others = people.clone()
    others[:, [COPY, SCORE]] = 1
    others[:, NOISE] = 3

    def scores(rows: torch.Tensor) -> torch.Tensor:
        return (rows[:, [COPY, SCORE]].amax(1, keepdim=True) > 0).double()

    pairs = Pairs(scores, Decision("threshold", 0.5), people, others)
    given = contributions(pairs, DOMAIN)
    assert given.sum() == pytest.approx(1.0)
    assert given[COPY] == pytest.approx(0.5, abs=0.1)
    assert given[NOISE] == given[GROUP] == 0
    found = carriers(pairs, DOMAIN, 1.0)
    assert [one.share for one in found] == [0.0, 1.0]
    assert set(found[1].columns) == {COPY, SCORE}


def test_a_tally_weighs_people_and_not_counterparts():
    """One person with one counterpart, who flips, and one with three, none of whom do: half of the people."""
    count, flips = torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [0.0]])
    tally = Tally(count, flips, flips * 0, flips, torch.tensor([0, 1]))
    assert tally.rate() == 0.5
    assert tally.rate(torch.tensor([3, 1])) == 0.75
    moves = tally.moves(DOMAIN)
    assert moves == (Move((0,), (1,), 1, 1.0, 0.0, 1.0), Move((1,), (0,), 1, 0.0, 0.0, 0.0))
    assert mean_moves([moves[:1], [Move((0,), (1,), 3, 0.0, 0.5, 0.0)]]) == (Move((0,), (1,), 2, 0.5, 0.25, 0.5),)


def test_without_anybody_who_has_a_counterpart_nothing_is_measured():
    """The copy is kept, and rules tie it to the group: nobody of the other group has it."""
    fixed = replace(DOMAIN.attributes[COPY], fixed=True)
    rules = [Rule(f"{a} has {p}", {"group": (a,)}, {"copy": (p,)}) for a, p in (("a", "p"), ("b", "q"))]
    attributes = (DOMAIN.attributes[GROUP], fixed, *DOMAIN.attributes[SCORE:])
    domain = replace(DOMAIN, attributes=attributes, rules=tuple(rules))
    with pytest.raises(DomainError, match="nobody has a counterpart"):
        counterpart_effect(reads(SCORE, domain=domain), domain, table(), decision=Decision("threshold", 0.5))


def test_only_what_the_model_is_given_tells_the_group():
    hidden = replace(DOMAIN.attributes[COPY], encode="none")
    domain = replace(DOMAIN, attributes=(DOMAIN.attributes[GROUP], hidden, DOMAIN.attributes[NOISE]))
    rows = table()[:, [GROUP, COPY, NOISE]]
    assert tells(domain, rows, torch.ones(2, dtype=torch.bool)) < 0.7
