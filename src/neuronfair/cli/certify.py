"""The command that certifies records, and checks certificates."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from neuronfair.cli import options
from neuronfair.cli.app import AUDIT, app, command, complain, option
from neuronfair.cli.options import ForceOption, ModelOptions, OutputOptions, RayOption, TableOptions, pool_of
from neuronfair.errors import NeuronFairError
from neuronfair.formatting import listed, plural
from neuronfair.parameters import BUDGET, INPUT, OUTPUT

if TYPE_CHECKING:
    from rich.console import Console

    from neuronfair.audits.inputs import AuditInput
    from neuronfair.domain.tables.dataset import Dataset
    from neuronfair.model.decision import Decision
    from neuronfair.model.open import Opened
    from neuronfair.proof.problem import Problem
    from neuronfair.proof.records import Order, ProofRecords
    from neuronfair.proof.report import ProofReport
    from neuronfair.proof.session import ProofRequest, ProofRun
    from neuronfair.store.files import Json

INTERRUPTED, REFUSED = 130, 1


@command(app, panel=AUDIT, omit=("columns",))
def certify(
    table: TableOptions,
    model: ModelOptions,
    output: OutputOptions,
    data: Annotated[
        str | None,
        option(
            "adult, german, …, a table (CSV, Parquet, …), or a domain file (TOML).", metavar="DATA", positional=True
        ),
    ] = None,
    where: Annotated[
        str, option("Certify only records that meet this condition: 'age >= 30 and job in [a, b]'.", panel=INPUT)
    ] = "",
    seconds: Annotated[float, option("Time limit in seconds.", panel=BUDGET, least=0, most=1e9)] = 60.0,
    order: Annotated[
        Literal["records", "volume"], option("Decide where most records, or most volume, is undecided.", panel=BUDGET)
    ] = "records",
    out: Annotated[
        Path | None, option("Folder to make, or to resume, with more --seconds too.", panel=OUTPUT, metavar="FOLDER")
    ] = None,
    row: Annotated[
        int | None, option("Show the certified region around this row of the data set, from 1.", panel=OUTPUT, least=1)
    ] = None,
    check: Annotated[Path | None, option("Check this certificate instead of making one.", panel=INPUT)] = None,
    force: ForceOption = False,
    ray: RayOption = None,
) -> None:
    """Prove for how many records the decision does not depend on the sensitive attribute.

    It counts the records of the data set, realistic synthetic ones, and those of the input space or of --where: the
    decision is the same in every group, differs, or is undecided. The folder holds proof.json and certificate.parquet.
    After Ctrl-C the same command resumes; with more --seconds it continues.

    --check FILE verifies a certificate for the model that you name: exit status 0 if all of it holds, 1 if not.

    Examples:

    `neuronfair certify adult --model adult.safetensors --sensitive sex --out proof --row 17`

    `neuronfair certify --check proof/certificate.parquet --model adult.safetensors`
    """
    if model.model is None:
        raise NeuronFairError("name the model with --model: a file, or package.module:name")
    device, model = model.device, replace(model, device="cpu")
    model.check()
    output.check()
    options.check_device(device)
    console = output.console()
    if check is not None:
        output.write(_check(check, model, None if data is None else _load(table, model), console))
        return
    if data is None or out is None:
        raise NeuronFairError("name a table or a domain file, and a folder with --out; or a certificate with --check")
    from neuronfair.proof.session import ProofRequest
    from neuronfair.render.proof import proof_report
    from neuronfair.store.ledger import discard

    options.check_run_folder(out, force, (data, model.model, model.weights, table.domain, table.attributes_file))
    found, opened, problem = _prepared(table, model, where, device, console)
    if force:  # not before all that can be wrong was read
        discard(out)
    run = _run(out, found.data, opened, model, ProofRequest(opened.decision, where, order=order))
    report = run.finished(seconds)
    if report is not None:
        console.print(f"{out}: this proof is finished already. More --seconds continue it, --force starts anew.")
    else:
        report = _prove(problem, opened, _records(problem, found.data, data, order), seconds, run, ray, console)
    console.print(proof_report(report))
    region = {} if row is None else _region(_records(problem, found.data, data, order), row, console)
    _say_next(out, problem, opened, model, found, console)
    output.write(json.loads(report.to_json()) | region)
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)


def _records(problem: Problem, found: Dataset, data: str, order: Order) -> ProofRecords:
    """Return the records of a data set; a domain file has none."""
    from neuronfair.proof.records import ProofRecords

    return ProofRecords.none(problem, found.name) if _is_domain(data) else ProofRecords.of(problem, found, order=order)


def _prepared(
    table: TableOptions, model: ModelOptions, where: str, device: str, console: Console
) -> tuple[AuditInput, Opened, Problem]:
    """Return the data set, the model, and both ready for a proof."""
    from neuronfair.proof.session import problem_where

    found = _load(table, model)
    for remark in found.remarks:
        console.print(f"Table: {remark}")
    opened = model.source.open(found.data)
    options.warn_of_encoding(opened, found.data, console)
    return found, opened, problem_where(opened, found.data.domain, where, device)


def _say_next(
    out: Path, problem: Problem, opened: Opened, model: ModelOptions, found: AuditInput, console: Console
) -> None:
    """Show how to check the certificate, and where an inferred domain is."""
    from neuronfair.store.manifest import DOMAIN

    if problem.bounder is not None:  # otherwise there is nothing but the model's own word
        console.print(f"Check it: {_check_command(out, opened, model)}", soft_wrap=True)
    if found.inferred:
        console.print(f"The domain was read off the table. Please read and correct it: {out / DOMAIN}")


def _region(records: ProofRecords, row: int, console: Console) -> Json:
    """Show the region of a row, and return it as an entry of the JSON result."""
    from neuronfair.render.proof import region_sentence

    region = records.region_of(row)
    console.print(f"Row {row:,}: {region_sentence(region)}", soft_wrap=True)
    return {"row": None if region is None else asdict(region)}


def _prove(
    problem: Problem,
    opened: Opened,
    records: ProofRecords,
    seconds: float,
    run: ProofRun,
    ray: str | None,
    console: Console,
) -> ProofReport:
    """Prove, with a bar: here, or with the workers of --ray."""
    from neuronfair.proof.session import certify as certify_problem
    from neuronfair.render.terminal import stage_progress

    with pool_of(ray) as pool, stage_progress("Proving", quiet=console.quiet) as bar:
        return certify_problem(
            problem,
            opened,
            records,
            seconds,
            show=bar,
            run=run,
            pool=None if ray is None else pool,
        )


def _run(out: Path, data: Dataset, opened: Opened, model: ModelOptions, request: ProofRequest) -> ProofRun:
    """Return the folder of a proof, made now or opened again."""
    from neuronfair.proof.session import ProofRun
    from neuronfair.store.manifest import where as place

    return ProofRun.create_or_open(
        out,
        data,
        request,
        model=place(str(model.model)),
        weights=opened.fingerprint,
        outputs=opened.model.outputs,
        extra_weights=None if model.weights is None else str(model.weights.absolute()),
    )


def _check_command(out: Path, opened: Opened, model: ModelOptions) -> str:
    """Return the command that checks a certificate."""
    from neuronfair.audits.provenance import Origin, replay_options
    from neuronfair.proof.session import CERTIFICATE

    origin = Origin(weights=model.weights, trust_pickle=model.trust_pickle, preprocess=model.preprocess)
    named = replay_options(opened, origin) or ("--model", str(model.model))
    return shlex.join(["neuronfair", "certify", "--check", str(out / CERTIFICATE), *named])


def _is_domain(data: str) -> bool:
    return Path(data).suffix.lower() == ".toml"


def _load(table: TableOptions, model: ModelOptions) -> AuditInput:
    """Return a table or, of a domain file alone, people drawn from it for the model to be tried on."""
    from neuronfair.audits.inputs import drawn_from, read_input
    from neuronfair.domain.schema.toml import read_domain

    if not _is_domain(table.data):
        return table.load(model)
    if table.domain is not None or table.target is not None or table.join is not None:
        raise NeuronFairError(
            f"{table.data}: is a domain file; --domain, --target and --attributes-file are for tables of your own"
        )
    people = drawn_from(read_domain(Path(table.data)))
    return read_input(people, model.source, sensitive=options.names(table.sensitive))


def _in_words(decision: Decision) -> str:
    """Return a decision as --decision takes it."""
    return decision.kind if decision.kind == "argmax" else f"{decision.kind}={decision.value!r}"


def _check(path: Path, source: ModelOptions, asked: AuditInput | None, console: Console) -> Json:
    """Check a certificate; what is wrong with it is said, and exit status 1."""
    from neuronfair.audits.inputs import drawn_from
    from neuronfair.proof.certificate import CertificateError, read
    from neuronfair.proof.checker.check import check
    from neuronfair.render.terminal import progress_bar

    if not path.is_file():
        raise NeuronFairError(f"--check {path}: there is no such file")
    try:
        certificate = read(path)
        opened = source.source.open(drawn_from(certificate.domain))
        if opened.decision != certificate.decision:
            raise CertificateError(
                f"{path}: it is about another decision, {_in_words(certificate.decision)}, not "
                f"{_in_words(opened.decision)}. Name it to check it: --decision {_in_words(certificate.decision)}"
            )
        with progress_bar("Checking", quiet=console.quiet) as bar:
            found = check(path, opened, domain=None if asked is None else asked.data.domain, progress=bar)
    except CertificateError as error:
        complain(f"refused: {error}")
        raise typer.Exit(REFUSED) from None
    console.print(
        f"Verified: {plural(found.boxes, 'box', 'boxes')} hold for this model and the decision "
        f"{_in_words(certificate.decision)}. Of {found.people:,} people "
        f"{'' if not certificate.where else f'where {certificate.where} '}it is true that the decision does not flip "
        f"with {listed(certificate.domain.sensitive)} for {found.fair:,} at least, and that it does for "
        f"{found.discriminatory:,} at least."
    )
    if asked is None:
        console.print(
            "The people are those of the input schema in the certificate. Name your table or domain file to compare it."
        )
    counts = {"people": found.people, "proved_fair": found.fair, "proved_discriminatory": found.discriminatory}
    return {"verified": True, **{name: str(count) for name, count in counts.items()}, "boxes": found.boxes}
