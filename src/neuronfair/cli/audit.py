"""The main command: a verdict, a page and figures about one model."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neuronfair.cli.app import app
from neuronfair.cli.options import (
    DecisionOption,
    DeviceOption,
    DomainOption,
    EncodingOption,
    JsonOption,
    ModelOption,
    QuietOption,
    SeedOption,
    SensitiveOption,
    Source,
    TargetOption,
    TrustOption,
    WeightsOption,
    check_device,
    check_out,
    is_stdout,
    load_data,
    read_decision,
    write_json,
)
from neuronfair.errors import NeuronFairError

if TYPE_CHECKING:
    from neuronfair.domain.data import Data
    from neuronfair.network.train import TrainingSettings
    from neuronfair.verdict.corpus import Corpus

LARGE = 10_000  # rows from which on large steps cost a classifier no accuracy
INTERRUPTED, FIRED = 130, 1


@app.command()
def audit(
    data: Annotated[
        str,
        typer.Argument(
            metavar="[DATA]", help="adult, german, bank, compas, meps, or a CSV or Parquet file of your own."
        ),
    ] = "adult",
    model: ModelOption = None,
    weights: WeightsOption = None,
    trust_pickle: TrustOption = False,
    decision: DecisionOption = None,
    domain: DomainOption = None,
    target: TargetOption = None,
    sensitive: SensitiveOption = None,
    encoding: EncodingOption = "default",
    out: Annotated[Path, typer.Option(help="Folder to make, or to go on with after an interruption.")] = Path(
        "neuronfair-audit"
    ),
    json_file: JsonOption = None,
    html: Annotated[Path | None, typer.Option(help="Where to write the page. Default: report.html in --out.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A first look: smaller searches and no repair.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many rows each search starts from.")] = None,
    steps: Annotated[int | None, typer.Option(min=0, help="Steps of the local phase, for each seed.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Time for each search.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Random people to judge.")] = None,
    repair: Annotated[bool, typer.Option(help="Also try a short retraining with the findings.")] = True,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(metavar="EXPR", help="Exit with status 1 if this holds, such as 'rate > 0.01'; may be repeated."),
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="File of past counterexamples: replayed first, and the worst findings added.")
    ] = None,
    baseline: Annotated[Path | None, typer.Option(help="audit.json of an earlier audit to compare with.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the result as JUnit XML.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write a summary in Markdown.")] = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Audit a model: how often, where and for whom a sensitive attribute changes its decision.

    Without arguments: Adult, sex, and a classifier trained on the spot. Several sensitive attributes are audited each
    alone and all together. The folder holds the page, audit.json and every finding; after Ctrl-C the same command
    goes on. Exit status: 0, 1 if a --fail-if holds, 2 for an error, 130 after Ctrl-C.

    Examples:

    `neuronfair audit`

    `neuronfair audit table.csv --model model.onnx --domain domain.toml --sensitive sex,race --out run`

    `neuronfair audit table.csv --model model.skops --target income --sensitive sex --fail-if 'rate > 1%'`
    """
    from neuronfair.atomic import write_text
    from neuronfair.domain.data import DATASETS
    from neuronfair.network.weights import load
    from neuronfair.report.audit import audit_report
    from neuronfair.report.console import make_console, progress_bar
    from neuronfair.report.page import audit_page
    from neuronfair.store.manifest import rows_digest
    from neuronfair.verdict.audit import AuditSettings, Origin
    from neuronfair.verdict.audit import audit as run
    from neuronfair.verdict.baseline import compare_with, read_baseline
    from neuronfair.verdict.corpus import extend, read_corpus, replay_corpus
    from neuronfair.verdict.folder import FIGURES, PAGE, WEIGHTS, check_audit_folder, check_same
    from neuronfair.verdict.gate import check
    from neuronfair.verdict.junit import junit as junit_xml
    from neuronfair.verdict.markdown import markdown as markdown_text

    check_audit_folder(out)
    for file in (html, json_file, corpus, junit, markdown):
        if file is not None and file.absolute().parent != out.absolute():  # which is made later
            check_out(file, or_stdout=file is json_file)
    check_device(device)
    read_decision(decision)
    console = make_console(quiet=quiet or is_stdout(json_file))
    given: dict[str, Any] = {"seeds": seeds, "steps": steps, "seconds": seconds, "samples": samples, "seed": seed}
    settings = AuditSettings.quick() if quick else AuditSettings(repair=repair)
    settings = replace(settings, **{name: value for name, value in given.items() if value is not None})
    table, text = _table(data, encoding, domain, sensitive, target)
    past = read_corpus(corpus, table.domain) if corpus is not None else None
    earlier = read_baseline(baseline) if baseline is not None else None
    own = out / WEIGHTS
    trained = model is None
    source = Source(str(own) if trained and own.exists() else model, weights, trust_pickle, decision, device)
    if source.model is not None:
        if trained:  # the classifier of that audit is right for the same table only
            check_same(out, {"domain": table.domain.fingerprint, "rows": rows_digest(table.rows)})
        opened = source.open(table)
        card = load(source.model)[1] if opened.kind == "neuronfair" else None
        _check_gate(fail_if, table, settings.methods_for(opened), past, earlier)
    else:
        _check_gate(fail_if, table, settings.methods or (), past, earlier)
        opened, card = source.train(table, console, seed, _training(table, quick))
    origin = Origin(
        command=shlex.join(["neuronfair", *sys.argv[1:]]),
        card=card,
        trained_here=trained,
        weights=weights,
        table=None if data in DATASETS else data,
        domain_text=text,
        inferred=target is not None,
    )
    replayed = None if past is None else replay_corpus(past, opened.model, opened.domain, opened.decision)
    with progress_bar("Auditing", quiet=console.quiet) as show:
        result = run(
            opened,
            table,
            settings=settings,
            folder=out,
            origin=origin,
            progress=lambda what, done, total, note="": show(done, total, note, what=what),
        )
    summary = result.summary()
    failure: NeuronFairError | None = None
    try:
        if past is not None and replayed is not None:
            summary["corpus"] = {**replayed, "added": extend(past, summary)}
        if earlier is not None:
            summary["baseline"] = compare_with(summary, earlier, str(baseline))
        if fail_if and not result.interrupted:
            summary["gate"] = check(summary, fail_if)
    except NeuronFairError as error:  # the audit itself is done and worth its page all the same
        failure = error
    page = html or out / PAGE
    write_json(out / FIGURES, summary)
    write_text(page, audit_page(summary))
    if junit is not None:
        write_text(junit, junit_xml(summary))
    if markdown is not None:
        write_text(markdown, markdown_text(summary))
    if json_file is not None and json_file.absolute() != (out / FIGURES).absolute():
        write_json(json_file, summary)
    if failure is not None:
        raise failure
    console.print(audit_report(summary))
    if text is not None and target is not None:
        console.print(f"The domain was read off the table. Please read and correct it: {out / 'domain.toml'}")
    console.print(f"Page: {page}", soft_wrap=True)
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)
    if summary["gate"] is not None and not summary["gate"]["passed"]:
        raise typer.Exit(FIRED)


