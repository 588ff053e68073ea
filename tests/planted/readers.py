"""Readers with known faults: python -m tests.planted.readers FIGURES.json has the fuzzing program find them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch

from benchmarks.fuzzing import mutate
from neuronfair.errors import DataError, NeuronFairError

FIGURES = Path(sys.argv[-1])
ELSEWHERE = FIGURES.parent


def refuses(place: Path) -> None:
    raise DataError(f"{place}: not what was expected")


def says_nothing(place: Path) -> None:
    raise NeuronFairError("")


def takes_memory(place: Path) -> None:
    _ = bytearray(60_000_000) * 2


# By name: what a reader does with the folder that it is given, and what the program must make of it.
FAULTS = {
    "reads": (lambda place: (place / "file.json").read_bytes(), "accepted"),
    "refuses": (refuses, "refused"),
    "key": (lambda place: {}["key"], "traceback"),
    "leaves": (lambda place: sys.exit(2), "traceback"),
    "wordless": (says_nothing, "message"),
    "prints": (lambda place: os.write(1, b"\x1b[31m"), "printed"),
    "hangs": (lambda place: time.sleep(600), "hang"),
    "dies": (lambda place: os.abort(), "crash"),
    "bomb": (takes_memory, "memory"),
    "beside": (lambda place: (place / "new").touch(), "outside"),
    "changes": (lambda place: (place / "file.json").write_text("{}"), "outside"),
    "work": (lambda place: Path("new").touch(), "outside"),
    "elsewhere": (lambda place: (ELSEWHERE / "new").touch(), "outside"),
    "removes": (lambda place: (ELSEWHERE / "new").unlink(missing_ok=True), "outside"),
    "marker": (lambda place: os.mknod(mutate.MARKER), "outside"),
    "follows": (lambda place: os.open(place / mutate.CANARY, os.O_RDONLY), "outside"),
    "child": (lambda place: subprocess.run([sys.executable, "-S", "-c", "open('new', 'w')"], check=True), "outside"),
    "shell": (lambda place: os.system("true"), "outside"),
    "program": (lambda place: subprocess.run(["true"], check=True), "outside"),
    "calls": (lambda place: socket.getaddrinfo("127.0.0.1", 9), "outside"),
    "runs": (lambda place: exec(f"{mutate.MARK} = 1"), "outside"),
    "unpickles": (lambda place: __import__("pickle").loads(b"cposix\ngetpid\n."), "outside"),
    "seeds": (lambda place: torch.manual_seed(int(time.time())), "outside"),
    "steers": (lambda place: os.environ.update(PATH=""), "outside"),
}


def main() -> None:
    """Run the program with these readers in the place of its own; say which it has not called by their names."""
    sys.path.insert(0, str(Path(mutate.__file__).parents[1]))
    import fuzz
    from fuzzing import pool
    from fuzzing.formats import Format

    fuzz.BY_NAME.clear()
    for name, (read, _) in FAULTS.items():
        fuzz.BY_NAME[name] = Format(name, 1, lambda: [{"file.json": b'{"a": [1, "b"]}'}], (read,), sound=False)
    pool.MOST = 10**8
    sys.argv = ["fuzz.py", "--tries", "0", "--limit", "2", "--json", str(FIGURES), "--keep", f"{ELSEWHERE}/kept"]
    try:
        fuzz.main()
    except SystemExit as stop:
        said = json.loads(FIGURES.read_text())["formats"]
        wrong = {name: said[name] for name, (_, kind) in FAULTS.items() if said[name].get(kind) != 1}
        sys.exit(f"not called by their names: {wrong}" if wrong else stop.code != 1)


if __name__ == "__main__":
    main()
