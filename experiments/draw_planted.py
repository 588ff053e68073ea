"""The picture of docs/howto/text.md: two detectors, of which one reads the colour cast of drawn images.

    python -m experiments.draw_planted docs/img

It prints the figures behind the bars.
"""

from __future__ import annotations

import sys
from pathlib import Path

from experiments.planted import cast_classifier, cast_detector
from neuronfair.images.archive import draw_images
from neuronfair.images.audit import ImageSplit, find_subject
from neuronfair.images.search import ImageSettings, list_image_methods, report_search, search_with_controls

import numpy as np
import torch

SIDE = 32  # of the images


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/img")
    folder.mkdir(parents=True, exist_ok=True)
    faces = draw_images(200, 0, side=SIDE)
    nobody = torch.zeros(200, dtype=torch.bool)
    split = ImageSplit(faces.pixels, faces.is_face, faces.attribute("cast")[1], held_out=nobody)
    shares = {}
    for reads_cast in (True, False):
        detector = cast_detector(reads_cast=reads_cast)
        under_test = find_subject(detector, cast_classifier(), split, name="drawn", sensitive="cast")
        found = search_with_controls(under_test, list(list_image_methods()), ImageSettings(chains=512))
        walks = {name: report_search(under_test.attribute, one) for name, one in found.items()}
        shares[reads_cast] = {name: walk.share_of_faces for name, walk in walks.items()}
        for name, walk in walks.items():
            print(f"reads the cast: {reads_cast}; {name}: {walk.findings} of {walk.seeds} seeds, GSR {walk.gsr:.2%}")
    bars(shares, folder / "planted_controls.png")


def bars(shares: dict[bool, dict[str, float]], path: Path) -> None:
    """Draw the share of starts from which a pair is found, for both detectors."""
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
    axes.set_xlabel("starts from which a pair is found (%)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
