"""Pictures, drawn without a display."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neuronfair.atomic import replacing
from neuronfair.audits.report.report import Report
from neuronfair.errors import NeuronFairError, needs
from neuronfair.formatting import OF, visible
from neuronfair.interpretation.profile import BiasProfile

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


def plot_as_curves(profile: BiasProfile, path: Path, *, title: str) -> None:
    """Draw the AS curve of every layer with the line y = x that cuts out the biased neurons."""
    with saved_figure(path, size=(7.5, 6.2)) as figure:
        _as_curves(profile, figure, title)


def _as_curves(profile: BiasProfile, figure: Any, title: str) -> None:
    axes = figure.add_subplot()
    for layer in profile.layers:
        worst = layer is profile.worst
        x = [*layer.thresholds.tolist(), float(layer.reaction.max())]
        y = [*(100 * layer.rates).tolist(), 0.0]
        label = f"{layer.name}: AUC {layer.auc:.3f}, {len(layer.biased)} of {len(layer.act_diff)} biased"
        (line,) = axes.step(x, y, where="post", label=label, linewidth=2.6 if worst else 1.4, zorder=3 if worst else 2)
        if layer.reacts:
            axes.plot(
                [layer.cut], [100 * layer.cut], "o", color=line.get_color(), markersize=7 if worst else 4, zorder=4
            )
    axes.plot([0, 1], [0, 100], color="0.5", linestyle="--", linewidth=1, label="y = x: neurons right of it are biased")
    axes.set(xlim=(0, 1), ylim=(0, 102), title=title)
    axes.set_xlabel("reaction of a neuron to the sensitive attribute, tanh(ActDiff)")
    axes.set_ylabel("neurons that react more strongly (%)")
    axes.grid(color="0.92")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)


def draw_rates(report: Report, axes: Any = None) -> Any:
    """Draw the flip rates of an audit with their confidence intervals; return the axes of matplotlib."""
    drawing()
    if axes is None:
        from matplotlib.figure import Figure

        axes = Figure(figsize=(7, 3.5), layout="constrained").add_subplot()
    rates = [(one.name, rate) for one in report.attributes for rate in one.rates.measured]
    shares = [100 * rate.rate for _, rate in rates]
    below = [share - 100 * rate.low for share, (_, rate) in zip(shares, rates, strict=True)]
    above = [100 * rate.high - share for share, (_, rate) in zip(shares, rates, strict=True)]
    places = range(len(rates))
    axes.barh(places, shares, xerr=[below, above], capsize=3)
    axes.set_yticks(places, [visible(f"{name}, {OF[rate.population]}") for name, rate in rates], parse_math=False)
    axes.invert_yaxis()
    axes.set_xlabel("flip rate in %")
    return axes
