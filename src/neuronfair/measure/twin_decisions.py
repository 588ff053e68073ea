"""What a model decides for people and for their counterfactual twins, counted by person and by group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import islice

import torch
from torch import Tensor

from neuronfair.domain.interface import TwinRows
from neuronfair.domain.population.counterfactuals import CounterfactualTwins
from neuronfair.domain.table import TableDomain
from neuronfair.measure.direction import favourable_class
from neuronfair.measure.mediators import CounterfactualPairs
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision

AT_ONCE = 1 << 16  # counterparts that the model is asked about together


@dataclass(frozen=True)
class Move:
    """How people of one group fare as people of another: shares of their counterparts."""

    own: tuple[int, ...]  # sensitive codes
    other: tuple[int, ...]
    people: int
    flips: float  # different decisions
    lost: float = 0.0  # the favourable class is decided for the person, and not for the counterpart
    gained: float = 0.0  # the other way round


class ScoredPeople:
    """A model, and what it says of some people and of who differs from them in the group only."""

    def __init__(self, model: Model, domain: TableDomain, people: Tensor, decision: Decision) -> None:
        self._model, self._domain, self._people, self._decision = model, domain, people, decision
        self._flipped = domain.twins(people).rows
        self._own = self._scores(people)
        self._flipped_scores = self._scores(self._flipped.flatten(0, 1)).view(*self._flipped.shape[:2], -1)
        self.favourable = favourable_class(domain, decision, model.outputs)
        self.outcome = self.favourable  # the class that is lost or gained: without a favourable outcome, the rarest
        if self.favourable is None and decision.classes(model.outputs):
            counts = torch.bincount(decision.chosen(self._own), minlength=decision.classes(model.outputs))
            self.outcome = int(torch.where(counts > 0, counts, len(people) + 1).argmin())

    def _scores(self, rows: Tensor) -> Tensor:
        parts = torch.split(rows, max(1, self._model.encoding.rows_per_pass))
        return torch.cat([self._model.scores(part) for part in parts])

    def tally(self, grouped: Tensor, draws: Iterable[TwinRows], *, flipped: bool) -> TwinTally:
        """Compare the decisions for the people and for their counterparts.

        `grouped` are the people with the groups that were used. Of shuffled groups the model knows nothing: then
        (`flipped` False) it is asked about counterparts with the person's own sensitive values.
        """
        columns, own = list(self._domain.sensitive_columns), self._own[:, None, None]
        base, known = self._flipped, self._flipped_scores
        if not flipped:
            base, known = self._people[:, None].expand_as(base), self._own[:, None].expand_as(known)
        counts = torch.zeros(4, *base.shape[:2], device=base.device)
        draws, together = iter(draws), max(1, AT_ONCE // max(1, base.shape[0] * base.shape[1]))
        while several := list(islice(draws, together)):  # of few people, who make a small batch alone
            rows, valid = (torch.stack(parts, 1) for parts in zip(*several, strict=True))
            if not flipped:
                rows[..., columns] = self._people[:, None, None, columns]
            # Who differs in nothing but the group is asked about once.
            moved = (rows != base[:, None]).any(-1) & valid
            scores = known[:, None].repeat(1, len(several), 1, 1)
            if bool(moved.any()):
                scores[moved] = self._scores(rows[moved])
            seen = [valid, self._decision.differ(own, scores)]
            if self.outcome is not None:
                before, after = (self._decision.chosen(s) == self.outcome for s in (own, scores))
                seen += [before & ~after, ~before & after]
            for count, one in zip(counts, seen, strict=False):
                count += (one & valid).sum(1)
        has = torch.zeros(len(self._own), dtype=torch.bool, device=base.device)
        if self.outcome is not None:
            has = self._decision.chosen(self._own) == self.outcome
        return TwinTally(counts[0], counts[1], counts[2], counts[3], self._domain.combinations.number(grouped), has)

    def pairs(
        self, counterparts: CounterfactualTwins, most: int, domain: TableDomain, grouped: Tensor
    ) -> CounterfactualPairs:
        """Return some people with one of their twins each, and the model that decides; `grouped` as in `tally`.

        Both have the sensitive values that the person has where groups are shuffled, since the model knows nothing of
        that.
        """
        many = max(1, most // self._flipped.shape[1])
        twins = next(counterparts.drawn(domain, grouped[:many], 1))
        exists = twins.valid.nonzero()
        people, others = self._people[:many][exists[:, 0]], twins.rows[twins.valid]
        if not torch.equal(grouped, self._people):
            columns = list(self._domain.sensitive_columns)
            others[:, columns] = people[:, columns]
        return CounterfactualPairs(self._scores, self._decision, people, others)


@dataclass(frozen=True)
class TwinTally:
    """What was counted of each person's counterparts in each other group."""

    count: Tensor  # (n, k)
    flips: Tensor
    lost: Tensor
    gained: Tensor
    group: Tensor  # (n,) the number of the combination of sensitive values
    has: Tensor  # (n,) bool: who gets the class that is lost or gained

    def of(self, some: Tensor) -> TwinTally:
        """Return what was counted of some of the people, (n,) bool."""
        return TwinTally(*(getattr(self, field.name)[some] for field in fields(self)))

    @property
    def shares(self) -> Tensor:
        """The share of each person's twins that get a different decision: (n,)."""
        return self.flips.sum(1) / self.count.sum(1).clamp(min=1)

    def rate(self) -> float:
        """Return the mean share of those who have counterparts."""
        return self.mean(self.flips)

    def mean(self, counted: Tensor) -> float:
        """Return the mean over people of the share of counterparts that were counted."""
        every = self.count.sum(1)
        shares = (counted.sum(1) / every.clamp(min=1)).double()
        return float(shares.sum() / (every > 0).sum().clamp(min=1))

    def moves(self, domain: TableDomain) -> tuple[Move, ...]:
        """Return how people of each group fare as people of each other one."""
        values = [tuple(codes) for codes in domain.sensitive_values.tolist()]
        places = torch.arange(1, len(values), device=self.group.device)
        pairs = self.group[:, None] * len(values) + (self.group[:, None] + places) % len(values)
        cells, cell = torch.unique(pairs, return_inverse=True)
        sums = torch.zeros(5, len(cells), dtype=torch.float64, device=cell.device)
        every = (self.count, self.count > 0, self.flips, self.lost, self.gained)
        sums.index_add_(1, cell.flatten(), torch.stack([counted.flatten().double() for counted in every]))
        return tuple(
            Move(values[i // len(values)], values[i % len(values)], int(people), *(part / count for part in parts))
            for i, (count, people, *parts) in zip(cells.tolist(), sums.T.tolist(), strict=True)
            if count
        )


def mean_moves(every: Sequence[Sequence[Move]]) -> tuple[Move, ...]:
    """Return the means of several tables, move by move."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Move]] = {}
    for move in (move for moves in every for move in moves):
        found.setdefault((move.own, move.other), []).append(move)
    return tuple(
        Move(
            *pair,
            round(sum(move.people for move in moves) / len(moves)),
            *(sum(getattr(move, part) for move in moves) / len(moves) for part in ("flips", "lost", "gained")),
        )
        for pair, moves in found.items()
    )
