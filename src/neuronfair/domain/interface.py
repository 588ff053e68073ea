"""The interface of a declared input space, for tables and for images."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class TwinRows(NamedTuple):
    """The records that each record is compared with."""

    rows: Tensor  # (n, k, d)
    valid: Tensor  # (n, k): False where no such record exists


class Domain(Protocol):
    """A finite set of rows of whole numbers with sensitive columns: a table or a set of images."""

    @property
    def device(self) -> torch.device:
        """The device of the rows."""

    @property
    def compact(self) -> torch.dtype:
        """The smallest type that holds every code."""

    @property
    def codes_per_row(self) -> int:
        """How many codes a row has."""

    @property
    def sensitive_columns(self) -> tuple[int, ...]:
        """The positions of the sensitive codes."""

    @property
    def sensitive_values(self) -> Tensor:
        """All combinations of the sensitive codes: (combinations, sensitive columns)."""

    @property
    def twin_columns(self) -> tuple[int, ...]:
        """The positions of the codes in which a twin may differ."""

    @property
    def twins_are_mutual(self) -> bool:
        """Whether the twins of a record are also twins of one another, so that any two of them can be compared."""

    @property
    def free(self) -> Tensor:
        """Which codes a search may change: bool, (d,)."""

    @property
    def sizes(self) -> Tensor:
        """How many values each code may take: (d,)."""

    @property
    def points(self) -> Tensor:
        """How many values of each code have neighbours; all later ones have none: (d,)."""

    @property
    def ordered(self) -> Tensor:
        """Which codes have an order: bool, (d,)."""

    @property
    def restricted(self) -> bool:
        """Whether rows must keep more than the bounds of their codes: rules, for instance."""

    @property
    def draws_per_row(self) -> int:
        """How many random numbers `rows_at` takes for one row."""

    def rows_at(self, u: Tensor) -> Tensor:
        """Return the valid rows at random places u: numbers in [0, 1), (n, draws_per_row)."""

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n rows uniformly from the valid rows."""

    def valid(self, rows: Tensor) -> Tensor:
        """Return for each row whether it is in the domain: bool, (n,)."""

    def clip(self, rows: Tensor) -> Tensor:
        """Return the nearest valid rows."""

    def move(self, rows: Tensor, codes: Tensor) -> Tensor:
        """Return the nearest valid rows to `codes` that keep the sensitive values of `rows`."""

    def neighbours(self, rows: Tensor, u: Tensor) -> Tensor:
        """Return for each code a random other value, from numbers u in [0, 1): (n, d) each."""

    def twins(self, rows: Tensor) -> TwinRows:
        """Return the records that each row is compared with."""

    def member(self, rows: Tensor, number: Tensor) -> Tensor:
        """Return one member of each row's family: 0 is the row itself, 1, 2, … its twins in their order: (n, d)."""

    def key(self, rows: Tensor) -> Tensor:
        """Return one 64-bit number per row, equal for rows of one family.

        It is a sum of codes times fixed numbers, modulo 2^64.
        """
