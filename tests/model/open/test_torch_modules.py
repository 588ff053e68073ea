"""Torch modules with embeddings and several inputs: in memory, by name, exported, and behind preprocess."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

import neuronfair as nf
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import ModelError
from neuronfair.model.open import wrap_model
from tests.conftest import FLIPS
from tests.model.open.conftest import check_black_box, check_white_box

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, slope=0.0, classes=2):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(size, 3) for size in (2, 4, 3, 3)])
        self.a, self.act, self.b = nn.Linear(15, 6), nn.LeakyReLU(slope), nn.Linear(6, classes)
    def forward(self, cat, num):
        parts = [table(cat[:, i]) for i, table in enumerate(self.tables)]
        return self.b(self.act(self.a(torch.cat([*parts, num], 1))))

def prepare(table):
    words = {"sex": "FM", "relationship": ["Husband", "Wife", "Child", "Other"], "marital": ["Married", "AF", "Never"],
             "race": "ABC"}
    cat = torch.tensor([[list(w).index(x) for x in table[n]] for n, w in words.items()]).T
    num = torch.tensor(table[["age", "gain", "loss"]].to_numpy(dtype="float32"))
    return cat, num
"""
space: dict = {}
exec(CODE, space)
Net, prepare = space["Net"], space["prepare"]


def codes(rows):
    return rows[:, [1, 2, 3, 4]]


def raw_numbers(rows):
    """The numbers as they are in the table, which `prepare` gives."""
    return torch.stack([rows[:, 0] + 17.0, rows[:, 5] / 2, rows[:, 6]], 1)


def numbers(rows):
    """The numbers as the domain declares them."""
    return (raw_numbers(rows) - torch.tensor([40.0, 10, 0])) / torch.tensor([10.0, 5, 1])


def declared(table):
    """What the network was trained on: codes, and the numbers as the domain declares them."""
    cat, num = prepare(table)
    return cat, (num - torch.tensor([40.0, 10, 0])) / torch.tensor([10.0, 5, 1])


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def line():
    """A network that is a straight line, though it has a hidden layer: its gradients tell all differences exactly."""
    torch.manual_seed(0)
    return Net(slope=1.0, classes=1).eval()


def check_effects(opened, rows, read=range(7)):
    """Every move of every attribute adds to the score what the gradient says; those that are read add something."""
    network = opened.model.double()
    gradient = network.gradient(rows, lambda scores: scores[:, 0])
    before = network.scores(rows)[:, 0]
    for place, size in enumerate(opened.model.encoding.size.tolist()):
        codes = torch.arange(len(rows)) % size
        moved = rows.clone()
        moved[:, place] = codes
        after = network.scores(moved)[:, 0]
        effect = network.encoding.effects(gradient, rows, torch.full((len(rows), 1), place), codes[:, None])[:, 0]
        torch.testing.assert_close(effect, after - before, rtol=0, atol=1e-6)
        assert (float((after - before).abs().max()) > 1e-3) == (place in read)


def test_a_module_of_codes_and_numbers(net, crowd):
    found = wrap_model(net, crowd.domain, crowd.rows, preprocess=declared)
    check_white_box(found, crowd.rows, net(codes(crowd.rows), numbers(crowd.rows)).detach(), [6])
    assert "rows go through preprocess" in found.note
    assert all(parameter.requires_grad for parameter in net.parameters())  # the user's own is as it was


def test_the_gradient_is_the_effect_of_each_code(line, crowd):
    check_effects(wrap_model(line, crowd.domain, crowd.rows, preprocess=declared), crowd.rows)


