"""Commands about files: finished runs, shown again or written in another format; data sets and domain files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from neuronfair.cli import options
from neuronfair.cli.app import AUDIT, app, command, data_app, domain_app, option
from neuronfair.cli.options import ModelOptions
from neuronfair.errors import DataError, NeuronFairError, RunError
from neuronfair.formatting import printable
from neuronfair.parameters import INPUT, OUTPUT

if TYPE_CHECKING:
    from neuronfair.audits.report import Report
    from neuronfair.store.run import Run
    from neuronfair.text.report import TextReport

REPORT_KINDS = {".md": "Model card", ".html": "Report", ".xml": "JUnit"}
RECORDED_OPTIONS = ("decision", "columns", "device")  # options that the run folder already has


@command(app, panel=AUDIT, omit=RECORDED_OPTIONS)
def show(
    run: Annotated[
        Path, option("The folder of 'neuronfair audit', or a run folder of a search.", metavar="RUN", positional=True)
    ],
    model: ModelOptions,
    number: Annotated[int | None, option("Number of a finding, from 0.", metavar="[N]", low=0, positional=True)] = None,
    out: Annotated[
        Path | None,
        option(
            "Write findings (.csv, .xlsx, .parquet), a model card (.md), the report (.html) or JUnit (.xml).",
            panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Show an audit or one of its findings again, or write it in another format.

    With N, it shows one finding and evaluates it again; in the folder of an audit, N counts the worst findings. It uses
    the model of the run if its file is unchanged; name Python code and pickles with --model. In CSV and Excel files,
    texts that look like formulas start with an apostrophe.

    Examples:

    `neuronfair show run`

    `neuronfair show run/sex/frontier 17 --model retrained.safetensors`

    `neuronfair show run --out findings.xlsx`
    """
    if out is not None:
        _write_run(run, out)
    elif number is not None:
        _refuse_text_audit(run)
        _show_finding(*_locate_finding(run, number), model)
    else:
        _show_run(run)


def read_own_model(run: Run) -> str:
    """Return the model file of a run, if it is unchanged.

    A run folder may come from a stranger, so Python code, pickles and changed files must be named by the user.
    """
    from neuronfair.model.formats import PICKLE_SUFFIXES
    from neuronfair.store.files import sha256

    source = run.model
    path, suggestion = Path(source), f"use --model {shlex.quote(source)}"
    if not path.is_file() and re.fullmatch(r"[\w.]+:[\w.]+", source):
        raise RunError(
            f"{run.folder}: its model is Python code, {source}, which a run folder alone must not start. "
            f"If you trust that code, {suggestion}"
        )
    if not path.is_file():
        raise RunError(f"{source}: there is no such file. {run.folder} was made with it; name a model with --model")
    if path.suffix.lower() in PICKLE_SUFFIXES:
        raise RunError(
            f"{run.folder}: its model is a pickle, {source}, which can run any code and is not opened because a run "
            f"folder names it. If you trust it, {suggestion} --trust-pickle"
        )
    if sha256(path) != run.model_digest:
        raise RunError(f"{source}: has changed since {run.folder} was made. To open it anyway, {suggestion}")
    return source


def _locate_finding(folder: Path, number: int) -> tuple[Path, int]:
    """Return the run folder and number of a finding; in an audit folder, of one of its worst findings."""
    from neuronfair.audits.folder import REPORT_FILE, make_folder_name
    from neuronfair.audits.report.attribute import DATA_SET

    if not (folder / REPORT_FILE).is_file():
        return folder, number
    report = _read_audit_report(folder)
    pairs = [(attribute, finding) for attribute in report.attributes for finding in attribute.worst]
    pairs = [(attribute, finding) for attribute, finding in pairs if finding.method != DATA_SET]
    if number >= len(pairs):
        raise RunError(f"{folder}: lists {len(pairs):,} worst findings, numbered from 0; there is no number {number}")
    attribute, finding = pairs[number]
    return folder / make_folder_name(attribute.sensitive) / finding.method, finding.number


