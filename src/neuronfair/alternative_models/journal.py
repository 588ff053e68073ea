"""The file of a search: one line of JSON for each fit, with all that is needed to make the model again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from neuronfair.alternative_models.candidates import Candidate
from neuronfair.errors import RunError
from neuronfair.limits import TEXT, read_bytes

FILE = "search.jsonl"


@dataclass(frozen=True)
class FitLine:
    """One fit, and how it does on the choose part against the baseline."""

    candidate: Candidate
    seconds: float = 0.0
    error: str | None = None  # why it could not be fitted, or gave no answers
    quality: float = 0.0
    measure: float = 0.0
    quality_gain: float = 0.0
    quality_error: float = 0.0  # standard error of the gain
    measure_gain: float = 0.0
    measure_error: float = 0.0


@dataclass(frozen=True)
class _Line:
    begun_with: Mapping[str, str] = field(default_factory=dict)
    fit: FitLine | None = None
    tested: tuple[str, ...] = ()  # fits that the test part was used for


class SearchFile:
    """The lines of a search so far. A last line that a kill has cut off is written again."""

    def __init__(self, path: Path | None, begun_with: Mapping[str, str]) -> None:
        self.path, self.fits, self.tested = path, dict[str, FitLine](), tuple[str, ...]()
        self._size, lines = 0, list[_Line]()
        if path is not None and path.exists():
            content = read_bytes(path, times=TEXT)
            self._size = content.rfind(b"\n") + 1
            lines = [_read(path, number, line) for number, line in enumerate(content[: self._size].splitlines(), 1)]
        for line in lines:
            if line.fit is not None:
                self.fits[line.fit.candidate.name] = line.fit
            self.tested = line.tested or self.tested
        if not lines:
            self._append(_Line(begun_with))
        for name in begun_with if lines else ():
            if lines[0].begun_with.get(name) != begun_with[name]:
                raise RunError(
                    f"{path}: this search was begun with another {name}. Choose another --out, or --force to begin anew"
                )

    def add(self, fit: FitLine) -> None:
        """Keep a fit."""
        self.fits[fit.candidate.name] = fit
        self._append(_Line(fit=fit))

    def touch_test(self, names: tuple[str, ...]) -> None:
        """Keep for which fits the test part is used; others are refused afterwards."""
        if self.tested and self.tested != names:
            raise RunError(
                f"{self.path}: the test part was already used for other candidates, and a second look would make its "
                "intervals wrong. Choose another --out and another --seed, which draws other parts"
            )
        if not self.tested:
            self.tested = names
            self._append(_Line(tested=names))

    def _append(self, line: _Line) -> None:
        """Write a line and wait until the disk has it."""
        if self.path is None:
            return
        entry = {name: value for name, value in asdict(line).items() if value}
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.seek(self._size)
            file.truncate()
            file.write(json.dumps(entry, allow_nan=False).encode() + b"\n")
            self._size = file.tell()
            file.flush()
            os.fsync(file.fileno())


def _read(path: Path, number: int, line: bytes) -> _Line:
    try:
        return msgspec.json.decode(line, type=_Line)
    except msgspec.MsgspecError as error:
        raise RunError(f"{path}: line {number} is damaged ({error}). Nothing was changed") from None
