"""Training a model again, whatever its scores mean."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from neuronfair import BlackBox, Dataset
from neuronfair.domain.table import Target
from neuronfair.errors import ModelError
from neuronfair.model.decision import Decision
from neuronfair.model.open import wrap_model
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.repairs.evaluate import RepairOutcome, accuracy_of, outcomes, outcomes_of
from neuronfair.repairs.labels import twin_labels
from neuronfair.repairs.training import Lesson, Logits, check_trainable, trained
from tests.planted.networks import domain, network, one_biased_neuron, three_classes, uniform_rows

SPACE = replace(domain(), target=Target("y", ("no", "yes")))


def people(rows: int = 200) -> Dataset:
    codes = uniform_rows(SPACE, rows)
    return Dataset("planted", SPACE, codes, (codes[:, :4].sum(1) < 18.5).long())


@pytest.mark.parametrize(
    ("scores", "shares", "threshold", "expected"),
    [
        ([[0.2, 0.8]], True, 0.0, [[0.2, 0.8]]),
        ([[0.8]], True, 0.5, [[0.2, 0.8]]),
        ([[3.0, 1.0]], False, 0.0, [[0.8808, 0.1192]]),
        ([[2.0]], False, 2.0, [[0.5, 0.5]]),
        ([3.0], False, 1.0, [[0.1192, 0.8808]]),  # no dimension of outputs; the softmax of 1 and 3
    ],
)
def test_scores_become_logits_whose_softmax_are_the_shares(scores, shares, threshold, expected):
    logits = Logits(shares=shares, threshold=threshold)(torch.tensor(scores))
    assert torch.allclose(logits.softmax(1), torch.tensor(expected), atol=1e-4)


def with_end(*parts: nn.Module) -> nn.Module:
    """The biased network, from whose boundary of 18.5 those with s = 1 lie 4 away, with another end."""
    return nn.Sequential(*one_biased_neuron(weight=4.0), *parts)


def one_score() -> nn.Module:
    """The same decision by one share."""
    difference = nn.Linear(2, 1)
    difference.load_state_dict({"weight": torch.tensor([[-1.0, 1.0]]), "bias": torch.tensor([0.0])})
    return with_end(difference, nn.Sigmoid())


@pytest.mark.parametrize("module", [with_end(), with_end(nn.Softmax(1)), one_score()], ids=["logits", "shares", "one"])
def test_a_module_learns_labels_that_it_had_wrong(module):
    data = people(400)
    opened = wrap_model(module, SPACE, data.rows)
    before = accuracy_of(opened.model, data, opened.decision)
    assert 0.7 < before < 0.95  # by hand: about a quarter of those with s = 1 is decided wrongly
    weights = [p.detach().clone() for p in module.parameters()]
    lesson = Lesson((data.rows, data.labels), torch.arange(400)[None], (data.rows, data.labels))
    (done,) = trained(opened, lesson, TrainingSettings(epochs=15, lr=0.02, patience=15), seed=0)
    assert accuracy_of(done.model, data, opened.decision) > before + 0.03
    assert all(torch.equal(a, b) for a, b in zip(weights, module.parameters(), strict=True))


def test_models_of_any_kind_are_judged_as_networks_are():
    data = people()
    module = one_biased_neuron()
    opened = wrap_model(module, SPACE, data.rows)
    ask = BlackBox(lambda rows: network(module, SPACE).scores(rows), SPACE)
    black = wrap_model(ask, SPACE, data.rows)
    expected = outcomes([module], data, data.rows)
    assert outcomes_of([opened, black], data, data.rows, Decision()) == expected * 2
    assert isinstance(expected[0], RepairOutcome)


def test_twins_of_a_black_box_with_one_score_vote_by_its_threshold():
    rows = torch.tensor([[9, 9, 1, 0, 0], [9, 9, 1, 0, 1], [9, 9, 9, 9, 1], [0, 0, 0, 0, 0]])
    mostly = torch.tensor([[0, 0, 0, 0, 1]] * 3 + [[0, 0, 0, 0, 0]])
    # Accepted below a sum of 18.5, and below 20.5 for s = 1, as the network of two outputs.
    model = BlackBox(lambda rows: 18.5 + 2 * rows[:, 4] - rows[:, :4].sum(1) + 0.3, SPACE)
    assert twin_labels(model, SPACE, rows, mostly, Decision("threshold", 0.3)).tolist() == [1, 1, 0, 1]
    assert twin_labels(model, SPACE, rows, 0 * mostly, Decision("threshold", 0.3)).tolist() == [0, 0, 0, 1]


def test_what_cannot_be_trained_again_is_told_where_the_pairs_are():
    data = people()
    black = wrap_model(BlackBox(lambda rows: rows[:, :2].double(), SPACE), SPACE, data.rows)
    with pytest.raises(ModelError, match=r"cannot be trained again here.*--augment"):
        check_trainable(black, data)
    three = wrap_model(three_classes(), SPACE, data.rows)
    with pytest.raises(ModelError, match="3 outputs, but planted has 2 classes"):
        check_trainable(three, data)
    frozen = wrap_model(one_biased_neuron().requires_grad_(False), SPACE, data.rows)
    with pytest.raises(ModelError, match="cannot be trained again here"):
        check_trainable(frozen, data)
