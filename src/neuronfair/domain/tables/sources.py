"""Where the raw files of the data sets come from: the package, a folder of yours, the cache, or a download."""

from __future__ import annotations

import hashlib
import http.client
import os
import tomllib
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from neuronfair import limits
from neuronfair.atomic import replacing
from neuronfair.errors import DataError, NeuronFairError, did_you_mean

CATALOG = Path(__file__).parent / "catalog"
TIMEOUT_SECONDS = 30.0
_CHUNK = 1 << 16

Progress = Callable[[int, int | None], None]
"""Called with the bytes received so far and, where the server says, the bytes in all."""


@dataclass(frozen=True)
class SourceFile:
    """One raw file: its name, the digests it may have, and the addresses to fetch it from.

    An address may end in `#member` to name a file inside a zip archive (`#inner.zip#member` for a nested one).
    With `rows_only` the digest is that of the lines below the header, without line ends' differences: copies of
    such a file agree in every row but not in how they name the last column.
    """

    name: str
    sha256: tuple[str, ...]
    urls: tuple[str, ...] = ()
    rows_only: bool = False


@dataclass(frozen=True)
class Source:
    """The origin of one data set: files, page, licence and whom to cite."""

    name: str
    files: tuple[SourceFile, ...]
    page: str
    licence: str
    citation: str
    bundled: bool = False


def _read_sources() -> dict[str, Source]:
    known = tomllib.loads((CATALOG / "sources.toml").read_text(encoding="utf-8"))
    sources = {}
    for name, entry in known.items():
        files = [
            SourceFile(f["name"], tuple(f["sha256"]), tuple(f.get("urls", ())), f.get("rows_only", False))
            for f in entry.pop("files")
        ]
        sources[name] = Source(name, tuple(files), **entry)
    return sources


SOURCES = _read_sources()


def source(name: str) -> Source:
    """Return the origin of a data set by its name."""
    if name not in SOURCES:
        raise DataError(f"no data set '{name}'. {did_you_mean(name, SOURCES)}")
    return SOURCES[name]


def cache_folder() -> Path:
    """Return the folder that downloads are kept in."""
    import platformdirs  # here, so that bundled data need nothing beyond the standard library

    return platformdirs.user_cache_path("neuronfair")


def where(name: str) -> tuple[Path, ...] | None:
    """Return the files of a data set, wherever they lie, or None if one of them is not on this machine."""
    paths = [_find(file, source(name)) for file in source(name).files]
    found = tuple(path for path in paths if path is not None)
    return found if len(found) == len(paths) else None


def read(name: str) -> tuple[str, ...]:
    """Return the text of each file of a data set, its checksum compared."""
    origin = source(name)
    texts = []
    for file in origin.files:
        path = _find(file, origin)
        if path is None:
            raise DataError(
                f"{name}: {file.name} is not on this machine. Run `neuronfair data get {name}`, "
                f"or set NEURONFAIR_DATA to the folder that holds it"
            )
        content = read_bytes(path)
        _check(content, file, str(path))
        texts.append(content.decode("utf-8"))
    return tuple(texts)


def get(name: str, progress: Progress | None = None) -> tuple[Path, ...]:
    """Make sure that the files of a data set are on this machine, downloading what is missing to the cache.

    A download is kept only when its checksum is right; a failed one leaves nothing behind.
    """
    origin = source(name)
    return tuple(_find(file, origin) or _download(file, name, progress) for file in origin.files)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, unpacked if it is a gzip file."""
    try:
        content = limits.read_bytes(path)
        return limits.unpacked(content, path) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {_reason(error)}") from None


def _find(file: SourceFile, origin: Source) -> Path | None:
    return next((path for path in _places(file, origin) if path.is_file()), None)


def _places(file: SourceFile, origin: Source) -> Iterator[Path]:
    if origin.bundled:
        yield CATALOG / f"{file.name}.gz"
        return
    if folder := os.environ.get("NEURONFAIR_DATA"):
        for place in (Path(folder), Path(folder) / "structured"):
            yield from (place / file.name, place / f"{file.name}.gz")
    yield cache_folder() / file.name


def _check(content: bytes, file: SourceFile, place: str) -> None:
    counted = b"\n".join(content.splitlines()[1:]) if file.rows_only else content
    got = hashlib.sha256(counted).hexdigest()
    if got not in file.sha256:
        expected = " or ".join(file.sha256)
        raise DataError(
            f"{place}: damaged, or not {file.name}: expected sha256 {expected}, got {got}. Delete it and get it anew"
        )


def _download(file: SourceFile, name: str, progress: Progress | None) -> Path:
    failures = []
    for url in file.urls:
        try:
            content = _fetch(url, progress)
            _check(content, file, url)
        # A server can fail in many ways; each is one line of the message, and the next address is tried.
        except (OSError, http.client.HTTPException, ValueError, KeyError, zipfile.BadZipFile, NeuronFairError) as error:
            reason = str(error) if isinstance(error, NeuronFairError) else f"{url}: {_reason(error)}"
            failures.append(reason)
        else:
            return _keep(content, cache_folder() / file.name)
    raise DataError(
        f"{name}: {file.name} could not be downloaded ({'; '.join(failures) or 'no address is known'}). "
        f"Check the network, or set NEURONFAIR_DATA to a folder that holds the file"
    )


def _fetch(url: str, progress: Progress | None) -> bytes:
    address, *members = url.split("#")
    received = bytearray()
    with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as reply:
        length = reply.headers.get("Content-Length")
        total = int(length) if length else None
        while chunk := reply.read(_CHUNK):
            received += chunk
            limits.check_size(len(received), address)
            if progress:
                progress(len(received), total)
    if total is not None and len(received) < total:
        raise OSError(f"connection closed after {len(received)} of {total} bytes")
    content = bytes(received)
    for member in members:
        with limits.open_archive(content, address) as archive:
            content = limits.read_member(archive, member)
    return content


def _keep(content: bytes, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written: {_reason(error)}. Free some space or set NEURONFAIR_DATA"
        ) from None
    return path


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
