"""What is refused by its name alone."""

from __future__ import annotations

import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from neuronfair.errors import ModelError
from neuronfair.model.formats import READERS, find_reader


@pytest.fixture(autouse=True)
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("m.joblib", "m.PKL", "m.skops", "m.pt", "m.doc", "w.safetensors"):
        Path(name).touch()
    Path("folder").mkdir()
    Path("zipped.safetensors").write_bytes(b"PK\3\4archive")
    Path("old.safetensors").write_bytes(b"\x80\2}")


def test_every_reader_has_a_module():
    for reader in {*READERS.values()}:
        module, _, function = reader.partition(":")
        assert callable(getattr(import_module(f"neuronfair.model.open.{module}"), function))


def test_who_opens_what():
    assert find_reader("m.skops") == "estimators:open_source"
    assert find_reader("m.joblib", trust_pickle=True) == "estimators:open_source"
    assert find_reader("a.b:c.d", weights=Path("w.safetensors")) == "user_code:open_source"
    Path("w.safetensors").write_bytes(b"\x80\2\0\0\0\0\0\0{")  # a length of 640, and no pickle
    assert find_reader("a.b:c.d", weights=Path("w.safetensors")) == "user_code:open_source"


@pytest.mark.parametrize(
    ("source", "weights", "says"),
    [
        ("m.joblib", None, "m.joblib: a pickle.*--trust-pickle.*skops"),
        ("m.PKL", None, "a pickle"),
        ("m.pt", None, "pickled models are refused"),
        ("m.doc", None, "'.doc' is no model"),
        ("n.onnx", None, "no such file. Known: "),
        ("n", None, "no such file. A model is a file"),
        ("folder", None, "is a folder"),
        ("m.skops", "w.safetensors", "--weights belongs to"),
        ("a:b", "v.safetensors", "no file of weights v.safetensors"),
        ("a:b", "m.pt", "m.pt: expected a safetensors file, got a pickle.*save_file.*m.safetensors"),
        ("a:b", "zipped.safetensors", "zipped.safetensors: expected a safetensors file, got a pickle"),
        ("a:b", "old.safetensors", "old.safetensors: expected a safetensors file, got a pickle"),
    ],
)
def test_what_nobody_opens(source, weights, says):
    with pytest.raises(ModelError, match=says):
        find_reader(source, weights=None if weights is None else Path(weights))


def test_the_command_that_converts_weights_works(tmp_path):
    """A user copies it from the message."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    state = {"0.weight": torch.randn(3, 2).T, "0.bias": torch.zeros(2)}
    torch.save({"0.weight": state["0.weight"].contiguous(), "0.bias": state["0.bias"]}, "w.pth")
    with pytest.raises(ModelError) as error:
        find_reader("a:b", weights=Path("w.pth"))
    command = shlex.split(str(error.value).partition("once: ")[2])
    subprocess.run([sys.executable, *command[1:]], check=True)
    assert torch.equal(load_file("w.safetensors")["0.weight"], state["0.weight"])
