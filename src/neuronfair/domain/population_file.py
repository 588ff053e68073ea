"""A population in a file: plain tensors, so that reading one runs no code."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import load, save
from torch import Tensor

from neuronfair.atomic import replacing
from neuronfair.domain.forest import Forest
from neuronfair.domain.places import Places
from neuronfair.domain.population import TablePopulation
from neuronfair.domain.rules import RuleBook
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DataError, one_line
from neuronfair.limits import TooLarge, check_tensors, read_bytes

_PLACES, _FOREST = ([field.name for field in fields(kind)] for kind in (Places, Forest))
_FLOATS = {"chance", "chances", "usual"}
_Made = TypeVar("_Made")


def save_population(model: TablePopulation, path: Path, more: Mapping[str, Tensor] | None = None) -> None:
    """Write a population, and what else belongs to it, whole or not at all."""
    parts = {f"trees.{name}": getattr(model.trees, name) for name in _FOREST}
    for name in _PLACES:
        parts[f"places.{name}"] = torch.cat([getattr(column, name) for column in model.places])
    parts["places.runs"] = torch.tensor([len(column.starts) for column in model.places])
    parts |= {"order": torch.tensor(model.order), "usual": model.usual, **(more or {})}
    parts = {name: part.cpu().contiguous().clone() for name, part in parts.items()}
    seal = {"domain": _bytes(model.domain.fingerprint), "digest": _bytes(_digest(parts))}
    with replacing(path) as temporary:
        temporary.write_bytes(save(parts | seal))


def load_population(path: Path, domain: TableDomain) -> TablePopulation:
    """Read the population of a domain; a file that is damaged, or of another domain, is refused."""
    return load_made(path, domain, lambda model, _: model)


def load_made(
    path: Path, domain: TableDomain, make: Callable[[TablePopulation, dict[str, Tensor]], _Made], *more: str
) -> _Made:
    """Return what is made of the population of a domain and of these parts that are kept with it."""
    try:
        content = read_bytes(path, times=3)
        check_tensors(content, len(content), path)
        parts = load(content)
        said, digest = (bytes(parts.pop(name).tolist()).decode() for name in ("domain", "digest"))
        if digest != _digest(parts):
            raise ValueError("its content is not what was written")
        if said != domain.fingerprint:
            raise ValueError(f"it is of another domain than {domain.name}, or that has changed")
        others = {name: parts.pop(name) for name in more}
        model = _made(parts, domain)
        _check(model)
        return make(model.to(domain.device), others)
    except TooLarge:
        raise
    except Exception as error:  # a damaged file can fail anywhere in the reader
        raise DataError(f"{path}: not a population that can be read ({one_line(error)}). Fit it again") from None


def _bytes(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def _digest(parts: dict[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(parts):
        found.update(f"{name} {parts[name].dtype} {tuple(parts[name].shape)}\n".encode())
        found.update(parts[name].numpy().tobytes())
    return found.hexdigest()


def _made(parts: dict[str, Tensor], domain: TableDomain) -> TablePopulation:
    for name, part in parts.items():
        if part.dim() != 1 or part.dtype != (torch.float64 if name.split(".")[-1] in _FLOATS else torch.int64):
            raise ValueError(f"'{name}' is of another form: {part.dtype}, {tuple(part.shape)}")
    trees = Forest(*(parts[f"trees.{name}"] for name in _FOREST))
    columns = {}
    for name in _PLACES:
        lengths = trees.widths if name == "classes" else parts["places.runs"]
        columns[name] = torch.split_with_sizes(parts[f"places.{name}"], lengths.tolist())
    places = tuple(Places(*column) for column in zip(*columns.values(), strict=True))
    tied = RuleBook(domain.attributes, domain.rules).tied
    return TablePopulation(domain.to("cpu"), tuple(parts["order"].tolist()), places, trees, parts["usual"], tied)


def _check(model: TablePopulation) -> None:
    """Refuse what would lead out of its tables, or be no distribution over the valid rows."""
    domain, trees, d = model.domain, model.trees, len(model.domain.attributes)
    class_of = {
        column: classes for group in model.tied for column, classes in zip(group.columns, group.class_of, strict=True)
    }
    good = sorted(model.order) == list(range(d)) == list(range(len(model.places)))
    good = good and len(model.usual) > 0 and torch.equal(model.usual, model.usual.sort().values)  # nor NaN
    good = good and all(fits(model.places[c], domain.attributes[c].size, class_of.get(c)) for c in range(d))
    widths = [len(column) for column in model.places]
    if not (good and is_forest(trees, widths, [*widths, 1], model.order)):
        raise ValueError("its parts do not fit together")


def fits(places: Places, size: int, class_of: Tensor | None) -> bool:
    """Whether runs cover a column's codes, and each place is of one class."""
    starts, ends, n = places.starts, places.starts + places.lengths, len(places)
    if (
        int(starts[0])
        or int(ends[-1]) != size
        or not torch.equal(ends[:-1], starts[1:])
        or int(places.lengths.min()) < 1
    ):
        return False
    if int(places.place.min()) < 0 or int(places.place.max()) >= n:
        return False
    mass = starts.new_zeros(n).double().index_add_(0, places.place, places.chance.exp() * places.lengths)
    if not torch.allclose(mass, torch.ones_like(mass)):  # 0 for a place without codes
        return False
    if class_of is None:
        return not bool(places.classes.any())
    cuts = torch.diff(class_of).nonzero()[:, 0] + 1
    return bool(torch.isin(cuts, starts).all()) and bool((class_of[starts] == places.classes[places.place]).all())


def is_forest(trees: Forest, widths: list[int], asked: list[int], order: tuple[int, ...]) -> bool:
    """Whether every node leads to later ones of its tree, asks an earlier column, and has chances that add up to 1.

    `widths` are the places of each tree's column, `asked` those of what can be asked: the columns, then 1 for a leaf,
    then what every tree may ask.
    """
    d, count = len(order), torch.diff(trees.roots, append=torch.tensor([len(trees.asks)]))
    if trees.widths.tolist() != widths or len(trees.roots) != d or int(trees.roots[0]) or int(count.min()) < 1:
        return False
    of = torch.arange(d).repeat_interleave(count)
    rank = torch.full((len(asked),), -1)
    rank[torch.tensor(order)] = torch.arange(d)
    if len(trees.base) != len(of) or int(trees.asks.min()) < 0 or int(trees.asks.max()) >= len(asked):
        return False
    lengths = torch.tensor(asked)[trees.asks]
    if bool((rank[trees.asks] >= rank[of]).any()) or not torch.equal(trees.base, lengths.cumsum(0) - lengths):
        return False
    if int(lengths.sum()) != len(trees.children):  # asked first: what follows is as large
        return False
    node = torch.arange(len(of)).repeat_interleave(lengths)
    if bool(((trees.children < 0) | (trees.children >= len(of))).any()):
        return False
    leads = torch.where(trees.asks[node] == d, trees.children == node, trees.children > node)
    if not bool((leads & (of[trees.children] == of[node])).all()):
        return False
    if len(trees.chances) != int((count * trees.widths).sum()) or not bool((trees.chances > 0).all()):
        return False
    return all(torch.allclose(t.sum(1), t.new_ones(len(t))) for t in map(trees.table, range(d)))
