"""Running a phase in shards, in parallel or one after the other, with the same result as in one piece.

Shards are slices of the chains. The engine runs each of them, perhaps on another machine, and the shard saves its
findings in its own files; then the shards are merged into the run. So a search is bound neither to the memory of one
machine nor to one machine.

Duplicates across shards are found by sorting log lines that are distributed over files by a hash; a window query of
DuckDB took as long and 270 MB more for ten million lines.
"""

from __future__ import annotations

import math
import secrets
import shutil
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.errors import NeuronFairError, RunError
from neuronfair.progress import PieceProgress
from neuronfair.scale.pool import Pool
from neuronfair.searches.campaign import PhaseTask, in_one_piece
from neuronfair.searches.engine import Checkpoint, PhaseRecording, PhaseResult, Stop, run_phase
from neuronfair.searches.findings import Findings, FindingsSummary
from neuronfair.searches.keys import (
    DOUBTFUL,
    FOUND,
    MISS,
    REJECTED,
    KeySet,
    is_sampled_miss,
    keys_of,
    kind_of,
    order_of,
)
from neuronfair.store.files import load_array, save_array, seal, unseal, writing
from neuronfair.store.run import Run
from neuronfair.store.shard_files import RemoteFolder, ShardPart, ShardStore

MAX_ROWS_IN_MEMORY = 20_000_000  # longer searches (in rows) run in shards, and their findings stay on disk
MAX_ROWS_PER_SHARD = 20_000_000  # rows of a shard, at most
MIN_CHAINS_PER_SHARD = {"cpu": 128, "cuda": 100_000}  # smaller shards cost more than they save
ROWS_PER_PART = 1_000_000  # rows between two checkpoints of all shards, which are merged at a time
MAX_STEPS_PER_PART = 50  # steps between two checkpoints, at most
KEYS_REMEMBERED = 1 << 22  # records that a shard remembers
DIVISION = "division.json"


