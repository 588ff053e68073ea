"""One process at a time: two that write to the same run folder would spoil each other's work."""

from __future__ import annotations

import os
import warnings
import weakref
from contextlib import suppress
from pathlib import Path

from filelock import lock_descriptor

from neuronfair.errors import RunError

LOCK = ".lock"  # the file that is locked where a folder cannot be; it holds nothing, and stays
BY_FILE = os.name == "nt"  # elsewhere the folder itself is locked, and nothing is left in it


class Lock:
    """A folder that this process has for itself, until the lock is no longer used or the process ends, even by kill.

    Where the file system has no locks a warning says so: nobody is kept out.
    """

    def __init__(self, handle: int) -> None:
        self.close = weakref.finalize(self, os.close, handle)

    @staticmethod
    def of(folder: Path) -> Lock | None:
        """Return the lock of a folder: a new one, or the one that this process has already; None without locks."""
        try:
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT) if BY_FILE else os.open(folder, os.O_RDONLY)
        except OSError as error:
            _warn_without(folder, error)
            return None
        lock, file = Lock(handle), os.fstat(handle)
        held = _HELD.get((file.st_dev, file.st_ino))
        if held is not None:
            return held
        try:
            free = lock_descriptor(handle, blocking=False)
        except OSError as error:
            _warn_without(folder, error)
            return None
        if not free:
            raise RunError(f"{folder}: another process is writing to this run. Wait for it, or choose another --out")
        _HELD[file.st_dev, file.st_ino] = lock
        return lock


def _warn_without(folder: Path, error: OSError) -> None:
    """Warn once that a folder cannot be locked."""
    place = folder.resolve()
    if place not in _WARNED:
        _WARNED.add(place)
        warnings.warn(
            f"{folder}: cannot be locked ({error.strerror or error}), so a second process that writes to it would not "
            "be noticed, and both would spoil the run. Start no other command with this --out, or choose one on a "
            "file system with locks",
            stacklevel=3,
        )


_WARNED: set[Path] = set()
_HELD: weakref.WeakValueDictionary[tuple[int, int], Lock] = weakref.WeakValueDictionary()


def _forget() -> None:
    """Give up all locks in a child process: they are its parent's."""
    for lock in list(_HELD.values()):
        lock.close()
    _HELD.clear()


with suppress(AttributeError):  # Windows does not fork
    os.register_at_fork(after_in_child=_forget)