def test_the_gradient_behind_a_nonlinear_layer(net, crowd):
    """Against one-hot codes times the tables, which torch differentiates by itself."""
    found = wrap_model(net, crowd.domain, crowd.rows, preprocess=declared)
    place = found.model.encoding.offset[2]
    gradient = found.model.gradient(crowd.rows, lambda scores: scores[:, 1])[:, place : place + 4]
    cat, ones = codes(crowd.rows), functional.one_hot(crowd.rows[:, 2], 4).float().requires_grad_()
    parts = [table(cat[:, i]) for i, table in enumerate(net.tables)]
    parts[1] = ones @ net.tables[1].weight
    scores = net.b(net.act(net.a(torch.cat([*parts, numbers(crowd.rows)], 1))))
    (expected,) = torch.autograd.grad(scores[:, 1].sum(), ones)
    # What all values of a block have in common plays no part in a move from one to another.
    gradient, expected = (g - g.gather(1, crowd.rows[:, 2:3]) for g in (gradient, expected))
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-5)


def test_by_name_with_weights(net, crowd, tmp_path, monkeypatch):
    (tmp_path / "codes_and_numbers.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    save_file(net.state_dict(), tmp_path / "w.safetensors")
    given = {"weights": tmp_path / "w.safetensors", "preprocess": "codes_and_numbers:prepare"}
    found = wrap_model("codes_and_numbers:Net", crowd.domain, crowd.rows, **given)
    check_white_box(found, crowd.rows, net(codes(crowd.rows), raw_numbers(crowd.rows)).detach(), [6])
    assert "rows go through preprocess" in found.note
    with pytest.raises(ModelError, match="there is no 'prepares'"):
        wrap_model(net, crowd.domain, crowd.rows, preprocess="codes_and_numbers:prepares")
    with pytest.raises(ModelError, match=r"expected package.module:name"):
        wrap_model(net, crowd.domain, crowd.rows, preprocess="prepare.py")


def test_an_exported_program(line, crowd, tmp_path):
    batch = torch.export.Dim("batch")
    inputs = (codes(crowd.rows)[:3], numbers(crowd.rows)[:3])
    program = torch.export.export(line, inputs, dynamic_shapes=({0: batch}, {0: batch}))
    torch.export.save(program, tmp_path / "net.pt2")
    found = wrap_model(tmp_path / "net.pt2", crowd.domain, crowd.rows, trust_pickle=True)
    check_white_box(found, crowd.rows, line(codes(crowd.rows), numbers(crowd.rows)).detach(), [6])
    check_effects(found, crowd.rows)
    found = wrap_model(tmp_path / "net.pt2", crowd.domain, crowd.rows, preprocess=prepare, trust_pickle=True)
    check_white_box(found, crowd.rows, line(codes(crowd.rows), raw_numbers(crowd.rows)).detach(), [6])


def test_an_onnx_graph(line, crowd, tmp_path):
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    path = tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns of its own future
        axes = {"cat": {0: "n"}, "num": {0: "n"}}
        inputs = (codes(crowd.rows)[:3], numbers(crowd.rows)[:3])
        torch.onnx.export(line, inputs, path, input_names=["cat", "num"], dynamic_axes=axes, dynamo=False)
    found = wrap_model(path, crowd.domain, crowd.rows)
    check_white_box(found, crowd.rows, line(codes(crowd.rows), numbers(crowd.rows)).detach(), [6])
    check_effects(found, crowd.rows)
    assert found.kind == "ONNX"
    found = wrap_model(
        path, crowd.domain, crowd.rows, preprocess=lambda t: dict(zip(("cat", "num"), prepare(t), strict=True))
    )
    check_white_box(found, crowd.rows, line(codes(crowd.rows), raw_numbers(crowd.rows)).detach(), [6])


class Functions(nn.Module):
    """One tensor of whole numbers, one shared table with offsets, and activation functions."""

    def __init__(self):
        super().__init__()
        self.register_buffer("start", torch.tensor([0, 2, 6, 9]))
        self.table, self.a, self.b = nn.Parameter(torch.randn(12, 2)), nn.Linear(11, 5), nn.Linear(5, 2)

    def forward(self, inputs):
        parts = functional.embedding(inputs["codes"] + self.start, self.table).flatten(1)
        return self.b(functional.gelu(self.a(torch.cat([parts, inputs["numbers"]], 1))))


def test_one_dictionary_and_activation_functions(crowd):
    torch.manual_seed(0)
    module = Functions().eval()

    def named(table):
        cat, num = prepare(table)
        num[:, 2] = torch.log1p(num[:, 2])
        return {"numbers": num.numpy(), "codes": cat.numpy()}

    found = wrap_model(module, crowd.domain, crowd.rows, preprocess=named)
    bent = raw_numbers(crowd.rows)
    bent[:, 2] = torch.log1p(bent[:, 2])
    answers = module({"codes": codes(crowd.rows), "numbers": bent}).detach()
    check_white_box(found, crowd.rows, answers, [5])
    assert found.model.layers == ("a_gelu",)
    other = wrap_model(module, crowd.domain, crowd.rows, preprocess=lambda table: named(table))
    assert len({found.fingerprint, other.fingerprint}) == 2  # the code that prepares rows is a part of the model


class Columns(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.a, self.act, self.b = nn.Embedding(3, 2), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)

    def forward(self, race, age):
        return self.b(self.act(self.a(torch.cat([self.table(race), age], 1))))


class Apart(Net):
    """Each column of labels for itself, and the numbers together."""

    def forward(self, a, b, c, d, num):
        return super().forward(torch.stack([a, b, c, d], 1), num)


class Turned(nn.Module):
    """Codes that are laid out otherwise: columns first, or all in one line."""

    def __init__(self, flat):
        super().__init__()
        self.flat, self.table, self.a, self.b = flat, nn.Embedding(4, 2), nn.Linear(8, 4), nn.Linear(4, 1)

    def forward(self, cat):
        found = self.table(cat.flatten() if self.flat else cat.T)
        found = found if self.flat else found.transpose(0, 1)
        return self.b(torch.tanh(self.a(found.reshape(-1, 8))))


class Cast(nn.Module):
    """One tensor of numbers, of which one is cast to a code, and one is cut in two."""

    def __init__(self):
        super().__init__()
        self.table, self.a, self.act, self.b = nn.Embedding(4, 2), nn.Linear(4, 4), nn.LeakyReLU(1.0), nn.Linear(4, 1)

    def forward(self, x):
        old = (x[:, :1] > 40).float()
        return self.b(self.act(self.a(torch.cat([self.table(x[:, 2].long()), x[:, 5:6], old], 1))))


def test_inputs_that_bear_the_names_of_columns(crowd):
    """The model may read some columns only."""
    torch.manual_seed(0)
    module = Columns().eval()
    found = wrap_model(module, crowd.domain, crowd.rows)
    check_white_box(found, crowd.rows, module(crowd.rows[:, 4], numbers(crowd.rows)[:, :1]).detach(), [4])
    assert "each input is the column of its name, with labels as their positions" in found.note


def test_columns_of_an_inferred_domain_keep_the_numbers_of_the_table(crowd):
    """No file declares how they are scaled."""
    torch.manual_seed(0)
    module = Columns().eval()
    data = Dataset("people", crowd.domain, crowd.rows, crowd.labels, inferred=True)
    found = wrap_model(module, crowd.domain, data)
    expected = module(crowd.rows[:, 4], raw_numbers(crowd.rows)[:, :1]).detach()
    assert torch.allclose(found.model.scores(crowd.rows), expected, atol=1e-4)
    assert not torch.allclose(expected, module(crowd.rows[:, 4], numbers(crowd.rows)[:, :1]).detach(), atol=0.1)


def test_codes_one_by_one(crowd):
    torch.manual_seed(0)
    module = Apart().eval()

    def apart(table):
        cat, num = declared(table)
        return *cat.unbind(1), num

    found = wrap_model(module, crowd.domain, crowd.rows, preprocess=apart)
    cat = codes(crowd.rows)
    check_white_box(found, crowd.rows, module(*cat.unbind(1), numbers(crowd.rows)).detach(), [6])


@pytest.mark.parametrize("flat", [True, False])
def test_codes_that_are_laid_out_otherwise(flat, crowd):
    torch.manual_seed(0)
    module = Turned(flat).eval()
    found = wrap_model(module, crowd.domain, crowd.rows, preprocess=lambda table: prepare(table)[0])
    check_white_box(found, crowd.rows, module(codes(crowd.rows)).detach(), [4])


def test_a_code_that_is_cast_from_a_number(crowd):
    torch.manual_seed(0)
    plain = [Attribute(a.name, a.kind, a.low, a.high, a.step, a.values) for a in crowd.domain.attributes]
    raw = TableDomain("raw", tuple(plain), ("sex",))
    module = Cast().eval()
    found = wrap_model(module, raw, crowd.rows)
    check_white_box(found, crowd.rows, module(nf.TableEncoding.of(raw).encode(crowd.rows)).detach(), [4])
    place = int(found.model.encoding.offset[2])
    assert found.model.gradient(crowd.rows, lambda s: s[:, 0])[:, place : place + 4].abs().sum() > 0


class Three(nn.Module):
    def forward(self, one, two, three):
        return one


class Wider(Net):
    """Made for three columns of labels, of the four that there are."""

    def forward(self, cat, num):
        return super().forward(cat[:, [0, 1, 2, 2]], num)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (Three(), "takes one, two, three, not all of which are columns of the domain. Say how"),
        (Wider(), "takes cat, num, not all of which are columns"),
    ],
)
def test_what_cannot_be_told(module, says, crowd):
    with pytest.raises(ModelError, match=says):
        wrap_model(module, crowd.domain, crowd.rows)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda table: table["nobody"], "preprocess failed .KeyError"),
        (lambda table: prepare(table)[0][:1], "made a tensor of shape .1, 4."),
        (lambda table: table, "must make tensors or arrays of numbers"),
    ],
)
def test_a_preprocess_that_does_not_work(made, says, net, crowd):
    with pytest.raises(ModelError, match=says):
        wrap_model(net, crowd.domain, crowd.rows, preprocess=made)


