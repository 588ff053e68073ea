"""Pairs as training data: both people of each pair with one label, in the cells of the user's own table."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from neuronfair.atomic import replacing
from neuronfair.domain.attribute import KEEP, MISSING, Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DataError

Cell = str | int | float | None
SUFFIXES = (".csv", ".parquet")


def training_table(domain: TableDomain, pairs: Tensor, labels: Tensor) -> dict[str, list[Cell]]:
    """Return pairs, (f, 2, d), as columns of a table with the target's: the two people of a pair stand together.

    The cells are those of the table that was searched, as they are: an empty one is None, and nothing is put before a
    text that a spreadsheet would take for a formula, since a program is to learn from it.
    """
    target = domain.target
    assert target is not None
    table: dict[str, list[Cell]] = {}
    for attribute, codes in zip(domain.attributes, pairs.flatten(0, 1).cpu().T, strict=True):
        distinct, place = torch.unique(codes, return_inverse=True)
        cells = [_cell(attribute, code) for code in distinct.tolist()]
        table[attribute.name] = [cells[i] for i in place.tolist()]
    table[target.column] = [target.classes[i] for i in labels.repeat_interleave(2).tolist()]
    return table


def _cell(attribute: Attribute, code: int) -> Cell:
    value = attribute.value(code)
    return None if value == MISSING and attribute.missing in (MISSING, KEEP, code) else value


def write_training_table(path: Path, table: dict[str, list[Cell]]) -> None:
    """Write columns as CSV, or by its name as Parquet, with the types that the texts suggest."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    content = text.getvalue().encode()
    try:
        with replacing(path) as temporary:
            if path.suffix.lower() == ".parquet":
                _write_parquet(temporary, content, [name for name in table if _keeps_zeros(table[name])])
            else:
                temporary.write_bytes(content)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error


def _keeps_zeros(cells: Sequence[Cell]) -> bool:
    """Return whether a column holds a text such as a postcode, which would lose its first zero as a number."""
    return any(isinstance(cell, str) and re.match(r"0\d", cell) is not None for cell in set(cells))


def _write_parquet(path: Path, content: bytes, texts: Sequence[str]) -> None:
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    options = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(texts, pyarrow.string()), null_values=[""], strings_can_be_null=True
    )
    table = pyarrow.csv.read_csv(io.BytesIO(content), convert_options=options)
    pyarrow.parquet.write_table(table, path)
