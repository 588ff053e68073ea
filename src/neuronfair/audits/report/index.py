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

    name: str  # also of its folder
    model: str  # as the file says; empty: trained on the spot
    data: str
    sensitive: str
    state: State  # failed: a limit fired; no limits: none was set
    error: str | None = None  # why it ended early, or why its limits could not be judged
    level: Level | None = None
    verdict: str = ""  # in a sentence or two
    attribute: str = ""  # of which the figures speak
    rate: RateOf | None = None  # of the people one has: those of the table
    random: RateOf | None = None  # of people drawn uniformly from the domain
    counterpart: Interval | None = None  # the effect that counterparts show; null where none is claimed
    gap: float | None = None  # the widest between a person and a twin: of probabilities, or else of scores
    gap_of: Literal["probabilities", "scores"] = "probabilities"
    fired: tuple[str, ...] = ()  # limits, in words
    seconds: float = 0.0
    page: str | None = None  # relative to the index


@dataclass(frozen=True)
class AuditIndex:
    """Many audits."""

    neuronfair: str  # version of the package
    file: str  # that names them
    audits: tuple[AuditLine, ...]
    seconds: float  # of the whole, those done before not counted
    schema: int = SCHEMA

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
