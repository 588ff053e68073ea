"""Declared input spaces: twins of a record, combinations of sensitive values, and keys that tell records apart."""

# ruff: noqa: D102 - the members of protocols have comments

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from neuronfair.errors import DomainError, did_you_mean, find_repeated

if TYPE_CHECKING:
    from neuronfair.domain.table import TableDomain


class TwinRows(NamedTuple):
    """The records that each record is compared with."""

    rows: Tensor  # (n, k, d)
    valid: Tensor  # (n, k): False where no such record exists


class Domain(Protocol):
    """A declared input space: a finite set of rows of whole numbers with sensitive columns, of tables, images or texts.

    A row has d codes; the members of its *family* are the row and its twins.
    """

    @property
    def device(self) -> torch.device: ...  # of the rows
    @property
    def compact(self) -> torch.dtype: ...  # the smallest type that holds every code
    @property
    def codes_per_row(self) -> int: ...
    @property
    def draws_per_row(self) -> int: ...  # how many random numbers `rows_at` takes for one row
    @property
    def sensitive_columns(self) -> tuple[int, ...]: ...  # positions of the sensitive codes
    @property
    def sensitive_values(self) -> Tensor: ...  # all combinations of their codes: (combinations, sensitive columns)
    @property
    def twin_columns(self) -> tuple[int, ...]: ...  # positions of the codes in which a twin may differ
    @property
    def twins_are_mutual(self) -> bool: ...  # whether twins of a record are also twins of one another
    @property
    def changeable(self) -> Tensor: ...  # which codes a search may change: bool, (d,)

    free: Tensor = property(lambda self: self.changeable)  # type: ignore[assignment]  # its name in version 0.2

    @property
    def sizes(self) -> Tensor: ...  # how many values each code may take: (d,)
    @property
    def grid_sizes(self) -> Tensor: ...  # how many values of each code have neighbours; all later ones have none: (d,)
    @property
    def is_ordered(self) -> Tensor: ...  # which codes have an order: bool, (d,)
    @property
    def is_restricted(self) -> bool: ...  # whether rows must keep more than the bounds of their codes, such as rules

    def rows_at(self, u: Tensor) -> Tensor: ...  # valid rows at random places u: numbers in [0, 1), (n, draws_per_row)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n rows uniformly from the valid rows, with a generator on the CPU."""
        return self.rows_at(torch.rand(n, self.draws_per_row, dtype=torch.float64, generator=generator).to(self.device))

    # Which rows are in the domain, bool (n,); the nearest valid rows; those nearest to `codes` with the sensitive
    # values of `rows`; and for each code a random other value, from numbers u in [0, 1): (n, d) each.
    def valid(self, rows: Tensor) -> Tensor: ...
    def clip(self, rows: Tensor) -> Tensor: ...
    def move(self, rows: Tensor, codes: Tensor) -> Tensor: ...
    def neighbours(self, rows: Tensor, u: Tensor) -> Tensor: ...

    # The twins; one member of each row's family, 0 for the row and 1, 2, … for its twins: (n, d); and a 64-bit number,
    # a sum of codes times fixed numbers modulo 2^64, that is equal for the rows of one family.
    def twins(self, rows: Tensor) -> TwinRows: ...
    def member(self, rows: Tensor, number: Tensor) -> Tensor: ...
    def key(self, rows: Tensor) -> Tensor: ...


class Twinning(Protocol):
    """How the twins of a record are made: one for each other combination of sensitive values, in a fixed order."""

    @property
    def key_has_group(self) -> bool: ...  # whether records that differ in the sensitive attributes only are two records
    def columns(self, domain: TableDomain) -> tuple[int, ...]: ...  # the columns in which a twin may differ
    def twins(self, domain: TableDomain, rows: Tensor) -> TwinRows: ...  # all k twins of each row
    def member(self, domain: TableDomain, rows: Tensor, number: Tensor) -> Tensor: ...  # as `Domain.member`
    def to(self, device: torch.device) -> Self: ...


