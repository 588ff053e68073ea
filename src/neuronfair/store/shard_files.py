"""The files of one shard of a search, on this machine or at an address that fsspec knows (s3://…).

A file is there whole or not at all.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import torch
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from neuronfair.errors import RunError, one_line
from neuronfair.limits import TEXT_FACTOR, check_size, check_tensors
from neuronfair.searches.engine import Checkpoint, Stop
from neuronfair.searches.findings import Findings
from neuronfair.store.files import Json, current_keys, pack_state, seal, unseal, write_whole, writing


@dataclass(frozen=True)
class RemoteFolder:
    """A folder at an address, which may be sent to another machine."""

    address: str

    @cached_property
    def _location(self) -> tuple[AbstractFileSystem, str]:
        try:
            location: tuple[AbstractFileSystem, str] = url_to_fs(self.address)
            return location
        except (ValueError, ImportError) as error:  # no such kind of address, or a package is missing
            raise RunError(f"{self.address}: cannot be used as an address: {one_line(error)}") from None

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine, where files are renamed into place; elsewhere a kill may tear a file."""
        return isinstance(self._location[0], LocalFileSystem)

    def __getstate__(self) -> dict[str, str]:
        return {"address": self.address}  # another process connects again

    def names(self) -> set[str]:
        """Return the names of the files; none without a folder."""
        fs, folder = self._location
        with self.reading(""):
            fs.invalidate_cache()
            return {path.rpartition("/")[2] for path in fs.find(folder)}

    def read(self, name: str, size: int | None = None, *, times: float = 1) -> bytes:
        """Return the first `size` bytes of a file, or all of it, if that is not too large."""
        fs, folder = self._location
        with self.reading(name) as path:
            check_size(fs.size(f"{folder}/{name}") if size is None else size, path, times=times)
            content: bytes = fs.cat_file(f"{folder}/{name}", 0, size)
        return content

    @contextmanager
    def reading(self, name: str) -> Iterator[str]:
        """Yield the address of a file, and name it in errors of reading."""
        path = f"{self.address}/{name}"
        try:
            yield path
        except FileNotFoundError:
            raise RunError(f"{path}: is gone. Nothing was changed") from None
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise RunError(f"{path}: damaged, or cannot be read ({one_line(error)}). Nothing was changed") from None

    def write(self, name: str, content: bytes) -> None:
        """Write a file, and wait until it is on the disk."""
        fs, folder = self._location
        with writing(self.address):
            fs.makedirs(folder, exist_ok=True)
            if self.is_local:
                staged = Path(folder) / f".{name}.{secrets.token_hex(4)}"
                write_whole(staged, content)
                staged.replace(Path(folder) / name)
            else:
                fs.pipe_file(f"{folder}/{name}", content)

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        fs, folder = self._location
        with writing(self.address), suppress(FileNotFoundError):
            fs.rm_file(f"{folder}/{name}")

    def clear(self) -> None:
        """Remove the folder and everything in it."""
        fs, folder = self._location
        with writing(self.address):
            if fs.exists(folder):
                fs.rm(folder, recursive=True)


LINES, FINDINGS, STATE = "lines", "findings", "state"  # the kinds of files
_MARKER = "{:06d}.json"
_COUNTS = ("tried", "evaluated", "rejected")
_TENSORS = tuple(part.name for part in fields(Findings) if part.name not in _COUNTS)
_LINE_COUNT_KEY = "people"  # in files
_LEVEL = 1  # of zstd: a third of the size, in less than a tenth of the time of the search


class _File(NamedTuple):
    """The checksum of a file, and how many bytes it has, packed and unpacked."""

    crc32: int
    size: int
    unpacked: int


