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
from neuronfair.domain.schema.toml import quoted
from neuronfair.errors import DataError, DomainError, OtherRunError, RunError
from neuronfair.limits import TREE_FACTOR, read_bytes
from neuronfair.model.weights import Card, save_weights
from neuronfair.store.files import Json, Lock, check_digest, is_sealed, read_sealed, seal, sha256, unseal, write_whole
from neuronfair.store.ledger import DOMAIN, MANIFEST, is_unused, load_manifest, write_manifest
from neuronfair.store.run import Run

WEIGHTS, FIGURES, PAGE = "model.safetensors", "audit.json", "report.html"
WORST_FINDINGS = "worst.json"  # next to the runs of one choice of attributes: the worst findings, shrunk
STARTED_WITH = {
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
    """Refuse a folder that holds something else, is damaged, cannot be written, leads elsewhere, or is in use."""
    check_writable(folder)
    refuse_links(folder)
    if folder.exists() and _read_manifest(folder) is None and not is_unused(folder):
        raise RunError(f"{folder} exists and is not the folder of an audit. Choose another --out")
    if folder.exists():
        Lock.of(folder)


def check_same(folder: Path, now: Json) -> None:
    """Refuse to resume an audit that was started with other inputs or settings than `now`."""
    there = _read_manifest(folder)
    for key, value in now.items() if there is not None else ():
        if key in STARTED_WITH and there is not None and there.get(key) != value:
            what = STARTED_WITH[key]
            raise OtherRunError(
                f"{folder}: this audit was started with {what}, so it cannot resume. Choose another --out, or --force"
            )


def claim(folder: Path, manifest: Json) -> Lock | None:
    """Make the folder of an audit, or resume in it if it is the same audit.

    As long as the lock is in use, no other process can begin in the folder.
    """
    check_audit_folder(folder)
    lock = Lock.of(folder) if folder.exists() else None
    check_same(folder, manifest)
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = lock or Lock.of(folder)
        if not (folder / MANIFEST).exists():
            write_manifest(folder, {**manifest, "files": {}})
    return lock


@contextmanager
def claimed(folder: Path | None, manifest: Json) -> Iterator[None]:
    """Claim the folder of an audit, if it has one, and keep other processes out until the block ends."""
    lock = None if folder is None else claim(folder, manifest)
    try:
        yield
    finally:
        del lock


def begin_audit(folder: Path, manifest: Json, domain_text: str, name: str) -> Lock | None:
    """Claim the folder of an audit and keep its domain there.

    The domain file may leave its name to the name of the file; its copy says `name`.
    """
    lock = claim(folder, manifest)
    path, entered = folder / DOMAIN, _entered(folder, DOMAIN)
    if entered is not None and (not path.exists() or sha256(path) != entered):
        raise RunError(f"{path}: was edited or removed. To audit with it, say --domain {path} and choose another --out")
    if "name" not in tomllib.loads(domain_text):
        domain_text = f"name = {quoted(name)}\n{domain_text}"
    if entered is None:
        with _writing(folder):
            write_whole(path, domain_text.encode())
            record_file(folder, DOMAIN)
    return lock


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"{folder}: cannot be written ({error.strerror or error}). Choose another --out") from error


def recorded_file(folder: Path, name: str) -> Path | None:
    """Return a file that the audit in a folder has entered, if it is as it was written; None where there is none."""
    entered = _entered(folder, name)
    if entered is not None:
        check_digest(folder / name, entered)
    return None if entered is None else folder / name


def keep_weights(folder: Path, module: nn.Module, card: Card) -> None:
    """Keep the network that an audit has trained in its folder."""
    if _entered(folder, WEIGHTS) is None:
        save_weights(folder / WEIGHTS, module, card)
        record_file(folder, WEIGHTS)


def keep_figures(folder: Path, report: Report) -> None:
    """Write the figures of an audit into its folder."""
    _keep(folder / FIGURES, msgspec.to_builtins(report))


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
    _keep(folder / WORST_FINDINGS, {"worst": msgspec.to_builtins(worst)})


def _keep(path: Path, entry: Json) -> None:
    with _writing(path), replace_file(path) as temporary:
        temporary.write_bytes(seal(entry))


def _read_manifest(folder: Path) -> Json | None:
    """Return the manifest of an audit; None where the folder has none, or that of something else."""
    try:
        manifest = load_manifest(folder)
    except FileNotFoundError:
        return None
    return manifest if "audit" in manifest and isinstance(manifest.get("files"), dict) else None


def _entered(folder: Path, name: str) -> str | None:
    """Return the digest of a file that an audit has written; None if it was not finished."""
    manifest = _read_manifest(folder)
    return None if manifest is None or name not in manifest["files"] else str(manifest["files"][name])


def record_file(folder: Path, name: str) -> None:
    """Enter the digest of a file into the manifest: from now on it is known."""
    manifest = _read_manifest(folder) or {}
    write_manifest(folder, {**manifest, "files": {**manifest["files"], name: sha256(folder / name)}})


def shrunk_pair(run: Run, number: int) -> tuple[Tensor, Tensor] | None:
    """Return a finding of an audit's run and its twin, (d,) each, as the audit shows them; None if it does not."""
    if "worst" not in run.manifest:  # a search alone
        return None
    method = run.folder.absolute().name  # an older audit had other names of methods
    try:
        worst = read_sealed(run.folder.absolute().parent / WORST_FINDINGS)["worst"]
        findings = msgspec.convert(worst, tuple[Finding, ...])
        one = next(f for f in findings if (f.method, f.number) == (method, number))
        twin = {**one.row, **{change.attribute: change.twin for change in one.changed}}
        rows = run.domain.from_table({name: [one.row[name], twin[name]] for name in run.domain.names})
    except (OSError, LookupError, TypeError, msgspec.MsgspecError, StopIteration, DomainError):
        return None  # an unfinished audit, a finding that is not among the worst, or a file that is not ours
    return rows[0], rows[1]
