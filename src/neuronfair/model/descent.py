"""The training loop itself: Adam, the mean of the weights, and when to stop; for one network or several as one."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from neuronfair.errors import ModelError
from neuronfair.model.layers import evaluating
from neuronfair.model.network import Network
from neuronfair.model.optimiser import Adam, WeightMean

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
Learn = Callable[[Tensor, Tensor], Tensor]
"""Takes rows and labels, leaves the gradients of a module's loss on them, and returns that of each network: (k,)."""
Note = Callable[[int, dict[int, float]], None]
"""Told the epoch, and the validation loss of each network that is still trained, by its number from 0."""


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
class Course:
    """How the training of one network went.

    `history` holds the training loss and the averaged weights' validation loss of every epoch.
    """

    best_epoch: int
    validation_loss: float
    history: tuple[tuple[float, float], ...]

    @property
    def epochs(self) -> int:
        """How many epochs there were."""
        return len(self.history)

    def of(self, module: M, restart: int) -> TrainingResult[M]:
        """Return this as the course of a module, which goes into eval mode."""
        return TrainingResult(self.best_epoch, self.validation_loss, self.history, module.eval(), restart)


@dataclass(frozen=True)
class TrainingResult(Course, Generic[M]):
    """A trained module with the averaged weights of its best epoch, in eval mode, and how the training went.

    `restart` is the number of its initialisation, from 1.
    """

    module: M
    restart: int


def descend(
    module: nn.Module,
    rows: Rows,
    held: Rows,
    settings: TrainingSettings,
    shuffles: Sequence[torch.Generator],
    *,
    chosen: Tensor | None = None,
    learn: Learn | None = None,
    progress: Note | None = None,
) -> list[Course]:
    """Run the training loop itself; the module ends with the mean weights of its best epoch.

    A module may hold k networks as one (`model/stacked.py`): all its tensors then begin with that dimension, it
    takes (k, n, d) and gives (k, n, classes), and `chosen`, (k, n), says which of the rows each of them learns from.
    Each has its own order, its own best epoch and its own end, as if it were alone; the others go on without it.
    `learn` may know the gradients without autograd. `progress` is called after every epoch.
    """
    weights = [p for p in module.parameters() if p.requires_grad]
    if not weights:
        raise ModelError("nothing to train: no parameter of the module requires a gradient")
    (x, y), (held_x, held_y) = rows, held
    x, held_x = x.to(weights[0].dtype), held_x.to(weights[0].dtype)
    check_classes(scores_of(module, held_x[:1]).flatten(0, -2), torch.cat([y, held_y]))
    n = len(x) if chosen is None else chosen.shape[1]
    decay = min(MAX_DECAY, PRIOR / n) if settings.weight_decay is None else settings.weight_decay
    optimiser = Adam(weights, settings.lr, decay)
    learn = learn or (lambda x, y: _learn(module, x, y))
    memory = AVERAGED_EPOCHS * math.ceil(n / settings.batch)
    mean = WeightMean(module, memory)
    history: list[list[tuple[float, float]]] = [[] for _ in shuffles]
    best, best_epoch = torch.full((len(shuffles),), math.inf), torch.zeros(len(shuffles), dtype=torch.int64)
    best_state = copy.deepcopy(module.state_dict())
    going = torch.arange(len(shuffles))  # the networks that are still trained
    for epoch in range(1, settings.epochs + 1):
        order = torch.stack([torch.randperm(n, generator=shuffles[i]) for i in going.tolist()]).to(x.device)
        order = order[0] if chosen is None else chosen[going.to(x.device)].gather(1, order)
        module.train()
        seen = _epoch(learn, mean, (x, y), optimiser, torch.split(order, settings.batch, dim=-1)) / n
        unseen = _losses(scores_of(mean.module, held_x), held_y).cpu().float()
        for i, learned, held_out in zip(going.tolist(), seen.tolist(), unseen.tolist(), strict=True):
            history[i].append((learned, held_out))
        better = unseen < best[going]
        best[going[better]], best_epoch[going[better]] = unseen[better], epoch
        if bool(better.any()):
            for name, tensor in mean.module.state_dict().items():
                if chosen is None:
                    best_state[name].copy_(tensor)
                else:
                    best_state[name][going[better]] = tensor[better]
        if progress is not None:
            progress(epoch, dict(zip(going.tolist(), unseen.tolist(), strict=True)))
        stays = epoch - best_epoch[going] < settings.patience
        if not bool(stays.any()):
            break
        if not bool(stays.all()):
            going = going[stays]
            _leave(module, mean, optimiser, stays.to(x.device))
    for name, weight in module.named_parameters():
        weight.data = best_state[name]  # as many networks again as there were
    module.load_state_dict(best_state)
    return [Course(int(e), float(b), tuple(h)) for e, b, h in zip(best_epoch, best, history, strict=True)]


