"""One proof about a planted model, held against the truth."""

from __future__ import annotations

import random
from dataclasses import dataclass
from unittest.mock import patch

from neuronfair.proof.decide import prove as proving
from neuronfair.proof.decide.prove import ProofProgress, prove
from neuronfair.proof.problem import problem_of

from .certified_boxes import truth_of
from .everybody import everybody
from .planted import planted


@dataclass(frozen=True)
class Claims:
    """How many boxes a proof has, which are wrong, and how many are other than the model's own rounding."""

    name: str
    boxes: int
    wrong: tuple[str, ...]
    rounded: int
    share: float  # of people who are decided

    @property
    def kind(self) -> str:
        """What kind of model it is about."""
        return self.name.partition(" ")[0]


def held(seed: int, *, kind: str | None = None, people: int = 50_000, steps: int = 30) -> Claims:
    """Return what a proof of a few steps about a planted model claims, and what of it is wrong.

    In some of them everybody is asked in large boxes, in others in hardly any, so that bounds must do it.
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
    with patch.object(proving, "SMALL", draw.choice((1, 1, 8, 512))):
        proof = prove(problem, seconds=600, progress=stop)
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
    return Claims(case.name, len(certified), tuple(wrong), len(told.rounded(certified)), share)
