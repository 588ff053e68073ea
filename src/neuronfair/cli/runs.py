"""Commands on a finished run: show it again, write it in another format, repair its network."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from neuronfair.cli import options
from neuronfair.cli.app import AUDIT, app, command, complain, option
from neuronfair.cli.options import ModelOptions, OutputOptions
from neuronfair.errors import DataError, ModelError, NeuronFairError, RunError
from neuronfair.parameters import BUDGET, INPUT, OUTPUT, parameter

if TYPE_CHECKING:
    from neuronfair.audits.report.report import Report
    from neuronfair.store.run import Run

REPORTS = {".md": "Model card", ".html": "Report", ".xml": "JUnit"}
OF_RUN = ("decision", "columns", "device")  # options that the run folder already has

RunArgument = Annotated[
    Path, option("The folder of 'neuronfair audit', or a run folder of a search.", metavar="RUN", positional=True)
]
OutOption = Annotated[
    Path | None,
    option(
        "Write findings (.csv, .xlsx, .parquet), a model card (.md), the report (.html) or JUnit (.xml).", panel=OUTPUT
    ),
]


@command(app, panel=AUDIT, omit=OF_RUN)
def show(
    run: RunArgument,
    model: ModelOptions,
    number: Annotated[
        int | None, option("Number of a finding, from 0.", metavar="[N]", least=0, positional=True)
    ] = None,
    out: OutOption = None,
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
        _write(run, out)
    elif number is not None:
        _show_finding(*_finding(run, number), model)
    else:
        _show_all(run)


@command(app, omit=OF_RUN, hidden=True)
def replay(
    run: RunArgument,
    model: ModelOptions,
    number: Annotated[int, option("Number of a finding, from 0.", metavar="N", least=0, positional=True)],
) -> None:
    """Show one finding; now called `neuronfair show RUN N`."""
    complain("'replay' is now 'neuronfair show RUN N'. The old name goes with the next version")
    _show_finding(run, number, model)


@command(app, hidden=True)
def export(run: RunArgument, out: Annotated[Path, option("File to write.", panel=OUTPUT)]) -> None:
    """Write all findings as one table; now called `neuronfair show RUN --out FILE`."""
    complain("'export' is now 'neuronfair show RUN --out FILE'. The old name goes with the next version")
    _write(run, out)


def own_model(run: Run) -> str:
    """Return the model file of a run, if it is unchanged.

    A run folder may come from a stranger, so Python code, pickles and changed files must be named by the user.
    """
    from neuronfair.model.formats import PICKLE_SUFFIXES
    from neuronfair.store.files import sha256

    source = run.model
    path, use = Path(source), f"use --model {shlex.quote(source)}"
    if not path.is_file() and re.fullmatch(r"[\w.]+:[\w.]+", source):
        raise RunError(
            f"{run.folder}: its model is Python code, {source}, which a run folder alone must not start. "
            f"If you trust that code, {use}"
        )
    if not path.is_file():
        raise RunError(f"{source}: there is no such file. {run.folder} was made with it; name a model with --model")
    if path.suffix.lower() in PICKLE_SUFFIXES:
        raise RunError(
            f"{run.folder}: its model is a pickle, {source}, which can run any code and is not opened because a run "
            f"folder names it. If you trust it, {use} --trust-pickle"
        )
    if sha256(path) != run.model_digest:
        raise RunError(f"{source}: has changed since {run.folder} was made. To open it anyway, {use}")
    return source


def _finding(folder: Path, number: int) -> tuple[Path, int]:
    """Return the run folder and number of a finding; in an audit folder, of one of its worst findings."""
    from neuronfair.audits.folder import FIGURES, folder_name
    from neuronfair.audits.report.attribute import TABLE

    if not (folder / FIGURES).is_file():
        return folder, number
    report = _report(folder)
    worst = [(one, finding) for one in report.attributes for finding in one.worst if finding.method != TABLE]
    if number >= len(worst):
        raise RunError(f"{folder}: lists {len(worst):,} worst findings, numbered from 0; there is no number {number}")
    attribute, finding = worst[number]
    return folder / folder_name(attribute.sensitive) / finding.method, finding.number


def _show_finding(folder: Path, number: int, source: ModelOptions) -> None:
    if source.trust_pickle and source.model is None:
        raise NeuronFairError("--trust-pickle: name the file that you trust with --model")
    from neuronfair.model.decision import Decision
    from neuronfair.model.open import wrap_model
    from neuronfair.render.search import replay_report
    from neuronfair.render.terminal import make_console
    from neuronfair.store.run import Run

    run = Run.open(folder)
    findings = run.findings()
    if number >= len(findings):
        raise RunError(f"{folder}: has {len(findings):,} findings, numbered from 0; there is no number {number}")
    model = source.model or own_model(run)
    opened = wrap_model(
        model,
        run.domain,
        findings.rows,
        weights=source.weights,
        trust_pickle=source.trust_pickle,
        preprocess=source.preprocess,
        decision=Decision(**run.manifest["plan"]["decision"]),
    )
    network = opened.model.double()
    if network.outputs != run.outputs:
        raise RunError(f"{model}: has {network.outputs} outputs, but {folder} was made with {run.outputs}")
    same = opened.fingerprint == run.manifest["weights"]
    if source.model is None and not same:  # the same file reads other weights now
        raise RunError(f"{model}: is not the model that {folder} was made with. To try it, use --model {model}")
    make_console().print(replay_report(run, network, number, same_weights=same), soft_wrap=True)


def _show_all(folder: Path) -> None:
    """Print the report of an audit, or the number of findings of a search."""
    from neuronfair.audits.folder import FIGURES, PAGE
    from neuronfair.formatting import plural
    from neuronfair.render.terminal import make_console, print_audit
    from neuronfair.store.run import Run

    console = make_console()
    if (folder / FIGURES).is_file():
        page = folder / PAGE
        print_audit(console, _report(folder), page if page.is_file() else None, verbose=True)
        return
    run = Run.open(folder)
    count, state = len(run.findings()), "finished" if run.summary is not None else "unfinished"
    console.print(f"{plural(count, 'finding')} of {run.manifest['plan']['method']}, {state}: {folder}", soft_wrap=True)
    if count:
        console.print(f"The first: {shlex.join(['neuronfair', 'show', str(folder), '0'])}", soft_wrap=True)


def _write(folder: Path, out: Path) -> None:
    """Write all findings, or the report of an audit, in the format of the file name."""
    from neuronfair.formatting import plural
    from neuronfair.render.export import FORMATS, export_findings, junit
    from neuronfair.render.page import audit_page
    from neuronfair.render.tables import model_card
    from neuronfair.render.terminal import make_console

    options.check_out(out, (*FORMATS, *REPORTS))
    suffix = out.suffix.lower()
    if suffix in FORMATS:
        count = export_findings(folder, out)
        make_console().print(f"{plural(count, 'finding')}: {out}", soft_wrap=True)
        return
    write: dict[str, Callable[[Report], str]] = {".md": model_card, ".html": audit_page, ".xml": junit}
    options.write_file(out, write[suffix](_report(folder)))
    make_console().print(f"{REPORTS[suffix]}: {out}", soft_wrap=True)


def _report(folder: Path) -> Report:
    from neuronfair.audits.folder import FIGURES
    from neuronfair.audits.report.report import Report
    from neuronfair.limits import TREE, read_bytes

    path = folder / FIGURES
    if not path.is_file():
        raise RunError(f"{folder}: has no {FIGURES}. Reports and model cards need a finished audit")
    return Report.from_json(read_bytes(path, times=TREE), path)


OWN = (".safetensors", ".npz")


@dataclass(frozen=True)
class RepairOptions:
    """How a network is repaired."""

    how: Literal["retrain", "neurons"] = parameter(
        "retrain", "Retrain with findings, or weaken the biased neurons.", panel=INPUT
    )
    share: float = parameter(0.1, "Share of the findings to train with.")
    repeats: int = parameter(5, "Number of retrainings, of which the best is kept.", panel=BUDGET, least=1)
    max_loss: float = parameter(0.01, "Largest loss of accuracy on validation rows.", panel=BUDGET, least=0, most=1)
    seed: int = parameter(0, options.SEED)


@command(app, panel=AUDIT)
def repair(
    asked: RepairOptions,
    output: OutputOptions,
    run_folder: Annotated[
        Path,
        option("Run folder of 'neuronfair search' or 'neuronfair audit'.", metavar="RUN", positional=True),
    ],
    out: Annotated[Path, option("File for the repaired network.", panel=OUTPUT)],
    model: Annotated[
        Path | None, option("The network (.safetensors, .npz). Default: the one that was searched.", panel=INPUT)
    ] = None,
    data: Annotated[Path | None, option("Your table, if the run searched one.", panel=INPUT)] = None,
) -> None:
    """Repair a network of 'neuronfair train' with the findings of a run: the retraining of the paper.

    This needs a checkout of the source. The result is not written if the flip rate does not fall, or if the accuracy on
    validation rows cannot be kept. To search for a better model of any kind, use `neuronfair alternatives`.

    Examples:

    `neuronfair repair run --out fair.safetensors`

    `neuronfair repair run --model mine.safetensors --data table.csv --how neurons --out fair.safetensors`
    """
    options.find_experiments()
    out = options.check_weights(out)
    output.check()
    if output.json is not None and output.json.absolute() == out.with_suffix(".json").absolute():
        raise DataError(f"--json {output.json}: is where the card of {out} is written. Choose another name")
    from experiments.repairs.report import repair_json, repair_report
    from experiments.repairs.retrain import RepairSettings
    from experiments.repairs.session import repair as work
    from experiments.repairs.session import searched_table
    from neuronfair.render.terminal import stage_progress
    from neuronfair.store.run import Run

    run = Run.open(run_folder)
    if Path(model or run.model).suffix.lower() not in OWN:
        raise ModelError(
            f"{model or run.model}: only networks of 'neuronfair train' ({' or '.join(OWN)}) are repaired. Search for "
            "a better model of this kind with 'neuronfair alternatives'"
        )
    path = Path(own_model(run) if model is None else model)  # which refuses one that has changed
    if out.exists() and path.exists() and out.samefile(path):
        raise ModelError(f"--out {out}: is the network to be repaired, which is not overwritten. Choose another name")
    table, console = searched_table(run, data), output.console()
    settings = RepairSettings(asked.share, asked.repeats, asked.max_loss, seed=asked.seed)
    with stage_progress("Repairing", quiet=console.quiet) as show:
        done = work(run, path, table, asked.how, settings, show=show)
    done.write(out)
    console.print(repair_report(done, table.domain))
    console.print(f"Wrote {out} and {out.with_suffix('.json')}.", soft_wrap=True)
    facts = {"run": str(run.folder), "data": table.name, "encoding": table.domain.encoding, "how": asked.how}
    output.write({**facts, "sensitive": list(table.domain.sensitive), "seed": asked.seed, **repair_json(done)})
