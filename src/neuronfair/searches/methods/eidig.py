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
    State,
    World,
    agreed,
    confidence,
    inverse_influence,
    one_attribute,
    random_neighbours,
    renewed,
    where,
)

MOMENTUM = 0.5


@dataclass(frozen=True)
class EidigGlobal:
    """The global phase of EIDIG."""

    def start(self, world: World, state: State) -> State:
        """Return the chains with no momentum yet."""
        rows = state["rows"]
        zero = world.no_gradient(rows)
        return state | {"g": zero, "g_twin": zero}

    def ask(self, world: World, state: State, t: int) -> Tensor:
        """Return the rows chosen after the last evaluation, at first the seeds."""
        return state["rows"]

    def tell(self, world: World, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Update the momentum and take a step towards a less certain decision."""
        g, g_twin = _output_gradients(world, state, rows, evaluation.twin, t)
        g, g_twin = MOMENTUM * state["g"] + g, MOMENTUM * state["g_twin"] + g_twin
        codes = agreed(world, state, rows, -g, -g_twin, t)
        return state | {"g": g, "g_twin": g_twin, "rows": world.domain.move(rows, codes)}


@dataclass(frozen=True)
class EidigLocal:
    """The local phase of EIDIG; without an interval the probabilities stay those of the first row."""

    interval: int | None = 5

    def start(self, world: World, state: State) -> State:
        """Return the chains, each standing on its seed."""
        rows = state["rows"]
        nothing = torch.zeros(rows.shape, dtype=torch.float64, device=rows.device)
        return state | {"seed": rows, "base": rows, "first": nothing, "weights": nothing, "run": state["origin"] * 0}

    def ask(self, world: World, state: State, t: int) -> Tensor:
        """Return the rows chosen after the last evaluation, at first the seeds."""
        return state["rows"]

    def tell(self, world: World, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Continue from a finding, or return to the seed with its probabilities, and change one attribute."""

        def reweighed(some: Tensor | slice) -> State:
            here, twin = {"origin": state["origin"][some]}, evaluation.twin[some]
            weights = self._weights(world, here, rows[some], twin, t)
            return {"weights": weights, "run": torch.zeros_like(here["origin"])}

        again = {"base": state["seed"], "weights": state["first"], "run": torch.zeros_like(state["run"])}
        onwards = {"base": rows, "weights": state["weights"], "run": state["run"] + 1}
        if t == 0:
            state = state | {"weights": self._weights(world, state, rows, evaluation.twin, t)}
            state = state | {"first": state["weights"]}
        else:
            state = state | where(evaluation.discriminates, onwards, again)
        if self.interval is not None:
            kept = {name: state[name] for name in ("weights", "run")}
            state = state | renewed(state["run"] >= self.interval, kept, reweighed)
        random = random_neighbours(world, state, state["base"], t)
        codes = one_attribute(world, state, state["base"], random, state["weights"], t)
        return state | {"rows": world.domain.move(state["base"], codes)}

    def _weights(self, world: World, state: State, rows: Tensor, twin: Tensor, t: int) -> Tensor:
        return inverse_influence(world, rows, *_output_gradients(world, state, rows, twin, t))


def _output_gradients(world: World, state: State, rows: Tensor, twin: Tensor, t: int) -> tuple[Tensor, Tensor]:
    g, g_twin = world.gradient(torch.cat([rows, twin]), lambda s: confidence(world.decision, s), state, t).chunk(2)
    return g, g_twin
