"""A column of a table as text: each different text once, and for each row the number of its text."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from neuronfair.limits import check_size, max_bytes

# What a table takes in memory besides its texts: for each row its line; for each cell its number and its code, some of
# them twice; for each different text its place in a dictionary.
ROW, CELL, TEXT = 100, 32, 100


class Cells(Sequence[str]):
    """The cells of a column. Whatever is asked of all of them is asked of `texts`, which are far fewer.

    >>> Cells.of(["F", "M ", "F"]).texts
    ['F', 'M']
    """

    def __init__(self, texts: list[str], numbers: npt.NDArray[np.int32]) -> None:
        self.texts = texts  # in the order in which they come first; none comes twice, or not at all
        self.numbers = numbers  # for each row, the place of its text

    @classmethod
    def of(cls, cells: Sequence[str]) -> Cells:
        """Return cells as a column; what is one already is returned as it is."""
        if isinstance(cells, cls):
            return cells
        column = ColumnBuilder(Meter("a column"))
        column.add(cells)
        return column.cells()

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """How often each of the texts comes."""
        return np.bincount(self.numbers, minlength=len(self.texts))

    def first(self, text: int) -> int:
        """Return the first row in which a text stands, given by its place."""
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
    """How much memory a table takes so far; where that is more than it may, it is refused."""

    def __init__(self, what: object, taken: int = 0) -> None:
        self._what, self._taken, self._most = what, taken, max_bytes()

    def count(self, size: int) -> None:
        """Add some bytes."""
        self._taken += size
        if self._taken > self._most:
            check_size(self._taken, self._what)


class ColumnBuilder(dict[str, int]):
    """A column that is being read: numbers its texts as they come, without blanks at their ends."""

    def __init__(self, meter: Meter) -> None:
        self.texts: list[str] = []
        self._parts: list[npt.NDArray[np.int32]] = []
        self._meter = meter

    def __missing__(self, raw: str) -> int:
        text = raw.strip()
        self._meter.count(sys.getsizeof(raw) + TEXT)
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
        self._meter.count(CELL * len(numbers))
        self._parts.append(numbers)

    def cells(self) -> Cells:
        """Return all that was added."""
        return Cells(self.texts, np.concatenate(self._parts))
