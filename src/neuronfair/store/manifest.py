"""The manifest of a run: everything that must be the same when it resumes."""

from __future__ import annotations

import hashlib
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy
import torch
from torch import Tensor

from neuronfair import __version__
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import OtherRunError, RunError
from neuronfair.model.decision import DecisionKind
from neuronfair.store.files import LOCK, Json, read_text, seal, unseal, write_whole

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MANIFEST, DOMAIN = "manifest.json", "domain.toml"
NEW = ".manifest.json.new"  # a manifest that is being written
FORMAT = 2  # of the folders of runs and audits; format 1 had no checksums
MAX_OUTPUTS = 100_000
RunKind = Literal["search", "proof"]  # what a folder holds
_BEFORE = {"plausible": 0.0, "twins": "flip"}  # the values of settings in manifests that do not have them
METHOD_NAMES = 2  # manifests from version 0.3 on have this entry; in older ones the methods have other names
_RENAMED = {"neuronfair": "neuronfair-plus", "neuronfair-paper": "neuronfair-printed"}
_ENTRIES = {"model": str, "weights": str, "domain": str, "rows": str, "outputs": int, "plan": dict, "files": dict}


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
    if plan.get("twins") == _BEFORE["twins"]:  # as in runs that are older than this setting
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


def where(source: str) -> str:
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
            raise RunError(_other_format(folder, 1)) from None
        raise RunError(
            f"{path}: damaged: it cannot be read, or is not as it was written. Nothing was changed"
        ) from None
    if manifest.get("format") != FORMAT:
        raise RunError(_other_format(folder, manifest.get("format")))
    return manifest


def _other_format(folder: Path, number: object) -> str:
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
    if any(not isinstance(manifest.get(key), kind) for key, kind in _ENTRIES.items()):
        raise RunError(f"{folder / MANIFEST}: not the manifest of a run")
    found = manifest.get("kind", "search")
    if found != kind:
        raise RunError(f"{folder}: holds a {found}, not a {kind}. Choose another folder")
    config = manifest["plan"]
    if "method_names" not in manifest and isinstance(config.get("method"), str):
        config["method"] = _RENAMED.get(config["method"], config["method"])
    decision = config.get("decision")
    kinds = isinstance(decision, dict) and decision.keys() == {"kind", "value"} and isinstance(config.get("seed"), int)
    if not kinds or decision["kind"] not in get_args(DecisionKind) or not isinstance(decision["value"], int | float):
        raise RunError(f"{folder / MANIFEST}: damaged: its plan cannot be read")
    if max(map(len, Path(manifest["model"]).parts), default=0) > 255 or "\0" in manifest["model"]:
        raise RunError(f"{folder / MANIFEST}: damaged: no file has the name of its model")
    if not 1 <= manifest["outputs"] <= MAX_OUTPUTS:
        raise RunError(f"{folder / MANIFEST}: damaged: a model with {manifest['outputs']} outputs")
    return manifest


def check_same(folder: Path, there: Json, now: Json) -> None:
    """Refuse to resume a run that was started with other inputs or settings."""
    changed = ("weights", "other weights"), ("domain", "another domain"), ("rows", "another table")
    for key, what in (*changed, ("population", "another population")):
        if there.get(key) != now.get(key):
            raise OtherRunError(
                f"{folder}: this run was begun with {what}, so it cannot be resumed. Choose another --out, or --force"
            )
    for key in (*now["plan"], "twins"):
        was, value = (config.get(key, _BEFORE.get(key)) for config in (there["plan"], now["plan"]))
        if was != value and key != "scale":  # which does not affect the search, and is missing in older runs
            older = key == "method" and "method_names" not in there and was in _RENAMED.values()
            note = " (its name since version 0.3)" if older else ""
            raise OtherRunError(
                f"{folder}: this run was begun with {key} = {was}{note}, not {value}. Choose another --out"
            )
