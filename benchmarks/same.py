"""What must be the same in two folders after a kill, and what must not be done twice."""

from __future__ import annotations

import zipfile
from pathlib import Path


def contents(folder: Path) -> dict[str, object]:
    return {p.relative_to(folder).as_posix(): content(p) for p in sorted(folder.rglob("*")) if p.is_file()}


def content(path: Path) -> object:
    if path.suffix != ".pt" or not zipfile.is_zipfile(path):
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:  # torch writes the name of the temporary file into it
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def differences(undisturbed: Path, folder: Path) -> tuple[str, ...]:
    """Return what is not the same in two folders: files that are missing, left over or different."""
    expected, there = contents(undisturbed), contents(folder)
    return (
        *(f"{name} is missing" for name in expected.keys() - there.keys()),
        *(f"{name} is left over" for name in there.keys() - expected.keys()),
        *(f"{name} is different" for name in expected.keys() & there.keys() if expected[name] != there[name]),
    )


def finished(folder: Path) -> dict[Path, int]:
    """Return the finished work in a folder and when it was written: parts named by a journal, and cached results."""
    done = list(folder.glob("*/cache*/*.json"))
    for journal in folder.rglob("journal.jsonl"):
        lines = journal.read_text(encoding="utf-8").rpartition("\n")[0]
        done += [p for p in journal.parent.iterdir() if p.suffix in (".parquet", ".npy") and f'"{p.name}"' in lines]
    return {path: path.stat().st_mtime_ns for path in done if not path.name.startswith(".")}


def losses(before: dict[Path, int]) -> tuple[str, ...]:
    """Return which of the finished work is gone or was done again."""
    return tuple(
        f"{path.name} {'was written again' if path.exists() else 'is gone'}"
        for path, written in before.items()
        if not path.exists() or path.stat().st_mtime_ns != written
    )
