"""A table as columns of text: each different text once, with the line of each row, and joined sensitive columns."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from neuronfair.errors import DataError, did_you_mean
from neuronfair.formatting import join_words, pluralise
from neuronfair.limits import check_size, max_bytes

MAX_COLUMNS = 50_000  # the domain file of a wider table would be too large to be read again
# What a table takes in memory besides its texts: for each row its line; for each cell its number and its code, some of
# them twice; for each different text its place in a dictionary.
ROW_BYTES, CELL_BYTES, TEXT_BYTES = 100, 32, 100


class Cells(Sequence[str]):
    """The cells of a column, as different texts and the number of each row's text.

    >>> Cells.of(["F", "M ", "F"]).texts
    ['F', 'M']
    """

    def __init__(self, texts: list[str], numbers: npt.NDArray[np.int32]) -> None:
        self.texts = texts  # all different, in the order of their first rows
        self.numbers = numbers  # for each row, the position of its text

    @classmethod
    def of(cls, cells: Sequence[str]) -> Cells:
        """Return a sequence of cells as a column."""
        if isinstance(cells, cls):
            return cells
        column = ColumnBuilder(Meter("a column"))
        column.add(cells)
        return column.cells()

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """How many rows have each of the texts."""
        return np.bincount(self.numbers, minlength=len(self.texts))

    def take(self, rows: npt.NDArray[np.int64]) -> Cells:
        """Return some of the rows."""
        return Cells(self.texts, self.numbers[rows])

    def first(self, text: int) -> int:
        """Return the first row of a text, given by its position."""
        return int(np.argmax(self.numbers == text))

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self.texts[number] for number in self.numbers[row]]
        return self.texts[int(self.numbers[row])]

    def __iter__(self) -> Iterator[str]:
        return map(self.texts.__getitem__, self.numbers.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Cells):
            return self.texts == other.texts and np.array_equal(self.numbers, other.numbers)
        return isinstance(other, list) and list(self) == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Cells({self[:5]}, {len(self)} in all)"


class Meter:
    """Counts the memory that a table takes, and refuses a table that takes too much."""

    def __init__(self, label: object, size: int = 0) -> None:
        self._what, self._taken, self._most = label, size, max_bytes()

    def count(self, size: int) -> None:
        """Add some bytes."""
        self._taken += size
        if self._taken > self._most:
            check_size(self._taken, self._what)


class ColumnBuilder(dict[str, int]):
    """A column that is being read: numbers its texts in their order, without blanks at their ends."""

    def __init__(self, meter: Meter) -> None:
        self.texts: list[str] = []
        self._parts: list[npt.NDArray[np.int32]] = []
        self._meter = meter

    def __missing__(self, raw: str) -> int:
        text = raw.strip()
        self._meter.count(sys.getsizeof(raw) + TEXT_BYTES)
        number = self.get(text)
        if number is None:
            number = self[text] = len(self.texts)
            self.texts.append(text)
        if raw != text:
            self[raw] = number
        return number

    def add(self, cells: Iterable[str]) -> None:
        """Add the cells of some more rows."""
        self.add_numbers(np.fromiter(map(self.__getitem__, cells), dtype=np.int32))

    def add_numbers(self, numbers: npt.NDArray[np.int32]) -> None:
        """Add some more rows, by the numbers of their texts."""
        self._meter.count(CELL_BYTES * len(numbers))
        self._parts.append(numbers)

    def cells(self) -> Cells:
        """Return the column."""
        return Cells(self.texts, np.concatenate(self._parts))


@dataclass(frozen=True)
class JoinedColumns:
    """The origin of columns that were joined from a second file: never inputs of a model."""

    sheet: Sheet
    names: tuple[str, ...]
    key: str | None  # the column by which they were joined; None: row by row
    rows: Sequence[int]  # for each row of the table, the row of the second file


@dataclass(frozen=True)
class ColumnType:
    """A column in a table with types: its original label, dtype and values."""

    label: Any  # of any type, such as a whole number
    dtype: Any = None  # of pandas; None: as its values suggest
    cells: Mapping[str, object] = field(default_factory=dict)  # the value of each text, where that is no number


@dataclass(frozen=True)
class Sheet:
    """The columns of a table as text, an empty cell as '', and the line of the file for each row.

    The second of two columns with one name is called 'name.1', as in pandas; `copies` has their names in the header.
    """

    path: Path
    columns: Mapping[str, Cells]
    lines: Sequence[int]
    unit: str = "line"
    remarks: tuple[str, ...] = ()  # for the user, on how it was read
    copies: Mapping[str, str] = field(default_factory=dict)
    joined: JoinedColumns | None = None
    types: Mapping[str, ColumnType] = field(default_factory=dict)  # by name; none for a text file
    frame: Any = None  # the pandas DataFrame that it was read from, if any

    def where(self, row: int) -> str:
        """Return the position of a row in its file, and in the second one."""
        position = f"{self.unit} {self.lines[row]}"
        if self.joined is None:
            return position
        return f"{position} ({self.joined.sheet.path.name}: {self.joined.sheet.where(self.joined.rows[row])})"

    def check_clear(self, used: Sequence[str]) -> None:
        """Refuse a name of two different columns, unless both are used under different names."""
        for copy, name in self.copies.items():
            if name in used and copy not in used and self.columns[copy] != self.columns[name]:
                raise DataError(f"{self.path}: the header names the column '{name}' twice. Rename one of the two")


def make_sheet(
    path: Path,
    header: Sequence[str],
    columns: Sequence[Cells],
    lines: Sequence[int],
    *,
    unit: str = "line",
    remarks: tuple[str, ...] = (),
) -> Sheet:
    """Return a table whose header may name a column twice."""
    used, further = set(header), dict[str, int]()
    names, copies = list[str](), dict[str, str]()
    for name in header:
        unique_name = name
        if name in further:
            while unique_name in used:
                further[name] += 1
                unique_name = f"{name}.{further[name]}"
            used.add(unique_name)
            copies[unique_name] = name
        further.setdefault(name, 0)
        names.append(unique_name)
    twice = [f"the header names '{name}' twice; the second is called '{copy}'" for copy, name in copies.items()]
    return Sheet(path, dict(zip(names, columns, strict=True)), lines, unit, (*remarks, *islice(twice, 10)), copies)


def check_width(names: Sequence[str], path: Path) -> None:
    """Refuse a table of too many columns."""
    if len(names) > MAX_COLUMNS:
        raise DataError(f"{path}: has {len(names):,} columns, and {MAX_COLUMNS:,} at most are read. Leave some out")


def join_columns(table: Sheet, other: Sheet, names: Sequence[str], key: str | None = None) -> Sheet:
    """Return a table with columns joined from another one, by a key column or row by row.

    Each row of the table must be in the other one exactly once; further rows there are ignored.
    """
    for sheet in (table, other):
        if key is not None and key not in sheet.columns:
            raise DataError(f"{sheet.path}: no column '{key}' to join by. {did_you_mean(key, sheet.columns)}")
    if key in names:
        raise DataError(f"key '{key}': is sensitive itself. Name a column that tells people apart")
    shared_name = next((name for name in names if name in table.columns and name in other.columns), None)
    if shared_name is not None:
        raise DataError(
            f"{other.path}: has a column '{shared_name}', and so has {table.path}. Leave it out of one of the two"
        )
    missing_name = next((name for name in names if name not in table.columns and name not in other.columns), None)
    if missing_name is not None:
        raise DataError(f"{other.path}: no column '{missing_name}'. {did_you_mean(missing_name, other.columns)}")
    added = tuple(name for name in names if name in other.columns)
    if not added:
        raise DataError(
            f"{other.path}: has none of the sensitive columns; {table.path} has {join_words(names)}. Name a column of "
            "the file, or do without it"
        )
    for sheet in (other, table):
        sheet.check_clear([*added, *([key] if key is not None else [])])
    rows: Sequence[int] = _match_by_position(table, other) if key is None else _match_by_key(table, other, key)
    columns = {name: Cells.of([other.columns[name][row] for row in rows]) for name in added}
    manner = "row by row" if key is None else f"by '{key}'"
    remarks = (f"{join_words(added)} from {other.path.name}, joined {manner}: they are not passed to the model",)
    return replace(
        table,
        columns={**table.columns, **columns},
        joined=JoinedColumns(other, added, key, rows),
        remarks=(*table.remarks, *(f"{other.path.name}: {remark}" for remark in other.remarks), *remarks),
    )


def _match_by_position(table: Sheet, other: Sheet) -> range:
    rows, other_rows = len(table.lines), len(other.lines)
    if rows != other_rows:
        raise DataError(
            f"{other.path}: has {pluralise(other_rows, 'row')}, and {table.path} has {rows:,}. Without a key they must "
            "have as many, in the same order; or name a column that both have (--key)"
        )
    return range(rows)


def _match_by_key(table: Sheet, other: Sheet, key: str) -> list[int]:
    keys, other_keys = table.columns[key], other.columns[key]
    if len(doubles := np.flatnonzero(other_keys.counts > 1)):
        text = other_keys.texts[doubles[0]]
        first, second = np.flatnonzero(other_keys.numbers == doubles[0])[:2].tolist()
        raise DataError(
            f"{other.path}: {len(doubles):,} of {len(other_keys.texts):,} keys occur twice, the first {text!r} in "
            f"{other.where(first)} and {other.where(second)}. Keep one row for each '{key}'"
        )
    row_of = {text: row for row, text in enumerate(other_keys) if text}
    if absent := [index for index, text in enumerate(keys.texts) if text not in row_of]:
        text, position = keys.texts[absent[0]], table.where(keys.first(absent[0]))
        raise DataError(
            f"{other.path}: {len(absent):,} of {len(keys.texts):,} keys of {table.path} are not in its column '{key}', "
            f"the first {text!r} ({position}). Add these people there, or remove their rows"
        )
    rows = [row_of[text] for text in keys.texts]
    return [rows[number] for number in keys.numbers.tolist()]
