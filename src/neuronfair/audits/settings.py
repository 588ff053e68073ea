"""How thorough an audit is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from neuronfair.formatting import TwinKind, short_number
from neuronfair.parameters import accept_old_names, common_parameter, parameter

if TYPE_CHECKING:
    from neuronfair.measure.counterfactual_effect import CounterfactualSettings
    from neuronfair.model.open import OpenedModel

WHITE_BOX_METHODS, BLACK_BOX_METHODS = ("frontier", "neuronfair-plus"), ("frontier-free", "aequitas")
LINEAR_METHODS = ("frontier", "aequitas")  # it has no neurons to follow
USUAL_TWINS = 8  # records, twins included, for which the budgets are meant; with more twins there are fewer steps
SECONDARY_DRAWS = 4  # counterfactual twins of a record where the flip test leads
BUDGET_NAMES = "starting rows", "search steps", "samples", "proof seconds", "permutations"  # those of QUICK
MINIMUM_BUDGET = {"seeds": 20, "steps": 10, "samples": 2_000}


@accept_old_names
@dataclass(frozen=True)
class AuditSettings:
    """How thorough an audit is; the defaults suit a minute on two cores.

    `methods` None takes `frontier` and `neuronfair-plus`, for a black box `frontier-free` and `aequitas`. A black box
    and sensitive attributes with many values get a part of the budget. All choices of attributes share `prove`.
    With `twins` None both tests run, and searches use counterfactual twins where the model does not use the attribute.
    `permutations` is the number of permutations of the groups in the counterfactual test.
    """

    seeds: int = common_parameter(200, "Starting rows of each search.", "--starts", low=1)
    steps: int = common_parameter(100, "Steps of each search.", low=0)
    seconds: float | None = parameter(None, "Time limit of each search in seconds.", low=0)
    methods: tuple[str, ...] | None = None
    samples: int = parameter(50_000, "Synthetic records per flip rate.", low=1)
    confidence: float = 0.95
    prove: float = parameter(6.0, "Time limit of proofs in seconds; 0: none.", metavar="X", low=0)
    seed: int = common_parameter(0, "Random seed.")
    plausible: float = parameter(0.0, "Minimum likelihood percentile of generated records.")
    twins: TwinKind | None = parameter(None, "Only one test: flip, counterfactual.", metavar="KIND")
    permutations: int = 20

    QUICK: ClassVar[Mapping[str, Any]] = {
        "seeds": 50,
        "steps": 30,
        "samples": 20_000,
        "prove": 2.0,
        "permutations": 5,
    }

    def __post_init__(self) -> None:
        from neuronfair.measure.counterfactual_effect import CounterfactualSettings
        from neuronfair.searches.config import SearchConfig
        from neuronfair.searches.methods import current_name

        if self.methods is not None:
            object.__setattr__(self, "methods", tuple(map(current_name, self.methods)))
        config = SearchConfig(plausible=self.plausible, twins=self.twins or "flip")  # refuses other values
        object.__setattr__(self, "twins", self.twins and config.twins)
        CounterfactualSettings(permutations=self.permutations)

    @staticmethod
    def quick(**changes: Any) -> AuditSettings:
        """Return settings for a first look: a quarter of the time."""
        return replace(AuditSettings(**AuditSettings.QUICK), **changes)

    @property
    def reduced(self) -> tuple[str, ...]:
        """Return which budgets are smaller than the defaults, in words."""
        values = [(getattr(self, key), getattr(AuditSettings, key)) for key in self.QUICK]
        budgets = zip(BUDGET_NAMES, values, strict=True)
        return tuple(
            f"{name} {short_number(value)}/{short_number(default)}"
            for name, (value, default) in budgets
            if value < default
        )

    def choose_counterfactual_settings(self, samples: int, *, leads: bool) -> CounterfactualSettings:
        """Return the budget of the counterfactual test for a sample of records; smaller unless that test leads."""
        from neuronfair.measure.counterfactual_effect import CounterfactualSettings

        if leads:
            return CounterfactualSettings(permutations=self.permutations, records=samples)
        return CounterfactualSettings(SECONDARY_DRAWS, self.permutations, math.ceil(samples / 20))

    def choose_methods(self, opened_model: OpenedModel) -> tuple[str, ...]:
        """Return the methods to search with; refuse those that cannot search this model."""
        from neuronfair.model.network import Network
        from neuronfair.searches.methods import check_method

        linear = isinstance(opened_model.model, Network) and not opened_model.model.layers
        methods = self.methods or (
            LINEAR_METHODS if linear else WHITE_BOX_METHODS if opened_model.white_box else BLACK_BOX_METHODS
        )
        for method in methods:
            check_method(method, opened_model.model, opened_model.decision)
        return methods

    def scale_budgets(self, opened_model: OpenedModel, family: int) -> AuditSettings:
        """Return the settings with a budget for records that have `family` values of the sensitive attributes."""
        size = max(1.0, family / USUAL_TWINS)
        slowness = 1 if opened_model.white_box else 2
        divisor = slowness * math.sqrt(size)
        budgets = {
            "seeds": self.seeds / divisor,
            "steps": self.steps / divisor,
            "samples": self.samples / (slowness**2 * size),
        }
        return replace(self, **{k: min(getattr(self, k), max(MINIMUM_BUDGET[k], round(v))) for k, v in budgets.items()})
