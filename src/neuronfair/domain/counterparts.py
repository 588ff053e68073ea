"""Counterfactual twins: people at the same place of another group's distribution, by a model of the data set.

A twin is made column by column. What a person has is a place in the distribution of people like them in their own
group; the twin has the same place in that of people like the twin in the other group. An ordered attribute keeps its
rank (`latent.py`); a nominal one keeps its value as often as the other group allows (maximal coupling).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.base import Twins
from neuronfair.domain.coupling import Coupling
from neuronfair.domain.draws import Draws
from neuronfair.domain.forest import taken
from neuronfair.domain.identity import key_coefficients
from neuronfair.domain.latent import Latent
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
    latent: Latent  # how ordered columns shift with the group and with one another
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

        They are the same for a person wherever and with whomever they are drawn. Many people may be the same person, so
        draws are spread evenly: each goes on from the one before by the root of another prime for each column (a
        Kronecker sequence), and a few of them give nearly the share of all.
        """
        numbers, ahead = Draws(0, "counterparts"), domain.combinations.others
        parts = [self._standing(domain, part) for part in torch.split(rows, _at_once(ahead))]
        keys = key_coefficients([attribute.size for attribute in domain.attributes]).to(rows.device)
        steps = torch.tensor(_primes(len(domain.attributes)), dtype=torch.float64, device=rows.device).sqrt()
        together = max(1, _at_once(ahead) // max(1, len(rows)))  # draws, of a table of few people
        for start in range(0, draws, together):
            times, found = range(start, min(draws, start + together)), []
            for people in parts:
                person = (people.codes * keys).sum(1)
                first = numbers.uniform(0, person, len(domain.attributes), use="place")
                u = [(first + t * steps) % 1 for t in times]
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
        population, latent = self.population.to(device), self.latent.to(device)
        return replace(self, population=population, groups=self.groups.to(device), latent=latent)

    def _carried(self, domain: TableDomain, people: _Standing, ahead: Tensor, u: Tensor | None) -> Twins:
        population, combinations = self.population, domain.combinations
        goals = combinations.ahead(people.codes, ahead)
        known = self.groups[combinations.number(goals)] & self.groups[combinations.number(people.codes)][:, None]
        codes = goals.flatten(0, 1)
        whose = torch.arange(len(goals), device=codes.device).repeat_interleave(goals.shape[1])
        places = people.places.index_select(1, whose)
        going = _Going(
            whose=whose,
            group=combinations.number(codes),
            places=places,
            scores=people.scores.index_select(1, whose),
            states=places.new_zeros(population.groups, len(codes)),
            u=u,
        )
        exists = known.flatten()
        for column in population.order:
            if column in self.moving:
                change = self._shifted if column in self.latent.shifts else self._coupled
                moved, has = change(column, people, going)
                codes[moved, column] = has
                places[column, moved] = population.places[column].place_of(has)
                if column in self.latent.scales:
                    going.scores[column, moved] = self.latent.score(column, has)
            elif column in domain.sensitive_columns:
                places[column] = population.places[column].place_of(codes[:, column])
            exists = exists & population.advance(column, places, going.states)
        return Twins(codes.view(goals.shape), exists.view(known.shape))

    def _coupled(self, column: int, people: _Standing, going: _Going) -> tuple[Tensor, Tensor]:
        """Return who gets another value of a column, and which: their leaves differ."""
        new = self._cells(column, going.places, going.states)
        own = taken(people.cells[column], going.whose)
        moved = (own != new).nonzero()[:, 0]
        who = taken(going.whose, moved)
        had = taken(people.codes[:, column], who)
        carried = self.couplings[column].carried(had, taken(own, moved), taken(new, moved), going.at(column, who))
        return moved, carried

    def _shifted(self, column: int, people: _Standing, going: _Going) -> tuple[Tensor, Tensor]:
        """Return who gets another value of a column, and which: what is expected of them differs, or their leaves."""
        shift, latent = self.latent.shifts[column], self.latent
        mean = shift.mean(going.group, going.scores, going.places)
        new, spread = latent.leaves(column, mean, going.places), taken(shift.spread, going.group)
        before, own = taken(people.means[column], going.whose), taken(people.cells[column], going.whose)
        was = taken(taken(shift.spread, people.group), going.whose)
        moved = ((own != new) | (mean != before) | (spread != was)).nonzero()[:, 0]
        who = taken(going.whose, moved)
        had = taken(people.codes[:, column], who)
        rest = latent.within(column, had, before[moved], was[moved], going.at(column, who))
        rest = latent.carried(column, rest, own[moved], new[moved])
        return moved, latent.code(column, mean[moved] + spread[moved] * rest)

    def _standing(self, domain: TableDomain, rows: Tensor) -> _Standing:
        """Return what the draws of some people's counterparts have in common."""
        people = domain.clip(rows)
        places = torch.cat([self.population.placed(people)[0], people.new_zeros(1, len(people))])
        states = places.new_zeros(self.population.groups, len(people))
        scores, group = self.latent.scores(people), domain.combinations.number(people)
        cells, means = {}, {}
        for column in self.population.order:
            if column in self.latent.shifts:
                means[column] = self.latent.shifts[column].mean(group, scores, places)
                cells[column] = self.latent.leaves(column, means[column], places)
            elif column in self.couplings:
                cells[column] = self._cells(column, places, states)
            self.population.advance(column, places, states)
        return _Standing(people, places, cells, scores, group, means)

    def _cells(self, column: int, places: Tensor, states: Tensor) -> Tensor:
        """Return which distribution of a column each row draws from: its leaf, and what the rules allow there."""
        leaves = self.population.trees.leaves_of(column, places)
        if column not in self.population.steps:
            return leaves
        sets, number = self._allowed[column]
        return leaves * len(sets) + taken(number, states[self.population.steps[column].group])

    @cached_property
    def moving(self) -> frozenset[int]:
        """The columns that may move with the group: those that ask for one that does, or are tied to it by a rule."""
        population, sensitive = self.population, set(self.population.domain.sensitive_columns)
        moving, tied = set(sensitive), set()
        for column in population.order:
            step, shift = population.steps.get(column), self.latent.shifts.get(column)
            asked = population.trees.asked(column)
            if shift is not None:
                asked = {*self.latent.trees.asked(column), *shift.asked, *(sensitive if shift.by_group else ())}
            if column not in self.kept | moving and (asked & moving or (step and step.group in tied)):
                moving.add(column)
            if step and column in moving:
                tied.add(step.group)
        return frozenset(moving - sensitive)

    @cached_property
    def couplings(self) -> dict[int, Coupling]:
        """The distributions of the columns that move and do not shift."""
        return {column: self._coupling(column) for column in self.moving if column not in self.latent.shifts}

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
    places: Tensor  # (d + 2, n)
    cells: dict[int, Tensor]  # of each column that may move, the distribution that theirs are drawn from: (n,)
    scores: Tensor  # (d, n)
    group: Tensor  # (n,) the number of the combination of sensitive values
    means: dict[int, Tensor]  # of each column that shifts, the score that is expected of them: (n,)

    def repeated(self, times: int) -> _Standing:
        """Return all of them so many times, one after the other."""
        cells, means = ({c: part.repeat(times) for c, part in parts.items()} for parts in (self.cells, self.means))
        codes, group = self.codes.repeat(times, 1), self.group.repeat(times)
        return _Standing(codes, self.places.repeat(1, times), cells, self.scores.repeat(1, times), group, means)


class _Going(NamedTuple):
    """Twins on their way, whose columns are made one after the other."""

    whose: Tensor  # (m,) of the people, whose twin each is
    group: Tensor  # (m,) the number of the combination of sensitive values
    places: Tensor  # (d + 2, m)
    scores: Tensor  # (d, m)
    states: Tensor
    u: Tensor | None  # (n, d) of the people

    def at(self, column: int, who: Tensor) -> Tensor | None:
        """Return where among people of the same value some people stand; None: in the middle."""
        return None if self.u is None else taken(self.u[:, column], who)


@lru_cache(maxsize=8)
def _primes(count: int) -> tuple[int, ...]:
    """Return the first primes."""
    found: list[int] = []
    number = 2
    while len(found) < count:
        if all(number % prime for prime in found if prime * prime <= number):
            found.append(number)
        number += 1
    return tuple(found)


def _at_once(ahead: Tensor) -> int:
    return max(1, AT_ONCE // max(1, ahead.shape[-1]))


def _joined(parts: Iterable[Twins]) -> Twins:
    rows, valid = zip(*parts, strict=True)
    return Twins(torch.cat(rows), torch.cat(valid))
