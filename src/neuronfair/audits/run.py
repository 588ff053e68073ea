"""The audit: every stage in turn for one model and one table, and what came of it as one report."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from neuronfair.audits.folder import WEIGHTS, begin, keep_figures, keep_weights
from neuronfair.audits.gate.checks import Ready, attribute_sets
from neuronfair.audits.provenance import Origin, about_data, about_decision, about_model, replay_options, reproduction
from neuronfair.audits.report.report import SCHEMA, Report
from neuronfair.audits.settings import AuditSettings
from neuronfair.audits.stages.attributes import Choices, Clock
from neuronfair.audits.stages.case import AttributeAudit, AttributeCase
from neuronfair.audits.stages.encoding_check import check_encoding
from neuronfair.audits.stages.population import population_of_audit
from neuronfair.audits.stages.repair import propose
from neuronfair.audits.wording.phrases import importance
from neuronfair.audits.wording.verdict import PENDING, concluded
from neuronfair.domain.population.counterfactuals import fit_counterparts
from neuronfair.domain.schema.toml import format_domain
from neuronfair.domain.tables.dataset import DATASETS, UNKNOWN, Dataset
from neuronfair.errors import NeuronFairError
from neuronfair.model.formats import returned_as
from neuronfair.model.open import Opened
from neuronfair.progress import Progress, silent
from neuronfair.searches.campaign import cluster_seeds
from neuronfair.searches.config import SearchResult
from neuronfair.store.manifest import rows_digest, versions
from neuronfair.store.sealed_json import Json


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
    ready: Ready | None = None,
    origin: Origin | None = None,
    folder: str | Path | None = None,
    progress: Progress | None = None,
    people: Tensor | None = None,
) -> Result:
    """Audit a model that is open already, by the sensitive attributes of the table's domain.

    `people` are drawn by a sampler of the user's own, and stand for plausible people. Checks that could not be judged
    do not stop it, and the corpus is left as it is: `Ready.extend` comes last.
    """
    origin, ready, show = origin or Origin(), ready or Ready(), progress or silent
    data = data.to(opened.model.encoding.device)
    if opened.unassessed:  # its decisions are none of the classes that the labels name
        data = replace(data, labels=torch.full_like(data.labels, UNKNOWN))
    choices = attribute_sets(data.domain.sensitive)
    views = [replace(data, domain=data.domain.with_sensitive(*choice)) for choice in choices]
    if not bool(views[-1].domain.free.any()):
        raise NeuronFairError(f"{data.domain.name}: every attribute is sensitive, so a search has nothing to change")
    if settings.twins == "counterpart":
        for view in views:
            fit_counterparts(view.domain, view.rows)  # refuses what is impossible, before any work is done
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
            population, usual = population_of_audit(
                data,
                people,
                settings.seed,
                settings.plausible,
                lambda done, total: show("Fitting the population model (columns)", done, total),
            )
        with clock.of("search"):
            show("Choosing rows to start from", 0, None)
            seeds = cluster_seeds(opened.model.encoding, data.rows, settings.seeds, seed=settings.seed)
        telling = importance(opened.model, views[0].domain, data.rows, opened.decision)
        common = Choices(views, settings, seeds, telling, decision.scale, population, origin, place)
        sought = common.inquire(opened, audits, clock, show)
        if settings.repair:
            with clock.of("repair"):
                split_seed = None if origin.card is None else origin.card.seed
                command = _repair_command(sought, audits[-1], opened, origin)
                repair = propose(sought, audits[-1], opened, split_seed, command, show)
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
    report = concluded(report, thresholds_set=bool(ready.fail_if))
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


def _repair_command(case: AttributeCase, one: AttributeAudit, opened: Opened, origin: Origin) -> str | None:
    """Return the command that repairs the model with what was found, or writes the pairs to train it with.

    None where there is no table, no folder or no class to learn.
    """
    named, table = replay_options(opened, origin), origin.table is not None or case.data.name in DATASETS
    target, found = case.domain.target, any(len(outcome.findings) for outcome in one.outcomes)
    known = target is not None and opened.decision.classes(opened.model.outputs) == len(target.classes) > 0
    if case.folder is None or not found or named is None or not table or not (known and case.data.labelled):
        return None
    best = max(one.outcomes, key=lambda outcome: len(outcome.findings)).config.method
    words = ["neuronfair", "repair", str(case.folder / best)]
    words += ["--data", origin.table, *origin.beside] if origin.table is not None else []
    file = returned_as(WEIGHTS if origin.trained_here else opened.source, weights=origin.weights is not None)
    if file is None or (opened.refit is None and opened.module is None):
        return shlex.join([*words, "--augment", "pairs.csv"])
    return shlex.join([*words, *named, "--out", f"fair{file}"])
