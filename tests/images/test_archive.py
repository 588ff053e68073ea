from __future__ import annotations

import struct
import zipfile
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from neuronfair.errors import DataError
from neuronfair.images.archive import draw_images, read_images
from neuronfair.limits import TooLargeError
from tests.bombs import lying_archive, zipped


@pytest.fixture
def folder(tmp_path):
    """Four pictures (one grey, one of another size), a text file with the name of a picture, and their labels."""
    home = tmp_path / "photos"
    (home / "sub").mkdir(parents=True)
    for name, colour in (("a.png", (200, 10, 30)), ("sub/b.png", (1, 2, 3))):
        Image.new("RGB", (64, 64), colour).save(home / name)
    Image.new("L", (64, 64), 77).save(home / "grey.png")
    Image.new("RGB", (100, 50), (9, 9, 9)).save(home / "large.png")
    (home / "text.png").write_text("not a picture")
    labels = tmp_path / "labels.csv"
    labels.write_text(
        "file,gender,is_face\na.png,f,1\nsub/b.png,m,1\ngrey.png,,0\nlarge.png,m,1\ntext.png,m,1\ngone.png,f,1\n"
    )
    return home, labels


def test_a_folder_is_read_with_notes_on_everything_that_is_not_as_expected(folder):
    pictures = read_images(*folder)
    assert pictures.files == ("a.png", "sub/b.png", "grey.png", "large.png")
    assert pictures.pixels.shape == (4, 3, 64, 64)
    assert pictures.pixels.dtype == torch.uint8
    assert pictures.pixels[0, :, 5, 5].tolist() == [200, 10, 30]
    assert pictures.pixels[2, :, 0, 0].tolist() == [77, 77, 77]
    assert pictures.is_face.tolist() == [True, True, False, True]
    assert pictures.attribute("gender")[0] == ("f", "m")
    assert pictures.attribute("gender")[1].tolist() == [0, 1, -1, 1]
    for words in (
        "1 labelled files are not in photos",
        "1 files in photos are no pictures, 'text.png'",
        "1 pictures in photos were resized to 64 x 64",
        "made RGB from grey",
    ):
        assert any(words in note for note in pictures.notes), words


def test_a_zip_archive_gives_the_same_pixels(folder, tmp_path):
    home, labels = folder
    archive = tmp_path / "photos.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in home.rglob("*.png"):
            file.write(path, path.relative_to(home).as_posix())
    plain = read_images(home, labels)
    other = read_images(archive, labels)
    assert torch.equal(other.pixels, plain.pixels)
    assert other.files == plain.files
    assert len(other.notes) == len(plain.notes)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ("name,gender\na.png,f\n", "expected a column 'file'"),
        ("file,gender\nx.png,f\n", "none of its files is in"),
        ("file,gender\na.png,f\na.png,m\n", "'a.png' is labelled twice"),
        ("file,gender\ntext.png,f\n", "none of the labelled files is a picture"),
        ("file,gender,is_face\na.png,f,perhaps\n", "expected 1 or 0, got 'perhaps'"),
    ],
)
def test_labels_that_do_not_fit_are_refused(folder, labels, says):
    home, path = folder
    path.write_text(labels)
    with pytest.raises(DataError, match=says):
        read_images(home, path)


def test_attributes_that_say_nothing_are_refused(folder):
    home, path = folder
    path.write_text("file,gender\na.png,f\nsub/b.png,f\n")
    with pytest.raises(DataError, match=r"one value only \('f'\)"):
        read_images(home, path).attribute("gender")
    with pytest.raises(DataError, match=r"no column 'gendre'.*Did you mean 'gender'"):
        read_images(home, path).attribute("gendre")


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(DataError, match="no such folder or zip"):
        read_images(tmp_path / "none", tmp_path / "none.csv")


def test_some_keeps_the_proportion():
    drawn = draw_images(20, 40, side=16)
    some = drawn.sample(5, seed=1)
    assert (int(some.is_face.sum()), len(some)) == (5, 15)


