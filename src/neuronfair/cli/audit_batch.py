"""Batch audits, each in its folder: done side by side, gone on with after an interruption, and told of in one index."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import chdir, closing
from dataclasses import dataclass, field, replace
from os.path import realpath
from pathlib import Path

from neuronfair import __version__
from neuronfair.atomic import write_text
from neuronfair.audits.folder import FIGURES, PAGE, check_writable, refuse_links
from neuronfair.audits.gate.baseline import read_baseline
from neuronfair.audits.report.index import AuditIndex, AuditLine, line_of
from neuronfair.audits.report.report import Report, as_json
from neuronfair.cli.audit_file import NamedAudit
from neuronfair.cli.audit_job import AuditOutputs, carry_out
from neuronfair.cli.files import write_file
from neuronfair.errors import NeuronFairError, OtherRunError, RunError, internal
from neuronfair.limits import read_text
from neuronfair.render.page import index_page
from neuronfair.render.terminal import make_console
from neuronfair.scale.pool import PieceProgress, Pool, PoolProgress
from neuronfair.store.files import sha256
from neuronfair.store.ledger import check_discardable, discard

INDEX, FIGURES_OF_ALL = "index.html", "index.json"
DONE = "order.sha256"  # in the folder of an audit that was finished: the digests of what it was told and has found


@dataclass(frozen=True)
class BatchOutcome:
    """How one audit ended."""

    error: str | None = None
    reported: bool = True  # whether it has left a report
    interrupted: bool = False
    internal: bool = False  # whether the error was not expected


@dataclass(frozen=True)
class BatchFolder:
    """Where the file of the audits lies, and where they are to go; the same on all machines."""

    folder: Path
    out: Path
    force: bool = False

    def check(self) -> None:
        """Refuse a folder that cannot be written, or that holds something else than audits."""
        check_writable(self.out)
        if self.out.exists():
            refuse_links(self.out)
            if any(self.out.iterdir()) and not (self.out / FIGURES_OF_ALL).is_file():
                raise RunError(f"{self.out} exists and is not a folder of audits. Choose another --out")

    def finished(self, audit: NamedAudit) -> Report | None:
        """Return the report of an audit that was done to the end, as it is told now; else None."""
        place = self.out / audit.name
        try:
            if self.force or read_text(place / DONE) != _stamp(place, audit.digest):
                return None
            return read_baseline(place / FIGURES)
        except (OSError, UnicodeDecodeError, NeuronFairError):
            return None

    def discard(self, audits: Sequence[NamedAudit]) -> None:
        """Throw away what these audits have left; nothing, if a folder is not ours or holds what one of them reads."""
        folders = [self.out / audit.name for audit in audits]
        with chdir(self.folder):
            jobs = [audit.job for audit in audits]
            named = {path for job in jobs for path in (*job.reads, job.corpus, job.baseline) if path}
            inside = [path for path in named if Path(realpath(path)).is_relative_to(realpath(self.out))]
            for folder in folders:
                check_discardable(folder, inside)
            for folder in folders:
                discard(folder)


def _stamp(folder: Path, digest: str) -> str:
    """Return what is in the file DONE of a finished audit; of no other, whatever was left in the folder since."""
    return f"{digest} {sha256(folder / FIGURES)}\n"


def audit_one(place: BatchFolder, audit: NamedAudit, note: PieceProgress) -> BatchOutcome:
    """Do one audit; whatever is wrong with it is an answer, and no error that would end the others."""
    note(0, 1, 0)
    try:
        with chdir(place.folder):
            out = Path(os.path.relpath(place.out / audit.name))
            digest = audit.digest  # of its files before they are read
            outputs, command = AuditOutputs(out, quiet=True), shlex.join(["neuronfair", "audit", *audit.job.words(out)])
            console = make_console(quiet=True)
            try:
                done = carry_out(audit.job, outputs, console, command=command)
            except OtherRunError:
                if not (out / DONE).is_file():
                    raise
                done = carry_out(audit.job, replace(outputs, force=True), console, command=command)  # it was finished
            interrupted = done.report.reproduction.interrupted
            if done.failure is None and not interrupted:
                write_text(out / DONE, _stamp(out, digest))
        return BatchOutcome(None if done.failure is None else str(done.failure), interrupted=interrupted)
    except NeuronFairError as error:
        return BatchOutcome(str(error), reported=False)
    except Exception as error:  # of one model among many; the others are worth their time
        return BatchOutcome(internal(error), reported=False, internal=True)
    finally:
        note(1, 1, 0)


@dataclass
class Batch:
    """All audits of a file, and what is known of each."""

    file: str
    audits: Sequence[NamedAudit]
    place: BatchFolder
    lines: dict[str, AuditLine] = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)
    internal: bool = False  # whether one of them ended in an error that nobody expected
    begun: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        for audit in self.audits:
            table, model = audit.job.table, audit.job.model.model or ""
            self.lines[audit.name] = AuditLine(audit.name, model, table.data, table.sensitive or "", "not finished")
            with chdir(self.place.folder):
                report = self.place.finished(audit)
            if report is not None:
                self._enter(audit.name, report)

    @property
    def index(self) -> AuditIndex:
        """All lines as they are now."""
        return AuditIndex(__version__, self.file, tuple(self.lines.values()), time.perf_counter() - self.begun)

    def run(self, pool: Pool, progress: PoolProgress, missing: Sequence[NamedAudit]) -> bool:
        """Do the audits that are not finished; return whether Ctrl-C came. The index is written after each."""
        if self.place.force:  # only here: an audit that is repeated after a kill resumes
            self.place.discard(missing)
        self.write()
        place = replace(self.place, force=False)
        gpus = float(any(audit.job.model.device.startswith("cuda") for audit in missing))
        try:
            with closing(_given(pool.map(audit_one, place, missing, progress=progress, gpus=gpus))) as ended:
                for audit, one in zip(missing, ended, strict=False):
                    self._end(audit, one)
                    self.write()
                    if one.interrupted:
                        return True
        except KeyboardInterrupt:
            return True
        return False

    def missing(self) -> list[NamedAudit]:
        """Return the audits that are not finished."""
        return [audit for audit in self.audits if audit.name not in self.reports]

    def write(self) -> None:
        """Write the index, as a page and as figures."""
        self.place.out.mkdir(parents=True, exist_ok=True)
        write_file(self.place.out / FIGURES_OF_ALL, as_json(self.index))
        write_file(self.place.out / INDEX, index_page(self.index))

    def _end(self, audit: NamedAudit, ended: BatchOutcome) -> None:
        line, error, report = self.lines[audit.name], ended.error, None
        self.internal |= ended.internal
        if ended.reported:
            try:
                report = read_baseline(self.place.out / audit.name / FIGURES)
            except NeuronFairError as unread:  # another machine has another folder of that name, say
                error = error or str(unread)
        if error is not None:
            self.lines[audit.name] = AuditLine(line.name, line.model, line.data, line.sensitive, "error", error)
        if report is not None:
            self._enter(audit.name, report)

    def _enter(self, name: str, report: Report) -> None:
        self.reports[name] = report
        self.lines[name] = line_of(self.lines[name], report, f"{name}/{PAGE}")


def _given(ended: Iterator[BatchOutcome]) -> Generator[BatchOutcome]:
    """Yield what a pool yields; closing this closes that."""
    yield from ended
