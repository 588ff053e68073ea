"""Every file of a stranger's run or audit folder is data: a hostile one ends in one clear line, in bounded memory.

Whoever made the folder can make its checksums, too, so each reader is handed its file itself.
"""

from __future__ import annotations

import io
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from neuronfair.audits import folder as audit_folder
from neuronfair.audits.gate.regression_set import read_regression_set
from neuronfair.domain.population.storage import load_counterfactuals, load_population
from neuronfair.domain.schema.toml import parse_domain, read_domain
from neuronfair.errors import NeuronFairError
from neuronfair.limits import SIZE_VARIABLE, TREE_FACTOR, TooLargeError, read_bytes
from neuronfair.model.weights import load_weights
from neuronfair.proof import certificate
from neuronfair.proof.certificate import ProofReport
from neuronfair.proof.distributed import PieceFolder
from neuronfair.proof.state import ProofState
from neuronfair.store import files
from neuronfair.store.ledger import Journal, read_manifest
from neuronfair.store.shard_files import ShardStore
from neuronfair.store.tables import read_findings
from tests.bombs import npy
from tests.conftest import PEOPLE

DOMAIN = parse_domain(PEOPLE)
CPU = torch.device("cpu")
ALLOWED = 20_000_000  # bytes that a file may take here
GROWTH = 200_000  # kilobytes: ten times that, for the libraries themselves
READERS: dict[str, Callable[[Path], Any]] = {
    "manifest.json": lambda path: read_manifest(path.parent, "search"),
    "manifest.json of an audit": lambda path: audit_folder.check_audit_folder(path.parent),
    "journal.jsonl": lambda path: Journal.read(path, 0, "search"),
    "domain.toml": read_domain,
    "part.parquet": lambda path: read_findings(path, DOMAIN, 2),
    "state.safetensors": lambda path: files.load_state(path, CPU),
    "keys.npy": lambda path: files.load_array(path, 2),
    "seeds.npy": lambda path: files.load_array(path, len(DOMAIN.attributes)),
    "population.safetensors": lambda path: load_population(path, DOMAIN),
    "counterfactuals.safetensors": lambda path: load_counterfactuals(path, DOMAIN),
    "model.safetensors": load_weights,
    "certificate.parquet": certificate.read_certificate,
    "proof.json": lambda path: ProofReport.from_json(read_bytes(path, times=TREE_FACTOR), path),
    "00000-of-00001.state": lambda path: PieceFolder(path.parent, 1).load(
        0, ProofState.of({"open.low": torch.zeros(1, 1)}, 0, 0.0)
    ),
    "audit.json": audit_folder.read_report,
    "regression_set.jsonl": lambda path: read_regression_set(path, DOMAIN),
    "000000.json": lambda path: ShardStore(str(path.parent.parent), path.parent.name[:-6], 0).parts(),
}


def packed(column: pa.Array, **more: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"age": column, "low": column}), file, compression="zstd", **more)
    return file.getvalue()


def tensors(header: bytes, declared: int | None = None) -> bytes:
    return (len(header) if declared is None else declared).to_bytes(8, "little") + header


EMPTY_TENSOR = '"{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
HOSTILE: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"nothing",
    "empty": lambda: b"",
    "zeros": lambda: bytes(1000),
    "a list": lambda: b"[]",
    "a number": lambda: b"7",
    "nested": lambda: b"[" * 200_000,
    "nested objects": lambda: b'{"a":' * 200_000,
    "long": lambda: b'{"a": "' + b"x" * (ALLOWED // 4) + b'"}',
    "not utf-8": lambda: b'{"a": "\xff\xfe"}\n',
    "a huge number": lambda: b'{"neuronfair": ' + b"9" * 5000 + b"}",
    "an array of ten terabytes": lambda: npy((10**12,), 8, 16),
    "an array of objects": lambda: npy((1,), 8, 8).replace(b"<f8", b"|O8"),
    "a header of an exabyte": lambda: tensors(b"{}", 1 << 60),
    "many empty tensors": lambda: tensors(
        ("{" + ",".join(EMPTY_TENSOR.format(i) for i in range(100_000)) + "}").encode()
    ),
    "a tensor of an exabyte": lambda: tensors(
        b'{"a":{"dtype":"F32","shape":[288230376151711744],"data_offsets":[0,4]}}'
    ),
    "a table that unpacks to much": lambda: packed(pa.array(np.zeros(10_000_000, dtype=np.int64))),
    "a table of texts": lambda: packed(pa.array(["x" * 1000] * 100_000)),
    "a damaged table": lambda: packed(pa.array([1, 2, 3]))[:-40] + bytes(40),
    "a table cut off": lambda: packed(pa.array([1, 2, 3]))[:100],
    "a table of others": lambda: packed(pa.array([1, 2, 3])),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_hostile_file_ends_in_one_line(reader, tmp_path, monkeypatch):
    monkeypatch.setenv(SIZE_VARIABLE, str(ALLOWED))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made = {name: make() for name, make in HOSTILE.items()}
    grown_by_making = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = {}
    for name, content in made.items():
        folder = tmp_path / "phase-00000"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        path = folder / reader.partition(" ")[0]
        path.write_bytes(content)
        try:
            READERS[reader](path)
        except NeuronFairError as error:
            said[name] = str(error)
    assert {name: text for name, text in said.items() if "\n" in text or len(text) > 1200} == {}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - max(before, grown_by_making) < GROWTH


@pytest.mark.parametrize("reader", [name for name in READERS if name not in ("journal.jsonl", "00000-of-00001.state")])
def test_nonsense_a_folder_and_nothing_are_refused(reader, tmp_path):
    is_shard = reader == "000000.json"  # what is no file is no checkpoint of a shard
    for make in (lambda path: path.write_bytes(b"nothing"), lambda path: path.mkdir())[: 1 if is_shard else 2]:
        folder = tmp_path / "phase-00000"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make(folder / reader.partition(" ")[0])
        with pytest.raises((NeuronFairError, OSError)) as error:
            READERS[reader](folder / reader.partition(" ")[0])
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("reader", ["part.parquet", "certificate.parquet"])
def test_a_table_that_unpacks_to_much_is_refused_before_it_is_unpacked_here(reader, tmp_path, monkeypatch):
    (tmp_path / reader).write_bytes(HOSTILE["a table that unpacks to much"]())
    assert (tmp_path / reader).stat().st_size < ALLOWED // 100
    monkeypatch.setenv(SIZE_VARIABLE, str(ALLOWED))
    with pytest.raises(TooLargeError, match=reader):
        READERS[reader](tmp_path / reader)


@pytest.mark.parametrize("reader", ["state.safetensors", "population.safetensors", "model.safetensors"])
def test_many_empty_tensors_are_refused(reader, tmp_path, monkeypatch):
    (tmp_path / reader).write_bytes(HOSTILE["many empty tensors"]())
    monkeypatch.setenv(SIZE_VARIABLE, str(ALLOWED))
    with pytest.raises(TooLargeError, match=reader):
        READERS[reader](tmp_path / reader)


def test_every_reader_of_a_run_folder_is_in_the_list():
    """Whoever adds a reader of files to the store adds it here: these modules read files, and no others."""
    source = Path(files.__file__).parent
    reading = (
        "read_bytes(",
        "read_text(",
        "load_state(",
        "load_array(",
        "read_parquet(",
        "read_columns(",
        "read_sealed(",
    )
    found = {path.stem for path in source.glob("*.py") if any(word in path.read_text() for word in reading)}
    assert found == {"files", "tables", "ledger", "run", "shard_runner"}