def test_a_preprocess_that_mixes_columns_makes_a_black_box(net, crowd):
    def mixed(table):
        cat, num = prepare(table)
        return cat, torch.cat([num[:, :1] * num[:, 1:2], num[:, 1:]], 1)

    found = wrap_model(net, crowd.domain, crowd.rows, preprocess=mixed)
    num = raw_numbers(crowd.rows)
    num[:, 0] *= num[:, 1]
    check_black_box(found, crowd.rows, net(codes(crowd.rows), num).detach(), "its inputs mix columns")


class Crowded(Turned):
    """Its work grows with the square of the rows."""

    def forward(self, cat):
        return super().forward(cat) + self.table(cat[:, 0].repeat(len(cat)))[: len(cat), :1]


class More(Turned):
    """It does more for more rows."""

    def forward(self, cat):
        again = self.table(cat).sum() if len(cat) > 2 else 0
        return super().forward(cat) + 0 * again


@pytest.mark.parametrize(("make", "why"), [(Crowded, "mixes rows in one dimension"), (More, "other numbers of rows")])
def test_rows_that_cannot_be_told_apart_make_a_black_box(make, why, crowd):
    module = make(True).eval()
    found = wrap_model(module, crowd.domain, crowd.rows, preprocess=lambda table: prepare(table)[0])
    check_black_box(found, crowd.rows, module(codes(crowd.rows)).detach(), why)


