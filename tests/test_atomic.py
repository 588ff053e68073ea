"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from neuronfair import atomic
from neuronfair.atomic import find_leftovers, replace_file, write_text


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_and_one_in_the_place_of_another(tmp_path):
    path = tmp_path / "a.txt"
    for text in ("first", "zweitens: ü 中"):
        write_text(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert listing(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), ValueError("no")])
def test_an_error_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail() -> None:
        with replace_file(path) as temporary:
            temporary.write_text("half of the n")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert path.read_text() == "old"
    assert listing(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_an_error_at_the_end_leaves_the_old_file(tmp_path, monkeypatch, call):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "a.txt"
    path.write_text("old")
    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert listing(tmp_path) == ["a.txt"]


def test_the_content_is_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    order = []
    for call in ("fsync", "replace"):
        real = getattr(os, call)
        monkeypatch.setattr(os, call, lambda *v, real=real, call=call: (order.append(call), real(*v))[1])
    write_text(tmp_path / "a.txt", "new")
    assert order == ["fsync", "replace"]


def test_the_temporary_file_lies_beside_the_real_one_under_a_hidden_name(tmp_path):
    with replace_file(tmp_path / "a.npy") as temporary:
        assert temporary.parent == tmp_path
        assert temporary.name.startswith(".a.npy.")
        assert temporary.suffix == ".npy"  # some writers add what is missing
        assert not (tmp_path / "a.npy").exists()


def test_a_new_file_may_be_read_by_whom_the_umask_allows(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a.txt", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("target", ["real.txt", "nothing.txt", "link.txt"], ids=["file", "nothing", "itself"])
def test_a_link_is_not_followed(tmp_path, target):
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(tmp_path / target)
    with pytest.raises(FileExistsError, match="is a link"):
        write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "old"
    assert listing(tmp_path) == ["link.txt", "real.txt"]


def test_the_file_that_a_link_stands_for_can_be_meant(tmp_path):
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    write_text(link.resolve(), "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


@pytest.mark.parametrize("name", [251 * "n" + ".txt", 62 * "\N{GRINNING FACE}" + ".txt"])
def test_a_name_as_long_as_can_be(tmp_path, name):
    write_text(tmp_path / name, "x")
    assert listing(tmp_path) == [name]


def test_a_folder_is_not_replaced(tmp_path):
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(FileExistsError, match="not a file"):
        write_text(tmp_path / "a.txt", "new")
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "no" / "a.txt", "new")
    assert listing(tmp_path) == ["a.txt"]


LEFT = (".a.txt.k3_x9a0b.txt", ".a.txt.zzzzzzzz.txt")
OTHERS = (".a.txt.notes", ".ab.txt.k3_x9a0b.txt", "a.txt.k3_x9a0b.txt", ".[a].txt.k3_x9a0b.txt")


@pytest.mark.skipif(atomic.fcntl is None, reason="this system cannot lock files")
def test_what_a_kill_has_left_behind_is_removed_the_next_time(tmp_path):
    for name in (*LEFT, *OTHERS):
        (tmp_path / name).write_text("half of the n")
    assert {path.name for path in find_leftovers(tmp_path / "a.txt")} == set(LEFT)
    write_text(tmp_path / "a.txt", "new")
    assert listing(tmp_path) == sorted(("a.txt", *OTHERS))
    write_text(tmp_path / "[a].txt", "new")
    assert listing(tmp_path) == sorted(("a.txt", "[a].txt", *OTHERS[:-1]))


def test_two_who_write_the_same_file_leave_each_other_alone(tmp_path):
    path = tmp_path / "a.txt"
    with replace_file(path) as first:
        first.write_text("first")
        write_text(path, "second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert listing(tmp_path) == ["a.txt"]


@pytest.mark.skipif(atomic.fcntl is None, reason="this system cannot lock files")
def test_a_file_that_another_process_removed_before_it_was_locked_is_made_anew(tmp_path, monkeypatch):
    path, real, calls = tmp_path / "a.txt", atomic.fcntl.flock, []

    def late(handle: int, kind: int) -> None:
        if not calls:
            find_leftovers(path)[0].unlink()
        calls.append(kind)
        real(handle, kind)

    monkeypatch.setattr(atomic.fcntl, "flock", late)
    write_text(path, "new")
    assert (path.read_text(), len(calls)) == ("new", 2)
    assert listing(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("locks", ["none", "refused"])
def test_without_locks_nothing_is_removed(tmp_path, monkeypatch, locks):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    if locks == "none" or atomic.fcntl is None:
        monkeypatch.setattr(atomic, "fcntl", None)
    else:
        monkeypatch.setattr(atomic.fcntl, "flock", refuse)
    (tmp_path / LEFT[0]).write_text("perhaps somebody is writing it")
    write_text(tmp_path / "a.txt", "new")
    assert listing(tmp_path) == sorted(("a.txt", LEFT[0]))
