"""NeuronFair: move where the biased neurons differ most between the twins.

Zheng, Chen, Du, Zhang, Cheng, Ji, Wang, Yu and Chen, "NeuronFair: Interpretable White-Box Fairness Testing through
Biased Neuron Identification", ICSE 2022, Algorithms 2 and 3. Where the text leaves a choice, or its authors' program
makes another one, there is a switch. The registry has three rungs: to the letter, the paper's, and our redesign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from neuronfair.errors import NeuronFairError
from neuronfair.model.profile import LayerBias
from neuronfair.searches.evaluate import ROW_MULTIPLE, Evaluation
from neuronfair.searches.method import (
    MIN_GRADIENT,
    ChoosesAhead,
    SearchContext,
    State,
    decision_margins,
    draw_neighbours,
    inverse_influence,
    inverse_margin_loss,
    metropolis,
    move_column,
    renew_state,
    select_state,
    step_uphill,
    swap_pairs,
)

KICK = 2 / 3  # the share of attributes that a random step changes, as in the authors' program
LOG_FLOOR = 1e-6  # ReLU outputs can be exactly 0; the logarithm needs a floor
MANY_NEURONS = 1 << 13  # in larger layers r includes each neuron by chance: ranking them would be the slowest step


@dataclass(frozen=True)
class NeuronFair(ChoosesAhead):
    """One phase of NeuronFair; `local` says which.

    It is guided by the biased neurons p of a layer, and by r, a random share of the layer that is redrawn every
    `refresh` steps. The loss "decision" is the distance to another decision, differentiated through these neurons
    only: globally a pair moves to the boundary, locally away from it. "dynamic" is Eq. 5 of the paper,
    J(x) = -Σ (p | r) · f(x') · log f(x), "difference" is Σ (p | r) · |f(x) - f(x')|.
    """

    local: bool = False
    loss: Literal["decision", "dynamic", "difference"] = "dynamic"
    layer: Literal["worst", "first", "last"] = "worst"
    momentum: float = 0.1
    refresh: int = 10
    extra_share: float = 0.05
    kick: bool = False  # globally, a random step where the gradient leads nowhere or back
    moved_attributes: Literal["all", "some"] = "all"  # of a global step; some: a log-uniform number of them
    sign: Literal["gradient", "random"] = "gradient"  # of a local step
    choice: Literal["softmax", "inverse", "margin_loss", "uniform"] = "softmax"  # of its attributes
    after_miss: Literal["walk", "metropolis", "reset"] = "walk"

    def start(self, context: SearchContext, state: State) -> State:
        """Return the chains with no momentum yet."""
        if context.profile is None:
            raise NeuronFairError("NeuronFair needs the biased neurons: give the search the profile of interpret()")
        rows = state["rows"]
        zero = context.zero_gradient(rows)
        missed = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        unmoved = {"base": rows, "twin": rows, "missed": missed, "room": zero[:, :1].repeat(1, 2)}
        guiding = self._choose_neurons(context, state, 0)
        return state | unmoved | {"g": zero, "g_twin": zero, "last": rows, "counted": guiding}

    def graph_key(self, t: int) -> bool | None:
        """Return whether step t redraws neurons: steps with one key run the same operations."""
        return t % self.refresh == 0 if t else None

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Accept or reject the new rows, update the gradients, and take a step."""
        margins = decision_margins(context.decision, torch.cat(evaluation.pair[2:])).view(2, -1).T
        new = {"base": rows, "twin": evaluation.twin, "missed": ~evaluation.discriminates, "room": margins}
        accepted = None  # all
        if self.after_miss == "walk" or t == 0:
            state = state | new
        else:
            accepted = evaluation.discriminates
            if self.after_miss == "metropolis":
                accepted = metropolis(context, state, accepted, t)
            state = state | select_state(accepted, new, state)
        if (t and t % self.refresh == 0) or "counted" not in state:
            state, accepted = state | {"counted": self._choose_neurons(context, state, t)}, None
        state = state | self._update_gradients(context, state, accepted, t)
        step = self._local_step if self.local else self._global_step
        return state | {"rows": context.domain.move(state["base"], step(context, state, t)), "last": state["base"]}

    def _update_gradients(self, context: SearchContext, state: State, has_moved: Tensor | None, t: int) -> State:
        """Return the gradients; without momentum, those of chains that have not moved stay as they are."""
        if has_moved is None or self.momentum or context.blind:
            return self._compute_gradients(context, state, t)

        def compute_gradients(indices: Tensor | slice) -> State:
            if isinstance(indices, slice):
                return self._compute_gradients(context, state, t)
            filled = torch.cat([indices, indices[-1:].expand(-len(indices) % ROW_MULTIPLE)])  # full: they round alike
            chains = {name: state[name][filled] for name in ("origin", "base", "twin", "counted", "g", "g_twin")}
            return {name: g[: len(indices)] for name, g in self._compute_gradients(context, chains, t).items()}

        return renew_state(has_moved, {name: state[name] for name in ("g", "g_twin")}, compute_gradients)

    def _guiding_layer(self, context: SearchContext) -> LayerBias:
        assert context.profile is not None  # start() has checked it
        layers = context.profile.layers
        return {"worst": context.profile.worst, "first": layers[0], "last": layers[-1]}[self.layer]

    def _compute_gradients(self, context: SearchContext, state: State, t: int) -> State:
        """Return g and g' of Algorithm 2, lines 13 and 14; f(x') is constant in ∇x, f(x) in ∇x'."""
        layer, guiding = self._guiding_layer(context), state["counted"].repeat(2, 1)

        def dynamic(f: Tensor) -> Tensor:  # Eq. 5, for the rows and, with the roles swapped, for the twins
            return -(swap_pairs(f) * guiding * torch.log(f.clamp(min=LOG_FLOOR))).sum(1)

        def difference(f: Tensor) -> Tensor:
            return ((f - swap_pairs(f)).abs() * guiding).sum(1)

        def decision(scores: Tensor) -> Tensor:
            margins = decision_margins(context.decision, scores)
            return margins if self.local or context.decision.kind == "tolerance" else -margins

        pairs = torch.cat([state["base"], state["twin"]])
        if self.loss == "decision":
            gradients = context.gradient(pairs, decision, state, t, through=(layer.name, guiding))
        else:
            loss = dynamic if self.loss == "dynamic" else difference
            gradients = context.gradient(pairs, loss, state, t, layer=layer.name)
        g, g_twin = gradients.chunk(2)
        return {"g": self.momentum * state["g"] + g, "g_twin": self.momentum * state["g_twin"] + g_twin}

    def _choose_neurons(self, context: SearchContext, state: State, t: int) -> Tensor:
        """Return p | r: bool, (n, neurons)."""
        biased = context.biased[self._guiding_layer(context).name]
        return self._draw_extra(context, state, len(biased), t) | biased

    def _draw_extra(self, context: SearchContext, state: State, neurons: int, t: int) -> Tensor:
        """Return r: a random choice of neurons for each chain, the same between two refreshes: bool, (n, neurons)."""
        u = context.draws.uniform(t, state["origin"], neurons, use="extra", interval=self.refresh)
        if neurons > MANY_NEURONS:
            return u < self.extra_share
        count = int(neurons * self.extra_share)  # those with the smallest numbers; no two of 53 bits are alike
        return u <= u.kthvalue(count, 1, keepdim=True).values if count else torch.zeros_like(u, dtype=torch.bool)

    def _global_step(self, context: SearchContext, state: State, t: int) -> Tensor:
        domain, base = context.domain, state["base"]
        codes = step_uphill(context, state, base, state["g"] + state["g_twin"], t)
        if self.moved_attributes == "some":
            codes = self._keep_some(context, state, codes, t)
        if not self.kick:
            return codes
        new_rows = domain.move(base, codes)
        leads_nowhere = (new_rows == base).all(1, keepdim=True) | (new_rows == state["last"]).all(1, keepdim=True)
        is_kicked = context.draws.uniform(t, state["origin"], base.shape[1], use="kick") < KICK
        return torch.where(leads_nowhere, torch.where(is_kicked, draw_neighbours(context, state, base, t), base), codes)

    def _keep_some(self, context: SearchContext, state: State, codes: Tensor, t: int) -> Tensor:
        """Return the codes of a log-uniform number of the attributes that would change, and the old ones elsewhere."""
        base = state["base"]
        would_change = context.domain.changeable & (codes >= 0) & (codes < context.domain.sizes) & (codes != base)
        u = context.draws.uniform(t, state["origin"], 1 + base.shape[1], use="some")
        count = ((would_change.sum(1, keepdim=True) + 1.0).double() ** u[:, :1]).floor()
        rank = u[:, 1:].masked_fill(~would_change, 2.0).argsort(1).argsort(1)
        return torch.where(would_change & (rank < count), codes, base)

    def _local_step(self, context: SearchContext, state: State, t: int) -> Tensor:
        base, g, g_twin = state["base"], state["g"], state["g_twin"]
        if self.sign == "gradient":
            codes = step_uphill(context, state, base, g + g_twin, t)
        else:
            codes = draw_neighbours(context, state, base, t)
        if self.choice == "softmax":  # Algorithm 3, lines 10 to 16: every attribute for itself
            influence = context.network.encoding.influence(g + g_twin, base).double()
            inverse = (1 / influence.clamp(min=MIN_GRADIENT)).masked_fill(~context.domain.changeable, -torch.inf)
            u = context.draws.uniform(t, state["origin"], base.shape[1], use="choice")
            return torch.where(u < inverse.softmax(1), codes, base)
        if self.choice == "inverse":
            weights = inverse_influence(context, base, g, g_twin)
        elif self.choice == "margin_loss":
            weights = inverse_margin_loss(context, state, codes)
        else:
            weights = context.domain.changeable.double().expand(base.shape)
        return move_column(context, state, base, codes, weights, t)
