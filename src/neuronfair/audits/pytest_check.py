"""A fairness check in one call, for tests: sample people, and show the worst pair if too many decisions flip."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import nn

from neuronfair.audits.gate.regression_set import read_regression_set, replay_regression_set
from neuronfair.audits.gate.thresholds import GROUP_METRICS, Threshold, check_groups, read_expressions, records_needed
from neuronfair.audits.inputs import DRAWN, AuditInput, ModelSource, drawn_from, prepare
from neuronfair.audits.provenance import replay_options, score_scale
from neuronfair.audits.report.counterfactual import CounterfactualReport
from neuronfair.audits.report.proved import Proved
from neuronfair.audits.report.report import GateCheck, RegressionSetReport
from neuronfair.audits.stages.case import AttributeAudit, AttributeCase
from neuronfair.audits.stages.encoding_check import check_encoding
from neuronfair.audits.stages.findings import describe_findings
from neuronfair.audits.stages.groups import group_metrics
from neuronfair.audits.stages.population import population_if_plausible
from neuronfair.audits.stages.proof import proof_of
from neuronfair.audits.stages.search import search
from neuronfair.audits.wording.counterfactual import counterfactual_report
from neuronfair.audits.wording.phrases import importance
from neuronfair.domain.population.counterfactuals import with_counterfactuals
from neuronfair.domain.population.model import PopulationModel
from neuronfair.domain.population.plausible import plausible_twins
from neuronfair.domain.schema.toml import read_domain
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.domain.twins import TwinKind
from neuronfair.errors import DataError, NeuronFairError
from neuronfair.formatting import POPULATIONS, Population, exact, listed, percent, plain, visible
from neuronfair.measure.counterfactual_effect import Thoroughness, counterfactual_effect
from neuronfair.measure.rate import Rate, flip_rate, plausible_pair_rate
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.model.open import Opened
from neuronfair.model.records import records_of
from neuronfair.progress import silent
from neuronfair.proof.decide.contradictions import EvaluatedPeople
from neuronfair.searches.campaign import cluster_seeds
from neuronfair.searches.config import SearchConfig
from neuronfair.store.manifest import MANIFEST, where

SAMPLES = 10_000  # people judged at least
ALIKE = (
    "this model gave the same decision to every record, so it cannot be assessed. Check that it belongs to this "
    "domain, and the decision"
)
TRUST = "If it is fed rightly: settings=CheckSettings(trust_feeding=True)"
Models = nn.Module | Network | BlackBox | Opened | str | Path | Callable[[Any], Any]


@dataclass(frozen=True)
class CheckSettings:
    """How thorough a check is; if it fails, `method` searches for people to show, from `seeds` rows."""

    confidence: float = 0.95
    samples: int | None = None  # people judged; None: so many that a fair model passes easily
    method: str | None = None  # None: one that can search the model
    seeds: int = 100
    steps: int = 100
    seed: int = 0
    trust_feeding: bool = False  # judge a model even if it seems to be wrongly fed
    preprocess: Callable[[Any], Any] | str | None = None  # from a table to the inputs of the model
    prove: float = 20.0  # seconds for the proof, if one is asked for


class Demands(TypedDict, total=False):
    """What a check may ask for besides a rate."""

    corpus: str | Path | None  # everybody in this file must be decided as their twin is
    proved: float | None  # share of the people of the domain for whom it must be proved that no decision flips
    twins: TwinKind  # "counterpart": the counterfactual test instead of the flip test


@dataclass(frozen=True)
class FairnessResult:
    """What a check that passed has measured."""

    rate: Rate  # the one with the largest upper end
    max_rate: float
    corpus: RegressionSetReport | None
    rates: tuple[Rate, ...] = ()  # of plausible pairs, the table and plausible people, where one was given; the domain
    proved: Proved | None = None  # where a proof was asked for
    counterpart: CounterfactualReport | None = None  # where counterparts were asked for


class Fairness:
    """What the fixture `fairness` is. Discriminatory inputs that it finds are left in `folder` for a replay."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._checks = 0

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
        **demands: Unpack[Demands],
    ) -> FairnessResult:
        """Fail unless the decision flips with `sensitive` for at most `max_rate` of the people of each population.

        `model` is a torch module, a network, a black box, the file of a model or `package.module:name`, or a function
        of a pandas DataFrame with the columns of the domain. `domain` is a domain, its TOML file, or a table with its
        domain. The upper confidence bounds must not exceed `max_rate`: of people drawn uniformly from the domain and,
        with a table, of its rows and of plausible people. Only if one does, a search of `seconds` at most looks for
        people to show. With twins="counterpart" it is the excess of the counterfactual test that must not exceed
        `max_rate`, at its upper confidence bound. Everybody in the `corpus` file must get the decision of their twin.
        For a share `proved` of all people of the domain it must be proved that the decision does not flip. A model that
        gives everybody the same decision fails, and so does one that fails the input encoding check, unless the
        settings trust the encoding: nothing can be said about it.
        """
        __tracebackhide__ = True  # pytest then shows the line of the test
        settings = settings or CheckSettings()
        least, twins = demands.get("proved"), _checked_twins(max_rate, domain, demands)
        source = ModelSource(model, decision=decision, preprocess=settings.preprocess)
        case = prepare(_data(domain, settings.seed), source, sensitive=sensitive)
        past = _replay(demands.get("corpus"), case)
        measured = _measure(case, max_rate, twins, settings, has_table=isinstance(domain, Dataset))
        problems = _encoding_problems(case, settings)
        if measured.excess:
            problems += [*measured.excess, *self._worst_pair(case, measured, twins, seconds, settings)]
        elif not any(rate.found for rate in measured.rates) and decides_alike(case, measured.samples, settings.seed):
            problems.append(ALIKE)
        proved = None if least is None else _prove(case, settings)
        if proved is not None and least is not None and proved.proved_fair.share < least:
            problems.append(
                f"{proved.sentence} It must be proved for {percent(least)} that the decision does not flip."
            )
        if past is not None and past.still_flips:
            count = f"{past.still_flips:,} of {past.replayed:,} past counterexamples in {past.file}"
            problems += [f"{count} still flip:", *past.examples]
        if problems:
            raise AssertionError("\n".join(map(visible, problems)))
        return FairnessResult(measured.largest, max_rate, past, measured.rates, proved, measured.counterpart)

    def check_groups(
        self,
        model: Models,
        data: Dataset,
        *fail_if: str,
        sensitive: str | Sequence[str] | None = None,
        decision: Decision | None = None,
        confidence: float = 0.95,
    ) -> tuple[GateCheck, ...]:
        """Fail if one of these limits holds for the groups of a table, such as "disparate_impact < 0.8".

        The metrics are `disparate_impact`, `selection_rate.difference` and `error_rate.difference`, each taken at the
        safe end of its confidence interval. One that is not known is an error.
        """
        __tracebackhide__ = True
        case = prepare(data, ModelSource(model, decision=decision), sensitive=sensitive)
        data, opened = case.data, case.opened
        name = "+".join(data.domain.sensitive)
        limits = read_expressions(fail_if, [name], [])
        if not limits or any(limit.figure not in GROUP_METRICS for limit in limits):
            raise NeuronFairError(f"expected limits on {listed(GROUP_METRICS)}, got {listed(fail_if) or 'none'}")
        if decides_alike(case, DRAWN, 0):
            raise AssertionError(ALIKE)
        records = records_of(opened, data)
        _, disparity = group_metrics(records.model, records.data, opened.decision, confidence)
        checks = tuple(check_groups(limit, name, disparity) for limit in limits)
        if any(check.fired for check in checks):
            raise AssertionError("\n".join(visible(check.text) for check in checks if check.fired))
        return checks

    def _worst_pair(
        self, case: AuditInput, measured: _Measured, twins: TwinKind, seconds: float | None, settings: CheckSettings
    ) -> list[str]:
        """Search, leave the findings in a folder, and return the worst pair in words and the command to replay it."""
        folder, opened, seed = self._folder / str(self._checks), case.opened, settings.seed
        self._checks += 1
        config = SearchConfig(
            method=settings.method or ("frontier" if opened.white_box else "frontier-free"),
            seeds=settings.seeds,
            steps=settings.steps,
            seconds=seconds,
            seed=seed,
            decision=opened.decision,
            controls=False,
            twins=twins,
            scale=score_scale(opened, case.data),
        )
        if (folder / config.method / MANIFEST).is_file():
            shutil.rmtree(folder)  # of an earlier run of the same test
        folder.mkdir(parents=True, exist_ok=True)
        data, reopen = measured.searched, replay_options(opened, case.origin)
        one = AttributeCase(
            model=opened.model,
            data=data,
            decision=opened.decision,
            seeds=cluster_seeds(opened.model.encoding, data.rows, config.seeds, seed=seed),
            configs=(config,),
            samples=SAMPLES,
            confidence=settings.confidence,
            seed=seed,
            importance_order=importance(opened.model, data.domain, data.rows, opened.decision),
            folder=folder,
            manifest={"model": where(opened.source), "weights": opened.fingerprint},
            replay=reopen or (),
            population=measured.population,
        )
        found = AttributeAudit.of(data.domain)
        search(one, found, silent)
        describe_findings(one, found, silent)
        if not found.report.worst:
            return []
        worst = found.report.worst[0]
        again = f"{worst.replay}{' --model (its file, or package.module:name)' if reopen is None else ''}"
        return [f"Worst pair: {worst.sentence} {worst.how_usual}".rstrip(), f"See it again: {again}"]


