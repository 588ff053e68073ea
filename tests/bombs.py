"""Files that are larger inside than outside."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping

import numpy as np


def zipped(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive of these files."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return target.getvalue()


def lying_archive(name: str, content: bytes, *, said: int) -> bytes:
    """A zip archive whose member unpacks to more than its headers say; its checksum is that of the beginning."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(content) + packer.flush()
    sizes = (zlib.crc32(content[:said]), len(packed), said)
    letters = name.encode()
    local = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 20, 0, 8, 0, 33, *sizes, len(letters), 0) + letters + packed
    entry = struct.pack("<4s6HIII5HII", b"PK\1\2", 20, 20, 0, 8, 0, 33, *sizes, len(letters), *[0] * 6) + letters
    return local + entry + struct.pack("<4s4HIIH", b"PK\5\6", 0, 0, 1, 1, len(entry), len(local), 0)


def npy(shape: tuple[int, ...], itemsize: int, held: int) -> bytes:
    """An .npy file that declares numbers of a shape, and holds so many bytes of them."""
    file = io.BytesIO()
    about = {"descr": f"<f{itemsize}", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue() + bytes(held)
