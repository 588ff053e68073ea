"""The certification stage: for which records it is proved that the decision does, or does not, depend."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from neuronfair.audits.report.attribute import Proved
from neuronfair.audits.stages.case import AttributeAudit
from neuronfair.domain.population.model import PopulationModel
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import Unprovable, one_line
from neuronfair.model.open import Opened
from neuronfair.progress import Progress, silent
from neuronfair.proof.certificate import Proof
from neuronfair.proof.problem import Problem, problem_of
from neuronfair.proof.records import EvaluatedPeople, ProofRecords, check_against_model
from neuronfair.proof.session import certified


@dataclass(frozen=True)
class StagedProof:
    """What was proved, and the proof itself, against which later findings are checked; None where nothing was."""

    proved: Proved
    proof: Proof | None = None
    interrupted: bool = False


@dataclass(frozen=True)
class ProofStage:
    """The proof of an audit: `prove` needs no other stage, `report` checks it against what the searches found."""

    opened: Opened
    data: Dataset
    population: PopulationModel | None
    seconds: float

    @cached_property
    def _problem(self) -> Problem:
        return problem_of(self.opened, self.data.domain, device=self.opened.model.encoding.device)

    def prove(self, progress: Progress = silent, *, has_table: bool = True) -> StagedProof:
        """Return what can be proved. Ctrl-C ends the proof, and what was proved by then is kept.

        A proof that a record of the data set contradicts is an error.
        """
        progress("Proving", 0, None)
        try:
            problem, data = self._problem, self.data
            records = (
                ProofRecords.of(problem, data, self.population) if has_table else ProofRecords.none(problem, data.name)
            )
            records = replace(records, most_regions=0)  # an audit does not show them
            report, proof = certified(problem, self.opened, records, self.seconds, show=progress)
        except Unprovable as error:
            return StagedProof(Proved.nothing(self.data.domain.count, one_line(error)))
        return StagedProof(Proved.of(report), proof, report.interrupted)

    def report(self, audit: AttributeAudit, staged: StagedProof) -> None:
        """Add what was proved to the report. A proof that a finding contradicts is an error."""
        found = [
            EvaluatedPeople(f"found by {o.config.method}", o.findings.rows)
            for o in audit.outcomes
            if o.config.twins == "flip"
        ]
        if found and staged.proof is not None:
            check_against_model(self._problem, staged.proof, self.opened, found, drawn=False)
        audit.report = replace(audit.report, proved=staged.proved)
        if staged.interrupted:
            raise KeyboardInterrupt
