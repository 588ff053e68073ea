"""What a limit such as "sex.rate > 1%" may say: the figures of an audit by name, and how they are compared."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass

from neuronfair.errors import NeuronFairError, did_you_mean
from neuronfair.verdict.rates import AUDITED

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
    def is_share(self) -> bool:
        """Whether the figure is a share, which is read in percent."""
        shares = (*RATES, *COUNTERPART, *CHANGES, *PROVED, *OF_GROUPS)
        return self.figure in shares or self.figure.startswith(("gsr", "accuracy"))

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
    if limit.is_share and abs(number) > 1:
        raise refusal(text, f"{match['figure']} is a share from 0 to 1. Did you mean {match['number']} %?")
    return limit


def refusal(expression: str, why: str) -> NeuronFairError:
    """Return the error about an expression that cannot be read or judged."""
    return NeuronFairError(f"--fail-if '{expression}': {why}")
