"""The command `audit --text`: an audit of a model of texts, from the options of `audit` that apply to texts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from neuronfair.cli import options
from neuronfair.cli.audit import AuditJob, AuditOutputs
from neuronfair.errors import DataError
from neuronfair.formatting import visible
from neuronfair.parameters import build, flag_of, parameters, values_of

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED, GATE_FAILED = 130, 1  # exit statuses
_APPLY = {"data", "sensitive", "target", "model", "preprocess", "trust_pickle", "decision", "favourable", "fail_if"}
_APPLY |= {"text", "max_calls", "seeds", "steps", "methods", "seed", "quick"}


def check(job: AuditJob, outputs: AuditOutputs) -> None:
    """Refuse options that mean nothing for texts, and a test without a model or an attribute."""
    known, usual = parameters(AuditJob), values_of(build(AuditJob, {"quick": job.quick}))
    for name, value in values_of(job).items():
        if name not in _APPLY and value != usual[name]:
            raise DataError(f"{flag_of(name, known[name])} does not apply with --text. Leave it out")
    for flag, given in (("--junit", outputs.junit), ("--markdown", outputs.markdown)):
        if given is not None:
            raise DataError(f"{flag} is not written for texts. Use --json or the report in --out")
    if job.model.model is None:
        raise DataError("--text needs a --model: a .skops file, a Hugging Face folder or package.module:name")
    if job.table.sensitive is None:
        raise DataError("--text needs --sensitive: gender, religion, ethnicity, … or a CSV file with identity terms")


def audit_text(job: AuditJob, outputs: AuditOutputs, console: Console) -> None:
    """Audit a model of texts, print the summary and end with the status of the thresholds."""
    check(job, outputs)
    from neuronfair.atomic import write_text
    from neuronfair.audits.folder import check_audit_folder, check_writable
    from neuronfair.domain.tables.files import read_sheet
    from neuronfair.errors import did_you_mean
    from neuronfair.render.terminal import stage_progress
    from neuronfair.store.ledger import check_discardable, discard
    from neuronfair.text.audit import PAGE, TextSettings, audit_texts
    from neuronfair.text.report import lines

    if outputs.force:
        check_writable(outputs.out)
        check_discardable(outputs.out, job.reads)
    else:
        check_audit_folder(outputs.out)
    sheet = read_sheet(job.table.data)
    for name in filter(None, (job.text, job.table.target)):
        if name not in sheet.columns:
            raise DataError(f"{job.table.data} has no column '{name}'. {did_you_mean(name, sheet.columns)}")
    target = job.table.target
    usual, quick = TextSettings(), job.quick
    given = values_of(job)
    settings = TextSettings(
        methods=job.settings.methods,
        starts=_either(given["seeds"], job, "seeds", 30 if quick else usual.starts),
        steps=_either(given["steps"], job, "steps", 10 if quick else usual.steps),
        max_texts=500 if quick else usual.max_texts,
        max_calls=job.max_calls,
        seed=job.settings.seed,
    )
    if outputs.force:
        discard(outputs.out)
    with stage_progress("Auditing", quiet=console.quiet) as show:
        audit = audit_texts(
            job.model.model,
            list(sheet.columns[str(job.text)]),
            str(job.table.sensitive),
            labels=None if target is None else list(sheet.columns[target]),
            favourable=job.favourable,
            tokenizer=job.model.preprocess,
            settings=settings,
            fail_if=job.fail_if,
            folder=outputs.out,
            progress=show,
            decision=options.read_decision(job.model.decision),
            trust_pickle=job.model.trust_pickle,
            name=job.table.data,
            column=str(job.text),
        )
    if outputs.html is not None:
        options.write_file(outputs.html, audit.to_html())
    if outputs.json is not None and options.is_stdout(outputs.json):
        sys.stdout.write(visible(audit.report.to_json(), keep="\n"))
    elif outputs.json is not None:
        write_text(outputs.json.resolve(), audit.report.to_json())
    for line in lines(audit.report):
        console.print(visible(line), markup=False, highlight=False, soft_wrap=True)
    console.print(f"Report: {outputs.html or outputs.out / PAGE}", markup=False, highlight=False, soft_wrap=True)
    if audit.interrupted and audit.report.model.calls is None:
        raise typer.Exit(INTERRUPTED)
    if audit.report.gate is not None and not audit.report.gate.passed:
        raise typer.Exit(GATE_FAILED)


def _either(value: int, job: AuditJob, name: str, usual: int) -> int:
    """Return what the user has said, or the default for texts, which is not that for tables."""
    default = values_of(build(AuditJob, {"quick": job.quick}))[name]
    return usual if value == default else value
