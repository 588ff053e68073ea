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
from neuronfair.audits.report.attribute import AUDITED, AttributeReport, Disparity, Gap, Proved, RateOf, is_constant
from neuronfair.audits.report.counterfactual import NO_COUNTERFACTUALS, CounterfactualReport, Interval
from neuronfair.errors import NeuronFairError, did_you_mean
from neuronfair.formatting import POPULATIONS, aligned_percents, first_few, listing, percent, tally
from neuronfair.measure.rate import Rate
from neuronfair.proof.report import Part, RecordPart

_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?"
# The last operator that a number follows: a column may be called "a>b".
_EXPRESSION = re.compile(
    rf"(?P<figure>.+?)\s*(?P<compare>>=|<=|>|<)\s*(?P<number>{_NUMBER})\s*(?P<percent>%?)", re.DOTALL
)

PEOPLE = tuple(f"{population}.rate" for population in AUDITED if population != "domain")  # of which flip_rate speaks
RATES = ("flip_rate", *PEOPLE, "domain.rate")
PROXIES = ("counterfactual.rate", "counterfactual.excess")
CHANGES = tuple(f"{rate}.change" for rate in (*RATES, *PROXIES))
LABELLED = "error_rate.difference"  # the only figure of groups that needs labels
GROUP_METRICS = ("disparate_impact", "selection_rate.difference", LABELLED)
SEARCH_METRICS = ("findings", "gsr", "lift")
SEVERITIES = ("severity.median", "severity.p95", "severity.max")
CERTIFIED = {"certified": "certified_fair", "certified_discriminatory": "certified_discriminatory"}  # of the data set
PROVED = (*CERTIFIED, "proved_fair", "proved_discriminatory", "undecided")  # the others: of the input space
ACCURACIES = ("accuracy", "accuracy.test", "accuracy.train", "accuracy.table")
REGRESSION_SET = tuple(f"regression_set.{one}" for one in ("still_flips", "fixed", "replayed", "unfit"))
AUDIT_METRICS = (*ACCURACIES, *REGRESSION_SET)
_OLDER = {f"rate.{p}{end}": f"{p}.rate{end}" for p in AUDITED for end in ("", ".change")}  # spellings of 0.1
# Of 0.2, with a warning until 0.4.
_RENAMED = {one.replace("regression_set", "corpus"): one for one in REGRESSION_SET}
_RENAMED |= {
    f"counterpart.{old}{end}": f"counterfactual.{new}{end}"
    for old, new in (("rate", "rate"), ("effect", "excess"))
    for end in ("", ".change")
}
_OLDER |= _RENAMED
_OLDER |= {f"rate{end}": f"flip_rate{end}" for end in ("", ".change")}  # of 0.2
_OLDER |= {"open": "undecided"}
ATTRIBUTE_METRICS = (*RATES, *PROXIES, *CHANGES, *PROVED, *GROUP_METRICS, *SEARCH_METRICS, *SEVERITIES, "worst_auc")


_TITLES = {
    "disparate_impact": "Disparate-impact ratio",
    "selection_rate.difference": "Selection-rate difference",
    LABELLED: "Error-rate difference",
    "counterfactual.rate": "Flip rate of counterfactual twins",
    "counterfactual.excess": "Proxy excess",
    "certified": "Certified share",
    "worst_auc": "AS-AUC of the most biased layer",
}
_WORDS = {">": "above", ">=": "at least", "<": "below", "<=": "at most"}
_MOST_RECORDS = 10**9  # the largest sample that is recommended
_MINUS = "\N{MINUS SIGN}"
EMPTY = "The model does not use this attribute, and flips do not show proxies: limit counterfactual.excess, too."
DIGITS = 3  # of a number that lies well apart from its threshold
_T = TypeVar("_T")


class MetricRange(NamedTuple):
    """What kind of number a metric is, and the range in which its values lie."""

    kind: Literal["share", "difference of shares", "ratio", "count", "area", "score gap"]
    low: float = 0.0
    high: float = 1.0

    @property
    def text(self) -> str:
        """The kind and the range in words."""
        what = f"{'an' if self.kind == 'area' else 'a'} {self.kind}"
        if self.high == math.inf:
            return f"{what} of at least {self.low:g}"
        return f"{what} between {self.shown(self.low)} and {self.shown(self.high)}"

    def shown(self, value: float) -> str:
        """Return a value as people write it in a threshold: shares in percent."""
        return f"{100 * value:g}%" if self.is_share else f"{value:g}"

    @property
    def is_share(self) -> bool:
        """Whether it is read in percent."""
        return self.kind in ("share", "difference of shares")


