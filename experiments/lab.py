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
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import neuronfair
from neuronfair import __version__
from neuronfair.atomic import write_text
from neuronfair.errors import NeuronFairError
from neuronfair.measure.stats import mean_interval
from neuronfair.progress import PieceProgress
from neuronfair.scale.pool import Pool, Processes

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
    samples: int = 100_000  # random records for a flip rate

    @property
    def few(self) -> int:
        """The run seeds where each takes minutes: two, or a third of `repeats`."""
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
    on_page: bool = True  # the page shows it; else it links to the file with its cells

    def markdown(self) -> str:
        """Return the table for a document."""
        head, *body = (" | ".join(line) for line in (self.heading, *self.lines))
        rule = "---" + "|---:" * (len(self.heading) - 1)
        return "\n".join([head, rule, *body, *(["", self.note] if self.note else [])]) + "\n"

    def csv(self) -> str:
        """Return the table for a spreadsheet."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([self.heading, *self.lines])
        return text.getvalue()


@dataclass(frozen=True)
class Claim:
    """A statement, whether it held here, and the figures that decide it."""

    text: str
    held: bool | None  # None: in part
    evidence: str  # short: it stands in a cell of a table
    rung: str = ""  # the rung of NeuronFair that was measured; empty: none was needed
    of_paper: bool = True  # else the statement is ours
    version: str = ""  # the version that measured it, where another one than that of the report


def held_in(cases: int, of: int) -> bool | None:
    """Return True if a claim held in all cases, None (held in part) if in at least half of them, else False."""
    if of and cases == of:
        return True
    return None if 2 * cases >= of else False


@dataclass(frozen=True)
class Report:
    """The results of one experiment: claims, tables, and functions that draw its pictures."""

    title: str
    text: str
    tables: Mapping[str, Table] = field(default_factory=dict)
    claims: Sequence[Claim] = ()
    pictures: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    made: Made | None = None  # where the results are not those of jobs


@dataclass(frozen=True)
class Made:
    """On which machines, by which versions and on which days results were computed."""

    machines: Sequence[str] = ()
    versions: Sequence[str] = ()
    days: Sequence[str] = ()


@dataclass(frozen=True)
class Place:
    """What whoever does jobs must know: where results are kept, of which code, and what is set (data, models)."""

    cache: Path
    code: str
    settings: Mapping[str, str]


def run_jobs(
    jobs: Iterable[Job],
    cache: Path,
    pool: Pool | None = None,
    *,
    progress: Callable[[int, int, str], None] | None = None,
) -> None:
    """Do what was not done before, several jobs at a time, and remember every result as soon as it is there.

    It may be killed at any time: the same call resumes with the missing jobs.
    """
    cache.mkdir(parents=True, exist_ok=True)
    os.environ["NEURONFAIR_LAB"] = str(cache.absolute())  # where classifiers are kept
    settings = {name: value for name, value in os.environ.items() if name.startswith("NEURONFAIR_")}
    place = Place(cache.absolute(), code_digest(), settings)  # the code as it is when the work begins
    wanted = list({job.key: job for job in jobs}.values())
    missing = [job for job in wanted if not (cache / f"{job.key}.json").exists()]
    for wave in (True, False):
        some = [job for job in missing if job.first is wave]
        before = len(wanted) - len(missing if wave else some)

        def show(lines: Sequence[tuple[int, int, int]], some: list[Job] = some, before: int = before) -> None:
            assert progress is not None
            begun = [job.call for job, line in zip(some, lines, strict=True) if not line[0]]
            progress(before + len(some) - len(begun), len(wanted), (begun or [""])[0])

        done = (pool or Processes()).map(_work, place, some, progress=show if progress is not None else None)
        for job, record in zip(some, done, strict=True):
            path = cache / f"{job.key}.json"
            if not path.exists():  # it was made on a machine that does not see this folder
                write_text(path, json.dumps(record, indent=1))


def outdated(jobs: Iterable[Job], cache: Path) -> int:
    """Return how many results were made by other code than is here now."""
    look, now = remembered(cache), code_digest()
    return sum((look(job) or {"_code": now}).get("_code") != now for job in {job.key: job for job in jobs}.values())


def made(jobs: Iterable[Job], cache: Path) -> Made:
    """Return where, by which version and when the results of jobs were computed."""
    done = gather(remembered(cache), jobs)
    days = sorted({d["_date"] for d in done if "_date" in d})
    return Made(
        tuple(dict.fromkeys(d["_machine"] for d in done if "_machine" in d)),
        tuple(sorted({d["_job"]["version"] for d in done if "_job" in d})),
        tuple(dict.fromkeys([*days[:1], *days[-1:]])),
    )


def minutes(experiments: Mapping[str, Iterable[Job]], cache: Path) -> dict[str, float]:
    """Return the processor time of each experiment's results, the longest first; what several need, the first has."""
    look, seen, spent = remembered(cache), set[str](), dict[str, float]()
    for name, jobs in experiments.items():
        own = [job for job in {job.key: job for job in jobs}.values() if job.key not in seen]
        seen |= {job.key for job in own}
        spent[name] = sum(done.get("_cpu_seconds", 0.0) for done in gather(look, own)) / 60
    return dict(sorted(spent.items(), key=lambda item: -item[1]))


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


def gather(results: Results, jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """Return the results of the jobs that were done."""
    return [result for job in jobs if (result := results(job)) is not None]


def figure(values: Sequence[float | None], form: str = ",.0f") -> str:
    """Return a mean, with the half-width of its 95% interval where there are several values."""
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


def _work(place: Place, job: Job, note: PieceProgress) -> dict[str, Any]:
    """Do a job, keep its result with the processor time that it took, and return both."""
    path = place.cache / f"{job.key}.json"
    if path.exists():  # by somebody who was killed after that
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return kept
    os.environ.update(place.settings)
    module, _, function = job.call.partition(":")
    begun = time.process_time()
    try:
        there = importlib.import_module(module if "." in module else f"{__package__}.{module}")
        result: dict[str, Any] = getattr(there, function)(**job.arguments)
    except NeuronFairError:
        raise
    except Exception as error:  # a traceback does not survive the way between processes
        raise RuntimeError(f"{job.call} {dict(job.arguments)}:\n{traceback.format_exc()}") from error
    record = {**result, "_job": _describe(job), "_code": place.code, "_cpu_seconds": time.process_time() - begun}
    record |= {"_machine": _machine(), "_date": datetime.now(UTC).date().isoformat()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(record, indent=1))
    note(1, 1, 0)
    return record
