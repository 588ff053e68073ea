"""The main command: a verdict, a page and figures about one model."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from neuronfair.cli import options, tables
from neuronfair.cli.app import app, complain
from neuronfair.cli.audit_job import Order, Outputs, carry_out
from neuronfair.cli.options import RayOption, TwinsKind, pool_of

INTERRUPTED, FIRED = 130, 1


@app.command()
def audit(
    data: options.DataArgument = "adult",
    model: options.ModelOption = None,
    weights: options.WeightsOption = None,
    preprocess: options.PreprocessOption = None,
    trust_pickle: options.TrustOption = False,
    decision: options.DecisionOption = None,
    domain: options.DomainOption = None,
    target: options.TargetOption = None,
    favourable: options.FavourableOption = None,
    columns: options.ColumnsOption = None,
    attributes_file: tables.AttributesFileOption = None,
    key: tables.KeyOption = None,
    sensitive: options.SensitiveOption = None,
    take_rules: options.TakeRulesOption = "none",
    encoding: options.EncodingOption = "default",
    out: Annotated[Path, typer.Option(help="Folder to make, or to go on with after an interruption.")] = Path(
        "neuronfair-audit"
    ),
    force: options.ForceOption = False,
    json_file: options.JsonOption = None,
    html: Annotated[Path | None, typer.Option(help="Where to write the page. Default: report.html in --out.")] = None,
    interactive: Annotated[
        bool,
        typer.Option(
            "--interactive",
            help="Put the model and some rows of the table into the page, to try it there. Who has the page has them.",
        ),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A first look: smaller searches, and no repair unless asked.")
    ] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many rows each search starts from.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=0, help="Steps of the local phase, after a look at the row it starts from.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Time for each search.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Plausible people to judge, and as many of the domain.")
    ] = None,
    prove: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Time in which to prove for how many people of the domain the decision does, or does not, flip. "
            "0: no proof. Default: 6, with --quick 2.",
        ),
    ] = None,
    twins: Annotated[
        TwinsKind | None,
        typer.Option(
            help="Compare people with themselves in another group only (flip), or with their counterparts, who they "
            "would be there, in the searches, too (counterpart). Default: both; the searches go by counterparts where "
            "the model does not read the attribute."
        ),
    ] = None,
    plausible: options.PlausibleOption = 0.0,
    population: options.PopulationOption = None,
    repair: Annotated[
        bool | None,
        typer.Option("--repair/--no-repair", help="Also try a short retraining. Default: yes, with --quick no."),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(metavar="EXPR", help="Exit with status 1 if this holds, such as 'rate > 0.01'; may be repeated."),
    ] = None,
    trust_feeding: Annotated[
        bool, typer.Option("--trust-feeding", help="Give a verdict even if the model fails the input encoding check.")
    ] = False,
    corpus: Annotated[
        Path | None, typer.Option(help="File of past counterexamples: replayed first, and the worst findings added.")
    ] = None,
    corpus_add: Annotated[bool, typer.Option(help="Add the worst findings to the --corpus, or only replay it.")] = True,
    baseline: Annotated[Path | None, typer.Option(help="audit.json of an earlier audit to compare with.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the result as JUnit XML.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write a summary in Markdown.")] = None,
    device: options.DeviceOption = "cpu",
    seed: options.SeedOption = 0,
    ray: RayOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Audit a model: how often, where and for whom a sensitive attribute flips its decision.

    Without arguments: Adult, sex, and a classifier trained on the spot. Several sensitive attributes are audited each
    alone and all together. People are compared with themselves in another group, and with their counterparts: who they
    would be there, also by what other attributes say of it. The folder holds the page, audit.json and every finding;
    after Ctrl-C the same command goes on. Exit status: 0, 1 if a --fail-if holds, 2 for an error, 3 for an
    internal error, 130 after Ctrl-C.

    Examples:

    `neuronfair audit`

    `neuronfair audit table.csv --model model.onnx --domain domain.toml --sensitive sex,race --out run`

    `neuronfair audit table.csv --model model.skops --target income --sensitive sex --fail-if 'rate > 1%'`
    """
    from neuronfair.audits.folder import PAGE
    from neuronfair.render.terminal import audit_report, make_console

    order = Order(
        data=data,
        model=model,
        weights=weights,
        preprocess=preprocess,
        trust_pickle=trust_pickle,
        decision=decision,
        domain=domain,
        target=target,
        favourable=favourable,
        columns=columns,
        attributes_file=attributes_file,
        key=key,
        sensitive=sensitive,
        take_rules=take_rules,
        encoding=encoding,
        interactive=interactive,
        quick=quick,
        seeds=seeds,
        steps=steps,
        seconds=seconds,
        samples=samples,
        prove=prove,
        twins=None if twins is None else twins.value,
        plausible=plausible,
        population=population,
        repair=repair,
        fail_if=tuple(fail_if or ()),
        trust_feeding=trust_feeding,
        corpus=corpus,
        corpus_add=corpus_add,
        baseline=baseline,
        device=device,
        seed=seed,
    )
    outputs = Outputs(out, html or out / PAGE, json_file, junit, markdown)
    console = make_console(quiet=quiet or options.is_stdout(json_file))
    command = shlex.join(["neuronfair", *sys.argv[1:]])
    with pool_of(ray) as pool:
        apart = None if ray is None else pool
        result = carry_out(order, outputs, console, command=command, force=force, pool=apart)
    if result.failure is not None:
        raise result.failure
    report = result.report
    console.print(audit_report(report))
    if report.data.domain_inferred:
        console.print(f"The domain was read off the table. Please read and correct it: {out / 'domain.toml'}")
    console.print(f"Page: {outputs.html}", soft_wrap=True)
    if report.reproduction.interrupted:
        raise typer.Exit(INTERRUPTED)
    if report.gate is not None and not report.gate.passed:
        if quiet:  # a build that fails says why
            for failed in (one for one in report.gate.checks if one.fired):
                complain(f"--fail-if '{failed.expression}': {failed.text}")
        raise typer.Exit(FIRED)
