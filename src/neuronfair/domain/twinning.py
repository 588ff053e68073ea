"""Who is compared with whom: the other people that stand beside a person, of whom only a group has changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, Self

import torch
from torch import Tensor

from neuronfair.domain.base import Twins

if TYPE_CHECKING:
    from neuronfair.domain.table import TableDomain

TwinKind = Literal["flip", "counterpart"]  # what a person is compared with: see Flips, and Counterparts


class Twinning(Protocol):
    """How the twins of a person are made: one for each other combination of sensitive values, in a fixed order."""

    @property
    def key_has_group(self) -> bool:
        """Whether two people who differ in the sensitive attributes only are two people."""

    def columns(self, domain: TableDomain) -> tuple[int, ...]:
        """Return the positions of the attributes in which a twin may differ."""

    def twins(self, domain: TableDomain, rows: Tensor) -> Twins:
        """Return all k twins of each row, and whether they exist."""

    def member(self, domain: TableDomain, rows: Tensor, number: Tensor) -> Tensor:
        """Return one member of each row's family: 0 is the row itself, 1, 2, … its twins in their order: (n, d)."""

    def to(self, device: torch.device) -> Self:
        """Return the same on another device."""


@dataclass(frozen=True)
class Flips:
    """Twins that differ in the sensitive attributes and in nothing else (Definition 1)."""

    key_has_group: bool = False

    def columns(self, domain: TableDomain) -> tuple[int, ...]:
        """Return the positions of the attributes in which a twin may differ: the sensitive ones."""
        return domain.sensitive_columns

    def twins(self, domain: TableDomain, rows: Tensor) -> Twins:
        """Return all k twins of each row; one that breaks a rule does not exist.

        A rule that the row itself breaks already does not count against its twin.
        """
        twins = domain.combinations.ahead(rows, domain.combinations.others)
        valid = torch.ones(twins.shape[:2], dtype=torch.bool, device=rows.device)
        if domain.sensitive_are_ruled:
            broken = domain.broken(twins.flatten(0, 1)).view(*valid.shape, len(domain.rules))
            valid = ~(broken & ~domain.broken(rows)[:, None]).any(-1)
        return Twins(twins, valid)

    def member(self, domain: TableDomain, rows: Tensor, number: Tensor) -> Tensor:
        """Return one member of each row's family: 0 is the row itself, 1, 2, … its twins in their order: (n, d)."""
        return domain.combinations.member(rows, number)

    def to(self, device: torch.device) -> Flips:
        """Return the same on another device."""
        return self


FLIPS = Flips()
