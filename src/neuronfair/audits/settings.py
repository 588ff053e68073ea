"""How thorough an audit is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from neuronfair.domain.twins import TwinKind
from neuronfair.measure.counterfactual_effect import Thoroughness
from neuronfair.model.network import Network
from neuronfair.model.open import Opened
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.methods import check_method

WHITE, BLACK = ("frontier", "neuronfair"), ("frontier-free", "aequitas")
LINEAR = ("frontier", "aequitas")  # it has no neurons to follow
FAMILY = 8  # people of one family that the budgets are meant for; larger families get fewer steps
BESIDE = 4  # counterparts of a person where the flip test leads
LEAST = {"seeds": 20, "steps": 10, "samples": 2_000}


@dataclass(frozen=True)
class AuditSettings:
    """How thorough an audit is; the defaults suit a minute on two cores.

    `methods` are those of `neuronfair search`; None takes two that can search the model. `seconds` limits each search,
    and makes its result depend on the machine. A black box, which is slow, gets a part of the budget; so does a choice
    of sensitive attributes with many values. `prove` is for how many seconds proofs are tried, for all choices
    of sensitive attributes together; 0: for none. `plausible` keeps the searches among people of at least that
    plausibility: the share of the people of the table who are less usual. `twins` says whom people are compared with:
    "flip" with themselves in another group, "counterpart" with who they would be there, in the searches, too; None
    does both, and searches by counterparts where the model does not read the attribute. `placebos` are the tables with
    shuffled groups that counterparts are measured against.
    """

    seeds: int = 200
    steps: int = 100
    seconds: float | None = None
    methods: tuple[str, ...] | None = None
    samples: int = 50_000
    confidence: float = 0.95
    prove: float = 6.0
    repair: bool = True
    seed: int = 0
    plausible: float = 0.0
    twins: TwinKind | None = None
    placebos: int = 20

    def __post_init__(self) -> None:
        SearchConfig(plausible=self.plausible, twins=self.twins or "flip")  # which refuses what is none
        Thoroughness(placebos=self.placebos)

    @staticmethod
    def quick(**changes: Any) -> AuditSettings:
        """Return settings for a first look: a quarter of the time, and no repair."""
        quick = AuditSettings(seeds=50, steps=30, samples=20_000, prove=2.0, repair=False, placebos=5)
        return replace(quick, **changes)

    def thorough(self, samples: int, *, leads: bool) -> Thoroughness:
        """Return how many counterparts are looked at, where so many people are sampled; fewer unless they lead."""
        if leads:
            return Thoroughness(placebos=self.placebos, people=samples)
        return Thoroughness(BESIDE, self.placebos, math.ceil(samples / 20))

    def methods_for(self, opened: Opened) -> tuple[str, ...]:
        """Return the methods to search with; refuse those that cannot search this model."""
        linear = isinstance(opened.model, Network) and not opened.model.layers
        methods = self.methods or (LINEAR if linear else WHITE if opened.white_box else BLACK)
        for method in methods:
            check_method(method, opened.model, opened.decision)
        return methods

    def sized(self, opened: Opened, family: int) -> AuditSettings:
        """Return the settings with a budget for families of so many people each."""
        size = max(1.0, family / FAMILY)
        slow = 1 if opened.white_box else 2
        way = slow * math.sqrt(size)
        sized = {"seeds": self.seeds / way, "steps": self.steps / way, "samples": self.samples / (slow**2 * size)}
        return replace(self, **{k: min(getattr(self, k), max(LEAST[k], round(v))) for k, v in sized.items()})
