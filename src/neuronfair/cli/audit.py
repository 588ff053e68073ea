"""The commands `audit`, for tables and texts, `audit-all` and `audit-images`, and the settings of one audit."""

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
from neuronfair.cli.app import AUDIT, DEFECT, ERROR, GATE_FAILED, INTERRUPTED, Command, app, command, complain, option
from neuronfair.cli.options import ForceOption, ModelOptions, OutputOptions, RayOption, TableOptions
from neuronfair.errors import DataError, did_you_mean
from neuronfair.formatting import first_few, pluralise
from neuronfair.limits import read_text
from neuronfair.parameters import (
    BUDGET,
    GATE,
    INPUT,
    OUTPUT,
    Values,
    build_settings,
    common_parameter,
    find_parameters,
    flag_of,
    parameter,
    validate_entry,
    values_of,
)

if TYPE_CHECKING:
    from rich.console import Console

    from neuronfair.audits.gate.checks import Checks, LoadedChecks
    from neuronfair.audits.report import Gate, Report
    from neuronfair.audits.run import Result
    from neuronfair.cli.audit_batch import Batch
    from neuronfair.domain.tables.dataset import Dataset
    from neuronfair.model.open import OpenedModel
    from neuronfair.model.training_loop import TrainingSettings
    from neuronfair.model.weights import Card
    from neuronfair.scale.pool import Pool
    from neuronfair.text.audit import TextAudit, TextSettings

LARGE_TABLE_RECORDS = 10_000  # records; a classifier of more is trained in large steps, which cost it no accuracy
PROJECT_FILE = "pyproject.toml"
_CODE_OPTIONS = ("trust_pickle", "preprocess")  # options that a pyproject.toml must not set


