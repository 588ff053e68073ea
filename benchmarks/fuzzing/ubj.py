"""UBJSON, the form of XGBoost's model files: read, bent and written, or damaged at its markers and numbers."""

from __future__ import annotations

import random
import struct
from typing import Any

from .mutate import ENDS, bent


class _Typed(list[Any]):
    """The numbers of an array in UBJSON that names their type once."""

    kind = "d"


_WIDTHS = {"i": "b", "U": "B", "I": "h", "l": "i", "L": "q", "d": "f", "D": "d", "C": "c"}


class _Ubj:
    """A reader of UBJSON that remembers where the markers and numbers are."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at, self.spots = content, 0, list[tuple[int, str]]()
        self.tree = self.value(self.marker())

    def marker(self) -> str:
        self.spots.append((self.at, "marker"))
        self.at += 1
        return chr(self.content[self.at - 1])

    def number(self, kind: str) -> Any:
        code = f">{_WIDTHS[kind]}"
        self.spots.append((self.at, code))
        self.at += struct.calcsize(code)
        return struct.unpack_from(code, self.content, self.at - struct.calcsize(code))[0]

    def text(self) -> str:
        length = self.number(self.marker())
        self.at += length
        return self.content[self.at - length : self.at].decode("latin1")

    def value(self, kind: str) -> Any:
        if kind == "S":
            return self.text()
        if kind in _WIDTHS:
            return self.number(kind)
        if kind in "TFZ":
            return {"T": True, "F": False, "Z": None}[kind]
        if kind == "{":
            tree = {}
            while chr(self.content[self.at]) != "}":
                key = self.text()
                tree[key] = self.value(self.marker())
            self.at += 1
            return tree
        items = _Typed()
        if chr(self.content[self.at]) == "$":
            self.at += 1
            items.kind = self.marker()
            self.at += 1  # the sign of a count
            items += [self.number(items.kind) for _ in range(self.number(self.marker()))]
            return items
        plain = []
        count = None
        if chr(self.content[self.at]) == "#":
            self.at += 1
            count = self.number(self.marker())
        while len(plain) != count and (count is not None or chr(self.content[self.at]) != "]"):
            plain.append(self.value(self.marker()))
        self.at += count is None
        return plain


def _as_ubj(value: Any) -> bytes:
    if isinstance(value, dict):
        return b"{" + b"".join(_as_ubj(str(key))[1:] + _as_ubj(entry) for key, entry in value.items()) + b"}"
    if isinstance(value, str):
        text = value.encode(errors="replace")
        return b"SL" + struct.pack(">q", len(text)) + text
    if isinstance(value, _Typed):
        code = f">{len(value)}{_WIDTHS[value.kind]}"
        try:
            return b"[$" + value.kind.encode() + b"#L" + struct.pack(">q", len(value)) + struct.pack(code, *value)
        except (struct.error, OverflowError):
            return _as_ubj(list(value))
    if isinstance(value, list):
        return b"[" + b"".join(map(_as_ubj, value)) + b"]"
    if isinstance(value, bool) or value is None:
        return {True: b"T", False: b"F", None: b"Z"}[value]
    return b"D" + struct.pack(">d", value) if isinstance(value, float) else b"L" + struct.pack(">Q", value % 2**64)


def ubj(valid: bytes, dice: random.Random) -> bytes:
    """A UBJSON file bent at its values, or with another type, length or number somewhere."""
    read = _Ubj(valid)
    if dice.random() < 0.6:
        return _as_ubj(bent(read.tree, dice))
    content = bytearray(valid)
    for _ in range(dice.choice((1, 1, 2))):
        at, code = dice.choice(read.spots)
        if code == "marker":
            content[at] = ord(dice.choice("iUIlLdDCSTFZN[]{}$#"))
        else:
            size = struct.calcsize(code)
            content[at : at + size] = (dice.choice(ENDS) % 256**size).to_bytes(size, "big")
    return bytes(content)
