"""What a run knows of people, kept with it: who is usual and who is compared with whom must not depend on the day."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from neuronfair.domain.counterpart_file import save_counterparts
from neuronfair.domain.counterparts import Counterparts
from neuronfair.domain.population import PopulationModel, TablePopulation
from neuronfair.domain.population_file import save_population
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DataError, RunError
from neuronfair.store.journal import COUNTERPARTS, POPULATION
from neuronfair.store.ledger import Writers

_Known = TypeVar("_Known")


def written(population: PopulationModel | None, counterparts: Counterparts | None) -> Writers:
    """Return what writes these to their files; nothing for what there is none of, or for a user's own population."""
    writers: dict[str, tuple[str, Callable[[Path], None]]] = {}
    if isinstance(population, TablePopulation):
        writers["population"] = POPULATION, partial(save_population, population)
    if counterparts is not None:
        writers["counterparts"] = COUNTERPARTS, partial(save_counterparts, counterparts)
    return writers


def read_back(load: Callable[[Path, TableDomain], _Known], path: Path, domain: TableDomain) -> _Known:
    """Read what a run has kept of people."""
    try:
        return load(path, domain)
    except DataError as error:
        raise RunError(f"{error}. What was found is still there") from None
