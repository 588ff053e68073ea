"""Thresholds on the metrics of an audit, such as "flip_rate > 1%": one that is true of the audit fails the build.

An estimate is compared on the safe side of its confidence interval: a threshold fails unless the sample excludes it.
So `flip_rate > 1%` compares the upper end, and no flip among too few people does not pass. `flip_rate` speaks of
people: of plausible pairs, the data set and realistic synthetic records. It fails if it fails for one of them, so that
nothing passes by the choice of the mildest. Records drawn uniformly from the input space have their own metric,
`domain.rate`. Twins that are not plausible count in all of them but `pairs.rate`. A change since an
earlier audit is compared the other way round, on what the intervals show for certain: otherwise a model that is still
the same could never pass. Counts of a search, score gaps and accuracies have no interval: they are taken as they are.
So are proved shares, which are certain: what is undecided counts as neither fair nor discriminatory.
"""

from __future__ import annotations

import math
import operator
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar

from neuronfair.audits.report import BaselineReport, Gate, GateCheck, Report
from neuronfair.audits.report.attribute import (
    AUDITED,
    AttributeReport,
    Disparity,
    FlipRateReport,
    Gap,
    ProofSummary,
    is_constant,
)
from neuronfair.audits.report.counterfactual import NO_COUNTERFACTUALS, CounterfactualReport, Interval
from neuronfair.errors import NeuronFairError, did_you_mean
from neuronfair.formatting import POPULATIONS, aligned_percents, first_few, format_count, join_words, percent
from neuronfair.measure.rate import Rate
from neuronfair.proof.certificate import RecordShare, RowShare

_COMPARISONS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?"
# The last operator that a number follows: a column may be called "a>b".
_EXPRESSION = re.compile(
    rf"(?P<metric>.+?)\s*(?P<compare>>=|<=|>|<)\s*(?P<number>{_NUMBER})\s*(?P<percent>%?)", re.DOTALL
)

RECORD_RATES = tuple(f"{name}.rate" for name in AUDITED if name != "domain")  # the rates of which flip_rate is one
RATES = ("flip_rate", *RECORD_RATES, "domain.rate")
PROXY_METRICS = ("counterfactual.rate", "counterfactual.excess")
CHANGE_METRICS = tuple(f"{rate}.change" for rate in (*RATES, *PROXY_METRICS))
ERROR_RATE_GAP = "error_rate.difference"  # the only metric of groups that needs labels
GROUP_METRICS = ("disparate_impact", "selection_rate.difference", ERROR_RATE_GAP)
SEARCH_METRICS = ("findings", "gsr", "lift")
SEVERITY_METRICS = ("severity.median", "severity.p95", "severity.max")
CERTIFIED = {"certified": "certified_fair", "certified_discriminatory": "certified_discriminatory"}  # of the data set
PROOF_METRICS = (*CERTIFIED, "proved_fair", "proved_discriminatory", "undecided")  # the others: of the input space
ACCURACY_METRICS = ("accuracy", "accuracy.test", "accuracy.train", "accuracy.table")
REGRESSION_METRICS = tuple(f"regression_set.{name}" for name in ("still_flips", "fixed", "replayed", "unfit"))
AUDIT_METRICS = (*ACCURACY_METRICS, *REGRESSION_METRICS)
_OLD_NAMES = {f"rate.{p}{end}": f"{p}.rate{end}" for p in AUDITED for end in ("", ".change")}  # spellings of 0.1
# Spellings of 0.2, with a warning until 0.4.
_RENAMED = {name.replace("regression_set", "corpus"): name for name in REGRESSION_METRICS}
_RENAMED |= {
    f"counterpart.{old}{end}": f"counterfactual.{new}{end}"
    for old, new in (("rate", "rate"), ("effect", "excess"))
    for end in ("", ".change")
}
_OLD_NAMES |= _RENAMED
_OLD_NAMES |= {f"rate{end}": f"flip_rate{end}" for end in ("", ".change")}  # spellings of 0.2
_OLD_NAMES |= {"open": "undecided"}
ATTRIBUTE_METRICS = (
    *RATES,
    *PROXY_METRICS,
    *CHANGE_METRICS,
    *PROOF_METRICS,
    *GROUP_METRICS,
    *SEARCH_METRICS,
    *SEVERITY_METRICS,
    "worst_auc",
)


