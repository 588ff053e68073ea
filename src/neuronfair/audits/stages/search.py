"""The searches for discriminatory instances, each a run in a folder of its own."""

from __future__ import annotations

from dataclasses import replace

from neuronfair.audits.folder import NEARER
from neuronfair.audits.report.attribute import (
    Note,
    SearchReport,
)
from neuronfair.audits.stages.case import AttributeAudit, AttributeCase
from neuronfair.progress import Progress
from neuronfair.searches import campaign
from neuronfair.searches.config import SearchSummary
from neuronfair.store.manifest import make_manifest
from neuronfair.store.run import Run


def search(case: AttributeCase, audit: AttributeAudit, progress: Progress) -> None:
    """Run the searches one after the other; Ctrl-C ends them, and what was found is kept."""
    for config in case.configs:
        run, place = None, None
        if case.folder is not None:
            place = f"{case.folder.name}/{config.method}"
            manifest = make_manifest(config, case.data, outputs=case.model.outputs, **case.manifest)
            manifest["worst"] = f"../{NEARER}"
            run = Run.create_or_open(case.folder / config.method, manifest, case.domain, case.model.outputs)

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
