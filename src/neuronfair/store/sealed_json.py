"""JSON that carries its own digest, so that a changed bit is found when it is read back."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from neuronfair.errors import RunError
from neuronfair.formatting import visible
from neuronfair.store.files import read_text

Json = dict[str, Any]  # an object of JSON, as it is read and written

_MARK = b',\n  "digest": "'


def seal(entry: Json) -> bytes:
    """Return a JSON object as text whose last entry is the SHA-256 of all that stands before it.

    >>> print(seal({"a": 1}).decode()[:25])
    {
      "a": 1,
      "digest": "
    """
    text = visible(json.dumps(entry, indent=2, allow_nan=False), keep="\n")  # DEL; the rest is ASCII
    body = text.removesuffix("\n}").encode()
    return body + _MARK + _end(body)


def is_sealed(content: bytes) -> bool:
    """Return whether a text says what its digest is."""
    return _MARK in content


def unseal(content: bytes) -> Any:
    """Return what a sealed text holds; a text that is not as it was written is a ValueError."""
    body, _, end = content.rpartition(_MARK)
    if end != _end(body):
        raise ValueError("it is not as it was written")
    return json.loads(body + b"\n}")


def read_sealed(path: Path) -> Any:
    """Return what a sealed file holds, or say that it is damaged; one that is not there is a FileNotFoundError."""
    try:
        return unseal(read_text(path))
    except (ValueError, RecursionError):
        raise RunError(f"{path}: damaged: it is not as it was written. Nothing was changed") from None


def _end(body: bytes) -> bytes:
    return f'{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()