METRIC_TITLES = {
    "disparate_impact": "Disparate-impact ratio",
    "selection_rate.difference": "Selection-rate difference",
    ERROR_RATE_GAP: "Error-rate difference",
    "counterfactual.rate": "Flip rate of counterfactual twins",
    "counterfactual.excess": "Proxy excess",
    "certified": "Certified share",
    "worst_auc": "AS-AUC of the most biased layer",
    "proved_fair": "Share of the input space certified not to depend",
    "proved_discriminatory": "Share of the input space certified to depend",
    "undecided": "Undecided share of the input space",
    "severity.p95": "95th percentile of the score gaps",
    "accuracy.test": "Accuracy on the test part",
    "accuracy.table": "Accuracy on the data set",
}
_COMPARISON_TEXTS = {">": "above", ">=": "at least", "<": "below", "<=": "at most"}
_MAX_RECORDS = 10**9  # the largest sample that is recommended
_MINUS = "\N{MINUS SIGN}"
FLIPS_ARE_EMPTY = (
    "The model does not use this attribute, and flips do not show proxies: limit counterfactual.excess, too."
)
MIN_DIGITS = 3  # of a number that lies well apart from its threshold
_T = TypeVar("_T")


class MetricRange(NamedTuple):
    """What kind of number a metric is, and the range in which its values lie."""

    kind: Literal["share", "difference of shares", "ratio", "count", "area", "score gap"]
    low: float = 0.0
    high: float = 1.0

    @property
    def text(self) -> str:
        """The kind and the range in words."""
        kind = f"{'an' if self.kind == 'area' else 'a'} {self.kind}"
        if self.high == math.inf:
            return f"{kind} of at least {self.low:g}"
        return f"{kind} between {self.format_value(self.low)} and {self.format_value(self.high)}"

    def format_value(self, value: float) -> str:
        """Return a value as people write it in a threshold: shares in percent."""
        return f"{100 * value:g}%" if self.is_share else f"{value:g}"

    @property
    def is_share(self) -> bool:
        """Whether it is read in percent."""
        return self.kind in ("share", "difference of shares")


_COUNT = MetricRange("count", high=math.inf)
METRICS: dict[str, MetricRange] = {
    **dict.fromkeys((*RATES, "counterfactual.rate", *PROOF_METRICS, *ACCURACY_METRICS, "gsr"), MetricRange("share")),
    **dict.fromkeys(("counterfactual.excess", *CHANGE_METRICS), MetricRange("difference of shares", low=-1.0)),
    **dict.fromkeys(("selection_rate.difference", ERROR_RATE_GAP), MetricRange("difference of shares")),
    "disparate_impact": MetricRange("ratio"),
    "lift": MetricRange("ratio", high=math.inf),
    **dict.fromkeys(("findings", *REGRESSION_METRICS), _COUNT),
    **dict.fromkeys(SEVERITY_METRICS, MetricRange("score gap", high=math.inf)),
    "worst_auc": MetricRange("area"),
}


@dataclass(frozen=True)
class Threshold:
    """One expression, read: the metric of one attribute, of all of them, or of the whole audit, and its limit."""

    expression: str
    attribute: str | None  # None: of every audited attribute, or of the audit
    metric: str  # as it is spelt today
    compare: str
    number: float

    def is_met_by(self, value: float) -> bool:
        """Return whether the expression is true of a value."""
        return bool(_COMPARISONS[self.compare](value, self.number))

    @property
    def range(self) -> MetricRange:
        """What kind of number the metric is; of a metric of one search, such as gsr.frontier, that of all."""
        return METRICS.get(self.metric) or METRICS[self.metric.partition(".")[0]]

    @property
    def looks_up(self) -> bool:
        """Whether large values are the bad ones."""
        return self.compare[0] == ">"


