"""Reads a Feather file (Arrow IPC, as a file or a stream), whose parts can unpack to far more than it holds."""

from __future__ import annotations

from typing import Any

import pyarrow
import pyarrow.ipc
from pyarrow import types


def read(content: bytes, memory: int) -> bytes:
    """Return how many bytes, rows and columns there are, once all were read."""
    table, _ = columns(content)
    if table.nbytes > memory:
        raise MemoryError
    return f"{table.nbytes} {table.num_rows} {table.num_columns}".encode()


def columns(content: bytes) -> tuple[pyarrow.Table, list[str]]:
    """Return the columns of plain values, and the names of those that hold something else."""
    source = pyarrow.BufferReader(content)
    kind = pyarrow.ipc.open_file if content[:6] == b"ARROW1" else pyarrow.ipc.open_stream
    options = pyarrow.ipc.IpcReadOptions(use_threads=False)
    with kind(source, options=options) as reader:
        table = reader.read_all()
    plain = [place for place, one in enumerate(table.schema) if _is_plain(one.type)]
    odd = [one.name for one in table.schema if not _is_plain(one.type)]
    table = table.select(plain)
    table.validate(full=True)
    return table, odd


def _is_plain(kind: Any) -> bool:
    """Return whether a cell is one value: a list of nothing may have billions of places and take no memory."""
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        types.is_primitive(kind)
        or types.is_decimal(kind)
        or types.is_null(kind)
        or kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.binary(), pyarrow.large_binary())
        or types.is_fixed_size_binary(kind)
        or str(kind) in ("string_view", "binary_view")
    )