def _table(
    data: str, encoding: str, domain: Path | None, sensitive: str | None, target: str | None
) -> tuple[Data, str | None]:
    """Return the table, and the text of its domain file where it is one of the user's own."""
    from neuronfair.cli.options import names
    from neuronfair.domain.infer import infer_domain

    table = load_data(data, encoding, domain, sensitive, target)
    if domain is not None:
        return table, domain.read_text(encoding="utf-8")
    return table, infer_domain(data, sensitive=names(sensitive) or [], target=target) if target is not None else None


def _training(table: Data, quick: bool) -> TrainingSettings:
    """Return how to train a classifier on the spot: in seconds rather than minutes on a large table."""
    from neuronfair.network.train import TrainingSettings

    if len(table) < LARGE:
        return TrainingSettings(restarts=1) if quick else TrainingSettings()
    return TrainingSettings(restarts=1, batch=512, lr=0.003, patience=2 if quick else 5, epochs=10 if quick else 100)


def _check_gate(
    expressions: list[str] | None,
    table: Data,
    methods: tuple[str, ...],
    corpus: Corpus | None,
    earlier: dict[str, Any] | None,
) -> None:
    """Refuse a --fail-if that cannot be judged, before any work is done."""
    from neuronfair.verdict.audit import attribute_sets
    from neuronfair.verdict.gate import CHANGES, CORPUS, read_expressions
    from neuronfair.verdict.settings import WHITE

    labels = ["+".join(names) for names in attribute_sets(table.domain.sensitive)]
    for limit in read_expressions(expressions or [], labels, methods or WHITE):
        if limit.figure in CORPUS and corpus is None:
            raise NeuronFairError(f"--fail-if '{limit.expression}': needs --corpus FILE")
        if limit.figure in CHANGES and earlier is None:
            raise NeuronFairError(f"--fail-if '{limit.expression}': needs --baseline FILE")
