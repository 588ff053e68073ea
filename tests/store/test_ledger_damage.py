"""A changed bit anywhere in a run folder is found, for reading and for going on: named, and nothing is changed."""

from __future__ import annotations

import random
import re
import shutil
import zlib
from pathlib import Path

import pytest

from neuronfair.errors import RunError
from neuronfair.store.ledger import DOMAIN, JOURNAL, MANIFEST, SEEDS
from neuronfair.store.run import Run
from tests.store.runs import DOMAIN_OF_RUN, PLAN, contents, forged, listing, make_manifest, search


def looked_at(folder: Path) -> None:
    Run.open(folder)


def gone_on_with(folder: Path) -> None:
    Run.create_or_open(folder, make_manifest(PLAN), DOMAIN_OF_RUN)


def refused(folder: Path, *ways) -> str:
    """Looking and going on are refused in one line, and change no file."""
    before = contents(folder)
    for way in ways or (looked_at, gone_on_with):
        with pytest.raises(RunError) as caught:
            way(folder)
        assert contents(folder) == before
        message = str(caught.value)
        assert message.startswith(str(folder))
        assert "\n" not in message
    return message


@pytest.fixture
def finished(tmp_path) -> Path:
    search(tmp_path / "finished", PLAN)
    return tmp_path / "finished"


@pytest.mark.parametrize("which", ["halfway", "finished"])
def test_one_flipped_bit(request, which):
    """The small version of benchmarks/bit_flips.py, which flips every byte."""
    folder, draw = request.getfixturevalue(which), random.Random(0)
    assert len(listing(folder)) > 15
    for path in folder.iterdir():
        whole = path.read_bytes()
        many = 150 if path.name in (JOURNAL, MANIFEST) else 12
        for place in [*draw.sample(range(len(whole)), many - 2), 0, len(whole) - 1]:
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << draw.randrange(8)]) + whole[place + 1 :])
            for way in (looked_at, gone_on_with)[: 1 if place % 8 else 2]:
                with pytest.raises(RunError, match=re.escape(f"{path}: ")):
                    way(folder)
        path.write_bytes(whole)
    gone_on_with(folder)


def test_all_eight_bits_of_the_last_line_break(halfway):
    """A whole line is not taken for one that was cut off."""
    journal = halfway / JOURNAL
    whole = journal.read_bytes()
    for text, more in ((whole, b""), (whole, b'{"event": "pa')):
        for bit in range(8):
            journal.write_bytes(text[:-1] + bytes([text[-1] ^ 1 << bit]) + more)
            assert f"{JOURNAL}: line {whole.count(10)} is damaged" in refused(halfway)


@pytest.mark.parametrize("damage", ["empty", "cut", "longer", "gone"])
def test_files_that_are_cut_or_gone(halfway, damage):
    for name in set(listing(halfway)) - {JOURNAL}:
        path = halfway / name
        whole = path.read_bytes()
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "longer": whole + b"\0"}[damage])
        if name == MANIFEST and damage == "gone":
            assert "not a run folder" in refused(halfway)
        else:
            assert f"{path}: " in refused(halfway)
        path.write_bytes(whole)
    gone_on_with(halfway)


def test_files_that_are_swapped(halfway, tmp_path):
    parts = sorted(path for path in halfway.iterdir() if path.name.endswith(".keys.npy"))
    one, other = parts[-2:]
    one.rename(tmp_path / "aside")
    other.rename(one)
    (tmp_path / "aside").rename(other)
    assert "damaged" in refused(halfway)


def test_a_manifest_of_another_run(halfway, tmp_path):
    """Its digest is right, but the journal was not begun with it."""
    other = Run.create_or_open(tmp_path / "other", make_manifest(PLAN, created="later"), DOMAIN_OF_RUN)
    shutil.copy(other.folder / MANIFEST, halfway / MANIFEST)
    assert f"{JOURNAL}: line 1 is damaged, or does not belong here" in refused(halfway)


def test_a_damaged_line_of_the_journal_is_named(halfway):
    journal = halfway / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) > 3
    for number in range(len(lines)):
        for bad in (b"{\n", b"\x00\xff\n", b"\n", b"[]\n", b'{"event": "part"}\n', b'{"event": "party"}\n'):
            journal.write_bytes(b"".join([*lines[:number], bad, *lines[number + 1 :]]))
            assert f"line {number + 1} is damaged" in refused(halfway)


