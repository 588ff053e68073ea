"""Columns of numbers and texts with a note, as one Parquet file that may come from a stranger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from neuronfair.apart import Unreadable, parquet, read_apart
from neuronfair.atomic import replacing
from neuronfair.errors import RunError, one_line
from neuronfair.limits import check_size, read_bytes

_KEY = b"neuronfair"


@dataclass(frozen=True)
class Texts:
    """A column of texts: the different ones, and which of them stands in each row."""

    known: list[str]
    places: npt.NDArray[np.int64]


def write_columns(path: Path, columns: Mapping[str, npt.NDArray[np.int32] | list[str]], note: str) -> None:
    """Write columns of one length and a note, whole or not at all."""
    table = pa.table({name: pa.array(column) for name, column in columns.items()})
    with replacing(path) as temporary:
        pq.write_table(table.replace_schema_metadata({_KEY: note}), temporary, compression="zstd")


def read_columns(path: Path) -> tuple[dict[str, npt.NDArray[np.int32] | Texts], str]:
    """Read columns of whole numbers (int32) and of texts, without empty cells, and their note."""
    try:
        table = read_parquet(path)
        note = (table.schema.metadata or {}).get(_KEY, b"").decode()
        return {name: _column(name, table[name]) for name in table.column_names}, note
    except OSError as error:  # pyarrow's errors of reading are of this kind, too
        raise RunError(f"{path}: {error.strerror or one_line(error)}") from None
    except (pa.ArrowException, Unreadable, ValueError, KeyError, OverflowError) as error:
        raise RunError(f"{path}: cannot be read as Parquet: {one_line(error)}") from None


def read_parquet(path: Path) -> pa.Table:
    """Return the table in a file, which may be a stranger's: it is read in a process of its own first.

    A text that the file holds once and repeats is kept once. Raises what pyarrow and `read_apart` raise.
    """
    content = read_bytes(path)
    read_apart("parquet", content, path)
    with pq.ParquetFile(pa.BufferReader(content)) as file:
        about = file.metadata
    check_size(about.num_rows * about.num_columns, path, times=32)
    return parquet.columns(content)


def _column(name: str, column: pa.ChunkedArray) -> npt.NDArray[np.int32] | Texts:
    if column.null_count:
        raise ValueError(f"a cell of '{name}' is empty")
    kind = column.type
    if kind == pa.int32():
        return np.asarray(column.to_numpy())
    if not pa.types.is_dictionary(kind):
        column, kind = column.dictionary_encode(), pa.dictionary(pa.int32(), kind)
    if kind.value_type != pa.string():
        raise ValueError(f"column '{name}' holds {kind.value_type}, and whole numbers or texts were expected")
    whole = column.unify_dictionaries().combine_chunks()
    whole = whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
    places = whole.indices.cast("int64").to_numpy()
    return Texts(whole.dictionary.to_pylist(), np.asarray(places))
