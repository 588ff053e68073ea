"""The one check that every measure makes of the rows it is given."""

from __future__ import annotations

from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import DomainError


def check_rows(domain: TableDomain, rows: Tensor, what: str) -> None:
    """Refuse rows that have another number of columns than the domain has attributes."""
    expected = len(domain.attributes)
    if rows.dim() != 2 or rows.shape[1] != expected:
        raise DomainError(
            f"{what}: expected rows with the {expected} columns of '{domain.name}', got shape {tuple(rows.shape)}. "
            "Compare rows of one domain only"
        )
