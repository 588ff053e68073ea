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
    confidence,
    draw_column,
    draw_neighbours,
    inverse_influence,
    metropolis,
    move_column,
    select_state,
    step_where_agreed,
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
    "confidence",
    "draw_column",
    "draw_neighbours",
    "inverse_influence",
    "metropolis",
    "move_column",
    "select_state",
    "step_where_agreed",
]


_RENAMED = {  # for one version
    "Judgement": "Evaluation",
    "World": "SearchContext",
    "agreed": "step_where_agreed",
    "choose": "draw_column",
    "one_attribute": "move_column",
    "random_neighbours": "draw_neighbours",
    "where": "select_state",
}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        import warnings

        warnings.warn(f"neuronfair.methods.{name} is now {_RENAMED[name]}", DeprecationWarning, stacklevel=2)
        return globals()[_RENAMED[name]]
    raise AttributeError(f"module 'neuronfair.methods' has no attribute '{name}'")
