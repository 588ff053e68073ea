"""Torch modules, models and functions that a user's own code defines."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from neuronfair.errors import ModelError
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision
from neuronfair.model.open import wrap_model
from neuronfair.searches.evaluate import evaluate
from tests.model.open.conftest import check_black_box, check_white_box
from tests.model.open.test_frames import CELLS, OUTSIDE

CODE = """
import torch
from torch import nn
from torch.nn import functional as F

def make(): return nn.Sequential(nn.Linear({width}, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 1), nn.Sigmoid())

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear({width}, 5), nn.Linear(5, 2)
    def forward(self, x):
        return self.b(F.gelu(self.a(x)))

class Box:
    ready = Net()

def older(table): return (table["age"] >= 40) & (table["sex"] == "M") & (table["gain"] < 49.8)
def shares(table): return torch.tensor((table["age"] / 100).to_numpy()).repeat(2, 1).T
def broken(table): return table["agee"]
def fails(): raise RuntimeError("no luck")
number = 3
"""


@pytest.fixture
def code(tmp_path, monkeypatch, crowd, request):
    """A module in the working directory, with a name of its own for each test."""
    name = f"own_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(CODE.format(width=crowd.x.shape[1]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_factory_with_weights(code, crowd, tmp_path):
    torch.manual_seed(0)
    module = __import__(code).make().eval()
    save_file(module.state_dict(), tmp_path / "w.safetensors")
    found = wrap_model(f"{code}:make", crowd.domain, crowd.rows, weights=tmp_path / "w.safetensors")
    check_white_box(found, crowd.rows, module(crowd.x).detach(), [6])
    assert (found.kind, found.decision) == ("torch", Decision("threshold", 0.5))


@pytest.mark.parametrize("name", ["Net", "Box.ready"])
def test_a_class_or_a_module(name, code, crowd, tmp_path):
    module = __import__(code).Net().eval()
    save_file(module.state_dict(), tmp_path / "w.safetensors")
    found = wrap_model(f"{code}:{name}", crowd.domain, crowd.rows, weights=tmp_path / "w.safetensors")
    check_white_box(found, crowd.rows, module(crowd.x).detach(), [5])
    assert found.model.layers == ("a_gelu",)


def test_a_function_of_a_table(code, crowd):
    found = wrap_model(f"{code}:older", crowd.domain, crowd.rows)
    age, sex, gain = crowd.rows[:, 0] + 17, crowd.rows[:, 1], crowd.rows[:, 5] * 0.5
    check_black_box(found, crowd.rows, (age >= 40) & (sex == 1) & (gain < 49.8), "Python function")
    assert (found.kind, found.decision) == ("Python function", Decision("threshold", 0.5))
    found = wrap_model(f"{code}:shares", crowd.domain, crowd.rows)
    check_black_box(found, crowd.rows, np.stack([age / 100] * 2, 1), "Python function")
    assert found.decision == Decision()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("maker", "there is no 'maker' in it. .*Did you mean 'make'"),
        ("number", "expected a torch module, a function that makes one, or a function of a table, got an int"),
        ("broken", "refuses rows of the domain .*agee"),
        ("fails", "calling it failed .RuntimeError: no luck"),
    ],
)
def test_other_things_are_refused(name, says, code, crowd):
    with pytest.raises(ModelError, match=says):
        wrap_model(f"{code}:{name}", crowd.domain, crowd.rows)


def test_a_module_that_cannot_be_imported(crowd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match="'nowhere_at_all' cannot be imported"):
        wrap_model("nowhere_at_all:make", crowd.domain, crowd.rows)
    (tmp_path / "stops.py").write_text("raise SystemExit(3)")
    with pytest.raises(ModelError, match="SystemExit"):
        wrap_model("stops:make", crowd.domain, crowd.rows)


def test_weights_must_fit(code, crowd, tmp_path):
    path = tmp_path / "w.safetensors"
    with pytest.raises(ModelError, match="there is no file of weights"):
        wrap_model(f"{code}:make", crowd.domain, crowd.rows, weights=path)
    path.write_bytes(b"nothing")
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        wrap_model(f"{code}:make", crowd.domain, crowd.rows, weights=path)
    save_file({"0.weight": torch.zeros(2, 2)}, path)
    with pytest.raises(ModelError, match="not those of this module"):
        wrap_model(f"{code}:make", crowd.domain, crowd.rows, weights=path)
    with pytest.raises(ModelError, match="--weights is for a torch module, but this is a function"):
        wrap_model(f"{code}:older", crowd.domain, crowd.rows, weights=path)


def test_a_function_is_asked_about_the_row_itself_and_its_twins():
    """Also where the row holds an empty cell, a label without a value of its own, or a number outside its bounds."""
    seen = []

    def fair(table):
        seen.append(table.astype(object).where(table.notna(), "?"))
        return (table["s"] == 1) * 1.0

    rows = OUTSIDE.from_table(CELLS)
    found = wrap_model(fair, OUTSIDE, rows)
    evaluate(found.model, OUTSIDE, rows, found.decision)
    people = seen[-1]
    for name in ("a", "n", "f"):
        assert people[name].tolist() == [cell for cell in CELLS[name] for _ in range(2)], name
    assert people["s"].tolist() == [flag for cell in CELLS["s"] for flag in (cell, 1 - cell)]
    boxed = wrap_model(found.model, OUTSIDE, rows)  # the black box itself, as it comes out of wrap_model
    assert torch.equal(boxed.model.scores(rows)[:, 0], (rows[:, 3] == 1).double())


def test_a_function_is_known_by_its_answers(crowd, tmp_path):
    """Its code stays as it is, but what it reads from a file changes."""
    limit = tmp_path / "limit"

    def older(table):
        return (table["age"] >= int(limit.read_text())) * 1.0

    def encoded(x):
        return x[:, 0] * int(limit.read_text())

    limit.write_text("40")
    for model in (older, BlackBox.of_inputs(encoded, crowd.domain)):
        limit.write_text("40")
        first = wrap_model(model, crowd.domain, crowd.rows)
        again = wrap_model(model, crowd.domain, crowd.rows[:7].flip(0))  # as `replay` does, from other rows
        assert first.fingerprint == again.fingerprint
        assert len(first.fingerprint) == 64
        assert first.model.rows_forward == 0
        limit.write_text("41")
        assert wrap_model(model, crowd.domain, crowd.rows).fingerprint != first.fingerprint


def test_a_function_is_known_by_its_code(crowd):
    functions = [lambda table: table["age"] / 100, lambda table: table["age"] * 2 / 200]
    one, other = (wrap_model(function, crowd.domain, crowd.rows).fingerprint for function in functions)
    assert one == other  # two functions on one line of code, with the same answers

    def third(table):
        return table["age"] / 100

    assert wrap_model(third, crowd.domain, crowd.rows).fingerprint != one


def test_a_factory_of_untrained_networks_needs_their_weights(code, crowd):
    with pytest.raises(ModelError, match=r"makes different weights in each call.*--weights FILE"):
        wrap_model(f"{code}:make", crowd.domain, crowd.rows)


def test_the_working_folder_is_not_left_on_the_path(tmp_path, monkeypatch, crowd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_function_here.py").write_text("def older(table):\n    return table['age'] > 40\n")
    (tmp_path / "found_by_nobody.py").write_text("")
    before = list(sys.path)
    assert wrap_model("own_function_here:older", crowd.domain, crowd.rows).kind == "Python function"
    assert sys.path == before
    with pytest.raises(ModuleNotFoundError):
        __import__("found_by_nobody")
