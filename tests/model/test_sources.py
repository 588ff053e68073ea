"""What is refused by its name alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronfair.errors import ModelError
from neuronfair.model.sources import READERS, reader_of


@pytest.fixture(autouse=True)
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("m.joblib", "m.PKL", "m.skops", "m.pt", "m.doc", "w.safetensors"):
        Path(name).touch()
    Path("folder").mkdir()


def test_every_reader_has_a_module():
    import neuronfair.model.open

    folder = Path(neuronfair.model.open.__file__).parent
    assert {name for name in READERS.values() if not (folder / f"{name}.py").exists()} == set()


def test_who_opens_what():
    assert reader_of("m.skops") == "scikit"
    assert reader_of("m.joblib", trust_pickle=True) == "scikit"
    assert reader_of("a.b:c.d", weights=Path("w.safetensors")) == "imported"


@pytest.mark.parametrize(
    ("source", "weights", "says"),
    [
        ("m.joblib", None, "m.joblib: a pickle.*--trust-pickle.*skops"),
        ("m.PKL", None, "a pickle"),
        ("m.pt", None, "pickled models are refused"),
        ("m.doc", None, "'.doc' is no model"),
        ("n.onnx", None, "no such file.$"),
        ("n", None, "no such file. A model is a file"),
        ("folder", None, "is a folder"),
        ("m.skops", "w.safetensors", "--weights belongs to"),
        ("a:b", "v.safetensors", "no file of weights v.safetensors"),
    ],
)
def test_what_nobody_opens(source, weights, says):
    with pytest.raises(ModelError, match=says):
        reader_of(source, weights=None if weights is None else Path(weights))
