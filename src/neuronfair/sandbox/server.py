"""The process that reads files from strangers; `neuronfair.sandbox` runs this file as a program.

It imports nothing of the package. A child reads each file with limits on memory and time. It writes no file, leaves no
core dump, and has no network where the system allows a process to give it up.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import runpy
import signal
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

REQUEST, ANSWER = struct.Struct("<QQQQ"), struct.Struct("<Q")
NEW_USER, NEW_NETWORK, DEATH_SIGNAL = 0x10000000, 0x40000000, 1  # of Linux: CLONE_…, PR_SET_PDEATHSIG

ReadBytes = Callable[[bytes, int], bytes]


def main(readers: str, name: str, mode: str) -> None:
    """Answer requests with one of the readers, until there are no more requests; or only the first one."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)  # what a library prints is no answer
    chosen = runpy.run_path(readers)["READERS"][name]
    sys.modules.update(dict.fromkeys(chosen.unused))  # None: importing it fails
    for library in chosen.libraries:
        importlib.import_module(library)
    read: ReadBytes = chosen.read
    forks = mode == "forks"
    if forks:
        _system("unshare", NEW_USER | NEW_NETWORK) and _system("unshare", NEW_NETWORK)
    while header := requests.read(REQUEST.size):
        memory, seconds, max_answer, size = REQUEST.unpack(header)
        content = requests.read(size)
        if forks:
            answer = forked(read, content, memory, seconds, max_answer, [requests.fileno(), answers.fileno()])
        else:
            answer = attempt(read, content, memory, seconds)
        answers.write(ANSWER.pack(len(answer)) + answer)
        answers.flush()
        if not forks:
            return


def forked(read: ReadBytes, content: bytes, memory: int, seconds: int, max_answer: int, private: list[int]) -> bytes:
    """Read in a child without the `private` pipes, and return its answer; nothing if the child crashes."""
    import select

    inlet, outlet = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _system("prctl", DEATH_SIGNAL, signal.SIGKILL)
            for pipe in (*private, inlet):
                os.close(pipe)
            with os.fdopen(outlet, "wb") as file:
                file.write(attempt(read, content, memory, seconds))
        finally:
            os._exit(0)
    os.close(outlet)
    answer, deadline = bytearray(), time.monotonic() + seconds
    while select.select([inlet], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(inlet, 1 << 20)
        answer += part
        if not part or len(answer) > max_answer:
            break
    else:
        answer.clear()  # it has taken too long
    os.close(inlet)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return b"m" if len(answer) > max_answer else bytes(answer)


def attempt(read: ReadBytes, content: bytes, memory: int, seconds: int) -> bytes:
    """Return '+' and the result, '-' and why reading failed, or 'm' if it needs more memory than allowed."""
    try:
        _limit(memory, seconds)
        return b"+" + read(content, memory)
    except MemoryError:
        return b"m"
    except BaseException as error:
        text = " ".join(str(error).split())[:150]
        return b"-" + f"{type(error).__name__}: {text}".encode(errors="replace")


def _limit(memory: int, seconds: int) -> None:
    try:
        import resource
    except ImportError:  # not a Unix system
        return
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        used_memory = pages * resource.getpagesize()
    except OSError:  # not Linux
        used_memory = 1 << 30
    limits = {"AS": used_memory + memory, "CPU": seconds, "FSIZE": 0, "CORE": 0}
    for name, maximum in limits.items():
        try:
            kind = getattr(resource, f"RLIMIT_{name}")
            _, already = resource.getrlimit(kind)
            maximum = maximum if already == resource.RLIM_INFINITY else min(maximum, already)
            resource.setrlimit(kind, (maximum, maximum))
        except (AttributeError, ValueError, OSError):  # a system without this limit
            continue


def _system(name: str, *numbers: int) -> int:
    """Call a function of the system's C library; return -1 where it does not exist or is not allowed."""
    try:
        return int(getattr(ctypes.CDLL(None), name)(*map(ctypes.c_ulong, numbers)))
    except (OSError, AttributeError, TypeError):
        return -1


if __name__ == "__main__":
    main(*sys.argv[1:])
