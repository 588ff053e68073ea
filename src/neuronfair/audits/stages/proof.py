"""The certification stage: for which records it is proved that the decision does, or does not, depend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neuronfair.audits.report.attribute import Proved
from neuronfair.audits.stages.case import AttributeAudit, AttributeCase
from neuronfair.domain.population.model import PopulationModel
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import Unprovable, one_line
from neuronfair.model.open import Opened
from neuronfair.progress import Progress
from neuronfair.proof.evidence import EvaluatedPeople
from neuronfair.proof.problem import problem_of
from neuronfair.proof.records import ProofRecords
from neuronfair.proof.session import certify


def add_proof(case: AttributeCase, audit: AttributeAudit, opened: Opened, seconds: float, progress: Progress) -> None:
    """Prove what can be proved in so many seconds. Ctrl-C ends the proof, and what was proved by then is kept."""
    findings = [
        EvaluatedPeople(f"found by {o.config.method}", o.findings.rows)
        for o in audit.outcomes
        if o.config.twins == "flip"
    ]
    proved, interrupted = proof_of(opened, case.data, seconds, progress, findings, case.population)
    audit.report = replace(audit.report, proved=proved)
    if interrupted:
        raise KeyboardInterrupt


def proof_of(
    opened: Opened,
    data: Dataset,
    seconds: float,
    progress: Progress,
    seen: Sequence[EvaluatedPeople] = (),
    population: PopulationModel | None = None,
    *,
    has_table: bool = True,
) -> tuple[Proved, bool]:
    """Return what can be proved about a data set in so many seconds, and whether Ctrl-C ended the proof.

    A proof that a record contradicts, of the data set or of those `seen` elsewhere, is an error.
    """
    progress("Proving", 0, None)
    try:
        problem = problem_of(opened, data.domain, device=opened.model.encoding.device)
        records = ProofRecords.of(problem, data, population) if has_table else ProofRecords.none(problem, data.name)
        records = replace(records, most_regions=0)  # an audit does not show them
        report = certify(problem, opened, records, seconds, show=progress, seen=seen)
    except Unprovable as error:
        return Proved.nothing(data.domain.count, one_line(error)), False
    return Proved.of(report), report.interrupted
