"""Counterparts in words, from figures that were made up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from neuronfair import TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import Target
from neuronfair.measure.carriers import Carrier
from neuronfair.measure.counterparts import CounterpartEffect, Estimate
from neuronfair.measure.moves import Move
from neuronfair.verdict.counterpart_words import counterpart_report

DOMAIN = TableDomain(
    "people",
    (
        Attribute("sex", "nominal", values=("m", "f")),
        Attribute("marital_status", "nominal", values=("married", "single", "widowed")),
        Attribute("hours", "ordinal", low=10, high=60, step=10, missing="keep"),
        Attribute("age", "ordinal", low=18, high=90),
    ),
    ("sex",),
    target=Target("income", ("<=50K", ">50K")),
    favourable=">50K",
)
ROWS = torch.tensor([[0, 0, 4, 9], [0, 0, 3, 9], [0, 1, 6, 9], [0, 0, 2, 9], [1, 1, 1, 9], [1, 1, 2, 9]])
EFFECT = CounterpartEffect(
    rate=Estimate(0.192, 0.187, 0.197),
    placebo=Estimate(0.001, 0.0, 0.002),
    effect=Estimate(0.191, 0.186, 0.196),
    of=48_842,
    draws=32,
    placebos=20,
    lost=0.09,
    gained=0.05,
    moves=(Move((1,), (0,), 16_000, 0.1, 0.005, 0.095), Move((0,), (1,), 32_842, 0.24, 0.12, 0.008)),
    placebo_moves=(Move((0,), (1,), 32_000, 0.01, 0.004, 0.006),),
    people=ROWS,
    shares=torch.zeros(6),
    carriers=(Carrier((1,), 0.5), Carrier((1, 2), 0.67), Carrier((1, 2, 3), 0.7)),
    auc=0.934,
    left_out=(),
    counterparts=None,
)


def told(domain: TableDomain = DOMAIN, **more):
    return counterpart_report(domain, ROWS, replace(EFFECT, **more), 0.95)


def with_attribute(name: str, **more) -> TableDomain:
    return replace(DOMAIN, attributes=tuple(replace(a, **more) if a.name == name else a for a in DOMAIN.attributes))


def test_the_rate_stands_beside_the_placebo_and_the_effect():
    assert told().sentence == (
        "Had they been of the other group, 19.2 % of 48,842 people would be decided otherwise; with shuffled groups "
        "0.1 %. The effect is 19.1 points (18.6 to 19.6)."
    )
    assert "0.1 % (5 shuffles only)." in told(placebos=5).sentence
    three = with_attribute("sex", values=("m", "f", "x"))
    assert told(three).sentence.startswith("Had they been of another group, ")


def test_nothing_is_claimed_that_shuffled_groups_reach():
    """The interval of the rate begins below the end of the placebo's."""
    chance = told(
        rate=Estimate(0.041, 0.02, 0.06), placebo=Estimate(0.039, 0.02, 0.058), effect=Estimate(0.002, -0.02, 0.024)
    )
    assert chance.sentence == (
        "Had they been of the other group, 4.1 % of 48,842 people would be decided otherwise, not clearly more "
        "than with shuffled groups (3.9 %): no effect is claimed. It is 0.2 points (−2 to 2.4)."
    )
    assert (chance.claimed, chance.hurt, chance.carried) == (False, "", "")


def test_whom_it_hurts_is_said_for_each_direction():
    report = told()
    assert report.hurt == (
        "People with sex m as f lose '>50K' in 12 % of cases and gain it in 0.8 %; f as m lose '>50K' in 0.5 % of "
        "cases and gain it in 9.5 %."
    )
    first, second = report.moves
    assert (first.own, first.other, first.people, first.flips, first.lost, first.gained) == (
        "m", "f", 32_842, 0.24, 0.12, 0.008,
    )  # fmt: skip
    assert (first.placebo_lost, first.placebo_gained) == (0.004, 0.006)
    assert (second.own, second.placebo_lost) == ("f", None)


def test_without_a_favourable_class_nobody_loses():
    report = told(lost=None, gained=None)
    assert (report.hurt, report.lost) == ("", None)
    assert [(move.lost, move.gained, move.placebo_lost) for move in report.moves] == [(None, None, None)] * 2


@pytest.mark.parametrize(
    ("carriers", "said"),
    [
        (EFFECT.carriers, "Two thirds of the effect goes through marital status and hours: "),
        (
            EFFECT.carriers[:1],
            "Half of the effect goes through marital status: so much is gone if counterparts keep that.",
        ),
        ((Carrier((1,), 1.0),), "All of the effect goes through marital status: "),
        ((Carrier((1,), 0.0),), ""),
        ((), ""),
    ],
)
def test_the_few_that_carry_most_of_it_are_named(carriers, said):
    carried = told(carriers=carriers).carried
    assert carried.startswith(said)
    assert bool(carried) == bool(said)


def test_how_well_the_group_is_told():
    assert told().told == "The model's other inputs tell sex with an AUC of 0.93 (0.5: not at all, 1: always)."
    assert told(auc=None).told == ""


def test_what_is_kept_is_said_and_how_the_groups_differ_in_it():
    """Hours: 50, 40 and 30 (one cell is empty) against 20 and 30; three of four m are married, and no f."""
    assert told().notes == ()
    assert told(with_attribute("age", fixed=True)).notes == ("Counterparts keep age: nobody's group moves that.",)
    hours = told(with_attribute("hours", legitimate=True))
    assert [one.attribute for one in hours.legitimate] == ["hours"]
    assert hours.notes == ("Counterparts keep hours, since it is legitimate: on average it is 40 for m and 25 for f.",)
    status = told(with_attribute("marital_status", legitimate=True))
    assert status.notes == (
        "Counterparts keep marital status, since it is legitimate: it is married for 75 % of m and for 0 % of f.",
    )
    alone = told(with_attribute("hours", legitimate=True), left_out=((0,), (1,)))
    assert alone.notes[0] == "Counterparts keep hours, since it is legitimate."
    assert alone.notes[1].startswith("m and f have too few people")
    assert alone.sentences == (alone.sentence, alone.hurt, alone.carried, alone.told, *alone.notes)
