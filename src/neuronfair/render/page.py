"""An audit as one HTML page that opens offline, fits a phone and prints; in its templates everything is escaped."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from inspect import isfunction
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from neuronfair import __version__, formatting
from neuronfair.audits.report import AuditIndex, Report, Seconds, Tone, find_worst_attribute
from neuronfair.audits.report.attribute import (
    MIN_GROUP_ROWS,
    MIN_SUBGROUP_RECORDS,
    UNREAD_NOTES,
    AttributeReport,
    Finding,
    FlipRateReport,
    Interpretation,
    LayerReport,
)
from neuronfair.audits.report.counterfactual import CounterfactualReport, Interval, MoveReport
from neuronfair.audits.wording import summary
from neuronfair.audits.wording.phrases import POPULATION_PHRASES
from neuronfair.formatting import printable
from neuronfair.render.tables import list_small_groups


def render_audit(report: Report) -> str:
    """Return an audit as one self-contained HTML page."""
    return render_template("page.html", version=report.neuronfair, report=report)


def render_index(index: AuditIndex) -> str:
    """Return many audits as one page: a line for each, to sort and to search, with a link to its own page."""
    return render_template("index.html", version=index.neuronfair, index=index)


def render_verdict(report: Report, folder: Path | None = None) -> str:
    """Return the first screen as a piece of HTML for a notebook: no script, no style but its own."""
    return render_template("card.html", report=report, folder=folder)


TEMPLATES = Path(__file__).with_name("templates")
TONES: dict[Tone, str] = {"alarm": "strong", "caution": "middle", "calm": "calm", "neutral": "neutral"}  # of page.css


def render_template(template: str, *, version: str = __version__, **values: Any) -> str:
    """Return a page from its template, the style and the script of all pages; control characters are written out."""
    values |= {
        name: (TEMPLATES / f"page.{end}").read_text(encoding="utf-8")
        for name, end in (("style", "css"), ("script", "js"))
    }
    values["version"] = version
    return printable(_environment().get_template(template).render(values), keep="\n\r\t")


def _sort_worst_first(attributes: Sequence[AttributeReport]) -> list[AttributeReport]:
    """Return the attributes with the one that the headline speaks of first."""
    worst = [find_worst_attribute(attributes)] if attributes else []
    return [*worst, *(attribute for attribute in attributes if attribute not in worst)]


def _sort_moves(moves: Sequence[MoveReport]) -> list[MoveReport]:
    """Return those by which most people, on balance, lose or gain first, or else those by which most flip."""

    def count_people(move: MoveReport) -> tuple[float, float]:
        return abs((move.lost or 0.0) - (move.gained or 0.0)) * move.people, move.flips * move.people

    return sorted(moves, key=count_people, reverse=True)


def _list_values(findings: Sequence[Finding]) -> dict[str, object]:
    """Return the attributes of each finding, which the page's script shows on demand."""
    columns = list(dict.fromkeys(attribute for finding in findings for attribute in finding.row))
    return {
        "columns": columns,
        "rows": [[finding.row.get(column) for column in columns] for finding in findings],
        "changed": [[[c.attribute, c.own, c.twin] for c in finding.changed] for finding in findings],
    }


def _find_odds(finding: Finding) -> tuple[str, str, str]:
    """Return what is shown below two decisions, and its values: a probability, or a score where there is none."""
    if finding.probability is None or finding.twin_probability is None:
        return ("score", *formatting.distinct_numbers(finding.score, finding.twin_score))
    text, twin_text = formatting.distinct_percents(finding.probability, finding.twin_probability)
    return f"probability of {finding.outcome}", text, twin_text


def _find_gap(finding: Finding) -> float:
    """Return how far two people lie apart: of probabilities, or of scores where there are none."""
    if finding.probability is None or finding.twin_probability is None:
        return finding.gap
    return abs(finding.probability - finding.twin_probability)


def _format_gap(finding: Finding) -> str:
    if finding.probability is None:
        return formatting.short_number(finding.gap)
    return formatting.format_points(_find_gap(finding))


