"""Pieces of work in processes of this machine: their order, what they say, and kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from neuronfair.errors import NeuronFairError
from neuronfair.progress import PieceProgress
from neuronfair.scale import pool as processes
from neuronfair.scale.pool import Processes


def scaled(by: int, item: int, note: PieceProgress) -> tuple[int, int, str]:
    note(1, 2, item)
    time.sleep(0.2 if item == 1 else 0.0)  # the first is done last
    note(2, 2, item)
    return by * item, os.getpid(), os.environ["OMP_NUM_THREADS"]


def killed_once(folder: Path, item: int, note: PieceProgress) -> int:
    """Kill one's own process at the first try of one piece."""
    with (folder / str(item)).open("a") as file:
        file.write("x")
    if item == 2 and (folder / "2").stat().st_size == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def always_killed(folder: Path, item: int, note: PieceProgress) -> None:
    os._exit(1)


def refused(folder: Path, item: int, note: PieceProgress) -> int:
    if item == 2:
        raise NeuronFairError("piece 2 is refused")
    return item


def endless(folder: Path, item: int, note: PieceProgress) -> None:
    (folder / "pids").open("a").write(f"{os.getpid()}\n")
    while True:
        time.sleep(0.05)


def test_pieces_come_in_order_whoever_is_first_and_say_how_far_they_are():
    told = []
    made = list(Processes(2).map(scaled, 10, [1, 2, 3], progress=lambda lines: told.append(list(lines))))
    assert [value for value, *_ in made] == [10, 20, 30]
    assert os.getpid() not in {pid for _, pid, _ in made}
    assert {threads for *_, threads in made} == {"1"}
    assert told[-1] == [(2, 2, 1), (2, 2, 2), (2, 2, 3)]
    assert list(Processes(2).map(scaled, 10, [])) == []


def test_a_piece_whose_process_is_killed_begins_again(tmp_path):
    assert list(Processes(2).map(killed_once, tmp_path, [1, 2, 3, 4])) == [1, 2, 3, 4]
    assert (tmp_path / "2").read_text() == "xx"


def test_work_that_always_kills_its_process_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "MAX_LOSSES", 1)
    with pytest.raises(NeuronFairError, match=r"killed 2 times.*--workers"):
        list(Processes(1).map(always_killed, tmp_path, [1]))


def test_what_a_piece_raises_ends_it_all(tmp_path):
    made = Processes(1).map(refused, tmp_path, [1, 2, 3])
    assert next(made) == 1
    with pytest.raises(NeuronFairError, match=r"^piece 2 is refused$"):
        next(made)


@pytest.mark.parametrize("work", [lambda shared, item, note: item, refused])
def test_what_cannot_be_sent_to_a_process_is_refused_in_one_line(work):
    item = 1 if work is not refused else threading.Lock()
    with pytest.raises(NeuronFairError, match=r"^--workers: .* cannot be sent to other processes: .*in one process$"):
        list(Processes(2).map(work, None, [item]))


def test_what_a_process_cannot_find_is_refused_in_one_line(tmp_path):
    program = (
        "from neuronfair.scale.pool import Processes\n"
        "def work(shared, item, note): return item\n"
        "if __name__ == '__main__': list(Processes(1).map(work, None, [1]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "NeuronFairError: --workers: " in done.stderr
    assert "Can't get attribute 'work'" in done.stderr


def test_processes_end_with_the_caller_even_if_that_is_killed(tmp_path):
    """The caller is killed by force, so that it can tell nobody."""
    program = (
        "from pathlib import Path; from neuronfair.scale.pool import Processes; from tests.scale import "
        f"test_pool as here; list(Processes(1).map(here.endless, Path({str(tmp_path)!r}), [1]))"
    )
    caller = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2])
    pids = tmp_path / "pids"
    _until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    caller.kill()
    caller.wait()
    _until(lambda: not _runs(int(pids.read_text())))


def _until(true) -> None:
    for _ in range(600):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within 30 seconds")


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
