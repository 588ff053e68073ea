"""How thorough an audit of a detector of pictures is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

STEPS = 40  # max_iter_g of the paper


@dataclass(frozen=True)
class PictureSettings:
    """How a detector is trained, searched and retrained; the defaults suit minutes on two cores for 500 faces.

    `walkers` go together, which bounds the memory; the batches do not change what is found. After so many `seconds` a
    search begins no further batch, so that what it finds depends on the machine.
    """

    body: str = "small"
    weights: Path | None = None  # of a pretrained body, to start training from
    own_body: bool = False  # train a body for the attribute classifier, too
    epochs: int = 12
    repair_epochs: int | None = None  # of the retraining; 0: there is none; None: a third of `epochs`
    steps: int = STEPS
    seeds: int | None = None  # pictures that each search starts from; None: all
    control_seeds: int = 200  # that each control starts from: enough to tell 5 % from 15 %
    walkers: int | None = None  # None: 128 on a CPU, 512 elsewhere
    seconds: float | None = None
    seed: int = 0

    @property
    def retraining(self) -> int:
        """The epochs of the retraining."""
        return max(1, self.epochs // 3) if self.repair_epochs is None else self.repair_epochs

    @property
    def of_searches(self) -> dict[str, object]:
        """Everything that findings depend on, for a manifest."""
        rest = asdict(self) | {"weights": self.weights and str(self.weights)}
        return {name: value for name, value in rest.items() if name not in ("repair_epochs", "walkers")}
