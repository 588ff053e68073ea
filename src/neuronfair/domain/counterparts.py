"""Counterparts: who a person would be, had they been of another group, by what the table says of both groups.

A counterpart is made column by column. What a person has is a place in the distribution of people like them in their
own group; the counterpart has the same place in that of people like the counterpart in the other group. An ordered
attribute keeps its rank; a nominal one keeps its value as often as the other group allows (maximal coupling).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.base import Twins
from neuronfair.domain.coupling import Coupling
from neuronfair.domain.draws import Draws
from neuronfair.domain.forest import taken
from neuronfair.domain.identity import key_coefficients
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
        numbers, ahead = Draws(0, "counterparts"), domain.combinations.others
        parts = [self._standing(domain, part) for part in torch.split(rows, _at_once(ahead))]
        keys = key_coefficients([attribute.size for attribute in domain.attributes]).to(rows.device)
        together = max(1, _at_once(ahead) // max(1, len(rows)))  # draws, of a table of few people
        for start in range(0, draws, together):
            times, found = range(start, min(draws, start + together)), []
            for people in parts:
                person = (people.codes * keys).sum(1)
                u = [numbers.uniform(t, person, len(domain.attributes), use="place") for t in times]
                found.append(self._carried(domain, people.repeated(len(times)), ahead, torch.cat(u)))
            several = _joined(found)
            size = (len(times), len(rows), len(ahead))
            for twins, valid in zip(several.rows.view(*size, rows.shape[1]), several.valid.view(size), strict=True):
                yield Twins(twins, valid)

    def carried(self, domain: TableDomain, rows: Tensor, ahead: Tensor, u: Tensor | None = None) -> Twins:
        """Return each row in the groups that come so many combinations after its own, (k,) or (n, k): (n, k, d).

        `u` are numbers in [0, 1), (n, d), that say where among people of the same value somebody stands; without them
        a counterpart is the typical one: in the middle.
        """
        return _joined(
            self._carried(
                domain,
                self._standing(domain, rows[part]),
                ahead if ahead.ndim == 1 else ahead[part],
                None if u is None else u[part],
            )
            for part in torch.split(torch.arange(len(rows), device=rows.device), _at_once(ahead))
        )

    def to(self, device: torch.device) -> Counterparts:
        """Return the same on another device."""
        return replace(self, population=self.population.to(device), groups=self.groups.to(device))

    def _carried(self, domain: TableDomain, people: _Standing, ahead: Tensor, u: Tensor | None) -> Twins:
        population, combinations = self.population, domain.combinations
        goals = combinations.ahead(people.codes, ahead)
        known = self.groups[combinations.number(goals)] & self.groups[combinations.number(people.codes)][:, None]
        codes = goals.flatten(0, 1)
        whose = torch.arange(len(goals), device=codes.device).repeat_interleave(goals.shape[1])
        places = people.places.index_select(1, whose)
        states = places.new_zeros(population.groups, len(codes))
        exists = known.flatten()
        for column in population.order:
            if column in self.couplings:
                coupling, new = self.couplings[column], self._cells(column, places, states)
                own = taken(people.cells[column], whose)
                moved = (own != new).nonzero()[:, 0]
                who = taken(whose, moved)
                at = None if u is None else taken(u[:, column], who)
                had = taken(people.codes[:, column], who)
                has = coupling.carried(had, taken(own, moved), taken(new, moved), at)
                codes[moved, column] = has
                places[column, moved] = coupling.places.place_of(has)
            elif column in domain.sensitive_columns:
                places[column] = population.places[column].place_of(codes[:, column])
            exists = exists & population.advance(column, places, states)
        return Twins(codes.view(goals.shape), exists.view(known.shape))

    def _standing(self, domain: TableDomain, rows: Tensor) -> _Standing:
        """Return what the draws of some people's counterparts have in common."""
        people = domain.clip(rows)
        places, _ = self.population.placed(people)
        states = places.new_zeros(self.population.groups, len(people))
        cells = {}
        for column in self.population.order:
            if column in self.couplings:
                cells[column] = self._cells(column, places, states)
            self.population.advance(column, places, states)
        return _Standing(people, places, cells)

    def _cells(self, column: int, places: Tensor, states: Tensor) -> Tensor:
        """Return which distribution of a column each row draws from: its leaf, and what the rules allow there."""
        leaves = self.population.trees.leaves_of(column, places)
        if column not in self.population.steps:
            return leaves
        sets, number = self._allowed[column]
        return leaves * len(sets) + taken(number, states[self.population.steps[column].group])

    @cached_property
    def couplings(self) -> dict[int, Coupling]:
        """The columns that may move with the group: those that ask for one that does, or are tied to it by a rule."""
        population = self.population
        moving, tied, found = set(population.domain.sensitive_columns), set(), {}
        for column in population.order:
            step = population.steps.get(column)
            asked = population.trees.asked(column)
            if column not in self.kept | moving and (asked & moving or (step and step.group in tied)):
                moving.add(column)
                found[column] = self._coupling(column)
            if step and column in moving:
                tied.add(step.group)
        return found

    def _coupling(self, column: int) -> Coupling:
        attribute, places = self.population.domain.attributes[column], self.population.places[column]
        chances = self.population.trees.table(column)
        if column in self.population.steps:
            allowed = self._allowed[column][0][:, places.classes]
            chances = (chances[:, None] * allowed).flatten(0, 1)
            chances = chances / chances.sum(1, keepdim=True).clamp(min=1e-300)
        return Coupling(places, attribute.ordered, None if attribute.empty is None else len(places) - 1, chances)

    @cached_property
    def _allowed(self) -> dict[int, tuple[Tensor, Tensor]]:
        """For each column that rules name, the different sets of classes that may follow, and each state's set."""
        steps = self.population.steps
        return {column: torch.unique(step.follow >= 0, dim=0, return_inverse=True) for column, step in steps.items()}


class _Standing(NamedTuple):
    """People, and where they stand in their own group."""

    codes: Tensor  # (n, d), valid
    places: Tensor  # (d + 1, n)
    cells: dict[int, Tensor]  # of each column that may move, the distribution that theirs are drawn from: (n,)

    def repeated(self, times: int) -> _Standing:
        """Return all of them so many times, one after the other."""
        cells = {column: numbers.repeat(times) for column, numbers in self.cells.items()}
        return _Standing(self.codes.repeat(times, 1), self.places.repeat(1, times), cells)


def _at_once(ahead: Tensor) -> int:
    return max(1, AT_ONCE // max(1, ahead.shape[-1]))


def _joined(parts: Iterable[Twins]) -> Twins:
    rows, valid = zip(*parts, strict=True)
    return Twins(torch.cat(rows), torch.cat(valid))
