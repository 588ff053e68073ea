"""A run folder belongs to one process at a time, whatever becomes of it."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuronfair.errors import RunError
from neuronfair.store import files as module
from neuronfair.store.files import LOCK, Lock
from neuronfair.store.ledger import check_folder, is_unused

HOLD = """
import os, sys, time
from pathlib import Path
from neuronfair.store import files as module
from neuronfair.store.files import Lock
module.BY_FILE = module.BY_FILE or "BY_FILE" in os.environ
lock = Lock.of(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


FORK = """
import os
note = Path(sys.argv[2])
if not os.fork():
    note.write_text(str(os.getpid()))
    time.sleep(600)
while not (note.exists() and note.read_text()):
    time.sleep(0.01)
os._exit(0)
"""


@pytest.fixture(autouse=True, params=["by folder", "by file"])
def way(request, monkeypatch) -> None:
    """Lock as Unix does, and as Windows must: a file in the folder can be locked everywhere."""
    if request.param == "by file":
        monkeypatch.setattr(module, "BY_FILE", True)
        monkeypatch.setenv("BY_FILE", "1")
    elif module.BY_FILE:
        pytest.skip("this system cannot lock folders")


@pytest.fixture
def other(way, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the folder."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_another_process_is_kept_out_until_it_is_killed(other, tmp_path) -> None:
    with pytest.raises(RunError, match="another process is writing to this run"):
        Lock.of(tmp_path)
    other.kill()
    other.wait()
    assert Lock.of(tmp_path)


def test_a_lock_leaves_the_folder_unused(tmp_path) -> None:
    lock = Lock.of(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ([LOCK] if module.BY_FILE else [])
    assert is_unused(tmp_path)
    del lock
    check_folder(tmp_path)
    (tmp_path / "letter.txt").write_text("dear")
    assert not is_unused(tmp_path)


def test_a_folder_that_cannot_be_written_keeps_nobody_out_and_says_so(tmp_path, monkeypatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(module.os, "open", refuse)
    with pytest.warns(match="cannot be locked .Permission denied., so a second process"):
        assert Lock.of(tmp_path) is None


def test_one_process_may_open_a_folder_twice(tmp_path) -> None:
    (tmp_path / "x").mkdir()
    first, second = Lock.of(tmp_path), Lock.of(tmp_path / "x" / "..")
    assert first is second is not None


def test_a_lock_that_nobody_uses_is_given_back(tmp_path) -> None:
    lock = Lock.of(tmp_path)
    hold = [sys.executable, "-c", HOLD.replace("600", "0"), str(tmp_path)]
    assert "another process" in subprocess.run(hold, capture_output=True, text=True, check=False).stderr
    del lock
    gc.collect()
    assert subprocess.run(hold, capture_output=True, text=True, check=True).stdout == "held\n"


def test_a_file_system_without_locks_keeps_nobody_out_and_says_so(tmp_path, monkeypatch) -> None:
    def refuse(handle: int, *, blocking: bool) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(module, "lock_descriptor", refuse)
    with pytest.warns(match="cannot be locked .No locks available., so a second process"):
        assert Lock.of(tmp_path) is None
    assert Lock.of(tmp_path) is None  # said once


def test_a_folder_that_was_made_again_is_another_one(tmp_path) -> None:
    (tmp_path / "run").mkdir()
    first = Lock.of(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "old")
    (tmp_path / "run").mkdir()
    second = Lock.of(tmp_path / "run")
    assert second is not None
    assert second is not first


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_does_not_hold_the_folders_of_its_parent(tmp_path) -> None:
    code = HOLD.replace("time.sleep(600)", FORK)
    folder, note = tmp_path / "run", tmp_path / "child"
    folder.mkdir()
    subprocess.run([sys.executable, "-c", code, str(folder), str(note)], stdout=subprocess.DEVNULL, check=True)
    try:
        assert Lock.of(folder)  # the parent is gone, its child is not
    finally:
        os.kill(int(note.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("command", ["search", "audit"])
def test_a_command_is_refused_while_another_writes(command: str, other, refused, tmp_path) -> None:
    refused(command, "german", "--out", str(tmp_path), says=(str(tmp_path), "another process"))
