"""Modules and functions of users: they may write into what they are given, and whatever they raise is one error."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neuronfair import BlackBox, Dataset, Decision, Network, TableEncoding, interpret, search
from neuronfair.errors import ModelError
from neuronfair.measure.rate import ablate, flip_rate
from neuronfair.model.open import wrap_model
from neuronfair.model.train import train_module
from neuronfair.model.training_loop import TrainingSettings, compute_scores
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.evaluate import evaluate
from tests.planted import networks

DOMAIN = networks.domain()
ROWS = networks.uniform_rows(DOMAIN, 200)
X = TableEncoding.of(DOMAIN).encode(ROWS)


def add(x: Tensor) -> Tensor:
    return x.add_(1)


def add_to_data(x: Tensor) -> Tensor:
    x.data.add_(1)  # which torch does not count
    return x


def add_in_numpy(x: Tensor) -> Tensor:
    x.detach().numpy()[:] += 1
    return x


def add_to_many(x: Tensor) -> Tensor:
    return x.add_(1) if len(x) > 2 else x + 1  # no trial with few rows shows it


WRITERS = (add, add_to_data, add_in_numpy, add_to_many)


class Own(nn.Module):
    """A network with one biased neuron behind a first step of the user's own."""

    def __init__(self, step=lambda x: x + 1, end=lambda scores: scores) -> None:
        super().__init__()
        self.inner = networks.one_biased_neuron()
        self.step, self.end = step, end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.inner(self.step(x)))


def pair(step) -> tuple[Network, Network]:
    """A module that writes into its input, and the same one without."""
    return Network(Own(step), DOMAIN), Network(Own(), DOMAIN)


# Writing into the input


@pytest.mark.parametrize("step", WRITERS)
def test_a_module_that_writes_gives_what_it_gives_without(step):
    writes, plain = pair(step)
    assert writes.layers == plain.layers != ()
    layer, rows = plain.layers[0], ROWS.clone()
    for calls in (
        lambda network: network.scores(rows),
        lambda network: network.activations(rows)[layer],
        lambda network: network.gradient(rows, lambda scores: scores[:, 1]),
        lambda network: network.gradient(rows, lambda h: h.sum(1), layer=layer),
        lambda network: network.double().scores(rows),
    ):
        assert torch.equal(calls(writes), calls(plain))
        assert torch.equal(rows, ROWS)
    with writes.ablated(layer, [0]), plain.ablated(layer, [0]):
        assert torch.equal(writes.scores(rows), plain.scores(rows))
    assert torch.equal(rows, ROWS)


@pytest.mark.parametrize("step", WRITERS)
def test_a_module_that_writes_is_opened_interpreted_measured_and_searched(step):
    writes, plain = (wrap_model(Own(s), DOMAIN, ROWS) for s in (step, lambda x: x + 1))
    assert (writes.note, writes.decision, writes.fingerprint) == (plain.note, plain.decision, plain.fingerprint)
    profiles = [interpret(one.model, DOMAIN, ROWS) for one in (writes, plain)]
    assert torch.equal(profiles[0].worst.act_diff, profiles[1].worst.act_diff)
    data = Dataset("written", DOMAIN, ROWS, torch.zeros(len(ROWS), dtype=torch.int64))
    worst = profiles[1].worst
    off = [ablate(one.model, data, worst.name, worst.biased) for one in (writes, plain)]
    assert off[0] == off[1]
    rates = [flip_rate(one.model, DOMAIN, samples=500) for one in (writes, plain)]
    assert rates[0] == rates[1]
    config = SearchConfig("frontier", seeds=8, steps=12, controls=False)
    found = [search(one.model, DOMAIN, ROWS, config).findings for one in (writes, plain)]
    assert len(found[1]) > 0
    assert torch.equal(found[0].rows, found[1].rows)
    assert torch.equal(found[0].scores, found[1].scores)


