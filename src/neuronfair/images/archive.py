"""Pictures on disk: a folder or a zip archive of images and a table that labels them, read as 8-bit tensors."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.tables.files import read_sheet
from neuronfair.errors import DataError, did_you_mean, find_repeated, require
from neuronfair.limits import SIZE_VARIABLE, TooLargeError, check_size, open_archive, read_bytes, read_member

IMAGE_SIDE = 64  # pixels: height and width of every picture, as in the paper
IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm"}
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # those of the suffixes, as Pillow calls them
DECODING_THREADS = 4  # pictures that are decoded at the same time
BYTES_PER_PIXEL = 8  # bytes that a pixel takes while it is read: as it was saved, and as RGB
DRAWN_SOURCE = "drawn"  # pictures that need no data

ReadMember = Callable[[str], bytes]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Pictures of one size with what is known about them.

    `columns` are those of the label file, as text; `is_face` is True for every picture where the file does not say.
    `notes` tell in one sentence each what was changed or left out on the way.
    """

    name: str
    pixels: Tensor  # (n, 3, side, side), uint8
    files: tuple[str, ...]
    columns: Mapping[str, Sequence[str]]
    is_face: Tensor  # (n,), bool
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, indices: Tensor) -> ImageSet:
        """Return some of the pictures, by their numbers."""
        positions = indices.tolist()
        columns = {name: [values[i] for i in positions] for name, values in self.columns.items()}
        files = tuple(self.files[i] for i in positions)
        return ImageSet(self.name, self.pixels[indices], files, columns, self.is_face[indices], self.notes)

    def attribute(self, name: str) -> tuple[tuple[str, ...], Tensor]:
        """Return the classes of an attribute and the class of each picture, -1 where the cell is empty: int64, (n,)."""
        if name not in self.columns:
            raise DataError(f"{self.name}: the labels have no column '{name}'. {did_you_mean(name, self.columns)}")
        values = [value.strip() for value in self.columns[name]]
        classes = tuple(sorted(set(values) - {""}))
        if len(classes) < 2:
            values_text = f"one value only ('{classes[0]}')" if classes else "no value at all"
            raise DataError(f"{self.name}: column '{name}' holds {values_text}, so there is nothing to tell apart")
        index = {value: i for i, value in enumerate(classes)} | {"": -1}
        return classes, torch.tensor([index[value] for value in values])

    def sample(self, faces: int, *, seed: int = 0) -> ImageSet:
        """Return so many random faces, and non-faces in the same proportion."""
        generator = torch.Generator().manual_seed(seed)
        groups = [(self.is_face == kind).nonzero()[:, 0] for kind in (True, False)]
        share = min(1.0, faces / max(1, len(groups[0])))
        parts = [g[torch.randperm(len(g), generator=generator)[: round(share * len(g))]] for g in groups]
        return self[torch.cat(parts).sort().values]


def open_images(source: str, labels: Path | None = None, *, faces: int | None = None, seed: int = 0) -> ImageSet:
    """Return the pictures that a name stands for: a folder or zip archive with labels, or `drawn`.

    With `faces`, so many random ones, and non-faces in the same proportion.
    """
    if source == DRAWN_SOURCE:
        return draw_images(faces or 400, faces or 400, seed=seed)
    if not Path(source).exists():
        raise DataError(f"{source}: neither a folder nor a zip archive. {did_you_mean(source, [DRAWN_SOURCE])}")
    if labels is None:
        raise DataError(f"{source}: give --labels, a CSV file with the columns file and the sensitive attribute")
    pictures = read_images(source, labels)
    return pictures if faces is None else pictures.sample(faces, seed=seed)


