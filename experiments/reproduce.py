"""The work of `neuronfair reproduce`: do the jobs, write their records and pictures, and make the page of results."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, cast

from experiments import cases, lab, page
from neuronfair.atomic import replace_file, write_text
from neuronfair.errors import NeuronFairError, did_you_mean
from neuronfair.formatting import exact_number
from neuronfair.plots import import_matplotlib
from neuronfair.render.terminal import progress_bar
from neuronfair.scale.pool import Pool

from rich.console import Console

PAGE = "results.md"


class Experiment(Protocol):
    """A module of this folder with the jobs of one experiment and the report of their results."""

    jobs: Callable[[lab.Scale], Sequence[lab.Job]]
    report: Callable[[lab.Scale, lab.Results], lab.Report]


@dataclass(frozen=True)
class Request:
    """Which experiments are repeated, by which budgets, and where the results go."""

    names: Sequence[str] = ()  # none: all
    quick: bool = False
    repeats: int | None = None
    seconds: float | None = None
    out: Path = Path("out/reproduce")
    docs: Path | None = None  # a folder whose records and page are replaced, too
    report_only: bool = False

    @cached_property
    def experiments(self) -> dict[str, Experiment]:
        """The modules of the experiments, in the order of the page."""
        if not self.names or "all" in self.names:
            chosen: Sequence[str] = page.EXPERIMENTS
        else:
            for name in self.names:
                if name not in page.EXPERIMENTS:
                    raise NeuronFairError(f"no experiment '{name}'. {did_you_mean(name, page.EXPERIMENTS)}")
            chosen = [name for name in page.EXPERIMENTS if name in self.names]
        return {name: cast(Experiment, importlib.import_module(f"experiments.{name}")) for name in chosen}

    @property
    def scale(self) -> lab.Scale:
        """The budgets."""
        scale = lab.QUICK if self.quick else lab.FULL
        if self.repeats is not None:
            scale = replace(scale, repeats=self.repeats)
        return scale if self.seconds is None else replace(scale, seconds=self.seconds)

    @property
    def options(self) -> str:
        """The budgets as options of the command line."""
        text = " --quick" if self.quick else ""
        text += f" --repeats {self.repeats}" if self.repeats is not None else ""
        return text + (f" --seconds {exact_number(self.seconds)}" if self.seconds is not None else "")

    @property
    def cache(self) -> Path:
        """The folder of the results of jobs."""
        return self.out / ("cache-quick" if self.quick else "cache")


def reproduce(request: Request, pool: AbstractContextManager[Pool], console: Console) -> bool:
    """Repeat experiments and write their results; return whether Ctrl-C ended the work early.

    Results that are there are written even if a job fails; its error is raised at the end.
    """
    experiments, scale, cache = request.experiments, request.scale, request.cache
    if request.docs is not None:
        page.check_made_here(request.docs)
    if any(name.startswith(("figure", "ablation")) for name in experiments):
        import_matplotlib()  # refuses if the library is missing, before any work is done
    _print_what_is_missing(console)
    jobs = {name: experiment.jobs(scale) for name, experiment in experiments.items()}
    interrupted, failure = _run(jobs, request, pool, console)
    results = lab.remembered(cache)
    reports = {name: experiment.report(scale, results) for name, experiment in experiments.items()}
    _write(request, reports, {name: lab.made(some, cache) for name, some in jobs.items()})
    _print_summary(request, jobs, reports, console)
    if failure is not None:
        raise failure
    return interrupted


def _print_what_is_missing(console: Console) -> None:
    """Name data sets and weights that are not on this machine."""
    for name in dict.fromkeys(facts[0] for case, facts in cases.ALL_CASES.items() if case not in cases.CASES):
        console.print(f"Left out: {name}, whose data are not here. Get them with: neuronfair data get {name}")
    if not any(map(cases.published, cases.CASES)):
        console.print("The published weights are not here (NEURONFAIR_MODELS): classifiers trained now stand for them.")


def _run(
    jobs: Mapping[str, Sequence[lab.Job]], request: Request, pool: AbstractContextManager[Pool], console: Console
) -> tuple[bool, NeuronFairError | None]:
    """Do the jobs; return whether Ctrl-C ended them, and the error that did."""
    wanted = [job for some in jobs.values() for job in some]
    interrupted, failure = False, None
    with progress_bar("Reproducing", quiet=console.quiet) as show, pool as workers:
        try:
            todo = [] if request.report_only else wanted
            lab.run_jobs(todo, request.cache, workers, progress=lambda done, total, call: show(done, total, call))
        except KeyboardInterrupt:
            interrupted = True
        except NeuronFairError as error:
            failure = error
    if old := lab.outdated(wanted, request.cache):
        console.print(
            f"{old:,} of {len(wanted):,} results were made by other code than is here now. To compute them again, "
            f"delete {request.cache}",
            soft_wrap=True,
        )
    return interrupted, failure


def _write(request: Request, reports: Mapping[str, lab.Report], made: Mapping[str, lab.Made]) -> None:
    """Write records, pictures and the page, in the folder of documents too if there is one."""
    for name, report in reports.items():
        pictures = _draw(report, name, request.out / page.PICTURES)
        kept = page.record(report, pictures, f"neuronfair reproduce {name}{request.options}", report.made or made[name])
        page.write_record(request.out / page.RECORDS, name, kept)
        if request.docs is not None:
            page.write_record(request.docs / page.RECORDS, name, kept)
            for path in pictures:
                (request.docs / page.PICTURES).mkdir(exist_ok=True)
                with replace_file(request.docs / page.PICTURES / path.name) as temporary:
                    shutil.copyfile(path, temporary)
    for folder in (request.out, *([request.docs] if request.docs is not None else [])):
        write_text(folder / PAGE, page.page(page.read_records(folder / page.RECORDS)))


def _draw(report: lab.Report, name: str, folder: Path) -> list[Path]:
    """Draw the pictures of a report (SVG and PNG) and return the PNG files."""
    pictures = []
    for key, draw in report.pictures.items():
        folder.mkdir(parents=True, exist_ok=True)
        for suffix in (".svg", ".png"):
            draw(folder / f"{name}-{key}{suffix}")
        pictures.append(folder / f"{name}-{key}.png")
    return pictures


def _print_summary(
    request: Request,
    jobs: Mapping[str, Sequence[lab.Job]],
    reports: Mapping[str, lab.Report],
    console: Console,
) -> None:
    """Print the claims, the processor time, and the path of the page."""
    for report in reports.values():
        for claim in report.claims:
            words = {True: "held", False: "did not hold", None: "held in part"}[claim.held]
            measured = f" ({claim.rung})" if claim.rung else ""
            console.print(f"{claim.text}{measured}: {words}. {claim.evidence}", soft_wrap=True)
    minutes = {name: spent for name, spent in lab.minutes(jobs, request.cache).items() if spent >= 0.05}
    if minutes:
        parts = ", ".join(f"{name} {spent:.1f}" for name, spent in minutes.items())
        console.print(f"Processor time, in minutes: {parts}; together {sum(minutes.values()):.1f}", soft_wrap=True)
    console.print(f"Results: {request.out / PAGE}", soft_wrap=True)
