"""Tasks in forks: their results and errors, and what is left of them after an interruption or a kill."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from neuronfair.errors import DataError
from neuronfair.scale.tasks import Tasks, count_usable_cores, has_other_threads

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes fork on Linux only")


def squared(number: int, seconds: float = 0.0) -> tuple[int, int]:
    time.sleep(seconds)
    return number**2, os.getpid()


def refused() -> None:
    raise DataError("refused")


class OddError(Exception):
    """An error that cannot be read from a pickle."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def odd() -> None:
    raise OddError(1, 2)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_results_are_those_of_one_process(processes):
    works = [partial(squared, number, 0.02) for number in range(20)]
    with Tasks(works, processes) as tasks:
        assert tasks.forked == (processes > 1)
        time.sleep(0.2)  # the forks begin
        assert [value for value, _ in tasks.results(range(20))] == [number**2 for number in range(20)]
        assert [value for value, _ in tasks.results([3])] == [9]
        assert tasks.is_done(19)
        assert tasks.seconds([4, 5]) >= 0.04
        by = {process for _, process in tasks.results(range(20))}
    assert len(by) <= processes
    assert (by == {os.getpid()}) == (processes == 1)


def test_without_forks_a_task_is_done_when_it_is_asked_for():
    seen: list[int] = []
    with Tasks([partial(seen.append, number) for number in range(3)]) as tasks:
        assert not tasks.is_done(2)
        tasks.results([2])
        assert tasks.is_done(2)
        assert seen == [2]


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(("work", "error"), [(refused, DataError), (odd, OddError)])
def test_an_error_is_the_same_wherever_it_is_raised(processes, work, error):
    with Tasks([work, partial(squared, 3)], processes) as tasks:
        time.sleep(0.1)  # the fork takes the first
        with pytest.raises(error, match=r"refused|1 and 2"):
            tasks.results([0, 1])
        assert not tasks.is_done(0)


def test_a_task_whose_process_is_killed_or_whose_result_cannot_be_sent_is_done_here():
    here = os.getpid()

    def fatal() -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return 7

    for work in (fatal, lambda: lambda: 7):
        with Tasks([work], 2) as tasks:
            time.sleep(0.1)
            (found,) = tasks.results([0])
            assert found == 7 or found() == 7


def test_leaving_the_block_ends_the_forks():
    with Tasks([partial(time.sleep, 60)], 2) as tasks:
        (process,) = tasks._forks
        begun = time.perf_counter()
    assert time.perf_counter() - begun < 10
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.parametrize("last", [0, 1])
def test_tasks_are_done_where_no_further_process_can_be_forked(monkeypatch, last):
    fork, forked, files = os.fork, [], set(Path("/proc/self/fd").iterdir())

    def failing() -> int:
        if len(forked) == last:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        process = fork()
        forked.append(process)
        return process

    monkeypatch.setattr(os, "fork", failing)
    with Tasks([partial(squared, number) for number in range(5)], 4) as tasks:
        assert tasks.forked == bool(last)
        assert [value for value, _ in tasks.results(range(5))] == [0, 1, 4, 9, 16]
    assert set(Path("/proc/self/fd").iterdir()) == files
    assert not any(Path("/proc", str(process)).exists() for process in forked)


INTERRUPTED = """
import os, signal, sys, threading, time
from neuronfair.scale.tasks import Tasks
signal.signal(signal.SIGINT, signal.default_int_handler)
def first():
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        return "early"
with Tasks([first, lambda: time.sleep(1.5)], 2) as tasks:
    time.sleep(1)
    signal.setitimer(signal.ITIMER_REAL, 2.5)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        tasks.results([0, 1])
    except KeyboardInterrupt:
        print(tasks.is_done(0), tasks.results([0]), tasks.is_done(1))
"""


def test_a_result_until_ctrl_c_is_kept():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=50)
    assert done.stdout == "True ['early'] True\n", done.stderr


KILLED = """
import os, pathlib, signal, sys, time
from neuronfair.scale.tasks import Tasks
folder = pathlib.Path(sys.argv[1])
def work():
    (folder / "process").write_text(str(os.getpid()))
    time.sleep(60)
with Tasks([work], 2):
    while not (folder / "process").exists() or not (folder / "process").read_text():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_forks_end_with_a_caller_that_is_killed(tmp_path):
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=50).returncode == -signal.SIGKILL
    process = Path("/proc", (tmp_path / "process").read_text())
    end = time.monotonic() + 20
    while process.exists() and "State:\tZ" not in (process / "status").read_text():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_libraries_and_threads_that_do_not_survive_a_fork(monkeypatch):
    assert count_usable_cores() <= 4
    monkeypatch.setitem(sys.modules, "xgboost", sys)
    assert count_usable_cores() == 1
    code = (
        "import threading, time, numpy, torch; from neuronfair.scale.tasks import has_other_threads as f; print(f());"
    )
    code += "threading.Thread(target=time.sleep, args=(1,)).start(); print(f())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True"], done.stderr
    assert has_other_threads() in (True, False)
