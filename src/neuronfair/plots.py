"""Figures, drawn without a display: the `plot` of results draws on axes from here. matplotlib is optional."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neuronfair.atomic import replacing
from neuronfair.errors import NeuronFairError, needs
from neuronfair.formatting import visible

PICTURES = (".png", ".svg", ".pdf")


def drawing() -> Any:
    """Return the library that draws, or say how to install it."""
    return needs("matplotlib", "plots", "drawing", NeuronFairError)


@contextmanager
def saved_figure(path: Path, *, size: tuple[float, float]) -> Iterator[Any]:
    """Give an empty figure to draw into, and write it to a file when the drawing is done."""
    drawing()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    yield figure
    for text in figure.findobj(Text):  # a name is shown as it is, even if it looks like a formula
        text.set_text(visible(text.get_text(), keep="\n"))
        text.set_parse_math(False)
    with replacing(path.resolve()) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # the font lacks most of the world's letters
        figure.savefig(temporary, dpi=150)


def new_axes(size: tuple[float, float] = (7, 3.5)) -> Any:
    """Return the axes of an empty figure."""
    drawing()
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained").add_subplot()
