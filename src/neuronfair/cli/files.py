"""Output files: checked before the work starts, named in errors if writing fails."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from neuronfair.errors import DataError
from neuronfair.formatting import visible


def is_stdout(path: Path | None) -> bool:
    """Return whether an output file means standard output."""
    return path is not None and str(path) in ("-", "/dev/stdout")


def check_out(path: Path | None, suffixes: tuple[str, ...] = (), *, or_stdout: bool = False) -> None:
    """Refuse an output file that cannot be written, before any work is done for it."""
    if path is None or (or_stdout and is_stdout(path)):
        return
    target = Path(os.path.realpath(path))  # the target of a link
    if suffixes and target.suffix.lower() not in suffixes:
        raise DataError(f"{path}: expected a name that ends in {' or '.join(suffixes)}")
    if not target.parent.is_dir():
        raise DataError(f"{path}: there is no folder {target.parent}. Make it, or choose another place")
    if target.is_symlink() or (target.exists() and not target.is_file()):  # a device would be replaced by a file
        raise DataError(f"{path}: is a folder, a device or a link to itself, not a file. Choose another name")
    if not os.access(target.parent, os.W_OK):
        raise DataError(f"{path}: no permission to write into {target.parent}. Choose another place")
    if target.exists() and not os.access(target, os.W_OK):
        raise DataError(f"{path}: no permission to write this file. Choose another name")


def check_weights(path: Path) -> Path:
    """Return the path of a weights file, links resolved; refuse it or its card if they cannot be written."""
    check_out(path, (".safetensors",))
    path = path.resolve() if path.is_symlink() else path
    check_out(path.with_suffix(".json"))
    return path


def write_json(path: Path, results: Mapping[str, object]) -> None:
    """Write results as JSON to a file or to standard output."""
    text = visible(json.dumps(results, indent=2, allow_nan=False) + "\n", keep="\n")  # DEL; the rest is ASCII
    if is_stdout(path):
        sys.stdout.write(text)
    else:
        write_file(path, text)


def write_file(path: Path, text: str) -> None:
    """Write a file that the user named, following a link; an error names the file."""
    from neuronfair.atomic import write_text

    try:
        write_text(path.resolve(), text)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error


def check_run_folder(out: Path, force: bool, reads: tuple[str | Path | None, ...]) -> None:
    """Refuse a run folder that cannot be written, that is not ours, or that --force may not delete."""
    from neuronfair.audits.folder import check_writable, refuse_links
    from neuronfair.store.ledger import check_discardable, check_folder

    if force:
        check_discardable(out, reads)
    else:
        check_folder(out)
        refuse_links(out)
    check_writable(out)
