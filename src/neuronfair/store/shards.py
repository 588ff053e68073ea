"""The files of a shard: some of the walkers of a phase, searched apart, perhaps on another machine.

A checkpoint is three files, of people judged, of findings and of walkers, and then a small one that says how large they
are and what their checksums are. What it does not say does not exist, so a shard that is killed at any moment goes on
from its last checkpoint.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from neuronfair.errors import RunError
from neuronfair.limits import TEXT, check_size, check_tensors
from neuronfair.search.engine import Checkpoint, Stop
from neuronfair.search.findings import Findings
from neuronfair.store.files import packed_state
from neuronfair.store.place import Place
from neuronfair.store.seal import Json, seal, unseal

LINES, FINDINGS, STATE = "lines", "findings", "state"  # the kinds of files
_MARKER = "{:06d}.json"
_COUNTS = ("tried", "judged", "rejected")
_TENSORS = tuple(one.name for one in fields(Findings) if one.name not in _COUNTS)
_LEVEL = 1  # of zstd: a third of the size, in less than a tenth of the time that judging took


class _File(NamedTuple):
    """What is known of a file: its checksum, and how many bytes it has, packed and unpacked."""

    crc32: int
    size: int
    unpacked: int


@dataclass(frozen=True)
class ShardPart:
    """A checkpoint of a shard: its figures, and where the rest is."""

    place: Place
    number: int
    t: int
    judged: int  # since the checkpoint before
    people: int  # of them, those who have a line
    seconds: float
    stop: Stop | None
    files: Mapping[str, _File]

    def lines(self) -> Tensor:
        """Return the lines of everybody judged for the first time since the checkpoint before: see `judged`."""
        return self._tensors(LINES)[LINES]

    def findings(self) -> Findings:
        """Return what was found since then, and the misses; the counts are not those that count in the end."""
        tensors = self._tensors(FINDINGS)
        with self.place.reading(self.name(FINDINGS)):
            if tensors.keys() != set(_TENSORS):
                raise ValueError("it holds something else than findings")
            return Findings(**tensors)  # type: ignore[arg-type]

    def state(self) -> dict[str, Tensor]:
        """Return the walkers, which only the last checkpoint has."""
        return self._tensors(STATE)

    def name(self, kind: str) -> str:
        """Return what a file is called; by its checksum, so that whoever does the same once more spoils nothing."""
        return f"{self.number:06d}.{kind}.{self.files[kind].crc32:08x}"

    def _tensors(self, kind: str) -> dict[str, Tensor]:
        about, name = self.files[kind], self.name(kind)
        packed = self.place.read(name, about.size)
        with self.place.reading(name) as path:
            check_size(about.unpacked, path)
            if len(packed) != about.size or zlib.crc32(packed) != about.crc32:
                raise ValueError("it is not as it was written")
            try:
                content = pa.decompress(packed, about.unpacked, "zstd", asbytes=True)
                check_tensors(content, len(content), path)
                return load(content)
            except SafetensorError as error:
                raise ValueError(str(error)) from error


@dataclass(frozen=True)
class ShardStore:
    """Where a shard is kept. It may be sent to whoever searches it."""

    address: str  # of all shards of a search: a folder, or an address that fsspec knows
    phase: str
    number: int
    _next: list[int] = field(default_factory=list, compare=False)  # the number of the checkpoint that comes now

    @cached_property
    def _place(self) -> Place:
        return Place(f"{self.address.rstrip('/')}/{self.phase}-{self.number:05d}")

    def resume(self, device: torch.device | str = "cpu") -> Checkpoint | None:
        """Return where the shard stood. Who was judged and found before stays in its files, and is not given."""
        parts = self.parts()
        self._next[:] = [len(parts)]
        if not parts:
            return None
        last, found = parts[-1], parts[-1].findings()
        nobody = Findings(**{name: getattr(found, name)[:0].to(device) for name in _TENSORS})
        state = {name: tensor.to(device) for name, tensor in last.state().items()}
        lines = torch.empty(0, 2, dtype=torch.int64, device=device)
        return Checkpoint(last.t, state, nobody, lines, last.seconds, last.stop)

    def checkpoint(self, where: Checkpoint) -> None:
        """Keep what was found since the last checkpoint, and the walkers as they are."""
        # Counted by whoever writes, not by what is there: somebody else, who was thought to be dead, may still go on
        # with this shard. Both write the same, under the same numbers.
        number = self._next[0] if self._next else self._count()
        self._next[:] = [number + 1]
        before = self._part(number - 1) if number else None
        found = {name: getattr(where.findings, name) for name in _TENSORS}
        files: dict[str, _File] = {}
        judged, people = where.findings.judged, len(where.lines)
        part = ShardPart(self._place, number, where.t, judged, people, where.seconds, where.stop, files)
        for kind, tensors in {LINES: {LINES: where.lines}, FINDINGS: found, STATE: where.state}.items():
            content = packed_state(tensors)
            packed = pa.Codec("zstd", compression_level=_LEVEL).compress(content, asbytes=True)
            files[kind] = _File(zlib.crc32(packed), len(packed), len(content))
            self._place.write(part.name(kind), packed)
        entry = {name: value for name, value in vars(part).items() if name not in ("place", "number")}
        self._place.write(_MARKER.format(number), seal(entry))
        if before is not None:
            self._place.remove(before.name(STATE))

    def parts(self) -> list[ShardPart]:
        """Return the checkpoints, in their order."""
        return [self._part(number) for number in range(self._count())]

    def remove(self) -> None:
        """Remove all that is kept of the shard."""
        self._place.clear()

    def _count(self) -> int:
        names, number = self._place.names(), 0
        while _MARKER.format(number) in names:
            number += 1
        if number and not self._place.is_local:
            try:
                self._part(number - 1)
            except RunError:  # a kill may have torn it, where files are not put whole
                return number - 1
        return number

    def _part(self, number: int) -> ShardPart:
        name = _MARKER.format(number)
        content = self._place.read(name, times=TEXT)
        with self._place.reading(name):
            entry: Json = unseal(content)
            files = {kind: _File(*map(int, entry["files"][kind])) for kind in (LINES, FINDINGS, STATE)}
            return ShardPart(**{**entry, "place": self._place, "number": number, "files": files})
