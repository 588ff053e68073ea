"""The training loop: what it learns, that it repeats itself, and what it refuses."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from neuronfair.errors import ModelError
from neuronfair.model.network import Network
from neuronfair.model.train import accuracy, train_module
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.model.weights import fully_connected
from tests.planted.networks import Given

QUICK = TrainingSettings(epochs=4, batch=32, patience=4, restarts=1)


def rule(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Raw codes from 0 to 199 in a large column; the label depends on two columns in turn."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 200, (rows, 4), generator=generator).float()
    x[:, 3] = 7  # a constant column must not divide by zero
    return x, ((x[:, 0] > 100) ^ (x[:, 1] > 100)).long()


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    return *rule(600), rule(150, 1)


def test_a_rule_no_linear_model_can_express_is_learned_from_raw_codes() -> None:
    x, y = rule(2000)
    result = train_module(
        lambda: fully_connected(4, (32, 16)),
        x,
        y,
        validation=rule(300, 1),
        settings=TrainingSettings(epochs=40, batch=64, restarts=1, weight_decay=0.0),
    )
    assert accuracy(result.module, *rule(1000, 2)) > 0.9
    assert not result.module.training


def test_the_same_seed_gives_the_same_bits_and_leaves_torch_alone(data) -> None:
    x, y, held = data
    state = torch.get_rng_state()
    one = train_module(lambda: fully_connected(4), x, y, validation=held, settings=QUICK, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    two = train_module(lambda: fully_connected(4), x, y, validation=held, settings=QUICK, seed=5)
    other = train_module(lambda: fully_connected(4), x, y, validation=held, settings=QUICK, seed=6)
    same = two.module.state_dict()
    assert all(torch.equal(value, same[name]) for name, value in one.module.state_dict().items())
    assert one.history == two.history != other.history


def test_more_restarts_keep_the_best_and_do_not_change_the_first(data) -> None:
    x, y, held = data
    seen: dict[int, list[float]] = {}
    result = train_module(
        lambda: fully_connected(4, (8, 8)),
        x,
        y,
        validation=held,
        settings=TrainingSettings(epochs=4, batch=32, patience=4, restarts=3),
        progress=lambda restart, epoch, loss: seen.setdefault(restart, []).append(loss),
    )
    assert sorted(seen) == [1, 2, 3]
    assert len({tuple(losses) for losses in seen.values()}) == 3
    assert result.validation_loss == min(min(losses) for losses in seen.values())
    assert result.validation_loss == min(seen[result.restart])
    alone = train_module(lambda: fully_connected(4, (8, 8)), x, y, validation=held, settings=QUICK)
    assert [loss for _, loss in alone.history] == seen[1]


def test_early_stopping_restores_the_best_epoch() -> None:
    # Labels by lot: the more is learned by heart, the worse it gets on the held-out rows.
    generator = torch.Generator().manual_seed(0)
    x, held_x = torch.randn(60, 5, generator=generator), torch.randn(60, 5, generator=generator)
    y, held_y = (torch.randint(0, 2, (60,), generator=generator) for _ in range(2))
    settings = TrainingSettings(epochs=200, batch=16, lr=0.01, patience=5, restarts=1, weight_decay=0.0)
    result = train_module(lambda: fully_connected(5, (32,)), x, y, validation=(held_x, held_y), settings=settings)
    losses = [loss for _, loss in result.history]
    assert result.epochs == len(losses) == result.best_epoch + 5 < 200
    assert result.validation_loss == min(losses) == losses[result.best_epoch - 1] < losses[-1]
    again = functional.cross_entropy(result.module(held_x), held_y).detach()
    torch.testing.assert_close(float(again), result.validation_loss, rtol=1e-4, atol=1e-5)


def test_the_folded_network_takes_raw_codes_and_gives_the_reported_loss(data) -> None:
    x, y, (held_x, held_y) = data
    result = train_module(
        lambda: fully_connected(4, (16,)), x + 5000, y, validation=(held_x + 5000, held_y), settings=QUICK
    )
    again = float(functional.cross_entropy(result.module(held_x + 5000), held_y).detach())
    assert math.isclose(again, result.validation_loss, rel_tol=1e-3)


def test_a_flag_hardly_ever_seen_decides_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    x, held_x = (torch.rand(rows, 32, generator=generator).round() for rows in (400, 100))
    y, held_y = x[:, 0].long(), held_x[:, 0].long()
    x[:, 20:] = held_x[:, 20:] = 0
    x[range(6), range(20, 26)] = 1  # six flags seen once each, six never
    settings = TrainingSettings(epochs=30, batch=32, restarts=1)
    module = train_module(lambda: fully_connected(32), x, y, validation=(held_x, held_y), settings=settings).module
    held_x[:, 20:] = 1
    assert accuracy(module, held_x, held_y) == 1.0  # 0.57 with plain standardisation and He's first layer


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.dropout, self.head = nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2)
        self.body.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(torch.relu(self.body(x / 200))))


def test_the_mean_of_the_last_weights_is_kept(data) -> None:
    x, y, held = data
    built: list[Frozen] = []
    weights: list[Tensor] = []
    settings = TrainingSettings(epochs=5, batch=len(x), lr=0.01, restarts=1)  # one step an epoch: half of it counts
    result = train_module(
        lambda: built.append(Frozen()) or built[-1],
        x,
        y,
        validation=held,
        settings=settings,
        progress=lambda restart, epoch, loss: weights.append(built[0].head.weight.detach().clone()),
    )
    assert result.best_epoch > 1
    mean = weights[0]
    for weight in weights[1 : result.best_epoch]:
        mean = (mean + weight) / 2
    torch.testing.assert_close(result.module.head.weight.detach(), mean)


def test_layers_with_running_statistics_are_averaged_too(data) -> None:
    x, y, (held_x, held_y) = data
    result = train_module(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)),
        x,
        y,
        validation=(held_x, held_y),
        settings=QUICK,
    )
    again = float(functional.cross_entropy(result.module(held_x), held_y).detach())
    assert math.isclose(again, result.validation_loss, rel_tol=1e-3)


def test_frozen_parts_stay_as_they_are(data) -> None:
    x, y, held = data
    built: list[Frozen] = []

    def build() -> Frozen:
        built.append(Frozen())
        built[-1].before = copy.deepcopy(built[-1].state_dict())
        return built[-1]

    module = train_module(build, x, y, validation=held, settings=QUICK).module
    assert torch.equal(module.body.weight, module.before["body.weight"])
    assert not torch.equal(module.head.weight, module.before["head.weight"])


def test_a_dead_initialisation_is_replaced(data) -> None:
    x, y, held = data
    built = []

    def build() -> nn.Sequential:
        module = fully_connected(4, (8,))
        if not built:
            nn.init.constant_(module.layer1[0].bias, -1e6)
        built.append(module)
        return module

    result = train_module(build, x, y, validation=held, settings=QUICK)
    assert result.restart == 2
    assert result.module is built[1]


def test_a_network_that_stays_constant_is_never_returned(data) -> None:
    x, y, held = data
    with pytest.raises(ModelError, match="same scores for every row"):
        train_module(lambda: fully_connected(4, (8,)), x * 0 + 3, y, validation=held, settings=QUICK)


def test_accuracy_counts_hits_and_keeps_the_mode() -> None:
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Dropout(0.9)).train()
    with torch.no_grad():
        module[0].weight.copy_(torch.eye(2))
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 2.0], [2.0, 3.0]])
    assert accuracy(module, x, torch.tensor([0, 1, 0, 0])) == 0.75
    assert module[1].training
    network = Network(module, Given(x), layers=["0"])
    assert accuracy(network, x, torch.tensor([1, 0, 1, 0])) == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x[:-1], y), "one label per row"),
        (lambda x, y: (x[:0], y[:0]), "no rows are left"),
        (lambda x, y: (x, y.float()), "int64"),
        (lambda x, y: (x, y - 1), "whole numbers"),
        (lambda x, y: (x, y * 0), "every training label is 0"),
        (lambda x, y: (x, y * 4), "go up to 4"),
        (lambda x, y: (x[:, :3], y), "width 4, got 3"),
        (lambda x, y: (torch.where(x == x[0, 0], torch.nan, x), y), "NaN"),
    ],
)
def test_data_that_cannot_be_learned_from_is_refused(data, change, message: str) -> None:
    x, y, held = data
    with pytest.raises(ModelError, match=message):
        train_module(lambda: fully_connected(4), *change(x, y), validation=held, settings=QUICK)


@pytest.mark.parametrize(
    "wrong", [{"epochs": 0}, {"batch": 0}, {"patience": 0}, {"restarts": 0}, {"lr": 0.0}, {"weight_decay": -1.0}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ModelError, match=next(iter(wrong))):
        TrainingSettings(**wrong)


def test_ctrl_c_goes_through(data) -> None:
    x, y, held = data

    def interrupt(restart: int, epoch: int, loss: float) -> None:
        raise KeyboardInterrupt

    state = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        train_module(lambda: fully_connected(4), x, y, validation=held, settings=QUICK, progress=interrupt)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_network_that_decides_every_row_alike_is_the_last_choice(monkeypatch) -> None:
    # One row in twenty is of the second class: the safest bet is to say no to all, unless one looks at the input.
    x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 1.6).long()
    built: list[nn.Module] = []

    def build() -> nn.Module:
        module = fully_connected(2, (8, 4))
        if not built:  # the first start says no, and its scores differ a little from row to row
            with torch.no_grad():
                module.output.weight.mul_(1e-3)
                module.output.bias.copy_(torch.tensor([3.0, -3.0]))
        built.append(module)
        return module

    settings = TrainingSettings(epochs=1, restarts=2, lr=1e-5)
    result = train_module(build, x, y, validation=(x, y), settings=settings)
    assert len(built) > 2  # the first one did not count
    assert result.restart != 1
    decided = result.module(x).argmax(1)
    assert 0 < int(decided.sum()) < len(x)
