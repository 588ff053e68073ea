"""Training a classifier on a table: the best of several initialisations, and a card that describes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor, nn

from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import DataError, ModelError
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.network import Network
from neuronfair.model.stacked import train_modules
from neuronfair.model.training_loop import (
    M,
    Note,
    Rows,
    TrainingResult,
    TrainingSettings,
    TrainingTask,
    check_classes,
    check_rows,
    initialised,
    scores_of,
)
from neuronfair.model.weights import HFCN, LFCN, Card, fingerprint, fully_connected, load

# Initialisations that die (see `train`) are replaced by new ones, this many at most.
REPLACEMENTS = 5
Progress = Callable[[int, int, float], None]


def train_module(
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
    task = TrainingTask((x, y), validation, settings, seed, fresh).on(x.device)
    attempts = settings.restarts + REPLACEMENTS
    alive: list[TrainingResult[M]] = []
    useful = tried = 0
    while useful < settings.restarts and tried < attempts:
        numbers = range(tried + 1, min(attempts, tried + settings.restarts - useful) + 1)
        modules = initialised(build, numbers, seed, x.device)
        results = train_modules(modules, numbers, task, progress=_note(progress, numbers))
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


MIN_ROWS = 10  # so that 10% of them are one
WIDE = 100  # inputs from which on the paper uses its larger network


def train(
    data: Dataset,
    *,
    hidden: Sequence[int] | None = None,
    settings: TrainingSettings | None = None,
    seed: int = 0,
    progress: Callable[[int, int, float], None] | None = None,
) -> tuple[nn.Sequential, Card]:
    """Train a fully connected classifier on 70% of a table and return it with its card.

    `hidden` defaults to the paper's choice: LFCN for small tables, HFCN for wide ones. The same seed gives the same
    split and the same weights.
    """
    domain = data.domain
    encoding = TableEncoding.of(domain)
    if domain.target is not None and not domain.target.classes:
        raise DataError(f"{data.name}: the target is a quantity; only classifiers are trained here. Name a --model")
    if domain.target is None or not data.labelled:
        raise DataError(f"{data.name}: the rows have no labels, so there is nothing to learn. Give the target column")
    if len(data) < MIN_ROWS:
        raise DataError(
            f"{data.name}: the table has {len(data)} rows; at least {MIN_ROWS} are needed to train, validate and test"
        )
    hidden = tuple(hidden or (HFCN if encoding.width >= WIDE else LFCN))
    classes = domain.target.classes
    parts = data.split(seed)
    encoded = {name: (encoding.encode(part.rows), part.labels) for name, part in parts._asdict().items()}
    result = train_module(
        lambda: fully_connected(encoding.width, hidden, len(classes)),
        *encoded["train"],
        validation=encoded["validation"],
        settings=settings or TrainingSettings(),
        seed=seed,
        progress=progress,
    )
    module = result.module
    card = Card(
        domain=domain.name,
        encoding=domain.encoding,
        domain_fingerprint=domain.input_fingerprint,
        inputs=encoding.width,
        hidden=hidden,
        outputs=len(classes),
        classes=classes,
        accuracy={name: accuracy(module, x, y) for name, (x, y) in encoded.items()},
        seed=seed,
        fingerprint=fingerprint(module),
    )
    return module, card


def read_model(path: Path, domain: TableDomain, fewer: str = "") -> nn.Sequential:
    """Read weights and make sure that they were made for rows of this domain in this encoding.

    `fewer` is what an error says of how many inputs there would be otherwise.
    """
    module, card = load(path)
    first = next(part for part in module.modules() if isinstance(part, nn.Linear))
    width = TableEncoding.of(domain).width
    if first.in_features != width:
        made_for = f" (it was trained on {card.domain}, encoding '{card.encoding}')" if card else ""
        raise ModelError(
            f"{path}: expects {first.in_features} inputs{made_for}, but {domain.name} in encoding '{domain.encoding}' "
            f"has {width}{fewer}. Choose another --encoding, --domain or --model"
        )
    if card is not None and card.domain_fingerprint not in (None, domain.input_fingerprint):
        raise ModelError(
            f"{path}: was trained on {card.domain}, encoding '{card.encoding}', with other attributes, values, scaling "
            f"or classes than {domain.name}, encoding '{domain.encoding}'. Choose the data or the model to match"
        )
    return module
