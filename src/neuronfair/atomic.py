"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks: files that a kill has left stay there
    fcntl = None  # type: ignore[assignment]


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file next to `path`, and rename it to `path` at the end.

    On any error or interrupt the old file stays unchanged and the temporary one is removed; a file that a kill has left
    is removed the next time that `path` is written. A link is refused: in a folder from a stranger it may point to any
    file. To write to its target, pass `path.resolve()`.
    """
    if path.is_symlink():
        raise FileExistsError(errno.EEXIST, "is a link, which is not followed", str(path))
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "is a folder or a device, not a file", str(path))
    _remove_leftovers(path)
    handle, temporary = _create_temporary(path)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        # mkstemp makes files private; give them the permissions any new file would have.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    finally:
        if handle is not None:
            os.close(handle)
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def find_leftovers(path: Path) -> list[Path]:
    """Return the temporary files of all attempts to write a file."""
    return list(path.parent.glob(f"{escape(_temporary_prefix(path))}????????{escape(path.suffix)}"))


def _temporary_prefix(path: Path) -> str:
    return f".{path.name[:40]}."  # cut, since the temporary name is longer


def _remove_leftovers(path: Path) -> None:
    for leftover in find_leftovers(path) if fcntl is not None else ():
        with suppress(OSError), leftover.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error if a process is writing it
            leftover.unlink()


def _create_temporary(path: Path) -> tuple[int | None, Path]:
    """Create a temporary file that is locked until the handle is closed or the process ends, even by kill."""
    while True:
        handle, name = tempfile.mkstemp(prefix=_temporary_prefix(path), suffix=path.suffix, dir=path.parent)
        if fcntl is None:
            os.close(handle)
            return None, Path(name)
        with suppress(OSError):  # without locks, other processes do not remove it either
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # another process removed it before it was locked
