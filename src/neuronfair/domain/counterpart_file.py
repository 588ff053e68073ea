"""Counterparts in a file: their population, what stays as it is, and whose groups are known."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from neuronfair.domain.counterparts import Counterparts
from neuronfair.domain.population import TablePopulation
from neuronfair.domain.population_file import load_made, save_population
from neuronfair.domain.table import TableDomain


def save_counterparts(counterparts: Counterparts, path: Path) -> None:
    """Write what makes counterparts, whole or not at all."""
    kept = torch.tensor(sorted(counterparts.kept), dtype=torch.int64)
    save_population(counterparts.population, path, {"kept": kept, "groups": counterparts.groups})


def load_counterparts(path: Path, domain: TableDomain) -> Counterparts:
    """Read the counterparts of a domain; a file that is damaged, or of another domain or choice, is refused."""
    return load_made(path, domain, partial(_made, domain), "kept", "groups")


def _made(domain: TableDomain, population: TablePopulation, parts: dict[str, Tensor]) -> Counterparts:
    kept, groups = parts["kept"], parts["groups"]
    sensitive = set(domain.sensitive_columns)
    if (groups.dtype, tuple(groups.shape)) != (torch.bool, (len(domain.sensitive_values),)) or int(groups.sum()) < 2:
        raise ValueError(f"'groups' is of another form: {groups.dtype}, {tuple(groups.shape)}")
    others = set(range(len(domain.attributes))) - sensitive
    if kept.dtype != torch.int64 or kept.ndim != 1 or not others >= set(kept.tolist()):
        raise ValueError("'kept' are no columns that a counterpart can keep")
    if set(population.order[: len(sensitive)]) != sensitive:
        raise ValueError("its first columns are not the sensitive ones")
    return Counterparts(population, frozenset(kept.tolist()), groups.to(domain.device))
