"""Formulas that several methods share: what to differentiate, which attribute to change, whether to accept a miss."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from neuronfair.domain.population.plausible import Plausible
from neuronfair.model.decision import Decision
from neuronfair.searches.method import State, World

FLOOR = 1e-9  # stands for a gradient of 0 where its inverse is needed: attributes without influence share the chances
SAFE = 0.03  # the share of its room that a row may lose without being thought the worse of
TEMPERATURE = 1.0  # of the Metropolis test in the published programs, where a miss after a finding costs 1


def confidence(decision: Decision, scores: Tensor) -> Tensor:
    """Return how sure the decision on each row is: the probability of its class, or its way to the threshold: (n,)."""
    if decision.kind == "argmax":
        return scores.softmax(1).amax(1)
    return (scores[:, -1] - decision.boundary).abs()


def room(decision: Decision, scores: Tensor) -> Tensor:
    """Return how far each member of a pair may go before its decision changes: (2 n,), the rows and then the twins.

    It is the lead of the class that is decided, or the way to the threshold. A tolerance has no such boundary: there
    it is how far the gap of the pair exceeds the tolerance.
    """
    if decision.kind == "argmax":
        if scores.shape[1] == 2:  # a third of the time of topk; of equal scores the first is decided, as there
            lead = scores[:, 0] - scores[:, 1]
            return torch.where(lead.detach() < 0, -lead, lead)
        best, second = scores.topk(2, 1).values.unbind(1)
        return best - second
    score = scores[:, -1]
    if decision.kind == "tolerance":
        return (score - exchanged(score)).abs() - decision.value
    return (score - decision.boundary).abs()


def exchanged(pairs: Tensor) -> Tensor:
    """Return what belongs to the twins in the place of the rows and the other way round, as constants."""
    return torch.cat(pairs.detach().chunk(2)[::-1])


def in_scale(world: World, state: State, base: Tensor, codes: Tensor, t: int) -> Tensor:
    """Return the codes with steps of one code as long as steps are in the table: `World.step_sizes`."""
    if world.step_sizes is None:
        return codes
    return world.step_sizes.stretched(base, codes, world.draws.uniform(t, state["origin"], base.shape[1], use="pace"))


def uphill(world: World, state: State, base: Tensor, g: Tensor, t: int) -> Tensor:
    """Return the codes that a step along a gradient leads to: (n, d)."""
    return in_scale(world, state, base, world.network.encoding.uphill(g, base), t)


def agreed(world: World, state: State, base: Tensor, g: Tensor, g_twin: Tensor, t: int) -> Tensor:
    """Return the codes that both gradients lead to, uphill, and the old ones where they disagree: (n, d)."""
    return in_scale(world, state, base, world.network.encoding.agreed(g, g_twin, base), t)


def inverse_influence(world: World, base: Tensor, g: Tensor, g_twin: Tensor) -> Tensor:
    """Return a weight for each attribute, the larger the less it moves a row and its twin: 1 / (|g| + |g'|), (n, d)."""
    size = world.network.encoding.influence(g, base).double() + world.network.encoding.influence(g_twin, base)
    if world.step_sizes is not None:
        size = size * world.reach
    return (1 / size.clamp(min=FLOOR)) * world.domain.free


def inverse_harm(world: World, state: State, codes: Tensor) -> Tensor:
    """Return a weight for each attribute's own move, the larger the less of its room the row or its twin loses: (n, d).

    `state` holds both rooms and their gradients, which predict the loss: `base`, `room`, `g` and `g_twin`.
    """
    base, effects = state["base"], world.network.encoding.effects
    left = state["room"].double().clamp(min=FLOOR)
    one, other = (
        effects(state[name], base, None, codes).double().div_(left[:, i, None])
        for i, name in enumerate(("g", "g_twin"))
    )
    harm = torch.minimum(one, other).neg_()  # a loss is an effect below 0
    return (1 / harm.clamp_(min=SAFE)) * (world.domain.free & (codes != base))


def choose(world: World, state: State, weights: Tensor, t: int) -> Tensor:
    """Return one attribute for each chain, drawn with probability in proportion to its weights: (n, 1)."""
    # A GPU takes half a millisecond to add up many short lines, and a fiftieth of that for few long ones.
    ends = weights.cumsum(1) if weights.device.type == "cpu" else weights.T.contiguous().cumsum(0).T.contiguous()
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
    u = world.draws.uniform(t, state["origin"], base.shape[1], use="sign")
    return in_scale(world, state, base, world.domain.neighbours(base, u), t)


def metropolis(world: World, state: State, found: Tensor, t: int) -> Tensor:
    """Return whether each chain goes on from its new row: after a miss that follows a finding, with probability 1/e.

    `state["missed"]` says whether the row it stands on is a miss itself. This is what basin hopping, the optimiser in
    the published programs, does with an objective of 0 for a finding and 1 for a miss.
    """
    u = world.draws.uniform(t, state["origin"], 1, use="metropolis")[:, 0]
    return found | state["missed"] | (u < math.exp(-1 / TEMPERATURE))


def where(condition: Tensor, new: State, old: State) -> State:
    """Return the new values for the chains that meet the condition, and the old ones for the others."""
    return {name: torch.where(condition.view(-1, *[1] * (x.dim() - 1)), x, old[name]) for name, x in new.items()}


def renewed(marked: Tensor, old: State, make: Callable[[Tensor | slice], State]) -> State:
    """Return the old values with those of the marked chains made anew.

    `make` is told for whom: on a CPU for these alone, on a GPU for all, since to count them would wait for it.
    """
    if marked.device.type != "cpu":
        return where(marked, make(slice(None)), old)
    some = marked.nonzero()[:, 0]
    if len(some) == 0:
        return old
    return {name: old[name].index_copy(0, some, x) for name, x in make(some).items()}
