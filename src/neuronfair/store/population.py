"""The population of a run, kept with it: how usual people are must not depend on when one asks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from neuronfair.domain.population import PopulationModel, TablePopulation
from neuronfair.domain.population_file import load_population, save_population
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DataError, RunError
from neuronfair.store.journal import POPULATION
from neuronfair.store.ledger import Writers


def written(population: PopulationModel | None) -> Writers:
    """Return what writes a population to its file; nothing where there is none, or one of the user's own."""
    if not isinstance(population, TablePopulation):
        return {}
    return {"population": (POPULATION, partial(save_population, population))}


def read_population(path: Path, domain: TableDomain) -> PopulationModel:
    """Read a population back."""
    try:
        return load_population(path, domain)
    except DataError as error:
        raise RunError(f"{error}. What was found is still there") from None
