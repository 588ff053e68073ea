"""How long computations report how far they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class Progress(Protocol):
    """Shows what is being done, how much of it is done, how much there is in all (if known), and a note."""

    def __call__(self, what: str, done: int, total: int | None, note: str = "") -> None:
        """Show it."""


def silent(what: str, done: int, total: int | None, note: str = "") -> None:
    """Show nothing."""


PieceProgress = Callable[[int, int, int], None]
"""Takes the counts of one piece of work, perhaps from another process: steps done, steps in all, findings so far."""

PoolProgress = Callable[[Sequence[tuple[int, int, int]]], None]
"""Takes the latest counts of all pieces, one line for each; (0, 0, 0) for a piece that has not reported yet."""
