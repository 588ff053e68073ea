"""The truth about a small domain: everybody is asked, in float64.

People who differ in the sensitive attributes only are one *family*; whether its members are decided alike holds for all
of them. Codes of an attribute that neither the model nor a rule tells apart are one *group* and asked about once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from neuronfair.domain.table import TableDomain
from neuronfair.model.decision import Decision
from neuronfair.model.forest import Forest

import torch
from torch import Tensor

AT_ONCE = 1 << 14  # rows: what is computed for them stays in the cache
CLOSE = 1e-11  # of the largest score: nearer to a boundary than this, rounding may decide


class Asked(Protocol):
    """What people are asked of: scores in float64."""

    def scores(self, rows: Tensor) -> Tensor:
        """Return the scores of rows of codes: (n, outputs)."""


Doubt = Callable[[Tensor, Tensor], Tensor]  # rows and scores (n, outputs) to how far rounding may have moved each: (n,)


@dataclass(frozen=True)
class Truth:
    """Every family of a domain: how many people it has, and whether they are decided alike."""

    domain: TableDomain
    columns: tuple[int, ...]  # those that are not sensitive
    group: tuple[Tensor, ...]  # per column: (size,) the group of each code
    members: Tensor  # (families,) how many of its people exist, in the order of the grid of groups
    flips: Tensor  # (families,) bool: whether some of them are decided otherwise than others
    close: Tensor  # (families,) bool: whether rounding may have decided it

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """How many groups each column has."""
        return tuple(int(group.max()) + 1 for group in self.group)

    @cached_property
    def count(self) -> tuple[Tensor, ...]:
        """Per column: how many codes each group holds."""
        return tuple(torch.bincount(group) for group in self.group)

    @cached_property
    def people(self) -> int:
        """How many people there are."""
        return self.total(self.members)

    @cached_property
    def discriminatory(self) -> int:
        """How many of them are discriminatory instances."""
        return self.total(self.members * self.flips)

    @cached_property
    def families(self) -> int:
        """How many different keys discriminatory instances have."""
        return self.total(self.flips)

    @property
    def rate(self) -> float:
        """The share of people who are discriminatory instances."""
        return self.discriminatory / self.people

    def total(self, numbers: Tensor, met: dict[int, Tensor] | None = None) -> int:
        """Return the sum of numbers (families,) over all codes, or those that meet tables of codes per column."""
        table = numbers.double()  # exact below 2^53
        for column, group in zip(reversed(self.columns), reversed(self.group), strict=True):
            codes = torch.ones(len(group), dtype=torch.float64) if met is None or column not in met else met[column]
            weight = torch.bincount(group, codes.double(), minlength=int(group.max()) + 1)
            table = table.view(-1, len(weight)) @ weight
        return round(float(table))

    def place(self, rows: Tensor) -> Tensor:
        """Return the number of the family of each row: (n,)."""
        place = torch.zeros(len(rows), dtype=torch.int64)
        for column, group, size in zip(self.columns, self.group, self.shape, strict=True):
            place = place * size + group[rows[:, column]]
        return place


def everybody(
    model: Asked,
    domain: TableDomain,
    decision: Decision,
    *,
    doubt: Doubt | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Truth:
    """Ask a model about everybody of a domain; of trees, one of all those whom no tree and no rule tells apart."""
    columns = tuple(c for c in range(len(domain.attributes)) if c not in domain.sensitive_columns)
    group = [torch.arange(domain.attributes[c].size) for c in columns]
    if isinstance(model, Forest):
        group = [_refined(domain, c, model.cells[c]) for c in columns]
    shape = [int(g.max()) + 1 for g in group]
    example = [torch.zeros(int(g.max()) + 1, dtype=torch.int64).scatter_(0, g, torch.arange(len(g))) for g in group]
    families, values = math.prod(shape), domain.sensitive_values
    members = torch.zeros(families, dtype=torch.int32)
    flips, close = torch.zeros(families, dtype=torch.bool), torch.zeros(families, dtype=torch.bool)
    size = max(1, AT_ONCE // len(values))
    for start in range(0, families, size):
        part = slice(start, min(families, start + size))
        places = torch.unravel_index(torch.arange(part.start, part.stop), shape)
        rows = torch.zeros(len(places[0]), len(values), len(domain.attributes), dtype=torch.int64)
        for column, codes, place in zip(columns, example, places, strict=True):
            rows[..., column] = codes[place][:, None]
        rows[..., list(domain.sensitive_columns)] = values
        members[part], flips[part], close[part] = _asked(model, domain, decision, rows, doubt or _rounding)
        if progress is not None:
            progress(part.stop, families)
    return Truth(domain, columns, tuple(group), members, flips, close)


def _asked(
    model: Asked, domain: TableDomain, decision: Decision, rows: Tensor, doubt: Doubt
) -> tuple[Tensor, Tensor, Tensor]:
    """Return for families (n, values, d) how many members exist, whether they are split, and whether that is close."""
    n, k, _ = rows.shape
    exists = domain.valid(rows.flatten(0, 1)).view(n, k)
    flips, close = torch.zeros(n, dtype=torch.bool), torch.zeros(n, dtype=torch.bool)
    some = (exists.sum(1) > 1).nonzero()[:, 0]
    if len(some):
        flat, there = rows[some].flatten(0, 1), exists[some]
        scores = model.scores(flat).double()
        room = doubt(flat, scores).view(-1, k)
        scores = scores.view(len(some), k, -1)
        if decision.kind == "tolerance":
            score = scores[..., -1]
            high, low = score.masked_fill(~there, -torch.inf).amax(1), score.masked_fill(~there, torch.inf).amin(1)
            flips[some] = high - low > decision.value
            close[some] = (high - low - decision.value).abs() < 2 * room.amax(1)
        else:
            chosen = decision.decide(scores)
            first = chosen.gather(1, there.long().argmax(1, keepdim=True))
            flips[some] = ((chosen != first) & there).any(1)
            close[some] = ((_margin(decision, scores) < 2 * room) & there).any(1)
    return exists.sum(1).int(), flips, close


def _margin(decision: Decision, scores: Tensor) -> Tensor:
    """Return how far scores lie from another decision: (…)."""
    if decision.kind == "threshold":
        return (scores[..., -1] - decision.value).abs()
    best = scores.topk(2, -1).values
    return best[..., 0] - best[..., 1]


def _rounding(_: Tensor, scores: Tensor) -> Tensor:
    return CLOSE * scores.abs().amax(1)


def _refined(domain: TableDomain, column: int, cells: Tensor) -> Tensor:
    """Return the groups of the codes of a column: its cells, cut by all conditions of the rules."""
    conditions: Sequence[tuple[int, Tensor]] = [
        one for when, then in domain._rulebook.conditions for one in (*when, *then)
    ]
    for named, table in conditions:
        if named == column:
            _, cells = torch.unique(cells * 2 + table, return_inverse=True)
    return cells
