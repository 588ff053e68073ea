"""SymbGen: leave the decision path of a tree that imitates the network, one constraint at a time.

Aggarwal, Lohia, Nagar, Dey and Saha, "Black Box Fairness Testing of Machine Learning Models", ESEC/FSE 2019, with the
ranks of the program that was published with ADF. It asks the network for scores only, so that may be a black box.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from neuronfair.model.encoding import ROWS_PER_PASS
from neuronfair.search.judge import Judgement
from neuronfair.search.method import State, World
from neuronfair.search.methods.memory import NOBODY, empty_memory, knows, remember
from neuronfair.search.methods.surrogate import Bins, Path, grow

SEED_RANK, LOCAL_RANK, GLOBAL_RANK = 5.0, 1.0, 10.0  # the lowest rank is judged next
LEAST_CONFIDENCE = 0.3  # T1: the global search goes down a path while the row's side holds this share
REDRAWN = 0.5  # the chance of an attribute to be drawn anew in a neighbour
QUEUE = 64  # rows that wait, per walker; beyond that the last are dropped


@dataclass(frozen=True)
class SymbGen:
    """One phase of SymbGen; `local` says whether the paths of findings are searched, too. Every walker has a queue.

    The judged row is surrounded by `samples` neighbours, and a tree learns which of them are decided as the row is.
    Then each constraint on the row's path, down to `depth`, is negated in turn. A child is a random point of the box
    that is left, where the published program takes whatever its solver returns; rules may push it out again. Nominal
    attributes are split by their codes, as published.

    The neighbours go through the network without being counted as judged.
    """

    local: bool = False
    samples: int = 500
    depth: int = 10

    def start(self, world: World, state: State) -> State:
        """Return the walkers with nobody but their seed in the queue."""
        rows = state["rows"]
        queue = torch.zeros(len(rows), QUEUE, rows.shape[1], dtype=world.domain.compact, device=rows.device)
        queue[:, 0] = rows
        ranks = torch.full(queue.shape[:2], torch.inf, dtype=torch.float64, device=rows.device)
        ranks[:, 0] = SEED_RANK
        memory = remember(empty_memory(len(rows), rows.device), world.domain.key(rows)[:, None])
        return state | {"queue": queue, "ranks": ranks, "memory": memory}

    def ask(self, world: World, state: State, t: int) -> Tensor:
        """Return the row of the lowest rank, or a random neighbour of the seed where the queue is empty."""
        seeds = state["rows"]
        u = world.draws.uniform(t, state["origin"], 2 * seeds.shape[1], use="restart")[:, None]
        restart = world.domain.move(seeds, neighbours(world, seeds, u)[:, 0])
        return torch.where(state["ranks"][:, :1].isinf(), restart, state["queue"][:, 0].long())

    def tell(self, world: World, state: State, rows: Tensor, judgement: Judgement, t: int) -> State:
        """Queue the children of the judged rows, unless they were queued before."""
        # A few walkers at a time: memory stays flat.
        parts = [
            torch.split(x, max(1, ROWS_PER_PASS // self.samples))
            for x in (state["origin"], rows, judgement.scores, judgement.discriminates)
        ]
        born = [self._children(world, t, *part) for part in zip(*parts, strict=True)]
        children, ranks = (torch.cat(x) for x in zip(*born, strict=True))
        keys = world.domain.key(children)
        twice = ((keys[:, :, None] == keys[:, None]) & ranks.isfinite()[:, None]).tril(-1).any(2)
        ranks = ranks.masked_fill(twice | knows(state["memory"], keys), torch.inf)
        memory = remember(state["memory"], keys.masked_fill(ranks.isinf(), NOBODY))
        # The first place of the queue was just judged.
        ranks, order = torch.cat([state["ranks"][:, 1:], ranks], 1).sort(dim=1, stable=True)
        queue = torch.cat([state["queue"][:, 1:], children.to(world.domain.compact)], 1)
        queue = queue.gather(1, order[:, :QUEUE, None].expand(-1, -1, rows.shape[1]))
        return state | {"queue": queue, "ranks": ranks[:, :QUEUE], "memory": memory}

    def _children(
        self, world: World, t: int, origin: Tensor, rows: Tensor, scores: Tensor, found: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the children of rows, the local ones first, and their ranks: (n, m, d) and (n, m)."""
        path = self._path(world, rows, scores, t)
        u = world.draws.uniform(t, origin, self.depth * rows.shape[1], use="solve").view(len(rows), self.depth, -1)
        children, ranks = _beyond(world, rows, path, u, local=False)
        if not self.local:
            return children, ranks
        u = world.draws.uniform(t, origin, self.depth * rows.shape[1], use="solve locally").view_as(u)
        near, first = _beyond(world, rows, path, u, local=True)
        first = first.masked_fill(~found[:, None], torch.inf)
        return torch.cat([near, children], 1), torch.cat([first, ranks], 1)

    def _path(self, world: World, rows: Tensor, scores: Tensor, t: int) -> Path:
        """Return each row's path through the tree of its neighbours: those decided as it is, and all others."""
        # The same numbers serve all walkers. They depend on the step only, so batches change nothing.
        everybody = torch.zeros(1, dtype=torch.int64, device=rows.device)
        u = world.draws.uniform(t, everybody, self.samples * 2 * rows.shape[1], use="neighbours")
        near = neighbours(world, rows, u.view(1, self.samples, -1))
        others = world.network.scores(near.flatten(0, 1)).view(*near.shape[:2], world.network.outputs)
        labels = world.decision.differ(scores[:, None], others)
        return grow(Bins(world.domain), rows, near, labels, self.depth)


