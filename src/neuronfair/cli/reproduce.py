"""The command that repeats the experiments of the paper."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from neuronfair.cli.app import RESEARCH, app, command, option
from neuronfair.cli.options import QuietOption, RayOption, pool_of
from neuronfair.errors import NeuronFairError
from neuronfair.parameters import BUDGET, OUTPUT

CHECKOUT = Path(__file__).parents[3]  # in a checkout; elsewhere there is no folder `experiments` in it
INTERRUPTED = 130  # the exit status that shells use for Ctrl-C


@command(app, panel=RESEARCH)
def reproduce(
    names: Annotated[
        list[str] | None, option("Tables and figures, or 'all'. Default: all.", metavar="NAMES", positional=True)
    ] = None,
    quick: Annotated[bool, option("Use small budgets, as a check.", "--quick", panel=BUDGET)] = False,
    out: Annotated[Path, option("Folder for results, tables and images.", panel=OUTPUT, metavar="FOLDER")] = Path(
        "out/reproduce"
    ),
    repeats: Annotated[int | None, option("Repetitions with other seeds. Default: 3.", least=1, panel=BUDGET)] = None,
    seconds: Annotated[
        float | None, option("Time limit of slow searches (Tables 5 to 7). Default: 10.", least=0.1, panel=BUDGET)
    ] = None,
    workers: Annotated[int | None, option("Number of processes. Default: one per core.", least=1)] = None,
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
    from neuronfair.scale.pool import Processes

    if ray is not None and workers is not None:
        raise NeuronFairError("--workers: for processes of this machine, and --ray for a cluster. Name one of the two")
    for folder in (out, docs):
        if folder is not None:
            check_writable(folder)
    _find_experiments()
    from experiments import reproduce as work

    request = work.Request(tuple(names or ()), quick, repeats, seconds, out, docs, report_only)
    pool = nullcontext(Processes(workers) if workers else Processes()) if ray is None else pool_of(ray)
    console = make_console(quiet=quiet)
    if work.reproduce(request, pool, console):
        console.print("Interrupted: what was done is kept. The same command goes on from here.")
        raise typer.Exit(INTERRUPTED)


def _find_experiments() -> None:
    """Let this process, and those that do the jobs, import the experiments, which are in a checkout only."""
    if not (CHECKOUT / "experiments" / "reproduce.py").is_file():
        raise NeuronFairError("the experiments are not in the installed package: run this in a checkout of the source")
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))