@pytest.mark.parametrize("step", WRITERS)
def test_a_module_that_writes_is_trained_as_without(step):
    x, y = X[:60].clone(), (ROWS[:60, 0] > 4).long()
    settings = TrainingSettings(epochs=3, restarts=1)
    results = [
        train_module(lambda s=s: Own(s), x, y, validation=(x, y), settings=settings) for s in (step, lambda x: x + 1)
    ]
    assert torch.equal(x, X[:60])
    assert results[0].history == results[1].history
    for ours, theirs in zip(*(result.module.parameters() for result in results), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(compute_scores(results[0].module, x), compute_scores(results[1].module, x))


def test_a_function_may_write_into_its_table():
    def predict(x: np.ndarray) -> np.ndarray:
        x += 1
        return x[:, 0]

    rows = ROWS.clone()
    box = BlackBox.of_inputs(predict, DOMAIN)
    assert torch.equal(box.scores(rows)[:, 0], X[:, 0].double() + 1)
    assert torch.equal(rows, ROWS)


# Failing


def refuse(x: Tensor) -> Tensor:
    if len(x) > 50:
        raise ValueError("too\nmany rows")
    return x


def test_a_module_that_fails_for_large_batches():
    network = Network(Own(refuse), DOMAIN)
    assert network.scores(ROWS[:50]).shape == (50, 2)
    for call in (
        network.scores,
        network.activations,
        lambda x: network.gradient(x, lambda s: s.sum()),
        network.double().scores,
    ):
        with pytest.raises(
            ModelError, match=r"the module failed on rows of shape \(200, 5\): too many rows$"
        ) as caught:
            call(ROWS)
        assert isinstance(caught.value.__cause__, ValueError)
    assert (network.rows_forward, network.rows_backward) == (50, 0)
    with pytest.raises(ModelError, match=r"^Own: the module failed on rows of shape \(258, 5\)"):
        wrap_model(Own(refuse), DOMAIN, ROWS[:2])


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(_, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_, slope: Tensor) -> Tensor:
        raise ArithmeticError("no way back")


def test_a_module_that_fails_on_the_way_back():
    network = Network(Own(Backwards.apply), DOMAIN)
    with pytest.raises(ModelError, match=r"the module failed on rows of shape \(200, 5\): no way back"):
        network.gradient(ROWS, lambda scores: scores.sum())


@pytest.mark.parametrize("call", range(1, 8))
def test_a_module_that_fails_at_some_call_while_it_is_opened(call):
    calls = []

    def fail_once(x: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) >= call:
            raise OSError("gone")
        return x

    with pytest.raises(ModelError, match="gone"):
        flip_rate(wrap_model(Own(fail_once), DOMAIN, ROWS).model, DOMAIN)


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (lambda s: s[:, :1], "the module gave 2 scores a row at first and 1 now"),
        (lambda s: s[1:], r"must return scores \(200, outputs\), got \(199, 2\)"),
        (lambda s: (s, s), "one tensor of floating-point scores, got tuple"),
        (lambda s: s.tolist(), "one tensor of floating-point scores, got list"),
        (lambda s: s.long(), "one tensor of floating-point scores, got torch.int64"),
        (lambda s: s.to("meta"), "rows on cpu and must return scores there, got meta"),
        (lambda s: s * torch.nan, "NaN or infinite scores"),
        (lambda s: s / 0, "NaN or infinite scores"),
    ],
    ids=["narrow", "short", "tuple", "list", "integers", "elsewhere", "nan", "infinite"],
)
def test_answers_that_go_wrong_later(end, says):
    network = Network(Own(end=lambda scores: scores if len(scores) < 100 else end(scores)), DOMAIN)
    with pytest.raises(ModelError, match=says):
        evaluate(network, DOMAIN, ROWS[:100])
    with pytest.raises(ModelError, match=says):
        flip_rate(network, DOMAIN, samples=100)
    if "NaN" not in says:
        with pytest.raises(ModelError, match=says):
            network.gradient(ROWS, lambda scores: scores.sum())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_in_half_precision(dtype):
    network = Network(Own(end=lambda scores: scores.to(dtype)), DOMAIN)
    scores = network.scores(ROWS)
    assert scores.dtype == torch.float32
    assert torch.equal(scores, Network(Own(), DOMAIN).scores(ROWS).to(dtype).float())


def test_a_layer_that_changes_its_shape():
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if len(x) < 100 else x[:, :1]

    module = nn.Sequential(nn.Linear(5, 4), Odd(), nn.ReLU())
    network = Network(nn.Sequential(module, nn.Flatten(), nn.LazyLinear(2)), DOMAIN)
    with pytest.raises(ModelError, match=r"layer '0' must give \(200, 4\) for these rows, got \(200, 1\)"):
        network.activations(ROWS)


def test_a_module_that_cannot_compute_in_float64_is_refused_before_the_search():
    class Single(Own):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) @ torch.eye(2)

    network = Network(Single(), DOMAIN)
    assert flip_rate(network, DOMAIN, samples=100).sampled == 100  # which does without
    begun = []
    with pytest.raises(ModelError, match=r"no copy of the module computes in float64.*same dtype.*input's type"):
        search(network, DOMAIN, ROWS, SearchConfig(seeds=2, steps=2), progress=lambda *_: begun.append(1))
    assert begun == []


def test_a_module_that_cannot_be_copied():
    module = Own()
    module.lock = threading.Lock()
    with pytest.raises(ModelError, match=r"no copy of the module.*lock"):
        Network(module, DOMAIN).double()


def test_a_traced_module_prints_nothing_when_it_fails(capsys):
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.relu(self.a(x))).reshape(-1, 2, 2).reshape(-1, 2)  # rows come in twos

    network = Network(Functional(), DOMAIN)
    assert network.layers == ("a_relu",)
    with pytest.raises(ModelError, match=r"the module failed on rows of shape \(199, 5\)"):
        network.scores(ROWS[:199])
    assert capsys.readouterr() == ("", "")


# Ctrl-C


def interrupt(_: object) -> object:
    raise KeyboardInterrupt


def test_ctrl_c_inside_a_module_or_a_function_is_ctrl_c():
    module = Own()
    network = Network(module, DOMAIN)
    module.step = interrupt
    for call in (network.scores, network.activations, lambda x: network.gradient(x, lambda s: s.sum())):
        with pytest.raises(KeyboardInterrupt):
            call(ROWS)
    with pytest.raises(KeyboardInterrupt):
        Network(module, DOMAIN)
    with pytest.raises(KeyboardInterrupt):
        wrap_model(module, DOMAIN, ROWS)
    with pytest.raises(KeyboardInterrupt):
        BlackBox(interrupt, DOMAIN)


def test_a_search_that_is_recorded_says_that_nothing_is_lost():
    class Nothing:
        def begin(self, seeds, population, counterparts): ...
        def resume(self, phase): ...
        def checkpoint(self, phase, where): ...
        def control(self, name): ...
        def keep_control(self, name, count): ...

    calls = []

    def fail_late(x: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > 40:
            raise OSError("gone")
        return x

    config = replace(SearchConfig("neuronfair-plus", seeds=8, steps=50), decision=Decision())
    with pytest.raises(ModelError, match=r": gone. Earlier findings are saved: the same command resumes"):
        search(Network(Own(fail_late), DOMAIN), DOMAIN, ROWS, config, recorder=Nothing())
    calls.clear()
    with pytest.raises(ModelError, match=r": gone$"):
        search(Network(Own(fail_late), DOMAIN), DOMAIN, ROWS, config)
