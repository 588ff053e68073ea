"""What all experiments share: jobs that are done once and remembered, and reports that are made of their results.

An experiment is a module of this folder with two functions: `jobs(scale)` lists what must be computed, `report(scale,
results)` turns the results into tables, claims and pictures. The only loop is `run_jobs`.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import io
import json
import os
import platform
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import neuronfair
from neuronfair import __version__
from neuronfair.atomic import write_text
from neuronfair.errors import NeuronFairError
from neuronfair.measure.mean import mean_interval

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Scale:
    """How much is done: the paper's budgets, or a small part of them."""

    quick: bool = False
    seeds: int = 1000
    steps: int = 1000
    repeats: int = 3  # run seeds of every search
    trainings: int = 5  # our own classifiers of every data set
    seconds: float = 10.0  # stand for the paper's 500 in Table 5
    retrainings: int = 5
    samples: int = 100_000  # random people for a discrimination rate

    @property
    def few(self) -> int:
        """The run seeds where each takes minutes: two, or a third of what was asked for."""
        return min(self.repeats, max(2, self.repeats // 3))


FULL = Scale()
QUICK = Scale(True, seeds=60, steps=40, repeats=1, trainings=1, seconds=1.0, retrainings=1, samples=10_000)


@dataclass(frozen=True)
class Job:
    """One call of a function, `module:function`; what it returns must fit into JSON."""

    call: str  # a module without dots is one of this folder
    arguments: Mapping[str, Any]
    first: bool = False  # others build on it: a trained classifier

    @property
    def key(self) -> str:
        """A name that is the same for the same call, in this version."""
        text = json.dumps([__version__, self.call, dict(self.arguments)], sort_keys=True)
        name = self.call.partition(":")[2].replace("_", "-")
        return f"{name}-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


Results = Callable[[Job], dict[str, Any] | None]
"""Gives the result of a job, or None where it was not done."""


@dataclass(frozen=True)
class Table:
    """Lines of cells under a heading; the first column is text, the others are figures."""

    heading: Sequence[str]
    lines: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        """Return the table for a document."""
        head, *body = ("| " + " | ".join(line) + " |" for line in (self.heading, *self.lines))
        rule = "| --- |" + " ---: |" * (len(self.heading) - 1)
        return "\n".join([head, rule, *body, *(["", self.note] if self.note else [])]) + "\n"

    def csv(self) -> str:
        """Return the table for a spreadsheet."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([self.heading, *self.lines])
        return text.getvalue()


@dataclass(frozen=True)
class Claim:
    """Something the paper says, whether it held here, and the figures that decide it."""

    text: str
    held: bool | None  # None: neither
    evidence: str

    def line(self) -> str:
        """Return the claim for a list in a document."""
        verdict = {True: "**holds**", False: "**does not hold**", None: "**holds in part**"}[self.held]
        return f"* {self.text}: {verdict}. {self.evidence}"


@dataclass(frozen=True)
class Report:
    """What one experiment has to say."""

    title: str
    text: str
    tables: Mapping[str, Table] = field(default_factory=dict)
    claims: Sequence[Claim] = ()
    pictures: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)


def run_jobs(
    jobs: Iterable[Job],
    cache: Path,
    *,
    workers: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> None:
    """Do what was not done before, several jobs at a time, and remember every result as soon as it is there.

    It may be killed at any time: the same call goes on with what is missing.
    """
    cache.mkdir(parents=True, exist_ok=True)
    code_digest()  # of the code as it is when the work begins
    os.environ["NEURONFAIR_LAB"] = str(cache.absolute())  # where classifiers are kept; the processes inherit it
    wanted = list({job.key: job for job in jobs}.values())
    missing = [job for job in wanted if not (cache / f"{job.key}.json").exists()]
    done = len(wanted) - len(missing)
    workers = workers or os.cpu_count() or 1
    with ProcessPoolExecutor(workers, get_context("spawn"), _prepare) as pool:
        try:
            for wave in (True, False):
                running = {pool.submit(_work, job): job for job in missing if job.first is wave}
                while running:
                    if progress is not None:
                        progress(done, len(wanted), next(iter(running.values())).call)
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        job, (result, seconds) = running.pop(future), future.result()
                        record = {**result, "_job": _describe(job), "_code": code_digest(), "_cpu_seconds": seconds}
                        record |= {"_machine": _machine(), "_date": datetime.now(UTC).date().isoformat()}
                        write_text(cache / f"{job.key}.json", json.dumps(record, indent=1))
                        done += 1
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def outdated(jobs: Iterable[Job], cache: Path) -> int:
    """Return how many results were made by other code than is here now."""
    look, now = remembered(cache), code_digest()
    return sum((look(job) or {"_code": now}).get("_code") != now for job in {job.key: job for job in jobs}.values())


def made(jobs: Iterable[Job], cache: Path) -> str:
    """Return where and when the results of the jobs were computed, perhaps elsewhere: ' on x86_64, …, 2026-01-31'."""
    done = gather(remembered(cache), jobs)
    machines = dict.fromkeys(d["_machine"] for d in done if "_machine" in d)
    days = sorted({d["_date"] for d in done if "_date" in d})
    when = f", {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "") if days else ""
    return f" on {' and '.join(machines)}{when}" if machines else ""


@cache
def code_digest() -> str:
    """Return what changes with every change of the package or of the experiments."""
    digest = hashlib.blake2b(digest_size=8)
    for folder in (Path(neuronfair.__file__).parent, FOLDER):
        for path in sorted(p for p in folder.rglob("*") if p.suffix in (".py", ".toml")):
            digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def remembered(cache: Path) -> Results:
    """Return what looks up the results of jobs."""

    def look(job: Job) -> dict[str, Any] | None:
        path = cache / f"{job.key}.json"
        if not path.exists():
            return None
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return result

    return look


def write_report(report: Report, name: str, folder: Path) -> list[Path]:
    """Write the tables (Markdown, CSV) and pictures (SVG, PNG) of an experiment, and return the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    for key, table in report.tables.items():
        write_text(folder / f"{name}-{key}.md", table.markdown())
        write_text(folder / f"{name}-{key}.csv", table.csv())
    pictures = []
    for key, draw in report.pictures.items():
        for suffix in (".svg", ".png"):
            draw(folder / f"{name}-{key}{suffix}")
        pictures.append(folder / f"{name}-{key}.png")
    return pictures


def gather(results: Results, jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """Return the results of the jobs that were done."""
    return [result for job in jobs if (result := results(job)) is not None]


def figure(values: Sequence[float | None], form: str = ",.0f") -> str:
    """Return a mean, with the half-width of its 95 % interval where there are several values."""
    known = [v for v in values if v is not None]
    mean, half = mean_interval(known)
    if mean is None:
        return "–"
    return f"{mean:{form}}" if half is None else f"{mean:{form}} ± {half:{form}}"


def span(counts: Iterable[int]) -> str:
    """Return how many runs the cells of a table rest on: '3', or '2 to 3'; cells without any do not count."""
    known = sorted({count for count in counts if count})
    return "no" if not known else str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"


def mean(values: Iterable[float | None]) -> float:
    """Return the mean of the values that exist; NaN for none."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else float("nan")


def _describe(job: Job) -> dict[str, Any]:
    return {"call": job.call, "arguments": dict(job.arguments), "version": __version__}


def _machine() -> str:
    torch = version("torch").partition("+")[0]
    return f"{platform.machine()}, Python {platform.python_version()}, torch {torch}"


def _prepare() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # There are as many processes as cores; torch, which no job has imported yet, reads these.
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()  # returns when it is gone, killed or not
        os._exit(1)


def _work(job: Job) -> tuple[dict[str, Any], float]:
    """Do a job and return its result and the processor time it took."""
    module, _, function = job.call.partition(":")
    begun = time.process_time()
    try:
        place = importlib.import_module(module if "." in module else f"{__package__}.{module}")
        result: dict[str, Any] = getattr(place, function)(**job.arguments)
    except NeuronFairError:
        raise
    except Exception as error:  # a traceback does not survive the way between processes
        raise RuntimeError(f"{job.call} {dict(job.arguments)}:\n{traceback.format_exc()}") from error
    return result, time.process_time() - begun