def _show_finding(folder: Path, number: int, model_options: ModelOptions) -> None:
    if model_options.trust_pickle and model_options.model is None:
        raise NeuronFairError("--trust-pickle: name the file that you trust with --model")
    from neuronfair.model.decision import Decision
    from neuronfair.model.open import wrap_model
    from neuronfair.render.search import compose_replay
    from neuronfair.render.terminal import make_console
    from neuronfair.store.run import Run

    run = Run.open(folder)
    findings = run.findings()
    if number >= len(findings):
        raise RunError(f"{folder}: has {len(findings):,} findings, numbered from 0; there is no number {number}")
    model = model_options.model or read_own_model(run)
    opened_model = wrap_model(
        model,
        run.domain,
        findings.rows,
        weights=model_options.weights,
        trust_pickle=model_options.trust_pickle,
        preprocess=model_options.preprocess,
        decision=Decision(**run.manifest["plan"]["decision"]),
    )
    network = opened_model.model.double()
    if network.outputs != run.outputs:
        raise RunError(f"{model}: has {network.outputs} outputs, but {folder} was made with {run.outputs}")
    has_same_weights = opened_model.fingerprint == run.manifest["weights"]
    if model_options.model is None and not has_same_weights:  # the same file reads other weights now
        raise RunError(f"{model}: is not the model that {folder} was made with. To try it, use --model {model}")
    make_console().print(compose_replay(run, network, number, same_weights=has_same_weights), soft_wrap=True)


def _show_run(folder: Path) -> None:
    """Print the report of an audit, or the number of findings of a search."""
    from neuronfair.audits.folder import PAGE, REPORT_FILE
    from neuronfair.formatting import pluralise
    from neuronfair.render.terminal import make_console, print_audit
    from neuronfair.store.run import Run
    from neuronfair.text.report import lines

    console = make_console()
    texts = _read_text_report(folder)
    if texts is not None:
        for line in (*lines(texts), f"Report: {folder / PAGE}"):
            console.print(line, soft_wrap=True)
        return
    if (folder / REPORT_FILE).is_file():
        page = folder / PAGE
        print_audit(console, _read_audit_report(folder), page if page.is_file() else None, verbose=True)
        return
    run = Run.open(folder)
    count, state = len(run.findings()), "finished" if run.summary is not None else "unfinished"
    console.print(
        f"{pluralise(count, 'finding')} of {run.manifest['plan']['method']}, {state}: {folder}", soft_wrap=True
    )
    if count:
        console.print(f"The first: {shlex.join(['neuronfair', 'show', str(folder), '0'])}", soft_wrap=True)


def _write_run(folder: Path, out: Path) -> None:
    """Write all findings, or the report of an audit, in the format of the file name."""
    from neuronfair.formatting import pluralise
    from neuronfair.render.export import FORMATS, export_findings, write_junit
    from neuronfair.render.page import render_audit
    from neuronfair.render.tables import write_model_card
    from neuronfair.render.terminal import make_console
    from neuronfair.text.report import text_page

    options.check_out(out, (*FORMATS, *REPORT_KINDS))
    suffix = out.suffix.lower()
    if suffix in FORMATS:
        _refuse_text_audit(folder)
        count = export_findings(folder, out)
        make_console().print(f"{pluralise(count, 'finding')}: {out}", soft_wrap=True)
        return
    write: dict[str, Callable[[Report], str]] = {".md": write_model_card, ".html": render_audit, ".xml": write_junit}
    texts = _read_text_report(folder)
    if texts is not None and suffix == ".md":
        raise RunError(f"{folder}: is an audit of texts, which has no model card. Write .html or .xml")
    if texts is None:
        content = write[suffix](_read_audit_report(folder))
    else:
        content = text_page(texts) if suffix == ".html" else texts.to_junit()
    options.write_file(out, content)
    make_console().print(f"{REPORT_KINDS[suffix]}: {out}", soft_wrap=True)


def _read_text_report(folder: Path) -> TextReport | None:
    """Return the report of an audit of texts; None for the folder of another audit or of a search."""
    from neuronfair.audits.folder import REPORT_FILE
    from neuronfair.limits import TREE_FACTOR, read_bytes
    from neuronfair.store.ledger import MANIFEST, load_manifest
    from neuronfair.text.report import TextReport

    path = folder / REPORT_FILE
    if not (folder / MANIFEST).is_file() or load_manifest(folder).get("audit") != "texts":
        return None
    if not path.is_file():
        raise RunError(f"{folder}: this audit of texts is not finished. Give its command again to resume it")
    return TextReport.from_json(read_bytes(path, times=TREE_FACTOR), path)


def _refuse_text_audit(folder: Path) -> None:
    """Refuse to show or export single findings of an audit of texts: they are in its files already."""
    if _read_text_report(folder) is not None:
        raise RunError(f"{folder}: is an audit of texts. Its findings are in {folder / 'findings.csv'}")


