"""The training loop: Adam, averaged weights, standardised inputs and early stopping."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam
from torch.optim.swa_utils import get_ema_multi_avg_fn

from neuronfair.errors import ModelError
from neuronfair.model.network import Network, eval_mode


class WeightMean:
    """A copy of a module with an exponential moving average of its weights.

    It does what torch's `AveragedModel` does; that one lists all tensors again in every step of a small network.
    """

    def __init__(self, module: nn.Module, memory: float) -> None:
        self.source, self.module = module, copy.deepcopy(module)
        self.blend = get_ema_multi_avg_fn(1 - 1 / memory)  # type: ignore[no-untyped-call]
        self.started, self.buffered = False, any(True for _ in module.buffers())
        self.list_tensors()

    def list_tensors(self) -> None:
        """Pair the tensors of both modules: once, and again where the module has replaced its tensors."""
        pairs = list(zip(_list_tensors(self.module), _list_tensors(self.source), strict=True))
        self.averaged, self.current = zip(*(pair for pair in pairs if pair[0].is_floating_point()), strict=True)
        self.counts = [pair for pair in pairs if not pair[0].is_floating_point()]

    def update(self) -> None:
        """Update the mean with the current weights of the module; the first time, copy them."""
        if self.buffered:  # a forward pass may replace a buffer
            self.list_tensors()
        copied_pairs = self.counts if self.started else [*self.counts, *zip(self.averaged, self.current, strict=True)]
        for mean, weight in copied_pairs:
            mean.copy_(weight)
        if self.started:
            self.blend(self.averaged, self.current, None)
        self.started = True


def _list_tensors(module: nn.Module) -> list[Tensor]:
    return [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]


# Divided by its small deviation, a rare flag would outweigh all other inputs, with weights that few rows correct. So a
# deviation counts as at least this share of the range, and the first layer starts small. Chosen by validation loss.
MIN_DEVIATION = 0.2
FIRST_LAYER_SCALE = 0.1


@dataclass(frozen=True)
class InputScaling:
    """Mean and scale (deviation) of each input, which can be folded into a linear layer."""

    mean: Tensor
    scale: Tensor

    @staticmethod
    def of(x: Tensor) -> InputScaling:
        """Return the mean and scale of these inputs."""
        x = x.double()
        deviation, mean = torch.std_mean(x, dim=0, correction=0)
        scale = torch.maximum(deviation, MIN_DEVIATION * (x.amax(dim=0) - x.amin(dim=0)))
        return InputScaling(mean, torch.where(scale > 0, scale, 1.0))  # a constant column stays 0

    def standardise(self, x: Tensor) -> Tensor:
        """Return the scaled inputs, in float64."""
        return (x.double() - self.mean) / self.scale

    def prepare(self, layer: nn.Linear, x: Tensor, *, fresh: bool) -> None:
        """Prepare a first layer for standardised inputs: a new one starts small, a trained one computes the same."""
        if x.shape[1] != layer.in_features:
            raise ModelError(f"the module expects rows of width {layer.in_features}, got {x.shape[1]}")
        if fresh:
            layer.weight.data *= FIRST_LAYER_SCALE
        else:
            self.unfold(layer)

    @torch.no_grad()
    def fold(self, layer: nn.Linear) -> None:
        """Make a layer of scaled inputs one of plain inputs: W (x - m) / s + b = (W / s) x + b - (W / s) m."""
        weight = layer.weight.double() / self.scale
        layer.bias.copy_(layer.bias.double() - weight @ self.mean)
        layer.weight.copy_(weight)

    @torch.no_grad()
    def unfold(self, layer: nn.Linear) -> None:
        """Make a layer of plain inputs one of scaled inputs: the inverse of `fold`."""
        layer.bias.copy_(layer.bias.double() + layer.weight.double() @ self.mean)
        layer.weight.copy_(layer.weight.double() * self.scale)


def find_first_linear(module: nn.Module) -> nn.Linear | None:
    """Return the trainable linear layer that is certain to read the input first, if there is one."""
    first: nn.Module = module
    while type(first) is nn.Sequential and len(first):  # a subclass may have a forward() of its own
        first = first[0]
    # Weights that are computed from others (weight norm, pruning) cannot be set.
    if type(first) is not nn.Linear or first.bias is None or first._forward_pre_hooks:
        return None
    return first if first.weight.requires_grad and first.bias.requires_grad else None


# A fixed prior on the weights has less influence the more rows there are: the decay is PRIOR / rows, but at most
# MAX_DECAY. Chosen by validation loss: 0.05 was best for 420 rows, 0.002 for 23,000 and 32,000.
DECAY_PRIOR = 50.0
MAX_DECAY = 0.05
# The averaged weights cover about this many epochs.
AVERAGED_EPOCHS = 2.0
# Rows per forward pass where no gradient is needed.
EVALUATION_ROWS = 8192

M = TypeVar("M", bound=nn.Module)
Rows = tuple[Tensor, Tensor]
Learn = Callable[[Tensor, Tensor], Tensor]
"""Takes rows and labels, sets the gradients of a module's loss, and returns the loss of each network: (k,)."""
EpochCallback = Callable[[int, dict[int, float]], None]
"""Called with the epoch, and the validation loss of each network that is still trained, by its number from 0."""


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
class TrainingTask:
    """The training rows, those held out for validation, and the settings."""

    rows: Rows
    validation: Rows
    settings: TrainingSettings
    seed: int = 0
    fresh: bool = True  # whether the weights are new; trained ones continue from where they are

    def on(self, device: torch.device) -> TrainingTask:
        """Return the same task with everything but the training inputs moved to a device."""
        (x, y), (validation_x, validation_y) = self.rows, self.validation
        return replace(self, rows=(x, y.to(device)), validation=(validation_x.to(device), validation_y.to(device)))