@dataclass(frozen=True)
class ShardPart:
    """A checkpoint of a shard: its counts, and its files."""

    folder: RemoteFolder
    number: int
    t: int
    evaluated: int  # rows evaluated since the checkpoint before
    line_count: int  # log lines since then
    seconds: float
    stop: Stop | None
    files: Mapping[str, _File]

    def lines(self) -> Tensor:
        """Return the log of the records evaluated for the first time since the checkpoint before."""
        return self._tensors(LINES)[LINES]

    def findings(self) -> Findings:
        """Return the findings since then, and the misses; the counts include duplicates of other shards."""
        tensors = self._tensors(FINDINGS)
        with self.folder.reading(self.name(FINDINGS)):
            if tensors.keys() != set(_TENSORS):
                raise ValueError("it does not hold findings")
            return Findings(**tensors)  # type: ignore[arg-type]

    def state(self) -> dict[str, Tensor]:
        """Return the chains, which are saved for the last checkpoint only."""
        return self._tensors(STATE)

    def name(self, kind: str) -> str:
        """Return the name of a file; it has the checksum, so that a second worker on the same shard does no harm."""
        return f"{self.number:06d}.{kind}.{self.files[kind].crc32:08x}"

    def _tensors(self, kind: str) -> dict[str, Tensor]:
        info, name = self.files[kind], self.name(kind)
        packed = self.folder.read(name, info.size)
        with self.folder.reading(name) as path:
            check_size(info.unpacked, path)
            if len(packed) != info.size or zlib.crc32(packed) != info.crc32:
                raise ValueError("it is not as it was written")
            try:
                content = pa.decompress(packed, info.unpacked, "zstd", asbytes=True)
                check_tensors(content, len(content), path)
                return load(content)
            except SafetensorError as error:
                raise ValueError(str(error)) from error


@dataclass
class ShardStore:
    """The saved checkpoints of a shard. It may be sent to another process."""

    address: str  # of all shards of a search: a folder, or an address that fsspec knows
    phase: str
    number: int
    _next: int | None = field(default=None, compare=False)  # the number of the next checkpoint, if known

    @cached_property
    def _folder(self) -> RemoteFolder:
        return RemoteFolder(f"{self.address.rstrip('/')}/{self.phase}-{self.number:05d}")

    def resume(self, device: torch.device | str = "cpu") -> Checkpoint | None:
        """Return the last checkpoint, without the findings and keys before it, which stay in the files."""
        parts = self.parts()
        self._next = len(parts)
        if not parts:
            return None
        last, findings = parts[-1], parts[-1].findings()
        none = Findings(**{name: getattr(findings, name)[:0].to(device) for name in _TENSORS})
        state = {name: tensor.to(device) for name, tensor in last.state().items()}
        lines = torch.empty(0, 2, dtype=torch.int64, device=device)
        return Checkpoint(last.t, state, none, lines, last.seconds, last.stop)

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        """Save the findings since the last checkpoint, and the current chains."""
        # Numbers come from this process, not from the files: another worker that was thought to be lost may still be
        # writing to this shard. Both write the same under the same numbers.
        number = self._count() if self._next is None else self._next
        self._next = number + 1
        before = self._part(number - 1) if number else None
        columns = {name: getattr(checkpoint.findings, name) for name in _TENSORS}
        files: dict[str, _File] = {}
        evaluated, line_count = checkpoint.findings.evaluated, len(checkpoint.lines)
        part = ShardPart(
            self._folder, number, checkpoint.t, evaluated, line_count, checkpoint.seconds, checkpoint.stop, files
        )
        for kind, tensors in {LINES: {LINES: checkpoint.lines}, FINDINGS: columns, STATE: checkpoint.state}.items():
            content = pack_state(tensors)
            packed = pa.Codec("zstd", compression_level=_LEVEL).compress(content, asbytes=True)
            files[kind] = _File(zlib.crc32(packed), len(packed), len(content))
            self._folder.write(part.name(kind), packed)
        entry = {name: value for name, value in vars(part).items() if name not in ("folder", "number", "line_count")}
        entry[_LINE_COUNT_KEY] = line_count
        self._folder.write(_MARKER.format(number), seal(entry))
        if before is not None:
            self._folder.remove(before.name(STATE))

    def parts(self) -> list[ShardPart]:
        """Return the checkpoints, in order."""
        return [self._part(number) for number in range(self._count())]

    def remove(self) -> None:
        """Remove all files of the shard."""
        self._folder.clear()

    def _count(self) -> int:
        names, number = self._folder.names(), 0
        while _MARKER.format(number) in names:
            number += 1
        if number and not self._folder.is_local:
            try:
                self._part(number - 1)
            except RunError:  # a kill may have torn it
                return number - 1
        return number

    def _part(self, number: int) -> ShardPart:
        name = _MARKER.format(number)
        content = self._folder.read(name, times=TEXT_FACTOR)
        with self._folder.reading(name):
            entry: Json = current_keys(unseal(content))
            files = {kind: _File(*map(int, entry["files"][kind])) for kind in (LINES, FINDINGS, STATE)}
            line_count = entry.pop(_LINE_COUNT_KEY)
            names = {"folder": self._folder, "number": number, "line_count": line_count, "files": files}
            return ShardPart(**{**entry, **names})
