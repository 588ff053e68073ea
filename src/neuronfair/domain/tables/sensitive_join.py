"""Sensitive columns that stand beside a table, in a file or in memory: joined to it, and never given to a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from neuronfair.domain.tables.cells import Cells
from neuronfair.domain.tables.files import JoinedColumns, Sheet, read_sheet
from neuronfair.errors import DataError, did_you_mean
from neuronfair.formatting import listed, plural

UNNAMED = "sensitive"  # what a column in memory is called that has no name
_VALUES_PATH = Path("sensitive values")  # where errors say that they are
_VALUES = ("Series", "DataFrame", "Table", "ndarray")  # types of columns in memory; other things are names


def joined_columns(table: Sheet, other: Sheet, names: Sequence[str], key: str | None = None) -> Sheet:
    """Return a table with those of some columns that another one has.

    They belong together by a column that both have, or row by row. Each row of the table must be in the other one
    exactly once; further rows of the other one do not matter.
    """
    for sheet in (table, other):
        if key is not None and key not in sheet.columns:
            raise DataError(f"{sheet.path}: no column '{key}' to join by. {did_you_mean(key, sheet.columns)}")
    if key in names:
        raise DataError(f"key '{key}': is sensitive itself. Name a column that tells people apart")
    both = next((name for name in names if name in table.columns and name in other.columns), None)
    if both is not None:
        raise DataError(f"{other.path}: has a column '{both}', and so has {table.path}. Leave it out of one of the two")
    missing = next((name for name in names if name not in table.columns and name not in other.columns), None)
    if missing is not None:
        raise DataError(f"{other.path}: no column '{missing}'. {did_you_mean(missing, other.columns)}")
    joined = tuple(name for name in names if name in other.columns)
    if not joined:
        raise DataError(
            f"{other.path}: has none of the sensitive columns; {table.path} has {listed(names)}. Name a column of the "
            "file, or do without it"
        )
    used = [*joined, *([key] if key is not None else [])]
    other.check_clear(used)
    table.check_clear(used)
    rows: Sequence[int] = _by_position(table, other) if key is None else _by_key(table, other, key)
    columns = {name: Cells.of([other.columns[name][row] for row in rows]) for name in joined}
    how = "row by row" if key is None else f"by '{key}'"
    remarks = (f"{listed(joined)} from {other.path.name}, joined {how}: no model is given it",)
    return replace(
        table,
        columns={**table.columns, **columns},
        beside=JoinedColumns(other, joined, key, rows),
        remarks=(*table.remarks, *(f"{other.path.name}: {remark}" for remark in other.remarks), *remarks),
    )


def _by_position(table: Sheet, other: Sheet) -> range:
    here, there = len(table.lines), len(other.lines)
    if here != there:
        raise DataError(
            f"{other.path}: has {plural(there, 'row')}, and {table.path} has {here:,}. Without a key they must have as "
            "many, in the same order; or name a column that both have (--key)"
        )
    return range(here)


def _by_key(table: Sheet, other: Sheet, key: str) -> list[int]:
    keys, known = table.columns[key], other.columns[key]
    twice = np.flatnonzero(known.counts > 1)
    if len(twice):
        text = known.texts[twice[0]]
        first, second = np.flatnonzero(known.numbers == twice[0])[:2].tolist()
        raise DataError(
            f"{other.path}: {len(twice):,} of {len(known.texts):,} keys occur twice, the first {text!r} in "
            f"{other.where(first)} and {other.where(second)}. Keep one row for each '{key}'"
        )
    row_of = {text: row for row, text in enumerate(known) if text}
    absent = [place for place, text in enumerate(keys.texts) if text not in row_of]
    if absent:
        text, where = keys.texts[absent[0]], table.where(keys.first(absent[0]))
        raise DataError(
            f"{other.path}: {len(absent):,} of {len(keys.texts):,} keys of {table.path} are not in its column '{key}', "
            f"the first {text!r} ({where}). Add these people there, or remove their rows"
        )
    rows = [row_of[text] for text in keys.texts]
    return [rows[number] for number in keys.numbers.tolist()]


def with_columns(table: Any, sensitive: Any) -> tuple[Any, Sequence[str]]:
    """Return a table and the names of its sensitive columns, of which the values may be given instead of the names.

    Such are a Series, a DataFrame, an array, or a mapping of columns. They belong to the table row by row; those of
    pandas by their index, where both have the same unique one in any order.

    >>> sheet, names = with_columns({"age": [20, 30]}, {"sex": ["f", "m"]})
    >>> names, list(sheet.columns["sex"])
    (('sex',), ['f', 'm'])
    """
    if sensitive is None or isinstance(sensitive, str):
        return table, (sensitive,) if sensitive else ()
    if isinstance(sensitive, int):  # what a column of pandas may be called
        return table, (str(sensitive),)
    if not isinstance(sensitive, Mapping) and type(sensitive).__name__ not in _VALUES:
        return table, tuple(map(str, sensitive))
    if hasattr(table, "domain") and hasattr(table, "labels"):  # not a column of that name
        raise DataError(f"{table.name}: this table has its own domain. Name its sensitive attributes")
    sheet, columns = read_sheet(table), _columns(sensitive)
    if isinstance(sensitive, np.ndarray) and set(map(str, sensitive.flat)) <= set(sheet.columns):
        return table, tuple(map(str, sensitive.flat))
    if _have_one_index(table, columns):
        columns = columns.loc[table.index]
    values = replace(read_sheet(columns), path=_VALUES_PATH)
    names = tuple(values.columns)
    return joined_columns(sheet, values, names), names


def _columns(values: Any) -> Any:
    """Return values as columns with names."""
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise DataError(f"sensitive values: expected an array of one dimension, got the shape {values.shape}")
        return {UNNAMED: values.tolist()}
    if type(values).__name__ == "Series":  # of pandas or Polars
        return values.to_frame(UNNAMED if values.name in (None, "") else str(values.name))
    return values


def _have_one_index(table: Any, columns: Any) -> bool:
    """Return whether two tables of pandas name their rows, and name the same."""
    if not (hasattr(table, "iloc") and hasattr(columns, "iloc")) or len(table) != len(columns):
        return False
    here, there = table.index, columns.index
    same = here.is_unique and there.is_unique and there.isin(here).all()
    if not same and not here.equals(there) and there.isin(here).any():
        raise DataError(
            "sensitive values: their index and the table's name some of the same rows, and others. Give both the same "
            "index, or reset_index() of both to join them row by row"
        )
    return bool(same)
