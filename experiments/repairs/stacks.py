"""Several networks that learn from rows of their own, trained as one stack."""

from __future__ import annotations

from collections.abc import Callable

from neuronfair.model.train import list_linear_layers, train_modules
from neuronfair.model.training_loop import (
    EpochCallback,
    Rows,
    TrainingResult,
    TrainingSettings,
    TrainingTask,
    build_modules,
    check_rows,
)

from torch import Tensor, nn


def train_stack(
    build: Callable[[], nn.Sequential],
    rows: Rows,
    *,
    chosen: Tensor,
    validation: Rows,
    settings: TrainingSettings | None = None,
    seed: int = 0,
    fresh: bool = True,
    progress: EpochCallback | None = None,
) -> list[TrainingResult[nn.Sequential]]:
    """Train k fully connected networks at once; line i of `chosen`, (k, n), holds the rows that network i learns from.

    Network i starts, shuffles and stops as restart i + 1 of `train_module` with the same seed does; each is a result of
    its own, and none is replaced. The inputs are scaled by the statistics of all rows. With `fresh=False`, `build()`
    returns trained weights, and training continues from exactly that function. `progress` is called after every epoch
    with the validation losses of the networks that are still trained.
    """
    check_rows(*rows, "training")
    check_rows(*validation, "validation")
    device, numbers = rows[0].device, range(1, len(chosen) + 1)
    members = build_modules(build, numbers, seed, device)
    for member in members:
        list_linear_layers(member)  # refuses others
    task = TrainingTask(rows, validation, settings or TrainingSettings(), seed, fresh)
    return train_modules(members, numbers, task.on(device), row_choice=chosen.to(device), progress=progress)
