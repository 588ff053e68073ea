"""A folder on this machine, or at an address that fsspec knows (s3://…): files are there whole or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from neuronfair.errors import RunError, one_line
from neuronfair.limits import check_size
from neuronfair.store.files import write_whole, writing


@dataclass(frozen=True)
class RemoteFolder:
    """A folder by its address. It may be sent to another machine."""

    address: str

    @cached_property
    def _found(self) -> tuple[AbstractFileSystem, str]:
        try:
            found: tuple[AbstractFileSystem, str] = url_to_fs(self.address)
            return found
        except (ValueError, ImportError) as error:  # no such kind of address, or a package that it needs is not here
            raise RunError(f"{self.address}: cannot be used as an address: {one_line(error)}") from None

    @property
    def is_local(self) -> bool:
        """Whether it is a folder, where a file is renamed into its place; elsewhere it is put there as it can be."""
        return isinstance(self._found[0], LocalFileSystem)

    def __getstate__(self) -> dict[str, str]:
        return {"address": self.address}  # who takes it over connects anew

    def names(self) -> set[str]:
        """Return the names of the files there are; none where there is no folder."""
        fs, folder = self._found
        with self.reading(""):
            fs.invalidate_cache()
            return {path.rpartition("/")[2] for path in fs.find(folder)}

    def read(self, name: str, size: int | None = None, *, times: float = 1) -> bytes:
        """Return the content of a file that is not too large: the first `size` bytes, or all of it."""
        fs, folder = self._found
        with self.reading(name) as path:
            check_size(fs.size(f"{folder}/{name}") if size is None else size, path, times=times)
            content: bytes = fs.cat_file(f"{folder}/{name}", 0, size)
        return content

    @contextmanager
    def reading(self, name: str) -> Iterator[str]:
        """Give the address of a file, and name it if it cannot be read."""
        path = f"{self.address}/{name}"
        try:
            yield path
        except FileNotFoundError:
            raise RunError(f"{path}: is gone. Nothing was changed") from None
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise RunError(f"{path}: damaged, or cannot be read ({one_line(error)}). Nothing was changed") from None

    def write(self, name: str, content: bytes) -> None:
        """Write a file, and wait until it is there."""
        fs, folder = self._found
        with writing(self.address):
            fs.makedirs(folder, exist_ok=True)
            if self.is_local:
                staged = Path(folder) / f".{name}.{secrets.token_hex(4)}"
                write_whole(staged, content)
                staged.replace(Path(folder) / name)
            else:
                fs.pipe_file(f"{folder}/{name}", content)

    def remove(self, name: str) -> None:
        """Remove a file; somebody else may have done it."""
        fs, folder = self._found
        with writing(self.address), suppress(FileNotFoundError):
            fs.rm_file(f"{folder}/{name}")

    def clear(self) -> None:
        """Remove the folder and everything in it."""
        fs, folder = self._found
        with writing(self.address):
            if fs.exists(folder):
                fs.rm(folder, recursive=True)
