"""Limits on the figures of an audit, such as "rate > 0.01": what is true of the audit fails the build.

An estimate is judged on the safe side of its interval: a limit fires unless the people who were sampled exclude it. So
`rate > 0.01` compares the upper end, and nobody found among too few people does not pass. A change since an earlier
audit is judged the other way round, on what the intervals show for certain: otherwise a model that is still the same
could never pass. Counts of a search, score gaps and accuracies have no interval and are taken as they are.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from neuronfair.errors import NeuronFairError, did_you_mean
from neuronfair.verdict.entries import AttributeReport, RateOf
from neuronfair.verdict.report import BaselineReport, Check, Gate, Report
from neuronfair.words import percent

_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_WORDS = {">": "above", ">=": "at least", "<": "below", "<=": "at most"}
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?"
# The last operator that a number follows: a column may be called "a>b".
_EXPRESSION = re.compile(
    rf"(?P<figure>.+?)\s*(?P<compare>>=|<=|>|<)\s*(?P<number>{_NUMBER})\s*(?P<percent>%?)", re.DOTALL
)

RATES = {"rate": "domain", "rate.domain": "domain", "rate.table": "table"}
CHANGES = ("rate.change", "rate.table.change")
OF_A_SEARCH = ("findings", "gsr", "lift")
SEVERITIES = ("severity.median", "severity.p95", "severity.max")
OF_AN_ATTRIBUTE = (*RATES, *CHANGES, *OF_A_SEARCH, *SEVERITIES, "worst_auc")
ACCURACIES = ("accuracy", "accuracy.test", "accuracy.train", "accuracy.table")
CORPUS = ("corpus.still_flips", "corpus.fixed", "corpus.replayed", "corpus.unfit")
OF_THE_AUDIT = (*ACCURACIES, *CORPUS)
_MOST_PEOPLE = 10**9  # more are never asked for
DIGITS = 3  # of a figure that lies well apart from its limit
_T = TypeVar("_T")


@dataclass(frozen=True)
class Limit:
    """One expression, read: the figure of one attribute, of all of them, or of the whole audit, and its limit."""

    expression: str
    attribute: str | None  # None: of every audited attribute, or of the audit
    figure: str
    compare: str
    number: float

    def met_by(self, value: float) -> bool:
        """Return whether the expression is true of a value."""
        return bool(_COMPARE[self.compare](value, self.number))

    @property
    def is_share(self) -> bool:
        """Whether the figure is a share, which is read in percent."""
        return self.figure.startswith(("rate", "gsr", "accuracy"))

    @property
    def looks_up(self) -> bool:
        """Whether large values are the bad ones."""
        return self.compare[0] == ">"


@dataclass(frozen=True)
class _Figure:
    value: float
    low: float | None = None
    high: float | None = None
    judged_on: Literal["value", "lower end", "upper end"] = "value"
    note: str = ""  # what else a reader should know, as a sentence

    def number(self) -> float:
        ends = {"value": self.value, "lower end": self.low, "upper end": self.high}
        end = ends[self.judged_on]
        return self.value if end is None else end


def read_expressions(expressions: Sequence[str], attributes: Sequence[str], methods: Sequence[str]) -> list[Limit]:
    """Return expressions as limits; one that cannot be read, or names an unknown figure, is refused.

    Call it before an audit is begun, with the names of its attributes ("sex", "sex+race") and methods.

    >>> read_expressions(["sex.rate >= 1%"], ["sex", "race"], ["frontier"])[0].number
    0.01
    """
    of_searches = [f"{figure}.{method}" for figure in OF_A_SEARCH for method in methods]
    return [_read(text, attributes, (*OF_AN_ATTRIBUTE, *of_searches)) for text in expressions]


def _read(text: str, attributes: Sequence[str], of_an_attribute: Sequence[str]) -> Limit:
    match = _EXPRESSION.fullmatch(text.strip())
    if match is None:
        raise _error(
            text, "expected a figure, one of > >= < <=, and a number, such as 'rate > 0.01' or 'sex.gsr >= 5%'"
        )
    number = float(match["number"]) / (100 if match["percent"] else 1)
    if not math.isfinite(number):
        raise _error(text, "the limit must be a finite number")
    figure, compare = match["figure"], match["compare"]
    limit = None
    if figure in OF_THE_AUDIT or figure in of_an_attribute:
        limit = Limit(text, None, figure, compare, number)
    for name in attributes:
        if figure.startswith(f"{name}.") and figure[len(name) + 1 :] in of_an_attribute:
            limit = limit or Limit(text, name, figure[len(name) + 1 :], compare, number)
    if limit is not None:
        if limit.is_share and abs(number) > 1:
            raise _error(text, f"{figure} is a share from 0 to 1. Did you mean {match['number']} %?")
        return limit
    known = [*of_an_attribute, *OF_THE_AUDIT, *(f"{name}.rate" for name in attributes)]
    raise _error(text, f"there is no figure '{figure}'. {did_you_mean(figure, known)}")


def check(report: Report, expressions: Sequence[str]) -> Gate:
    """Return whether an audit passes, and every check with what it was judged on.

    A figure of an attribute is checked for every audited one unless the expression names one. A figure that is not
    known is an error: a build must not pass for lack of a number, nor for a model that decides alike for everybody.
    """
    attributes = report.attributes
    methods = {search.method for attribute in attributes for search in attribute.searches}
    checks = []
    for limit in read_expressions(expressions, [a.name for a in attributes], sorted(methods)):
        if limit.figure in OF_THE_AUDIT:
            checks.append(_judge(limit, None, _of_the_audit(limit, report)))
            continue
        chosen = [a for a in attributes if limit.attribute in (None, a.name)]
        checks += [_judge(limit, a.name, _of_an_attribute(limit, a, report)) for a in chosen]
    return Gate(passed=not any(c.fired for c in checks), checks=tuple(checks))


def _judge(limit: Limit, attribute: str | None, figure: _Figure) -> Check:
    fired = limit.met_by(figure.number())
    shown = figure.judged_on if figure.judged_on != "value" else ""
    digits = _digits(limit, figure.number())
    value = _shown(limit, figure.value, digits)
    if figure.low is not None and figure.high is not None:
        value += f" (between {_shown(limit, figure.low, digits)} and {_shown(limit, figure.high, digits)})"
    whose = f" of {attribute}" if attribute else ""
    said = f"{'is' if fired else 'is not'} {_WORDS[limit.compare]} {_shown(limit, limit.number, digits)}"
    text = f"{limit.figure}{whose}: {value}; {f'its {shown}' if shown else 'it'} {said}. {figure.note}".rstrip()
    return Check(
        expression=limit.expression,
        attribute=attribute,
        value=figure.value,
        low=figure.low,
        high=figure.high,
        judged_on=figure.judged_on,
        fired=fired,
        text=text,
    )


def _of_an_attribute(limit: Limit, attribute: AttributeReport, report: Report) -> _Figure:
    figure, _, part = limit.figure.partition(".")
    if limit.figure != "worst_auc" and any(one.is_constant for one in report.attributes):
        raise _error(
            limit.expression,
            "this model decided alike for everybody looked at, so it cannot be judged. Check that it belongs to this "
            "table and domain, and the --decision",
        )
    if limit.figure in CHANGES:
        return _change(limit, attribute.name, report.baseline)
    if limit.figure in RATES:
        rate: RateOf | None = getattr(attribute.rates, RATES[limit.figure])
        return _rate(limit, _known(limit, rate, f"it was not measured for {attribute.name}"))
    if figure in OF_A_SEARCH:
        return _of_searches(limit, attribute, figure, part)
    if limit.figure in SEVERITIES:
        if attribute.severity is None and not any(search.findings for search in attribute.searches):
            return _Figure(0.0, note="Nobody was found, so there is no gap.")
        severity = _known(limit, attribute.severity, f"no gap was measured for {attribute.name}")
        return _Figure(getattr(severity, part))
    why = "a black box has no layers to look into"
    if report.model.white_box and not report.model.layers:
        why = "a linear model has no hidden layers to look into"
    elif report.model.white_box:
        why = "the audit was interrupted before the layers were looked at"
    inside = _known(limit, attribute.interpretation, why)
    worst = _known(limit, inside.worst_auc, "the interpretation names no layer")
    return _Figure(worst, note=f"Layer {inside.worst}.")


def _of_searches(limit: Limit, attribute: AttributeReport, figure: str, method: str) -> _Figure:
    """Return a figure of the search that was named, or of the one that comes nearest to the limit or beyond it."""
    searches = [s for s in attribute.searches if method in ("", s.method)]
    if not searches:
        raise _error(limit.expression, f"no search{f' by {method}' if method else ''} was made for {attribute.name}")
    values: dict[str, float] = {}
    for search in searches:
        value: float | None = getattr(search, figure)
        if figure == "lift" and search.findings == 0:
            value = 0.0  # nothing was found, by whatever: not above random
        why = f"the search by {search.method} has none for {attribute.name}"
        if figure == "lift":
            why += ": nobody was drawn uniformly from the domain to compare with, or no such decision flips"
        values[search.method] = _known(limit, value, why)
    worst = (max if limit.looks_up else min)(values, key=lambda name: values[name])
    return _Figure(values[worst], note="" if method else f"Search by {worst}.")


def _of_the_audit(limit: Limit, report: Report) -> _Figure:
    if limit.figure in ACCURACIES:
        accuracy = report.model.accuracy or {}
        part = limit.figure.partition(".")[2] or ("test" if "test" in accuracy else "table")
        return _Figure(_known(limit, accuracy.get(part), f"the accuracy was not measured ({part})"))
    corpus = _known(limit, report.corpus, "no corpus was replayed. Give --corpus FILE")
    return _Figure(getattr(corpus, limit.figure.partition(".")[2]))


def _rate(limit: Limit, rate: RateOf) -> _Figure:
    end, other = (rate.high, rate.low) if limit.looks_up else (rate.low, rate.high)
    notes = [f"{rate.discriminated:,} of {rate.of:,} people, confidence {percent(rate.confidence)}."]
    if limit.met_by(end) and not limit.met_by(other):
        needed = people_needed(limit, rate.rate, rate.confidence)
        if needed is not None:
            notes.append(f"These are too few people to decide: about {needed:,} would be needed.")
        elif limit.met_by(rate.rate):
            notes.append("The share itself is beyond the limit; more people would hardly change that.")
        else:
            notes.append("No number of people can show that: choose another limit, or limit the findings.")
    return _Figure(rate.rate, rate.low, rate.high, "upper end" if limit.looks_up else "lower end", " ".join(notes))


def people_needed(limit: Limit, share: float, confidence: float) -> int | None:
    """Return about how many people would pass the check if the share stays as it is; None where no number does."""
    from neuronfair.measure.rate import Rate

    def passes(people: int) -> bool:
        ends = Rate(round(share * people), people, "domain", confidence).interval
        return not limit.met_by(ends[1] if limit.looks_up else ends[0])

    people = 1
    while not passes(people):
        people *= 2
        if people > _MOST_PEOPLE:
            return None
    fails = people // 2
    while people - fails > max(1, people // 100):
        middle = (people + fails) // 2
        fails, people = (fails, middle) if passes(middle) else (middle, people)
    unit: int = 10 ** max(0, len(str(people)) - 2)
    return math.ceil(people / unit) * unit


def _change(limit: Limit, attribute: str, baseline: BaselineReport | None) -> _Figure:
    baseline = _known(limit, baseline, "there is no earlier audit to compare with. Give --baseline FILE")
    figure = f"{attribute}.{limit.figure.removesuffix('.change')}"
    change = next((c for c in baseline.changes if c.figure == figure), None)
    if change is None:
        raise _error(limit.expression, f"'{figure}' cannot be compared with the earlier audit. {baseline.text}")
    on: Literal["lower end", "upper end"] = "lower end" if limit.looks_up else "upper end"
    return _Figure(change.after - change.before, change.low, change.high, on, change.text)


def _known(limit: Limit, value: _T | None, why: str) -> _T:
    if value is None:
        raise _error(limit.expression, f"'{limit.figure}' is not known: {why}")
    return value


def _digits(limit: Limit, number: float) -> int:
    """Return how many digits tell a number from its limit: three, or so many that both do not look the same."""
    enough = (d for d in range(DIGITS, 17) if _shown(limit, number, d) != _shown(limit, limit.number, d))
    return DIGITS if number == limit.number else next(enough, 17)


def _shown(limit: Limit, number: float, digits: int) -> str:
    """Return a number as its figure is read: shares in percent."""
    if limit.is_share:
        return percent(number) if digits == DIGITS else f"{100 * number:.{digits}g} %".replace("-", "\N{MINUS SIGN}")
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:.{digits + 1}g}"


def _error(expression: str, what: str) -> NeuronFairError:
    return NeuronFairError(f"--fail-if '{expression}': {what}")
