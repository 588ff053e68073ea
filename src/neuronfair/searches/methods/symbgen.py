"""SymbGen: leave the decision path of a tree that approximates the network, one constraint at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from neuronfair.domain.twins import Domain
from neuronfair.model.encoding import ROWS_PER_PASS
from neuronfair.searches.evaluate import Evaluation
from neuronfair.searches.keys import NO_KEY, empty_memory, knows, remember
from neuronfair.searches.method import SearchContext, State

MAX_BINS = 128  # an attribute with more codes is split between 128 bins of about equal width only


class Path(NamedTuple):
    """The constraints on each row's way from the root, level by level: (n, depth) each."""

    column: Tensor  # the attribute that is tested
    threshold: Tensor  # codes up to this one go left, larger ones right
    left: Tensor  # whether the row goes left
    confidence: Tensor  # the share of the node's samples that go the same way as the row: float64
    exists: Tensor  # False from the level on where the node is pure

    def negate_in_turn(self) -> Path:
        """Return the path once for each of its constraints, with that one negated: (n, depth, depth) each."""
        depth = self.column.shape[1]
        is_negated = torch.eye(depth, dtype=torch.bool, device=self.column.device)
        copies = Path(*(x[:, None].expand(-1, depth, -1) for x in self))
        confidence = torch.where(is_negated, 1 - copies.confidence, copies.confidence)
        return copies._replace(left=copies.left ^ is_negated, confidence=confidence)

    def intervals(self, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the lowest and the highest code that each constraint allows, given the sizes of the attributes."""
        low = torch.where(self.left, 0, self.threshold + 1)
        return low, torch.where(self.left, self.threshold, sizes[self.column] - 1)


class CodeCells:
    """The codes of all attributes in one line of cells: one per code, or per bin of codes where these are many."""

    def __init__(self, domain: Domain) -> None:
        self._sizes, self._bins = domain.sizes, domain.sizes.clamp(max=MAX_BINS)
        self._first = self._bins.cumsum(0) - self._bins
        self._coarse = bool((self._bins < self._sizes).any())
        self.column = torch.repeat_interleave(self._bins)  # the attribute of each cell
        number = torch.arange(len(self.column), device=domain.device) - self._first[self.column]
        self.lowest, self.highest = self._first_code(number), self._first_code(number + 1) - 1  # the codes of each cell

    def _first_code(self, number: Tensor) -> Tensor:
        return -(-number * self._sizes[self.column] // self._bins[self.column])  # rounded up

    def cells(self, rows: Tensor) -> Tensor:
        """Return the cells of codes: (…, d)."""
        return (rows * self._bins // self._sizes if self._coarse else rows) + self._first


def grow_tree_paths(code_cells: CodeCells, rows: Tensor, samples: Tensor, labels: Tensor, depth: int) -> Path:
    """Return the path of each row (n, d) through the tree of its own samples (n, s, d) with two classes: bool, (n, s).

    As in scikit-learn a node is split until it is pure, halfway between two codes that its samples have. Of equally
    good splits the first attribute's is taken, and of these the lowest.
    """
    n, s, d = samples.shape
    indices, width = torch.arange(n, device=rows.device), len(code_cells.column)
    node = indices.repeat_interleave(s)  # the row in whose node each sample is
    cells, labels = code_cells.cells(samples).view(-1, d), labels.flatten()
    levels = []
    for _ in range(depth):
        index = ((node * 2 + labels) * width)[:, None] + cells
        counts = torch.bincount(index.flatten(), minlength=2 * n * width).view(n, 2, width)
        cumulative = counts.cumsum(2)
        total = cumulative[..., -1:] // d  # every sample stands in one cell of each attribute
        left = cumulative - total * code_cells.column  # the attributes before this one have passed every sample once
        best_cell, exists = _find_best_split(counts, left, total - left)
        column, cumulative = code_cells.column[best_cell], cumulative.sum(1)
        # The next code of the samples is where more of them have passed.
        at_best = cumulative[indices, best_cell][:, None]
        next_cell = torch.searchsorted(cumulative, at_best, right=True)[:, 0].clamp(max=width - 1)
        threshold = (code_cells.highest[best_cell] + code_cells.lowest[next_cell]) // 2
        goes_left = rows[indices, column] <= threshold
        share = left.sum(1)[indices, best_cell].double() / total.sum((1, 2)).clamp(min=1)
        levels.append(Path(column, threshold, goes_left, torch.where(goes_left, share, 1 - share), exists))
        cell = cells.gather(1, column[node][:, None])[:, 0]
        remains = ((cell <= best_cell[node]) == goes_left[node]) & exists[node]
        node, cells, labels = node[remains], cells[remains], labels[remains]
    return Path(*(torch.stack(parts, 1) for parts in zip(*levels, strict=True)))


def _find_best_split(counts: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cell after which to split, and whether the node can be split: (n,) each.

    All counts are (n, 2, cells): how many samples of each class stand in a cell, up to it, and after it. The Gini
    impurity that is left is least where Σ nₖ² / Σ nₖ, added over both sides, is largest.
    """
    possible = (counts.sum(1) > 0) & (right.sum(1) > 0)
    merit = (left.double() ** 2).sum(1) / left.sum(1) + (right.double() ** 2).sum(1) / right.sum(1)
    merit, best = torch.where(possible, merit, -torch.inf).max(1)
    mixed = (left + right)[..., 0].amin(1) > 0
    return best, mixed & torch.isfinite(merit)


SEED_RANK, LOCAL_RANK, GLOBAL_RANK = 5.0, 1.0, 10.0  # the lowest rank is evaluated next
MIN_CONFIDENCE = 0.3  # T1: the global search goes down a path while the row's side holds this share
REDRAW_CHANCE = 0.5  # the chance of an attribute to be redrawn in a neighbour
ROWS_PER_QUEUE = 64  # rows that wait, per chain; beyond that the last are dropped


@dataclass(frozen=True)
class SymbGen:
    """One phase of SymbGen; `local` says whether the paths of findings are searched, too. Every chain has a queue.

    A tree learns which of `samples` neighbours of the evaluated row get the same decision as the row. Then each
    constraint on the row's path, down to `depth`, is negated in turn. A child is a random point of the remaining box,
    where the published program takes whatever its solver returns; rules may push it out again. Nominal attributes are
    split by their codes, as published. The neighbours do not count as evaluated.
    """

    local: bool = False
    samples: int = 500
    depth: int = 10

    def start(self, context: SearchContext, state: State) -> State:
        """Return the chains with only their seed in the queue."""
        rows = state["rows"]
        queue = torch.zeros(len(rows), ROWS_PER_QUEUE, rows.shape[1], dtype=context.domain.compact, device=rows.device)
        queue[:, 0] = rows
        ranks = torch.full(queue.shape[:2], torch.inf, dtype=torch.float64, device=rows.device)
        ranks[:, 0] = SEED_RANK
        memory = remember(empty_memory(len(rows), rows.device), context.domain.key(rows)[:, None])
        return state | {"queue": queue, "ranks": ranks, "memory": memory}

    def ask(self, context: SearchContext, state: State, t: int) -> Tensor:
        """Return the row of the lowest rank, or a random neighbour of the seed if the queue is empty."""
        seeds = state["rows"]
        u = context.draws.uniform(t, state["origin"], 2 * seeds.shape[1], use="restart")[:, None]
        restart = context.domain.move(seeds, draw_relatives(context, seeds, u)[:, 0])
        return torch.where(state["ranks"][:, :1].isinf(), restart, state["queue"][:, 0].long())

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Queue the children of the evaluated rows, unless they were queued before."""
        # A few chains at a time: memory stays flat.
        parts = [
            torch.split(x, max(1, ROWS_PER_PASS // self.samples))
            for x in (state["origin"], rows, evaluation.scores, evaluation.discriminates)
        ]
        families = [self._make_children(context, t, *part) for part in zip(*parts, strict=True)]
        children, ranks = (torch.cat(x) for x in zip(*families, strict=True))
        keys = context.domain.key(children)
        is_repeated = ((keys[:, :, None] == keys[:, None]) & ranks.isfinite()[:, None]).tril(-1).any(2)
        ranks = ranks.masked_fill(is_repeated | knows(state["memory"], keys), torch.inf)
        memory = remember(state["memory"], keys.masked_fill(ranks.isinf(), NO_KEY))
        # The head of the queue was just evaluated.
        ranks, order = torch.cat([state["ranks"][:, 1:], ranks], 1).sort(dim=1, stable=True)
        queue = torch.cat([state["queue"][:, 1:], children.to(context.domain.compact)], 1)
        queue = queue.gather(1, order[:, :ROWS_PER_QUEUE, None].expand(-1, -1, rows.shape[1]))
        return state | {"queue": queue, "ranks": ranks[:, :ROWS_PER_QUEUE], "memory": memory}

    def _make_children(
        self, context: SearchContext, t: int, origin: Tensor, rows: Tensor, scores: Tensor, discriminates: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the children of rows, the local ones first, and their ranks: (n, m, d) and (n, m)."""
        path = self._learn_path(context, rows, scores, t)
        u = context.draws.uniform(t, origin, self.depth * rows.shape[1], use="solve").view(len(rows), self.depth, -1)
        children, ranks = _negate_path(context, rows, path, u, local=False)
        if not self.local:
            return children, ranks
        u = context.draws.uniform(t, origin, self.depth * rows.shape[1], use="solve locally").view_as(u)
        local_children, local_ranks = _negate_path(context, rows, path, u, local=True)
        local_ranks = local_ranks.masked_fill(~discriminates[:, None], torch.inf)
        return torch.cat([local_children, children], 1), torch.cat([local_ranks, ranks], 1)

    def _learn_path(self, context: SearchContext, rows: Tensor, scores: Tensor, t: int) -> Path:
        """Return each row's path through the tree that separates neighbours with its decision from the others."""
        # All chains use the same numbers. These depend on the step only, so batches change nothing.
        shared = torch.zeros(1, dtype=torch.int64, device=rows.device)
        u = context.draws.uniform(t, shared, self.samples * 2 * rows.shape[1], use="neighbours")
        relatives = draw_relatives(context, rows, u.view(1, self.samples, -1))
        relative_scores = context.network.scores(relatives.flatten(0, 1)).view(*relatives.shape[:2], -1)
        labels = context.decision.differ(scores[:, None], relative_scores)
        return grow_tree_paths(CodeCells(context.domain), rows, relatives, labels, self.depth)


def draw_relatives(context: SearchContext, rows: Tensor, u: Tensor) -> Tensor:
    """Return rows with some attributes redrawn, the sensitive ones too, by numbers u in [0, 1): (n, s, d).

    LIME, which the published program uses, draws from the training table, by default regardless of the row. Here each
    attribute keeps the row's value with a chance of one half and is uniform otherwise, or from a plausible record in a
    search among these. Rules are ignored.
    """
    choice, v = u.chunk(2, 2)
    return torch.where(choice < REDRAW_CHANCE, context.draw_codes(v), rows[:, None])


def _negate_path(context: SearchContext, rows: Tensor, path: Path, u: Tensor, *, local: bool) -> tuple[Tensor, Tensor]:
    """Return a row beyond each constraint of its path, and its rank: (n, depth, d) and (n, depth).

    Locally, only the attribute of the negated constraint moves, and the rest of the path is kept. Globally, the path
    before the negated constraint is kept, and the path after it is dropped. Without such a row the rank is infinite.
    """
    domain, depth = context.domain, path.column.shape[1]
    free = path.exists & domain.changeable[path.column]
    paths = path.negate_in_turn()  # (n, child, constraint)
    if local:
        required, exists = paths.exists, free
        solved = required & (paths.column == path.column[:, :, None])
    else:
        required = solved = free[:, None].expand(-1, depth, -1).tril()
        exists = free & ((path.confidence >= MIN_CONFIDENCE) | ~free).cumprod(1).bool()
    # Constraints are intervals, so their solutions are a box. (n, child, constraint, d)
    is_constrained = solved[..., None] & one_hot(paths.column, rows.shape[1]).bool()
    low, high = paths.intervals(domain.sizes)
    low = torch.where(is_constrained, low[..., None], 0).amax(2)
    high = torch.where(is_constrained, high[..., None], domain.sizes - 1).amin(2)
    codes = torch.where(is_constrained.any(2), low + (u * (high - low + 1)).long(), rows[:, None])
    children = domain.move(rows.repeat_interleave(depth, 0), codes.flatten(0, 1)).view_as(codes)
    mean = (paths.confidence * required).sum(2) / required.sum(2).clamp(min=1)
    ranks = LOCAL_RANK + mean if local else GLOBAL_RANK - mean
    return children, ranks.masked_fill(~exists | (low > high).any(2), torch.inf)