def _find_digest(script: str) -> str:
    """Return the name of a script in a page's policy, which then allows no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _list_layers(layers: Mapping[str, int]) -> str:
    return ", ".join(f"{layer} ({size})" for layer, size in layers.items())


def _list_times(seconds: Seconds) -> str:
    names = {"rate": "flip rates", "proof": "proof and its checks", "counterfactuals": "counterfactual test"}
    return ", ".join(f"{names.get(stage, stage)} {formatting.duration(s)}" for stage, s in asdict(seconds).items())


def _format_interval(rate: Interval | CounterfactualReport, unit: str = "%") -> str:
    """Return a share with the ends of its interval, in percent or in percentage points."""
    return formatting.with_interval(rate.rate, rate.low, rate.high, unit)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    formats = {name: show for name, show in vars(formatting).items() if isfunction(show)}
    of_findings = (_find_gap, _format_gap, _find_odds, _list_values)
    of_charts = (_sort_moves, round_curve_end, round_largest_move, make_layer_maps, _format_interval)
    of_reports = (_find_digest, _list_layers, list_small_groups, _list_times, _sort_worst_first)
    of_summary = (summary.list_limits, summary.metrics, summary.propose_steps, summary.status, summary.explain_twin)
    environment.filters |= {
        **formats,
        **{show.__name__.lstrip("_"): show for show in (*of_findings, *of_charts, *of_reports, *of_summary)},
        "between": lambda rate: formatting.interval_ends(rate.rate, rate.low, rate.high),
        "share_ends": lambda share: formatting.interval_ends(share.share, share.low, share.high),
        "gap_ends": lambda gap: formatting.interval_ends(gap.value, gap.low, gap.high, " pp"),
    }
    environment.globals.update(
        AMONG=POPULATION_PHRASES, UNREAD_NOTES=UNREAD_NOTES, TONES=TONES, FEW_RECORDS=MIN_SUBGROUP_RECORDS,
        MIN_GROUP_ROWS=MIN_GROUP_ROWS,
        POPULATIONS=formatting.POPULATIONS, TWINS=formatting.TWINS_OF_POPULATION, find_percent=find_percent,
        list_ticks=list_ticks, round_axis_end=round_axis_end,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment


def find_percent(value: float, high: float, low: float = 0.0) -> str:
    """Return where a value lies on the way from low to high.

    >>> find_percent(1, 4), find_percent(2, 3, 1), find_percent(9, 3)
    ('25.00%', '50.00%', '100.00%')
    """
    return f"{min(100.0, max(0.0, 100 * (value - low) / (high - low))):.2f}%"


def round_axis_end(
    rates: Sequence[FlipRateReport | Interval | CounterfactualReport], reference: float | None = None
) -> float:
    """Return a round share that holds all intervals, and the share that they are compared with."""
    return _round_up(max([*(rate.high for rate in rates), reference or 0.0]))


def round_largest_move(moves: Sequence[MoveReport]) -> float:
    """Return a round share that holds what any group loses or gains, and the permutation baseline of it."""
    shares = ((move.lost, move.gained, move.permutation_lost, move.permutation_gained) for move in moves)
    return _round_up(max(share or 0.0 for group in shares for share in group))


def _round_up(largest: float) -> float:
    if largest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(largest))
    steps = (step * power for step in (1, 1.6, 2, 3, 4, 5, 6, 8, 10))
    return min(1.0, next(step for step in steps if largest <= step * (1 + 1e-9)))


def round_curve_end(profile: Interpretation) -> float:
    """Return the threshold that the AS curves are drawn to."""
    return max(0.1, math.ceil(10 * max(point[0] for layer in profile.layers for point in layer.curve) - 1e-9) / 10)


def list_ticks(low: float, high: float, *, is_whole: bool = False) -> list[tuple[float, float]]:
    """Return three to six round numbers from low to high, each with its position in percent of the way.

    >>> list_ticks(0, 0.3)
    [(0.0, 0.0), (33.33, 0.1), (66.67, 0.2), (100.0, 0.3)]
    """
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * (1 - 1e-9))
    if is_whole:
        step = max(1.0, step)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(round(100 * (i * step - low) / (high - low), 2), round(i * step, 12)) for i in range(first, last + 1)]


# A map of the layers: each neuron a cell, darker the more it reacts, with a dot where it is biased.

MAX_CELLS = 1024  # of one layer; where it has more neurons, a cell stands for several
MAX_PAGE_CELLS = 16_384  # of all layers, so that a deep network does not make a heavy page
SHADES = 10
MAX_STRONGEST = 5  # neurons named beside their layer


@dataclass(frozen=True)
class LayerMap:
    """A layer as cells of size 1 in columns and rows."""

    name: str
    neurons: int
    biased: int
    neurons_per_cell: int
    columns: int
    rows: int
    shades: list[tuple[float, str]]  # opacity, and one path for all its cells: a thousand are a few kilobytes then
    dots: list[tuple[float, float, float]]  # position and radius; the area is the share of a cell's neurons
    strongest: list[tuple[int, float]]  # neurons with their ActDiff


def make_layer_maps(layers: Sequence[LayerReport]) -> list[LayerMap]:
    """Return a map of each layer, with one scale of shades for all."""
    largest = max(math.tanh(x) for layer in layers for x in layer.act_diff)
    max_cells = min(MAX_CELLS, max(64, MAX_PAGE_CELLS // len(layers)))
    return [_map_layer(layer, largest, max_cells) for layer in layers]


def group_neurons(act_diff: Sequence[float], biased: Sequence[int], limit: int) -> tuple[list[float], list[float], int]:
    """Return for each cell the largest reaction and the share of biased neurons, and how many neurons a cell holds.

    >>> group_neurons([0.0, 9e9, 0.0], [1], limit=2)
    ([1.0, 0.0], [0.5, 0.0], 2)
    """
    size = math.ceil(len(act_diff) / limit)
    marked = set(biased)
    groups = [range(i, min(i + size, len(act_diff))) for i in range(0, len(act_diff), size)]
    return (
        [max(math.tanh(act_diff[i]) for i in group) for group in groups],
        [sum(i in marked for i in group) / len(group) for group in groups],
        size,
    )


def _map_layer(layer: LayerReport, largest: float, max_cells: int) -> LayerMap:
    reactions, shares, neurons_per_cell = group_neurons(layer.act_diff, layer.biased, max_cells)
    columns = 16 if len(reactions) <= 256 else 32
    paths = [""] * (SHADES + 1)
    for i, reaction in enumerate(reactions):
        shade = round(SHADES * reaction / largest) if largest > 0 else 0
        paths[shade] += f"M{i % columns + 0.06:g} {i // columns + 0.06:g}h.88v.88h-.88z"
    strongest = sorted(enumerate(layer.act_diff), key=lambda neuron: -neuron[1])[:MAX_STRONGEST]
    return LayerMap(
        name=layer.name,
        neurons=len(layer.act_diff),
        biased=len(layer.biased),
        neurons_per_cell=neurons_per_cell,
        columns=columns,
        rows=math.ceil(len(reactions) / columns),
        shades=[(round(0.08 + 0.92 * s / SHADES, 2), path) for s, path in enumerate(paths) if path],
        dots=[
            (i % columns + 0.5, i // columns + 0.5, round(0.26 * math.sqrt(share), 3))
            for i, share in enumerate(shares)
            if share > 0
        ],
        strongest=strongest,
    )
