"""CounterfactualTwins in words, from figures that were made up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from neuronfair import TableDomain
from neuronfair.audits.wording.phrases import report_counterfactual_test
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import Target
from neuronfair.formatting import percent
from neuronfair.measure.counterfactual_effect import CounterfactualEffect, GroupTransition, Sensitivity
from neuronfair.measure.stats import Estimate
from neuronfair.measure.twin_decisions import Mediator

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
EFFECT = CounterfactualEffect(
    rate=Estimate(0.192, 0.187, 0.197),
    permutation_baseline=Estimate(0.001, 0.0, 0.002),
    effect=Estimate(0.191, 0.186, 0.196),
    with_twin=48_842,
    draws=32,
    permutations=20,
    losses=0.09,
    gains=0.05,
    moves=(
        GroupTransition((1,), (0,), 16_000, 0.1, 0.005, 0.095),
        GroupTransition((0,), (1,), 32_842, 0.24, 0.12, 0.008),
    ),
    permutation_moves=(GroupTransition((0,), (1,), 32_000, 0.01, 0.004, 0.006),),
    records=ROWS,
    shares=torch.zeros(6),
    mediators=(Mediator((1,), 0.5), Mediator((1, 2), 0.67), Mediator((1, 2, 3), 0.7)),
    auc=0.934,
    small_groups=(),
    counterfactuals=None,
)


def told(domain: TableDomain = DOMAIN, **more):
    return report_counterfactual_test(domain, ROWS, replace(EFFECT, **more), 0.95)


def with_attribute(name: str, **more) -> TableDomain:
    return replace(DOMAIN, attributes=tuple(replace(a, **more) if a.name == name else a for a in DOMAIN.attributes))


UNTESTED = "This rests on causal assumptions that the data cannot test."


def test_without_declared_causes_it_is_a_comparison_of_distributions():
    report = told()
    assert report.sentence == (
        f"{percent(0.192)} of counterfactual twins (same place in the other group's distribution) get a different "
        "decision, versus 0.10% with shuffled groups (permutation baseline)."
    )
    why = "It is not the plain difference: the further twins move, the less chance adds."
    assert report.excess == f"The excess is 19.1 percentage points ({percent(0.95)} CI 18.6 to 19.6). {why}"
    assert report.assumptions == "none declared"
    assert (
        report.assumed == f"No causal graph is declared, so this compares the distributions of the groups. {UNTESTED}"
    )
    assert report.assumed in report.sentences
    assert "The permutation baseline has 5 shuffles only." in told(permutations=5).excess
    three = with_attribute("sex", values=("m", "f", "x"))
    assert told(three).sentence.partition(" of ")[2].startswith("counterfactual twins (same place in another group's")


@pytest.mark.parametrize(
    ("domain", "declared", "by"),
    [
        (with_attribute("age", fixed=True), "held fixed", "with what is fixed held fixed"),
        (with_attribute("hours", causes=("sex",)), "graph declared", "by the declared causal graph"),
    ],
)
def test_a_causal_sentence_needs_declared_causes(domain, declared, by):
    report = told(domain)
    assert report.assumptions == declared
    assert report.sentence.startswith(
        f"Had they been of the other group, {percent(0.192)} of people would get a different decision, {by}, versus "
    )
    assert report.assumed.endswith(UNTESTED)


def test_a_resolving_attribute_alone_declares_no_causes():
    assert told(with_attribute("hours", legitimate=True)).assumptions == "none declared"


def test_how_strong_a_hidden_confounder_must_be():
    found = told(sensitivity=Sensitivity((0,), (1,), 1, 2.0, 3.41, 2.6)).sensitivity
    assert (found.more, found.less, found.outcome, found.e_value) == ("m", "f", ">50K", 3.41)
    assert found.sentence == (
        "'>50K' is 2.00 times as frequent for twins in m as for twins in f. To explain this away, a hidden confounder "
        "needs a risk ratio of at least 3.4 with both the group and '>50K' (E-value; 2.6 at the lower end of the CI)."
    )
    assert told().sensitivity is None


def test_a_graph_in_which_nothing_depends_on_the_group_is_said():
    domain = with_attribute("hours", causes=("age",))
    assert told(domain).graph_note == (
        "By the declared causal graph no attribute that twins may change depends on sex, so twins differ in nothing "
        "else and this test is empty."
    )
    assert told(domain).graph_note in told(domain).sentences
    assert told(domain).graph == ("sex <-", "marital_status <-", "hours <- age", "age <-")
    assert told(with_attribute("hours", causes=("sex",))).graph_note == ""
    assert told().graph_note == ""


def test_people_without_a_twin_are_said():
    assert told(without_twin=12).notes == (
        "12 people have no counterfactual twin, since rules tie the group to attributes that twins keep; all metrics "
        "here leave them out.",
    )


def test_nothing_is_claimed_that_shuffled_groups_reach():
    """The interval of the rate begins below the end of the baseline's."""
    chance = told(
        rate=Estimate(0.041, 0.02, 0.06),
        permutation_baseline=Estimate(0.039, 0.02, 0.058),
        effect=Estimate(0.002, -0.02, 0.024),
    )
    assert f"not clearly more than {percent(0.039)} with shuffled groups" in chance.sentence
    ends = f"{percent(0.95)} CI −2.0 to 2.4"
    assert chance.excess.startswith(f"The excess is 0.2 percentage points ({ends}). It is not the plain difference")
    assert chance.excess.endswith(" No excess is claimed.")
    assert (chance.claimed, chance.disadvantaged, chance.mediators_text) == (False, "", "")


