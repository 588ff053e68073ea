"""Counterfactual twins: records at the same bin of another group's distribution, by a model of the data set."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.attribute import find_parents
from neuronfair.domain.draws import Draws, draw_order
from neuronfair.domain.population.bins import Coupling
from neuronfair.domain.population.latent import Latent, fit_latent
from neuronfair.domain.population.model import PopulationLayout, TablePopulation, grow_population
from neuronfair.domain.population.trees import take_rows, to_device
from neuronfair.domain.table import TableDomain
from neuronfair.domain.twins import TwinRows, weigh_columns
from neuronfair.errors import DomainError
from neuronfair.formatting import join_words

BATCH_TWINS = 1 << 16  # counterfactual twins in one batch: bounds the memory
DRAWS_PER_RECORD = 32  # counterfactual twins of one record in each other group


@dataclass(frozen=True, eq=False)
class CounterfactualTwins:
    """Counterfactual twins from a model of the data set, whose first columns are the sensitive ones."""

    population: TablePopulation
    fixed_columns: frozenset[int]  # columns that are held fixed
    groups: Tensor  # (combinations,) bool: those with enough records
    latent: Latent  # the shifts of ordered columns
    key_has_group: bool = True  # a record of another group is a different record, with other twins

    def columns(self, domain: TableDomain) -> tuple[int, ...]:
        """Return the positions of the attributes in which a counterfactual twin may differ."""
        return tuple(column for column in range(len(domain.attributes)) if column not in self.fixed_columns)

    def twins(self, domain: TableDomain, rows: Tensor) -> TwinRows:
        """Return the typical counterfactual twin of each row in every other group, and whether it exists."""
        return self.transport(domain, rows, domain.combinations.others)

    def member(self, domain: TableDomain, rows: Tensor, number: Tensor) -> Tensor:
        """Return one member of each row's family: 0 is the row itself, 1, 2, … its twins in their order."""
        changed = number.nonzero()[:, 0]
        members = rows.clone()
        members[changed] = self.transport(domain, rows[changed], number[changed, None]).rows[:, 0]
        return members

    def draw(self, domain: TableDomain, rows: Tensor, draws: int = DRAWS_PER_RECORD) -> Iterator[TwinRows]:
        """Yield random draws of each row's counterfactual twins, in the shape of `twins`.

        The draws of a record do not depend on the other rows. They are a Kronecker sequence (steps of the square root
        of a different prime for each column), so that a few draws give nearly the mean of all.
        """
        numbers, offsets = Draws(0, "counterparts"), domain.combinations.others
        parts = [self._find_distributions(domain, part) for part in torch.split(rows, _batch_size(offsets))]
        keys = weigh_columns([attribute.size for attribute in domain.attributes]).to(rows.device)
        steps = torch.tensor(_find_primes(len(domain.attributes)), dtype=torch.float64, device=rows.device).sqrt()
        draws_at_once = max(1, _batch_size(offsets) // max(1, len(rows)))  # draws, of a table of few records
        for start in range(0, draws, draws_at_once):
            draw_numbers, twin_parts = range(start, min(draws, start + draws_at_once)), []
            for records in parts:
                person = (records.codes * keys).sum(1)
                first = numbers.uniform(0, person, len(domain.attributes), use="place")
                u = [(first + t * steps) % 1 for t in draw_numbers]
                twin_parts.append(
                    self._transport_records(domain, records.repeated(len(draw_numbers)), offsets, torch.cat(u))
                )
            twin_rows = _join_twins(twin_parts)
            size = (len(draw_numbers), len(rows), len(offsets))
            for twins, valid in zip(twin_rows.rows.view(*size, rows.shape[1]), twin_rows.valid.view(size), strict=True):
                yield TwinRows(twins, valid)

    def transport(self, domain: TableDomain, rows: Tensor, offsets: Tensor, u: Tensor | None = None) -> TwinRows:
        """Return each row in the groups that are `offsets` combinations after its own, (k,) or (n, k): (n, k, d).

        `u` are the quantiles of the records among those with the same value, (n, d) in [0, 1); without them twins are
        the typical ones, in the middle.
        """
        return _join_twins(
            self._transport_records(
                domain,
                self._find_distributions(domain, rows[part]),
                offsets if offsets.ndim == 1 else offsets[part],
                None if u is None else u[part],
            )
            for part in torch.split(torch.arange(len(rows), device=rows.device), _batch_size(offsets))
        )

    def to(self, device: torch.device) -> CounterfactualTwins:
        """Return the same on another device."""
        groups, latent = self.groups.to(device), to_device(self.latent, device)
        return replace(self, population=self.population.to(device), groups=groups, latent=latent)

    def _transport_records(self, domain: TableDomain, records: _Records, offsets: Tensor, u: Tensor | None) -> TwinRows:
        population, combinations = self.population, domain.combinations
        goals = combinations.rows_at_offsets(records.codes, offsets)
        modelled = self.groups[combinations.number(goals)] & self.groups[combinations.number(records.codes)][:, None]
        codes = goals.flatten(0, 1)
        record_of = torch.arange(len(goals), device=codes.device).repeat_interleave(goals.shape[1])
        bins = records.bins.index_select(1, record_of)
        progress = _TwinsInProgress(
            record_of=record_of,
            group=combinations.number(codes),
            bins=bins,
            scores=records.scores.index_select(1, record_of),
            states=bins.new_zeros(population.groups, len(codes)),
            u=u,
        )
        exists = modelled.flatten()
        for column in population.order:
            if column in self.moving:
                move = self._move_by_shift if column in self.latent.shifts else self._move_by_coupling
                movers, new_codes = move(column, records, progress)
                codes[movers, column] = new_codes
                bins[column, movers] = population.bins[column].bins_of(new_codes)
                if column in self.latent.scales:
                    progress.scores[column, movers] = self.latent.score(column, new_codes)
            elif column in domain.sensitive_columns:
                bins[column] = population.bins[column].bins_of(codes[:, column])
            exists = exists & population.advance(column, bins, progress.states)
        return TwinRows(codes.view(goals.shape), exists.view(modelled.shape))

    def _move_by_coupling(self, column: int, records: _Records, progress: _TwinsInProgress) -> tuple[Tensor, Tensor]:
        """Return the twins whose distribution of a column differs from their record's, and their new values."""
        new = self._cells(column, progress.bins, progress.states)
        old = take_rows(records.cells[column], progress.record_of)
        movers = (old != new).nonzero()[:, 0]
        record = take_rows(progress.record_of, movers)
        old_codes = take_rows(records.codes[:, column], record)
        transported = self.couplings[column].transport(
            old_codes, take_rows(old, movers), take_rows(new, movers), progress.at(column, record)
        )
        return movers, transported

    def _move_by_shift(self, column: int, records: _Records, progress: _TwinsInProgress) -> tuple[Tensor, Tensor]:
        """Return the twins whose expected score or residuals of a column differ, and their new values."""
        shift, latent = self.latent.shifts[column], self.latent
        mean = shift.mean(progress.group, progress.scores, progress.bins)
        new, spread = latent.leaves(column, mean, progress.bins), take_rows(shift.spread, progress.group)
        of_records = (records.cells[column], records.means[column], take_rows(shift.spread, records.group))
        old, old_mean, old_spread = (take_rows(part, progress.record_of) for part in of_records)
        movers = ((old != new) | (mean != old_mean) | (spread != old_spread)).nonzero()[:, 0]
        record = take_rows(progress.record_of, movers)
        old_codes = take_rows(records.codes[:, column], record)
        residual = latent.within(column, old_codes, old_mean[movers], old_spread[movers], progress.at(column, record))
        residual = latent.transport_residuals(column, residual, old[movers], new[movers])
        return movers, latent.code(column, mean[movers] + spread[movers] * residual)

    def _find_distributions(self, domain: TableDomain, rows: Tensor) -> _Records:
        """Return the records with the distributions that all draws of their twins share."""
        records = domain.clip(rows)
        bins = torch.cat([self.population.binned(records)[0], records.new_zeros(1, len(records))])
        states = bins.new_zeros(self.population.groups, len(records))
        scores, group = self.latent.scores(records), domain.combinations.number(records)
        cells, means = {}, {}
        for column in self.population.order:
            if column in self.latent.shifts:
                means[column] = self.latent.shifts[column].mean(group, scores, bins)
                cells[column] = self.latent.leaves(column, means[column], bins)
            elif column in self.couplings:
                cells[column] = self._cells(column, bins, states)
            self.population.advance(column, bins, states)
        return _Records(records, bins, cells, scores, group, means)

    def _cells(self, column: int, bins: Tensor, states: Tensor) -> Tensor:
        """Return the number of each row's distribution of a column: by its leaf, and by what the rules allow."""
        leaves = self.population.trees.leaves_of(column, bins)
        if column not in self.population.steps:
            return leaves
        sets, number = self._allowed[column]
        return leaves * len(sets) + take_rows(number, states[self.population.steps[column].group])

    @cached_property
    def moving(self) -> frozenset[int]:
        """The columns that may move with the group: those that depend on one that does, or are tied to it by a rule."""
        population, sensitive = self.population, set(self.population.domain.sensitive_columns)
        moving, tied = set(sensitive), set()
        for column in population.order:
            step, shift = population.steps.get(column), self.latent.shifts.get(column)
            parents = population.trees.split_columns(column)
            if shift is not None:
                parents = {
                    *self.latent.trees.split_columns(column),
                    *shift.parents,
                    *(sensitive if shift.by_group else ()),
                }
            if column not in self.fixed_columns | moving and (parents & moving or (step and step.group in tied)):
                moving.add(column)
            if step and column in moving:
                tied.add(step.group)
        return frozenset(moving - sensitive)

    @cached_property
    def couplings(self) -> dict[int, Coupling]:
        """The distributions of the columns that move without a shift."""
        return {column: self._coupling(column) for column in self.moving if column not in self.latent.shifts}

    def _coupling(self, column: int) -> Coupling:
        attribute, bins = self.population.domain.attributes[column], self.population.bins[column]
        chances = self.population.trees.table(column)
        if column in self.population.steps:
            allowed = self._allowed[column][0][:, bins.classes]
            chances = (chances[:, None] * allowed).flatten(0, 1)
            chances = chances / chances.sum(1, keepdim=True).clamp(min=1e-300)
        return Coupling(bins, attribute.is_ordered, None if attribute.empty is None else len(bins) - 1, chances)

    @cached_property
    def _allowed(self) -> dict[int, tuple[Tensor, Tensor]]:
        """For each column that rules name, the different sets of allowed classes, and the set of each state."""
        steps = self.population.steps
        return {column: torch.unique(step.follow >= 0, dim=0, return_inverse=True) for column, step in steps.items()}


class _Records(NamedTuple):
    """Records, and their distributions in their own group."""

    codes: Tensor  # (n, d), valid
    bins: Tensor  # (d + 2, n)
    cells: dict[int, Tensor]  # of each column that may move, the number of the distribution: (n,)
    scores: Tensor  # (d, n)
    group: Tensor  # (n,) the number of the combination of sensitive values
    means: dict[int, Tensor]  # of each column that shifts, the expected score: (n,)

    def repeated(self, times: int) -> _Records:
        """Return the records several times, one copy after the other."""
        cells, means = ({c: part.repeat(times) for c, part in parts.items()} for parts in (self.cells, self.means))
        codes, group = self.codes.repeat(times, 1), self.group.repeat(times)
        return _Records(codes, self.bins.repeat(1, times), cells, self.scores.repeat(1, times), group, means)


class _TwinsInProgress(NamedTuple):
    """Twins whose columns are made one after the other."""

    record_of: Tensor  # (m,) the record of each twin
    group: Tensor  # (m,) the number of the combination of sensitive values
    bins: Tensor  # (d + 2, m)
    scores: Tensor  # (d, m)
    states: Tensor
    u: Tensor | None  # (n, d) of the records

    def at(self, column: int, record: Tensor) -> Tensor | None:
        """Return the quantiles of some records among those with the same value; None: in the middle."""
        return None if self.u is None else take_rows(self.u[:, column], record)


@lru_cache(maxsize=8)
def _find_primes(count: int) -> tuple[int, ...]:
    primes: list[int] = []
    number = 2
    while len(primes) < count:
        if all(number % prime for prime in primes if prime * prime <= number):
            primes.append(number)
        number += 1
    return tuple(primes)


def _batch_size(offsets: Tensor) -> int:
    return max(1, BATCH_TWINS // max(1, offsets.shape[-1]))


def _join_twins(parts: Iterable[TwinRows]) -> TwinRows:
    rows, valid = zip(*parts, strict=True)
    return TwinRows(torch.cat(rows), torch.cat(valid))


MIN_GROUP_RECORDS = 30  # records of a group that is modelled


def fit_counterfactuals(
    domain: TableDomain, rows: Tensor, *, groups: Tensor | None = None, seed: int = 0
) -> CounterfactualTwins:
    """Fit counterfactual twins to the records of a table.

    The sensitive attributes come first, then those that are held fixed, then the others, in the order of the population
    model or of the causal graph (`causes`). Groups of a few records are left out, unless `groups` are given. Fewer than
    two groups, or no attribute that may move with the group, are an error.
    """
    fixed = find_fixed_columns(domain)
    sensitive = domain.sensitive_columns
    if domain.has_bands:
        raise DomainError(f"{domain.name}: bands of a sensitive attribute are for the attribute-flip test only")
    if len(fixed) + len(sensitive) == len(domain.attributes):
        raise DomainError(
            f"{domain.name}: every attribute is fixed or legitimate, so a counterfactual would be the same record "
            "and no decision could differ. Leave some attributes free to move with the group"
        )
    records = domain.clip(rows)
    if groups is None:
        counts = torch.bincount(domain.combinations.number(records), minlength=len(domain.sensitive_values))
        groups = counts >= MIN_GROUP_RECORDS
        if int(groups.sum()) < 2:
            raise DomainError(f"{domain.name}: {_describe_groups(domain, counts)}")
    first = [*domain.sensitive, *(domain.names[column] for column in sorted(fixed))]
    causes = find_parents(domain.attributes)
    names = domain.sensitive if causes is not None else first
    layout = PopulationLayout.of(domain, records, seed=seed, first=names, causes=causes)
    shifted = _find_shifting(domain, layout, fixed)
    latent = fit_latent(layout, domain, records, groups, shifted, from_graph=causes is not None, seed=seed)
    population = grow_population(domain, layout, significant_only=True, roots={*shifted, *sensitive, *fixed})
    return CounterfactualTwins(population, fixed, groups, to_device(latent, domain.device))


def _find_shifting(domain: TableDomain, layout: PopulationLayout, fixed: Collection[int]) -> frozenset[int]:
    """Return the columns that shift: ordered, not named by a rule, and without empty cells as a value of their own."""
    tied = {column for group in layout.tied for column in group.columns}
    candidates = set(range(len(domain.attributes))) - tied - {*fixed, *domain.sensitive_columns}
    return frozenset(c for c in candidates if domain.attributes[c].is_ordered and domain.attributes[c].empty is None)


def with_counterfactuals(domain: TableDomain, counterfactuals: CounterfactualTwins) -> TableDomain:
    """Return a domain in which records are compared with their counterfactual twins."""
    return replace(domain, twinning=counterfactuals)


def shuffle_groups(domain: TableDomain, rows: Tensor, seed: int) -> tuple[TableDomain, Tensor]:
    """Return a table whose groups are shuffled among its records, and a domain without rules on the group."""
    columns = list(domain.sensitive_columns)
    unruled = replace(domain, rules=tuple(r for r in domain.rules if not {*r.when, *r.then} & set(domain.sensitive)))
    order = draw_order(len(rows), seed).to(rows.device)
    shuffled = domain.clip(rows)
    shuffled[:, columns] = shuffled[order][:, columns]
    return unruled, shuffled


def find_fixed_columns(domain: TableDomain) -> frozenset[int]:
    """Return the positions of the attributes that are held fixed: fixed or legitimate, and not sensitive."""
    return frozenset(
        column
        for column, attribute in enumerate(domain.attributes)
        if (attribute.fixed or attribute.legitimate) and attribute.name not in domain.sensitive
    )


def _describe_groups(domain: TableDomain, counts: Tensor) -> str:
    sizes = sorted(((int(n), i) for i, n in enumerate(counts.tolist()) if n), reverse=True)[:4]
    columns = [domain.attributes[c] for c in domain.sensitive_columns]
    values = domain.sensitive_values.tolist()
    groups = [
        f"{' '.join(str(a.value(code)) for a, code in zip(columns, values[i], strict=True))} ({n:,})" for n, i in sizes
    ]
    return (
        f"counterfactuals need two groups of at least {MIN_GROUP_RECORDS} records; by {join_words(domain.sensitive)} "
        f"the table has {join_words(groups) if groups else 'none'}"
    )
