"""Looks through an HDF5 file, on which the library can hang, and refuses what leads out of it or is too large."""

from __future__ import annotations

import io
import math
from typing import Any

import h5py

TREE = 32  # attributes hold JSON, which takes so many times its size when it is read


def read(content: bytes, memory: int) -> bytes:
    """Read all that is in a file once, so that whoever reads it next will not be surprised."""
    taken = 0

    def look(_: str, item: Any) -> None:
        nonlocal taken
        if isinstance(item, h5py.Dataset):
            if item.is_virtual or item.external:
                raise ValueError(f"'{item.name}' lies in another file")
            taken += math.prod(item.shape or ()) * item.dtype.itemsize
        for value in item.attrs.values():
            taken += TREE * (len(value) if isinstance(value, (str, bytes)) else getattr(value, "nbytes", 0))
        if taken > memory:
            raise MemoryError
        if isinstance(item, h5py.Dataset):
            item[()]

    with h5py.File(io.BytesIO(content), "r") as file:
        away = file.visititems_links(_leads_away)  # which ends at the first name that is returned
        if away is not None:
            raise ValueError(f"'{away}' is a link to another place")
        look("/", file)
        file.visititems(look)
    return b""


def _leads_away(name: str, link: Any) -> str | None:
    return None if isinstance(link, h5py.HardLink) else name
