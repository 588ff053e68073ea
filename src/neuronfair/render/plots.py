"""Figures, drawn without a display."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neuronfair.atomic import replacing
from neuronfair.audits.comparison import Comparison
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


def plot_comparison(comparison: Comparison, path: Path, *, title: str) -> None:
    """Draw findings, success rate and diversity of every method as bars, with the random rate as a line."""
    entries = comparison.methods()[::-1]
    names = [entry["method"] for entry in entries]
    panels = (("findings", "findings", 1.0), ("gsr", "success rate (%)", 100.0), ("diversity", "diversity", 1.0))
    with saved_figure(path, size=(11, 1.6 + 0.42 * len(entries))) as figure:
        figure.suptitle(title)
        for axes, (name, label, scale) in zip(figure.subplots(1, 3, sharey=True), panels, strict=True):
            values = [scale * (entry[name] or 0.0) for entry in entries]
            spread = [scale * (entry.get("plus_minus", {}).get(name) or 0.0) for entry in entries]
            bars = axes.barh(names, values, color="#3b6ea8", xerr=spread if any(spread) else None, ecolor="0.3")
            axes.bar_label(
                bars, [f"{v:,.0f}" if name == "findings" else f"{v:.3g}" for v in values], padding=4, fontsize=8
            )
            axes.set_xlabel(label)
            axes.set_xlim(0, 1.3 * max([v + s for v, s in zip(values, spread, strict=True)], default=0) or 1)
            axes.spines[["top", "right"]].set_visible(False)
            if name == "gsr" and comparison.random is not None:
                axes.axvline(scale * comparison.random.rate, color="#c0392b", linestyle="--", label="drawn uniformly")
                axes.legend(frameon=False, fontsize=8, loc="lower right")
