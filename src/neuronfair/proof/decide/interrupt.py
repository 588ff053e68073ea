"""Ctrl-C between two steps, not within one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Stop:
    """Whether the user has asked to stop."""

    asked: bool = False


@contextmanager
def stopping() -> Iterator[Stop]:
    """Give what tells whether Ctrl-C was pressed; the second time it interrupts. A step is never left half done."""
    stop = Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    here = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, ask) if here else None
    try:
        yield stop
    except KeyboardInterrupt:  # from a callback, between two steps
        if stop.asked:
            raise
        stop.asked = True
    finally:
        if here:
            signal.signal(signal.SIGINT, before)
