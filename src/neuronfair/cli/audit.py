"""The commands `audit`, of one model, and `audit-all`, of all models that a file names."""

from __future__ import annotations

import shlex
import sys
import tomllib
from collections.abc import Sequence
from contextlib import AbstractContextManager, chdir, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neuronfair.cli import files
from neuronfair.cli.app import AUDIT, INTERNAL, Command, app, command, complain, option
from neuronfair.cli.audit_job import AuditJob, AuditOutputs, carry_out
from neuronfair.cli.options import ForceOption, OutputOptions, RayOption, pool_of
from neuronfair.errors import DataError, NeuronFairError, did_you_mean
from neuronfair.formatting import plural, some
from neuronfair.limits import read_text
from neuronfair.parameters import OUTPUT, checked, parameters

if TYPE_CHECKING:
    from neuronfair.cli.audit_batch import Batch
    from neuronfair.scale.pool import Pool

INTERRUPTED, GATE_FAILED, WRONG = 130, 1, 2  # exit statuses
PROJECT = "pyproject.toml"
_RUNS_CODE = ("trust_pickle", "preprocess")  # what a file that happens to lie in a folder may not ask for


def project_settings(folder: Path) -> dict[str, Any]:
    """Return the options that [tool.neuronfair] of a folder's pyproject.toml sets; refuse what is none of them."""
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
            raise DataError(f"{where}: {key} = {value!r} runs a program. Say it on the command line instead")
    settings, problems = checked({key.replace("-", "_"): value for key, value in found.items()}, known)
    for problem in problems:
        raise DataError(f"{where}: {problem}")
    return settings


class ProjectDefaults(Command):
    """The command `audit`, whose defaults the working folder's pyproject.toml may set."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take defaults from [tool.neuronfair], unless only the help text is wanted."""
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
    """
    from neuronfair.render.terminal import make_console, print_audit

    console = make_console(quiet=outputs.quiet or files.is_stdout(outputs.json))
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
        if outputs.quiet:  # a build that fails says why
            for failed in (one for one in report.gate.checks if one.fired):
                complain(f"--fail-if '{failed.expression}': {failed.text}")
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
    from neuronfair.cli.audit_batch import INDEX, Batch, BatchFolder
    from neuronfair.cli.audit_file import AuditFile
    from neuronfair.render.junit import junit_of_all
    from neuronfair.render.terminal import index_table, progress_bar

    if workers > 1 and ray is not None:
        raise NeuronFairError("--workers: for processes of this machine, and --ray for a cluster. Name one of the two")
    files.check_out(junit)
    output.check()
    if not file.is_file():
        raise DataError(f"{file}: there is no such file. Expected TOML with [[audit]] tables")
    place = BatchFolder(file.absolute().parent, out.absolute(), force)
    with chdir(place.folder):
        found = AuditFile.read(file.name)
    if found.problems:
        for problem in found.problems:
            complain(f"{file}: {problem}")
        raise DataError(
            f"{file}: {plural(len(found.problems), 'thing is', 'things are')} wrong in it. Nothing was done"
        )
    place.check()
    console = output.console()
    batch = Batch(file.name, found.audits, place)
    missing = batch.missing()
    before, names = len(batch.audits) - len(missing), [audit.name for audit in missing]
    with progress_bar("Auditing", quiet=console.quiet) as show, _pool(workers, ray) as pool:

        def note(lines: Sequence[tuple[int, int, int]]) -> None:
            running = [name for name, (done, total, _) in zip(names, lines, strict=True) if done < total]
            show(before + sum(done for done, _, _ in lines), len(batch.audits), some(running))

        interrupted = batch.run(pool, note, missing)
    index = batch.index
    batch.write()
    if junit is not None:
        files.write_file(junit, junit_of_all(index, batch.reports))
    if files.is_stdout(output.json):
        typer.echo(as_json(index), nl=False)
    elif output.json is not None:
        files.write_file(output.json, as_json(index))
    console.print(index_table(index))
    console.print(f"Index: {out / INDEX}", soft_wrap=True)
    for line in index.audits:
        for why in (line.error, *line.fired) if line.state in ("failed", "error") and output.quiet else ():
            if why is not None:
                complain(f"{line.name}: {why}")
    if status := _status(batch, interrupted):
        raise typer.Exit(status)


def _status(batch: Batch, interrupted: bool) -> int:
    """Return the exit status of many audits: that of the worst end of one."""
    index = batch.index
    if interrupted:
        return INTERRUPTED
    if batch.internal:
        return INTERNAL
    if index.count("error", "not finished"):
        return WRONG
    return GATE_FAILED if index.count("failed") else 0


def _pool(workers: int, ray: str | None) -> AbstractContextManager[Pool]:
    if workers == 1:
        return pool_of(ray)
    from neuronfair.scale.pool import Processes

    return nullcontext(Processes(workers))
