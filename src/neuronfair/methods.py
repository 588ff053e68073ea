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
    State,
    World,
    agreed,
    choose,
    confidence,
    inverse_influence,
    metropolis,
    one_attribute,
    random_neighbours,
    where,
)
from neuronfair.searches.methods import METHODS, MethodEntry, Phases, Setting
from neuronfair.searches.methods.aequitas import Uniform

__all__ = [
    "METHODS",
    "Evaluation",
    "Method",
    "MethodEntry",
    "Phases",
    "Setting",
    "State",
    "Uniform",
    "World",
    "agreed",
    "choose",
    "confidence",
    "inverse_influence",
    "metropolis",
    "one_attribute",
    "random_neighbours",
    "where",
]


def __getattr__(name: str) -> Any:
    if name == "Judgement":  # the name of version 0.2, which stays for one version
        import warnings

        warnings.warn("neuronfair.methods.Judgement is now Evaluation", DeprecationWarning, stacklevel=2)
        return Evaluation
    raise AttributeError(f"module 'neuronfair.methods' has no attribute '{name}'")
