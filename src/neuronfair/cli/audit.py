"""The commands `audit` and `audit-all`, and the settings and files of one audit."""

from __future__ import annotations

import shlex
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import chdir
from dataclasses import dataclass, field, replace
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from neuronfair.audits.settings import AuditSettings
from neuronfair.cli import options
from neuronfair.cli.app import (
    AUDIT,
    GATE_FAILED,
    INTERNAL,
    INTERRUPTED,
    WRONG,
    Command,
    app,
    command,
    complain,
    option,
)
from neuronfair.cli.options import ForceOption, ModelOptions, OutputOptions, RayOption, TableOptions, pool_of
from neuronfair.errors import DataError, did_you_mean
from neuronfair.formatting import plural, some, visible
from neuronfair.limits import read_text
from neuronfair.parameters import (
    BUDGET,
    GATE,
    INPUT,
    OUTPUT,
    build,
    checked,
    flag_of,
    parameter,
    parameters,
    values_of,
)

if TYPE_CHECKING:
    from rich.console import Console

    from neuronfair.audits.gate.checks import Checks, LoadedChecks
    from neuronfair.audits.report.report import Report
    from neuronfair.audits.run import Result
    from neuronfair.cli.audit_batch import Batch
    from neuronfair.domain.tables.dataset import Dataset
    from neuronfair.model.open import Opened
    from neuronfair.model.training_loop import TrainingSettings
    from neuronfair.model.weights import Card
    from neuronfair.scale.pool import Pool

LARGE = 10_000  # records; a classifier of more is trained in large steps, which cost it no accuracy
PROJECT = "pyproject.toml"
_RUNS_CODE = ("trust_pickle", "preprocess")  # options that a pyproject.toml must not set


