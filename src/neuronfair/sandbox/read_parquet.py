"""Reads a Parquet file, whose pages can unpack to far more than its directory says."""

from __future__ import annotations

import pyarrow
import pyarrow.parquet


def read(content: bytes, memory: int) -> bytes:
    """Read all columns once, so that whoever reads them next will not be surprised."""
    table = columns(content)
    if table.nbytes > memory:
        raise MemoryError
    return b""


def columns(content: bytes) -> pyarrow.Table:
    """Return the table; a text that the file holds once and repeats is kept once."""
    with pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content)) as file:
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    texts = {chunk.path_in_schema for chunk in chunks if chunk.physical_type == "BYTE_ARRAY"}
    # Those that are stored as differences from the text before can only be read in full.
    texts -= {chunk.path_in_schema for chunk in chunks if any("DELTA" in kind for kind in chunk.encodings)}
    with pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content), read_dictionary=[*texts]) as file:
        table = file.read(use_threads=False)
    table.validate(full=True)  # the places of repeated texts, too
    return table
