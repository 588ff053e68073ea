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
    NO_SCORE_CHANGES,
    NOT_USED,
    AttributeReport,
    Finding,
    Interpretation,
    LayerReport,
    RateOf,
)
from neuronfair.audits.report.counterfactual import CounterfactualReport, Interval, MoveReport
from neuronfair.audits.wording import summary
from neuronfair.audits.wording.phrases import AMONG
from neuronfair.formatting import printable
from neuronfair.render.tables import left_out


def audit_page(report: Report) -> str:
    """Return an audit as one self-contained HTML page."""
    return rendered("page.html", version=report.neuronfair, report=report)


def index_page(index: AuditIndex) -> str:
    """Return many audits as one page: a line for each, to sort and to search, with a link to its own page."""
    return rendered("index.html", version=index.neuronfair, index=index)


def verdict_card(report: Report, folder: Path | None = None) -> str:
    """Return the first screen as a piece of HTML for a notebook: no script, no style but its own."""
    return rendered("card.html", report=report, folder=folder)


TEMPLATES = Path(__file__).with_name("templates")
TONES: dict[Tone, str] = {"alarm": "strong", "caution": "middle", "calm": "calm", "neutral": "neutral"}  # of page.css


def rendered(template: str, *, version: str = __version__, **values: Any) -> str:
    """Return a page from its template, the style and the script of all pages; control characters are written out."""
    values |= {
        name: (TEMPLATES / f"page.{end}").read_text(encoding="utf-8")
        for name, end in (("style", "css"), ("script", "js"))
    }
    values["version"] = version
    return printable(_environment().get_template(template).render(values), keep="\n\r\t")


def _worst_first(attributes: Sequence[AttributeReport]) -> list[AttributeReport]:
    """Return the attributes with the one that the headline speaks of first."""
    worst = [find_worst_attribute(attributes)] if attributes else []
    return [*worst, *(one for one in attributes if one not in worst)]


def _clearest(moves: Sequence[MoveReport]) -> list[MoveReport]:
    """Return those by which most people, on balance, lose or gain first, or else those by which most flip."""

    def concerned(move: MoveReport) -> tuple[float, float]:
        return abs((move.lost or 0.0) - (move.gained or 0.0)) * move.people, move.flips * move.people

    return sorted(moves, key=concerned, reverse=True)


def _people(findings: Sequence[Finding]) -> dict[str, object]:
    """Return the attributes of each finding, which the page's script shows on demand."""
    columns = list(dict.fromkeys(attribute for finding in findings for attribute in finding.row))
    return {
        "columns": columns,
        "rows": [[finding.row.get(column) for column in columns] for finding in findings],
        "changed": [[[c.attribute, c.own, c.twin] for c in finding.changed] for finding in findings],
    }


def _odds(finding: Finding) -> tuple[str, str, str]:
    """Return what is shown below two decisions, and its values: a probability, or a score where there is none."""
    if finding.probability is None or finding.twin_probability is None:
        return ("score", *formatting.distinct_numbers(finding.score, finding.twin_score))
    one, other = formatting.distinct_percents(finding.probability, finding.twin_probability)
    return f"probability of {finding.outcome}", one, other


def _distance(finding: Finding) -> float:
    """Return how far two people lie apart: of probabilities, or of scores where there are none."""
    if finding.probability is None or finding.twin_probability is None:
        return finding.gap
    return abs(finding.probability - finding.twin_probability)


def _gap(finding: Finding) -> str:
    if finding.probability is None:
        return formatting.short_number(finding.gap)
    return formatting.pp(_distance(finding))


