"""How layers and neurons react to the sensitive attributes, and the searches for discriminatory instances."""

from __future__ import annotations

from dataclasses import replace

import torch

from neuronfair.audits.folder import NEARER
from neuronfair.audits.report.attribute import (
    Interpretation,
    LayerReport,
    Note,
    SearchReport,
)
from neuronfair.audits.stages.case import AttributeAudit, AttributeCase
from neuronfair.model.network import Network
from neuronfair.model.profile import BiasProfile, interpret
from neuronfair.progress import Progress
from neuronfair.searches import campaign
from neuronfair.searches.result import SearchSummary
from neuronfair.store.manifest import make_manifest
from neuronfair.store.run import Run

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


def search(case: AttributeCase, audit: AttributeAudit, progress: Progress) -> None:
    """Run the searches one after the other; Ctrl-C ends them, and what was found is kept."""
    for config in case.configs:
        run, place = None, None
        if (runs := case.runs) is not None:
            place = f"{runs.path.name}/{config.method}"
            manifest = make_manifest(
                config,
                case.data,
                model=runs.model,
                weights=runs.weights,
                outputs=case.model.outputs,
                extra_weights=runs.extra_weights,
            )
            manifest["worst"] = f"../{NEARER}"
            run = Run.create_or_open(runs.path / config.method, manifest, case.domain, case.model.outputs)

        def show(what: str, done: int, total: int | None, note: str = "", method: str = config.method) -> None:
            progress(f"{method}: {what}", done, total, note)

        outcome = campaign.search(
            case.model,
            case.domain,
            case.interpreted_rows,
            config,
            seeds=case.seeds[: config.seeds],
            profile=audit.profile,
            population=case.population,
            recorder=run,
            progress=show,
        )
        audit.outcomes.append(outcome)
        figures = outcome.summary()
        if run is not None and not outcome.interrupted:
            run.finish({"data": case.data.name, "sensitive": list(case.domain.sensitive), **figures})
        audit.report = replace(audit.report, searches=(*audit.report.searches, _search(figures, place)))
        audit.note(*(Note(note.name, note.seen, note.remedy) for note in outcome.health))
        if outcome.interrupted:
            raise KeyboardInterrupt


def _search(figures: SearchSummary, place: str | None) -> SearchReport:
    random, directed, seconds = figures["random"], figures["random_direction"], figures["seconds"]
    usual = figures["plausibility"]
    return SearchReport(
        method=figures["method"],
        folder=place,
        findings=figures["findings"],
        tried=figures["tried"],
        gsr=figures["gsr"],
        seconds=seconds,
        findings_per_second=figures["findings"] / seconds if seconds else None,
        random_gsr=random and random["gsr"],
        lift=figures["lift"],
        random_direction_gsr=directed and directed["gsr"],
        lift_over_random_direction=figures["lift_over_random_direction"],
        violations=figures["violations"],
        stop="; ".join(f"{phase}: {why}" for phase, why in figures["stop"].items()),
        plausible_share=usual and usual["share"],
    )