@dataclass(frozen=True)
class AuditJob:
    """The settings of one audit: options of `audit`, keys of [tool.neuronfair] and of the file of `audit-all`."""

    table: TableOptions = field(default_factory=TableOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    settings: AuditSettings = field(default_factory=AuditSettings)
    quick: bool = parameter(False, "Take a first look: smaller searches.", panel=BUDGET)
    text: str | None = parameter(None, "Column of texts, to test a model of text.", panel=INPUT, metavar="COLUMN")
    max_calls: int | None = parameter(None, "With --text: most texts to send to the model.", least=1)
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
        """Thresholds, regression set and baseline of the audit."""
        from neuronfair.audits.gate.checks import Checks

        return Checks(self.fail_if, self.corpus, self.corpus_add, self.baseline, self.trust_feeding)

    @property
    def reads(self) -> tuple[Path, ...]:
        """The files that the audit reads and must not write; a corpus may grow, a baseline may be replaced."""
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
    force: bool = parameter(False, "Delete what is in --out and start anew.")
    verbose: bool = parameter(False, "Print all tables and notes, not one screen.")
    quiet: bool = parameter(False, "Print errors only.", "--quiet", "-q", panel=OUTPUT)

    @property
    def report(self) -> Path:
        """Where the report is written."""
        from neuronfair.audits.folder import PAGE

        return self.html or self.out / PAGE

    def check(self, job: AuditJob) -> None:
        """Refuse output files that cannot be written, or that another option names."""
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
                options.check_out(place)
        taken = {realpath(path): f"{name} of the audit in {self.out}" for name, path in own.items()}
        taken |= {realpath(path): "read by this audit" for path in job.reads}
        named = {"--html": self.report, "--json": self.json, "--junit": self.junit, "--markdown": self.markdown}
        named["--corpus"] = job.corpus if job.corpus_add else None  # which is written
        for flag, path in named.items():
            if path is None or (
                flag == "--json" and (options.is_stdout(path) or realpath(path) == realpath(own[FIGURES]))
            ):
                continue
            if realpath(path) in taken:
                raise DataError(f"{flag} {path}: is {taken[realpath(path)]}. Choose another name")
            taken[realpath(path)] = f"also named by {flag}"
            if self.out.exists() or path.absolute().parent != self.out.absolute():  # which is made later
                options.check_out(path)

    def write(self, report: Report) -> None:
        """Write all files but audit.json, which the audit itself writes."""
        from neuronfair.audits.folder import FIGURES
        from neuronfair.render.export import junit
        from neuronfair.render.page import audit_page
        from neuronfair.render.tables import markdown

        options.write_file(self.report, audit_page(report))
        if self.junit is not None:
            options.write_file(self.junit, junit(report))
        if self.markdown is not None:
            options.write_file(self.markdown, markdown(report))
        if self.json is not None and options.is_stdout(self.json):
            sys.stdout.write(visible(report.to_json(), keep="\n"))
        elif self.json is not None and realpath(self.json) != realpath(self.out / FIGURES):
            options.write_file(self.json, report.to_json())


def carry_out(
    job: AuditJob, outputs: AuditOutputs, console: Console, *, command: str, pool: Pool | None = None
) -> Result:
    """Run an audit, write its files and return the result; its `failure` says why thresholds were not evaluated."""
    if job.text is not None or job.max_calls is not None:
        raise DataError("--text and --max-calls are for 'neuronfair audit' with a column of texts")
    job.model.check()
    from neuronfair.audits.folder import WEIGHTS, own_weights
    from neuronfair.audits.provenance import ParallelAudit
    from neuronfair.audits.run import run
    from neuronfair.domain.population.model import read_people
    from neuronfair.domain.tables.dataset import DATASETS
    from neuronfair.render.terminal import stage_progress
    from neuronfair.scale.tasks import MOST_PROCESSES
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
    again = replace(found.source, model=job.model.model or str(outputs.out / WEIGHTS))
    origin = replace(
        found.origin,
        command=command,
        card=card,
        trained_here=job.model.model is None,
        table=None if job.table.data in DATASETS else job.table.data,
        beside=() if join is None else join.words,
        parallel=None if pool is None else ParallelAudit(pool, again.open),
        processes=MOST_PROCESSES,
    )
    if outputs.force:  # after all inputs were read without an error
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
    """Return the model and, of a neuronfair classifier, its card; without --model, use `own` or train one."""
    from neuronfair.audits.folder import check_same
    from neuronfair.audits.settings import WHITE
    from neuronfair.model.weights import load
    from neuronfair.store.manifest import rows_digest

    settings, sensitive = job.settings, table.domain.sensitive
    if job.model.model is None and own is None:
        ready.refuse(sensitive, settings.methods or WHITE, settings.twins)
        return job.model.train(table, console, settings.seed, _training(table, job.quick))
    if own is not None:  # trained on the data of an earlier audit
        check_same(own.parent, {"domain": table.domain.fingerprint, "rows": rows_digest(table.rows)})
    path = job.model.model or str(own)
    opened = replace(job.model.source, model=path).open(table)
    ready.refuse(sensitive, settings.methods_for(opened), settings.twins)
    return opened, load(path)[1] if opened.kind == "neuronfair" else None


def _training(table: Dataset, quick: bool) -> TrainingSettings:
    """Return settings that train a classifier in seconds, also on a large data set."""
    from neuronfair.model.training_loop import TrainingSettings

    if len(table) < LARGE:
        return TrainingSettings(restarts=1) if quick else TrainingSettings()
    return TrainingSettings(restarts=1, batch=512, lr=0.003, patience=2 if quick else 5, epochs=10 if quick else 100)


def project_settings(folder: Path) -> dict[str, Any]:
    """Return the options set in [tool.neuronfair] of a pyproject.toml; refuse unknown keys and keys that run code."""
    path = folder / PROJECT
    if not path.is_file():
        return {}
    try:
        tool = tomllib.loads(read_text(path)).get("tool", {})
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not TOML in UTF-8: {error}") from error
    found = tool.get("neuronfair", {}) if isinstance(tool, dict) else {}
    where, known = f"{path}: [tool.neuronfair]", parameters(AuditJob)
    if not isinstance(found, dict):
        raise DataError(f"{where}: expected a table")
    for key, value in found.items():
        name = key.replace("-", "_")
        if name not in known:
            raise DataError(f"{where}: unknown key '{key}'. {did_you_mean(name, known)}")
        if name in _RUNS_CODE or (name == "model" and ":" in str(value)):
            raise DataError(f"{where}: {key} = {value!r} runs a program. Set it on the command line instead")
    settings, problems = checked({key.replace("-", "_"): value for key, value in found.items()}, known)
    for problem in problems:
        raise DataError(f"{where}: {problem}")
    return settings


class ProjectDefaults(Command):
    """The command `audit`, with defaults from pyproject.toml in the working folder."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read defaults from [tool.neuronfair], unless the user wants the help text."""
        if "--help" not in args:
            ctx.default_map = {name: _plain(value) for name, value in project_settings(Path()).items()}
        return super().parse_args(ctx, args)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value


@command(app, panel=AUDIT, cls=ProjectDefaults)
def audit(job: AuditJob, outputs: AuditOutputs, ray: RayOption = None) -> None:
    """Test whether decisions of a model depend on a sensitive attribute, and for whom.

    Without arguments, it trains a classifier on Adult and tests it for sex. The folder --out holds report.html,
    audit.json and all findings; after Ctrl-C the same command resumes. [tool.neuronfair] in pyproject.toml sets
    defaults. Exit status: 0, 1 if a threshold failed, 2 after an error, 3 after an internal error, 130 after Ctrl-C.

    Examples:

    `neuronfair audit`

    `neuronfair audit table.csv --model model.onnx --domain domain.toml --sensitive sex,race --out run`

    `neuronfair audit table.csv --model m.skops --target income --sensitive sex --fail-if 'flip_rate > 1%'`

    `neuronfair audit reviews.csv --text comment --sensitive gender --model package.module:function --out run`
    """
    from neuronfair.render.terminal import make_console, print_audit

    console = make_console(quiet=outputs.quiet or options.is_stdout(outputs.json))
    if job.text is not None:
        from neuronfair.cli.audit_text import audit_text

        audit_text(job, outputs, console)
        return
    words = ["audit", *job.words(outputs.out)] if project_settings(Path()) else sys.argv[1:]
    typed = shlex.join(["neuronfair", *words])
    with pool_of(ray) as pool:
        result = carry_out(job, outputs, console, command=typed, pool=None if ray is None else pool)
    if result.failure is not None:
        raise result.failure
    report = result.report
    print_audit(console, report, outputs.report, verbose=outputs.verbose)
    if report.reproduction.interrupted:
        raise typer.Exit(INTERRUPTED)
    if report.gate is not None and not report.gate.passed:
        if outputs.quiet:  # the log of a failed build needs a reason
            for failed in (one for one in report.gate.checks if one.fired):
                complain(f"--fail-if '{failed.expression}': {failed.explained}")
        raise typer.Exit(GATE_FAILED)


@command(app, panel=AUDIT)
def audit_all(
    file: Annotated[
        Path,
        option(
            "TOML: [defaults] and [[audit]], with the options of 'neuronfair audit'.", metavar="FILE", positional=True
        ),
    ],
    output: OutputOptions,
    out: Annotated[
        Path, option("Folder to make, or to resume; each audit has a folder in it.", panel=OUTPUT, metavar="FOLDER")
    ] = Path("neuronfair-audits"),
    force: ForceOption = False,
    workers: Annotated[int, option("Processes of one core each, side by side.", least=1)] = 1,
    ray: RayOption = None,
    junit: Annotated[Path | None, option("Write the results of all as JUnit XML.", panel=OUTPUT)] = None,
) -> None:
    """Audit all models, data sets and attributes that a file names.

    Lists of data, model and sensitive in an [[audit]] give one audit for each combination. Paths are relative to the
    file. Errors in the file are reported before the first audit starts; an audit that fails does not stop the others.
    The same command resumes after Ctrl-C and repeats only what has changed. Exit status: 0, 1 if a threshold failed, 2
    after an error, 3 after an internal error, 130 after Ctrl-C.

    Examples:

    `neuronfair audit-all audits.toml --out audits`

    `neuronfair audit-all audits.toml --workers 8 --junit audits.xml`

    `neuronfair audit-all audits.toml --ray head:6379`
    """
    from neuronfair.audits.report.report import as_json
    from neuronfair.cli.audit_batch import INDEX, AuditFile, Batch, BatchFolder
    from neuronfair.render.export import junit_of_all
    from neuronfair.render.terminal import index_table, progress_bar

    pool = pool_of(ray, workers)
    options.check_out(junit)
    output.check()
    if not file.is_file():
        raise DataError(f"{file}: there is no such file. Expected TOML with [[audit]] tables")
    place = BatchFolder(file.absolute().parent, out.absolute(), force)
    with chdir(place.folder):
        found = AuditFile.read(file.name)
    if found.problems:
        for problem in found.problems:
            complain(f"{file}: {problem}")
        raise DataError(f"{file}: {plural(len(found.problems), 'problem')}. No audit was started")
    place.check()
    console = output.console()
    batch = Batch(file.name, found.audits, place)
    missing = batch.missing()
    before, names = len(batch.audits) - len(missing), [audit.name for audit in missing]
    with progress_bar("Auditing", quiet=console.quiet) as show, pool as workers_of_all:

        def note(lines: Sequence[tuple[int, int, int]]) -> None:
            running = [name for name, (done, total, _) in zip(names, lines, strict=True) if done < total]
            show(before + sum(done for done, _, _ in lines), len(batch.audits), some(running))

        interrupted = batch.run(workers_of_all, note, missing)
    index = batch.index
    batch.write()
    if junit is not None:
        options.write_file(junit, junit_of_all(index, batch.reports))
    if options.is_stdout(output.json):
        typer.echo(as_json(index), nl=False)
    elif output.json is not None:
        options.write_file(output.json, as_json(index))
    console.print(index_table(index))
    console.print(f"Index: {out / INDEX}", soft_wrap=True)
    for line in index.audits:
        for why in (line.error, *line.fired) if line.state in ("failed", "error") and output.quiet else ():
            if why is not None:
                complain(f"{line.name}: {why}")
    if status := _status(batch, interrupted):
        raise typer.Exit(status)


def _status(batch: Batch, interrupted: bool) -> int:
    """Return the exit status of all audits: the worst one."""
    index = batch.index
    if interrupted:
        return INTERRUPTED
    if batch.internal:
        return INTERNAL
    if index.count("error", "not finished"):
        return WRONG
    return GATE_FAILED if index.count("failed") else 0