def test_empty_inputs_are_no_layer(net, crowd):
    def empty(table):
        cat, num = prepare(table)
        num[table["race"].to_numpy() == "B", 0] = torch.nan
        return cat, num

    with pytest.raises(ModelError, match="NaN"):
        wrap_model(net, crowd.domain, crowd.rows, preprocess=empty)


def test_preprocess_before_other_models(crowd, tmp_path):
    sklearn = pytest.importorskip("sklearn.neural_network", reason="scikit-learn is not installed")
    model = sklearn.MLPClassifier((3,), max_iter=3, random_state=0)
    x = torch.cat([codes(crowd.rows), raw_numbers(crowd.rows)], 1).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not learned everything
        model.fit(x, crowd.labels.numpy())
    found = wrap_model(model, crowd.domain, crowd.rows, preprocess=lambda table: torch.cat(prepare(table), 1).numpy())
    check_white_box(found, crowd.rows, model.predict_proba(x), [3])

    def other(table):
        return torch.cat(prepare(table), 1).numpy()

    # The code that prepares rows is a part of the model.
    assert wrap_model(model, crowd.domain, crowd.rows, preprocess=other).fingerprint != found.fingerprint
    oldest = wrap_model(lambda num: num[:, 0] / 100, crowd.domain, crowd.rows, preprocess=lambda t: prepare(t)[1])
    check_black_box(oldest, crowd.rows, (crowd.rows[:, 0] + 17.0) / 100, "Python function")
    (tmp_path / "own.safetensors").touch()
    with pytest.raises(ModelError, match="preprocess is not for weights of this package"):
        wrap_model(tmp_path / "own.safetensors", crowd.domain, crowd.rows, preprocess=prepare)


