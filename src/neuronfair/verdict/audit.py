"""The audit: every stage in turn for one model and one table, and what came of it as one report."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from torch import Tensor

from neuronfair.domain.counterpart_fit import fit_counterparts
from neuronfair.domain.data import DATASETS, Data
from neuronfair.domain.toml import format_domain
from neuronfair.errors import NeuronFairError
from neuronfair.model.decision import Decision
from neuronfair.model.open import Opened
from neuronfair.model.probability import Scale
from neuronfair.model.sources import returned_as
from neuronfair.search.outcome import Outcome, Plan
from neuronfair.search.seeds import cluster_seeds
from neuronfair.store.manifest import rows_digest, versions, where
from neuronfair.store.seal import Json
from neuronfair.verdict import inquiry as stages
from neuronfair.verdict.about import Origin, about_data, about_decision, about_model, replay_options, reproduction
from neuronfair.verdict.checks import Ready, attribute_sets
from neuronfair.verdict.counterpart_stage import compare_counterparts, unread
from neuronfair.verdict.description import describe
from neuronfair.verdict.feeding import check_feeding, headed
from neuronfair.verdict.folder import WEIGHTS, begin, folder_name, keep_figures, keep_weights
from neuronfair.verdict.inquiry import Case, Inquiry, Progress, silent
from neuronfair.verdict.population import usual_or_nobody
from neuronfair.verdict.proposal import propose
from neuronfair.verdict.proving import prove_and_sample
from neuronfair.verdict.report import SCHEMA, Report, Seconds
from neuronfair.verdict.sentences import verdict
from neuronfair.verdict.settings import AuditSettings
from neuronfair.verdict.words import importance
from neuronfair.verdict.worst import WORST

SHRUNK = 100  # candidates for the worst findings, with the full budget


@dataclass(frozen=True)
class Result:
    """What an audit came to. `outcomes` holds what each search found, by attribute and method."""

    report: Report
    outcomes: dict[tuple[str, str], Outcome]
    failure: NeuronFairError | None = None  # why the checks could not be judged


def run(
    opened: Opened,
    data: Data,
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
    clock, inquiries, feeding, repair, interrupted, usual = _Clock(), list[Inquiry](), None, None, False, None
    decision = about_decision(opened, data)
    try:
        show("Checking what the model is fed", 0, None)
        feeding = check_feeding(opened, data)
        with clock.of("rate"):
            show("Looking who is usual", 0, None)
            population, usual = usual_or_nobody(data, people, settings.seed, settings.plausible)
        for case in _cases(opened, views, settings, place, origin, decision.scale, clock, show):
            case = replace(case, population=population)
            inquiries.append(Inquiry.of(case.domain))
            labelled = _labelled(show, case.domain.sensitive if len(choices) > 1 else ())
            with clock.of("rate"):
                inquiries[-1].note(*unread(case, origin.reads))
                stages.measure_rates(case, inquiries[-1], labelled)
            sought = case
            if settings.twins != "flip":
                with clock.of("counterparts"):
                    sought = compare_counterparts(case, inquiries[-1], settings, labelled)
            _inquire(sought, inquiries[-1], clock, labelled)
            if settings.prove > 0:
                with clock.of("proof"):
                    prove_and_sample(case, inquiries[-1], opened, settings.prove / len(choices), labelled)
        if settings.repair:
            with clock.of("repair"):
                split_seed = None if origin.card is None else origin.card.seed
                command = _repair_command(sought, inquiries[-1], opened, origin)
                repair = propose(sought, inquiries[-1], opened, split_seed, command, show)
    except KeyboardInterrupt:
        interrupted = True
    entries = tuple(one.report for one in inquiries)
    report = Report(
        neuronfair=versions()["neuronfair"],
        verdict=headed(verdict(entries, len(data), interrupted=interrupted), feeding),
        data=replace(about_data(data, choices[-1], origin), population=usual),
        model=about_model(opened, data, origin),
        decision=decision,
        attributes=entries,
        feeding=feeding,
        repair=repair,
        seconds=clock.figures(),
        reproduction=reproduction(opened, data, settings.seed, origin, interrupted, place),
    )
    report, failure = ready.judge(report, past)
    if place is not None:
        keep_figures(place, report)
    return Result(report, {(one.report.name, o.plan.method): o for one in inquiries for o in one.outcomes}, failure)


def _cases(
    opened: Opened,
    views: Sequence[Data],
    settings: AuditSettings,
    folder: Path | None,
    origin: Origin,
    scale: Scale,
    clock: _Clock,
    show: Progress,
) -> Iterator[Case]:
    """Yield what is to be audited, one choice of sensitive attributes after the other."""
    with clock.of("search"):
        show("Choosing rows to start from", 0, None)
        seeds = cluster_seeds(opened.model.encoding, views[0].rows, settings.seeds, seed=settings.seed)
    telling = importance(opened.model, views[0].domain, views[0].rows, opened.decision)
    for view in views:
        sized = settings.sized(opened, len(view.domain.sensitive_values))
        yield Case(
            model=opened.model,
            data=view,
            decision=opened.decision,
            seeds=seeds,
            plans=tuple(_plan(method, sized, opened.decision, scale) for method in settings.methods_for(opened)),
            samples=sized.samples,
            confidence=settings.confidence,
            seed=settings.seed,
            telling=telling,
            scale=scale,
            shrunk=max(WORST, round(SHRUNK * sized.samples / settings.samples)),
            folder=None if folder is None else folder / folder_name(view.domain.sensitive),
            manifest=_whereabouts(opened, origin),
            replay=replay_options(opened, origin),
        )


def _inquire(case: Case, one: Inquiry, clock: _Clock, show: Progress) -> None:
    """Look inside and search by one choice of sensitive attributes; what was found is described even after Ctrl-C."""
    with clock.of("interpretation"):
        stages.look_inside(case, one, show)
    with clock.of("search"):
        try:
            stages.search(case, one, show)
        finally:
            describe(case, one, show)
    with clock.of("rate"):
        stages.find_subgroups(case, one, show)


def _plan(method: str, settings: AuditSettings, decision: Decision, scale: Scale) -> Plan:
    return Plan(
        method=method,
        seeds=settings.seeds,
        steps=settings.steps,
        seconds=settings.seconds,
        seed=settings.seed,
        decision=decision,
        plausible=settings.plausible,
        scale=scale,
    )


def _whereabouts(opened: Opened, origin: Origin) -> Json:
    """Return what a run's manifest says of the model, as seen from a run folder in the audit's."""
    model = f"../../{WEIGHTS}" if origin.trained_here else where(opened.source)
    weights = None if origin.weights is None else str(origin.weights.absolute())
    return {"model": model, "weights": opened.fingerprint, "extra_weights": weights}


def _manifest(opened: Opened, data: Data, settings: AuditSettings, sensitive: Sequence[str]) -> Json:
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


def _repair_command(case: Case, one: Inquiry, opened: Opened, origin: Origin) -> str | None:
    """Return the command that repairs the model with what was found, or writes the pairs to train it with.

    None where there is no table, no folder or no class to learn.
    """
    named, table = replay_options(opened, origin), origin.table is not None or case.data.name in DATASETS
    target, found = case.domain.target, any(len(outcome.findings) for outcome in one.outcomes)
    known = target is not None and opened.decision.classes(opened.model.outputs) == len(target.classes) > 0
    if case.folder is None or not found or named is None or not table or not (known and case.data.labelled):
        return None
    best = max(one.outcomes, key=lambda outcome: len(outcome.findings)).plan.method
    words = ["neuronfair", "repair", str(case.folder / best)]
    words += ["--data", origin.table, *origin.beside] if origin.table is not None else []
    file = returned_as(WEIGHTS if origin.trained_here else opened.source, weights=origin.weights is not None)
    if file is None or (opened.refit is None and opened.module is None):
        return shlex.join([*words, "--augment", "pairs.csv"])
    return shlex.join([*words, *named, "--out", f"fair{file}"])


@dataclass
class _Clock:
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
            self.parts[what] = self.parts.get(what, 0.0) + time.perf_counter() - begun

    def figures(self) -> Seconds:
        """Return the seconds by kind of work, and in all."""
        return Seconds(total=time.perf_counter() - self.begun, **self.parts)


def _labelled(show: Progress, names: Sequence[str]) -> Progress:
    """Return a progress that says which attributes it is about."""
    label = f"{'+'.join(names)}: " if names else ""

    def labelled(what: str, done: int, total: int | None, note: str = "") -> None:
        show(label + what, done, total, note)

    return labelled
