"""Beginning anew in a used folder (`--force`): what an audit or a run has left there is thrown away."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from os.path import realpath
from pathlib import Path

from neuronfair.errors import RunError
from neuronfair.store.files import writing
from neuronfair.store.lock import LOCK, Lock
from neuronfair.store.manifest import MANIFEST, is_unused, load_manifest


def check_discardable(folder: Path, reads: Iterable[str | Path | None]) -> None:
    """Refuse to throw away a folder that is no audit or run, is in use, or holds a file that is to be read."""
    if not folder.exists() or (folder.is_dir() and is_unused(folder)):
        return
    if not (folder / MANIFEST).is_file():
        raise RunError(f"{folder}: holds no audit or run, so --force leaves it alone. Choose another --out")
    load_manifest(folder)
    for path in reads:
        if path is not None and Path(realpath(path)).is_relative_to(realpath(folder)):
            raise RunError(f"{path}: lies in {folder}, which --force throws away. Copy it, or choose another --out")
    for manifest in folder.rglob(MANIFEST):
        Lock.of(manifest.parent)


def discard(folder: Path) -> None:
    """Empty the folder of an audit or run; its manifest goes last, so that it is known as ours after a kill."""
    check_discardable(folder, ())
    if not folder.exists():
        return
    _lock = Lock.of(folder)  # until all is gone
    with writing(folder):
        for path in sorted(folder.iterdir(), key=lambda path: path.name == MANIFEST):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()
