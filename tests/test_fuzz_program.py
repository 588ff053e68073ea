"""The fuzzing program: its tries can be repeated, its specimens are whole, and it finds what is planted."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.fuzzing import models, oracle, seals
from benchmarks.fuzzing.formats import BY_NAME
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

CHEAP = [
    "csv",
    "csv.gz",
    "toml",
    "names",
    "npz",
    "safetensors",
    "parquet",
    "feather",
    "run",
    "gate",
    "onnx",
    "pictures",
]


@pytest.fixture(scope="module")
def valid():
    made = {}

    def of(name: str):
        for library in BY_NAME[name].libraries:
            pytest.importorskip(library)
        return made.setdefault(name, BY_NAME[name].specimens())

    return of


@pytest.mark.parametrize("name", CHEAP)
def test_a_whole_file_is_accepted_and_damage_is_survived(name, valid, tmp_path):
    kind, home = BY_NAME[name], oracle.Home(tmp_path / "home")
    for read in kind.reads if kind.sound else ():
        assert oracle.attempt((read,), kind.damage(valid(name), 0, -1), home).kind == "accepted"
    for number in range(3):
        files = kind.damage(valid(name), 0, number)
        assert files == kind.damage(valid(name), 0, number)
        outcome = oracle.attempt(kind.reads, files, home)
        assert outcome.kind in oracle.GOOD, outcome
    home.close()


@pytest.mark.parametrize("name", ["csv", "toml", "npz", "safetensors", "pictures", "onnx"])
def test_most_tries_are_other_files(name, valid):
    tries = {repr(BY_NAME[name].damage(valid(name), seed, number)) for number in range(20) for seed in (0, 1)}
    assert len(tries) > 30


def test_checksums_of_whole_files_are_right_already(valid):
    for files in (*valid("run"), *valid("audit")):
        assert seals.set_right(files, files) == files
        opened = {name: seals.opened(name, content) for name, content in files.items()}
        assert seals.set_right(files, opened).keys() == files.keys()


def test_boosted_trees_are_bent_at_their_fields():
    pytest.importorskip("xgboost", reason="the package xgboost is not installed")
    from benchmarks.fuzzing.ubj import _as_ubj, _Ubj

    for files in models.ubj():
        whole = files["model.ubj"]
        assert _Ubj(whole).tree == _Ubj(_as_ubj(_Ubj(whole).tree)).tree
        described = json.loads(models.xgboost_json()[0]["model.json"])["learner"]
        assert _Ubj(whole).tree["learner"].keys() == described.keys()


@pytest.mark.skipif(sys.platform != "linux", reason="the program watches processes by what Linux tells of them")
def test_what_is_planted_is_found(tmp_path):
    """Readers that fail, hang, die, write, connect and run what they read: each is called by its name."""
    command = [sys.executable, "-m", "tests.planted.readers", tmp_path / "figures.json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "| hangs | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 1 | 0 |" in done.stdout
    assert (tmp_path / "kept" / "dies--1" / "file.json").read_bytes() == b'{"a": [1, "b"]}'
    assert not (tmp_path / "kept" / "reads--1").exists()