def test_lines_that_are_taken_out_doubled_or_swapped(halfway):
    journal = halfway / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    for number in range(len(lines) - 1):
        for bad in (
            [*lines[:number], *lines[number + 1 :]],
            [*lines[: number + 1], *lines[number:]],
            [*lines[:number], lines[number + 1], lines[number], *lines[number + 2 :]],
        ):
            journal.write_bytes(b"".join(bad))
            assert re.search(rf"line [{number + 1}{number + 2}] is damaged, or does not belong here", refused(halfway))


def test_a_journal_that_has_lost_its_last_lines(halfway):
    """Its files would be searched again and overwritten, or not counted; they are neither."""
    journal = halfway / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    assert [line.split(b'"')[3] for line in lines] == [b"begin", *[b"part"] * (len(lines) - 1)]
    for kept in range(len(lines)):
        for end in (b"", lines[kept][:40]):
            journal.write_bytes(b"".join(lines[:kept]) + end)
            assert re.search(
                r"is not in journal.jsonl, which has lost its last lines, .*move it away", refused(halfway)
            )
    journal.unlink()
    assert "is not in journal.jsonl" in refused(halfway)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "\x00", '{"plan": 3}', "[" * 100_000])
def test_a_damaged_manifest(halfway, text):
    (halfway / MANIFEST).write_text(text, encoding="utf-8")
    assert f"{MANIFEST}: damaged" in refused(halfway)


@pytest.mark.parametrize(
    ("name", "was", "now", "says"),
    [
        (MANIFEST, '"outputs": 2', '"outputs": 100000000', "100000000 outputs"),
        (MANIFEST, '"outputs": 2', '"outputs": -1', "-1 outputs"),
        (MANIFEST, '"seed": 0', '"seed": "0"', "its plan cannot be read"),
        (MANIFEST, '"files": {"', '"files": {"_', f"{DOMAIN}: damaged"),
        (MANIFEST, '"files": ', '"filed": ', "not the manifest of a run"),
        (MANIFEST, '"format": 2', '"format": 3', "was written in format 3"),
        (JOURNAL, '"part": "', '"part": "../', "line 2 is damaged"),
        (JOURNAL, "local-00001.keys", "local-00002.keys", "is damaged"),
        (JOURNAL, '"phase": "local"', '"phase": "lobal"', "is damaged"),
        (JOURNAL, '"crc32": {"part', '"crc32": {"_part', "line 2 is damaged"),
        (JOURNAL, '"crc32": {"seeds"', '"crc32": {"seed"', "line 1 is damaged"),
        (JOURNAL, SEEDS, "../x.npy", "line 1 is damaged"),
        (JOURNAL, '"event": "begin"', '"event": "done"', "line 1 is damaged"),
    ],
)
def test_what_a_forged_folder_says(halfway, name, was, now, says):
    """Whoever can write the checksums, too, cannot name files elsewhere or numbers that take all memory."""
    forged(halfway, name, was, now)
    assert says in refused(halfway, looked_at)


@pytest.mark.parametrize(("kind", "says"), [("parquet", "findings file"), ("keys.npy", ""), ("state.safetensors", "")])
def test_files_that_are_nothing_but_have_the_right_checksum(halfway, kind, says):
    path = halfway / f"local-00001.{kind}"
    was = zlib.crc32(path.read_bytes())
    path.write_bytes(b"nothing")
    forged(halfway, JOURNAL, str(was), str(zlib.crc32(b"nothing")))
    with pytest.raises(RunError, match=rf"{path}: .*damaged or (gone|not).*{says}"):
        Run.open(halfway).resume("local")


def test_a_folder_of_the_first_format_is_not_read(halfway):
    (halfway / MANIFEST).write_text('{\n  "neuronfair": "0.1.0",\n  "plan": {}\n}\n', encoding="utf-8")
    assert "was written in format 1 by another version of neuronfair" in refused(halfway)


def test_a_folder_in_the_place_of_a_file(halfway):
    path = next(halfway.glob("local-*.parquet"))
    path.unlink()
    path.mkdir()
    for way in (looked_at, gone_on_with):
        with pytest.raises(RunError, match=rf"{path}: cannot be read"):
            way(halfway)
