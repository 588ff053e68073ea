"""The three pictures of docs/images.md, from the planted case: a cast that one detector reads and another does not.

    python experiments/draw_planted.py docs/img

No photograph is involved. The figures behind the bars are printed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from neuronfair.vision.audit import compare, subject
from neuronfair.vision.drawn import drawn_pictures
from neuronfair.vision.page import write_sheet
from neuronfair.vision.planted import cast_classifier, cast_detector

import numpy as np
import torch

METHODS = ("neuronfair", "adf", "eidig", "halving")


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/img")
    folder.mkdir(parents=True, exist_ok=True)
    examples(folder / "planted_pictures.png")
    faces = drawn_pictures(200, 0, side=32).pixels
    shares = {}
    for reads_cast in (True, False):
        under_test = subject(
            cast_detector(reads_cast=reads_cast), cast_classifier(), faces, torch.zeros(200, dtype=torch.bool),
            name="drawn", sensitive="cast",
        )  # fmt: skip
        found, figures = compare(under_test, METHODS)
        shares[reads_cast] = {name: line["share_of_seeds"] for name, line in figures.items()}
        for name, line in figures.items():
            print(
                f"reads the cast: {reads_cast}; {name}: {line['idis']} of {line['seeds']} seeds, GSR {line['gsr']:.2%}"
            )
        if reads_cast:
            late = found["halving"].findings
            late = late[late.step > 0]
            write_sheet(folder / "planted_pairs.png", under_test.domain, late[::12][:4], ("no face", "face"))
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
