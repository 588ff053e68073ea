"""The configuration of a search: command-line options and Python arguments alike. Without torch, for help texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from neuronfair.errors import NeuronFairError
from neuronfair.parameters import BUDGET, INPUT, parameter
from neuronfair.searches.plugins import registered

if TYPE_CHECKING:
    from neuronfair.model.decision import Decision, Scale

TWINS = ("flip", "counterpart")
_OTHERS = "".join(f", or {point.name} of another package" for point in registered())


def _most_likely() -> Decision:
    from neuronfair.model.decision import Decision

    return Decision()


@dataclass(frozen=True)
class SearchConfig:
    """The configuration of a search; the defaults are the paper's budget."""

    method: str = parameter(
        "frontier",
        "Search method: frontier, neuronfair-plus (a redesign), neuronfair (the paper's with four changes), "
        "neuronfair-printed (the paper's to the letter), eidig5, eidiginf, adf, frontier-free, symbgen, expga, "
        "aequitas, aequitas-semi, aequitas-random or uniform"
        f"{_OTHERS}.",
        panel=INPUT,
    )
    seeds: int = parameter(1000, "Rows to start from.", "--starts", panel=BUDGET, least=0)
    # Of the local phase, not counting the evaluation of the row that a chain starts from.
    steps: int = parameter(1000, "Steps of the local phase.", panel=BUDGET, least=0)
    global_steps: int = 40  # 0: the local phase starts from the seeds, which do not count
    instances: int | None = None  # distinct records evaluated, at most, in each phase
    seconds: float | None = parameter(None, "Time limit in seconds, of both phases.", panel=BUDGET, least=0)
    seed: int = parameter(0, "Seed of all random numbers.")
    decision: Decision = field(default_factory=_most_likely)
    controls: bool = parameter(True, "Skip the controls: random records and random directions.")
    plausible: float = parameter(0.0, "Minimum likelihood percentile of generated records.")
    twins: Literal["flip", "counterpart"] = parameter(
        "flip", "Compare with the same record in another group, or with its counterfactual twin.", panel=INPUT
    )
    scale: Scale | None = None  # of the model's scores, for reports

    def __post_init__(self) -> None:
        from neuronfair.searches.methods import check_method, current_name

        for name in ("seeds", "steps", "global_steps", "instances", "seconds"):
            if not (getattr(self, name) or 0) >= 0:  # nor NaN
                raise NeuronFairError(f"{name.replace('_', ' ')} must be 0 or more, got {getattr(self, name)}")
        if not 0 <= self.plausible < 1:
            raise NeuronFairError(
                f"plausible must be 0 or more and below 1, got {self.plausible}: the minimum likelihood "
                "percentile of the records that are searched, as a share"
            )
        if self.twins not in TWINS:
            raise NeuronFairError(f"twins must be {' or '.join(TWINS)}, got {self.twins!r}")
        object.__setattr__(self, "method", current_name(self.method))
        check_method(self.method)
