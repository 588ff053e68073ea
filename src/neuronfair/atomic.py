"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary file beside `path` to write to, and put it in the place of `path` at the end.

    On any error or interrupt the old file stays as it was and the temporary one is removed. A link is refused: in a
    folder that somebody else has made it may lead to any file. Who means what it stands for gives `path.resolve()`.
    """
    if path.is_symlink():
        raise FileExistsError(errno.EEXIST, "is a link, which is not followed", str(path))
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "is a folder or a device, not a file", str(path))
    # Of a long name the temporary one, which is longer, keeps the beginning only.
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
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
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