def neighbours(world: World, rows: Tensor, u: Tensor) -> Tensor:
    """Return rows with some attributes drawn anew, the sensitive ones too, from numbers u in [0, 1): (n, s, d).

    LIME, which the published program uses, draws from the training table, by default whatever the row is. Here each
    attribute keeps the row's value with a chance of one half and is uniform otherwise, or a plausible person's where
    the search stays among those; rules play no part.
    """
    choice, v = u.chunk(2, 2)
    return torch.where(choice < REDRAWN, world.anywhere(v), rows[:, None])


def _beyond(world: World, rows: Tensor, path: Path, u: Tensor, *, local: bool) -> tuple[Tensor, Tensor]:
    """Return a row beyond each constraint of its path, and its rank: (n, depth, d) and (n, depth).

    Locally, only the attribute of the negated constraint moves, and the rest of the path is kept. Globally, the path
    before the negated constraint is kept and what comes after it is let go. The rank is infinite where no such row is.
    """
    domain, depth = world.domain, path.column.shape[1]
    free = path.exists & domain.free[path.column]
    paths = path.negated_in_turn()  # (n, child, constraint)
    if local:
        kept, exists = paths.exists, free
        solved = kept & (paths.column == path.column[:, :, None])
    else:
        kept = solved = free[:, None].expand(-1, depth, -1).tril()
        exists = free & ((path.confidence >= LEAST_CONFIDENCE) | ~free).cumprod(1).bool()
    # Constraints are intervals, so their solutions are a box. (n, child, constraint, d)
    holds = solved[..., None] & one_hot(paths.column, rows.shape[1]).bool()
    low, high = paths.intervals(domain.sizes)
    low = torch.where(holds, low[..., None], 0).amax(2)
    high = torch.where(holds, high[..., None], domain.sizes - 1).amin(2)
    codes = torch.where(holds.any(2), low + (u * (high - low + 1)).long(), rows[:, None])
    children = domain.move(rows.repeat_interleave(depth, 0), codes.flatten(0, 1)).view_as(codes)
    mean = (paths.confidence * kept).sum(2) / kept.sum(2).clamp(min=1)
    rank = LOCAL_RANK + mean if local else GLOBAL_RANK - mean
    return children, rank.masked_fill(~exists | (low > high).any(2), torch.inf)
