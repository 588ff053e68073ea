"""The records of a search: cells, labels and demographic groups, in a part to fit, one to choose and one to test."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from neuronfair.domain.tables.dataset import Dataset, Original
from neuronfair.domain.tables.sheet import Cells
from neuronfair.errors import DataError, needs
from neuronfair.model.records import OriginalCells

Integers = npt.NDArray[np.int64]
PATTERN = ("fit", "fit", "fit", "choose", "test")  # of the records of each label and group
LEAST = 10  # records of each compared group in each part


@dataclass(frozen=True)
class SearchTable:
    """A data set as its estimators see it, cut into three parts that share no record.

    `values` are the classes as the table writes them, in the order of the domain. `group` is the demographic group of
    each record, -1 where it is not compared.
    """

    data: Dataset
    frame: Any
    values: tuple[Any, ...]
    group: Integers
    groups: tuple[str, ...]
    fit: Integers
    choose: Integers
    test: Integers

    @property
    def positive(self) -> int:
        """The class that counts as selected: the favourable outcome, or else the last class."""
        target, favourable = self.data.domain.target, self.data.domain.favourable
        assert target is not None
        return target.classes.index(favourable) if favourable is not None else len(target.classes) - 1

    @property
    def sensitive(self) -> tuple[str, ...]:
        """The sensitive attributes."""
        return self.data.domain.sensitive

    @cached_property
    def labels(self) -> Integers:
        """The number of the class of each record."""
        return np.asarray(self.data.labels.numpy())

    @cached_property
    def y(self) -> npt.NDArray[Any]:
        """The class of each record as the table writes it."""
        return np.array(self.values, dtype=object if isinstance(self.values[0], str) else None)[self.labels]

    @cached_property
    def cells(self) -> OriginalCells:
        """The records as a DataFrame in which cells can be replaced."""
        assert self.data.original is not None
        return OriginalCells(self.data.original, self.data)

    def part(self, name: str) -> Integers:
        """Return the records of a part."""
        return {"fit": self.fit, "choose": self.choose, "test": self.test}[name]


def search_table(data: Dataset, seed: int) -> SearchTable:
    """Return a data set ready for a search; refuse one whose parts would be too small to compare groups."""
    domain = data.domain
    if domain.target is None or not domain.target.classes or not data.labelled:
        raise DataError(f"{data.name}: the records have no labels, so nothing can be fitted. Name the target column")
    classes = np.unique(data.labels.numpy())
    if len(classes) < 2:
        only = domain.target.classes[int(classes[0])] if len(classes) else "none"
        raise DataError(f"{data.name}: the target '{domain.target.column}' has one class only ({only})")
    if len(domain.target.classes) > 2 and domain.favourable is None:
        raise DataError(f"{data.name}: of {len(domain.target.classes)} classes, name the --favourable one")
    data = _with_frame(data)
    compared = data.compared
    kept = set(map(tuple, compared.rows[:, list(domain.sensitive_columns)].tolist()))
    number = domain.combinations.number(data.rows).numpy()
    inside = np.array([tuple(row) in kept for row in data.rows[:, list(domain.sensitive_columns)].tolist()])
    used = np.unique(number[inside])
    group = np.where(inside, np.searchsorted(used, number), -1)
    names = tuple(_group_name(data, int(np.flatnonzero(inside & (number == one))[0])) for one in used)
    if len(names) < 2:
        raise DataError(f"{data.name}: there are fewer than two groups by {', '.join(domain.sensitive)} to compare")
    parts = _parts(data.labels.numpy(), group, seed)
    for part, rows in parts.items():
        counts = np.bincount(group[rows][group[rows] >= 0], minlength=len(names))
        if counts.min() < LEAST:
            few = names[int(counts.argmin())]
            raise DataError(
                f"{data.name}: {counts.min()} records of {few} would be left to {part}, and {LEAST} are the least. "
                "More records, or larger groups, are needed"
            )
    assert data.original is not None
    frame = data.original.frame
    return SearchTable(data, frame[list(domain.names)], _values(data), group, names, **parts)


def _parts(labels: Integers, group: Integers, seed: int) -> dict[str, Integers]:
    """Return the records of each part, drawn so that labels and groups are as frequent in each."""
    random = np.random.default_rng([seed, len(labels)])
    order = np.lexsort((random.random(len(labels)), labels, group))
    place = (np.arange(len(labels)) + random.integers(len(PATTERN))) % len(PATTERN)
    chosen = np.array(PATTERN)[place]
    return {name: np.sort(order[chosen == name]) for name in ("fit", "choose", "test")}


def _with_frame(data: Dataset) -> Dataset:
    """Return a data set with its original cells as a DataFrame, typed as pandas reads a file."""
    pandas, original = needs("pandas", "sklearn", "a search for alternatives"), data.original
    if original is not None and original.frame is not None:
        frame = original.frame.iloc[original.rows].reset_index(drop=True)
        frame.columns = list(map(str, frame.columns))
        return replace(data, original=replace(original, rows=np.arange(len(data)), frame=frame))
    if original is None:
        table = {name: list(column) for name, column in data.domain.to_table(data.rows).items()}
        columns = {name: Cells.of(list(map(str, column))) for name, column in table.items()}
        return replace(data, original=Original(columns, np.arange(len(data)), pandas.DataFrame(table)))
    names = data.domain.names
    frame = pandas.DataFrame({name: _native(original.columns[name], original.rows) for name in names})
    columns = {name: Cells(cells.texts, cells.numbers[original.rows]) for name, cells in original.columns.items()}
    return replace(data, original=Original(columns, np.arange(len(data)), frame))


def _native(cells: Cells, rows: Integers) -> npt.NDArray[Any]:
    """Return a column of text as numbers where all of its texts are numbers, and else as texts; empty cells are NaN."""
    try:
        numbers = np.array([float(text) if text else np.nan for text in cells.texts])
    except ValueError:
        texts = np.array([text or np.nan for text in cells.texts], dtype=object)
        return np.asarray(texts[cells.numbers[rows]])
    found = numbers[cells.numbers[rows]]
    whole = all(text.lstrip("-").isdigit() for text in cells.texts)
    return np.asarray(found.astype(np.int64) if whole else found)


def _values(data: Dataset) -> tuple[Any, ...]:
    """Return the classes as the table writes them."""
    target, original = data.domain.target, data.original
    assert target is not None
    assert original is not None
    if target.column in original.frame.columns:
        column, labels = original.frame[target.column], data.labels.numpy()
        first = [np.flatnonzero(labels == number) for number in range(len(target.classes))]
        if all(map(len, first)):
            return tuple(column.iloc[int(rows[0])] for rows in first)
    if all(one.lstrip("-").isdigit() for one in target.classes):
        return tuple(map(int, target.classes))
    return tuple(target.classes)


def _group_name(data: Dataset, row: int) -> str:
    """Return the sensitive values of a record in words."""
    domain = data.domain
    values = [domain.attributes[column].value(int(data.rows[row, column])) for column in domain.sensitive_columns]
    return ", ".join(map(str, values))
