"""A population of the user's own: people whom their sampler has drawn, in the place of a model of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neuronfair.domain.data import read_table
from neuronfair.domain.files import Sheet, read_sheet
from neuronfair.domain.population import PopulationModel, fit_population
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DataError, one_line

PEOPLE = 50_000  # that a sampler is asked for


@dataclass(frozen=True)
class OwnPopulation:
    """People whom the user's own sampler has drawn; how usual anybody is says a model that is fitted to them."""

    rows: Tensor
    model: PopulationModel

    @property
    def draws_per_row(self) -> int:
        """How many random numbers `rows_at` takes for one row."""
        return 1

    def rows_at(self, u: Tensor) -> Tensor:
        """Return the people who stand at random places u: numbers in [0, 1), (n, 1)."""
        return self.rows[(u[:, 0] * len(self.rows)).long()]

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n of these people, with a generator on the CPU; one may be drawn twice."""
        return self.rows_at(torch.rand(n, 1, dtype=torch.float64, generator=generator).to(self.rows.device))

    def log_likelihood(self, rows: Tensor) -> Tensor:
        """Return the logarithm of each row's probability: float64, (n,); minus infinity for what is not valid."""
        return self.model.log_likelihood(rows)

    def plausibility(self, rows: Tensor) -> Tensor:
        """Return for each row the share of these people who are less usual: float64 in [0, 1], (n,)."""
        return self.model.plausibility(rows)


def read_people(given: Any | Callable[[int], Any], domain: TableDomain) -> Tensor:
    """Return the valid people of a table, or of a function that draws so many as it is told: (n, d).

    A table is a file, a DataFrame, or a mapping of columns, with the columns of the domain.
    """
    if callable(given):
        try:
            given = given(PEOPLE)
        except Exception as error:  # whatever a user's function raises
            raise DataError(
                f"population: the sampler failed when asked for {PEOPLE:,} people: {one_line(error)}"
            ) from None
    sheet = read_sheet(given)
    if not isinstance(given, (str, Path, Sheet)):  # so that an error is not taken for one of the table
        sheet = replace(sheet, path=Path("population"))
    rows = read_table(sheet, replace(domain, target=None, favourable=None)).rows
    rows = rows[domain.valid(rows)]
    if len(rows) == 0:
        raise DataError(f"population: expected people who keep the rules of {domain.name}, got none. Correct the table")
    return rows


def own_population(domain: TableDomain, rows: Tensor, *, seed: int = 0) -> OwnPopulation:
    """Return the population that these people are."""
    return OwnPopulation(rows, fit_population(domain, rows, seed=seed))