@dataclass(frozen=True)
class AttributeFlipTwins:
    """Twins that differ in the sensitive attributes and in nothing else (Definition 1)."""

    key_has_group: bool = False

    def columns(self, domain: TableDomain) -> tuple[int, ...]:
        return domain.sensitive_columns

    def twins(self, domain: TableDomain, rows: Tensor) -> TwinRows:
        """Return all k twins of each row; a twin that breaks a rule does not exist, unless the row breaks it too."""
        twins = domain.combinations.rows_at_offsets(rows, domain.combinations.others)
        valid = torch.ones(twins.shape[:2], dtype=torch.bool, device=rows.device)
        if domain.sensitive_are_ruled:
            broken = domain.broken(twins.flatten(0, 1)).view(*valid.shape, len(domain.rules))
            valid = ~(broken & ~domain.broken(rows)[:, None]).any(-1)
        return TwinRows(twins, valid)

    def member(self, domain: TableDomain, rows: Tensor, number: Tensor) -> Tensor:
        return domain.combinations.member(rows, number)

    def to(self, device: torch.device) -> Self:
        return self


ATTRIBUTE_FLIPS = AttributeFlipTwins()


MAX_COMBINATIONS = 100_000  # combinations of sensitive values


Bands = tuple[Sequence[int], Sequence[int]]  # of a column: the first code and the representative code of each band


class Combinations(NamedTuple):
    """All combinations of the sensitive codes in a fixed order, and the number of the combination of a row.

    For a column in bands, one code represents each band.
    """

    values: Tensor  # (combinations, columns)
    columns: Tensor
    first: Tensor  # the lowest and the highest code of each column
    last: Tensor
    strides: Tensor  # how many places one more code of each column moves a combination
    others: Tensor  # how many places the other combinations are ahead
    starts: tuple[Tensor | None, ...] = ()  # the first code of each band after the first, for each column

    @staticmethod
    def of(
        columns: Sequence[int], sizes: Sequence[int], device: torch.device, bands: Sequence[Bands | None] = ()
    ) -> Combinations:
        """Return the combinations of the codes of these columns, or of their bands."""
        band_of = bands or [None] * len(sizes)
        codes = [range(size) if band is None else band[1] for size, band in zip(sizes, band_of, strict=True)]
        counts = list(map(len, codes))
        values = torch.cartesian_prod(*(torch.tensor(list(c), device=device) for c in codes)).reshape(-1, len(sizes))
        strides = [math.prod(counts[i + 1 :]) for i in range(len(counts))]
        lists = (columns, [0] * len(sizes), [size - 1 for size in sizes], strides, range(1, len(values)))
        starts = tuple(None if band is None else torch.tensor(band[0][1:], device=device) for band in bands)
        column_tensor, first, last, steps, others = (torch.tensor(list(numbers), device=device) for numbers in lists)
        return Combinations(values, column_tensor, first, last, steps, others, starts)

    def number(self, rows: Tensor) -> Tensor:
        """Return the number of the combination of each row, from (…, d) to (…); codes are clipped to their bounds."""
        codes = rows.index_select(-1, self.columns).clamp(self.first, self.last)
        for index, starts in enumerate(self.starts):
            if starts is not None:
                codes[..., index] = torch.bucketize(codes[..., index].contiguous(), starts, right=True)
        return (codes * self.strides).sum(-1) if len(self.columns) > 1 else codes[..., 0]

    def rows_at_offsets(self, rows: Tensor, offsets: Tensor) -> Tensor:
        """Return each row with the combinations that many places, (k,) or (n, k), after its own: (n, k, d)."""
        copies = rows[:, None].expand(-1, offsets.shape[-1], -1).clone()  # a third of the time of repeat()
        return copies.index_copy_(2, self.columns, self._values(rows, offsets))

    def member(self, rows: Tensor, offsets: Tensor) -> Tensor:
        """Return each row with the combination that many places, (n,), after its own; for 0 the row itself."""
        values = self._values(rows, offsets[:, None])[:, 0]
        values_of_row = rows.index_select(1, self.columns)  # a row outside its bounds stays itself
        return rows.index_copy(1, self.columns, torch.where(offsets[:, None] > 0, values, values_of_row))

    def _values(self, rows: Tensor, offsets: Tensor) -> Tensor:
        numbers = (self.number(rows)[:, None] + offsets) % len(self.values)
        plain = len(self.columns) == 1 and not self.starts  # then the values are 0, 1, …
        return numbers[..., None] if plain else self.values[numbers]


