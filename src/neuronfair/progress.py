"""How long work says how far it is: one protocol for every stage."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Shows what is being done, how much is done of how much, and a note."""

    def __call__(self, what: str, done: int, total: int | None, note: str = "") -> None:
        """Show it."""


def silent(what: str, done: int, total: int | None, note: str = "") -> None:
    """Show nothing."""
