"""What each reader of the isolated processes makes of whole and of damaged files, asked in this process."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

PLENTY = 10**9


def test_trees_are_written_again_as_json():
    pytest.importorskip("xgboost", reason="the package xgboost is not installed")
    from benchmarks.fuzzing import models
    from neuronfair.sandbox import read_xgboost

    content = models.ubj()[0]["model.ubj"]
    assert json.loads(read_xgboost.read(content, PLENTY))["learner"]["feature_names"] == [
        "age",
        "sex",
        "race",
        "gain",
        "job",
    ]
    with pytest.raises(ValueError, match=r"."):  # XGBoost's own words, which depend on what lies behind the file
        read_xgboost.read(content[:200], PLENTY)


def test_trees_of_lightgbm_and_catboost_are_written_again():
    pytest.importorskip("lightgbm", reason="the package lightgbm is not installed")
    pytest.importorskip("catboost", reason="the package catboost is not installed")
    from benchmarks.fuzzing import models
    from neuronfair.sandbox import read_catboost, read_lightgbm

    for files in models.lightgbm():
        assert read_lightgbm.read(files["model.txt"], PLENTY).startswith(b"tree\nversion=v4")
    for files in models.catboost():
        again = read_catboost.read(files["model.cbm"], PLENTY)
        assert read_catboost.read(again, PLENTY) == again
    read_catboost._check_steps([(1, 2), (0, 0), (0, 0)])
    with pytest.raises(ValueError, match="leads nowhere"):
        read_catboost._check_steps([(1, 3), (0, 0), (0, 0)])


def test_links_of_hdf5_that_lead_away_are_refused():
    h5py = pytest.importorskip("h5py", reason="the package h5py is not installed")
    from neuronfair.sandbox import read_hdf5

    def made(fill) -> bytes:
        held = io.BytesIO()
        with h5py.File(held, "w") as file:
            fill(file)
        return held.getvalue()

    def whole(file) -> None:
        file["a/b"] = np.zeros(1000)
        file["a"].attrs["config"] = "x" * 100

    assert read_hdf5.read(made(whole), PLENTY) == b""
    with pytest.raises(MemoryError):  # 8,000 bytes and 32 times the text
        read_hdf5.read(made(whole), 11_000)
    assert read_hdf5.read(made(whole), 11_300) == b""
    with pytest.raises(ValueError, match="'out' is a link to another place"):
        read_hdf5.read(made(lambda file: file.__setitem__("out", h5py.ExternalLink("/etc/passwd", "/x"))), PLENTY)
    elsewhere = [("other.bin", 0, 8)]
    with pytest.raises(ValueError, match="'/far' lies in another file"):
        read_hdf5.read(made(lambda file: file.create_dataset("far", (1,), "f8", external=elsewhere)), PLENTY)


def test_graphs_are_parsed_and_run_once():
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")
    from benchmarks.fuzzing import models
    from neuronfair.sandbox import read_onnx

    for files in models.onnx():
        if len(files) == 1:
            content = files["model.onnx"]
            assert read_onnx.read(b"p" + content, PLENTY) == read_onnx.read(b"r" + content, PLENTY) == b""
    with pytest.raises(Exception, match="pars"):
        read_onnx.read(b"p" + content[:50], PLENTY)
    assert read_onnx.read(b"r" + content[:50], PLENTY) == b""  # said by whoever opens it next


def test_a_table_is_read_whole():
    from benchmarks.fuzzing.formats import BY_NAME
    from neuronfair.sandbox import read_feather, read_parquet

    content = next(iter(BY_NAME["parquet"].specimens()[0].values()))
    assert read_parquet.read(content, PLENTY) == b""
    with pytest.raises(MemoryError):
        read_parquet.read(content, 1)
    content = next(iter(BY_NAME["feather"].specimens()[0].values()))
    size, rows, width = map(int, read_feather.read(content, PLENTY).split())
    assert (rows, width) == (2, 6)
    assert size > 50
    with pytest.raises(MemoryError):
        read_feather.read(content, 1)
