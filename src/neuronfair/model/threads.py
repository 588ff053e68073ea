"""How many threads of the CPU a piece of work is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

Given = TypeVar("Given")
Made = TypeVar("Made")


@contextmanager
def one_thread(small: bool) -> Iterator[None]:
    """Run small work on one thread, where several would mostly wait for each other; restore their number afterwards."""
    before = torch.get_num_threads()
    if small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if small:
            torch.set_num_threads(before)


@dataclass(frozen=True)
class Threads:
    """Threads that work side by side, each on its own part: better than several for each small operation."""

    count: int
    pool: ThreadPoolExecutor | None

    def map(self, work: Callable[[Given], Made], parts: Iterable[Given]) -> list[Made]:
        """Return what work makes of all parts, in their order."""

        def quietly(part: Given) -> Made:
            with torch.no_grad():  # a thread has its own setting
                return work(part)

        return list(map(work, parts) if self.pool is None else self.pool.map(quietly, parts))


@contextmanager
def threads(device: torch.device) -> Iterator[Threads]:
    """Give as many threads as torch would use for an operation on the CPU; on a GPU one."""
    count = torch.get_num_threads() if device.type == "cpu" else 1
    if count == 1:
        yield Threads(1, None)
        return
    with one_thread(True), ThreadPoolExecutor(count) as pool:
        yield Threads(count, pool)