def read_expressions(expressions: Sequence[str], attributes: Sequence[str], methods: Sequence[str]) -> list[Threshold]:
    """Return expressions as limits; one that cannot be read, or names an unknown metric, is refused.

    Call it before an audit is begun, with the names of its attributes ("sex", "sex+race") and methods.

    >>> read_expressions(["sex.flip_rate >= 1%"], ["sex", "race"], ["frontier"])[0].number
    0.01
    """
    search_metrics = [f"{metric}.{method}" for metric in SEARCH_METRICS for method in methods]
    return [
        _read_expression(text, attributes, (*ATTRIBUTE_METRICS, *_OLD_NAMES, *search_metrics)) for text in expressions
    ]


def _read_expression(text: str, attributes: Sequence[str], of_an_attribute: Sequence[str]) -> Threshold:
    match = _EXPRESSION.fullmatch(text.strip())
    if match is None:
        raise make_refusal(
            text, "expected a metric, one of > >= < <=, and a number, such as 'flip_rate > 1%' or 'sex.gsr >= 5%'"
        )
    number = float(match["number"]) / (100 if match["percent"] else 1)
    if not math.isfinite(number):
        raise make_refusal(text, "the threshold must be a finite number")
    metric = match["metric"]
    readings: list[tuple[str | None, str]] = (
        [(None, metric)] if metric in (*AUDIT_METRICS, *_OLD_NAMES, *of_an_attribute) else []
    )
    for name in attributes:
        if metric.startswith(f"{name}.") and metric[len(name) + 1 :] in of_an_attribute:
            readings.append((name, metric[len(name) + 1 :]))
    if not readings:
        metrics = [*of_an_attribute, *AUDIT_METRICS, *(f"{name}.flip_rate" for name in attributes)]
        raise make_refusal(text, f"there is no metric '{metric}'. {did_you_mean(metric, metrics)}")
    attribute, metric = readings[0]
    if metric in _RENAMED:
        warnings.warn(f"the metric '{metric}' is now '{_RENAMED[metric]}'", DeprecationWarning, stacklevel=4)
    threshold = Threshold(text, attribute, _OLD_NAMES.get(metric, metric), match["compare"], number)
    _refuse_pointless(threshold, match["metric"], is_percent=bool(match["percent"]))
    return threshold


def _refuse_pointless(threshold: Threshold, name: str, *, is_percent: bool) -> None:
    """Refuse a threshold that no value, or every value, of the metric meets, and one whose number is ambiguous."""
    value_range, number = threshold.range, threshold.number
    if is_percent and value_range.kind == "count":
        raise make_refusal(threshold.expression, f"{name} is {value_range.text}. Leave out the %")
    outcomes = {threshold.is_met_by(value) for value in (value_range.low, value_range.high)}
    if value_range.low < number < value_range.high:
        return
    is_rate = threshold.metric in RATES and not is_percent
    is_ambiguous = threshold.compare == ">=" and number == value_range.high and is_rate
    if len(outcomes) == 2 and not is_ambiguous:
        return
    defect = "is ambiguous" if is_ambiguous else "is always met" if all(outcomes) else "can never be met"
    raise make_refusal(
        threshold.expression,
        f"{name} is {value_range.text}, so this threshold {defect}.{_suggest_threshold(threshold, name, is_percent)}",
    )


def _suggest_threshold(threshold: Threshold, name: str, is_percent: bool) -> str:
    """Return what a threshold outside the range of its metric was probably meant to be."""
    value_range, number = threshold.range, threshold.number
    if threshold.metric == "disparate_impact" and number <= 1:
        return f" The smaller the ratio the worse: did you mean '{name} < 0.8'?"
    if value_range.high == 1 and not is_percent and 1 <= number <= 100:
        return f" Did you mean '{name} {threshold.compare} {value_range.format_value(number / 100)}'?"
    return ""


def make_refusal(expression: str, reason: str) -> NeuronFairError:
    """Return the error about an expression that cannot be read or evaluated."""
    return NeuronFairError(f"--fail-if '{expression}': {reason}")


@dataclass(frozen=True)
class _Measurement:
    value: float
    low: float | None = None
    high: float | None = None
    judged_on: Literal["value", "lower end", "upper end"] = "value"
    confidence: float = 0.95  # of the interval
    of: str = ""  # its population in words
    note: str = ""  # what else a reader should know, as sentences
    name: str = ""  # what it is called, if not as in the expression: a rate of one population

    @property
    def number(self) -> float:
        """The number that is compared with the threshold."""
        end = {"value": None, "lower end": self.low, "upper end": self.high}[self.judged_on]
        return self.value if end is None else end


