"""Whatever a reader does in its own process, the answer is a result or an error, and the next file is read."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from neuronfair import sandbox
from neuronfair.limits import TooLargeError
from neuronfair.sandbox import UnreadableError, read_sandboxed

READER = """
import types
import os, json, signal, socket, time, sys
held = []

def read(content, memory):
    words = content.decode().split()
    return globals()[words[0]](*words[1:]).encode()

def echo(word="nothing"):
    return word

def count():
    held.append(1)  # what one file leaves behind, another must not find
    return str(len(held))

def pid():
    return str(os.getpid())

def fail():
    raise ValueError("no \\n such  thing")

def leave():
    sys.exit("gone")

def fill():
    return str(len(bytearray(10**10)))

def crash():
    os.kill(os.getpid(), signal.SIGSEGV)

def sleep():
    time.sleep(1000)

def speak():
    print("this is no answer", flush=True)
    os.write(1, b"nor is this")
    return "answer"

def flood():
    return "x" * 10_000_000

def write(path):
    with open(path, "w") as file:
        file.write("x")
    return "written"

def ask(port):
    with socket.create_connection(("127.0.0.1", int(port)), 5):
        return "connected"

def environment():
    return json.dumps(dict(os.environ))

def pipes():
    def usable(number):
        try:
            return os.fstat(number) and number
        except OSError:
            return None
    return json.dumps([n for n in range(3, 30) if usable(n)])

def modules():
    return json.dumps(["decimal" in sys.modules, sys.modules.get("fractions", 0)])

def core():
    import resource
    return json.dumps([resource.getrlimit(getattr(resource, f"RLIMIT_{n}"))[1] for n in ("CORE", "FSIZE", "CPU")])

READERS = {"reader": types.SimpleNamespace(read=read, libraries=("decimal",), unused=("fractions",))}
"""

Ask = Callable[[str], str]


@pytest.fixture(params=["forks", "once"])
def ask(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Put a question to the reader above, in the manner of Linux and in that of other systems."""
    if request.param == "forks" and not sandbox.FORKS:
        pytest.skip("this system does not fork")
    monkeypatch.setattr(sandbox, "FORKS", request.param == "forks")
    monkeypatch.setattr(sandbox, "_SERVERS", {})
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "50000000")
    monkeypatch.setattr(sandbox, "READERS", tmp_path / "readers.py")
    (tmp_path / "readers.py").write_text(READER)
    yield lambda words: read_sandboxed("reader", words.encode(), "a.file").decode()
    sandbox._stop_servers()


def test_a_reader_answers_and_each_file_has_a_fresh_process(ask: Ask) -> None:
    assert ask("echo hello") == "hello"
    assert [ask("count") for _ in range(3)] == ["1", "1", "1"]
    assert len({ask("pid") for _ in range(3)} | {str(os.getpid())}) == 4


def test_errors_are_told_in_one_line(ask: Ask) -> None:
    for words, says in (("fail", "ValueError: no such thing"), ("leave", "SystemExit: gone"), ("none", "KeyError")):
        with pytest.raises(UnreadableError, match=says):
            ask(words)
    assert ask("echo") == "nothing"


def test_a_crash_is_an_error_like_any_other(ask: Ask) -> None:
    with pytest.raises(UnreadableError, match="damaged"):
        ask("crash")
    assert ask("echo") == "nothing"


def test_no_more_memory_than_allowed(ask: Ask) -> None:
    with pytest.raises(TooLargeError, match=r"^a\.file: takes more than .* NEURONFAIR_MAX_BYTES"):
        ask("fill")


def test_no_longer_answer_than_allowed(ask: Ask) -> None:
    with pytest.raises(TooLargeError):
        ask("flood")
    assert ask("echo") == "nothing"


def test_one_that_does_not_end_is_ended(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    ask("echo")
    monkeypatch.setattr(sandbox, "BASE_SECONDS", 1)
    if not sandbox.FORKS:
        monkeypatch.setattr(sandbox, "START_SECONDS", 0)
    with pytest.raises(UnreadableError, match="damaged"):
        ask("sleep")


def test_libraries_are_imported_before_the_first_file_and_unused_ones_are_kept_out(ask: Ask) -> None:
    assert json.loads(ask("modules")) == [True, None]


def test_what_is_printed_is_no_answer(ask: Ask) -> None:
    assert ask("speak") == "answer"


@pytest.mark.skipif(sys.platform == "win32", reason="limits of Unix systems")
def test_it_writes_no_file_and_leaves_no_core(ask: Ask, tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="OSError"):
        ask(f"write {tmp_path / 'new'}")
    assert not (tmp_path / "new").exists() or (tmp_path / "new").read_bytes() == b""
    assert json.loads(ask("core")) == [0, 0, sandbox.BASE_SECONDS]


def test_it_sees_little_of_the_environment(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    sandbox._stop_servers()
    seen = json.loads(ask("environment"))
    assert "SECRET" not in seen
    assert seen["OMP_NUM_THREADS"] == "1"


def _can_leave_the_network() -> bool:
    code = "import ctypes, sys; c = ctypes.CDLL(None); sys.exit(c.unshare(0x50000000) and c.unshare(0x40000000))"
    return sys.platform == "linux" and subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.skipif(not _can_leave_the_network(), reason="this system does not let a process leave the network")
def test_it_sees_no_network(ask: Ask) -> None:
    if not sandbox.FORKS:
        pytest.skip("on Linux only")
    with socket.create_server(("127.0.0.1", 0)) as here, pytest.raises(UnreadableError, match="OSError"):
        ask(f"ask {here.getsockname()[1]}")


def test_a_child_has_the_pipe_of_its_answer_only(ask: Ask) -> None:
    if sandbox.FORKS:
        assert len(json.loads(ask("pipes"))) <= 2  # the pipe, and the way to nowhere


def test_a_process_that_was_ended_is_started_again(ask: Ask) -> None:
    ask("echo")
    for server in sandbox._SERVERS.values():
        server.process.kill()
        server.process.wait()
    assert ask("echo again") == "again"


def test_a_process_that_ends_meanwhile_is_an_error(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "readers.py").write_text("raise SystemExit")
    sandbox._stop_servers()
    with pytest.raises(UnreadableError, match="damaged"):
        ask("echo")


def test_the_process_of_another_process_is_left_alone(ask: Ask) -> None:
    ask("echo")
    others = list(sandbox._SERVERS.values())
    for server in others:
        server.owner = -1  # as after a fork
    assert ask("echo mine") == "mine"
    for server in others:
        assert sandbox.FORKS is False or server.process.poll() is None
        server.owner = os.getpid()
        server.stop()
