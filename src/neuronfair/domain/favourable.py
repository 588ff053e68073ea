"""Which class is the favourable outcome: suggested where its words leave no doubt, and never taken silently."""

from __future__ import annotations

import re
from collections.abc import Sequence

from neuronfair.domain.toml import quoted

# Words for the same answer, and for its opposite. The first pair says nothing without a question: see `_GOOD`.
_ANSWERS = ({"yes", "y", "true", "t"}, {"no", "n", "false", "f"})
_OPPOSITES = (
    ({"good"}, {"bad"}),
    (
        {"approve", "approved", "accept", "accepted", "grant", "granted", "admit", "admitted", "hire", "hired"}
        | {"offer", "offered", "select", "selected", "invite", "invited"},
        {"deny", "denied", "reject", "rejected", "decline", "declined", "refuse", "refused"},
    ),
    ({"paid", "repaid", "fully paid", "paid off"}, {"default", "defaulted", "unpaid", "charged off", "not repaid"}),
    ({"pass", "passed"}, {"fail", "failed"}),
    ({"eligible"}, {"ineligible"}),
    ({"qualified"}, {"unqualified", "disqualified"}),
    ({"success", "successful"}, {"failure", "unsuccessful"}),
)
# A yes to one of these is good news, if nothing harmful is said as well.
_GOOD = re.compile(
    r"\b(?:accept(?:ed|ance)?|admit(?:ted)?|admission|approv(?:e|ed|al)|award(?:ed)?|benefits?|eligible|grant(?:ed)?|hired?|"
    r"invit(?:e|ed)|offer(?:ed)?|pass(?:ed)?|promot(?:ed|ion)|qualified|repaid|selected|shortlisted|success|"
    r"successful)\b"
)
# A yes to one of these is no good news. Short beginnings of words, and long ones anywhere: "loandefault".
_HARM = re.compile(
    r"\b(?:bad|ban|claim|dead|death|debt|deni|deny|die|fail|fine|fire|flag|icu|ill|jail|late|left|leav|loss|lost|miss|not|"
    r"no|quit|sick|sue)|default|fraud|risk|churn|arrest|reject|recid|delinq|crim|offen|violat|violen|bankrupt|mortal|"
    r"diseas|cancer|diabet|stroke|attack|readmi|readmit|terminat|layoff|attrition|lapse|cancel|dropout|drop.out|"
    r"suspen|expel|expul|evict|penal|guilt|convict|complain|hazard|injur|accident|abus|spam|unpaid|charge|foreclos|"
    r"delay|declin|refus|block|suspic|detain|detent|prison|hospital|problem|overdue|arrear|warn|threat|stop|search|withdr|revok|rescin|away|"
    r"sanction|infect|malign|exited"
)


def favourable_line(column: str, classes: Sequence[str]) -> str:
    """Return the comment of a domain file that suggests the favourable outcome.

    >>> print(favourable_line("loan", ["denied", "approved"]))
    # favourable = "approved"  # the favourable outcome: needed for disparate impact
    """
    guess = suggested(column, classes) or _guess(column, classes)[0]
    return f"# favourable = {quoted(guess)}  # the favourable outcome: needed for disparate impact"


def with_favourable(text: str, favourable: str) -> str:
    """Return the text of a domain file that names no favourable outcome with this one."""
    return f"favourable = {quoted(favourable)}\n{text}"  # before the first table, whose key it would be


def suggested(column: str, classes: Sequence[str]) -> str | None:
    """Return the class whose words say that it is the favourable outcome; None where they leave a doubt.

    >>> suggested("loan", ["denied", "approved"]), suggested("two_year_recid", ["no", "yes"])
    ('approved', None)
    """
    guess, sure = _guess(column, classes)
    return guess if sure else None


def _guess(column: str, classes: Sequence[str]) -> tuple[str, bool]:
    """Return a class, and whether its words and those of the other class leave no doubt."""
    for one, other in (classes, classes[::-1]) if len(classes) == 2 else ():
        hoped, feared = _words(one), _words(other)
        if hoped in _ANSWERS[0] and feared in _ANSWERS[1]:
            harmful = _HARM.search(_words(column)) is not None
            return (other, False) if harmful else (one, _GOOD.search(_words(column)) is not None)
        for good, bad in _OPPOSITES:
            opposite = feared in bad or (hoped in good and re.fullmatch(rf"(?:not|no|non|un) ?{hoped}", feared))
            if hoped in good and opposite:
                return one, True
    return classes[-1], False


def _words(text: str) -> str:
    """Return a name as lower-case words: "LoanDefault" and "loan_default" are "loan default"."""
    return " ".join(re.sub(r"(?<=[a-z])(?=[A-Z])|[\W_]+", " ", text).casefold().split())