def read_images(source: str | Path, labels: str | Path, *, side: int = IMAGE_SIDE) -> ImageSet:
    """Read a folder or a zip archive of pictures and the table that labels them.

    The table has a column `file`, the path inside the folder or archive, and one column per attribute; `is_face` says
    0 for pictures without a face. Pictures of another size are resized, grey ones become RGB, and files that are no
    pictures, or too large, are left out; `notes` says so.
    """
    source, labels = Path(source), Path(labels)
    if not source.exists():
        raise DataError(f"{source}: there is no such folder or zip archive")
    sheet = read_sheet(labels)
    if "file" not in sheet.columns:
        raise DataError(f"{labels}: expected a column 'file'. {did_you_mean('file', sheet.columns)}")
    files = sheet.columns["file"]
    repeated_file = find_repeated(files)
    if repeated_file is not None:
        raise DataError(f"{labels}: '{repeated_file}' is labelled twice")
    notes: list[str] = []
    with _open_source(source) as (names, read):
        unlabelled = len(names - set(files))
        if unlabelled:
            notes.append(f"{unlabelled:,} of {len(names):,} pictures in {source.name} have no label: left out.")
        missing = [file for file in files if file not in names]
        if len(missing) == len(files):
            raise DataError(f"{labels}: none of its files is in {source}, '{files[0]}' for one. Check the folder")
        if missing:
            notes.append(f"{len(missing):,} labelled files are not in {source.name}, '{missing[0]}' for one: left out.")
        indices = [i for i, file in enumerate(files) if file in names]
        pixels, is_sound, decoding_notes = _decode(read, [files[i] for i in indices], side, source)
        notes += decoding_notes
    indices = [i for i, is_readable in zip(indices, is_sound, strict=True) if is_readable]
    if not indices:
        reason = " ".join(notes)
        raise DataError(f"{source}: none of the labelled files is a picture that can be read. {reason}")
    columns = {name: [cells[i] for i in indices] for name, cells in sheet.columns.items() if name != "file"}
    is_face = _read_truth(columns.pop("is_face", ["1"] * len(indices)), labels)
    return ImageSet(source.stem, pixels, tuple(files[i] for i in indices), columns, is_face, tuple(notes))


@contextmanager
def _open_source(source: Path) -> Iterator[tuple[set[str], ReadMember]]:
    """Give the names of the pictures in a folder or a zip archive, and what reads one; anything else is not seen."""
    if source.is_dir():
        names = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
        yield _filter_images(names), lambda name: read_bytes(source / name, times=DECODING_THREADS)
        return
    try:
        archive = open_archive(source, source)
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{source}: neither a folder nor a readable zip archive ({error})") from None
    with archive:
        yield _filter_images(archive.namelist()), lambda name: read_member(archive, name, times=DECODING_THREADS)


def _filter_images(names: Iterable[str]) -> set[str]:
    return {name for name in names if Path(name).suffix.lower() in IMAGE_SUFFIXES}


def _decode(read: ReadMember, files: Sequence[str], side: int, source: Path) -> tuple[Tensor, list[bool], list[str]]:
    """Return pixels, which files are pictures, and notes."""
    import_pillow().init()
    check_size(len(files) * 3 * side * side, source)
    pixels = np.zeros((len(files), 3, side, side), np.uint8)
    with ThreadPoolExecutor(DECODING_THREADS) as pool:
        changes_by_file = list(pool.map(partial(_decode_file, read), files, pixels))
    is_sound = [not changes & {"damaged", "large"} for changes in changes_by_file]
    notes = []
    for change, sentence in (
        ("damaged", "files in {} are no pictures, '{}' for one: left out."),
        ("large", f"files in {{}} are too large, '{{}}' for one: left out. If you trust them, set {SIZE_VARIABLE}."),
        ("resized", f"pictures in {{}} were resized to {side} x {side}."),
        ("grey", "pictures in {} were made RGB from grey or palette."),
    ):
        changed_files = [file for file, changes in zip(files, changes_by_file, strict=True) if change in changes]
        if changed_files:
            notes.append(f"{len(changed_files):,} {sentence.format(source.name, changed_files[0])}")
    pixels = pixels if all(is_sound) else pixels[np.array(is_sound)]
    return torch.from_numpy(pixels), is_sound, notes


def import_pillow() -> Any:
    """Return the library that reads and writes pictures, or say how to install it."""
    return require("PIL.Image", "images", "a test on pictures", DataError)


def _decode_file(read: ReadMember, name: str, pixels: np.ndarray) -> set[str]:
    """Decode one picture into `pixels`, (3, side, side), and return what was changed, or why it is left out."""
    from PIL import Image

    changes = set()
    try:
        content = read(name)
    except TooLargeError:
        return {"large"}
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError):
        return {"damaged"}
    try:
        with _open_image(content) as image:
            check_size(len(content) + BYTES_PER_PIXEL * math.prod(image.size), name, times=DECODING_THREADS)
            if image.mode != "RGB":
                changes.add("grey")
            picture = image.convert("RGB")
            if image.size != pixels.shape[1:]:
                changes.add("resized")
                picture = picture.resize(pixels.shape[1:], Image.Resampling.LANCZOS)
    except (TooLargeError, MemoryError, Image.DecompressionBombError, Image.DecompressionBombWarning):
        return {"large"}
    except Exception:  # a damaged file can fail anywhere in the reader
        return {"damaged"}
    pixels[:] = np.asarray(picture, dtype=np.uint8).transpose(2, 0, 1)
    return changes


