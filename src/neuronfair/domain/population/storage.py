"""Populations and counterfactual models in files: plain tensors, so that reading one runs no code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from neuronfair.atomic import replace_file
from neuronfair.domain.population.bins import Bins, Coupling
from neuronfair.domain.population.counterfactuals import CounterfactualTwins
from neuronfair.domain.population.latent import RESIDUAL_GRID, SCORE_CUTS, SCORE_KNOTS, GroupShift, Latent
from neuronfair.domain.population.model import TablePopulation
from neuronfair.domain.population.trees import ChanceForest, to_device
from neuronfair.domain.rules import RuleBook
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DataError, one_line
from neuronfair.limits import TooLargeError, check_tensors, read_bytes

# The names of the fields of `Bins` and `ChanceForest` in files, in their order.
_BIN_PARTS = ("starts", "lengths", "place", "chance", "classes")
_TREE_PARTS = ("roots", "widths", "asks", "base", "children", "chances")
# The parts that hold float64; all others hold int64.
_FLOAT_PARTS = {"chance", "chances", "usual", "level", "slopes", "spread", "cuts", "pooled", "labels"}


def save_population(model: TablePopulation, path: Path, further_parts: Mapping[str, Tensor] | None = None) -> None:
    """Write a population and further tensors to a file atomically."""
    parts = {f"trees.{name}": part for name, part in zip(_TREE_PARTS, _tensors(model.trees), strict=True)}
    for name, columns in zip(_BIN_PARTS, zip(*map(_tensors, model.bins), strict=True), strict=True):
        parts[f"places.{name}"] = torch.cat(columns)
    parts["places.runs"] = torch.tensor([len(column.starts) for column in model.bins])
    parts |= {"order": torch.tensor(model.order), "usual": model.reference, **(further_parts or {})}
    parts = {name: part.cpu().contiguous().clone() for name, part in parts.items()}
    seal = {"domain": _text_tensor(model.domain.fingerprint), "digest": _text_tensor(_digest_parts(parts))}
    with replace_file(path) as temporary:
        temporary.write_bytes(save(parts | seal))


def load_population(path: Path, domain: TableDomain) -> TablePopulation:
    """Read the population of a domain; a damaged file, or one of another domain, is an error."""
    with _name_in_errors(path):
        return _read_population(path, domain)[0]


def load_counterfactuals(path: Path, domain: TableDomain) -> CounterfactualTwins:
    """Read the counterfactual twins of a domain; a damaged file, or one of another domain, is an error."""
    with _name_in_errors(path):
        return _read_twins(domain, *_read_population(path, domain, "kept", "groups", *_LATENT_NAMES))


@contextmanager
def _name_in_errors(path: Path) -> Iterator[None]:
    """Name the file that cannot be read."""
    try:
        yield
    except TooLargeError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in the reader
        raise DataError(f"{path}: not a population that can be read ({one_line(error)}). Fit it again") from None


def _read_population(path: Path, domain: TableDomain, *further_names: str) -> tuple[TablePopulation, dict[str, Tensor]]:
    """Return a population and the named further parts of its file."""
    content = read_bytes(path, times=3)
    check_tensors(content, len(content), path)
    parts = load(content)
    fingerprint, digest = (bytes(parts.pop(name).tolist()).decode() for name in ("domain", "digest"))
    if digest != _digest_parts(parts):
        raise ValueError("its content is not what was written")
    if fingerprint != domain.fingerprint:
        raise ValueError(f"it is of another domain than {domain.name}, or that has changed")
    further_parts = {name: parts.pop(name) for name in further_names}
    _check_forms(parts)
    trees = ChanceForest(*(parts[f"trees.{name}"] for name in _TREE_PARTS))
    bins = tuple(_read_bins(parts, "places", trees.widths.tolist(), parts["places.runs"].tolist()))
    tied = RuleBook(domain.attributes, domain.rules).tied
    model = TablePopulation(domain.to("cpu"), tuple(parts["order"].tolist()), bins, trees, parts["usual"], tied)
    _check_parts(model)
    return model.to(domain.device), further_parts


def _tensors(tables: Bins | ChanceForest) -> list[Tensor]:
    return [getattr(tables, field.name) for field in fields(tables)]


def _text_tensor(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def _digest_parts(parts: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(parts):
        digest.update(f"{name} {parts[name].dtype} {tuple(parts[name].shape)}\n".encode())
        digest.update(parts[name].numpy().tobytes())
    return digest.hexdigest()


def _check_forms(parts: dict[str, Tensor]) -> None:
    for name, part in parts.items():
        if part.ndim != 1 or part.dtype != (torch.float64 if name.split(".")[-1] in _FLOAT_PARTS else torch.int64):
            raise ValueError(f"'{name}' is of another form: {part.dtype}, {tuple(part.shape)}")


def _check_parts(model: TablePopulation) -> None:
    """Refuse indices outside the tables, and numbers that are no distribution over the valid rows."""
    domain, d = model.domain, len(model.domain.attributes)
    class_of = {c: classes for group in model.tied for c, classes in zip(group.columns, group.class_of, strict=True)}
    widths = [len(column) for column in model.bins]
    if not (
        sorted(model.order) == list(range(d)) == list(range(len(model.bins)))
        and len(model.reference) > 0
        and torch.equal(model.reference, model.reference.sort().values)  # nor NaN
        and all(bins_fit(model.bins[c], domain.attributes[c].size, class_of.get(c)) for c in range(d))
        and is_forest(model.trees, widths, [*widths, 1], model.order)
    ):
        raise ValueError("its parts do not fit together")


def bins_fit(bins: Bins, size: int, class_of: Tensor | None) -> bool:
    """Whether runs cover a column's codes, and each bin is of one class."""
    starts, ends, n = bins.starts, bins.starts + bins.lengths, len(bins)
    if int(starts[0]) or int(ends[-1]) != size or not torch.equal(ends[:-1], starts[1:]):
        return False
    if int(bins.lengths.min()) < 1 or int(bins.bin_of_run.min()) < 0 or int(bins.bin_of_run.max()) >= n:
        return False
    mass = starts.new_zeros(n).double().index_add_(0, bins.bin_of_run, bins.chance.exp() * bins.lengths)
    if not torch.allclose(mass, torch.ones_like(mass)):  # 0 for a bin without codes
        return False
    if class_of is None:
        return not bool(bins.classes.any())
    cuts = torch.diff(class_of).nonzero()[:, 0] + 1
    return bool(torch.isin(cuts, starts).all()) and bool((class_of[starts] == bins.classes[bins.bin_of_run]).all())


