"""Regions in words: planted ones are found, and everybody in any of them is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule, Span
from neuronfair.domain.table import TableDomain
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision
from neuronfair.proof.decide.prove import prove
from neuronfair.proof.decide.regions import Region, regions
from neuronfair.proof.problem import problem_of
from neuronfair.proof.where import allowed_codes
from neuronfair.searches.evaluate import evaluate
from tests.planted.networks import network, random_module

PEOPLE = TableDomain(
    "people",
    (
        Attribute("gain", "ordinal", low=0, high=9000, step=1000),
        Attribute("school", "nominal", values=("Basic", "Masters", "Doctorate", "Some college"), encode="onehot"),
        Attribute("hours", "ordinal", low=1, high=6),
        Attribute("sex", "flag", values=("F", "M")),
    ),
    ("sex",),
)
RULE = Rule(
    "no M with a Doctorate works 5 or 6 hours", {"school": ("Doctorate",), "hours": Span(5, 6), "sex": ("M",)}, {}
)


def everybody(domain: TableDomain) -> Tensor:
    rows = torch.cartesian_prod(*(torch.arange(a.size) for a in domain.attributes))
    return rows[domain.valid(rows)]


def planted(rows: Tensor) -> Tensor:
    """From 7000 on with a higher degree all are accepted, and others with up to 2 hours if they are F."""
    gain, school, hours, sex = rows.T
    sure = (gain >= 7) & ((school == 1) | (school == 2))
    return (sure | ((hours < 2) & (sex == 0))).double()


def inside(domain: TableDomain, rule: str) -> Tensor:
    """Which of all people a rule means."""
    allowed = allowed_codes(domain, rule)
    return torch.stack([table[codes] for table, codes in zip(allowed, everybody(domain).T, strict=True)]).all(0)


def check(domain: TableDomain, model, decision, found: list[Region]) -> None:
    """Ask about everybody in each region."""
    people = everybody(domain)
    flips = evaluate(model.double(), domain, people, decision).discriminates
    for region in found:
        mine = inside(domain, region.rule)
        assert int(mine.sum()) == region.people
        assert flips[mine].all() if region.verdict == "discriminatory" else not flips[mine].any()


@pytest.mark.parametrize("domain", [PEOPLE, replace(PEOPLE, rules=(RULE,))], ids=["plain", "rules"])
def test_planted_regions_are_found_and_are_as_large_as_they_can_be(domain):
    model, decision = BlackBox(planted, domain), Decision("threshold", 0.5)
    subject = problem_of(model, domain, decision=decision)
    found = regions(subject, prove(subject, seconds=20))
    check(domain, model, decision, found)
    less = 20 if domain.rules else 0  # M with a Doctorate who work 5 or 6 hours
    assert found[:1] == [Region("hours >= 3", "fair", 10 * 4 * 4 * 2 - less)]
    higher = 3 * 2 * 6 * 2 - (6 if domain.rules else 0)
    assert Region("gain >= 7000 and school in [Masters, Doctorate]", "fair", higher) in found
    assert Region("gain <= 6000 and hours <= 2", "discriminatory", 7 * 4 * 2 * 2) in found
    assert Region('school in [Basic, "Some college"] and hours <= 2', "discriminatory", 10 * 2 * 2 * 2) in found


def test_a_region_of_a_region_says_both():
    model, decision = BlackBox(planted, PEOPLE), Decision("threshold", 0.5)
    subject = problem_of(model, PEOPLE, decision=decision, where="gain >= 5000 and sex == M and hours <= 2")
    found = regions(subject, prove(subject, seconds=20))
    expected = "gain >= 5000 and gain <= 6000 and hours <= 2 and sex == M"
    assert Region(expected, "discriminatory", 2 * 4 * 2) in found
    check(PEOPLE, model, decision, found)


def test_everybody_needs_no_words():
    model = BlackBox(lambda rows: (rows[:, 0] > 3).double(), PEOPLE)
    subject = problem_of(model, PEOPLE, decision=Decision("threshold", 0.5))
    assert regions(subject, prove(subject, seconds=20)) == [Region("", "fair", PEOPLE.count)]


def test_a_rule_of_nobody_stops_no_region():
    # Boxes in which nobody lives are no obstacle: M with a Doctorate are forbidden, and only they are decided so.
    forbidden = Rule("no M has a Doctorate", {"school": ("Doctorate",), "sex": ("M",)}, {})
    domain = replace(PEOPLE, rules=(forbidden,))
    model = BlackBox(lambda rows: ((rows[:, 1] == 2) & (rows[:, 3] == 1)).double(), domain)
    subject = problem_of(model, domain, decision=Decision("threshold", 0.5))
    assert regions(subject, prove(subject, seconds=20)) == [Region("", "fair", domain.count)]


@pytest.mark.parametrize("seed", range(3))
def test_regions_of_networks_hold_for_everybody_in_them(seed, monkeypatch):
    wide = replace(PEOPLE, attributes=(Attribute("age", "ordinal", low=20, high=59), *PEOPLE.attributes), rules=(RULE,))
    made = random_module(wide, seed=seed)
    with torch.no_grad():
        made[0].weight[:, -1] *= 0.3
        made[2].bias[-1] += 3.0
    model = network(made, wide)
    subject = problem_of(model, wide)
    assert subject.bounder is not None
    monkeypatch.setattr("neuronfair.proof.decide.regions.SEEDS", 6)
    proof = prove(subject, seconds=60)
    left = [number % 3 > 0 for number in range(len(proof.leaves))]  # the others as if there had been no time
    fair, unfair = (
        [own if some else 0 for own, some in zip(part, left, strict=True)]
        for part in (proof.leaves.fair, proof.leaves.discriminatory)
    )
    partly = replace(proof, leaves=replace(proof.leaves, fair=fair, discriminatory=unfair))
    for known in (proof, partly):
        found = regions(subject, known, most=3, seconds=60)
        verdicts = [region.verdict for region in found]
        assert 0 < verdicts.count("fair") <= 3
        assert 0 < verdicts.count("discriminatory") <= 3
        check(wide, model, Decision(), found)


def test_the_clock_of_regions_starts_before_anybody_is_asked(monkeypatch):
    """Once the time is over, no more boxes are cut into single people; what is said is still true."""
    from neuronfair.proof.decide import regions as module

    model = BlackBox(lambda rows: planted(rows).numpy(), PEOPLE)
    subject = problem_of(model, PEOPLE, decision=Decision("threshold", 0.5))
    proof = prove(subject, seconds=60)
    now, asked = [0.0], []
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(module, "PART", 1)
    members = module.members

    def counted(boxes):
        asked.append(len(boxes))
        now[0] += 1.0
        return members(boxes)

    monkeypatch.setattr(module, "members", counted)
    check(PEOPLE, model, Decision("threshold", 0.5), regions(subject, proof, seconds=60.0))
    whole, asked[:], now[0] = sum(asked), [], 0.0
    check(PEOPLE, model, Decision("threshold", 0.5), regions(subject, proof, seconds=3.0))
    assert sum(asked) <= min(2, whole)
