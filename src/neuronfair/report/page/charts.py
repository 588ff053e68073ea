"""Charts as inline SVG. Places are percentages, so that a chart fits any width and its words keep their size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from neuronfair.report.page.shell import escape, name
from neuronfair.report.page.words import between, count, known, number, plain, share

COLOURS = 6  # of lines, in page.css, safe for the colour-blind
DASHES = ("", "7 4", "2 4")


def top_of(values: Sequence[object], most: float = math.inf) -> float:
    """Return a round number that holds all values, and `most` at most.

    >>> top_of([0.013, 0.0182]), top_of([0.7], most=1), top_of([])
    (0.02, 0.8, 1.0)
    """
    largest = max((value for value in values if known(value)), default=0.0)
    if largest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(largest))
    steps = (step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10))
    return min(next((step for step in steps if largest <= step * (1 + 1e-9)), 10 * power), float(most))


def interval(rate: Mapping[str, Any], top: float, *, reference: float | None = None) -> str:
    """Return a share as a dot on its interval, from 0 to `top`, beside a thin line for the share to compare it with."""
    title = f"{share(rate['share'])}, between {between(rate)}"
    parts = ['<line class="track" x1="0" x2="100%" y1="50%" y2="50%"/>']
    if reference is not None:
        at = _percent(reference, top)
        parts.append(f'<line class="reference" x1="{at}" x2="{at}" y1="0" y2="100%"/>')
    if known(rate["low"]) and known(rate["high"]):
        low, high = _percent(rate["low"], top), _percent(rate["high"], top)
        parts.append(f'<line class="range" x1="{low}" x2="{high}" y1="50%" y2="50%"/>')
    if known(rate["share"]):
        parts.append(f'<circle class="dot" cx="{_percent(rate["share"], top)}" cy="50%" r="4.5"/>')
    return _svg("interval", title, "".join(parts))


def scale(top: float) -> str:
    """Return the axis that belongs to intervals and bars of shares."""
    places = (("0", 0.0, "start"), ("50%", top / 2, "middle"), ("100%", top, "end"))
    marks = "".join(
        f'<text x="{x}" y="1em" text-anchor="{anchor}">{share(value)}</text>' for x, value, anchor in places
    )
    return f'<svg class="scale" aria-hidden="true">{marks}</svg>'


def bar(value: object, top: float, kind: str = "") -> str:
    """Return one bar of a bar chart."""
    width = _percent(value, top) if known(value) else "0"
    return (
        f'<svg class="bar {kind}" aria-hidden="true"><rect class="track" width="100%" height="100%" rx="3"/>'
        f'<rect class="value" width="{width}" height="100%" rx="3"/></svg>'
    )


def histogram(edges: Sequence[float], counts: Sequence[int], marks: Mapping[str, object]) -> str:
    """Return how often each range of values occurs, with thin lines at the marked values."""
    low, high, most = edges[0], edges[-1], max(counts, default=0)
    if high <= low or most <= 0:
        return ""
    span = high - low
    parts = [_rule(100 - at) + _left(100 - at, count(tick)) for at, tick in _ticks(0, most, whole=True)]
    for left, right, n in zip(edges[:-1], edges[1:], counts, strict=True):
        height = 100 * n / most
        parts.append(
            f'<rect class="column" x="{100 * (left - low) / span:.3f}%" width="{100 * (right - left) / span:.3f}%" '
            f'y="{100 - height:.2f}%" height="{height:.2f}%"><title>{number(left)} to {number(right)}: {count(n)}'
            "</title></rect>"
        )
    for i, (word, value) in enumerate(marks.items()):
        if known(value) and low <= value <= high:
            at = 100 * (value - low) / span
            # Words turn away from the nearer edge, and each has its own line.
            anchor, shift = ("start", 5) if at < 50 else ("end", -5)
            parts.append(
                f'<line class="mark" x1="{at:.2f}%" x2="{at:.2f}%" y1="{-8 - 14 * i}" y2="100%"/>'
                f'<text class="marked" x="{at:.2f}%" y="{-5 - 14 * i}" dx="{shift}" text-anchor="{anchor}">{word} '
                f"{number(value)}</text>"
            )
    parts += [_below(at, number(tick)) for at, tick in _ticks(low, high)]
    title = f"Histogram of {count(sum(counts))} score gaps from {number(low)} to {number(high)}"
    return _svg("chart low", title, "".join(parts))


def curves(layers: Sequence[Mapping[str, Any]], worst: object) -> str:
    """Return the AS curves, the most biased layer on top, and where it meets the line y = x."""
    lines = [(i, layer) for i, layer in enumerate(layers) if layer["curve"]]
    if not lines:
        return ""
    right = max(0.1, *(point[0] for _, layer in lines for point in layer["curve"]))
    right = math.ceil(right * 10 - 1e-9) / 10
    drawn = []
    for i, layer in sorted(lines, key=lambda line: line[1]["name"] == worst):
        points = " ".join(f"{1000 * x / right:.1f},{1000 * (1 - y):.1f}" for x, y in layer["curve"])
        drawn.append(f'<polyline {_stroke(i, layer["name"] == worst)} points="{points}"/>')
    end = min(right, 1.0)
    diagonal = f'<line class="diagonal" x1="0" y1="1000" x2="{1000 * end / right:.1f}" y2="{1000 * (1 - end):.1f}"/>'
    parts = [_rule(at) for at in (0, 25, 50, 75, 100)]
    parts.append(f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none">{diagonal}{"".join(drawn)}</svg>')
    for layer in (layer for _, layer in lines if layer["name"] == worst and known(layer["cut"])):
        cut = layer["cut"]
        parts.append(f'<circle class="cut" cx="{100 * cut / right:.2f}%" cy="{100 * (1 - cut):.2f}%" r="5"/>')
    parts += [_left(100 - at, f"{at} %") for at in (0, 50, 100)]
    parts += [_below(at, number(tick)) for at, tick in _ticks(0, right)]
    return _svg("chart", f"AS curves of {len(lines)} layers; the most biased is {plain(worst)}", "".join(parts))


def swatch(i: int, worst: bool) -> str:
    """Return the line of one layer for the legend."""
    return f'<svg class="swatch" aria-hidden="true"><line {_stroke(i, worst)} x1="1" x2="27" y1="5" y2="5"/></svg>'


def bars(rows: Sequence[tuple[str, object, str, str]], caption: str) -> str:
    """Return a bar chart of shares as a table: label, share, kind of bar, and words beside the figure."""
    body = "".join(  # the track is the whole: 79 % fills 79 % of it
        f'<tr><th scope="row">{name(label)}</th><td class="room">{bar(value, 1.0, kind)}</td>'
        f"<td><b>{share(value)}</b>{f' <small>{escape(note)}</small>' if note else ''}</td></tr>"
        for label, value, kind, note in rows
    )
    return f'<table class="bars"><caption>{caption}</caption><tbody>{body}</tbody></table>'


def _svg(kind: str, title: str, body: str) -> str:
    return f'<svg class="{kind}" role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>{body}</svg>'


def _percent(value: float, top: float) -> str:
    return f"{min(100.0, max(0.0, 100 * value / top)):.2f}%"


def _stroke(i: int, worst: bool) -> str:
    if worst:
        return 'class="line worst"'
    dash = DASHES[i // COLOURS % len(DASHES)]
    return f'class="line c{i % COLOURS}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _ticks(low: float, high: float, *, whole: bool = False) -> list[tuple[float, float]]:
    """Return three to six round numbers from low to high, each with its place in percent of the way.

    >>> _ticks(0, 0.3)
    [(0.0, 0.0), (33.33, 0.1), (66.67, 0.2), (100.0, 0.3)]
    """
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * (1 - 1e-9))
    if whole:
        step = max(1.0, step)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(round(100 * (i * step - low) / (high - low), 2), round(i * step, 12)) for i in range(first, last + 1)]


def _rule(at: float) -> str:
    return f'<line class="rule" x1="0" x2="100%" y1="{at}%" y2="{at}%"/>'


def _left(at: float, words: str) -> str:
    return f'<text x="0" dx="-8" y="{at}%" dy=".35em" text-anchor="end">{words}</text>'


def _below(at: float, words: str) -> str:
    return f'<text x="{at}%" y="100%" dy="1.5em" text-anchor="middle">{words}</text>'