def _digest(script: str) -> str:
    """Return the name of a script in a page's policy, which then allows no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _layers(layers: Mapping[str, int]) -> str:
    return ", ".join(f"{layer} ({size})" for layer, size in layers.items())


def _parts(seconds: Seconds) -> str:
    named = {"rate": "flip rates", "proof": "proof and its checks", "counterfactuals": "counterfactual test"}
    return ", ".join(f"{named.get(step, step)} {formatting.duration(value)}" for step, value in asdict(seconds).items())


def _spanned(rate: Interval | CounterfactualReport, unit: str = "%") -> str:
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
    words = {name: show for name, show in vars(formatting).items() if isfunction(show)}
    of_findings = (_distance, _gap, _odds, _people)
    of_charts = (_clearest, curve_end, largest_move, layer_maps, _spanned)
    of_reports = (_digest, _layers, left_out, _parts, _worst_first)
    of_summary = (summary.limits_of, summary.metrics, summary.next_steps, summary.status, summary.twin_explained)
    environment.filters |= {
        **words,
        **{show.__name__.lstrip("_"): show for show in (*of_findings, *of_charts, *of_reports, *of_summary)},
        "between": lambda rate: formatting.interval_ends(rate.rate, rate.low, rate.high),
        "share_ends": lambda share: formatting.interval_ends(share.share, share.low, share.high),
        "gap_ends": lambda gap: formatting.interval_ends(gap.value, gap.low, gap.high, " pp"),
    }
    environment.globals.update(
        AMONG=AMONG, UNREAD=(NOT_USED, NO_SCORE_CHANGES), TONES=TONES, FEW_RECORDS=MIN_SUBGROUP_RECORDS,
        MIN_GROUP_ROWS=MIN_GROUP_ROWS,
        POPULATIONS=formatting.POPULATIONS, TWINS=formatting.TWINS_OF_POPULATION, at=at, ticks=ticks, axis_end=axis_end,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment


def at(value: float, high: float, low: float = 0.0) -> str:
    """Return where a value lies on the way from low to high.

    >>> at(1, 4), at(2, 3, 1), at(9, 3)
    ('25.00%', '50.00%', '100.00%')
    """
    return f"{min(100.0, max(0.0, 100 * (value - low) / (high - low))):.2f}%"


def axis_end(rates: Sequence[RateOf | Interval | CounterfactualReport], reference: float | None = None) -> float:
    """Return a round share that holds all intervals, and the share that they are compared with."""
    return _round(max([*(rate.high for rate in rates), reference or 0.0]))


def largest_move(moves: Sequence[MoveReport]) -> float:
    """Return a round share that holds what any group loses or gains, and the permutation baseline of it."""
    shares = ((move.lost, move.gained, move.permutation_lost, move.permutation_gained) for move in moves)
    return _round(max(share or 0.0 for each in shares for share in each))


def _round(largest: float) -> float:
    if largest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(largest))
    steps = (step * power for step in (1, 1.6, 2, 3, 4, 5, 6, 8, 10))
    return min(1.0, next(step for step in steps if largest <= step * (1 + 1e-9)))


def curve_end(inside: Interpretation) -> float:
    """Return the threshold that the AS curves are drawn to."""
    return max(0.1, math.ceil(10 * max(point[0] for layer in inside.layers for point in layer.curve) - 1e-9) / 10)


def ticks(low: float, high: float, *, whole: bool = False) -> list[tuple[float, float]]:
    """Return three to six round numbers from low to high, each with its place in percent of the way.

    >>> ticks(0, 0.3)
    [(0.0, 0.0), (33.33, 0.1), (66.67, 0.2), (100.0, 0.3)]
    """
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * (1 - 1e-9))
    if whole:
        step = max(1.0, step)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(round(100 * (i * step - low) / (high - low), 2), round(i * step, 12)) for i in range(first, last + 1)]


# A map of the layers: each neuron a cell, darker the more it reacts, with a dot where it is biased.

MOST_CELLS = 1024  # of one layer; where it has more neurons, a cell stands for several
ALL_CELLS = 16_384  # of all layers, so that a deep network does not make a heavy page
SHADES = 10
STRONGEST = 5  # neurons named beside their layer


@dataclass(frozen=True)
class LayerMap:
    """A layer as cells of size 1 in columns and rows."""

    name: str
    neurons: int
    biased: int
    each: int  # neurons in a cell
    columns: int
    rows: int
    shades: list[tuple[float, str]]  # opacity, and one path for all its cells: a thousand are a few kilobytes then
    dots: list[tuple[float, float, float]]  # place and radius; the area is the share of a cell's neurons
    strongest: list[tuple[int, float]]  # neurons with their ActDiff


def layer_maps(layers: Sequence[LayerReport]) -> list[LayerMap]:
    """Return a map of each layer, with one scale of shades for all."""
    largest = max(math.tanh(x) for layer in layers for x in layer.act_diff)
    most = min(MOST_CELLS, max(64, ALL_CELLS // len(layers)))
    return [_layer(layer, largest, most) for layer in layers]


def cells(act_diff: Sequence[float], biased: Sequence[int], most: int) -> tuple[list[float], list[float], int]:
    """Return for each cell the largest reaction and the share of biased neurons, and how many neurons a cell holds.

    >>> cells([0.0, 9e9, 0.0], [1], most=2)
    ([1.0, 0.0], [0.5, 0.0], 2)
    """
    each = math.ceil(len(act_diff) / most)
    marked = set(biased)
    groups = [range(i, min(i + each, len(act_diff))) for i in range(0, len(act_diff), each)]
    return (
        [max(math.tanh(act_diff[i]) for i in group) for group in groups],
        [sum(i in marked for i in group) / len(group) for group in groups],
        each,
    )


def _layer(layer: LayerReport, largest: float, most: int) -> LayerMap:
    reactions, shares, each = cells(layer.act_diff, layer.biased, most)
    columns = 16 if len(reactions) <= 256 else 32
    paths = [""] * (SHADES + 1)
    for i, reaction in enumerate(reactions):
        shade = round(SHADES * reaction / largest) if largest > 0 else 0
        paths[shade] += f"M{i % columns + 0.06:g} {i // columns + 0.06:g}h.88v.88h-.88z"
    strongest = sorted(enumerate(layer.act_diff), key=lambda neuron: -neuron[1])[:STRONGEST]
    return LayerMap(
        name=layer.name,
        neurons=len(layer.act_diff),
        biased=len(layer.biased),
        each=each,
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