@dataclass(frozen=True)
class _Measured:
    """What a check has measured, and what exceeds the limit, in sentences."""

    rates: tuple[Rate, ...]
    samples: int
    population: PopulationModel | None  # of plausible people; None where there is no table
    searched: Dataset  # with the twins that the searches compare people with
    counterpart: CounterfactualReport | None
    excess: list[str]

    @property
    def largest(self) -> Rate:
        """The rate with the largest upper confidence bound."""
        return max(self.rates, key=lambda rate: rate.interval[1])


def _measure(
    case: AuditInput, max_rate: float, twins: TwinKind, settings: CheckSettings, *, has_table: bool
) -> _Measured:
    """Measure the flip rates and, if asked for, the counterfactual effect, and compare them with the limit."""
    data, confidence, seed = case.data, settings.confidence, settings.seed
    limit = Threshold(f"flip_rate > {exact(max_rate)}", None, "flip_rate", ">", max_rate)
    samples = settings.samples or max(SAMPLES, 4 * (records_needed(limit, 0.0, confidence) or SAMPLES))
    population = population_if_plausible(data, seed) if has_table else None
    rates = sampled_rates(case.opened, data, samples, confidence, seed, data if has_table else None, population)
    measured = _Measured(rates, samples, population, data, None, [])
    if twins == "flip":
        return replace(measured, excess=too_many(measured.largest, limit, data))
    counterpart, searched = compared(case.opened, data, settings.samples, confidence, seed)
    return replace(measured, searched=searched, counterpart=counterpart, excess=too_large(counterpart, max_rate))


