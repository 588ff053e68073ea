"""The choices of sensitive attributes of an audit: the proof and every other stage for each, in turn or in parallel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from torch import Tensor

from neuronfair.audits.folder import WEIGHTS, make_folder_name
from neuronfair.audits.provenance import Provenance, list_replay_options
from neuronfair.audits.report import Seconds, attribute
from neuronfair.audits.report.attribute import ProofSummary
from neuronfair.audits.settings import AuditSettings
from neuronfair.audits.stages.case import AttributeAudit, AttributeCase, RunFolder
from neuronfair.audits.stages.counterfactual import (
    choose_search_case,
    note_unused_attributes,
    prepare_test,
    report_counterfactuals,
)
from neuronfair.audits.stages.rates import measure_rates
from neuronfair.audits.stages.run_searches import (
    MAX_WORST_FINDINGS,
    describe_findings,
    find_subgroups,
    interpret_layers,
    search,
)
from neuronfair.audits.wording.summary import describe_certificate
from neuronfair.domain.population.model import PopulationModel
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import DomainError, Unprovable, one_line
from neuronfair.measure.counterfactual_effect import CounterfactualTest
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Scale
from neuronfair.model.open import OpenedModel
from neuronfair.progress import PieceProgress, Progress, count_progress, label_progress, show_nothing
from neuronfair.proof.certificate import Proof
from neuronfair.proof.problem import ProofProblem, build_problem
from neuronfair.proof.records import EvaluatedRecords, ProofRecords, check_against_model
from neuronfair.proof.session import certify
from neuronfair.scale.tasks import Tasks
from neuronfair.searches.config import SearchConfig
from neuronfair.store.ledger import make_portable


@dataclass(frozen=True)
class ProofOutcome:
    """What was proved, and the proof itself, against which later findings are checked; None where nothing was."""

    proved: ProofSummary
    proof: Proof | None = None
    interrupted: bool = False


@dataclass(frozen=True)
class ProofStage:
    """The proof of an audit: `prove` needs no other stage, `report` checks it against what the searches found."""

    opened_model: OpenedModel
    data: Dataset
    population: PopulationModel | None
    seconds: float

    @cached_property
    def _problem(self) -> ProofProblem:
        return build_problem(self.opened_model, self.data.domain, device=self.opened_model.model.encoding.device)

    def prove(self, progress: Progress = show_nothing, *, has_table: bool = True) -> ProofOutcome:
        """Return what can be proved. Ctrl-C ends the proof, and what was proved by then is kept.

        A proof that a record of the data set contradicts is an error.
        """
        progress("Proving", 0, None)
        try:
            problem, data = self._problem, self.data
            if has_table:
                records = ProofRecords.of(problem, data, self.population, model=self.opened_model)
            else:
                records = ProofRecords.none(problem, data.name)
            records = replace(records, max_regions=0)  # an audit does not show them
            report, proof = certify(problem, self.opened_model, records, self.seconds, show=progress)
        except Unprovable as error:
            return ProofOutcome(ProofSummary.nothing(self.data.domain.count, one_line(error)))
        return ProofOutcome(ProofSummary.of(report, describe_certificate(report)[0]), proof, report.interrupted)

    def report(self, audit: AttributeAudit, staged: ProofOutcome) -> None:
        """Add what was proved to the report. A proof that a finding contradicts is an error."""
        findings = [
            EvaluatedRecords(f"found by {outcome.config.method}", outcome.findings.rows)
            for outcome in audit.outcomes
            if outcome.config.twins == "flip"
        ]
        if findings and staged.proof is not None:
            check_against_model(self._problem, staged.proof, self.opened_model, findings, draw=False)
        audit.report = replace(audit.report, proved=staged.proved)
        if staged.interrupted:
            raise KeyboardInterrupt


MAX_SHRUNK = 100  # candidates for the worst findings, with the full budget


@dataclass
class Clock:
    """How long each kind of work took."""

    start: float = field(default_factory=time.perf_counter)
    parts: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """Count the time of a block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add({stage: time.perf_counter() - start})

    def add(self, parts: dict[str, float]) -> None:
        """Count time that was taken elsewhere."""
        for stage, seconds in parts.items():
            self.parts[stage] = self.parts.get(stage, 0.0) + seconds

    def figures(self) -> Seconds:
        """Return the seconds by kind of work, and in all."""
        return Seconds(total=time.perf_counter() - self.start, **self.parts)


