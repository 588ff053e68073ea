"""What searches find, rates say, rules name and proofs claim, each against the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neuronfair.errors import NeuronFairError, Unprovable
from neuronfair.measure.groups import learn_subgroups
from neuronfair.measure.rate import Rate, Until, flip_rate
from neuronfair.model.network import Network
from neuronfair.model.profile import interpret
from neuronfair.proof.problem import build_problem
from neuronfair.proof.prove import prove
from neuronfair.searches.campaign import search
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.methods import METHODS, check_method

import torch
from torch import Tensor

from .cases import Case
from .certified_boxes import truth_of
from .everybody import Truth

SEEDS = 100
SLOW = {"symbgen": 5.0}  # seconds after which a search is stopped
Note = Callable[[str], None]


@dataclass(frozen=True)
class Recall:
    """What one search found of all discriminatory people who differ in more than the sensitive attributes."""

    case: str
    method: str
    rows: int  # evaluated
    found: int  # different people
    false: int  # among what was found
    share: float  # of all there are
    uniform: float  # that drawing as many people at random finds, on average


@dataclass(frozen=True)
class Coverage:
    """How often an interval held the true rate."""

    case: str
    sampling: str
    truth: float
    inside: int
    repeats: int
    low: float  # of the coverage, 95%
    high: float


@dataclass(frozen=True)
class Groups:
    """What rules of subgroups said of their rates."""

    case: str
    rules: int
    inside: int  # intervals that hold the true rate
    above: int  # rules whose true rate is above that of everybody
    error: float  # mean of |said - true|
    lift: float  # mean of the true rates over that of everybody


@dataclass(frozen=True)
class Certificate:
    """What a proof claims."""

    case: str
    people: int
    true_fair: float
    true_discriminatory: float
    proved_fair: float
    proved_discriminatory: float
    boxes: int
    wrong: int
    rounded: int
    covered: bool
    seconds: float


def recall(name: str, case: Case, truth: Truth, budgets: tuple[int, ...], note: Note) -> list[Recall]:
    """Search with every method that can, with several budgets of evaluated rows."""
    model = case.opened.model
    profile = interpret(model, case.domain, case.data.rows) if isinstance(model, Network) and model.layers else None
    result = []
    for method in METHODS:
        try:
            check_method(method, model, case.decision)
        except NeuronFairError:
            continue
        for budget in budgets:
            note(f"{name}: {method}, {budget:,} rows")
            steps = max(1, budget // SEEDS)
            config = SearchConfig(
                method,
                SEEDS,
                steps,
                global_steps=min(40, steps),
                seconds=SLOW.get(method),
                decision=case.decision,
                controls=False,
            )
            outcome = search(model, case.domain, case.data.rows, config, profile=profile)
            rows = outcome.findings.rows
            found = len(torch.unique(case.domain.key(rows)))
            false = int((~truth.flips[truth.place(rows)] | ~case.domain.valid(rows)).sum())
            evaluated = outcome.total.evaluated
            chance = _by_chance(truth, evaluated)
            result.append(Recall(name, method, evaluated, found, false, found / max(1, truth.families), chance))
    return result


def _by_chance(truth: Truth, rows: int) -> float:
    """Return the share of discriminatory families that so many people, drawn at random, are expected to hit."""
    there = truth.members[truth.flips].double()
    if not len(there):
        return 0.0
    return float((1 - (1 - there / truth.people) ** rows).mean())


def coverage(name: str, case: Case, truth: Truth, repeats: int, note: Note) -> list[Coverage]:
    """Estimate the rate many times, by 1,000 people and until an error is small, and count how often it holds."""
    result = []
    for sampling, samples in (("1,000 people", 1_000), ("until 2%, 4,000 at most", Until(0.02, 4_000))):
        inside = 0
        for seed in range(repeats):
            if seed % 100 == 0:
                note(f"{name}: rate by {sampling}, {seed:,} of {repeats:,}")
            rate = flip_rate(case.opened.model, case.domain, samples=samples, decision=case.decision, seed=seed)
            inside += rate.interval[0] <= truth.rate <= rate.interval[1]
        low, high = Rate(inside, repeats, "domain").interval
        result.append(Coverage(name, sampling, truth.rate, inside, repeats, low, high))
    return result


def groups(name: str, case: Case, truth: Truth, repeats: int, note: Note) -> Groups | None:
    """Learn rules of subgroups from several draws, and compare each with everybody who meets it."""
    model, method = case.opened.model, "frontier" if isinstance(case.opened.model, Network) else "aequitas"
    config = SearchConfig(method, SEEDS, 100, decision=case.decision, controls=False)
    found = search(model, case.domain, case.data.rows, config).findings.rows
    said: list[tuple[Rate, float]] = []
    for seed in range(repeats):
        note(f"{name}: rules of subgroups, {seed} of {repeats}")
        overall = flip_rate(model, case.domain, samples=5_000, decision=case.decision, seed=1_000 + seed)
        for group in learn_subgroups(
            model, case.domain, found, overall, samples=5_000, decision=case.decision, seed=100 * seed
        ):
            said.append((group.rate, _true_rate(truth, {term.column: term.mask for term in group.conditions})))
    if not said or not truth.rate:
        return None
    return Groups(
        name,
        len(said),
        sum(rate.interval[0] <= true <= rate.interval[1] for rate, true in said),
        sum(true > truth.rate for _, true in said),
        sum(abs(rate.rate - true) for rate, true in said) / len(said),
        sum(true for _, true in said) / len(said) / truth.rate,
    )


def _true_rate(truth: Truth, met: dict[int, Tensor]) -> float:
    return truth.total(truth.members * truth.flips, met) / truth.total(truth.members, met)


def certificate(name: str, case: Case, truth: Truth, seconds: float, note: Note) -> Certificate | None:
    """Prove what can be proved in some seconds, and compare every box with the people in it."""
    note(f"{name}: proof, {seconds:g} s")
    try:
        problem = build_problem(case.opened, case.domain, decision=case.decision)
    except Unprovable as error:
        note(f"{name}: {error}")
        return None
    proof = prove(problem, seconds=seconds)
    note(f"{name}: {len(proof.certified):,} boxes against the truth")
    told = truth_of(proof.certified, problem.space, truth)
    sound = proof.record_count == truth.people and told.covered
    return Certificate(
        name,
        truth.people,
        1 - truth.rate,
        truth.rate,
        proof.fair / truth.people,
        proof.discriminatory / truth.people,
        len(proof.certified),
        len(told.wrong(proof.certified)),
        len(told.rounded(proof.certified)),
        sound,
        proof.seconds,
    )
