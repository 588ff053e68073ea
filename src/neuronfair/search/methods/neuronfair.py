"""NeuronFair: walk where the biased neurons differ most between the twins.

Zheng, Chen, Du, Zhang, Cheng, Ji, Wang, Yu and Chen, "NeuronFair: Interpretable White-Box Fairness Testing through
Biased Neuron Identification", ICSE 2022, Algorithms 2 and 3. Where the text leaves a choice, or its authors' program
makes another one, there is a switch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from neuronfair.errors import NeuronFairError
from neuronfair.search.judge import Judgement
from neuronfair.search.method import State, World
from neuronfair.search.steps import FLOOR, inverse_influence, metropolis, one_attribute, random_neighbours, where

KICK = 2 / 3  # the share of attributes that a random step changes, as in the authors' program
LOG_FLOOR = 1e-6  # ReLU outputs can be exactly 0; the logarithm needs a floor
MANY_NEURONS = 1 << 13  # in a larger layer r takes each neuron by chance: ranking all of them would be the slowest step


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
    kick: bool = False  # globally, a random step where the gradient leads nowhere or back

    def start(self, world: World, state: State) -> State:
        """Return the walkers with no momentum yet."""
        if world.profile is None:
            raise NeuronFairError("NeuronFair needs the biased neurons: give the search the profile of interpret()")
        rows = state["rows"]
        zero = world.no_gradient(rows)
        missed = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        return state | {"g": zero, "g_twin": zero, "base": rows, "twin": rows, "missed": missed, "last": rows}

    def ask(self, world: World, state: State, t: int) -> Tensor:
        """Return the rows chosen after the last judgement, at first the seeds."""
        return state["rows"]

    def tell(self, world: World, state: State, rows: Tensor, judgement: Judgement, t: int) -> State:
        """Choose where to go on from, update the gradients there, and take a step."""
        accepted = self._accepted(world, state, judgement.discriminates, t)
        new = {"base": rows, "twin": judgement.twin, "missed": ~judgement.discriminates}
        state = state | where(accepted, new, state)
        state = state | self._momentum(world, state, t)
        step = self._local_step if self.local else self._global_step
        return state | {"rows": world.domain.move(state["base"], step(world, state, t)), "last": state["base"]}

    def _accepted(self, world: World, state: State, found: Tensor, t: int) -> Tensor:
        if self.after_miss == "walk" or t == 0:
            return torch.ones_like(found)
        if self.after_miss == "reset":
            return found
        return metropolis(world, state, found, t)

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
        if neurons > MANY_NEURONS:
            return u < self.extra_share
        count = int(neurons * self.extra_share)
        return u.argsort(1).argsort(1) < count

    def _global_step(self, world: World, state: State, t: int) -> Tensor:
        domain, base = world.domain, state["base"]
        codes = world.network.encoding.uphill(state["g"] + state["g_twin"], base)
        if not self.kick:
            return codes
        moved = domain.move(base, codes)
        nowhere = (moved == base).all(1, keepdim=True) | (moved == state["last"]).all(1, keepdim=True)
        moves = world.draws.uniform(t, state["origin"], base.shape[1], use="kick") < KICK
        return torch.where(nowhere, torch.where(moves, random_neighbours(world, state, base, t), base), codes)

    def _local_step(self, world: World, state: State, t: int) -> Tensor:
        encoding, base, g, g_twin = world.network.encoding, state["base"], state["g"], state["g_twin"]
        codes = (
            encoding.uphill(g + g_twin, base) if self.sign == "gradient" else random_neighbours(world, state, base, t)
        )
        if self.choice == "inverse":
            return one_attribute(world, state, base, codes, inverse_influence(world, base, g, g_twin), t)
        # Algorithm 3, lines 10 to 16: every attribute for itself.
        size = encoding.influence(g + g_twin, base).double()
        inverse = (1 / size.clamp(min=FLOOR)).masked_fill(~world.domain.free, -torch.inf)
        u = world.draws.uniform(t, state["origin"], base.shape[1], use="choice")
        return torch.where(u < inverse.softmax(1), codes, base)
