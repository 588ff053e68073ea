"""What a threshold such as "sex.rate > 1%" may say: the metrics of an audit by name, and the ranges of their values."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from neuronfair.audits.report.rates import AUDITED
from neuronfair.errors import NeuronFairError, did_you_mean

_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?"
# The last operator that a number follows: a column may be called "a>b".
_EXPRESSION = re.compile(
    rf"(?P<figure>.+?)\s*(?P<compare>>=|<=|>|<)\s*(?P<number>{_NUMBER})\s*(?P<percent>%?)", re.DOTALL
)

RATES = ("rate", *(f"{population}.rate" for population in AUDITED))  # the first: of all that were measured
COUNTERPART = ("counterpart.rate", "counterpart.effect")
CHANGES = tuple(f"{rate}.change" for rate in (*RATES, *COUNTERPART))
LABELLED = "error_rate.difference"  # the only figure of groups that needs labels
OF_GROUPS = ("disparate_impact", "selection_rate.difference", LABELLED)
OF_A_SEARCH = ("findings", "gsr", "lift")
SEVERITIES = ("severity.median", "severity.p95", "severity.max")
PROVED = ("proved_fair", "proved_discriminatory", "open")
ACCURACIES = ("accuracy", "accuracy.test", "accuracy.train", "accuracy.table")
CORPUS = ("corpus.still_flips", "corpus.fixed", "corpus.replayed", "corpus.unfit")
OF_THE_AUDIT = (*ACCURACIES, *CORPUS)
_OLDER = {f"rate.{p}{end}": f"{p}.rate{end}" for p in AUDITED for end in ("", ".change")}  # spellings of 0.1
OF_AN_ATTRIBUTE = (*RATES, *COUNTERPART, *CHANGES, *PROVED, *OF_GROUPS, *OF_A_SEARCH, *SEVERITIES, "worst_auc")


class Metric(NamedTuple):
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


_COUNT = Metric("count", high=math.inf)
METRICS: dict[str, Metric] = {
    **dict.fromkeys((*RATES, "counterpart.rate", *PROVED, *ACCURACIES, "gsr"), Metric("share")),
    **dict.fromkeys(("counterpart.effect", *CHANGES), Metric("difference of shares", low=-1.0)),
    **dict.fromkeys(("selection_rate.difference", LABELLED), Metric("difference of shares")),
    "disparate_impact": Metric("ratio"),
    "lift": Metric("ratio", high=math.inf),
    **dict.fromkeys(("findings", *CORPUS), _COUNT),
    **dict.fromkeys(SEVERITIES, Metric("score gap", high=math.inf)),
    "worst_auc": Metric("area"),
}


@dataclass(frozen=True)
class Limit:
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
    def metric(self) -> Metric:
        """What kind of number the figure is; of a figure of one search, such as gsr.frontier, that of all."""
        return METRICS.get(self.figure) or METRICS[self.figure.partition(".")[0]]

    @property
    def is_share(self) -> bool:
        """Whether the figure is a share, which is read in percent."""
        return self.metric.is_share

    @property
    def looks_up(self) -> bool:
        """Whether large values are the bad ones."""
        return self.compare[0] == ">"


def read_expressions(expressions: Sequence[str], attributes: Sequence[str], methods: Sequence[str]) -> list[Limit]:
    """Return expressions as limits; one that cannot be read, or names an unknown figure, is refused.

    Call it before an audit is begun, with the names of its attributes ("sex", "sex+race") and methods.

    >>> read_expressions(["sex.rate >= 1%"], ["sex", "race"], ["frontier"])[0].number
    0.01
    """
    of_searches = [f"{figure}.{method}" for figure in OF_A_SEARCH for method in methods]
    return [_read(text, attributes, (*OF_AN_ATTRIBUTE, *_OLDER, *of_searches)) for text in expressions]


def _read(text: str, attributes: Sequence[str], of_an_attribute: Sequence[str]) -> Limit:
    match = _EXPRESSION.fullmatch(text.strip())
    if match is None:
        raise refusal(
            text, "expected a figure, one of > >= < <=, and a number, such as 'rate > 0.01' or 'sex.gsr >= 5%'"
        )
    number = float(match["number"]) / (100 if match["percent"] else 1)
    if not math.isfinite(number):
        raise refusal(text, "the limit must be a finite number")
    figure = match["figure"]
    meant: list[tuple[str | None, str]] = [(None, figure)] if figure in (*OF_THE_AUDIT, *of_an_attribute) else []
    for name in attributes:
        if figure.startswith(f"{name}.") and figure[len(name) + 1 :] in of_an_attribute:
            meant.append((name, figure[len(name) + 1 :]))
    if not meant:
        known = [*of_an_attribute, *OF_THE_AUDIT, *(f"{name}.rate" for name in attributes)]
        raise refusal(text, f"there is no figure '{figure}'. {did_you_mean(figure, known)}")
    attribute, figure = meant[0]
    limit = Limit(text, attribute, _OLDER.get(figure, figure), match["compare"], number)
    _refuse_vain(limit, match["figure"], is_percent=bool(match["percent"]))
    return limit


def _refuse_vain(limit: Limit, name: str, *, is_percent: bool) -> None:
    """Refuse a threshold that no value, or every value, of the metric meets, and one whose number is ambiguous."""
    metric, number = limit.metric, limit.number
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


def _meant(limit: Limit, name: str, is_percent: bool) -> str:
    """Return what a threshold outside the range of its metric was probably meant to be."""
    metric, number = limit.metric, limit.number
    if limit.figure == "disparate_impact" and number <= 1:
        return f" The smaller the ratio the worse: did you mean '{name} < 0.8'?"
    if metric.high == 1 and not is_percent and 1 <= number <= 100:
        return f" Did you mean '{name} {limit.compare} {metric.shown(number / 100)}'?"
    return ""


def refusal(expression: str, why: str) -> NeuronFairError:
    """Return the error about an expression that cannot be read or judged."""
    return NeuronFairError(f"--fail-if '{expression}': {why}")
