"""Formulas that several methods share: what to differentiate, which attribute to change, whether to accept a miss."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from neuronfair.domain.plausible import Plausible
from neuronfair.model.decision import Decision
from neuronfair.search.method import State, World

FLOOR = 1e-9  # stands for a gradient of 0 where its inverse is needed: attributes without influence share the chances
TEMPERATURE = 1.0  # of the Metropolis test in the published programs, where a miss after a finding costs 1


def confidence(decision: Decision, scores: Tensor) -> Tensor:
    """Return how sure the decision on each row is: the probability of its class, or its way to the threshold: (n,)."""
    if decision.kind == "argmax":
        return scores.softmax(1).amax(1)
    return (scores[:, -1] - decision.boundary).abs()


def agreed(world: World, base: Tensor, g: Tensor, g_twin: Tensor) -> Tensor:
    """Return the codes that both gradients lead to, uphill, and the old ones where they disagree: (n, d)."""
    return world.network.encoding.agreed(g, g_twin, base)


def inverse_influence(world: World, base: Tensor, g: Tensor, g_twin: Tensor) -> Tensor:
    """Return a weight for each attribute, the larger the less it moves a row and its twin: 1 / (|g| + |g'|), (n, d)."""
    size = world.network.encoding.influence(g, base).double() + world.network.encoding.influence(g_twin, base)
    return (1 / size.clamp(min=FLOOR)) * world.domain.free


def choose(world: World, state: State, weights: Tensor, t: int) -> Tensor:
    """Return one attribute for each walker, drawn with probability in proportion to its weights: (n, 1)."""
    ends = weights.cumsum(1)
    u = world.draws.uniform(t, state["origin"], 1, use="choice") * ends[:, -1:]
    return torch.searchsorted(ends, u, right=True).clamp(max=weights.shape[1] - 1)


def one_attribute(world: World, state: State, base: Tensor, codes: Tensor, weights: Tensor, t: int) -> Tensor:
    """Return the rows with one attribute taken to its new code, drawn with probability in proportion to `weights`.

    Where the search stays among plausible people, those that would lead out are not drawn: often they weigh the most.
    """
    if isinstance(world.domain, Plausible):
        weights = weights * world.domain.can_change(base, codes)
    chosen = choose(world, state, weights, t)
    return base.scatter(1, chosen, codes.gather(1, chosen))


def random_neighbours(world: World, state: State, base: Tensor, t: int) -> Tensor:
    """Return for each attribute a neighbouring value, up or down at random: (n, d)."""
    return world.domain.neighbours(base, world.draws.uniform(t, state["origin"], base.shape[1], use="sign"))


def metropolis(world: World, state: State, found: Tensor, t: int) -> Tensor:
    """Return whether each walker goes on from its new row: after a miss that follows a finding, with probability 1/e.

    `state["missed"]` says whether the row it stands on is a miss itself. This is what basin hopping, the optimiser in
    the published programs, does with an objective of 0 for a finding and 1 for a miss.
    """
    u = world.draws.uniform(t, state["origin"], 1, use="metropolis")[:, 0]
    return found | state["missed"] | (u < math.exp(-1 / TEMPERATURE))


def where(condition: Tensor, new: State, old: State) -> State:
    """Return the new values for the walkers that meet the condition, and the old ones for the others."""
    return {name: torch.where(condition.view(-1, *[1] * (x.dim() - 1)), x, old[name]) for name, x in new.items()}
