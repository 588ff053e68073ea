"""uniform: random rows, the baseline of all methods (Themis: Galhotra, Brun and Meliou, FSE 2017). And Aequitas.

Aequitas changes one attribute at a time, and learns which one and which way: Udeshi, Arora and Chattopadhyay,
"Automated Directed Fairness Testing", ASE 2018. Its global phase is `uniform`. In the local phase attribute i is drawn
with probability p_i and goes down with probability d_i; after a finding both rise by the `learning_rate`, or d_i falls
if the step went up; after a miss the other way round. The semi-directed variant learns d only, the random one nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from neuronfair.searches.evaluate import Evaluation
from neuronfair.searches.method import (
    ChoosesAhead,
    SearchContext,
    State,
    draw_column,
    metropolis,
    select_state,
    stretch,
)


@dataclass(frozen=True)
class Uniform:
    """Every step evaluates a new row, uniform over the valid rows of the domain; seeds are ignored."""

    def start(self, context: SearchContext, state: State) -> State:
        """Return the chains unchanged: there is nothing to remember."""
        return state

    def graph_key(self, t: int) -> int | None:
        """Return the same key for all steps: they run the same operations."""
        return 0

    def ask(self, context: SearchContext, state: State, t: int) -> Tensor:
        """Return one random row per chain."""
        return context.domain.rows_at(
            context.draws.uniform(t, state["origin"], context.domain.draws_per_row, use="rows")
        )

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Learn nothing."""
        return state


@dataclass(frozen=True)
class Aequitas(ChoosesAhead):
    """The local phase of Aequitas. Every chain learns on its own."""

    learns: Literal["nothing", "directions", "everything"] = "everything"
    learning_rate: float = 0.001

    def start(self, context: SearchContext, state: State) -> State:
        """Return the chains with equal chances for every attribute and direction."""
        rows, free = state["rows"], context.domain.changeable.double()
        return state | {
            "base": rows,
            "missed": torch.zeros(len(rows), dtype=torch.bool, device=rows.device),
            "chance": (free / free.sum().clamp(min=1)).repeat(len(rows), 1),
            "down": torch.full(rows.shape, 0.5, dtype=torch.float64, device=rows.device),
            "column": torch.zeros(len(rows), 1, dtype=torch.int64, device=rows.device),
            "went_down": torch.zeros(len(rows), 1, dtype=torch.bool, device=rows.device),
        }

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Learn from the last step, and take another one."""
        discriminates = evaluation.discriminates
        accepted = metropolis(context, state, discriminates, t) if t else torch.ones_like(discriminates)
        state = state | select_state(accepted, {"base": rows, "missed": ~discriminates}, state)
        if t:
            state = state | self._learn(state, discriminates[:, None])
        base, column = state["base"], draw_column(context, state, state["chance"], t)
        u, v = context.draws.uniform(t, state["origin"], 2, use="direction").chunk(2, 1)
        # `neighbours` steps down for numbers below one half, and turns round at a bound; nominal attributes change to
        # any value.
        down = torch.where(u < state["down"].gather(1, column), 0.25, 0.75)
        direction = torch.where(context.domain.is_ordered[column], down, v)
        near = stretch(context, state, base, context.domain.neighbours(base, direction.expand(base.shape)), t)
        code = near.gather(1, column)
        new_rows = context.domain.move(base, base.scatter(1, column, code))
        return state | {"rows": new_rows, "column": column, "went_down": code < base.gather(1, column)}

    def _learn(self, state: State, discriminates: Tensor) -> State:
        column, chance, down = state["column"], state["chance"], state["down"]
        if self.learns == "nothing":
            return {}
        rise, fall = down.new_tensor(self.learning_rate), down.new_tensor(-self.learning_rate)
        down = down.scatter_add(1, column, torch.where(discriminates == state["went_down"], rise, fall)).clamp(0, 1)
        if self.learns == "everything":
            chance = chance.scatter_add(1, column, torch.where(discriminates, rise, fall)).clamp(min=0)
            chance = chance / chance.sum(1, keepdim=True)
        return {"down": down, "chance": chance}
