"""Models that sampling misreads, as torch modules and as files: each proof is compared with everybody evaluated."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neuronfair.domain.schema.toml import parse_domain
from neuronfair.errors import Unprovable
from neuronfair.model.open import wrap_model
from neuronfair.proof.problem import build_problem
from neuronfair.proof.prove import prove
from neuronfair.searches.evaluate import evaluate

DOMAIN = """
name = "loans"
encode = "raw"
sensitive = ["sex"]
[attributes]
income = { kind = "ordinal", low = 0, high = 199 }
sex = { kind = "flag" }
years = { kind = "ordinal", low = 0, high = %d }
[target]
column = "granted"
classes = ["no", "yes"]
"""
WIDE = 'wealth = { kind = "ordinal", low = 0, high = 9999 }\n'
FIRST = np.array([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=np.float32)
LAST = np.array([[0.0, 0, 0, 0], [1, -1, -2.5, 0.5]], dtype=np.float32)
BIAS = np.array([0.0, -192.3], dtype=np.float32)


class Loan(nn.Module):
    """Grants from an income of about 193 on; the last few incomes are those that samples miss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2)
        with torch.no_grad():
            self.first.weight[:], self.last.weight[:] = torch.from_numpy(FIRST), torch.from_numpy(LAST)
            self.last.bias[:] = torch.from_numpy(BIAS)

    def before(self, x: Tensor) -> Tensor:
        return x

    def inside(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inside(self.act(self.first(self.before(x)))))


class Clamped(Loan):
    def before(self, x: Tensor) -> Tensor:
        return torch.cat([x[:, :1].clamp(max=193), x[:, 1:]], 1)


class Overridden(Loan):
    def forward(self, x: Tensor) -> Tensor:
        special = (x[:, 0] > 193) & (x[:, 1] == 1)
        return torch.where(special[:, None], super().forward(x).flip(1), super().forward(x))


class Branching(Loan):
    def before(self, x: Tensor) -> Tensor:
        return torch.stack([row * row.new_tensor([1, 9, 1]) if row[0] > 193 else row for row in x])


class Jumping(Loan):
    def inside(self, h: Tensor) -> Tensor:
        return h * torch.where(h[:, :1] > 193, h.new_tensor([1.0, 1, 4, 1]), h.new_ones(4))


def domain_of(years: int = 4, more: str = ""):
    return parse_domain((DOMAIN % years).replace("[target]", f"{more}[target]"))


def everybody(domain) -> Tensor:
    return torch.tensor(list(itertools.product(*(range(a.size) for a in domain.attributes))))


def truth(model, domain) -> int:
    return int(evaluate(model, domain, everybody(domain)).discriminates.sum())


@pytest.mark.parametrize("kind", [Loan, Clamped, Overridden, Branching, Jumping])
def test_a_proof_about_a_module_is_right_for_everybody(kind):
    domain = domain_of()
    opened = wrap_model(kind(), domain, everybody(domain)[::7])
    problem = build_problem(opened, domain)
    assert (problem.bounder is not None) == (kind is Loan)
    proof = prove(problem, seconds=20)
    assert proof.complete
    assert proof.discriminatory == truth(opened.model.double(), domain)
    assert proof.discriminatory > 0


@pytest.mark.parametrize(
    ("kind", "name"),
    [(Clamped, "aten.clamp"), (Overridden, "aten.gt"), (Branching, "aten._local_scalar_dense"), (Jumping, "aten.gt")],
)
def test_what_is_too_large_to_be_enumerated_is_refused_with_the_name_of_the_operator(kind, name):
    class Wider(kind):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x[:, :3])

    domain = domain_of(999, WIDE)
    opened = wrap_model(Wider(), domain, domain.sample(300, torch.Generator().manual_seed(0)))
    with pytest.raises(Unprovable, match=name):
        build_problem(opened, domain)


