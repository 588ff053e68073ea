"""The audit: every stage in turn for one model and one table, and what came of it as one report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from neuronfair.audits.folder import begin, keep_figures, keep_weights
from neuronfair.audits.gate.checks import LoadedChecks, attribute_sets
from neuronfair.audits.provenance import Origin, about_data, about_decision, about_model, reproduction
from neuronfair.audits.report.report import SCHEMA, Report
from neuronfair.audits.settings import AuditSettings
from neuronfair.audits.stages.attributes import AttributeChoices, Clock
from neuronfair.audits.stages.case import AttributeAudit
from neuronfair.audits.stages.encoding_check import check_encoding
from neuronfair.audits.stages.population import audited_population
from neuronfair.audits.stages.repair import propose_repair, repair_command
from neuronfair.audits.wording.phrases import importance
from neuronfair.audits.wording.verdict import PENDING, conclude
from neuronfair.domain.population.counterfactuals import fit_counterfactuals
from neuronfair.domain.schema.toml import format_domain
from neuronfair.domain.tables.dataset import UNKNOWN, Dataset
from neuronfair.errors import NeuronFairError
from neuronfair.model.open import Opened
from neuronfair.progress import Progress, silent
from neuronfair.searches.campaign import cluster_seeds
from neuronfair.searches.config import SearchResult
from neuronfair.store.files import Json
from neuronfair.store.manifest import rows_digest, versions


@dataclass(frozen=True)
class Result:
    """What an audit came to. `outcomes` holds what each search found, by attribute and method."""

    report: Report
    outcomes: dict[tuple[str, str], SearchResult]
    failure: NeuronFairError | None = None  # why the checks could not be judged


def run(
    opened: Opened,
    data: Dataset,
    *,
    settings: AuditSettings,
    ready: LoadedChecks | None = None,
    origin: Origin | None = None,
    folder: str | Path | None = None,
    progress: Progress | None = None,
    people: Tensor | None = None,
) -> Result:
    """Audit a model that is open already, by the sensitive attributes of the table's domain.

    `people` are drawn by a sampler of the user's own, and stand for plausible people. Checks that could not be judged
    do not stop it, and the corpus is left as it is: `LoadedChecks.extend` comes last.
    """
    origin, ready, show = origin or Origin(), ready or LoadedChecks(), progress or silent
    data = data.to(opened.model.encoding.device)
    if opened.unassessed:  # its decisions are none of the classes that the labels name
        data = replace(data, labels=torch.full_like(data.labels, UNKNOWN))
    choices = attribute_sets(data.domain.sensitive)
    views = [replace(data, domain=data.domain.with_sensitive(*choice)) for choice in choices]
    if not bool(views[-1].domain.free.any()):
        raise NeuronFairError(f"{data.domain.name}: every attribute is sensitive, so a search has nothing to change")
    if settings.twins == "counterpart":
        for view in views:
            fit_counterfactuals(view.domain, view.rows)  # refuses what is impossible, before any work is done
    past = ready.replay(opened)
    place = Path(folder) if folder is not None else None
    if place is not None:
        text = origin.domain_text or format_domain(data.domain)
        manifest = _manifest(opened, data, settings, choices[-1])
        manifest["population"] = None if people is None else rows_digest(people)
        _lock = begin(place, manifest, text, data.domain.name)  # until the audit ends
        if origin.trained_here and origin.card is not None and opened.module is not None:
            keep_weights(place, opened.module, origin.card)
    clock, audits, feeding, repair, interrupted, usual = Clock(), list[AttributeAudit](), None, None, False, None
    decision = about_decision(opened, data)
    try:
        show("Checking what the model is fed", 0, None)
        feeding = check_encoding(opened, data)
        with clock.of("rate"):
            population, usual = audited_population(
                data,
                people,
                settings.seed,
                settings.plausible,
                lambda done, total: show("Fitting the population model (columns)", done, total),
            )
        with clock.of("search"):
            show("Choosing rows to start from", 0, None)
            seeds = cluster_seeds(opened.model.encoding, data.rows, settings.seeds, seed=settings.seed)
        importance_order = importance(opened.model, views[0].domain, data.rows, opened.decision)
        common = AttributeChoices(views, settings, seeds, importance_order, decision.scale, population, origin, place)
        sought = common.audit_each(opened, audits, clock, show)
        if settings.repair:
            with clock.of("repair"):
                split_seed = None if origin.card is None else origin.card.seed
                command = repair_command(sought, audits[-1], opened, origin)
                repair = propose_repair(sought, audits[-1], opened, split_seed, command, show)
    except KeyboardInterrupt:
        interrupted = True
    entries = tuple(one.report for one in audits)
    report = Report(
        neuronfair=versions()["neuronfair"],
        verdict=PENDING,
        data=replace(about_data(data, choices[-1], origin), population=usual),
        model=about_model(opened, data, origin),
        decision=decision,
        attributes=entries,
        feeding=feeding,
        repair=repair,
        seconds=clock.figures(),
        reproduction=reproduction(opened, data, settings.seed, origin, interrupted, place),
    )
    report, failure = ready.evaluate(report, past)
    report = conclude(report, thresholds_set=bool(ready.fail_if))
    if place is not None:
        keep_figures(place, report)
    return Result(report, {(one.report.name, o.config.method): o for one in audits for o in one.outcomes}, failure)


def _manifest(opened: Opened, data: Dataset, settings: AuditSettings, sensitive: Sequence[str]) -> Json:
    settings = replace(settings, methods=settings.methods_for(opened), repair=False)  # a repair may be added later
    budget = json.loads(json.dumps(asdict(settings)))
    for name in ("prove", "placebos"):  # and so may a proof, or more of counterparts
        del budget[name]
    if settings.twins is None:
        del budget["twins"]
    if not settings.plausible:  # as in audits that were begun before it could be asked for
        del budget["plausible"]
    return {
        "audit": SCHEMA,
        **versions(),
        "weights": opened.fingerprint,
        "domain": data.domain.fingerprint,
        "rows": rows_digest(data.rows),
        "decision": asdict(opened.decision),
        "sensitive": list(sensitive),
        "settings": budget,
    }
