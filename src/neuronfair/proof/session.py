"""The whole of a proof: the domain or a region, the rows of the table, short rules, and the files that are left."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from neuronfair.atomic import replacing
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import DomainError
from neuronfair.formatting import percent
from neuronfair.model.open import Opened
from neuronfair.proof.boxes.leaves import check_state
from neuronfair.proof.certificate import AxisCodes, Certificate, known_by, write
from neuronfair.proof.decide.contradictions import EvaluatedPeople, check_against_model
from neuronfair.proof.decide.distributed import prove_together
from neuronfair.proof.decide.prove import ProofProgress, prove
from neuronfair.proof.decide.queue import State
from neuronfair.proof.decide.regions import regions
from neuronfair.proof.decide.rows import certified
from neuronfair.proof.problem import Problem, problem_of
from neuronfair.proof.report import Part, ProofReport, RegionReport, RowsReport
from neuronfair.proof.result import Proof
from neuronfair.proof.run import CERTIFICATE, FIGURES, ProofRun
from neuronfair.scale.pool import Pool
from neuronfair.store.files import writing
from neuronfair.store.sealed_json import seal

MORE = 0.1  # of the seconds come on top for the rows of the table, and as much for short rules

Show = Callable[[str, int, int | None, str], None]  # what is done, how far, of how much, and a note


@dataclass(frozen=True)
class Effort:
    """How much is done for a proof."""

    seconds: float = 60.0
    rows: int = 200  # of the table, whose neighbours are looked at


def asked_about(opened: Opened, domain: TableDomain, where: str, device: str) -> Problem:
    """Return a model ready for a proof about a region; one in which there is nobody is refused."""
    subject = problem_of(opened, domain, where=where, device=device)
    if subject.count == 0:
        raise DomainError(f"where '{where}': the rules of the domain allow no such person")
    return subject


def finished(run: ProofRun, effort: Effort) -> ProofReport | None:
    """Return what a folder holds already, if it was made with as much effort or nothing is left to do."""
    before = run.result()
    if before is None or before["rows"] != effort.rows:
        return None
    report = ProofReport.from_json(json.dumps(before["report"]), run.folder)
    return report if report.complete or before["seconds"] >= effort.seconds else None


def answer(
    subject: Problem,
    opened: Opened,
    data: Dataset,
    effort: Effort,
    *,
    show: Show,
    run: ProofRun | None = None,
    pool: Pool | None = None,
) -> ProofReport:
    """Prove what can be proved in the time given, and keep it in a folder, where a proof goes on from its last state.

    The workers of a pool prove together. Ctrl-C ends it with what is proved.
    """
    last: list[State] = []

    def keep(state: State) -> Path | None:
        last[:] = [state]
        return None if run is None else run.keep(state)

    before = None if run is None else run.state(subject.device)
    if before is not None and run is not None:
        check_state(subject, before, run.folder)
    proof = (prove if pool is None else partial(prove_together, pool=pool))(
        subject,
        seconds=effort.seconds,
        state=before,
        progress=lambda told: show("Proving", round(told.seconds), round(effort.seconds), _said(told)),
        keep=keep,
    )
    show("Checking against the model", 0, None, "")
    check_against_model(subject, proof, opened, [EvaluatedPeople("a row of the table", data.rows)])
    interrupted = last[0].left > 0 and last[0].seconds < effort.seconds
    rows: RowsReport | None = None
    found: tuple[RegionReport, ...] = ()
    if not interrupted:
        try:
            rows = _rows(subject, opened, data, effort, show)
            found = _regions(subject, proof, effort)
        except KeyboardInterrupt:  # the proof stands; the same command goes on with what comes behind it
            interrupted = True
    report = ProofReport(
        data=data.name,
        model=opened.fingerprint,
        sensitive=data.domain.sensitive,
        where=subject.where,
        decision=subject.decision,
        people=Part.of(proof.people, data.domain.count),
        proved_fair=Part.of(proof.fair, proof.people),
        proved_discriminatory=Part.of(proof.discriminatory, proof.people),
        open=Part.of(proof.open, proof.people),
        boxes=proof.boxes,
        seconds=proof.seconds,
        complete=proof.complete,
        method=subject.method,
        interrupted=interrupted,
        rows=rows,
        regions=found,
    )
    if run is not None:
        _leave(run, subject, opened, proof, report)
        if not interrupted:
            run.ledger.finish({**asdict(effort), "report": asdict(report)})
    return report


def _said(told: ProofProgress) -> str:
    parts = {"fair": told.fair, "discriminatory": told.discriminatory}
    parts["open"] = max(0.0, 1.0 - sum(parts.values()))
    return f"{', '.join(f'{percent(share)} {what}' for what, share in parts.items())}; {told.boxes:,} boxes"


def _rows(subject: Problem, opened: Opened, data: Dataset, effort: Effort, show: Show) -> RowsReport | None:
    """Look at the neighbours of some rows of the table, the same ones every time."""
    if effort.rows == 0 or len(data) == 0:
        return None
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[: effort.rows]
    found = certified(
        opened,
        data.domain,
        data.rows[chosen],
        decision=subject.decision,
        seconds=MORE * effort.seconds,
        progress=lambda changed, done, total: show("Looking at rows", done, total, f"with {changed} changed"),
        subject=None if subject.where else subject,
    )
    if found.interrupted:
        raise KeyboardInterrupt
    late = int((~found.looked_one | ~found.looked_two).sum())
    return RowsReport(found.certified_1, found.certified_2, found.of, late)


def _regions(subject: Problem, proof: Proof, effort: Effort) -> tuple[RegionReport, ...]:
    found = regions(subject, proof, seconds=MORE * effort.seconds)
    return tuple(RegionReport(one.rule, one.verdict, Part.of(one.people, proof.people)) for one in found)


def _leave(run: ProofRun, subject: Problem, opened: Opened, proof: Proof, report: ProofReport) -> None:
    """Write the certificate and the figures, which the last state could give again."""
    names = subject.domain.names
    axes = tuple(AxisCodes.of(axis, names[axis.column]) for axis in subject.space.axes)
    whole = Certificate(
        subject.domain, subject.decision, subject.where, known_by(opened.fingerprint, opened.module), axes, proof
    )
    with writing(run.folder):
        write(run.folder / CERTIFICATE, whole)
        with replacing(run.folder / FIGURES) as temporary:
            temporary.write_bytes(seal(asdict(report)))
