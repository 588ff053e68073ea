from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from neuronfair import Dataset, Decision, Network, TableDomain, interpret, load_dataset
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule, Span
from neuronfair.errors import ModelError
from neuronfair.measure.rate import ablate
from neuronfair.model.profile import LayerBias
from neuronfair.model.weights import load_weights
from tests.planted import networks


def bias(*reactions: float) -> LayerBias:
    """A layer whose normalised reactions are these."""
    return LayerBias("layer", torch.atanh(torch.tensor(reactions, dtype=torch.float64)))


def test_as_curve_by_hand():
    layer = bias(0.0, 0.002, 0.011, 0.02)
    assert layer.thresholds.tolist() == pytest.approx([0, 0.005, 0.01, 0.015, 0.02])
    # Above 0: 3 of 4; above 0.005 and 0.01: 2; above 0.015: 1; above 0.02 itself: none.
    assert layer.rates.tolist() == [0.75, 0.5, 0.5, 0.25, 0.0]
    assert layer.auc == pytest.approx((0.75 + 0.5 + 0.5 + 0.25) * 0.005)


def test_cut_is_where_the_curve_meets_the_diagonal():
    # Half of the neurons react with 0.8, half with 0.2: the curve is 1 up to 0.2, then 0.5 up to 0.8.
    layer = bias(0.8, 0.8, 0.2, 0.2)
    assert layer.cut == pytest.approx(0.5)
    assert layer.biased == (0, 1)


def test_cut_is_interpolated_between_the_points():
    # One of three above 0.332: the curve passes from 1/3 > 0.33 to 1/3 < 0.335 with slope -1 against the diagonal.
    layer = bias(0.9, 0.1, 0.1)
    assert layer.cut == pytest.approx(1 / 3)
    # Two of three drop out at 0.5025, between the points (0.5, 1) and (0.505, 1/3).
    layer = bias(0.9, 0.5025, 0.5025)
    above, below = 1 - 0.5, 1 / 3 - 0.505
    assert layer.cut == pytest.approx(0.5 + 0.005 * above / (above - below))
    assert layer.biased == (0,)


def test_a_layer_that_reacts_as_one_keeps_its_strongest_neurons():
    layer = bias(0.302, 0.302, 0.302)
    assert layer.cut < 0.302
    assert layer.biased == (0, 1, 2)


def test_a_dead_layer_names_one_neuron_and_says_so():
    layer = bias(0.0, 0.0)
    assert (layer.auc, layer.cut, layer.biased, layer.reacts) == (0.0, 0.0, (0,), False)


def test_act_diff_by_hand():
    # Two neurons: relu(a + 2 s) and relu(3 - a - s), with a on 0..3 and s on 0..1.
    domain = networks.domain(attributes=1, high=3)
    first = nn.Linear(2, 2)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 2.0], [-1.0, -1.0]]))
        first.bias.copy_(torch.tensor([0.0, 3.0]))
    network = networks.network(nn.Sequential(first, nn.ReLU(), nn.Linear(2, 2)), domain)
    rows = torch.tensor([[0, 0], [1, 1], [3, 0]])
    profile = interpret(network, domain, rows)
    # |f(x) - f(x')|: 2, 2, 2 for the first; 1, 1, 0 for the second (relu(0) against relu(-1)).
    assert profile.layers[0].act_diff.tolist() == pytest.approx([2.0, 2 / 3])
    assert profile.layers[0].reaction.tolist() == pytest.approx([math.tanh(2.0), math.tanh(2 / 3)])
    assert profile.pairs == 3


def test_many_values_are_averaged_over_all_other_values():
    domain = TableDomain("d", (Attribute("s", "ordinal", low=0, high=3), Attribute("a", "flag")), ("s",))
    first = nn.Linear(2, 1)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 0.0]]))
        first.bias.zero_()
    network = networks.network(nn.Sequential(first, nn.ReLU(), nn.Linear(1, 2)), domain)
    profile = interpret(network, domain, torch.tensor([[0, 0], [1, 0]]))
    assert profile.layers[0].act_diff.tolist() == pytest.approx([((1 + 2 + 3) + (1 + 1 + 2)) / 6])


def test_twins_that_do_not_exist_are_left_out():
    rules = (Rule("b needs s below 2", {"b": (1,)}, {"s": Span(high=1)}),)
    domain = TableDomain("d", (Attribute("s", "ordinal", low=0, high=3), Attribute("b", "flag")), ("s",), rules)
    first = nn.Linear(2, 1)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 0.0]]))
        first.bias.zero_()
    network = networks.network(nn.Sequential(first, nn.ReLU(), nn.Linear(1, 2)), domain)
    profile = interpret(network, domain, torch.tensor([[0, 1]]))
    assert (profile.pairs, profile.layers[0].act_diff.tolist()) == (1, [1.0])


