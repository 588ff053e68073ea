"""Damaged files of every format: an error in one line, or a result; no traceback, hang, crash, bomb or foreign file.

    python benchmarks/fuzz.py --minutes 30
    python benchmarks/fuzz.py --format h5 --format keras --tries 2000 --keep kept
    python benchmarks/fuzz.py --only h5:17 --keep kept

Valid specimens are made on the spot and damaged: at their fields, by code-like names, extreme numbers and links, and at
their bytes. A try is read in a process of its own kind (see fuzzing/pool.py) and judged by fuzzing/oracle.py. The files
of a try depend on the seed, the format and the number only. Needs Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzing.formats import BY_NAME, Format
from fuzzing.mutate import Files
from fuzzing.oracle import BAD, GOOD, Home, Outcome, attempt
from fuzzing.pool import Job, results

SHOWN = 3  # of the bad tries that look alike


@dataclass
class Line:
    """The figures of one format."""

    kinds: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    slowest: float = 0.0
    peak: int = 0

    def add(self, outcome: Outcome) -> None:
        """Count a try."""
        self.kinds[outcome.kind] += 1
        self.seconds += outcome.seconds
        self.slowest, self.peak = max(self.slowest, outcome.seconds), max(self.peak, outcome.peak)


def available(names: list[str]) -> dict[str, Format]:
    """Return the formats whose packages are here; say which are not."""
    chosen = {}
    for name in names:
        packages = [library.partition(".")[0] for library in BY_NAME[name].libraries]
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if missing:
            print(f"{name}: skipped, because the package {missing[0]} is not installed")
        else:
            chosen[name] = BY_NAME[name]
    return chosen


def specimens(formats: Mapping[str, Format]) -> dict[str, list[Files]]:
    """Return the valid files of each format, made in another process: without threads, this one can be forked.

    What was imported there, also to read them, is imported here, so that no worker has to.
    """
    near, far = multiprocessing.get_context("fork").Pipe()

    def make() -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Keras says what it thinks of .h5
        made = {name: each.specimens() for name, each in formats.items()}
        with tempfile.TemporaryDirectory() as place:
            home = Home(Path(place) / "home")
            for name in (name for name, each in formats.items() if each.sound):
                attempt(formats[name].reads, made[name][0], home)
        far.send((made, list(sys.modules)))

    process = multiprocessing.get_context("fork").Process(target=make)
    process.start()
    far.close()
    try:
        made, modules = near.recv()
    except EOFError:
        sys.exit("the specimens could not be made")
    process.join()
    for name in modules:
        with contextlib.suppress(Exception):  # some make their names up, and some are not for everybody
            importlib.import_module(name)
    return dict(made)


def schedule(formats: Mapping[str, Format], tries: int | None, until: float) -> Iterator[Job]:
    """Give whole files first, then tries, as the weights of the formats say, until there are enough or time is up."""
    yield from ((name, -1) for name in formats)
    done = dict.fromkeys(formats, 0)
    for _ in range(tries) if tries is not None else itertools.count():
        if time.monotonic() > until:
            return
        name = min(formats, key=lambda name: (done[name] + 1) / formats[name].weight)
        yield name, done[name]
        done[name] += 1


def alike(outcome: Outcome) -> str:
    """Return what bad tries of one cause have in common: the type of the error and where it came from, or the words."""
    if outcome.kind in ("traceback", "message"):
        return outcome.detail.partition(": ")[0]
    return "".join(letter for letter in outcome.detail if not letter.isdigit())[-80:]


def table(lines: Mapping[str, Line]) -> str:
    bad = [kind for kind in BAD if kind != "mutator" or any(line.kinds[kind] for line in lines.values())]
    heads = ["format", "tries", *GOOD, *bad, "peak MB", "slowest s", "seconds"]
    rows = [
        [
            *(name, line.kinds.total(), *(line.kinds[kind] for kind in (*GOOD, *bad))),
            *(line.peak // 10**6, f"{line.slowest:.1f}", f"{line.seconds:.0f}"),
        ]
        for name, line in lines.items()
    ]
    counts = sum((line.kinds for line in lines.values()), Counter[str]())
    rows.append(["all", counts.total(), *(counts[kind] for kind in (*GOOD, *bad)), "", "", ""])
    shown = [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---", *["---:"] * (len(heads) - 1)], *shown])


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--tries", type=int, help="in all, shared out by the weights of the formats; default: no end")
    parser.add_argument("--format", action="append", choices=BY_NAME, help="may be given several times; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="FORMAT:NUMBER", action="append", type=named, help="one try again; several: "
                        "one after the other by the same worker, as one may spoil what the next needs")  # fmt: skip
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the files of bad tries are kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures and the bad tries are written")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=float, default=30, help="seconds after which a try counts as hanging")
    return parser.parse_args()


def named(text: str) -> Job:
    """Return the try that FORMAT:NUMBER says."""
    name, _, number = text.rpartition(":")
    if name not in BY_NAME:
        raise argparse.ArgumentTypeError(f"there is no format '{name}'")
    return name, int(number)


@dataclass
class Report:
    """What has come of all tries."""

    lines: dict[str, Line]
    keep: Path | None
    found: list[dict[str, Any]] = field(default_factory=list)
    looks: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def add(self, job: Job, outcome: Outcome, files: Path) -> None:
        """Count a try; show a bad one, unless there were many like it, and keep its files."""
        self.lines[job[0]].add(outcome)
        if outcome.kind in GOOD:
            return
        self.found.append({"try": f"{job[0]}:{job[1]}", "kind": outcome.kind, "detail": outcome.detail})
        look = (job[0], outcome.kind, alike(outcome))
        self.looks[look] += 1
        if self.looks[look] <= SHOWN:
            print(f"{job[0]}:{job[1]} {outcome.kind}: {outcome.detail[:400]}", flush=True)
        if self.keep is not None and files.exists() and len(self.found) <= 1000:
            shutil.copytree(files, self.keep / f"{job[0]}-{job[1]}", dirs_exist_ok=True)


def main() -> None:
    asked = options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was found until then is told
    names = [name for name, _ in asked.only] if asked.only else asked.format or list(BY_NAME)
    formats = available(list(dict.fromkeys(names)))
    report = Report({name: Line() for name in formats}, asked.keep)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        os.environ |= {"KERAS_BACKEND": "torch", "KERAS_HOME": f"{place}/keras", "OMP_NUM_THREADS": "1"}
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a GPU that is in use cannot be used in a forked process
        valid = specimens(formats)
        print(f"seed {asked.seed}; specimens made in {time.monotonic() - begun:.0f} s", flush=True)
        jobs = schedule(formats, asked.tries, time.monotonic() + 60 * asked.minutes)
        workers = 1 if asked.only else asked.workers
        try:
            for job, outcome, files in results(
                *(formats, valid, iter(asked.only) if asked.only else jobs),
                **{"seed": asked.seed, "folder": Path(place), "workers": workers, "limit": asked.limit},
            ):
                report.add(job, outcome, files)
                if asked.only:
                    print(f"{job[0]}:{job[1]} {outcome}")
        except KeyboardInterrupt:
            print("ended early")
    print(f"\n{table(report.lines)}")
    for (where, kind, look), count in report.looks.most_common():
        print(f"{count:6,} x {where} {kind} {look}")
    if asked.json:
        figures = {n: {**line.kinds, "seconds": line.seconds, "peak": line.peak} for n, line in report.lines.items()}
        asked.json.write_text(
            json.dumps({"seed": asked.seed, "formats": figures, "bad": report.found}, indent=1) + "\n"
        )
    sys.exit(1 if report.found else 0)


if __name__ == "__main__":
    main()
