"""Counterparts learned from a table, and the placebo: the same from a table whose groups are shuffled."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor

from neuronfair.domain.counterparts import Counterparts
from neuronfair.domain.graph import graph
from neuronfair.domain.latent import fit_latent
from neuronfair.domain.population import Layout, grown
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DomainError
from neuronfair.words import listed

FEWEST = 30  # people of a group, to say what such people are like


def fit_counterparts(domain: TableDomain, rows: Tensor, *, groups: Tensor | None = None, seed: int = 0) -> Counterparts:
    """Return how the people of a table become people of another group.

    The sensitive attributes come first, then those that stay as they are, then the others, in the order of the
    population model or of the graph that the attributes' `causes` are. Groups of a few people are left out; refused
    where fewer than two groups are left, or where nothing else than the group may change. `groups`, where they are
    known, are those that are not left out.
    """
    kept = kept_columns(domain)
    sensitive = domain.sensitive_columns
    if domain.has_bands:
        raise DomainError(f"{domain.name}: bands of a sensitive attribute are for the attribute-flip test only")
    if len(kept) + len(sensitive) == len(domain.attributes):
        raise DomainError(
            f"{domain.name}: every attribute is fixed or legitimate, so a counterpart would be the same person and no "
            "decision could differ. Leave some attributes free to move with the group"
        )
    people = domain.clip(rows)
    if groups is None:
        counts = torch.bincount(domain.combinations.number(people), minlength=len(domain.sensitive_values))
        groups = counts >= FEWEST
        if int(groups.sum()) < 2:
            raise DomainError(f"{domain.name}: {_too_few(domain, counts)}")
    first = [*domain.sensitive, *(domain.names[column] for column in sorted(kept))]
    causes = graph(domain.attributes)
    names = domain.sensitive if causes is not None else first
    layout = Layout.of(domain, people, seed=seed, first=names, causes=causes)
    shifted = _shifted(domain, layout, kept)
    latent = fit_latent(layout, domain, people, groups, shifted, caused=causes is not None, seed=seed)
    population = grown(domain, layout, sure=True, alone={*shifted, *sensitive, *kept})
    return Counterparts(population, kept, groups, latent.to(domain.device))


def _shifted(domain: TableDomain, layout: Layout, kept: Collection[int]) -> frozenset[int]:
    """Return the columns that shift: ordered ones of which no rule speaks and no cell is empty."""
    tied = {column for group in layout.tied for column in group.columns}
    free = set(range(len(domain.attributes))) - tied - {*kept, *domain.sensitive_columns}
    return frozenset(c for c in free if domain.attributes[c].ordered and domain.attributes[c].empty is None)


def with_counterparts(domain: TableDomain, counterparts: Counterparts) -> TableDomain:
    """Return a domain in which people are compared with their counterparts."""
    return replace(domain, twinning=counterparts)


def placebo(domain: TableDomain, rows: Tensor, seed: int) -> tuple[TableDomain, Tensor]:
    """Return a table whose groups are shuffled among its people, and a domain in which all of them may exist.

    No rule speaks of the group there.
    """
    columns = list(domain.sensitive_columns)
    free = replace(domain, rules=tuple(r for r in domain.rules if not {*r.when, *r.then} & set(domain.sensitive)))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).to(rows.device)
    shuffled = domain.clip(rows)
    shuffled[:, columns] = shuffled[order][:, columns]
    return free, shuffled


def kept_columns(domain: TableDomain) -> frozenset[int]:
    """Return the positions of the attributes that a counterpart keeps: fixed or legitimate, and not sensitive."""
    return frozenset(
        column
        for column, attribute in enumerate(domain.attributes)
        if (attribute.fixed or attribute.legitimate) and attribute.name not in domain.sensitive
    )


def _too_few(domain: TableDomain, counts: Tensor) -> str:
    sizes = sorted(((int(n), i) for i, n in enumerate(counts.tolist()) if n), reverse=True)[:4]
    columns = [domain.attributes[c] for c in domain.sensitive_columns]
    values = domain.sensitive_values.tolist()
    told = [
        f"{' '.join(str(a.value(code)) for a, code in zip(columns, values[i], strict=True))} ({n:,})" for n, i in sizes
    ]
    return (
        f"counterparts need two groups of at least {FEWEST} people, to say what such people are like; by "
        f"{listed(domain.sensitive)} the table has {listed(told) if told else 'nobody'}"
    )
