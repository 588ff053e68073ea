"""The sets of pictures of the paper: faces and other things, each a zip archive with its labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from neuronfair.errors import DataError, did_you_mean
from neuronfair.images.archive import ImageSet, read_images

import torch

SETS: dict[str, tuple[str, str]] = {  # faces and non-faces; each is NAME.zip with NAME.csv
    "lfw_in": ("lfw_faces", "tin_nonfaces"),
    "clba_in": ("celeba_faces", "tin_nonfaces"),
    "utk_in": ("utkface_faces", "tin_nonfaces"),
}
CAVEATS = {"lfw_in": "The race labels of LFW are predictions of another network, not annotations."}


def load_images(name: str, folder: str | Path | None = None) -> ImageSet:
    """Return lfw_in, clba_in or utk_in from a folder of their zip archives ($NEURONFAIR_DATA/images by default)."""
    if name not in SETS:
        raise DataError(f"no set of pictures '{name}'. {did_you_mean(name, SETS)}")
    if folder is None:
        home = os.environ.get("NEURONFAIR_DATA")
        if not home:
            raise DataError(f"{name}: set NEURONFAIR_DATA to the folder that holds images/{SETS[name][0]}.zip")
        folder = Path(home) / "images"
    folder = Path(folder)
    parts = [read_images(folder / f"{part}.zip", folder / f"{part}.csv") for part in SETS[name]]
    joined = join(name, parts)
    return replace(joined, notes=(*joined.notes, *([CAVEATS[name]] if name in CAVEATS else [])))


def join(name: str, parts: Sequence[ImageSet]) -> ImageSet:
    """Return several sets as one; a label that one of them lacks is empty there."""
    names = list(dict.fromkeys(column for part in parts for column in part.columns))
    columns = {
        column: [value for part in parts for value in part.columns.get(column, [""] * len(part))] for column in names
    }
    return ImageSet(
        name,
        torch.cat([part.pixels for part in parts]),
        tuple(file for part in parts for file in part.files),
        columns,
        torch.cat([part.is_face for part in parts]),
        tuple(note for part in parts for note in part.notes),
    )
