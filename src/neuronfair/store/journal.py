"""The journal of a run: one line for every part, control and end, each whole or not there at all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from neuronfair.errors import RunError
from neuronfair.generation.campaign import Count

JOURNAL = "journal.jsonl"
PART_FILE = re.compile(r"(pilot|global|local)-\d{5,}\.(parquet|keys\.npy|misses\.npy|state\.safetensors)")

_FILES = ("part", "keys", "misses", "state")
_COUNT = {field.name for field in fields(Count)}  # of a control
_COUNTS = ("t", "findings", "tried", "judged", "rejected")


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Give the lines of a journal; one that a kill has cut off is left out, a damaged one is refused."""
    if not path.exists():
        return
    *lines, end = path.read_bytes().split(b"\n")
    for number, line in enumerate([*lines, end], 1):
        try:
            entry = json.loads(line)
            whole = _is_entry(entry)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            whole = False
        if whole:
            yield entry
        elif number <= len(lines):
            raise RunError(f"{path}: line {number} is damaged. The files named before it can still be read")
        # What comes after the last line break was being written when the run was killed.


def _is_entry(entry: dict[str, Any]) -> bool:
    """Return whether a line of the journal says what its event must say; it may be anything that JSON can hold."""
    if entry["event"] == "part":
        named = all(PART_FILE.fullmatch(entry[kind]) and isinstance(entry["crc32"][kind], int) for kind in _FILES)
        counted = all(isinstance(entry[key], int) for key in _COUNTS) and isinstance(entry["seconds"], (int, float))
        return named and counted and {"phase", "stop"} <= set(entry)
    if entry["event"] == "control":
        count = entry["count"]
        return "name" in entry and set(count) == _COUNT and all(isinstance(count[key], int) for key in _COUNT)
    return bool(entry["event"] == "done" and isinstance(entry["summary"], dict))
