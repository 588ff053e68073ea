"""Training a classifier: several initialisations, of which the best is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from neuronfair.errors import ModelError
from neuronfair.model.descent import (
    Course,
    M,
    Note,
    Rows,
    TrainingResult,
    TrainingSettings,
    check_classes,
    check_rows,
    descend,
    initialised,
    random_state,
    scores_of,
    seed_torch,
    shuffles_of,
    stream,
)
from neuronfair.model.network import Network
from neuronfair.model.stacked import stackable, train_members
from neuronfair.model.units import Units, first_linear

# Initialisations that die (see `train`) are replaced by new ones, this many at most.
REPLACEMENTS = 5
Progress = Callable[[int, int, float], None]


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
    rows, held = (x, y.to(x.device)), (validation[0].to(x.device), validation[1].to(x.device))
    attempts = settings.restarts + REPLACEMENTS
    alive: list[TrainingResult[M]] = []
    useful = tried = 0
    while useful < settings.restarts and tried < attempts:
        numbers = range(tried + 1, min(attempts, tried + settings.restarts - useful) + 1)
        results = _restarts(build, numbers, rows, held, settings, seed, fresh, progress)
        alive += [r for r in results if math.isfinite(r.validation_loss) and not _constant(r.module, x)]
        useful, tried = sum(_decides(r.module, x) for r in alive), numbers[-1]
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
    scores = scores_of(model, x)
    check_classes(scores, y)
    return float((scores.argmax(dim=1) == y.to(scores.device)).double().mean())


def _restarts(
    build: Callable[[], M],
    numbers: Sequence[int],
    rows: Rows,
    held: Rows,
    settings: TrainingSettings,
    seed: int,
    fresh: bool,
    progress: Progress | None,
) -> list[TrainingResult[M]]:
    """Train an initialisation for each number: fully connected networks as one stack, others one after the other."""
    modules = initialised(build, numbers, seed, rows[0].device)
    plain = stackable(modules) if rows[0].dim() == 2 else None
    if plain is not None:
        note = _note(progress, numbers)
        courses = train_members(plain, rows, held, settings, shuffles_of(seed, numbers), fresh=fresh, progress=note)
    else:
        courses = [
            _alone(module, number, rows, held, settings, seed, fresh, _note(progress, [number]))
            for module, number in zip(modules, numbers, strict=True)
        ]
    return [c.of(module, number) for c, module, number in zip(courses, modules, numbers, strict=True)]


def _alone(
    module: nn.Module,
    number: int,
    rows: Rows,
    held: Rows,
    settings: TrainingSettings,
    seed: int,
    fresh: bool,
    progress: Note | None,
) -> Course:
    (x, y), (held_x, held_y) = rows, held
    first = first_linear(module)
    units = Units.of(x) if first is not None and x.dim() == 2 else None
    if first is not None and units is not None:
        units.enter(first, x, fresh=fresh)
        x, held_x = units.standardise(x), units.standardise(held_x)
    with random_state(x.device):
        seed_torch(stream(seed, number), x.device)  # for layers that draw, like dropout
        order = shuffles_of(seed, [number])
        (course,) = descend(module, (x, y), (held_x, held_y), settings, order, progress=progress)
    if first is not None and units is not None:
        units.fold(first)
    return course


def _note(progress: Progress | None, numbers: Sequence[int]) -> Note | None:
    """Return what tells `progress` about every network with its number."""
    if progress is None:
        return None

    def note(epoch: int, losses: dict[int, float]) -> None:
        for i, loss in losses.items():
            progress(numbers[i], epoch, loss)

    return note


def _decides(module: nn.Module, x: Tensor) -> bool:
    chosen = scores_of(module, x).argmax(dim=1)
    return bool((chosen != chosen[0]).any())


def _constant(module: nn.Module, x: Tensor) -> bool:
    scores = scores_of(module, x)
    spread = scores.amax(dim=0) - scores.amin(dim=0)
    return bool((spread <= 1e-6 * (1 + scores.abs().amax(dim=0))).all())
