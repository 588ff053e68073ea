from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from neuronfair.audits.provenance import Provenance, list_replay_options


@dataclass
class Named:
    """What is asked of an opened model here."""

    source: str


@pytest.mark.parametrize(
    ("source", "provenance", "options"),
    [
        ("model.onnx", Provenance(), ()),
        ("model.skops", Provenance(trust_pickle=True), ("--model", "model.skops", "--trust-pickle")),
        ("model.JOBLIB", Provenance(), ("--model", "model.JOBLIB", "--trust-pickle")),
        ("mine:make", Provenance(), ("--model", "mine:make")),
        (
            "mine:make",
            Provenance(weights=Path("w.safetensors")),
            ("--model", "mine:make", "--weights", "w.safetensors"),
        ),
        ("model.pt2", Provenance(preprocess="my:own"), ("--model", "model.pt2", "--preprocess", "my:own")),
        ("mine:make", Provenance(preprocess="my:own"), ("--model", "mine:make", "--preprocess", "my:own")),
        ("model.pt2", Provenance(preprocess=len), None),  # a function in memory
        ("trained on adult", Provenance(trained_here=True), ()),
        ("Sequential", Provenance(), None),
        ("test_it.<locals>.<lambda>", Provenance(), None),
    ],
)
def test_what_a_replay_must_be_told(tmp_path, monkeypatch, source, provenance, options):
    monkeypatch.chdir(tmp_path)
    if source.startswith("model."):
        Path(source).touch()
    assert list_replay_options(Named(source), provenance) == options
