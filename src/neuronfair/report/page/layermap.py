"""A map of the layers: each neuron a cell, darker the more it reacts, with a dot where it is biased.

A reaction is the tanh of ActDiff, as in the AS curve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from neuronfair.report.page.shell import escape, name
from neuronfair.report.page.words import known, listed, number, plain, plural

MOST_CELLS = 1024  # of one layer; where it has more neurons, a cell stands for several
ALL_CELLS = 16_384  # of all layers, so that a deep network does not make a heavy page
SHADES = 10
STRONGEST = 5  # neurons named beside their layer


def layer_map(layers: Sequence[Mapping[str, Any]], worst: object) -> str:
    """Return small maps of all layers, one scale of shades for all."""
    largest = max((max(map(_reaction, layer["act_diff"]), default=0.0) for layer in layers), default=0.0)
    most = min(MOST_CELLS, max(64, ALL_CELLS // max(1, len(layers))))
    maps = [_layer(layer, largest, most, layer["name"] == worst) for layer in layers if layer["act_diff"]]
    return f'<div class="maps">{"".join(maps)}</div>' if maps else ""


def cells(act_diff: Sequence[float], biased: Sequence[int], most: int) -> tuple[list[float], list[float], int]:
    """Return for each cell the largest reaction and the share of biased neurons, and how many neurons a cell holds.

    >>> cells([0.0, 9e9, 0.0], [1], most=2)
    ([1.0, 0.0], [0.5, 0.0], 2)
    """
    each = max(1, math.ceil(len(act_diff) / most))
    marked = set(biased)
    groups = [range(i, min(i + each, len(act_diff))) for i in range(0, len(act_diff), each)]
    return (
        [max(_reaction(act_diff[i]) for i in group) for group in groups],
        [sum(i in marked for i in group) / len(group) for group in groups],
        each,
    )


def _layer(layer: Mapping[str, Any], largest: float, most: int, worst: bool) -> str:
    act_diff, biased = layer["act_diff"], layer["biased"]
    reactions, shares, each = cells(act_diff, biased, most)
    columns = 16 if len(reactions) <= 256 else 32
    rows = math.ceil(len(reactions) / columns)
    title = f"Layer {plain(layer['name'])}: {plural(len(act_diff), 'neuron')}, {len(biased)} of them biased"
    size = f"{columns * 14} {rows * 14}".split()
    strongest = sorted(range(len(act_diff)), key=lambda i: -_reaction(act_diff[i]))[:STRONGEST]
    named = listed([f'<span class="whole">{i} ({number(act_diff[i])})</span>' for i in strongest])
    several = f" Each cell holds {each} neurons." if each > 1 else ""
    return (
        f'<figure class="layer{" worst" if worst else ""}"><svg role="img" aria-label="{escape(title)}" '
        f'viewBox="0 0 {columns} {rows}" width="{size[0]}" height="{size[1]}"><title>{escape(title)}</title>'
        f"{_shaded(reactions, largest, columns)}{_dots(shares, columns)}</svg>"
        f"<figcaption><b>{name(layer['name'])}</b>{' <em>most biased</em>' if worst else ''}<br>"
        f"{len(biased):,} of {plural(len(act_diff), 'neuron')} biased.{several}<br>"
        f"<small>Strongest: {named}</small></figcaption></figure>"
    )


def _shaded(reactions: Sequence[float], largest: float, columns: int) -> str:
    """Return the cells, one path for each shade: a thousand cells are a few kilobytes then."""
    paths = [""] * (SHADES + 1)
    for i, reaction in enumerate(reactions):
        shade = round(SHADES * reaction / largest) if largest > 0 else 0
        paths[shade] += f"M{i % columns + 0.06:g} {i // columns + 0.06:g}h.88v.88h-.88z"
    return "".join(
        f'<path class="cell" fill-opacity="{0.08 + 0.92 * shade / SHADES:.2f}" d="{path}"/>'
        for shade, path in enumerate(paths)
        if path
    )


def _dots(shares: Sequence[float], columns: int) -> str:
    """Return the dots of biased neurons; where a cell holds several, the dot's area is their share."""
    dots = "".join(
        f'<circle cx="{i % columns + 0.5:g}" cy="{i // columns + 0.5:g}" r="{0.26 * math.sqrt(part):.3g}"/>'
        for i, part in enumerate(shares)
        if part > 0
    )
    return f'<g class="biased">{dots}</g>' if dots else ""


def _reaction(value: object) -> float:
    return math.tanh(value) if known(value) else 0.0
