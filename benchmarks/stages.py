"""Run a command of neuronfair in a process that knows which stage it is in, and may kill itself there with SIGKILL.

A stage is some functions of the package, by name. An event is its beginning, its going on after another stage inside
it, or a call that changes files. An undisturbed run lists its events; a kill comes at one of them, or a while after.
"""

from __future__ import annotations

import importlib
import inspect
import json
import mmap
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

REST = "beginning, end and between"
NAME = 80  # bytes for the name of a stage
FILES = {"os.rename", "os.remove", "os.mkdir", "os.chmod"}  # what Python calls the calls that change files
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def _phase(context: Any, *_: Any, **__: Any) -> str:
    control = context.blind or context.draws.phase == "random"
    return "controls" if control else {"pilot": "pilot"}.get(context.draws.phase, f"{context.draws.phase} phase")


def _kept(path: Path) -> str:
    if path.parent.name.startswith("cache"):
        return "writing a result"
    return "writing tables and page" if path.suffix in (".md", ".csv", ".png", ".svg") else "keeping a classifier"


Stage = str | Callable[..., str]
STAGES: dict[str, dict[str, Stage]] = {
    "search": {
        "neuronfair.model.train:train": "training",
        "neuronfair.store.run:Run.create_or_open": "making the folder",
        "neuronfair.model.weights:save_weights": "making the folder",
        "neuronfair.store.run:Run.begin": "making the folder",
        "neuronfair.model.profile:interpret": "interpretation and seeds",
        "neuronfair.model.encoding:cluster_seeds": "interpretation and seeds",
        "neuronfair.searches.health:check_health": "interpretation and seeds",
        "neuronfair.searches.engine:run_phase": _phase,
        "neuronfair.searches.engine:holds_exactly": "second evaluation in float64",
        "neuronfair.store.run:Run.checkpoint": "writing a checkpoint",
        "neuronfair.store.run:Run.keep_control": "writing the figures",
        "neuronfair.store.run:Run.finish": "writing the figures",
        "neuronfair.cli.options:write_json": "writing the figures",
    },
    "audit": {
        "neuronfair.model.train:train": "training",
        "neuronfair.audits.folder:begin_audit": "making the folder",
        "neuronfair.model.weights:save_weights": "making the folder",
        "neuronfair.store.run:Run.create_or_open": "making the folder",
        "neuronfair.audits.stages.rates:measure_rates": "rates",
        "neuronfair.audits.stages.run_searches:interpret_layers": "interpretation",
        "neuronfair.audits.stages.run_searches:search": "searches",
        "neuronfair.store.run:Run.checkpoint": "writing a checkpoint",
        "neuronfair.audits.stages.run_searches:describe_findings": "shrinking and telling the worst",
        "neuronfair.audits.stages.run_searches:find_subgroups": "groups",
        "neuronfair.audits.folder:write_audit_json": "writing figures and page",
        "neuronfair.cli.options:write_file": "writing figures and page",
    },
    "repair": {
        "neuronfair.store.run:Run.open": "reading the findings",
        "neuronfair.store.run:Run.findings": "reading the findings",
        "experiments.repairs.labels:Ensemble.__init__": "training the voters",
        "experiments.repairs.retrain:retrain": "retraining",
        "experiments.repairs.evaluate:measure_network": "measuring before and after",
        "neuronfair.model.weights:save_weights": "writing weights and figures",
        "neuronfair.cli.options:write_json": "writing weights and figures",
    },
    "reproduce": {
        "experiments.lab:run_jobs": "jobs in another process",
        "experiments.lab:_work": "jobs in another process",
        "experiments.page:write_record": "tables and pictures",
        "neuronfair.atomic:replace_file": _kept,
    },
}


@dataclass(frozen=True)
class Order:
    """Where a command is killed: so many seconds after an event of a stage; with an empty stage, after the start.

    `mark` is a file that always holds the stage; `events`, if named, becomes the list of all events.
    """

    command: str
    mark: str
    stage: str = ""
    event: int = 0
    seconds: float | None = None  # None: not at all
    events: str = ""