def _checked_twins(max_rate: float, domain: TableDomain | Dataset | str | Path, demands: Demands) -> TwinKind:
    """Return whom people are compared with; refuse demands that cannot be met or cannot fail."""
    if not 0 < max_rate < 1:
        raise NeuronFairError(
            f"max_rate must lie between 0 and 1, got {max_rate}: no number of people can show a rate of 0"
        )
    least = demands.get("proved")
    if least is not None and not 0 < least <= 1:
        raise NeuronFairError(f"proved must be a share above 0, and at most 1, got {least}")
    twins = SearchConfig(twins=demands.get("twins", "flip")).twins  # which refuses others
    if twins == "counterpart" and not isinstance(domain, Dataset):
        raise NeuronFairError("twins='counterpart' needs a table, which says what people of each group are like")
    return twins


def _encoding_problems(case: AuditInput, settings: CheckSettings) -> list[str]:
    if not case.data.labelled or settings.trust_feeding:
        return []
    feeding = check_encoding(case.opened, case.data)
    return [f"{feeding.text} {TRUST}"] if feeding.refused else []


def _prove(case: AuditInput, settings: CheckSettings) -> Proved:
    seen = [EvaluatedPeople("a row of the table", case.data.rows)]
    return proof_of(case.opened, case.data.domain, settings.prove, silent, seen)[0]


