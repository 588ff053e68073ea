"""The one training loop: classifiers, attribute heads and retraining all go through `train`."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from neuronfair.errors import ModelError
from neuronfair.network.adapter import Network
from neuronfair.network.layers import evaluating

# Initialisations that die (see `train`) are replaced by new ones, this many at most.
REPLACEMENTS = 5
# A fixed prior on the weights weighs less, the more rows speak: the decay is PRIOR / rows, but never more than
# MAX_DECAY. Chosen by validation loss: 0.05 was best for 420 rows, 0.002 for 23,000 and 32,000.
PRIOR = 50.0
MAX_DECAY = 0.05
# What is validated and kept is the mean of the weights over about this many epochs, the last ones weighing most.
AVERAGED_EPOCHS = 2.0
# Divided by its small deviation, a rare flag would shout down all other inputs, with weights that few rows correct. So
# a deviation counts as at least this share of the range, and the first layer starts small (see docs/results.md).
MIN_DEVIATION = 0.2
FIRST_SCALE = 0.1
# Rows per forward pass where no gradient is needed.
EVALUATION_ROWS = 8192

M = TypeVar("M", bound=nn.Module)
Rows = tuple[Tensor, Tensor]
Progress = Callable[[int, int, float], None]


@dataclass(frozen=True)
class TrainingSettings:
    """How long, how often and how strictly to train; the defaults suit tables of a few hundred rows and more.

    `weight_decay` is Adam's L2 penalty; None chooses it by the number of rows, stronger for small tables.
    """

    epochs: int = 200
    batch: int = 128
    lr: float = 0.001
    patience: int = 15
    restarts: int = 3
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "patience", "restarts"):
            if getattr(self, name) < 1:
                raise ModelError(f"TrainingSettings: {name} must be at least 1, got {getattr(self, name)}")
        if not self.lr > 0:
            raise ModelError(f"TrainingSettings: lr must be positive, got {self.lr}")
        if self.weight_decay is not None and not self.weight_decay >= 0:
            raise ModelError(f"TrainingSettings: weight_decay must be None or at least 0, got {self.weight_decay}")


@dataclass(frozen=True)
class TrainingResult(Generic[M]):
    """A trained module with the averaged weights of its best epoch, in eval mode, and how the training went.

    `history` holds the training loss and the averaged weights' validation loss of every epoch of this restart.
    """

    module: M
    epochs: int
    best_epoch: int
    validation_loss: float
    history: tuple[tuple[float, float], ...]
    restart: int


def train(
    build: Callable[[], M],
    x: Tensor,
    y: Tensor,
    *,
    validation: Rows,
    settings: TrainingSettings | None = None,
    seed: int = 0,
    fresh: bool = True,
    progress: Progress | None = None,
) -> TrainingResult[M]:
    """Train the module that `build()` returns to tell the classes y (0, 1, …) from the inputs x.

    Adam on the cross entropy. What is validated is the mean of the weights over the last steps: training stops when
    its loss has not fallen for `patience` epochs, and the best mean is kept. `settings.restarts` initialisations are
    trained and the one with the smallest validation loss is returned; one that ends up deciding every row alike (all
    units of a narrow layer dead, say) is replaced by another. The same seed gives the same weights, and
    torch's own random state is left as it was.

    A module that begins with a linear layer is trained on standardised inputs and starts with that layer's weights
    made smaller; shift and scale are then folded into the layer, so that the result takes x as it is. With
    `fresh=False`, `build()` returns trained weights that already take x as it is (retraining), and training goes on
    from exactly that function.
    `progress` is called after every epoch with (restart, epoch, validation loss), counted from 1.
    """
    settings = settings or TrainingSettings()
    _check(x, y, "training")
    _check(*validation, "validation")
    if int(y.min()) == int(y.max()):
        raise ModelError(f"every training label is {int(y[0])}: there is nothing to tell apart")
    held = (validation[0].to(x.device), validation[1].to(x.device))
    attempts = settings.restarts + REPLACEMENTS
    alive: list[TrainingResult[M]] = []
    useful = 0
    for restart in range(1, attempts + 1):
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            # Every (seed, restart) has its own stream, so that more restarts never change the earlier ones.
            shuffle = _seeded((seed * 1_000_003 + restart) % 2**63, x.device)
            module = build().to(x.device)
            result = _train_once(module, (x, y.to(x.device)), held, settings, shuffle, fresh, restart, progress)
        if math.isfinite(result.validation_loss) and not _constant(result.module, x):
            alive.append(result)
            useful += _decides(result.module, x)
        if useful == settings.restarts:
            break
    if not alive:
        raise ModelError(
            f"all {attempts} initialisations ended with the same scores for every row: check that the inputs carry "
            "information, or use wider layers, a smaller lr or a smaller weight_decay"
        )
    # A network that decides every row alike has learned little, whatever its loss; it is the last choice.
    return min(alive, key=lambda result: (not _decides(result.module, x), result.validation_loss))


def accuracy(model: nn.Module | Network, x: Tensor, y: Tensor) -> float:
    """Return the share of rows whose largest score is that of their class, from 0 to 1."""
    _check(x, y, "accuracy")
    scores = _scores(model, x)
    _check_classes(scores, y)
    return float((scores.argmax(dim=1) == y.to(scores.device)).double().mean())


def _train_once(
    module: M,
    rows: Rows,
    held: Rows,
    settings: TrainingSettings,
    shuffle: torch.Generator,
    fresh: bool,
    restart: int,
    progress: Progress | None,
) -> TrainingResult[M]:
    weights = [p for p in module.parameters() if p.requires_grad]
    if not weights:
        raise ModelError("nothing to train: no parameter of the module requires a gradient")
    (x, y), (held_x, held_y) = rows, held
    first = _first_linear(module)
    units = _Units.of(x) if first is not None and x.dim() == 2 else None
    if first is not None and units is not None:
        if x.shape[1] != first.in_features:
            raise ModelError(f"the module expects rows of width {first.in_features}, got {x.shape[1]}")
        if fresh:
            first.weight.data *= FIRST_SCALE
        else:
            units.unfold(first)
        x, held_x = units.standardise(x), units.standardise(held_x)
    x, held_x = x.to(weights[0].dtype), held_x.to(weights[0].dtype)
    _check_classes(_scores(module, held_x[:1]), torch.cat([y, held_y]))
    decay = min(MAX_DECAY, PRIOR / len(x)) if settings.weight_decay is None else settings.weight_decay
    optimiser = torch.optim.Adam(weights, lr=settings.lr, weight_decay=decay, fused=True)
    memory = AVERAGED_EPOCHS * math.ceil(len(x) / settings.batch)
    average = get_ema_multi_avg_fn(1 - 1 / memory)  # type: ignore[no-untyped-call]
    mean = AveragedModel(module, multi_avg_fn=average, use_buffers=True)
    history: list[tuple[float, float]] = []
    best, best_epoch, best_state = math.inf, 0, copy.deepcopy(module.state_dict())
    for epoch in range(1, settings.epochs + 1):
        seen = _epoch(module, mean, (x, y), optimiser, settings.batch, shuffle)
        unseen = float(functional.cross_entropy(_scores(mean.module, held_x), held_y))
        history.append((seen, unseen))
        if unseen < best:
            best, best_epoch, best_state = unseen, epoch, copy.deepcopy(mean.module.state_dict())
        if progress is not None:
            progress(restart, epoch, unseen)
        if epoch - best_epoch >= settings.patience:
            break
    module.load_state_dict(best_state)
    if first is not None and units is not None:
        units.fold(first)
    module.eval()
    return TrainingResult(module, len(history), best_epoch, best, tuple(history), restart)


def _epoch(
    module: nn.Module, mean: AveragedModel, rows: Rows, adam: torch.optim.Adam, batch: int, shuffle: torch.Generator
) -> float:
    """Train on every row once, in a new order, let `mean` follow, and return the average loss on the way."""
    x, y = rows
    module.train()
    order = torch.randperm(len(x), generator=shuffle).to(x.device)
    total = torch.zeros((), device=x.device)
    for inputs, labels in zip(torch.split(x[order], batch), torch.split(y[order], batch), strict=True):
        loss = functional.cross_entropy(module(inputs), labels)
        adam.zero_grad()
        torch.autograd.backward(loss)
        adam.step()
        mean.update_parameters(module)
        total += loss.detach() * len(inputs)
    return float(total) / len(x)


@dataclass(frozen=True)
class _Units:
    """Mean and scale (deviation) of each input, and how to move them in and out of a linear layer."""

    mean: Tensor
    scale: Tensor

    @staticmethod
    def of(x: Tensor) -> _Units:
        x = x.double()
        deviation, mean = torch.std_mean(x, dim=0, correction=0)
        scale = torch.maximum(deviation, MIN_DEVIATION * (x.amax(dim=0) - x.amin(dim=0)))
        return _Units(mean, torch.where(scale > 0, scale, 1.0))  # a constant column stays 0

    def standardise(self, x: Tensor) -> Tensor:
        return (x.double() - self.mean) / self.scale

    @torch.no_grad()
    def fold(self, layer: nn.Linear) -> None:
        """Let a layer that takes standardised inputs take plain ones: W (x - m) / s + b = (W / s) x + b - (W / s) m."""
        weight = layer.weight.double() / self.scale
        layer.bias.copy_(layer.bias.double() - weight @ self.mean)
        layer.weight.copy_(weight)

    @torch.no_grad()
    def unfold(self, layer: nn.Linear) -> None:
        layer.bias.copy_(layer.bias.double() + layer.weight.double() @ self.mean)
        layer.weight.copy_(layer.weight.double() * self.scale)


def _first_linear(module: nn.Module) -> nn.Linear | None:
    """Return the trainable linear layer that surely meets the input first, if there is one."""
    first: nn.Module = module
    while isinstance(first, nn.Sequential) and len(first):
        first = first[0]
    if not isinstance(first, nn.Linear) or first.bias is None:
        return None
    return first if first.weight.requires_grad and first.bias.requires_grad else None


def _seeded(stream: int, device: torch.device) -> torch.Generator:
    torch.default_generator.manual_seed(stream)
    if device.type == "cuda":
        torch.cuda.manual_seed(stream)
    return torch.Generator().manual_seed(stream)


def _decides(module: nn.Module, x: Tensor) -> bool:
    chosen = _scores(module, x).argmax(dim=1)
    return bool((chosen != chosen[0]).any())


def _constant(module: nn.Module, x: Tensor) -> bool:
    scores = _scores(module, x)
    spread = scores.amax(dim=0) - scores.amin(dim=0)
    return bool((spread <= 1e-6 * (1 + scores.abs().amax(dim=0))).all())


@torch.no_grad()
def _scores(model: nn.Module | Network, x: Tensor) -> Tensor:
    if isinstance(model, Network):
        return torch.cat([model.scores(part) for part in torch.split(x, EVALUATION_ROWS)])
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    with evaluating(model.modules()):
        return torch.cat([model(part.to(dtype)) for part in torch.split(x, EVALUATION_ROWS)])


def _check(x: Tensor, y: Tensor, part: str) -> None:
    if len(x) != len(y) or y.dim() != 1 or not len(y):
        raise ModelError(f"{part}: expected one label per row, got {tuple(x.shape)} and {tuple(y.shape)}")
    if y.dtype != torch.int64 or int(y.min()) < 0:
        raise ModelError(f"{part}: labels must be whole numbers 0, 1, … (int64), got {y.dtype}")
    if not torch.isfinite(x).all():
        bad = int((~torch.isfinite(x.flatten(1))).any(dim=1).sum())
        raise ModelError(f"{part}: {bad} of {len(x)} rows contain NaN or infinity; fill or drop them first")


def _check_classes(scores: Tensor, y: Tensor) -> None:
    if scores.dim() != 2 or scores.shape[1] < 2 or int(y.max()) >= scores.shape[1]:
        raise ModelError(
            f"the labels go up to {int(y.max())}, so the module must return scores of shape "
            f"(n, {max(2, int(y.max()) + 1)}) or wider, got (n, {', '.join(map(str, scores.shape[1:]))})"
        )
