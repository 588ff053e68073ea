"""Parquet files of findings, and of plain columns. Files that are read may come from strangers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from neuronfair.atomic import replace_file
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DomainError, RunError, one_line
from neuronfair.limits import check_size, read_bytes
from neuronfair.sandbox import UnreadableError, read_sandboxed
from neuronfair.sandbox.readers import parquet_table
from neuronfair.searches.findings import Findings

TEXT_BYTES, NUMBER_BYTES = 32, 16  # memory for one cell of a file: read, and copied once
_KEY = b"neuronfair"


@dataclass(frozen=True)
class DictionaryColumn:
    """A column of texts: the distinct ones, and the index of each row's text among them."""

    distinct: list[str]
    indices: npt.NDArray[np.int64]


def write_columns(path: Path, columns: Mapping[str, npt.NDArray[np.int32] | list[str]], note: str) -> None:
    """Write columns of equal length and a note, whole or not at all."""
    table = pa.table({name: pa.array(column) for name, column in columns.items()})
    with replace_file(path) as temporary:
        pq.write_table(table.replace_schema_metadata({_KEY: note}), temporary, compression="zstd")


def read_columns(path: Path) -> tuple[dict[str, npt.NDArray[np.int32] | DictionaryColumn], str]:
    """Read columns of whole numbers (int32) and of texts, without empty cells, and their note."""
    try:
        table = read_parquet(path)
        note = (table.schema.metadata or {}).get(_KEY, b"").decode()
        return {name: _read_column(name, table[name]) for name in table.column_names}, note
    except OSError as error:  # pyarrow's errors of reading are of this kind, too
        raise RunError(f"{path}: {error.strerror or one_line(error)}") from None
    except (pa.ArrowException, UnreadableError, ValueError, KeyError, OverflowError) as error:
        raise RunError(f"{path}: cannot be read as Parquet: {one_line(error)}") from None


