"""One process at a time: two that write to the same run folder would spoil each other's work."""

from __future__ import annotations

import errno
import os
import weakref
from pathlib import Path

from neuronfair.errors import RunError

try:
    import fcntl
except ImportError:  # Windows cannot lock a folder: there, nobody is kept out
    fcntl = None  # type: ignore[assignment]

_CANNOT = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # what some network file systems say
_HELD: weakref.WeakValueDictionary[Path, Lock] = weakref.WeakValueDictionary()


class Lock:
    """A folder that this process has for itself, until the lock is no longer used or the process ends, even by kill."""

    @staticmethod
    def of(folder: Path) -> Lock:
        """Return the lock of a folder: a new one, or the one that this process has already."""
        place = folder.resolve()
        lock = _HELD.get(place) or Lock(place)
        _HELD[place] = lock
        return lock

    def __init__(self, place: Path) -> None:
        if fcntl is None:
            return
        handle = os.open(place, os.O_RDONLY)
        weakref.finalize(self, os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"{place}: another process is writing to this run. Wait for it, or choose another --out"
            ) from None
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
