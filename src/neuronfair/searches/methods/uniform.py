"""uniform: random rows, the baseline of every other method (Themis: Galhotra, Brun and Meliou, FSE 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from neuronfair.searches.evaluate import Evaluation
from neuronfair.searches.method import State, World


@dataclass(frozen=True)
class Uniform:
    """Every step evaluates a new row, uniform over the valid rows of the domain; seeds are ignored."""

    def start(self, world: World, state: State) -> State:
        """Return the chains unchanged: there is nothing to remember."""
        return state

    def form(self, t: int) -> int:
        """Return the same form for all steps: they run the same operations."""
        return 0

    def ask(self, world: World, state: State, t: int) -> Tensor:
        """Return one random row per chain."""
        return world.domain.rows_at(world.draws.uniform(t, state["origin"], world.domain.draws_per_row, use="rows"))

    def tell(self, world: World, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Learn nothing."""
        return state
