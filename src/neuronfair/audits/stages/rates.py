"""Metrics of populations: flip rates of records, real and synthetic, and selection and error rates of groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from neuronfair.audits.report import PopulationReport
from neuronfair.audits.report.attribute import (
    MIN_GROUP_ROWS,
    NO_PLAUSIBLE_TWIN,
    Disparity,
    Gap,
    GroupReport,
    Note,
    widen_interval,
)
from neuronfair.audits.stages.case import AttributeAudit, AttributeCase
from neuronfair.audits.wording import phrases
from neuronfair.audits.wording.phrases import report_direction
from neuronfair.domain.draws import draw_order
from neuronfair.domain.population.model import (
    PopulationModel,
    PopulationQuality,
    UserPopulation,
    fit_population,
)
from neuronfair.domain.population.plausible import MIN_PLAUSIBILITY, keep_plausible
from neuronfair.domain.rules import find_excluded_labels
from neuronfair.domain.schema.infer import SMALL_GROUP_RECORDS, SMALL_GROUP_SHARE, suggest_favourable
from neuronfair.domain.table import Target
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import NeuronFairError
from neuronfair.formatting import Population, exact_number, join_words, percent, pluralise
from neuronfair.measure.groups import Group as Counted
from neuronfair.measure.groups import RateComparison, compare_by_difference, compare_by_ratio, measure_groups
from neuronfair.measure.rate import Rate
from neuronfair.model.blackbox import Model, score_in_batches
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import ROWS_PER_PASS
from neuronfair.model.records import Records
from neuronfair.progress import Progress, count_progress


def fit_plausible_population(
    data: Dataset, own_records: Tensor | None, seed: int, progress: Callable[[int, int], None] | None = None
) -> PopulationModel:
    """Return the population model; refused where too few records of the data set are plausible in it.

    `own_records` come from a sampler of the user's own, and stand for all plausible records. `progress` is called
    with the number of columns fitted so far, and of all.
    """
    data = data.in_compared_groups
    model: PopulationModel
    if own_records is None:
        model = fit_population(data.domain, data.rows, seed=seed, progress=progress)
    else:
        model = UserPopulation.of(data.domain, own_records.to(data.rows.device), seed=seed)
    keep_plausible(data.domain, model, MIN_PLAUSIBILITY, data.domain.clip(data.rows))
    return model


def fit_population_if_plausible(data: Dataset, seed: int) -> PopulationModel | None:
    """Return the population model of a data set; None where it has too few plausible records."""
    return fit_audit_population(data, None, seed, 0.0)[0]


def fit_audit_population(
    data: Dataset,
    own_records: Tensor | None,
    seed: int,
    min_plausibility: float,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[PopulationModel | None, str]:
    """Return the population model of an audit; None where no model can be fitted, and why.

    `min_plausibility` is the likelihood percentile that the searches keep to.
    """
    try:
        return fit_plausible_population(data, own_records, seed, progress), ""
    except NeuronFairError as error:
        if min_plausibility:
            raise
        return None, str(error)


def report_population(
    model: PopulationModel | None,
    reason: str,
    rows: int,
    min_plausibility: float,
    measure_quality: Callable[[], PopulationQuality | None],
) -> PopulationReport:
    """Return the report on a population model; `measure_quality` is called for a model of the data set."""
    if model is None:
        return PopulationReport("none", rows, f"There are no realistic synthetic records. {reason}")
    limit_text = ""
    if min_plausibility:
        percentile = percent(min_plausibility)
        limit_text = f" The searches kept to records at or above the {percentile} likelihood percentile."
    if isinstance(model, UserPopulation):
        text = f"Realistic synthetic records are those of the population that was given.{limit_text}"
        return PopulationReport("own", rows, text, least=min_plausibility)
    text, quality = "Realistic synthetic records are drawn from a model of the data set", measure_quality()
    if quality is None:
        return PopulationReport("table", rows, f"{text}.{limit_text}", least=min_plausibility)
    text += f"; a classifier tells them from real ones with an AUC of {quality.auc:.2f} (0.5: not at all).{limit_text}"
    return PopulationReport("table", rows, text, quality.auc, quality.log_likelihood, min_plausibility)


MAX_ROUNDED_RECORDS = 10_000  # records that are evaluated on the grid
NOTABLE_ROUNDING = 0.01  # share of different decisions from which a note says so


def measure_rates(case: AttributeCase, audit: AttributeAudit, progress: Progress) -> None:
    """Estimate how often the decision flips: in plausible pairs, the table's rows, plausible people and the domain."""
    _measure_pairs(case, audit, progress)
    populations: tuple[tuple[Population | Records | PopulationModel | None, str], ...] = (
        (case.records, "Evaluating the records of the data set"),
        (case.population, "Evaluating realistic synthetic records"),
        ("domain", "Evaluating records drawn from the input space"),
    )
    for population, title in populations:
        if population is None:
            continue
        rate = case.rate(population, progress=count_progress(progress, title))
        if rate.population != "table":
            audit.rate = audit.rate or rate
        losers = (
            () if rate.population == "combinations" else report_direction(case.domain, rate.population, rate.direction)
        )
        audit.add_rate(phrases.report_rate(rate), losers)
    audit.note(*_note_small_groups(case))
    rates = audit.report.rates
    if rates.table is not None and rates.plausible is not None and not isinstance(case.population, UserPopulation):
        audit.report = replace(
            audit.report, rates=replace(rates, plausible=widen_interval(rates.plausible, rates.table))
        )
    audit.note(*_note_broken_rules(case), *_note_rounding(case))
    groups, disparity = compare_groups(case.records.model, case.records.data, case.decision, case.confidence)
    audit.report = replace(audit.report, groups=groups, disparity=disparity)


