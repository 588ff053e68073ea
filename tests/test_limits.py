"""What a file may cost is known before it is read."""

from __future__ import annotations

import gzip
import io
import os
import threading
import zipfile
from pathlib import Path

import pytest

from neuronfair.errors import DataError, NeuronFairError
from neuronfair.limits import (
    MAX_BYTES,
    TooLarge,
    check_archive,
    check_size,
    max_bytes,
    read_bytes,
    read_member,
    unpacked,
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "1000")


def test_the_variable_sets_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEURONFAIR_MAX_BYTES", raising=False)
    assert max_bytes() == MAX_BYTES == 2_000_000_000
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "5000")
    assert max_bytes() == 5000
    for nonsense in ("lots", "-1", "0", "1e9", "2 GB"):
        monkeypatch.setenv("NEURONFAIR_MAX_BYTES", nonsense)
        with pytest.raises(DataError, match="NEURONFAIR_MAX_BYTES: expected a whole number"):
            max_bytes()


@pytest.mark.usefixtures("small")
def test_a_size_is_allowed_up_to_the_limit_and_counts_as_often_as_it_is_held() -> None:
    check_size(1000, "a")
    check_size(125, "a", times=8)
    for size, times in ((1001, 1), (126, 8)):
        with pytest.raises(TooLarge, match=r"^table.csv: would take about .* NEURONFAIR_MAX_BYTES"):
            check_size(size, "table.csv", times=times)
    assert issubclass(TooLarge, NeuronFairError)


@pytest.mark.usefixtures("small")
def test_files_pipes_and_devices_end_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 1000)
    assert read_bytes(path) == b"x" * 1000
    path.write_bytes(b"x" * 1001)
    with pytest.raises(TooLarge):
        read_bytes(path)
    with pytest.raises(TooLarge):
        read_bytes(Path("/dev/zero"))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=(b"y" * 700,)).start()
    assert read_bytes(pipe) == b"y" * 700


@pytest.mark.usefixtures("small")
def test_gzip_is_unpacked_up_to_the_limit_only() -> None:
    assert unpacked(gzip.compress(b"x" * 1000), "a.gz") == b"x" * 1000
    members = gzip.compress(b"one ") + gzip.compress(b"two") + b"\0" * 5
    assert unpacked(members, "a.gz") == gzip.decompress(members) == b"one two"
    bomb = gzip.compress(b"x" * 50_000_000)
    with pytest.raises(TooLarge, match=r"a\.gz"):
        unpacked(bomb, "a.gz")
    with pytest.raises(TooLarge):  # many members that are small one by one
        unpacked(gzip.compress(b"x" * 100) * 11, "a.gz")


def test_a_gzip_file_that_is_cut_off_is_an_error() -> None:
    whole = gzip.compress(bytes(range(256)) * 20)
    for length in range(1, len(whole)):
        with pytest.raises(EOFError):
            unpacked(whole[:length], "a.gz")


@pytest.mark.usefixtures("small")
def test_archives_are_judged_by_their_directory() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("small", b"x" * 900)
        archive.writestr("large", b"x" * 100_000)
    with zipfile.ZipFile(file) as archive:
        assert read_member(archive, "small") == b"x" * 900
        with pytest.raises(TooLarge, match="member 'large'"):
            read_member(archive, "large")
        with pytest.raises(TooLarge):
            check_archive(archive)
