"""What is proved about one choice of sensitive attributes. The comments behind the fields are their documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from neuronfair.formatting import duration, listed, percent, plain, plural
from neuronfair.proof.report import DataSetClaims, FreshClaims, Part, ProofReport

ProofMethod = Literal["bounds of a network", "bounds of trees", "enumeration", "attribute not given"]


@dataclass(frozen=True)
class Proved:
    """For which records it is proved that the decision does, or does not, depend on the sensitive attributes."""

    people: str  # records in the declared input space, exactly
    proved_fair: Part  # certified: every twin gets the same decision
    proved_discriminatory: Part  # certified to depend: some twin gets a different decision
    open: Part  # undecided: nothing is proved
    boxes: int  # boxes into which the input space was cut
    seconds: float  # time spent
    complete: bool  # whether nothing is undecided
    method: ProofMethod | None  # null if nothing can be proved
    reason: str  # why nothing can be proved; else empty
    sentence: str  # the same as a sentence
    data_set: DataSetClaims | None = None  # rows of the data set; null without a data set
    fresh: FreshClaims | None = None  # realistic synthetic records, drawn after the proof; null without a population

    @property
    def parts(self) -> tuple[tuple[str, Part], ...]:
        """The input space in three parts, as they are shown from left to right, each with its name."""
        return (
            ("certified", self.proved_fair),
            ("undecided", self.open),
            ("certified to depend", self.proved_discriminatory),
        )

    @property
    def certified_share(self) -> float:
        """The certified share of the data set's rows, or of the input space without a data set."""
        return (self.data_set.certified_fair if self.data_set else self.proved_fair).share

    @staticmethod
    def of(report: ProofReport) -> Proved:
        """Return what a proof has proved."""
        return Proved(
            report.people.count,
            report.proved_fair,
            report.proved_discriminatory,
            report.open,
            boxes=report.boxes,
            seconds=report.seconds,
            complete=report.complete,
            method=cast(ProofMethod, report.method),
            reason="",
            sentence=_sentence(report),
            data_set=report.data_set,
            fresh=report.fresh,
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


def _sentence(report: ProofReport) -> str:
    parts = (report.proved_fair, report.proved_discriminatory, report.open)
    fair, unfair, rest = ("" if part.count == "0" else percent(part.share) for part in parts)
    what, space = listed([plain(name) for name in report.sensitive]), "the declared input space"
    if fair and not unfair and not rest:
        return f"Certified for all of {space}: decisions do not depend on {what}."
    if unfair and not fair and not rest:
        return f"Certified for all of {space}: decisions depend on {what}."
    if report.data_set is not None:
        return _of_rows(report.data_set, what, report.seconds)
    if not fair and not unfair:
        return f"No decision was certified in {duration(report.seconds)}, for any part of {space}."
    claims = [f"not to depend on {what} for {fair} of {space}"] if fair else []
    claims += [f"to depend on {'it' if fair else what} for {unfair}{'' if fair else f' of {space}'}"] if unfair else []
    return f"Decisions are certified {', and '.join(claims)}{f'; {rest} is undecided' if rest else ''}."


def _of_rows(rows: DataSetClaims, what: str, seconds: float) -> str:
    fair, unfair, rest = rows.certified_fair, rows.certified_discriminatory, rows.undecided
    people = plural(rows.of, "record")
    if not fair.count and not unfair.count:
        return f"No decision was certified in {duration(seconds)}, for any of {people} in the data set."
    depends = f", and to depend on it for {percent(unfair.share)}" if unfair.count else ""
    left = f"; {percent(rest.share)} are undecided" if rest.count else ""
    return (
        f"Decisions are certified not to depend on {what} for {percent(fair.share)} of {people} in the data set, and "
        f"for the region around each{depends}{left}."
    )
