"""The records of a search: cells, labels and demographic groups, in a part to fit, one to choose and one to test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from neuronfair.domain.rules import find_excluded_labels
from neuronfair.domain.tables import Cells
from neuronfair.domain.tables.dataset import Dataset, Original
from neuronfair.errors import DataError, require
from neuronfair.formatting import join_words
from neuronfair.model.records import OriginalCells

Integers = npt.NDArray[np.int64]
PART_PATTERN = ("fit", "fit", "fit", "choose", "test")  # of the records of each label and group
MIN_IN_PART = 10  # records in each part of a group that is compared
MAX_GROUP_VALUES = 10  # of a sensitive number whose values are groups; one with more is put into bands
MAX_NAMED_GROUPS = 5  # groups that are too small, by name


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
    left_out: Mapping[str, int] = field(default_factory=dict)  # records of the groups that are not compared
    banded: tuple[str, ...] = ()  # sensitive numbers that were put into bands at their quartiles

    @property
    def notes(self) -> tuple[str, ...]:
        """What a report says about the groups."""
        bands = f"{join_words(self.banded)}: compared in bands that begin at the quartiles ({join_words(self.groups)})."
        small = (
            f"Not compared, as they have fewer than {MIN_IN_PART} records in a part or a rule excludes them: "
            f"{list_group_sizes(self.left_out)}. Their records are fitted and count for the quality."
        )
        return (*([bands] if self.banded else []), *([small] if self.left_out else []))

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


def prepare_search_table(data: Dataset, seed: int) -> SearchTable:
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
    data, banded, empty = _put_into_bands(_with_frame(data))
    sensitive = [data.domain.attributes[column] for column in data.domain.sensitive_columns]
    number = np.where(empty, -1, data.domain.combinations.number(data.rows).numpy())
    excluded = _find_excluded(data)
    parts = _draw_parts(data.labels.numpy(), np.where(excluded, -1, number), seed)
    used, first, count = np.unique(number[~empty], return_index=True, return_counts=True)
    codes = data.rows[:, list(data.domain.sensitive_columns)].numpy()[~empty][first]
    names = [", ".join(a.group_name(int(code)) for a, code in zip(sensitive, row, strict=True)) for row in codes]
    enough = ~excluded[~empty][first]
    for rows in parts.values():
        enough &= np.array([(number[rows] == group_number).sum() >= MIN_IN_PART for group_number in used])
    left_out = {name: int(n) for name, n, compared in zip(names, count, enough, strict=True) if not compared}
    groups = tuple(name for name in names if name not in left_out)
    if len(groups) < 2:
        raise DataError(
            f"{data.name}: fewer than two groups by {', '.join(domain.sensitive)} have {MIN_IN_PART} records in each "
            f"of the three parts, so none can be compared. Too few: {list_group_sizes(left_out) or 'all'}. More "
            "records, or larger groups, are needed"
        )
    group = np.full(len(data), -1)
    for index, group_number in enumerate(used[enough]):
        group[number == group_number] = index
    assert data.original is not None
    frame = data.original.frame[list(data.domain.names)]
    return SearchTable(data, frame, _find_class_values(data), group, groups, **parts, left_out=left_out, banded=banded)


def list_group_sizes(groups: Mapping[str, int]) -> str:
    """Return groups and their sizes in words, the largest first."""
    sizes = sorted(groups.items(), key=lambda item: -item[1])
    return join_words(
        [f"{name} ({n:,})" for name, n in sizes[:MAX_NAMED_GROUPS]]
        + [f"{len(sizes) - MAX_NAMED_GROUPS} more"] * (len(sizes) > MAX_NAMED_GROUPS)
    )


def _find_excluded(data: Dataset) -> npt.NDArray[np.bool_]:
    """Return which records have a sensitive value that no rule compares with others."""
    excluded = np.zeros(len(data), dtype=bool)
    for column in data.domain.sensitive_columns:
        attribute = data.domain.attributes[column]
        for label in find_excluded_labels(data.domain.rules, attribute.name) & {*attribute.values}:
            excluded |= data.rows[:, column].numpy() == attribute.values.index(label)
    return excluded


def _put_into_bands(data: Dataset) -> tuple[Dataset, tuple[str, ...], npt.NDArray[np.bool_]]:
    """Return a data set whose sensitive numbers of many values are in bands, which those are, and who has no number.

    Bands begin at the quartiles. An empty cell belongs to no band; the code of its record becomes that of the median.
    """
    domain, rows, banded = data.domain, data.rows.clone(), []
    empty, attributes = np.zeros(len(data), dtype=bool), list(domain.attributes)
    for column in domain.sensitive_columns:
        a = attributes[column]
        codes = rows[:, column].numpy()
        present = codes[codes != a.empty]
        if a.values or a.bands or len(np.unique(present)) <= MAX_GROUP_VALUES:
            continue
        quartiles = np.quantile(present, (0, 0.25, 0.5, 0.75), method="higher").tolist()
        cuts = tuple(a.low + a.step * code for code in dict.fromkeys(quartiles) if code > quartiles[0])
        missing = a.missing
        if a.empty is not None:
            empty |= codes == a.empty
            missing = a.low + a.step * quartiles[2]
            rows[codes == a.empty, column] = quartiles[2]
        attributes[column] = replace(a, bands=cuts, missing=missing)
        banded.append(a.name)
    domain = replace(domain, attributes=tuple(attributes)).with_band_values(rows)
    return replace(data, domain=domain, rows=rows), tuple(banded), empty


def _draw_parts(labels: Integers, group: Integers, seed: int) -> dict[str, Integers]:
    """Return the records of each part, drawn so that labels and groups are as frequent in each."""
    random = np.random.default_rng([seed, len(labels)])
    order = np.lexsort((random.random(len(labels)), labels, group))
    part_index = (np.arange(len(labels)) + random.integers(len(PART_PATTERN))) % len(PART_PATTERN)
    part_names = np.array(PART_PATTERN)[part_index]
    return {name: np.sort(order[part_names == name]) for name in ("fit", "choose", "test")}


def _with_frame(data: Dataset) -> Dataset:
    """Return a data set with its original cells as a DataFrame, typed as pandas reads a file."""
    pandas, original = require("pandas", "sklearn", "a search for alternatives"), data.original
    if original is not None and original.frame is not None:
        frame = original.frame.iloc[original.rows].reset_index(drop=True)
        frame.columns = list(map(str, frame.columns))
        return replace(data, original=replace(original, rows=np.arange(len(data)), frame=frame))
    if original is None:
        table = {name: list(column) for name, column in data.domain.to_table(data.rows).items()}
        columns = {name: Cells.of(list(map(str, column))) for name, column in table.items()}
        return replace(data, original=Original(columns, np.arange(len(data)), pandas.DataFrame(table)))
    names = data.domain.names
    frame = pandas.DataFrame({name: _type_column(original.columns[name], original.rows) for name in names})
    columns = {name: Cells(cells.texts, cells.numbers[original.rows]) for name, cells in original.columns.items()}
    return replace(data, original=Original(columns, np.arange(len(data)), frame))


def _type_column(cells: Cells, rows: Integers) -> npt.NDArray[Any]:
    """Return a column of text as numbers where all of its texts are numbers, and else as texts; empty cells are NaN."""
    try:
        numbers = np.array([float(text) if text else np.nan for text in cells.texts])
    except ValueError:
        texts = np.array([text or np.nan for text in cells.texts], dtype=object)
        return np.asarray(texts[cells.numbers[rows]])
    values = numbers[cells.numbers[rows]]
    are_integers = all(text.lstrip("-").isdigit() for text in cells.texts)
    return np.asarray(values.astype(np.int64) if are_integers else values)


def _find_class_values(data: Dataset) -> tuple[Any, ...]:
    """Return the classes as the table writes them."""
    target, original = data.domain.target, data.original
    assert target is not None
    assert original is not None
    if target.column in original.frame.columns:
        column, labels = original.frame[target.column], data.labels.numpy()
        first = [np.flatnonzero(labels == number) for number in range(len(target.classes))]
        if all(map(len, first)):
            return tuple(column.iloc[int(rows[0])] for rows in first)
    if all(label.lstrip("-").isdigit() for label in target.classes):
        return tuple(map(int, target.classes))
    return tuple(target.classes)