def test_the_planted_neuron_is_named():
    domain = networks.domain()
    network = networks.network(networks.one_biased_neuron(biased=3), domain)
    profile = interpret(network, domain, domain.sample(500, torch.Generator().manual_seed(0)))
    assert profile.worst.biased == (3,)
    assert profile.worst.act_diff.tolist() == pytest.approx([0, 0, 0, 2, 0, 0, 0, 0])


def test_batches_do_not_change_the_result(monkeypatch):
    domain = networks.domain()
    torch.manual_seed(0)
    network = networks.network(nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)), domain)
    rows = domain.sample(1000, torch.Generator().manual_seed(0))
    whole = interpret(network, domain, rows)
    monkeypatch.setattr(network.encoding, "rows_per_pass", 64)
    seen: list[tuple[int, int]] = []
    parts = interpret(network, domain, rows, progress=lambda done, total: seen.append((done, total)))
    assert torch.allclose(whole.layers[0].act_diff, parts.layers[0].act_diff, rtol=1e-6)
    assert seen[0] == (32, 1000)
    assert seen[-1] == (1000, 1000)


def test_convolutions_are_flattened():
    class Picture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU())
            self.out = nn.Linear(12, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.conv(x.view(-1, 1, 3, 3)).flatten(1))

    domain = networks.domain(attributes=8)
    network = networks.network(Picture(), domain)
    profile = interpret(network, domain, domain.sample(10, torch.Generator().manual_seed(0)))
    assert len(profile["conv"].act_diff) == 12


def test_nan_activations_and_empty_rows_are_refused():
    domain = networks.domain()
    module = networks.one_biased_neuron()
    network = networks.network(module, domain)
    with pytest.raises(ModelError, match="no row has a valid twin"):
        interpret(network, domain, torch.empty(0, 5, dtype=torch.int64))
    with torch.no_grad():
        module[0][0].weight[2, 2] = float("nan")
    with pytest.raises(ModelError, match="NaN"):
        interpret(network, domain, torch.ones(3, 5, dtype=torch.int64))


def test_ablation_of_the_planted_neuron_ends_the_discrimination():
    domain = networks.domain()
    network = networks.network(networks.one_biased_neuron(biased=3), domain)
    rows = domain.sample(4000, torch.Generator().manual_seed(0))
    labels = network.scores(rows).argmax(1)
    result = ablate(network, Dataset("planted", domain, rows, labels), "0", (3,), draws=40)
    # By hand: a row discriminates when its four digits add up to 19 or 20.
    by_hand = float(((rows[:, :4].sum(1) == 19) | (rows[:, :4].sum(1) == 20)).double().mean())
    assert result.before.rate == pytest.approx(by_hand)
    assert result.before.accuracy == 1.0
    assert result.after.rate == 0.0
    assert result.after.accuracy < 1.0
    # Some of the 40 random draws hit the planted neuron, most do not.
    assert {o.rate for o in result.random} > {0.0}
    assert result.random_mean.rate > 0.5 * by_hand
    assert network.scores(rows).argmax(1).equal(labels)  # nothing stays switched off


def test_ablation_of_a_network_with_one_output():
    domain = networks.domain()
    two = networks.one_biased_neuron(biased=3)
    with torch.no_grad():
        one = networks.linear((two[1].weight[1:] - two[1].weight[:1]).tolist(), [18.5])
    network = networks.network(nn.Sequential(two[0], one), domain)
    rows = domain.sample(1000, torch.Generator().manual_seed(0))
    sums, threshold = rows[:, :4].sum(1), Decision("threshold", 0.0)
    labels = (18.5 + 2 * rows[:, 4] - sums >= 0).long()
    result = ablate(network, Dataset("planted", domain, rows, labels), "0", (3,), decision=threshold)
    assert result.before.rate == pytest.approx(float(((sums == 19) | (sums == 20)).double().mean()))
    assert (result.before.accuracy, result.after.rate) == (1.0, 0.0)
    assert result.after.accuracy == pytest.approx(float(((sums <= 18) == labels.bool()).double().mean()))
    # A tolerance decides nobody's class, so there is nothing to be right about; twins lie 2 apart.
    result = ablate(network, Dataset("planted", domain, rows, labels), "0", (3,), decision=Decision("tolerance", 1.9))
    assert (result.before.rate, result.before.accuracy, result.random_mean.accuracy) == (1.0, None, None)


def test_the_published_adult_classifier_gives_the_figures_of_the_paper(shared_models):
    data = load_dataset("adult", "paper", sensitive=["sex"])
    module, _ = load_weights(shared_models / "neuronfair" / "census.npz")
    profile = interpret(Network(module, data.domain), data.domain, data.rows)
    first, second = profile.layers[:2]
    assert first.cut == pytest.approx(0.33, abs=0.005)
    assert len(first.biased) == 21
    assert second.auc == pytest.approx(0.7513, abs=0.002)
    assert len(second.biased) == 24
    assert profile.worst is second
