"""The command that proves for whom the decision cannot flip, and the one that checks such a proof."""

from __future__ import annotations

import json
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neuronfair.cli import options, tables
from neuronfair.cli.app import app, complain, warn_of_encoding
from neuronfair.cli.options import RayOption, pool_of
from neuronfair.errors import NeuronFairError
from neuronfair.formatting import listed, plural

if TYPE_CHECKING:
    from rich.console import Console

    from neuronfair.audits.inputs import AuditInput
    from neuronfair.model.decision import Decision
    from neuronfair.store.files import Json

INTERRUPTED, REFUSED = 130, 1


@app.command()
def certify(
    data: Annotated[
        str | None,
        typer.Argument(metavar="[DATA]", help="adult, german, …, a table (CSV, Parquet, …), or a domain file (TOML)."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="A model file (.safetensors, .onnx, .skops, …), or package.module:name."),
    ] = None,
    sensitive: options.SensitiveOption = None,
    where: Annotated[
        str, typer.Option(help="Only people who meet conditions: 'age >= 30 and education in [Masters, Doctorate]'.")
    ] = "",
    seconds: Annotated[
        float, typer.Option(min=0, max=1e9, help="Stop after so many seconds, with what is proved.")
    ] = 60.0,
    out: Annotated[
        Path | None, typer.Option(help="Folder to make, or to go on with: after an interruption, or for longer.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Check this certificate instead, by other code than proved it.")
    ] = None,
    encoding: options.EncodingOption = "default",
    weights: options.WeightsOption = None,
    preprocess: options.PreprocessOption = None,
    trust_pickle: options.TrustOption = False,
    decision: options.DecisionOption = None,
    domain: options.DomainOption = None,
    target: options.TargetOption = None,
    attributes_file: tables.AttributesFileOption = None,
    key: tables.KeyOption = None,
    force: options.ForceOption = False,
    json_file: options.JsonOption = None,
    device: options.DeviceOption = "cpu",
    ray: RayOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Prove for how many people the decision cannot flip when only the sensitive attribute changes.

    Everybody of the domain, or of the region that --where names, is proved fair, proved discriminatory, or left open.
    The folder holds proof.json and certificate.parquet. After Ctrl-C or a kill the same command goes on; with more
    --seconds it goes on, too. With --ray all cores of this machine, or of a cluster, prove together.

    --check FILE verifies a certificate for the model that you name: exit status 0 if all of it holds, 1 if not.

    Examples:

    `neuronfair certify adult --model adult.safetensors --sensitive sex --where 'age >= 60' --out proof`

    `neuronfair certify --check proof/certificate.parquet --model adult.safetensors`
    """
    if model is None:
        raise NeuronFairError("name the model with --model: a file, or package.module:name")
    source = options.ModelOptions(model, weights, trust_pickle, decision, "cpu", preprocess)
    from neuronfair.render.terminal import make_console

    options.check_out(json_file, or_stdout=True)
    options.check_device(device)
    console = make_console(quiet=quiet or options.is_stdout(json_file))
    load = partial(
        _load,
        encoding=encoding,
        domain=domain,
        sensitive=sensitive,
        target=target,
        source=source,
        beside=tables.JoinOptions.of(attributes_file, key),
    )
    if check is not None:
        verified = _check(check, source, None if data is None else load(data), console)
        if json_file is not None:
            options.write_json(json_file, verified)
        return
    if data is None or out is None:
        raise NeuronFairError("name a table or a domain file, and a folder with --out; or a certificate with --check")
    from neuronfair.audits.folder import check_writable, refuse_links
    from neuronfair.audits.provenance import Origin, replay_options
    from neuronfair.proof.session import CERTIFICATE, ProofRequest, ProofRun, problem_where
    from neuronfair.proof.session import certify as certify_problem
    from neuronfair.render.proof import proof_report
    from neuronfair.render.terminal import progress_bar
    from neuronfair.store.ledger import check_discardable, check_folder, discard
    from neuronfair.store.manifest import DOMAIN
    from neuronfair.store.manifest import where as place

    if force:
        check_discardable(out, (data, model, weights, domain, attributes_file))
    else:
        check_folder(out)
        refuse_links(out)
    check_writable(out)
    found = load(data)
    table = found.data
    for remark in found.remarks:
        console.print(f"Table: {remark}")
    opened = source.open(table)
    warn_of_encoding(opened, table, console)
    problem = problem_where(opened, table.domain, where, device)
    if force:  # not before all that can be wrong was read
        discard(out)
    run = ProofRun.create_or_open(
        out,
        table,
        ProofRequest(opened.decision, where),
        model=place(model),
        weights=opened.fingerprint,
        outputs=opened.model.outputs,
        extra_weights=None if weights is None else str(weights.absolute()),
    )
    report = run.finished(seconds)
    if report is not None:
        console.print(f"{out}: this proof is finished already. More --seconds go on with it, --force begins anew.")
    else:
        with pool_of(ray) as pool, progress_bar("Proving", quiet=console.quiet) as bar:
            report = certify_problem(
                problem,
                opened,
                table,
                seconds,
                show=lambda what, *rest: bar(*rest, what=what),
                run=run,
                pool=None if ray is None else pool,
            )
    console.print(proof_report(report))
    if problem.bounder is not None:  # otherwise there is nothing but the model's own word
        origin = Origin(weights=weights, trust_pickle=trust_pickle, preprocess=preprocess)
        named = replay_options(opened, origin) or ("--model", model)
        again = shlex.join(["neuronfair", "certify", "--check", str(out / CERTIFICATE), *named])
        console.print(f"Check it: {again}", soft_wrap=True)
    if found.inferred:
        console.print(f"The domain was read off the table. Please read and correct it: {out / DOMAIN}")
    if json_file is not None:
        options.write_json(json_file, json.loads(report.to_json()))
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)


def _is_domain(data: str) -> bool:
    return Path(data).suffix.lower() == ".toml"


def _load(
    data: str,
    *,
    encoding: str,
    domain: Path | None,
    sensitive: str | None,
    target: str | None,
    source: options.ModelOptions,
    beside: tables.JoinOptions | None,
) -> AuditInput:
    """Return a table or, of a domain file alone, people drawn from it for the model to be tried on."""
    from neuronfair.audits.inputs import drawn_from, read_input
    from neuronfair.domain.schema.toml import read_domain

    if not _is_domain(data):
        return tables.load_data(data, encoding, domain, sensitive, target, source, beside=beside)
    if domain is not None or target is not None or beside is not None:
        raise NeuronFairError(
            f"{data}: is a domain file; --domain, --target and --attributes-file are for tables of your own"
        )
    return read_input(drawn_from(read_domain(Path(data))), source.source, sensitive=options.names(sensitive))


def _in_words(decision: Decision) -> str:
    """Return a decision as --decision takes it."""
    return decision.kind if decision.kind == "argmax" else f"{decision.kind}={decision.value!r}"


def _check(path: Path, source: options.ModelOptions, asked: AuditInput | None, console: Console) -> Json:
    """Check a certificate; what is wrong with it is said, and exit status 1."""
    from neuronfair.audits.inputs import drawn_from
    from neuronfair.proof.certificate import CertificateError, read
    from neuronfair.proof.checker.check import check
    from neuronfair.render.terminal import progress_bar

    if not path.is_file():
        raise NeuronFairError(f"--check {path}: there is no such file")
    try:
        certificate = read(path)
        opened = source.open(drawn_from(certificate.domain))
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
