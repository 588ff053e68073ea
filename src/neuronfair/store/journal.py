"""The journal of a run: one line for every part, control and end, each whole or not there at all.

The last entry of a line is a checksum of the line and of all lines before it, and of the manifest before those: so a
line that was changed, taken out, doubled or moved is found.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from neuronfair.errors import RunError
from neuronfair.searches.config import Count
from neuronfair.store.files import Json, read_text

JOURNAL, SEEDS = "journal.jsonl", "seeds.npy"
POPULATION, COUNTERPARTS = "population.safetensors", "counterparts.safetensors"
BEGUN_WITH = {"population": POPULATION, "counterparts": COUNTERPARTS}  # where there are any
PHASES = ("pilot", "global", "local")
PROOF = "proof"  # the only phase of one
Kind = Literal["search", "proof"]  # of what a journal is

_SUFFIXES = {"part": "parquet", "keys": "keys.npy", "misses": "misses.npy", "state": "state.safetensors"}
_OF = {"search": PHASES, "proof": (PROOF,)}
_MARK = b', "check": "'
_END = re.compile(_MARK + rb'[0-9a-f]{8}"\}')
_COUNT = {field.name for field in fields(Count)}  # of a control
_COUNTS = ("t", "findings", "tried", "judged", "rejected")


def part_names(phase: str, number: int) -> dict[str, str]:
    """Return what the files of a part are called.

    >>> part_names("local", 3)["keys"]
    'local-00003.keys.npy'
    """
    kinds = ("state",) if phase == PROOF else _SUFFIXES
    return {kind: f"{phase}-{number:05d}.{_SUFFIXES[kind]}" for kind in kinds}


@dataclass
class Journal:
    """The whole lines of a journal. The next line is written behind them, over one that a kill has cut off."""

    path: Path
    check: int  # of the last line, and before the first one of the manifest
    parts: dict[str, list[Json]]  # by phase
    lines: list[Json] = field(default_factory=list)
    size: int = 0  # bytes of the whole lines
    missing: bytes = b""  # the line break, if just that was cut off

    @staticmethod
    def read(path: Path, check: int, kind: Kind) -> Journal:
        """Read a journal; a last line that a kill has cut off is left out, a damaged one is refused."""
        journal = Journal(path, check, {phase: [] for phase in _OF[kind]})
        try:
            *whole, end = read_text(path).split(b"\n")
        except FileNotFoundError:
            return journal
        damaged = not all(journal._take(line + b"\n") for line in whole)
        # What comes after the last line break was being written when the run was killed. A whole line with something
        # behind it was not: its line break is damaged.
        for mark in _END.finditer(end if not damaged else b""):
            if journal._take(end[: mark.end()]):
                damaged, journal.missing = mark.end() < len(end), b"\n"
                break
        if damaged:
            number = len(journal.lines) + (not journal.missing)
            raise RunError(
                f"{path}: line {number} is damaged, or does not belong here. Nothing was changed; the files named "
                "before it can still be read"
            )
        return journal

    def append(self, entry: Json) -> None:
        """Write a line and wait until the disk has it."""
        body = json.dumps(entry).encode()[:-1]
        line = self.missing + _sealed(body, self.check) + b"\n"
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.seek(self.size)
            file.truncate()
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._add(entry, zlib.crc32(body, self.check), len(line))
        self.missing = b""

    def _take(self, line: bytes) -> bool:
        """Take over a line if it is whole and goes on from the last one."""
        body, _, _ = line.rpartition(_MARK)
        if line.removesuffix(b"\n") != _sealed(body, self.check):
            return False
        try:
            entry = json.loads(body + b"}")
            whole = (entry["event"] == "begin") == (not self.lines) and _is_entry(entry, self.parts)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            whole = False
        if whole:
            self._add(entry, zlib.crc32(body, self.check), len(line))
        return whole

    def _add(self, entry: Json, check: int, size: int) -> None:
        self.lines.append(entry)
        if entry["event"] == "part":
            self.parts[entry["phase"]].append(entry)
        self.check, self.size = check, self.size + size


def _sealed(body: bytes, check: int) -> bytes:
    """Return a line of JSON, given without its brace at the end, with the checksum that goes on from `check`."""
    return body + _MARK + f'{zlib.crc32(body, check):08x}"}}'.encode()


def _is_entry(entry: Json, parts: Mapping[str, Sequence[object]]) -> bool:
    """Return whether a line of the journal says what its event must say; it may be anything that JSON can hold."""
    if entry["event"] == "begin":
        files = {"seeds": SEEDS, **{kind: name for kind, name in BEGUN_WITH.items() if kind in entry}}
        named = "crc32" not in entry if PROOF in parts else _names(entry, files)
        return named and isinstance(entry["model"], str | None)
    if entry["event"] == "part":
        phase = entry["phase"]
        named = _names(entry, part_names(phase, len(parts[phase])))
        timed = named and isinstance(entry["seconds"], (int, float))
        if phase == PROOF:
            return timed and isinstance(entry["boxes"], int)
        return timed and all(isinstance(entry[key], int) for key in _COUNTS) and "stop" in entry
    if entry["event"] == "control":
        count = entry["count"]
        return "name" in entry and set(count) == _COUNT and all(isinstance(count[key], int) for key in _COUNT)
    return bool(entry["event"] == "done" and isinstance(entry["summary"], dict))


def _names(entry: Json, files: dict[str, str]) -> bool:
    """Return whether a line names these files with their checksums, and no others."""
    checks = entry["crc32"]
    return (
        {kind: entry[kind] for kind in files} == files
        and checks.keys() == files.keys()
        and all(isinstance(check, int) for check in checks.values())
    )
