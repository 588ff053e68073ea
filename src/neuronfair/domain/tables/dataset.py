"""Data sets: rows, labels and original cells, from the catalog by name or from a user's table by its domain."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.domain.attribute import Attribute, select_attributes
from neuronfair.domain.cells import is_missing
from neuronfair.domain.draws import draw_order
from neuronfair.domain.rules import find_excluded_labels
from neuronfair.domain.schema.toml import read_domain
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables import Cells, ColumnType, Sheet, sources
from neuronfair.domain.tables.files import read_sheet
from neuronfair.domain.tables.sources import RECIPES
from neuronfair.errors import CellError, DataError, did_you_mean

DATASETS: tuple[str, ...] = tuple(sources.SOURCES)
ENCODINGS: tuple[str, ...] = ("default", "paper")
UNKNOWN = -1  # the label of a row whose class is not known


@dataclass(frozen=True)
class Dataset:
    """Rows of a domain with their labels.

    `rows` are the codes, (n, d) int64; `labels` are the numbers of the classes in the order of the domain's target,
    (n,) int64, or -1 throughout where the table has no target column or the target is a quantity. `original` are the
    cells that the rows were read from, which the model reads for the metrics of the data set; None where the codes
    represent the cells exactly.
    """

    name: str
    domain: TableDomain
    rows: Tensor
    labels: Tensor
    types: Mapping[str, ColumnType] = field(default_factory=dict, repr=False)  # of the table's columns, where known
    inferred: bool = False  # whether the domain was inferred from the table itself
    inputs_in_order: bool = False  # whether the user has named the model's inputs in their order
    original: Original | None = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labelled(self) -> bool:
        """Whether the classes of the rows are known."""
        return bool((self.labels != UNKNOWN).all())

    @property
    def in_compared_groups(self) -> Dataset:
        """The records of the demographic groups that are compared: those that no rule excludes."""
        compared = torch.ones(len(self), dtype=torch.bool, device=self.rows.device)
        for column in self.domain.sensitive_columns:
            attribute = self.domain.attributes[column]
            for label in find_excluded_labels(self.domain.rules, attribute.name) & {*attribute.values}:
                compared &= self.rows[:, column] != attribute.values.index(label)
        return self if bool(compared.all()) else self.take(compared.nonzero()[:, 0])

    def to(self, device: str | torch.device) -> Dataset:
        """Return this table on another device."""
        return replace(self, domain=self.domain.to(device), rows=self.rows.to(device), labels=self.labels.to(device))

    def take(self, index: Tensor) -> Dataset:
        """Return the chosen rows with their labels."""
        original = None if self.original is None else self.original.take(index.cpu().numpy())
        return replace(self, rows=self.rows[index], labels=self.labels[index], original=original)

    def only(self, names: Collection[str]) -> Dataset:
        """Return the columns of some attributes, in the domain's order."""
        columns = [column for column, name in enumerate(self.domain.names) if name in names]
        return replace(self, domain=limit_domain(self.domain, names), rows=self.rows[:, columns])

    def split(self, seed: int = 0) -> Split:
        """Return a random split: 70% of the rows for training, 10% for validation and 20% for testing."""
        n = len(self)
        order = draw_order(n, seed)
        train, validation, test = torch.tensor_split(order, (n * 7 // 10, n * 8 // 10))
        return Split(self.take(train), self.take(validation), self.take(test))


class Split(NamedTuple):
    """Three parts of a data set that share no row."""

    train: Dataset
    validation: Dataset
    test: Dataset


def load_dataset(name: str, encoding: str = "default", *, sensitive: Sequence[str] | None = None) -> Dataset:
    """Load a data set of the catalog: adult, german, bank, compas or meps.

    `encoding` is "default" (words, one-hot blocks, scaled numbers, rules) or "paper" (the integers of the published
    models). `sensitive` replaces the sensitive attributes of the catalog.

    >>> len(load_dataset("german"))
    1000
    """
    domain = catalog_domain(name, encoding)
    if sensitive is not None:
        domain = domain.with_sensitive(*sensitive)
    columns = RECIPES[name, encoding](*sources.read_texts(name))
    return Dataset(name, domain, domain.from_table(columns), _read_labels(columns, domain))


def catalog_domain(name: str, encoding: str = "default") -> TableDomain:
    """Return the domain of a data set of the catalog, without reading its data.

    >>> catalog_domain("adult").sensitive
    ('sex',)
    """
    sources.find_source(name)
    if encoding not in ENCODINGS:
        raise DataError(f"{name}: no encoding '{encoding}'. {did_you_mean(encoding, ENCODINGS)}")
    return read_domain(sources.CATALOG / f"{name}.{encoding}.toml")


def read_table(path: str | Path | Sheet | Any, domain: TableDomain) -> Dataset:
    """Read the columns of a domain from a table: any file of `read_sheet`, or a DataFrame.

    Without the target column the labels are -1. The first cell that does not fit the domain is reported with its
    column, line and value.
    """
    sheet = read_sheet(path)
    for name in domain.names:
        if name not in sheet.columns:
            raise DataError(f"{sheet.path}: column '{name}' is missing. {did_you_mean(name, sheet.columns)}")
    sheet.check_clear([*domain.names, *([domain.target.column] if domain.target is not None else [])])
    try:
        rows, labels = domain.from_table(sheet.columns), _read_labels(sheet.columns, domain)
    except CellError as bad:
        raise DataError(f"{sheet.path}: {sheet.where(bad.row)}: {bad.reason}") from None
    domain = domain.with_band_values(rows)
    columns = {name: sheet.columns[name] for name in domain.names}
    return Dataset(sheet.path.stem, domain, rows, labels, sheet.types, original=Original.of(columns, sheet.frame))


def limit_domain(domain: TableDomain, names: Collection[str]) -> TableDomain:
    """Return a domain with some of its attributes, in its own order, and the rules that name only these."""
    attributes = select_attributes(domain.attributes, names)
    rules = tuple(rule for rule in domain.rules if {*rule.when, *rule.then} <= set(names))
    return replace(domain, attributes=attributes, rules=rules)


def _read_labels(columns: Mapping[str, Sequence[object]], domain: TableDomain) -> Tensor:
    target = domain.target
    if target is None or not target.classes or target.column not in columns:
        return torch.full((len(columns[domain.names[0]]),), UNKNOWN)
    column = columns[target.column]
    cells = column if isinstance(column, Cells) else Cells.of(list(map(str, column)))
    number = {label: i for i, label in enumerate(target.classes)}
    labels = torch.tensor([number.get(text, UNKNOWN) for text in cells.texts])[torch.tensor(cells.numbers).long()]
    if UNKNOWN in labels:
        row = int((labels == UNKNOWN).nonzero()[0])
        suggestion = did_you_mean(cells[row], target.classes)
        raise CellError(row, f"target '{target.column}': unknown class {cells[row]!r}. {suggestion}")
    return labels


GRID_ERROR = 1e-9  # of a step: how far a number may lie from the value of its code, such as 0.1 * 3 for 0.3


@dataclass(frozen=True)
class Original:
    """The original cells of a data set: columns of text, and the DataFrame they were read from, if any.

    `rows` are the rows of the columns that the data set holds, in its order.
    """

    columns: Mapping[str, Cells]
    rows: npt.NDArray[np.int64]
    frame: Any = None

    @staticmethod
    def of(columns: Mapping[str, Cells], frame: Any = None) -> Original:
        """Return all rows of a table."""
        return Original(columns, np.arange(len(next(iter(columns.values())))), frame)

    def take(self, index: npt.NDArray[np.int64]) -> Original:
        """Return some of the rows."""
        return replace(self, rows=self.rows[index])

    def numbers(self, attribute: Attribute) -> npt.NDArray[np.float64]:
        """Return the numbers of a column, NaN for an empty cell: (n,)."""
        cells = self.columns[attribute.name]
        values = [None if is_missing(text) else attribute.number(text) for text in cells.texts]
        return np.array([np.nan if value is None else value for value in values])[cells.numbers[self.rows]]

    def texts(self, attribute: Attribute) -> npt.NDArray[np.object_]:
        """Return the texts of a column, None for an empty cell: (n,)."""
        cells = self.columns[attribute.name]
        texts = [None if is_missing(text) and text not in attribute.values else text for text in cells.texts]
        return np.array(texts, dtype=object)[cells.numbers[self.rows]]

    def off_grid(self, domain: TableDomain, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which cells are no value of the domain, so that their codes are approximate: bool, (n, d)."""
        return np.stack([self._off_grid(a, codes[:, index]) for index, a in enumerate(domain.attributes)], 1)

    def has_filled(self, domain: TableDomain) -> npt.NDArray[np.bool_]:
        """Return which rows have an empty cell for which the domain declares a number: bool, (n,)."""
        filled = [a for a in domain.attributes if not a.values and a.missing is not None and a.empty is None]
        empty = [np.isnan(self.numbers(attribute)) for attribute in filled]
        return np.any(empty, axis=0) if empty else np.zeros(len(self.rows), dtype=bool)

    def _off_grid(self, attribute: Attribute, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        if attribute.values:
            labels = {*attribute.values, *attribute.extra} - ({*attribute.extra} if attribute.other else set())
            cells = self.columns[attribute.name]
            beyond = np.array([text not in labels and not is_missing(text) for text in cells.texts])
            return beyond[cells.numbers[self.rows]]
        numbers, step = self.numbers(attribute), float(attribute.step)
        close = GRID_ERROR * step + 4 * np.finfo(np.float64).eps * np.abs(numbers)
        return ~(np.isnan(numbers) | (np.abs(attribute.low + step * codes - numbers) <= close))
