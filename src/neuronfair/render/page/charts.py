"""Where things lie in the charts; templates/charts.html draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from neuronfair.audits.report.attribute import Interpretation, LayerReport, RateOf
from neuronfair.audits.report.counterfactual import CounterfactualReport, Interval, MoveReport


def at(value: float, high: float, low: float = 0.0) -> str:
    """Return where a value lies on the way from low to high.

    >>> at(1, 4), at(2, 3, 1), at(9, 3)
    ('25.00%', '50.00%', '100.00%')
    """
    return f"{min(100.0, max(0.0, 100 * (value - low) / (high - low))):.2f}%"


def top_of(rates: Sequence[RateOf | Interval | CounterfactualReport], reference: float | None = None) -> float:
    """Return a round share that holds all intervals, and the share that they are compared with."""
    return _round(max([*(rate.high for rate in rates), reference or 0.0]))


def widest(moves: Sequence[MoveReport]) -> float:
    """Return a round share that holds what any group loses or gains, and the placebo of it."""
    shares = ((move.lost, move.gained, move.placebo_lost, move.placebo_gained) for move in moves)
    return _round(max(share or 0.0 for each in shares for share in each))


def _round(largest: float) -> float:
    if largest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(largest))
    steps = (step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10))
    return min(1.0, next(step for step in steps if largest <= step * (1 + 1e-9)))


def reach(inside: Interpretation) -> float:
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
