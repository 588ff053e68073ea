"""A run is a folder that survives a kill: manifest, append-only journal, Parquet parts, and the walkers' last state.

Every checkpoint writes its files under temporary names, renames them, and only then adds a line to the journal. What
the journal does not name does not exist; so a run that is killed at any moment goes on from its last line and finds
what an undisturbed run finds.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from neuronfair.atomic import replacing, write_text
from neuronfair.domain.table import TableDomain
from neuronfair.domain.toml import format_domain, read_domain
from neuronfair.errors import RunError
from neuronfair.generation.campaign import Count
from neuronfair.generation.engine import Checkpoint
from neuronfair.generation.findings import Findings
from neuronfair.store.journal import JOURNAL, PART_FILE, read_journal
from neuronfair.store.lock import Lock
from neuronfair.store.manifest import MANIFEST, check_same, read_manifest
from neuronfair.store.tables import read_findings, write_findings

DOMAIN, SEEDS = "domain.toml", "seeds.npy"

_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}\.(parquet|npy|safetensors|json|jsonl|toml)")


@dataclass(frozen=True)
class Run:
    """An open run folder. It is the recorder of one campaign."""

    folder: Path
    manifest: dict[str, Any]
    domain: TableDomain
    outputs: int
    lock: Lock | None = None  # a run that is only looked at has none

    @staticmethod
    def create_or_open(folder: Path, manifest: dict[str, Any], domain: TableDomain, outputs: int) -> Run:
        """Make a run folder, or open the one that is there if it belongs to the same search.

        As long as the run is in use, no other process can write to its folder.
        """
        folder = Path(folder)
        check_folder(folder)
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        run = Run(folder, manifest, domain, outputs, Lock.of(folder))
        if (folder / MANIFEST).exists():
            check_same(folder, read_manifest(folder), manifest)
        with _writing(folder):
            run._remove_strays()
            # The manifest comes first: from then on the folder is known to be ours.
            if not (folder / MANIFEST).exists():
                write_text(folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")
            if not (folder / DOMAIN).exists():
                write_text(folder / DOMAIN, format_domain(domain))
        return run

    @staticmethod
    def open(folder: Path) -> Run:
        """Open a run folder to look at it."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        domain = read_domain(folder / DOMAIN)
        return Run(folder, manifest, domain, int(manifest["outputs"]))

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The journal, without a last line that a kill has cut off."""
        return list(read_journal(self.folder / JOURNAL))

    def findings(self) -> Findings:
        """Return everything the run has found, phase by phase."""
        parts = [self._joined(phase) for phase in ("pilot", "global", "local")]
        return Findings.join(parts)

    @property
    def summary(self) -> dict[str, Any] | None:
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
    def model_weights(self) -> Path | None:
        """The weights file of a module that Python code makes."""
        named = self.manifest.get("model_weights")
        return Path(named) if isinstance(named, str) else None

    @property
    def seeds(self) -> Tensor:
        """The rows that the walkers started from, by the origin of a finding."""
        return torch.from_numpy(_load_array(self.folder / SEEDS)).long().to(self.domain.device)

    # What a campaign asks of a recorder

    def begin(self, seeds: Tensor) -> None:
        """Keep the rows that the walkers start from."""
        with _writing(self.folder):
            # Walkers start within the bounds; a code beyond them may not even fit the compact type.
            self._save_array(SEEDS, self.domain.clip(seeds).to(self.domain.compact))

    def resume(self, phase: str) -> Checkpoint | None:
        """Return where a phase stood, with all it had found."""
        lines = self._of(phase)
        if not lines:
            return None
        last = lines[-1]
        state = _load_state(self._intact(last, "state"), self.domain.device)
        keys = [torch.from_numpy(_load_array(self._intact(line, "keys"))) for line in lines]
        return Checkpoint(
            last["t"], state, self._joined(phase), torch.cat(keys).to(self.domain.device), last["seconds"], last["stop"]
        )

    def checkpoint(self, phase: str, where: Checkpoint) -> None:
        """Keep what was found since the last checkpoint, and the walkers as they are."""
        before = self._of(phase)
        stem = f"{phase}-{len(before):05d}"
        names = {
            "part": f"{stem}.parquet",
            "keys": f"{stem}.keys.npy",
            "misses": f"{stem}.misses.npy",
            "state": f"{stem}.state.safetensors",
        }
        with _writing(self.folder):
            write_findings(self.folder / names["part"], where.findings, self.domain)
            self._save_array(names["keys"], where.keys)
            self._save_array(names["misses"], where.findings.misses)
            with replacing(self.folder / names["state"]) as temporary:
                # Copies: two names may stand for one tensor, which the format does not allow.
                temporary.write_bytes(to_bytes({name: t.cpu().contiguous().clone() for name, t in where.state.items()}))
        counts = {"tried": where.findings.tried, "judged": where.findings.judged, "rejected": where.findings.rejected}
        self._write(
            {
                "event": "part",
                "phase": phase,
                "t": where.t,
                **names,
                "crc32": {kind: _crc32(self.folder / name) for kind, name in names.items()},
                "findings": len(where.findings),
                **counts,
                "seconds": where.seconds,
                "stop": where.stop,
            }
        )
        if before:
            (self.folder / before[-1]["state"]).unlink(missing_ok=True)

    def control(self, name: str) -> Count | None:
        """Return a control that is already done."""
        done = [line for line in self.lines if line["event"] == "control" and line["name"] == name]
        return Count(**done[-1]["count"]) if done else None

    def keep_control(self, name: str, count: Count) -> None:
        """Keep the figures of a control."""
        self._write({"event": "control", "name": name, "count": asdict(count)})

    def finish(self, summary: dict[str, Any]) -> None:
        """Keep the figures of the whole run."""
        if self.summary != summary:
            self._write({"event": "done", "summary": summary})

    def _of(self, phase: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == "part" and line["phase"] == phase]

    def _joined(self, phase: str) -> Findings:
        parts = [Findings.empty(self.domain, self.outputs)]
        for line in self._of(phase):
            part = read_findings(self._intact(line, "part"), self.domain, self.outputs)
            misses = torch.from_numpy(_load_array(self._intact(line, "misses"))).to(self.domain.device)
            parts.append(
                replace(part, misses=misses, tried=line["tried"], judged=line["judged"], rejected=line["rejected"])
            )
        return Findings.join(parts)

    def _intact(self, line: dict[str, Any], kind: str) -> Path:
        """Return the path of a file that a journal line names, after a look at whether it is as it was written."""
        path: Path = self.folder / line[kind]
        try:
            if _crc32(path) == line["crc32"][kind]:
                return path
            what = "damaged: it is not as it was written"
        except OSError as error:
            what = f"damaged or gone ({error.strerror})"
        raise RunError(f"{path}: {what}. The other files of the run are untouched")

    def _save_array(self, name: str, tensor: Tensor) -> None:
        with replacing(self.folder / name) as temporary, temporary.open("wb") as file:
            np.save(file, tensor.cpu().numpy())

    def _write(self, line: dict[str, Any]) -> None:
        with _writing(self.folder), (self.folder / JOURNAL).open("ab") as journal:
            journal.write(json.dumps(line).encode() + b"\n")
            journal.flush()
            os.fsync(journal.fileno())

    def _remove_strays(self) -> None:
        """Remove what a kill left behind: a cut-off journal line and files that no line names."""
        journal = self.folder / JOURNAL
        lines = self.lines
        if journal.exists():
            whole = "".join(json.dumps(line) + "\n" for line in lines)
            if journal.read_text(encoding="utf-8", errors="replace") != whole:
                write_text(journal, whole)
        parts = [line for line in lines if line["event"] == "part"]
        named = {line[key] for line in parts for key in ("part", "keys", "misses")}
        named |= set({line["phase"]: line["state"] for line in parts}.values())  # the last state of each phase
        for path in self.folder.iterdir():
            if (_temporary(path.name) or PART_FILE.fullmatch(path.name)) and path.name not in named and path.is_file():
                path.unlink()


def _crc32(path: Path) -> int:
    return zlib.crc32(path.read_bytes())


def _temporary(name: str) -> bool:
    """Return whether a file has a name that `replacing` gives until it is complete."""
    return _TEMPORARY.fullmatch(name) is not None


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Say what it means for the run when its folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{folder}: cannot be written ({error.strerror or error}). What was found before is kept: the same command "
            "goes on from there"
        ) from error


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something else than a run, or that another process is writing to."""
    if not folder.exists():
        return
    ours = folder.is_dir() and ((folder / MANIFEST).exists() or all(_temporary(p.name) for p in folder.iterdir()))
    if not ours:
        raise RunError(f"{folder} exists and is not a run folder. Choose another --out")
    Lock.of(folder)


def _load_state(path: Path, device: torch.device) -> dict[str, Tensor]:
    try:
        return load_file(path, device=str(device))
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"{path}: the walkers' last state is damaged or gone ({error}). What was found is still there"
        ) from None


def _load_array(path: Path) -> np.ndarray[Any, Any]:
    try:
        with path.open("rb") as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    except Exception as error:  # a damaged file can fail anywhere in the reader
        raise RunError(f"{path}: damaged or gone ({error}). The other parts of the run are untouched") from None