class Division(NamedTuple):
    """How a phase is divided: chains of a shard, and steps between checkpoints. It is the same when it resumes."""

    chains_per_shard: int
    steps_per_part: int

    @staticmethod
    def of(chains: int, steps: int, pool: Pool, device: str) -> Division:
        """Return a division into shards of at most `MAX_ROWS_PER_SHARD` rows, and two or more for each worker."""
        shards = max(math.ceil(chains * steps / MAX_ROWS_PER_SHARD), 2 * pool.size if pool.size > 1 else 1)
        width = max(
            math.ceil(chains / shards), min(MIN_CHAINS_PER_SHARD.get(device, 1), MAX_ROWS_PER_SHARD // steps, chains), 1
        )
        return Division(width, max(1, min(MAX_STEPS_PER_PART, ROWS_PER_PART // chains)))


@dataclass(frozen=True)
class ShardRunner:
    """Runs phases in shards: pass it to `search` as `runner`.

    Shards are merged in `folder`, on this machine. Their files are there too, or at `address`, which all workers must
    reach: a folder, or an address that fsspec knows (s3://…). A killed search resumes if it has a `run`. Without a pool
    of several, each shard is dealt to so many `workers`.
    """

    pool: Pool
    folder: Path
    address: str | None = None
    run: Run | None = None
    workers: int = 1
    _mark: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def _name(self) -> str:
        """The name of the folder with the shards of this search only."""
        return self._mark if self.run is None else self.run.mark

    @property
    def _root(self) -> str:
        return f"{(self.address or str(self.folder.absolute())).rstrip('/')}/{self._name}"

    @property
    def _work(self) -> Path:
        return self.folder / self._name

    def remove(self) -> None:
        """Remove all shards."""
        RemoteFolder(self._root).clear()
        shutil.rmtree(self._work, ignore_errors=True)
        with suppress(OSError):  # it is not empty, or not there
            self.folder.rmdir()

    def __call__(self, task: PhaseTask) -> PhaseResult:
        """Run a phase, or resume it if an earlier process was killed."""
        budget, chains = task.budget, len(task.starts)
        if (budget.instances, budget.seconds) != (None, None):
            raise NeuronFairError(
                "a search in shards takes no limit of seconds or evaluated records: these limits count over all "
                "chains, and shards run independently. Limit --starts and --steps instead"
            )
        run = None if task.recorder is None else self.run
        lines = [] if run is None else run.journal.parts[task.name]
        before = () if run is None else run.parts(task.name)
        if lines and lines[-1]["stop"] not in (None, "interrupted"):
            return replace(_fold_parts(task, before), stop=lines[-1]["stop"], seconds=lines[-1]["seconds"])
        if run is not None and run.is_in_one_piece(task.name):
            keys = task.key_set or KeySet(task.context.domain.device)
            for path in run.evaluated_keys("global") if task.name == "local" else ():
                keys.add(keys_of(load_array(path, 2)).to(task.context.domain.device))
            return in_one_piece(replace(task, key_set=keys), self.workers)
        if chains * budget.steps == 0:
            return in_one_piece(task, self.workers)
        start = time.perf_counter()
        try:
            result = self._merge_shards(task, self._search_shards(task), before, len(lines))
        except KeyboardInterrupt:  # the files of the shards stay
            nothing = Findings.empty(task.context.domain, task.context.network.outputs)
            return PhaseResult(nothing, 0, "interrupted", time.perf_counter() - start)
        return replace(result, seconds=max(result.seconds, time.perf_counter() - start))

    def _search_shards(self, task: PhaseTask) -> list[ShardStore]:
        chains, steps, device = len(task.starts), task.budget.steps, task.context.domain.device.type
        name = _phase_folder(task)
        width, interval = self._division(name, Division.of(chains, steps, self.pool, device))
        shards = [ShardStore(self._root, name, number) for number in range(math.ceil(chains / width))]
        workers = self.workers if self.pool.size == 1 else 1
        shared = _SharedPhase(replace(task, recorder=None, progress=None, key_set=None), width, interval, workers)

        def show(lines: Sequence[tuple[int, int, int]]) -> None:
            assert task.progress is not None
            task.progress(sum(line[0] for line in lines), steps * len(shards), sum(line[2] for line in lines))

        progress = None if task.progress is None else show
        for stop in self.pool.map(_run_shard, shared, shards, progress=progress, gpus=float(device == "cuda")):
            if stop == "interrupted":
                raise KeyboardInterrupt
        return shards

    def _division(self, name: str, new: Division) -> Division:
        """Return the division that a phase was started with, or save the new one."""
        folder = RemoteFolder(f"{self._root}/{name}")
        if DIVISION not in folder.names():
            folder.write(DIVISION, seal({"each": new.chains_per_shard, "every": new.steps_per_part}))
        content = folder.read(DIVISION)
        with folder.reading(DIVISION):
            entry = unseal(content)
            division = Division(entry["each"], entry["every"])
            if min(division) < 1:
                raise ValueError("its numbers must be 1 or more")
            return division

    def _merge_shards(
        self, task: PhaseTask, shards: list[ShardStore], before: Iterable[Findings], skip: int
    ) -> PhaseResult:
        """Merge shards into parts, save those that the recorder does not have, and return the result of the phase."""
        side_by_side = min(self.pool.size, len(shards))
        last: tuple[Stop, float] = "steps", 0.0
        with writing(self.folder):
            self._work.mkdir(parents=True, exist_ok=True)

        def parts() -> Iterator[Findings]:
            nonlocal last
            for number, part in enumerate(
                merge_parts(shards, self._list_earlier_keys(task), self._work / "merge", skip=skip)
            ):
                findings = part.findings.to(task.context.domain.device)
                part = replace(part, findings=findings, seconds=part.seconds / side_by_side)
                if task.recorder is not None:
                    task.recorder.checkpoint(task.name, part)
                elif task.name == "global":
                    save_array(part.lines, self._work / f"{_phase_folder(task)}-{number:05d}.keys.npy")
                last = part.stop or "steps", part.seconds
                yield findings

        result = _fold_parts(task, chain(before, parts()))
        if (
            task.recorder is not None or task.name != "global"
        ):  # a control needs the shards of its first phase to resume
            for shard in shards:
                shard.remove()
        return replace(result, stop=last[0], seconds=last[1])

    def _list_earlier_keys(self, task: PhaseTask) -> list[Path | Tensor]:
        """Return the records of earlier phases."""
        earlier: list[Path | Tensor] = [] if task.key_set is None else [task.key_set.keys]
        if task.name != "local":
            return earlier
        if task.recorder is not None and self.run is not None:
            return earlier + list(self.run.evaluated_keys("global"))
        return earlier + sorted(self._work.glob(f"{_phase_folder(task, 'global')}-*.keys.npy"))


class _SharedPhase(NamedTuple):
    """A phase, and how it is divided."""

    task: PhaseTask
    chains_per_shard: int
    steps_per_part: int
    workers: int


def _run_shard(shared: _SharedPhase, shard: ShardStore, note: PieceProgress) -> Stop:
    task, first = shared.task, shard.number * shared.chains_per_shard
    chosen, device = slice(first, first + shared.chains_per_shard), task.context.domain.device
    origin = torch.arange(len(task.starts), device=device) if task.origin is None else task.origin
    recording = PhaseRecording(
        shard.checkpoint,
        interval=shared.steps_per_part,
        resume=shard.resume(device),
        keep=False,
        first_chain=first,
        chains=len(task.starts),
        even=True,
        workers=shared.workers,
    )
    return run_phase(
        task.context,
        task.method,
        task.starts[chosen],
        budget=task.budget,
        origin=origin[chosen],
        key_set=KeySet(device, limit=KEYS_REMEMBERED),
        recording=recording,
        progress=note,
    ).stop


def _phase_folder(task: PhaseTask, name: str | None = None) -> str:
    """Return the name of a phase among the shards; the phases of the control have other names."""
    return f"{'blind-' if task.context.blind else ''}{name or task.name}"


def _fold_parts(task: PhaseTask, parts: Iterable[Findings]) -> PhaseResult:
    """Return the result of a phase from its parts; the findings of long searches are only counted."""
    domain, count, on_disk = task.context.domain, 0, None
    holds = task.name == "global" or (task.keep and len(task.starts) * task.budget.steps <= MAX_ROWS_IN_MEMORY)
    held_parts = [Findings.empty(domain, task.context.network.outputs)]
    for part in parts:
        count += len(part)
        if not holds and task.keep:
            summary = FindingsSummary.of(part, domain)
            on_disk = summary if on_disk is None else on_disk + summary
        held_parts.append(part if holds else part.counts())
    return PhaseResult(Findings.join(held_parts), count, "steps", 0.0, on_disk)


# Merging shards

LINES_SORTED_AT_ONCE = 1 << 22  # lines that are sorted at a time
MAX_OPEN_FILES = 512  # files that are open at a time
_KNOWN = -1  # an order before all others
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

Longs = npt.NDArray[np.int64]


def merge_parts(
    shards: Sequence[ShardStore], earlier: Sequence[Path | Tensor], work: Path, *, skip: int = 0
) -> Iterator[Checkpoint]:
    """Yield the parts of a phase whose shards are all finished, in order, without the first `skip`.

    `earlier` are the records of earlier phases: keys, or files of log lines in a run folder. The folder `work` is
    emptied, used and removed. The seconds are those of all shards together. Only the last part has the chains.
    """
    parts = [shard.parts() for shard in shards]
    for shard, shard_parts in zip(shards, parts, strict=True):
        if not shard_parts or shard_parts[-1].stop in (None, "interrupted"):
            raise RunError(f"{shard.address}: shard {shard.number} of the phase '{shard.phase}' is not finished")
        if any(b.t <= a.t and b.line_count for a, b in pairwise(shard_parts)):
            raise RunError(f"{shard.address}: shard {shard.number} of '{shard.phase}' has been written twice")
    shutil.rmtree(work, ignore_errors=True)
    try:
        with writing(work):
            work.mkdir(parents=True)
            repeats = _find_repeats([part for shard_parts in parts for part in shard_parts], earlier, work)
        ends, seconds = _find_windows(parts), dict[str, float]()
        for number, (t, window) in enumerate(ends):
            seconds |= {part.folder.address: part.seconds for part in window}
            if number >= skip:
                part = Checkpoint(t, {}, *_drop_repeats(window, repeats), sum(seconds.values()))
                yield part if number < len(ends) - 1 else _add_chains(part, [shard_parts[-1] for shard_parts in parts])
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _find_windows(shards: Sequence[Sequence[ShardPart]]) -> list[tuple[int, list[ShardPart]]]:
    """Return the parts between the steps at which all shards had a checkpoint or had ended, with the step at the end.

    The last window holds the parts that the shards wrote when they ended.
    """
    end = max(shard_parts[-1].t for shard_parts in shards)
    common = {part.t for shard_parts in shards for part in shard_parts[:-1]}
    for shard_parts in shards:
        common &= {part.t for part in shard_parts[:-1]} | {t for t in common if t > shard_parts[-1].t}
    ends = sorted(common)
    windows: list[tuple[int, list[ShardPart]]] = [(t, []) for t in (*ends, end)]
    for shard_parts in shards:
        for part in shard_parts:
            last = part is shard_parts[-1] and part.t == end
            windows[-1 if last else bisect_left(ends, part.t)][1].append(part)
    return windows


def _add_chains(part: Checkpoint, ends: Sequence[ShardPart]) -> Checkpoint:
    """Return the last part with the chains of all shards, and the reason to stop."""
    stops, states = {shard.stop for shard in ends}, [shard.state() for shard in ends]
    order: tuple[Stop, ...] = ("seconds", "steps", "walkers")  # "walkers" only if no shard has any left
    state = {name: torch.cat([shard_state[name] for shard_state in states]) for name in states[0]}
    return replace(part, state=state, stop=next(stop for stop in order if stop in stops))


def _drop_repeats(parts: Sequence[ShardPart], repeats: npt.NDArray[np.uint8]) -> tuple[Findings, Tensor]:
    """Return the findings and log lines in parts without duplicates, in the order of the search."""
    counting = [_count_part(part, repeats) for part in parts]
    lines, findings = (
        torch.cat([part_lines for part_lines, _ in counting]),
        Findings.join([part_lines for _, part_lines in counting]),
    )
    kind = kind_of(lines)
    by_order, missed = torch.argsort(lines[kind == FOUND, 1]), torch.argsort(lines[_is_missed(lines), 1])
    result = replace(
        findings[by_order],
        misses=findings.misses[missed],
        tried=len(lines),
        evaluated=sum(part.evaluated for part in parts),
        rejected=int(((kind == REJECTED) | (kind == DOUBTFUL)).sum()),
    )
    return result, lines[torch.argsort(lines[:, 1])]


def _count_part(part: ShardPart, repeats: npt.NDArray[np.uint8]) -> tuple[Tensor, Findings]:
    """Return the log lines and findings of a part without duplicates."""
    lines, findings = part.lines(), part.findings()
    is_found, is_missed, number = kind_of(lines) == FOUND, _is_missed(lines), order_of(lines).numpy()
    counts = part.line_count, int(is_found.sum()), int(is_missed.sum())
    if (len(lines), len(findings), len(findings.misses)) != counts:
        raise RunError(f"{part.folder.address}: the files of checkpoint {part.number} do not belong together")
    wins = torch.from_numpy((repeats[number >> 3] >> (number & 7)) & 1 == 0)
    return lines[wins], replace(findings[wins[is_found]], misses=findings.misses[wins[is_missed]])


def _is_missed(lines: Tensor) -> Tensor:
    """Return which records are in the sample of misses: bool, (n,)."""
    kind = kind_of(lines)
    return is_sampled_miss(keys_of(lines)) & ((kind == MISS) | (kind == DOUBTFUL))


def _find_repeats(parts: Sequence[ShardPart], earlier: Sequence[Path | Tensor], work: Path) -> npt.NDArray[np.uint8]:
    """Return a file with a bit for each evaluation, in the order of the search: whether it repeats an earlier one."""
    count = sum(part.line_count for part in parts)
    count += sum(item.stat().st_size // 16 if isinstance(item, Path) else len(item) for item in earlier)
    bits = max(1, min(MAX_OPEN_FILES - 1, count // LINES_SORTED_AT_ONCE).bit_length())
    names, last = [work / f"{number:03d}" for number in range(1 << bits)], 0
    with ExitStack() as stack:
        open_files = [stack.enter_context(name.open("wb")) for name in names]
        for item in earlier:
            keys = keys_of(load_array(item, 2)) if isinstance(item, Path) else item.cpu()
            _spread_lines(torch.stack([keys, torch.full_like(keys, _KNOWN)], 1).numpy(), open_files, bits)
        for part in parts:
            lines = part.lines()
            if len(lines) and int(lines[:, 1].min()) < 0:
                raise RunError(f"{part.folder.address}: the files of checkpoint {part.number} do not belong together")
            last = max(last, int(order_of(lines).max()) if len(lines) else 0)
            _spread_lines(lines.numpy(), open_files, bits)
    repeats = np.memmap(work / "lost", np.uint8, "w+", shape=(last // 8 + 1,))
    for name in names:
        numbers = _repeated_orders(np.fromfile(name, np.int64).reshape(-1, 2))
        name.unlink()
        np.bitwise_or.at(repeats, numbers >> 3, (1 << (numbers & 7)).astype(np.uint8))
    return repeats


def _spread_lines(lines: Longs, open_files: Sequence[BinaryIO], bits: int) -> None:
    """Distribute lines over files by a hash of their keys."""
    number = ((lines[:, 0].view(np.uint64) * _GOLDEN) >> np.uint64(64 - bits)).astype(np.uint16)
    order = np.argsort(number, kind="stable")
    ends = np.cumsum(np.bincount(number, minlength=len(open_files)))
    for file, file_lines in zip(open_files, np.split(lines[order], ends[:-1]), strict=True):
        file.write(file_lines.tobytes())


def _repeated_orders(lines: Longs) -> Longs:
    """Return the order numbers of lines that repeat the key of an earlier one."""
    if len(lines) == 0:
        return lines[:, 1]
    lines = lines[np.argsort(lines[:, 0])]
    keys, order = lines.T
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    best = np.repeat(np.minimum.reduceat(order, first), np.diff(first, append=len(keys)))
    return order_of(torch.from_numpy(lines[(order != best) & (order != _KNOWN)])).numpy()