class Watch:
    """Notes each event of this process, and kills the process and its companions at the one that was ordered."""

    def __init__(self, order: Order) -> None:
        self.order, self.counts, self.stack = order, Counter[str](), [REST]
        with Path(order.mark).open("r+b") as file:
            self.mark = mmap.mmap(file.fileno(), NAME)
        self.log = os.open(order.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if order.events else None

    def event(self) -> None:
        """Count an event of the stage that this process is in."""
        stage = self.stack[-1]
        self.mark[:] = stage.encode().ljust(NAME)
        number, self.counts[stage] = self.counts[stage], self.counts[stage] + 1
        if self.log is not None:
            os.write(self.log, (json.dumps([time.monotonic(), os.getpid(), stage, number]) + "\n").encode())
        if self.order.seconds is not None and (stage, number) == (self.order.stage, self.order.event):
            kill_after(self.order.seconds)

    def file_event(self, name: str, values: tuple[Any, ...]) -> None:
        """Take what Python announces, and count what changes files."""
        if name in FILES or (name == "open" and isinstance(values[2], int) and values[2] & WRITES):
            self.event()

    @contextmanager
    def inside(self, stage: str) -> Iterator[None]:
        """Be in a stage for the time of a block."""
        self.stack.append(stage)
        self.event()
        try:
            yield
        finally:
            self.stack.pop()
            self.event()

    def watched(self, function: Callable[..., Any], stage: Stage) -> Callable[..., Any]:
        """Return a function that does the same inside a stage."""

        def name(*values: Any, **options: Any) -> str:
            return stage if isinstance(stage, str) else stage(*values, **options)

        @wraps(function)
        def call(*values: Any, **options: Any) -> Any:
            with self.inside(name(*values, **options)):
                return function(*values, **options)

        @wraps(function)
        @contextmanager
        def block(*values: Any, **options: Any) -> Iterator[Any]:
            with self.inside(name(*values, **options)), function(*values, **options) as given:
                yield given

        return block if inspect.isgeneratorfunction(inspect.unwrap(function)) else call


def kill_after(seconds: float) -> None:
    kill = partial(os.killpg, os.getpgrp(), signal.SIGKILL)
    if seconds == 0:
        kill()
    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()


def find(place: str) -> tuple[Any, str, Any]:
    """Return the module or class that holds a function, the name, and the function as it is kept there.

    A function that has another name by now is an AttributeError: correct STAGES.
    """
    module, _, path = place.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, name = path.split(".")
    for part in classes:
        owner = getattr(owner, part)
    return owner, name, inspect.getattr_static(owner, name)


def watch(order: Order) -> None:
    """Let this process note its stages from now on; functions that other modules have imported already are found."""
    watcher = Watch(order)
    for place, stage in STAGES[order.command].items():
        owner, name, plain = find(place)
        kind = type(plain) if isinstance(plain, (staticmethod, classmethod)) else None
        function = watcher.watched(plain if kind is None else plain.__func__, stage)
        setattr(owner, name, function if kind is None else kind(function))
        for other in list(sys.modules.values()) if inspect.ismodule(owner) else ():
            for key in [key for key, value in getattr(other, "__dict__", {}).items() if value is plain]:
                setattr(other, key, function)
    sync = os.fsync
    os.fsync = lambda handle: (watcher.event(), sync(handle))[1]  # the one that Python does not announce
    sys.addaudithook(watcher.file_event)
    watcher.event()


def stop_clocks() -> None:
    """Let every duration be 0 and every date the same, so that all files can be compared byte by byte.

    Call it before the package is imported, or some modules will keep a clock that goes.
    """
    time.perf_counter = time.process_time = lambda: 0.0
    time.strftime = lambda *_: "2000-01-01T00:00:00+0000"


def run(words: list[str], order: Order, folder: Path, output: Path, *, limit: float = 300.0) -> tuple[int, str]:
    """Run a command in a folder, in a fork of this process; return its exit status (-9: killed) and its last stage."""
    Path(order.mark).write_bytes(REST.encode().ljust(NAME))
    if order.events:
        Path(order.events).unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        status = 70
        try:
            os.setpgid(0, 0)  # a group of its own: the processes that it starts die with it, and nobody else
            os.chdir(folder)
            handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            watch(order)
            if order.seconds is not None and not order.stage:
                kill_after(order.seconds)
            sys.argv = ["neuronfair", order.command, *words]
            importlib.import_module("neuronfair.cli").main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    ends = time.monotonic() + limit
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > ends:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise TimeoutError(f"neuronfair {order.command} {' '.join(words)} did not end within {limit:.0f} s")
        time.sleep(0.005)
    stage = Path(order.mark).read_bytes().decode().strip()
    return os.waitstatus_to_exitcode(status), stage
