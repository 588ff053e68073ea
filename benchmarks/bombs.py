"""Small files that want much memory or time: each is refused, or read, within seconds and without filling memory.

    python benchmarks/bombs.py

Makes the files in a temporary folder, gives each to a command as people do, and prints how large the file is, what it
would unpack to, how long the command took and how much memory it and the processes that it began had at most.
"""

from __future__ import annotations

import gzip
import os
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

CHUNK = 1 << 24
DOMAIN = """sensitive = ["sex"]
[attributes.age]
kind = "ordinal"
low = 17
high = 90
[attributes.sex]
kind = "flag"
values = ["f", "m"]
[target]
column = "hired"
classes = ["no", "yes"]
"""
AUDIT = ("audit", "table.csv", "--domain", "domain.toml", "--out", "out")


def fields(file: Path) -> float:
    """A gzip CSV with one field of 2.5 GB."""
    with gzip.open(file, "wb", compresslevel=1) as out:
        out.write(b"age,sex,hired\n")
        for _ in range(150):
            out.write(b"1" * CHUNK)
        out.write(b",f,yes\n")
    return 150 * CHUNK


def arrays(file: Path) -> float:
    """Weights of 8 GB of zeros."""
    head = np.lib.format.magic(1, 0)
    shape = "{'descr': '<f8', 'fortran_order': False, 'shape': (31250, 32000), }"
    _pack(file, "layer1.npy", head + (118).to_bytes(2, "little") + shape.ljust(117).encode() + b"\n", 8e9)
    return 8e9


def picture(file: Path) -> float:
    """An archive with one picture of 4.5 GB."""
    _pack(file, "face.bmp", b"BM", 4.5e9)
    return 4.5e9


def _pack(file: Path, name: str, head: bytes, zeros: float) -> None:
    """Write an archive with one member: some bytes, and then zeros."""
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
        archive.open(name, "w", force_zip64=True) as out,
    ):
        out.write(head)
        for _ in range(int(zeros) // CHUNK + 1):
            out.write(bytes(CHUNK))


def header(file: Path) -> float:
    """A CSV with 1,000,000 columns."""
    file.write_text(",".join(f"c{i}" for i in range(1_000_000)) + "\n")
    return file.stat().st_size


BOMBS: dict[str, tuple[Callable[[Path], float], tuple[str, ...]]] = {
    "table.csv.gz": (fields, ("audit", "table.csv.gz", "--domain", "domain.toml", "--out", "out")),
    "model.npz": (arrays, (*AUDIT, "--model", "model.npz")),
    "faces.zip": (
        picture,
        ("audit-images", "faces.zip", "--labels", "labels.csv", "--sensitive", "sex", "--out", "out"),
    ),
    "wide.csv": (header, ("domain", "infer", "wide.csv", "--sensitive", "c1", "--target", "c2")),
}


def measured(words: tuple[str, ...]) -> tuple[int, str, float, float, float]:
    """Return a command's status, its last line, its seconds by the clock and of processor time, and its megabytes."""
    begun = time.perf_counter()
    said = Path("said")
    with said.open("w") as out:
        files = [(os.POSIX_SPAWN_DUP2, out.fileno(), number) for number in (1, 2)]
        pid = os.posix_spawn(
            sys.executable, [sys.executable, "-m", "neuronfair.cli", *words], os.environ, file_actions=files
        )
        _, status, used = os.wait4(pid, 0)
    seconds = time.perf_counter() - begun
    spent = used.ru_utime + used.ru_stime
    last = said.read_text().strip().splitlines()[-1:] or [""]
    return os.waitstatus_to_exitcode(status), last[0], seconds, spent, used.ru_maxrss / 1024


def main() -> None:
    """Make every file, open it, and print the figures."""
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        Path("domain.toml").write_text(DOMAIN)
        Path("labels.csv").write_text("file,sex,label\nface.bmp,f,yes\n")
        rows = [f"{17 + i % 70},{'fm'[i % 2]},{('no', 'yes')[i % 3 > 1]}" for i in range(300)]
        Path("table.csv").write_text("\n".join(["age,sex,hired", *rows, ""]))
        print("| file | MB | unpacked MB | status | seconds | of processor | most memory, MB | what is said |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |", flush=True)
        for name, (make, words) in BOMBS.items():
            unpacked = make(Path(name)) / 1e6
            status, said, seconds, spent, memory = measured(words)
            size = Path(name).stat().st_size / 1e6
            print(
                f"| {make.__doc__} | {size:.1f} | {unpacked:,.0f} | {status} | {seconds:.1f} | {spent:.1f} "
                f"| {memory:,.0f} | {said} |",
                flush=True,
            )
        os.chdir("/")


if __name__ == "__main__":
    main()
