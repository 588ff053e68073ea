"""The audit of one model with one data set: all stages in turn, and one report."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neuronfair.audits.folder import begin_audit, write_audit_json, write_weights_once
from neuronfair.audits.gate.checks import LoadedChecks, list_attribute_sets
from neuronfair.audits.provenance import Provenance, report_data, report_decision, report_model, report_reproduction
from neuronfair.audits.report import (
    SCHEMA,
    DecisionReport,
    EncodingCheckReport,
    PopulationReport,
    Report,
)
from neuronfair.audits.settings import AuditSettings
from neuronfair.audits.stages.attributes import AttributeChoices, Clock
from neuronfair.audits.stages.case import AttributeAudit, rank_attributes
from neuronfair.audits.stages.encoding_check import check_encoding
from neuronfair.audits.stages.rates import fit_audit_population, report_population
from neuronfair.audits.wording.verdict import PENDING, conclude
from neuronfair.domain.population.counterfactuals import fit_counterfactuals
from neuronfair.domain.population.model import PopulationModel, measure_quality
from neuronfair.domain.schema.toml import format_domain
from neuronfair.domain.tables.dataset import UNKNOWN, Dataset
from neuronfair.errors import NeuronFairError
from neuronfair.model.encoding import cluster_seeds
from neuronfair.model.open import OpenedModel
from neuronfair.progress import Progress, count_progress, show_nothing
from neuronfair.scale.tasks import Tasks, count_usable_cores, has_other_threads, one_thread
from neuronfair.searches.campaign import SearchResult
from neuronfair.store.files import Json, Lock
from neuronfair.store.ledger import rows_digest, versions


@dataclass(frozen=True)
class Result:
    """The result of an audit. `outcomes` holds the results of the searches, by attribute and method."""

    report: Report
    outcomes: dict[tuple[str, str], SearchResult]
    failure: NeuronFairError | None = None  # why the checks could not be evaluated


def run(
    opened_model: OpenedModel,
    data: Dataset,
    *,
    settings: AuditSettings,
    checks: LoadedChecks | None = None,
    provenance: Provenance | None = None,
    folder: str | Path | None = None,
    progress: Progress | None = None,
    own_records: Tensor | None = None,
) -> Result:
    """Audit an opened model by the sensitive attributes of the data set's domain.

    `own_records` are realistic records from your own sampler. A check that cannot be evaluated does
    not stop the audit. The regression set is not changed here: `LoadedChecks.extend` comes last. Stages that do not
    depend on each other run side by side, where that is safe.
    """
    provenance, checks, show = provenance or Provenance(), checks or LoadedChecks(), progress or show_nothing
    plan = _plan_audit(opened_model, data, settings, provenance, None if folder is None else Path(folder))
    plan = replace(plan, processes=_count_processes(plan))
    replayed = checks.replay(opened_model)
    _lock = _begin_folder(plan, own_records)  # until the audit ends
    stages = _Stages(plan, show)
    try:
        stages.run(own_records)
    except KeyboardInterrupt:
        stages.interrupted = True
    report, failure = checks.evaluate(_assemble_report(plan, stages), replayed)
    report = conclude(report, thresholds_set=bool(checks.fail_if))
    if plan.folder is not None:
        write_audit_json(plan.folder, report)
    outcomes = {(audit.report.name, o.config.method): o for audit in stages.audits for o in audit.outcomes}
    return Result(report, outcomes, failure)


@dataclass(frozen=True)
class _AuditPlan:
    """The input of all stages, checked."""

    opened_model: OpenedModel
    data: Dataset  # on the device of the model
    choices: list[tuple[str, ...]]  # of sensitive attributes: each alone, then all together
    views: list[Dataset]  # the data set by each choice
    decision: DecisionReport
    settings: AuditSettings
    provenance: Provenance
    folder: Path | None
    processes: int = 1


MIN_LARGE_PARAMETERS = 1_000_000  # parameters; a larger one computes in threads instead


def _count_processes(plan: _AuditPlan) -> int:
    """Return in how many processes the stages of an audit run.

    Code of the user is called in one process only: it may hold a connection. By default, so is everything in a process
    with threads that we do not know.
    """
    opened_model, provenance = plan.opened_model, plan.provenance
    calls_user_code = (
        opened_model.kind == "Python function" or callable(provenance.preprocess) or provenance.parallel is not None
    )
    module = opened_model.module
    is_large = module is not None and sum(p.numel() for p in module.parameters()) > MIN_LARGE_PARAMETERS
    core_count = count_usable_cores()
    if calls_user_code or is_large or opened_model.model.encoding.device.type != "cpu" or core_count < 2:
        return 1
    if provenance.processes is None:
        return 1 if has_other_threads() else core_count
    return min(provenance.processes, core_count)


def _plan_audit(
    opened_model: OpenedModel, data: Dataset, settings: AuditSettings, provenance: Provenance, folder: Path | None
) -> _AuditPlan:
    """Check that the audit is possible before any work is done."""
    data = data.to(opened_model.model.encoding.device)
    if opened_model.unassessed:  # its decisions are none of the classes that the labels name
        data = replace(data, labels=torch.full_like(data.labels, UNKNOWN))
    choices = list_attribute_sets(data.domain.sensitive)
    views = [replace(data, domain=data.domain.with_sensitive(*choice)) for choice in choices]
    if not bool(views[-1].domain.changeable.any()):
        raise NeuronFairError(f"{data.domain.name}: every attribute is sensitive, so a search has nothing to change")
    if settings.twins == "counterfactual":
        for view in views:
            fit_counterfactuals(view.domain, view.rows)  # refuses what is impossible
    return _AuditPlan(
        opened_model, data, choices, views, report_decision(opened_model, data), settings, provenance, folder
    )


def _begin_folder(plan: _AuditPlan, own_records: Tensor | None) -> Lock | None:
    """Claim the folder of the audit, if it has one, and write its manifest and domain."""
    if plan.folder is None:
        return None
    opened_model, data, provenance = plan.opened_model, plan.data, plan.provenance
    manifest = _make_manifest(opened_model, data, plan.settings, plan.choices[-1])
    manifest["population"] = None if own_records is None else rows_digest(own_records)
    domain_text = provenance.domain_text or format_domain(data.domain)
    lock = begin_audit(plan.folder, manifest, domain_text, data.domain.name)
    if provenance.trained_here and provenance.card is not None and opened_model.module is not None:
        write_weights_once(plan.folder, opened_model.module, provenance.card)
    return lock


class _Stages:
    """All stages in turn, and their results so far: Ctrl-C may end them anywhere."""

    def __init__(self, plan: _AuditPlan, show: Progress) -> None:
        self._plan, self._show = plan, show
        self.clock = Clock()
        self.audits: list[AttributeAudit] = []
        self.encoding_check: EncodingCheckReport | None = None
        self.population: PopulationReport | None = None
        self.interrupted = False

    def run(self, own_records: Tensor | None) -> None:
        """Run all stages."""
        plan, show = self._plan, self._show
        opened_model, data, settings = plan.opened_model, plan.data, plan.settings
        with one_thread(plan.processes > 1):
            population = self._check_inputs(own_records)
            with self.clock.of("search"):
                show("Choosing rows to start from", 0, None)
                seeds = cluster_seeds(opened_model.model.encoding, data.rows, settings.seeds, seed=settings.seed)
            importance_order = rank_attributes(
                opened_model.model, plan.views[0].domain, data.rows, opened_model.decision
            )
            by_attribute = AttributeChoices(
                plan.views,
                settings,
                seeds=seeds,
                importance_order=importance_order,
                scale=plan.decision.scale,
                population=population,
                provenance=plan.provenance,
                folder=plan.folder,
                processes=plan.processes,
            )
            by_attribute.audit_each(opened_model, self.audits, self.clock, show)

    def _check_inputs(self, own_records: Tensor | None) -> PopulationModel | None:
        """Check the encoding of the inputs and fit the population model, which is returned."""
        plan, show = self._plan, self._show
        data, settings = plan.data, plan.settings
        fitting = count_progress(show, "Fitting the population model (columns)")
        tasks_to_do: list[Callable[[], Any]] = [partial(check_encoding, plan.opened_model, data)]
        if own_records is None:
            tasks_to_do.append(partial(measure_quality, data.domain, data.in_compared_groups.rows, seed=settings.seed))
        show("Checking the input encoding", 0, None)
        with Tasks(tasks_to_do, plan.processes) as tasks:
            if not tasks.forked:
                (self.encoding_check,) = tasks.results([0])
            with self.clock.of("rate"):
                population, reason = fit_audit_population(data, own_records, settings.seed, settings.plausible, fitting)
                (self.encoding_check,) = tasks.results([0])
                rows = len(data if own_records is None else own_records)
                self.population = report_population(
                    population, reason, rows, settings.plausible, lambda: tasks.results([1])[0]
                )
        return population


def _assemble_report(plan: _AuditPlan, stages: _Stages) -> Report:
    """Return the report without its verdict."""
    opened_model, data, provenance = plan.opened_model, plan.data, plan.provenance
    return Report(
        neuronfair=versions()["neuronfair"],
        verdict=PENDING,
        data=replace(report_data(data, plan.choices[-1], provenance), population=stages.population),
        model=report_model(opened_model, data, provenance),
        decision=plan.decision,
        attributes=tuple(audit.report for audit in stages.audits),
        encoding_check=stages.encoding_check,
        seconds=stages.clock.figures(),
        reproduction=report_reproduction(
            opened_model, data, plan.settings, provenance, stages.interrupted, plan.folder
        ),
    )


def _make_manifest(opened_model: OpenedModel, data: Dataset, settings: AuditSettings, sensitive: Sequence[str]) -> Json:
    settings = replace(settings, methods=settings.choose_methods(opened_model))
    budget = json.loads(json.dumps(asdict(settings)))
    for name in ("prove", "permutations"):  # a resumed audit may prove longer, or permute the groups more often
        del budget[name]
    if settings.twins is None:
        del budget["twins"]
    if not settings.plausible:  # as in audits of versions without this setting
        del budget["plausible"]
    return {
        "audit": SCHEMA,
        **versions(),
        "weights": opened_model.fingerprint,
        "domain": data.domain.fingerprint,
        "rows": rows_digest(data.rows),
        "decision": asdict(opened_model.decision),
        "sensitive": list(sensitive),
        "settings": budget,
    }