def _measure_worse_end(
    threshold: Threshold, rate: FlipRateReport | CounterfactualReport | Interval | Gap, **options: Any
) -> _Measurement:
    """Return a rate, compared on the end of its interval that is worse for the model."""
    value = rate.value if isinstance(rate, Gap) else rate.rate
    return _Measurement(value, rate.low, rate.high, "upper end" if threshold.looks_up else "lower end", **options)


def check_thresholds(report: Report, expressions: Sequence[str]) -> Gate:
    """Return whether an audit passes, and every check with the value that was compared.

    A metric of an attribute is checked for every audited one unless the expression names one. A metric that is not
    known is an error: a build must not pass for lack of a number, nor for a model with one decision for all records.
    """
    attributes = report.attributes
    methods = {search.method for attribute in attributes for search in attribute.searches}
    checks = []
    for threshold in read_expressions(expressions, [a.name for a in attributes], sorted(methods)):
        if threshold.metric in AUDIT_METRICS:
            checks.append(_check_measurement(threshold, None, _measure_audit(threshold, report)))
            continue
        checked = [a for a in attributes if threshold.attribute in (None, a.name)]
        checks += [_check_measurement(threshold, a.name, _measure_attribute(threshold, a, report)) for a in checked]
    return Gate(passed=not any(c.fired for c in checks), checks=tuple(checks))


def check_groups(threshold: Threshold, attribute: str, disparity: Disparity | None) -> GateCheck:
    """Return whether a threshold on the demographic groups of a data set holds."""
    return _check_measurement(threshold, attribute, _measure_gap(threshold, disparity))


def check_rate(threshold: Threshold, attribute: str, rate: Interval, of: str) -> GateCheck:
    """Return whether a threshold on a rate holds; `of` names its population."""
    return _check_measurement(threshold, attribute, _measure_worse_end(threshold, rate, of=of))


def check_count(threshold: Threshold, attribute: str, count: int, note: str) -> GateCheck:
    """Return whether a threshold on a count holds, which has no interval."""
    return _check_measurement(threshold, attribute, _Measurement(count, note=note))


def _check_measurement(threshold: Threshold, attribute: str | None, measured: _Measurement) -> GateCheck:
    fired = threshold.is_met_by(measured.number)
    digits = _count_digits(threshold, measured)
    bound = _format_number(threshold, threshold.number, digits)
    value, low, high = _format_values(threshold, measured, digits)
    if measured.low is not None:
        span = f"{low} to {high}" if low.startswith(_MINUS) else f"{low.removesuffix('%')}–{high}"
        value += f" ({percent(measured.confidence)} CI {span})"
    value += f" of {measured.of}" if measured.of else ""
    subject = "it" if measured.judged_on == "value" else f"the {measured.judged_on}"
    comparison = f"{'is' if fired else 'is not'} {_COMPARISON_TEXTS[threshold.compare]} {bound}"
    name = measured.name or threshold.metric
    title = "Flip rate" if threshold.metric in RATES else METRIC_TITLES.get(name, name)
    if measured.of and threshold.metric in CHANGE_METRICS:
        title = "Change of the flip rate"
    return GateCheck(
        expression=threshold.expression,
        attribute=attribute,
        value=measured.value,
        low=measured.low,
        high=measured.high,
        judged_on=measured.judged_on,
        fired=fired,
        text=f"{title}{f' by {attribute}' if attribute else ''}: {value}; {subject} {comparison}.",
        figure=name,
        exceeded=threshold.is_met_by(measured.value),
        note=measured.note,
    )


