"""What one column of a table is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LeftOut:
    """A column of the table that the domain does not have."""

    column: str
    reason: str
