"""NeuronFair: walk where the biased neurons differ most between the twins.

Zheng, Chen, Du, Zhu, Cheng, Ji and Wang, "NeuronFair: Interpretable White-Box Fairness Testing through Biased Neuron
Identification", ICSE 2022, Algorithms 2 and 3. Where the text leaves a choice, or its authors' program makes another
one, there is a switch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from neuronfair.errors import NeuronFairError
from neuronfair.generation.method import State, World
from neuronfair.network.judge import Judgement

LOG_FLOOR = 1e-6  # ReLU outputs can be exactly 0; the logarithm needs a floor
INVERSE_FLOOR = 1e-9  # stands for 1/|g| where g = 0: attributes without influence share the probability
TEMPERATURE = 1.0  # of the Metropolis test in the authors' optimiser, where a miss after a finding costs 1


@dataclass(frozen=True)
class NeuronFair:
    """One phase of NeuronFair; `local` says which.

    The dynamic loss J(x) = -Σ (p | r) · f(x') · log f(x) runs over the most biased layer (Eq. 5): p marks its biased
    neurons, r a random share of the layer that is drawn anew every `refresh` steps.
    """

    local: bool = False
    momentum: float = 0.1
    refresh: int = 10
    extra_share: float = 0.05
    after_miss: Literal["walk", "metropolis", "reset"] = "walk"
    sign: Literal["gradient", "random"] = "gradient"
    choice: Literal["softmax", "inverse"] = "softmax"
    gradients: bool = True

    def start(self, world: World, state: State) -> State:
        """Return the walkers with no momentum yet."""
        if world.profile is None:
            raise NeuronFairError("NeuronFair needs the biased neurons: give the search the profile of interpret()")
        rows = state["rows"]
        zero = torch.zeros(len(rows), world.domain.width, dtype=world.network.dtype, device=rows.device)
        missed = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        return state | {"g": zero, "g_twin": zero, "base": rows, "twin": rows, "missed": missed}

    def ask(self, world: World, state: State, t: int) -> Tensor:
        """Return the rows chosen after the last judgement, at first the seeds."""
        return state["rows"]

    def tell(self, world: World, state: State, rows: Tensor, judgement: Judgement, t: int) -> State:
        """Choose where to go on from, update the gradients there, and take a step."""
        accepted = self._accepted(world, state, judgement.discriminates, t)
        twin = judgement.twins[torch.arange(len(rows), device=rows.device), judgement.partner]
        state = state | {
            "base": torch.where(accepted[:, None], rows, state["base"]),
            "twin": torch.where(accepted[:, None], twin, state["twin"]),
            "missed": torch.where(accepted, ~judgement.discriminates, state["missed"]),
        }
        state = state | self._momentum(world, state, t)
        step = self._local_step if self.local else self._global_step
        return state | {"rows": world.domain.move(state["base"], step(world, state, t))}

    def _accepted(self, world: World, state: State, found: Tensor, t: int) -> Tensor:
        if self.after_miss == "walk" or t == 0:
            return torch.ones_like(found)
        if self.after_miss == "reset":
            return found
        chance = torch.exp(torch.tensor(-1.0 / TEMPERATURE))
        u = world.draws.uniform(t, state["origin"], 1, use="metropolis")[:, 0]
        return found | state["missed"] | (u < chance)

    def _momentum(self, world: World, state: State, t: int) -> State:
        """Return g and g' of Algorithm 2, lines 13 and 14; f(x') is constant in ∇x, f(x) in ∇x'."""
        assert world.profile is not None  # start() has checked it
        layer = world.profile.worst
        counted = self._extra(world, state, len(layer.act_diff), t)
        counted[:, list(layer.biased)] = True

        def dynamic_loss(f: Tensor) -> Tensor:  # Eq. 5, for the rows and, with the roles swapped, for the twins
            own, other = f.detach().chunk(2)
            weights = torch.cat([other, own]) * counted.repeat(2, 1)
            return -(weights * torch.log(f.clamp(min=LOG_FLOOR))).sum(1)

        pairs = torch.cat([state["base"], state["twin"]])
        g, g_twin = world.gradient(pairs, dynamic_loss, state, t, layer=layer.name).chunk(2)
        return {"g": self.momentum * state["g"] + g, "g_twin": self.momentum * state["g_twin"] + g_twin}

    def _extra(self, world: World, state: State, neurons: int, t: int) -> Tensor:
        """Return r: a random choice of neurons for each walker, the same between two refreshes: bool, (n, neurons)."""
        u = world.draws.uniform(t - t % self.refresh, state["origin"], neurons, use="extra")
        count = int(neurons * self.extra_share)
        return u.argsort(1).argsort(1) < count

    def _global_step(self, world: World, state: State, t: int) -> Tensor:
        return world.domain.uphill(state["g"] + state["g_twin"], state["base"])

    def _local_step(self, world: World, state: State, t: int) -> Tensor:
        domain, base, origin = world.domain, state["base"], state["origin"]
        if self.sign == "gradient":
            codes = domain.uphill(state["g"] + state["g_twin"], base)
        else:
            codes = domain.neighbours(base, world.draws.uniform(t, origin, base.shape[1], use="sign"))
        if self.choice == "softmax":  # Algorithm 3, lines 10 to 16: every attribute for itself
            size = domain.influence(state["g"] + state["g_twin"], base).double()
            inverse = (1 / size.clamp(min=INVERSE_FLOOR)).masked_fill(~domain.free, -torch.inf)
            moves = world.draws.uniform(t, origin, base.shape[1], use="choice") < inverse.softmax(1)
        else:  # one attribute, with probability proportional to 1 / (|g| + |g'|)
            size = domain.influence(state["g"], base).double() + domain.influence(state["g_twin"], base)
            weights = (1 / size.clamp(min=INVERSE_FLOOR)) * domain.free
            ends = weights.cumsum(1)
            u = world.draws.uniform(t, origin, 1, use="choice") * ends[:, -1:]
            chosen = torch.searchsorted(ends, u, right=True).clamp(max=base.shape[1] - 1)
            moves = torch.zeros_like(base, dtype=torch.bool).scatter_(1, chosen, True)
        return torch.where(moves, codes, base)