def test_the_cast_of_drawn_pictures_is_in_their_colours():
    drawn = draw_images(30, 30, side=16)
    classes, cast = drawn.attribute("cast")
    redder = (drawn.pixels[:, 0].float() - drawn.pixels[:, 2].float()).mean((1, 2)) > 0
    assert classes == ("cool", "warm")
    assert np.array_equal(redder.numpy(), (cast == 1).numpy())


def test_lfw_in_is_composed_from_the_published_archives(shared_data):
    if not (shared_data / "images" / "lfw_faces.zip").is_file():
        pytest.skip("the picture archives are not here")
    with zipfile.ZipFile(shared_data / "images" / "lfw_faces.zip") as archive:
        assert len(archive.namelist()) == 10_000


def png(width: int, height: int) -> bytes:
    """The beginning of a PNG file of this size."""
    parts = b""
    for kind, data in ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", b"")):
        parts += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return b"\x89PNG\r\n\x1a\n" + parts


def bmp(width: int, height: int) -> bytes:
    return b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("content", [png(12_000, 12_000), bmp(12_000, 12_000), png(2**31 - 1, 2**31 - 1)])
@pytest.mark.parametrize("packed", [False, True])
def test_pictures_that_are_too_large_are_left_out_and_nothing_warns(folder, content, packed):
    """Pillow would warn of the first two, and warnings are errors here."""
    home, labels = folder
    (home / "sub" / "b.png").write_bytes(content)
    if packed:
        (home.parent / "p.zip").write_bytes(zipped({n: (home / n).read_bytes() for n in ("a.png", "sub/b.png")}))
        home = home.parent / "p.zip"
    pictures = read_images(home, labels)
    assert "sub/b.png" not in pictures.files
    assert pictures.pixels[0, :, 5, 5].tolist() == [200, 10, 30]
    assert [note for note in pictures.notes if "too large" in note] == [
        f"1 files in {home.name} are too large, 'sub/b.png' for one: left out. "
        "If you trust them, set NEURONFAIR_MAX_BYTES."
    ]


def test_the_limit_for_one_picture(folder, monkeypatch):
    """Four at a time, each with its file and 8 bytes a pixel: 100 x 50 pixels take 160,000 bytes and a little."""
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "150000")
    home, labels = folder
    assert "large.png" not in read_images(home, labels).files
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "170000")
    assert "large.png" in read_images(home, labels).files


def test_all_pictures_together_are_limited(folder, monkeypatch):
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "50000")  # 5 pictures of 64 x 64 x 3 bytes
    with pytest.raises(TooLargeError, match="photos"):
        read_images(*folder)


@pytest.mark.parametrize("name", ["a.png", "a.gif", "a.tif"])
def test_archives_of_which_nothing_is_left_say_why(tmp_path, monkeypatch, name):
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "1000000")
    (tmp_path / "labels.csv").write_text(f"file,gender\n{name},f\n")
    (tmp_path / "p.zip").write_bytes(zipped({name: bytes(10_000_000)}))
    with pytest.raises(DataError, match=r"none of the labelled files.* are too large"):
        read_images(tmp_path / "p.zip", tmp_path / "labels.csv")
    (tmp_path / "p.zip").write_bytes(lying_archive(name, bytes(10_000_000), said=100))
    with pytest.raises(DataError, match=r"none of the labelled files.* are no pictures"):
        read_images(tmp_path / "p.zip", tmp_path / "labels.csv")


def test_only_common_kinds_of_pictures_are_read(folder):
    """A file may be of another kind than its name says; some kinds are programs for an interpreter."""
    home, labels = folder
    (home / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\n")
    for kind, name in (("TGA", "sub/b.png"), ("WEBP", "grey.png")):
        Image.new("RGB", (64, 64), (9, 9, 9)).save(home / name, kind)
    pictures = read_images(home, labels)
    assert pictures.files == ("grey.png", "large.png")
    assert any(note.startswith("3 files in photos are no pictures") for note in pictures.notes)


def test_an_archive_that_is_none(tmp_path):
    (tmp_path / "lfw_faces.zip").write_text("no archive")
    (tmp_path / "labels.csv").write_text("file,gender\na.png,f\n")
    with pytest.raises(DataError, match=r"lfw_faces\.zip: neither a folder nor a readable zip archive"):
        read_images(tmp_path / "lfw_faces.zip", tmp_path / "labels.csv")
