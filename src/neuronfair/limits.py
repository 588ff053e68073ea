"""Limits on the memory that files from strangers may take: sizes are checked before files are read or unpacked."""

from __future__ import annotations

import io
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from neuronfair.errors import DataError, NeuronFairError

SIZE_VARIABLE = "NEURONFAIR_MAX_BYTES"
MAX_BYTES = 2_000_000_000  # of memory for one file, by default
TEXT_FACTOR = 8  # cells or values take about eight times the memory of their text
TREE_FACTOR = 32  # JSON from strangers takes up to 32 times: an empty list takes 72 bytes for three letters
_CHUNK_BYTES = 1 << 20
_ENTRY_MARK, _ENTRY_BYTES = b"PK\x01\x02", 1000  # mark of an entry in the directory of a zip archive, and its memory


class TooLargeError(NeuronFairError):
    """A file would take more memory than it may."""


def max_bytes() -> int:
    """Return how much memory one file may take: NEURONFAIR_MAX_BYTES, or 2 GB."""
    value = os.environ.get(SIZE_VARIABLE, "").strip()
    if not value:
        return MAX_BYTES
    if not value.isdecimal() or int(value) < 1:
        raise DataError(f"{SIZE_VARIABLE}: expected a whole number of bytes, got '{value}'")
    return int(value)


def check_size(size: float, label: object, *, times: float = 1) -> None:
    """Refuse a file of `size` bytes that takes `times` as much memory once it is open."""
    limit = max_bytes()
    if size * times > limit:
        raise TooLargeError(
            f"{label}: would take about {size * times / 1e9:,.1f} GB of memory; {limit / 1e9:,.1f} GB are allowed. "
            f"If you trust it, set {SIZE_VARIABLE} to a larger number of bytes"
        )


def read_bytes(path: Path, *, times: float = 1) -> bytes:
    """Return the content of a file that is not too large; reading a device or a pipe stops at the limit."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        check_size(size, path, times=times)
        content = file.read(size)
        while chunk := file.read(_CHUNK_BYTES):
            content += chunk
            check_size(len(content), path, times=times)
    return content


def unpack_gzip(content: bytes, label: object, *, times: float = 1) -> bytes:
    """Return the content of a gzip file, which may be packed 1,000 to 1; unpacking stops at the limit.

    >>> import gzip
    >>> unpack_gzip(gzip.compress(b"age,sex"), "table.csv.gz")
    b'age,sex'
    """
    chunks, size, remaining = [], 0, content
    while remaining:  # a gzip file may have several members
        member = zlib.decompressobj(wbits=31)
        chunk = member.decompress(remaining, _CHUNK_BYTES)
        while chunk or not member.eof:
            size += len(chunk)
            check_size(size, label, times=times)
            chunks.append(chunk)
            if not chunk and not member.unconsumed_tail:
                raise EOFError("the gzip file ends too early")
            chunk = member.decompress(member.unconsumed_tail, _CHUNK_BYTES)
        remaining = member.unused_data.lstrip(b"\0")  # members may be padded
    return b"".join(chunks)


def read_text(path: Path, *, times: float = TREE_FACTOR) -> str:
    """Return the text of a UTF-8 file that is not too large, with plain line ends."""
    return read_bytes(path, times=times).decode("utf-8").replace("\r\n", "\n")


def open_archive(source: Path | bytes, label: object) -> zipfile.ZipFile:
    """Open a zip archive, unless its directory is too large: opening it creates an object for every member."""
    entries, tail = 0, b""
    with source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as file:
        while chunk := file.read(_CHUNK_BYTES):
            entries += (tail + chunk).count(_ENTRY_MARK)
            tail = chunk[-3:]  # a mark may lie across two parts
    check_size(entries, label, times=_ENTRY_BYTES)
    try:
        return zipfile.ZipFile(source if isinstance(source, Path) else io.BytesIO(source))
    except NotImplementedError as error:  # the archive claims a version such as 7.3
        raise zipfile.BadZipFile(str(error)) from error


def read_member(archive: zipfile.ZipFile, name: str | zipfile.ZipInfo, *, times: float = 1) -> bytes:
    """Return the content of a member of a zip archive, if it is not too large."""
    member = name if isinstance(name, zipfile.ZipInfo) else archive.getinfo(name)
    label = f"{archive.filename or 'archive'}, member '{member.filename}'"
    check_size(member.file_size, label, times=times)
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others unpack without a limit
        raise zipfile.BadZipFile(f"'{member.filename}' is packed by an unsupported method")
    try:
        with archive.open(member) as file:  # archive.read would unpack everything before it cuts to the size
            return file.read(member.file_size)
    except (OSError, NotImplementedError) as error:  # such as a negative offset
        raise zipfile.BadZipFile(f"'{member.filename}' cannot be read: {error}") from error


def check_archive(archive: zipfile.ZipFile, *, times: float = 1, label: object = None, extra_bytes: float = 0) -> None:
    """Refuse a zip archive whose members are too large together, according to its directory."""
    total = extra_bytes + sum(member.file_size for member in archive.infolist())
    check_size(total, label or archive.filename or "archive", times=times)


def read_members(content: bytes, label: object, *, times: float = 1, extra_bytes: float = 0) -> dict[str, bytes]:
    """Return the files in a zip archive by name, if they and `extra_bytes` more are not too large together.

    A name that leads out of the archive, or occurs twice, is an error: readers disagree about its meaning.
    """
    files: dict[str, bytes] = {}
    with open_archive(content, label) as archive:
        check_archive(archive, times=times, label=label, extra_bytes=extra_bytes)
        for member in archive.infolist():
            name = member.filename
            if name in files or name.startswith("/") or "\\" in name or ".." in name.split("/"):
                raise zipfile.BadZipFile(f"the name '{name[:100]}' leads out of the archive, or occurs twice")
            if not member.is_dir():
                files[name] = read_member(archive, member)
    return files


def repack(files: Mapping[str, bytes]) -> bytes:
    """Return an unpacked zip archive of files, so that a library that reads it finds the sizes that were checked."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return target.getvalue()


def check_tensors(start: bytes, size: int, label: object) -> None:
    """Refuse a safetensors file of `size` bytes if its start declares a header that is too large.

    Each tensor, also an empty one, becomes an object. The reader refuses a header that is longer than the file.
    """
    header_size = min(size, int.from_bytes(start[:8], "little"))
    if header_size > _CHUNK_BYTES:  # the header of ten thousand tensors is smaller
        check_size(header_size, f"{label}: its header", times=TREE_FACTOR)


def check_array(content: bytes) -> None:
    """Refuse an .npy file whose header declares a larger array than the file holds, before that is allocated."""
    from numpy.lib import format as npy

    file = io.BytesIO(content)
    header = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = header(file)  # refuses a header of more than 10,000 letters
    if math.prod(shape) * dtype.itemsize > len(content):
        raise ValueError(f"an array of {shape} is declared, but the file has {len(content):,} bytes")
