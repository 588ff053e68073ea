"""How a sandboxed process reads a file: one function per format, from the file's content to an answer in bytes.

`server.py` runs this file as a program, so it imports nothing of the package. A library is imported where it is used:
each process needs one of them only.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow

PREDICTED_ROWS = 64  # rows that a CatBoost model predicts: a damaged one can end the process there
JSON_FACTOR = 32  # attributes of HDF5 hold JSON, which takes this many times its size once parsed


class FormatReader(NamedTuple):
    """How to read a format.

    `read` takes the content of a file and the bytes of memory it may use. The process imports `libraries` once, before
    the first file, and keeps out the `unused` ones, which are slow to import.
    """

    read: Callable[[bytes, int], bytes]
    libraries: tuple[str, ...]
    unused: tuple[str, ...] = ()


def read_xgboost(content: bytes, memory: int) -> bytes:
    """Return an XGBoost model as JSON. XGBoost can crash, or ask for all memory, on a damaged file.

    The model predicts two rows, since a damaged one can also crash there.
    """
    import numpy as np
    import xgboost

    try:
        booster = xgboost.Booster(model_file=bytearray(content))
        with contextlib.suppress(xgboost.core.XGBoostError):  # these are no rows of its table
            booster.predict(xgboost.DMatrix(np.zeros((2, booster.num_features()))), validate_features=False)
        written = booster.save_raw("json")
        xgboost.Booster(model_file=written)  # a name with an odd character is written and cannot be read
        return bytes(written)
    except xgboost.core.XGBoostError as error:
        text = str(error).partition("Stack trace")[0]
        raise ValueError(text.partition("] ")[2] or text) from None  # without the time


def read_lightgbm(content: bytes, memory: int) -> bytes:
    """Return a LightGBM model as text. LightGBM can crash on a damaged file, when it reads it or predicts."""
    import lightgbm
    import numpy as np

    booster = lightgbm.Booster(model_str=content.decode("utf-8"))
    booster.predict(np.zeros((2, booster.num_feature())), num_threads=1)
    written: str = booster.model_to_string(num_iteration=-1)
    return written.encode()


def read_catboost(content: bytes, memory: int) -> bytes:
    """Return a CatBoost model in its own format. CatBoost can crash on a damaged file, when it reads it or predicts."""
    import catboost
    import numpy as np

    model = catboost.CatBoost()
    model.load_model(blob=content)
    categorical = model.get_cat_feature_indices()
    if model.get_text_feature_indices() or model.get_embedding_feature_indices():
        raise ValueError("it reads texts or embeddings, which are not supported")
    for tree in range(0 if model._object._is_oblivious() else model.tree_count_):
        check_branches(model._object._get_tree_step_nodes(tree))
    width = len(model.feature_names_)
    rows = np.random.default_rng(0).normal(0, 100, (PREDICTED_ROWS, width)).astype(object)
    rows[:, categorical] = rows[:, categorical].astype(str)
    model.predict(rows, thread_count=1)
    return bytes(model._serialize_model())


def check_branches(steps: list[tuple[int, int]]) -> None:
    """Refuse a tree of CatBoost that is not of one depth and whose branches lead out of it."""
    for index, branches in enumerate(steps):
        if any(index + step >= len(steps) for step in branches):
            raise ValueError("a branch of a tree leads nowhere")


def read_catboost_trees(content: bytes, memory: int) -> bytes:
    """Return a CatBoost model, in its own format, as JSON. A damaged one can crash CatBoost there."""
    import catboost

    model = catboost.CatBoost().load_model(blob=content)
    if not hasattr(os, "fork"):  # on Windows, which has no limits and no names for pipes
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.json"
            model.save_model(str(path), format="json")
            return path.read_bytes()
    inlet, outlet = os.pipe()  # this process may write no file
    child = os.fork()  # no thread: CatBoost holds Python's lock until the pipe is read
    if child == 0:
        status = 1
        try:
            os.close(inlet)
            model.save_model(f"/dev/fd/{outlet}", format="json")
            status = 0
        finally:
            os._exit(status)
    os.close(outlet)
    with os.fdopen(inlet, "rb") as file:
        written = file.read()
    if os.waitpid(child, 0)[1] != 0:
        raise ValueError("CatBoost cannot write its trees")
    return written


def read_onnx(content: bytes, memory: int) -> bytes:
    """Parse an ONNX file: a small one can take much memory, or end the process."""
    import onnx

    try:
        onnx.load_model_from_string(content)
    except Exception as error:
        if "alloc" in str(error):
            raise MemoryError from error
        raise
    return b""


def run_onnx(content: bytes, memory: int) -> bytes:
    """Run an ONNX model for two rows: a small one can take much memory, run for ever, or end the process.

    A model that fails on these rows may work for others, so only a lack of memory is an error.
    """
    import numpy as np
    import onnxruntime  # type: ignore[import-untyped]

    types = {"tensor(double)": "f8", "tensor(int64)": "i8", "tensor(int32)": "i4", "tensor(bool)": "?"}

    def rows(model_input: Any) -> np.ndarray:
        shape = [length if isinstance(length, int) else 2 for length in model_input.shape]
        if model_input.type == "tensor(string)":
            return np.full(shape, "", dtype=object)
        return np.zeros(shape, types.get(model_input.type, "f4"))

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        session.run(None, {model_input.name: rows(model_input) for model_input in session.get_inputs()})
    except Exception as error:
        if "alloc" in str(error):
            raise MemoryError from error
    return b""


def read_hdf5(content: bytes, memory: int) -> bytes:
    """Read all of an HDF5 file. Refuse links and data in other files; the library can hang on a damaged file."""
    import h5py

    size = 0

    def count(_: str, item: Any) -> None:
        nonlocal size
        if isinstance(item, h5py.Dataset):
            if item.is_virtual or item.external:
                raise ValueError(f"'{item.name}' lies in another file")
            size += math.prod(item.shape or ()) * item.dtype.itemsize
        for value in item.attrs.values():
            size += JSON_FACTOR * (len(value) if isinstance(value, (str, bytes)) else getattr(value, "nbytes", 0))
        if size > memory:
            raise MemoryError
        if isinstance(item, h5py.Dataset):
            item[()]

    with h5py.File(io.BytesIO(content), "r") as file:
        # The visit ends at the first name that is returned.
        outside = file.visititems_links(lambda name, link: None if isinstance(link, h5py.HardLink) else name)
        if outside is not None:
            raise ValueError(f"'{outside}' is a link to another place")
        count("/", file)
        file.visititems(count)
    return b""


def read_parquet(content: bytes, memory: int) -> bytes:
    """Read all columns of a Parquet file, whose pages can unpack to far more than its directory says."""
    if parquet_table(content).nbytes > memory:
        raise MemoryError
    return b""


def parquet_table(content: bytes) -> pyarrow.Table:
    """Return the table in a Parquet file. A text that the file holds once and repeats is kept once."""
    import pyarrow
    import pyarrow.parquet

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


def read_feather(content: bytes, memory: int) -> bytes:
    """Return how many bytes, rows and columns a Feather file holds; its parts can unpack to far more than its size."""
    table, _ = feather_table(content)
    if table.nbytes > memory:
        raise MemoryError
    return f"{table.nbytes} {table.num_rows} {table.num_columns}".encode()


def feather_table(content: bytes) -> tuple[pyarrow.Table, list[str]]:
    """Return the columns of plain values in a Feather file, and the names of those that hold something else."""
    import pyarrow
    import pyarrow.ipc

    source = pyarrow.BufferReader(content)
    kind = pyarrow.ipc.open_file if content[:6] == b"ARROW1" else pyarrow.ipc.open_stream
    options = pyarrow.ipc.IpcReadOptions(use_threads=False)
    with kind(source, options=options) as reader:
        table = reader.read_all()
    plain = [index for index, field in enumerate(table.schema) if _is_plain(field.type)]
    odd = [field.name for field in table.schema if not _is_plain(field.type)]
    table = table.select(plain)
    table.validate(full=True)
    return table, odd


def _is_plain(kind: Any) -> bool:
    """Return whether a cell is one value: a list of nothing may have billions of places and take no memory."""
    import pyarrow
    from pyarrow import types

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


READERS = {
    "xgboost": FormatReader(read_xgboost, ("numpy", "xgboost"), unused=("sklearn", "pandas")),
    "lightgbm": FormatReader(read_lightgbm, ("numpy", "lightgbm"), unused=("sklearn", "pandas", "matplotlib")),
    "catboost": FormatReader(read_catboost, ("numpy", "catboost")),
    "catboost trees": FormatReader(read_catboost_trees, ("catboost",)),
    "onnx": FormatReader(read_onnx, ("onnx",)),
    "onnxruntime": FormatReader(run_onnx, ("numpy", "onnxruntime")),
    "hdf5": FormatReader(read_hdf5, ("h5py",)),
    "parquet": FormatReader(read_parquet, ("pyarrow.parquet",)),
    "feather": FormatReader(read_feather, ("pyarrow.ipc",)),
}