def _leave(module: nn.Module, mean: WeightMean, optimiser: Adam, stays: Tensor) -> None:
    """Take the networks that are done out of a stack, and what the mean and Adam know of them."""
    for weight in (*module.parameters(), *mean.module.parameters()):
        weight.data, weight.grad = weight.data[stays], None
    for known in (optimiser.means, optimiser.squares):
        known[:] = [tensor[stays] for tensor in known]
    mean.list_tensors()


def _epoch(learn: Learn, mean: WeightMean, rows: Rows, optimiser: Adam, parts: Sequence[Tensor]) -> Tensor:
    """Train on every part of the rows in turn, let `mean` follow, and return the sum of the losses on the way: (k,)."""
    x, y = rows
    total = torch.zeros((), device=x.device)
    for part in parts:  # (b,), or (k, b) for k networks
        losses = learn(_lines(x, part), _lines(y, part))
        optimiser.step()
        mean.follow()
        total = total + losses * part.shape[-1]
    return total


def _learn(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of a module, (1,), and leave its gradients."""
    losses = _losses(module(x), y)
    module.zero_grad()
    torch.autograd.backward(losses.sum())
    return losses.detach()


def _lines(rows: Tensor, numbers: Tensor) -> Tensor:
    """Return `rows[numbers]`, in half the time."""
    return rows.index_select(0, numbers.flatten()).view(*numbers.shape, *rows.shape[1:])


def _losses(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy of each network, (k,), from scores (n, classes) of one or (k, n, classes)."""
    labels = labels.expand(scores.shape[:-1])
    each = functional.cross_entropy(scores.flatten(0, -2), labels.flatten(), reduction="none")
    return each.view(labels.shape).mean(-1).reshape(-1)


@torch.no_grad()
def scores_of(model: nn.Module | Network, x: Tensor) -> Tensor:
    """Return the scores of all rows, some thousands at a time, in eval mode."""
    if isinstance(model, Network):
        return torch.cat([model.scores(part) for part in torch.split(x, EVALUATION_ROWS)])
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    with evaluating(model.modules()):
        # Copies, since a module may write into its input.
        return torch.cat([model(part.to(dtype, copy=True)) for part in torch.split(x, EVALUATION_ROWS)], dim=-2)


def check_classes(scores: Tensor, y: Tensor) -> None:
    """Refuse labels that the module has no score for."""
    if scores.dim() != 2 or scores.shape[1] < 2 or int(y.max()) >= scores.shape[1]:
        raise ModelError(
            f"the labels go up to {int(y.max())}, so the module must return scores of shape "
            f"(n, {max(2, int(y.max()) + 1)}) or wider, got (n, {', '.join(map(str, scores.shape[1:]))})"
        )


def check_rows(x: Tensor, y: Tensor, part: str) -> None:
    """Refuse rows that cannot be learned from."""
    if not len(x):
        raise ModelError(f"{part}: no rows are left for it. Give a table with more rows")
    if len(x) != len(y) or y.dim() != 1:
        raise ModelError(f"{part}: expected one label per row, got {tuple(x.shape)} and {tuple(y.shape)}")
    if y.dtype != torch.int64 or int(y.min()) < 0:
        raise ModelError(f"{part}: labels must be whole numbers 0, 1, … (int64), got {y.dtype}")
    if not torch.isfinite(x).all():
        bad = int((~torch.isfinite(x.flatten(1))).any(dim=1).sum())
        raise ModelError(f"{part}: {bad} of {len(x)} rows contain NaN or infinity; fill or drop them first")


def initialised(build: Callable[[], M], numbers: Sequence[int], seed: int, device: torch.device) -> list[M]:
    """Build one module for each number of a restart; torch's own random state is left as it was."""
    modules = []
    with random_state(device):
        for number in numbers:
            # Every (seed, restart) has its own stream, so that more restarts do not change the earlier ones.
            seed_torch(stream(seed, number), device)
            modules.append(build().to(device))
    return modules


def seed_torch(start: int, device: torch.device) -> None:
    """Seed what draws on the CPU and on this device; `torch.manual_seed` would reset all other devices, too."""
    torch.default_generator.manual_seed(start)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(start)


def random_state(device: torch.device) -> AbstractContextManager[None]:
    """Restore torch's random state in the end."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def shuffles_of(seed: int, numbers: Sequence[int]) -> list[torch.Generator]:
    """Return what draws the order of the rows, for each number of a restart."""
    return [torch.Generator().manual_seed(stream(seed, number)) for number in numbers]


def stream(seed: int, restart: int) -> int:
    """Return what the random numbers of one initialisation start from."""
    return (seed * 1_000_003 + restart) % 2**63
