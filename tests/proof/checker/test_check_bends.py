"""False certificates about models that bend, branch or jump: each is refused, whatever was sampled of the model.

The model without its bend is proved, and its certificate is passed off as one about the model with it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from neuronfair.domain.schema.toml import parse_domain
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.model.open import wrap_model
from neuronfair.model.weights import fingerprint
from neuronfair.proof.certificate import AxisCodes, Certificate, CertificateError, fingerprint_model
from neuronfair.proof.checker.check import check
from neuronfair.proof.problem import build_problem
from neuronfair.proof.prove import prove
from tests.proof.made import written

DOMAIN = parse_domain("""
name = "incomes"
sensitive = ["sex"]
[attributes]
income = { kind = "ordinal", low = 0, high = 199 }
sex = { kind = "flag", values = ["f", "m"] }
years = { kind = "ordinal", low = 0, high = 7 }
""")
DECISION = Decision("threshold", 0.0)


class Scorer(nn.Module):
    """Income decides, sex does not; where the model bends is up to a function."""

    def __init__(self, bend: str = "") -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)
        self.bend = bend
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(3))
            self.first.bias.zero_()
            self.last.weight.copy_(torch.tensor([[1.0, 0.0, 0.5]]))
            self.last.bias.fill_(-100.25)

    def forward(self, x):
        if self.bend == "clamp":
            x = torch.cat([x[:, :1].clamp(max=193) + 99 * x[:, 1:2] * (x[:, :1] - 193).clamp(min=0), x[:, 1:]], 1)
        hidden = self.act(self.first(x))
        if self.bend == "jump":
            hidden = hidden - 500 * ((hidden > 193) & (x[:, 1:2] == 1)).to(hidden.dtype)
        score = self.last(hidden)
        if self.bend == "override":
            score = torch.where((x[:, :1] > 193) & (x[:, 1:2] == 1), -1.0, score)
        if self.bend == "branch" and bool((x[:, 0] > 193).any()):
            score = score - 500 * ((x[:, :1] > 193) & (x[:, 1:2] == 1)).to(score.dtype)
        return score


@pytest.fixture(scope="module")
def proof():
    problem = build_problem(Network(Scorer(), DOMAIN), DOMAIN, decision=DECISION)
    found = prove(problem, seconds=30)
    axes = tuple(AxisCodes.of(axis, DOMAIN.names[axis.column]) for axis in problem.space.axes)
    certificate = Certificate(DOMAIN, DECISION, "", fingerprint_model(fingerprint(Scorer()), Scorer()), axes, found)
    assert (found.fair, found.record_count) == (3200, 3200)  # nobody's decision flips
    return certificate


def test_the_model_without_a_bend_is_verified(proof, tmp_path):
    assert check(written(tmp_path, proof), Network(Scorer(), DOMAIN)).fair == 3200


@pytest.mark.parametrize(
    ("bend", "why"), [("clamp", "'clamp'"), ("override", "'gt'"), ("branch", "'gt'"), ("jump", "'gt'")]
)
def test_a_certificate_about_a_model_that_bends_is_refused(proof, tmp_path, bend, why):
    model = Network(Scorer(bend), DOMAIN)
    forged = replace(proof, fingerprint=fingerprint_model(fingerprint(model.module), model.module))
    with pytest.raises(CertificateError, match=rf"cannot be checked: it uses {why}"):
        check(written(tmp_path, forged), model)


def test_a_certificate_about_an_onnx_graph_with_a_clip_is_refused(proof, tmp_path):
    onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
    for name in ("plain", "clipped"):
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(graph(onnx, clipped=name == "clipped").SerializeToString())
        opened = wrap_model(path, DOMAIN, DOMAIN.sample(64, torch.Generator().manual_seed(0)), decision=DECISION)
        certificate = written(
            tmp_path, replace(proof, fingerprint=fingerprint_model(opened.fingerprint, opened.module))
        )
        if name == "plain":
            assert check(certificate, opened).fair == 3200
        else:
            with pytest.raises(CertificateError, match=r"'(clamp|minimum|clamp_max)'|neither"):
                check(certificate, opened)


def graph(onnx, *, clipped: bool):
    helper, numbers = onnx.helper, onnx.numpy_helper.from_array
    module = Scorer()
    arrays = {
        "w": module.first.weight.detach().numpy(),
        "b": module.first.bias.detach().numpy(),
        "v": module.last.weight.detach().numpy(),
        "c": module.last.bias.detach().numpy(),
        "most": torch.tensor(193.0).numpy(),
    }
    clip = [helper.make_node("Clip", ["x", "", "most"], ["y"])] if clipped else []
    nodes = [
        *clip,
        helper.make_node("Gemm", ["y" if clipped else "x", "w", "b"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v", "c"], ["s"], transB=1),
    ]
    kinds = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["n", w]) for n, w in (("x", 3), ("s", 1))]
    stored = [numbers(array, name) for name, array in arrays.items() if name != "most" or clipped]
    made = helper.make_graph(nodes, "g", kinds[:1], kinds[1:], stored)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Lying(Network):
    """Answers otherwise than its module computes, as a wrong conversion does."""

    def double(self):
        return self

    def scores(self, rows):
        flips = (rows[:, 0] > 190) & (rows[:, 1] == 1)
        return torch.where(flips[:, None], -super().scores(rows), super().scores(rows))


def test_a_model_that_answers_otherwise_than_it_was_read_is_refused(proof, tmp_path):
    with pytest.raises(CertificateError, match="decides otherwise than what was read of it, about income"):
        check(written(tmp_path, proof), Lying(Scorer(), DOMAIN))


class Sly(Scorer):
    """The same weights, and another forward()."""

    def forward(self, x):
        return super().forward(x) if len(x) < 2000 else -super().forward(x)


def test_the_same_weights_in_other_code_are_another_model(tmp_path):
    plain, sly = Scorer(), Sly()
    sly.load_state_dict(plain.state_dict())
    assert fingerprint(plain) == fingerprint(sly)
    assert fingerprint_model(fingerprint(plain), plain) != fingerprint_model(fingerprint(sly), sly)
    assert fingerprint_model("stored", nn.Sequential(nn.Linear(2, 2), nn.ReLU())) == "stored"
