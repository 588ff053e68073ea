from __future__ import annotations

import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from neuronfair.domain.drawn import drawn_pictures
from neuronfair.domain.pictures import Pictures, load_pictures, read_pictures
from neuronfair.errors import DataError


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
    pictures = read_pictures(*folder)
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
    assert pictures.faces.files == ("a.png", "sub/b.png", "large.png")


def test_a_zip_archive_and_the_cache_give_the_same_pixels(folder, tmp_path):
    home, labels = folder
    archive = tmp_path / "photos.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in home.rglob("*.png"):
            file.write(path, path.relative_to(home).as_posix())
    plain = read_pictures(home, labels)
    first, second = (read_pictures(archive, labels, cache=tmp_path / "cache") for _ in range(2))
    assert (tmp_path / "cache").is_dir()
    for other in (first, second):
        assert torch.equal(other.pixels, plain.pixels)
        assert other.files == plain.files
    assert len(second.notes) == len(plain.notes)


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
        read_pictures(home, path)


def test_attributes_that_say_nothing_are_refused(folder):
    home, path = folder
    path.write_text("file,gender\na.png,f\nsub/b.png,f\n")
    with pytest.raises(DataError, match=r"one value only \('f'\)"):
        read_pictures(home, path).attribute("gender")
    with pytest.raises(DataError, match=r"no column 'gendre'.*Did you mean 'gender'"):
        read_pictures(home, path).attribute("gendre")


def test_what_is_not_there_is_said(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="no such folder or zip"):
        read_pictures(tmp_path / "none", tmp_path / "none.csv")
    with pytest.raises(DataError, match="no set of pictures 'lfw'"):
        load_pictures("lfw")
    monkeypatch.delenv("NEURONFAIR_DATA", raising=False)
    with pytest.raises(DataError, match="set NEURONFAIR_DATA"):
        load_pictures("lfw_in")


def test_some_keeps_the_proportion_and_join_fills_missing_columns():
    drawn = drawn_pictures(20, 40, side=16)
    some = drawn.some(5, seed=1)
    assert (int(some.is_face.sum()), len(some)) == (5, 15)
    bare = Pictures("bare", drawn.pixels[:2], ("x", "y"), {"age": ["1", "2"]}, drawn.is_face[:2])
    both = Pictures.join("both", [drawn, bare])
    assert both.columns["cast"][-2:] == ["", ""]
    assert both.columns["age"][:20] == [""] * 20
    assert both.attribute("cast")[1][-2:].tolist() == [-1, -1]


def test_the_cast_of_drawn_pictures_is_in_their_colours():
    drawn = drawn_pictures(30, 30, side=16)
    classes, cast = drawn.attribute("cast")
    redder = (drawn.pixels[:, 0].float() - drawn.pixels[:, 2].float()).mean((1, 2)) > 0
    assert classes == ("cool", "warm")
    assert np.array_equal(redder.numpy(), (cast == 1).numpy())


def test_lfw_in_is_composed_from_the_published_archives(shared_data):
    if not (shared_data / "images" / "lfw_faces.zip").is_file():
        pytest.skip("the picture archives are not here")
    with zipfile.ZipFile(shared_data / "images" / "lfw_faces.zip") as archive:
        assert len(archive.namelist()) == 10_000
