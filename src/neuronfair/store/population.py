"""The population of a run, kept with it: how usual people are must not depend on when one asks."""

from __future__ import annotations

from pathlib import Path

from neuronfair.domain.population import PopulationModel, TablePopulation
from neuronfair.domain.table import TableDomain
from neuronfair.errors import RunError
from neuronfair.store.journal import POPULATION
from neuronfair.store.ledger import Writers


def written(population: PopulationModel | None) -> Writers:
    """Return what writes a population to its file; nothing where there is none, or one of the user's own."""
    if not isinstance(population, TablePopulation):
        return {}
    return {"population": (POPULATION, population.save)}


def read_population(path: Path, domain: TableDomain) -> PopulationModel:
    """Read a population back."""
    try:
        return TablePopulation.load(path, domain)
    except Exception as error:  # a damaged file can fail anywhere in the reader
        raise RunError(f"{path}: damaged or gone ({error}). What was found is still there") from None
