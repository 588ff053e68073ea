"""The three pictures of docs/images.md, from a planted case: a cast that one detector reads and another does not.

    python -m experiments.draw_planted docs/img

No photograph is involved. The figures behind the bars are printed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.planted import cast_classifier, cast_detector
from neuronfair.images.drawn import drawn_pictures
from neuronfair.images.page import ENLARGED, enlarged, panels
from neuronfair.images.report import walk_report
from neuronfair.images.search import PictureSettings
from neuronfair.images.subject import ImageSplit, compare, subject
from neuronfair.searches.methods import picture_methods

import numpy as np
import torch
from torch import Tensor

SIDE = 32  # of the pictures that are walked
GAP = 16  # pixels between pictures of a sheet


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/img")
    folder.mkdir(parents=True, exist_ok=True)
    examples(folder / "planted_pictures.png")
    faces = drawn_pictures(200, 0, side=SIDE)
    nobody = torch.zeros(200, dtype=torch.bool)
    split = ImageSplit(faces.pixels, faces.is_face, faces.attribute("cast")[1], held=nobody)
    shares = {}
    for reads_cast in (True, False):
        detector = cast_detector(reads_cast=reads_cast)
        under_test = subject(detector, cast_classifier(), split, name="drawn", sensitive="cast")
        found = compare(under_test, list(picture_methods()), PictureSettings(walkers=512))
        walks = {name: walk_report(under_test.attribute, one) for name, one in found.items()}
        shares[reads_cast] = {name: walk.share_of_faces for name, walk in walks.items()}
        for name, walk in walks.items():
            print(f"reads the cast: {reads_cast}; {name}: {walk.findings} of {walk.seeds} seeds, GSR {walk.gsr:.2%}")
        if reads_cast:
            late = found["halving"].findings
            late = late[late.step > 0]
            write_sheet(folder / "planted_pairs.png", panels(under_test.domain, late[::12][:4], ("no face", "face")))
    bars(shares, folder / "planted_controls.png")


def examples(path: Path) -> None:
    """Draw warm pictures above cool ones, four faces and two other things each."""
    from PIL import Image

    drawn = drawn_pictures(40, 40)
    _, cast = drawn.attribute("cast")
    lines = []
    for value in (1, 0):
        chosen = [
            *((cast == value) & drawn.is_face).nonzero()[:4, 0],
            *((cast == value) & ~drawn.is_face).nonzero()[:2, 0],
        ]
        lines.append(np.concatenate([drawn.pixels[i].numpy().transpose(1, 2, 0) for i in chosen], 1))
    Image.fromarray(np.concatenate(lines)).save(path, optimize=True)


def write_sheet(path: Path, shown: Sequence[Sequence[tuple[Tensor, str]]]) -> None:
    """Write pictures with their texts as one PNG, line by line."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", 11)
    side = SIDE * ENLARGED
    height = side + 20
    sheet = Image.new("RGB", (len(shown[0]) * (side + GAP) + GAP, len(shown) * (height + GAP) + GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for i, line in enumerate(shown):
        for j, (picture, text) in enumerate(line):
            x, y = GAP + j * (side + GAP), GAP + i * (height + GAP)
            sheet.paste(enlarged(picture), (x, y))
            draw.text((x, y + height - 16), text, fill="black", font=font)
    sheet.save(path)


def bars(shares: dict[bool, dict[str, float]], path: Path) -> None:
    """Draw the share of seeds from which a pair is found, on both detectors."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    names = list(shares[True])
    place = np.arange(len(names))
    for offset, (reads_cast, label) in ((-0.2, (True, "reads the cast")), (0.2, (False, "blind to the cast"))):
        heights = [100 * shares[reads_cast][name] for name in names]
        drawn = axes.barh(place + offset, heights, 0.38, label=f"detector {label}")
        axes.bar_label(drawn, fmt="%.0f", padding=3, fontsize=9)
    axes.set_yticks(place, names)
    axes.invert_yaxis()
    axes.set_xlabel("seeds from which a pair is found (%)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
