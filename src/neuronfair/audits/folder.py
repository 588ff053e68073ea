"""The folder of an audit: its name, its manifest, whether an audit may resume in it, and its files."""

from __future__ import annotations

import os
import re
import tomllib
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from torch import Tensor, nn

from neuronfair.atomic import replace_file
from neuronfair.audits.report import Report
from neuronfair.audits.report.attribute import Finding
from neuronfair.domain.schema.toml import quote
from neuronfair.errors import DataError, DomainError, OtherRunError, RunError
from neuronfair.limits import TREE_FACTOR, read_bytes
from neuronfair.model.weights import Card, save_weights
from neuronfair.store.files import Json, Lock, check_digest, is_sealed, read_sealed, seal, sha256, unseal, write_whole
from neuronfair.store.ledger import DOMAIN, MANIFEST, is_unused, load_manifest, write_manifest
from neuronfair.store.run import Run

WEIGHTS, REPORT_FILE, PAGE = "model.safetensors", "audit.json", "report.html"
WORST_FINDINGS = "worst.json"  # next to the runs of one choice of attributes: the worst findings, shrunk
DIFFERENCES = {
    "weights": "another model",
    "domain": "another domain",
    "rows": "another table",
    "population": "another --population",
    "pictures": "other pictures",
    "labels": "other labels",
    "decision": "another --decision",
    "sensitive": "other sensitive attributes",
    "settings": "another budget or seed",
}
MAX_NAME_LETTERS = 80  # letters of a folder's name


