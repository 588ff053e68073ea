"""Plausible records and plausible twins: domains without records of low likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Self

import torch
from torch import Tensor

from neuronfair.domain.draws import draw_order
from neuronfair.domain.population.model import PopulationModel, TablePopulation
from neuronfair.domain.table import TableDomain
from neuronfair.domain.twins import ATTRIBUTE_FLIPS, AttributeFlipTwins, TwinRows
from neuronfair.errors import NeuronFairError

MIN_PLAUSIBILITY = 0.01  # the smallest likelihood percentile of a plausible record
MIN_RATIO = (
    0.02  # the smallest ratio of the likelihood of a twin's sensitive values, given its others, to the overall one
)
MAX_CHECKED_ROWS = 200_000  # records from which the overall likelihood of sensitive values is computed, at most
TRIES_PER_ROW = 4  # records drawn for one row, of which the first plausible one is taken
MIN_PLAUSIBLE_ROWS = 5  # plausible rows of the table that a search needs
BATCH_CELLS = 1 << 20  # cells of rows that are scored in one batch: bounds the memory


@dataclass(frozen=True, kw_only=True)
class PlausibleDomain(TableDomain):
    """The plausible records of a domain: those whose likelihood percentile is `threshold` or more.

    A search stays within them: moves to other records are cut back, and random rows are drawn from the population.
    Twins need not be plausible, and `clip` and `count` are those of the whole domain.
    """

    population: PopulationModel = field(compare=False, repr=False)
    threshold: float
    records: Tensor = field(compare=False, repr=False)  # rows of the table that are plausible

    @property
    def is_restricted(self) -> bool:
        """Whether rows must keep more than the bounds of their codes: they must."""
        return True

    def to(self, device: str | torch.device) -> PlausibleDomain:
        """Return this domain, its population and its records on another device."""
        population, device = _move_population(self.population, device), torch.device(device)
        twinning, records = self.twinning.to(device), self.records.to(device)
        return replace(self, device=device, twinning=twinning, population=population, records=records)

    def valid(self, rows: Tensor) -> Tensor:
        """Return for each row whether it exists and is plausible: bool, (n,)."""
        accepted = super().valid(rows)
        chosen = accepted.nonzero()[:, 0]
        for part in torch.split(chosen, max(1, BATCH_CELLS // rows.shape[1])):
            accepted[part] = self.population.plausibility(rows[part]) >= self.threshold
        return accepted

    def move(self, rows: Tensor, codes: Tensor) -> Tensor:
        """Return the nearest valid rows to `codes` with the sensitive values of `rows`, where these are plausible.

        Elsewhere attributes change one after the other, except those whose change is not plausible.
        """
        goals = super().move(rows, codes)
        accepted = self.valid(goals)
        results = torch.where(accepted[:, None], goals, rows)
        unmoved = (~accepted).nonzero()[:, 0]
        for column in (goals[unmoved] != rows[unmoved]).any(0).nonzero()[:, 0].tolist():
            changed = unmoved[goals[unmoved, column] != rows[unmoved, column]]
            trials = results[changed]
            trials[:, column] = goals[changed, column]
            accepted = self.valid(trials)
            results[changed[accepted]] = trials[accepted]
        return results

    def can_change(self, rows: Tensor, codes: Tensor) -> Tensor:
        """Return for each attribute whether changing it alone to its new code is plausible: bool, (n, d)."""
        n, width = rows.shape
        is_plausible = torch.empty(n, width, dtype=torch.bool, device=rows.device)
        size = max(1, BATCH_CELLS // width**2)
        for start in range(0, n, size):
            part = slice(start, start + size)
            trials = rows[part, None].repeat(1, width, 1)
            trials.diagonal(dim1=1, dim2=2).copy_(codes[part])
            is_plausible[part] = self.valid(trials.flatten(0, 1)).view(-1, width)
        return is_plausible

    def among(self, rows: Tensor) -> Tensor:
        """Return the plausible ones among rows to start from; refuses rows without any."""
        plausible_rows = rows[self.valid(rows)]
        if len(plausible_rows) == 0 < len(rows):
            raise NeuronFairError(
                f"{self.name}: none of the {len(rows):,} rows to start from has a plausibility of {self.threshold:g} "
                "or more. Start from others, or ask for less"
            )
        return plausible_rows

    @property
    def draws_per_row(self) -> int:
        """How many random numbers `rows_at` takes for one row."""
        return TRIES_PER_ROW * self.population.draws_per_row + 1

    def rows_at(self, u: Tensor) -> Tensor:
        """Return the plausible records at random places u: numbers in [0, 1), (n, draws_per_row).

        Each is the first plausible one of a few records drawn from the population; if none of them is, it is a
        plausible row of the table.
        """
        *draws, last = torch.split(u, self.population.draws_per_row, 1)
        rows = self.records[(last[:, 0] * len(self.records)).long()]
        missing = torch.arange(len(rows), device=rows.device)
        for draw in draws:
            if len(missing):
                samples = self.population.rows_at(draw[missing])
                accepted = self.valid(samples)
                rows[missing[accepted]] = samples[accepted]
                missing = missing[~accepted]
        return rows


def keep_plausible(domain: TableDomain, population: PopulationModel, threshold: float, rows: Tensor) -> PlausibleDomain:
    """Return a domain with only the records whose likelihood percentile is `threshold` or more.

    A table with hardly any such record is an error.
    """
    settings = {part.name: getattr(domain, part.name) for part in fields(domain)}
    unfiltered = PlausibleDomain(**settings, population=population, threshold=threshold, records=rows)
    records = rows[unfiltered.valid(rows)]
    if len(records) < MIN_PLAUSIBLE_ROWS:
        raise NeuronFairError(
            f"{domain.name}: {len(records):,} of {len(rows):,} rows of the table have a plausibility of {threshold:g} "
            f"or more, and {MIN_PLAUSIBLE_ROWS} are needed. Ask for less, or take a population that is like the table"
        )
    return PlausibleDomain(**settings, population=population, threshold=threshold, records=records)


@dataclass(frozen=True)
class PlausibleTwins(AttributeFlipTwins):
    """Plausible twins that differ in the sensitive attributes only.

    A twin is plausible if its sensitive values fit its other values: given these, they are at least 2% as likely as
    overall. A female husband is not plausible, though many real records are less likely as a whole; a record of a small
    group is, though all records of that group are rare.
    """

    population: PopulationModel = field(kw_only=True, compare=False, repr=False)
    overall: Tensor = field(kw_only=True, compare=False, repr=False)  # (combinations,) log probability of each

    def twins(self, domain: TableDomain, rows: Tensor) -> TwinRows:
        """Return all k twins of each row; one that breaks a rule or is not plausible does not exist."""
        twins, valid = super().twins(domain, rows)
        size = max(1, BATCH_CELLS // (twins.shape[1] + 1) // rows.shape[1])
        parts = zip(torch.split(rows, size), torch.split(twins, size), strict=True)
        fits = [_likelihood(domain, self.population, *part) - self.overall[_members(domain, part[0])] for part in parts]
        return TwinRows(twins, valid & (torch.cat(fits)[:, 1:] >= math.log(MIN_RATIO)))

    def to(self, device: torch.device) -> Self:
        """Return the same on another device."""
        return replace(self, population=_move_population(self.population, device), overall=self.overall.to(device))


def with_plausible_twins(domain: TableDomain, population: PopulationModel, rows: Tensor) -> TableDomain:
    """Return a domain with plausible twins only, given the rows of its table."""
    max_rows = max(1, MAX_CHECKED_ROWS // len(domain.sensitive_values))
    sample = rows[draw_order(len(rows), 0)[:max_rows].to(rows.device)]
    sample = domain.clip(sample)
    overall = torch.zeros(len(domain.sensitive_values), dtype=torch.float64, device=rows.device)
    for part in torch.split(sample, max(1, BATCH_CELLS // len(domain.sensitive_values) // rows.shape[1])):
        likely = _likelihood(domain, population, part, ATTRIBUTE_FLIPS.twins(domain, part).rows).exp()
        overall.index_add_(0, _members(domain, part).flatten(), likely.flatten())
    return replace(domain, twinning=PlausibleTwins(population=population, overall=(overall / len(sample)).log()))


def _likelihood(domain: TableDomain, population: PopulationModel, rows: Tensor, twins: Tensor) -> Tensor:
    """Return the log likelihood of the sensitive values of each family member, given its other values: (n, 1 + k)."""
    family = torch.cat([rows[:, None], twins], 1)
    codes = family.flatten(0, 1).clamp(min=0).minimum(domain.sizes - 1)  # codes outside the bounds: the nearest inside
    score = population.log_likelihood(codes).view(family.shape[:2])
    return (score - score.logsumexp(1, keepdim=True)).nan_to_num(nan=-torch.inf)  # NaN: none of the family is valid


def _members(domain: TableDomain, rows: Tensor) -> Tensor:
    """Return the number of each family member's combination of sensitive values: (n, 1 + k)."""
    count = len(domain.sensitive_values)
    return (domain.combinations.number(rows)[:, None] + torch.arange(count, device=rows.device)) % count


def _move_population(population: PopulationModel, device: str | torch.device) -> PopulationModel:
    """Return a fitted population on another device; a user's own population stays as it is."""
    return population.to(device) if isinstance(population, TablePopulation) else population
