"""Which layers and neurons react to the sensitive attributes."""

from __future__ import annotations

from dataclasses import replace

import torch

from neuronfair.audits.report.attribute import (
    Interpretation,
    LayerReport,
)
from neuronfair.audits.stages.case import AttributeAudit, AttributeCase
from neuronfair.interpretation.profile import BiasProfile, interpret
from neuronfair.model.network import Network
from neuronfair.progress import Progress

POINTS = 101  # of an AS curve, at most


def interpret_layers(case: AttributeCase, audit: AttributeAudit, progress: Progress) -> None:
    """Look which layers and neurons react to the sensitive attributes; a black box or a linear model shows nothing."""
    if not isinstance(case.model, Network) or not case.model.layers:
        return
    what = "Comparing rows with their twins"
    audit.profile = interpret(
        case.model, case.domain, case.interpreted_rows, progress=lambda done, total: progress(what, done, total)
    )
    audit.report = replace(audit.report, interpretation=_interpretation(audit.profile))


def _interpretation(profile: BiasProfile) -> Interpretation:
    layers = []
    for layer in profile.layers:
        points = torch.linspace(0, len(layer.rates) - 1, min(POINTS, len(layer.rates))).round().long()
        curve = torch.stack([layer.thresholds[points], layer.rates[points]], 1)
        layers.append(
            LayerReport(
                name=layer.name,
                neurons=len(layer.act_diff),
                auc=layer.auc,
                cut=layer.cut,
                biased=tuple(layer.biased) if layer.reacts else (),
                act_diff=tuple(float(f"{x:.6g}") for x in layer.act_diff.tolist()),
                curve=tuple((round(t, 4), round(share, 6)) for t, share in curve.tolist()),
            )
        )
    return Interpretation(profile.worst.name, tuple(layers))
