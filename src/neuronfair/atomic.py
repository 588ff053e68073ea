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
except ImportError:  # Windows has no such locks: what a kill leaves behind stays there
    fcntl = None  # type: ignore[assignment]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary file beside `path` to write to, and put it in the place of `path` at the end.

    On any error or interrupt the old file stays as it was and the temporary one is removed; one that a kill has left
    behind is removed when the same file is written the next time. A link is refused: in a folder that somebody else has
    made it may lead to any file. Who means what it stands for gives `path.resolve()`.
    """
    if path.is_symlink():
        raise FileExistsError(errno.EEXIST, "is a link, which is not followed", str(path))
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "is a folder or a device, not a file", str(path))
    _remove_leftovers(path)
    handle, temporary = _temporary(path)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
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
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def leftovers(path: Path) -> list[Path]:
    """Return the temporary files of earlier and of other attempts to write a file."""
    return list(path.parent.glob(f"{escape(_prefix(path))}????????{escape(path.suffix)}"))


def _prefix(path: Path) -> str:
    return f".{path.name[:40]}."  # of a long name, the temporary one, which is longer, keeps the beginning only


def _remove_leftovers(path: Path) -> None:
    for other in leftovers(path) if fcntl is not None else ():
        with suppress(OSError), other.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error if somebody is writing it
            other.unlink()


def _temporary(path: Path) -> tuple[int | None, Path]:
    """Make a temporary file, and hold its lock until the handle is closed or the process ends, even by kill."""
    while True:
        handle, name = tempfile.mkstemp(prefix=_prefix(path), suffix=path.suffix, dir=path.parent)
        if fcntl is None:
            os.close(handle)
            return None, Path(name)
        with suppress(OSError):  # a file system without locks: then nobody removes it either
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # taken for a leftover before it was locked