def is_forest(trees: ChanceForest, widths: list[int], bin_counts: list[int], order: tuple[int, ...]) -> bool:
    """Whether every node has later children in its tree, splits on an earlier column, and has a distribution.

    `widths` are the numbers of bins of each tree's column; `bin_counts` those of what a tree can split on: the
    columns, then 1 for a leaf, then what every tree may use.
    """
    d, split = len(order), trees.split_column
    count = torch.diff(trees.roots, append=torch.tensor([len(split)]))
    if trees.widths.tolist() != widths or len(trees.roots) != d or int(trees.roots[0]) or int(count.min()) < 1:
        return False
    tree_of = torch.arange(d).repeat_interleave(count)
    rank = torch.full((len(bin_counts),), -1)
    rank[torch.tensor(order)] = torch.arange(d)
    if len(trees.base) != len(tree_of) or int(split.min()) < 0 or int(split.max()) >= len(bin_counts):
        return False
    lengths = torch.tensor(bin_counts)[split]
    if bool((rank[split] >= rank[tree_of]).any()) or not torch.equal(trees.base, lengths.cumsum(0) - lengths):
        return False
    if int(lengths.sum()) != len(trees.children):  # checked before tensors of this size are made
        return False
    node = torch.arange(len(tree_of)).repeat_interleave(lengths)
    if bool(((trees.children < 0) | (trees.children >= len(tree_of))).any()):
        return False
    leads = torch.where(split[node] == d, trees.children == node, trees.children > node)
    if not bool((leads & (tree_of[trees.children] == tree_of[node])).all()):
        return False
    if len(trees.chances) != int((count * trees.widths).sum()) or not bool((trees.chances > 0).all()):
        return False
    return all(torch.allclose(t.sum(1), t.new_ones(len(t))) for t in map(trees.table, range(d)))


_LATENT_PARTS = ("level", "slopes", "spread", "cuts", "columns", "runs", "scales", "pooled", "labelled", "labels")
_LATENT_NAMES = tuple(
    f"latent.{name}"
    for name in (*_LATENT_PARTS, *(f"trees.{n}" for n in _TREE_PARTS), *(f"rest.{n}" for n in _BIN_PARTS))
)


def save_counterfactuals(counterfactuals: CounterfactualTwins, path: Path) -> None:
    """Write counterfactual twins to a file atomically."""
    fixed_columns = torch.tensor(sorted(counterfactuals.fixed_columns), dtype=torch.int64)
    parts = {"kept": fixed_columns, "groups": counterfactuals.groups, **_pack_latent(counterfactuals.latent)}
    save_population(counterfactuals.population, path, parts)


def _read_twins(domain: TableDomain, population: TablePopulation, parts: dict[str, Tensor]) -> CounterfactualTwins:
    fixed_columns, groups = parts["kept"], parts["groups"]
    sensitive = set(domain.sensitive_columns)
    if (groups.dtype, tuple(groups.shape)) != (torch.bool, (len(domain.sensitive_values),)) or int(groups.sum()) < 2:
        raise ValueError(f"'groups' is of another form: {groups.dtype}, {tuple(groups.shape)}")
    free = set(range(len(domain.attributes))) - sensitive
    if fixed_columns.dtype != torch.int64 or fixed_columns.ndim != 1 or not free >= set(fixed_columns.tolist()):
        raise ValueError("'kept' are no columns that a counterfactual can keep")
    if set(population.order[: len(sensitive)]) != sensitive:
        raise ValueError("its first columns are not the sensitive ones")
    groups, latent = to_device((groups, _read_latent(parts, population, len(groups))), domain.device)
    return CounterfactualTwins(population, frozenset(fixed_columns.tolist()), groups, latent)


