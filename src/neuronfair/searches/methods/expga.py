"""ExpGA: records that an explanation calls sensitive, and a genetic algorithm that breeds from them.

Fan, Wei, Jin, Yang and Liu, "Explanation-Guided Fairness Testing through Genetic Algorithm", ICSE 2022. It asks
for scores only, so the model may be a black box. There all seeds are one population; here every chain owns a small
one, an island, since chains do not look at each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.model.encoding import ROWS_PER_PASS
from neuronfair.searches.evaluate import Evaluation
from neuronfair.searches.method import SearchContext, State
from neuronfair.searches.methods.symbgen import draw_relatives

FITNESS_FOUND, FITNESS_MISSED = 3.0, 1.0  # the fitness: 2 * |difference of the two decisions| + 1
CROSSOVER, MUTATION = 0.9, 0.05
CANDIDATES = 2  # random records, of which the one whose sensitive attributes weigh more is evaluated
RIDGE = 1.0  # of the linear model that explains


@dataclass(frozen=True)
class ExpgaGlobal:
    """The global phase: random records whose decision an explanation ascribes to a sensitive attribute.

    As in LIME, a linear model explains the scores of `samples` neighbours by which attributes keep their values. These
    neighbours do not count as evaluated.
    """

    samples: int = 100

    def start(self, context: SearchContext, state: State) -> State:
        """Return the chains unchanged: there is nothing to remember."""
        return state

    def ask(self, context: SearchContext, state: State, t: int) -> Tensor:
        """Return the seeds first, then random records whose sensitive attributes rank high."""
        seeds, domain, n = state["rows"], context.domain, len(state["rows"])
        if t == 0:
            return seeds
        u = context.draws.uniform(t, state["origin"], CANDIDATES * domain.draws_per_row, use="rows")
        candidates = domain.move(seeds.repeat_interleave(CANDIDATES, 0), domain.rows_at(u.view(n * CANDIDATES, -1)))
        ranks = self.count_heavier(context, candidates, t).view(n, CANDIDATES)
        return candidates.view(n, CANDIDATES, -1)[torch.arange(n, device=seeds.device), ranks.argmin(1)]

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Learn nothing."""
        return state

    def count_heavier(self, context: SearchContext, rows: Tensor, t: int) -> Tensor:
        """Return how many attributes weigh more than the heaviest sensitive one: (n,)."""
        shared = torch.zeros(1, dtype=torch.int64, device=rows.device)  # all chains use the same numbers
        u = context.draws.uniform(t, shared, self.samples * 2 * rows.shape[1], use="neighbours")
        # A few chains at a time: memory stays flat.
        parts = torch.split(rows, max(1, ROWS_PER_PASS // self.samples))
        return torch.cat([self._count_heavier(context, part, u.view(1, self.samples, -1)) for part in parts])

    def _count_heavier(self, context: SearchContext, rows: Tensor, u: Tensor) -> Tensor:
        relatives = draw_relatives(context, rows, u)
        scores = context.network.scores(relatives.flatten(0, 1)).view(*relatives.shape[:2], context.network.outputs)
        weights = explain_scores((relatives == rows[:, None]).double(), scores.double()).amax(2)
        sensitive = weights.masked_fill(context.domain.changeable, -torch.inf).amax(1, keepdim=True)
        return (weights > sensitive).sum(1)


def explain_scores(same_values: Tensor, scores: Tensor) -> Tensor:
    """Return the absolute weights of a linear model of the scores by the attributes that are kept: (n, d, outputs)."""
    x, y = same_values - same_values.mean(1, keepdim=True), scores - scores.mean(1, keepdim=True)
    square = x.transpose(1, 2) @ x
    square.diagonal(dim1=1, dim2=2).add_(RIDGE)
    weights: Tensor = torch.linalg.solve(square, x.transpose(1, 2) @ y)
    return weights.abs()


@dataclass(frozen=True)
class ExpgaLocal:
    """The local phase: every chain breeds a population of `members`, one of which is evaluated in each step.

    The first generation is the seed and its neighbours. When all are evaluated, as many children replace them: parents
    are drawn in proportion to their fitness, a run of attributes comes from a second parent, some values mutate.
    """

    members: int = 16

    def start(self, context: SearchContext, state: State) -> State:
        """Return the chains with a first generation: the seed, and its neighbours."""
        rows = state["rows"]
        n, d = rows.shape
        u = context.draws.uniform(0, state["origin"], self.members * 2 * d, use="first").view(n, self.members, 2 * d)
        relatives = draw_relatives(context, rows, u).flatten(0, 1)
        population = context.domain.move(rows.repeat_interleave(self.members, 0), relatives).view(n, self.members, d)
        population[:, 0] = rows
        fitness = torch.full((n, self.members), FITNESS_MISSED, dtype=torch.float64, device=rows.device)
        return state | {"people": population, "fitness": fitness}

    def ask(self, context: SearchContext, state: State, t: int) -> Tensor:
        """Return the next member of each island."""
        return state["people"][:, t % self.members]

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Record the fitness, and breed when all members have one."""
        fitness = state["fitness"].clone()
        fitness[:, t % self.members] = torch.where(evaluation.discriminates, FITNESS_FOUND, FITNESS_MISSED).double()
        if (t + 1) % self.members:
            return state | {"fitness": fitness}
        n, m, d = state["people"].shape
        u = context.draws.uniform(t, state["origin"], m * (5 + 2 * d), use="breed").view(n, m, 5 + 2 * d)
        children = breed(state["people"], fitness, u, context.domain.sizes)
        children = context.domain.move(state["people"].flatten(0, 1), children.flatten(0, 1)).view(n, m, d)
        return state | {"people": children, "fitness": torch.full_like(fitness, FITNESS_MISSED)}


def breed(population: Tensor, fitness: Tensor, u: Tensor, sizes: Tensor) -> Tensor:
    """Return as many children as there are parents, (n, m, d), by numbers u in [0, 1), (n, m, 5 + 2 d).

    The first number draws a parent in proportion to fitness, the second says whether there is a crossover, the third
    draws the other parent, uniformly, and the next two the run of attributes that come from that one. Then d numbers
    select the values that mutate, and d numbers give the new values.
    """
    m, d = population.shape[1:]
    ends = fitness.cumsum(1)
    mothers = torch.searchsorted(ends, (u[..., 0] * ends[:, -1:]).contiguous(), right=True).clamp(max=m - 1)
    fathers = (u[..., 2] * m).long()
    first, second = (population.gather(1, parents[..., None].expand(-1, -1, d)) for parents in (mothers, fathers))
    cuts = (u[..., 3:5] * (d + 1)).long().sort(2).values
    column = torch.arange(d, device=population.device)
    from_second = (column >= cuts[..., :1]) & (column < cuts[..., 1:]) & (u[..., 1:2] < CROSSOVER)
    children = torch.where(from_second, second, first)
    chance, value = u[..., 5 : 5 + d], u[..., 5 + d :]
    return torch.where(chance < MUTATION, (value * sizes).long(), children)
