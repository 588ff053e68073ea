"""What is common to all sources: our own files, refusals in one sentence, decisions."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from neuronfair.errors import ModelError
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open import wrap_model
from neuronfair.model.open.opened import OpenRequest, make_white_box
from neuronfair.model.weights import fingerprint, fully_connected
from tests.model.open.conftest import check_white_box

SUFFIXES = (".safetensors", ".npz", ".pt2", ".onnx", ".keras", ".h5", ".skops", ".joblib", ".pkl", ".ubj", ".json")


@pytest.fixture
def own(tmp_path, people):
    torch.manual_seed(0)
    module = fully_connected(TableEncoding.of(people).width, (6, 4))
    path = tmp_path / "model.safetensors"
    save_file(module.state_dict(), path)
    return path, module


def test_our_own_weights(own, crowd):
    path, module = own
    found = wrap_model(path, crowd.domain, crowd.rows)
    check_white_box(found, crowd.rows, module(crowd.x).detach(), [6, 4])
    assert (found.kind, found.source, found.decision) == ("neuronfair", str(path), Decision())
    assert found.fingerprint == fingerprint(module)
    assert found.model.rows_forward > 0  # of the check above: opening it leaves the count at 0
    assert wrap_model(path, crowd.domain, crowd.rows).model.rows_forward == 0


def test_a_decision_can_be_chosen(own, crowd):
    found = wrap_model(own[0], crowd.domain, crowd.rows, decision=Decision("threshold", 0.3))
    assert found.decision == Decision("threshold", 0.3)


def test_rows_are_needed(own, crowd):
    with pytest.raises(ModelError, match="no rows"):
        wrap_model(own[0], crowd.domain, crowd.rows[:0])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_random_bytes_are_refused_in_one_line(suffix, crowd, tmp_path):
    rng = np.random.default_rng(0)
    for size in (0, 1, 40, 5000):
        path = tmp_path / f"model{suffix}"
        path.write_bytes(rng.integers(0, 256, size, dtype=np.uint8).tobytes())
        with pytest.raises(ModelError) as error:
            wrap_model(path, crowd.domain, crowd.rows, trust_pickle=True)
        assert str(error.value).startswith(str(path))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("none.onnx", "there is no such file"),
        ("none", r"there is no such file. A model is a file \(.safetensors"),
        ("folder.onnx", "is a folder"),
        ("model.onxx", "a file that ends in '.onxx' is no model. .*Did you mean '.onnx'"),
        ("model.pth", "pickled models are refused.*safetensors.*ONNX"),
    ],
)
def test_other_sources_are_refused(name, says, crowd, tmp_path):
    (tmp_path / "folder.onnx").mkdir()
    for file in ("model.onxx", "model.pth"):
        (tmp_path / file).write_bytes(b"x")
    with pytest.raises(ModelError, match=says):
        wrap_model(tmp_path / name, crowd.domain, crowd.rows)


def test_weights_belong_to_a_module(own, crowd):
    with pytest.raises(ModelError, match="--weights belongs to a torch module"):
        wrap_model(own[0], crowd.domain, crowd.rows, weights=own[0])


def test_a_missing_package_is_named_with_the_command(monkeypatch, crowd, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"x")

    def absent(name):
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr("neuronfair.errors.import_module", absent)
    with pytest.raises(ModelError, match=re.escape("pip install 'neuronfair[onnx]'")):
        wrap_model(tmp_path / "model.onnx", crowd.domain, crowd.rows)


def test_nan_weights_are_refused(own, crowd):
    path, module = own
    with torch.no_grad():
        module.layer2[0].weight[1, 2] = torch.nan
    save_file(module.state_dict(), path)
    with pytest.raises(ModelError, match=r"the weights 'layer2.0.weight' hold NaN"):
        wrap_model(path, crowd.domain, crowd.rows)


def ask(module: nn.Module, crowd, **options):
    """Open a torch module as its own bridge would."""
    return make_white_box(OpenRequest("net", crowd.domain, crowd.rows, **options), "torch", module)


@pytest.mark.parametrize(
    ("last", "outputs", "decision"),
    [
        ([nn.Sigmoid()], 1, Decision("threshold", 0.5)),
        ([nn.Sigmoid(), nn.Flatten(0)], 1, Decision("threshold", 0.5)),
        ([], 1, Decision("threshold", 0.0)),
        ([nn.Tanh()], 1, Decision("threshold", 0.0)),
        ([nn.Softmax(1)], 3, Decision()),
        ([nn.Sigmoid()], 2, Decision()),
    ],
    ids=["sigmoid", "flat sigmoid", "logit", "tanh", "softmax", "two sigmoids"],
)
def test_the_decision_follows_the_output(last, outputs, decision, crowd):
    module = nn.Sequential(nn.Linear(crowd.x.shape[1], 4), nn.Sigmoid(), nn.Linear(4, outputs), *last)
    assert ask(module, crowd).decision == decision


def test_one_output_cannot_be_decided_by_argmax(crowd):
    module = nn.Sequential(nn.Linear(crowd.x.shape[1], 4), nn.ReLU(), nn.Linear(4, 1))
    with pytest.raises(ModelError, match="one output"):
        ask(module, crowd, decision=Decision())


def test_a_network_without_activations_is_a_black_box(crowd):
    module = nn.Sequential(nn.Linear(crowd.x.shape[1], 1), nn.Sigmoid())
    found = ask(module, crowd)
    assert not found.white_box
    assert "no hidden activation" in found.note
    assert found.decision == Decision("threshold", 0.5)
    scores = found.model.scores(crowd.rows)
    torch.testing.assert_close(scores.float(), module(crowd.x), rtol=0, atol=1e-5)


def test_another_width_is_explained(crowd):
    module = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(ModelError, match=r"gives 14 numbers a row \(relationship 4, marital 3, race 3 one-hot"):
        ask(module, crowd)


class Moody(nn.Module):
    """Adds something to its scores that has nothing to do with the row."""

    def __init__(self, width: int, mood) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, 2))
        self.mood = mood

    def forward(self, x):
        return self.net(x) + self.mood(x)


@pytest.mark.parametrize("mood", [lambda x: torch.rand(len(x), 2), lambda x: x.mean()], ids=["dice", "other rows"])
def test_unsteady_answers_are_refused(mood, crowd):
    with pytest.raises(ModelError, match="change from call to call or with the other rows"):
        ask(Moody(crowd.x.shape[1], mood), crowd)


def test_scores_must_be_finite(crowd):
    with pytest.raises(ModelError, match="NaN or infinite"):
        ask(Moody(crowd.x.shape[1], lambda x: torch.log(-x.abs()).sum(1, keepdim=True)), crowd)
