"""The third leg of a verdict: for how many people it is proved that the decision does, or does not, flip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from neuronfair.audits.report.proved import Method, Proved
from neuronfair.audits.report.rates import RateOf
from neuronfair.audits.stages.case import AttributeAudit, AttributeCase
from neuronfair.domain.table import TableDomain
from neuronfair.errors import one_line
from neuronfair.formatting import percent
from neuronfair.model.open import Opened
from neuronfair.progress import Progress
from neuronfair.proof.bounds.lines import Unprovable
from neuronfair.proof.decide.contradictions import EvaluatedPeople, check_against_model
from neuronfair.proof.decide.prove import ProofProgress as Step
from neuronfair.proof.decide.prove import prove
from neuronfair.proof.decide.strata import StrataRate, strata_rate
from neuronfair.proof.problem import Problem, problem_of
from neuronfair.proof.report import Part
from neuronfair.proof.result import Proof


def prove_and_sample(
    case: AttributeCase, audit: AttributeAudit, opened: Opened, seconds: float, progress: Progress
) -> None:
    """Prove what can be proved in so many seconds, then sample the rest: the rate of the domain is at least as exact.

    Ctrl-C ends the proof, and what was proved by then is kept.
    """
    findings = [
        EvaluatedPeople(f"found by {o.config.method}", o.findings.rows)
        for o in audit.outcomes
        if o.config.twins == "flip"
    ]
    seen = [*findings, EvaluatedPeople("a row of the table", case.data.rows)]
    proved, found = proof_of(opened, case.domain, seconds, progress, seen)
    audit.report = replace(audit.report, proved=proved)
    if found is None:
        return
    subject, proof = found
    if proof.interrupted:
        raise KeyboardInterrupt
    rate = strata_rate(
        case.exact,
        subject,
        proof,
        samples=case.samples,
        confidence=case.confidence,
        seed=case.seed + 2,
        progress=lambda done, total: progress("Judging people who are not proved", done, total),
    )
    audit.report = replace(audit.report, rates=replace(audit.report.rates, domain=_rate_of(rate, case.confidence)))


def proof_of(
    opened: Opened, domain: TableDomain, seconds: float, progress: Progress, seen: Sequence[EvaluatedPeople]
) -> tuple[Proved, tuple[Problem, Proof] | None]:
    """Return what can be proved in so many seconds, and the proof; None where nothing can be.

    A proof that somebody who was seen contradicts is an error.
    """

    def note(now: Step) -> None:
        progress("Proving", now.boxes, None, f"{percent(now.open)} open")

    progress("Proving", 0, None)
    try:
        subject = problem_of(opened, domain, device=opened.model.encoding.device)
        proof = prove(subject, seconds=seconds, progress=note)
    except Unprovable as error:
        return Proved.nothing(domain.count, one_line(error)), None
    progress("Checking the proof against the model", 0, None)
    check_against_model(subject, proof, opened, seen)
    counts = (proof.people, proof.fair, proof.discriminatory)
    method = cast(Method, subject.method)
    return Proved.of(counts, domain.sensitive, proof.boxes, proof.seconds, method), (subject, proof)


def _rate_of(rate: StrataRate, confidence: float) -> RateOf:
    """Return a rate of which a part is proved as plain values."""
    sampled, found = (rate.sample.sampled, rate.sample.found) if rate.sample is not None else (0, 0)
    part = Part.of(rate.left, rate.people).share * rate.part
    return RateOf("domain", rate.rate, *rate.interval, sampled, found, confidence, part)
