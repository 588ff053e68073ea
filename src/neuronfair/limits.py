"""What a file from a stranger may cost: its size is checked before it is read, and what it unpacks to before that."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path

from neuronfair.errors import DataError, NeuronFairError

VARIABLE = "NEURONFAIR_MAX_BYTES"
MAX_BYTES = 2_000_000_000  # of memory, unless the variable says otherwise
TEXT = 8  # a text takes about eight times its size when it has become cells or a tree of values
_CHUNK = 1 << 20


class TooLarge(NeuronFairError):  # noqa: N818 - read as a sentence: the file is too large
    """A file would take more memory than it may."""


def max_bytes() -> int:
    """Return how much memory one file may take: NEURONFAIR_MAX_BYTES, or 2 GB."""
    said = os.environ.get(VARIABLE, "").strip()
    if not said:
        return MAX_BYTES
    if not said.isdecimal() or int(said) < 1:
        raise DataError(f"{VARIABLE}: expected a whole number of bytes, got '{said}'")
    return int(said)


def check_size(size: float, what: object, *, times: float = 1) -> None:
    """Refuse something of `size` bytes that takes `times` as much memory when it is open."""
    limit = max_bytes()
    if size * times > limit:
        raise TooLarge(
            f"{what}: would take about {size * times / 1e9:,.1f} GB of memory; {limit / 1e9:,.1f} GB are allowed. "
            f"If you trust it, set {VARIABLE} to a larger number of bytes"
        )


def read_bytes(path: Path, *, times: float = 1) -> bytes:
    """Return the content of a file that is not too large; a device or a pipe, which has no size, is cut off there."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        check_size(size, path, times=times)
        content = file.read(size)
        while part := file.read(_CHUNK):
            content += part
            check_size(len(content), path, times=times)
    return content


def unpacked(content: bytes, what: object, *, times: float = 1) -> bytes:
    """Return the content of a gzip file, which may be packed 1,000 to 1; unpacking ends where it becomes too large.

    >>> import gzip
    >>> unpacked(gzip.compress(b"age,sex"), "table.csv.gz")
    b'age,sex'
    """
    parts, size, rest = [], 0, content
    while rest:  # a gzip file may have several members
        member = zlib.decompressobj(wbits=31)
        part = member.decompress(rest, _CHUNK)
        while part or not member.eof:
            size += len(part)
            check_size(size, what, times=times)
            parts.append(part)
            if not part and not member.unconsumed_tail:
                raise EOFError("the gzip file ends too early")
            part = member.decompress(member.unconsumed_tail, _CHUNK)
        rest = member.unused_data.lstrip(b"\0")  # members may be padded
    return b"".join(parts)


def read_member(archive: zipfile.ZipFile, name: str | zipfile.ZipInfo, *, times: float = 1) -> bytes:
    """Return the content of a member of a zip archive, if it is not too large."""
    member = name if isinstance(name, zipfile.ZipInfo) else archive.getinfo(name)
    what = f"{archive.filename or 'archive'}, member '{member.filename}'"
    check_size(member.file_size, what, times=times)
    return archive.read(member)  # reads no more than the size that the directory says


def check_archive(archive: zipfile.ZipFile, *, times: float = 1) -> None:
    """Refuse a zip archive whose members are too large together, by what its directory says."""
    total = sum(member.file_size for member in archive.infolist())
    check_size(total, archive.filename or "archive", times=times)
