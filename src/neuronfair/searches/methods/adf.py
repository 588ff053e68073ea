"""ADF: move to the boundary along the signs that a row and its twin share, then change what matters least.

Zhang, Wang, Sun, Dong, Wang, Wang, Dong and Dai, "White-box Fairness Testing through Adversarial Sampling", ICSE 2020.
With the loss J(x) = -log p(x), p the probability of the predicted class:

    global:  every attribute on which sign ∇J(x) = sign ∇J(x') goes one step along it
    local:   one attribute, with probability proportional to 1 / (|∇J(x)| + |∇J(x')|), goes one step up or down
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.searches.evaluate import Evaluation
from neuronfair.searches.method import (
    MIN_GRADIENT,
    ChoosesAhead,
    SearchContext,
    State,
    confidence,
    draw_neighbours,
    inverse_influence,
    metropolis,
    move_column,
    select_state,
    step_where_agreed,
)


@dataclass(frozen=True)
class Adf(ChoosesAhead):
    """One phase of ADF; `local` says which."""

    local: bool = False

    def start(self, context: SearchContext, state: State) -> State:
        """Return the chains, each standing on its seed."""
        rows = state["rows"]
        missed = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        return state | {"base": rows, "twin": rows, "missed": missed}

    def graph_key(self, t: int) -> int | None:
        """Return the same key for all steps but the first: they run the same operations."""
        return 0 if t else None

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Accept the new rows, or in the local phase sometimes keep the old ones, and take a step."""
        discriminates = evaluation.discriminates
        accepted = metropolis(context, state, discriminates, t) if self.local and t else torch.ones_like(discriminates)
        state = state | select_state(accepted, {"base": rows, "twin": evaluation.twin, "missed": ~discriminates}, state)
        base, pairs = state["base"], torch.cat([state["base"], state["twin"]])
        g, g_twin = context.gradient(
            pairs, lambda s: -confidence(context.decision, s).clamp(min=MIN_GRADIENT).log(), state, t
        ).chunk(2)
        if self.local:
            neighbours, weights = draw_neighbours(context, state, base, t), inverse_influence(context, base, g, g_twin)
            codes = move_column(context, state, base, neighbours, weights, t)
        else:
            has_no_gradient = (g_twin == 0).all(1, keepdim=True)  # ignores twins without a gradient
            codes = step_where_agreed(context, state, base, g, torch.where(has_no_gradient, g, g_twin), t)
        return state | {"rows": context.domain.move(base, codes)}