def _measure_attribute(threshold: Threshold, attribute: AttributeReport, report: Report) -> _Measurement:
    if threshold.metric != "worst_auc" and is_constant(report.attributes):
        raise make_refusal(
            threshold.expression,
            "this model gave the same decision to every record, so it cannot be assessed. Check that it belongs to "
            "this data set and domain, and the --decision",
        )
    if threshold.metric in CHANGE_METRICS:
        return _measure_change(threshold, attribute, report.baseline)
    if threshold.metric in RATES:
        return _measure_flip_rate(threshold, attribute, report.data.rows)
    if threshold.metric in PROXY_METRICS:
        return _measure_counterfactual(threshold, attribute)
    if threshold.metric in PROOF_METRICS:
        return _measure_proof(threshold, attribute.name, attribute.proved)
    if threshold.metric in GROUP_METRICS:
        return _measure_gap(threshold, attribute.disparity)
    if threshold.metric in SEVERITY_METRICS:
        if attribute.severity is None and not any(search.findings for search in attribute.searches):
            return _Measurement(0.0, note="No discriminatory input was found, so there is no gap.")
        severity = _require(threshold, attribute.severity, f"no gap was measured for {attribute.name}")
        return _Measurement(getattr(severity, threshold.metric.partition(".")[2]))
    if threshold.metric == "worst_auc":
        return _measure_worst_auc(threshold, attribute, report)
    return _measure_searches(threshold, attribute)


def _measure_flip_rate(threshold: Threshold, attribute: AttributeReport, record_count: int) -> _Measurement:
    if attribute.lacks_twins:
        raise make_refusal(
            threshold.expression,
            f"no record of the data set has a plausible twin by {attribute.name}, so no flip could be seen. Check the "
            "rules of the domain file",
        )
    available = attribute.rates.available
    rates = {f"{rate.population}.rate": _measure_rate(threshold, rate, record_count) for rate in available}
    rate = _find_strictest(threshold, rates, f"it was not measured for {attribute.name}")
    return rate if attribute.is_read else replace(rate, note=f"{rate.note} {FLIPS_ARE_EMPTY}")


def _measure_worst_auc(threshold: Threshold, attribute: AttributeReport, report: Report) -> _Measurement:
    reason = "a black box has no layers"
    if report.model.white_box and not report.model.layers:
        reason = "a linear model has no hidden layers"
    elif report.model.white_box:
        reason = "the audit was interrupted before the layers were interpreted"
    interpretation = _require(threshold, attribute.interpretation, reason)
    auc = _require(threshold, interpretation.worst_auc, "the interpretation names no layer")
    return _Measurement(auc, note=f"Layer {interpretation.worst}.")


def _measure_searches(threshold: Threshold, attribute: AttributeReport) -> _Measurement:
    """Return a metric of the search that was named, or of the one that comes nearest to the threshold or beyond it."""
    metric, _, method = threshold.metric.partition(".")
    searches = [s for s in attribute.searches if method in ("", s.method)]
    if not searches:
        name = f" by {method}" if method else ""
        raise make_refusal(threshold.expression, f"no search{name} was made for {attribute.name}")
    values: dict[str, float] = {}
    for search in searches:
        value: float | None = getattr(search, metric)
        if metric == "lift" and search.findings == 0:
            value = 0.0  # nothing was found, by whatever: not above random
        reason = f"the search by {search.method} has none for {attribute.name}"
        if metric == "lift":
            reason += ": no random records were drawn to compare with, or none of their decisions flips"
        values[search.method] = _require(threshold, value, reason)
    worst = (max if threshold.looks_up else min)(values, key=lambda name: values[name])
    return _Measurement(values[worst], note="" if method else f"Search by {worst}.")


def _measure_audit(threshold: Threshold, report: Report) -> _Measurement:
    if threshold.metric in ACCURACY_METRICS:
        accuracy = report.model.accuracy or {}
        part = threshold.metric.partition(".")[2] or ("test" if "test" in accuracy else "table")
        return _Measurement(_require(threshold, accuracy.get(part), f"the accuracy was not measured ({part})"))
    replayed = _require(threshold, report.regression_set, "no regression set was evaluated. Set --regression-set FILE")
    if replayed.unfit and not replayed.replayed and threshold.metric != "regression_set.unfit":
        reason = f"none of the {replayed.unfit:,} counterexamples in {replayed.file} fits the domain"
        raise make_refusal(threshold.expression, reason)
    return _Measurement(getattr(replayed, threshold.metric.partition(".")[2]))