@dataclass(frozen=True)
class TrainingCourse:
    """The course of the training of one network.

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
        """Return the result of training a module, which is put into eval mode."""
        return TrainingResult(self.best_epoch, self.validation_loss, self.history, module.eval(), restart)


@dataclass(frozen=True)
class TrainingResult(TrainingCourse, Generic[M]):
    """A trained module with the averaged weights of its best epoch, in eval mode, and the course of its training.

    `restart` is the number of its initialisation, from 1.
    """

    module: M
    restart: int


def run_epochs(
    module: nn.Module,
    task: TrainingTask,
    shuffles: Sequence[torch.Generator],
    *,
    row_choice: Tensor | None = None,
    learn: Learn | None = None,
    progress: EpochCallback | None = None,
) -> list[TrainingCourse]:
    """Run the training loop; the module ends with the averaged weights of its best epoch.

    A module may hold k networks as one (`train.Stack`): all its tensors then begin with that dimension, it
    takes (k, n, d) and gives (k, n, classes), and `row_choice`, (k, n), says which rows each of them learns from.
    Each has its own order, its own best epoch and its own end, as if it were trained alone.
    `learn` may compute the gradients without autograd. `progress` is called after every epoch.
    """
    weights = [p for p in module.parameters() if p.requires_grad]
    if not weights:
        raise ModelError("nothing to train: no parameter of the module requires a gradient")
    (x, y), (validation_x, validation_y), settings = task.rows, task.validation, task.settings
    x, validation_x = x.to(weights[0].dtype), validation_x.to(weights[0].dtype)
    check_classes(compute_scores(module, validation_x[:1]).flatten(0, -2), torch.cat([y, validation_y]))
    n = len(x) if row_choice is None else row_choice.shape[1]
    decay = min(MAX_DECAY, DECAY_PRIOR / n) if settings.weight_decay is None else settings.weight_decay
    optimiser = Adam(weights, lr=settings.lr, weight_decay=decay, fused=True)
    learn = learn or (lambda x, y: _learn_from_batch(module, x, y))
    memory = AVERAGED_EPOCHS * math.ceil(n / settings.batch)
    mean = WeightMean(module, memory)
    history: list[list[tuple[float, float]]] = [[] for _ in shuffles]
    best, best_epoch = torch.full((len(shuffles),), math.inf), torch.zeros(len(shuffles), dtype=torch.int64)
    best_state = copy.deepcopy(module.state_dict())
    remaining = torch.arange(len(shuffles))  # the networks that are still trained
    for epoch in range(1, settings.epochs + 1):
        order = torch.stack([torch.randperm(n, generator=shuffles[i]) for i in remaining.tolist()]).to(x.device)
        order = order[0] if row_choice is None else row_choice[remaining.to(x.device)].gather(1, order)
        module.train()
        training_losses = _run_epoch(learn, mean, (x, y), optimiser, torch.split(order, settings.batch, dim=-1)) / n
        validation_losses = _compute_losses(compute_scores(mean.module, validation_x), validation_y).cpu().float()
        losses = zip(training_losses.tolist(), validation_losses.tolist(), strict=True)
        for i, pair in zip(remaining.tolist(), losses, strict=True):
            history[i].append(pair)
        better = validation_losses < best[remaining]
        best[remaining[better]], best_epoch[remaining[better]] = validation_losses[better], epoch
        if bool(better.any()):
            for name, tensor in mean.module.state_dict().items():
                if row_choice is None:
                    best_state[name].copy_(tensor)
                else:
                    best_state[name][remaining[better]] = tensor[better]
        if progress is not None:
            progress(epoch, dict(zip(remaining.tolist(), validation_losses.tolist(), strict=True)))
        improving = epoch - best_epoch[remaining] < settings.patience
        if not bool(improving.any()):
            break
        if not bool(improving.all()):
            remaining = remaining[improving]
            _drop_finished(module, mean, optimiser, improving.to(x.device))
    for name, weight in module.named_parameters():
        weight.data = best_state[name]  # of all networks
    module.load_state_dict(best_state)
    return [TrainingCourse(int(e), float(b), tuple(h)) for e, b, h in zip(best_epoch, best, history, strict=True)]


def _drop_finished(module: nn.Module, mean: WeightMean, optimiser: Adam, improving: Tensor) -> None:
    """Remove the networks that have stopped from a stack, its averaged weights and the state of Adam."""
    for weight in (*module.parameters(), *mean.module.parameters()):
        weight.data, weight.grad = weight.data[improving], None
    for state in optimiser.state.values():
        state |= {name: state[name][improving] for name in ("exp_avg", "exp_avg_sq")}
    mean.list_tensors()


def _run_epoch(learn: Learn, mean: WeightMean, rows: Rows, optimiser: Adam, parts: Sequence[Tensor]) -> Tensor:
    """Train on every batch, update `mean`, and return the sum of the losses: (k,)."""
    x, y = rows
    total = torch.zeros((), device=x.device)
    for part in parts:  # (b,), or (k, b) for k networks
        losses = learn(_take_lines(x, part), _take_lines(y, part))
        optimiser.step()
        mean.update()
        total = total + losses * part.shape[-1]
    return total


def _learn_from_batch(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of a module, (1,), and set its gradients."""
    losses = _compute_losses(module(x), y)
    module.zero_grad()
    torch.autograd.backward(losses.sum())
    return losses.detach()


