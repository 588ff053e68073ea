"""Sealed JSON: what is read is what was written, to the bit."""

from __future__ import annotations

import hashlib
import json

import pytest

from neuronfair.errors import RunError
from neuronfair.store.files import is_sealed, read_sealed, seal, unseal

ENTRY = {"a": [1, 2.5, None], "digest": "mine", "ü": "\udc80\x7f\n", "deep": {"digest": ""}}


def test_a_sealed_entry_comes_back_and_is_plain_json():
    content = seal(ENTRY)
    assert unseal(content) == ENTRY
    read = json.loads(content)
    assert read.keys() == ENTRY.keys()
    body = content[: content.rindex(b',\n  "digest": "')]
    assert read["digest"] == hashlib.sha256(body).hexdigest()
    assert b"\x7f" not in content


def test_every_bit_counts():
    content = seal({"a": 1.5e300, "b": "é"})  # 1.5E+300 and \\u00E9 would mean the same
    for place in range(len(content)):
        for bit in range(8):
            flipped = content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
            with pytest.raises(ValueError, match="not as it was written"):
                unseal(flipped)


def test_what_is_not_sealed(tmp_path):
    assert not is_sealed(b'{"a": 1}')
    for content in (b"", b"{}", b'{"a": 1}', seal(ENTRY) + b"\n", seal(ENTRY)[:-1], seal(ENTRY) * 2):
        (tmp_path / "a.json").write_bytes(content)
        with pytest.raises(RunError, match=r"a\.json: damaged: it is not as it was written"):
            read_sealed(tmp_path / "a.json")
    with pytest.raises(FileNotFoundError):
        read_sealed(tmp_path / "none.json")
