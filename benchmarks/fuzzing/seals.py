"""The checksums in the folders of runs and audits, set right after damage, as somebody who means harm would do."""

from __future__ import annotations

import hashlib
import zlib

from .mutate import Files

_DIGEST, _CHECK = b',\n  "digest": "', b', "check": "'  # the last entry of a sealed file, and of a line of a journal


def opened(name: str, content: bytes) -> bytes:
    """Return a file without its own checksums."""
    if name.endswith(".jsonl"):
        return b"\n".join(_unsealed(line, _CHECK) for line in content.split(b"\n"))
    return _unsealed(content, _DIGEST) if name.endswith(".json") else content


def set_right(whole: Files, files: Files) -> Files:
    """Return damaged files with the checksums that belong to them, where the whole ones had any."""
    files = dict(files)
    for name in [name for name in whole if files[name] != whole[name]]:
        for sum_of in (_crc32, _sha256):
            old, new = sum_of(whole[name]), sum_of(files[name])
            files |= {n: content.replace(old, new) for n, content in files.items() if n != name}
    for name in [name for name in whole if name.endswith(".json") and _DIGEST in whole[name]]:
        body = opened(name, files[name]).rstrip().removesuffix(b"}").rstrip()
        files[name] = body + _DIGEST + _sha256(body) + b'"\n}\n'
    for name in [name for name in whole if name.endswith(".jsonl") and _CHECK in whole[name]]:
        check = zlib.crc32(files.get(name.replace("journal.jsonl", "manifest.json"), b""))
        lines = []
        for line in opened(name, files[name]).split(b"\n"):
            body = line.removesuffix(b"}")
            check = zlib.crc32(body, check)
            lines.append(body + _CHECK + b'%08x"}' % check if line else line)
        files[name] = b"\n".join(lines)
    return files


def _unsealed(content: bytes, mark: bytes) -> bytes:
    body, found, _ = content.rpartition(mark)
    return body + b"}" if found else content


def _crc32(content: bytes) -> bytes:
    return b"%d" % zlib.crc32(content)


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
