"""A run is a folder that survives a kill: manifest, append-only journal, Parquet parts, and the walkers' last state.

Every checkpoint writes its files under names of its own, adds a line with their checksums to the journal, and only then
gives them the names that the line says. What the journal does not name does not exist; so a run that is killed at any
moment goes on from its last line and finds what an undisturbed run finds. Whoever opens the folder compares every file
with its checksum first. Only files under names of its own, and states that its journal names, are ever removed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.domain.toml import format_domain, read_domain
from neuronfair.errors import RunError
from neuronfair.search.engine import Checkpoint
from neuronfair.search.findings import Findings
from neuronfair.search.outcome import Count
from neuronfair.store import files
from neuronfair.store.files import writing
from neuronfair.store.journal import JOURNAL, PHASES, SEEDS, Journal, part_names
from neuronfair.store.lock import Lock
from neuronfair.store.manifest import DOMAIN, MANIFEST, check_same, is_unused, read_manifest, write_manifest
from neuronfair.store.seal import Json
from neuronfair.store.tables import read_findings, write_findings


@dataclass(frozen=True)
class Run:
    """An open run folder. It is the recorder of one campaign."""

    folder: Path
    manifest: Json
    domain: TableDomain
    outputs: int
    journal: Journal
    mark: str  # of the manifest: in the names of files that no line names yet
    lock: Lock | None = None  # a run that is only looked at has none

    @staticmethod
    def create_or_open(folder: Path, manifest: Json, domain: TableDomain, outputs: int) -> Run:
        """Make a run folder, or open the one that is there if it belongs to the same search.

        As long as the run is in use, no other process can write to its folder.
        """
        folder = Path(folder)
        check_folder(folder)
        text = format_domain(domain).encode()
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock = Lock.of(folder)
            if not (folder / MANIFEST).exists():  # it comes first: from then on the folder is known to be ours
                write_manifest(folder, {**manifest, "files": {DOMAIN: hashlib.sha256(text).hexdigest()}})
        there = read_manifest(folder)
        check_same(folder, there, manifest)
        run = replace(_read(folder, there, domain), outputs=outputs, lock=lock)
        with writing(folder):
            if not run.lines and not (folder / DOMAIN).exists():
                files.write_whole(run._staged(DOMAIN), text)
                run._staged(DOMAIN).replace(folder / DOMAIN)
            files.check_digest(folder / DOMAIN, there["files"].get(DOMAIN))
            run._check()
            run._tidy()
        return run

    @staticmethod
    def open(folder: Path) -> Run:
        """Open a run folder to look at it; a file that is not as it was written is named, and nothing is changed."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        files.check_digest(folder / DOMAIN, manifest["files"].get(DOMAIN))
        domain = read_domain(folder / DOMAIN)
        while True:
            run = _read(folder, manifest, domain)
            try:
                run._check()
            except RunError:
                if _read(folder, manifest, domain).journal.size == run.journal.size:
                    raise
                continue  # another process is writing to it
            return run

    @property
    def lines(self) -> list[Json]:
        """The journal, without a last line that a kill has cut off."""
        return self.journal.lines

    def findings(self) -> Findings:
        """Return everything the run has found, phase by phase."""
        return Findings.join([self._joined(phase) for phase in PHASES])

    @property
    def summary(self) -> Json | None:
        """The figures of the finished run; None while it is unfinished."""
        done = [line["summary"] for line in self.lines if line["event"] == "done"]
        return done[-1] if done else None

    @property
    def model(self) -> str:
        """Where the model is that was searched: a file, or package.module:name."""
        named = str(self.manifest["model"])
        path = self.folder / named  # an absolute path stays as it is
        return str(path) if path.exists() or path.suffix in (".safetensors", ".npz") else named

    @property
    def model_digest(self) -> str | None:
        """The SHA-256 of the model's file when the search began; None if the model was no file."""
        return self.lines[0]["model"] if self.lines else None

    @property
    def seeds(self) -> Tensor:
        """The rows that the walkers started from, by the origin of a finding."""
        return files.load_array(self._path(SEEDS), len(self.domain.attributes)).long().to(self.domain.device)

    # What a campaign asks of a recorder

    def begin(self, seeds: Tensor) -> None:
        """Keep the rows that the walkers start from."""
        # Walkers start within the bounds; a code beyond them may not even fit the compact type.
        seeds = self.domain.clip(seeds).to(self.domain.compact)
        if not self.lines:
            model = Path(self.model)
            digest = files.sha256(model) if model.is_file() else None
            self._keep({"event": "begin", "model": digest}, {"seeds": (SEEDS, partial(files.save_array, seeds))})
        elif not torch.equal(self.seeds, seeds.long()):
            raise RunError(f"{self.folder}: this run was begun with other rows to start from. Choose another --out")

    def resume(self, phase: str) -> Checkpoint | None:
        """Return where a phase stood, with all it had found."""
        lines = self.journal.parts[phase]
        if not lines:
            return None
        last, device = lines[-1], self.domain.device
        state = files.load_state(self._path(last["state"]), device)
        keys = torch.cat([files.load_array(self._path(line["keys"])) for line in lines]).to(device)
        return Checkpoint(last["t"], state, self._joined(phase), keys, last["seconds"], last["stop"])

    def checkpoint(self, phase: str, where: Checkpoint) -> None:
        """Keep what was found since the last checkpoint, and the walkers as they are."""
        before = self.journal.parts[phase][-1:]
        found = where.findings
        writers: dict[str, Callable[[Path], None]] = {
            "part": lambda path: write_findings(path, found, self.domain),
            "keys": partial(files.save_array, where.keys),
            "misses": partial(files.save_array, found.misses),
            "state": partial(files.save_state, where.state),
        }
        names = part_names(phase, len(self.journal.parts[phase]))
        entry = {"event": "part", "phase": phase, "t": where.t, "findings": len(found)}
        entry |= {"tried": found.tried, "judged": found.judged, "rejected": found.rejected}
        entry |= {"seconds": where.seconds, "stop": where.stop}
        self._keep(entry, {kind: (names[kind], write) for kind, write in writers.items()})
        with writing(self.folder):
            for line in before:
                (self.folder / line["state"]).unlink(missing_ok=True)

    def control(self, name: str) -> Count | None:
        """Return a control that is already done."""
        done = [line for line in self.lines if line["event"] == "control" and line["name"] == name]
        return Count(**done[-1]["count"]) if done else None

    def keep_control(self, name: str, count: Count) -> None:
        """Keep the figures of a control."""
        self._keep({"event": "control", "name": name, "count": asdict(count)})

    def finish(self, summary: Json) -> None:
        """Keep the figures of the whole run."""
        if self.summary != summary:
            self._keep({"event": "done", "summary": summary})

    def _joined(self, phase: str) -> Findings:
        parts = [Findings.empty(self.domain, self.outputs)]
        for line in self.journal.parts[phase]:
            part = read_findings(self._path(line["part"]), self.domain, self.outputs)
            misses = files.load_array(self._path(line["misses"]), len(self.domain.attributes)).to(self.domain.device)
            parts.append(
                replace(part, misses=misses, tried=line["tried"], judged=line["judged"], rejected=line["rejected"])
            )
        return Findings.join(parts)

    def _keep(self, entry: Json, written: dict[str, tuple[str, Callable[[Path], None]]] | None = None) -> None:
        """Write files, then the line of the journal that names them, and then put them in their place."""
        names = {kind: name for kind, (name, _) in (written or {}).items()}
        with writing(self.folder):
            for name, write in (written or {}).values():
                self._check_free(name)
                write(self._staged(name))
                files.flush(self._staged(name))
            if names:
                checks = {kind: files.crc32(self._staged(name)) for kind, name in names.items()}
                entry = {**entry, **names, "crc32": checks}
            self.journal.append(entry)
            for name in names.values():
                self._staged(name).replace(self.folder / name)

    # Names, and what is behind them

    def _staged(self, name: str) -> Path:
        """Return where a file is until the journal names it and it is put in its place."""
        return self.folder / f".{name}.{self.mark}"

    def _path(self, name: str) -> Path:
        """Return where a file is that the journal names."""
        staged = self._staged(name)
        return staged if staged.exists() else self.folder / name

    def _named(self) -> Iterator[tuple[str, int, bool]]:
        """Give the files that the journal names: name, checksum, and whether it is a state that has been followed."""
        for line in self.lines:
            for kind, check in line.get("crc32", {}).items():
                yield line[kind], check, kind == "state" and line is not self.journal.parts[line["phase"]][-1]

    def _check(self) -> None:
        """Refuse a folder with a file that is not as it was written, or with one that the journal ought to name."""
        for phase, lines in self.journal.parts.items():
            for name in part_names(phase, len(lines)).values():
                self._check_free(name)
        if not self.lines:
            self._check_free(SEEDS)
        for name, check, followed in self._named():
            found = None
            for path in (self._staged(name), self.folder / name):  # in this order: another process may be renaming it
                with suppress(FileNotFoundError):
                    found = files.crc32(path)
                    break
            if found != check and not (followed and found is None):
                what = "is gone" if found is None else "damaged: it is not as it was written"
                raise RunError(f"{self.folder / name}: {what}. Nothing was changed")

    def _check_free(self, name: str) -> None:
        if (self.folder / name).exists():
            raise RunError(
                f"{self.folder / name}: is not in {JOURNAL}, which has lost its last lines, or the file is none of "
                "this run. Nothing was changed. To go on without it, move it away"
            )

    def _tidy(self) -> None:
        """Finish what a kill has cut off: put files in their place, and remove those that are of no use any more."""
        for name, _, followed in list(self._named()):
            if self._staged(name).exists():
                self._staged(name).replace(self.folder / name)
            if followed:
                (self.folder / name).unlink(missing_ok=True)
        for path in list(self.folder.glob(f".*.{self.mark}")):
            path.unlink()


def _read(folder: Path, manifest: Json, domain: TableDomain) -> Run:
    check = files.crc32(folder / MANIFEST)
    journal = Journal.read(folder / JOURNAL, check)
    return Run(folder, manifest, domain, manifest["outputs"], journal, f"{check:08x}")


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something else than a run, or that another process is writing to."""
    if not folder.exists():
        return
    if not folder.is_dir() or not ((folder / MANIFEST).exists() or is_unused(folder)):
        raise RunError(f"{folder} exists and is not a run folder. Choose another --out")
    Lock.of(folder)
