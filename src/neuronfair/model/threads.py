"""How many threads of the CPU a piece of work is worth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
