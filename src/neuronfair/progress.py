"""How long computations report how far they are, and end early with their results on Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol


class Progress(Protocol):
    """Shows what is being done, how much of it is done, how much there is in all (if known), and a note."""

    def __call__(self, activity: str, completed: int, total: int | None, note: str = "") -> None:
        """Show it."""


def show_nothing(activity: str, completed: int, total: int | None, note: str = "") -> None:
    """Show nothing."""


def label_progress(show: Progress, label: str) -> Progress:
    """Return a progress whose descriptions begin with a label."""
    return lambda activity, completed, total, note="": show(f"{label}{activity}", completed, total, note)


def count_progress(show: Progress, activity: str) -> Callable[[int, int], None]:
    """Return a progress of counts alone, all with the same description."""
    return lambda completed, total: show(activity, completed, total)


PieceProgress = Callable[[int, int, int], None]
"""Takes the counts of one piece of work, perhaps from another process: steps done, steps in all, findings so far."""

PoolProgress = Callable[[Sequence[tuple[int, int, int]]], None]
"""Takes the latest counts of all pieces, one line for each; (0, 0, 0) for a piece that has not reported yet."""


@dataclass
class Interruption:
    """Whether the user has pressed Ctrl-C."""

    requested: bool = False


@contextmanager
def record_interruption(*, absorb: bool = False) -> Iterator[Interruption]:
    """Record the first Ctrl-C instead of raising it, so that the current step is completed; a second one raises.

    With `absorb`, a first KeyboardInterrupt that the block itself raises, for example in a callback, ends the block
    and is recorded too. Signals reach the main thread only; in other threads the handler stays unchanged.
    """
    interruption = Interruption()

    def note(_number: int, _frame: FrameType | None) -> None:
        if interruption.requested:
            raise KeyboardInterrupt
        interruption.requested = True

    main_thread = threading.current_thread() is threading.main_thread()
    earlier_handler = signal.getsignal(signal.SIGINT) or signal.SIG_DFL  # None: a handler that Python does not know
    if main_thread:
        signal.signal(signal.SIGINT, note)
    try:
        yield interruption
    except KeyboardInterrupt:
        if interruption.requested or not absorb:
            raise
        interruption.requested = True
    finally:
        if main_thread:
            signal.signal(signal.SIGINT, earlier_handler)