def _find_strictest(threshold: Threshold, measured: Mapping[str, _Measurement], reason: str) -> _Measurement:
    """Return the metric that was named; for a flip rate, that population's which is nearest to the threshold."""
    names = {threshold.metric}
    if threshold.metric.startswith("flip_rate"):
        names = {name for name in measured if name.removesuffix(".change") in RECORD_RATES}
    candidates = {name: measurement for name, measurement in measured.items() if name in names}
    if not candidates:
        raise make_refusal(threshold.expression, f"'{threshold.metric}' is not known: {reason}")
    name = (max if threshold.looks_up else min)(candidates, key=lambda name: candidates[name].number)
    others = [
        f"{percent(m.value)}{'' if m.high is None else f' ({m.judged_on} {percent(m.number)})'} of {m.of}"
        for other, m in candidates.items()
        if other != name
    ]
    note = f"{candidates[name].note} {f'Other populations: {join_words(others)}.' if others else ''}".strip()
    return replace(candidates[name], name=name, note=note)


def _measure_rate(threshold: Threshold, rate: FlipRateReport, record_count: int) -> _Measurement:
    worse_end, better_end = (rate.high, rate.low) if threshold.looks_up else (rate.low, rate.high)
    notes = [f"{rate.discriminated:,} of {rate.of:,} flip.", rate.omission]
    if threshold.is_met_by(worse_end) and not threshold.is_met_by(better_end):
        min_records = estimate_min_records(threshold, rate.rate, rate.confidence)
        if min_records is not None:
            is_whole = rate.population in ("pairs", "table") and rate.of + rate.alone >= record_count
            remark = f", and the data set has {record_count:,}" if is_whole else ""
            notes.append(f"The sample is too small to decide: about {min_records:,} records are needed{remark}.")
        elif threshold.is_met_by(rate.rate):
            notes.append("The rate itself breaches the threshold; a larger sample would hardly change that.")
        else:
            notes.append("No sample can show that. Choose another threshold, or set one on findings.")
    note = " ".join(filter(None, notes))
    return _measure_worse_end(threshold, rate, confidence=rate.confidence, of=rate.people, note=note)


def _measure_gap(threshold: Threshold, disparity: Disparity | None) -> _Measurement:
    disparity = _require(threshold, disparity, "the model decides between no classes, as with a tolerance")
    gap: Gap | None = getattr(disparity, threshold.metric.replace(".", "_"))
    gap = _require(threshold, gap, disparity.unknown.get(threshold.metric, "it was not measured"))
    notes = [f"The {gap.rate} ('{disparity.selected}') is highest for {gap.most} and lowest for {gap.least}."]
    measured = _measure_worse_end(threshold, gap, confidence=disparity.confidence)
    if threshold.is_met_by(measured.number) and not threshold.is_met_by(gap.value):
        notes.append("The sample is too small to rule it out.")
    if gap.left_out:
        notes.append(f"Groups that are too small are left out: {first_few(gap.left_out)}.")
    return replace(measured, note=" ".join(notes))


def _measure_counterfactual(threshold: Threshold, attribute: AttributeReport) -> _Measurement:
    note = attribute.find_note(NO_COUNTERFACTUALS)
    reason = f"no counterfactual test was made for {attribute.name}" if note is None else note.seen
    report = _require(threshold, attribute.counterfactual, reason)
    rate = report.effect if threshold.metric == "counterfactual.excess" else report
    measured = _measure_worse_end(threshold, rate, confidence=report.confidence, note=report.sentence)
    if threshold.is_met_by(measured.number) and not threshold.is_met_by(measured.value):
        measured = replace(measured, note=f"{measured.note} The sample, or the number of shuffles, is too small.")
    return measured


def _measure_proof(threshold: Threshold, attribute: str, proof: ProofSummary | None) -> _Measurement:
    proof = _require(threshold, proof, f"no proof was tried for {attribute}. Give --prove SECONDS")
    _require(threshold, proof.method, f"nothing can be proved: {proof.reason}")
    if threshold.metric in CERTIFIED:
        rows = _require(threshold, proof.data_set, "there is no data set. Use proved_fair")
        part: RecordShare = getattr(rows, CERTIFIED[threshold.metric])
        return _Measurement(part.share, note=f"{part.count:,} of {rows.of:,} records in the data set.")
    space: RowShare = getattr(proof, threshold.metric)
    counts = f"{format_count(int(space.count))} of {format_count(int(proof.people))}"
    return _Measurement(space.share, note=f"{counts} records of the declared input space.")