def check_sensitive(domain: str, sizes: Mapping[str, int], sensitive: Sequence[str]) -> None:
    """Refuse no, unknown or repeated sensitive attributes, and those with one value or too many."""
    if not sensitive:
        raise DomainError(f"{domain}: no sensitive attribute is named. {did_you_mean('', sizes)}")
    for name in sensitive:
        if name not in sizes:
            raise DomainError(f"{domain}: sensitive attribute '{name}' is not a column. {did_you_mean(name, sizes)}")
        if sizes[name] < 2:
            raise DomainError(f"{domain}: sensitive attribute '{name}' has one value only, so there are no twins")
    if find_repeated(sensitive) is not None:
        raise DomainError(f"{domain}: a sensitive attribute is named twice: {', '.join(sensitive)}")
    if math.prod(sizes[name] for name in sensitive) > MAX_COMBINATIONS:
        raise DomainError(f"{domain}: over {MAX_COMBINATIONS:,} combinations of sensitive values. Use a coarser grid")


_SEED = 0x6E66  # fixes the coefficients of hashed keys; a key means the same in every process


def fits_in_int64(sizes: Sequence[int]) -> bool:
    """Return whether all combinations of columns of these sizes fit a 64-bit number."""
    return all(number < 2**63 for number in accumulate(sizes, operator.mul))


def weigh_columns(sizes: Sequence[int]) -> Tensor:
    """Return one coefficient per column, so that the sum of code times coefficient identifies a row: int64, (d,).

    Where all combinations fit they are the place values of a mixed-radix number, and otherwise odd random numbers. A
    column with one value gets 0.
    """
    if fits_in_int64(sizes):
        place_values = list(accumulate(sizes[:-1], operator.mul, initial=1))
        coefficients = torch.tensor(place_values, dtype=torch.int64)
    else:
        halves = torch.randint(2**32, (2, len(sizes)), generator=torch.Generator().manual_seed(_SEED))
        coefficients = (halves[0] << 32) | halves[1] | 1
    return torch.where(torch.tensor(sizes) > 1, coefficients, 0)


def digest_values(*parts: object) -> str:
    """Return the SHA-256 of dataclasses of plain values, by their repr."""
    return hashlib.sha256("\n".join(map(repr, parts)).encode()).hexdigest()


SAMPLE, GROUP, CONTENT = 0, 1, 2  # columns of a sample domain; the content begins at the last


class SampleDomain(Domain):
    """Images or texts as rows: the number of the sample, the code of its group, then what a search may change.

    A twin is the same row with another group.
    """

    @property
    def device(self) -> torch.device:
        return self.sizes.device

    @property
    def codes_per_row(self) -> int:
        return len(self.sizes)

    @property
    def draws_per_row(self) -> int:
        return self.codes_per_row

    @property
    def sensitive_columns(self) -> tuple[int, ...]:
        return (GROUP,)

    @property
    def twin_columns(self) -> tuple[int, ...]:
        return (GROUP,)

    @property
    def twins_are_mutual(self) -> bool:
        return True

    @cached_property
    def sensitive_values(self) -> Tensor:
        return torch.arange(int(self.sizes[GROUP]), device=self.device)[:, None]

    @property
    def grid_sizes(self) -> Tensor:
        return self.sizes

    @cached_property
    def changeable(self) -> Tensor:
        return torch.arange(self.codes_per_row, device=self.device) >= CONTENT

    def move(self, rows: Tensor, codes: Tensor) -> Tensor:
        return self.clip(torch.cat([rows[:, :CONTENT], codes[:, CONTENT:]], 1))

    def twins(self, rows: Tensor) -> TwinRows:
        """Return each row with every other group, in order after its own: (n, k, d)."""
        groups = len(self.sensitive_values)
        twins = rows[:, None].repeat(1, groups - 1, 1)
        twins[..., GROUP] = (rows[:, None, GROUP] + torch.arange(1, groups, device=rows.device)) % groups
        return TwinRows(twins, torch.ones(twins.shape[:2], dtype=torch.bool, device=rows.device))

    def member(self, rows: Tensor, number: Tensor) -> Tensor:
        rows = rows.clone()
        rows[:, GROUP] = (rows[:, GROUP] + number) % len(self.sensitive_values)
        return rows

    def key(self, rows: Tensor) -> Tensor:
        return (rows * self._key_coefficients).sum(-1)

    @cached_property
    def _key_coefficients(self) -> Tensor:
        sizes = self.sizes.tolist()
        sizes[GROUP] = 1
        return weigh_columns(sizes).to(self.device)
