"""Read a file in a process of its own, because the library that reads it may crash, hang or fill all memory.

Each format of `readers.py` has one process (`server.py`) that imports its library once. On Linux that process forks a
child for every file, so that a fresh process reads each within milliseconds; elsewhere it reads one file and ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

from neuronfair.errors import NeuronFairError
from neuronfair.limits import SIZE_VARIABLE, TEXT_FACTOR, TooLargeError, max_bytes

BASE_SECONDS = 20  # for a small file; a large one gets a second more for every 10 MB
START_SECONDS = 60  # seconds more, in which Python and the library must have been imported
FORKS = sys.platform == "linux"
SERVER, READERS = Path(__file__).with_name("server.py"), Path(__file__).with_name("readers.py")
_PASSED_VARIABLES = ("PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "SYSTEMROOT")
_SET_VARIABLES = {
    "OMP_NUM_THREADS": "1",  # a process with threads cannot be forked safely
    "OPENBLAS_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # others reserve more addresses than they use, and addresses are limited
    "HDF5_PLUGIN_PRELOAD": "::",  # no filters from elsewhere
    "ORT_DISABLE_TELEMETRY": "1",  # on import onnxruntime writes a device id and a database into the cache
    "PYTHONDONTWRITEBYTECODE": "1",
}
_REQUEST, _ANSWER = struct.Struct("<QQQQ"), struct.Struct("<Q")


class UnreadableError(NeuronFairError):
    """A file cannot be read; the text says why."""


def read_sandboxed(reader: str, content: bytes, label: object) -> bytes:
    """Return the answer of a reader, by its name in `READERS`; raise `UnreadableError` if it fails or crashes."""
    memory, seconds = max_bytes(), BASE_SECONDS + len(content) // 10_000_000
    with _LOCK:
        try:
            answer = _running_server(reader).ask(content, memory, seconds)
        except (OSError, struct.error):  # the process has ended
            answer = b""
    kind, result = answer[:1], answer[1:]
    if kind == b"+":
        return result
    if kind == b"m":
        raise TooLargeError(
            f"{label}: takes more than {memory / 1e9:,.1f} GB of memory when it is read. "
            f"If you trust it, set {SIZE_VARIABLE} to a larger number of bytes"
        )
    raise UnreadableError(result.decode() if kind == b"-" else "it is damaged, or not of this format")


class _Server:
    """A running process that reads files with one reader."""

    def __init__(self, reader: str) -> None:
        self.owner = os.getpid()
        self.process = subprocess.Popen(
            # -P: a file h5py.py in the working folder must not be taken for the package.
            [sys.executable, "-P", SERVER, READERS, reader, "forks" if FORKS else "once"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ} | _SET_VARIABLES,
            start_new_session=True,  # Ctrl-C is for us
        )

    @property
    def usable(self) -> bool:
        """Whether it runs and belongs to this process, not to the one that this was forked from."""
        return self.owner == os.getpid() and self.process.poll() is None

    def ask(self, content: bytes, memory: int, seconds: int) -> bytes:
        """Return the answer to one file: a letter and its content."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        max_answer = memory // TEXT_FACTOR
        timer = threading.Timer(START_SECONDS + seconds, self.process.kill)
        timer.start()
        answered = False
        try:
            self.process.stdin.write(_REQUEST.pack(memory, seconds, max_answer, len(content)))
            self.process.stdin.write(content)
            self.process.stdin.flush()
            (size,) = _ANSWER.unpack(self.process.stdout.read(_ANSWER.size))
            answer = self.process.stdout.read(size) if size <= max_answer else b"m"
            answered = size <= max_answer
            return answer
        finally:
            timer.cancel()
            timer.join()  # who looks for other threads finds none
            if not FORKS or not answered:  # its next answer would belong to this request
                self.stop()

    def stop(self) -> None:
        """End the process if this one started it."""
        if self.owner == os.getpid():
            self.process.kill()
            with contextlib.suppress(OSError), self.process:  # waits, and closes its pipes
                pass


_LOCK = threading.Lock()
_SERVERS: dict[str, _Server] = {}


def _running_server(reader: str) -> _Server:
    server = _SERVERS.get(reader)
    if server is None or not server.usable:
        if server is not None:
            server.stop()
        _SERVERS[reader] = server = _Server(reader)
    return server


@atexit.register
def _stop_servers() -> None:
    for server in _SERVERS.values():
        server.stop()
    _SERVERS.clear()
