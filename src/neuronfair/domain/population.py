"""Who lives: a model of the people of a table, which draws others like them and says how usual anybody is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain


class PopulationModel(Protocol):
    """What is asked of a population: the fitted one, or one of the user's own."""

    @property
    def draws_per_row(self) -> int:
        """How many random numbers `rows_at` takes for one row."""

    def rows_at(self, u: Tensor) -> Tensor:
        """Return the people who stand at random places u: numbers in [0, 1), (n, draws_per_row)."""

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n people, with a generator on the CPU; all of them are valid."""

    def log_likelihood(self, rows: Tensor) -> Tensor:
        """Return the logarithm of each row's probability: float64, (n,); minus infinity for what is not valid."""

    def plausibility(self, rows: Tensor) -> Tensor:
        """Return for each row the share of real people who are less usual: float64 in [0, 1], (n,)."""


@dataclass(frozen=True)
class TablePopulation:
    """A population fitted to the rows of a table."""

    domain: TableDomain
    chances: tuple[Tensor, ...]  # per column
    usual: Tensor  # sorted log-likelihoods of real people

    @property
    def draws_per_row(self) -> int:
        """How many random numbers `rows_at` takes for one row."""
        return len(self.chances)

    def rows_at(self, u: Tensor) -> Tensor:
        """Return the people who stand at random places u: numbers in [0, 1), (n, draws_per_row)."""
        columns = [
            torch.searchsorted(chance.cumsum(0), u[:, i].contiguous()).clamp(max=len(chance) - 1)
            for i, chance in enumerate(self.chances)
        ]
        return self.domain.clip(torch.stack(columns, 1))

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n people, with a generator on the CPU; all of them are valid."""
        u = torch.rand(n, self.draws_per_row, dtype=torch.float64, generator=generator)
        return self.rows_at(u.to(self.domain.device))

    def log_likelihood(self, rows: Tensor) -> Tensor:
        """Return the logarithm of each row's probability: float64, (n,); minus infinity for what is not valid."""
        parts = [chance.log()[rows[:, i].clamp(0, len(chance) - 1)] for i, chance in enumerate(self.chances)]
        return torch.stack(parts, 1).sum(1).masked_fill(~self.domain.valid(rows), -torch.inf)

    def plausibility(self, rows: Tensor) -> Tensor:
        """Return for each row the share of real people who are less usual: float64 in [0, 1], (n,)."""
        return torch.searchsorted(self.usual, self.log_likelihood(rows)).double() / len(self.usual)

    def save(self, path: Path) -> None:
        """Write the population to a file."""
        columns = {f"chance_{i}": chance.cpu().numpy() for i, chance in enumerate(self.chances)}
        with path.open("wb") as file:  # a path would be given another ending
            np.savez(file, usual=self.usual.cpu().numpy(), **columns)  # type: ignore[arg-type]

    @staticmethod
    def load(path: Path, domain: TableDomain) -> TablePopulation:
        """Read a population of this domain back."""
        with np.load(path, allow_pickle=False) as file:
            usual, *chances = (
                torch.from_numpy(file[name]).to(domain.device)
                for name in ("usual", *(f"chance_{i}" for i in range(len(domain.attributes))))
            )
        return TablePopulation(domain, tuple(chances), usual)


def fit_population(domain: TableDomain, rows: Tensor, *, seed: int = 0) -> TablePopulation:
    """Return a model of the people of a table."""
    chances = []
    for i, attribute in enumerate(domain.attributes):
        codes = rows[:, i].clamp(0, attribute.size - 1)
        counts = torch.bincount(codes, minlength=attribute.size).double() + 1 / attribute.size
        chances.append(counts / counts.sum())
    model = TablePopulation(domain, tuple(chances), torch.zeros(1, dtype=torch.float64, device=domain.device))
    valid = rows[domain.valid(rows)]
    usual = model.log_likelihood(valid if len(valid) else domain.clip(rows)).sort().values
    return TablePopulation(domain, tuple(chances), usual)
