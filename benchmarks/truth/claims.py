"""One proof about a planted model, held against the truth."""

from __future__ import annotations

from dataclasses import dataclass

from neuronfair.certify.proof import Proof
from neuronfair.certify.prove import prove
from neuronfair.certify.subject import subject_of

from .everybody import everybody
from .leaves import truth_of
from .planted import planted


@dataclass(frozen=True)
class Claims:
    """How many boxes a proof has, which are wrong, and how many only rounding could decide."""

    kind: str
    name: str
    boxes: int
    wrong: tuple[str, ...]
    unsure: int
    share: float  # of people who are decided


def held(seed: int, *, kind: str | None = None, seconds: float = 0.05, people: int = 20_000) -> Claims:
    """Return what a short proof about a planted model claims, and what of it is wrong."""
    case = planted(seed, kind=kind, people=people)
    truth = everybody(case.asked, case.domain, case.decision, doubt=case.doubt)
    subject = subject_of(case.opened, case.domain, decision=case.decision)
    proof = prove(subject, seconds=seconds)
    told = truth_of(proof.leaves, subject.space, truth)
    wrong = []
    if not told.covered:
        wrong.append("its boxes do not cover the domain once")
    if not proof.people == truth.people == case.domain.count:
        wrong.append(f"{proof.people} people instead of {truth.people}")
    for box in told.wrong(proof.leaves).tolist():
        claim, true = (proof.leaves.fair[box], proof.leaves.discriminatory[box]), (told.fair, told.discriminatory)
        wrong.append(f"box {box} claims {claim}, truth {tuple(int(t[box]) for t in true)}, close {told.close[box]}")
    share = _share(proof)
    return Claims(case.name.partition(" ")[0], case.name, len(proof.leaves), tuple(wrong), len(told.unsure(proof.leaves)), share)


def _share(proof: Proof) -> float:
    return (proof.fair + proof.discriminatory) / proof.people
