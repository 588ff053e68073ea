"""Where discrimination is in the network: AS curves, the layers in figures, and a map of their neurons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neuronfair.report.page.charts import curves, swatch
from neuronfair.report.page.layermap import layer_map
from neuronfair.report.page.shell import name, section, table
from neuronfair.report.page.words import count, known, number, share


def interpretation(i: int, attribute: Mapping[str, Any], *, white_box: bool) -> str:
    """Return what is known of the layers for the panel with this number, or why nothing is."""
    inside, key, heading = attribute["interpretation"], f"a{i}-layers", "Where it is in the network"
    if inside is None:
        words = "The model is a black box here: its layers cannot be seen."
        if white_box:
            words = "The audit was interrupted before the layers were looked at."
        return section(key, heading, f"<p>{words}</p>", level=3)
    layers, worst = inside["layers"], inside["worst"]
    lead = f"<p>Layer <b>{name(worst)}</b> reacts most when only the sensitive attribute changes.</p>"
    figures = f'<div class="side">{_chart(layers, worst)}{_legend(layers, worst)}</div>'
    return section(key, heading, lead, figures, _map(layers, worst), _coverage(attribute["coverage"]), level=3)


def _chart(layers: Sequence[Mapping[str, Any]], worst: object) -> str:
    figure = curves(layers, worst)
    if not figure:
        return ""
    return (
        f"<figure>{figure}<figcaption>AS curves: the share of a layer’s neurons (upwards) that react more strongly "
        "than a threshold (to the right) when only the sensitive attribute changes. The higher the curve, the more of "
        "the layer reacts. The dot is the cut, where the curve meets the dotted line y = x.</figcaption></figure>"
    )


def _legend(layers: Sequence[Mapping[str, Any]], worst: object) -> str:
    rows = [
        (
            f"{swatch(j, layer['name'] == worst)} {name(layer['name'])}",
            number(layer["auc"]),
            number(layer["cut"]),
            f"{count(len(layer['biased']))} of {count(layer['neurons'])}",
        )
        for j, layer in enumerate(layers)
    ]
    return table("Layers, in the order of the network", ("Layer", "AUC", "Cut", "Biased neurons"), rows)


def _map(layers: Sequence[Mapping[str, Any]], worst: object) -> str:
    maps = layer_map(layers, worst)
    if not maps:
        return ""
    return (
        "<p>Each cell is a neuron: the darker, the more it reacts, on one scale for all layers. A dot marks a biased "
        f"neuron.</p>{maps}"
    )


def _coverage(covered: Mapping[str, Any]) -> str:
    if not known(covered["findings"]) or not known(covered["misses"]):
        return ""
    return (
        f"<p>A finding activates {share(covered['findings'])} of the layer’s biased neurons on average, a person who "
        f"is decided alike {share(covered['misses'])}.</p>"
    )