def test_the_disadvantaged_group_is_that_of_the_clearest_move():
    report = told()
    assert report.disadvantaged == (
        f"Disadvantaged group: f. With sex f instead of m, people lose '>50K' in {percent(0.12)} of cases and gain it "
        f"in {percent(0.008)}."
    )
    gain = GroupTransition((0,), (1,), 32_842, 0.24, 0.008, 0.12)
    assert told(moves=(gain,)).disadvantaged.startswith("Disadvantaged group: m. With sex f instead of m, people lose")
    first, second = report.moves
    assert (first.own, first.other, first.people, first.flips, first.lost, first.gained) == (
        "m", "f", 32_842, 0.24, 0.12, 0.008,
    )  # fmt: skip
    assert (first.permutation_lost, first.permutation_gained) == (0.004, 0.006)
    assert (second.own, second.permutation_lost) == ("f", None)


def test_without_a_favourable_class_nobody_loses():
    report = told(losses=None, gains=None)
    assert (report.disadvantaged, report.lost) == ("", None)
    assert [(move.lost, move.gained, move.permutation_lost) for move in report.moves] == [(None, None, None)] * 2


@pytest.mark.parametrize(
    ("carriers", "said"),
    [
        (EFFECT.mediators, "Holding marital status and hours fixed removes two thirds of the excess."),
        (EFFECT.mediators[:1], "Holding marital status fixed removes half of the excess."),
        ((Mediator((1,), 1.0),), "Holding marital status fixed removes all of the excess."),
        ((Mediator((1,), 0.0),), ""),
        ((), ""),
    ],
)
def test_the_few_that_carry_most_of_it_are_named(carriers, said):
    carried = told(mediators=carriers).mediators_text
    assert carried.startswith(said)
    assert bool(carried) == bool(said)


def test_how_well_the_group_is_predicted():
    assert (
        told().predictability_text
        == "The model's other inputs predict sex with an AUC of 0.93 (0.5: no better than chance)."
    )
    assert told(auc=None).predictability_text == ""


def test_what_is_kept_is_said_and_how_the_groups_differ_in_it():
    """Hours: 50, 40 and 30 (one cell is empty) against 20 and 30; three of four m are married, and no f."""
    assert told().notes == ()
    assert told(with_attribute("age", fixed=True)).notes == ("Twins keep age: held fixed.",)
    hours = told(with_attribute("hours", legitimate=True))
    assert [one.attribute for one in hours.legitimate] == ["hours"]
    assert hours.notes == (
        "Twins keep hours, which is declared as resolving (legitimate): on average it is 40 for m and 25 for f.",
    )
    status = told(with_attribute("marital_status", legitimate=True))
    assert status.notes == (
        "Twins keep marital status, which is declared as resolving (legitimate): it is married for 75% of m and "
        "for 0% of f.",
    )
    alone = told(with_attribute("hours", legitimate=True), small_groups=((0,), (1,)))
    assert alone.notes[0] == "Twins keep hours, which is declared as resolving (legitimate)."
    assert alone.notes[1].startswith("m and f have too few people")
    said = (alone.sentence, alone.excess, alone.assumed, alone.disadvantaged)
    said += (alone.mediators_text, alone.predictability_text)
    assert alone.sentences == (*said, *alone.notes)
