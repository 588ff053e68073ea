"""The files and the lock of a run folder.

Files are written to the disk before they are named, and known by checksums; JSON carries its own digest. One process
at a time writes to a folder: two would spoil each other's work.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
import weakref
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import torch
from filelock import lock_descriptor
from safetensors import SafetensorError
from safetensors.torch import load
from safetensors.torch import save as to_bytes
from torch import Tensor

from neuronfair.errors import RunError
from neuronfair.formatting import printable
from neuronfair.limits import TEXT_FACTOR, check_array, check_tensors, read_bytes

_CHUNK = 1 << 20


def write_whole(path: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it."""
    path.write_bytes(content)
    flush(path)


def flush(path: Path) -> None:
    """Wait until the disk has a file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def _explain_reading(path: Path) -> Iterator[None]:
    """Name the file that cannot be read; one that is not there is a FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_text(path: Path) -> bytes:
    """Return the bytes of a text file."""
    with _explain_reading(path):
        return read_bytes(path, times=TEXT_FACTOR)


def crc32(path: Path) -> int:
    """Return the checksum of a file."""
    check = 0
    with _explain_reading(path), path.open("rb") as file:
        while part := file.read(_CHUNK):
            check = zlib.crc32(part, check)
    return check


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with _explain_reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_array(tensor: Tensor, path: Path) -> None:
    """Write a tensor as an array of numpy."""
    with path.open("wb") as file:
        np.save(file, tensor.cpu().numpy())


def load_array(path: Path, *columns: int) -> Tensor:
    """Read a tensor of whole numbers: one for each line, or with a number of columns."""
    try:
        content = read_bytes(path)
        check_array(content)
        array = torch.from_numpy(np.asarray(np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)))
        if array.dim() == 0 or array.shape[1:] != columns or array.is_floating_point():
            raise ValueError(f"an array of another shape or type: {array.dtype}, {tuple(array.shape)}")
        return array
    except Exception as error:  # a damaged file can fail anywhere in the reader
        raise RunError(f"{path}: damaged or gone ({error}). The other parts of the run are untouched") from None


def save_state(state: Mapping[str, Tensor], path: Path) -> None:
    """Write a state, such as that of the search chains."""
    path.write_bytes(pack_state(state))


def pack_state(state: Mapping[str, Tensor]) -> bytes:
    """Return tensors by name as the bytes of a file."""
    # Copies: two names may stand for one tensor, which the format does not allow.
    return to_bytes({name: tensor.cpu().contiguous().clone() for name, tensor in state.items()})


def load_state(path: Path, device: torch.device) -> dict[str, Tensor]:
    """Read a state."""
    try:
        content = read_bytes(path, times=2)  # the file, and its tensors
        check_tensors(content, len(content), path)
        return {name: tensor.to(device) for name, tensor in load(content).items()}
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: its last state is damaged or gone ({error}). What was found is still there") from None


@contextmanager
def writing(folder: Path | str) -> Iterator[None]:
    """Add to an error of writing that the earlier findings of the run are saved."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{folder}: cannot be written ({error.strerror or error}). Earlier findings are saved: the same command "
            "resumes the run"
        ) from error


def check_digest(path: Path, digest: object) -> None:
    """Refuse a file that is not as it was written."""
    try:
        is_intact = sha256(path) == digest
    except FileNotFoundError:
        raise RunError(f"{path}: is gone. Nothing was changed") from None
    if not is_intact:
        raise RunError(f"{path}: damaged: it is not as it was written. Nothing was changed")


Json = dict[str, Any]  # an object of JSON, as it is read and written
T = TypeVar("T")


def decode(text: str | bytes, kind: type[T]) -> T:
    """Return JSON as a dataclass, whose fields say what it must hold; raise a ValueError if it does not."""
    return msgspec.json.decode(text, type=kind)


_MARK = b',\n  "digest": "'


def seal(entry: Json) -> bytes:
    """Return a JSON object as text whose last entry is the SHA-256 of the text before it.

    >>> print(seal({"a": 1}).decode()[:25])
    {
      "a": 1,
      "digest": "
    """
    text = printable(json.dumps(entry, indent=2, allow_nan=False), keep="\n")  # DEL; the rest is ASCII
    body = text.removesuffix("\n}").encode()
    return body + _MARK + _digest_line(body)


def is_sealed(content: bytes) -> bool:
    """Return whether a text contains its digest."""
    return _MARK in content


def unseal(content: bytes) -> Any:
    """Return the object of a sealed text; raise a ValueError if the text was changed."""
    body, _, end = content.rpartition(_MARK)
    if end != _digest_line(body):
        raise ValueError("it is not as it was written")
    return json.loads(body + b"\n}")


_RENAMED = {"judged": "evaluated", "rows_judged": "rows_evaluated"}


def current_keys(entry: Json) -> Json:
    """Return an entry of a run with the current names of its keys; runs of earlier versions have other ones.

    >>> current_keys({"tried": 3, "judged": 5})
    {'tried': 3, 'evaluated': 5}
    """
    return {_RENAMED.get(key, key): value for key, value in entry.items()}


def read_sealed(path: Path) -> Any:
    """Return the object of a sealed file, or say that it is damaged; raise a FileNotFoundError without a file."""
    try:
        return unseal(read_text(path))
    except (ValueError, RecursionError):
        raise RunError(f"{path}: damaged: it is not as it was written. Nothing was changed") from None


def _digest_line(body: bytes) -> bytes:
    return f'{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()


LOCK = ".lock"  # an empty file that is locked where a folder cannot be locked
BY_FILE = os.name == "nt"  # elsewhere the folder itself is locked


class Lock:
    """The exclusive use of a folder, until the lock is no longer referenced or the process ends, even by kill.

    A file system without locks gives a warning: other processes are not kept out then.
    """

    def __init__(self, handle: int) -> None:
        self.close = weakref.finalize(self, os.close, handle)

    @staticmethod
    def of(folder: Path) -> Lock | None:
        """Return the lock of a folder: a new one, or the one that this process holds already; None without locks."""
        try:
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT) if BY_FILE else os.open(folder, os.O_RDONLY)
        except OSError as error:
            _warn_without(folder, error)
            return None
        lock, file = Lock(handle), os.fstat(handle)
        existing_lock = _HELD.get((file.st_dev, file.st_ino))
        if existing_lock is not None:
            return existing_lock
        try:
            is_locked = lock_descriptor(handle, blocking=False)
        except OSError as error:
            _warn_without(folder, error)
            return None
        if not is_locked:
            raise RunError(f"{folder}: another process is writing to this run. Wait for it, or choose another --out")
        _HELD[file.st_dev, file.st_ino] = lock
        return lock


def _warn_without(folder: Path, error: OSError) -> None:
    resolved = folder.resolve()
    if resolved not in _WARNED:
        _WARNED.add(resolved)
        warnings.warn(
            f"{folder}: cannot be locked ({error.strerror or error}), so a second process could write to it and damage "
            "the run. Start no other command with this --out, or choose one on a file system with locks",
            stacklevel=3,
        )


_WARNED: set[Path] = set()
_HELD: weakref.WeakValueDictionary[tuple[int, int], Lock] = weakref.WeakValueDictionary()


def _release_locks() -> None:
    """Release all locks in a child process: they belong to its parent."""
    for lock in list(_HELD.values()):
        lock.close()
    _HELD.clear()


with suppress(AttributeError):  # Windows does not fork
    os.register_at_fork(after_in_child=_release_locks)
