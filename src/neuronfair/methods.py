"""What a search method is written with: whoever writes one in another package imports these names only.

A method registers itself in the pyproject.toml of its package, and from then on is known by that name:

    [project.entry-points."neuronfair.methods"]
    climber = "climber:ENTRY"

`docs/methods.md` shows a whole one; `neuronfair.testing` checks it.
"""

from neuronfair.searches.evaluate import Judgement
from neuronfair.searches.method import Method, State, World
from neuronfair.searches.methods import METHODS, MethodEntry, Phases, Setting
from neuronfair.searches.methods.uniform import Uniform
from neuronfair.searches.steps import (
    agreed,
    choose,
    confidence,
    inverse_influence,
    metropolis,
    one_attribute,
    random_neighbours,
    where,
)

__all__ = [
    "METHODS",
    "Judgement",
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
