"""The declared input space of a table: valid rows, twins, and keys of records."""

# ruff: noqa: D102 - `Domain` describes most members

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.attribute import Attribute, Outside
from neuronfair.domain.rules import Rule, RuleBook
from neuronfair.domain.twins import (
    ATTRIBUTE_FLIPS,
    Combinations,
    Domain,
    Twinning,
    TwinRows,
    check_sensitive,
    digest_values,
    fits_in_int64,
    weigh_columns,
)
from neuronfair.errors import DomainError, did_you_mean, find_repeated


class Neighbours(NamedTuple):
    """The neighbours of the values of each attribute, precomputed for search steps."""

    last: Tensor  # (d,) the last value with a neighbour
    others: Tensor  # the attributes with values without a neighbour: no order, an empty cell, or one value only
    sizes: Tensor  # the number of values of each of `others`
    grid_sizes: Tensor  # the number of values with a neighbour of each of `others`

    @staticmethod
    def of(sizes: Tensor, grid_sizes: Tensor, is_ordered: Tensor) -> Neighbours:
        """Return the neighbours of attributes with these numbers of values and of ordered values: (d,) each."""
        grid_sizes = torch.where(is_ordered & (grid_sizes > 1), grid_sizes, 0)
        others = (grid_sizes < sizes).nonzero()[:, 0]
        return Neighbours(grid_sizes - 1, others, sizes[others], grid_sizes[others])

    def draw(self, rows: Tensor, u: Tensor) -> Tensor:
        """Return for each attribute a random other value, from numbers u in [0, 1): (n, d) each.

        An ordered value goes one step up or down, at a bound inwards; a nominal one, or an empty cell, to any other.
        """
        up = ((u >= 0.5) & (rows < self.last)) | (rows <= 0)
        near = rows.add(up, alpha=2).sub_(1)
        if not len(self.others):
            return near
        codes, v = rows.index_select(1, self.others), u.index_select(1, self.others)
        anywhere = (codes + 1 + (v * (self.sizes - 1)).long()) % self.sizes
        stepped = torch.where(codes < self.grid_sizes, near.index_select(1, self.others), anywhere)
        return near.index_copy_(1, self.others, stepped)


_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Target:
    """The column to predict and its classes in the order of the model's outputs; a quantity has none."""

    column: str
    classes: tuple[str, ...]


