"""Halving: move as another method does, and when a step crosses the boundary, bisect it.

A step of the paper's size changes the score of an image far more than the shift of its attribute does, so a chain
mostly steps over the strip where the decision flips. This is not in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.searches.evaluate import Evaluation
from neuronfair.searches.method import Method, SearchContext, State, renewed


@dataclass(frozen=True)
class Halving:
    """A method for rows of ordered codes only, such as pixels; `inner` moves to the boundary.

    Between the last row on the seed's side and the first one beyond, the middle is evaluated, and so on until the
    decision flips or no whole step is left; then `inner` continues.
    """

    inner: Method

    def start(self, context: SearchContext, state: State) -> State:
        """Return the chains before they cross the boundary."""
        rows = state["rows"]
        no = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        return self.inner.start(context, state) | {
            "side": no.long(),
            "near": rows,
            "far": rows,
            "halving": no,
            "next": rows,
        }

    def ask(self, context: SearchContext, state: State, t: int) -> Tensor:
        """Return the middle for chains that bisect, and the rows of the inner method for the others."""
        return torch.where(state["halving"][:, None], state["next"], self.inner.ask(context, state, t))

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Bisect between both sides of the boundary, or continue with the inner method."""
        decided = evaluation.scores.argmax(1)
        side = decided if t == 0 else state["side"]
        same = decided == side
        near = torch.where(same[:, None], rows, state["near"])
        far = torch.where(same[:, None], state["far"], rows)
        middle = near + torch.div(far - near, 2, rounding_mode="floor")
        done = (middle == near).all(1) | (middle == far).all(1)
        halving = (state["halving"] | ~same) & ~done
        state = state | {
            "side": torch.where(halving, side, decided),
            "near": torch.where(halving[:, None], near, rows),
            "far": far,
            "halving": halving,
            "next": middle,
        }

        def moved(some: Tensor | slice) -> State:
            lines = {name: tensor[some] for name, tensor in state.items()}
            lines.pop("counted", None)  # NeuronFair redraws it in some steps only, perhaps while a chain bisects
            return self.inner.tell(context, lines, rows[some], evaluation[some], t)

        return state | renewed(~halving, state, moved)
