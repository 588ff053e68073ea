"""The commands `repair` and `reproduce`, which neuronfair has in a checkout of its source only.

The command line loads this file by its path; what it imports when a command runs is found in the checkout.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from neuronfair.cli import options
from neuronfair.cli.app import AUDIT, INTERRUPTED, RESEARCH, app, command, option
from neuronfair.cli.files import read_own_model
from neuronfair.cli.options import OutputOptions, QuietOption, RayOption, make_pool
from neuronfair.errors import DataError, ModelError
from neuronfair.parameters import BUDGET, INPUT, OUTPUT, parameter

import typer


def find_checkout() -> None:
    """Let `import experiments` find this checkout."""
    checkout = str(Path(__file__).parents[1])
    if checkout not in sys.path:
        sys.path.insert(0, checkout)


OWN = (".safetensors", ".npz")


@dataclass(frozen=True)
class RepairOptions:
    """How a network is repaired."""

    how: Literal["retrain", "neurons"] = parameter(
        "retrain", "Retrain with findings, or weaken the biased neurons.", panel=INPUT
    )
    share: float = parameter(0.1, "Share of the findings to train with.")
    repeats: int = parameter(5, "Number of retrainings, of which the best is kept.", panel=BUDGET, low=1)
    max_loss: float = parameter(0.01, "Largest loss of accuracy on validation rows.", panel=BUDGET, low=0, high=1)
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
    out, console = options.check_weights(out), output.console()
    if output.json is not None and output.json.absolute() == out.with_suffix(".json").absolute():
        raise DataError(f"--json {output.json}: is where the card of {out} is written. Choose another name")
    find_checkout()
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
    path = Path(read_own_model(run) if model is None else model)  # which refuses one that has changed
    if out.exists() and path.exists() and out.samefile(path):
        raise ModelError(f"--out {out}: is the network to be repaired, which is not overwritten. Choose another name")
    table = searched_table(run, data)
    settings = RepairSettings(asked.share, asked.repeats, asked.max_loss, seed=asked.seed)
    with stage_progress("Repairing", quiet=console.quiet) as show:
        done = work(run, path, table, asked.how, settings, show=show)
    done.write(out)
    console.print(repair_report(done, table.domain))
    console.print(f"Wrote {out} and {out.with_suffix('.json')}.", soft_wrap=True)
    facts = {"run": str(run.folder), "data": table.name, "encoding": table.domain.encoding, "how": asked.how}
    output.write({**facts, "sensitive": list(table.domain.sensitive), "seed": asked.seed, **repair_json(done)})


@command(app, panel=RESEARCH)
def reproduce(
    names: Annotated[
        list[str] | None, option("Tables and figures, or 'all'. Default: all.", metavar="NAMES", positional=True)
    ] = None,
    quick: Annotated[bool, option("Use small budgets, as a check.", "--quick", panel=BUDGET)] = False,
    out: Annotated[Path, option("Folder for results, tables and images.", panel=OUTPUT, metavar="FOLDER")] = Path(
        "out/reproduce"
    ),
    repeats: Annotated[int | None, option("Repetitions with other seeds. Default: 3.", low=1, panel=BUDGET)] = None,
    seconds: Annotated[
        float | None, option("Time limit of slow searches (Tables 5 to 7). Default: 10.", low=0.1, panel=BUDGET)
    ] = None,
    workers: Annotated[int | None, option("Number of processes. Default: one per core.", low=1)] = None,
    ray: RayOption = None,
    report_only: Annotated[bool, option("Show existing results only.", "--report-only")] = False,
    docs: Annotated[Path | None, option("Also update results.md in this folder.", metavar="FOLDER")] = None,
    quiet: QuietOption = False,
) -> None:
    """Repeat the paper's experiments on tables, with confidence intervals.

    This needs a checkout of the source. Each result is saved as soon as it is computed; after Ctrl-C the same command
    resumes, and warns about results that are older than the code. Set NEURONFAIR_MODELS to the folder of the published
    weights to use them as well. Results of another machine can be copied into the folder `cache` of --out.

    Examples:

    `neuronfair reproduce --quick`

    `neuronfair reproduce table4_totals figure3_as_curve --repeats 10`

    `neuronfair reproduce populations --report-only --docs docs`

    `neuronfair reproduce --ray`
    """
    from neuronfair.audits.folder import check_writable
    from neuronfair.render.terminal import make_console

    for folder in (out, docs):
        if folder is not None:
            check_writable(folder)
    find_checkout()
    from experiments import reproduce as work

    request = work.Request(tuple(names or ()), quick, repeats, seconds, out, docs, report_only)
    console = make_console(quiet=quiet)
    if work.reproduce(request, make_pool(ray, workers), console):
        console.print("Interrupted. Finished results are kept; the same command resumes.")
        raise typer.Exit(INTERRUPTED)
