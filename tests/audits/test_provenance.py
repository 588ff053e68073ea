from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from neuronfair.audits.provenance import Origin, list_replay_options


@dataclass
class Named:
    """What is asked of an opened model here."""

    source: str


@pytest.mark.parametrize(
    ("source", "origin", "options"),
    [
        ("model.onnx", Origin(), ()),
        ("model.skops", Origin(trust_pickle=True), ("--model", "model.skops", "--trust-pickle")),
        ("model.JOBLIB", Origin(), ("--model", "model.JOBLIB", "--trust-pickle")),
        ("mine:make", Origin(), ("--model", "mine:make")),
        ("mine:make", Origin(weights=Path("w.safetensors")), ("--model", "mine:make", "--weights", "w.safetensors")),
        ("model.pt2", Origin(preprocess="my:own"), ("--model", "model.pt2", "--preprocess", "my:own")),
        ("mine:make", Origin(preprocess="my:own"), ("--model", "mine:make", "--preprocess", "my:own")),
        ("model.pt2", Origin(preprocess=len), None),  # a function in memory
        ("trained on adult", Origin(trained_here=True), ()),
        ("Sequential", Origin(), None),
        ("test_it.<locals>.<lambda>", Origin(), None),
    ],
)
def test_what_a_replay_must_be_told(tmp_path, monkeypatch, source, origin, options):
    monkeypatch.chdir(tmp_path)
    if source.startswith("model."):
        Path(source).touch()
    assert list_replay_options(Named(source), origin) == options
