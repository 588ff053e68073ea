"""Several networks as one: each is what it would be alone."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from experiments.repairs.stacks import train_stack
from neuronfair.errors import ModelError
from neuronfair.model import train as training
from neuronfair.model.train import Stack, accuracy, as_stackable, list_linear_layers, train_module, train_modules
from neuronfair.model.training_loop import TrainingCourse, TrainingSettings, TrainingTask, build_modules
from neuronfair.model.weights import fully_connected

QUICK = TrainingSettings(epochs=5, batch=32, patience=5, restarts=1)


def rule(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randint(0, 200, (rows, 4), generator=torch.Generator().manual_seed(seed)).float()
    return x, (x[:, 0] > x[:, 1]).long()


def everything(members: int, rows: int) -> Tensor:
    return torch.arange(rows).expand(members, -1)


def networks(count: int) -> list[nn.Sequential]:
    torch.manual_seed(0)
    return [fully_connected(4, (6, 3)) for _ in range(count)]


def test_a_stack_gives_the_scores_of_its_members() -> None:
    members = networks(3)
    x = rule(10)[0]
    expected = torch.stack([member(x) for member in members])
    torch.testing.assert_close(Stack(members)(x), expected)
    own = torch.stack([x, 2 * x, -x])
    torch.testing.assert_close(Stack(members)(own), torch.stack([m(o) for m, o in zip(members, own, strict=True)]))


def test_unstacking_gives_the_weights_back() -> None:
    members, others = networks(2), networks(4)[2:]
    Stack(members).unstack(others)
    for a, b in zip(members, others, strict=True):
        assert all(torch.equal(t, b.state_dict()[name]) for name, t in a.state_dict().items())


def test_every_member_learns_as_a_restart_of_train_does(monkeypatch) -> None:
    (x, y), held = rule(200), rule(60, 1)
    seen: dict[int, list[float]] = {}
    monkeypatch.setattr(training, "as_stackable", lambda modules: None)  # one after the other, each by its own forward
    train_module(
        lambda: fully_connected(4, (6, 3)),
        x,
        y,
        validation=held,
        settings=TrainingSettings(epochs=5, batch=32, patience=5, restarts=3),
        seed=4,
        progress=lambda restart, epoch, loss: seen.setdefault(restart, []).append(loss),
    )
    stacked = train_stack(
        lambda: fully_connected(4, (6, 3)), (x, y), chosen=everything(3, 200), validation=held, settings=QUICK, seed=4
    )
    for number, result in enumerate(stacked, 1):
        assert result.restart == number
        torch.testing.assert_close([loss for _, loss in result.history], seen[number], rtol=1e-3, atol=1e-4)


def test_members_have_their_own_rows() -> None:
    (x, y), held = rule(400), rule(100, 1)
    # The second half is labelled the other way round: whoever learns from it says the opposite.
    y[200:] = 1 - y[200:]
    chosen = torch.stack([torch.arange(200), torch.arange(200, 400)])
    settings = TrainingSettings(epochs=60, batch=32, patience=60)
    one, two = train_stack(
        lambda: fully_connected(4, (16,)), (x, y), chosen=chosen, validation=(x[:200], y[:200]), settings=settings
    )
    two_alone = train_stack(
        lambda: fully_connected(4, (16,)), (x, y), chosen=chosen[1:], validation=(x[200:], y[200:]), settings=settings
    )[0]
    assert accuracy(one.module, *held) > 0.9
    assert accuracy(two_alone.module, *held) < 0.1
    # Judged by rows that contradict its own, the second is best where it has learned nothing yet.
    assert two.best_epoch < one.best_epoch


def test_each_member_stops_by_itself() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 5, generator=generator)
    y = torch.randint(0, 2, (60,), generator=generator)
    held = torch.randn(60, 5, generator=generator), torch.randint(0, 2, (60,), generator=generator)
    settings = TrainingSettings(epochs=200, batch=16, lr=0.01, patience=3, weight_decay=0.0)
    results = train_stack(
        lambda: fully_connected(5, (8,)), (x, y), chosen=everything(4, 60), validation=held, settings=settings
    )
    assert len({result.epochs for result in results}) > 1
    for result in results:
        losses = [loss for _, loss in result.history]
        assert result.epochs == len(losses) == result.best_epoch + 3
        assert result.validation_loss == min(losses) == losses[result.best_epoch - 1]
        again = functional.cross_entropy(result.module(held[0]), held[1]).detach()
        torch.testing.assert_close(float(again), result.validation_loss, rtol=1e-4, atol=1e-5)


def test_a_member_goes_on_as_if_alone_when_others_have_left() -> None:
    (x, y), held = rule(200), rule(60, 1)
    settings = TrainingSettings(epochs=60, batch=32, lr=0.02, patience=2)

    def trained(numbers: list[int]) -> list[tuple[nn.Sequential, TrainingCourse]]:
        members = build_modules(lambda: fully_connected(4, (6, 3)), numbers, 0, x.device)
        courses = train_modules(members, numbers, TrainingTask((x, y), held, settings))
        return list(zip(members, courses, strict=True))

    together = trained([1, 2, 3, 4])
    ends = [course.epochs for _, course in together]
    assert min(ends) + 3 < max(ends)  # some are done long before the last
    for number, (member, course) in enumerate(together, 1):
        ((alone, own),) = trained([number])
        assert course.epochs == own.epochs
        torch.testing.assert_close(course.history, own.history, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(member(x), alone(x), rtol=1e-2, atol=1e-2)


def test_what_can_be_stacked() -> None:
    plain = networks(2)
    assert as_stackable(plain) == plain
    frozen = copy.deepcopy(plain)
    frozen[1].requires_grad_(False)
    with_dropout = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Dropout(), nn.Linear(3, 2))
    for others in (frozen, [plain[0], with_dropout], [plain[0], fully_connected(4, (5, 3))], [nn.Linear(4, 2)]):
        assert as_stackable(others) is None


class Doubled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x)


def twice(block: nn.Sequential) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), block, block, nn.Linear(8, 2))


OTHERS: dict[str, Callable[[], nn.Sequential]] = {
    "own forward": lambda: Doubled(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
    "a layer twice": lambda: twice(nn.Sequential(nn.Linear(8, 8), nn.ReLU())),
    "computed weights": lambda: nn.Sequential(weight_norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 2)),
    "another activation": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU6(), nn.Linear(8, 2)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_does_more_than_its_layers_is_trained_by_its_own_forward(name: str) -> None:
    build = OTHERS[name]
    assert as_stackable([build()]) is None
    (x, y), held = rule(60), rule(20, 1)
    with pytest.raises(ModelError, match="fully connected"):
        train_stack(build, (x, y), chosen=everything(1, 60), validation=held, settings=QUICK)
    result = train_module(build, x, y, validation=held, settings=QUICK)
    loss = functional.cross_entropy(result.module(held[0]), held[1]).detach()
    torch.testing.assert_close(float(loss), result.validation_loss, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("plain", [True, False])
def test_networks_in_float64_are_trained_too(plain: bool, monkeypatch) -> None:
    (x, y), held = rule(60), rule(20, 1)
    if not plain:
        monkeypatch.setattr(training, "as_stackable", lambda modules: None)
    result = train_module(lambda: fully_connected(4, (6, 3)).double(), x, y, validation=held, settings=QUICK)
    assert {p.dtype for p in result.module.parameters()} == {torch.float64}


@pytest.mark.parametrize("few", [0, 10**9])
def test_small_networks_learn_on_one_thread_and_all_are_given_back(few: int, monkeypatch) -> None:
    (x, y), held = rule(50), rule(20, 1)
    monkeypatch.setattr(training, "MAX_PRODUCTS", few)
    before = torch.get_num_threads()
    seen = []

    def interrupt(epoch: int, losses: dict[int, float]) -> None:
        seen.append(torch.get_num_threads())
        raise KeyboardInterrupt

    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyboardInterrupt):
            train_stack(lambda: networks(1)[0], (x, y), chosen=everything(2, 50), validation=held, progress=interrupt)
        assert (seen, torch.get_num_threads()) == ([1 if few else 2], 2)
    finally:
        torch.set_num_threads(before)


def test_retraining_goes_on_from_exactly_the_given_function() -> None:
    (x, y), held = rule(200), rule(60, 1)
    (trained,) = networks(1)
    tiny = TrainingSettings(epochs=1, batch=200, lr=1e-9)
    for result in train_stack(
        lambda: copy.deepcopy(trained), (x, y), chosen=everything(2, 200), validation=held, settings=tiny, fresh=False
    ):
        torch.testing.assert_close(result.module(x), trained(x), rtol=1e-3, atol=1e-2)
        assert not result.module.training


def test_torch_is_left_alone() -> None:
    (x, y), held = rule(50), rule(20, 1)
    state = torch.get_rng_state()
    train_stack(lambda: fully_connected(4, (6,)), (x, y), chosen=everything(2, 50), validation=held, settings=QUICK)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 3), nn.Sigmoid(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
        nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 2)),
    ],
)
def test_other_networks_are_refused(module: nn.Sequential) -> None:
    with pytest.raises(ModelError, match="fully connected"):
        list_linear_layers(module)


def test_networks_of_other_sizes_are_refused() -> None:
    with pytest.raises(ModelError, match="same sizes"):
        Stack([fully_connected(4, (6,)), fully_connected(4, (5,))])


def test_rows_that_cannot_be_learned_from_are_refused() -> None:
    (x, y), held = rule(50), rule(20, 1)
    with pytest.raises(ModelError, match="width 5, got 4"):
        train_stack(lambda: fully_connected(5, (6,)), (x, y), chosen=everything(2, 50), validation=held)
    with pytest.raises(ModelError, match="one label per row"):
        train_stack(lambda: fully_connected(4, (6,)), (x, y[1:]), chosen=everything(2, 50), validation=held)


def test_the_gradients_of_a_stack_are_those_of_autograd_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        stack = Stack([fully_connected(7, (12, 5), 3) for _ in range(4)])
    x, y = torch.randn(4, 37, 7, generator=generator), torch.randint(3, (4, 37), generator=generator)
    each = functional.cross_entropy(stack(x).flatten(0, 1), y.flatten(), reduction="none").view(4, 37).mean(1)
    expected = torch.autograd.grad(each.sum(), list(stack.parameters()))
    learned = stack.learn(x, y)
    assert torch.equal(learned, each)
    assert all(torch.equal(p.grad, g) for p, g in zip(stack.parameters(), expected, strict=True))