def read_parquet(path: Path) -> pa.Table:
    """Return the table in a file from a stranger, which is read in a sandboxed process first.

    Repeated texts stay dictionary-encoded. Raises the errors of pyarrow and `read_sandboxed`.
    """
    content = read_bytes(path)
    read_sandboxed("parquet", content, path)
    with pq.ParquetFile(pa.BufferReader(content)) as file:
        metadata = file.metadata
    kinds = [metadata.schema.column(index).physical_type for index in range(metadata.num_columns)]
    row_bytes = sum(TEXT_BYTES if kind in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY") else NUMBER_BYTES for kind in kinds)
    check_size(metadata.num_rows * row_bytes, path)
    return parquet_table(content)


def _read_column(name: str, column: pa.ChunkedArray) -> npt.NDArray[np.int32] | DictionaryColumn:
    if column.null_count:
        raise ValueError(f"a cell of '{name}' is empty")
    kind = column.type
    if kind == pa.int32():
        return np.asarray(column.to_numpy())
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if kind != pa.string():
        raise ValueError(f"column '{name}' holds {kind}, and whole numbers or texts were expected")
    encoded = _encode(column)
    indices = encoded.indices.cast("int64").to_numpy()
    return DictionaryColumn(encoded.dictionary.to_pylist(), np.asarray(indices))


def _encode(column: pa.ChunkedArray) -> Any:
    """Return a column as one array with a dictionary."""
    column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    combined = column.unify_dictionaries().combine_chunks()
    return combined.combine_chunks() if isinstance(combined, pa.ChunkedArray) else combined


ORIGIN, STEP, PLAUSIBILITY = "origin", "step", "plausibility"
TWIN = "twin_{}"  # the value of an attribute in the twin
SCORE, TWIN_SCORE = "score_{}", "twin_score_{}"


def write_findings(path: Path, findings: Findings, domain: TableDomain) -> None:
    """Write findings to a Parquet file, one column per attribute with its labels or numbers."""
    packed, twins = findings.packed.cpu(), findings.twin_values.cpu()
    ours = _column_names(domain, findings.scores.shape[1])
    columns: dict[str, pa.Array] = {
        ours[ORIGIN]: pa.array(findings.origin.cpu().numpy()),
        ours[STEP]: pa.array(findings.step.cpu().numpy()),
    }
    for i, attribute in enumerate(domain.attributes):
        columns[attribute.name] = decode_codes(attribute, packed[:, i])
    for i, column in enumerate(domain.twin_columns):
        columns[ours[TWIN, column]] = decode_codes(domain.attributes[column], twins[:, i])
    repeated = list(columns)  # these have few distinct values, unlike scores
    for name, scores in ((SCORE, findings.scores), (TWIN_SCORE, findings.twin_scores)):
        for i in range(scores.shape[1]):
            columns[ours[name, i]] = pa.array(scores[:, i].cpu().numpy())
    # Unknown values are empty cells.
    columns[ours[PLAUSIBILITY]] = pa.array(findings.plausibility.cpu().numpy(), from_pandas=True)
    # Without statistics: they take a fifth of the time, and are of little use to readers.
    packing = {"compression": "zstd", "compression_level": 1, "write_statistics": False}
    pq.write_table(pa.table(columns), path, use_dictionary=repeated, **packing)


def read_findings(path: Path, domain: TableDomain, outputs: int) -> Findings:
    """Read findings from a Parquet file."""
    ours = _column_names(domain, outputs)
    try:
        table = read_parquet(path)
        packed = torch.stack([_read_codes(a, table[a.name]) for a in domain.attributes], 1).to(domain.compact)
        twins = [_read_codes(domain.attributes[c], table[ours[TWIN, c]]) for c in domain.twin_columns]
        return Findings(
            packed=packed.to(domain.device),
            twin_values=torch.stack(twins, 1).to(domain.device),
            scores=_read_scores(table, [ours[SCORE, i] for i in range(outputs)]).to(domain.device),
            twin_scores=_read_scores(table, [ours[TWIN_SCORE, i] for i in range(outputs)]).to(domain.device),
            origin=torch.from_numpy(table[ours[ORIGIN]].to_numpy().copy()).to(domain.device),
            step=torch.from_numpy(table[ours[STEP]].to_numpy().copy()).to(domain.device),
            misses=packed[:0].to(domain.device),
            plausibility=_read_plausibility(table, ours[PLAUSIBILITY]).to(domain.device),
        )
    except (pa.ArrowException, UnreadableError, OSError, KeyError, ValueError, TypeError, DomainError) as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(
            f"{path}: damaged or not a findings file ({reason}). The other parts of the run are untouched"
        ) from None


def _column_names(domain: TableDomain, outputs: int) -> dict[str | tuple[str, int], str]:
    """Return the names of the columns that are no attributes; underscores are appended until a name is unique."""
    column_names: dict[str | tuple[str, int], str] = {ORIGIN: ORIGIN, STEP: STEP}
    column_names |= {(TWIN, column): TWIN.format(domain.names[column]) for column in domain.twin_columns}
    column_names |= {(kind, i): kind.format(i) for kind in (SCORE, TWIN_SCORE) for i in range(outputs)}
    column_names[PLAUSIBILITY] = PLAUSIBILITY  # last: older runs do not have it, and the other names must not change
    used_names = set(domain.names)
    for key, name in column_names.items():
        while name in used_names:
            name += "_"
        column_names[key] = name
        used_names.add(name)
    return column_names


def decode_codes(attribute: Attribute, codes: Tensor) -> pa.Array:
    """Return codes of an attribute, on the CPU, as labels or numbers."""
    if attribute.values:
        return pa.DictionaryArray.from_arrays(pa.array(codes.to(torch.int32).numpy()), pa.array(list(attribute.values)))
    # Twelve digits, as in Attribute.value: the number as people write it.
    distinct, inverse = _find_distinct(codes.numpy())
    # One type for all parts of a run, as readers of several files expect.
    is_whole = all(float(number).is_integer() for number in (attribute.low, attribute.step))
    empty = distinct == attribute.empty
    kind: Any = np.str_ if attribute.date is not None else np.int64 if is_whole else np.float64
    cells = [0 if none else attribute.value(int(c)) for c, none in zip(distinct, empty, strict=True)]
    numbers = np.asarray(cells, dtype=kind)
    return pa.array(numbers[inverse], mask=empty[inverse] if attribute.empty is not None else None)


def _find_distinct(codes: npt.NDArray[np.integer[Any]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the distinct codes, in order, and the place of each code among them."""
    low, high = (int(codes.min()), int(codes.max())) if len(codes) else (0, 0)
    if high - low > len(codes):  # sorting is cheaper than counting
        return np.unique(codes, return_inverse=True)
    positions = codes.astype(np.int64) - low
    is_present = np.bincount(positions) > 0
    return np.flatnonzero(is_present) + low, (np.cumsum(is_present) - 1)[positions]


def _read_codes(attribute: Attribute, column: pa.ChunkedArray) -> Tensor:
    if column.null_count and attribute.empty is None:
        raise ValueError(f"a cell of '{attribute.name}' is empty")
    encoded = _encode(column)
    cells = encoded.dictionary.to_pylist()
    if attribute.values:  # exact labels, unlike cells of a user's table, which are stripped
        code_by_label = {label: code for code, label in enumerate(attribute.values)}
        codes = np.asarray([code_by_label[cell] for cell in cells], dtype=np.int64)
    else:
        codes = attribute.codes(cells)
    if attribute.empty is not None:
        codes = np.append(codes, attribute.empty)  # the place after the last is for empty cells
    indices = encoded.indices.fill_null(len(cells)).to_numpy(zero_copy_only=False).astype(np.int64)
    return torch.from_numpy(codes[indices])


def _read_plausibility(table: pa.Table, name: str) -> Tensor:
    if name not in table.column_names:  # in older runs
        return torch.full((len(table),), torch.nan)
    return torch.from_numpy(table[name].to_numpy().astype(np.float32))


def _read_scores(table: pa.Table, names: list[str]) -> Tensor:
    return torch.from_numpy(np.stack([table[name].to_numpy() for name in names], 1))
