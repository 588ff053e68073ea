"""The sets of pictures of the paper."""

from __future__ import annotations

import pytest

from experiments.image_sets import join, load_images
from neuronfair.errors import DataError
from neuronfair.images.archive import ImageSet, draw_images


def test_sets_that_are_not_here(monkeypatch):
    with pytest.raises(DataError, match=r"no set of pictures 'lfv_in'.*Did you mean 'lfw_in'"):
        load_images("lfv_in")
    monkeypatch.delenv("NEURONFAIR_DATA", raising=False)
    with pytest.raises(DataError, match=r"set NEURONFAIR_DATA to the folder that holds images/\w+\.zip"):
        load_images("lfw_in")


def test_a_label_that_one_of_two_lacks_is_empty_there():
    drawn = draw_images(20, 40, side=16)
    bare = ImageSet("bare", drawn.pixels[:2], ("x", "y"), {"age": ["1", "2"]}, drawn.is_face[:2])
    both = join("both", [drawn, bare])
    assert both.columns["cast"][-2:] == ["", ""]
    assert both.columns["age"][:20] == [""] * 20
    assert both.attribute("cast")[1][-2:].tolist() == [-1, -1]
