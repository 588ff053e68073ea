"""What a file from a stranger may cost: its size is checked before it is read, and what it unpacks to before that."""

from __future__ import annotations

import io
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from neuronfair.errors import DataError, NeuronFairError

VARIABLE = "NEURONFAIR_MAX_BYTES"
MAX_BYTES = 2_000_000_000  # of memory, unless the variable says otherwise
TEXT = 8  # a text takes about eight times its size when it has become cells or a tree of values
TREE = 32  # and the JSON of a stranger up to so many times: an empty list takes 72 bytes for three letters
_CHUNK = 1 << 20
_ENTRY, _ENTRY_BYTES = b"PK\x01\x02", 1000  # a line of a zip archive's directory, and what it takes in memory


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


def read_text(path: Path, *, times: float = TREE) -> str:
    """Return the text of a UTF-8 file that is not too large, with plain line ends."""
    return read_bytes(path, times=times).decode("utf-8").replace("\r\n", "\n")


def open_archive(source: Path | bytes, what: object) -> zipfile.ZipFile:
    """Open a zip archive, unless its directory is too large: opening it makes an object for every member."""
    entries, rest = 0, b""
    with source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as file:
        while part := file.read(_CHUNK):
            entries += (rest + part).count(_ENTRY)
            rest = part[-3:]  # a mark may lie across two parts
    check_size(entries, what, times=_ENTRY_BYTES)
    try:
        return zipfile.ZipFile(source if isinstance(source, Path) else io.BytesIO(source))
    except NotImplementedError as error:  # it says that it needs "zip file version 7.3" to be read
        raise zipfile.BadZipFile(str(error)) from error


def read_member(archive: zipfile.ZipFile, name: str | zipfile.ZipInfo, *, times: float = 1) -> bytes:
    """Return the content of a member of a zip archive, if it is not too large."""
    member = name if isinstance(name, zipfile.ZipInfo) else archive.getinfo(name)
    what = f"{archive.filename or 'archive'}, member '{member.filename}'"
    check_size(member.file_size, what, times=times)
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others unpack without a limit
        raise zipfile.BadZipFile(f"'{member.filename}' is packed in a way that is not read here")
    try:
        with archive.open(member) as file:  # archive.read would unpack all there is, and then cut it to the size
            return file.read(member.file_size)
    except (OSError, NotImplementedError) as error:  # its place is before the beginning of the file, say
        raise zipfile.BadZipFile(f"'{member.filename}' cannot be read: {error}") from error


def check_archive(archive: zipfile.ZipFile, *, times: float = 1, what: object = None, besides: float = 0) -> None:
    """Refuse a zip archive whose members are too large together, by what its directory says."""
    total = besides + sum(member.file_size for member in archive.infolist())
    check_size(total, what or archive.filename or "archive", times=times)


def members(content: bytes, what: object, *, times: float = 1, besides: float = 0) -> dict[str, bytes]:
    """Return the files in a zip archive by name, if they are not too large together, and with `besides` bytes more.

    A name that leads out of the archive, or that comes twice, is an error: readers disagree about what it means.
    """
    found: dict[str, bytes] = {}
    with open_archive(content, what) as archive:
        check_archive(archive, times=times, what=what, besides=besides)
        for member in archive.infolist():
            name = member.filename
            if name in found or name.startswith("/") or "\\" in name or ".." in name.split("/"):
                raise zipfile.BadZipFile(f"the name '{name[:100]}' leads out of the archive, or comes twice")
            if not member.is_dir():
                found[name] = read_member(archive, member)
    return found


def repacked(files: Mapping[str, bytes]) -> bytes:
    """Return a zip archive of these files, not packed: a library that reads it finds the sizes that were checked."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return target.getvalue()


def check_tensors(start: bytes, size: int, what: object) -> None:
    """Refuse a safetensors file of `size` bytes by its start, if its header is too large.

    Each tensor in it, also an empty one, becomes an object. A header that is longer than the file is for the reader.
    """
    header = min(size, int.from_bytes(start[:8], "little"))
    if header > _CHUNK:  # ten thousand tensors have a smaller one
        check_size(header, f"{what}: its header", times=TREE)


def check_array(content: bytes) -> None:
    """Refuse an .npy file whose header declares more than the file holds, before an array of that size is made."""
    from numpy.lib import format as npy

    file = io.BytesIO(content)
    header = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = header(file)  # refuses a header of more than 10,000 letters
    if math.prod(shape) * dtype.itemsize > len(content):
        raise ValueError(f"an array of {shape} is declared, but the file has {len(content):,} bytes")