def _read_audit_report(folder: Path) -> Report:
    from neuronfair.audits.folder import REPORT_FILE, read_report

    path = folder / REPORT_FILE
    if not path.is_file():
        raise RunError(f"{folder}: has no {REPORT_FILE}. Reports and model cards need a finished audit")
    return read_report(path)


# Data sets and domain files

NameArgument = Annotated[str, option("A name from 'neuronfair data list'.", metavar="NAME", positional=True)]


@command(data_app, "list")
def data_list() -> None:
    """List the data sets, whether they are downloaded, their sensitive attributes and licences."""
    from rich.table import Table
    from rich.text import Text

    from neuronfair.domain.tables.dataset import DATASETS, catalog_domain
    from neuronfair.domain.tables.sources import find_local_files, find_source
    from neuronfair.render.terminal import make_console

    table = Table.grid("name", "available", "sensitive", "licence", padding=(0, 2))
    table.columns[3].overflow = "fold"
    for name in DATASETS:
        available = "available" if find_local_files(name) else "not downloaded"
        sensitive = ", ".join(catalog_domain(name).sensitive)
        table.add_row(
            name, available, f"sensitive: {sensitive}", Text(f"{find_source(name).licence}\n{find_source(name).page}")
        )
    make_console().print(table, "Download a data set: neuronfair data get NAME", sep="\n")


@command(data_app, "get")
def data_get(name: NameArgument, quiet: options.QuietOption = False) -> None:
    """Download a data set into the user cache, checked against its checksum."""
    from neuronfair.domain.tables.sources import get_files
    from neuronfair.render.terminal import progress_bar

    with progress_bar(f"Fetching {name}", quiet=quiet) as show:
        paths = get_files(name, progress=show)
    for path in paths:
        print(printable(str(path)))


@command(data_app, "where")
def data_where(name: NameArgument) -> None:
    """Print the paths of the files of a data set."""
    from neuronfair.domain.tables.sources import find_local_files

    paths = find_local_files(name)
    if paths is None:
        raise DataError(f"{name} is not downloaded. Download it: neuronfair data get {name}")
    for path in paths:
        print(printable(str(path)))


@command(domain_app, "infer", omit=("data", "sensitive", "target", "domain", "encoding"))
def domain_infer(
    file: Annotated[Path, option("CSV, Parquet or Feather file with a header.", metavar="FILE", positional=True)],
    table: options.TableOptions,
    sensitive: Annotated[str, option("Sensitive attributes, such as sex or sex,race.", panel=INPUT)],
    target: Annotated[str, option("Column to predict.", panel=INPUT)],
    favourable: options.FavourableOption = None,
    take_rules: Annotated[Literal["none", "free", "all"], option("Rules suggested by the data to adopt.")] = "none",
    out: Annotated[Path | None, option("File to write; '-' prints it. Default: FILE with .toml.", panel=OUTPUT)] = None,
    force: Annotated[bool, option("Overwrite an existing file.", "--force", panel=OUTPUT)] = False,
) -> None:
    """Draft the input schema (domain file) of a table, for you to correct."""
    from neuronfair.domain.schema.infer import InferenceSettings, draft_domain
    from neuronfair.domain.schema.toml import parse_domain, with_favourable

    if file.is_dir():
        raise DataError(f"{file}: is a folder. Name the file of a table")
    out = out or file.with_suffix(".toml")
    options.check_out(out, or_stdout=True)
    if not options.is_stdout(out) and out.exists() and not force:
        raise DataError(f"{out} exists. Choose another --out, or overwrite it with --force")
    sheet = replace(table, sensitive=sensitive).join_attributes(file)
    settings = InferenceSettings(take_rules=take_rules)
    draft = draft_domain(sheet, sensitive=options.split_names(sensitive) or [], target=target, settings=settings)
    text = draft.text if favourable is None else with_favourable(draft.text, favourable)
    parse_domain(text)
    if options.is_stdout(out):
        print(printable(text, keep="\n"), end="")  # its strings keep their meaning
        return
    options.write_file(out, text)
    left_out = [f"{exclusion.column} ({exclusion.reason})" for exclusion in draft.left_out]
    for line in [*([f"Left out: {', '.join(left_out)}"] if left_out else []), *draft.remarks]:
        print(printable(line))
    print(printable(f"Wrote {out}. Please read it: kinds, bounds and rules decide what is tested."))