_COUNT = MetricRange("count", high=math.inf)
METRICS: dict[str, MetricRange] = {
    **dict.fromkeys((*RATES, "counterfactual.rate", *PROVED, *ACCURACIES, "gsr"), MetricRange("share")),
    **dict.fromkeys(("counterfactual.excess", *CHANGES), MetricRange("difference of shares", low=-1.0)),
    **dict.fromkeys(("selection_rate.difference", LABELLED), MetricRange("difference of shares")),
    "disparate_impact": MetricRange("ratio"),
    "lift": MetricRange("ratio", high=math.inf),
    **dict.fromkeys(("findings", *REGRESSION_SET), _COUNT),
    **dict.fromkeys(SEVERITIES, MetricRange("score gap", high=math.inf)),
    "worst_auc": MetricRange("area"),
}


@dataclass(frozen=True)
class Threshold:
    """One expression, read: the figure of one attribute, of all of them, or of the whole audit, and its limit."""

    expression: str
    attribute: str | None  # None: of every audited attribute, or of the audit
    figure: str  # as it is spelt today
    compare: str
    number: float

    def met_by(self, value: float) -> bool:
        """Return whether the expression is true of a value."""
        return bool(_COMPARE[self.compare](value, self.number))

    @property
    def range(self) -> MetricRange:
        """What kind of number the figure is; of a figure of one search, such as gsr.frontier, that of all."""
        return METRICS.get(self.figure) or METRICS[self.figure.partition(".")[0]]

    @property
    def looks_up(self) -> bool:
        """Whether large values are the bad ones."""
        return self.compare[0] == ">"


def read_expressions(expressions: Sequence[str], attributes: Sequence[str], methods: Sequence[str]) -> list[Threshold]:
    """Return expressions as limits; one that cannot be read, or names an unknown figure, is refused.

    Call it before an audit is begun, with the names of its attributes ("sex", "sex+race") and methods.

    >>> read_expressions(["sex.flip_rate >= 1%"], ["sex", "race"], ["frontier"])[0].number
    0.01
    """
    of_searches = [f"{figure}.{method}" for figure in SEARCH_METRICS for method in methods]
    return [_read(text, attributes, (*ATTRIBUTE_METRICS, *_OLDER, *of_searches)) for text in expressions]


def _read(text: str, attributes: Sequence[str], of_an_attribute: Sequence[str]) -> Threshold:
    match = _EXPRESSION.fullmatch(text.strip())
    if match is None:
        raise refusal(
            text, "expected a metric, one of > >= < <=, and a number, such as 'flip_rate > 1%' or 'sex.gsr >= 5%'"
        )
    number = float(match["number"]) / (100 if match["percent"] else 1)
    if not math.isfinite(number):
        raise refusal(text, "the threshold must be a finite number")
    figure = match["figure"]
    meant: list[tuple[str | None, str]] = (
        [(None, figure)] if figure in (*AUDIT_METRICS, *_OLDER, *of_an_attribute) else []
    )
    for name in attributes:
        if figure.startswith(f"{name}.") and figure[len(name) + 1 :] in of_an_attribute:
            meant.append((name, figure[len(name) + 1 :]))
    if not meant:
        known = [*of_an_attribute, *AUDIT_METRICS, *(f"{name}.flip_rate" for name in attributes)]
        raise refusal(text, f"there is no metric '{figure}'. {did_you_mean(figure, known)}")
    attribute, figure = meant[0]
    if figure in _RENAMED:
        warnings.warn(f"the metric '{figure}' is now '{_RENAMED[figure]}'", DeprecationWarning, stacklevel=4)
    limit = Threshold(text, attribute, _OLDER.get(figure, figure), match["compare"], number)
    _refuse_vain(limit, match["figure"], is_percent=bool(match["percent"]))
    return limit


