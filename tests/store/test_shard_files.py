"""The files of a shard: whole or not there, here or at an address, and refused when they are damaged."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
import torch

from neuronfair.errors import RunError
from neuronfair.limits import SIZE_VARIABLE
from neuronfair.searches.engine import Checkpoint
from neuronfair.store.files import seal, unseal
from neuronfair.store.shard_files import RemoteFolder, ShardStore
from tests.store.runs import DOMAIN_OF_RUN, Killed, Killer
from tests.store.test_tables import assert_same, findings

FOUND = replace(findings(DOMAIN_OF_RUN, 5), misses=findings(DOMAIN_OF_RUN, 3).packed, evaluated=9)


def where(t: int) -> Checkpoint:
    lines = torch.arange(14).reshape(-1, 2) * t
    return Checkpoint(
        t, {"rows": FOUND.rows + t, "same": FOUND.rows + t}, FOUND, lines, 0.5 * t, "steps" if t == 3 else None
    )


@pytest.fixture(params=["{}", "file://{}", "memory://{}"])
def store(request, tmp_path) -> ShardStore:
    return ShardStore(request.param.format(tmp_path), "local", 7)


def test_a_shard_goes_on_from_its_last_checkpoint(store):
    assert store.resume() is None
    assert store.parts() == []
    for t in (1, 2, 3):
        store.checkpoint(where(t))
        there = pickle.loads(pickle.dumps(store)).resume("cpu")
        assert (there.t, there.seconds, there.stop) == (t, 0.5 * t, "steps" if t == 3 else None)
        assert there.state.keys() == {"rows", "same"}
        assert torch.equal(there.state["rows"], FOUND.rows + t)
        assert there.lines.shape == (0, 2)
        assert_same(there.findings, replace(FOUND[:0], misses=FOUND.misses[:0], evaluated=0))
    for t, part in enumerate(store.parts(), 1):
        assert (part.number, part.t, part.evaluated, part.line_count) == (t - 1, t, 9, 7)
        assert torch.equal(part.lines(), where(t).lines)
        assert_same(replace(part.findings(), evaluated=9), FOUND)
    states = [name for name in store._folder.names() if ".state." in name]
    assert [name[:6] for name in states] == ["000002"]
    store.remove()
    store.remove()
    assert store.resume() is None


def test_a_shard_killed_between_any_two_file_operations(tmp_path):
    for call in itertools.count():
        store = ShardStore(str(tmp_path / str(call)), "local", 0)
        with pytest.MonkeyPatch.context() as patch:
            Killer(patch, call)
            try:
                for t in (1, 2, 3):
                    store.checkpoint(where(t))
                break
            except Killed:
                pass
        there = store.resume()
        done = 0 if there is None else there.t
        for t in range(done + 1, 4):
            store.checkpoint(where(t))
        assert [part.t for part in store.parts()] == [1, 2, 3]
        assert torch.equal(
            torch.cat([part.lines() for part in store.parts()]), torch.cat([where(t).lines for t in (1, 2, 3)])
        )
        assert torch.equal(store.resume().state["rows"], FOUND.rows + 3)
    assert call > 20


def test_two_who_search_the_same_shard_do_not_spoil_it(tmp_path):
    """The one was taken for dead, and goes on: whose small file comes last counts, and what it says is there."""
    one, other = ShardStore(str(tmp_path), "local", 0), ShardStore(str(tmp_path), "local", 0)
    one.checkpoint(where(1))
    Path(one._folder.address, "000000.json").rename(tmp_path / "kept.json")
    other.checkpoint(where(2))
    (tmp_path / "kept.json").rename(Path(one._folder.address, "000000.json"))
    assert [(part.t, part.lines().sum()) for part in one.parts()] == [(1, where(1).lines.sum())]


def test_two_who_go_on_with_the_same_shard_count_for_themselves(store):
    store.checkpoint(where(1))
    lost, other = (ShardStore(store.address, store.phase, store.number) for _ in range(2))
    lost.resume(), other.resume()
    lost.checkpoint(where(2))
    other.checkpoint(where(2))
    other.checkpoint(where(3))
    assert [part.t for part in store.parts()] == [1, 2, 3]


@pytest.mark.parametrize("kind", ["lines", "findings", "state", "json"])
@pytest.mark.parametrize("damage", ["bit", "short", "gone"])
def test_what_is_damaged_is_named(store, kind, damage):
    store.checkpoint(where(1))
    fs, folder = fsspec.core.url_to_fs(store._folder.address)
    (name,) = [name for name in store._folder.names() if f".{kind}" in name]
    content = fs.cat_file(f"{folder}/{name}")
    if damage == "gone":
        fs.rm_file(f"{folder}/{name}")
        if kind == "json":
            assert store.parts() == []  # it was the checkpoint
            return
    else:
        fs.pipe_file(f"{folder}/{name}", content[:-1] + bytes([content[-1] ^ 1]) if damage == "bit" else content[:-1])
    if kind == "json" and not store._folder.is_local:
        assert store.parts() == []  # torn by a kill, where files are not put whole
        return
    with pytest.raises(
        RunError, match=rf"{name}: ({'is gone' if damage == 'gone' else 'damaged'}).*Nothing was changed"
    ):
        [(part.lines(), part.findings(), part.state()) for part in store.parts()]


def test_files_of_a_stranger(tmp_path, monkeypatch):
    """A checkpoint that says something else than it must, and one that would fill all memory."""
    store = ShardStore(str(tmp_path), "local", 0)
    store.checkpoint(where(1))
    marker = Path(store._folder.address, "000000.json")
    entry = unseal(marker.read_bytes())
    for other in ({}, [], {**entry, "files": {"lines": [1, 2]}}, {**entry, "more": 1}):
        marker.write_bytes(seal(other) if isinstance(other, dict) else b"[]")
        with pytest.raises(RunError, match=r"000000\.json: damaged"):
            store.parts()
    files = entry["files"]
    marker.write_bytes(seal({**entry, "files": {**files, "lines": [*files["lines"][:2], 10**12]}}))
    with pytest.raises(Exception, match="would take about 1,000"):
        store.parts()[0].lines()
    marker.write_bytes(seal({**entry, "files": {**files, "lines": [*files["lines"][:2], 3]}}))
    with pytest.raises(RunError, match=r"lines\.[0-9a-f]{8}: damaged"):
        store.parts()[0].lines()
    monkeypatch.setenv(SIZE_VARIABLE, "10")
    with pytest.raises(Exception, match=r"000000\.json: would take"):
        store.parts()


def test_a_checkpoint_with_the_older_name_of_a_count_is_read(store):
    store.checkpoint(where(1))
    whole = store._folder.read("000000.json")
    entry = unseal(whole)
    store._folder.write("000000.json", seal({"judged" if key == "evaluated" else key: entry[key] for key in entry}))
    assert store.parts()[0].evaluated == 9


def test_an_address_that_cannot_be_used(tmp_path):
    with pytest.raises(RunError, match="nowhere://a: cannot be used as an address"):
        RemoteFolder("nowhere://a").names()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match=r"cannot be written .*the same command resumes"):
        ShardStore(str(tmp_path / "file"), "local", 0).checkpoint(where(1))
