"""Counterparts: who a person would be, had they been of another group, by what the table says of both groups.

A counterpart is made column by column. What a person has is a place in the distribution of people like them in their
own group; the counterpart has the same place in that of people like the counterpart in the other group. An ordered
attribute keeps its rank; a nominal one keeps its value as often as the other group allows (maximal coupling).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from neuronfair.domain.base import Twins
from neuronfair.domain.draws import Draws
from neuronfair.domain.forest import taken
from neuronfair.domain.population import TablePopulation
from neuronfair.domain.table import TableDomain

AT_ONCE = 1 << 16  # counterparts that are made together: bounds the memory
DRAWS = 32  # counterparts of one person in each other group


@dataclass(frozen=True, eq=False)
class Counterparts:
    """How people of one group become people of another. The population's first columns are the sensitive ones."""

    population: TablePopulation
    kept: frozenset[int]  # columns that stay as they are
    groups: Tensor  # (combinations,) bool: those with enough people to say what they are like
    key_has_group: bool = True  # who differs in the group is another person, with other counterparts

    def columns(self, domain: TableDomain) -> tuple[int, ...]:
        """Return the positions of the attributes in which a counterpart may differ."""
        return tuple(column for column in range(len(domain.attributes)) if column not in self.kept)

    def twins(self, domain: TableDomain, rows: Tensor) -> Twins:
        """Return the typical counterpart of each row in every other group, and whether there is one."""
        return self.carried(domain, rows, domain.combinations.others)

    def member(self, domain: TableDomain, rows: Tensor, number: Tensor) -> Tensor:
        """Return one member of each row's family: 0 is the row itself, 1, 2, … its counterparts in their order."""
        chosen = number.nonzero()[:, 0]
        members = rows.clone()
        members[chosen] = self.carried(domain, rows[chosen], number[chosen, None]).rows[:, 0]
        return members

    def drawn(self, domain: TableDomain, rows: Tensor, draws: int = DRAWS) -> Iterator[Twins]:
        """Yield so many draws of each row's counterparts, as `twins` returns the typical ones.

        They are the same for a person wherever and with whomever they are drawn.
        """
        people = domain.key(rows)
        numbers = Draws(0, "counterparts")
        for t in range(draws):
            u = numbers.uniform(t, people, len(domain.attributes), use="place")
            yield self.carried(domain, rows, domain.combinations.others, u)

    def carried(self, domain: TableDomain, rows: Tensor, ahead: Tensor, u: Tensor | None = None) -> Twins:
        """Return each row in the groups that come so many combinations after its own, (k,) or (n, k): (n, k, d).

        `u` are numbers in [0, 1), (n, d), that say where among people of the same value somebody stands; without them
        a counterpart is the typical one: in the middle.
        """
        size = max(1, AT_ONCE // max(1, ahead.shape[-1]))
        every = range(0, max(1, len(rows)), size)
        parts = [
            self._carried(
                domain,
                rows[start : start + size],
                ahead if ahead.ndim == 1 else ahead[start : start + size],
                None if u is None else u[start : start + size],
            )
            for start in every
        ]
        return Twins(torch.cat([part.rows for part in parts]), torch.cat([part.valid for part in parts]))

    def to(self, device: torch.device) -> Counterparts:
        """Return the same on another device."""
        return replace(self, population=self.population.to(device), groups=self.groups.to(device))

    def _carried(self, domain: TableDomain, rows: Tensor, ahead: Tensor, u: Tensor | None) -> Twins:
        people, combinations = domain.clip(rows), domain.combinations
        goals = combinations.ahead(people, ahead)
        known = self.groups[combinations.number(goals)] & self.groups[combinations.number(people)][:, None]
        walk = _Walk(self, people, goals, u)
        for column in self.population.order:
            walk.go(column)
        return Twins(walk.codes.view(goals.shape), known & walk.exists.view(known.shape))

    @cached_property
    def states(self) -> dict[int, int]:
        """How many states the rules have before each column that they name."""
        return {column: len(step.follow) for column, step in self.population.steps.items()}


class _Walk:
    """Counterparts in the making, column by column: what the people have, and what their counterparts have so far."""

    def __init__(self, counterparts: Counterparts, people: Tensor, goals: Tensor, u: Tensor | None) -> None:
        n, k, d = goals.shape
        self._how, self._population = counterparts, counterparts.population
        self._person = torch.arange(n, device=people.device).repeat_interleave(k)  # whose counterpart it is
        self._people, self._u = people, u
        self._sensitive = set(self._population.order[: len(self._population.domain.sensitive)])
        self.codes = goals.flatten(0, 1)
        self.exists = torch.ones(n * k, dtype=torch.bool, device=people.device)
        self._places = people.new_zeros(d + 1, n * k)
        self._states = people.new_zeros(self._population.groups, n * k)
        self._own_places, _ = self._population.placed(people)
        self._own_states = people.new_zeros(self._population.groups, n)

    def go(self, column: int) -> None:
        """Give the counterparts their value of a column."""
        population, person = self._population, self._person
        if column not in self._sensitive and column not in self._how.kept:
            own = self._cells(column, self._own_places, self._own_states)[person]
            new = self._cells(column, self._places, self._states)
            moved = (own != new).nonzero()[:, 0]
            if len(moved):
                self.codes[moved, column] = self._moved(column, moved, own[moved], new[moved])
        places = population.places[column]
        self._places[column] = taken(places.place, places.runs_of(self.codes[:, column].contiguous()))
        population.advance(column, self._own_places, self._own_states)
        self.exists &= population.advance(column, self._places, self._states)

    def _cells(self, column: int, places: Tensor, states: Tensor) -> Tensor:
        """Return which distribution of a column each row draws from: its leaf, and what the rules allow there."""
        leaves = self._population.trees.leaves_of(column, places)
        if column not in self._how.states:
            return leaves
        return leaves * self._how.states[column] + states[self._population.steps[column].group]

    def _moved(self, column: int, moved: Tensor, own: Tensor, new: Tensor) -> Tensor:
        """Return the codes of those whose distribution is another than that of their person."""
        population, person = self._population, self._person[moved]
        places = population.places[column]
        cells, both = torch.unique(torch.cat([own, new]), return_inverse=True)
        own, new = both.chunk(2)
        chances = self._table(column, cells)
        codes, place = self._people[person, column], self._own_places[column, person]
        u = self._u[person, column] if self._u is not None else torch.full_like(codes, 0.5, dtype=torch.float64)
        if population.domain.attributes[column].ordered:
            ends = chances.cumsum(1)
            had = chances[own, place]
            rank = ends[own, place] - had + had * places.share_of(codes, u).clamp(0, 1)
            return places.code_at(*_at(chances, new, rank))
        stay = (chances[new, place] / chances[own, place]).clamp(max=1)
        left = (u >= stay).nonzero()[:, 0]
        if len(left) == 0:
            return codes
        pairs, which = torch.unique(own[left] * len(cells) + new[left], return_inverse=True)
        excess = (chances[pairs % len(cells)] - chances[pairs // len(cells)]).clamp(min=0)
        excess /= excess.sum(1, keepdim=True)
        if self._u is None:
            goal, share = excess.argmax(1)[which], u[left]
        else:
            goal, share = _at(excess, which, (u[left] - stay[left]) / (1 - stay[left]))
        codes = codes.clone()
        codes[left] = places.code_at(goal, share)
        return codes

    def _table(self, column: int, cells: Tensor) -> Tensor:
        """Return the chances of a column's places in some distributions: (cells, places)."""
        table = self._population.trees.table(column)
        states = self._how.states.get(column)
        if states is None:
            return table[cells]
        step = self._population.steps[column]
        chances = table[cells // states] * step.allowed(cells % states)[:, self._population.places[column].classes]
        return chances / chances.sum(1, keepdim=True)


def _at(chances: Tensor, line: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return which place of its line of a table of chances each number in [0, 1) falls on, and where in it."""
    lines, width = chances.shape
    ends = chances.cumsum(1)
    ends = ends / ends[:, -1:]
    stacked = (ends + torch.arange(lines, device=ends.device)[:, None]).view(-1)
    last = (ends < 1).sum(1)[line].clamp(max=width - 1)  # rounding may reach the end of a line
    place = torch.minimum((torch.searchsorted(stacked, line + u, right=True) - line * width).clamp(min=0), last)
    had = chances[line, place]
    share = (u - ends[line, place] + had) / had.clamp(min=1e-300)
    return place, share.clamp(0, 1)