def _refuse_vain(limit: Threshold, name: str, *, is_percent: bool) -> None:
    """Refuse a threshold that no value, or every value, of the metric meets, and one whose number is ambiguous."""
    metric, number = limit.range, limit.number
    if is_percent and metric.kind == "count":
        raise refusal(limit.expression, f"{name} is {metric.text}. Leave out the %")
    met = {limit.met_by(value) for value in (metric.low, metric.high)}
    if metric.low < number < metric.high:
        return
    unsure = limit.compare == ">=" and number == metric.high and limit.figure in RATES and not is_percent
    if len(met) == 2 and not unsure:
        return
    vain = "is ambiguous" if unsure else "is always met" if all(met) else "can never be met"
    raise refusal(
        limit.expression, f"{name} is {metric.text}, so this threshold {vain}.{_meant(limit, name, is_percent)}"
    )


def _meant(limit: Threshold, name: str, is_percent: bool) -> str:
    """Return what a threshold outside the range of its metric was probably meant to be."""
    metric, number = limit.range, limit.number
    if limit.figure == "disparate_impact" and number <= 1:
        return f" The smaller the ratio the worse: did you mean '{name} < 0.8'?"
    if metric.high == 1 and not is_percent and 1 <= number <= 100:
        return f" Did you mean '{name} {limit.compare} {metric.shown(number / 100)}'?"
    return ""


def refusal(expression: str, why: str) -> NeuronFairError:
    """Return the error about an expression that cannot be read or evaluated."""
    return NeuronFairError(f"--fail-if '{expression}': {why}")


@dataclass(frozen=True)
class _Measured:
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


def _safe(limit: Threshold, one: RateOf | CounterfactualReport | Interval | Gap, **more: Any) -> _Measured:
    """Return a rate, compared on the end of its interval that is worse for the model."""
    value = one.value if isinstance(one, Gap) else one.rate
    return _Measured(value, one.low, one.high, "upper end" if limit.looks_up else "lower end", **more)


def check(report: Report, expressions: Sequence[str]) -> Gate:
    """Return whether an audit passes, and every check with the value that was compared.

    A metric of an attribute is checked for every audited one unless the expression names one. A metric that is not
    known is an error: a build must not pass for lack of a number, nor for a model with one decision for all records.
    """
    attributes = report.attributes
    methods = {search.method for attribute in attributes for search in attribute.searches}
    checks = []
    for limit in read_expressions(expressions, [a.name for a in attributes], sorted(methods)):
        if limit.figure in AUDIT_METRICS:
            checks.append(_evaluate(limit, None, _of_the_audit(limit, report)))
            continue
        chosen = [a for a in attributes if limit.attribute in (None, a.name)]
        checks += [_evaluate(limit, a.name, _of_an_attribute(limit, a, report)) for a in chosen]
    return Gate(passed=not any(c.fired for c in checks), checks=tuple(checks))


def check_groups(limit: Threshold, attribute: str, disparity: Disparity | None) -> GateCheck:
    """Return whether a threshold on the demographic groups of a data set holds."""
    return _evaluate(limit, attribute, _gap(limit, disparity))


def check_rate(limit: Threshold, attribute: str, rate: Interval, of: str) -> GateCheck:
    """Return whether a threshold on a rate holds; `of` names its population."""
    return _evaluate(limit, attribute, _safe(limit, rate, of=of))


def check_count(limit: Threshold, attribute: str, count: int, note: str) -> GateCheck:
    """Return whether a threshold on a count holds, which has no interval."""
    return _evaluate(limit, attribute, _Measured(count, note=note))