def make_folder_name(names: Sequence[str]) -> str:
    """Return the name of the folder for a choice of attributes; odd names get a number instead of odd letters.

    >>> make_folder_name(["sex", "race"]), make_folder_name(["../race"])
    ('sex+race', 'race-87f2259f')
    """
    plain = "+".join(names)
    safe = re.sub(r"[^\w+-]+", "_", plain)[:MAX_NAME_LETTERS].strip("_") or "attribute"
    return safe if safe == plain else f"{safe}-{zlib.crc32(plain.encode()):08x}"


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be made, or written into."""
    existing_path = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if not existing_path.is_dir() or not os.access(existing_path, os.W_OK):
        raise RunError(f"{folder}: {existing_path} is not a folder that can be written. Choose another --out")


def refuse_links(folder: Path) -> None:
    """Refuse a folder in which a link would lead what is written to another place; strangers may have made it."""
    for link in (path for path in folder.rglob("*") if path.is_symlink()):
        raise RunError(f"{link}: is a link, which is not followed. Remove it, or choose another --out")


def check_audit_folder(folder: Path) -> None:
    """Refuse a folder that holds something else, is damaged, cannot be written, leads elsewhere, or is in use."""
    check_writable(folder)
    refuse_links(folder)
    if folder.exists() and _read_audit_manifest(folder) is None and not is_unused(folder):
        raise RunError(f"{folder} exists and is not the folder of an audit. Choose another --out")
    if folder.exists():
        Lock.of(folder)


def check_same_audit(folder: Path, manifest: Json) -> None:
    """Refuse to resume an audit that was started with other inputs or settings than those of `manifest`."""
    stored_manifest = _read_audit_manifest(folder)
    for key, value in manifest.items() if stored_manifest is not None else ():
        if key in DIFFERENCES and stored_manifest is not None and stored_manifest.get(key) != value:
            raise OtherRunError(
                f"{folder}: this audit was started with {DIFFERENCES[key]}, so it cannot resume. Choose another --out, "
                "or --force"
            )


def claim_folder(folder: Path, manifest: Json) -> Lock | None:
    """Make the folder of an audit, or resume in it if it is the same audit.

    As long as the lock is in use, no other process can begin in the folder.
    """
    check_audit_folder(folder)
    lock = Lock.of(folder) if folder.exists() else None
    check_same_audit(folder, manifest)
    with _report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = lock or Lock.of(folder)
        if not (folder / MANIFEST).exists():
            write_manifest(folder, {**manifest, "files": {}})
    return lock


@contextmanager
def hold_folder(folder: Path | None, manifest: Json) -> Iterator[None]:
    """Claim the folder of an audit, if it has one, and keep other processes out until the block ends."""
    lock = None if folder is None else claim_folder(folder, manifest)
    try:
        yield
    finally:
        del lock


def begin_audit(folder: Path, manifest: Json, domain_text: str, name: str) -> Lock | None:
    """Claim the folder of an audit and keep its domain there.

    The domain file may leave its name to the name of the file; its copy says `name`.
    """
    lock = claim_folder(folder, manifest)
    path, digest = folder / DOMAIN, _read_digest(folder, DOMAIN)
    if digest is not None and (not path.exists() or sha256(path) != digest):
        raise RunError(f"{path}: was edited or removed. To audit with it, say --domain {path} and choose another --out")
    if "name" not in tomllib.loads(domain_text):
        domain_text = f"name = {quote(name)}\n{domain_text}"
    if digest is None:
        with _report_write_errors(folder):
            write_whole(path, domain_text.encode())
            record_file(folder, DOMAIN)
    return lock


@contextmanager
def _report_write_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"{folder}: cannot be written ({error.strerror or error}). Choose another --out") from error


def find_recorded_file(folder: Path, name: str) -> Path | None:
    """Return a file that the audit in a folder has entered, if it is as it was written; None where there is none."""
    digest = _read_digest(folder, name)
    if digest is not None:
        check_digest(folder / name, digest)
    return None if digest is None else folder / name


def write_weights_once(folder: Path, module: nn.Module, card: Card) -> None:
    """Keep the network that an audit has trained in its folder."""
    if _read_digest(folder, WEIGHTS) is None:
        save_weights(folder / WEIGHTS, module, card)
        record_file(folder, WEIGHTS)


def write_audit_json(folder: Path, report: Report) -> None:
    """Write the figures of an audit into its folder."""
    _write_sealed(folder / REPORT_FILE, msgspec.to_builtins(report))


def read_report(path: str | Path) -> Report:
    """Read the audit.json of an audit; one that was edited is refused."""
    path = Path(path)
    try:
        content = read_bytes(path, times=TREE_FACTOR)
        if is_sealed(content):
            unseal(content)
        return Report.from_json(content, path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise DataError(f"{path}: damaged or edited. Expected the audit.json of an audit") from None


def write_worst_findings(folder: Path, worst: Sequence[Finding]) -> None:
    """Write the worst findings, shrunk, next to the runs: `neuronfair show` shows the same records."""
    _write_sealed(folder / WORST_FINDINGS, {"worst": msgspec.to_builtins(worst)})


def _write_sealed(path: Path, entry: Json) -> None:
    with _report_write_errors(path), replace_file(path) as temporary:
        temporary.write_bytes(seal(entry))


def _read_audit_manifest(folder: Path) -> Json | None:
    """Return the manifest of an audit; None where the folder has none, or that of something else."""
    try:
        manifest = load_manifest(folder)
    except FileNotFoundError:
        return None
    return manifest if "audit" in manifest and isinstance(manifest.get("files"), dict) else None


def _read_digest(folder: Path, name: str) -> str | None:
    """Return the digest of a file that an audit has written; None if it was not finished."""
    manifest = _read_audit_manifest(folder)
    return None if manifest is None or name not in manifest["files"] else str(manifest["files"][name])


def record_file(folder: Path, name: str) -> None:
    """Enter the digest of a file into the manifest: from now on it is known."""
    manifest = _read_audit_manifest(folder) or {}
    write_manifest(folder, {**manifest, "files": {**manifest["files"], name: sha256(folder / name)}})


def read_shrunk_pair(run: Run, number: int) -> tuple[Tensor, Tensor] | None:
    """Return a finding of an audit's run and its twin, (d,) each, as the audit shows them; None if it does not."""
    if "worst" not in run.manifest:  # a search alone
        return None
    method = run.folder.absolute().name  # an older audit had other names of methods
    try:
        worst = read_sealed(run.folder.absolute().parent / WORST_FINDINGS)["worst"]
        findings = msgspec.convert(worst, tuple[Finding, ...])
        finding = next(f for f in findings if (f.method, f.number) == (method, number))
        twin = {**finding.row, **{change.attribute: change.twin for change in finding.changed}}
        rows = run.domain.from_table({name: [finding.row[name], twin[name]] for name in run.domain.names})
    except (OSError, LookupError, TypeError, msgspec.MsgspecError, StopIteration, DomainError):
        return None  # an unfinished audit, a finding that is not among the worst, or a file that is not ours
    return rows[0], rows[1]