def _open_image(content: bytes) -> Any:
    """Return a picture of a common kind, not yet decoded: Image.open would warn of large ones in words of its own."""
    from PIL import Image

    for kind in FORMATS:
        make, accepts = Image.OPEN.get(kind, (None, None))
        if make is not None and accepts is not None and accepts(content[:16]) is True:
            return make(io.BytesIO(content), "")
    raise ValueError("not a picture")


def _read_truth(cells: Sequence[str], labels: Path) -> Tensor:
    values = {"1": True, "true": True, "yes": True, "face": True, "0": False, "false": False, "no": False, "": True}
    for cell in cells:
        if cell.strip().lower() not in values:
            raise DataError(f"{labels}: column 'is_face': expected 1 or 0, got '{cell}'")
    return torch.tensor([values[cell.strip().lower()] for cell in cells])


COLOUR_SHIFT = (4, 14)  # grey levels by which red and blue are moved, at least and at most


def draw_images(face_count: int, other_count: int, *, side: int = IMAGE_SIDE, seed: int = 0) -> ImageSet:
    """Draw faces and other things, half of them warm and half cool."""
    rng = np.random.default_rng(seed)
    is_face = np.arange(face_count + other_count) < face_count
    warm = rng.random(face_count + other_count) < 0.5
    grey = np.stack([_draw_face(rng, side) if face else _draw_thing(rng, side) for face in is_face])
    shift = rng.integers(*COLOUR_SHIFT, len(grey)) * np.where(warm, 1, -1)
    colours = np.stack([grey + shift[:, None, None], grey, grey - shift[:, None, None]], 1)
    noise = rng.normal(0, 3, colours.shape)
    pixels = np.clip(np.round(colours + noise), 0, 255).astype(np.uint8)
    return ImageSet(
        "drawn",
        torch.from_numpy(pixels),
        tuple(f"{'face' if face else 'thing'}{i:05d}.png" for i, face in enumerate(is_face)),
        {"cast": ["warm" if w else "cool" for w in warm]},
        torch.from_numpy(is_face),
    )


def _draw_face(rng: np.random.Generator, side: int) -> np.ndarray:
    """Return the grey levels of a disc with two eyes and a mouth, before a plain ground: (side, side)."""
    y, x = np.mgrid[0:side, 0:side] / side
    cx, cy = rng.uniform(0.44, 0.56, 2)
    radius = rng.uniform(0.28, 0.38)
    u, v = (x - cx) / radius, (y - cy) / (radius * rng.uniform(1.05, 1.25))
    skin, dark = rng.uniform(120, 200), rng.uniform(25, 70)
    picture = np.full((side, side), rng.uniform(30, 225))
    picture[u**2 + v**2 < 1] = skin
    for eye in (-0.4, 0.4):
        picture[(u - eye) ** 2 + (v + 0.25) ** 2 < 0.018] = dark
    picture[(np.abs(u) < 0.38) & (np.abs(v - 0.45 - 0.25 * u**2 * rng.uniform(-1, 1)) < 0.07)] = dark
    return picture


def _draw_thing(rng: np.random.Generator, side: int) -> np.ndarray:
    """Return the grey levels of stripes and a few boxes: (side, side)."""
    y, x = np.mgrid[0:side, 0:side] / side
    angle, waves = rng.uniform(0, np.pi), rng.uniform(1, 6)
    middle, height = rng.uniform(80, 170), rng.uniform(10, 60)
    wave = np.sign(np.sin(2 * np.pi * waves * (x * np.cos(angle) + y * np.sin(angle))))
    picture: np.ndarray = middle + height * wave
    for _ in range(int(rng.integers(1, 4))):
        top, left = rng.integers(0, side * 3 // 4, 2)
        tall, wide = rng.integers(side // 8, side // 2, 2)
        picture[top : top + tall, left : left + wide] = rng.uniform(20, 230)
    return picture
