"""Models made to be misread: each is refused by name, or its proof is right for everybody, and so is its check.

Each model does something else for a few people of high income that samples miss. Everybody is evaluated with the
original module, and each box of a proof is compared with them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize

from neuronfair.domain.schema.toml import parse_domain
from neuronfair.errors import ModelError
from neuronfair.model.open import wrap_model
from neuronfair.proof import problem
from neuronfair.proof.certificate import AxisCodes, Certificate, fingerprint_model
from neuronfair.proof.checker.check import check
from neuronfair.proof.prove import prove
from tests.proof.made import written
from tests.proof.test_misread import KERAS, ONNX, keras_model, onnx_file

DOMAIN = parse_domain("""
name = "loans"
encode = "raw"
sensitive = ["sex"]
[attributes]
income = { kind = "ordinal", low = 0, high = 9999 }
sex = { kind = "flag" }
years = { kind = "ordinal", low = 0, high = 3 }
[target]
column = "granted"
classes = ["no", "yes"]
""")
SIZES = [attribute.size for attribute in DOMAIN.attributes]
EVERYBODY = torch.cartesian_prod(*map(torch.arange, SIZES))
HIGH = 9997.5


class Loan(nn.Module):
    """Grants from an income of about 5,000 on; women need 2.5 more."""

    def __init__(self, act: nn.Module | None = None, **parts) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(3, 6), act or nn.ReLU(), nn.Linear(6, 2)
        with torch.no_grad():
            for parameter in (*self.first.parameters(), *self.last.parameters()):
                parameter.zero_()
            self.first.weight[:4] = torch.tensor([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, 0, 1]])
            self.last.weight[1] = torch.tensor([1, -1, -2.5, 0.5, 0, 0])
            self.last.bias[1] = -5000.3
        self.parts = parts

    def forward(self, x):
        before, inside, after = (self.parts.get(part) for part in ("before", "inside", "after"))
        hidden = self.act(self.first(before(x) if before else x))
        scores = self.last(inside(hidden) if inside else hidden)
        return after(scores, x) if after else scores


def less(x, share):
    """Take income from women, as much as a share says."""
    return torch.cat([x[:, :1] - 99_999 * share * x[:, 1:2], x[:, 1:]], 1)


def before(function):
    return lambda: Loan(before=function)


def after(function):
    return lambda: Loan(after=function)


class Kinked(Loan):
    """With one more neuron that counts for a few, unless a function says that it does not."""

    def __init__(self, unless=lambda x: False) -> None:
        super().__init__()
        self.unless = unless
        with torch.no_grad():
            self.first.weight[4], self.first.bias[4] = torch.tensor([1.0, 5, 0]), -10_002.5
            self.last.weight[1, 4] = -9e5

    def forward(self, x):
        counts = 0.0 if self.unless(x) else 1.0
        return self.last(self.first(x).relu() * torch.tensor([1.0, 1, 1, 1, counts, 0], dtype=x.dtype))


class Training(Kinked):
    def forward(self, x):
        self.unless = lambda x: self.training
        return super().forward(x)


class Cancelling(Loan):
    """Adds a large number that is taken away again: float64 rounds what is between."""

    def __init__(self, large: float) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 6), nn.Linear(6, 6)
        with torch.no_grad():
            self.first.weight[4], self.first.bias[4] = torch.tensor([0.25, 0.25, 0]), -2499.5
            self.last.weight[1, 4] = -24e5
            for layer, number in ((self.up, large), (self.down, -large)):
                layer.weight.copy_(torch.eye(6))
                layer.bias.zero_()
                layer.bias[4] = number

    def forward(self, x):
        return self.last(self.down(self.up(self.first(x).relu())))


class Embedded(nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(10_000, 3, **options), Loan()
        with torch.no_grad():
            self.table.weight.zero_()
            self.table.weight[9998:, 0] = -9e4

    def forward(self, x):
        return self.inner(x + self.table(x[:, 0].long()) * x[:, 1:2])


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, 4), nn.Linear(4, 2)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        hidden = self.first(x[..., None])
        return self.last(self.attention(hidden, hidden, hidden)[0].mean(1))


class Capped(nn.Module):
    def forward(self, weight):
        return weight.clamp(-1, 0.75)


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clamp(max=HIGH)


def branching(x):
    return less(x, 1.0) if bool((x[:, 0] > HIGH).any()) else x


def put(x):
    y = x.clone()
    y[x[:, 0] > HIGH] = 0
    return y


def with_autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        return functional.linear(x, torch.eye(3, dtype=x.dtype)).to(x.dtype)


def counted_by_thread():
    own = threading.local()

    def count(x):
        own.calls = getattr(own, "calls", 0) + 1
        return less(x, 1.0) if own.calls > 99 else x

    return Loan(before=count)


def cached():
    @functools.lru_cache
    def factor(number):
        factor.calls += 1
        return 1.0 if factor.calls < 99 else -1.0

    factor.calls = 0
    return Loan(before=lambda x: x * factor(id(x)))


def shared_with_numpy():
    numbers = np.zeros(6, dtype=np.float32)

    def count(x):
        numbers[4] += 1
        return x

    loan = Loan(before=count)
    loan.first.bias.data = torch.from_numpy(numbers)
    return loan


def hooked():
    loan = Loan()
    loan.last.register_forward_hook(
        lambda part, given, kwargs, scores: scores - functional.relu(given[0][:, :1] - HIGH), with_kwargs=True
    )
    return loan


def patched():
    loan = Loan()
    loan.forward = lambda x: Loan.forward(loan, torch.minimum(x, x.new_tensor([HIGH, 1, 9])))
    return loan


def changed(change, part="last"):
    loan = Loan()
    change(getattr(loan, part))
    return loan


def weight_normed(part):
    with torch.no_grad():
        part.weight[4:] = 0.01
    parametrizations.weight_norm(part)


def normed():
    norm = nn.BatchNorm1d(6)
    norm.running_mean += 3
    norm.running_var *= 7
    return Loan(nn.Sequential(norm, nn.ReLU()))


def scripted():
    return Loan(torch.jit.script(nn.ReLU6()))


CASES = {
    # The constructions of the review.
    "clamp": (before(lambda x: torch.cat([x[:, :1].clamp(max=HIGH), x[:, 1:]], 1)), "aten.clamp"),
    "override": (after(lambda s, x: torch.where((x[:, :1] > HIGH) & (x[:, 1:2] == 1), s.flip(1), s)), "aten.gt"),
    "a Python branch": (before(branching), "_local_scalar_dense"),
    "a jump": (lambda: Loan(inside=lambda h: h * torch.where(h[:, :1] > HIGH, 4.0, 1.0)), "aten.gt"),
    # Operators.
    "heaviside": (before(lambda x: less(x, torch.heaviside(x[:, :1] - HIGH, x.new_zeros(())))), "aten.heaviside"),
    "sign": (before(lambda x: less(x, (x[:, :1] - HIGH).sign() + 1)), "aten.sign"),
    "trunc": (before(lambda x: less(x, (x[:, :1] / 9998).trunc())), "aten.trunc"),
    "bucketize": (before(lambda x: less(x, torch.bucketize(x[:, :1], x.new_tensor([HIGH])))), "aten.bucketize"),
    "one-hot": (
        before(lambda x: less(x, functional.one_hot(x[:, 1].long(), 2)[:, :1])),
        "scalar_dense",
    ),
    "gather": (before(lambda x: x.gather(1, x[:, 1:2].long().expand(-1, 3))), "aten.gather"),
    "masked_fill": (before(lambda x: x.masked_fill(x > HIGH, 0.0)), "aten.gt"),
    "index_put": (before(put), "aten.gt"),
    "top k": (before(lambda x: x.topk(3, 1).values), "aten.topk"),
    "argmax": (before(lambda x: less(x, x.argmax(1, keepdim=True))), "aten.argmax"),
    "fmod": (before(lambda x: torch.fmod(x, 9998)), "aten.fmod"),
    "nan_to_num": (before(torch.nan_to_num), "aten.nan_to_num"),
    "lerp": (before(lambda x: torch.lerp(x, x * 2, x[:, 1:2])), "aten.lerp"),
    "einsum": (before(lambda x: torch.einsum("ij,ik->ij", x, x)), "aten.einsum"),
    "normalize": (before(functional.normalize), "aten.linalg_vector_norm"),
    "cummax": (before(lambda x: x.cummax(1).values), "aten.cummax"),
    "max_pool": (lambda: Loan(inside=lambda h: functional.max_pool1d(h[:, None], 3, 1, 1)[:, 0]), "aten.max_pool"),
    "fake_quantize": (before(lambda x: torch.fake_quantize_per_tensor_affine(x, 40.0, 0, 0, 255)), "aten.fake_quant"),
    "complex": (before(lambda x: torch.view_as_complex(x[:, :2].contiguous()).real[:, None] + x), "aten.view_as_compl"),
    "vmap": (before(lambda x: torch.vmap(lambda row: torch.where(row[0] > HIGH, -row, row))(x)), "aten.gt"),
    "checkpoint": (
        before(lambda x: torch.utils.checkpoint.checkpoint(lambda y: y.clamp(max=HIGH), x, use_reentrant=False)),
        "aten.clamp",
    ),
    "autograd": (before(Straight.apply), "aten.clamp"),
    "autocast": (before(with_autocast), "autocast"),
    "embedding": (Embedded, "aten"),
    "embedding, renormed": (lambda: Embedded(max_norm=10.0), "aten"),
    "attention": (Attending, "aten._native_multi_head_attention"),
    "scores of the rows": (after(lambda s, x: s.softmax(0)), "other rows of a batch"),
    "a rounded end": (after(lambda s, x: s.round()), "aten.round"),
    "a threshold": (after(lambda s, x: (s.softmax(1) > 0.5).to(s.dtype)), "aten.gt"),
    # Activations.
    "CELU": (lambda: Loan(nn.CELU()), "aten.celu"),
    "Hardswish": (lambda: Loan(nn.Hardswish()), "aten.hardswish"),
    "Softsign": (lambda: Loan(nn.Softsign()), "aten.abs"),
    "RReLU": (lambda: Loan(nn.RReLU()), "random"),
    "PReLU of several": (lambda: Loan(nn.PReLU(6)), "several slopes"),
    "PReLU": (lambda: Loan(nn.PReLU()), None),
    "LayerNorm": (lambda: Loan(nn.Sequential(nn.ReLU(), nn.LayerNorm(6))), "aten.native_layer_norm"),
    "batch norm": (normed, None),
    # Modules in modules, weights that are computed, hooks.
    "nested": (lambda: nn.ModuleList([nn.Sequential(nn.Identity(), Kinked())])[0], None),
    "weight_norm": (lambda: changed(weight_normed, "first"), None),
    "clamped weights": (
        lambda: changed(lambda part: parametrize.register_parametrization(part, "weight", Capped())),
        None,
    ),
    "spectral_norm": (lambda: changed(parametrizations.spectral_norm), "aten"),
    "TorchScript": (scripted, "its inside is not known|compiled"),
    "DataParallel": (lambda: nn.DataParallel(Loan(before=lambda x: x.clamp(max=HIGH))), "aten|profiler"),
    "a hook": (hooked, "aten|not one after the other"),
    "a patched forward": (patched, "aten.minimum|float64"),
    # What is remembered, and what lies outside.
    "calls of the thread": (counted_by_thread, "changes own"),
    "a cache": (cached, "changes factor"),
    "weights in NumPy": (shared_with_numpy, "changes"),
    "the environment": (before(lambda x: x * (1.0 if "NEURONFAIR_X" not in os.environ else 2.0)), None),
    # How it is called.
    "training": (Training, None),
    "compiling": (lambda: Kinked(lambda x: torch.compiler.is_compiling()), "is_compiling"),
    "exporting": (lambda: Kinked(lambda x: torch.compiler.is_exporting()), "is_exporting"),
    "tracing": (lambda: Kinked(lambda x: torch.jit.is_tracing()), "is_tracing"),
    "type": (lambda: Kinked(lambda x: type(x) is not torch.Tensor), "type"),
    "class": (lambda: Kinked(lambda x: x.__class__ is not torch.Tensor), "__class__"),
    "fake": (lambda: Kinked(lambda x: isinstance(x, FakeTensor)), "FakeTensor"),
    "mode of fakes": (lambda: Kinked(lambda x: hasattr(x, "fake_mode")), "fake_mode"),
    "profile": (lambda: Kinked(lambda x: sys.getprofile() is not None), "getprofile"),
    "thread": (lambda: Kinked(lambda x: threading.current_thread() is not threading.main_thread()), "thread"),
    "modes": (lambda: Kinked(lambda x: torch._C._len_torch_dispatch_stack() > 0), "_len_torch_dispatch_stack"),
    "dtype": (lambda: Kinked(lambda x: x.dtype == torch.float32), "its inside is not known"),
    "rows": (lambda: Kinked(lambda x: x.shape[0] < 5000), "its inside is not known"),
    "strides": (lambda: Kinked(lambda x: x.stride()[0] != 3), "its inside is not known"),
    # Rounding.
    "a sum that cancels": (lambda: Cancelling(2.0**40), None),
    "a sum that cancels all digits": (lambda: Cancelling(1.5 * 2.0**52), None),
    "half precision": (before(lambda x: x.bfloat16().to(x.dtype)), "rounds to bfloat16"),
    "a kink that samples miss": (Kinked, None),
}


def flips_of(decide):
    """Return whether the decision about each person flips with sex, by the original."""
    chosen = decide(EVERYBODY).argmax(1).view(SIZES)
    return (chosen[:, :1] != chosen[:, 1:]).expand(SIZES).flatten()


def of_module(module):
    def decide(rows):
        with torch.no_grad():
            return module.double().eval()(rows.double())

    return decide


def false_boxes(subject, proof, flips):
    """Return how many boxes claim more people than there are."""
    codes = torch.stack([axis.position_of_code[EVERYBODY[:, axis.column]] for axis in subject.space.axes], 1).numpy()
    claimed, wrong = proof.certified, 0
    for low, high, fair, flipping in zip(claimed.low, claimed.high, claimed.fair, claimed.discriminatory, strict=True):
        inside = ((codes >= low) & (codes <= high)).all(1)
        count = int(flips.numpy()[inside].sum())
        wrong += flipping > count or fair > int(inside.sum()) - count
    return wrong


def assert_refused_or_right(opened, decide, why, monkeypatch, tmp_path):
    monkeypatch.setattr(problem, "MAX_ENUMERATED_RECORDS", 0)  # nobody is asked: bounds, or nothing
    if why is not None:
        with pytest.raises(ModelError, match=why):
            problem.build_problem(opened, DOMAIN)
        return
    subject = problem.build_problem(opened, DOMAIN)
    proof = prove(subject, seconds=2)
    flips = flips_of(decide)
    assert proof.discriminatory <= flips.sum() <= proof.record_count - proof.fair
    assert false_boxes(subject, proof, flips) == 0
    axes = tuple(AxisCodes.of(axis, DOMAIN.names[axis.column]) for axis in subject.space.axes)
    known = fingerprint_model(opened.fingerprint, opened.module)
    found = check(written(tmp_path, Certificate(DOMAIN, subject.decision, "", known, axes, proof)), opened)
    assert (found.fair, found.discriminatory) == (proof.fair, proof.discriminatory)


@pytest.fixture(scope="module")
def some():
    return DOMAIN.sample(300, torch.Generator().manual_seed(1))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_a_module_is_refused_by_name_or_proved_rightly(case, some, monkeypatch, tmp_path):
    make, why = CASES[case]
    torch.manual_seed(0)
    module = make()
    opened = None
    with contextlib.suppress(ModelError):
        opened = wrap_model(module, DOMAIN, some)
    if opened is None:
        with pytest.raises(ModelError, match=why or "opened"):
            wrap_model(module, DOMAIN, some)
        return
    assert_refused_or_right(opened, of_module(module), why, monkeypatch, tmp_path)


@pytest.mark.parametrize("case", ["plain", "Clip", "Where"])
def test_an_onnx_file_is_refused_by_name_or_proved_rightly(case, some, monkeypatch, tmp_path):
    nodes, arrays = ONNX[case]
    path = onnx_file(tmp_path / "m.onnx", nodes, arrays)
    runtime = pytest.importorskip("onnxruntime").InferenceSession(str(path))

    def decide(rows):
        return torch.from_numpy(runtime.run(None, {"x": rows.numpy().astype(np.float32)})[0])

    why = None if case == "plain" else "clamp|minimum|gt|where|Greater|Clip"
    assert_refused_or_right(wrap_model(path, DOMAIN, some), decide, why, monkeypatch, tmp_path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", ["plain", "Lambda"])
def test_a_keras_model_is_refused_by_name_or_proved_rightly(case, some, monkeypatch, tmp_path):
    model = keras_model(KERAS[case])
    decide = lambda rows: torch.from_numpy(np.asarray(model.predict(rows.numpy(), batch_size=80_000, verbose=0)))  # noqa: E731
    why = None if case == "plain" else "minimum|Lambda|inside is not known"
    assert_refused_or_right(wrap_model(model, DOMAIN, some), decide, why, monkeypatch, tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_an_exported_program_is_refused_by_name(some, monkeypatch, tmp_path):
    rows = {0: torch.export.Dim("rows", min=2)}
    path = tmp_path / "m.pt2"
    module = CASES["clamp"][0]()
    torch.export.save(torch.export.export(module, (torch.zeros(3, 3),), dynamic_shapes=({**rows},), strict=False), path)
    assert_refused_or_right(
        wrap_model(path, DOMAIN, some, trust_pickle=True), of_module(module), "clamp", monkeypatch, tmp_path
    )
