"""EIDIG: ADF with the gradient of the output, momentum, and probabilities that are rarely recomputed.

Zhang, Zhang and Zhang, "Efficient White-box Fairness Testing through Gradient Search", ISSTA 2021. With p the
probability of the predicted class:

    global:  g ← 0.5 g + ∇p(x), g' ← 0.5 g' + ∇p(x'); attributes whose signs agree go one step against them
    local:   one attribute, with probability proportional to 1 / (|∇p(x)| + |∇p(x')|), goes one step up or down; the
             probabilities are recomputed after `interval` findings in a row, and a miss leads back to the first row
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.searches.evaluate import Evaluation
from neuronfair.searches.method import (
    ChoosesAhead,
    SearchContext,
    State,
    confidence,
    draw_neighbours,
    inverse_influence,
    move_column,
    renew_state,
    select_state,
    step_where_agreed,
)

MOMENTUM = 0.5


@dataclass(frozen=True)
class EidigGlobal(ChoosesAhead):
    """The global phase of EIDIG."""

    def start(self, context: SearchContext, state: State) -> State:
        """Return the chains with no momentum yet."""
        rows = state["rows"]
        zero = context.zero_gradient(rows)
        return state | {"g": zero, "g_twin": zero}

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Update the momentum and take a step towards a less certain decision."""
        g, g_twin = _output_gradients(context, state, rows, evaluation.twin, t)
        g, g_twin = MOMENTUM * state["g"] + g, MOMENTUM * state["g_twin"] + g_twin
        codes = step_where_agreed(context, state, rows, -g, -g_twin, t)
        return state | {"g": g, "g_twin": g_twin, "rows": context.domain.move(rows, codes)}


@dataclass(frozen=True)
class EidigLocal(ChoosesAhead):
    """The local phase of EIDIG; without an interval the probabilities stay those of the first row."""

    interval: int | None = 5

    def start(self, context: SearchContext, state: State) -> State:
        """Return the chains, each standing on its seed."""
        rows = state["rows"]
        zero = torch.zeros(rows.shape, dtype=torch.float64, device=rows.device)
        return state | {"seed": rows, "base": rows, "first": zero, "weights": zero, "run": state["origin"] * 0}

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Continue from a finding, or return to the seed with its probabilities, and change one attribute."""

        def reweigh(indices: Tensor | slice) -> State:
            chains, twin = {"origin": state["origin"][indices]}, evaluation.twin[indices]
            weights = self._weights(context, chains, rows[indices], twin, t)
            return {"weights": weights, "run": torch.zeros_like(chains["origin"])}

        restarted = {"base": state["seed"], "weights": state["first"], "run": torch.zeros_like(state["run"])}
        continued = {"base": rows, "weights": state["weights"], "run": state["run"] + 1}
        if t == 0:
            state = state | {"weights": self._weights(context, state, rows, evaluation.twin, t)}
            state = state | {"first": state["weights"]}
        else:
            state = state | select_state(evaluation.discriminates, continued, restarted)
        if self.interval is not None:
            weighting = {name: state[name] for name in ("weights", "run")}
            state = state | renew_state(state["run"] >= self.interval, weighting, reweigh)
        neighbours = draw_neighbours(context, state, state["base"], t)
        codes = move_column(context, state, state["base"], neighbours, state["weights"], t)
        return state | {"rows": context.domain.move(state["base"], codes)}

    def _weights(self, context: SearchContext, state: State, rows: Tensor, twin: Tensor, t: int) -> Tensor:
        return inverse_influence(context, rows, *_output_gradients(context, state, rows, twin, t))


def _output_gradients(
    context: SearchContext, state: State, rows: Tensor, twin: Tensor, t: int
) -> tuple[Tensor, Tensor]:
    g, g_twin = context.gradient(torch.cat([rows, twin]), lambda s: confidence(context.decision, s), state, t).chunk(2)
    return g, g_twin