def _note_broken_rules(case: AttributeCase) -> tuple[Note, ...]:
    """Return a note if records break a rule between attributes; a group that is left out breaks none."""
    names = case.domain.sensitive
    between = [rule for rule in case.domain.rules if not ({*rule.when} <= {*names} and not rule.then)]
    domain = replace(case.domain, rules=tuple(between))
    count = sum(int((~domain.valid(part)).sum()) for part in torch.split(case.data.rows, ROWS_PER_PASS))
    if not count:
        return ()
    observation = f"{count:,} of {len(case.data):,} records break a rule; the flip rate of the data set includes them."
    return (Note("rows-break-rules", observation, "Correct the rules in the domain file, or the records."),)


def _note_small_groups(case: AttributeCase) -> tuple[Note, ...]:
    """Return which demographic groups are left out of the twins, and which small ones are not."""
    domain, left_out, small = case.domain, list[str](), list[str]()
    for column in domain.sensitive_columns:
        attribute = domain.attributes[column]
        if not attribute.values:
            continue
        counts = torch.bincount(case.data.rows[:, column].clamp(0, attribute.size - 1), minlength=attribute.size)
        excluded = find_excluded_labels(domain.rules, attribute.name)
        for label, count in zip(attribute.values, counts.tolist(), strict=True):
            group = f"{attribute.name} {label} ({pluralise(count, 'record')})"
            if label in excluded:
                left_out.append(group)
            elif count < SMALL_GROUP_RECORDS and count < SMALL_GROUP_SHARE * len(case.data):
                small.append(group)
    notes = []
    if left_out:
        remedy = "Delete its rule from the domain file to include a group."
        observation = f"Nobody is compared with {join_words(left_out)}: too few records, or their group is not known."
        notes.append(Note("groups-left-out", observation, remedy))
    if small:
        remedy = "Forbid the value by a rule in the domain file to leave a group out."
        observation = f"People are compared with small groups, too: {join_words(small)}."
        observation += " A flip against one of them counts fully."
        notes.append(Note("small-groups", observation, remedy))
    return tuple(notes)