def onnx_file(path, nodes, arrays):
    onnx = pytest.importorskip("onnx")
    make, kind = onnx.helper, onnx.TensorProto.FLOAT
    weights = {"first": FIRST.T.copy(), "last": LAST.T.copy(), "bias": BIAS, **arrays}
    stored = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    steps = [make.make_node(op, given, [made]) for op, given, made in nodes]
    given = [make.make_tensor_value_info("x", kind, ["n", 3])]
    made = [make.make_tensor_value_info("y", kind, ["n", 2])]
    model = make.make_model(make.make_graph(steps, "g", given, made, stored), opset_imports=[make.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, path)
    return path


TAIL = [("Relu", ["h"], "r"), ("Gemm", ["r", "last", "bias"], "y")]
ONNX = {
    "plain": ([("MatMul", ["x", "first"], "h"), *TAIL], {}),
    "Clip": (
        [("Clip", ["x", "", "most"], "c"), ("MatMul", ["c", "first"], "h"), *TAIL],
        {"most": np.float32(193)},
    ),
    "Min": ([("Min", ["x", "most"], "c"), ("MatMul", ["c", "first"], "h"), *TAIL], {"most": np.float32(193)}),
    "Where": (
        [
            ("Greater", ["x", "most"], "g"),
            ("Where", ["g", "most", "x"], "c"),
            ("MatMul", ["c", "first"], "h"),
            *TAIL,
        ],
        {"most": np.float32(193)},
    ),
    "Clip as activation": (
        [
            ("MatMul", ["x", "first"], "h"),
            ("Clip", ["h", "zero", "most"], "r"),
            ("Gemm", ["r", "last", "bias"], "y"),
        ],
        {"most": np.float32(193), "zero": np.float32(0)},
    ),
    "Reshape": (
        [("Reshape", ["x", "shape"], "c"), ("MatMul", ["c", "first"], "h"), *TAIL],
        {"shape": np.array([-1, 3])},
    ),
}


@pytest.mark.parametrize("case", ONNX)
def test_a_proof_about_an_onnx_file_is_right_for_everybody(case, tmp_path):
    path = onnx_file(tmp_path / "m.onnx", *ONNX[case])
    domain = domain_of()
    opened = wrap_model(path, domain, everybody(domain)[::7])
    problem = build_problem(opened, domain)
    assert (problem.bounder is not None) == (case in ("plain", "Reshape"))
    proof = prove(problem, seconds=20)
    assert proof.complete
    assert proof.discriminatory == truth(opened.model.double(), domain) > 0


def keras_model(between):
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    layers = [keras.layers.Input((3,)), *between(keras), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    dense = [layer for layer in model.layers if type(layer).__name__ == "Dense"]
    dense[0].set_weights([FIRST.T.copy(), np.zeros(4, dtype=np.float32)])
    dense[1].set_weights([LAST.T.copy(), BIAS])
    return model


KERAS = {
    "plain": lambda keras: [keras.layers.Dense(4, "relu")],
    "reshaped": lambda keras: [keras.layers.Reshape((3, 1)), keras.layers.Flatten(), keras.layers.Dense(4, "relu")],
    "a largest value": lambda keras: [keras.layers.Dense(4), keras.layers.ReLU(max_value=193)],
    "Lambda": lambda keras: [
        keras.layers.Lambda(lambda x: keras.ops.minimum(x, 193.0), output_shape=(3,)),
        keras.layers.Dense(4, "relu"),
    ],
    "an own activation": lambda keras: [keras.layers.Dense(4, lambda x: keras.ops.clip(x, 0.0, 193.0))],
}


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning", "ignore:The object being serialized")
@pytest.mark.parametrize("case", KERAS)
def test_a_proof_about_a_keras_model_is_right_for_everybody(case):
    domain = domain_of()
    opened = wrap_model(keras_model(KERAS[case]), domain, everybody(domain)[::7])
    problem = build_problem(opened, domain)
    assert (problem.bounder is not None) == (case in ("plain", "reshaped"))
    proof = prove(problem, seconds=30)
    assert proof.complete
    assert proof.discriminatory == truth(opened.model.double(), domain) > 0


class OddScaler:
    """Scales columns, but for a few people whom no sample shows."""

    def fit(self, x, y=None):
        return self

    def transform(self, x):
        x = np.asarray(x, dtype=float).copy()
        x[:, 0] += 50 * ((x[:, 0] > 198) & (x[:, 1] == 1) & (x[:, 2] == 4))
        return x / [100, 1, 4]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["known", "its own", "a function"])
def test_preprocessing_that_was_only_asked_is_not_proved_by_bounds(kind):
    pytest.importorskip("sklearn")
    import pandas as pd
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    domain = domain_of()
    rows = everybody(domain)
    frame = pd.DataFrame(rows.numpy().astype(float), columns=list(domain.names))
    first = {
        "known": StandardScaler(),
        "its own": OddScaler(),
        "a function": FunctionTransformer(OddScaler().transform),
    }[kind]
    labels = np.where(frame.income + 30 * frame.sex > 120, "yes", "no")
    pipeline = make_pipeline(first, MLPClassifier((4,), max_iter=30, random_state=0)).fit(frame, labels)
    opened = wrap_model(pipeline, domain, rows[::7])
    assert opened.white_box
    problem = build_problem(opened, domain)
    assert (problem.bounder is not None) == (kind == "known")
    if kind == "known":
        proof = prove(problem, seconds=20)
        assert proof.discriminatory <= truth(opened.model.double(), domain) <= proof.record_count - proof.fair
        return
    with pytest.raises(Unprovable, match="has unknown code"):
        _refused(opened, domain)


def _refused(opened, domain):
    from neuronfair.proof import problem

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(problem, "MAX_ENUMERATED_RECORDS", 5)
        build_problem(opened, domain)


def test_a_preprocess_function_is_not_proved_by_bounds():
    domain = domain_of()
    rows = everybody(domain)
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    def preprocess(table):
        return torch.tensor(OddScaler().transform(table.to_numpy(dtype=float)), dtype=torch.float32)

    opened = wrap_model(module, domain, rows[::7], preprocess=preprocess)
    assert opened.white_box
    with pytest.raises(Unprovable, match="the function preprocess has unknown code"):
        _refused(opened, domain)
