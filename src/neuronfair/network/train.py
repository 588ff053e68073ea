"""The one training loop: classifiers, attribute heads and retraining all go through `train`."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from neuronfair.errors import ModelError
from neuronfair.network.adapter import Network
from neuronfair.network.layers import evaluating
from neuronfair.network.units import Units, first_linear

# Initialisations that die (see `train`) are replaced by new ones, this many at most.
REPLACEMENTS = 5
# A fixed prior on the weights weighs less, the more rows speak: the decay is PRIOR / rows, but never more than
# MAX_DECAY. Chosen by validation loss: 0.05 was best for 420 rows, 0.002 for 23,000 and 32,000.
PRIOR = 50.0
MAX_DECAY = 0.05
# What is validated and kept is the mean of the weights over about this many epochs, the last ones weighing most.
AVERAGED_EPOCHS = 2.0
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
    check_rows(x, y, "training")
    check_rows(*validation, "validation")
    if int(y.min()) == int(y.max()):
        raise ModelError(f"every training label is {int(y[0])}: there is nothing to tell apart")
    held = (validation[0].to(x.device), validation[1].to(x.device))
    attempts = settings.restarts + REPLACEMENTS
    alive: list[TrainingResult[M]] = []
    useful = 0
    for restart in range(1, attempts + 1):
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            # Every (seed, restart) has its own stream, so that more restarts never change the earlier ones.
            shuffle = seeded(seed, restart, x.device)
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
    check_rows(x, y, "accuracy")
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
    (x, y), (held_x, held_y) = rows, held
    first = first_linear(module)
    units = Units.of(x) if first is not None and x.dim() == 2 else None
    if first is not None and units is not None:
        units.enter(first, x, fresh=fresh)
        x, held_x = units.standardise(x), units.standardise(held_x)
    note = None if progress is None else (lambda epoch, losses: progress(restart, epoch, losses[0]))
    (course,) = descend(module, (x, y), (held_x, held_y), settings, [shuffle], progress=note)
    if first is not None and units is not None:
        units.fold(first)
    module.eval()
    return TrainingResult(module, *course.figures, restart)


@dataclass(frozen=True)
class Course:
    """How the training of one network went."""

    best_epoch: int
    validation_loss: float
    history: tuple[tuple[float, float], ...]

    @property
    def figures(self) -> tuple[int, int, float, tuple[tuple[float, float], ...]]:
        """What a `TrainingResult` says of it, in its order."""
        return len(self.history), self.best_epoch, self.validation_loss, self.history


def descend(
    module: nn.Module,
    rows: Rows,
    held: Rows,
    settings: TrainingSettings,
    shuffles: Sequence[torch.Generator],
    *,
    chosen: Tensor | None = None,
    progress: Callable[[int, list[float]], None] | None = None,
) -> list[Course]:
    """Run the training loop itself; the module ends with the mean weights of its best epoch.

    A module may hold k networks as one (`network/stacked.py`): all its tensors then begin with that dimension, it
    takes (k, n, d) and gives (k, n, classes), and `chosen`, (k, n), says which of the rows each of them learns from.
    Each has its own order, its own best epoch and its own end, as if it were alone.
    """
    weights = [p for p in module.parameters() if p.requires_grad]
    if not weights:
        raise ModelError("nothing to train: no parameter of the module requires a gradient")
    (x, y), (held_x, held_y) = rows, held
    x, held_x = x.to(weights[0].dtype), held_x.to(weights[0].dtype)
    _check_classes(_scores(module, held_x[:1]).flatten(0, -2), torch.cat([y, held_y]))
    n = len(x) if chosen is None else chosen.shape[1]
    decay = min(MAX_DECAY, PRIOR / n) if settings.weight_decay is None else settings.weight_decay
    optimiser = torch.optim.Adam(weights, lr=settings.lr, weight_decay=decay, fused=True)
    memory = AVERAGED_EPOCHS * math.ceil(n / settings.batch)
    average = get_ema_multi_avg_fn(1 - 1 / memory)  # type: ignore[no-untyped-call]
    mean = AveragedModel(module, multi_avg_fn=average, use_buffers=True)
    history: list[list[tuple[float, float]]] = [[] for _ in shuffles]
    best, best_epoch = torch.full((len(shuffles),), math.inf), torch.zeros(len(shuffles), dtype=torch.int64)
    best_state = copy.deepcopy(module.state_dict())
    for epoch in range(1, settings.epochs + 1):
        order = torch.stack([torch.randperm(n, generator=shuffle) for shuffle in shuffles]).to(x.device)
        order = order[0] if chosen is None else chosen.gather(1, order)
        seen = _epoch(module, mean, (x, y), optimiser, torch.split(order, settings.batch, dim=-1))
        unseen = _losses(_scores(mean.module, held_x), held_y).cpu()
        going = epoch - 1 - best_epoch < settings.patience
        for i in going.nonzero()[:, 0].tolist():
            history[i].append((float(seen[i]) / n, float(unseen[i])))
        better = going & (unseen < best)
        best, best_epoch = torch.where(better, unseen, best), best_epoch.masked_fill(better, epoch)
        _keep(best_state, mean.module.state_dict(), better.to(x.device))
        if progress is not None:
            progress(epoch, unseen.tolist())
        if bool((epoch - best_epoch >= settings.patience).all()):
            break
    module.load_state_dict(best_state)
    return [Course(int(e), float(b), tuple(h)) for e, b, h in zip(best_epoch, best, history, strict=True)]


def _epoch(
    module: nn.Module, mean: AveragedModel, rows: Rows, adam: torch.optim.Adam, parts: Sequence[Tensor]
) -> Tensor:
    """Train on every part of the rows in turn, let `mean` follow, and return the sum of the losses on the way: (k,)."""
    x, y = rows
    module.train()
    total = torch.zeros((), device=x.device)
    for part in parts:  # (b,), or (k, b) for k networks
        losses = _losses(module(x[part]), y[part])
        adam.zero_grad()
        torch.autograd.backward(losses.sum())
        adam.step()
        mean.update_parameters(module)
        total = total + losses.detach() * part.shape[-1]
    return total


def _losses(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy of each network, (k,), from scores (n, classes) of one or (k, n, classes)."""
    labels = labels.expand(scores.shape[:-1])
    each = functional.cross_entropy(scores.flatten(0, -2), labels.flatten(), reduction="none")
    return each.view(labels.shape).mean(-1).reshape(-1)


def _keep(best: dict[str, Tensor], state: dict[str, Tensor], better: Tensor) -> None:
    """Copy into `best` the weights of those networks that are better now."""
    if not bool(better.any()):
        return
    for name, tensor in state.items():
        mine = better.view(-1, *[1] * (tensor.dim() - 1)) if len(better) > 1 else better[0]
        best[name] = torch.where(mine, tensor, best[name])


def seeded(seed: int, restart: int, device: torch.device) -> torch.Generator:
    """Seed torch for one initialisation, and return the generator that shuffles its rows."""
    stream = (seed * 1_000_003 + restart) % 2**63
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
        return torch.cat([model(part.to(dtype)) for part in torch.split(x, EVALUATION_ROWS)], dim=-2)


def check_rows(x: Tensor, y: Tensor, part: str) -> None:
    """Refuse rows that cannot be learned from."""
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
