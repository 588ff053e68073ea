"""The folder of an audit: what it is called, whose it is, and whether the same audit may go on in it."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from neuronfair.atomic import write_text
from neuronfair.domain.toml import parse_domain, read_domain
from neuronfair.errors import DomainError, RunError
from neuronfair.store.lock import Lock
from neuronfair.store.manifest import MANIFEST
from neuronfair.store.run import DOMAIN, Run
from neuronfair.verdict.entries import Finding
from neuronfair.verdict.report import Report

WEIGHTS, FIGURES, PAGE = "model.safetensors", "audit.json", "report.html"
NEARER = "worst.json"  # beside the runs of one choice of attributes: the worst findings, shrunk
BEGUN_WITH = {
    "weights": "another model",
    "domain": "another domain",
    "rows": "another table",
    "decision": "another --decision",
    "sensitive": "other sensitive attributes",
    "settings": "another budget or seed",
}
LONGEST = 80  # letters of a folder's name


def folder_name(names: Sequence[str]) -> str:
    """Return the name of the folder for a choice of attributes; odd names get a number instead of odd letters.

    >>> folder_name(["sex", "race"]), folder_name(["../race"])
    ('sex+race', 'race-87f2259f')
    """
    plain = "+".join(names)
    safe = re.sub(r"[^\w+-]+", "_", plain)[:LONGEST].strip("_") or "attribute"
    return safe if safe == plain else f"{safe}-{zlib.crc32(plain.encode()):08x}"


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be made, or written into."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise RunError(f"{folder}: {there} is not a folder that can be written. Choose another --out")


def refuse_links(folder: Path) -> None:
    """Refuse a folder in which a link would lead what is written to another place; strangers may have made it."""
    for link in (path for path in folder.rglob("*") if path.is_symlink()):
        raise RunError(f"{link}: is a link, which is not followed. Remove it, or choose another --out")


def check_audit_folder(folder: Path) -> None:
    """Refuse a folder that holds something else than an audit, cannot be written, leads elsewhere, or is in use."""
    check_writable(folder)
    if folder.exists() and _read_manifest(folder) is None and any(folder.iterdir()):
        raise RunError(f"{folder} exists and is not the folder of an audit. Choose another --out")
    refuse_links(folder)
    if folder.exists():
        Lock.of(folder)


def check_same(folder: Path, now: Mapping[str, Any]) -> None:
    """Refuse to go on with an audit that was begun with something else than `now` says."""
    there = _read_manifest(folder)
    for key, value in now.items() if there is not None else ():
        if key in BEGUN_WITH and there is not None and there.get(key) != value:
            what = BEGUN_WITH[key]
            raise RunError(f"{folder}: this audit was begun with {what}, so it cannot go on. Choose another --out")


def begin(folder: Path, manifest: dict[str, Any], domain_text: str) -> Lock | None:
    """Make the folder of an audit, or go on with the one that is there if it is the same audit.

    As long as the lock is in use, no other process can begin in the folder.
    """
    check_audit_folder(folder)
    lock = Lock.of(folder) if folder.exists() else None
    check_same(folder, manifest)
    path = folder / DOMAIN
    if path.exists() and read_domain(path).fingerprint != parse_domain(domain_text).fingerprint:
        raise RunError(f"{path}: was edited. To audit with it, say --domain {path} and choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = lock or Lock.of(folder)
        if not (folder / MANIFEST).exists():
            write_text(folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        if not path.exists():
            write_text(path, domain_text)
    except OSError as error:
        raise RunError(f"{folder}: cannot be written ({error.strerror or error}). Choose another --out") from error
    return lock


def keep_figures(folder: Path, report: Report) -> None:
    """Write the figures of an audit into its folder."""
    path = folder / FIGURES
    try:
        write_text(path, report.to_json())
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror or error})") from error


def shrunk_pair(run: Run, number: int) -> tuple[Tensor, Tensor] | None:
    """Return a finding of an audit's run and its twin, (d,) each, as the audit shows them; None if it does not."""
    method = run.manifest["plan"].get("method")
    try:
        text = (run.folder.absolute().parent / NEARER).read_bytes()
        worst = msgspec.json.decode(text, type=tuple[Finding, ...])
        one = next(finding for finding in worst if (finding.method, finding.number) == (method, number))
        twin = {**one.row, **{change.attribute: change.twin for change in one.changed}}
        rows = run.domain.from_table({name: [one.row[name], twin[name]] for name in run.domain.names})
    except (OSError, ValueError, LookupError, StopIteration, RecursionError, DomainError):
        return None  # a search alone, a finding that is not among the worst, or a file that is not ours
    return rows[0], rows[1]


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of an audit; None where the folder has none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return manifest if isinstance(manifest, dict) and "audit" in manifest else None