def _evaluate(limit: Threshold, attribute: str | None, measured: _Measured) -> GateCheck:
    fired = limit.met_by(measured.number)
    digits = _digits(limit, measured)
    value, low, high = _texts(limit, measured, digits)
    if measured.low is not None:
        span = f"{low} to {high}" if low.startswith(_MINUS) else f"{low.removesuffix('%')}–{high}"
        value += f" ({percent(measured.confidence)} CI {span})"
    value += f" of {measured.of}" if measured.of else ""
    compared = "it" if measured.judged_on == "value" else f"the {measured.judged_on}"
    said = f"{'is' if fired else 'is not'} {_WORDS[limit.compare]} {_shown(limit, limit.number, digits)}"
    name = measured.name or limit.figure
    title = "Flip rate" if limit.figure in RATES else _TITLES.get(name, name)
    if measured.of and limit.figure in CHANGES:
        title = "Change of the flip rate"
    return GateCheck(
        expression=limit.expression,
        attribute=attribute,
        value=measured.value,
        low=measured.low,
        high=measured.high,
        judged_on=measured.judged_on,
        fired=fired,
        text=f"{title}{f' by {attribute}' if attribute else ''}: {value}; {compared} {said}.",
        figure=name,
        exceeded=limit.met_by(measured.value),
        note=measured.note,
    )


def _of_an_attribute(limit: Threshold, attribute: AttributeReport, report: Report) -> _Measured:
    if limit.figure != "worst_auc" and is_constant(report.attributes):
        raise refusal(
            limit.expression,
            "this model gave the same decision to every record, so it cannot be assessed. Check that it belongs to "
            "this data set and domain, and the --decision",
        )
    if limit.figure in CHANGES:
        return _change(limit, attribute, report.baseline)
    if limit.figure in RATES:
        return _flip_rate(limit, attribute, report.data.rows)
    if limit.figure in PROXIES:
        return _counterfactual(limit, attribute)
    if limit.figure in PROVED:
        return _proved(limit, attribute.name, attribute.proved)
    if limit.figure in GROUP_METRICS:
        return _gap(limit, attribute.disparity)
    if limit.figure in SEVERITIES:
        if attribute.severity is None and not any(search.findings for search in attribute.searches):
            return _Measured(0.0, note="No discriminatory input was found, so there is no gap.")
        severity = _known(limit, attribute.severity, f"no gap was measured for {attribute.name}")
        return _Measured(getattr(severity, limit.figure.partition(".")[2]))
    return _worst_auc(limit, attribute, report) if limit.figure == "worst_auc" else _of_searches(limit, attribute)


def _flip_rate(limit: Threshold, attribute: AttributeReport, rows: int) -> _Measured:
    if attribute.lacks_twins:
        raise refusal(
            limit.expression,
            f"no record of the data set has a plausible twin by {attribute.name}, so no flip could be seen. Check the "
            "rules of the domain file",
        )
    rates = {f"{rate.population}.rate": _rate(limit, rate, rows) for rate in attribute.rates.measured}
    rate = _strictest(limit, rates, f"it was not measured for {attribute.name}")
    return rate if attribute.is_read else replace(rate, note=f"{rate.note} {EMPTY}")


def _worst_auc(limit: Threshold, attribute: AttributeReport, report: Report) -> _Measured:
    why = "a black box has no layers"
    if report.model.white_box and not report.model.layers:
        why = "a linear model has no hidden layers"
    elif report.model.white_box:
        why = "the audit was interrupted before the layers were interpreted"
    found = _known(limit, attribute.interpretation, why)
    return _Measured(_known(limit, found.worst_auc, "the interpretation names no layer"), note=f"Layer {found.worst}.")


def _of_searches(limit: Threshold, attribute: AttributeReport) -> _Measured:
    """Return a metric of the search that was named, or of the one that comes nearest to the threshold or beyond it."""
    figure, _, method = limit.figure.partition(".")
    searches = [s for s in attribute.searches if method in ("", s.method)]
    if not searches:
        raise refusal(limit.expression, f"no search{f' by {method}' if method else ''} was made for {attribute.name}")
    values: dict[str, float] = {}
    for search in searches:
        value: float | None = getattr(search, figure)
        if figure == "lift" and search.findings == 0:
            value = 0.0  # nothing was found, by whatever: not above random
        why = f"the search by {search.method} has none for {attribute.name}"
        if figure == "lift":
            why += ": no random records were drawn to compare with, or none of their decisions flips"
        values[search.method] = _known(limit, value, why)
    worst = (max if limit.looks_up else min)(values, key=lambda name: values[name])
    return _Measured(values[worst], note="" if method else f"Search by {worst}.")