def _note_rounding(case: AttributeCase) -> tuple[Note, ...]:
    """Return what the values of the domain change about the records of the data set."""
    records, remedy = case.records, "Use smaller steps or more labels in the domain file."
    if records.form == "codes":
        observation = f"The metrics of the data set are measured on the grid of the domain: {records.reason}."
        return (Note("measured-on-grid", observation, remedy),) if records.reason else ()
    notes = []
    if records.reason:
        notes.append(Note("empty-cells", f"In the data set, {records.reason}.", "Fill them as your own program does."))
    order = draw_order(len(case.data), case.seed)[:MAX_ROUNDED_RECORDS]
    chosen = order.to(case.data.rows.device)
    grid = score_in_batches(case.model, case.data.rows[chosen]).double()
    count = int(case.decision.differ(grid, records.model.scores(records.data.rows[chosen])).sum())
    if not count:
        return tuple(notes)
    observation = (
        f"{count:,} of {len(order):,} records {'gets' if count == 1 else 'get'} another decision after rounding to "
        "the grid of the domain. The metrics of the data set use the original cells; generated records are on the grid."
    )
    name = "rounded-few"
    if count > NOTABLE_ROUNDING * len(order):
        name = "rounded-records"
        observation += (
            " So many differ that findings and the metrics of generated records may not hold between its steps."
        )
    return (*notes, Note(name, observation, remedy))


def _measure_pairs(case: AttributeCase, audit: AttributeAudit, progress: Progress) -> None:
    """Estimate the flip rate over plausible pairs, where it is known which twins are plausible."""
    if case.pair_domain is case.domain:
        return
    pairs = case.pair_rate(count_progress(progress, "Comparing people with their plausible twins"))
    if pairs is None:
        observation = "Nobody in the data set has a plausible twin, so no flip rate over plausible pairs is known."
        remedy = "Check the rules of the domain file, or choose another attribute."
        audit.note(Note(NO_PLAUSIBLE_TWIN, observation, remedy))
        return
    audit.add_rate(phrases.report_pair_rate(pairs), report_direction(case.domain, "pairs", pairs.rate.direction))


_Comparer = Callable[[Sequence[Rate]], RateComparison | None]
NO_LABELS = "the table has no labels, or not those of the classes that the model tells apart. Name the target column"


def explain_missing_favourable(metric: str, target: Target | None, favourable: str | None) -> str:
    """Return why a metric of groups cannot be computed without the favourable outcome; empty where it can.

    Disparate impact needs it; with more than two classes the differences do, too. With two they are the same for both.
    """
    classes = target.classes if target is not None else ()
    if favourable is not None or (metric != "disparate_impact" and len(classes) <= 2):
        return ""
    needs = "needs the favourable outcome"
    if target is None or not classes:
        return (
            f"{needs}, and the data set has no target with classes. Name the target, and favourable, in a domain file"
        )
    guess = suggest_favourable(target.column, classes)
    hint = f"; probably '{guess}'" if guess is not None else ""
    names = join_words([f"'{name}'" for name in classes])
    return f"{needs}. Set --favourable, or favourable in the domain file, to one of {names}{hint}"


@dataclass(frozen=True)
class _GroupRates:
    """One rate of every group: how many rows it is made of, and how many of them are selected."""

    rate: str
    row_kind: str  # its rows are
    groups: Sequence[str]
    counts: Sequence[tuple[int, int]]

    @property
    def shares(self) -> list[float | None]:
        return [selected / rows if rows else None for rows, selected in self.counts]

    @property
    def large(self) -> list[int]:
        return [i for i, (rows, _) in enumerate(self.counts) if rows >= MIN_GROUP_ROWS]

    @property
    def left_out(self) -> list[str]:
        return [
            f"{self.groups[i]} ({n:,} {self.row_kind})" for i, (n, _) in enumerate(self.counts) if n < MIN_GROUP_ROWS
        ]