def estimate_min_records(threshold: Threshold, share: float, confidence: float) -> int | None:
    """Return about how many records would pass the check if the share stays as it is; None where no number does."""

    def passes(records: int) -> bool:
        ends = Rate(round(share * records), records, "domain", confidence).interval
        return not threshold.is_met_by(ends[1] if threshold.looks_up else ends[0])

    records = 1
    while not passes(records):
        records *= 2
        if records > _MAX_RECORDS:
            return None
    fails = records // 2
    while records - fails > max(1, records // 100):
        middle = (records + fails) // 2
        fails, records = (fails, middle) if passes(middle) else (middle, records)
    unit: int = 10 ** max(0, len(str(records)) - 2)
    return math.ceil(records / unit) * unit


def _measure_change(threshold: Threshold, attribute: AttributeReport, baseline: BaselineReport | None) -> _Measurement:
    baseline = _require(threshold, baseline, "there is no earlier audit to compare with. Give --baseline FILE")
    end: Literal["lower end", "upper end"] = "lower end" if threshold.looks_up else "upper end"
    metric = threshold.metric.removesuffix(".change")
    populations = (
        {metric: ""}
        if metric in PROXY_METRICS
        else {f"{population}.rate": POPULATIONS[population] for population in AUDITED}
    )
    changes_by_metric = {change.figure.removeprefix(f"{attribute.name}."): change for change in baseline.changes}
    levels = [rate.confidence for rate in attribute.rates.available]
    levels += [] if attribute.counterfactual is None else [attribute.counterfactual.confidence]
    confidence = levels[0] if levels else 0.95  # one setting for all intervals
    changes = {
        f"{name}.change": _Measurement(c.after - c.before, c.low, c.high, end, confidence, of, c.text)
        for name, of in populations.items()
        if (c := changes_by_metric.get(name)) is not None and c.figure != name
    }
    return _find_strictest(
        threshold, changes, f"{attribute.name} cannot be compared with the earlier audit. {baseline.text}"
    )


def _require(threshold: Threshold, value: _T | None, reason: str) -> _T:
    if value is None:
        raise make_refusal(threshold.expression, f"'{threshold.metric}' is not known: {reason}")
    return value


def _count_digits(threshold: Threshold, measured: _Measurement) -> int:
    """Return how many digits distinguish a number from its threshold: three, or more where both would look the same."""
    number, text_index = measured.number, ("value", "lower end", "upper end").index(measured.judged_on)
    if number == threshold.number:
        return MIN_DIGITS + 1  # the same digits for both
    for digits in range(MIN_DIGITS, 17):
        value, bound = map(
            _parse_number,
            (
                _format_values(threshold, measured, digits)[text_index],
                _format_number(threshold, threshold.number, digits),
            ),
        )
        if (value > bound) == (number > threshold.number) and value != bound:
            return digits
    return 17


def _parse_number(text: str) -> float:
    """Return the number in a text of `_format_number`, such as "1,234", "below 0.0001%" or "1e-300"."""
    return float(re.sub(r"below |above |%|,", "", text.replace(_MINUS, "-")))


def _format_values(threshold: Threshold, measured: _Measurement, digits: int) -> tuple[str, ...]:
    """Return the value and, where there is an interval, its ends: shares with the same decimals."""
    if measured.low is None or measured.high is None:
        return (_format_number(threshold, measured.value, digits),) * 3
    numbers = (measured.value, measured.low, measured.high)
    if threshold.range.is_share and digits == MIN_DIGITS:
        return tuple(f"{text}%" for text in aligned_percents(*numbers))
    return tuple(_format_number(threshold, number, digits) for number in numbers)


def _format_number(threshold: Threshold, number: float, digits: int) -> str:
    """Return a number as its metric is read: shares in percent."""
    if threshold.range.is_share:
        is_rounded = digits == MIN_DIGITS and number != threshold.number  # a threshold is shown as it was written
        return percent(number) if is_rounded else f"{100 * number:.{digits}g}%".replace("-", _MINUS)
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:.{digits}g}"
