"""Workers that a try may kill: each is forked from this process, reads file after file, and is replaced if it dies."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import shutil
import signal
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path

from .formats import Format
from .mutate import Files
from .oracle import ALLOWED, GOOD, MOST, Home, Outcome, attempt, watch_this_process

SPOILT = ("outside", "memory", "hang", "crash")  # after these a worker is not used again
TRIES = 1000  # of one worker: what libraries keep in memory is thrown away with it
Job = tuple[str, int]  # name of the format, number of the try
_fork = multiprocessing.get_context("fork")


class Worker:
    """A process, its folder, and what it is at."""

    def __init__(self, formats: Mapping[str, Format], valid: Mapping[str, list[Files]], seed: int, home: Path) -> None:
        self.home = Home(home)
        self.near, far = _fork.Pipe()
        self.process = _fork.Process(target=_serve, args=(formats, valid, seed, self.home, far))
        self.process.start()
        far.close()
        self.job: Job | None = None
        self.jobs: list[Job] = []
        self.begun, self.size, self.peak = 0.0, 0, 0

    def give(self, job: Job) -> None:
        """Begin a try."""
        self.job, self.begun, self.peak = job, time.monotonic(), 0
        self.jobs.append(job)
        self.size = _resident(self.process.pid)
        self.near.send(job)

    def kill(self) -> None:
        """End the process and those that it has begun."""
        for end in (lambda: os.killpg(self.process.pid, signal.SIGKILL), self.process.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end()
        self.process.join()
        self.near.close()
        self.home.close()

    def outcome(self, limit: float) -> Outcome | None:
        """Return what came of the try, or why its process is dead or must be killed; None while all is well."""
        spent = time.monotonic() - self.begun
        with contextlib.suppress(EOFError, OSError):
            if self.near.poll():
                said: Outcome = self.near.recv()
                peak = max(self.peak, said.peak)
                if said.kind in GOOD and peak > MOST:
                    return replace(said, kind="memory", detail=f"{peak / 1e6:,.0f} MB: {said.detail}", peak=peak)
                return replace(said, peak=peak)
        if not self.process.is_alive():
            before = " ".join(f"{name}:{number}" for name, number in self.jobs[-9:-1])
            said = f"exit status {self.process.exitcode} {self.home.printed()}"
            return Outcome("crash", f"{said} after {before or 'nothing else'}", spent)
        if spent > limit:
            return Outcome("hang", f"not done after {limit:g} s", spent)
        _, *others = _family(self.process.pid)
        own = _resident(self.process.pid)
        self.peak = max(self.peak, 0, *map(_private, others))  # its own is told by itself, without what the damage took
        if max(self.peak, own - self.size) > 2 * MOST:
            return Outcome("memory", f"killed at {max(self.peak, own - self.size) / 1e6:,.0f} MB", spent, self.peak)
        return None


def _serve(
    formats: Mapping[str, Format], valid: Mapping[str, list[Files]], seed: int, home: Home, far: Connection
) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["NEURONFAIR_MAX_BYTES"] = str(ALLOWED)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")  # the command line shows them as its own words
    home.settle()
    watch_this_process()
    while True:
        try:
            name, number = far.recv()
        except EOFError:
            return
        try:
            files = formats[name].damage(valid[name], seed, number)
        except Exception:
            far.send(Outcome("mutator", traceback.format_exc()))  # a fault of this program
            continue
        outcome = attempt(formats[name].reads, files, home)
        if number < 0 and formats[name].sound:  # a whole file: nothing may be wrong with it
            each = [attempt((read,), files, home) for read in formats[name].reads]
            wrong = [one for one in each if one.kind == "refused"]
            outcome = replace(wrong[0], kind="mutator") if wrong else outcome
        far.send(outcome)


def results(
    formats: Mapping[str, Format],
    valid: Mapping[str, list[Files]],
    jobs: Iterator[Job],
    *,
    seed: int,
    folder: Path,
    workers: int,
    limit: float,
) -> Iterator[tuple[Job, Outcome, Path]]:
    """Do one try after the other; give each with its outcome and the folder of its files, which the next empties."""
    crew: list[Worker] = []
    made = 0
    try:
        more = True
        while more or any(worker.job for worker in crew):
            while more and len(crew) < workers:
                made += 1
                crew.append(Worker(formats, valid, seed, folder / str(made)))
            for worker in crew:
                if worker.job is None and more:
                    job = next(jobs, None)
                    more = job is not None
                    if job is not None:
                        worker.give(job)
            busy = [worker for worker in crew if worker.job]
            wait([end for worker in busy for end in (worker.near, worker.process.sentinel)], 0.05)
            for worker in busy:
                outcome = worker.outcome(limit)
                if outcome is None or worker.job is None:
                    continue
                yield worker.job, outcome, worker.home.place
                worker.job = None
                if outcome.kind in SPOILT or len(worker.jobs) >= TRIES:
                    worker.kill()
                    crew.remove(worker)
                    shutil.rmtree(worker.home.folder, ignore_errors=True)
    finally:
        for worker in crew:
            worker.kill()


def _family(pid: int | None) -> Iterator[int]:
    """Give a process and all that it has begun."""
    yield pid or 0
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return
    for child in text.split():
        yield from _family(int(child))


def _private(pid: int) -> int:
    """Return what a process has in memory and shares with none: not its libraries, nor what it was forked with."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024


def _resident(pid: int | None) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0
