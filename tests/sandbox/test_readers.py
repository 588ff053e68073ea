"""What each reader returns for whole and for damaged files, called in this process."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from neuronfair.sandbox import readers

PLENTY = 10**9


def test_trees_are_written_again_as_json():
    pytest.importorskip("xgboost", reason="the package xgboost is not installed")
    from benchmarks.fuzzing import models

    content = models.ubj()[0]["model.ubj"]
    assert json.loads(readers.read_xgboost(content, PLENTY))["learner"]["feature_names"] == [
        "age",
        "sex",
        "race",
        "gain",
        "job",
    ]
    with pytest.raises(ValueError, match=r"."):  # XGBoost's own words, which depend on what lies behind the file
        readers.read_xgboost(content[:200], PLENTY)


def test_trees_of_lightgbm_and_catboost_are_written_again():
    pytest.importorskip("lightgbm", reason="the package lightgbm is not installed")
    pytest.importorskip("catboost", reason="the package catboost is not installed")
    from benchmarks.fuzzing import models

    for files in models.lightgbm():
        assert readers.read_lightgbm(files["model.txt"], PLENTY).startswith(b"tree\nversion=v4")
    for files in models.catboost():
        again = readers.read_catboost(files["model.cbm"], PLENTY)
        assert readers.read_catboost(again, PLENTY) == again
    readers.check_branches([(1, 2), (0, 0), (0, 0)])
    with pytest.raises(ValueError, match="leads nowhere"):
        readers.check_branches([(1, 3), (0, 0), (0, 0)])


def test_links_of_hdf5_that_lead_away_are_refused():
    h5py = pytest.importorskip("h5py", reason="the package h5py is not installed")

    def made(fill) -> bytes:
        held = io.BytesIO()
        with h5py.File(held, "w") as file:
            fill(file)
        return held.getvalue()

    def whole(file) -> None:
        file["a/b"] = np.zeros(1000)
        file["a"].attrs["config"] = "x" * 100

    assert readers.read_hdf5(made(whole), PLENTY) == b""
    with pytest.raises(MemoryError):  # 8,000 bytes and 32 times the text
        readers.read_hdf5(made(whole), 11_000)
    assert readers.read_hdf5(made(whole), 11_300) == b""
    with pytest.raises(ValueError, match="'out' is a link to another place"):
        readers.read_hdf5(made(lambda file: file.__setitem__("out", h5py.ExternalLink("/etc/passwd", "/x"))), PLENTY)
    elsewhere = [("other.bin", 0, 8)]
    with pytest.raises(ValueError, match="'/far' lies in another file"):
        readers.read_hdf5(made(lambda file: file.create_dataset("far", (1,), "f8", external=elsewhere)), PLENTY)


def test_graphs_are_parsed_and_run_once():
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")
    from benchmarks.fuzzing import models

    for files in models.onnx():
        if len(files) == 1:
            content = files["model.onnx"]
            assert readers.read_onnx(content, PLENTY) == readers.run_onnx(content, PLENTY) == b""
    with pytest.raises(Exception, match="pars"):
        readers.read_onnx(content[:50], PLENTY)
    assert readers.run_onnx(content[:50], PLENTY) == b""  # the next reader of it reports this


def test_a_table_is_read_whole():
    from benchmarks.fuzzing.formats import BY_NAME

    content = next(iter(BY_NAME["parquet"].specimens()[0].values()))
    assert readers.read_parquet(content, PLENTY) == b""
    with pytest.raises(MemoryError):
        readers.read_parquet(content, 1)
    content = next(iter(BY_NAME["feather"].specimens()[0].values()))
    size, rows, width = map(int, readers.read_feather(content, PLENTY).split())
    assert (rows, width) == (2, 6)
    assert size > 50
    with pytest.raises(MemoryError):
        readers.read_feather(content, 1)