def compare_groups(
    model: Model, data: Dataset, decision: Decision, confidence: float = 0.95
) -> tuple[tuple[GroupReport, ...], Disparity | None]:
    """Return the metrics of each demographic group and the gaps between groups; nothing for a tolerance.

    People are selected if they get the favourable outcome. Where none is set, the selection rates are those of the last
    class, and metrics that would depend on which class is the favourable one are not computed.
    """
    if decision.kind == "tolerance":
        return (), None
    domain, classes = data.domain, decision.classes(model.outputs)
    names = domain.target.classes if domain.target is not None else ()
    is_named = len(names) == classes
    class_index = names.index(domain.favourable) if is_named and domain.favourable is not None else classes - 1
    nameless = f"at least {exact_number(decision.value)}" if decision.kind == "threshold" else f"class {class_index}"
    selected = names[class_index] if is_named else nameless
    has_labels = is_named and data.labelled
    group_counts = measure_groups(model, domain, data.rows, data.labels if has_labels else None, decision=decision)
    columns = [domain.attributes[c] for c in domain.sensitive_columns]
    values = [", ".join(a.group_name(code) for a, code in zip(columns, g.codes, strict=True)) for g in group_counts]
    counts = [(group.rows, round(group.selection[class_index] * group.rows)) for group in group_counts]
    right, wrong = (
        [_count_labelled(group, class_index, is_own=own_label) for group in group_counts] for own_label in (True, False)
    )
    by, selection = join_words(domain.sensitive), _GroupRates("selection rate", "rows", values, counts)
    errors = (
        _GroupRates("true positive rate", f"rows labelled {selected}", values, right),
        _GroupRates("false positive rate", f"rows not labelled {selected}", values, wrong),
    )
    figures = {
        "disparate_impact": _find_largest_gap([selection], compare_by_ratio, confidence, by),
        "selection_rate.difference": _find_largest_gap([selection], compare_by_difference, confidence, by),
        "error_rate.difference": NO_LABELS,
    }
    if has_labels:
        figures["error_rate.difference"] = _find_largest_gap(errors, compare_by_difference, confidence, by)
    favourable = domain.favourable if is_named else None
    for name in figures:
        if reason := explain_missing_favourable(name, domain.target if is_named else None, favourable):
            figures[name] = reason
    gaps = {name.replace(".", "_"): gap for name, gap in figures.items() if isinstance(gap, Gap)}
    unknown = {name: reason for name, reason in figures.items() if isinstance(reason, str)}
    shares = zip(values, group_counts, *(rates.shares for rates in errors), strict=True)
    return (
        tuple(
            GroupReport(value, group.rows, group.selection[class_index], group.accuracy, *error_rates)
            for value, group, *error_rates in shares
        ),
        Disparity(selected, confidence, **gaps, unknown=unknown, favourable=favourable is not None),
    )


def _count_labelled(group: Counted, class_index: int, *, is_own: bool) -> tuple[int, int]:
    """Return how many rows have the label of the chosen class, or another, and how many of them are selected."""
    lines = [line for label, line in enumerate(group.confusion) if (label == class_index) == is_own]
    return sum(map(sum, lines)), sum(line[class_index] for line in lines)


def _find_largest_gap(rates: Sequence[_GroupRates], compare: _Comparer, confidence: float, by: str) -> Gap | str:
    """Return how far the groups lie apart in the rate in which they do most; or why that cannot be said.

    The intervals of all rates hold together.
    """
    comparison_count = sum(len(rate.large) for rate in rates)
    spreads = []
    for rate in rates:
        if len(rate.large) < 2:
            reason = f"fewer than two groups by {by} have the {MIN_GROUP_ROWS} {rate.row_kind} that a rate needs"
            return f"{reason}: put ages and other numbers into `bands` in the domain file"
        counts = [rate.counts[i] for i in rate.large]
        spread = compare([Rate(flips, rows, "table", confidence, comparison_count) for rows, flips in counts])
        if spread is None:
            return "nobody is selected in any group"
        spreads.append(spread)
    worst = max(range(len(rates)), key=lambda i: spreads[i].value)
    lowest_group, highest_group = (
        rates[worst].groups[rates[worst].large[i]] for i in (spreads[worst].lowest, spreads[worst].highest)
    )
    return Gap(
        rate=rates[worst].rate,
        value=spreads[worst].value,
        low=max(spread.low for spread in spreads),
        high=max(spread.high for spread in spreads),
        least=lowest_group,
        most=highest_group,
        left_out=tuple(name for rate in rates for name in rate.left_out),
    )