def _take_lines(rows: Tensor, numbers: Tensor) -> Tensor:
    """Return `rows[numbers]`, in half the time."""
    return rows.index_select(0, numbers.flatten()).view(*numbers.shape, *rows.shape[1:])


def _compute_losses(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy of each network, (k,), from scores (n, classes) of one or (k, n, classes)."""
    labels = labels.expand(scores.shape[:-1])
    row_losses = functional.cross_entropy(scores.flatten(0, -2), labels.flatten(), reduction="none")
    return row_losses.view(labels.shape).mean(-1).reshape(-1)


@torch.no_grad()
def compute_scores(model: nn.Module | Network, x: Tensor) -> Tensor:
    """Return the scores of all rows, some thousands at a time, in eval mode."""
    if isinstance(model, Network):
        return torch.cat([model.scores(part) for part in torch.split(x, EVALUATION_ROWS)])
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    with eval_mode(model.modules()):
        # Copies, since a module may write into its input.
        return torch.cat([model(part.to(dtype, copy=True)) for part in torch.split(x, EVALUATION_ROWS)], dim=-2)


def check_classes(scores: Tensor, y: Tensor) -> None:
    """Refuse labels without a score of the module."""
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
        invalid = int((~torch.isfinite(x.flatten(1))).any(dim=1).sum())
        raise ModelError(f"{part}: {invalid} of {len(x)} rows contain NaN or infinity; fill or drop them first")


def build_modules(build: Callable[[], M], numbers: Sequence[int], seed: int, device: torch.device) -> list[M]:
    """Build one module for each restart; torch's own random state does not change."""
    modules = []
    for number in numbers:
        # Every (seed, restart) has its own stream, so that more restarts do not change the earlier ones.
        with seed_torch(derive_seed(seed, number), device):
            modules.append(build().to(device))
    return modules


@contextmanager
def seed_torch(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch on the CPU and this device for a while; `torch.manual_seed` would reset all other devices, too."""
    cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if cuda else []):
        torch.default_generator.manual_seed(seed)
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def make_shuffles(seed: int, numbers: Sequence[int]) -> list[torch.Generator]:
    """Return the generator of the order of rows for each restart."""
    return [torch.Generator().manual_seed(derive_seed(seed, number)) for number in numbers]


def derive_seed(seed: int, restart: int) -> int:
    """Return the seed of one restart."""
    return (seed * 1_000_003 + restart) % 2**63
