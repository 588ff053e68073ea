"""What is proved about one choice of sensitive attributes. The comments behind the fields are their documentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from neuronfair.formatting import duration, listed, percent, plain
from neuronfair.proof.report import Part

Method = Literal["bounds of a network", "bounds of trees", "enumeration", "attribute not given"]


@dataclass(frozen=True)
class Proved:
    """For how many people of the domain it is proved that the decision does, or does not, flip."""

    people: str  # records in the declared input space, exactly
    proved_fair: Part  # certified: every twin gets the same decision
    proved_discriminatory: Part  # certified to depend: some twin gets a different decision
    open: Part  # undecided: nothing is proved
    boxes: int  # boxes into which the input space was cut
    seconds: float  # time spent
    complete: bool  # whether nothing is undecided
    method: Method | None  # null if nothing can be proved
    reason: str  # why nothing can be proved; else empty
    sentence: str  # the same as a sentence

    @property
    def parts(self) -> tuple[tuple[str, Part], ...]:
        """The people in three parts, as they are shown from left to right, each with its name."""
        return (
            ("certified", self.proved_fair),
            ("undecided", self.open),
            ("certified to depend", self.proved_discriminatory),
        )

    @staticmethod
    def of(
        counts: tuple[int, int, int], sensitive: Sequence[str], boxes: int, seconds: float, method: Method
    ) -> Proved:
        """Return what is proved of people: how many there are, get the same decision as all twins, and do not."""
        people, fair, unfair = counts
        left = people - fair - unfair
        return Proved(
            str(people),
            *(parts := (Part.of(fair, people), Part.of(unfair, people), Part.of(left, people))),
            boxes=boxes,
            seconds=seconds,
            complete=left == 0,
            method=method,
            reason="",
            sentence=_sentence(parts, sensitive, seconds),
        )

    @staticmethod
    def nothing(people: int, reason: str) -> Proved:
        """Return that nothing can be proved, and why."""
        nobody = Part.of(0, people)
        return Proved(
            str(people),
            *(nobody, nobody, Part.of(people, people)),
            boxes=0,
            seconds=0.0,
            complete=False,
            method=None,
            reason=reason,
            sentence=f"No proof: {reason.rstrip('.')}.",
        )


def _sentence(parts: Sequence[Part], sensitive: Sequence[str], seconds: float) -> str:
    fair, unfair, rest = ("" if part.count == "0" else percent(part.share) for part in parts)
    what, space = listed([plain(name) for name in sensitive]), "the declared input space"
    if not fair and not unfair:
        return f"No decision was certified in {duration(seconds)}, for any part of {space}."
    if not rest and not (fair and unfair):
        return f"Certified for all of {space}: decisions {'do not ' if fair else ''}depend on {what}."
    claims = [f"not to depend on {what} for {fair} of {space}"] if fair else []
    claims += [f"to depend on {'it' if fair else what} for {unfair}{'' if fair else f' of {space}'}"] if unfair else []
    return f"Decisions are certified {', and '.join(claims)}{f'; {rest} is undecided' if rest else ''}."
