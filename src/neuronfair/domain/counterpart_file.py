"""Counterparts in a file: their population, what stays as it is, and whose groups are known."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from neuronfair.domain.counterparts import Counterparts
from neuronfair.domain.coupling import Coupling
from neuronfair.domain.forest import Forest
from neuronfair.domain.latent import CUTS, KNOTS, REST, Latent, Shift
from neuronfair.domain.places import Places
from neuronfair.domain.population import TablePopulation
from neuronfair.domain.population_file import fits, is_forest, load_made, save_population
from neuronfair.domain.table import TableDomain

_PLACES, _FOREST = ([field.name for field in fields(kind)] for kind in (Places, Forest))
_FLOATS = {"chance", "chances", "level", "slopes", "spread", "cuts", "pooled", "labels"}
_PARTS = ("level", "slopes", "spread", "cuts", "columns", "runs", "scales", "pooled", "labelled", "labels")
_NAMES = tuple(
    f"latent.{name}" for name in (*_PARTS, *(f"trees.{n}" for n in _FOREST), *(f"rest.{n}" for n in _PLACES))
)


def save_counterparts(counterparts: Counterparts, path: Path) -> None:
    """Write what makes counterparts, whole or not at all."""
    kept = torch.tensor(sorted(counterparts.kept), dtype=torch.int64)
    parts = {"kept": kept, "groups": counterparts.groups, **_written(counterparts.latent)}
    save_population(counterparts.population, path, parts)


def load_counterparts(path: Path, domain: TableDomain) -> Counterparts:
    """Read the counterparts of a domain; a file that is damaged, or of another domain or choice, is refused."""
    return load_made(path, domain, partial(_made, domain), "kept", "groups", *_NAMES)


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
    latent = _read(parts, population, len(groups))
    return Counterparts(population, frozenset(kept.tolist()), groups.to(domain.device), latent.to(domain.device))


def _written(latent: Latent) -> dict[str, Tensor]:
    """Return how columns shift as flat parts."""
    shifts, scales = latent.shifts, latent.scales
    parts = {f"trees.{name}": getattr(latent.trees, name) for name in _FOREST}
    for name in _PLACES:
        parts[f"rest.{name}"] = _flat([getattr(one.rest, name) for one in shifts.values()], name in _FLOATS)
    for name in ("level", "slopes", "spread", "cuts"):
        parts[name] = _flat([getattr(one, name) for one in shifts.values()], True)
    labels = [(column, other, table) for column, one in shifts.items() for other, table in one.labels.items()]
    parts |= {
        "columns": torch.tensor(list(shifts), dtype=torch.int64),
        "runs": torch.tensor([len(one.rest.starts) for one in shifts.values()], dtype=torch.int64),
        "scales": torch.tensor(list(scales), dtype=torch.int64),
        "pooled": _flat([one.chances for one in scales.values()], True),
        "labelled": torch.tensor([[column, other] for column, other, _ in labels], dtype=torch.int64).flatten(),
        "labels": _flat([table for *_, table in labels], True),
    }
    return {f"latent.{name}": part for name, part in parts.items()}


def _read(named: dict[str, Tensor], population: TablePopulation, groups: int) -> Latent:
    """Return what `_written` wrote; refuse what would lead out of its tables, or is no distribution."""
    parts = {name.removeprefix("latent."): part.cpu() for name, part in named.items() if name.startswith("latent.")}
    for name, part in parts.items():
        is_number = name.split(".")[-1] in _FLOATS
        if part.ndim != 1 or part.dtype != (torch.float64 if is_number else torch.int64) or not part.isfinite().all():
            raise ValueError(f"'latent.{name}' is of another form: {part.dtype}, {tuple(part.shape)}")
    places, columns, trees = population.to("cpu").places, parts["columns"].tolist(), _forest(parts)
    widths = [int(trees.widths[c]) if c in columns else len(column) for c, column in enumerate(places)]
    asked = [*(len(column) for column in places), 1, CUTS + 1]
    if len(set(columns)) < len(columns) or not is_forest(trees, widths, asked, population.order):
        raise ValueError("the trees of residuals do not fit together")
    rests = {}
    for name in _PLACES:
        lengths = [widths[c] for c in columns] if name == "classes" else parts["runs"].tolist()
        rests[name] = torch.split_with_sizes(parts[f"rest.{name}"], lengths)
    rest = [Places(*one) for one in zip(*rests.values(), strict=True)]
    if not all(fits(one, REST.size, None) for one in rest):
        raise ValueError("the places of residuals do not fit together")
    size, known = (groups, len(places), 1 + len(KNOTS)), parts["scales"].tolist()
    pooled = torch.split_with_sizes(parts["pooled"], [len(places[c]) for c in known])
    pairs = parts["labelled"].view(-1, 2).tolist()
    tables = torch.split_with_sizes(parts["labels"], [len(places[other]) for _, other in pairs])
    several = [
        parts[name].view(len(columns), *shape)
        for name, shape in (("level", size[:1]), ("slopes", size), ("spread", size[:1]), ("cuts", (CUTS,)))
    ]
    if not (bool((several[2] > 0).all()) and all(bool((chances >= 0).all()) for chances in pooled)):
        raise ValueError("a spread or a chance is negative")
    shifts = {}
    for i, column in enumerate(columns):
        level, slopes, spread, cuts = (part[i] for part in several)
        labels = {other: table for (own, other), table in zip(pairs, tables, strict=True) if own == column}
        shifts[column] = Shift(level, slopes, labels, spread, cuts.contiguous(), rest[i])
    scales = {c: Coupling(places[c], True, None, chances[None]) for c, chances in zip(known, pooled, strict=True)}
    if any(set(shift.asked) - {*scales, *shift.labels} or column not in scales for column, shift in shifts.items()):
        raise ValueError("a column shifts that has no scale")
    return Latent(scales, shifts, trees)


def _forest(parts: dict[str, Tensor]) -> Forest:
    return Forest(*(parts[f"trees.{name}"] for name in _FOREST))


def _flat(parts: list[Tensor], numbers: bool) -> Tensor:
    empty = torch.zeros(0, dtype=torch.float64 if numbers else torch.int64)
    return torch.cat([empty, *(part.cpu().flatten() for part in parts)])