def _pack_latent(latent: Latent) -> dict[str, Tensor]:
    shifts, scales = latent.shifts, latent.scales
    parts = {f"trees.{name}": part for name, part in zip(_TREE_PARTS, _tensors(latent.trees), strict=True)}
    for number, name in enumerate(_BIN_PARTS):
        parts[f"rest.{name}"] = _join(
            [_tensors(shift.residual_bins)[number] for shift in shifts.values()], name == "chance"
        )
    for name in ("level", "slopes", "spread", "cuts"):
        parts[name] = _join([getattr(shift, name) for shift in shifts.values()], True)
    labels = [(column, other, table) for column, shift in shifts.items() for other, table in shift.labels.items()]
    parts |= {
        "columns": torch.tensor(list(shifts), dtype=torch.int64),
        "runs": torch.tensor([len(shift.residual_bins.starts) for shift in shifts.values()], dtype=torch.int64),
        "scales": torch.tensor(list(scales), dtype=torch.int64),
        "pooled": _join([shift.chances for shift in scales.values()], True),
        "labelled": torch.tensor([[column, other] for column, other, _ in labels], dtype=torch.int64).flatten(),
        "labels": _join([table for *_, table in labels], True),
    }
    return {f"latent.{name}": part for name, part in parts.items()}


def _read_latent(data: dict[str, Tensor], population: TablePopulation, groups: int) -> Latent:
    """Return the shifts from the parts of `_pack_latent`; refuse indices outside the tables, and no distributions."""
    parts = {name.removeprefix("latent."): part.cpu() for name, part in data.items() if name.startswith("latent.")}
    _check_forms(parts)
    if not all(part.isfinite().all() for part in parts.values()):
        raise ValueError("a number is not finite")
    bins, columns = population.to("cpu").bins, parts["columns"].tolist()
    trees = ChanceForest(*(parts[f"trees.{name}"] for name in _TREE_PARTS))
    widths = [int(trees.widths[c]) if c in columns else len(column) for c, column in enumerate(bins)]
    bin_counts = [*(len(column) for column in bins), 1, SCORE_CUTS + 1]
    if len(set(columns)) < len(columns) or not is_forest(trees, widths, bin_counts, population.order):
        raise ValueError("the trees of residuals do not fit together")
    residual_bins = _read_bins(parts, "rest", [widths[c] for c in columns], parts["runs"].tolist())
    if not all(bins_fit(bins, RESIDUAL_GRID.size, None) for bins in residual_bins):
        raise ValueError("the places of residuals do not fit together")
    scaled = parts["scales"].tolist()
    pooled = torch.split_with_sizes(parts["pooled"], [len(bins[c]) for c in scaled])
    pairs = parts["labelled"].view(-1, 2).tolist()
    tables = torch.split_with_sizes(parts["labels"], [len(bins[other]) for _, other in pairs])
    shapes = {"slopes": (groups, len(bins), 1 + len(SCORE_KNOTS)), "cuts": (SCORE_CUTS,)}
    stacked = {
        name: parts[name].view(len(columns), *shapes.get(name, (groups,)))
        for name in ("level", "slopes", "spread", "cuts")
    }
    if not (bool((stacked["spread"] > 0).all()) and all(bool((chances >= 0).all()) for chances in pooled)):
        raise ValueError("a spread or a chance is negative")
    shifts = {}
    for i, column in enumerate(columns):
        shift_parts = {name: part[i].contiguous() for name, part in stacked.items()}
        labels = {other: table for (of, other), table in zip(pairs, tables, strict=True) if of == column}
        shifts[column] = GroupShift(labels=labels, residual_bins=residual_bins[i], **shift_parts)
    scales = {c: Coupling(bins[c], True, None, chances[None]) for c, chances in zip(scaled, pooled, strict=True)}
    if any(set(shift.parents) - {*scales, *shift.labels} or column not in scales for column, shift in shifts.items()):
        raise ValueError("a column shifts that has no scale")
    return Latent(scales, shifts, trees)


def _read_bins(parts: dict[str, Tensor], kind: str, widths: list[int], runs: list[int]) -> list[Bins]:
    """Return the bins of several columns, with these numbers of bins and runs, from their joined parts."""
    columns = (
        torch.split_with_sizes(parts[f"{kind}.{name}"], widths if name == "classes" else runs) for name in _BIN_PARTS
    )
    return [Bins(*column) for column in zip(*columns, strict=True)]


def _join(parts: list[Tensor], numbers: bool) -> Tensor:
    empty = torch.zeros(0, dtype=torch.float64 if numbers else torch.int64)
    return torch.cat([empty, *(part.cpu().flatten() for part in parts)])
