"""The shards of a phase: some of its search chains, searched apart, and how they are put together.

Duplicates across shards are found by sorting lines that are spread over files by a hash; a window query of DuckDB took
as long and 270 MB more for ten million lines.
"""

from __future__ import annotations

import shutil
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from neuronfair.errors import RunError
from neuronfair.limits import TEXT, check_size, check_tensors
from neuronfair.searches.engine import Checkpoint, Stop
from neuronfair.searches.findings import Findings
from neuronfair.searches.tally import DOUBTFUL, FOUND, MISS, REJECTED, is_sampled_miss, keys_of, kind_of, order_of
from neuronfair.store.files import Json, load_array, packed_state, seal, unseal, writing
from neuronfair.store.remote import RemoteFolder

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

    place: RemoteFolder
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
        """Return the chains, which only the last checkpoint has."""
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


@dataclass
class ShardStore:
    """Where a shard is kept. It may be sent to whoever searches it."""

    address: str  # of all shards of a search: a folder, or an address that fsspec knows
    phase: str
    number: int
    _next: int | None = field(default=None, compare=False)  # the number of the checkpoint that comes now, if known

    @cached_property
    def _place(self) -> RemoteFolder:
        return RemoteFolder(f"{self.address.rstrip('/')}/{self.phase}-{self.number:05d}")

    def resume(self, device: torch.device | str = "cpu") -> Checkpoint | None:
        """Return where the shard stood. Who was judged and found before stays in its files, and is not given."""
        parts = self.parts()
        self._next = len(parts)
        if not parts:
            return None
        last, found = parts[-1], parts[-1].findings()
        nobody = Findings(**{name: getattr(found, name)[:0].to(device) for name in _TENSORS})
        state = {name: tensor.to(device) for name, tensor in last.state().items()}
        lines = torch.empty(0, 2, dtype=torch.int64, device=device)
        return Checkpoint(last.t, state, nobody, lines, last.seconds, last.stop)

    def checkpoint(self, where: Checkpoint) -> None:
        """Keep what was found since the last checkpoint, and the chains as they are."""
        # Counted by whoever writes, not by what is there: somebody else, who was thought to be dead, may still go on
        # with this shard. Both write the same, under the same numbers.
        number = self._count() if self._next is None else self._next
        self._next = number + 1
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


SORTED = 1 << 22  # lines that are sorted at a time
MOST_FILES = 512  # that are open at a time
_KNOWN = -1  # stands for an order before all others
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

Longs = npt.NDArray[np.int64]


def merged(
    shards: Sequence[ShardStore], known: Sequence[Path | Tensor], work: Path, *, skip: int = 0
) -> Iterator[Checkpoint]:
    """Yield the parts of a phase whose shards are all done, in their order, without the first `skip`.

    `known` are people whom earlier phases have judged: keys, or files of lines in a run folder. The folder `work` is
    made, used and removed; what a kill has left in it is removed first. The seconds are those of all shards together.
    Only the last part has the chains.
    """
    parts = [shard.parts() for shard in shards]
    for shard, own in zip(shards, parts, strict=True):
        if not own or own[-1].stop in (None, "interrupted"):
            raise RunError(f"{shard.address}: shard {shard.number} of the phase '{shard.phase}' is not finished")
        if any(b.t <= a.t and b.people for a, b in pairwise(own)):
            raise RunError(f"{shard.address}: shard {shard.number} of '{shard.phase}' has been written twice")
    shutil.rmtree(work, ignore_errors=True)
    try:
        with writing(work):
            work.mkdir(parents=True)
            lost = _duplicate_mask([part for own in parts for part in own], known, work)
        ends, seconds = _windows(parts), dict[str, float]()
        for number, (t, window) in enumerate(ends):
            seconds |= {part.place.address: part.seconds for part in window}
            if number >= skip:
                part = Checkpoint(t, {}, *_first_evaluations(window, lost), sum(seconds.values()))
                yield part if number < len(ends) - 1 else _last(part, [own[-1] for own in parts])
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _windows(shards: Sequence[Sequence[ShardPart]]) -> list[tuple[int, list[ShardPart]]]:
    """Return the parts that belong together: those between steps at which all shards had a checkpoint, or had ended.

    Each comes with the step at its end. The last one is what the shards wrote when they ended.
    """
    end = max(own[-1].t for own in shards)
    common = {part.t for own in shards for part in own[:-1]}
    for own in shards:
        common &= {part.t for part in own[:-1]} | {t for t in common if t > own[-1].t}
    ends = sorted(common)
    found: list[tuple[int, list[ShardPart]]] = [(t, []) for t in (*ends, end)]
    for own in shards:
        for part in own:
            last = part is own[-1] and part.t == end
            found[-1 if last else bisect_left(ends, part.t)][1].append(part)
    return found


