"""The public names for authors of search methods.

A method is registered by name in the pyproject.toml of its package:

    [project.entry-points."neuronfair.methods"]
    climber = "climber:ENTRY"

`docs/methods.md` shows a complete example; `neuronfair.testing` checks it.
"""

from typing import Any

from neuronfair.searches.evaluate import Evaluation
from neuronfair.searches.method import (
    Method,
    SearchContext,
    State,
    agreed,
    choose,
    confidence,
    inverse_influence,
    metropolis,
    one_attribute,
    random_neighbours,
    select_state,
)
from neuronfair.searches.methods import METHODS, MethodEntry, Phases, Setting
from neuronfair.searches.methods.aequitas import Uniform

__all__ = [
    "METHODS",
    "Evaluation",
    "Method",
    "MethodEntry",
    "Phases",
    "SearchContext",
    "Setting",
    "State",
    "Uniform",
    "agreed",
    "choose",
    "confidence",
    "inverse_influence",
    "metropolis",
    "one_attribute",
    "random_neighbours",
    "select_state",
]


_RENAMED = {"Judgement": "Evaluation", "World": "SearchContext", "where": "select_state"}  # for one version


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        import warnings

        warnings.warn(f"neuronfair.methods.{name} is now {_RENAMED[name]}", DeprecationWarning, stacklevel=2)
        return globals()[_RENAMED[name]]
    raise AttributeError(f"module 'neuronfair.methods' has no attribute '{name}'")