@dataclass(frozen=True)
class TableDomain(Domain):
    """A finite set of rows: attributes, the sensitive ones among them, and the rules between them.

    Rows are int64 tensors of codes, one column per attribute. All methods work on whole batches, on `device`.
    """

    name: str
    attributes: tuple[Attribute, ...]
    sensitive: tuple[str, ...]
    rules: tuple[Rule, ...] = ()
    target: Target | None = None
    encoding: str = "default"
    description: str = ""
    outside: Outside = "error"
    favourable: str | None = None  # the favourable outcome
    device: torch.device = _CPU
    twinning: Twinning = ATTRIBUTE_FLIPS  # how twins are made
    draft: str = field(default="", compare=False, repr=False)  # the commented TOML text, where it was inferred

    def __post_init__(self) -> None:
        if (twice := find_repeated(self.names)) is not None:
            raise DomainError(f"{self.name}: attribute '{twice}' is declared twice")
        if not any(attribute.is_input for attribute in self.attributes):
            raise DomainError(
                f'{self.name}: every attribute has encode = "none", so a model has no input. Set another `encode` for '
                "at least one attribute"
            )
        groups = {a.name: len(a.bands) + 1 if a.bands else a.size for a in self.attributes}
        check_sensitive(self.name, groups, self.sensitive)
        classes = self.target.classes if self.target is not None else ()
        if self.favourable is not None and self.favourable not in classes:
            raise DomainError(
                f"{self.name}: favourable '{self.favourable}' is not a class of the target. "
                f"{did_you_mean(self.favourable, classes) if classes else 'The target has no classes'}"
            )
        self._rulebook  # noqa: B018  # compile now, to report wrong rules early

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the attributes, in column order."""
        return tuple(a.name for a in self.attributes)

    def column(self, name: str) -> int:
        """Return the position of an attribute."""
        if name not in self._columns:
            raise DomainError(f"{self.name}: no attribute '{name}'. {did_you_mean(name, self.names)}")
        return self._columns[name]

    @cached_property
    def _columns(self) -> dict[str, int]:
        return {name: column for column, name in enumerate(self.names)}

    @cached_property
    def sensitive_columns(self) -> tuple[int, ...]:
        return tuple(self.column(name) for name in self.sensitive)

    @cached_property
    def sizes(self) -> Tensor:
        return torch.tensor([a.size for a in self.attributes], device=self.device)

    @cached_property
    def grid_sizes(self) -> Tensor:
        return torch.tensor([a.grid_size for a in self.attributes], device=self.device)

    @cached_property
    def compact(self) -> torch.dtype:
        largest = max(a.size for a in self.attributes)
        return next(t for t in (torch.int8, torch.int16, torch.int32, torch.int64) if largest <= torch.iinfo(t).max)

    @property
    def codes_per_row(self) -> int:
        return len(self.attributes)

    @cached_property
    def _rulebook(self) -> RuleBook:
        return RuleBook(self.attributes, self.rules)

    @cached_property
    def count(self) -> int:
        """The exact number of valid rows."""
        return self._rulebook.count()

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything that defines the valid rows (not of the choice of sensitive attributes)."""
        bands = [(a.name, a.bands, a.band_codes) for a in self.attributes if a.bands]
        return digest_values(self.name, self.encoding, self.outside, self.target, *self.attributes, *self.rules, *bands)

    @cached_property
    def input_fingerprint(self) -> str:
        """A digest of the inputs and outputs of a model: attributes, their encoding, and classes, but no rules."""
        return digest_values(self.target, *(attribute for attribute in self.attributes if attribute.is_input))

    def with_sensitive(self, *names: str) -> TableDomain:
        """Return this domain with other sensitive attributes, and twins that differ in these only."""
        return dataclasses.replace(self, sensitive=tuple(names), twinning=ATTRIBUTE_FLIPS)

    def to_toml(self) -> str:
        """Return the text of a domain file, with the comments of an inferred domain that was not changed."""
        from neuronfair.domain.schema.toml import format_domain, parse_domain

        return self.draft if self.draft and parse_domain(self.draft) == self else format_domain(self)

    def to(self, device: str | torch.device) -> TableDomain:
        """Return this domain with its lookup tables on another device."""
        return dataclasses.replace(self, device=torch.device(device), twinning=self.twinning.to(torch.device(device)))

    # Which rows exist

    @cached_property
    def sensitive_are_ruled(self) -> bool:
        """Whether a rule names a sensitive attribute."""
        return not self._rulebook.columns.isdisjoint(self.sensitive_columns)

    @property
    def is_restricted(self) -> bool:
        return bool(self.rules)

    def broken(self, rows: Tensor) -> Tensor:
        """Return for each row and each rule whether the row breaks it: bool, (n, rules)."""
        return self._rulebook.broken(rows)

    def valid(self, rows: Tensor) -> Tensor:
        """Return for each row whether it lies within all bounds and keeps all rules: bool, (n,)."""
        is_inside = ((rows >= 0) & (rows < self.sizes)).all(-1)
        return is_inside & ~self.broken(rows).any(1) if self.rules else is_inside

    def clip(self, rows: Tensor) -> Tensor:
        """Return the nearest valid rows: codes are moved into their bounds, and valid rows do not change.

        Where a rule is broken, as few attributes as possible change, sensitive ones only if nothing else helps.
        """
        rows = rows.clamp(*self._bounds)
        return self._rulebook.move_to_nearest_valid(rows, self._change_weights) if self.rules else rows

    @cached_property
    def _bounds(self) -> tuple[Tensor, Tensor]:  # the first and the last code of each attribute
        return torch.zeros_like(self.sizes), self.sizes - 1

    @cached_property
    def _change_weights(self) -> Tensor:
        return 1.0 + 2 * len(self.attributes) * (~self.changeable).double()

    @property
    def draws_per_row(self) -> int:
        return len(self.attributes) + len(self._rulebook.tied)

    def rows_at(self, u: Tensor) -> Tensor:
        """Return the valid rows at random places u: numbers in [0, 1), (n, draws_per_row).

        Uniform numbers give uniform valid rows without rejection.
        """
        v, w = u[:, : len(self.attributes)], u[:, len(self.attributes) :]
        rows = (v * self.sizes).long()
        self._rulebook.sample_into(rows, w, v)
        return rows

    def move(self, rows: Tensor, codes: Tensor) -> Tensor:
        """Return the nearest valid rows to `codes` with the sensitive values of `rows`, or the row if there is none."""
        results = self.clip(torch.where(self.changeable, codes, rows))
        if self.sensitive_are_ruled:
            is_kept = (self.changeable | (results == rows)).all(1, keepdim=True)
            results = torch.where(is_kept, results, rows)
        return results

    def neighbours(self, rows: Tensor, u: Tensor) -> Tensor:
        return self._neighbours.draw(rows, u)

    @cached_property
    def _neighbours(self) -> Neighbours:
        return Neighbours.of(self.sizes, self.grid_sizes, self.is_ordered)

    @cached_property
    def is_ordered(self) -> Tensor:
        return torch.tensor([a.is_ordered for a in self.attributes], device=self.device)

    @cached_property
    def changeable(self) -> Tensor:
        return torch.tensor([name not in self.sensitive for name in self.names], device=self.device)

    # Which rows are the same record

    @cached_property
    def combinations(self) -> Combinations:
        """The combinations of the sensitive codes."""
        attributes = [self.attributes[column] for column in self.sensitive_columns]
        bands = [(a.band_starts, a.band_codes) if a.bands else None for a in attributes]
        sizes = [a.size for a in attributes]
        return Combinations.of(self.sensitive_columns, sizes, self.device, bands if self.has_bands else ())

    @property
    def has_bands(self) -> bool:
        """Whether a sensitive attribute is in bands, so that one value represents each band."""
        return any(self.attributes[column].bands for column in self.sensitive_columns)

    def with_band_values(self, rows: Tensor) -> TableDomain:
        """Return this domain with the medians of the rows as the values of bands without values."""
        attributes = tuple(
            a if not a.bands or a.band_values else _with_medians(a, rows[:, column].cpu())
            for column, a in enumerate(self.attributes)
        )
        return self if attributes == self.attributes else dataclasses.replace(self, attributes=attributes)

    @property
    def sensitive_values(self) -> Tensor:
        return self.combinations.values

    def twins(self, rows: Tensor) -> TwinRows:
        return self.twinning.twins(self, rows)

    def member(self, rows: Tensor, number: Tensor) -> Tensor:
        return self.twinning.member(self, rows, number)

    @cached_property
    def twin_columns(self) -> tuple[int, ...]:
        return self.twinning.columns(self)

    @property
    def twins_are_mutual(self) -> bool:
        return not self.twinning.key_has_group

    def key(self, rows: Tensor) -> Tensor:
        """Return one 64-bit number per row, equal for rows of one family (for flips: all sensitive values).

        Exact where the other attributes have fewer than 2^63 combinations (`keys_are_exact`); otherwise two rows share
        a key with a chance of about 2^-63, or 3 in a million for any of ten million rows. Rows must lie within bounds.
        """
        return (rows * self._key_coefficients).sum(-1)

    @cached_property
    def keys_are_exact(self) -> bool:
        """Whether `key` numbers the rows without any chance of a collision."""
        return fits_in_int64(self._key_sizes)

    @property
    def _key_sizes(self) -> list[int]:
        """How many values each column contributes to the key: one for a column that does not count."""
        ignored_columns = () if self.twinning.key_has_group else self.sensitive_columns
        return [1 if i in ignored_columns else a.size for i, a in enumerate(self.attributes)]

    @cached_property
    def _key_coefficients(self) -> Tensor:
        return weigh_columns(self._key_sizes).to(self.device)

    # Tables of cells

    def from_table(self, columns: Mapping[str, Sequence[Any]]) -> Tensor:
        """Return the rows of a table given as columns of labels and numbers.

        Other columns are ignored. Raises a `DomainError` that names the column, the row and the value it cannot read.
        """
        for name in self.names:
            if name not in columns:
                raise DomainError(f"{self.name}: column '{name}' is missing. {did_you_mean(name, columns)}")
        codes = [a.codes(columns[a.name], outside=self.outside) for a in self.attributes]
        return torch.stack([torch.from_numpy(c) for c in codes], 1).to(self.device)

    def to_table(self, rows: Tensor) -> dict[str, list[str | int | float]]:
        """Return rows as columns of labels and numbers: the inverse of `from_table`."""
        table: dict[str, list[str | int | float]] = {}
        for column, attribute in enumerate(self.attributes):
            distinct, inverse = torch.unique(rows[:, column].cpu(), return_inverse=True)
            values = [attribute.value(code) for code in distinct.tolist()]
            table[attribute.name] = [values[i] for i in inverse.tolist()]
        return table

    def describe(self, row: Tensor) -> str:
        """Return one row as text."""
        return ", ".join(f"{name} {values[0]}" for name, values in self.to_table(row[None]).items())


def _with_medians(attribute: Attribute, codes: Tensor) -> Attribute:
    """Return an attribute with a value for each band: the median of its codes, or the middle of an empty band."""
    values = []
    for band, (first, end) in enumerate(pairwise((*attribute.band_starts, attribute.grid_size))):
        band_codes = codes[(codes >= first) & (codes < end)]
        code = int(band_codes.median()) if len(band_codes) else attribute.band_codes[band]
        values.append(attribute.low + attribute.step * code)
    return dataclasses.replace(attribute, band_values=tuple(values))


def check_rows(domain: TableDomain, rows: Tensor, label: str) -> None:
    """Refuse rows that have another number of columns than the domain has attributes."""
    expected = len(domain.attributes)
    if rows.dim() != 2 or rows.shape[1] != expected:
        raise DomainError(
            f"{label}: expected rows with the {expected} columns of '{domain.name}', got shape {tuple(rows.shape)}. "
            "Compare rows of one domain only"
        )