@dataclass(frozen=True)
class AuditJob:
    """The settings of one audit: options of `audit`, keys of [tool.neuronfair] and of the file of `audit-all`."""

    table: TableOptions = field(default_factory=TableOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    settings: AuditSettings = field(default_factory=AuditSettings)
    quick: bool = common_parameter(False, "Take a first look: smaller searches.", panel=BUDGET)
    text: str | None = common_parameter(
        None, "Column of texts, to test a model of text.", panel=INPUT, metavar="COLUMN"
    )
    max_calls: int | None = common_parameter(None, "With --text: most texts to evaluate.", low=1)
    replacements: str | None = common_parameter(
        None, "With --text: words that searches replace, as CSV, or 'embedding'.", metavar="FILE"
    )
    favourable: str | None = common_parameter(
        None, "Favourable outcome: a class of the target.", panel=INPUT, metavar="CLASS"
    )
    take_rules: Literal["none", "free", "all"] = parameter(
        "none", "Adopt suggested rules: none, free or all.", metavar="RULES"
    )
    population: Path | None = parameter(None, "Table of your own realistic records.")
    fail_if: tuple[str, ...] = common_parameter(
        (),
        "Fail (exit status 1) unless the interval excludes this, such as 'flip_rate > 1%'. Repeatable.",
        panel=GATE,
        metavar="EXPR",
    )
    baseline: Path | None = parameter(None, "Compare with audit.json of an earlier audit.", panel=GATE)
    regression_set: Path | None = parameter(None, "Past counterexamples to evaluate.")
    regression_set_add: bool = parameter(True, "Add no findings to --regression-set.")
    skip_encoding_check: bool = parameter(False, "Evaluate even if this check fails.")

    @property
    def checks(self) -> Checks:
        """Thresholds, regression set and baseline of the audit."""
        from neuronfair.audits.gate.checks import Checks

        regression_set = self.regression_set, self.regression_set_add
        return Checks(self.fail_if, *regression_set, self.baseline, self.skip_encoding_check)

    @property
    def input_files(self) -> tuple[Path, ...]:
        """The files that the audit reads and must not write; a regression set may grow, a baseline may be replaced."""
        from neuronfair.domain.tables.files import split_table_name

        table, model = self.table, self.model
        data = split_table_name(table.data)[0] if table.data else None
        regression_set = None if self.regression_set_add else self.regression_set
        names = (data, model.model, model.weights, table.domain, table.attributes_file, self.population)
        return tuple(Path(name) for name in (*names, regression_set, self.replacements) if name is not None)

    def find_changes(self) -> Values:
        """Return the settings that are not the defaults, which --quick changes."""
        defaults = values_of(build_settings(AuditJob, {"quick": self.quick})) | {"quick": False}
        return {name: value for name, value in values_of(self).items() if value != defaults[name]}

    @property
    def text_settings(self) -> TextSettings:
        """How thorough an audit of texts is: what was set, and the defaults for texts."""
        from neuronfair.text.audit import TextSettings

        changes = self.find_changes()
        names = {"seeds": "starts", "steps": "steps", "max_calls": "max_calls", "seed": "seed"}
        defaults = dict(TextSettings.QUICK) if self.quick else {}
        return TextSettings(**defaults | {names[name]: value for name, value in changes.items() if name in names})

    def refuse_table_options(self) -> None:
        """Refuse what an audit of texts does not take, and the lack of what it needs."""
        declared = find_parameters(AuditJob)
        for name in self.find_changes():
            if not declared[name].for_texts:
                raise DataError(f"{flag_of(name, declared[name])} does not apply with --text. Leave it out")
        if self.model.model is None:
            raise DataError("--text needs a --model: a .skops file, a Hugging Face folder or package.module:name")
        if self.table.sensitive is None:
            raise DataError(
                "--text needs --sensitive: gender, religion, ethnicity, … or a CSV file with identity terms"
            )

    def command_words(self, out: Path) -> Iterator[str]:
        """Yield the command line of this audit.

        >>> job = build_settings(AuditJob, {"data": "a.csv", "fail_if": ("rate > 1%",), "quick": True, "seeds": 5})
        >>> " ".join(job.command_words(Path("run")))
        'a.csv --starts 5 --quick --fail-if rate > 1% --out run'
        """
        yield self.table.data
        declared = find_parameters(AuditJob)
        for name, value in self.find_changes().items():
            if name == "data":
                continue
            flag = flag_of(name, declared[name])
            if isinstance(value, bool):
                yield flag if value else f"--no-{flag.removeprefix('--')}"
            else:
                for single_value in value if isinstance(value, tuple) else (value,):
                    yield from (flag, str(single_value))
        yield from ("--out", str(out))


@dataclass(frozen=True)
class AuditOutputs:
    """The folder and the files that an audit writes."""

    out: Path = parameter(Path("neuronfair-audit"), "Folder to make or resume.", panel=OUTPUT, metavar="FOLDER")
    html: Path | None = parameter(None, "Report. Default: --out/report.html.")
    json: Path | None = parameter(None, "Write results as JSON; '-' prints them.")
    junit: Path | None = parameter(None, "Write the result as JUnit XML.")
    markdown: Path | None = parameter(None, "Write a summary in Markdown.")
    force: bool = parameter(False, "Delete what is in --out, then start.")
    verbose: bool = parameter(False, "Print all tables and notes.")
    quiet: bool = parameter(False, "Print errors only.", "--quiet", "-q", panel=OUTPUT)

    @property
    def report(self) -> Path:
        """Where the report is written."""
        from neuronfair.audits.folder import PAGE

        return self.html or self.out / PAGE

    def check(self, job: AuditJob) -> None:
        """Refuse output files that cannot be written, or that another option names."""
        from neuronfair.audits.folder import REPORT_FILE, WEIGHTS
        from neuronfair.store.ledger import DOMAIN, MANIFEST

        input_files = (*job.input_files, job.regression_set, job.baseline)
        options.check_run_folder(self.out, self.force, input_files, of_audit=True)
        audit_files = {name: self.out / name for name in (MANIFEST, DOMAIN, WEIGHTS, "model.json", REPORT_FILE)}
        for audit_path in audit_files.values():
            if audit_path.exists():
                options.check_out(audit_path)
        use_by_path = {realpath(path): f"{name} of the audit in {self.out}" for name, path in audit_files.items()}
        use_by_path |= {realpath(path): "read by this audit" for path in job.input_files}
        path_by_flag = {"--html": self.report, "--json": self.json, "--junit": self.junit, "--markdown": self.markdown}
        path_by_flag["--regression-set"] = job.regression_set if job.regression_set_add else None  # which is written
        for flag, path in path_by_flag.items():
            if path is None or (
                flag == "--json" and (options.is_stdout(path) or realpath(path) == realpath(audit_files[REPORT_FILE]))
            ):
                continue
            if realpath(path) in use_by_path:
                raise DataError(f"{flag} {path}: is {use_by_path[realpath(path)]}. Choose another name")
            use_by_path[realpath(path)] = f"also named by {flag}"
            if self.out.exists() or path.absolute().parent != self.out.absolute():  # which is made later
                options.check_out(path)

    def write(self, report: Report) -> None:
        """Write all files but audit.json, which the audit itself writes."""
        from neuronfair.audits.folder import REPORT_FILE
        from neuronfair.render.export import write_junit
        from neuronfair.render.page import render_audit
        from neuronfair.render.tables import write_markdown

        options.write_file(self.report, render_audit(report))
        if self.junit is not None:
            options.write_file(self.junit, write_junit(report))
        if self.markdown is not None:
            options.write_file(self.markdown, write_markdown(report))
        if self.json is not None and realpath(self.json) != realpath(self.out / REPORT_FILE):
            options.write_text(self.json, report.to_json())

    def write_texts(self, audit: TextAudit) -> None:
        """Write the files of an audit of texts that are not in its folder."""
        if self.html is not None:
            options.write_file(self.html, audit.to_html())
        if self.junit is not None:
            options.write_file(self.junit, audit.to_junit())
        if self.json is not None:
            options.write_text(self.json, audit.report.to_json())


def run_job(
    job: AuditJob, outputs: AuditOutputs, console: Console, *, command: str, pool: Pool | None = None
) -> Result:
    """Run an audit, write its files and return the result; its `failure` says why thresholds were not evaluated."""
    if any(value is not None for value in (job.text, job.max_calls, job.replacements)):
        raise DataError("--text, --max-calls and --replacements are for 'neuronfair audit' with a column of texts")
    job.model.check()
    from neuronfair.audits.folder import WEIGHTS, find_recorded_file
    from neuronfair.audits.provenance import ParallelAudit
    from neuronfair.audits.run import run
    from neuronfair.domain.population.model import read_records
    from neuronfair.domain.tables.dataset import DATASETS
    from neuronfair.render.terminal import stage_progress
    from neuronfair.scale.tasks import MAX_PROCESSES
    from neuronfair.store.ledger import discard

    outputs.check(job)
    options.check_device(job.model.device)
    options.read_decision(job.model.decision)
    audit_input = job.table.load(job.model, job.take_rules).with_favourable(job.favourable)
    table = audit_input.data
    population = None if job.population is None else read_records(job.population, table.domain)
    for remark in audit_input.remarks:
        console.print(f"Table: {remark}")
    checks = job.checks.read(table.domain)
    own_weights = find_recorded_file(outputs.out, WEIGHTS) if job.model.model is None and not outputs.force else None
    opened_model, card = _open_or_train(job, table, own_weights, checks, console)
    source = replace(audit_input.source, model=job.model.model or str(outputs.out / WEIGHTS))
    provenance = replace(
        audit_input.provenance,
        command=command,
        card=card,
        trained_here=job.model.model is None,
        table=None if job.table.data in DATASETS else job.table.data,
        join_options=job.table.join_arguments,
        parallel=None if pool is None else ParallelAudit(pool, source.open),
        processes=MAX_PROCESSES,
    )
    if outputs.force:  # after all inputs were read without an error
        discard(outputs.out)
    with stage_progress("Auditing", quiet=console.quiet) as show:
        result = run(
            opened_model,
            table,
            settings=job.settings,
            checks=checks,
            provenance=provenance,
            folder=outputs.out,
            progress=show,
            own_records=population,
        )
    outputs.write(result.report)
    if result.failure is None:
        checks.extend(result.report)
    return result


def run_text_job(job: AuditJob, outputs: AuditOutputs, console: Console) -> TextAudit:
    """Run an audit of texts and return the result; its `failure` says why thresholds were not evaluated."""
    job.refuse_table_options()
    from neuronfair.render.terminal import stage_progress
    from neuronfair.store.ledger import discard
    from neuronfair.text.audit import audit_texts
    from neuronfair.text.domain import read_texts

    outputs.check(job)
    texts, labels = read_texts(job.table.data, str(job.text), job.table.target)
    if outputs.force:
        discard(outputs.out)
    with stage_progress("Auditing", quiet=console.quiet) as show:
        return audit_texts(
            job.model.model,
            texts,
            str(job.table.sensitive),
            labels=labels,
            favourable=job.favourable,
            preprocess=job.model.preprocess,
            settings=job.text_settings,
            fail_if=job.fail_if,
            folder=outputs.out,
            progress=show,
            decision=options.read_decision(job.model.decision),
            trust_pickle=job.model.trust_pickle,
            name=job.table.data,
            column=str(job.text),
            replacements=job.replacements,
        )


def _open_or_train(
    job: AuditJob, table: Dataset, own_weights: Path | None, checks: LoadedChecks, console: Console
) -> tuple[OpenedModel, Card | None]:
    """Return the model and, of a neuronfair classifier, its card; without --model, use `own_weights` or train one."""
    from neuronfair.audits.folder import check_same_audit
    from neuronfair.audits.settings import WHITE_BOX_METHODS
    from neuronfair.model.weights import load_weights
    from neuronfair.store.ledger import rows_digest

    settings, sensitive = job.settings, table.domain.sensitive
    if job.model.model is None and own_weights is None:
        checks.refuse(sensitive, settings.methods or WHITE_BOX_METHODS, settings.twins)
        return job.model.train(table, console, settings.seed, _choose_training(table, job.quick))
    if own_weights is not None:  # trained on the data of an earlier audit
        check_same_audit(own_weights.parent, {"domain": table.domain.fingerprint, "rows": rows_digest(table.rows)})
    path = job.model.model or str(own_weights)
    opened_model = replace(job.model.source, model=path).open(table)
    checks.refuse(sensitive, settings.choose_methods(opened_model), settings.twins)
    return opened_model, load_weights(path)[1] if opened_model.kind == "neuronfair" else None


def _choose_training(table: Dataset, quick: bool) -> TrainingSettings:
    """Return settings that train a classifier in seconds, also on a large data set."""
    from neuronfair.model.training_loop import TrainingSettings

    if len(table) < LARGE_TABLE_RECORDS:
        return TrainingSettings(restarts=1) if quick else TrainingSettings()
    return TrainingSettings(restarts=1, batch=512, lr=0.003, patience=2 if quick else 5, epochs=10 if quick else 100)


def read_project_settings(folder: Path) -> Values:
    """Return the options set in [tool.neuronfair] of a pyproject.toml; refuse unknown keys and keys that run code."""
    path = folder / PROJECT_FILE
    if not path.is_file():
        return {}
    try:
        tool = tomllib.loads(read_text(path)).get("tool", {})
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not TOML in UTF-8: {error}") from error
    values = tool.get("neuronfair", {}) if isinstance(tool, dict) else {}
    location, declared = f"{path}: [tool.neuronfair]", find_parameters(AuditJob)
    if not isinstance(values, dict):
        raise DataError(f"{location}: expected a table")
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in declared:
            raise DataError(f"{location}: unknown key '{key}'. {did_you_mean(name, declared)}")
        if name in _CODE_OPTIONS or (name == "model" and ":" in str(value)):
            raise DataError(f"{location}: {key} = {value!r} runs a program. Set it on the command line instead")
    settings, problems = validate_entry({key.replace("-", "_"): value for key, value in values.items()}, declared)
    for problem in problems:
        raise DataError(f"{location}: {problem}")
    return settings


class ProjectDefaults(Command):
    """The command `audit`, with defaults from pyproject.toml in the working folder."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read defaults from [tool.neuronfair], unless the user wants the help text."""
        if "--help" not in args:
            ctx.default_map = {name: _as_click_default(value) for name, value in read_project_settings(Path()).items()}
        return super().parse_args(ctx, args)


def _as_click_default(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value


@command(app, panel=AUDIT, cls=ProjectDefaults)
def audit(job: AuditJob, outputs: AuditOutputs, ray: RayOption = None) -> None:
    """Test whether decisions of a model depend on a sensitive attribute, and for whom.

    Writes report.html, audit.json and all findings into --out. After Ctrl-C the same command resumes.

    Examples:

    `neuronfair audit` (trains a network on Adult and tests it for sex)

    `neuronfair audit table.csv --model m.onnx --target income --sensitive sex --out run --fail-if 'flip_rate > 1%'`

    `neuronfair audit text.csv --text comment --sensitive gender --model m:predict`

    Exit status: 0; 1: a threshold failed; 2: an error; 3: an internal error; 130: Ctrl-C. [tool.neuronfair] in
    pyproject.toml sets defaults.
    """
    from neuronfair.render.terminal import make_console, print_audit

    console = make_console(quiet=outputs.quiet or options.is_stdout(outputs.json))
    if job.text is not None:
        _audit_texts(job, outputs, console)
        return
    words = ["audit", *job.command_words(outputs.out)] if read_project_settings(Path()) else sys.argv[1:]
    typed = shlex.join(["neuronfair", *words])
    with options.make_pool(ray) as pool:
        result = run_job(job, outputs, console, command=typed, pool=None if ray is None else pool)
    if result.failure is not None:
        raise result.failure
    print_audit(console, result.report, outputs.report, verbose=outputs.verbose)
    _exit_with_status(result.report.reproduction.interrupted, result.report.gate, quiet=outputs.quiet)


def _exit_with_status(interrupted: bool, gate: Gate | None, *, quiet: bool) -> None:
    """End with the exit status of an audit: interrupted, or a threshold failed."""
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if gate is not None and not gate.passed:
        for check in gate.checks:
            if check.fired and quiet:  # the log of a failed build needs a reason
                complain(f"--fail-if '{check.expression}': {check.explained}")
        raise typer.Exit(GATE_FAILED)


def _audit_texts(job: AuditJob, outputs: AuditOutputs, console: Console) -> None:
    """Audit a model of texts, print the summary and end with the status of the thresholds."""
    if outputs.markdown is not None:
        raise DataError("--markdown is not written for texts. Use --json or the report in --out")
    audit = run_text_job(job, outputs, console)
    from neuronfair.text.report import lines

    outputs.write_texts(audit)
    for line in (*lines(audit.report), f"Report: {outputs.report}"):
        console.print(line, soft_wrap=True)
    if audit.failure is not None:
        raise audit.failure
    _exit_with_status(audit.interrupted and not audit.report.calls_spent, audit.report.gate, quiet=outputs.quiet)


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
    workers: Annotated[int, option("Processes of one core each, side by side.", low=1)] = 1,
    ray: RayOption = None,
    junit: Annotated[Path | None, option("Write the results of all as JUnit XML.", panel=OUTPUT)] = None,
) -> None:
    """Audit all models, data sets and attributes that a file names.

    Lists of data, model and sensitive in an [[audit]] give one audit for each combination. Paths are relative to the
    file. Errors in the file are reported before the first audit starts; an audit that fails does not stop the others.
    The same command resumes after Ctrl-C and repeats only what has changed. Exit status: 0, 1 if a threshold failed, 2
    after an error, 3 after an internal error, 130 after Ctrl-C.

    Example:

    `neuronfair audit-all audits.toml --workers 8 --junit audits.xml`
    """
    from neuronfair.audits.report import format_json
    from neuronfair.cli.audit_batch import INDEX_PAGE, AuditFile, Batch, BatchFolder
    from neuronfair.render.export import write_batch_junit
    from neuronfair.render.terminal import compose_index, progress_bar

    pool = options.make_pool(ray, workers)
    options.check_out(junit)
    console = output.console()
    if not file.is_file():
        raise DataError(f"{file}: there is no such file. Expected TOML with [[audit]] tables")
    folder = BatchFolder(file.absolute().parent, out.absolute(), force)
    with chdir(folder.working_folder):
        audit_file = AuditFile.read(file.name)
    if audit_file.problems:
        for problem in audit_file.problems:
            complain(f"{file}: {problem}")
        raise DataError(f"{file}: {pluralise(len(audit_file.problems), 'problem')}. No audit was started")
    folder.check()
    batch = Batch(file.name, audit_file.audits, folder)
    missing = batch.list_missing()
    completed_count, missing_names = len(batch.audits) - len(missing), [audit.name for audit in missing]
    with progress_bar("Auditing", quiet=console.quiet) as show, pool as workers_of_all:

        def note_progress(counts: Sequence[tuple[int, int, int]]) -> None:
            running = [name for name, (pieces, total, _) in zip(missing_names, counts, strict=True) if pieces < total]
            show(completed_count + sum(pieces for pieces, _, _ in counts), len(batch.audits), first_few(running))

        interrupted = batch.run(workers_of_all, note_progress, missing)
    index = batch.index
    batch.write()
    if junit is not None:
        options.write_file(junit, write_batch_junit(index, batch.reports))
    if output.json is not None:
        options.write_text(output.json, format_json(index))
    console.print(compose_index(index))
    console.print(f"Index: {out / INDEX_PAGE}", soft_wrap=True)
    for line in index.audits:
        for reason in (line.error, *line.fired) if line.state in ("failed", "error") and output.quiet else ():
            if reason is not None:
                complain(f"{line.name}: {reason}")
    if status := _find_exit_status(batch, interrupted):
        raise typer.Exit(status)


def _find_exit_status(batch: Batch, interrupted: bool) -> int:
    """Return the exit status of all audits: the worst one."""
    index = batch.index
    if interrupted:
        return INTERRUPTED
    if batch.internal:
        return DEFECT
    if index.count("error", "not finished"):
        return ERROR
    return GATE_FAILED if index.count("failed") else 0


@command(app, "audit-images", panel=AUDIT)
def audit_images(
    source: Annotated[
        str, option("Folder or zip file of images; 'drawn' makes examples.", metavar="DIR", positional=True)
    ],
    sensitive: Annotated[str, option("Column of the labels, such as gender or race.", panel=INPUT)],
    out: Annotated[Path, option("Folder to make or resume.", panel=OUTPUT, metavar="FOLDER")],
    force: ForceOption = False,
    labels: Annotated[
        Path | None, option("CSV with a column file, the attribute and, optionally, is_face.", panel=INPUT)
    ] = None,
    model: Annotated[
        Path | None, option("Detector file from an earlier audit. Default: train one.", panel=INPUT)
    ] = None,
    own_body: Annotated[bool, option("Train a separate body for the attribute classifier.")] = False,
    faces: Annotated[int | None, option("Number of faces to use. Default: all.", low=20, panel=BUDGET)] = None,
    steps: Annotated[int, option("Steps of each search chain.", low=0, panel=BUDGET)] = 40,
    epochs: Annotated[int, option("Epochs of training.", low=1, panel=BUDGET)] = 12,
    device: options.DeviceOption = "cpu",
    seed: options.SeedOption = 0,
    quiet: options.QuietOption = False,
) -> None:
    """Test whether decisions of an image detector depend on a sensitive attribute.

    After Ctrl-C or a kill the same command resumes. Exit status: 0, 2 for an error, 130 after Ctrl-C.

    Example: `neuronfair audit-images photos --labels photos.csv --sensitive gender --out run`
    """
    from neuronfair.images.archive import import_pillow, open_images
    from neuronfair.images.audit import audit_images as audit_detector
    from neuronfair.images.report import PAGE, PAIRS, REPORT_FILE, describe_image_audit, write_results
    from neuronfair.images.search import ImageSettings
    from neuronfair.render.terminal import make_console, stage_progress

    import_pillow()
    options.check_run_folder(out, force, (source, labels, model), of_audit=True)
    options.check_device(device)
    console = make_console(quiet=quiet)
    pictures = open_images(source, labels, faces=faces, seed=seed)
    settings = ImageSettings(own_body=own_body, epochs=epochs, steps=steps, seed=seed)
    try:
        with stage_progress("Reading", quiet=quiet) as show:
            audit = audit_detector(
                pictures, sensitive, detector=model, settings=settings, device=device, folder=out, force=force,
                progress=show,
            )  # fmt: skip
    except KeyboardInterrupt:
        console.print("Interrupted. The same command resumes after the last finished step.")
        raise typer.Exit(INTERRUPTED) from None
    write_results(out, audit)
    for line in (*(f"Note: {note}" for note in pictures.notes), *describe_image_audit(audit.report)):
        console.print(line)
    console.print(f"Pairs side by side: {out / PAGE}. Figures: {out / REPORT_FILE}. Images: {out / PAIRS}")
