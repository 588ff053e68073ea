"""The choices of sensitive attributes of an audit: the proof and every other stage for each, in turn or in parallel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from torch import Tensor

from neuronfair.audits.folder import WEIGHTS, folder_name
from neuronfair.audits.provenance import Origin, list_replay_options
from neuronfair.audits.report import Seconds, attribute
from neuronfair.audits.report.attribute import ProofSummary
from neuronfair.audits.settings import AuditSettings
from neuronfair.audits.stages.case import AttributeAudit, AttributeCase, RunFolder
from neuronfair.audits.stages.counterfactual import (
    begin_counterfactuals,
    report_counterfactuals,
    searched_case,
    unread,
)
from neuronfair.audits.stages.rates import measure_rates
from neuronfair.audits.stages.search import (
    MAX_WORST_FINDINGS,
    describe_findings,
    find_subgroups,
    interpret_layers,
    search,
)
from neuronfair.audits.wording.summary import certified_sentences
from neuronfair.domain.population.model import PopulationModel
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import DomainError, Unprovable, one_line
from neuronfair.measure.counterfactual_effect import CounterfactualTest
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Scale
from neuronfair.model.open import OpenedModel
from neuronfair.progress import PieceProgress, Progress, count_progress, label_progress, show_nothing
from neuronfair.proof.certificate import Proof
from neuronfair.proof.problem import Problem, problem_of
from neuronfair.proof.records import EvaluatedRecords, ProofRecords, check_against_model
from neuronfair.proof.session import certify
from neuronfair.scale.tasks import Tasks
from neuronfair.searches.config import SearchConfig
from neuronfair.store.ledger import portable_source


@dataclass(frozen=True)
class StagedProof:
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
    def _problem(self) -> Problem:
        return problem_of(self.opened_model, self.data.domain, device=self.opened_model.model.encoding.device)

    def prove(self, progress: Progress = show_nothing, *, has_table: bool = True) -> StagedProof:
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
            records = replace(records, most_regions=0)  # an audit does not show them
            report, proof = certify(problem, self.opened_model, records, self.seconds, show=progress)
        except Unprovable as error:
            return StagedProof(ProofSummary.nothing(self.data.domain.count, one_line(error)))
        return StagedProof(ProofSummary.of(report, certified_sentences(report)[0]), proof, report.interrupted)

    def report(self, audit: AttributeAudit, staged: StagedProof) -> None:
        """Add what was proved to the report. A proof that a finding contradicts is an error."""
        found = [
            EvaluatedRecords(f"found by {o.config.method}", o.findings.rows)
            for o in audit.outcomes
            if o.config.twins == "flip"
        ]
        if found and staged.proof is not None:
            check_against_model(self._problem, staged.proof, self.opened_model, found, drawn=False)
        audit.report = replace(audit.report, proved=staged.proved)
        if staged.interrupted:
            raise KeyboardInterrupt


SHRUNK = 100  # candidates for the worst findings, with the full budget


@dataclass
class Clock:
    """How long each kind of work took."""

    begun: float = field(default_factory=time.perf_counter)
    parts: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Count the time of a block."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.add({what: time.perf_counter() - begun})

    def add(self, parts: dict[str, float]) -> None:
        """Count time that was taken elsewhere."""
        for what, seconds in parts.items():
            self.parts[what] = self.parts.get(what, 0.0) + seconds

    def figures(self) -> Seconds:
        """Return the seconds by kind of work, and in all."""
        return Seconds(total=time.perf_counter() - self.begun, **self.parts)


@dataclass(frozen=True)
class AttributeChoices:
    """What is to be audited: the table by each choice of sensitive attributes, and what they have in common."""

    views: Sequence[Dataset]
    settings: AuditSettings
    seeds: Tensor
    importance_order: list[int]  # columns, the most important first
    scale: Scale
    population: PopulationModel | None
    origin: Origin
    folder: Path | None
    processes: int = 1

    def audit_each(self, opened_model: OpenedModel, audits: list[AttributeAudit], clock: Clock, show: Progress) -> None:
        """Add the findings of each choice; after Ctrl-C, those until then are there."""
        if self.origin.parallel is not None:
            self._audit_in_pool(opened_model, audits, clock, show)
            return
        for number in range(len(self.views)):
            audits.append(AttributeAudit.of(self.views[number].domain))
            self.audit_one(opened_model, number, audits[-1], clock, show)

    def _audit_in_pool(
        self, opened_model: OpenedModel, audits: list[AttributeAudit], clock: Clock, show: Progress
    ) -> None:
        """Do the same side by side, elsewhere: the model is opened there again."""
        parallel = self.origin.parallel
        assert parallel is not None
        choices = replace(self, origin=replace(self.origin, parallel=None), processes=1)
        common = choices, parallel.opens, Path.cwd()

        def note(lines: Sequence[tuple[int, int, int]]) -> None:
            show("Auditing by each attribute", sum(done == total > 0 for done, total, _ in lines), len(lines))

        gpus = float(opened_model.model.encoding.device.type == "cuda")
        numbers = range(len(self.views))
        for audit, seconds in parallel.pool.map(_audit_in_worker, common, numbers, progress=note, gpus=gpus):
            audits.append(audit)
            clock.add(seconds)

    def audit_one(
        self, opened_model: OpenedModel, number: int, one: AttributeAudit, clock: Clock, show: Progress
    ) -> None:
        """Go through all stages by one choice; the proof and the counterfactual test run next to the others."""
        case = self._case(opened_model, number)
        if len(self.views) > 1:
            show = label_progress(show, f"{'+'.join(case.domain.sensitive)}: ")
        remarks = unread(case, self.origin.reads)

        def measure() -> None:
            with clock.of("rate"):
                measure_rates(case, one, show)
                if not one.report.depends:
                    one.note(*remarks)
                one.note(*self._fewer(case))

        measured = bool(remarks) or self.processes == 1  # before the others: the rates may tell which test leads
        if measured:
            measure()
        leads = self.settings.twins is not None or not one.report.is_read
        test, proof = None, None
        if self.settings.twins != "flip":
            with clock.of("counterfactuals"):
                test = begin_counterfactuals(case, self.settings, leads=leads)
        if self.settings.prove > 0:
            proof = ProofStage(opened_model, case.data, self.population, self.settings.prove / len(self.views))
        side = _SideStages(case, one, test, proof, clock, show)
        with Tasks(side.works(show_nothing if self.processes > 1 else show), self.processes) as tasks:
            try:
                if not measured:
                    measure()
                sought = case if test is None else searched_case(case, one, test, show, leads=leads)
                if not tasks.forked:
                    side.report_counterfactuals(tasks)
                with clock.of("interpretation"):
                    interpret_layers(sought, one, show)
                with clock.of("search"):
                    self._search(sought, one, show)
                with clock.of("rate"):
                    find_subgroups(sought, one, show)
                if tasks.forked:
                    side.report_counterfactuals(tasks)
                side.prove(tasks)
            except KeyboardInterrupt:
                tasks.interrupt()
                side.report_finished(tasks)
                raise
            side.report_proof(tasks)
        one.drop_refuted()

    def _search(self, case: AttributeCase, one: AttributeAudit, show: Progress) -> None:
        """Search and describe the findings; after Ctrl-C, those until then."""
        try:
            search(case, one, show)
        except KeyboardInterrupt:
            describe_findings(case, one, show)
            raise
        describe_findings(case, one, show)

    def _fewer(self, case: AttributeCase) -> tuple[attribute.Note, ...]:
        """Return a note if fewer people are sampled than the settings say, since each takes long."""
        wanted = self.settings.samples
        if case.samples >= wanted:
            return ()
        why = "a black box takes longer" if isinstance(case.model, BlackBox) else "each has many twins"
        seen = f"To save time, {case.samples:,} people were sampled from each population instead of {wanted:,} ({why})."
        return (
            attribute.Note(
                "fewer-samples", seen, "The confidence intervals take it into account. More: raise --samples."
            ),
        )

    def _case(self, opened_model: OpenedModel, number: int) -> AttributeCase:
        view, settings = self.views[number], self.settings
        sized = settings.scale_budgets(opened_model, len(view.domain.sensitive_values))
        return AttributeCase(
            model=opened_model.model,
            data=view,
            decision=opened_model.decision,
            seeds=self.seeds,
            configs=tuple(self._plan(method, sized, opened_model) for method in settings.choose_methods(opened_model)),
            samples=sized.samples,
            confidence=settings.confidence,
            seed=settings.seed,
            importance_order=self.importance_order,
            scale=self.scale,
            shrunk=max(MAX_WORST_FINDINGS, round(SHRUNK * sized.samples / settings.samples)),
            runs=self._runs(opened_model, view.domain.sensitive),
            population=self.population,
            opened_model=opened_model,
        )

    def _plan(self, method: str, settings: AuditSettings, opened_model: OpenedModel) -> SearchConfig:
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

    def _runs(self, opened_model: OpenedModel, sensitive: Sequence[str]) -> RunFolder | None:
        """Return the folder of the searches by one choice of attributes; None for an audit in memory."""
        if self.folder is None:
            return None
        origin = self.origin
        return RunFolder(
            path=self.folder / folder_name(sensitive),
            model=f"../../{WEIGHTS}" if origin.trained_here else portable_source(opened_model.source),
            weights=opened_model.fingerprint,
            extra_weights=None if origin.weights is None else str(origin.weights.absolute()),
            replay=list_replay_options(opened_model, origin),
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

    def works(self, show: Progress) -> list[Callable[[], object]]:
        """Return the tasks: the proof, if there is one, then the resampled tables."""
        works: list[Callable[[], object]] = [] if self.proof is None else [partial(self.proof.prove, show)]
        if isinstance(self.test, CounterfactualTest):
            works += [partial(self.test.resample_table, number) for number in range(len(self.test))]
        return works

    def report_counterfactuals(self, tasks: Tasks) -> None:
        """Report the counterfactual test, if there is one."""
        if not isinstance(self.test, CounterfactualTest):
            return
        what = "Comparing records with their counterfactual twins"
        self.show(what, 0, None)
        if tasks.forked:
            tables = tasks.results(self._tables)
            self.clock.add({"counterfactuals": tasks.seconds(self._tables)})
        with self.clock.of("counterfactuals"):
            if not tasks.forked:
                tables = self.test.resample_tables(count_progress(self.show, what))
            report_counterfactuals(self.case, self.audit, self.test, tables)

    @property
    def _tables(self) -> range:
        """The numbers of the tasks that resample tables: none where the counterfactual test is impossible."""
        first = int(self.proof is not None)
        return range(first, first + (len(self.test) if isinstance(self.test, CounterfactualTest) else 0))

    def report_finished(self, tasks: Tasks) -> None:
        """Report what is finished after Ctrl-C: the counterfactual test, and the proof as far as it is."""
        if tasks.forked and all(map(tasks.done, self._tables)):
            self.report_counterfactuals(tasks)
        self.report_proof(tasks)

    def prove(self, tasks: Tasks) -> None:
        """Wait for the proof, if there is one."""
        if self.proof is not None:
            self.show("Proving", 0, None)
            tasks.results([0])

    def report_proof(self, tasks: Tasks) -> None:
        """Report the proof, if there is one by now."""
        if self.proof is not None and tasks.done(0):
            self.clock.add({"proof": tasks.seconds([0])})
            with self.clock.of("proof"):
                self.proof.report(self.audit, *tasks.results([0]))


def _audit_in_worker(
    common: tuple[AttributeChoices, Callable[[Dataset], OpenedModel], Path], number: int, note: PieceProgress
) -> tuple[AttributeAudit, dict[str, float]]:
    """Go through all stages by one choice in a worker, which opens the model; return also the seconds by stage."""
    choices, opens, folder = common
    clock, one = Clock(), AttributeAudit.of(choices.views[number].domain)
    note(0, 1, 0)
    with chdir(folder):  # paths are relative to it
        opened_model = opens(choices.views[-1].to("cpu"))  # as the caller has opened it: all attributes together
        choices.audit_one(opened_model, number, one, clock, show_nothing)
    note(1, 1, 0)
    return one, clock.parts
