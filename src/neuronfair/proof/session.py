"""A whole proof: prove, check it against the model, report; also in a folder that survives a kill."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from neuronfair.atomic import replace_file
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import DomainError
from neuronfair.formatting import percent
from neuronfair.limits import check_size
from neuronfair.model.decision import Decision
from neuronfair.model.open import OpenedModel
from neuronfair.proof.certificate import (
    AxisCodes,
    Certificate,
    Proof,
    ProofReport,
    RowShare,
    fingerprint_model,
    write_certificate,
)
from neuronfair.proof.distributed import prove_together, recover_state
from neuronfair.proof.problem import ProofProblem, build_problem
from neuronfair.proof.prove import ProofProgress, prove
from neuronfair.proof.records import EvaluatedRecords, Evidence, Order, ProofRecords, check_against_model
from neuronfair.proof.regions import find_largest_regions
from neuronfair.proof.state import ProofState, check_state
from neuronfair.scale.pool import Pool
from neuronfair.store.files import load_state, save_state, seal, writing
from neuronfair.store.ledger import PROOF, Ledger, make_manifest

CERTIFICATE, METRICS = "certificate.parquet", "proof.json"  # made of the last state: no line names them
SHARDS = "shards"  # what pieces of the last state have done since, while several workers prove

ShowProgress = Callable[[str, int, int | None, str], None]  # what is done, how far, of how much, and a note


@dataclass(frozen=True)
class ProofRequest:
    """What must be the same when a proof resumes; it may be given more time."""

    decision: Decision
    where: str = ""
    seed: int = 0
    order: Order = "records"


@dataclass(frozen=True)
class ProofRun:
    """An open folder of a proof, which resumes from its last state."""

    ledger: Ledger

    @staticmethod
    def create_or_open(folder: Path, data: Dataset, request: ProofRequest, **model: object) -> ProofRun:
        """Make the folder of a proof, or open the one that is there if it belongs to the same request."""
        manifest = {**make_manifest(request, data, **model), "kind": "proof"}  # type: ignore[arg-type]
        run = ProofRun(Ledger.create_or_open(folder, manifest, data.domain, "proof"))
        if not run.ledger.lines:
            run.ledger.begin_with({})
        return run

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self.ledger.folder

    def find_report(self, seconds: float) -> ProofReport | None:
        """Return the report of a proof of as many seconds, or with nothing undecided; None if there is none."""
        summary = self.ledger.summary if (self.folder / CERTIFICATE).is_file() else None
        if summary is None:
            return None
        report = ProofReport.from_json(json.dumps(summary["report"]), self.folder)
        return report if report.complete or summary["seconds"] >= seconds else None

    def state(self, device: torch.device) -> ProofState | None:
        """Return where the proof stood."""
        parts = self.ledger.journal.parts[PROOF]
        if not parts:
            return None
        last = parts[-1]
        path = self.ledger.path(last["state"])
        check_size(path.stat().st_size, path, times=2)
        tensors = load_state(path, device)
        return recover_state(ProofState.of(tensors, last["boxes"], last["seconds"]), self._pieces_folder)

    def keep(self, state: ProofState) -> Path:
        """Keep where the proof stands, and return the folder in which pieces of it may keep theirs."""
        entry = {"boxes": state.boxes, "seconds": state.seconds}
        self.ledger.part(PROOF, entry, {"state": partial(save_state, state.tensors)})
        shutil.rmtree(self.folder / SHARDS, ignore_errors=True)  # a lost worker may still write there; it is never read
        return self._pieces_folder

    @property
    def _pieces_folder(self) -> Path:
        """Where pieces of the last state keep theirs: no other state has such a name."""
        last = self.ledger.journal.parts[PROOF][-1]
        return self.folder / SHARDS / f"{Path(last['state']).stem}-{last['crc32']['state']:08x}"

    def write(self, problem: ProofProblem, model: OpenedModel, proof: Proof, report: ProofReport) -> None:
        """Write the certificate and the metrics, which the last state could give again."""
        names = problem.domain.names
        axes = tuple(AxisCodes.of(axis, names[axis.column]) for axis in problem.space.axes)
        fingerprint = fingerprint_model(model.fingerprint, model.module)
        certificate = Certificate(problem.domain, problem.decision, problem.condition, fingerprint, axes, proof)
        with writing(self.folder):
            write_certificate(self.folder / CERTIFICATE, certificate)
            with replace_file(self.folder / METRICS) as temporary:
                temporary.write_bytes(seal(asdict(report)))


def build_region_problem(model: OpenedModel, domain: TableDomain, where: str, device: str) -> ProofProblem:
    """Return a model ready for a proof about a region; one without records is refused."""
    problem = build_problem(model, domain, condition=where, device=device)
    if problem.count == 0:
        raise DomainError(f"where '{where}': the rules of the domain allow no such person")
    return problem


def certify(
    problem: ProofProblem,
    model: OpenedModel,
    records: ProofRecords,
    seconds: float,
    *,
    show: ShowProgress,
    run: ProofRun | None = None,
    pool: Pool | None = None,
    evaluated: Sequence[EvaluatedRecords] = (),
) -> tuple[ProofReport, Proof]:
    """Prove what can be proved in the time given, check it against the model, and return the report and the proof.

    With a `run` the proof is kept in its folder and resumes from its last state. The workers of a `pool` prove
    together. The check includes the rows of the data set and records that were `evaluated` elsewhere. Ctrl-C ends the
    proof with what is proved.
    """
    state = None if run is None else run.state(problem.device)
    if state is not None and run is not None:
        check_state(problem, state, run.folder)
    proof = (prove if pool is None else partial(prove_together, pool=pool))(
        problem,
        seconds=seconds,
        state=state,
        progress=lambda now: show("Proving", round(now.seconds), round(seconds), _describe_progress(now)),
        keep=None if run is None else run.keep,
        guides=records.guides,
    )
    show("Checking against the model", 0, None, "")
    check_against_model(problem, proof, model, [*evaluated, EvaluatedRecords("a row of the data set", records.rows)])
    report = _report_proof(problem, model, records, proof, seconds)
    if run is not None:
        run.write(problem, model, proof, report)
        if not report.interrupted:
            run.ledger.finish({"seconds": seconds, "report": asdict(report)})
    return report, proof


def _report_proof(
    problem: ProofProblem, model: OpenedModel, records: ProofRecords, proof: Proof, seconds: float
) -> ProofReport:
    assert proof.state is not None
    evidence = Evidence(problem, proof.state)
    return ProofReport(
        data=records.name,
        model=model.fingerprint,
        sensitive=problem.domain.sensitive,
        where=problem.condition,
        decision=problem.decision,
        people=RowShare.of(proof.record_count, problem.domain.count),
        proved_fair=RowShare.of(proof.fair, proof.record_count),
        proved_discriminatory=RowShare.of(proof.discriminatory, proof.record_count),
        undecided=RowShare.of(proof.undecided, proof.record_count),
        boxes=proof.boxes,
        seconds=proof.seconds,
        complete=proof.complete,
        method=problem.method,
        interrupted=proof.state.undecided_count > 0 and proof.state.seconds < seconds,
        order=records.order,
        data_set=records.find_claims(evidence, model),
        fresh=records.find_fresh_claims(evidence),
        regions=tuple(find_largest_regions(records, evidence)),
    )


def _describe_progress(progress: ProofProgress) -> str:
    parts = {"fair": progress.fair, "discriminatory": progress.discriminatory, "undecided": progress.undecided}
    rows = "" if progress.rows is None else f"{percent(progress.rows)} of the rows decided; input space: "
    return f"{rows}{', '.join(f'{percent(share)} {name}' for name, share in parts.items())}; {progress.boxes:,} boxes"
