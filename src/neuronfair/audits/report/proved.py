"""What is proved about one choice of sensitive attributes. The comments behind the fields are their documentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from neuronfair.formatting import duration, listed, many, percent, plain
from neuronfair.proof.report import Part

Method = Literal["bounds of a network", "bounds of trees", "enumeration", "attribute not given"]


@dataclass(frozen=True)
class Proved:
    """For how many people of the domain it is proved that the decision does, or does not, flip."""

    people: str  # of the domain, exactly: everybody that it allows
    proved_fair: Part  # no twin is decided otherwise
    proved_discriminatory: Part  # some twin is decided otherwise
    open: Part  # of whom nothing is proved
    boxes: int  # into which the people were put
    seconds: float
    complete: bool  # whether nobody is left open
    method: Method | None  # null where nothing can be proved
    reason: str  # why nothing can be proved; else empty
    sentence: str

    @property
    def parts(self) -> tuple[tuple[str, Part], ...]:
        """The people in three parts, as they are shown from left to right, each with its name."""
        return (
            ("proved fair", self.proved_fair),
            ("open", self.open),
            ("proved discriminatory", self.proved_discriminatory),
        )

    @staticmethod
    def of(
        counts: tuple[int, int, int], sensitive: Sequence[str], boxes: int, seconds: float, method: Method
    ) -> Proved:
        """Return what is proved of people: how many there are, are decided alike, and are not."""
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
            sentence=_sentence(parts, people, sensitive, seconds),
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


def _sentence(parts: Sequence[Part], people: int, sensitive: Sequence[str], seconds: float) -> str:
    fair, unfair, rest = ("" if part.count == "0" else percent(part.share) for part in parts)
    who, what = f"all {many(people)} people of the domain", listed([plain(name) for name in sensitive])
    does, they = ("do", "they") if len(sensitive) > 1 else ("does", "it")
    claim = (
        f"{what} {does} not change the decision" if fair else f"{what} change{'s' if they == 'it' else ''} the decision"
    )
    if not fair and not unfair:
        return f"Of {who} nothing was proved in {duration(seconds)}."
    if not rest and not (fair and unfair):
        return f"For {who} it is proved that {claim}."
    first = f"For {fair or unfair} of {who} it is proved that {claim}"
    if not rest:
        return f"{first}; for the other {unfair} that {they} {does}."
    others = unfair if fair and unfair else "nobody"
    return f"{first}; for {others} that {they} {does}{'' if fair else ' not'}; {rest} is open."
