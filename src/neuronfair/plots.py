"""Figures, drawn without a display: results draw on axes from here. matplotlib is optional."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neuronfair.atomic import replace_file
from neuronfair.errors import NeuronFairError, require
from neuronfair.formatting import printable

PICTURE_SUFFIXES = (".png", ".svg", ".pdf")


def import_matplotlib() -> Any:
    """Return the library that draws, or say how to install it."""
    return require("matplotlib", "plots", "drawing", NeuronFairError)


@contextmanager
def saved_figure(path: Path, *, size: tuple[float, float]) -> Iterator[Any]:
    """Give an empty figure to draw into, and write it to a file when the drawing is done."""
    import_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    yield figure
    for text in figure.findobj(Text):  # a name is shown as it is, even if it looks like a formula
        text.set_text(printable(text.get_text(), keep="\n"))
        text.set_parse_math(False)
    with replace_file(path.resolve()) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # the font lacks most of the world's letters
        figure.savefig(temporary, dpi=150)


def new_axes(size: tuple[float, float] = (7, 3.5)) -> Any:
    """Return the axes of an empty figure."""
    import_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained").add_subplot()
