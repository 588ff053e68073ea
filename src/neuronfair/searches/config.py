"""The configuration of a search, as command-line options and Python arguments, and the methods of other packages.

Without torch: help texts list them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, get_args

from neuronfair.errors import NeuronFairError, one_line
from neuronfair.formatting import TwinKind
from neuronfair.parameters import BUDGET, INPUT, parameter

if TYPE_CHECKING:
    from neuronfair.model.decision import Decision, Scale

GROUP = "neuronfair.methods"  # of entry points


def find_entry_points() -> list[EntryPoint]:
    """Return the entry points of other packages; none is imported."""
    return sorted(entry_points(group=GROUP), key=lambda point: point.name)


def load_registered(kind: type, known_names: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield the registered objects by name; one that is broken, or whose name is taken, is left out with a warning."""
    for point in find_entry_points():
        try:
            if point.name in known_names:
                raise ValueError("there is a method of this name already")
            if not re.fullmatch(r"[\w-]+", point.name):  # it becomes the name of a folder
                raise ValueError("expected a name of letters, digits, - and _")
            plug_in = point.load()
            if not isinstance(plug_in, kind):
                raise TypeError(f"expected a neuronfair.methods.{kind.__name__}, got {type(plug_in).__name__}")
        except (Exception, SystemExit) as error:  # a broken package must not disable the others
            origin = point.dist.name if point.dist is not None else point.value
            warnings.warn(
                f"the method '{point.name}' of {origin} is left out ({type(error).__name__}: {one_line(error)})",
                stacklevel=2,
            )
        else:
            known_names = known_names | {point.name}
            yield point.name, plug_in


_OTHER_METHODS = "".join(f", or {point.name} of another package" for point in find_entry_points())


def _default_decision() -> Decision:
    from neuronfair.model.decision import Decision

    return Decision()


def current_twins(kind: str) -> str:
    """Return the current name of a kind of twins; the name of version 0.2 gives a warning."""
    if kind != "counterpart":
        return kind
    message = "twins='counterpart' is now 'counterfactual'. The old name goes with the next version"
    warnings.warn(message, DeprecationWarning, stacklevel=4)
    return "counterfactual"


@dataclass(frozen=True)
class SearchConfig:
    """The configuration of a search; the defaults are the paper's budget."""

    method: str = parameter(
        "frontier",
        "Search method: frontier, neuronfair-plus (a redesign), neuronfair (the paper's with four changes), "
        "neuronfair-printed (the paper's to the letter), eidig5, eidiginf, adf, frontier-free, symbgen, expga, "
        "aequitas, aequitas-semi, aequitas-random or uniform"
        f"{_OTHER_METHODS}.",
        panel=INPUT,
    )
    seeds: int = parameter(1000, "Rows to start from.", "--starts", panel=BUDGET, low=0)
    # Of the local phase, not counting the evaluation of the row that a chain starts from.
    steps: int = parameter(1000, "Steps of the local phase.", panel=BUDGET, low=0)
    global_steps: int = 40  # 0: the local phase starts from the seeds, which do not count
    instances: int | None = None  # distinct records evaluated, at most, in each phase
    seconds: float | None = parameter(None, "Time limit in seconds, of both phases.", panel=BUDGET, low=0)
    seed: int = parameter(0, "Seed of all random numbers.")
    decision: Decision = field(default_factory=_default_decision)
    # The help text is that of --no-controls.
    controls: bool = parameter(True, "Skip the controls: random records and random directions.")
    plausible: float = parameter(0.0, "Minimum likelihood percentile of generated records.")
    twins: TwinKind = parameter(
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
        object.__setattr__(self, "twins", current_twins(self.twins))
        if self.twins not in get_args(TwinKind):
            raise NeuronFairError(f"twins must be {' or '.join(get_args(TwinKind))}, got {self.twins!r}")
        object.__setattr__(self, "method", current_name(self.method))
        check_method(self.method)
