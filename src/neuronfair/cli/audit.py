"""The main command: a verdict, a page and figures about one model."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neuronfair.cli import options, tables
from neuronfair.cli.app import app, complain
from neuronfair.cli.twins import Twins
from neuronfair.errors import DataError
from neuronfair.shown import visible

if TYPE_CHECKING:
    from rich.console import Console

    from neuronfair.domain.data import Data
    from neuronfair.model.descent import TrainingSettings
    from neuronfair.model.open import Opened
    from neuronfair.model.weights import Card
    from neuronfair.verdict.checks import Ready
    from neuronfair.verdict.playground import Playground
    from neuronfair.verdict.report import Report
    from neuronfair.verdict.settings import AuditSettings

LARGE = 10_000  # rows from which on large steps cost a classifier no accuracy
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
        Twins | None,
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
        bool, typer.Option("--trust-feeding", help="Judge the limits even if the model seems to be wrongly fed.")
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
    quiet: options.QuietOption = False,
) -> None:
    """Audit a model: how often, where and for whom a sensitive attribute flips its decision.

    Without arguments: Adult, sex, and a classifier trained on the spot. Several sensitive attributes are audited each
    alone and all together. People are compared with themselves in another group, and with their counterparts: who they
    would be there, also by what other attributes say of it. The folder holds the page, audit.json and every finding;
    after Ctrl-C the same command goes on. Exit status: 0, 1 if a --fail-if holds, 2 for an error, 130 after Ctrl-C.

    Examples:

    `neuronfair audit`

    `neuronfair audit table.csv --model model.onnx --domain domain.toml --sensitive sex,race --out run`

    `neuronfair audit table.csv --model model.skops --target income --sensitive sex --fail-if 'rate > 1%'`
    """
    source = options.Source(model, weights, trust_pickle, decision, device, preprocess)
    from neuronfair.domain.data import DATASETS
    from neuronfair.domain.own_population import read_people
    from neuronfair.render.console import make_console, progress_bar
    from neuronfair.render.terminal import audit_report
    from neuronfair.store.discard import check_discardable, discard
    from neuronfair.verdict.about import Origin
    from neuronfair.verdict.audit import run
    from neuronfair.verdict.checks import Checks
    from neuronfair.verdict.folder import PAGE, check_audit_folder, check_writable, own_weights
    from neuronfair.verdict.playground import playground
    from neuronfair.verdict.settings import AuditSettings

    if force:
        check_writable(out)
        check_discardable(out, (data, model, weights, domain, attributes_file, population, corpus, baseline))
    else:
        check_audit_folder(out)
    outputs = _Outputs(out, html or out / PAGE, json_file, junit, markdown)
    read = (domain, model, weights, attributes_file, population, None if corpus_add else corpus)
    outputs.check(corpus if corpus_add else None, [data, *(str(path) for path in read if path is not None)])
    options.check_device(device)
    options.read_decision(decision)
    console = make_console(quiet=quiet or options.is_stdout(json_file))
    given: dict[str, Any] = {"seeds": seeds, "steps": steps, "seconds": seconds, "samples": samples}
    given |= {"seed": seed, "prove": prove, "repair": repair, "plausible": plausible}
    given["twins"] = None if twins is None else twins.value
    settings = AuditSettings.quick() if quick else AuditSettings()
    settings = replace(settings, **{name: value for name, value in given.items() if value is not None})
    beside = tables.Beside.of(attributes_file, key)
    found = tables.load_data(data, encoding, domain, sensitive, target, source, take_rules, beside)
    table = found.data
    people = None if population is None else read_people(population, table.domain)
    for remark in found.remarks:
        console.print(f"Table: {remark}")
    ready = Checks(fail_if or (), corpus, corpus_add, baseline, trust_feeding).read(table.domain)
    own = own_weights(out) if model is None and not force else None
    opened, card = _open_or_train(source, table, own, ready, settings, _training(table, quick), console)
    game = playground(opened, table) if interactive else None
    origin = Origin(
        command=shlex.join(["neuronfair", *sys.argv[1:]]),
        card=card,
        trained_here=model is None,
        weights=weights,
        trust_pickle=trust_pickle,
        preprocess=preprocess,
        table=None if data in DATASETS else data,
        beside=() if beside is None else beside.words,
        domain_text=found.text,
        inferred=found.inferred,
        reads=found.reads,
        left_out=found.left_out,
    )
    if force:  # not before all that can be wrong was read
        discard(out)
    with progress_bar("Auditing", quiet=console.quiet) as show:
        result = run(
            opened,
            table,
            settings=settings,
            ready=ready,
            origin=origin,
            folder=out,
            progress=lambda what, done, total, note="": show(done, total, note, what=what),
            people=people,
        )
    report = result.report
    outputs.write(report, game)
    if result.failure is not None:
        raise result.failure
    ready.extend(report)
    console.print(audit_report(report))
    if found.inferred:
        console.print(f"The domain was read off the table. Please read and correct it: {out / 'domain.toml'}")
    console.print(f"Page: {outputs.html}", soft_wrap=True)
    if report.reproduction.interrupted:
        raise typer.Exit(INTERRUPTED)
    if report.gate is not None and not report.gate.passed:
        if quiet:  # a build that fails says why
            for failed in (one for one in report.gate.checks if one.fired):
                complain(f"--fail-if '{failed.expression}': {failed.text}")
        raise typer.Exit(FIRED)


@dataclass(frozen=True)
class _Outputs:
    """The files that an audit writes besides its runs."""

    folder: Path
    html: Path
    json: Path | None
    junit: Path | None
    markdown: Path | None

    def check(self, corpus: Path | None, inputs: list[str]) -> None:
        """Refuse files that cannot be written, that the audit reads, or that it writes as something else."""
        from neuronfair.store.manifest import DOMAIN, MANIFEST
        from neuronfair.verdict.folder import FIGURES, WEIGHTS

        own = {name: self.folder / name for name in (MANIFEST, DOMAIN, WEIGHTS, "model.json", FIGURES)}
        for place in own.values():
            if place.exists():
                options.check_out(place)
        taken = {realpath(path): f"{name} of the audit in {self.folder}" for name, path in own.items()}
        taken |= {realpath(name): "read by this audit" for name in inputs}
        named = {"--html": self.html, "--json": self.json, "--junit": self.junit, "--markdown": self.markdown}
        for option, path in {**named, "--corpus": corpus}.items():
            if path is None or (
                option == "--json" and (options.is_stdout(path) or realpath(path) == realpath(own[FIGURES]))
            ):
                continue
            if realpath(path) in taken:
                raise DataError(f"{option} {path}: is {taken[realpath(path)]}. Choose another name")
            taken[realpath(path)] = f"also named by {option}"
            if self.folder.exists() or path.absolute().parent != self.folder.absolute():  # which is made later
                options.check_out(path)

    def write(self, report: Report, game: Playground | None) -> None:
        """Write them all but audit.json, which the audit has written."""
        from neuronfair.render.junit import junit
        from neuronfair.render.markdown import markdown
        from neuronfair.render.page import audit_page
        from neuronfair.verdict.folder import FIGURES

        options.write_file(self.html, audit_page(report, game))
        if self.junit is not None:
            options.write_file(self.junit, junit(report))
        if self.markdown is not None:
            options.write_file(self.markdown, markdown(report))
        if self.json is not None and options.is_stdout(self.json):
            sys.stdout.write(visible(report.to_json(), keep="\n"))
        elif self.json is not None and realpath(self.json) != realpath(self.folder / FIGURES):
            options.write_file(self.json, report.to_json())


def _open_or_train(
    source: options.Source,
    table: Data,
    own: Path | None,
    ready: Ready,
    settings: AuditSettings,
    training: TrainingSettings,
    console: Console,
) -> tuple[Opened, Card | None]:
    """Return the model and the card of one of our own; without a --model, `own` or one that is trained now."""
    from neuronfair.model.weights import load
    from neuronfair.store.manifest import rows_digest
    from neuronfair.verdict.folder import check_same
    from neuronfair.verdict.settings import WHITE

    if source.model is None and own is None:
        ready.refuse(table.domain.sensitive, settings.methods or WHITE, settings.twins)
        return source.train(table, console, settings.seed, training)
    if own is not None:  # the classifier of that audit is right for the same table only
        check_same(own.parent, {"domain": table.domain.fingerprint, "rows": rows_digest(table.rows)})
    path = source.model or str(own)
    opened = replace(source, model=path).open(table)
    ready.refuse(table.domain.sensitive, settings.methods_for(opened), settings.twins)
    return opened, load(path)[1] if opened.kind == "neuronfair" else None


def _training(table: Data, quick: bool) -> TrainingSettings:
    """Return how to train a classifier on the spot: in seconds rather than minutes on a large table."""
    from neuronfair.model.descent import TrainingSettings

    if len(table) < LARGE:
        return TrainingSettings(restarts=1) if quick else TrainingSettings()
    return TrainingSettings(restarts=1, batch=512, lr=0.003, patience=2 if quick else 5, epochs=10 if quick else 100)