def test_code_that_cannot_be_followed_makes_a_black_box(crowd):
    class Outside(nn.Module):
        def forward(self, cat):
            return torch.from_numpy(np.eye(4, dtype="float32"))[cat.numpy()[:, 1] * 1]

    found = wrap_model(Outside(), crowd.domain, crowd.rows, preprocess=lambda table: prepare(table)[0])
    check_black_box(found, crowd.rows, np.eye(4)[crowd.rows[:, 2]], "cannot be traced")


class Turning(nn.Module):
    """Turns the scores of old records around. A trace has one side of its branch, since forward() catches the error."""

    def __init__(self, are_any):
        super().__init__()
        self.are_any, self.a, self.b = are_any, nn.Linear(14, 6), nn.Linear(6, 2)

    def forward(self, x):
        scores, old = self.b(torch.relu(self.a(x))), x[:, :1] > 0.55
        try:
            return torch.where(old, -scores, scores) if self.are_any(old) else scores
        except Exception:
            return scores


@pytest.mark.parametrize(
    ("are_any", "says"),
    [
        (lambda old: old.any(), "no hidden activation was found in it"),
        (lambda old: float(old.sum()) > 0, "its traced copy gives other scores"),
    ],
)
def test_a_module_of_which_a_trace_has_one_side_is_a_black_box(are_any, says, crowd):
    torch.manual_seed(0)
    module = Turning(are_any)
    assert 0 < (crowd.x[:, 0] > 0.55).sum() < len(crowd.x)
    check_black_box(wrap_model(module, crowd.domain, crowd.rows), crowd.rows, module(crowd.x).detach(), says)


def test_an_audit_finds_planted_bias(crowd):
    """The embedding of sex alone decides for people between 40 and 60."""
    module = Net(classes=1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        module.tables[0].weight[:, 0] = torch.tensor([0.0, 30.0])
        module.a.weight[0, [0, 12]] = torch.tensor([1.0, 1.0])  # 30 for men, and the age
        module.a.weight[1, 0], module.a.bias[0] = 1.0, -60.0
        module.b.weight[0, 0], module.b.bias[0] = 1.0, -10.0
    data = Dataset("crowd", crowd.domain, crowd.rows, crowd.labels)
    opened = wrap_model(module, crowd.domain, crowd.rows, preprocess=prepare)
    result = nf.audit(opened, data, settings=nf.AuditSettings.quick(seeds=10, steps=3, samples=300, **FLIPS))
    # A man is above the limit from 40 years on, a woman from 70: of 17 to 90 years 30 of 74 are affected.
    rates = result.report.attributes[0].rates
    assert abs(rates.domain.rate - 30 / 74) < 0.1
    assert result.report.model.white_box
    assert len(result.outcomes["sex", "frontier"].findings) > 0
