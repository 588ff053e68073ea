"""The third leg of a verdict: for how many people it is proved that the decision does, or does not, flip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from neuronfair.audits.report.proved import Method, Proved
from neuronfair.audits.stages.case import AttributeAudit, AttributeCase
from neuronfair.domain.table import TableDomain
from neuronfair.errors import Unprovable, one_line
from neuronfair.formatting import percent
from neuronfair.model.open import Opened
from neuronfair.progress import Progress
from neuronfair.proof.decide.contradictions import EvaluatedPeople, check_against_model
from neuronfair.proof.decide.prove import ProofProgress as Step
from neuronfair.proof.decide.prove import prove
from neuronfair.proof.problem import problem_of


def add_proof(case: AttributeCase, audit: AttributeAudit, opened: Opened, seconds: float, progress: Progress) -> None:
    """Prove what can be proved in so many seconds. Ctrl-C ends the proof, and what was proved by then is kept."""
    findings = [
        EvaluatedPeople(f"found by {o.config.method}", o.findings.rows)
        for o in audit.outcomes
        if o.config.twins == "flip"
    ]
    seen = [*findings, EvaluatedPeople("a row of the table", case.data.rows)]
    proved, interrupted = proof_of(opened, case.domain, seconds, progress, seen)
    audit.report = replace(audit.report, proved=proved)
    if interrupted:
        raise KeyboardInterrupt


def proof_of(
    opened: Opened, domain: TableDomain, seconds: float, progress: Progress, seen: Sequence[EvaluatedPeople]
) -> tuple[Proved, bool]:
    """Return what can be proved in so many seconds, and whether Ctrl-C ended the proof.

    A proof that somebody who was seen contradicts is an error.
    """

    def note(now: Step) -> None:
        progress("Proving", now.boxes, None, f"{percent(now.undecided)} undecided")

    progress("Proving", 0, None)
    try:
        problem = problem_of(opened, domain, device=opened.model.encoding.device)
        proof = prove(problem, seconds=seconds, progress=note)
    except Unprovable as error:
        return Proved.nothing(domain.count, one_line(error)), False
    progress("Checking the proof against the model", 0, None)
    check_against_model(problem, proof, opened, seen)
    counts = (proof.people, proof.fair, proof.discriminatory)
    method = cast(Method, problem.method)
    return Proved.of(counts, domain.sensitive, proof.boxes, proof.seconds, method), proof.interrupted
