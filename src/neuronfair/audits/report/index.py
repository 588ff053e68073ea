"""Many audits side by side: a line for each, for the page, the terminal and index.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from neuronfair.audits.report.attribute import AttributeReport, Level
from neuronfair.audits.report.counterfactual import Interval
from neuronfair.audits.report.rates import RateOf
from neuronfair.audits.report.report import SCHEMA, Report

State = Literal["passed", "failed", "no limits", "error", "not finished"]


@dataclass(frozen=True)
class AuditLine:
    """One audit in short. The figures are those of its worst choice of sensitive attributes."""

    name: str  # of the audit, and of its folder
    model: str  # as in the file; empty: trained on the spot
    data: str  # as in the file
    sensitive: str  # sensitive attributes
    state: State  # failed: a threshold failed; no limits: none was set
    error: str | None = None  # why it ended early, or why its thresholds could not be evaluated
    level: Level | None = None  # level of the verdict
    verdict: str = ""  # the verdict in words
    attribute: str = ""  # the attribute to which the metrics belong
    rate: RateOf | None = None  # flip rate in the data set
    random: RateOf | None = None  # flip rate of uniformly drawn records
    counterpart: Interval | None = None  # excess flip rate of the counterfactual test; null if none is claimed
    gap: float | None = None  # widest gap between a record and a twin
    gap_of: Literal["probabilities", "scores"] = "probabilities"  # what the gap is measured in
    fired: tuple[str, ...] = ()  # thresholds that failed, in words
    seconds: float = 0.0  # time spent
    page: str | None = None  # path of the report, relative to the index


@dataclass(frozen=True)
class AuditIndex:
    """Many audits."""

    neuronfair: str  # version of the package
    file: str  # the file that names the audits
    audits: tuple[AuditLine, ...]  # one entry for each audit
    seconds: float  # time of this command; finished audits do not count
    schema: int = SCHEMA  # raised when an entry changes its meaning

    def count(self, *states: State) -> int:
        """Return how many audits are in one of these states."""
        return sum(line.state in states for line in self.audits)


def worst_of(attributes: Sequence[AttributeReport]) -> AttributeReport:
    """Return the sensitive attributes of which the verdict speaks: with the highest flip rate in the data set.

    Where that is equal the highest flip rate of synthetic records decides, then the largest counterfactual effect.
    """

    def rank(one: AttributeReport) -> tuple[float, float, float]:
        return max((rate.rate for rate in one.data_set_rates[:1]), default=0.0), one.rates.largest, _effect(one)

    return max(attributes, key=rank)


def line_of(line: AuditLine, report: Report, page: str) -> AuditLine:
    """Return the line of an audit with what its report says; an error that is known stays."""
    state: State = "no limits" if report.gate is None else "passed" if report.gate.passed else "failed"
    known = replace(
        line,
        state="not finished" if report.reproduction.interrupted else "error" if line.error is not None else state,
        level=report.verdict.level,
        verdict=report.verdict.text,
        fired=tuple(check.text for check in report.gate.checks if check.fired) if report.gate is not None else (),
        seconds=report.seconds.total,
        page=page,
    )
    if not report.attributes:
        return known
    one = worst_of(report.attributes)
    gaps, claimed = one.probability_gaps or one.severity, one.counterpart is not None and one.counterpart.claimed
    return replace(
        known,
        attribute=one.name,
        rate=next(iter(one.rates.measured), None),
        random=one.rates.domain,
        counterpart=one.counterpart.effect if one.counterpart is not None and claimed else None,
        gap=None if gaps is None else gaps.max,
        gap_of="scores" if one.probability_gaps is None else "probabilities",
    )


def _effect(attribute: AttributeReport) -> float:
    found = attribute.counterpart
    return found.effect.rate if found is not None and found.claimed else 0.0