def sampled_rates(
    opened: Opened,
    data: Dataset,
    samples: int,
    confidence: float,
    seed: int,
    table: Dataset | None = None,
    population: PopulationModel | None = None,
) -> tuple[Rate, ...]:
    """Return how often the decision flips in each population that there is, and in the whole domain.

    `table` is the data set, and `population` says who is plausible: then plausible pairs come first.
    """
    every: tuple[Population | Dataset | PopulationModel | None, ...] = (table, population, "domain")
    pairs = None
    if table is not None and population is not None:
        pairs = plausible_pair_rate(
            opened,
            plausible_twins(data.domain, population, table.rows),
            table,
            samples=samples,
            confidence=confidence,
            decision=opened.decision,
            seed=seed,
        )
    return (() if pairs is None else (pairs.rate,)) + tuple(
        flip_rate(
            opened,
            data.domain,
            population=one,
            samples=samples,
            confidence=confidence,
            decision=opened.decision,
            seed=seed,
        )
        for one in every
        if one is not None
    )


def decides_alike(case: AuditInput, samples: int, seed: int) -> bool:
    """Return whether all rows of the table, and so many drawn from the domain, get one decision."""
    model, data, opened = case.opened.model, case.data, case.opened
    people = torch.cat([data.rows, data.domain.sample(samples, torch.Generator().manual_seed(seed))])
    parts = torch.split(people, model.encoding.rows_per_pass)
    return opened.decision.alike(torch.cat([model.scores(part) for part in parts]))


def too_many(rate: Rate, limit: Threshold, data: Dataset) -> list[str]:
    """Return that too many decisions flip; nothing where the people who were sampled exclude it."""
    low, high = rate.interval
    if not limit.met_by(high):
        return []
    by = listed([plain(name) for name in data.domain.sensitive])
    lines = [
        f"The decision flips with {by} for {percent(rate.rate)} of {POPULATIONS[rate.population]} "
        f"({percent(low)} to {percent(high)} with {percent(rate.confidence)} confidence, {rate.found:,} of "
        f"{rate.sampled:,} people); at most {percent(limit.number)} is allowed."
    ]
    if not limit.met_by(rate.rate):
        needed = records_needed(limit, rate.rate, rate.confidence)
        if needed is not None:
            how = f"settings=CheckSettings(samples={needed})"
            if rate.population == "table" and rate.sampled >= len(data):
                how = f"the table has {len(data):,}"
            lines.append(f"These are too few people to decide: about {needed:,} would be needed ({how}).")
    return lines


def compared(
    opened: Opened, data: Dataset, samples: int | None, confidence: float, seed: int
) -> tuple[CounterfactualReport, Dataset]:
    """Return what the counterparts of a table's people came to, and the table whose people are compared with them."""
    effect = counterfactual_effect(
        opened.model,
        data.domain,
        data.rows,
        decision=opened.decision,
        thorough=Thoroughness(people=samples),
        confidence=confidence,
        seed=seed,
    )
    domain = with_counterfactuals(data.domain, effect.counterparts)
    return counterfactual_report(data.domain, data.rows, effect, confidence), replace(data, domain=domain)


def too_large(report: CounterfactualReport, most: float) -> list[str]:
    """Return that the effect of counterparts is too large; nothing where its interval excludes that."""
    if report.effect.high <= most:
        return []
    return [f"{report.sentence} Its upper end may be {100 * most:g} at most.", *report.sentences[1:]]


def _data(domain: TableDomain | Dataset | str | Path, seed: int) -> Dataset:
    """Return the table, or people drawn from a domain where there is none."""
    if isinstance(domain, Dataset):
        return domain
    return drawn_from(domain if isinstance(domain, TableDomain) else read_domain(domain), seed)


def _replay(corpus: str | Path | None, case: AuditInput) -> RegressionSetReport | None:
    if corpus is None:
        return None
    if not Path(corpus).is_file():
        raise DataError(f"{corpus}: there is no such corpus. Make one: neuronfair audit … --corpus {corpus}")
    return replay_regression_set(read_regression_set(corpus, case.data.domain), case.opened.model, case.opened.decision)
