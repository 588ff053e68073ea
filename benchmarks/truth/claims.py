"""One proof about a planted model, held against the truth."""

from __future__ import annotations

import random
from dataclasses import dataclass
from unittest.mock import patch

from neuronfair.domain.table import TableDomain
from neuronfair.proof import prove as proving
from neuronfair.proof.evidence import Evidence
from neuronfair.proof.problem import Problem, places_of, problem_of
from neuronfair.proof.prove import ProofProgress, prove
from neuronfair.proof.state import FAIR, FLIPS, GuideSource

import torch
from torch import Tensor

from .certified_boxes import truth_of
from .everybody import Truth, everybody
from .planted import planted

GUIDES, LOOKED_AT = 300, 2_000  # rows that guide a proof, and records about which it is asked afterwards


@dataclass(frozen=True)
class Claims:
    """How many boxes a proof has, which are wrong, and how many are other than the model's own rounding."""

    name: str
    boxes: int
    wrong: tuple[str, ...]
    rounded: int
    share: float  # of people who are decided
    records: int  # about which it says something

    @property
    def kind(self) -> str:
        """What kind of model it is about."""
        return self.name.partition(" ")[0]


def held(seed: int, *, kind: str | None = None, people: int = 50_000, steps: int = 30) -> Claims:
    """Return what a proof of a few steps about a planted model claims, and what of it is wrong.

    In some of them everybody is asked in large boxes, in others in hardly any, so that bounds must do it. Half of them
    follow guides, some of which are drawn on the way. What the proof says about single records is compared, too.
    """
    case = planted(seed, kind=kind, people=people)
    draw = random.Random(seed)
    left = draw.randint(1, steps)

    def stop(_: ProofProgress) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt  # the proof so far is kept

    truth = everybody(case.asked, case.domain, case.decision, doubt=case.doubt)
    problem = problem_of(case.model, case.domain, decision=case.decision)
    small, source = draw.choice((1, 1, 8, 512)), _guides(problem, case.domain, seed) if draw.random() < 0.5 else None
    few = patch.dict(proving.DRAWN, cpu=GUIDES), patch.object(proving, "DRAWING", 1e9)
    with patch.object(proving, "SMALL", small), few[0], few[1]:
        proof = prove(problem, seconds=600, progress=stop, guides=source)
    certified = proof.certified
    told = truth_of(certified, problem.space, truth)
    wrong = [] if told.covered else ["its boxes do not cover the domain once"]
    if not proof.people == truth.people == case.domain.count:
        wrong.append(f"{proof.people} people instead of {truth.people}")
    wrong += [
        f"box {box} claims {certified.fair[box]} fair and {certified.discriminatory[box]} not, in truth "
        f"{told.fair[box]} and {told.discriminatory[box]}, of whom near a boundary "
        f"{told.near_fair[box]} and {told.near_discriminatory[box]}"
        for box in told.wrong(certified).tolist()
    ]
    share = (proof.fair + proof.discriminatory) / proof.people
    assert proof.state is not None
    records, contradicted = _contradicted(Evidence(problem, proof.state), truth, _drawn(case.domain, LOOKED_AT, seed))
    wrong += [f"what it says about record {row} is false" for row in contradicted.tolist()]
    return Claims(case.name, len(certified), tuple(wrong), len(told.rounded(certified)), share, records)


def _drawn(domain: TableDomain, count: int, seed: int) -> Tensor:
    return domain.sample(count, torch.Generator().manual_seed(seed))


def _guides(problem: Problem, domain: TableDomain, seed: int) -> GuideSource:
    rows = places_of(problem, _drawn(domain, GUIDES, seed + 1))
    return GuideSource(rows, lambda count, other: places_of(problem, _drawn(domain, count, seed + 2 + other)))


def _contradicted(evidence: Evidence, truth: Truth, rows: Tensor) -> tuple[int, Tensor]:
    """Return about how many records, guides included, a proof says something, and the rows that it is wrong about."""
    status = evidence.status_of(places_of(evidence.problem, rows))
    family = truth.place(rows)
    flips, close = truth.flips[family], truth.close[family]
    wrong = (((status == FAIR) & flips) | ((status == FLIPS) & ~flips)) & ~close
    return int(((status == FAIR) | (status == FLIPS)).sum()), rows[wrong]
