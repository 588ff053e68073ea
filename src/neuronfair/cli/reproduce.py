"""The command that repeats the experiments of the paper."""

from __future__ import annotations

import importlib
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from neuronfair.cli.app import app
from neuronfair.cli.options import RESEARCH, QuietOption, RayOption, command, option, pool_of
from neuronfair.errors import NeuronFairError, did_you_mean
from neuronfair.formatting import exact
from neuronfair.parameters import BUDGET, OUTPUT

CHECKOUT = Path(__file__).parents[3]  # in a checkout; elsewhere there is no folder `experiments` in it
INTERRUPTED = 130  # the exit status that shells use for Ctrl-C


@command(app, panel=RESEARCH)
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAMES]…", help="Tables and figures, or 'all'. Default: all.")
    ] = None,
    quick: Annotated[bool, option("Small budgets: does everything work?", "--quick", panel=BUDGET)] = False,
    out: Annotated[Path, option("Folder for results, tables and images.", panel=OUTPUT)] = Path("out/reproduce"),
    repeats: Annotated[
        int | None, option("Run seeds, where a table has no limit of its own. Default: 3.", min=1, panel=BUDGET)
    ] = None,
    seconds: Annotated[
        float | None, option("Time limit of slow searches (Tables 5 to 7). Default: 10.", min=0.1, panel=BUDGET)
    ] = None,
    workers: Annotated[int | None, option("Processes. Default: one for each core.", min=1)] = None,
    ray: RayOption = None,
    report_only: Annotated[bool, option("Compute nothing; show what is there.", "--report-only")] = False,
    docs: Annotated[Path | None, option("Also replace their sections of results.md here.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Repeat the paper's experiments on tables, with confidence intervals.

    The experiments are in a checkout of the source, not in the installed package. Every result is kept in the
    folder as soon as it is there. After Ctrl-C or a kill the same command goes on; it says so if results are older
    than the code. The published weights are used where NEURONFAIR_MODELS names their folder, and classifiers
    trained here everywhere. The folder `cache` may come from another machine: with `--report-only` nothing is
    computed again; the last lines say where the processor time went. On a cluster whose machines do not share the
    folder each trains for itself what its jobs build on.

    Examples:

    `neuronfair reproduce --quick`

    `neuronfair reproduce table4_totals figure3_as_curve --repeats 10`

    `neuronfair reproduce populations --report-only --docs docs`

    `neuronfair reproduce --ray`
    """
    from neuronfair.atomic import replacing, write_text
    from neuronfair.audits.folder import check_writable
    from neuronfair.render.plots import drawing
    from neuronfair.render.terminal import make_console, progress_bar
    from neuronfair.scale.pool import Processes

    if ray is not None and workers is not None:
        raise NeuronFairError("--workers: for processes of this machine, and --ray for a cluster. Name one of the two")
    for folder in (out, docs):
        if folder is not None:
            check_writable(folder)
    lab, book, cases = map(_experiment, ("lab", "page", "cases"))
    chosen = _chosen(names, book.EXPERIMENTS)
    page = docs / "results.md" if docs is not None else None
    kept = book.sections_of(page.read_text(encoding="utf-8")) if page is not None and page.exists() else {}
    if any(name.startswith(("figure", "ablation")) for name in chosen):
        drawing()
    scale = lab.QUICK if quick else lab.FULL
    if repeats is not None:
        scale = replace(scale, repeats=repeats)
    if seconds is not None:
        scale = replace(scale, seconds=seconds)
    console = make_console(quiet=quiet)
    modules = {name: _experiment(name) for name in chosen}
    for name in dict.fromkeys(facts[0] for case, facts in cases.ALL_CASES.items() if case not in cases.CASES):
        console.print(f"Left out: {name}, whose data are not here. Get them with: neuronfair data get {name}")
    if not any(map(cases.published, cases.CASES)):
        console.print("The published weights are not here (NEURONFAIR_MODELS): classifiers trained now stand for them.")
    cache = out / ("cache-quick" if quick else "cache")
    work = {name: module.jobs(scale) for name, module in modules.items()}
    jobs = [job for some in work.values() for job in some]
    interrupted, failure = False, None
    pool = nullcontext(Processes(workers) if workers else Processes()) if ray is None else pool_of(ray)
    with progress_bar("Reproducing", quiet=console.quiet) as show, pool as doers:
        try:
            lab.run_jobs([] if report_only else jobs, cache, doers, progress=lambda *told: show(*told))
        except KeyboardInterrupt:
            interrupted = True
        except NeuronFairError as error:  # what is done is worth a page all the same
            failure = error
    if old := lab.outdated(jobs, cache):
        console.print(
            f"{old:,} of {len(jobs):,} results were made by other code than is here now. To compute them again, delete "
            f"{cache}",
            soft_wrap=True,
        )
    results = lab.remembered(cache)
    reports = {name: module.report(scale, results) for name, module in modules.items()}
    pictures = {name: lab.write_report(report, name, out) for name, report in reports.items()}
    given = " --quick" if quick else ""
    given += f" --repeats {repeats}" if repeats is not None else ""
    given += f" --seconds {exact(seconds)}" if seconds is not None else ""
    made = {name: lab.made(some, cache) for name, some in work.items()}

    def sections(folder: str) -> dict[str, Any]:
        places = {name: [Path(folder) / path.name for path in paths] for name, paths in pictures.items()}
        return {n: book.section(n, report, places[n], given, made[n]) for n, report in reports.items()}

    write_text(out / "results.md", book.page(sections("")))
    if docs is not None and page is not None:
        for path in (path for paths in pictures.values() for path in paths):
            (docs / "img").mkdir(parents=True, exist_ok=True)
            with replacing(docs / "img" / path.name) as temporary:
                shutil.copyfile(path, temporary)
        write_text(page, book.page(kept | sections("img")))
    for report in reports.values():
        for claim in report.claims:
            console.print(claim.line().replace("**", ""))
    spent = {name: minutes for name, minutes in lab.minutes(work, cache).items() if minutes >= 0.05}
    if spent:
        parts = ", ".join(f"{name} {minutes:.1f}" for name, minutes in spent.items())
        console.print(f"Processor time, in minutes: {parts}; together {sum(spent.values()):.1f}", soft_wrap=True)
    console.print(f"Results: {out / 'results.md'}", soft_wrap=True)
    if failure is not None:
        raise failure
    if interrupted:
        console.print("Interrupted: what was done is kept. The same command goes on from here.")
        raise typer.Exit(INTERRUPTED)


def _experiment(name: str) -> Any:
    """Return a module of the experiments, which are in a checkout only."""
    if not (CHECKOUT / "experiments" / f"{name}.py").is_file():
        raise NeuronFairError("the experiments are not in the installed package: run this in a checkout of the source")
    if str(CHECKOUT) not in sys.path:  # also for the processes that do the jobs
        sys.path.insert(0, str(CHECKOUT))
    return importlib.import_module(f"experiments.{name}")


def _chosen(names: list[str] | None, known: tuple[str, ...]) -> list[str]:
    if not names or "all" in names:
        return list(known)
    for name in names:
        if name not in known:
            raise NeuronFairError(f"no experiment '{name}'. {did_you_mean(name, known)}")
    return [name for name in known if name in names]
