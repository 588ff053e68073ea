"""`--force` throws away what is ours, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronfair.errors import RunError
from neuronfair.store import ledger as module
from neuronfair.store.ledger import MANIFEST, check_discardable, discard, write_manifest


@pytest.fixture
def used(tmp_path) -> Path:
    """The folder of an audit with a run in it, and a file beside."""
    (tmp_path / "audit" / "sex" / "run").mkdir(parents=True)
    (tmp_path / "mine.txt").write_text("mine")
    for folder in ("audit", "audit/sex/run"):
        write_manifest(tmp_path / folder, {"audit": 2})
    (tmp_path / "audit" / "model.safetensors").write_text("weights")
    (tmp_path / "audit" / "link").symlink_to(tmp_path / "mine.txt")
    return tmp_path / "audit"


def test_all_of_a_used_folder_goes_and_what_a_link_names_stays(used):
    discard(used)
    assert list(used.iterdir()) == []
    assert (used.parent / "mine.txt").read_text() == "mine"
    discard(used)  # an empty one stays
    discard(used / "nothing")
    assert not (used / "nothing").exists()


def test_a_folder_that_is_not_ours_stays(used):
    for name in (used.parent, used.parent / "mine.txt"):
        with pytest.raises(RunError, match="no audit or run, so --force does not delete it"):
            discard(name)
    (used / MANIFEST).write_text('{"audit": 2}')
    with pytest.raises(RunError, match="damaged"):
        discard(used)
    assert (used / "model.safetensors").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "sex/run/manifest.json", "../audit/model.safetensors"])
def test_a_file_that_is_to_be_read_stays(used, name):
    with pytest.raises(RunError, match=r"lies in .*, which --force deletes"):
        check_discardable(used, (None, used / name))
    check_discardable(used, (None, used.parent / "mine.txt"))


def test_a_folder_in_use_stays(used, monkeypatch):
    """Also where another process writes to one of the runs in it only."""

    def held(folder):
        if folder.name == "run":
            raise RunError(f"{folder}: another process is writing to this run")

    monkeypatch.setattr(module.Lock, "of", held)
    with pytest.raises(RunError, match="another process"):
        discard(used)
    assert (used / "model.safetensors").exists()


def test_after_a_kill_it_is_still_known_as_ours(used, monkeypatch):
    def killed(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(module.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        discard(used)
    monkeypatch.undo()
    discard(used)
    assert list(used.iterdir()) == []
