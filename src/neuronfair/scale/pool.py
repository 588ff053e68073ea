"""Who does many pieces of work: this process, one after the other, or a cluster (`scale/ray_cluster.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Made = TypeVar("Made")

Note = Callable[[int, int, int], None]
"""How a piece of work says how far it is: steps done, steps in all, findings so far."""

Progress = Callable[[Sequence[tuple[int, int, int]]], None]
"""Called with what all pieces have said so far, one line for each; (0, 0, 0) for one that has said nothing."""


class Pool(Protocol):
    """Does pieces of work side by side. A piece may be done again, elsewhere, when its worker is killed."""

    @property
    def size(self) -> int:
        """How many pieces are done at the same time, about."""

    def map(
        self,
        work: Callable[[Shared, Item, Note], Made],
        shared: Shared,
        items: Sequence[Item],
        *,
        progress: Progress | None = None,
        gpus: float = 0.0,
    ) -> Iterator[Made]:
        """Yield `work(shared, item, note)` for each item, in the order of the items.

        `shared` is sent to each worker once. Work that raises ends it all with that error; a worker or a machine that
        is gone does not: its piece begins again, from whatever it has kept itself. `gpus` is what a piece takes.
        """


@dataclass(frozen=True)
class Serial:
    """This process: one piece after the other."""

    size: int = 1

    def map(
        self,
        work: Callable[[Shared, Item, Note], Made],
        shared: Shared,
        items: Sequence[Item],
        *,
        progress: Progress | None = None,
        gpus: float = 0.0,
    ) -> Iterator[Made]:
        """Yield what the work makes of each item."""
        lines: list[tuple[int, int, int]] = [(0, 0, 0)] * len(items)
        for number, item in enumerate(items):

            def note(*figures: Any, number: int = number) -> None:
                lines[number] = figures
                if progress is not None:
                    progress(lines)

            yield work(shared, item, note)
