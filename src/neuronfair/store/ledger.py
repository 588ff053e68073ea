"""A folder that survives a kill: manifest, append-only journal, and the files that the journal names.

Each file is first written under a temporary name; then a line with its checksum is added to the journal, and only then
it gets the name that the line says. What the journal does not name does not exist, so work that is killed at any moment
resumes from its last line. Opening the folder compares every file with its checksum. Only files under temporary names,
and states that the journal names, are ever removed.

The journal has one line for every part, control and end. The last entry of a line is a checksum of the line, of all
lines before it, and of the manifest before those: a line that was changed, removed, doubled or moved is detected.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, get_args

import numpy
import torch
from torch import Tensor

from neuronfair import __version__
from neuronfair.domain.schema.toml import format_domain, read_domain
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import OtherRunError, RunError
from neuronfair.model.decision import DecisionKind
from neuronfair.searches.campaign import SearchCounts
from neuronfair.store import files
from neuronfair.store.files import LOCK, Json, Lock, read_text, seal, unseal, write_whole, writing

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MANIFEST, DOMAIN = "manifest.json", "domain.toml"
NEW = ".manifest.json.new"  # a manifest that is being written
FORMAT = 2  # of the folders of runs and audits; format 1 had no checksums
MAX_OUTPUTS = 100_000
RunKind = Literal["search", "proof"]  # what a folder holds
_OLD_DEFAULTS = {"plausible": 0.0, "twins": "flip"}  # the values of settings in manifests that do not have them
METHOD_NAMES = 2  # manifests from version 0.3 on have this entry; in older ones the methods have other names
_RENAMED = {"neuronfair": "neuronfair-plus", "neuronfair-paper": "neuronfair-printed"}
_ENTRY_TYPES = {"model": str, "weights": str, "domain": str, "rows": str, "outputs": int, "plan": dict, "files": dict}


def make_manifest(
    config: DataclassInstance,
    data: Dataset,
    *,
    model: str,
    weights: str,
    outputs: int,
    extra_weights: str | None = None,
) -> Json:
    """Return the manifest of a search or a proof with the settings `config` on `data`.

    `model` is the place of the model as seen from the run folder, and `weights` its fingerprint. `extra_weights` is the
    weights file of a module that Python code builds.
    """
    plan = asdict(config)
    if plan.get("twins") == _OLD_DEFAULTS["twins"]:  # as in runs that are older than this setting
        del plan["twins"]
    return {
        **versions(),
        "data": data.name,
        "encoding": data.domain.encoding,
        "model": model,
        "model_weights": extra_weights,
        "weights": weights,
        "domain": data.domain.fingerprint,
        "rows": rows_digest(data.rows),
        "outputs": outputs,
        "method_names": METHOD_NAMES,
        "plan": {"sensitive": list(data.domain.sensitive), **plan},
    }


def versions() -> dict[str, str]:
    """Return the versions of all libraries, and the time."""
    return {
        "neuronfair": __version__,
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def rows_digest(rows: Tensor) -> str:
    """Return the SHA-256 of the rows of a table."""
    return hashlib.sha256(rows.cpu().numpy().tobytes()).hexdigest()


def make_portable(source: str) -> str:
    """Return the place of a model for a run folder that may be read from elsewhere: the full path of a file."""
    path = Path(source)
    return str(path.absolute()) if path.is_file() else source


def is_unused(folder: Path) -> bool:
    """Return whether a folder is empty, or has nothing but a manifest that a kill has cut off."""
    return all(path.name in (NEW, LOCK) for path in folder.iterdir())


def write_manifest(folder: Path, manifest: Json) -> None:
    """Write a manifest, whole or not at all."""
    write_whole(folder / NEW, seal({"format": FORMAT, **manifest}))
    (folder / NEW).replace(folder / MANIFEST)


def load_manifest(folder: Path) -> Json:
    """Return the intact manifest of a run or an audit; raise a FileNotFoundError if there is none."""
    path = folder / MANIFEST
    content = read_text(path)
    try:
        manifest: Json = unseal(content)
    except (ValueError, RecursionError):
        if b'"neuronfair":' in content and b'"digest":' not in content and b'"format":' not in content:
            raise RunError(_format_error(folder, 1)) from None
        raise RunError(
            f"{path}: damaged: it cannot be read, or is not as it was written. Nothing was changed"
        ) from None
    if manifest.get("format") != FORMAT:
        raise RunError(_format_error(folder, manifest.get("format")))
    return manifest


def _format_error(folder: Path, number: object) -> str:
    return (
        f"{folder}: was written in format {number} by another version of neuronfair; this one reads format {FORMAT}. "
        "Begin again with another --out"
    )


def read_manifest(folder: Path, kind: RunKind) -> Json:
    """Return the manifest of a run folder: of a search, or of a proof."""
    try:
        manifest = load_manifest(folder)
    except FileNotFoundError:
        raise RunError(f"{folder}: not a run folder: it has no {MANIFEST}") from None
    if any(not isinstance(manifest.get(key), kind) for key, kind in _ENTRY_TYPES.items()):
        raise RunError(f"{folder / MANIFEST}: not the manifest of a run")
    held_kind = manifest.get("kind", "search")
    if held_kind != kind:
        raise RunError(f"{folder}: holds a {held_kind}, not a {kind}. Choose another folder")
    config = manifest["plan"]
    if "method_names" not in manifest and isinstance(config.get("method"), str):
        config["method"] = _RENAMED.get(config["method"], config["method"])
    decision = config.get("decision")
    seed = config.get("seed")
    is_plan_readable = isinstance(decision, dict) and decision.keys() == {"kind", "value"} and isinstance(seed, int)
    is_plan_readable = is_plan_readable and isinstance(decision["value"], int | float)
    if not is_plan_readable or decision["kind"] not in get_args(DecisionKind):
        raise RunError(f"{folder / MANIFEST}: damaged: its plan cannot be read")
    if max(map(len, Path(manifest["model"]).parts), default=0) > 255 or "\0" in manifest["model"]:
        raise RunError(f"{folder / MANIFEST}: damaged: no file has the name of its model")
    if not 1 <= manifest["outputs"] <= MAX_OUTPUTS:
        raise RunError(f"{folder / MANIFEST}: damaged: a model with {manifest['outputs']} outputs")
    return manifest


def check_same(folder: Path, old: Json, new: Json) -> None:
    """Refuse to resume a run that was started with other inputs or settings."""
    changed = ("weights", "other weights"), ("domain", "another domain"), ("rows", "another table")
    for key, change in (*changed, ("population", "another population")):
        if old.get(key) != new.get(key):
            raise OtherRunError(
                f"{folder}: this run was begun with {change}, so it cannot be resumed. Choose another --out, or --force"
            )
    for key in (*new["plan"], "twins"):
        was, value = (config.get(key, _OLD_DEFAULTS.get(key)) for config in (old["plan"], new["plan"]))
        if was != value and key != "scale":  # which does not affect the search, and is missing in older runs
            older = key == "method" and "method_names" not in old and was in _RENAMED.values()
            note = " (its name since version 0.3)" if older else ""
            raise OtherRunError(
                f"{folder}: this run was begun with {key} = {was}{note}, not {value}. Choose another --out"
            )


JOURNAL, SEEDS = "journal.jsonl", "seeds.npy"
POPULATION, COUNTERFACTUALS = "population.safetensors", "counterfactuals.safetensors"
# Files of the first line, if there are any; the last name is that of version 0.2.
STARTING_FILES = {
    "population": POPULATION,
    "counterfactuals": COUNTERFACTUALS,
    "counterparts": "counterparts.safetensors",
}
PHASES = ("pilot", "global", "local")
PROOF = "proof"  # the only phase of a proof

_SUFFIXES = {"part": "parquet", "keys": "keys.npy", "misses": "misses.npy", "state": "state.safetensors"}
_PHASES_OF = {"search": PHASES, "proof": (PROOF,)}
_MARK = b', "check": "'
_LINE_END = re.compile(_MARK + rb'[0-9a-f]{8}"\}')
_COUNT_KEYS = {field.name for field in fields(SearchCounts)}  # of a control
_COUNTS = ("t", "findings", "tried", "evaluated", "rejected")


def part_names(phase: str, number: int) -> dict[str, str]:
    """Return the names of the files of a part.

    >>> part_names("local", 3)["keys"]
    'local-00003.keys.npy'
    """
    kinds = ("state",) if phase == PROOF else _SUFFIXES
    return {kind: f"{phase}-{number:05d}.{_SUFFIXES[kind]}" for kind in kinds}


@dataclass
class Journal:
    """The complete lines of a journal. The next line overwrites one that a kill has cut off."""

    path: Path
    checksum: int  # of the last line, and before the first one of the manifest
    parts: dict[str, list[Json]]  # by phase
    lines: list[Json] = field(default_factory=list)
    size: int = 0  # bytes of the whole lines
    missing: bytes = b""  # the line break, if only that was cut off

    @staticmethod
    def read(path: Path, checksum: int, kind: RunKind) -> Journal:
        """Read a journal; a last line that a kill has cut off is skipped, a damaged one is refused."""
        journal = Journal(path, checksum, {phase: [] for phase in _PHASES_OF[kind]})
        try:
            *complete_lines, last_line = read_text(path).split(b"\n")
        except FileNotFoundError:
            return journal
        damaged = not all(journal._take_line(line + b"\n") for line in complete_lines)
        # The text after the last line break was being written when the run was killed. If it is a whole line with more
        # text behind it, its line break is damaged.
        for mark in _LINE_END.finditer(last_line if not damaged else b""):
            if journal._take_line(last_line[: mark.end()]):
                damaged, journal.missing = mark.end() < len(last_line), b"\n"
                break
        if damaged:
            number = len(journal.lines) + (not journal.missing)
            raise RunError(
                f"{path}: line {number} is damaged, or does not belong here. Nothing was changed; the files named "
                "before it can still be read"
            )
        return journal

    def append(self, entry: Json) -> None:
        """Write a line and wait until the disk has it."""
        body = json.dumps(entry).encode()[:-1]
        line = self.missing + _seal_line(body, self.checksum) + b"\n"
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.seek(self.size)
            file.truncate()
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._add_entry(entry, zlib.crc32(body, self.checksum), len(line))
        self.missing = b""

    def _take_line(self, line: bytes) -> bool:
        """Add a line if it is complete and continues the last one."""
        body, _, _ = line.rpartition(_MARK)
        if line.removesuffix(b"\n") != _seal_line(body, self.checksum):
            return False
        try:
            entry = json.loads(body + b"}", object_hook=files.current_keys)
            is_complete = (entry["event"] == "begin") == (not self.lines) and _is_entry(entry, self.parts)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            is_complete = False
        if is_complete:
            self._add_entry(entry, zlib.crc32(body, self.checksum), len(line))
        return is_complete

    def _add_entry(self, entry: Json, checksum: int, size: int) -> None:
        self.lines.append(entry)
        if entry["event"] == "part":
            self.parts[entry["phase"]].append(entry)
        self.checksum, self.size = checksum, self.size + size


def _seal_line(body: bytes, checksum: int) -> bytes:
    """Return a line of JSON, given without its closing brace, with the checksum that continues `checksum`."""
    return body + _MARK + f'{zlib.crc32(body, checksum):08x}"}}'.encode()


def _is_entry(entry: Json, parts: Mapping[str, Sequence[object]]) -> bool:
    """Return whether a line of the journal, which may be any JSON, has the entries of its event."""
    if entry["event"] == "begin":
        files = {"seeds": SEEDS, **{kind: name for kind, name in STARTING_FILES.items() if kind in entry}}
        has_files = "crc32" not in entry if PROOF in parts else _names_files(entry, files)
        return has_files and isinstance(entry["model"], str | None)
    if entry["event"] == "part":
        phase = entry["phase"]
        has_files = _names_files(entry, part_names(phase, len(parts[phase])))
        has_seconds = has_files and isinstance(entry["seconds"], (int, float))
        if phase == PROOF:
            return has_seconds and isinstance(entry["boxes"], int)
        return has_seconds and all(isinstance(entry[key], int) for key in _COUNTS) and "stop" in entry
    if entry["event"] == "control":
        count = entry["count"]
        return "name" in entry and set(count) == _COUNT_KEYS and all(isinstance(count[key], int) for key in _COUNT_KEYS)
    return bool(entry["event"] == "done" and isinstance(entry["summary"], dict))


def _names_files(entry: Json, files: dict[str, str]) -> bool:
    """Return whether a line names exactly these files, with their checksums."""
    checksums = entry["crc32"]
    return (
        {kind: entry[kind] for kind in files} == files
        and checksums.keys() == files.keys()
        and all(isinstance(checksum, int) for checksum in checksums.values())
    )


Writers = Mapping[str, tuple[str, Callable[[Path], None]]]  # by kind: the name of a file, and what writes it


@dataclass(frozen=True)
class Ledger:
    """An open folder with its journal."""

    folder: Path
    manifest: Json
    declared: TableDomain  # the domain in the folder, whose twins are flips
    journal: Journal
    mark: str  # in temporary names: the checksum of the manifest
    lock: Lock | None = None  # None for a folder that is only read

    @classmethod
    def create_or_open(cls, folder: Path, manifest: Json, domain: TableDomain, kind: RunKind = "search") -> Self:
        """Create a folder, or open the one that is there if it belongs to the same work.

        As long as the ledger is referenced, no other process can write to its folder.
        """
        folder = Path(folder)
        check_folder(folder)
        text = format_domain(domain).encode()
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock = Lock.of(folder)
            if not (folder / MANIFEST).exists():  # it comes first: it marks the folder as one of ours
                write_manifest(folder, {**manifest, "files": {DOMAIN: hashlib.sha256(text).hexdigest()}})
        recorded = read_manifest(folder, kind)
        check_same(folder, recorded, manifest)
        ledger = cls._read(folder, recorded, domain, kind, lock)
        with writing(folder):
            if not ledger.lines and not (folder / DOMAIN).exists():
                files.write_whole(ledger._staged(DOMAIN), text)
                ledger._staged(DOMAIN).replace(folder / DOMAIN)
            files.check_digest(folder / DOMAIN, recorded["files"].get(DOMAIN))
            ledger._check_files()
            ledger._tidy()
        return ledger

    @classmethod
    def open(cls, folder: Path, kind: RunKind = "search") -> Self:
        """Open a folder for reading; refuse one with a damaged file."""
        folder = Path(folder)
        manifest = read_manifest(folder, kind)
        files.check_digest(folder / DOMAIN, manifest["files"].get(DOMAIN))
        domain = read_domain(folder / DOMAIN)
        while True:
            ledger = cls._read(folder, manifest, domain, kind)
            try:
                ledger._check_files()
            except RunError:
                if cls._read(folder, manifest, domain, kind).journal.size == ledger.journal.size:
                    raise
                continue  # another process is writing to it
            return ledger

    @classmethod
    def _read(cls, folder: Path, manifest: Json, domain: TableDomain, kind: RunKind, lock: Lock | None = None) -> Self:
        checksum = files.crc32(folder / MANIFEST)
        journal = Journal.read(folder / JOURNAL, checksum, kind)
        return cls(folder, manifest, domain, journal, f"{checksum:08x}", lock)

    @property
    def lines(self) -> list[Json]:
        """The complete lines of the journal."""
        return self.journal.lines

    @property
    def summary(self) -> Json | None:
        """The figures of finished work; None while it is unfinished."""
        summaries = [line["summary"] for line in self.lines if line["event"] == "done"]
        return summaries[-1] if summaries else None

    @property
    def model(self) -> str:
        """Where the model is: a file, or package.module:name."""
        source = str(self.manifest["model"])
        path = self.folder / source  # an absolute path stays as it is
        return str(path) if path.exists() or path.suffix in (".safetensors", ".npz") else source

    def begin_with(self, writers: Writers) -> None:
        """Write the first line: the digest of the model's file, and the files that the work starts from."""
        model = Path(self.model)
        self.commit({"event": "begin", "model": files.sha256(model) if model.is_file() else None}, writers)

    def part(self, phase: str, entry: Json, writers: Mapping[str, Callable[[Path], None]]) -> None:
        """Save the next part of a phase; its state replaces that of the part before."""
        before = self.journal.parts[phase][-1:]
        names = part_names(phase, len(self.journal.parts[phase]))
        self.commit({"event": "part", "phase": phase, **entry}, {kind: (names[kind], writers[kind]) for kind in names})
        with writing(self.folder):
            for line in before:
                (self.folder / line["state"]).unlink(missing_ok=True)

    def finish(self, summary: Json) -> None:
        """Save the final figures."""
        if self.summary != summary:
            self.commit({"event": "done", "summary": summary})

    def commit(self, entry: Json, writers: Writers | None = None) -> None:
        """Write files under temporary names, then the line of the journal that names them, and then rename them."""
        names = {kind: name for kind, (name, _) in (writers or {}).items()}
        with writing(self.folder):
            for name, write in (writers or {}).values():
                self._check_free(name)
                write(self._staged(name))
                files.flush(self._staged(name))
            if names:
                checksums = {kind: files.crc32(self._staged(name)) for kind, name in names.items()}
                entry = {**entry, **names, "crc32": checksums}
            self.journal.append(entry)
            for name in names.values():
                self._staged(name).replace(self.folder / name)

    def path(self, name: str) -> Path:
        """Return the path of a file that the journal names."""
        staged = self._staged(name)
        return staged if staged.exists() else self.folder / name

    def _staged(self, name: str) -> Path:
        return self.folder / f".{name}.{self.mark}"

    def _list_files(self) -> Iterator[tuple[str, int, bool]]:
        """Yield the files that the journal names: name, checksum, and whether it is a state that was replaced."""
        for line in self.lines:
            for kind, checksum in line.get("crc32", {}).items():
                yield line[kind], checksum, kind == "state" and line is not self.journal.parts[line["phase"]][-1]

    def _check_files(self) -> None:
        """Refuse a folder with a damaged file, or with one that the journal should name."""
        for phase, lines in self.journal.parts.items():
            for name in part_names(phase, len(lines)).values():
                self._check_free(name)
        if not self.lines:
            for name in (SEEDS, *STARTING_FILES.values()):
                self._check_free(name)
        for name, checksum, replaced in self._list_files():
            file_checksum = None
            for path in (self._staged(name), self.folder / name):  # in this order: another process may be renaming it
                with suppress(FileNotFoundError):
                    file_checksum = files.crc32(path)
                    break
            if file_checksum != checksum and not (replaced and file_checksum is None):
                problem = "is gone" if file_checksum is None else "damaged: it is not as it was written"
                raise RunError(f"{self.folder / name}: {problem}. Nothing was changed")

    def _check_free(self, name: str) -> None:
        if (self.folder / name).exists():
            raise RunError(
                f"{self.folder / name}: is not in {JOURNAL}, which has lost its last lines, or the file is not one of "
                "this run. Nothing was changed. To continue without it, move it away"
            )

    def _tidy(self) -> None:
        """Finish what a kill has cut off: rename files that the journal names, and remove those it does not need."""
        for name, _, replaced in list(self._list_files()):
            if self._staged(name).exists():
                self._staged(name).replace(self.folder / name)
            if replaced:
                (self.folder / name).unlink(missing_ok=True)
        for path in list(self.folder.glob(f".*.{self.mark}")):
            path.unlink()


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds anything but a run, or that another process is writing to."""
    if not folder.exists():
        return
    if not folder.is_dir() or not ((folder / MANIFEST).exists() or is_unused(folder)):
        raise RunError(f"{folder} exists and is not a run folder. Choose another --out")
    Lock.of(folder)


def check_discardable(folder: Path, reads: Iterable[str | Path | None]) -> None:
    """Refuse to delete a folder that is no audit or run, is in use, or holds a file that will be read."""
    if not folder.exists() or (folder.is_dir() and is_unused(folder)):
        return
    if not (folder / MANIFEST).is_file():
        raise RunError(f"{folder}: holds no audit or run, so --force does not delete it. Choose another --out")
    load_manifest(folder)
    for path in reads:
        if path is not None and Path(realpath(path)).is_relative_to(realpath(folder)):
            raise RunError(f"{path}: lies in {folder}, which --force deletes. Copy it, or choose another --out")
    for manifest in folder.rglob(MANIFEST):
        Lock.of(manifest.parent)


def discard(folder: Path) -> None:
    """Empty the folder of an audit or run; the manifest goes last, so that the folder is ours even after a kill."""
    check_discardable(folder, ())
    if not folder.exists():
        return
    _lock = Lock.of(folder)  # until all files are deleted
    with writing(folder):
        for path in sorted(folder.iterdir(), key=lambda path: path.name == MANIFEST):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()