@dataclass(frozen=True)
class AttributeChoices:
    """What is to be audited: the table by each choice of sensitive attributes, and what they have in common."""

    views: Sequence[Dataset]
    settings: AuditSettings
    seeds: Tensor
    importance_order: list[int]  # columns, the most important first
    scale: Scale
    population: PopulationModel | None
    provenance: Provenance
    folder: Path | None
    processes: int = 1

    def audit_each(self, opened_model: OpenedModel, audits: list[AttributeAudit], clock: Clock, show: Progress) -> None:
        """Add the findings of each choice; after Ctrl-C, those until then are there."""
        if self.provenance.parallel is not None:
            self._audit_in_pool(opened_model, audits, clock, show)
            return
        for index in range(len(self.views)):
            audits.append(AttributeAudit.of(self.views[index].domain))
            self.audit_one(opened_model, index, audits[-1], clock, show)

    def _audit_in_pool(
        self, opened_model: OpenedModel, audits: list[AttributeAudit], clock: Clock, show: Progress
    ) -> None:
        """Do the same side by side, elsewhere: the model is opened there again."""
        parallel = self.provenance.parallel
        assert parallel is not None
        choices = replace(self, provenance=replace(self.provenance, parallel=None), processes=1)
        common = choices, parallel.opens, Path.cwd()

        def show_total(lines: Sequence[tuple[int, int, int]]) -> None:
            show("Auditing by each attribute", sum(completed == total > 0 for completed, total, _ in lines), len(lines))

        gpus = float(opened_model.model.encoding.device.type == "cuda")
        indices = range(len(self.views))
        for audit, seconds in parallel.pool.map(_audit_in_worker, common, indices, progress=show_total, gpus=gpus):
            audits.append(audit)
            clock.add(seconds)

    def audit_one(
        self, opened_model: OpenedModel, index: int, audit: AttributeAudit, clock: Clock, show: Progress
    ) -> None:
        """Go through all stages by one choice; the proof and the counterfactual test run next to the others."""
        case = self._make_case(opened_model, index)
        if len(self.views) > 1:
            show = label_progress(show, f"{'+'.join(case.domain.sensitive)}: ")
        remarks = note_unused_attributes(case, self.provenance.reads)

        def measure() -> None:
            with clock.of("rate"):
                measure_rates(case, audit, show)
                if not audit.report.depends:
                    audit.note(*remarks)
                audit.note(*self._note_fewer_samples(case))

        is_measured = bool(remarks) or self.processes == 1  # before the others: the rates may tell which test leads
        if is_measured:
            measure()
        leads = self.settings.twins is not None or not audit.report.is_read
        test, proof = None, None
        if self.settings.twins != "flip":
            with clock.of("counterfactuals"):
                test = prepare_test(case, self.settings, leads=leads)
        if self.settings.prove > 0:
            proof = ProofStage(opened_model, case.data, self.population, self.settings.prove / len(self.views))
        side_stages = _SideStages(case, audit, test, proof, clock, show)
        with Tasks(side_stages.list_tasks(show_nothing if self.processes > 1 else show), self.processes) as tasks:
            try:
                if not is_measured:
                    measure()
                search_case = case if test is None else choose_search_case(case, audit, test, show, leads=leads)
                if not tasks.forked:
                    side_stages.report_counterfactuals(tasks)
                with clock.of("interpretation"):
                    interpret_layers(search_case, audit, show)
                with clock.of("search"):
                    self._search(search_case, audit, show)
                with clock.of("rate"):
                    find_subgroups(search_case, audit, show)
                if tasks.forked:
                    side_stages.report_counterfactuals(tasks)
                side_stages.prove(tasks)
            except KeyboardInterrupt:
                tasks.interrupt()
                side_stages.report_finished(tasks)
                raise
            side_stages.report_proof(tasks)
        audit.drop_refuted_notes()

    def _search(self, case: AttributeCase, audit: AttributeAudit, show: Progress) -> None:
        """Search and describe the findings; after Ctrl-C, those until then."""
        try:
            search(case, audit, show)
        except KeyboardInterrupt:
            describe_findings(case, audit, show)
            raise
        describe_findings(case, audit, show)

    def _note_fewer_samples(self, case: AttributeCase) -> tuple[attribute.Note, ...]:
        """Return a note if fewer people are sampled than the settings say, since each takes long."""
        if case.samples >= self.settings.samples:
            return ()
        reason = "a black box takes longer" if isinstance(case.model, BlackBox) else "each has many twins"
        counts = f"{case.samples:,} people were sampled from each population instead of {self.settings.samples:,}"
        remedy = "The confidence intervals take it into account. More: raise --samples."
        return (attribute.Note("fewer-samples", f"To save time, {counts} ({reason}).", remedy),)

    def _make_case(self, opened_model: OpenedModel, index: int) -> AttributeCase:
        view, settings = self.views[index], self.settings
        scaled_settings = settings.scale_budgets(opened_model, len(view.domain.sensitive_values))
        return AttributeCase(
            model=opened_model.model,
            data=view,
            decision=opened_model.decision,
            seeds=self.seeds,
            configs=tuple(
                self._make_config(method, scaled_settings, opened_model)
                for method in settings.choose_methods(opened_model)
            ),
            samples=scaled_settings.samples,
            confidence=settings.confidence,
            seed=settings.seed,
            importance_order=self.importance_order,
            scale=self.scale,
            shrunk=max(MAX_WORST_FINDINGS, round(MAX_SHRUNK * scaled_settings.samples / settings.samples)),
            runs=self._make_run_folder(opened_model, view.domain.sensitive),
            population=self.population,
            opened_model=opened_model,
        )

    def _make_config(self, method: str, settings: AuditSettings, opened_model: OpenedModel) -> SearchConfig:
        return SearchConfig(
            method=method,
            seeds=settings.seeds,
            steps=settings.steps,
            seconds=settings.seconds,
            seed=settings.seed,
            decision=opened_model.decision,
            plausible=settings.plausible,
            scale=self.scale,
        )

    def _make_run_folder(self, opened_model: OpenedModel, sensitive: Sequence[str]) -> RunFolder | None:
        """Return the folder of the searches by one choice of attributes; None for an audit in memory."""
        if self.folder is None:
            return None
        provenance = self.provenance
        return RunFolder(
            path=self.folder / make_folder_name(sensitive),
            model=f"../../{WEIGHTS}" if provenance.trained_here else make_portable(opened_model.source),
            weights=opened_model.fingerprint,
            extra_weights=None if provenance.weights is None else str(provenance.weights.absolute()),
            replay=list_replay_options(opened_model, provenance),
        )


