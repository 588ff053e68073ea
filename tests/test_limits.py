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
    TREE_FACTOR,
    TooLargeError,
    check_archive,
    check_array,
    check_size,
    max_bytes,
    open_archive,
    read_bytes,
    read_member,
    read_members,
    read_text,
    repack,
    unpack_gzip,
)
from tests.bombs import lying_archive, npy, zipped


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
        with pytest.raises(TooLargeError, match=r"^table.csv: would take about .* NEURONFAIR_MAX_BYTES"):
            check_size(size, "table.csv", times=times)
    assert issubclass(TooLargeError, NeuronFairError)


@pytest.mark.usefixtures("small")
def test_files_pipes_and_devices_end_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 1000)
    assert read_bytes(path) == b"x" * 1000
    path.write_bytes(b"x" * 1001)
    with pytest.raises(TooLargeError):
        read_bytes(path)
    with pytest.raises(TooLargeError):
        read_bytes(Path("/dev/zero"))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=(b"y" * 700,)).start()
    assert read_bytes(pipe) == b"y" * 700


@pytest.mark.usefixtures("small")
def test_gzip_is_unpacked_up_to_the_limit_only() -> None:
    assert unpack_gzip(gzip.compress(b"x" * 1000), "a.gz") == b"x" * 1000
    members = gzip.compress(b"one ") + gzip.compress(b"two") + b"\0" * 5
    assert unpack_gzip(members, "a.gz") == gzip.decompress(members) == b"one two"
    bomb = gzip.compress(b"x" * 50_000_000)
    with pytest.raises(TooLargeError, match=r"a\.gz"):
        unpack_gzip(bomb, "a.gz")
    with pytest.raises(TooLargeError):  # many members that are small one by one
        unpack_gzip(gzip.compress(b"x" * 100) * 11, "a.gz")


def test_a_gzip_file_that_is_cut_off_is_an_error() -> None:
    whole = gzip.compress(bytes(range(256)) * 20)
    for length in range(1, len(whole)):
        with pytest.raises(EOFError):
            unpack_gzip(whole[:length], "a.gz")


@pytest.mark.usefixtures("small")
def test_archives_are_judged_by_their_directory() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("small", b"x" * 900)
        archive.writestr("large", b"x" * 100_000)
    with zipfile.ZipFile(file) as archive:
        assert read_member(archive, "small") == b"x" * 900
        with pytest.raises(TooLargeError, match="member 'large'"):
            read_member(archive, "large")
        with pytest.raises(TooLargeError):
            check_archive(archive)


@pytest.mark.usefixtures("small")
def test_a_text_counts_as_often_as_what_is_made_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"{\r\n}")
    assert read_text(path) == "{\n}"
    path.write_bytes(b" " * (1000 // TREE_FACTOR + 1))
    with pytest.raises(TooLargeError):
        read_text(path)


@pytest.mark.usefixtures("small")
def test_a_member_that_is_larger_than_its_directory_says_is_not_unpacked_any_further() -> None:
    lying = lying_archive("a", b"x" * 50_000_000, said=300)
    with open_archive(lying, "a.zip") as archive:
        tracked = io.BytesIO(read_member(archive, "a"))
    assert tracked.getvalue() == b"x" * 300
    assert read_members(lying, "a.zip") == {"a": b"x" * 300}


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_ways_of_packing_that_cannot_be_cut_off_are_not_read(method: int) -> None:
    with pytest.raises(zipfile.BadZipFile, match="unsupported method"):
        read_members(zipped({"a": b"x"}, method), "a.zip")


def test_a_directory_of_many_members_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "many.zip"
    path.write_bytes(zipped({f"{i}": b"" for i in range(200)}))
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "200000")
    with open_archive(path, path) as archive:
        assert len(archive.namelist()) == 200
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "199999")
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(TooLargeError, match=r"many\.zip"):
        open_archive(path, path)
    with pytest.raises(TooLargeError, match="bytes"):
        open_archive(path.read_bytes(), "bytes")


def test_the_members_of_an_archive_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "10000")
    files = {"a/": b"", "a/b": b"x" * 4000, "c": b"y" * 3000}
    assert read_members(zipped(files), "a.zip", extra_bytes=3000) == {"a/b": b"x" * 4000, "c": b"y" * 3000}
    for extra in ({"times": 2}, {"extra_bytes": 3001}):
        with pytest.raises(TooLargeError, match=r"^a\.zip"):
            read_members(zipped(files), "a.zip", **extra)


@pytest.mark.parametrize("name", ["../a", "a/../../b", "/etc/a", "a\\b"])
def test_names_that_lead_out_of_an_archive_are_refused(name: str) -> None:
    with pytest.raises(zipfile.BadZipFile, match="leads out of the archive"):
        read_members(zipped({name: b"x"}), "a.zip")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice_is_refused() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", b"one")
        archive.writestr("a", b"two")
    with pytest.raises(zipfile.BadZipFile, match="occurs twice"):
        read_members(file.getvalue(), "a.zip")


def test_a_repacked_archive_holds_the_same_files_as_they_are() -> None:
    files = {"a": b"x" * 5000, "b/c": b""}
    content = repack(files)
    assert read_members(content, "a.zip") == files
    assert b"x" * 5000 in content


def test_an_array_is_no_larger_than_its_file() -> None:
    check_array(npy((3, 5), 8, 120))
    check_array(npy((0, 10**15), 8, 0))
    for shape in ((10**12,), (4, 10**9, 10**9)):
        with pytest.raises(ValueError, match="is declared"):
            check_array(npy(shape, 8, 120))
    with pytest.raises(ValueError, match="magic"):
        check_array(b"no array at all")
