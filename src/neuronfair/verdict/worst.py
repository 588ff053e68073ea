"""The worst cases of an inquiry: plausible pairs first, brought as near to a row of the table as can be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.model.encoding import families
from neuronfair.search.judge import Judgement, Pairs, judge
from neuronfair.search.shrink import shrink
from neuronfair.verdict.inquiry import NEAR, Case

WORST = 10  # people told in full
LOOK = 20_000  # findings among which the widest gaps of different people are looked for


class Candidates(NamedTuple):
    """Everybody who was found."""

    rows: Tensor  # (f, d), packed
    once: Tensor  # the numbers of different people among them
    gaps: Tensor  # of those
    usual: Tensor  # whether they and the twins they were found with are plausible

    def only(self, usual: bool) -> Candidates:
        """Return those who are, or are not, plausible."""
        chosen = self.usual == usual
        return Candidates(self.rows, self.once[chosen], self.gaps[chosen], self.usual[chosen])


class _Shown(NamedTuple):
    which: Tensor  # the number of a finding; below 0, -1 - the number of a row of the table
    people: Tensor
    goals: Tensor  # the rows that they were moved towards


def worst_people(case: Case, found: Candidates) -> tuple[Tensor, Tensor, list[list[int]]]:
    """Return the findings with the widest gaps after shrinking: their numbers, shrunk rows, and changed columns.

    Plausible pairs come first, and stay plausible when they are shrunk. Where the searches found too few of them,
    plausible rows of the table whose decision differs from a plausible twin's come next (their numbers are below 0),
    and others last.
    """
    domain = case.domain
    parts = [_shrunk(case, case.near[0], found.only(usual=True))]
    if case.population is not None and len(torch.unique(domain.key(parts[0].people))) < WORST:
        parts += [_shrunk(case, domain, found.only(usual=False)), _real(case)]
    which, people, goals = map(torch.cat, zip(*parts, strict=True))
    order = case.decision.gap(*partners(case, people)[2:]).argsort(descending=True, stable=True)
    rank = torch.where(case.plausible(people) & plausible_flips(case, people), (which < 0).long(), 2)
    order = order[rank[order].argsort(stable=True)]
    _, first = np.unique(domain.key(people[order]).cpu().numpy(), return_index=True)
    order = order[torch.from_numpy(np.sort(first)[:WORST]).to(order.device)]
    changed = (people[order] != goals[order]) & domain.free
    return which[order], people[order], [row.nonzero()[:, 0].tolist() for row in changed]


def partners(case: Case, people: Tensor) -> Pairs:
    """Return people and the twins that they are compared with, and the scores of both, in float64.

    Where the decision differs from that of a plausible twin, the twin is a plausible one.
    """
    parts = [_preferred(case, judged).pairs() for judged in _judged(case, people)]
    return Pairs(*map(torch.cat, zip(*parts, strict=True)))


def plausible_flips(case: Case, people: Tensor) -> Tensor:
    """Return for each person whether the decision differs from that of a plausible twin: bool, (n,)."""
    parts = [(judged.differs & case.pairs.twins(judged.rows).valid).any(1) for judged in _judged(case, people)]
    return torch.cat([people.new_zeros(0, dtype=torch.bool), *parts])


def _judged(case: Case, people: Tensor) -> Iterator[Judgement]:
    for (part,) in zip(*families(case.model.encoding, case.domain, people), strict=True):
        yield judge(case.exact, case.domain, part, case.decision)


def _preferred(case: Case, judged: Judgement) -> Judgement:
    """Return a judgement without implausible twins, where the decision differs from a plausible one's."""
    good = case.pairs.twins(judged.rows).valid & judged.valid
    some = (judged.differs & good).any(1, keepdim=True)
    valid = torch.where(some, good, judged.valid)
    return replace(judged, valid=valid, apart=judged.apart & valid)


def _shrunk(case: Case, domain: TableDomain, found: Candidates) -> _Shown:
    """Return the widest of the findings, and what becomes of them if they are shrunk within a domain."""
    wide = found.once[found.gaps.topk(min(len(found.gaps), LOOK)).indices]
    # Walks leave many near copies: the widest of each region of the domain is a candidate.
    coarse = case.model.encoding.encode(found.rows[wide].long()).cpu().numpy()
    _, first = np.unique(np.round(coarse), axis=0, return_index=True)
    wide = wide[torch.from_numpy(np.sort(first)[: case.shrunk]).to(wide.device)]
    rows = found.rows[wide].long()
    goals = _nearest(domain, rows, case.near[1])
    return _Shown(wide, shrink(case.exact, domain, rows, goals, case.decision), goals)


def _real(case: Case) -> _Shown:
    """Return the plausible rows of the table whose decision differs from a plausible twin's: the widest gaps."""
    rows = case.data.rows[: min(NEAR, case.samples)]
    numbers = (case.near[0].valid(rows)).nonzero()[:, 0]
    numbers = numbers[plausible_flips(case, rows[numbers])]
    gaps = case.decision.gap(*partners(case, rows[numbers])[2:])
    numbers = numbers[gaps.topk(min(len(gaps), case.shrunk)).indices]
    return _Shown(-1 - numbers, rows[numbers], rows[numbers])


def _nearest(domain: TableDomain, rows: Tensor, table: Tensor) -> Tensor:
    """Return for each row the row of the table that differs least, sensitive attributes apart: (n, d)."""
    distance = torch.zeros(len(rows), len(table), device=rows.device)
    for column in domain.free.nonzero()[:, 0].tolist():
        apart = rows[:, column, None] - table[None, :, column]
        attribute = domain.attributes[column]
        step = apart.abs() / max(1, attribute.points - 1) if attribute.ordered else (apart != 0).float()
        if attribute.empty is not None:  # an empty cell is as far from each number
            lone = (rows[:, column, None] == attribute.empty) != (table[None, :, column] == attribute.empty)
            step = torch.where(lone, 1.0, step)
        distance += step
    return table[distance.argmin(1)]