def _of_the_audit(limit: Threshold, report: Report) -> _Measured:
    if limit.figure in ACCURACIES:
        accuracy = report.model.accuracy or {}
        part = limit.figure.partition(".")[2] or ("test" if "test" in accuracy else "table")
        return _Measured(_known(limit, accuracy.get(part), f"the accuracy was not measured ({part})"))
    past = _known(limit, report.regression_set, "no regression set was evaluated. Set --regression-set FILE")
    if past.unfit and not past.replayed and limit.figure != "regression_set.unfit":
        raise refusal(limit.expression, f"none of the {past.unfit:,} counterexamples in {past.file} fits the domain")
    return _Measured(getattr(past, limit.figure.partition(".")[2]))


def _strictest(limit: Threshold, measured: Mapping[str, _Measured], why: str) -> _Measured:
    """Return the metric that was named; for a flip rate, that population's which is nearest to the threshold."""
    of_people = {name: one for name, one in measured.items() if name.removesuffix(".change") in PEOPLE}
    named = {name: one for name, one in measured.items() if name == limit.figure}
    compared = of_people if limit.figure.startswith("flip_rate") else named
    if not compared:
        raise refusal(limit.expression, f"'{limit.figure}' is not known: {why}")
    name = (max if limit.looks_up else min)(compared, key=lambda each: compared[each].number)
    others = [
        f"{percent(one.value)}{'' if one.high is None else f' ({one.judged_on} {percent(one.number)})'} of {one.of}"
        for other, one in compared.items()
        if other != name
    ]
    note = f"{compared[name].note} {f'Other populations: {listing(others)}.' if others else ''}".strip()
    return replace(compared[name], name=name, note=note)


def _rate(limit: Threshold, rate: RateOf, rows: int) -> _Measured:
    end, other = (rate.high, rate.low) if limit.looks_up else (rate.low, rate.high)
    notes = [f"{rate.discriminated:,} of {rate.of:,} flip.", rate.omission]
    if limit.met_by(end) and not limit.met_by(other):
        needed = records_needed(limit, rate.rate, rate.confidence)
        if needed is not None:
            whole = rate.population in ("pairs", "table") and rate.of + rate.alone >= rows
            there = f", and the data set has {rows:,}" if whole else ""
            notes.append(f"The sample is too small to decide: about {needed:,} records are needed{there}.")
        elif limit.met_by(rate.rate):
            notes.append("The rate itself breaches the threshold; a larger sample would hardly change that.")
        else:
            notes.append("No sample can show that. Choose another threshold, or set one on findings.")
    return _safe(limit, rate, confidence=rate.confidence, of=rate.people, note=" ".join(filter(None, notes)))


def _gap(limit: Threshold, disparity: Disparity | None) -> _Measured:
    disparity = _known(limit, disparity, "the model decides between no classes, as with a tolerance")
    gap: Gap | None = getattr(disparity, limit.figure.replace(".", "_"))
    gap = _known(limit, gap, disparity.unknown.get(limit.figure, "it was not measured"))
    notes = [f"The {gap.rate} ('{disparity.selected}') is highest for {gap.most} and lowest for {gap.least}."]
    measured = _safe(limit, gap, confidence=disparity.confidence)
    if limit.met_by(measured.number) and not limit.met_by(gap.value):
        notes.append("The sample is too small to rule it out.")
    if gap.left_out:
        notes.append(f"Groups that are too small are left out: {first_few(gap.left_out)}.")
    return replace(measured, note=" ".join(notes))


def _counterfactual(limit: Threshold, attribute: AttributeReport) -> _Measured:
    why = (note.seen for note in attribute.health if note.name == NO_COUNTERFACTUALS)
    report = _known(limit, attribute.counterfactual, next(why, f"no counterfactual test was made for {attribute.name}"))
    one = report.effect if limit.figure == "counterfactual.excess" else report
    measured = _safe(limit, one, confidence=report.confidence, note=report.sentence)
    if limit.met_by(measured.number) and not limit.met_by(measured.value):
        measured = replace(measured, note=f"{measured.note} The sample, or the number of shuffles, is too small.")
    return measured


