"""One audit from its settings: what it reads and writes, and the whole of it in one call."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from neuronfair.audits.settings import AuditSettings
from neuronfair.cli import files, options
from neuronfair.cli.options import ModelOptions, TableOptions
from neuronfair.errors import DataError
from neuronfair.formatting import visible
from neuronfair.parameters import BUDGET, GATE, INPUT, OUTPUT, build, flag_of, parameter, parameters, values_of

if TYPE_CHECKING:
    from rich.console import Console

    from neuronfair.audits.gate.checks import Checks, LoadedChecks
    from neuronfair.audits.report.report import Report
    from neuronfair.audits.run import Result
    from neuronfair.domain.tables.dataset import Dataset
    from neuronfair.model.open import Opened
    from neuronfair.model.training_loop import TrainingSettings
    from neuronfair.model.weights import Card
    from neuronfair.scale.pool import Pool

LARGE = 10_000  # rows from which on large steps cost a classifier no accuracy


@dataclass(frozen=True)
class AuditJob:
    """One audit: options of `neuronfair audit`, keys of [tool.neuronfair] and of the file of `neuronfair audit-all`."""

    table: TableOptions = field(default_factory=TableOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    settings: AuditSettings = field(default_factory=AuditSettings)
    quick: bool = parameter(False, "Take a first look: smaller searches.", panel=BUDGET)
    favourable: str | None = parameter(None, "Favourable outcome: a class of the target.", panel=INPUT, metavar="CLASS")
    take_rules: Literal["none", "free", "all"] = parameter(
        "none", "Rules suggested by the data to adopt: none, free or all.", metavar="RULES"
    )
    population: Path | None = parameter(None, "Realistic records from your own sampler.")
    fail_if: tuple[str, ...] = parameter(
        (),
        "Exit with status 1 if this may hold, such as 'flip_rate > 1%'. May be repeated.",
        panel=GATE,
        metavar="EXPR",
    )
    baseline: Path | None = parameter(None, "Compare with audit.json of an earlier audit.", panel=GATE)
    corpus: Path | None = parameter(None, "Regression set of past counterexamples to test again.")
    corpus_add: bool = parameter(True, "Do not add the worst findings to the regression set.")
    trust_feeding: bool = parameter(False, "Evaluate even if the input encoding check fails.", "--skip-encoding-check")

    @property
    def checks(self) -> Checks:
        """What the audit is judged by."""
        from neuronfair.audits.gate.checks import Checks

        return Checks(self.fail_if, self.corpus, self.corpus_add, self.baseline, self.trust_feeding)

    @property
    def reads(self) -> tuple[Path, ...]:
        """The files that it reads and may not write: a corpus is read and added to, a baseline may be replaced."""
        from neuronfair.domain.tables.files import table_file

        table, model = self.table, self.model
        data = table_file(table.data)[0] if table.data else None
        named = (data, model.model, model.weights, table.domain, table.attributes_file, self.population)
        return tuple(Path(name) for name in (*named, None if self.corpus_add else self.corpus) if name is not None)

    def words(self, out: Path) -> Iterator[str]:
        """Yield the command line of this audit.

        >>> job = build(AuditJob, {"data": "a.csv", "fail_if": ("rate > 1%",), "quick": True, "seeds": 5})
        >>> " ".join(job.words(Path("run")))
        'a.csv --starts 5 --quick --fail-if rate > 1% --out run'
        """
        yield self.table.data
        known, usual = parameters(AuditJob), values_of(build(AuditJob, {"quick": self.quick})) | {"quick": False}
        for name, value in values_of(self).items():
            if name == "data" or value == usual[name]:
                continue
            flag = flag_of(name, known[name])
            if isinstance(value, bool):
                yield flag if value else f"--no-{flag.removeprefix('--')}"
            else:
                for one in value if isinstance(value, tuple) else (value,):
                    yield from (flag, str(one))
        yield from ("--out", str(out))


@dataclass(frozen=True)
class AuditOutputs:
    """The folder and the files that an audit writes."""

    out: Path = parameter(
        Path("neuronfair-audit"), "Folder to make, or to resume after an interruption.", panel=OUTPUT, metavar="FOLDER"
    )
    html: Path | None = parameter(None, "The report. Default: report.html in --out.")
    json: Path | None = parameter(None, "Write the results as JSON; '-' prints them.")
    junit: Path | None = parameter(None, "Write the result as JUnit XML.")
    markdown: Path | None = parameter(None, "Write a summary in Markdown.")
    force: bool = parameter(False, "Delete what is in --out and start anew.", panel=OUTPUT)
    verbose: bool = parameter(False, "Print all tables and notes, not one screen.")
    quiet: bool = parameter(False, "Print errors only.", "--quiet", "-q", panel=OUTPUT)

    @property
    def report(self) -> Path:
        """Where the report is written."""
        from neuronfair.audits.folder import PAGE

        return self.html or self.out / PAGE

    def check(self, job: AuditJob) -> None:
        """Refuse files that cannot be written, that the audit reads, or that it writes as something else."""
        from neuronfair.audits.folder import FIGURES, WEIGHTS, check_audit_folder, check_writable
        from neuronfair.store.ledger import check_discardable
        from neuronfair.store.manifest import DOMAIN, MANIFEST

        if self.force:
            check_writable(self.out)
            check_discardable(self.out, (*job.reads, job.corpus, job.baseline))
        else:
            check_audit_folder(self.out)
        own = {name: self.out / name for name in (MANIFEST, DOMAIN, WEIGHTS, "model.json", FIGURES)}
        for place in own.values():
            if place.exists():
                files.check_out(place)
        taken = {realpath(path): f"{name} of the audit in {self.out}" for name, path in own.items()}
        taken |= {realpath(path): "read by this audit" for path in job.reads}
        named = {"--html": self.report, "--json": self.json, "--junit": self.junit, "--markdown": self.markdown}
        named["--corpus"] = job.corpus if job.corpus_add else None  # which is written
        for flag, path in named.items():
            if path is None or (
                flag == "--json" and (files.is_stdout(path) or realpath(path) == realpath(own[FIGURES]))
            ):
                continue
            if realpath(path) in taken:
                raise DataError(f"{flag} {path}: is {taken[realpath(path)]}. Choose another name")
            taken[realpath(path)] = f"also named by {flag}"
            if self.out.exists() or path.absolute().parent != self.out.absolute():  # which is made later
                files.check_out(path)

    def write(self, report: Report) -> None:
        """Write them all but audit.json, which the audit has written."""
        from neuronfair.audits.folder import FIGURES
        from neuronfair.render.junit import junit
        from neuronfair.render.markdown import markdown
        from neuronfair.render.page import audit_page

        files.write_file(self.report, audit_page(report))
        if self.junit is not None:
            files.write_file(self.junit, junit(report))
        if self.markdown is not None:
            files.write_file(self.markdown, markdown(report))
        if self.json is not None and files.is_stdout(self.json):
            sys.stdout.write(visible(report.to_json(), keep="\n"))
        elif self.json is not None and realpath(self.json) != realpath(self.out / FIGURES):
            files.write_file(self.json, report.to_json())


def carry_out(
    job: AuditJob, outputs: AuditOutputs, console: Console, *, command: str, pool: Pool | None = None
) -> Result:
    """Do an audit, write its files, and return what came of it; `failure` says why checks could not be judged."""
    job.model.check()
    from neuronfair.audits.folder import WEIGHTS, own_weights
    from neuronfair.audits.provenance import ParallelAudit
    from neuronfair.audits.run import run
    from neuronfair.domain.population.model import read_people
    from neuronfair.domain.tables.dataset import DATASETS
    from neuronfair.render.terminal import stage_progress
    from neuronfair.store.ledger import discard

    outputs.check(job)
    options.check_device(job.model.device)
    options.read_decision(job.model.decision)
    found = job.table.load(job.model, job.take_rules).with_favourable(job.favourable)
    table = found.data
    people = None if job.population is None else read_people(job.population, table.domain)
    for remark in found.remarks:
        console.print(f"Table: {remark}")
    ready = job.checks.read(table.domain)
    own = own_weights(outputs.out) if job.model.model is None and not outputs.force else None
    opened, card = _open_or_train(job, table, own, ready, console)
    join = job.table.join
    again = replace(found.source, model=job.model.model or str(outputs.out / WEIGHTS))  # it is kept if trained now
    origin = replace(
        found.origin,
        command=command,
        card=card,
        trained_here=job.model.model is None,
        table=None if job.table.data in DATASETS else job.table.data,
        beside=() if join is None else join.words,
        parallel=None if pool is None else ParallelAudit(pool, again.open),
    )
    if outputs.force:  # not before all that can be wrong was read
        discard(outputs.out)
    with stage_progress("Auditing", quiet=console.quiet) as show:
        result = run(
            opened,
            table,
            settings=job.settings,
            ready=ready,
            origin=origin,
            folder=outputs.out,
            progress=show,
            people=people,
        )
    outputs.write(result.report)
    if result.failure is None:
        ready.extend(result.report)
    return result


def _open_or_train(
    job: AuditJob, table: Dataset, own: Path | None, ready: LoadedChecks, console: Console
) -> tuple[Opened, Card | None]:
    """Return the model and the card of one of our own; without a --model, `own` or one that is trained now."""
    from neuronfair.audits.folder import check_same
    from neuronfair.audits.settings import WHITE
    from neuronfair.model.weights import load
    from neuronfair.store.manifest import rows_digest

    settings, sensitive = job.settings, table.domain.sensitive
    if job.model.model is None and own is None:
        ready.refuse(sensitive, settings.methods or WHITE, settings.twins)
        return job.model.train(table, console, settings.seed, _training(table, job.quick))
    if own is not None:  # the classifier of that audit is right for the same table only
        check_same(own.parent, {"domain": table.domain.fingerprint, "rows": rows_digest(table.rows)})
    path = job.model.model or str(own)
    opened = replace(job.model.source, model=path).open(table)
    ready.refuse(sensitive, settings.methods_for(opened), settings.twins)
    return opened, load(path)[1] if opened.kind == "neuronfair" else None


def _training(table: Dataset, quick: bool) -> TrainingSettings:
    """Return how to train a classifier on the spot: in seconds rather than minutes on a large table."""
    from neuronfair.model.training_loop import TrainingSettings

    if len(table) < LARGE:
        return TrainingSettings(restarts=1) if quick else TrainingSettings()
    return TrainingSettings(restarts=1, batch=512, lr=0.003, patience=2 if quick else 5, epochs=10 if quick else 100)
