"""Methods side by side: a table for the terminal and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from neuronfair.audits.comparison import Comparison
from neuronfair.domain.table import TableDomain
from neuronfair.formatting import POPULATIONS, listed, percent, spanned
from neuronfair.render.plots import saved_figure

COLUMNS = {  # heading: figure, format; kept narrow, so that a line fits into 80 columns
    "find-\nings": ("findings", ",.0f"),
    "records\ntried": ("tried", ",.0f"),
    "success": ("gsr", ".1%"),
    "lift": ("lift_over_strongest_control", ".1f"),
    "diver-\nsity": ("diversity", ".2f"),
    "median\ngap": ("severity", ".3g"),
    "s per\n1,000": ("seconds_per_1000", ".3f"),
    "rows\neach": ("rows_per_finding", ",.1f"),
}
WITH_SPREAD = ("findings", "gsr")  # the JSON has the intervals of all figures
FLIPS = {"flip": "Flip rate:", "counterpart": "A typical counterfactual twin gets a different decision for"}


def compare_report(comparison: Comparison, domain: TableDomain) -> RenderableType:
    """Return one line per method, the random rate, and what the columns mean."""
    config = comparison.config
    title = f"{domain.name}, {listed(domain.sensitive)}: {comparison.seeds:,} seeds"
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 0, 0, 1), show_edge=False, pad_edge=False)
    table.add_column("method", no_wrap=True)
    for heading in COLUMNS:
        table.add_column(Text(heading), justify="right", no_wrap=True)
    entries = comparison.methods()
    most = max((entry["findings"] for entry in entries), default=0)
    for entry in entries:
        cells = [_cell(entry, figure, form) for figure, form in COLUMNS.values()]
        table.add_row(entry["method"], *cells, style="bold" if entry["findings"] == most > 0 else None)
    lines = []
    if comparison.rates:
        shares = [
            f"{spanned(rate.rate, *rate.interval)} of {rate.sampled:,} {POPULATIONS[rate.population]}"
            for rate in comparison.rates
        ]
        flips = FLIPS[config.twins]
        lines.append(f"{flips} {listed(shares)} (95% intervals).")
    if (strongest := comparison.strongest) is not None:
        lines.append(
            f"Lift: the success rate over that of the strongest control, {strongest.name} ({percent(strongest.gsr)})."
        )
    lines.append(
        "Diversity: mean distance between two findings, 0 to 1. Gap: of the scores. Rows each: rows evaluated for one "
        "finding, duplicates included; symbgen also asks the network about 500 neighbours of every row."
    )
    runs = len(comparison.lines) // max(1, len(entries))
    if runs > 1:
        lines.append(f"Means over {runs} run seeds, ± the half-width of the 95% interval.")
    if comparison.interrupted:
        lines.append("Interrupted: the methods above are complete, the others are missing.")
    if config.instances is not None:
        lines.append(f"At most {config.instances:,} different records tried in each phase.")
    return Group(table, *lines)


def _cell(entry: dict[str, Any], figure: str, form: str) -> str | Text:
    value, spread = entry[figure], entry.get("plus_minus", {}).get(figure)
    if value is None:
        return "–"
    if spread is None or figure not in WITH_SPREAD:
        return f"{value:{form}}"
    return Text(f"{value:{form}}\n±{spread:{form}}")


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
