"""A search for less discriminatory models, judged on records that played no part in it; here are its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from neuronfair.errors import NeuronFairError
from neuronfair.parameters import BUDGET, EXPERT, INPUT, parameter

Quality = Literal["accuracy", "balanced_accuracy", "roc_auc", "log_loss"]
Measure = Literal[
    "disparate_impact", "selection_gap", "error_rates", "flip_rate", "plausible_flip_rate", "counterfactual_excess"
]
Family = Literal[
    "hyperparameters", "leave-out", "coarsen", "counterfactuals", "findings", "reweight", "monotone", "neurons",
    "threshold",
]  # fmt: skip
FAMILIES: tuple[Family, ...] = get_args(Family)


@dataclass(frozen=True)
class AlternativesSettings:
    """How long and for what a search for alternatives looks.

    `quality` is a name, or `package.module:function` of labels and decisions, where more is better. Without a `measure`
    it is the disparate-impact ratio where the favourable outcome is known, and else the gap of the selection rates.
    """

    budget: int = parameter(60, "Candidates to fit, next to as many controls.", panel=BUDGET, low=1)
    seconds: float | None = parameter(None, "Time limit of the search in seconds.", panel=BUDGET, low=0)
    quality: str = parameter(
        "accuracy",
        f"Quality to keep: {', '.join(get_args(Quality))} or package.module:function.",
        panel=INPUT,
        metavar="QUALITY",
    )
    measure: Measure | None = parameter(
        None,
        f"Discrimination to reduce: {', '.join(get_args(Measure))}. Default: by the favourable outcome.",
        panel=INPUT,
        metavar="MEASURE",
    )
    tolerance: float = parameter(0.005, "Quality that may be lost.", panel=INPUT, low=0, high=1)
    families: tuple[str, ...] = parameter((), f"Kinds of candidates: {', '.join(FAMILIES)}. Default: all.")
    allow_disparate_treatment: bool = parameter(False, "Let candidates read the sensitive attribute.")
    shown: int = parameter(3, "Candidates that are measured on the test part.", low=1, high=20)
    confidence: float = parameter(0.95, "Confidence of all intervals together.", panel=EXPERT, low=0.5, high=0.999)
    workers: int = parameter(1, "Processes that fit candidates.", panel=BUDGET, low=1)
    seed: int = parameter(0, "Seed of all random numbers.")

    def __post_init__(self) -> None:
        if self.quality not in get_args(Quality) and ":" not in self.quality:
            names = ", ".join(get_args(Quality))
            raise NeuronFairError(f"quality '{self.quality}': expected {names} or package.module:function")
        if self.measure is not None and self.measure not in get_args(Measure):
            raise NeuronFairError(f"measure '{self.measure}': expected {', '.join(get_args(Measure))}")
        for family in self.families:
            if family not in FAMILIES:
                raise NeuronFairError(f"families '{family}': expected some of {', '.join(FAMILIES)}")
        if not self.tolerance >= 0:
            raise NeuronFairError(f"tolerance must be 0 or more, got {self.tolerance}")

    def tries(self, family: Family) -> bool:
        """Return whether candidates of a kind are tried."""
        return not self.families or family in self.families