@dataclass(frozen=True)
class _SideStages:
    """The proof and the counterfactual test of one choice, whose tasks other processes may do."""

    case: AttributeCase
    audit: AttributeAudit
    test: CounterfactualTest | DomainError | None
    proof: ProofStage | None
    clock: Clock
    show: Progress

    def list_tasks(self, show: Progress) -> list[Callable[[], object]]:
        """Return the tasks: the proof, if there is one, then the resampled tables."""
        tasks: list[Callable[[], object]] = [] if self.proof is None else [partial(self.proof.prove, show)]
        if isinstance(self.test, CounterfactualTest):
            tasks += [partial(self.test.resample_table, number) for number in range(len(self.test))]
        return tasks

    def report_counterfactuals(self, tasks: Tasks) -> None:
        """Report the counterfactual test, if there is one."""
        if not isinstance(self.test, CounterfactualTest):
            return
        title = "Comparing records with their counterfactual twins"
        self.show(title, 0, None)
        if tasks.forked:
            tables = tasks.results(self._tables)
            self.clock.add({"counterfactuals": tasks.seconds(self._tables)})
        with self.clock.of("counterfactuals"):
            if not tasks.forked:
                tables = self.test.resample_tables(count_progress(self.show, title))
            report_counterfactuals(self.case, self.audit, self.test, tables)

    @property
    def _tables(self) -> range:
        """The numbers of the tasks that resample tables: none where the counterfactual test is impossible."""
        first = int(self.proof is not None)
        return range(first, first + (len(self.test) if isinstance(self.test, CounterfactualTest) else 0))

    def report_finished(self, tasks: Tasks) -> None:
        """Report what is finished after Ctrl-C: the counterfactual test, and the proof as far as it is."""
        if tasks.forked and all(map(tasks.is_done, self._tables)):
            self.report_counterfactuals(tasks)
        self.report_proof(tasks)

    def prove(self, tasks: Tasks) -> None:
        """Wait for the proof, if there is one."""
        if self.proof is not None:
            self.show("Proving", 0, None)
            tasks.results([0])

    def report_proof(self, tasks: Tasks) -> None:
        """Report the proof, if there is one by now."""
        if self.proof is not None and tasks.is_done(0):
            self.clock.add({"proof": tasks.seconds([0])})
            with self.clock.of("proof"):
                self.proof.report(self.audit, *tasks.results([0]))


def _audit_in_worker(
    shared: tuple[AttributeChoices, Callable[[Dataset], OpenedModel], Path], index: int, note: PieceProgress
) -> tuple[AttributeAudit, dict[str, float]]:
    """Go through all stages by one choice in a worker, which opens the model; return also the seconds by stage."""
    choices, opens, folder = shared
    clock, audit = Clock(), AttributeAudit.of(choices.views[index].domain)
    note(0, 1, 0)
    with chdir(folder):  # paths are relative to it
        opened_model = opens(choices.views[-1].to("cpu"))  # as the caller has opened it: all attributes together
        choices.audit_one(opened_model, index, audit, clock, show_nothing)
    note(1, 1, 0)
    return audit, clock.parts
