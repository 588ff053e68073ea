"""The pytest fixture `fairness`: fail a test if too many decisions flip, and show the worst pair."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuronfair.audits.gate.regression_set import read_regression_set, replay_regression_set
from neuronfair.audits.gate.thresholds import (
    GROUP_METRICS,
    Threshold,
    check_groups,
    estimate_min_records,
    read_expressions,
)
from neuronfair.audits.inputs import DRAWN_RECORDS, AuditInput, ModelSource, draw_records, prepare
from neuronfair.audits.provenance import find_score_scale, list_replay_options
from neuronfair.audits.report import GateCheck, RegressionSetReport
from neuronfair.audits.report.attribute import ProofSummary
from neuronfair.audits.report.counterfactual import CounterfactualReport
from neuronfair.audits.stages.attributes import ProofStage
from neuronfair.audits.stages.case import AttributeAudit, AttributeCase, RunFolder, rank_attributes
from neuronfair.audits.stages.encoding_check import check_encoding
from neuronfair.audits.stages.rates import compare_groups, fit_population_if_plausible
from neuronfair.audits.stages.run_searches import describe_findings, search
from neuronfair.audits.wording.phrases import report_counterfactual_test
from neuronfair.audits.wording.summary import describe_pair
from neuronfair.domain.population.counterfactuals import with_counterfactuals
from neuronfair.domain.population.model import PopulationModel
from neuronfair.domain.schema.toml import read_domain
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import DataError, NeuronFairError
from neuronfair.formatting import (
    POPULATIONS,
    Population,
    TwinKind,
    exact_number,
    interval_ends,
    join_words,
    percent,
    printable,
    spell,
)
from neuronfair.measure.counterfactual_effect import CounterfactualSettings
from neuronfair.measure.rate import Rate
from neuronfair.model.blackbox import BlackBox, score_in_batches
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import cluster_seeds
from neuronfair.model.network import Network
from neuronfair.model.open import OpenedModel
from neuronfair.model.records import Records, prepare_records
from neuronfair.parameters import accept_old_names, named_options
from neuronfair.progress import show_nothing
from neuronfair.searches.config import SearchConfig
from neuronfair.store.ledger import MANIFEST, make_portable

SAMPLES = 10_000  # records evaluated at least
CONSTANT_DECISION_TEXT = (
    "this model gave the same decision to every record, so it cannot be assessed. Check that it belongs to this "
    "domain, and the decision"
)
ENCODING_REMEDY = "If the encoding is right: settings=CheckSettings(skip_encoding_check=True)"
Models = nn.Module | Network | BlackBox | OpenedModel | str | Path | Callable[[Any], Any]


@accept_old_names
@dataclass(frozen=True)
class CheckSettings:
    """How thorough a check is. If it fails, `method` searches for a pair to show, from `seeds` starting rows."""

    confidence: float = 0.95
    samples: int | None = None  # records evaluated; None: enough for a fair model to pass
    method: str | None = None  # None: one that suits the model
    seeds: int = 100
    steps: int = 100
    seed: int = 0
    skip_encoding_check: bool = False  # evaluate even if the input encoding check fails
    preprocess: Callable[[Any], Any] | str | None = None  # from a DataFrame to the inputs of the model
    prove: float = 20.0  # time limit of a proof in seconds, if `proved` is set


@dataclass(frozen=True)
class FairnessResult:
    """The measurements of a check that passed."""

    rate: Rate  # the one with the largest upper confidence bound
    max_rate: float
    regression_set: RegressionSetReport | None
    rates: tuple[Rate, ...] = ()  # plausible pairs, data set and plausible records, if there is a data set; input space
    proved: ProofSummary | None = None  # if `proved` was set
    counterfactual: CounterfactualReport | None = None  # with twins="counterfactual"


class Fairness:
    """The fixture `fairness`. It stores the discriminatory inputs that it finds in `folder`.

    `check_texts(model, texts, sensitive, max_rate=0.01)` checks a model of texts, see `neuronfair.text.audit`.
    """

    def __init__(self, folder: Path, check_texts: Callable[..., Any] | None = None) -> None:
        self.check_texts = check_texts
        self._folder = folder
        self._checks = 0

    @named_options()
    def check(
        self,
        model: Models,
        domain: TableDomain | Dataset | str | Path,
        *,
        max_rate: float = 0.01,
        sensitive: str | Sequence[str] | None = None,
        decision: Decision | None = None,
        seconds: float | None = 20.0,
        settings: CheckSettings | None = None,
        regression_set: str | Path | None = None,
        proved: float | None = None,
        twins: TwinKind = "flip",
    ) -> FairnessResult:
        """Fail if the decision flips with `sensitive` for more than `max_rate` of the records.

        `model` is anything that `wrap_model` opens. `domain` is a domain, its TOML file, or a `Dataset`. The upper
        confidence bound of the flip rate must not exceed `max_rate` in any population: records drawn uniformly from
        the domain and, with a data set, its records and realistic synthetic ones. If one does, a search of at most
        `seconds` finds a pair to show.

        With twins="counterfactual", the upper confidence bound of the counterfactual excess must not exceed `max_rate`.
        With `regression_set`, no record of that file may flip. With `proved`, at least this share of the data set, or
        of the input space without one, must be certified. A model that gives all records the same decision fails, and
        so does one that fails the input encoding check, unless the settings trust the encoding.
        """
        __tracebackhide__ = True  # pytest then shows the line of the test
        settings = settings or CheckSettings()
        twins = _read_demands(max_rate, proved, twins, domain)
        source = ModelSource(model, decision=decision, preprocess=settings.preprocess)
        audit_input = prepare(_read_records(domain, settings.seed), source, sensitive=sensitive)
        replayed = _replay_file(regression_set, audit_input)
        measured = _measure_check(audit_input, max_rate, twins, settings, has_table=isinstance(domain, Dataset))
        problems = _list_encoding_problems(audit_input, settings)
        has_flips = any(rate.flips for rate in measured.rates)
        if measured.excess:
            problems += [*measured.excess, *self._find_worst_pair(audit_input, measured, twins, seconds, settings)]
        elif not has_flips and _is_decision_constant(audit_input, measured.case.samples, settings.seed):
            problems.append(CONSTANT_DECISION_TEXT)
        proof = None if proved is None else _prove_case(audit_input, settings, has_table=isinstance(domain, Dataset))
        if proof is not None and proved is not None and proof.certified_share < proved:
            problems.append(f"{proof.sentence} At least {percent(proved)} must be certified.")
        problems += [] if replayed is None else _list_replay_problems(replayed)
        if problems:
            raise AssertionError("\n".join(map(printable, problems)))
        return FairnessResult(measured.largest, max_rate, replayed, measured.rates, proof, measured.counterfactual)

    def check_groups(
        self,
        model: Models,
        data: Dataset,
        *fail_if: str,
        sensitive: str | Sequence[str] | None = None,
        decision: Decision | None = None,
        confidence: float = 0.95,
    ) -> tuple[GateCheck, ...]:
        """Fail if a threshold on group metrics may hold, such as "disparate_impact < 0.8".

        The metrics are `disparate_impact`, `selection_rate.difference` and `error_rate.difference`, each evaluated at
        the worse end of its confidence interval. A metric that cannot be measured is an error.
        """
        __tracebackhide__ = True
        audit_input = prepare(data, ModelSource(model, decision=decision), sensitive=sensitive)
        data, decision = audit_input.data, audit_input.opened_model.decision
        name = "+".join(data.domain.sensitive)
        limits = read_expressions(fail_if, [name], [])
        if not limits or any(limit.metric not in GROUP_METRICS for limit in limits):
            raise NeuronFairError(
                f"expected thresholds on {join_words(GROUP_METRICS)}, got {join_words(fail_if) or 'none'}"
            )
        if _is_decision_constant(audit_input, DRAWN_RECORDS, 0):
            raise AssertionError(CONSTANT_DECISION_TEXT)
        records = prepare_records(audit_input.opened_model, data)
        _, disparity = compare_groups(records.model, records.data, decision, confidence)
        checks = tuple(check_groups(limit, name, disparity) for limit in limits)
        if any(check.fired for check in checks):
            raise AssertionError("\n".join(printable(check.explained) for check in checks if check.fired))
        return checks

    def _find_worst_pair(
        self,
        audit_input: AuditInput,
        measured: _CheckMeasurements,
        twins: TwinKind,
        seconds: float | None,
        settings: CheckSettings,
    ) -> list[str]:
        """Search, and return the worst pair in words and the command that shows it again."""
        folder, model, seed = self._folder / str(self._checks), audit_input.opened_model, settings.seed
        self._checks += 1
        config = SearchConfig(
            method=settings.method or ("frontier" if model.white_box else "frontier-free"),
            seeds=settings.seeds,
            steps=settings.steps,
            seconds=seconds,
            seed=seed,
            decision=model.decision,
            controls=False,
            twins=twins,
            scale=find_score_scale(model, audit_input.data),
        )
        if (folder / config.method / MANIFEST).is_file():
            shutil.rmtree(folder)  # from an earlier run of the same test
        folder.mkdir(parents=True, exist_ok=True)
        data, options = measured.case.data, list_replay_options(model, audit_input.provenance)
        attribute_case = replace(
            measured.case,
            seeds=cluster_seeds(model.model.encoding, data.rows, config.seeds, seed=seed),
            configs=(config,),
            samples=SAMPLES,
            importance_order=rank_attributes(model.model, data.domain, data.rows, model.decision),
            runs=RunFolder(folder, make_portable(model.source), model.fingerprint, None, options or ()),
        )
        audit = AttributeAudit.of(data.domain)
        search(attribute_case, audit, show_nothing)
        describe_findings(attribute_case, audit, show_nothing)
        worst = next((finding for finding in audit.report.worst if finding.replay), None)
        if worst is None:
            return []
        command = f"{worst.replay}{' --model (its file, or package.module:name)' if options is None else ''}"
        return [f"Worst pair, {describe_pair(worst)}", f"See it again: {command}"]


@dataclass(frozen=True)
class _CheckMeasurements:
    """The measurements of a check, and sentences on what exceeds the limit."""

    rates: tuple[Rate, ...]
    case: AttributeCase  # its data set has the twins that searches compare with
    counterfactual: CounterfactualReport | None
    excess: list[str]

    @property
    def largest(self) -> Rate:
        """The rate with the largest upper confidence bound."""
        return max(self.rates, key=lambda rate: rate.interval[1])


def _measure_check(
    audit_input: AuditInput, max_rate: float, twins: TwinKind, settings: CheckSettings, *, has_table: bool
) -> _CheckMeasurements:
    """Measure the flip rates and, if asked for, the counterfactual effect, and compare them with the limit."""
    data, confidence = audit_input.data, settings.confidence
    limit = Threshold(f"flip_rate > {exact_number(max_rate)}", None, "flip_rate", ">", max_rate)
    samples = settings.samples or max(SAMPLES, 4 * (estimate_min_records(limit, 0.0, confidence) or SAMPLES))
    population = fit_population_if_plausible(data, settings.seed) if has_table else None
    model, budget = audit_input.opened_model, (samples, confidence, settings.seed)
    attribute_case = AttributeCase(
        model.model, data, model.decision, *budget, population=population, opened_model=model
    )
    measured = _CheckMeasurements(_measure_flip_rates(attribute_case, has_table=has_table), attribute_case, None, [])
    if twins == "flip":
        return replace(measured, excess=_list_rate_problems(measured.largest, limit, data))
    effect = attribute_case.counterfactual_test(data.rows, CounterfactualSettings(records=settings.samples)).measure()
    report = report_counterfactual_test(data.domain, data.rows, effect, confidence)
    data = replace(data, domain=with_counterfactuals(data.domain, effect.counterfactuals))
    excess = _list_excess_problems(report, max_rate)
    return replace(measured, case=replace(attribute_case, data=data), counterfactual=report, excess=excess)


def _read_demands(
    max_rate: float, proved: float | None, twins: TwinKind, domain: TableDomain | Dataset | str | Path
) -> TwinKind:
    """Return the kind of twins; refuse demands that no model or every model meets."""
    if not 0 < max_rate < 1:
        raise NeuronFairError(f"max_rate must lie between 0 and 1, got {max_rate}: no sample can show a rate of 0")
    if proved is not None and not 0 < proved <= 1:
        raise NeuronFairError(f"proved must be a share above 0, and at most 1, got {proved}")
    twins = SearchConfig(twins=twins).twins  # refuses other words
    if twins == "counterfactual" and not isinstance(domain, Dataset):
        raise NeuronFairError("twins='counterfactual' needs a data set, from which the counterfactual model is fitted")
    return twins


def _list_encoding_problems(audit_input: AuditInput, settings: CheckSettings) -> list[str]:
    if not audit_input.data.labelled or settings.skip_encoding_check:
        return []
    report = check_encoding(audit_input.opened_model, audit_input.data)
    return [f"{report.text} {ENCODING_REMEDY}"] if report.refused else []


def _prove_case(audit_input: AuditInput, settings: CheckSettings, *, has_table: bool) -> ProofSummary:
    stage = ProofStage(audit_input.opened_model, audit_input.data, None, settings.prove)
    return stage.prove(has_table=has_table).proved


def _measure_flip_rates(case: AttributeCase, *, has_table: bool) -> tuple[Rate, ...]:
    """Return the flip rate of each available population and of the whole domain.

    With both a data set and a population model, the rate of plausible pairs comes first.
    """
    populations: list[Population | Records | PopulationModel] = [case.records] if has_table else []
    populations += ["domain"] if case.population is None else [case.population, "domain"]
    pairs = None if case.population is None else case.pair_rate()
    return (*([] if pairs is None else [pairs.rate]), *map(case.rate, populations))


def _is_decision_constant(audit_input: AuditInput, samples: int, seed: int) -> bool:
    """Return whether all records, and `samples` more from the domain, get the same decision."""
    model, data = audit_input.opened_model, audit_input.data
    rows = torch.cat([data.rows, data.domain.sample(samples, torch.Generator().manual_seed(seed))])
    return model.decision.is_unanimous(score_in_batches(model.model, rows))


def _list_rate_problems(rate: Rate, limit: Threshold, data: Dataset) -> list[str]:
    """Return sentences on a rate that may exceed the limit; none if the sample excludes it."""
    low, high = rate.interval
    if not limit.is_met_by(high):
        return []
    by = join_words([spell(name) for name in data.domain.sensitive])
    lines = [
        f"The decision depends on {by} for {percent(rate.rate)} of {POPULATIONS[rate.population]} "
        f"({percent(rate.confidence)} CI {interval_ends(rate.rate, low, high)}; {rate.flips:,} of "
        f"{rate.sampled:,}); at most {percent(limit.number)} is allowed."
    ]
    if not limit.is_met_by(rate.rate):
        min_records = estimate_min_records(limit, rate.rate, rate.confidence)
        if min_records is not None:
            remedy = f"settings=CheckSettings(samples={min_records})"
            if rate.population == "table" and rate.sampled >= len(data):
                remedy = f"the data set has {len(data):,}"
            lines.append(f"This sample is too small to decide: about {min_records:,} records are needed ({remedy}).")
    return lines


def _list_excess_problems(report: CounterfactualReport, max_rate: float) -> list[str]:
    """Return sentences on a counterfactual excess that may be too large; none if its interval excludes it."""
    if report.effect.high <= max_rate:
        return []
    return [f"{report.sentence} Its upper end must be at most {100 * max_rate:g}.", *report.sentences[1:]]


def _list_replay_problems(replayed: RegressionSetReport) -> list[str]:
    """Return sentences on past counterexamples that still flip, or that could not be evaluated."""
    problems = []
    if replayed.still_flips:
        count = f"{replayed.still_flips:,} of {replayed.replayed:,} past counterexamples in {replayed.file}"
        problems += [f"{count} still flip:", *replayed.examples]
    if replayed.unfit:
        total = replayed.replayed + replayed.unfit
        count = f"{replayed.unfit:,} of {total:,} past counterexamples in {replayed.file}"
        problems += [f"{count} no longer fit the domain, so they were not evaluated:", *replayed.notes]
    return problems


def _read_records(domain: TableDomain | Dataset | str | Path, seed: int) -> Dataset:
    """Return the data set, or records drawn from the domain."""
    if isinstance(domain, Dataset):
        return domain
    return draw_records(domain if isinstance(domain, TableDomain) else read_domain(domain), seed)


def _replay_file(file: str | Path | None, audit_input: AuditInput) -> RegressionSetReport | None:
    if file is None:
        return None
    if not Path(file).is_file():
        raise DataError(
            f"{file}: there is no such regression set. Make one: neuronfair audit … --regression-set {file}"
        )
    opened_model, domain = audit_input.opened_model, audit_input.data.domain
    return replay_regression_set(read_regression_set(file, domain), opened_model.model, opened_model.decision)