def _last(part: Checkpoint, ends: Sequence[ShardPart]) -> Checkpoint:
    """Return the last part with the chains of all shards, and why they have ended."""
    stops, states = {shard.stop for shard in ends}, [shard.state() for shard in ends]
    order: tuple[Stop, ...] = ("seconds", "steps", "walkers")  # it is over for want of chains if none has any left
    state = {name: torch.cat([own[name] for own in states]) for name in states[0]}
    return replace(part, state=state, stop=next(stop for stop in order if stop in stops))


def _first_evaluations(parts: Sequence[ShardPart], lost: npt.NDArray[np.uint8]) -> tuple[Findings, Tensor]:
    """Return the findings and lines of those in some parts who count, in the order of the search."""
    counting = [_counting(part, lost) for part in parts]
    lines, found = torch.cat([own for own, _ in counting]), Findings.join([own for _, own in counting])
    kind = kind_of(lines)
    by_order, missed = torch.argsort(lines[kind == FOUND, 1]), torch.argsort(lines[_is_missed(lines), 1])
    result = replace(
        found[by_order],
        misses=found.misses[missed],
        tried=len(lines),
        judged=sum(part.judged for part in parts),
        rejected=int(((kind == REJECTED) | (kind == DOUBTFUL)).sum()),
    )
    return result, lines[torch.argsort(lines[:, 1])]


def _counting(part: ShardPart, lost: npt.NDArray[np.uint8]) -> tuple[Tensor, Findings]:
    """Return the lines and findings of a part that have not lost."""
    lines, found = part.lines(), part.findings()
    is_found, is_missed, number = kind_of(lines) == FOUND, _is_missed(lines), order_of(lines).numpy()
    if (len(lines), len(found), len(found.misses)) != (part.people, int(is_found.sum()), int(is_missed.sum())):
        raise RunError(f"{part.place.address}: the files of checkpoint {part.number} do not belong together")
    wins = torch.from_numpy((lost[number >> 3] >> (number & 7)) & 1 == 0)
    return lines[wins], replace(found[wins[is_found]], misses=found.misses[wins[is_missed]])


def _is_missed(lines: Tensor) -> Tensor:
    """Return who is kept in the sample of misses: bool, (n,)."""
    kind = kind_of(lines)
    return is_sampled_miss(keys_of(lines)) & ((kind == MISS) | (kind == DOUBTFUL))


def _duplicate_mask(parts: Sequence[ShardPart], known: Sequence[Path | Tensor], work: Path) -> npt.NDArray[np.uint8]:
    """Return which judgements do not count, one bit for each in the order of the search, in a file."""
    people = sum(part.people for part in parts)
    people += sum(one.stat().st_size // 16 if isinstance(one, Path) else len(one) for one in known)
    bits = max(1, min(MOST_FILES - 1, people // SORTED).bit_length())
    names, last = [work / f"{number:03d}" for number in range(1 << bits)], 0
    with ExitStack() as stack:
        open_files = [stack.enter_context(name.open("wb")) for name in names]
        for one in known:
            keys = keys_of(load_array(one, 2)) if isinstance(one, Path) else one.cpu()
            _spread(torch.stack([keys, torch.full_like(keys, _KNOWN)], 1).numpy(), open_files, bits)
        for part in parts:
            lines = part.lines()
            if len(lines) and int(lines[:, 1].min()) < 0:
                raise RunError(f"{part.place.address}: the files of checkpoint {part.number} do not belong together")
            last = max(last, int(order_of(lines).max()) if len(lines) else 0)
            _spread(lines.numpy(), open_files, bits)
    lost = np.memmap(work / "lost", np.uint8, "w+", shape=(last // 8 + 1,))
    for name in names:
        numbers = _duplicates(np.fromfile(name, np.int64).reshape(-1, 2))
        name.unlink()
        np.bitwise_or.at(lost, numbers >> 3, (1 << (numbers & 7)).astype(np.uint8))
    return lost


def _spread(lines: Longs, open_files: Sequence[BinaryIO], bits: int) -> None:
    """Write lines to files by a hash of their keys."""
    number = ((lines[:, 0].view(np.uint64) * _GOLDEN) >> np.uint64(64 - bits)).astype(np.uint16)
    order = np.argsort(number, kind="stable")
    ends = np.cumsum(np.bincount(number, minlength=len(open_files)))
    for file, some in zip(open_files, np.split(lines[order], ends[:-1]), strict=True):
        file.write(some.tobytes())


def _duplicates(lines: Longs) -> Longs:
    """Return the order numbers of lines with whose key there is an earlier one."""
    if len(lines) == 0:
        return lines[:, 1]
    lines = lines[np.argsort(lines[:, 0])]
    keys, order = lines.T
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    best = np.repeat(np.minimum.reduceat(order, first), np.diff(first, append=len(keys)))
    return order_of(torch.from_numpy(lines[(order != best) & (order != _KNOWN)])).numpy()