def _proved(limit: Threshold, attribute: str, proved: Proved | None) -> _Measured:
    proved = _known(limit, proved, f"no proof was tried for {attribute}. Give --prove SECONDS")
    _known(limit, proved.method, f"nothing can be proved: {proved.reason}")
    if limit.figure in CERTIFIED:
        rows = _known(limit, proved.data_set, "there is no data set. Use proved_fair")
        part: RecordPart = getattr(rows, CERTIFIED[limit.figure])
        return _Measured(part.share, note=f"{part.count:,} of {rows.of:,} records in the data set.")
    space: Part = getattr(proved, limit.figure)
    return _Measured(
        space.share,
        note=f"{tally(int(space.count))} of {tally(int(proved.people))} records of the declared input space.",
    )


def records_needed(limit: Threshold, share: float, confidence: float) -> int | None:
    """Return about how many records would pass the check if the share stays as it is; None where no number does."""

    def passes(records: int) -> bool:
        ends = Rate(round(share * records), records, "domain", confidence).interval
        return not limit.met_by(ends[1] if limit.looks_up else ends[0])

    records = 1
    while not passes(records):
        records *= 2
        if records > _MOST_RECORDS:
            return None
    fails = records // 2
    while records - fails > max(1, records // 100):
        middle = (records + fails) // 2
        fails, records = (fails, middle) if passes(middle) else (middle, records)
    unit: int = 10 ** max(0, len(str(records)) - 2)
    return math.ceil(records / unit) * unit


def _change(limit: Threshold, attribute: AttributeReport, baseline: BaselineReport | None) -> _Measured:
    baseline = _known(limit, baseline, "there is no earlier audit to compare with. Give --baseline FILE")
    on: Literal["lower end", "upper end"] = "lower end" if limit.looks_up else "upper end"
    figure = limit.figure.removesuffix(".change")
    words = {figure: ""} if figure in PROXIES else {f"{one}.rate": POPULATIONS[one] for one in AUDITED}
    known = {change.figure.removeprefix(f"{attribute.name}."): change for change in baseline.changes}
    levels = [rate.confidence for rate in attribute.rates.measured]
    levels += [] if attribute.counterfactual is None else [attribute.counterfactual.confidence]
    confidence = levels[0] if levels else 0.95  # one setting for all intervals
    changes = {
        f"{name}.change": _Measured(c.after - c.before, c.low, c.high, on, confidence, of, c.text)
        for name, of in words.items()
        if (c := known.get(name)) is not None and c.figure != name
    }
    return _strictest(limit, changes, f"{attribute.name} cannot be compared with the earlier audit. {baseline.text}")


def _known(limit: Threshold, value: _T | None, why: str) -> _T:
    if value is None:
        raise refusal(limit.expression, f"'{limit.figure}' is not known: {why}")
    return value


def _digits(limit: Threshold, measured: _Measured) -> int:
    """Return how many digits distinguish a number from its threshold: three, or more where both would look the same."""
    number, place = measured.number, ("value", "lower end", "upper end").index(measured.judged_on)
    if number == limit.number:
        return DIGITS + 1  # the same digits for both
    for digits in range(DIGITS, 17):
        one, other = map(_read_back, (_texts(limit, measured, digits)[place], _shown(limit, limit.number, digits)))
        if (one > other) == (number > limit.number) and one != other:
            return digits
    return 17


def _read_back(text: str) -> float:
    """Return the number in a text of `_shown`, such as "1,234", "below 0.0001%" or "1e-300"."""
    return float(re.sub(r"below |above |%|,", "", text.replace(_MINUS, "-")))


def _texts(limit: Threshold, measured: _Measured, digits: int) -> tuple[str, ...]:
    """Return the value and, where there is an interval, its ends: shares with the same decimals."""
    if measured.low is None or measured.high is None:
        return (_shown(limit, measured.value, digits),) * 3
    numbers = (measured.value, measured.low, measured.high)
    if limit.range.is_share and digits == DIGITS:
        return tuple(f"{text}%" for text in aligned_percents(*numbers))
    return tuple(_shown(limit, number, digits) for number in numbers)


def _shown(limit: Threshold, number: float, digits: int) -> str:
    """Return a number as its metric is read: shares in percent."""
    if limit.range.is_share:
        is_rounded = digits == DIGITS and number != limit.number  # a threshold is shown as it was written
        return percent(number) if is_rounded else f"{100 * number:.{digits}g}%".replace("-", _MINUS)
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:.{digits}g}"
